"""A snapshot of a table: what a reader holds on to.

A snapshot is a list of live parts and a schema: nothing that happens later changes it, and cleanup leaves its
parts alone for the grace period. Its query sees a table `t`: every column of the schema (null where a part
lacks it) and the partition columns with the type of their expression; a data column of the same name wins. Beside it,
`final` is what `t` will be when all is merged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import duckdb
import pyarrow as pa

from icedb.engine import connect_reader, quote_name
from icedb.errors import InvalidOption
from icedb.final import final_relation
from icedb.format.records import Marker, total_rows
from icedb.format.snapshot import LogState, live_markers
from icedb.handle import Handle, Part
from icedb.maintenance.pins import is_pinned
from icedb.partitions import PartitionExpression, matching, partition_expressions, partition_types
from icedb.scan import explain, relation
from icedb.spec import TableSpec, all_columns
from icedb.store import ObjectNotFound

__all__ = ["Snapshot", "take_snapshot"]

_NO_FINAL = re.compile(r'Table with name "?final"? does not exist', re.IGNORECASE)


@dataclass(frozen=True)
class Snapshot:
    """Live parts and schema as of a time (unix milliseconds). Made by `Table.snapshot`."""

    table: str
    as_of_ms: int
    #: In key order.
    parts: tuple[Part, ...]
    #: Column -> DuckDB type; the schema is not versioned.
    schema: Mapping[str, str]
    #: How many log files it took to know this, and how many exclusive commits there had been.
    log_files: int
    epoch: int
    _handle: Handle
    _spec: TableSpec

    def __repr__(self) -> str:
        return f"Snapshot({self.table!r}, as_of_ms={self.as_of_ms}, parts={len(self.parts)}, rows={self.rows})"

    @property
    def handle(self) -> Handle:
        """The open table that it was taken of."""
        return self._handle

    @cached_property
    def id(self) -> str:
        """The same for the same live parts and schema: 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.key.encode() + b"\n")
        for column, type_ in sorted(self.schema.items()):
            digest.update(f"{column}\0{type_}\n".encode())
        return digest.hexdigest()[:16]

    @cached_property
    def partition_schema(self) -> Mapping[str, str]:
        """Partition column -> DuckDB type, in the order of `partition_by`. DuckDB is asked when somebody looks."""
        return partition_types(self._expressions, self.schema, table=self.table) if self.schema else {}

    @cached_property
    def _expressions(self) -> tuple[PartitionExpression, ...]:
        """Those of the snapshot's time: the handle may have learned of others since."""
        if self._handle.spec is self._spec:
            return self._handle.expressions
        return partition_expressions(self._spec, table=self.table)

    @property
    def rows(self) -> int | None:
        """Rows in all parts; None when a program that does not count them wrote one."""
        return total_rows(self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(p.bytes for p in self.parts)

    def partitions(self, where: str | None = None) -> list[str]:
        """The paths (`d=2026-11-21/u=7`) of the partitions that have live parts.

        `where` is a DuckDB predicate over the partition columns. Raises InvalidPartitionExpression.
        """
        paths = sorted({p.partition for p in self.parts})
        return paths if where is None else matching(paths, where, self.partition_schema, table=self.table)

    def files(self, where: str | None = None) -> list[Part]:
        """The live parts, or those of the partitions for which the predicate is true.

        Parts of an older partitioning, whose paths do not say, are among them: they may hold such rows.
        """
        if where is None:
            return list(self.parts)
        chosen = set(self.partitions(where))
        return [p for p in self.parts if p.partition in chosen or self.is_older(p)]

    def is_older(self, part: Part) -> bool:
        """Whether its path does not say the values of all partition columns: `files(where)` could not tell."""
        return not self.partition_schema.keys() <= part.values.keys()

    def query(self, sql: str, *, where: str | None = None) -> duckdb.DuckDBPyRelation:
        """The answer to a DuckDB query over the table `t`, as a lazy relation.

        The table `final` holds what `t` will when every partition is merged into one part: the exact result of a
        table with `merging`, however much of it is merged yet. Of other tables it is `t`.
        `where` prunes partitions before any part is opened. Raises MissingPart and DuckDB's own errors; since
        rows are read when they are fetched, a part that cleanup took meanwhile is DuckDB's IOException then.
        """
        con = connect_reader(self._handle.location)
        parts = self.files(where)
        try:
            rows = relation(self._handle, parts, self.schema, self.partition_schema, expressions=self._expressions)
            con.execute(f"CREATE TEMP VIEW t AS {self._within(rows, parts, where)}")
            answer = self._ask(con, sql, parts, where)
        except (duckdb.Error, ObjectNotFound) as error:
            raise explain(self._handle, parts, error, as_of_ms=self.as_of_ms) from None
        if answer is None:
            raise InvalidOption(
                f"{self.table}: the query has no answer: {sql.strip()[:80]!r}. Write one SELECT over t."
            )
        return answer

    def _within(self, rows: str, parts: Sequence[Part], where: str | None) -> str:
        """Parts of an older partitioning may hold rows for which `where` is not true."""
        if where is None or not any(map(self.is_older, parts)):
            return rows
        return f"SELECT * FROM ({rows}) AS t WHERE (\n{where}\n)"

    def _ask(
        self, con: duckdb.DuckDBPyConnection, sql: str, parts: Sequence[Part], where: str | None
    ) -> duckdb.DuckDBPyRelation | None:
        """The answer over `t`, and `final` if somebody asks for it: to make a view opens the parts."""
        try:
            return con.sql(sql)
        except duckdb.CatalogException as error:
            if not _NO_FINAL.search(str(error)):
                raise
        rows = final_relation(
            self._handle, self._spec, parts, self.schema, self.partition_schema, expressions=self._expressions
        )
        con.execute(f"CREATE TEMP VIEW final AS {self._within(rows, parts, where)}")
        return con.sql(sql)

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, where: str | None = None, final: bool = False
    ) -> pa.Table:
        """All rows as a pyarrow Table; `columns` selects, `where` prunes partitions, `final`: those of `final`."""
        if not self.schema:
            return pa.table({})  # SQL has no table without columns
        selected = "*" if columns is None else ", ".join(map(quote_name, columns))
        return self.query(f"SELECT {selected} FROM {'final' if final else 't'}", where=where).to_arrow_table()


def take_snapshot(handle: Handle, as_of_ms: int | None = None) -> Snapshot:
    """The snapshot at a time (unix milliseconds), or the latest. Raises SnapshotExpired and `LogReader.read`'s.

    A time before the horizon can be read if it is pinned; only then are the pins looked at, after the log.
    """
    # Before the log is read, and before this millisecond: a commit of this machine that comes next has a later time,
    # so asking for this snapshot's `as_of_ms` again gives the same parts.
    now_ms = handle.clock.now_ms() - 1
    state = handle.read()
    latest_ms = max(now_ms, state.newest_ms)
    if as_of_ms is None or as_of_ms > latest_ms:
        return _snapshot_of(handle, state, state.live, latest_ms)
    pinned = as_of_ms < state.horizon_ms and is_pinned(handle, as_of_ms)
    return _snapshot_of(handle, state, live_markers(state, as_of_ms, pinned=pinned), as_of_ms)


def _snapshot_of(handle: Handle, state: LogState, markers: Sequence[Marker], as_of_ms: int) -> Snapshot:
    return Snapshot(
        table=handle.table,
        as_of_ms=as_of_ms,
        parts=tuple(handle.part(m) for m in markers),
        schema=all_columns(handle.spec, state.schema),
        log_files=len(state.files),
        epoch=state.epoch,
        _handle=handle,
        _spec=handle.spec,
    )
