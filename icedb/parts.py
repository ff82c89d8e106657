"""Rows become parts: an Arrow stream is partitioned and sorted by DuckDB and put as Parquet, with statistics.

Every writer comes through here: `Table.insert`, a Spark task, a Dagster IO manager. The rows are staged in one
temporary table, ordered by partition and sort columns (spilling to disk when memory ends), so each partition is
a range of row ids and becomes one sorted part. Nothing that is written here is visible: only a commit names it.
A writer needs no handle, just a `WriteContext`, which can be pickled to another machine.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from icedb.clock import Clock
from icedb.engine import connect_sandbox, quote_name, quote_text
from icedb.errors import IceDBError, InvalidBatch, InvalidPartitionExpression, InvariantViolated, UnsupportedType
from icedb.format.names import encode_partition
from icedb.format.records import Marker, Stats
from icedb.location import Location
from icedb.partitions import PartitionExpression, partition_types
from icedb.schema import check_columns, check_sort_columns, describe, storage_type
from icedb.spec import TableSpec
from icedb.statistics import encode_statistics, figures_sql, statistics_columns
from icedb.store import ObjectExists, ObjectStore

__all__ = [
    "StoredPart",
    "WriteContext",
    "WrittenParts",
    "check_batch",
    "copy_statement",
    "digest",
    "discard",
    "put_part",
    "write_parts",
]

logger = logging.getLogger(__name__)

# Enough to hide the latency of a put behind the next partition's encoding.
CONCURRENT_PUTS = 8
_PREFIX = "__icedb_"


@dataclass(frozen=True, slots=True)
class WriteContext:
    """All that a writer must know of a table. `known_schema` may lag behind, but says nothing untrue."""

    location: Location
    spec: TableSpec
    expressions: tuple[PartitionExpression, ...]
    known_schema: Mapping[str, str]

    @property
    def table(self) -> str:
        """The table's address, as messages name it."""
        return self.location.uri


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """Parts that lie in the store and that nothing names yet. `schema` has the batch's columns only."""

    schema: Mapping[str, str]
    markers: tuple[Marker, ...]
    born_ms: int

    @property
    def rows(self) -> int:
        """Rows in all parts."""
        return sum(m.rows or 0 for m in self.markers)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a batch is read: its stored columns as SQL, their types, and what orders it.

    In the staged table each column has a name of ours: DuckDB's `rowid` must not be one of the batch.
    """

    columns: Mapping[str, str]
    select: str
    sort_by: Sequence[str]

    @property
    def staged(self) -> Mapping[str, str]:
        """Column -> its name in the staged table."""
        return {column: f"{_PREFIX}c{n}" for n, column in enumerate(self.columns)}


@dataclass(frozen=True, slots=True)
class _Range:
    """One partition's rows in the staged table."""

    first: int
    last: int
    rows: int
    partition: str
    stats: Stats


def check_batch(context: WriteContext, schema: pa.Schema) -> Mapping[str, str]:
    """The columns that a batch of this Arrow schema would have in the table.

    Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidPartitionExpression: everything
    that is wrong with a batch before its rows are looked at.
    """
    with connect_sandbox() as con:
        return _plan(con, context, schema).columns


def write_parts(
    context: WriteContext,
    stream: pa.RecordBatchReader,
    *,
    store: ObjectStore,
    clock: Clock,
    memory_bytes: int | None = None,
) -> WrittenParts:
    """Write a stream of rows as parts, one per partition. Raises as `check_batch` does, and the store's errors.

    When it fails, the parts that it had put are deleted again. Without rows there are no parts.
    """
    born_ms = clock.now_ms()
    folder = Path(tempfile.mkdtemp(prefix="icedb-write-"))
    try:
        with connect_sandbox(folder, memory_bytes=memory_bytes) as con:
            plan = _plan(con, context, stream.schema)
            if not plan.columns:
                _check_no_rows(context, stream)
                return WrittenParts({}, (), born_ms)
            ranges = _stage(con, context, plan, stream)
            markers = _put_all(con, context, plan, ranges, folder=folder, store=store, clock=clock)
        return WrittenParts(plan.columns, markers, born_ms)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _plan(con: duckdb.DuckDBPyConnection, context: WriteContext, schema: pa.Schema) -> _Plan:
    """Check a batch's columns against the table and say how each is read."""
    if len(set(schema.names)) < len(schema.names):
        raise InvalidBatch(f"{context.table}: the batch has a column twice: {schema.names}.")
    if reserved := [n for n in schema.names if n.casefold().startswith(_PREFIX)]:
        raise InvalidBatch(f"{context.table}: the column name '{reserved[0]}' is reserved. Rename it.")
    check_columns(dict.fromkeys(schema.names, ""), {}, table=context.table)
    described = _describe_arrow(con, schema, context.table) if schema.names else {}
    columns: dict[str, str] = {}
    for field in schema:
        known = context.known_schema.get(field.name)
        if _is_untyped(field.type):
            # All null so far: the table's type, or no column until a type is known.
            if known is None and not pa.types.is_null(field.type):
                raise InvalidBatch(
                    f"{context.table}: column '{field.name}' holds only empty or null elements ({field.type}), so its "
                    "type is not known. Give the batch a schema."
                )
            if known is not None:
                columns[field.name] = known
        else:
            columns[field.name] = storage_type(described[field.name], column=field.name, table=context.table)
    check_columns(columns, context.known_schema, table=context.table)
    _check_shadowing(context, columns)
    sort_by = check_sort_columns(context.spec.sort_by, columns, context.known_schema, table=context.table)
    partition_types(context.expressions, {**context.known_schema, **columns}, table=context.table)
    select = ", ".join(f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in columns.items())
    return _Plan(columns, select, sort_by)


def _check_shadowing(context: WriteContext, columns: Mapping[str, str]) -> None:
    """A data column wins over a partition column of its name: coming later, it would hide the values of older rows."""
    added = {c.casefold(): c for c in columns if c not in context.known_schema} if context.known_schema else {}
    for expression in context.expressions:
        column = added.get(expression.name.casefold())
        if column is not None and expression.sql not in (column, quote_name(column)):
            raise InvalidBatch(
                f"{context.table}: the batch brings a column '{column}', and the table has a partition column of that "
                "name, computed from other columns. Leave it out (a query of the table returns it), or rename it."
            )


def _describe_arrow(con: duckdb.DuckDBPyConnection, schema: pa.Schema, table: str) -> dict[str, str]:
    try:
        con.register("__icedb_shape", pa.RecordBatchReader.from_batches(schema, []))
        return describe(con, "SELECT * FROM __icedb_shape")
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise UnsupportedType(
            f"{table}: the batch has a column of a type that DuckDB does not have: {reason}"
        ) from None


class _CountedRows:
    """A stream that knows how many rows went through it."""

    def __init__(self, stream: pa.RecordBatchReader) -> None:
        self.rows = 0
        self.reader = pa.RecordBatchReader.from_batches(stream.schema, self._counting(stream))

    def _counting(self, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in stream:
            self.rows += batch.num_rows
            yield batch


def _check_no_rows(context: WriteContext, stream: pa.RecordBatchReader) -> None:
    if any(batch.num_rows for batch in stream):
        raise InvalidBatch(
            f"{context.table}: every value of the batch is null, and the table does not have its columns yet, so no "
            "column has a type. Give the batch a schema."
        )


def _is_untyped(type_: pa.DataType) -> bool:
    if pa.types.is_null(type_):
        return True
    return any(_is_untyped(type_.field(i).type) for i in range(type_.num_fields))


def _stage(
    con: duckdb.DuckDBPyConnection, context: WriteContext, plan: _Plan, stream: pa.RecordBatchReader
) -> list[_Range]:
    """Load the stream into a temporary table in the order of its parts; where each partition lies in it."""
    values = [f"{_PREFIX}p{n}" for n in range(len(context.expressions))]
    order = [*values, *(plan.staged[c] for c in plan.sort_by)]
    counted = _CountedRows(stream)
    con.register("__icedb_stream", counted.reader)
    try:
        con.execute("CREATE TEMP TABLE staged AS " + _staging_query(context, plan, values, order))
    except duckdb.Error as error:
        raise _unfit(context, error) from None
    finally:
        con.unregister("__icedb_stream")
    group = ", ".join(f"CAST({v} AS VARCHAR)" for v in values)
    stats = statistics_columns(plan.sort_by, plan.columns)
    figures = figures_sql({plan.staged[c]: t for c, t in stats.items()})
    found = con.execute(
        f"SELECT min(rowid), max(rowid), count(*), [{group}]::VARCHAR[], {figures} "
        f"FROM staged {'GROUP BY ' + ', '.join(values) if values else 'HAVING count(*) > 0'} ORDER BY 1"
    ).fetchall()
    if counted.rows != sum(rows for _, _, rows, *_ in found):
        raise InvalidPartitionExpression(
            f"{context.table}: the partition expressions {[e.sql for e in context.expressions]} do not give each of "
            f"the {counted.rows} rows exactly one partition. Nothing was written."
        )
    names = [e.name for e in context.expressions]
    return [
        _Range(
            first,
            last,
            rows,
            encode_partition(dict(zip(names, texts, strict=True))),
            encode_statistics(stats, figures, rows),
        )
        for first, last, rows, texts, figures in found
    ]


def _staging_query(context: WriteContext, plan: _Plan, values: Sequence[str], order: Sequence[str]) -> str:
    # Columns that the table has and the batch lacks are null to a partition expression, and not stored.
    lacking = "".join(
        f", CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in context.known_schema.items() if c not in plan.columns
    )
    stored = ", ".join(f"{quote_name(column)} AS {name}" for column, name in plan.staged.items())
    computed = "".join(f",\n{e.sql}\nAS {v}" for e, v in zip(context.expressions, values, strict=True))
    ordered = f" ORDER BY {', '.join(order)}" if order else ""
    return f"SELECT {stored}{computed} FROM (SELECT {plan.select}{lacking} FROM __icedb_stream){ordered}"


def _unfit(context: WriteContext, error: duckdb.Error) -> IceDBError:
    reason = str(error).splitlines()[0]
    if "arrow" in reason.lower() or not context.expressions:
        return InvalidBatch(f"{context.table}: the batch cannot be read: {reason}")
    return InvalidPartitionExpression(
        f"{context.table}: the rows cannot be partitioned by {[e.sql for e in context.expressions]}: {reason}"
    )


def _put_all(
    con: duckdb.DuckDBPyConnection,
    context: WriteContext,
    plan: _Plan,
    ranges: Sequence[_Range],
    *,
    folder: Path,
    store: ObjectStore,
    clock: Clock,
) -> tuple[Marker, ...]:
    """Encode each partition and put it while the next is encoded."""
    keys = [context.location.keys.part(r.partition, clock.new_id()) for r in ranges]
    stored = ", ".join(f"{name} AS {quote_name(column)}" for column, name in plan.staged.items())
    with ThreadPoolExecutor(CONCURRENT_PUTS) as pool:
        puts: list[Future[StoredPart]] = []
        try:
            for number, (key, piece) in enumerate(zip(keys, ranges, strict=True)):
                for done in puts[: max(0, len(puts) - CONCURRENT_PUTS)]:
                    done.result()  # stop at the first failure, and keep few files on disk
                path = folder / f"{number}.parquet"
                query = f"SELECT {stored} FROM staged WHERE rowid BETWEEN {piece.first} AND {piece.last}"
                _check_rows(context, piece, con.execute(copy_statement(query, path, context.spec)).fetchall()[0][1])
                puts.append(pool.submit(put_part, store, key, path))
            stored_parts = [put.result() for put in puts]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            discard(store, keys[: len(puts)])
            raise
    return tuple(
        Marker(key, part.bytes, 0, rows=piece.rows, stats=piece.stats, digest=part.digest)
        for key, part, piece in zip(keys, stored_parts, ranges, strict=True)
    )


def _check_rows(context: WriteContext, piece: _Range, copied: int) -> None:
    if not copied == piece.rows == piece.last - piece.first + 1:
        raise InvariantViolated(
            f"{context.table}: the partition '{piece.partition}' has {piece.rows} rows in row ids {piece.first} to "
            f"{piece.last}, and {copied} were written. Nothing was published."
        )


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part's object: its size in bytes, and the first 32 hexadecimal digits of its SHA-256."""

    bytes: int
    digest: str


def digest(path: Path) -> str:
    """What a marker keeps of an object's content: half of a SHA-256 tells any damage, if not any forgery."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def put_part(store: ObjectStore, key: str, path: Path) -> StoredPart:
    """Put a finished Parquet file under its key and remove it here."""
    stored = StoredPart(path.stat().st_size, digest(path))
    try:
        store.create(key, path)
    except ObjectExists:
        # The id is random, so this is our own put: answered too late, and repeated by the client library.
        if store.head(key).bytes != stored.bytes:
            raise InvariantViolated(f"{store.location.uri}: '{key}' was written by somebody else.") from None
    path.unlink()
    return stored


def discard(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete parts that nothing names. Best effort: what stays is an orphan, which a sweep removes."""
    try:
        store.delete(keys)
    except IceDBError as error:
        logger.warning("%d unused parts stay behind as orphans: %s", len(keys), error)


def copy_statement(query: str, path: Path, spec: TableSpec) -> str:
    """SQL that writes a query's rows as one Parquet file of the table's kind; answers with the number of rows."""
    options = f"FORMAT parquet, COMPRESSION {spec.compression}, ROW_GROUP_SIZE {spec.row_group_rows}, RETURN_STATS"
    return f"COPY ({query}) TO {quote_text(str(path))} ({options})"
