"""The handle of an open table: its store, clock and writer, and the objects that reads and commits update.

All packages above (reader, operations, Spark) work on a `Handle`. `icedb.Table` wraps it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

from icedb.errors import AccessDenied, InvalidOption
from icedb.format.keys import Keys, partition_of
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns, decode_spec, encode_spec
from icedb.format.timing import Timing
from icedb.sql.partition_expressions import PartitionExpression
from icedb.sql.types import type_name
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectNotFound, ObjectStore
from icedb.storage.parts import Part, PartPaths
from icedb.transaction.current_spec import CurrentSpec, TableTimes, lost_spec
from icedb.transaction.log_cache import LogCache
from icedb.transaction.log_reader import LogReader
from icedb.transaction.store_checks import StoreChecks
from icedb.util.clock import Clock, SystemClock, writer_name
from icedb.writer.batch_schema import WriteContext

__all__ = ["Fencing", "Handle"]

Fencing = Literal["claims", "none"]


@dataclass(frozen=True, eq=False, repr=False)
class Handle:
    """An open table. Threads can share it. Each process must open its own.

    No field of a handle is ever assigned. `log`, `times`, `cache`, `checks`, `part_paths` and `current_spec` change
    only by their own methods. `dataclasses.replace` makes a handle with other values that shares all else. `with_spec`
    and `tolerant` return further handles. They share the times and the local copies of parts: both belong to the table.
    Their caches and checks start as copies and change separately.
    """

    store: ObjectStore
    #: The names of the table's objects. Created once, because they are used for each part.
    keys: Keys
    clock: Clock
    fencing: Fencing
    writer: str
    log: LogReader
    times: TableTimes
    cache: LogCache
    checks: StoreChecks
    part_paths: PartPaths
    current_spec: CurrentSpec
    #: The body of `_table.json` in one line, or `{}`. The first exclusive commit records it in the log.
    stored_spec: msgspec.Raw
    #: Whether the `_table.json` of the table is missing. Such a table is read-only.
    spec_is_lost: bool = False

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        spec: TableSpec,
        *,
        clock: Clock | None = None,
        fencing: Fencing = "claims",
        fixed_spec: bool = False,
    ) -> Handle:
        """Create a handle. `fixed_spec`: use `spec` and ignore specs that the log records (the API of IceDB v3)."""
        table, keys = store.location.uri, store.location.keys
        if fencing not in get_args(Fencing):
            raise InvalidOption(f"{table}: fencing is {fencing!r}; give 'claims' or 'none'.")
        clock, times = clock or SystemClock(), TableTimes()
        current_spec = CurrentSpec(spec, times, keys, table, is_fixed=fixed_spec)
        return cls(
            store=store,
            keys=keys,
            clock=clock,
            fencing=fencing,
            writer=writer_name(clock),
            log=LogReader(store, keys, clock=clock, times=times, type_name=type_name),
            times=times,
            cache=LogCache(),
            checks=StoreChecks(store, clock, times, skip=fencing == "none"),
            part_paths=PartPaths(store),
            current_spec=current_spec,
            stored_spec=msgspec.Raw(encode_spec(current_spec.spec, indent=0) if spec.id else b"{}"),
        )

    def with_spec(self, spec: TableSpec) -> Handle:
        """Return a handle of this table with another spec. Both share the log reader."""
        return replace(
            self,
            current_spec=self.current_spec.replaced_by(spec),
            cache=copy.copy(self.cache),
            checks=copy.copy(self.checks),
        )

    def tolerant(self) -> Handle:
        """Return a handle for `repair_types`, whose states accept and list several types of one column."""
        log = LogReader(self.store, self.keys, clock=self.clock, times=self.times, type_name=type_name, tolerant=True)
        return replace(self.with_spec(self.spec), log=log)

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
        """The spec of the table, as of the last read of the log."""
        return self.current_spec.spec

    @property
    def expressions(self) -> tuple[PartitionExpression, ...]:
        """The partition expressions of the spec, checked."""
        return self.current_spec.expressions

    @property
    def timing(self) -> Timing:
        """The times that are in force now, as of the last read of the log; see `timing.timing_at`."""
        return self.times.in_force(self.clock)

    @property
    def known_schema(self) -> Mapping[str, str]:
        """The log's schema at the last read. It may lack columns. It is right until a repair of types."""
        return self.cache.schema

    @property
    def columns(self) -> dict[str, str]:
        """The table's columns with their types: the columns in the log, and declared ones."""
        return all_columns(self.spec, self.known_schema)

    def read(self, *, everything: bool = False, fresh: bool = False) -> TableState:
        """Return the state of the table now; see `LogReader.read`."""
        started_ms = self.clock.now_ms()
        if not self.times.are_read:
            self._learn_first_times()
        state = self.log.read(everything=everything, fresh=fresh)
        self.cache.learn(state, read_at_ms=started_ms)
        self.current_spec.learn_from(state)
        return state

    def learn_changed_times(self) -> None:
        """Read the log if the last read is longer ago than `grace_ms`: another program may have changed the times."""
        if not self.cache.is_recent(self.clock.now_ms(), age_ms=self.times.spec.timing.grace_ms):
            self.read()

    def _learn_first_times(self) -> None:
        """Read the times from `_table.json`, if it exists. A program of the v3 API supplies its own spec."""
        try:
            body = self.store.get(self.keys.spec).body
        except (ObjectNotFound, AccessDenied):  # reading a log needs no access to the parts, and it has later specs
            self.times.learn(TableSpec())
        else:
            self.times.learn(decode_spec(body, table=self.table, key=self.keys.spec))

    def fresh_writer(self) -> str:
        """Return a writer's name of this host and process that no log file has yet."""
        return self.writer[: -len("0123456789ab")] + self.clock.new_id()[:12]

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
        self.checks.check_create_only()
