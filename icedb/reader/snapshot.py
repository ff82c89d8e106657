"""Snapshots: the live parts (data files) and the schema of a table at one time, and queries over them.

A snapshot is immutable. Cleanup (VACUUM) keeps its parts for the grace period. A query sees a table `t` with every
column of the schema, null where a part lacks it, and the partition columns with the types of their expressions. If a
data column has the name of a partition column, `t` has the data column. The table `final` has the rows of `t` as they
will be when every partition is merged (compacted).
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
from icedb.format.keys import decode_partition
from icedb.format.records import total_bytes, total_rows
from icedb.format.table_spec import TableSpec
from icedb.reader.lazy_parts import LiveParts, latest_parts, live_parts
from icedb.reader.merged_view import final_relation
from icedb.reader.part_pruning import prune_parts
from icedb.reader.predicate_pushdown import pushed_down_predicate
from icedb.reader.scan_sql import relation, translate_read_error, visible_partitions
from icedb.reader.time_bounds import check_readable_time, markers_at, resolve_time
from icedb.sql.connections import connect_reader, lock_reader, quote_name
from icedb.sql.partition_expressions import PartitionExpression, partition_expressions, partition_types
from icedb.sql.predicates import Predicate, check_predicate, matching
from icedb.sql.query_result import QueryResult
from icedb.sql.selects import check_select
from icedb.storage.obstore_store import ObjectNotFound
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.arguments import checks_arguments

__all__ = ["Snapshot", "Where", "take_snapshot"]

#: A predicate: SQL or a DuckDB expression.
Where = str | duckdb.Expression

# To prune fewer parts takes longer than to open them.
_PARTS_MIN = 16
_NO_FINAL = re.compile(r'Table with name "?final"? does not exist', re.IGNORECASE)


@dataclass(frozen=True)
@checks_arguments
class Snapshot:
    """The live parts and the schema of a table at one time.

    `Table.snapshot` returns it. It is immutable and safe to share between threads.

    Example:
        ```python
        snapshot = table.snapshot()
        print(snapshot.rows, snapshot.schema)
        rows = snapshot.query("SELECT event, count(*) FROM t GROUP BY ALL").fetchall()
        ```
    """

    #: The table's address.
    table: str
    #: The time of the snapshot, in unix milliseconds.
    as_of_ms: int
    #: The live parts in key order. The parts of a large table are created on access.
    parts: Sequence[Part]
    #: Column -> DuckDB type, for the columns that the table had at that time.
    schema: Mapping[str, str]
    #: The number of log files that the snapshot was computed from.
    log_files: int
    #: The number of the last exclusive commit.
    epoch: int
    _handle: Handle
    _spec: TableSpec

    def __repr__(self) -> str:
        return f"Snapshot({self.table!r}, as_of_ms={self.as_of_ms}, parts={len(self.parts)}, rows={self.rows})"

    @property
    def handle(self) -> Handle:
        """The open table of the snapshot."""
        return self._handle

    @property
    def spec(self) -> TableSpec:
        """The table's spec at the snapshot's time, as far as the snapshot's columns depend on it."""
        return self._spec

    @cached_property
    def id(self) -> str:
        """A digest of the live parts and the schema: 16 hexadecimal digits."""
        digest = hashlib.sha256()
        keys = self.parts.markers.keys if isinstance(self.parts, LiveParts) else (p.key for p in self.parts)
        for key in keys:
            digest.update(key.encode() + b"\n")
        for column, type_ in sorted(self.schema.items()):
            digest.update(f"{column}\0{type_}\n".encode())
        return digest.hexdigest()[:16]

    @cached_property
    def partition_schema(self) -> Mapping[str, str]:
        """Partition column -> DuckDB type, in the order of `partition_by`. DuckDB computes it on first access.

        Without parts, it has only the partition columns whose inputs are declared. The others come with the first rows.
        """
        if not self.schema:
            return {}
        try:
            return partition_types(self.expressions, self.schema, table=self.table)
        except InvalidPartitionExpression:
            if self.parts and self.schema.keys() >= self._handle.columns.keys():
                raise
            return self._computable_types()

    @cached_property
    def visible_partitions(self) -> Mapping[str, str]:
        """Partition column of `t` -> DuckDB type. A data column hides a partition column of the same name."""
        return visible_partitions(self.schema, self.partition_schema)

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """Column of `t` -> DuckDB type: the data columns, then the visible partition columns."""
        return {**self.schema, **self.visible_partitions}

    def _computable_types(self) -> dict[str, str]:
        """Return the partition columns that can be computed from the columns of the snapshot's time.

        The partition columns may have changed since, by a program that does not record its earlier specs.
        """
        types: dict[str, str] = {}
        for expression in self.expressions:
            with suppress(InvalidPartitionExpression):
                types |= partition_types([expression], self.schema, table=self.table)
        return types if self.parts else {}

    @cached_property
    def expressions(self) -> tuple[PartitionExpression, ...]:
        """The partition expressions of the snapshot's time. The handle may have read a later spec since."""
        if self._handle.spec is self._spec:
            return self._handle.expressions
        return partition_expressions(self._spec, table=self.table)

    @property
    def rows(self) -> int | None:
        """The number of rows in all parts; None if another program wrote a part without a row count."""
        return total_rows(self.parts.markers if isinstance(self.parts, LiveParts) else self.parts)

    @property
    def bytes(self) -> int:
        """The size of all parts in bytes."""
        return total_bytes(self.parts.markers if isinstance(self.parts, LiveParts) else self.parts)

    def partitions(self, where: str | None = None) -> list[str]:
        """List the partitions that have live parts.

        Args:
            where: A DuckDB predicate over the partition columns (default: all partitions).

        Returns:
            Sorted paths, such as `d=2026-11-21/u=7`.

        Raises:
            InvalidPartitionExpression: `where` does not fit the partition columns.

        Example:
            ```python
            paths = table.snapshot().partitions("d >= '2026-11-01'")
            ```
        """
        parts = self.parts
        paths = sorted(parts.partitions[0].values() if isinstance(parts, LiveParts) else {p.partition for p in parts})
        return paths if where is None else matching(paths, where, self.partition_schema, table=self.table)

    def files(self, where: Where | Predicate | None = None) -> list[Part]:
        """List the live parts that may contain a row for which a predicate is true.

        Parts are pruned by their partitions and by the statistics in the log. No part is opened. A part that is left
        out contains no such row.

        Args:
            where: SQL or a `duckdb.Expression` over the columns of `t` (default: all parts). It may call `now()`, which
                is evaluated once. A `Predicate` was checked before and is not checked again.

        Raises:
            InvalidOption: `where` is not one DuckDB condition over the columns of `t`.
            UnknownColumn: `where` names a column that the table does not have.

        Example:
            ```python
            keys = [part.key for part in table.snapshot().files("user_id = 7")]
            ```
        """
        return list(self.parts) if where is None else self._prune(self._predicate(where))

    def in_partitions(self, where: str | None = None) -> list[Part]:
        """List the live parts of the partitions for which a predicate is true.

        The result includes parts of an older partitioning whose paths lack a partition column, because they may contain
        such rows.

        Args:
            where: A DuckDB predicate over the partition columns (default: all parts). A name in it always means the
                partition column, also if a data column has the same name.

        Raises:
            InvalidPartitionExpression: `where` does not fit the partition columns.

        Example:
            ```python
            parts = table.snapshot().in_partitions("d = '2026-11-21'")
            ```
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
        """Return whether the part's path lacks a partition column, so that `in_partitions` always includes the part."""
        return self._is_older(part.partition)

    def _is_older(self, partition: str) -> bool:
        return not self.partition_schema.keys() <= decode_partition(partition).keys()

    def query(self, sql: str, *, where: Where | None = None, sandbox: bool = False) -> QueryResult:
        """Run a DuckDB query over the table `t`.

        Parts that cannot contain a row of the result are not opened. `where` and the WHERE of the query both prune
        parts.

        The table `final` has the rows of `t` as they will be when every partition is merged into one part. For a table
        with `merging` it is the exact result, regardless of how much is merged so far. For other tables it is `t`.

        The query downloads nothing and writes no file. It can read other local files, to join them, and everything
        that the connection's credentials permit.

        Args:
            sql: One SELECT, or EXPLAIN of one.
            where: A predicate as for `files`: `t` and `final` contain only rows for which it is true. In `final`, it
                applies after the merge.
            sandbox: Restrict the query to `t` and `final`. Set it for SQL from other people.

        Returns:
            A lazy result. Rows are read when they are fetched.

        Raises:
            InvalidOption: `sql` is not one SELECT, or `where` is not one condition.
            UnknownColumn: `where` names a column that the table does not have.
            InvalidQuery: DuckDB or the sandbox rejects the query. The message contains the reason.
            SnapshotExpired: Cleanup has deleted a part. Raised when rows are fetched.
            MissingPart: A live part is missing from the store. Raised when rows are fetched.

        Example:
            ```python
            counts = "SELECT event, count(*) FROM t GROUP BY ALL"
            result = table.snapshot().query(counts, where="d = '2026-11-21'")
            print(result.fetchall())
            ```
        """
        predicate = None if where is None else self._predicate(where)
        parts = self._prune_by_query(sql, self.parts if predicate is None else self._prune(predicate))
        con = connect_reader(self._handle.location)
        try:
            check_select(con, sql, table=self.table, sandbox=sandbox)
            rows = relation(self._handle, parts, self.schema, self.partition_schema, expressions=self.expressions)
            con.execute(f"CREATE VIEW t AS {_within(rows, predicate)}")
            readable = parts if self._spec.merging is None else self.parts  # `final` may need more parts than `t`
            lock_reader(con, self._handle.part_paths.readable(readable) if sandbox else None)
            result = self._run(con, sql, predicate)
        except (duckdb.Error, ObjectNotFound) as error:
            raise self._translate_error(error) from None
        return QueryResult(result, self._translate_error, again=lambda: con.cursor().sql(sql))

    def _translate_error(self, error: Exception) -> Exception:
        return translate_read_error(self._handle, self.parts, error, as_of_ms=self.as_of_ms)

    def _run(self, con: duckdb.DuckDBPyConnection, sql: str, predicate: Predicate | None) -> duckdb.DuckDBPyRelation:
        """Run the query over `t`. Create `final` only if the query names it, because not every table has it."""
        try:
            return con.sql(sql)
        except duckdb.CatalogException as error:
            if not _NO_FINAL.search(str(error)):
                raise
        parts = self.parts if predicate is None else self._prune(predicate, merged=True)
        rows = final_relation(
            self._handle, self._spec, parts, self.schema, self.partition_schema, expressions=self.expressions
        )
        con.execute(f"CREATE VIEW final AS {_within(rows, predicate)}")
        return con.sql(sql)

    # -------------------------------------------------------------------------------------------- pruning

    def _predicate(self, where: Where | Predicate) -> Predicate:
        if isinstance(where, Predicate):
            return where
        text = str(where) if isinstance(where, duckdb.Expression) else where
        return check_predicate(text, self.schema, self.visible_partitions, table=self.table, at_once=True)

    def _prune(self, predicate: Predicate, *, merged: bool = False) -> list[Part]:
        """Return the parts that may have rows that match. `merged`: or rows that may match after a merge."""
        columns = self.schema
        if merged and (merging := self._spec.merging) is not None:
            # Only the key columns survive a merge. The values of the others do not follow from a single part.
            columns = {c: t for c, t in columns.items() if c in merging.by}
        return prune_parts(self.parts, predicate.tree, columns, self.visible_partitions)

    def _prune_by_query(self, sql: str, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts without those of which the query's own conditions select no row."""
        if len(parts) < _PARTS_MIN:
            return parts
        predicate = pushed_down_predicate(sql, "t", frozenset(c.casefold() for c in self.columns))
        return parts if predicate is None else prune_parts(parts, predicate, self.schema, self.visible_partitions)

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, final: bool = False
    ) -> pa.Table:
        """Read rows into a pyarrow Table.

        Args:
            columns: The columns to read (default: all).
            where: A predicate as for `query`.
            final: Read `final` instead of `t`.

        Raises:
            InvalidOption: `where` is not one condition, or the table has no `final`.
            UnknownColumn: `where` names a column that the table does not have.
            InvalidQuery: The query failed, for example because a column in `columns` does not exist.

        Example:
            ```python
            arrow = table.snapshot().to_arrow(["ts", "event"], where="user_id = 7")
            ```
        """
        if not self.schema:
            return pa.table({})  # SQL has no table without columns
        selected = "*" if columns is None else ", ".join(map(quote_name, columns))
        return self.query(f"SELECT {selected} FROM {'final' if final else 't'}", where=where).to_arrow()


def _within(rows: str, predicate: Predicate | None) -> str:
    return rows if predicate is None else f"SELECT * FROM ({rows}) AS t WHERE (\n{predicate.sql}\n)"


def take_snapshot(handle: Handle, as_of_ms: int | None = None, *, may_precede: bool = False) -> Snapshot:
    """Return the snapshot at a time (unix milliseconds), or the latest. Raises SnapshotExpired and `LogReader.read`'s.

    Raises InvalidOption for a time in the future, or before the table's creation unless `may_precede`.
    """
    # One millisecond before the log is read: the next commit of this machine has a later time, so a later snapshot at
    # this `as_of_ms` has the same parts.
    now_ms = handle.clock.now_ms() - 1
    state = handle.read()
    if as_of_ms is not None:
        check_readable_time(handle, state, as_of_ms, now_ms=now_ms, may_precede=may_precede)
    time = resolve_time(handle, state, as_of_ms, now_ms=now_ms)
    latest = time.is_latest
    return Snapshot(
        table=handle.table,
        as_of_ms=time.as_of_ms,
        parts=latest_parts(handle, state) if latest else live_parts(handle, markers_at(handle, state, time.as_of_ms)),
        schema=time.columns,
        log_files=len(state.files),
        epoch=state.epoch,
        _handle=handle,
        _spec=time.spec,
    )
