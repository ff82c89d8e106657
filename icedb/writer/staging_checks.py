"""Checks of a batch while it is staged, and the errors of rows that cannot be stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import duckdb

from icedb.errors import IceDBError, InvalidBatch, InvalidPartitionExpression, InvalidPartitionValue, SchemaConflict
from icedb.format.keys import decode_partition, encode_partition, encode_partition_text
from icedb.sql.casts import EXAMPLE_LENGTH_MAX
from icedb.sql.connections import quote_name, quote_texts
from icedb.sql.partition_expressions import partition_types
from icedb.writer.batch_loader import PREFIX, LoadedBatch, too_little_memory, unreadable
from icedb.writer.batch_schema import BatchSchema, WriteContext
from icedb.writer.staged_batch import lacking_columns

__all__ = [
    "check_chosen",
    "check_computed",
    "check_counts",
    "check_no_rows",
    "check_path_values",
    "check_required",
    "misfit_error",
    "partition_error",
    "partition_path",
]

# The value of a row in a batch, and the one that the table computes.
_BROUGHT, _COMPUTED = f"{PREFIX}brought", f"{PREFIX}computed"


def check_chosen(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, chosen: Collection[str]) -> None:
    """Raise InvalidPartitionValue unless the paths that rows chose have values of the partition columns' types."""
    if not chosen:
        return
    types = partition_types(context.expressions, {**context.known_schema, **shape.columns}, table=context.table)
    for path in sorted(chosen):
        values = decode_partition(encode_partition_text(path, list(types), table=context.table))
        for name, type_ in types.items():
            value = f"{quote_texts([values[name]])}[1]"
            fits = f"SELECT {value} IS NULL OR TRY_CAST({value} AS {type_}) IS NOT NULL"
            if incoming.con.execute(fits).fetchone() != (True,):
                raise InvalidPartitionValue(
                    f"{context.table}: '{path[:200]}' cannot be a partition: '{name}' is {type_}, and "
                    f"'{values[name]}' is not a value of that type."
                )


def check_computed(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema) -> None:
    """Raise InvalidBatch unless columns that repeat a computed partition column have its values.

    Null is no value: Spark writes it for a column that an INSERT does not name. Both values are cast to the type of the
    other: text of a file may be a date, and 1.5 is not an INTEGER.
    """
    if not shape.computed:
        return
    types = partition_types(context.expressions, {**context.known_schema, **shape.columns}, table=context.table)
    expressions = {e.name.casefold(): e for e in context.expressions}
    where = f" WHERE NOT {shape.misfit}" if shape.misfits else ""
    for column, brought_sql in shape.computed.items():
        expression = expressions[column.casefold()]
        rows = [f"{sql} AS {quote_name(c)}" for c, sql in shape.select.items()]
        rows += [*lacking_columns(context.known_schema, shape.columns), f"{brought_sql} AS {_BROUGHT}"]
        values = f"SELECT {_BROUGHT}, (\n{expression.sql}\n) AS {_COMPUTED} FROM (SELECT {', '.join(rows)} FROM "
        try:
            [(count, brought, computed)] = incoming.con.execute(
                f"SELECT count(*), first(CAST({_BROUGHT} AS VARCHAR)), first(CAST({_COMPUTED} AS VARCHAR)) "
                f"FROM ({values}{incoming.relation}{where})) "
                f"WHERE {_BROUGHT} IS NOT NULL AND (TRY_CAST({_BROUGHT} AS {types[expression.name]}) IS DISTINCT FROM "
                f"{_COMPUTED} OR TRY_CAST({_COMPUTED} AS {incoming.columns[column]}) IS DISTINCT FROM {_BROUGHT})"
            ).fetchall()
        except duckdb.Error as error:
            raise partition_error(context, error) from None
        if count:
            raise InvalidBatch(
                f"{context.table}: column '{column}' has other values than the partition column of that name in "
                f"{count} rows, for example {_excerpt(brought)} instead of {_excerpt(computed)}. The table computes it "
                f"as {expression.sql}. Leave it out (a query of the table returns it), or rename it."
            )


def _excerpt(text: str | None) -> str:
    return "null" if text is None else f"'{text[:EXAMPLE_LENGTH_MAX]}'"


def misfit_error(context: WriteContext, shape: BatchSchema, count: int, example: str, *, answered: bool) -> IceDBError:
    """Return the error for rows whose values a column cannot hold without loss."""
    conversion = shape.conversions[0]
    whose = "the query's result" if answered else "the batch"
    return SchemaConflict(
        f"{context.table}: {count} rows of {whose} have values that the column's type cannot hold without loss, for "
        f"example: {example}. Correct them, write them under another name"
        + ("." if answered else ", or insert with on_conflict='quarantine'."),
        column=conversion.column,
        types=(conversion.target, conversion.source),
    )


def check_path_values(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema) -> None:
    """Raise InvalidBatch if rows that choose no partition lack a column that only paths have."""
    lacking = [e.name for e in context.expressions if e.path_only and e.name not in shape.path_values]
    if incoming.chosen and lacking:
        raise InvalidBatch(
            f"{context.table}: rows have neither a '_partition' nor a column '{lacking[0]}', by which the table is "
            "partitioned. Add one of the two."
        )


def check_no_rows(incoming: LoadedBatch, context: WriteContext) -> None:
    """Raise InvalidBatch for a batch with rows and without a column that has a type."""
    some = incoming.counted.rows or any(batch.num_rows for batch in incoming.counted.batches)
    if some and not incoming.answered:
        raise InvalidBatch(
            f"{context.table}: every value of the batch is null, and the table does not have its columns yet, so no "
            "column has a type. Give the batch a schema."
        )


def check_counts(context: WriteContext, expected: int, rows: int) -> None:
    """Raise InvalidPartitionExpression unless each of the expected rows is in exactly one partition."""
    if expected != rows:
        raise InvalidPartitionExpression(
            f"{context.table}: the partition expressions {[e.sql for e in context.expressions]} do not give each of "
            f"the {expected} rows exactly one partition. Nothing was written."
        )


def check_required(context: WriteContext, nulls: Mapping[str, int]) -> None:
    """Raise InvalidBatch if a required column is null in a row. `nulls`: the number of such rows by column."""
    for column, missing in nulls.items():
        if missing:
            raise InvalidBatch(
                f"{context.table}: column '{column}' is null in {missing} rows, and the table requires it. Fill it in, "
                "or insert with on_conflict='quarantine'."
            )


def partition_path(
    context: WriteContext, names: Sequence[str], chosen: str | None, values: Sequence[str | None]
) -> str:
    """Return the path of a partition: the one that its rows chose, or that of the expressions' values."""
    if chosen is not None:
        return encode_partition_text(chosen, names, table=context.table)
    return encode_partition(dict(zip(names, values, strict=True)))


def partition_error(context: WriteContext, error: duckdb.Error) -> IceDBError | OSError:
    """Return the error for rows that DuckDB could not partition and sort."""
    reason = str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return too_little_memory(context.table, error)
    if "arrow" in reason.lower() or not context.expressions:
        return unreadable(context.table, error)
    reason = reason.partition(" when casting from source column")[0]  # the name of an internal column
    expressions = [e.name if e.path_only else e.sql for e in context.expressions]
    return InvalidPartitionExpression(f"{context.table}: the rows cannot be partitioned by {expressions}: {reason}")
