"""The handle of an open table: its address, store, spec, clock, and the last known state of its log.

All packages above (reader, operations, Spark) work on a `Handle`. `icedb.Table` is its public face.
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

# S3 returns the time of an object in whole seconds.
STORED_MS_PRECISION = 1_000
# A sweep deletes the object of a comparison only if this process was suspended for hours right after its put.
CLOCK_ATTEMPTS_MAX = 3
# DuckDB interprets these characters, or an address cannot contain them.
_NO_PATH = frozenset("?*[]\\\n\r")
# DuckDB does not open parts at such addresses. They are fetched to a local path.
_COPIED = ("memory://", "az://")

# From Python 3.12 on, a cached property has no lock.
_making_folders = threading.Lock()


@dataclass(frozen=True, slots=True)
class Part:
    """A part (data file): one immutable Parquet file. `rows` is None for a v3 part. Times are unix milliseconds."""

    key: str
    path: str
    partition: str
    bytes: int
    rows: int | None
    created_ms: int
    tombstoned_ms: int | None = None
    #: The column statistics in the log, still encoded; see `icedb.sql.column_stats`.
    stats: Stats = field(default=msgspec.UNSET, repr=False, compare=False)

    @property
    def values(self) -> dict[str, str | None]:
        """The value of each partition column, as text."""
        return decode_partition(self.partition)


class Handle:
    """An open table. Threads can share it. Each process must open its own."""

    def __init__(
        self,
        store: ObjectStore,
        spec: TableSpec,
        *,
        clock: Clock | None = None,
        fencing: Fencing = "claims",
        fixed_spec: bool = False,
    ) -> None:
        """Create a handle. `fixed_spec`: use `spec` and ignore specs that the log records (the API of IceDB v3)."""
        if fencing not in get_args(Fencing):
            raise InvalidOption(f"{store.location.uri}: fencing is {fencing!r}; give 'claims' or 'none'.")
        self.store = store
        #: The names of the table's objects. Created once, because they are used for each part.
        self.keys: Keys = store.location.keys
        self._spec = _with_checked_types(spec, store.location.uri)
        self._fixed_spec = fixed_spec
        self._expressions: tuple[PartitionExpression, ...] | None = None
        self.clock: Clock = clock or SystemClock()
        self.fencing: Fencing = fencing
        self.writer = writer_name(self.clock)
        self.log = self._log_reader(tolerant=False)
        #: The body of `_table.json` in one line, or `{}`. The first exclusive commit records it in the log.
        self.stored_spec = msgspec.Raw(encode_spec(self._spec, indent=0) if spec.id else b"{}")
        #: Whether the `_table.json` of the table is missing. Such a table is read-only.
        self.spec_is_lost = False
        #: The time of the last append: two appends of one handle within a millisecond need two names.
        self.last_append_ms = 0
        #: The newest epoch that was read. A log with an older head has lost exclusive commits.
        self.newest_epoch = 0
        #: The last state, and its live parts once a reader has requested them.
        self.latest: tuple[TableState, Sequence[Part]] | None = None
        self._schema: dict[str, str] = {}
        self._probed = False
        self._copies_folder: tuple[int, Path] | None = None
        self._clock_checked = False
        #: The spec with the times, as one value for all threads, or None if no spec of the table is known.
        self._times: TableSpec | None = None
        #: When the log was read last.
        self._read_at_ms: int | None = None
        if spec.id or not fixed_spec:
            self._learn_times(spec)

    def _log_reader(self, *, tolerant: bool) -> LogReader:
        return LogReader(self.store, self.keys, clock=self.clock, type_name=type_name, tolerant=tolerant)

    def tolerant(self) -> Handle:
        """Return a handle for `repair_types`, whose states accept and list several types of one column."""
        other = copy.copy(self)
        other.log = self._log_reader(tolerant=True)
        if self._times is not None:
            other.log.learn_timing(self._times.timing, self._times.earlier_timing)
        return other

    @property
    def location(self) -> Location:
        """The location of the table."""
        return self.store.location

    @property
    def table(self) -> str:
        """The address of the table, for messages."""
        return self.location.uri

    @property
    def spec(self) -> TableSpec:
        """How the table is partitioned, sorted and stored, as of the last read of the log."""
        return self._spec

    @property
    def timing(self) -> Timing:
        """The times that are in force now, as of the last read of the log; see `timing.timing_at`."""
        times = self._times
        if times is None or not times.earlier_timing:
            return times.timing if times is not None else Timing()
        return timing_at(times.timing, times.earlier_timing, self.clock.now_ms())

    def part_timeout_ms(self, oldest_part_ms: int) -> int:
        """Return the age up to which a part from `oldest_part_ms` may be published; see `timing.part_timeout_at`."""
        times = self._times or TableSpec()
        return part_timeout_at(times.timing, times.earlier_timing, oldest_part_ms)

    def doomed_ms(self, now_ms: int) -> int:
        """Return the newest tombstone whose part may be deleted by `now_ms`; see `timing.deletable_until`."""
        times = self._times or TableSpec()
        return deletable_until(times.timing, times.earlier_timing, now_ms)

    def learn_changed_times(self) -> None:
        """Read the log if the last read is longer ago than `grace_ms`: another program may have changed the times."""
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
        """The log's schema at the last read. It may lack columns, and holds until another program repairs types."""
        return self._schema

    @property
    def columns(self) -> dict[str, str]:
        """The table's columns with their types: the columns in the log, and declared ones."""
        return all_columns(self.spec, self._schema)

    def read(self, *, everything: bool = False, fresh: bool = False) -> TableState:
        """Return the state of the table now; see `LogReader.read`."""
        started_ms = self.clock.now_ms()
        if self._times is None:
            self._learn_first_times()
        state = self.log.read(everything=everything, fresh=fresh)
        self._read_at_ms = started_ms
        self._schema = dict(state.schema)
        self._learn_spec(state)
        return state

    def with_spec(self, spec: TableSpec) -> Handle:
        """Return a handle of this table with another spec. Both share the log reader."""
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
        """Use a spec that the log records, unless a newer one is known."""
        if recorded.revision > self._spec.revision and not self._fixed_spec:
            self._spec, self._expressions = _with_checked_types(recorded, self.table), None
            self._learn_times(recorded)

    def _learn_first_times(self) -> None:
        """Read the times from `_table.json`, if it exists. A program of the v3 API supplies its own spec."""
        try:
            body = self.store.get(self.keys.spec).body
        except (ObjectNotFound, AccessDenied):  # reading a log needs no access to the parts, and it has later specs
            self._times = TableSpec()
        else:
            self._learn_times(decode_spec(body, table=self.table, key=self.keys.spec))

    def fresh_writer(self) -> str:
        """Return a writer's name of this host and process that no log file has yet."""
        return self.writer[: -len("0123456789ab")] + self.clock.new_id()[:12]

    def learn_schema(self, columns: Mapping[str, str]) -> None:
        """Remember columns that our own commit added to the table."""
        self._schema = {**self._schema, **columns}

    def part(self, marker: Marker) -> Part:
        """Return the public Part of a marker (the log's line for a part)."""
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
        """Return the path of the partition of a marker's part."""
        return partition_of(self.keys.data_prefix, marker.key)

    def far_ahead_ms(self, now_ms: int) -> int:
        """Return the time from which on a log file is from a clock far ahead: no commit of `now_ms` can replace it."""
        return now_ms + 2 * self.timing.max_skew_ms + 1

    def own_paths(self, parts: Sequence[Part]) -> list[str]:
        """Return the paths of parts, for engines that open paths. Raises SymbolicLink, also for parent folders."""
        if self.location.scheme == "file":
            root = self.location.root
            check_links(root, (p.key for p in parts if p.path == f"{root}/{p.key}"))  # a fetched copy lies elsewhere
        return [p.path for p in parts]

    def readable_paths(self, parts: Sequence[Part]) -> list[str]:
        """Return paths that DuckDB can open: of the parts, or of local copies. Raises SymbolicLink.

        DuckDB cannot open parts in this process's memory or in Azure, nor the names of v3 parts that it takes for a
        pattern.
        """
        self.own_paths(parts)
        return [self._readable(p) for p in parts]

    def readable_path(self, part: Part) -> str:
        """Return the path of one part; see `readable_paths`."""
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
                whole.replace(path)  # atomically, for other threads
        return str(path)

    @property
    def _copies(self) -> Path:
        """The folder of this handle's copies, which the first thread that needs it creates."""
        with _making_folders:
            # It lasts until the process ends: a lazy relation may outlive its table. A forked process has its own.
            if self._copies_folder is None or self._copies_folder[0] != os.getpid():
                self._copies_folder = os.getpid(), make_folder("memory")
            return self._copies_folder[1]

    def write_context(self) -> WriteContext:
        """Return everything that a writer needs, on this machine or another."""
        return WriteContext(self.location, self.spec, self.expressions, self.columns)

    def check_spec(self) -> None:
        """Raise CorruptLog for a table whose `_table.json` is missing. Makes no request."""
        if self.spec_is_lost:
            raise lost_spec(self.table, self.keys.spec)

    def check_writable(self) -> None:
        """Reject a table without its spec. Once per handle, check that the store refuses to overwrite an object.

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
            "Two concurrent maintenance runs could lose rows. Use a store that honours it, or open the table with "
            "fencing='none' and ensure that exactly one program maintains it."
        )

    def check_clock(self, key: str, *, put_after_ms: int) -> None:
        """Compare this machine's clock with the store's time for an object that it has just put, once per handle.

        `put_after_ms` is the time before that put. Raises ClockSkew and the store's errors.
        """
        if self._clock_checked or self.fencing == "none":
            return
        if self.clock.now_ms() - put_after_ms > self.timing.max_skew_ms:
            self._check_clock_now()  # the put is too long ago, and perhaps of another machine
        else:
            self._compare(key, put_after_ms)

    def _check_clock_now(self) -> None:
        """Compare by an object that is put only for this purpose. After a crash, it is an orphan like others."""
        for _ in range(CLOCK_ATTEMPTS_MAX):
            before_ms = self.clock.now_ms()
            key = self.keys.part("", self.clock.new_id())
            try:
                with suppress(ObjectExists):  # the key is random: our own put, repeated by the client library
                    self.store.create(key, b"")
                return self._compare(key, before_ms)
            except ObjectNotFound:
                continue  # this process was suspended for so long that another program's sweep deleted the object
            finally:
                self.store.delete([key])
        raise StoreUnavailable(
            f"{self.table}: {CLOCK_ATTEMPTS_MAX} objects below '{self.keys.data_prefix}' were deleted before their "
            "time could be read, so the clocks could not be compared. Nothing was published. Retry the call."
        )

    def _compare(self, key: str, put_after_ms: int) -> None:
        stored_ms = self.store.head(key).stored_ms
        ahead_ms = clock_ahead_ms(put_after_ms=put_after_ms, stored_ms=stored_ms, now_ms=self.clock.now_ms())
        if abs(ahead_ms) > self.timing.max_skew_ms:
            raise ClockSkew(
                f"{self.table}: this machine's clock is {abs(ahead_ms) / 1000:.0f} s "
                f"{'ahead of' if ahead_ms > 0 else 'behind'} the store's; {self.timing.max_skew_ms / 1000:.0f} s "
                "are allowed. Nothing was published or deleted. Synchronise this machine's clock (NTP)."
            )
        self._clock_checked = True


def clock_ahead_ms(*, put_after_ms: int, stored_ms: int, now_ms: int) -> int:
    """Return by how much, at least, this machine's clock is ahead of the store's. A negative value means behind.

    `stored_ms` is the store's time for an object. It was put between the other two times, which are this machine's.
    """
    ahead_ms = put_after_ms - STORED_MS_PRECISION - stored_ms
    behind_ms = stored_ms - now_ms
    return max(ahead_ms, 0) or -max(behind_ms, 0)


def lost_spec(table: str, key: str) -> CorruptLog:
    """Return the error for a write to a table whose `_table.json` is missing."""
    return CorruptLog(
        f"{table}: '{key}' is missing, and the log is of a table that had it. The table can be read, and not be "
        "written. Restore the object from a backup, or create it from the log with 'icedb repair-spec' or "
        "Table.repair_spec, then open the table again.",
        key=key,
    )


def damaged_spec(table: str, key: str, error: InvalidRequestError) -> CorruptLog:
    """Return the error for a stored spec that is invalid: this project's programs write none."""
    return CorruptLog(
        f"{table}: the spec in '{key}' is invalid: {error} Restore the object from a backup or an earlier "
        "version of it.",
        key=key,
    )


def _with_checked_types(spec: TableSpec, table: str) -> TableSpec:
    """Return the spec with DuckDB's own type names: another program may have written it, and SQL contains them.

    Raises InvalidOption for a name that is no type.
    """
    columns = {c: checked_type(t, what=f"column '{c}'", table=table) for c, t in spec.columns.items()}
    paths = {c: checked_type(t, what=f"path column '{c}'", table=table) for c, t in spec.path_columns.items()}
    return msgspec.structs.replace(spec, columns=columns, path_columns=paths)
