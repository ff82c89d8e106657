"""What the stack remembers of the processes it started.

A record names a process by pid *and* start: a pid alone may belong to somebody else tomorrow. No password is ever
in the file.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from icedb.errors import StackError
from icedb_dagster.dev.stack.layout import StackLayout, write_private
from icedb_dagster.dev.stack.processes import ProcessId

__all__ = ["SERVICES", "Record", "ServiceName", "State", "checked_services", "read_state", "write_state"]

ServiceName = Literal["postgres", "webserver", "daemon"]
SERVICES: tuple[ServiceName, ...] = ("postgres", "webserver", "daemon")


def checked_services(names: Collection[str]) -> list[ServiceName]:
    """The services of these names, in the order in which they are started. Raises StackError for any other name."""
    unknown = set(names) - set(SERVICES)
    if unknown:
        raise StackError(f"no such service: {', '.join(sorted(unknown))}; there are {', '.join(SERVICES)}")
    return [name for name in SERVICES if name in names]


@dataclass(frozen=True, slots=True)
class Record:
    """One process that was started; `settings` is a digest of what it was started with."""

    process: ProcessId
    port: int | None = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """All that is remembered between two commands."""

    records: dict[ServiceName, Record] = field(default_factory=dict)
    # Where the data folder is, when it could not stay inside the project.
    postgres_dir: str | None = None
    # Ports outlive a stop: bookmarks and connection strings stay true as long as nobody else took the port.
    ports: dict[ServiceName, int] = field(default_factory=dict)

    def with_record(self, name: ServiceName, record: Record) -> "State":
        """This state, and that process."""
        ports = self.ports if record.port is None else {**self.ports, name: record.port}
        return replace(self, records={**self.records, name: record}, ports=ports)

    def without_record(self, name: ServiceName) -> "State":
        """This state without that process."""
        return replace(self, records={key: value for key, value in self.records.items() if key != name})


def read_state(layout: StackLayout) -> State:
    """The state of a project folder; empty when nothing was ever started there."""
    try:
        content = layout.state.read_bytes()
    except FileNotFoundError:
        return State()
    try:
        return msgspec.json.decode(content, type=State)
    except msgspec.DecodeError as error:
        raise StackError(
            f"{layout.state} cannot be read ({error}): stop what still runs by hand, remove the file, try again"
        ) from None


def write_state(layout: StackLayout, state: State) -> None:
    """Remember."""
    write_private(layout.state, msgspec.json.format(msgspec.json.encode(state), indent=2))
