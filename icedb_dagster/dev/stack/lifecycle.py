"""`up`, `down`, `status`, `find`: the local stack as a whole.

`up` is idempotent: it keeps services that run with the same settings, and restarts dead services and those with other
settings. It waits until everything works, and stops what it started if a service does not. `down` is idempotent, too.
Both hold the folder's lock; `status` and `find` do not. A Postgres named by `ICEDB_POSTGRES_URL` is used but never
started or stopped. It only receives Dagster's tables.
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
    """Start the services that do not run, and wait until they work. Those that they need are included.

    `port` is the web server's; None: the last one, 3000 or any free one. `progress` receives a line of text at each
    step.
    """
    needed: set[ServiceName] = {"code"} if set(services) & {"webserver", "daemon"} else set()
    chosen = checked_services({"postgres", *needed, *services})
    layout = open_layout(project_dir)
    if "code" in chosen and not layout.workspace.is_file():
        raise StackError(
            f"{layout.workspace} is missing, which names the code of the project. Run this "
            "command in the folder of a project, or create a project first: icedb-dagster init FOLDER"
        )
    layout.create()
    with layout.locked(progress=progress):
        work = StackOperation(layout, progress=progress, environ=environ)
        try:
            return work.bring_up(chosen, port=port)
        except BaseException:  # also KeyboardInterrupt
            work.undo()
            raise


def down(
    project_dir: str | Path = ".", *, services: Collection[ServiceName] = SERVICES, progress: Progress = _silent
) -> tuple[ServiceName, ...]:
    """Stop the services that `up` started in this folder, and return the names of those that still ran."""
    chosen = checked_services(services)
    layout = open_layout(project_dir)
    if not layout.root.is_dir():
        return ()
    with layout.locked(progress=progress):
        return StackOperation(layout, progress=progress).take_down(chosen)


def release(stack: Stack, *, progress: Progress = _silent) -> tuple[ServiceName, ...]:
    """Stop what the call of `up` that returned `stack` has started, and nothing that ran before it.

    Postgres and the code servers keep running while another service of the folder uses them.
    """
    layout = open_layout(stack.project_dir)
    with layout.locked(progress=progress):
        work = StackOperation(layout, progress=progress)
        now = {service.name: service.pid for service in work.running()}
        ours = {it.name for it in stack.processes if it.started_here and it.pid == now.get(it.name)}
        others = now.keys() - ours - {"postgres"}
        if others:
            ours.discard("postgres")
        if others - {"code"}:
            ours.discard("code")
        return work.take_down(ours)


def status(project_dir: str | Path = ".", *, environ: Mapping[str, str] = os.environ) -> tuple[ServiceStatus, ...]:
    """Return the services of this folder, one row for each."""
    layout = open_layout(project_dir)
    return describe(layout, read_state(layout), environ=environ)


def find(project_dir: str | Path = ".", *, environ: Mapping[str, str] = os.environ) -> Stack:
    """Return the running stack of this folder, to use its instance. Raises StackError if no stack runs."""
    layout = open_layout(project_dir)
    state = read_state(layout)
    url = external_url(environ)
    if url is None:
        server = find_server(server_folder(layout, state))
        url = local_url(port=server.port, password=read_password(layout), database=DATABASE) if server else None
    if url is None or not (layout.dagster_home / "dagster.yaml").is_file():
        raise StackError(f"no stack runs in {layout.project}: start it with icedb-dagster up")
    return describe_stack(layout, state, url, environ=environ)
