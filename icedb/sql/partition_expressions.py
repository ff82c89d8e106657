"""Partition expressions: DuckDB SQL with a name, evaluated by one engine wherever rows are written.

    ["strftime(make_timestamp(ts * 1000), '%Y-%m-%d') AS d", "user_id AS u", "country"]

An expression may come from a `_table.json` that somebody else wrote, so it is parsed, not pasted: exactly one
named expression over the row's own columns, without subqueries, windows, aggregates or volatile functions (a
row must belong to the same partition whenever it is asked).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from icedb.errors import InvalidPartitionExpression
from icedb.format.table_spec import TableSpec
from icedb.sql.connections import RESERVED, quote_name
from icedb.sql.expressions import parse_expression
from icedb.sql.sandbox_pool import scratch_connection
from icedb.sql.types import checked_type, describe, typed_nothing

__all__ = ["PartitionExpression", "parse_partition_by", "partition_expressions", "partition_types", "path_value_types"]

_PROBE = f"{RESERVED}partition_value"


@dataclass(frozen=True, slots=True)
class PartitionExpression:
    """`sql` is the expression without its name, checked; safe to put into a SELECT list on a line of its own."""

    name: str
    sql: str
    #: Only the paths tell the value (`path_columns` of the spec): no row's columns do, and `sql` is null.
    path_only: bool = False
    #: The columns that it names, case folded. A parameter of a lambda looks like a column.
    columns: frozenset[str] = frozenset()
    #: The column that it is, and nothing else, as it was written; empty when it is more.
    column: str = ""


def partition_expressions(spec: TableSpec, *, table: str) -> tuple[PartitionExpression, ...]:
    """All partition columns of a spec, in the order of a path. Raises InvalidPartitionExpression, InvalidOption."""
    computed = parse_partition_by(spec.partition_by, table=table)
    told = tuple(
        PartitionExpression(
            name, f"CAST(NULL AS {checked_type(type_, what=f'path column {name!r}', table=table)})", True
        )
        for name, type_ in spec.path_columns.items()
    )
    names = [e.name.casefold() for e in (*computed, *told)]
    if reserved := [n for n in names if n.startswith(RESERVED)]:
        raise InvalidPartitionExpression(
            f"{table}: the partition column '{reserved[0]}' has a reserved name. Rename it."
        )
    if len(set(names)) < len(names):
        raise InvalidPartitionExpression(
            f"{table}: a partition column has two meanings: {list(spec.partition_by)}, {list(spec.path_columns)}."
        )
    return computed + told


def parse_partition_by(partition_by: Sequence[str], *, table: str) -> tuple[PartitionExpression, ...]:
    """The expressions of a spec. Raises InvalidPartitionExpression, naming the expression and the remedy."""
    if isinstance(partition_by, str):
        raise InvalidPartitionExpression(f"{table}: partition_by is a list of expressions, not one text.")
    parsed = tuple(_parse(text, table) for text in partition_by)
    names = [p.name.casefold() for p in parsed]
    if len(set(names)) < len(names):
        raise InvalidPartitionExpression(f"{table}: two partition expressions have one name: {list(partition_by)}.")
    return parsed


@lru_cache(maxsize=256)  # a table is opened more often than it is altered
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
    # Of a field of a STRUCT, `column` is its name.
    column = parsed.column if parsed.sql in (parsed.column, quote_name(parsed.column)) else ""
    return PartitionExpression(name, parsed.sql, columns=columns, column=column)


def partition_types(
    expressions: Sequence[PartitionExpression], schema: Mapping[str, str], *, table: str
) -> dict[str, str]:
    """Name -> DuckDB type of each partition column, for rows of this schema.

    Raises InvalidPartitionExpression when an expression does not fit the schema.
    """
    return dict(_partition_types(tuple(expressions), tuple(schema.items()), table))


@lru_cache(maxsize=256)  # the same for every batch of a table, and a connection takes longer than a small batch
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
            # Beside the row's columns, so that an aggregate is refused as it would be when rows are written.
            query = f"SELECT *, {expression.sql} AS {_PROBE} FROM ({source})"
            described = describe(con, query)
            one_value = con.execute(f"SELECT count(*) FROM ({query})").fetchone() == (1,)
        except duckdb.Error as error:
            found = _described(con, source, columns)
            raise InvalidPartitionExpression(
                f"{table}: the partition expression '{expression.sql} AS {expression.name}' does not fit the rows: "
                f"{str(error).splitlines()[0].rstrip('.')} (columns: {', '.join(found)}). Declare a type, cast "
                "it in the expression (CAST(ts AS TIMESTAMP)), or correct the name."
            ) from None
        if not one_value:
            raise InvalidPartitionExpression(
                f"{table}: the partition expression '{expression.sql} AS {expression.name}' gives several values, or "
                "none, for one row. Use a function that gives exactly one."
            )
        types[expression.name] = described[_PROBE]
    return types


def _described(con: duckdb.DuckDBPyConnection, source: str, columns: Sequence[str]) -> list[str]:
    """Columns with their types; without, when a name is what made DuckDB refuse."""
    try:
        return sorted(f"{c} {t}" for c, t in describe(con, f"SELECT * FROM ({source})").items())
    except duckdb.Error:
        return sorted(map(repr, columns))


def path_value_types(values: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """Name -> the type of the values that paths have for it: BIGINT, DATE, TIMESTAMP, or VARCHAR.

    Only a type that writes each of them as it is: `07` is text.
    """
    with scratch_connection() as con:
        return {name: _path_value_type(con, [v for v in of_name if v is not None]) for name, of_name in values.items()}


def _path_value_type(con: duckdb.DuckDBPyConnection, values: Sequence[str]) -> str:
    con.execute("CREATE OR REPLACE TEMP TABLE v AS SELECT unnest(CAST($1 AS VARCHAR[])) AS text", [list(values)])
    for type_ in ("BIGINT", "DATE", "TIMESTAMP"):
        same = f"SELECT bool_and(coalesce(CAST(TRY_CAST(text AS {type_}) AS VARCHAR) = text, false)) FROM v"
        if con.execute(same).fetchone() == (True,):
            return type_
    return "VARCHAR"


def _check_user(expression: PartitionExpression, columns: Sequence[str], *, table: str) -> None:
    """Without a column of that name, DuckDB takes `user` for its function, whose value is `duckdb` for every row."""
    if '"user"' not in expression.sql or "user" in {c.casefold() for c in columns}:
        return
    parsed = parse_expression(expression.sql, refuse=InvalidPartitionExpression)
    if any("user" in c.columns for c in parsed.conjuncts):
        raise InvalidPartitionExpression(
            f"{table}: the partition expression '{expression.sql} AS {expression.name}' does not fit the rows: they "
            f"have no column 'user' (columns: {sorted(columns)})."
        )
