"""The stack's record of the processes that it started.

A record identifies a process by pid *and* start time, because a pid may be reused. The file never holds a password.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from icedb.errors import StackError
from icedb_dagster.dev.stack.layout import StackLayout, write_private
from icedb_dagster.dev.stack.processes import ProcessId

__all__ = ["SERVICES", "Record", "ServiceName", "State", "checked_services", "read_state", "write_state"]

ServiceName = Literal["postgres", "code", "webserver", "daemon"]
SERVICES: tuple[ServiceName, ...] = ("postgres", "code", "webserver", "daemon")


def checked_services(names: Collection[str]) -> list[ServiceName]:
    """Return the named services in start order. Raises StackError for an unknown name."""
    unknown = set(names) - set(SERVICES)
    if unknown:
        raise StackError(f"unknown service {', '.join(sorted(unknown))}. The services are {', '.join(SERVICES)}")
    return [name for name in SERVICES if name in names]


@dataclass(frozen=True, slots=True)
class Record:
    """A started process. `settings` is a digest of its settings."""

    process: ProcessId
    port: int | None = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The state kept between two commands."""

    records: dict[ServiceName, Record] = field(default_factory=dict)
    # The Postgres folder, if it could not stay inside the project.
    postgres_dir: str | None = None
    # Ports are kept after a stop, so that bookmarks and connection strings stay valid if the port is still free.
    ports: dict[ServiceName, int] = field(default_factory=dict)

    def with_record(self, name: ServiceName, record: Record) -> "State":
        """Return this state with that process."""
        ports = self.ports if record.port is None else {**self.ports, name: record.port}
        return replace(self, records={**self.records, name: record}, ports=ports)

    def without_record(self, name: ServiceName) -> "State":
        """Return this state without that process."""
        return replace(self, records={key: value for key, value in self.records.items() if key != name})


def read_state(layout: StackLayout) -> State:
    """Return the state of a project folder; empty if nothing was ever started there."""
    try:
        content = layout.state.read_bytes()
    except FileNotFoundError:
        return State()
    try:
        return msgspec.json.decode(content, type=State)
    except msgspec.DecodeError as error:
        raise StackError(
            f"{layout.state} cannot be read ({error}). Stop running services by hand, remove the file, and try again"
        ) from None


def write_state(layout: StackLayout, state: State) -> None:
    """Write the state."""
    write_private(layout.state, msgspec.json.format(msgspec.json.encode(state), indent=2))
