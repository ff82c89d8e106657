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
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import duckdb
import pyarrow as pa

from icedb.errors import InvalidPartitionExpression
from icedb.format.column_times import schema_at
from icedb.format.keys import decode_partition
from icedb.format.records import total_bytes, total_rows
from icedb.format.replay import TableState, live_markers
from icedb.format.table_spec import TableSpec, all_columns, spec_at
from icedb.reader.lazy_parts import LiveParts, latest_parts, live_parts
from icedb.reader.merged_view import final_relation
from icedb.reader.part_pruning import prune_parts
from icedb.reader.predicate_pushdown import asked_of_table
from icedb.reader.scan_sql import relation, translate_read_error, visible_partitions
from icedb.sql.connections import connect_reader, lock_reader, quote_name
from icedb.sql.partition_expressions import PartitionExpression, partition_expressions, partition_types
from icedb.sql.predicates import Predicate, check_predicate, matching
from icedb.sql.query_result import QueryResult
from icedb.sql.selects import check_select
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.pin_objects import is_pinned
from icedb.transaction.table_handle import Handle, Part
from icedb.transaction.time_bounds import check_readable_time
from icedb.util.arguments import checks_arguments

__all__ = ["Snapshot", "Where", "take_snapshot"]

#: A predicate: SQL, or DuckDB's own.
Where = str | duckdb.Expression

# For fewer, to think takes longer than to open them.
_PARTS_MIN = 16
_NO_FINAL = re.compile(r'Table with name "?final"? does not exist', re.IGNORECASE)


@dataclass(frozen=True)
@checks_arguments
class Snapshot:
    """Live parts and schema as of a time (unix milliseconds). Made by `Table.snapshot`."""

    table: str
    as_of_ms: int
    #: In key order. Of a large table, each is made when it is asked for.
    parts: Sequence[Part]
    #: Column -> DuckDB type: the columns that the table had at that time.
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

    @property
    def spec(self) -> TableSpec:
        """The table's spec as it was at the snapshot's time, as far as its columns depend on it."""
        return self._spec

    @cached_property
    def id(self) -> str:
        """The same for the same live parts and schema: 16 hexadecimal digits."""
        digest = hashlib.sha256()
        keys = self.parts.markers.keys if isinstance(self.parts, LiveParts) else (p.key for p in self.parts)
        for key in keys:
            digest.update(key.encode() + b"\n")
        for column, type_ in sorted(self.schema.items()):
            digest.update(f"{column}\0{type_}\n".encode())
        return digest.hexdigest()[:16]

    @cached_property
    def partition_schema(self) -> Mapping[str, str]:
        """Partition column -> DuckDB type, in the order of `partition_by`. DuckDB is asked when somebody looks.

        Without parts, only if the columns that it takes are declared: else they come with the first rows.
        """
        if not self.schema:
            return {}
        try:
            return partition_types(self.expressions, self.schema, table=self.table)
        except InvalidPartitionExpression:
            if self.parts and self.schema.keys() >= self._handle.columns.keys():
                raise
            return self._fitting_types()

    def _fitting_types(self) -> dict[str, str]:
        """The partition columns that follow from the columns of the snapshot's time.

        The table may have been partitioned by others since, by a program that does not record its earlier specs.
        """
        types: dict[str, str] = {}
        for expression in self.expressions:
            with suppress(InvalidPartitionExpression):
                types |= partition_types([expression], self.schema, table=self.table)
        return types if self.parts else {}

    @cached_property
    def expressions(self) -> tuple[PartitionExpression, ...]:
        """The partition expressions of the snapshot's time: the handle may have learned of others since."""
        if self._handle.spec is self._spec:
            return self._handle.expressions
        return partition_expressions(self._spec, table=self.table)

    @property
    def rows(self) -> int | None:
        """Rows in all parts; None when a program that does not count them wrote one."""
        return total_rows(self.parts.markers if isinstance(self.parts, LiveParts) else self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return total_bytes(self.parts.markers if isinstance(self.parts, LiveParts) else self.parts)

    def partitions(self, where: str | None = None) -> list[str]:
        """The paths (`d=2026-11-21/u=7`) of the partitions that have live parts.

        `where` is a DuckDB predicate over the partition columns. Raises InvalidPartitionExpression.
        """
        parts = self.parts
        paths = sorted(parts.partitions[0].values() if isinstance(parts, LiveParts) else {p.partition for p in parts})
        return paths if where is None else matching(paths, where, self.partition_schema, table=self.table)

    def files(self, where: Where | Predicate | None = None) -> list[Part]:
        """The live parts, or those that may hold a row for which a predicate over any columns of `t` is true.

        They are chosen by their partitions and by what the log says of their columns; none is opened. A part that is
        left out holds no such row. `where` is SQL, or a `duckdb.Expression`; it may ask for the time, which is asked
        once. One that was checked, over the columns of `t`, is not checked again. Raises InvalidOption, UnknownColumn.
        """
        return list(self.parts) if where is None else self._that_may_match(self._predicate(where))

    def in_partitions(self, where: str | None = None) -> list[Part]:
        """The live parts, or those of the partitions for which a predicate over the partition columns is true.

        A data column of the same name counts for nothing here. Parts of an older partitioning, whose paths do not say,
        are among them: they may hold such rows. Raises InvalidPartitionExpression.
        """
        if where is None:
            return list(self.parts)
        chosen = set(self.partitions(where))
        if isinstance(self.parts, LiveParts):
            paths, numbers = self.parts.partitions
            of_these = {n for n, path in paths.items() if path in chosen or self._is_older(path)}
            return list(self.parts.chosen(place for place, n in enumerate(numbers) if n in of_these))
        return [p for p in self.parts if p.partition in chosen or self.is_older(p)]

    def is_older(self, part: Part) -> bool:
        """Whether its path does not say the values of all partition columns: `in_partitions` could not tell."""
        return self._is_older(part.partition)

    def _is_older(self, partition: str) -> bool:
        return not self.partition_schema.keys() <= decode_partition(partition).keys()

    def query(self, sql: str, *, where: Where | None = None, sandbox: bool = False) -> QueryResult:
        """The answer to a DuckDB query over the table `t`: lazy, and as rows, Arrow, pandas or Polars.

        With `where`, a predicate as for `files`, `t` holds the rows for which it is true; no part is opened that
        certainly has none. What the query itself says of `t` in its WHERE leaves out parts as well.

        The table `final` holds what `t` will when every partition is merged into one part: the exact result of a
        table with `merging`, however much of it is merged yet. Of other tables it is `t`. `where` is asked of its rows,
        so after the merging.

        The query is one SELECT, or EXPLAIN of one; it downloads nothing and writes no file. It can read other files of
        this machine, to join them, and what the connection's credentials open. With `sandbox` it reads `t` and `final`
        alone: for SQL that others wrote.

        Raises InvalidOption, UnknownColumn, and InvalidQuery with DuckDB's text. Rows are read when they are fetched:
        errors of their values, SnapshotExpired and MissingPart are raised then.
        """
        predicate = None if where is None else self._predicate(where)
        parts = self._that_it_asks_for(sql, self.parts if predicate is None else self._that_may_match(predicate))
        con = connect_reader(self._handle.location)
        try:
            check_select(con, sql, table=self.table, sandbox=sandbox)
            rows = relation(self._handle, parts, self.schema, self.partition_schema, expressions=self.expressions)
            con.execute(f"CREATE VIEW t AS {_within(rows, predicate)}")
            lock_reader(con, self._handle.readable_paths(self._openable(parts)) if sandbox else None)
            answer = self._ask(con, sql, predicate)
        except (duckdb.Error, ObjectNotFound) as error:
            raise self._explained(error) from None
        return QueryResult(answer, self._explained, again=lambda: con.cursor().sql(sql))

    def _openable(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts that `t` and `final` read: of a table with merging, `final` may need more of them."""
        return parts if self._spec.merging is None else self.parts

    def _explained(self, error: Exception) -> Exception:
        return translate_read_error(self._handle, self.parts, error, as_of_ms=self.as_of_ms)

    def _ask(self, con: duckdb.DuckDBPyConnection, sql: str, predicate: Predicate | None) -> duckdb.DuckDBPyRelation:
        """The answer over `t`, and `final` if somebody asks for it, which not every table has."""
        try:
            return con.sql(sql)
        except duckdb.CatalogException as error:
            if not _NO_FINAL.search(str(error)):
                raise
        parts = self.parts if predicate is None else self._that_may_match(predicate, merged=True)
        rows = final_relation(
            self._handle, self._spec, parts, self.schema, self.partition_schema, expressions=self.expressions
        )
        con.execute(f"CREATE VIEW final AS {_within(rows, predicate)}")
        return con.sql(sql)

    # -------------------------------------------------------------------------------------------- pruning

    @cached_property
    def _visible(self) -> Mapping[str, str]:
        """The partition columns of `t`."""
        return visible_partitions(self.schema, self.partition_schema)

    def _predicate(self, where: Where | Predicate) -> Predicate:
        if isinstance(where, Predicate):
            return where
        text = str(where) if isinstance(where, duckdb.Expression) else where
        return check_predicate(text, self.schema, self._visible, table=self.table, at_once=True)

    def _that_may_match(self, predicate: Predicate, *, merged: bool = False) -> list[Part]:
        """`merged`: those whose rows may become such when they are merged."""
        columns = self.schema
        if merged and (merging := self._spec.merging) is not None:
            # Rows are merged that are equal in these; what the others will be, no single part tells.
            columns = {c: t for c, t in columns.items() if c in merging.by}
        return prune_parts(self.parts, predicate.tree, columns, self._visible)

    def _that_it_asks_for(self, sql: str, parts: Sequence[Part]) -> Sequence[Part]:
        """Without the parts of which a query can use no row, as its own conditions say."""
        if len(parts) < _PARTS_MIN:
            return parts
        predicate = asked_of_table(sql, "t", frozenset(c.casefold() for c in (*self.schema, *self._visible)))
        return parts if predicate is None else prune_parts(parts, predicate, self.schema, self._visible)

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, final: bool = False
    ) -> pa.Table:
        """All rows as a pyarrow Table, or those for which `where` is true; `columns` selects, `final`: of `final`."""
        if not self.schema:
            return pa.table({})  # SQL has no table without columns
        selected = "*" if columns is None else ", ".join(map(quote_name, columns))
        return self.query(f"SELECT {selected} FROM {'final' if final else 't'}", where=where).to_arrow()


def _within(rows: str, predicate: Predicate | None) -> str:
    return rows if predicate is None else f"SELECT * FROM ({rows}) AS t WHERE (\n{predicate.sql}\n)"


def take_snapshot(handle: Handle, as_of_ms: int | None = None, *, may_precede: bool = False) -> Snapshot:
    """The snapshot at a time (unix milliseconds), or the latest. Raises SnapshotExpired and `LogReader.read`'s.

    Raises InvalidOption for a time before the table's creation, unless `may_precede`, or in the future.

    A time before the horizon can be read if it is pinned; only then are the pins looked at, after the log.
    """
    # Before the log is read, and before this millisecond: a commit of this machine that comes next has a later time,
    # so asking for this snapshot's `as_of_ms` again gives the same parts.
    now_ms = handle.clock.now_ms() - 1
    state = handle.read()
    latest_ms = max(now_ms, state.newest_ms)
    if as_of_ms is not None:
        check_readable_time(handle, state, as_of_ms, now_ms=now_ms, may_precede=may_precede)
    if as_of_ms is None or as_of_ms > latest_ms:
        return _snapshot_of(handle, state, latest_parts(handle, state), latest_ms, handle.spec, state.schema)
    pinned = as_of_ms < state.horizon_ms and is_pinned(handle, as_of_ms)
    parts = live_parts(handle, live_markers(state, as_of_ms, pinned=pinned))
    return _snapshot_of(handle, state, parts, as_of_ms, spec_at(handle.spec, as_of_ms), schema_at(state, as_of_ms))


def _snapshot_of(
    handle: Handle,
    state: TableState,
    parts: Sequence[Part],
    as_of_ms: int,
    spec: TableSpec,
    schema: Mapping[str, str],
) -> Snapshot:
    return Snapshot(
        table=handle.table,
        as_of_ms=as_of_ms,
        parts=parts,
        schema=all_columns(spec, schema),
        log_files=len(state.files),
        epoch=state.epoch,
        _handle=handle,
        _spec=spec,
    )
