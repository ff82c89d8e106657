"""The status of a stack: its running services, their addresses, and the environment for programs that use it.

A `Stack` holds the address with the password, because Dagster needs it. Its `repr` and all other texts omit the
password.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from icedb.util.times import iso_text
from icedb_dagster.dev.stack.database import dagster_url, redacted
from icedb_dagster.dev.stack.home import variables
from icedb_dagster.dev.stack.layout import StackLayout
from icedb_dagster.dev.stack.postgres import find_server
from icedb_dagster.dev.stack.processes import is_running
from icedb_dagster.dev.stack.state import SERVICES, ServiceName, State

__all__ = [
    "DATABASE",
    "POSTGRES_URL_VARIABLE",
    "ServiceStatus",
    "Stack",
    "describe",
    "describe_stack",
    "environment",
    "external_url",
    "server_folder",
]

DATABASE = "dagster"
POSTGRES_URL_VARIABLE = "ICEDB_POSTGRES_URL"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service. `address` has no password.

    `ended`: it was started and not stopped, and does not run. `external`: the user's own Postgres.
    """

    name: ServiceName
    state: Literal["running", "ended", "stopped", "external"]
    pid: int | None = None
    address: str | None = None
    log: Path | None = None
    started_here: bool = False
    #: When an ended service wrote its last line, in ISO 8601 and UTC; empty for others.
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack. `started_here` of a process is True if this call of `up` started it."""

    project_dir: Path
    dagster_home: Path
    postgres_url: str = field(repr=False)
    webserver_url: str | None
    processes: tuple[ServiceStatus, ...]
    warnings: tuple[str, ...] = ()


def environment(stack: Stack) -> dict[str, str]:
    """Return the variables that make Dagster use this stack. They contain the password: never log them."""
    return variables(stack.dagster_home, stack.postgres_url)


def external_url(environ: Mapping[str, str]) -> str | None:
    """Return the user's own Postgres in the form that Dagster needs, or None."""
    url = environ.get(POSTGRES_URL_VARIABLE, "").strip()
    return dagster_url(url) if url else None


def server_folder(layout: StackLayout, state: State) -> Path:
    """Return the folder of the embedded server."""
    return Path(state.postgres_dir) if state.postgres_dir else layout.postgres


def describe(
    layout: StackLayout, state: State, *, environ: Mapping[str, str] = os.environ
) -> tuple[ServiceStatus, ...]:
    """Return a row for each service, and a second one for Postgres if an external one is used while our own runs."""
    others = (_row(layout, state, name) for name in SERVICES if name != "postgres")
    return (*_postgres_rows(layout, state, environ), *others)


def describe_stack(
    layout: StackLayout,
    state: State,
    url: str,
    *,
    started: Collection[ServiceName] = (),
    environ: Mapping[str, str] = os.environ,
) -> Stack:
    """Return a folder's stack, with Postgres at `url`; `started` are the services that this call has started."""
    processes = describe(layout, state, environ=environ)
    addresses = {row.name: row.address for row in processes if row.state == "running"}
    return Stack(
        project_dir=layout.project,
        dagster_home=layout.dagster_home,
        postgres_url=url,
        webserver_url=addresses.get("webserver"),
        processes=tuple(replace(row, started_here=row.name in started) for row in processes),
    )


def _postgres_rows(layout: StackLayout, state: State, environ: Mapping[str, str]) -> list[ServiceStatus]:
    rows = []
    external = external_url(environ)
    if external:
        rows.append(ServiceStatus(name="postgres", state="external", address=redacted(external)))
    server = find_server(server_folder(layout, state))
    if server:
        address = f"127.0.0.1:{server.port}/{DATABASE}"
        log = layout.log("postgres")
        rows.append(ServiceStatus("postgres", "running", pid=server.process.pid, address=address, log=log))
    return rows or [_absent(layout, state, "postgres")]


def _absent(layout: StackLayout, state: State, name: ServiceName) -> ServiceStatus:
    if name not in state.records:
        return ServiceStatus(name, "stopped")
    log = layout.log(name)
    written_ms = int(log.stat().st_mtime * 1000) if log.is_file() else None
    ended = "" if written_ms is None else iso_text(written_ms, timespec="seconds")
    return ServiceStatus(name, "ended", log=log, ended=ended)


def _row(layout: StackLayout, state: State, name: ServiceName) -> ServiceStatus:
    record = state.records.get(name)
    if record is None or not is_running(record.process):
        return _absent(layout, state, name)
    address = f"http://127.0.0.1:{record.port}" if record.port else None
    return ServiceStatus(name, "running", pid=record.process.pid, address=address, log=layout.log(name))
