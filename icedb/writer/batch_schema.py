"""Resolution of a batch's columns: their types in the table, conversions, and the table's requirements.

Every problem of a batch is detected here, before anything is written. A value of another type than its column's is
rejected, converted or quarantined, as the caller chooses. The result of a query is cast to the table's types, and
rejected if that would change a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icedb.errors import InvalidBatch, UnknownColumn
from icedb.format.table_spec import TableSpec
from icedb.sources.batch import OnConflict
from icedb.sql.casts import (
    EXAMPLE_LENGTH_MAX,
    MIXED,
    Conversion,
    convert,
    convert_answer,
    fit_answer,
    from_text,
    keeps_all,
    lossless,
    widening,
)
from icedb.sql.connections import quote_name, quote_text
from icedb.sql.merge_strategies import check_aggregated_types, check_batch_columns, check_keys, seeds
from icedb.sql.partition_expressions import PartitionExpression, partition_types
from icedb.sql.types import ROW_ID, check_columns, check_sort_columns, new_columns, storage_type
from icedb.storage.location import Location
from icedb.util.times import time_text
from icedb.writer.batch_loader import PARTITION_COLUMN, PREFIX, LoadedBatch
from icedb.writer.encoding.bloom_filters import check_bloom_filters

__all__ = ["BatchSchema", "WriteContext", "check_declared", "check_not_dropped", "resolve_batch_schema"]


@dataclass(frozen=True, slots=True)
class WriteContext:
    """The properties of a table that a writer needs. `known_schema` may lack the newest columns, but is never wrong.

    `lenient`: a query that drops a partition or sort column only causes a warning, as IceDB v3 programs expect.
    """

    location: Location
    spec: TableSpec
    expressions: tuple[PartitionExpression, ...]
    known_schema: Mapping[str, str]
    lenient: bool = False
    #: The prefix of the new parts' names, which identifies the parts of a job.
    job: str = ""

    @property
    def table(self) -> str:
        """The table's address, for messages."""
        return self.location.uri


@dataclass(frozen=True, slots=True)
class BatchSchema:
    """The columns of a batch as they are stored: `columns` with their types, `select` with SQL of each over the batch.

    `misfits`: SQL of the condition of a rejected row -> SQL of the reason as text. `path_values`: partition columns
    that only paths have, and the SQL of their values. `computed`: columns of the batch that are not stored, because the
    partition column of that name is computed, and the SQL of their values.
    """

    columns: dict[str, str]
    select: dict[str, str]
    sort_by: list[str]
    #: The conversions that can reject a value.
    conversions: list[Conversion] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)
    path_values: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)

    @property
    def misfit(self) -> str:
        """SQL of whether a row is rejected."""
        return f"coalesce({' OR '.join(self.misfits)}, false)" if self.misfits else "false"


def resolve_batch_schema(incoming: LoadedBatch, context: WriteContext, on_conflict: OnConflict) -> BatchSchema:
    """Determine how a batch is stored.

    Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidPartitionExpression.
    """
    path_values = _path_values(incoming, context)
    computed = _computed_values(incoming, context)
    not_stored = {*path_values.values(), *computed}
    path_conversions = _path_conversions(incoming, context, path_values)
    if incoming.chosen and not context.spec.preserve_partition:
        not_stored.add(PARTITION_COLUMN)
    stored = {c: t for c, t in incoming.columns.items() if c not in not_stored}
    columns: dict[str, str] = {}
    conversions: dict[str, Conversion] = {}
    for column, source in stored.items():
        columns[column], conversion = _target(incoming, context, column, source, on_conflict)
        if conversion is not None:
            conversions[column] = conversion
    if conversions or path_conversions or computed:
        incoming.keep()
        computed = {c: incoming.select[c] for c in computed}
    select = {c: conversions[c].sql if c in conversions else _cast(incoming, c, columns[c]) for c in columns}
    _add_made_columns(context, columns, select)
    _check_columns(context, columns)
    checked = [c for c in (*conversions.values(), *path_conversions.values()) if c.misfit]
    misfits = {c.misfit: _reason(c) for c in checked}
    if on_conflict == "quarantine":
        misfits |= {f"({select[c]}) IS NULL": quote_text(_lacking(c)) for c in context.spec.required if c in select}
    sort_by = _sort_columns(context, columns)
    if columns:  # an empty batch without columns is accepted by a table without columns
        partition_types(context.expressions, {**context.known_schema, **columns}, table=context.table)
    values = {
        n: path_conversions[n].sql if n in path_conversions else incoming.select[c] for n, c in path_values.items()
    }
    return BatchSchema(columns, select, sort_by, checked, misfits, values, computed)


def _computed_values(incoming: LoadedBatch, context: WriteContext) -> dict[str, str]:
    """Return the columns of a batch that repeat a computed partition column, as a query returns it, and their SQL.

    Rows that choose their partitions need not agree with the expressions, so they cannot bring such columns.
    """
    if incoming.chosen or not context.known_schema:
        return {}
    named = ((e.name.casefold(), e) for e in context.expressions if not e.path_only)
    names = {name for name, expression in named if name not in expression.columns}
    repeated = [c for c in incoming.columns if c not in context.known_schema and c.casefold() in names]
    return {c: incoming.select[c] for c in repeated} if len(repeated) < len(incoming.columns) else {}


def _path_values(incoming: LoadedBatch, context: WriteContext) -> dict[str, str]:
    """Return the partition columns that only paths have -> the columns of the batch with their values."""
    path_only = [e.name for e in context.expressions if e.path_only]
    by_name = {c.casefold(): c for c in incoming.columns}
    columns = {name: by_name[name.casefold()] for name in path_only if name.casefold() in by_name}
    if lacking := [name for name in path_only if name not in columns and not incoming.chosen]:
        raise InvalidBatch(
            f"{context.table}: the batch lacks '{lacking[0]}', by which the table is partitioned. Add that column, or "
            f"one called '{PARTITION_COLUMN}' with paths such as 'd=2026-11-21'."
        )
    return columns


def _path_conversions(
    incoming: LoadedBatch, context: WriteContext, path_values: Mapping[str, str]
) -> dict[str, Conversion]:
    """Return the conversions to the types of the partition columns, whose values only the paths will have."""
    conversions: dict[str, Conversion] = {}
    for name, column in path_values.items():
        source, target = incoming.columns[column], context.spec.path_columns[name]
        if source == target:
            continue
        if source == "VARCHAR":
            conversions[name] = from_text(column, target)
        elif widening(source, target) or target == "VARCHAR":
            conversions[name] = lossless(column, source, target)
        else:
            conversion = convert_answer(column, source, target)
            if conversion is None:
                check_columns({column: source}, {column: target}, table=context.table)
            else:
                conversions[name] = conversion
    return conversions


def _target(
    incoming: LoadedBatch, context: WriteContext, column: str, source: str, on_conflict: OnConflict
) -> tuple[str, Conversion | None]:
    """Return the type of a column in the table, and its conversion if a cast is not enough."""
    table = context.table
    target = context.known_schema.get(column)
    mixed = column in incoming.batch.mixed and source == MIXED and not incoming.answered
    if target is None and mixed:
        incoming.keep()
        target = _type_of_mixed(incoming, column, on_conflict)
    if target is None:
        return storage_type(source, column=column, table=table), None
    if mixed and target == MIXED:
        return target, _nested_only(column)
    if source == target:
        return target, None
    if incoming.answered:
        result = "the query's result"
        if convert_answer(column, source, target) is None:
            incoming.keep()  # `fit_answer` counts the values
        return target, fit_answer(incoming.con, incoming.relation, column, source, target, table=table, what=result)
    parsed = column in incoming.batch.parsed
    if parsed or on_conflict != "raise":
        conversion = convert(column, source, target, parsed=parsed, text=on_conflict == "cast")
        if conversion is None and on_conflict == "quarantine":
            name = quote_name(column)
            conversion = Conversion(column, source, target, f"CAST(NULL AS {target})", f"({name} IS NOT NULL)")
        if conversion is not None:
            return target, conversion
    if keeps_all(source, target):
        return target, None
    stored = storage_type(source, column=column, table=table)
    check_columns({column: stored}, {column: target}, table=table)
    return target, None


def _nested_only(column: str) -> Conversion:
    """Return the conversion of a column whose first value is nested: only nested values are stored, as JSON."""
    name = quote_name(column)
    return Conversion(column, MIXED, MIXED, name, f"(json_type({name}) NOT IN ('OBJECT', 'ARRAY', 'NULL'))")


def _type_of_mixed(incoming: LoadedBatch, column: str, on_conflict: OnConflict) -> str:
    """Return the type of a new column whose values have several types: one for all, or that of the first value."""
    name, kind = quote_name(column), f"{PREFIX}kind"
    kinds = [
        str(json_type)
        for (json_type,) in incoming.con.execute(
            # Not by `rowid`, which can be a column of the batch.
            f"SELECT {kind} FROM (SELECT json_type({name}) AS {kind}, row_number() OVER () AS {PREFIX}number "
            f"FROM {incoming.relation}) WHERE {kind} <> 'NULL' GROUP BY {kind} ORDER BY min({PREFIX}number)"
        ).fetchall()
    ]
    numbers = {"BIGINT": "BIGINT", "UBIGINT": "BIGINT", "DOUBLE": "DOUBLE"}
    if on_conflict == "cast":
        return "DOUBLE" if kinds and all(k in numbers for k in kinds) else "VARCHAR"
    first = kinds[0] if kinds else "VARCHAR"
    return {**numbers, "BOOLEAN": "BOOLEAN", "OBJECT": MIXED, "ARRAY": MIXED}.get(first, "VARCHAR")


def _cast(incoming: LoadedBatch, column: str, target: str) -> str:
    sql = incoming.select[column]
    return sql if incoming.columns[column] == target else f"CAST({sql} AS {target})"


def _add_made_columns(context: WriteContext, columns: dict[str, str], select: dict[str, str]) -> None:
    """Add the columns that the writer computes: the row id, and the count that merges sum."""
    if not columns:
        return
    if context.spec.row_id:
        own_id = f"CAST({select[ROW_ID]} AS VARCHAR)" if ROW_ID in select else "NULL"
        columns[ROW_ID], select[ROW_ID] = "VARCHAR", f"coalesce({own_id}, CAST(uuid() AS VARCHAR))"
    for column, sql in seeds(context.spec.merging, columns).items():
        columns[column] = context.known_schema.get(column, "BIGINT")
        select[column] = f"CAST({sql} AS {columns[column]})"


def _check_columns(context: WriteContext, columns: Mapping[str, str]) -> None:
    spec, table_columns, table = context.spec, context.known_schema, context.table
    check_not_dropped(spec, columns, table=table)
    check_columns(columns, table_columns, table=table)
    _check_shadowing(context, columns)
    check_batch_columns(spec.merging, columns, table=table)
    check_aggregated_types(spec.merging, {**table_columns, **columns}, table=table)
    if columns:
        check_keys(spec.merging, table_columns.keys() | columns.keys(), table=table)
    check_declared(spec, columns, table_columns, table=table)
    if columns and (lacking := [c for c in spec.required if c not in columns]):
        raise InvalidBatch(f"{table}: {_lacking(lacking[0])}. Add it to the batch.")


def check_declared(spec: TableSpec, columns: Iterable[str], table_columns: Mapping[str, str], *, table: str) -> None:
    """Raise UnknownColumn for an undeclared column, if the table accepts only declared columns."""
    made = {ROW_ID, PARTITION_COLUMN, *seeds(spec.merging, ())}
    undeclared = sorted(set(columns) - table_columns.keys() - made)
    if spec.schema_policy == "declared" and undeclared:
        raise UnknownColumn(
            f"{table}: the batch has a column '{undeclared[0]}', and the table takes only columns that were declared "
            f"({sorted(table_columns)}). Leave it out, or declare it with alter(schema=...)."
        )


def check_not_dropped(spec: TableSpec, columns: Iterable[str], *, table: str) -> None:
    """Raise InvalidBatch for a column that was dropped: its values would be stored and hidden."""
    if not spec.dropped:
        return
    dropped = {c.casefold(): at_ms for c, at_ms in spec.dropped.items()}
    for column in columns:
        if (at_ms := dropped.get(column.casefold())) is not None:
            raise InvalidBatch(
                f"{table}: the batch has the column '{column}', which was dropped at {time_text(at_ms)}. Leave it out. "
                "To use the name again, declare the column with alter(schema=...)."
            )


def _lacking(column: str) -> str:
    return f"column '{column}' is missing or null, and the table requires it"


def _check_shadowing(context: WriteContext, columns: Mapping[str, str]) -> None:
    """Reject a new data column with the name of a partition column, whose values for older rows it would hide."""
    added = {c.casefold(): c for c in columns if c not in context.known_schema} if context.known_schema else {}
    for expression in context.expressions:
        column = added.get(expression.name.casefold())
        if column is not None and expression.sql not in (column, quote_name(column)):
            raise InvalidBatch(
                f"{context.table}: the batch brings a column '{column}', and the table has a partition column of that "
                "name, computed from other columns. Leave it out (a query of the table returns it), or rename it."
            )


def _sort_columns(context: WriteContext, columns: Mapping[str, str]) -> list[str]:
    if context.lenient or not columns:
        return [c for c in context.spec.sort_by if c in columns]
    check_bloom_filters(
        context.spec.bloom_filters,
        new_columns(columns, context.known_schema),
        table=context.table,
        other_columns=context.known_schema,
    )
    return check_sort_columns(context.spec.sort_by, columns, context.known_schema, table=context.table)


def _reason(conversion: Conversion) -> str:
    """Return SQL of the reason why a row cannot be stored."""
    name = quote_name(conversion.column)
    problem = quote_text(f"column '{conversion.column}' is {conversion.target}, and the value is ")
    return f"{problem} || left(coalesce(CAST({name} AS VARCHAR), 'null'), {EXAMPLE_LENGTH_MAX})"
