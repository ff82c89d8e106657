"""Staging of a batch in DuckDB, for batches that are large relative to the memory: DuckDB sorts them, and spills.

The rows become one table, ordered by partition and sort columns. Each partition is then a range of row ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from icedb.sql.connections import quote_name
from icedb.writer.batch_loader import CHOSEN, PREFIX, LoadedBatch
from icedb.writer.batch_schema import BatchSchema, WriteContext
from icedb.writer.staged_batch import PartitionRange, lacking_columns, staged_names
from icedb.writer.staging_checks import (
    check_chosen,
    check_counts,
    check_path_values,
    check_required,
    partition_error,
    partition_path,
)

__all__ = ["stage_in_duckdb"]


def stage_in_duckdb(
    incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, *, misfits: int
) -> list[PartitionRange]:
    """Create the table `staged` with all rows in the order of their parts, and return the range of each partition.

    Raises InvalidBatch, InvalidOption, InvalidPartitionExpression, InvalidPartitionValue.
    """
    incoming.release()
    values = [f"{PREFIX}p{n}" for n in range(len(context.expressions))]
    staged = staged_names(shape.columns)
    order = [*([CHOSEN] if incoming.chosen else []), *values]
    ordered = ", ".join([*order, *(staged[c] for c in shape.sort_by)])
    rows = _rows(incoming, context, shape, values)
    try:
        # Not temporary: several connections read it.
        incoming.con.execute(f"CREATE TABLE staged AS {rows}{' ORDER BY ' + ordered if ordered else ''}")
    except duckdb.Error as error:
        raise partition_error(context, error) from None
    ranges = _ranges(incoming, context, shape, values, order)
    check_counts(context, incoming.count() - misfits, sum(r.rows for r in ranges))
    required = [c for c in context.spec.required if c in staged]
    if required:
        counts = ", ".join(f"count(*) - count({staged[c]})" for c in required)
        [nulls] = incoming.con.execute(f"SELECT {counts} FROM staged").fetchall()
        check_required(context, dict(zip(required, nulls, strict=True)))
    return ranges


def _rows(incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, values: Sequence[str]) -> str:
    """Return SQL of the stored columns and the partition of each row."""
    inner = [f"{sql} AS {quote_name(c)}" for c, sql in shape.select.items()]
    inner += lacking_columns(context.known_schema, shape.columns)
    inner += [f"{incoming.chosen} AS {CHOSEN}"] if incoming.chosen else []
    path_aliases = {name: f"{PREFIX}v{n}" for n, name in enumerate(shape.path_values)}
    inner += [f"{shape.path_values[name]} AS {alias}" for name, alias in path_aliases.items()]
    outer = [f"{quote_name(c)} AS {staged}" for c, staged in staged_names(shape.columns).items()]
    outer += [CHOSEN] if incoming.chosen else []
    for expression, value in zip(context.expressions, values, strict=True):
        sql = f"\n{expression.sql}\n"
        if expression.path_only:
            alias = path_aliases.get(expression.name)
            sql = "NULL" if alias is None else f"CAST({alias} AS {context.spec.path_columns[expression.name]})"
        # A row with a chosen partition need not fit the expressions.
        sql = f"CASE WHEN {CHOSEN} IS NULL THEN ({sql}) END" if incoming.chosen else sql
        outer.append(f"{sql} AS {value}")
    where = f" WHERE NOT {shape.misfit}" if shape.misfits else ""
    return f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {incoming.relation}{where})"


def _ranges(
    incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, values: Sequence[str], order: Sequence[str]
) -> list[PartitionRange]:
    """Return the row ids and the path of each partition in the staged table."""
    texts = ", ".join(f"CAST({v} AS VARCHAR)" for v in values)
    grouped = f" GROUP BY {', '.join(order)}" if order else " HAVING count(*) > 0"
    groups = incoming.con.execute(
        f"SELECT min(rowid), max(rowid), count(*), {CHOSEN if incoming.chosen else 'NULL'}, [{texts}]::VARCHAR[] "
        f"FROM staged{grouped} ORDER BY 1"
    ).fetchall()
    if any(chosen is None for *_, chosen, _ in groups):
        check_path_values(incoming, context, shape)
    check_chosen(incoming, context, shape, {chosen for *_, chosen, _ in groups if chosen is not None})
    names = [e.name for e in context.expressions]
    for first, last, rows, *_ in groups:
        check_counts(context, last - first + 1, rows)
    return [
        PartitionRange(first, rows, partition_path(context, names, chosen, texts))
        for first, _, rows, chosen, texts in groups
    ]
