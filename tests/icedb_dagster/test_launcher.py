"""The health of workers that the run launcher reports, with real code servers. `test_faults.py` has dead ones."""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

dg = pytest.importorskip("dagster")

from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.launcher.base import WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._grpc import proxy_server, server
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import StartRunResult

from icedb.errors import InvalidOption
from icedb_dagster import launcher as launchers
from icedb_dagster.dev.stack.home import PACKAGED_CONFIG
from icedb_dagster.launcher import LAUNCHED_TAG, MonitoredRunLauncher
from tests.support.processes import free_port, run_python
from tests.support.waiting import wait_until

pytestmark = pytest.mark.dagster

CODE = "import dagster as dg\ndefs = dg.Definitions()\n"


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[dict[str, Any]]:
    """Return the address of a code server, as in a run's tag."""
    port = free_port()
    (folder / "nothing.py").write_text(CODE)
    command = (sys.executable, "-m", "dagster", *command, "--host=127.0.0.1", f"--port={port}", "-f", "nothing.py")
    environ = os.environ | {"DAGSTER_HOME": str(folder)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or answers(port), "code server", every_seconds=0.2)
        assert process.poll() is None, (folder / "log").read_text()
        yield {"host": "127.0.0.1", "port": port}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        return bool(DagsterGrpcClient(port=port, host="127.0.0.1").list_repositories())
    except DagsterUserCodeUnreachableError:
        return False


def run_at(address: dict[str, Any], *, host: str | None = None) -> Any:
    """Return a started run whose worker a code server has started."""
    run_id = str(uuid.uuid4())
    tags = {GRPC_INFO_TAG: json.dumps(address), LAUNCHED_TAG: f"{run_id[:8]}@{host or socket.gethostname()}"}
    return dg.DagsterRun(job_name="job", run_id=run_id, status=dg.DagsterRunStatus.STARTED, tags=tags)


@pytest.fixture
def instance() -> Iterator[Any]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, instance: Any) -> Callable[[Any, float], Any]:
    """Return a function that checks a run with a launcher of 60 seconds at a time."""
    launcher = MonitoredRunLauncher()
    launcher.register_instance(instance)

    def at(run: Any, now_s: float) -> Any:
        monkeypatch.setattr(launchers.time, "monotonic", lambda: now_s)
        return launcher.check_run_worker_health(run)

    return at


@pytest.mark.sampled(days=3)
def test_a_run_unknown_to_its_code_server_fails(tmp_path: Path, look: Callable[[Any, float], Any]) -> None:
    with serving(tmp_path, "api", "grpc") as address:
        run = run_at(address)
        assert [look(run, now).status for now in (1000, 1030, 1059)] == [WorkerStatus.RUNNING] * 3
        health = look(run, 1060)
    assert health.status is WorkerStatus.FAILED
    assert health.msg == (
        f"The worker is gone: the code server at 127.0.0.1:{address['port']} does not know it, for 60 s"
    )


def test_a_run_fails_after_a_minute_without_its_code_server(
    tmp_path: Path, look: Callable[[Any, float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at({"host": "localhost", "socket": str(tmp_path / "gone")})
    assert look(run, 1000).status is WorkerStatus.RUNNING
    with monkeypatch.context() as back:
        back.setattr(MonitoredRunLauncher, "why_missing", lambda _launcher, _run: "")
        assert look(run, 1059) == (WorkerStatus.RUNNING, None, None, None)
    assert look(run, 1060).status is WorkerStatus.RUNNING
    assert look(run, 1119).status is WorkerStatus.RUNNING
    health = look(run, 1120)
    assert health.status is WorkerStatus.FAILED
    assert "its code server at" in health.msg
    assert "gone cannot be reached, for 60 s" in health.msg


def test_a_run_lives_as_long_as_its_process_even_without_its_code_server(
    tmp_path: Path, look: Callable[[Any, float], Any], instance: Any
) -> None:
    run = run_at({"host": "localhost", "socket": str(tmp_path / "gone")})
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = EngineEventData(metadata={"pid": dg.MetadataValue.text(str(worker.pid))})
    instance.report_engine_event("Started process for run", run, started)
    assert [look(run, now).status for now in (1000, 2000)] == [WorkerStatus.RUNNING] * 2
    worker.communicate()
    assert [look(run, now).status for now in (3000, 3059)] == [WorkerStatus.RUNNING] * 2
    health = look(run, 3060)
    assert health.status is WorkerStatus.FAILED
    assert f"its process {worker.pid} has ended, and its code server did not record that" in health.msg


def test_a_process_has_ended_if_its_pid_is_free_reused_or_of_a_zombie() -> None:
    now_s = time.time()
    assert not launchers._has_ended(os.getpid(), now_s)
    assert launchers._has_ended(os.getpid(), now_s - 10_000_000), "a later process has the pid"
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: launchers._has_ended(child.pid, time.time()), "end of a child, which stays a zombie")
    child.wait()
    assert launchers._has_ended(child.pid, now_s)


@pytest.mark.sampled(days=3)
def test_a_proxy_code_server_fails_no_run(tmp_path: Path, look: Callable[[Any, float], Any]) -> None:
    with serving(tmp_path, "code-server", "start") as address:
        assert [look(run_at(address), now).status for now in (1000, 2000)] == [WorkerStatus.RUNNING] * 2


class CodeServer:
    """A code server that does not answer one of its requests, or refuses to start a worker."""

    def __init__(self, silent: str = "", refusal: str = "") -> None:
        self.host, self.port, self.socket, self.use_ssl = "127.0.0.1", 1, None, False
        self.client = self
        self.silent = silent
        self.refusal = refusal
        self.requests: list[str] = []

    def get_server_id(self, timeout: int) -> str:
        assert timeout == 5
        return self._answer("get_server_id", "an id")

    def start_run(self, _request: Any) -> str:
        result = StartRunResult(success=not self.refusal, message=self.refusal or None, serializable_error_info=None)
        return self._answer("start_run", dg.serialize_value(result))

    def _answer(self, request: str, answer: str) -> str:
        self.requests.append(request)
        if request == self.silent:
            raise DagsterUserCodeUnreachableError("Could not reach user code server. gRPC Error code: UNKNOWN")
        return answer


SHUTS_DOWN = "Tried to start a run on a server after telling it to shut down"


@pytest.mark.parametrize(
    ("code_server", "status", "requests"),
    [
        (CodeServer(), "STARTING", ["get_server_id", "start_run"]),
        (CodeServer("get_server_id"), "QUEUED", ["get_server_id"]),
        (CodeServer(refusal=SHUTS_DOWN), "QUEUED", ["get_server_id", "start_run"]),
        (CodeServer(refusal="no memory"), "FAILURE", ["get_server_id", "start_run"]),
        (CodeServer("start_run"), "FAILURE", ["get_server_id", "start_run"]),
    ],
    ids=["answers", "is away", "shuts down", "cannot start it", "may have started it"],
)
def test_the_queue_launches_only_a_run_again_that_has_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code_server: CodeServer, status: str, requests: list[str]
) -> None:
    monkeypatch.setattr("dagster._core.remote_representation.code_location.GrpcServerCodeLocation", CodeServer)
    packaged = yaml.safe_load(PACKAGED_CONFIG.read_text())
    settings = {name: packaged[name] for name in ("run_coordinator", "run_launcher", "concurrency", "run_monitoring")}
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1, location_name="tested")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), "job")
    queued = dg.DagsterRun(job_name="job", remote_job_origin=origin, status=dg.DagsterRunStatus.QUEUED)
    workspace = SimpleNamespace(get_code_location=lambda _: code_server)
    queue = QueuedRunCoordinatorDaemon(1)
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=settings) as instance:
        instance.add_run(queued)
        instance.report_dagster_event(DagsterEvent.job_enqueue(queued), run_id=queued.run_id)
        queue._dequeue_run(instance, workspace, queued, instance.get_concurrency_config(), time.time())
        run = instance.get_run_by_id(queued.run_id)
        assert run is not None
        assert run.status.value == status
    assert code_server.requests == requests


def test_a_code_server_that_shuts_down_is_recognized_by_the_text_of_dagster() -> None:
    assert SHUTS_DOWN in inspect.getsource(server)
    assert SHUTS_DOWN in inspect.getsource(proxy_server)


@pytest.mark.parametrize(
    "run",
    [
        dg.DagsterRun(job_name="of_no_code_server"),
        run_at({"host": "localhost", "socket": "/nowhere"}, host="another-machine"),
        run_at({"host": "127.0.0.1", "port": 1}, host="another-machine"),
        dg.DagsterRun(job_name="again", tags=run_at({"host": "127.0.0.1", "port": 1}).tags),
    ],
    ids=["no code server", "socket elsewhere", "loopback elsewhere", "executed again by a script"],
)
def test_runs_of_other_machines_stay_running(run: Any, look: Callable[[Any, float], Any]) -> None:
    assert [look(run, now).status for now in (1000, 5000)] == [WorkerStatus.RUNNING] * 2


def test_ended_runs_are_forgotten(tmp_path: Path, look: Callable[[Any, float], Any]) -> None:
    away = {"host": "localhost", "socket": str(tmp_path / "gone")}
    ended, begun = run_at(away), run_at(away)
    look(ended, 1000)
    look(begun, 10_000)
    assert look(ended, 10_001).status is WorkerStatus.RUNNING
    assert look(begun, 10_060).status is WorkerStatus.FAILED


def test_the_packaged_instance_has_the_launcher_and_validates_its_setting(tmp_path: Path) -> None:
    packaged = PACKAGED_CONFIG.read_text()
    assert "class: MonitoredRunLauncher" in packaged
    home = tmp_path / "dagster.yaml"
    chosen = "run_launcher: {module: icedb_dagster.launcher, class: MonitoredRunLauncher, config: %s}\n"
    home.write_text(chosen % "{lost_after_seconds: 5}")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_launcher.supports_check_run_worker_health
        assert instance.run_launcher.lost_after_s == 5
        assert instance.run_monitoring_max_resume_run_attempts == 0
    home.write_text(chosen % "{lost_after_seconds: 0}")
    with (
        pytest.raises(InvalidOption, match="lost_after_seconds is 0; give at least 1"),
        dg.DagsterInstance.from_config(str(tmp_path)) as instance,
    ):
        assert instance.run_launcher


@pytest.mark.sampled(days=3)
def test_the_launcher_imports_neither_arrow_nor_duckdb() -> None:
    code = "import sys, icedb_dagster.launcher; print(sorted({'pyarrow', 'duckdb', 'boto3'} & sys.modules.keys()))"
    assert run_python("-c", code).stdout == "[]\n"
