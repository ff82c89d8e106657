"""Predicates over a table's rows: which rows a deletion means.

A predicate is one checked DuckDB expression over the columns of `t`, data and partition columns, whose value is a
truth value. What is FALSE or NULL for a row leaves the row alone. An AND of several conditions is kept in pieces,
for those that speak of partition columns only decide without opening a part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb

from icedb.engine import connect_sandbox, quote_text
from icedb.errors import IceDBError, InvalidOption, UnknownColumn
from icedb.expressions import parse_expression
from icedb.schema import describe, typed_nothing

__all__ = ["Predicate", "check_predicate"]

_VALUE = "__icedb_value"


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked predicate. `sql` is safe in a WHERE clause over `t` on a line of its own."""

    sql: str
    #: Those of its conditions that need only the partition columns.
    of_partitions: tuple[str, ...]
    #: Whether that is all of them.
    is_of_partitions: bool


def check_predicate(
    text: str, schema: Mapping[str, str], partition_schema: Mapping[str, str], *, table: str
) -> Predicate:
    """The predicate in `text`, over rows with these columns. Raises InvalidOption, UnknownColumn."""

    def refuse(why: str) -> InvalidOption:
        return InvalidOption(
            f"{table}: the predicate {quote_text(str(text))} {why}. Write one DuckDB condition over the columns of t, "
            "such as \"user_id = 7 AND d < '2026-01-01'\"."
        )

    parsed = parse_expression(text, refuse=refuse)
    if parsed.alias:
        raise refuse(f"has a name ('{parsed.alias}')")
    columns = {**schema, **partition_schema}
    named = frozenset[str]().union(*(c.columns for c in parsed.conjuncts))
    if "user" in named - {c.casefold() for c in columns}:
        raise _unknown("user", text, columns, table)  # DuckDB would take it for its function of that name
    try:
        type_ = _bind(parsed.sql, columns)
    except duckdb.Error as error:
        raise _unfit(error, text, columns, table) from None
    if type_ != "BOOLEAN":
        raise refuse(f"is {type_}, and neither true nor false")
    # By name, for DuckDB finds a meaning for some columns that are not there.
    in_paths = {c.casefold() for c in partition_schema}
    needs_no_part = tuple(
        c.sql for c in parsed.conjuncts if c.columns and c.columns <= in_paths and _binds(c.sql, partition_schema)
    )
    return Predicate(parsed.sql, needs_no_part, is_of_partitions=len(needs_no_part) == len(parsed.conjuncts))


def _bind(sql: str, columns: Mapping[str, str]) -> str:
    """The type of an expression over rows with these columns; as a condition, so that it has one value per row."""
    source = f"({typed_nothing(columns)}) AS t"
    with connect_sandbox() as con:
        con.execute(f"SELECT 1 FROM {source} WHERE (\n{sql}\n)")
        return describe(con, f"SELECT (\n{sql}\n) AS {_VALUE} FROM {source}")[_VALUE]


def _binds(sql: str, columns: Mapping[str, str]) -> bool:
    try:
        return _bind(sql, columns) == "BOOLEAN"
    except duckdb.Error:
        return False


def _unfit(error: duckdb.Error, text: str, columns: Mapping[str, str], table: str) -> IceDBError:
    reason = str(error).splitlines()[0]
    missing = re.search(r'Referenced (?:column|table) "(.+?)" not found', reason)
    if missing:
        return _unknown(missing[1], text, columns, table)
    return InvalidOption(f"{table}: the predicate {quote_text(text)} does not fit the rows: {reason}")


def _unknown(column: str, text: str, columns: Mapping[str, str], table: str) -> UnknownColumn:
    return UnknownColumn(
        f"{table}: the predicate {quote_text(text)} names '{column}', and the table has no such column (it has "
        f"{sorted(columns)}). Correct the name."
    )
