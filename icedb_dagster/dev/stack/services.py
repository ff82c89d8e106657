"""Dagster's code servers, web server and daemon: how they are started, and how their health is checked.

The code servers work if their addresses are written. A web server works if it answers on its port. A daemon works if
each kind that the instance requires has sent a heartbeat of *this* process and reports no error. Heartbeats of an
earlier process look healthy for half an hour.
"""

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from icedb.errors import StackError
from icedb_dagster.dev.stack.graphql import request
from icedb_dagster.dev.stack.home import variables
from icedb_dagster.dev.stack.layout import StackLayout
from icedb_dagster.dev.stack.ports import free_port, port_is_free
from icedb_dagster.dev.stack.processes import ProcessId, is_running, path_with_programs, spawn, stop

if TYPE_CHECKING:
    from dagster import DagsterInstance

__all__ = [
    "DagsterService",
    "ServicePlan",
    "await_code",
    "await_daemon",
    "await_webserver",
    "choose_port",
    "heartbeat_ids",
    "plan_service",
    "start_service",
    "stop_service",
]

DagsterService = Literal["code", "webserver", "daemon"]

CODE_SERVERS, DAEMON = "icedb_dagster.dev.code_servers", "icedb_dagster.daemon"
PORT_DEFAULT = 3000
# Importing Dagster and a code location takes 10 s on 2 busy processors.
HEALTH_TIMEOUT_S = 120
# A code server gets time to cancel its runs. Remaining processes are killed.
STOP_TIMEOUT_S = 20
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The command of a service. `settings` is a digest of everything whose change requires a restart."""

    name: DagsterService
    command: tuple[str, ...]
    port: int | None
    settings: str


def plan_service(
    name: DagsterService, *, layout: StackLayout, port: int | None, database: str, config: str
) -> ServicePlan:
    """Plan the start of a service. `database` is the address without password, `config` the `dagster.yaml`.

    Web server and daemon need the addresses of the code servers. They are restarted if these change.
    """
    addresses = str(layout.code_addresses)
    workspace = layout.workspace if name == "code" else layout.code_addresses
    command: tuple[str, ...]
    if name == "code":
        command = (sys.executable, "-m", CODE_SERVERS, str(layout.workspace), addresses, str(layout.logs))
    elif name == "daemon":
        command = (sys.executable, "-m", DAEMON, "run", "-w", addresses)
    else:
        command = (sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-w", addresses)
    inputs = [command, database, config, workspace.read_text(encoding="utf-8")]
    settings = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    return ServicePlan(name=name, command=command, port=port, settings=settings)


def choose_port(*, wanted: int | None, last: int | None) -> int:
    """Return the requested port, which must be free; or the last one, 3000, or any free one."""
    if wanted is not None:
        if not port_is_free(wanted):
            raise StackError(
                f"port {wanted} is taken by another program. Choose another one with --port, or omit --port"
            )
        return wanted
    return next((port for port in (last, PORT_DEFAULT) if port is not None and port_is_free(port)), None) or free_port()


def start_service(
    plan: ServicePlan, *, layout: StackLayout, url: str, defaults: Mapping[str, str], environ: Mapping[str, str]
) -> ProcessId:
    """Start a service, without waiting. `environ` has precedence over `defaults`."""
    merged = {
        **defaults,
        **environ,
        **variables(layout.dagster_home, url),
        "PATH": path_with_programs(environ),
        "PYTHONUNBUFFERED": "1",
    }
    return spawn(plan.command, log=layout.log(plan.name), environ=merged, cwd=layout.project)


def stop_service(process: ProcessId, *, layout: StackLayout) -> None:
    """Stop a service and its child processes: code servers and their runs."""
    signals = ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, 5))
    stop(process, signals=signals, marker=f"DAGSTER_HOME={layout.dagster_home}")


def await_code(process: ProcessId, *, layout: StackLayout) -> str | None:
    """Wait until the code servers work. Return None on success, else the reason of the failure."""
    return _await(process, layout.code_addresses.is_file)


def await_webserver(process: ProcessId, *, port: int) -> str | None:
    """Wait until the web server answers. Return None on success, else the reason of the failure."""
    return _await(process, lambda: request(port, "GET", "/server_info") is not None)


def await_daemon(process: ProcessId, *, instance: "DagsterInstance", earlier: frozenset[str]) -> str | None:
    """Wait until the daemon works. Return None, else the reason. `earlier` are daemon ids from before its start."""
    required = set(instance.get_required_daemon_types())

    def works() -> bool:
        beats = instance.get_daemon_heartbeats()
        fresh = {kind for kind, beat in beats.items() if beat.daemon_id not in earlier and not beat.errors}
        return required <= fresh

    return _await(process, works)


def heartbeat_ids(instance: "DagsterInstance") -> frozenset[str]:
    """Return the ids of daemon processes whose heartbeats this instance has."""
    return frozenset(beat.daemon_id for beat in instance.get_daemon_heartbeats().values() if beat.daemon_id)


def _await(process: ProcessId, works: Callable[[], bool]) -> str | None:
    deadline = time.monotonic() + HEALTH_TIMEOUT_S
    while time.monotonic() < deadline:
        if not is_running(process):
            return "it ended"
        if works():
            return None
        time.sleep(POLL_S)
    return f"it is not healthy after {HEALTH_TIMEOUT_S} s"
