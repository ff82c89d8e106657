"""Staging of a batch in Arrow: its rows are converted, partitioned and sorted in memory.

DuckDB evaluates only conversions and partition expressions. A batch that is large relative to the memory, or has a type
that pyarrow does not write as DuckDB does, is staged in DuckDB instead (`icedb.writer.duckdb_staging`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import duckdb
import pyarrow as pa

from icedb.sql.connections import ROWS_PER_BATCH, quote_name
from icedb.sql.partition_expressions import PartitionExpression, partition_types
from icedb.writer.arrow_rows import ArrowRows, encode_texts, evaluate, one_chunk
from icedb.writer.batch_loader import CHOSEN, PREFIX, LoadedBatch, too_little_memory, unreadable
from icedb.writer.batch_schema import BatchSchema, WriteContext
from icedb.writer.encoding.arrow_types import arrow_schema, arrow_type, is_same_type
from icedb.writer.partition_values import Partitions, RankedValues, combine, rank_values
from icedb.writer.row_order import row_order
from icedb.writer.staged_batch import PartitionRange, lacking_columns
from icedb.writer.staging_checks import (
    check_chosen,
    check_counts,
    check_path_values,
    check_required,
    partition_error,
    partition_path,
)

__all__ = ["stage_in_arrow"]

# Types of partition values that Arrow can compare. Values of other types are compared by their texts.
_RANKED = frozenset((
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT",
    "DOUBLE", "VARCHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Converted:
    """The stored columns of a batch, the partitions that rows chose, and the values that only paths have."""

    table: pa.Table
    chosen: pa.ChunkedArray | None
    path_values: Mapping[str, pa.ChunkedArray]


def stage_in_arrow(
    incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, *, misfits: int, bytes_max: int
) -> tuple[ArrowRows, list[PartitionRange]] | None:
    """Return the rows in the order of their parts, and the range of each partition.

    Returns None if the rows may need more than `bytes_max` bytes in Arrow, or cannot be encoded by pyarrow. Raises
    InvalidBatch, InvalidOption, InvalidPartitionExpression, InvalidPartitionValue.
    """
    schema = arrow_schema(shape.columns)
    if schema is None:
        return None
    try:
        converted = _convert(incoming, shape, schema, bytes_max)
    except duckdb.OutOfMemoryException as error:
        raise too_little_memory(context.table, error) from None
    except (duckdb.Error, pa.ArrowException) as error:
        raise unreadable(context.table, error) from None
    if converted is None:
        return None
    if not converted.table.num_rows:
        return ArrowRows(converted.table), []
    check_required(context, {c: converted.table[c].null_count for c in context.spec.required if c in shape.columns})
    coded = _encode_texts(converted.table)
    try:
        partitions = combine(_partition_values(incoming, context, shape, converted, coded, misfits), coded.num_rows)
        order = row_order(incoming.con, partitions.numbers, [coded[c].chunk(0) for c in shape.sort_by])
    except duckdb.Error as error:
        raise partition_error(context, error) from None
    return ArrowRows(coded, order), _ranges(
        incoming, context, shape, partitions, is_chosen=converted.chosen is not None
    )


def _ranges(
    incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, partitions: Partitions, *, is_chosen: bool
) -> list[PartitionRange]:
    names = [e.name for e in context.expressions]
    paths = [texts[0] if is_chosen else None for texts in partitions.texts]
    if None in paths:
        check_path_values(incoming, context, shape)
    check_chosen(incoming, context, shape, {path for path in paths if path is not None})
    firsts = accumulate(partitions.rows, initial=0)
    return [
        PartitionRange(first, rows, partition_path(context, names, path, texts[1:] if is_chosen else texts))
        for first, rows, path, texts in zip(firsts, partitions.rows, paths, partitions.texts, strict=False)
    ]


def _convert(incoming: LoadedBatch, shape: BatchSchema, schema: pa.Schema, bytes_max: int) -> _Converted | None:
    """Return the rows with the types of `schema`. Raises DuckDB's and Arrow's errors."""
    aliases = {column: f"{PREFIX}c{n}" for n, column in enumerate(shape.columns)}
    sql = {aliases[column]: shape.select[column] for column in shape.columns}
    sql |= {f"{PREFIX}v{n}": of_path for n, of_path in enumerate(shape.path_values.values())}
    sql |= {CHOSEN: incoming.chosen} if incoming.chosen else {}
    unchanged: dict[str, pa.ChunkedArray] = {}
    if incoming.held is not None:
        held = incoming.held
        for column, alias in aliases.items():
            if _is_unchanged(incoming, shape, column) and is_same_type(
                held.schema.field(column).type, schema.field(column).type
            ):
                unchanged[alias] = held[column]
                del sql[alias]
        evaluated = evaluate(incoming.con, held, sql) if sql else None
    else:
        evaluated = _read(incoming, shape, sql, bytes_max)
        if evaluated is None:
            return None
    by_alias = unchanged | (
        {} if evaluated is None else dict(zip(evaluated.schema.names, evaluated.columns, strict=True))
    )
    columns = [_as_type(by_alias[aliases[f.name]], f.type) for f in schema]
    table = one_chunk(pa.Table.from_arrays(columns, names=schema.names))
    if table is None:
        return None
    path_values = {name: by_alias[f"{PREFIX}v{n}"] for n, name in enumerate(shape.path_values)}
    return _Converted(table, by_alias.get(CHOSEN), path_values)


def _is_unchanged(incoming: LoadedBatch, shape: BatchSchema, column: str) -> bool:
    type_ = shape.columns[column]
    return incoming.columns.get(column) == type_ and shape.select[column] == f"CAST({quote_name(column)} AS {type_})"


def _as_type(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return a column with this type. A nested column is always cast, which removes the metadata of its fields."""
    return column if is_same_type(column.type, type_) and not type_.num_fields else column.cast(type_)


def _read(incoming: LoadedBatch, shape: BatchSchema, sql: Mapping[str, str], bytes_max: int) -> pa.Table | None:
    """Read the rows from DuckDB; None if they have more than `bytes_max` bytes."""
    if incoming.is_stream:
        if incoming.counted.bytes > bytes_max:
            return None
        incoming.keep()  # the rows may be larger than the stream, and must then be read again
    where = f" WHERE NOT {shape.misfit}" if shape.misfits else ""
    select = ", ".join(f"{expression} AS {name}" for name, expression in sql.items())
    reader = incoming.con.execute(f"SELECT {select} FROM {incoming.relation}{where}").to_arrow_reader(ROWS_PER_BATCH)
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > bytes_max:
            return None
    return pa.Table.from_batches(batches, reader.schema)


def _encode_texts(table: pa.Table) -> pa.Table:
    for n, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(n, field.name, encode_texts(table.column(n)))
    return table


def _partition_values(
    incoming: LoadedBatch,
    context: WriteContext,
    shape: BatchSchema,
    converted: _Converted,
    coded: pa.Table,
    misfits: int,
) -> list[RankedValues]:
    """Return the values of the partition columns, after the paths that rows chose. Raises DuckDB's errors."""
    con, table = incoming.con, converted.table
    types = partition_types(context.expressions, {**context.known_schema, **shape.columns}, table=context.table)
    ranked: dict[str, RankedValues] = {}
    computed: dict[str, PartitionExpression] = {}
    stored = {c.casefold(): c for c in table.schema.names}
    for expression in context.expressions:
        column = stored.get(expression.column.casefold()) if expression.column else None
        if column is not None and converted.chosen is None and types[expression.name] in _RANKED:
            ranked[expression.name] = rank_values(con, coded[column].chunk(0), types[expression.name])
        else:
            computed[expression.name] = expression
    if computed:
        ranked |= _compute(incoming, context, converted, computed, types, misfits)
    values = [ranked[e.name] for e in context.expressions]
    if converted.chosen is None:
        return values
    return [rank_values(con, encode_texts(converted.chosen).chunk(0), "VARCHAR"), *values]


def _compute(
    incoming: LoadedBatch,
    context: WriteContext,
    converted: _Converted,
    computed: Mapping[str, PartitionExpression],
    types: Mapping[str, str],
    misfits: int,
) -> dict[str, RankedValues]:
    """Evaluate partition expressions over the stored columns."""
    rows = converted.table
    aliases = {name: f"{PREFIX}v{n}" for n, name in enumerate(converted.path_values)}
    for name, alias in aliases.items():
        rows = rows.append_column(alias, converted.path_values[name])
    if converted.chosen is not None:
        rows = rows.append_column(CHOSEN, converted.chosen)
    sql = {}
    for n, (name, expression) in enumerate(computed.items()):
        value = f"\n{expression.sql}\n"
        if expression.path_only:
            value = f"CAST({aliases[name]} AS {context.spec.path_columns[name]})" if name in aliases else "NULL"
        if converted.chosen is not None:  # a row with a chosen partition need not fit the expressions
            value = f"CASE WHEN {CHOSEN} IS NULL THEN ({value}) END"
        value = value if types[name] in _RANKED else f"CAST(({value}) AS VARCHAR)"
        sql[f"{PREFIX}p{n}"] = value
    lacking = lacking_columns(context.known_schema, rows.schema.names)
    needed = frozenset[str]().union(*(e.columns for e in computed.values()))
    wanted = [c for c in rows.schema.names if c.casefold() in needed or c.startswith(PREFIX)]
    evaluated = evaluate(incoming.con, rows, sql, wanted=wanted, lacking=lacking)
    check_counts(context, incoming.count() - misfits, evaluated.num_rows)
    ranked = {}
    for n, name in enumerate(computed):
        type_ = types[name] if types[name] in _RANKED else "VARCHAR"
        column = evaluated[f"{PREFIX}p{n}"].cast(arrow_type(type_))
        column = encode_texts(column) if type_ == "VARCHAR" else column
        ranked[name] = rank_values(incoming.con, column.combine_chunks(), type_)
    return ranked
