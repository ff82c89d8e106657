"""`up`, `down`, `status`, `find`: the local stack as a whole.

`up` may be repeated: what runs with the same settings is left alone, what died or has other settings is started
anew. It waits until everything works, and stops what it started when something does not. `down` may be repeated
too. Both hold the folder's lock; `status` and `find` do not. A Postgres named by `ICEDB_POSTGRES_URL` is used and never
started or stopped; all it gets is Dagster's tables.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from icedb.errors import StackError
from icedb_dagster.dev.stack.database import local_url
from icedb_dagster.dev.stack.layout import Progress, open_layout
from icedb_dagster.dev.stack.postgres import find_server, read_password
from icedb_dagster.dev.stack.stack_operation import StackOperation
from icedb_dagster.dev.stack.stack_status import (
    DATABASE,
    ServiceStatus,
    Stack,
    describe,
    describe_stack,
    external_url,
    server_folder,
)
from icedb_dagster.dev.stack.state import SERVICES, ServiceName, checked_services, read_state

__all__ = ["SERVICES", "down", "find", "release", "status", "up"]


def _silent(_message: str) -> None:
    pass


def up(
    project_dir: str | Path = ".",
    *,
    services: Collection[ServiceName] = SERVICES,
    port: int | None = None,
    progress: Progress = _silent,
    environ: Mapping[str, str] = os.environ,
) -> Stack:
    """Start what does not run yet, and wait until it works. Postgres is always part of it.

    `port` is the web server's; without it, the last one, 3000 or any free one is taken. `progress` is called with a
    line for the user at each step.
    """
    chosen = checked_services(services)
    layout = open_layout(project_dir)
    if set(services) - {"postgres"} and not layout.workspace.is_file():
        raise StackError(f"{layout.workspace} is missing: it names the code that Dagster's web server and daemon load")
    layout.create()
    with layout.locked(progress=progress):
        work = StackOperation(layout, progress=progress, environ=environ)
        try:
            return work.bring_up(chosen, port=port)
        except BaseException:  # also when the user interrupts
            work.undo()
            raise


def down(
    project_dir: str | Path = ".", *, services: Collection[ServiceName] = SERVICES, progress: Progress = _silent
) -> tuple[ServiceName, ...]:
    """Stop what `up` started in this folder, and return the names of what still ran."""
    chosen = checked_services(services)
    layout = open_layout(project_dir)
    if not layout.root.is_dir():
        return ()
    with layout.locked(progress=progress):
        return StackOperation(layout, progress=progress).take_down(chosen)


def release(stack: Stack, *, progress: Progress = _silent) -> tuple[ServiceName, ...]:
    """Stop what the call of `up` that returned `stack` has started, and nothing that ran before it.

    Postgres stays while the web server or the daemon of the same folder uses it, whoever started those.
    """
    layout = open_layout(stack.project_dir)
    with layout.locked(progress=progress):
        work = StackOperation(layout, progress=progress)
        now = {service.name: service.pid for service in work.running()}
        ours = {it.name for it in stack.processes if it.started_here and it.pid == now.get(it.name)}
        if now.keys() - ours - {"postgres"}:
            ours.discard("postgres")
        return work.take_down(ours)


def status(project_dir: str | Path = ".", *, environ: Mapping[str, str] = os.environ) -> tuple[ServiceStatus, ...]:
    """What runs in this folder, one row for each service."""
    layout = open_layout(project_dir)
    return describe(layout, read_state(layout), environ=environ)


def find(project_dir: str | Path = ".", *, environ: Mapping[str, str] = os.environ) -> Stack:
    """The stack of this folder as it runs, to use its instance; starts nothing. Raises StackError if none does."""
    layout = open_layout(project_dir)
    state = read_state(layout)
    url = external_url(environ)
    if url is None:
        server = find_server(server_folder(layout, state))
        url = local_url(port=server.port, password=read_password(layout), database=DATABASE) if server else None
    if url is None or not (layout.dagster_home / "dagster.yaml").is_file():
        raise StackError(f"no stack runs in {layout.project}: start it with icedb-dagster up")
    return describe_stack(layout, state, url, environ=environ)
