"""Partition expressions: named DuckDB expressions, which DuckDB evaluates wherever rows are written.

    ["strftime(make_timestamp(ts * 1000), '%Y-%m-%d') AS d", "user_id AS u", "country"]

An expression can come from an untrusted `_table.json`, so it is parsed and checked. It must be exactly one named
expression over the row's own columns, without subqueries, windows, aggregates or volatile functions, because a row
must always belong to the same partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from icedb.errors import InvalidPartitionExpression
from icedb.format.table_spec import TableSpec
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import RESERVED, quote_name, quote_texts
from icedb.sql.expressions import parse_expression
from icedb.sql.types import checked_type, describe, typed_nothing

__all__ = ["PartitionExpression", "parse_partition_by", "partition_expressions", "partition_types", "path_value_types"]

_PROBE = f"{RESERVED}partition_value"


@dataclass(frozen=True, slots=True)
class PartitionExpression:
    """A checked partition expression. `sql` lacks the name and is safe in a SELECT list on a line of its own."""

    name: str
    sql: str
    #: Whether only the paths have the value (`path_columns` of the spec). Then `sql` is null.
    path_only: bool = False
    #: The columns that it names, case folded. A parameter of a lambda looks like a column.
    columns: frozenset[str] = frozenset()
    #: The column, as written, if the expression is just a column; otherwise empty.
    column: str = ""


def partition_expressions(spec: TableSpec, *, table: str) -> tuple[PartitionExpression, ...]:
    """Return all partition columns of a spec in path order. Raises InvalidPartitionExpression, InvalidOption."""
    computed = parse_partition_by(spec.partition_by, table=table)
    path_only = tuple(
        PartitionExpression(
            name, f"CAST(NULL AS {checked_type(type_, what=f'path column {name!r}', table=table)})", True
        )
        for name, type_ in spec.path_columns.items()
    )
    names = [e.name.casefold() for e in (*computed, *path_only)]
    if reserved := [n for n in names if n.startswith(RESERVED)]:
        raise InvalidPartitionExpression(
            f"{table}: the partition column '{reserved[0]}' has a reserved name. Rename it."
        )
    if len(set(names)) < len(names):
        raise InvalidPartitionExpression(
            f"{table}: a partition column has two meanings: {list(spec.partition_by)}, {list(spec.path_columns)}."
        )
    return computed + path_only


def parse_partition_by(partition_by: Sequence[str], *, table: str) -> tuple[PartitionExpression, ...]:
    """Return the expressions of a spec. Raises InvalidPartitionExpression."""
    if isinstance(partition_by, str):
        raise InvalidPartitionExpression(f"{table}: partition_by is a list of expressions, not one text.")
    parsed = tuple(_parse(text, table) for text in partition_by)
    names = [p.name.casefold() for p in parsed]
    if len(set(names)) < len(names):
        raise InvalidPartitionExpression(f"{table}: two partition expressions have one name: {list(partition_by)}.")
    return parsed


@lru_cache(maxsize=256)  # tables are opened more often than altered
def _parse(text: str, table: str) -> PartitionExpression:
    def refuse(why: str) -> InvalidPartitionExpression:
        return InvalidPartitionExpression(
            f"{table}: the partition expression '{text}' {why}. Write one DuckDB expression over the row's columns "
            "with a name, such as \"strftime(ts, '%Y-%m-%d') AS d\"."
        )

    parsed = parse_expression(text, refuse=refuse)
    name = parsed.alias or parsed.column
    if not name:
        raise refuse("has no name; add 'AS name'")
    columns = frozenset[str]().union(*(c.columns for c in parsed.conjuncts))
    # For a field of a STRUCT, `parsed.column` is the field's name.
    column = parsed.column if parsed.sql in (parsed.column, quote_name(parsed.column)) else ""
    return PartitionExpression(name, parsed.sql, columns=columns, column=column)


def partition_types(
    expressions: Sequence[PartitionExpression], schema: Mapping[str, str], *, table: str
) -> dict[str, str]:
    """Return name -> DuckDB type of each partition column, for rows of this schema.

    Raises InvalidPartitionExpression if an expression does not fit the schema.
    """
    return dict(_partition_types(tuple(expressions), tuple(schema.items()), table))


@lru_cache(maxsize=256)  # the same for every batch of a table, and a connection costs more than a small batch
def _partition_types(
    expressions: tuple[PartitionExpression, ...], schema: tuple[tuple[str, str], ...], table: str
) -> dict[str, str]:
    if not expressions:
        return {}
    with scratch_connection() as con:
        return _types(
            con, expressions, typed_nothing(dict(schema), rows=1), table=table, columns=[c for c, _ in schema]
        )


def _types(
    con: duckdb.DuckDBPyConnection,
    expressions: Sequence[PartitionExpression],
    source: str,
    *,
    table: str,
    columns: Sequence[str],
) -> dict[str, str]:
    types: dict[str, str] = {}
    for expression in expressions:
        _check_user(expression, columns, table=table)
        try:
            # `*` makes DuckDB reject an aggregate, as it does when rows are written.
            query = f"SELECT *, {expression.sql} AS {_PROBE} FROM ({source})"
            described = describe(con, query)
            one_value = con.execute(f"SELECT count(*) FROM ({query})").fetchone() == (1,)
        except duckdb.Error as error:
            typed = ", ".join(_described(con, source, columns))
            raise InvalidPartitionExpression(
                f"{table}: the partition expression '{expression.sql} AS {expression.name}' does not fit the rows: "
                f"{str(error).splitlines()[0].rstrip('.')} (columns: {typed}). Declare a type, cast "
                "it in the expression (CAST(ts AS TIMESTAMP)), or correct the name."
            ) from None
        if not one_value:
            raise InvalidPartitionExpression(
                f"{table}: the partition expression '{expression.sql} AS {expression.name}' returns several values, or "
                "none, for one row. Use a function that returns exactly one."
            )
        types[expression.name] = described[_PROBE]
    return types


def _described(con: duckdb.DuckDBPyConnection, source: str, columns: Sequence[str]) -> list[str]:
    """Return columns with their types, or without them if DuckDB rejects a column's name."""
    try:
        return sorted(f"{c} {t}" for c, t in describe(con, f"SELECT * FROM ({source})").items())
    except duckdb.Error:
        return sorted(map(repr, columns))


def path_value_types(values: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """Return name -> type of its values in paths: BIGINT, DATE, TIMESTAMP or VARCHAR.

    The type must write each value exactly as the path has it, so `07` is text.
    """
    with scratch_connection() as con:
        return {name: _path_value_type(con, [v for v in of_name if v is not None]) for name, of_name in values.items()}


def _path_value_type(con: duckdb.DuckDBPyConnection, values: Sequence[str]) -> str:
    con.execute(f"CREATE OR REPLACE TEMP TABLE v AS SELECT unnest({quote_texts(values)}) AS text")
    for type_ in ("BIGINT", "DATE", "TIMESTAMP"):
        same = f"SELECT bool_and(coalesce(CAST(TRY_CAST(text AS {type_}) AS VARCHAR) = text, false)) FROM v"
        if con.execute(same).fetchone() == (True,):
            return type_
    return "VARCHAR"


def _check_user(expression: PartitionExpression, columns: Sequence[str], *, table: str) -> None:
    """Reject `user` if it is not a column: DuckDB would call its function, whose value is `duckdb` for every row."""
    if '"user"' not in expression.sql or "user" in {c.casefold() for c in columns}:
        return
    parsed = parse_expression(expression.sql, refuse=InvalidPartitionExpression)
    if any("user" in c.columns for c in parsed.conjuncts):
        raise InvalidPartitionExpression(
            f"{table}: the partition expression '{expression.sql} AS {expression.name}' does not fit the rows: they "
            f"have no column 'user' (columns: {sorted(columns)})."
        )
