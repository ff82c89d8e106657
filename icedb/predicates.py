"""Predicates over a table's rows: which rows a deletion means, or a query with `where`.

A predicate is one checked DuckDB expression over the columns of `t`, data and partition columns, whose value is a
truth value. What is FALSE or NULL for a row leaves the row alone. An AND of several conditions is kept in pieces,
for those that speak of partition columns only decide without opening a part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb

from icedb.engine import RESERVED, quote_text
from icedb.errors import IceDBError, InvalidOption, UnknownColumn
from icedb.expressions import items_sql, parse_expression, replaced, tree_of, walk
from icedb.sandboxes import question
from icedb.schema import describe, typed_nothing

__all__ = ["Predicate", "check_predicate"]

_VALUE = f"{RESERVED}value"
# What a predicate may ask for the time.
_TIMES = frozenset((
    "ago", "current_date", "current_localtime", "current_localtimestamp", "current_time", "current_timestamp",
    "get_current_time", "get_current_timestamp", "localtime", "localtimestamp", "now", "today",
    "transaction_timestamp",
))  # fmt: skip
_ASKS_TIME = re.compile(rf"\b({'|'.join(sorted(_TIMES))})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked predicate. `sql` is safe in a WHERE clause over `t` on a line of its own."""

    sql: str
    #: Those of its conditions that need only the partition columns.
    of_partitions: tuple[str, ...]
    #: Whether that is all of them.
    is_of_partitions: bool
    #: The syntax tree of `sql`, which nobody changes.
    tree: Mapping[str, Any] = field(repr=False, compare=False)


def check_predicate(
    text: str,
    schema: Mapping[str, str],
    partition_schema: Mapping[str, str],
    *,
    table: str,
    at_once: bool = False,
) -> Predicate:
    """The predicate in `text`, over rows with these columns. Raises InvalidOption, UnknownColumn.

    With `at_once` it may ask for the time, which is asked for now, once: the predicate holds the answer.
    """

    def refuse(why: str) -> InvalidOption:
        return InvalidOption(
            f"{table}: the predicate {quote_text(str(text))} {why}. Write one DuckDB condition over the columns of t, "
            "such as \"user_id = 7 AND d < '2026-01-01'\"."
        )

    columns = {**schema, **partition_schema}
    if at_once and isinstance(text, str) and _ASKS_TIME.search(text):
        given = parse_expression(text, refuse=refuse, stable=False)
        parsed = parse_expression(_answered(given.sql, columns), refuse=refuse)
    else:
        parsed = parse_expression(text, refuse=refuse)
    if parsed.alias:
        raise refuse(f"has a name ('{parsed.alias}')")
    named = frozenset[str]().union(*(c.columns for c in parsed.conjuncts))
    if "user" in named - {c.casefold() for c in columns}:
        raise _unknown("user", text, columns, table)  # DuckDB would take it for its function of that name
    in_paths = {c.casefold() for c in partition_schema}
    with question() as con:  # one, for it takes longer than what it is asked
        try:
            type_ = _bind(con, parsed.sql, columns)
        except duckdb.Error as error:
            raise _unfit(error, text, columns, table) from None
        if type_ != "BOOLEAN":
            raise refuse(f"is {type_}, and neither true nor false")
        # By name, for DuckDB finds a meaning for some columns that are not there.
        needs_no_part = tuple(
            c.sql
            for c in parsed.conjuncts
            if c.columns and c.columns <= in_paths and _binds(con, c.sql, partition_schema)
        )
        tree = _tree(con, parsed.sql)
    return Predicate(parsed.sql, needs_no_part, len(needs_no_part) == len(parsed.conjuncts), tree)


def _tree(con: duckdb.DuckDBPyConnection, sql: str) -> Mapping[str, Any]:
    """The syntax tree of SQL that was checked: which parts are read is decided by what is asked of their rows."""
    tree: Mapping[str, Any] = tree_of(con, f"SELECT\n{sql}\n")["statements"][0]["node"]["select_list"][0]
    return tree


def _answered(sql: str, columns: Mapping[str, str]) -> str:
    """The expression with the time of now in the place of what asks for it."""
    names = {c.casefold() for c in columns}
    with question() as con:

        def answer(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
            if not _asks_time(node, names):
                return None
            [asked] = items_sql(con, [node])
            [(text, type_)] = con.execute(f"SELECT CAST(({asked}) AS VARCHAR), typeof({asked})").fetchall()
            return _tree(con, f"CAST({quote_text(text)} AS {type_})")

        con.execute("BEGIN")  # the time of one transaction is one time
        [answered] = items_sql(con, [replaced(_tree(con, sql), answer)])
    return answered


def _asks_time(node: Mapping[str, Any], columns: Collection[str]) -> bool:
    if node.get("class") == "COLUMN_REF":  # to the parser, `current_date` is a column's name
        name = str(node["column_names"][0]).casefold()
        return len(node["column_names"]) == 1 and name in _TIMES and name not in columns
    if node.get("class") != "FUNCTION" or node["function_name"] not in _TIMES:
        return False
    return not any(inner.get("class") == "COLUMN_REF" for inner in walk(node["children"]))


def _bind(con: duckdb.DuckDBPyConnection, sql: str, columns: Mapping[str, str]) -> str:
    """The type of an expression over rows with these columns; as a condition, so that it has one value per row."""
    source = f"({typed_nothing(columns)}) AS t"
    con.execute(f"SELECT 1 FROM {source} WHERE (\n{sql}\n)")
    return describe(con, f"SELECT (\n{sql}\n) AS {_VALUE} FROM {source}")[_VALUE]


def _binds(con: duckdb.DuckDBPyConnection, sql: str, columns: Mapping[str, str]) -> bool:
    try:
        return _bind(con, sql, columns) == "BOOLEAN"
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
