"""One `up` or `down` in progress: its steps, the changing state, and the services started so far.

It is used only under the folder's lock. The state is written after each change and before each wait, so that the next
`down` finds all running services even if this process dies.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from icedb.errors import StackError
from icedb_dagster.dev.stack.database import check_connection, ensure_database, local_url, redacted, without_password
from icedb_dagster.dev.stack.graphql import location_errors, pools
from icedb_dagster.dev.stack.home import install_config, memory_share, open_instance
from icedb_dagster.dev.stack.layout import Progress, StackLayout
from icedb_dagster.dev.stack.placement import place
from icedb_dagster.dev.stack.postgres import find_server, read_password, start_server, stop_server, use_server
from icedb_dagster.dev.stack.processes import is_running, log_bytes, log_tail
from icedb_dagster.dev.stack.services import (
    DagsterService,
    ServicePlan,
    await_code,
    await_daemon,
    await_webserver,
    choose_port,
    heartbeat_ids,
    plan_service,
    start_service,
    stop_service,
)
from icedb_dagster.dev.stack.stack_status import (
    DATABASE,
    POSTGRES_URL_VARIABLE,
    ServiceStatus,
    Stack,
    describe,
    describe_stack,
    external_url,
    server_folder,
)
from icedb_dagster.dev.stack.state import SERVICES, Record, ServiceName, State, read_state, write_state

if TYPE_CHECKING:
    from dagster import DagsterInstance

__all__ = ["StackOperation"]

# The database stops last, because the others need it.
_STOP_ORDER = tuple(reversed(SERVICES))
_TITLES: dict[ServiceName, str] = {
    "postgres": "Postgres",
    "code": "the code server",
    "webserver": "the web server",
    "daemon": "the daemon",
}


class StackOperation:
    """The steps of `up`, `down` and `release`."""

    def __init__(self, layout: StackLayout, *, progress: Progress, environ: Mapping[str, str] = os.environ) -> None:
        self.layout = layout
        self.progress = progress
        self.environ = environ
        self.state = read_state(layout)
        self.started: list[ServiceName] = []

    def bring_up(self, services: list[ServiceName], *, port: int | None) -> Stack:
        """Start missing services, and Postgres."""
        url = external_url(self.environ)
        if url is None:
            url = self._own_postgres()
        else:
            self.progress(f"Using the Postgres of {POSTGRES_URL_VARIABLE}, {redacted(url)}")
            check_connection(url, named=POSTGRES_URL_VARIABLE)
        config = install_config(self.layout)
        # Web server and daemon are planned with the addresses of the code servers.
        orders: tuple[tuple[DagsterService, ...], ...] = (("code",), ("webserver", "daemon"))
        for names in orders:
            plans = [self._plan(name, url=url, config=config, port=port) for name in names if name in services]
            missing = [plan for plan in plans if not self._runs(plan)]
            if missing:
                self._start(missing, url)
        return self._stack(url, check_locations="webserver" in services)

    def take_down(self, services: Collection[ServiceName]) -> tuple[ServiceName, ...]:
        """Stop services, and return the names of those that ran."""
        running = {service.name for service in self.running()}
        names = [name for name in _STOP_ORDER if name in services]
        for name in names:
            if name in running:
                self.progress(f"Stopping {_TITLES[name]}")
            self._stop(name)
        return tuple(name for name in names if name in running)

    def undo(self) -> None:
        """Stop the services started so far. A failure must not hide the original error."""
        for name in reversed(self.started):
            with suppress(StackError, OSError):
                self._stop(name)

    def running(self) -> list[ServiceStatus]:
        """Return our own running services."""
        return [service for service in describe(self.layout, self.state, environ={}) if service.state == "running"]

    def _own_postgres(self) -> str:
        """Start the embedded server unless it runs, and return the address of Dagster's database."""
        server = use_server(self.layout, server_folder(self.layout, self.state))
        if server is None:
            placement = place(self.layout, recorded=self.state.postgres_dir)
            if placement.folder != self.layout.postgres:
                self.progress(
                    f"Postgres stores its data in {placement.folder}, because it cannot access the project's folder"
                )
                self._save(replace(self.state, postgres_dir=str(placement.folder)))
            port = self.state.ports.get("postgres")
            server = start_server(self.layout, placement, port=port, progress=self.progress)
            self.started.append("postgres")
        else:
            self.progress(f"Postgres runs already on 127.0.0.1:{server.port}")
        self._save(self.state.with_record("postgres", Record(process=server.process, port=server.port)))
        password = read_password(self.layout)
        ensure_database(local_url(port=server.port, password=password, database="postgres"), name=DATABASE)
        return local_url(port=server.port, password=password, database=DATABASE)

    def _plan(self, name: DagsterService, *, url: str, config: str, port: int | None) -> ServicePlan:
        return plan_service(
            name,
            layout=self.layout,
            port=self._webserver_port(port) if name == "webserver" else None,
            database=redacted(url),
            config=config,
        )

    def _webserver_port(self, wanted: int | None) -> int:
        record = self.state.records.get("webserver")
        if record and record.port and wanted in {None, record.port} and is_running(record.process):
            return record.port
        return choose_port(wanted=wanted, last=self.state.ports.get("webserver"))

    def _runs(self, plan: ServicePlan) -> bool:
        record = self.state.records.get(plan.name)
        if record is None or record.settings != plan.settings or not is_running(record.process):
            return False
        if plan.port is not None and await_webserver(record.process, port=plan.port) is not None:
            return False
        if plan.name == "code" and not self.layout.code_addresses.is_file():
            return False
        self.progress(f"{_title(plan.name)} runs already")
        return True

    def _start(self, plans: list[ServicePlan], url: str) -> None:
        """Start services in parallel, then wait for each."""
        logs = {plan.name: log_bytes(self.layout.log(plan.name)) for plan in plans}
        with open_instance(self.layout.dagster_home, url) as instance:
            earlier, defaults = heartbeat_ids(instance), memory_share(instance)
            for plan in plans:
                self._spawn(plan, url, defaults)
            for plan in plans:
                process = self.state.records[plan.name].process
                self.progress(f"Waiting for {_TITLES[plan.name]}")
                if plan.name == "code":
                    problem = await_code(process, layout=self.layout)
                elif plan.port is not None:
                    problem = await_webserver(process, port=plan.port)
                else:
                    problem = await_daemon(process, instance=instance, earlier=earlier)
                if problem is not None:
                    raise self._failure(plan.name, problem, url=url, offset=logs[plan.name])
            for port in (plan.port for plan in plans if plan.port is not None):
                self._ensure_pools(instance, port)

    def _ensure_pools(self, instance: "DagsterInstance", port: int) -> None:
        """Set the limit of each table's lock now, because Dagster treats unconfigured pools as unlimited."""
        from icedb_dagster.locking.table_lock import ensure_pool, table_pools

        names = table_pools(pools(port))
        for pool in names:
            ensure_pool(instance, pool)
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            self.progress(f"The pool {names[0]}{more} {'admit' if more else 'admits'} one run at a time")

    def _spawn(self, plan: ServicePlan, url: str, defaults: Mapping[str, str]) -> None:
        record = self.state.records.get(plan.name)
        restart = record is not None and is_running(record.process)
        where = f" on http://127.0.0.1:{plan.port}" if plan.port else ""
        what = f"{_TITLES[plan.name]}{where}"
        self.progress(
            f"Restarting {what}: its settings changed, or it does not answer" if restart else f"Starting {what}"
        )
        self._stop(plan.name)  # also children of a dead process
        if plan.name == "code":
            self.layout.code_addresses.unlink(missing_ok=True)
        process = start_service(plan, layout=self.layout, url=url, defaults=defaults, environ=self.environ)
        self._save(self.state.with_record(plan.name, Record(process=process, port=plan.port, settings=plan.settings)))
        self.started.append(plan.name)

    def _failure(self, name: ServiceName, problem: str, *, url: str, offset: int) -> StackError:
        log = self.layout.log(name)
        error = StackError(f"{_TITLES[name]} does not work: {problem}. See its log {log}")
        error.add_note(without_password(log_tail(log, offset=offset), url=url))
        return error

    def _stop(self, name: ServiceName) -> None:
        record = self.state.records.get(name)
        if name == "postgres":
            server = find_server(server_folder(self.layout, self.state))
            if server is not None:
                stop_server(server.process)
        elif record is not None:
            stop_service(record.process, layout=self.layout)
        if record is not None:
            self._save(self.state.without_record(name))

    def _save(self, state: State) -> None:
        write_state(self.layout, state)
        self.state = state

    def _stack(self, url: str, *, check_locations: bool) -> Stack:
        stack = describe_stack(self.layout, self.state, url, started=self.started, environ=self.environ)
        webserver = self.state.records.get("webserver")
        if not check_locations or stack.webserver_url is None or webserver is None or webserver.port is None:
            return stack
        return replace(stack, warnings=location_errors(webserver.port))


def _title(name: ServiceName) -> str:
    return _TITLES[name][:1].upper() + _TITLES[name][1:]
