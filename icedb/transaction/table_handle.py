"""What an open table is: its address, store, spec, clock, and what is known of its log.

Everything above (scan, maintenance, the Spark source) works on a `Handle`; `Table` is the front door for people.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec

from icedb.errors import (
    AccessDenied,
    ClockSkew,
    CorruptLog,
    InvalidOption,
    InvalidRequestError,
    StoreUnavailable,
    UnsupportedStore,
)
from icedb.format.keys import Keys, decode_partition, partition_of
from icedb.format.records import Marker, Stats
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns, decode_spec, encode_spec
from icedb.format.timing import Timing, deletable_until, part_timeout_at, timing_at
from icedb.sql.partition_expressions import PartitionExpression, partition_expressions
from icedb.sql.types import checked_type, type_name
from icedb.storage.local_store import check_links
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore, fetch
from icedb.transaction.log_reader import LogReader
from icedb.util.clock import Clock, SystemClock, writer_name
from icedb.util.temporary_files import make_folder, temporary_folder
from icedb.writer.batch_schema import WriteContext
from icedb.writer.spec_validation import check_stored_spec

__all__ = ["Fencing", "Handle", "Part", "clock_ahead_ms", "damaged_spec", "lost_spec"]

Fencing = Literal["claims", "none"]

# S3 tells the time of an object in whole seconds.
STORED_MS_PRECISION = 1_000
# A sweep takes the object of a comparison only when the comparing process slept for hours right after its put.
CLOCK_ATTEMPTS_MAX = 3
# These mean something else to DuckDB, or do not survive in an address.
_NO_PATH = frozenset("?*[]\\\n\r")
# What lies there DuckDB does not open. A part that was fetched has a path of this machine.
_COPIED = ("memory://", "az://")

# A cached property has no lock of its own from Python 3.12 on.
_making_folders = threading.Lock()


@dataclass(frozen=True, slots=True)
class Part:
    """One immutable Parquet file. `rows` is None for a part of a v3 program; times are unix milliseconds."""

    key: str
    path: str
    partition: str
    bytes: int
    rows: int | None
    created_ms: int
    tombstoned_ms: int | None = None
    #: What the log says of its columns, still encoded; see `icedb.sql.column_stats`.
    stats: Stats = field(default=msgspec.UNSET, repr=False, compare=False)

    @property
    def values(self) -> dict[str, str | None]:
        """Partition column -> value, as text."""
        return decode_partition(self.partition)


class Handle:
    """An open table. Safe to share between threads; open one per process."""

    def __init__(
        self,
        store: ObjectStore,
        spec: TableSpec,
        *,
        clock: Clock | None = None,
        fencing: Fencing = "claims",
        fixed_spec: bool = False,
    ) -> None:
        """`fixed_spec`: the program says what the spec is, whatever the log records (the API of IceDB v3)."""
        if fencing not in get_args(Fencing):
            raise InvalidOption(f"{store.location.uri}: fencing is {fencing!r}; give 'claims' or 'none'.")
        self.store = store
        #: The names of the table's objects. Made once: a look at a table asks for each of its parts.
        self.keys: Keys = store.location.keys
        self._spec = _with_checked_types(spec, store.location.uri)
        self._fixed_spec = fixed_spec
        self._expressions: tuple[PartitionExpression, ...] | None = None
        self.clock: Clock = clock or SystemClock()
        self.fencing: Fencing = fencing
        self.writer = writer_name(self.clock)
        self.log = self._log_reader(tolerant=False)
        #: The body of `_table.json` in one line: the first exclusive commit records it in the log. `{}`: there is none.
        self.stored_spec = msgspec.Raw(encode_spec(self._spec, indent=0) if spec.id else b"{}")
        #: Whether the log is of a table whose `_table.json` is gone: it can be read, and not be written.
        self.spec_is_lost = False
        #: Two appends of one handle need two names, also within a millisecond.
        self.last_append_ms = 0
        #: An exclusive commit that sees an older head than this handle has seen is not of this table's line.
        self.newest_epoch = 0
        #: The state that was read last, and its live parts, once somebody has asked for them.
        self.latest: tuple[TableState, Sequence[Part]] | None = None
        self._schema: dict[str, str] = {}
        self._probed = False
        self._copies_folder: tuple[int, Path] | None = None
        self._clock_checked = False
        #: The spec that the times are of, as one value for all threads; None: no spec of the table is known.
        self._times: TableSpec | None = None
        #: When the log was read last.
        self._read_at_ms: int | None = None
        if spec.id or not fixed_spec:
            self._learn_times(spec)

    def _log_reader(self, *, tolerant: bool) -> LogReader:
        return LogReader(self.store, self.keys, clock=self.clock, type_name=type_name, tolerant=tolerant)

    def tolerant(self) -> Handle:
        """This table once more, for `repair`: it puts up with a column of several types, and its states tell them."""
        other = copy.copy(self)
        other.log = self._log_reader(tolerant=True)
        if self._times is not None:
            other.log.learn_timing(self._times.timing, self._times.earlier_timing)
        return other

    @property
    def location(self) -> Location:
        """Where the table is."""
        return self.store.location

    @property
    def table(self) -> str:
        """The table's address, as messages name it."""
        return self.location.uri

    @property
    def spec(self) -> TableSpec:
        """How the table is partitioned, sorted and stored, as of the last look at the log."""
        return self._spec

    @property
    def timing(self) -> Timing:
        """The table's times that count now, as of the last look at the log; see `options.timing_at`."""
        times = self._times
        if times is None or not times.earlier_timing:
            return times.timing if times is not None else Timing()
        return timing_at(times.timing, times.earlier_timing, self.clock.now_ms())

    def part_timeout_ms(self, oldest_part_ms: int) -> int:
        """Return the age up to which a part from `oldest_part_ms` may be published; see `timing.part_timeout_at`."""
        times = self._times or TableSpec()
        return part_timeout_at(times.timing, times.earlier_timing, oldest_part_ms)

    def doomed_ms(self, now_ms: int) -> int:
        """The newest tombstone whose part may be deleted by `now_ms`; see `options.deletable_until`."""
        times = self._times or TableSpec()
        return deletable_until(times.timing, times.earlier_timing, now_ms)

    def learn_changed_times(self) -> None:
        """Read the log if the last look is longer ago than `grace_ms`: another program may have changed the times."""
        now_ms, read_at_ms = self.clock.now_ms(), self._read_at_ms
        grace_ms = (self._times or TableSpec()).timing.grace_ms
        if read_at_ms is None or not 0 <= now_ms - read_at_ms <= grace_ms:
            self.read()

    def _learn_times(self, spec: TableSpec) -> None:
        if self._times is None or (spec.revision >= self._times.revision and (spec.id or not self._times.id)):
            self._times = spec
            self.log.learn_timing(spec.timing, spec.earlier_timing)

    @property
    def expressions(self) -> tuple[PartitionExpression, ...]:
        """The partition expressions of the spec, checked."""
        if self._expressions is None:
            self._expressions = partition_expressions(self.spec, table=self.table)
        return self._expressions

    @property
    def known_schema(self) -> Mapping[str, str]:
        """What was last seen of the log's schema. It may lack columns, and is true until a repair elsewhere."""
        return self._schema

    @property
    def columns(self) -> dict[str, str]:
        """The table's columns with their types: those that the log has, and those that were declared."""
        return all_columns(self.spec, self._schema)

    def read(self, *, everything: bool = False, fresh: bool = False) -> TableState:
        """The state of the table now; see `LogReader.read`."""
        started_ms = self.clock.now_ms()
        if self._times is None:
            self._learn_first_times()
        state = self.log.read(everything=everything, fresh=fresh)
        self._read_at_ms = started_ms
        self._schema = dict(state.schema)
        self._learn_spec(state)
        return state

    def with_spec(self, spec: TableSpec) -> Handle:
        """This table with another spec. What was read of the log is shared."""
        other = copy.copy(self)
        other._spec, other._expressions = _with_checked_types(spec, self.table), None
        if not self._fixed_spec:
            other._learn_times(spec)
        return other

    def _learn_spec(self, state: TableState) -> None:
        if isinstance(state.spec, msgspec.UnsetType):
            return
        recorded = decode_spec(bytes(state.spec), table=self.table, key=self.keys.log_prefix)
        self._learn_times(recorded)
        if self._fixed_spec or recorded.revision <= self._spec.revision:
            return
        try:
            check_stored_spec(recorded, table=self.table)
            self.learn_spec(recorded)
        except InvalidRequestError as error:  # another program may have written it
            key = next(k for k, f in state.effective.items() if f.file.spec is state.spec)
            raise damaged_spec(self.table, key, error) from None

    def learn_spec(self, recorded: TableSpec) -> None:
        """Remember a spec that the log records, unless a newer one is known."""
        if recorded.revision > self._spec.revision and not self._fixed_spec:
            self._spec, self._expressions = _with_checked_types(recorded, self.table), None
            self._learn_times(recorded)

    def _learn_first_times(self) -> None:
        """Learn the times from `_table.json`, if there is one: a program of the v3 API brings a spec of its own."""
        try:
            body = self.store.get(self.keys.spec).body
        except (ObjectNotFound, AccessDenied):  # a log alone needs no access to the parts, and later specs are in it
            self._times = TableSpec()
        else:
            self._learn_times(decode_spec(body, table=self.table, key=self.keys.spec))

    def fresh_writer(self) -> str:
        """A writer's name that no log file has yet, of this host and process."""
        return self.writer[: -len("0123456789ab")] + self.clock.new_id()[:12]

    def learn_schema(self, columns: Mapping[str, str]) -> None:
        """Remember columns that a commit of ours made the table's."""
        self._schema = {**self._schema, **columns}

    def part(self, marker: Marker) -> Part:
        """The public face of a marker."""
        return Part(
            key=marker.key,
            path=f"{self.location.root_uri}/{marker.key}",
            partition=self.partition(marker),
            bytes=marker.bytes,
            rows=marker.rows,
            created_ms=marker.created_ms,
            tombstoned_ms=marker.tombstoned_ms,
            stats=marker.stats,
        )

    def partition(self, marker: Marker) -> str:
        """The path of the partition that a marker's part lies in."""
        return partition_of(self.keys.data_prefix, marker.key)

    def far_ahead_ms(self, now_ms: int) -> int:
        """The time from which on a log file is from a clock far ahead: no commit of `now_ms` can replace it."""
        return now_ms + 2 * self.timing.max_skew_ms + 1

    def own_paths(self, parts: Sequence[Part]) -> list[str]:
        """The paths of parts, for engines that open them by path. Raises SymbolicLink, also for a folder on the way."""
        if self.location.scheme == "file":
            root = self.location.root
            check_links(root, (p.key for p in parts if p.path == f"{root}/{p.key}"))  # a fetched copy lies elsewhere
        return [p.path for p in parts]

    def readable_paths(self, parts: Sequence[Part]) -> list[str]:
        """What DuckDB can open: the parts themselves, or copies of what it cannot reach. Raises SymbolicLink.

        That is what only this process's memory holds or what lies in Azure, and a name, of a v3 program, that DuckDB
        takes for a pattern.
        """
        self.own_paths(parts)
        return [self._readable(p) for p in parts]

    def readable_path(self, part: Part) -> str:
        """See `readable_paths`."""
        return self.readable_paths([part])[0]

    def _readable(self, part: Part) -> str:
        if not part.path.startswith(_COPIED) and _NO_PATH.isdisjoint(part.key):
            return part.path
        path = self._copies / part.key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary_folder("part", below=self._copies) as folder:
                whole = folder / "part"
                fetch(self.store, part.key, whole)
                whole.replace(path)  # another thread may look for it meanwhile
        return str(path)

    @property
    def _copies(self) -> Path:
        """A folder of this handle's own, whichever of its threads is the first to need it."""
        with _making_folders:
            # Until the process ends: a lazy relation may outlive its table. A forked one has a folder of its own.
            if self._copies_folder is None or self._copies_folder[0] != os.getpid():
                self._copies_folder = os.getpid(), make_folder("memory")
            return self._copies_folder[1]

    def write_context(self) -> WriteContext:
        """All that a writer, here or on another machine, must know."""
        return WriteContext(self.location, self.spec, self.expressions, self.columns)

    def check_spec(self) -> None:
        """Refuse to change a table whose `_table.json` is gone. Makes no request. Raises CorruptLog."""
        if self.spec_is_lost:
            raise lost_spec(self.table, self.keys.spec)

    def check_writable(self) -> None:
        """Refuse a table without its spec; once per handle, look whether the store refuses to overwrite an object.

        Raises CorruptLog, UnsupportedStore and the store's errors (no bucket, no access).
        """
        self.check_spec()
        if self._probed or self.fencing == "none":
            return
        try:
            self.store.create(self.keys.probe, b"{}")
        except ObjectExists:
            self._probed = True
            return
        try:
            self.store.create(self.keys.probe, b"{}")
        except ObjectExists:
            self._probed = True
            return
        raise UnsupportedStore(
            f"{self.table}: the store overwrites an existing object although told to create only (If-None-Match: *). "
            "Two maintenance runs at once could lose rows. Use a store that honours it, or open the table with "
            "fencing='none' and make sure yourself that exactly one program maintains it."
        )

    def check_clock(self, key: str, *, put_after_ms: int) -> None:
        """Once per handle: compare this machine's clock with the store's time for an object that it has just put.

        `put_after_ms`: when that began. Raises ClockSkew and the store's errors.
        """
        if self._clock_checked or self.fencing == "none":
            return
        if self.clock.now_ms() - put_after_ms > self.timing.max_skew_ms:
            self._check_clock_now()  # so long ago, and perhaps by another machine, says nothing of this clock
        else:
            self._compare(key, put_after_ms)

    def _check_clock_now(self) -> None:
        """Compare by an object that is put for this alone. Left behind, it is an orphan like others."""
        for _ in range(CLOCK_ATTEMPTS_MAX):
            before_ms = self.clock.now_ms()
            key = self.keys.part("", self.clock.new_id())
            try:
                with suppress(ObjectExists):  # the key is random: our own put, repeated by the client library
                    self.store.create(key, b"")
                return self._compare(key, before_ms)
            except ObjectNotFound:
                continue  # this process slept for so long that another program's sweep deleted the object
            finally:
                self.store.delete([key])
        raise StoreUnavailable(
            f"{self.table}: {CLOCK_ATTEMPTS_MAX} objects below '{self.keys.data_prefix}' were gone before their time "
            "could be read, so the clocks could not be compared. Nothing was published or deleted. Try again."
        )

    def _compare(self, key: str, put_after_ms: int) -> None:
        stored_ms = self.store.head(key).stored_ms
        ahead_ms = clock_ahead_ms(put_after_ms=put_after_ms, stored_ms=stored_ms, now_ms=self.clock.now_ms())
        if abs(ahead_ms) > self.timing.max_skew_ms:
            raise ClockSkew(
                f"{self.table}: this machine's clock is {abs(ahead_ms) / 1000:.0f} s "
                f"{'ahead of' if ahead_ms > 0 else 'behind'} the store's; {self.timing.max_skew_ms / 1000:.0f} s "
                "are allowed. Nothing was published or deleted. Synchronise it (NTP)."
            )
        self._clock_checked = True


def clock_ahead_ms(*, put_after_ms: int, stored_ms: int, now_ms: int) -> int:
    """How far this machine's clock is ahead of the store's, at least; below 0: behind it.

    `stored_ms` is the store's time for an object that was put between the other two, which are this machine's.
    """
    ahead_ms = put_after_ms - STORED_MS_PRECISION - stored_ms
    behind_ms = stored_ms - now_ms
    return max(ahead_ms, 0) or -max(behind_ms, 0)


def lost_spec(table: str, key: str) -> CorruptLog:
    """The error for a write to a table whose `_table.json` is gone."""
    return CorruptLog(
        f"{table}: '{key}' is missing, and the log is of a table that had it. The table can be read, and not be "
        "written. Restore the object from a backup, or make it anew from the log with 'icedb repair-spec' or "
        "Table.repair_spec, then open the table again.",
        key=key,
    )


def damaged_spec(table: str, key: str, error: InvalidRequestError) -> CorruptLog:
    """The error for a stored spec that no program of this project would have written."""
    return CorruptLog(
        f"{table}: the spec in '{key}' cannot be obeyed: {error} Restore the object from a backup or an earlier "
        "version of it.",
        key=key,
    )


def _with_checked_types(spec: TableSpec, table: str) -> TableSpec:
    """The spec with types by DuckDB's own names: somebody else may have written it, and SQL is made of them.

    Raises InvalidOption for what is no type.
    """
    columns = {c: checked_type(t, what=f"column '{c}'", table=table) for c, t in spec.columns.items()}
    paths = {c: checked_type(t, what=f"path column '{c}'", table=table) for c, t in spec.path_columns.items()}
    return msgspec.structs.replace(spec, columns=columns, path_columns=paths)
