"""Staging of a batch: its rows are converted, partitioned and sorted in a DuckDB sandbox.

Every write uses this module. The rows of a batch are loaded into one table, ordered by partition and sort columns
(spilling to disk if memory is short). Each partition is then a range of row ids and becomes one sorted part (data
file). For a batch that is small relative to the memory, the table has only the columns that order the rows, and the
rows are gathered when a part is encoded. Nothing is written to the store here. A writer needs no handle, only a
`WriteContext`, which can be pickled and sent to another machine.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icedb.errors import (
    IceDBError,
    InvalidBatch,
    InvalidPartitionExpression,
    InvalidPartitionValue,
    SchemaConflict,
    TooManyPartitions,
)
from icedb.format.keys import decode_partition, encode_partition, encode_partition_text
from icedb.format.records import Stats
from icedb.format.table_spec import ROW_GROUP_ROWS_MIN, TableSpec
from icedb.sources.batch import Batch, OnConflict
from icedb.sql.casts import MIXED
from icedb.sql.column_stats import encode_statistics, figures_sql, statistics_columns
from icedb.sql.connections import ROWS_PER_BATCH, copy_statement, quote_name, quote_text
from icedb.sql.partition_expressions import PartitionExpression, partition_types
from icedb.sql.sandbox_pool import sandbox
from icedb.sql.user_queries import UserQuery, check_query
from icedb.writer.batch_loader import CHOSEN, PREFIX, LoadedBatch, load_batch, too_little_memory, unreadable
from icedb.writer.batch_schema import BatchSchema, WriteContext, resolve_batch_schema
from icedb.writer.deferred_gather import BufferedRows, RankEncoding, encode_ranks

__all__ = ["QUARANTINE_COLUMNS", "PartitionRange", "StagedBatch", "check_batch", "stage_rows"]

#: The columns of a quarantine table.
QUARANTINE_COLUMNS = {"quarantined_at": "TIMESTAMP WITH TIME ZONE", "source": "VARCHAR", "reason": "VARCHAR",
                      "row": "VARCHAR"}  # fmt: skip

_MISFIT = f"{PREFIX}misfit"
_NUMBER = f"{PREFIX}number"
# The number of row groups that must fit into memory: for each thread encoded, unencoded and read.
_ROW_GROUPS_IN_MEMORY = 16
# A sandbox that sorted more may retain some of the memory, so it is not reused.
_REUSE_BYTES_MAX = 64 * 1024 * 1024
# A part with fewer rows is encoded faster from a table than from Arrow, including the time to load the table.
_GATHER_ROWS_MIN = 4_096


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The rows of one partition in the staged table, by row ids."""

    first: int
    last: int
    rows: int
    partition: str
    stats: Stats


@dataclass(slots=True)
class StagedBatch:
    """The rows of a batch in the order of their parts. Valid until the context of `stage_rows` ends."""

    con: duckdb.DuckDBPyConnection
    context: WriteContext
    folder: Path
    #: Column -> DuckDB type in the parts.
    columns: Mapping[str, str]
    ranges: Sequence[PartitionRange]
    #: The number of rejected rows (those for the quarantine), and their columns.
    misfits: int
    batch_columns: Mapping[str, str]
    source: str
    #: The table's spec, with smaller row groups if the table's would not fit into memory.
    spec: TableSpec
    #: The size of the batch in Arrow, in bytes; None if a query transformed the rows.
    bytes: int | None
    #: The rows, if `staged` has only the columns that order them, and SQL of the columns over the rows.
    held: BufferedRows | None = None
    select: Mapping[str, str] = field(default_factory=dict)
    #: Columns whose values are ranks in `staged`.
    codes: Mapping[str, RankEncoding] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows that become parts."""
        return sum(r.rows for r in self.ranges)

    @property
    def threads(self) -> int:
        """The number of parts to encode at a time: DuckDB's threads, which depend on the memory."""
        [(threads,)] = self.con.execute("SELECT CAST(current_setting('threads') AS BIGINT)").fetchall()
        return int(threads)

    def check_partitions(self, partitions_max: int | None) -> None:
        """Raise TooManyPartitions if the rows are in more partitions (None: no limit)."""
        if partitions_max is not None and len(self.ranges) > partitions_max:
            raise TooManyPartitions(
                f"{self.context.table}: the rows lie in {len(self.ranges)} partitions, and {partitions_max} are "
                "allowed at a time. Nothing was written. Send rows of fewer partitions at a time."
            )

    def write(self, path: Path, first: int, last: int, *, level: int | None = None) -> int:
        """Encode adjacent rows as one Parquet file, and return the number of rows in its footer. It is thread-safe.

        Raises InvalidOption, InvalidBatch, DuckDB's errors.
        """
        try:
            with self.con.cursor() as con:
                query = self._query(con, first, last - first + 1)
                con.execute(copy_statement(query, path, self.spec, level=level, returns_stats=False))
            return int(pq.read_metadata(path).num_rows)
        except duckdb.OutOfMemoryException as error:
            raise too_little_memory(self.context.table, error) from None
        except (duckdb.DataError, duckdb.InvalidInputException) as error:
            raise unreadable(self.context.table, error) from None  # a buffered value cannot be converted

    def _query(self, con: duckdb.DuckDBPyConnection, first: int = 0, rows: int | None = None) -> str:
        """Return SQL of adjacent rows (default: all) with the table's column names. It can run only once."""
        if self.held is not None:
            columns = ", ".join(f"{sql} AS {quote_name(c)}" for c, sql in self.select.items())
            return f"SELECT {columns} FROM {self.held.register(con, first, rows)}"
        columns = ", ".join(f"{staged} AS {quote_name(c)}" for c, staged in _staged_names(self.columns).items())
        where = "" if rows is None else f" WHERE rowid BETWEEN {first} AND {first + rows - 1}"
        return f"SELECT {columns} FROM staged{where}"

    def piece(self, whole: PartitionRange, first: int, last: int) -> PartitionRange:
        """Return a range of adjacent rows of a range."""
        staged = _staged_names(self.columns)
        stats = statistics_columns(self.context.spec.sort_by, self.columns, self.context.expressions)
        figures = figures_sql({staged[c]: t for c, t in stats.items()})
        [(rows, values)] = self.con.execute(
            f"SELECT count(*), {figures} FROM staged WHERE rowid BETWEEN {first} AND {last}"
        ).fetchall()
        return PartitionRange(
            first, last, rows, whole.partition, encode_statistics(stats, _figures(stats, values, self.codes), rows)
        )

    def stream(self) -> pa.RecordBatchReader:
        """Return the staged rows, with all columns of the table."""
        columns = ", ".join(["*", *_lacking(self.context.known_schema, self.columns)])
        return self.con.execute(f"SELECT {columns} FROM ({self._query(self.con)})").to_arrow_reader(ROWS_PER_BATCH)

    def misfits_digest(self) -> str:
        """Return a digest of the rejected rows in any order: sixteen hexadecimal digits."""
        row = f"md5_number_lower({_MISFIT} || {self._misfit_as_json()})"
        [(total,)] = self.con.execute(f"SELECT sum(CAST({row} AS HUGEINT)) FROM misfits").fetchall()
        return f"{int(total) % 2**64:016x}"

    def set_aside(self, now_ms: int) -> pa.RecordBatchReader:
        """Return the rejected rows with QUARANTINE_COLUMNS."""
        return self.con.execute(
            f"SELECT make_timestamptz({now_ms * 1000}) AS quarantined_at, {quote_text(self.source)} AS source, "
            f"{_MISFIT} AS reason, {self._misfit_as_json()} AS row FROM misfits"
        ).to_arrow_reader(ROWS_PER_BATCH)

    def _misfit_as_json(self) -> str:
        fields = []
        for column, type_ in self.batch_columns.items():
            name, key = quote_name(column), quote_text(json.dumps(column, ensure_ascii=False) + ":")
            # `to_json` would parse a JSON value again and turn its numbers into binary fractions.
            text = f"CAST(to_json({name}) AS VARCHAR)" if type_ != MIXED else f"CAST({name} AS VARCHAR)"
            fields.append(f"{key} || coalesce({text}, 'null')")
        return "'{' || " + " || ',' || ".join(fields) + " || '}'" if fields else "'{}'"


def check_batch(context: WriteContext, schema: pa.Schema) -> Mapping[str, str]:
    """Return the columns that a batch of this Arrow schema would have in the table.

    Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidQuery, InvalidPartitionExpression for
    every problem of a batch that does not depend on its rows.
    """
    nothing = pa.RecordBatchReader.from_batches(schema, [])
    with stage_rows(context, Batch(nothing)) as stage:
        return stage.columns


@contextmanager
def stage_rows(
    context: WriteContext,
    batch: Batch,
    *,
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
    threads: int | None = None,
    folder: Path | None = None,
    query: UserQuery | None = None,
    new_columns: bool = True,
) -> Iterator[StagedBatch]:
    """Stage a batch, or the result of a query over it (default: the table's insert query).

    `memory_bytes` and `threads` limit DuckDB. Data that does not fit is spilled to a new folder below `folder` (None:
    the system's folder for temporary files). `new_columns`: whether the query may return columns that neither table nor
    batch has. Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidQuery,
    InvalidPartitionExpression, InvalidPartitionValue.
    """
    with sandbox(folder, memory_bytes=memory_bytes, threads=threads) as own:
        what = "query" if query else "insert_query"
        if query is None and context.spec.insert_query:
            query = check_query(context.spec.insert_query, relation="_rows", table=context.table, what=what)
        incoming = load_batch(
            own.con, batch, context.known_schema, table=context.table, strict=query is None, memory_bytes=memory_bytes
        )
        if query is not None and batch.stream.schema.names:  # rows without columns cannot be queried
            _run_query(incoming, context, query, what=what, new_columns=new_columns)
        yield _stage(incoming, context, on_conflict, own.folder, memory_bytes)
        if query is None and incoming.counted.bytes < _REUSE_BYTES_MAX:
            own.con.execute("DROP TABLE IF EXISTS staged")
            own.kept = True


def _run_query(incoming: LoadedBatch, context: WriteContext, query: UserQuery, *, what: str, new_columns: bool) -> None:
    needed = {c.casefold() for c in context.spec.sort_by}.union(*(e.columns for e in context.expressions))
    incoming.answer(
        query,
        table_columns=context.known_schema,
        needed=[c for c in incoming.columns if c.casefold() in needed],
        what=what,
        new_columns=new_columns,
        lenient=context.lenient,
    )


def _stage(
    incoming: LoadedBatch, context: WriteContext, on_conflict: OnConflict, folder: Path, memory_bytes: int | None
) -> StagedBatch:
    shape = resolve_batch_schema(incoming, context, on_conflict)
    if not shape.columns:
        _check_no_rows(incoming, context)
        return StagedBatch(incoming.con, context, folder, {}, (), 0, {}, incoming.batch.source, context.spec, 0)
    misfits = _set_misfits_aside(incoming, context, shape, on_conflict)
    values = [f"{PREFIX}p{n}" for n in range(len(context.expressions))]
    order = [*([CHOSEN] if incoming.chosen else []), *values]
    if context.spec.row_id:
        incoming.let_go()  # ids are random, so they are computed once and stored in the table
    codes = _codes(incoming, context, shape)
    _order_rows(incoming, context, shape, values, order, codes)
    ranges = _ranges(incoming, context, shape, values, order, codes)
    _check_counts(incoming, context, ranges, misfits)
    _check_required(incoming, context, shape)
    if incoming.held is not None and incoming.counted.rows < len(ranges) * _GATHER_ROWS_MIN:
        _load(incoming, context, shape)
        codes = {}
    batch_columns = dict(incoming.columns)
    incoming.drop()
    return StagedBatch(
        incoming.con,
        context,
        folder,
        shape.columns,
        ranges,
        misfits,
        batch_columns,
        incoming.batch.source,
        _fitting(incoming, context.spec, memory_bytes),
        None if incoming.answered else incoming.counted.bytes,
        incoming.held,
        shape.select,
        codes,
    )


def _codes(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema) -> dict[str, RankEncoding]:
    """Return the ranks of buffered text columns with few distinct values, of those that order the rows."""
    if incoming.held is None:
        return {}
    rows = incoming.held.table
    codes: dict[str, RankEncoding] = {}
    for column in statistics_columns(shape.sort_by, shape.columns, context.expressions):
        is_as_given = shape.columns[column] == incoming.columns.get(column) == "VARCHAR"
        if is_as_given and shape.select[column] == incoming.select[column] and _is_text(rows.schema.field(column).type):
            ranks = encode_ranks(rows[column])
            codes |= {} if ranks is None else {column: ranks}
    return codes


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _order_rows(
    incoming: LoadedBatch,
    context: WriteContext,
    shape: BatchSchema,
    values: Sequence[str],
    order: Sequence[str],
    codes: Mapping[str, RankEncoding],
) -> None:
    """Create `staged` with all rows, or with only the columns that order the buffered rows."""
    con, held, staged = incoming.con, incoming.held, _staged_names(shape.columns)
    ordered = _clause("ORDER BY", [*order, *(staged[c] for c in shape.sort_by)])
    try:
        if held is None:
            rows = _staging_query(incoming.relation, incoming, context, shape, values, list(staged), {})
        else:
            wanted = [*shape.sort_by, *statistics_columns(shape.sort_by, shape.columns, context.expressions)]
            ranks = {column: f"{PREFIX}r{n}" for n, column in enumerate(codes)}
            relation = held.register_keys(con, _NUMBER, {ranks[c]: codes[c] for c in codes})
            rows = _staging_query(
                relation, incoming, context, shape, values, list(dict.fromkeys(wanted)), ranks, number=_NUMBER
            )
        con.execute(f"CREATE TABLE staged AS {rows}{ordered}")  # not temporary: several connections read it
    except duckdb.Error as error:
        raise _unfit(context, error) from None
    if held is not None:
        con.unregister(relation)
        if ordered:
            held.order = con.execute(f"SELECT {_NUMBER} FROM staged").to_arrow_table()[_NUMBER].combine_chunks()


def _load(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema) -> None:
    """Create `staged` with the buffered rows, in their order."""
    held, con = incoming.held, incoming.con
    if held is None:
        return
    staged = _staged_names(shape.columns)
    columns = ", ".join(f"{shape.select[c]} AS {staged[c]}" for c in staged)
    try:
        con.execute(f"CREATE OR REPLACE TABLE staged AS SELECT {columns} FROM {held.register(con)}")
    except duckdb.OutOfMemoryException as error:
        raise too_little_memory(context.table, error) from None
    except duckdb.Error as error:
        raise unreadable(context.table, error) from None
    incoming.held = None


def _fitting(incoming: LoadedBatch, spec: TableSpec, memory_bytes: int | None) -> TableSpec:
    """Return the spec with row groups that fit into memory. A writer holds a whole row group for each thread."""
    rows, size = incoming.counted.rows, incoming.counted.bytes
    if memory_bytes is None or not size:
        return spec
    fitting = memory_bytes // _ROW_GROUPS_IN_MEMORY * rows // size
    row_group_rows = max(ROW_GROUP_ROWS_MIN, min(spec.row_group_rows, fitting))
    return msgspec.structs.replace(spec, row_group_rows=row_group_rows)


def _staged_names(columns: Mapping[str, str]) -> dict[str, str]:
    """Return column -> its name in the staged table, where no column may be called `rowid`."""
    return {column: f"{PREFIX}c{n}" for n, column in enumerate(columns)}


def _lacking(table_columns: Mapping[str, str], columns: Mapping[str, str]) -> list[str]:
    """Return SQL of the columns that the batch lacks. They are null to an expression, and not stored."""
    return [f"CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in table_columns.items() if c not in columns]


def _staging_query(
    relation: str,
    incoming: LoadedBatch,
    context: WriteContext,
    shape: BatchSchema,
    values: Sequence[str],
    wanted: Sequence[str],
    ranks: Mapping[str, str],
    *,
    number: str = "",
) -> str:
    """Return SQL of some columns and the partition of each row. `ranks`: column -> the column with its ranks."""
    inner = [f"{sql} AS {quote_name(c)}" for c, sql in shape.select.items()]
    inner += _lacking(context.known_schema, shape.columns)
    inner += [f"{incoming.chosen} AS {CHOSEN}"] if incoming.chosen else []
    path_aliases = {name: f"{PREFIX}v{n}" for n, name in enumerate(shape.path_values)}
    inner += [f"{shape.path_values[name]} AS {alias}" for name, alias in path_aliases.items()]
    inner += [*ranks.values(), *([number] if number else [])]
    staged = _staged_names(shape.columns)
    outer = [f"{ranks.get(c) or quote_name(c)} AS {staged[c]}" for c in wanted]
    outer += [CHOSEN] if incoming.chosen else []
    outer += [number] if number else []
    for expression, value in zip(context.expressions, values, strict=True):
        rank = next((rank for c, rank in ranks.items() if _is_column(expression, c)), None)
        sql = f"\n{expression.sql}\n"
        if expression.path_only:
            sql = _path_value(expression, context, path_aliases)
        sql = rank or sql
        # A row with a chosen partition need not fit the expressions.
        sql = f"CASE WHEN {CHOSEN} IS NULL THEN ({sql}) END" if incoming.chosen else sql
        outer.append(f"{sql} AS {value}")
    rows = f"SELECT {', '.join(inner)} FROM {relation}"
    if shape.misfits:
        rows += f" WHERE NOT {shape.misfit}"
    return f"SELECT {', '.join(outer)} FROM ({rows})"


def _is_column(expression: PartitionExpression, column: str) -> bool:
    return bool(expression.column) and expression.column.casefold() == column.casefold()


def _path_value(expression: PartitionExpression, context: WriteContext, aliases: Mapping[str, str]) -> str:
    if expression.name not in aliases:
        return "NULL"
    return f"CAST({aliases[expression.name]} AS {context.spec.path_columns[expression.name]})"


def _clause(keyword: str, columns: Sequence[str]) -> str:
    return f" {keyword} {', '.join(columns)}" if columns else ""


def _ranges(
    incoming: LoadedBatch,
    context: WriteContext,
    shape: BatchSchema,
    values: Sequence[str],
    order: Sequence[str],
    codes: Mapping[str, RankEncoding],
) -> list[PartitionRange]:
    """Return the row ids, the path and the statistics of each partition in the staged table."""
    staged = _staged_names(shape.columns)
    texts = ", ".join(f"CAST({v} AS VARCHAR)" for v in values)
    stats = statistics_columns(shape.sort_by, shape.columns, context.expressions)
    figures = figures_sql({staged[c]: t for c, t in stats.items()})
    groups = incoming.con.execute(
        f"SELECT min(rowid), max(rowid), count(*), {CHOSEN if incoming.chosen else 'NULL'}, [{texts}]::VARCHAR[], "
        f"{figures} FROM staged{_clause('GROUP BY', order) or ' HAVING count(*) > 0'} ORDER BY 1"
    ).fetchall()
    if any(chosen is None for *_, chosen, _, _ in groups):
        _check_path_values(incoming, context, shape)
    names = [e.name for e in context.expressions]
    _check_chosen(incoming, context, shape, {chosen for *_, chosen, _, _ in groups if chosen is not None})
    of_values = [next((code for c, code in codes.items() if _is_column(e, c)), None) for e in context.expressions]
    return [
        PartitionRange(
            first,
            last,
            rows,
            _partition(context, names, chosen, [c.text(v) if c else v for c, v in zip(of_values, values, strict=True)]),
            encode_statistics(stats, _figures(stats, figures, codes), rows),
        )
        for first, last, rows, chosen, values, figures in groups
    ]


def _figures(
    stats: Mapping[str, str], values: Sequence[str | None], codes: Mapping[str, RankEncoding]
) -> list[str | None]:
    """Return minimum, maximum and count of each column, with texts in place of ranks."""
    figures = list(values)
    for n, column in enumerate(stats):
        if column in codes:
            figures[3 * n : 3 * n + 2] = map(codes[column].text, values[3 * n : 3 * n + 2])
    return figures


def _partition(context: WriteContext, names: Sequence[str], chosen: str | None, values: Sequence[str | None]) -> str:
    if chosen is not None:
        return encode_partition_text(chosen, names, table=context.table)
    return encode_partition(dict(zip(names, values, strict=True)))


def _check_chosen(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, chosen: Collection[str]) -> None:
    """Raise InvalidPartitionValue unless the paths that rows chose have values of the partition columns' types."""
    if not chosen:
        return
    types = partition_types(context.expressions, {**context.known_schema, **shape.columns}, table=context.table)
    for path in sorted(chosen):
        values = decode_partition(encode_partition_text(path, list(types), table=context.table))
        for name, type_ in types.items():
            fits = f"SELECT $1 IS NULL OR TRY_CAST($1 AS {type_}) IS NOT NULL"
            if incoming.con.execute(fits, [values[name]]).fetchone() != (True,):
                raise InvalidPartitionValue(
                    f"{context.table}: '{path[:200]}' cannot be a partition: '{name}' is {type_}, and "
                    f"'{values[name]}' is not a value of that type."
                )


def _set_misfits_aside(
    incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, on_conflict: OnConflict
) -> int:
    """Copy the rows that cannot be stored to `misfits`, and count them. Raises unless the quarantine accepts them."""
    if not shape.misfits:
        return 0
    incoming.keep()
    reasons = " ".join(f"WHEN {condition} THEN {text}" for condition, text in shape.misfits.items())
    con = incoming.con
    con.execute(
        f"CREATE TEMP TABLE misfits AS SELECT CASE {reasons} END AS {_MISFIT}, * FROM {incoming.relation} "
        f"WHERE {shape.misfit}"
    )
    # Not by `rowid`, which can be a column of the batch.
    query = f"SELECT count(*), (SELECT {_MISFIT} FROM misfits LIMIT 1) FROM misfits"
    [(count, example)] = con.execute(query).fetchall()
    if count and on_conflict != "quarantine":
        raise _misfit(context, shape, int(count), str(example), answered=incoming.answered)
    return int(count)


def _misfit(context: WriteContext, shape: BatchSchema, count: int, example: str, *, answered: bool) -> IceDBError:
    conversion = shape.conversions[0]
    whose = "the query's result" if answered else "the batch"
    return SchemaConflict(
        f"{context.table}: {count} rows of {whose} have values that the column's type cannot hold without loss, for "
        f"example: {example}. Correct them, write them under another name"
        + ("." if answered else ", or insert with on_conflict='quarantine'."),
        column=conversion.column,
        types=(conversion.target, conversion.source),
    )


def _check_path_values(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema) -> None:
    lacking = [e.name for e in context.expressions if e.path_only and e.name not in shape.path_values]
    if incoming.chosen and lacking:
        raise InvalidBatch(
            f"{context.table}: rows have neither a '_partition' nor a column '{lacking[0]}', by which the table is "
            "partitioned. Add one of the two."
        )


def _check_no_rows(incoming: LoadedBatch, context: WriteContext) -> None:
    some = incoming.counted.rows or any(batch.num_rows for batch in incoming.counted.batches)
    if some and not incoming.answered:
        raise InvalidBatch(
            f"{context.table}: every value of the batch is null, and the table does not have its columns yet, so no "
            "column has a type. Give the batch a schema."
        )


def _check_counts(incoming: LoadedBatch, context: WriteContext, ranges: Sequence[PartitionRange], misfits: int) -> None:
    expected = incoming.count() - misfits
    if expected != sum(r.rows for r in ranges):
        raise InvalidPartitionExpression(
            f"{context.table}: the partition expressions {[e.sql for e in context.expressions]} do not give each of "
            f"the {expected} rows exactly one partition. Nothing was written."
        )


def _check_required(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema) -> None:
    staged = _staged_names(shape.columns)
    required = [c for c in context.spec.required if c in staged]
    if not required:
        return
    sql, relation = staged, "staged"
    if incoming.held is not None:
        sql, relation = shape.select, incoming.held.register(incoming.con)
    counts = ", ".join(f"count(*) - count({sql[c]})" for c in required)
    try:
        [nulls] = incoming.con.execute(f"SELECT {counts} FROM {relation}").fetchall()
    except duckdb.Error as error:
        raise unreadable(context.table, error) from None
    for column, missing in zip(required, nulls, strict=True):
        if missing:
            raise InvalidBatch(
                f"{context.table}: column '{column}' is null in {missing} rows, and the table requires it. Fill it in, "
                "or insert with on_conflict='quarantine'."
            )


def _unfit(context: WriteContext, error: duckdb.Error) -> IceDBError:
    reason = str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return too_little_memory(context.table, error)
    if "arrow" in reason.lower() or not context.expressions:
        return unreadable(context.table, error)
    reason = reason.partition(" when casting from source column")[0]  # the name of an internal column
    expressions = [e.name if e.path_only else e.sql for e in context.expressions]
    return InvalidPartitionExpression(f"{context.table}: the rows cannot be partitioned by {expressions}: {reason}")
