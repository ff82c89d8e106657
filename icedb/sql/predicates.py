"""Predicates over a table's rows: which rows a deletion means, or a query with `where`.

A predicate is one checked DuckDB expression over the columns of `t`, data and partition columns, whose value is a
truth value. What is FALSE or NULL for a row leaves the row alone. An AND of several conditions is kept in pieces,
for those that speak of partition columns only decide without opening a part. A predicate that chooses partitions is
one over their columns alone.

DuckDB takes any number for a truth value: `WHERE 2026-11-21` is true for every row. So a predicate, and each operand of
its ANDs, ORs and NOTs, must have the type BOOLEAN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvalidOption, InvalidPartitionExpression, UnknownColumn
from icedb.format.keys import decode_partition
from icedb.sql.connections import RESERVED, quote_name, quote_text
from icedb.sql.expressions import Expression, items_sql, parse_expression, replaced, tree_of, walk
from icedb.sql.sandbox_pool import scratch_connection
from icedb.sql.types import describe, typed_nothing

__all__ = ["Predicate", "check_partition_predicate", "check_predicate", "matching"]

_VALUE = f"{RESERVED}value"
_PATH = f"{RESERVED}path"
# The literals, as DuckDB writes them.
_TRUE, _FALSE = "CAST('t' AS BOOLEAN)", "CAST('f' AS BOOLEAN)"
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
    with scratch_connection() as con:  # one, for it takes longer than what it is asked
        try:
            _bind(con, parsed.sql, columns)
        except duckdb.Error as error:
            raise _unfit(error, text, columns, table) from None
        _check_boolean(con, parsed, columns, refuse=refuse)
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
    with scratch_connection() as con:

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
    con.execute(f"SELECT 1 FROM ({typed_nothing(columns)}) AS t WHERE (\n{sql}\n)")
    return _types(con, [sql], columns)[0]


def _types(con: duckdb.DuckDBPyConnection, expressions: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    named = ", ".join(f"(\n{sql}\n) AS {_VALUE}_{n}" for n, sql in enumerate(expressions))
    return list(describe(con, f"SELECT {named} FROM ({typed_nothing(columns)}) AS t").values())


def _check_boolean(
    con: duckdb.DuckDBPyConnection,
    parsed: Expression,
    columns: Mapping[str, str],
    *,
    refuse: Callable[[str], IceDBError],
) -> None:
    """Raise an error unless the expression, and each operand of its ANDs, ORs and NOTs, is BOOLEAN."""
    conditions = [c.sql for c in parsed.conditions]
    for sql, type_ in zip(conditions, _types(con, conditions, columns), strict=True):
        if type_ != "BOOLEAN" or sql == "NULL":
            actual = f"is {'NULL' if sql == 'NULL' else type_}, and neither true nor false"
            raise refuse(actual if len(conditions) == 1 else f"holds {quote_text(sql)}, which {actual}")


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


def check_partition_predicate(text: str, types: Mapping[str, str], *, table: str) -> str:
    """The SQL of a predicate that chooses partitions, over partition columns of these types.

    It names a partition column, also in each operand of an OR, or it is `true` or `false`. It may call `now()`.
    Raises InvalidPartitionExpression.
    """
    refuse = _partition_refusal(text, types, table=table)
    parsed = parse_expression(text, refuse=refuse, stable=False)
    if parsed.alias:
        raise refuse(f"has a name ('{parsed.alias}')")
    with scratch_connection() as con:
        try:
            _bind(con, parsed.sql, types)
            _check_boolean(con, parsed, types, refuse=refuse)
        except duckdb.Error as error:
            raise refuse(f"has no answer ({str(error).splitlines()[0]})") from None
    if parsed.sql in (_TRUE, _FALSE):
        return parsed.sql
    in_paths = {name.casefold() for name in types}
    if not any(c.columns & in_paths for c in parsed.conjuncts):
        raise refuse("names no partition column (write true to choose all partitions)")
    for one in parsed.alternatives:
        if not one.columns & in_paths and one.sql != _FALSE:
            raise refuse(f"holds {quote_text(one.sql)} beside an OR, which names no partition column")
    return parsed.sql


def _partition_refusal(
    text: object, types: Mapping[str, str], *, table: str
) -> Callable[[str], InvalidPartitionExpression]:
    columns = ", ".join(f"{n} {t}" for n, t in types.items()) or "there are none"

    def refuse(why: str) -> InvalidPartitionExpression:
        return InvalidPartitionExpression(
            f"{table}: the predicate {quote_text(str(text))} does not fit the partition columns ({columns}): it {why}. "
            "Write one DuckDB condition over the partition columns, such as \"d = '2026-11-21'\"."
        )

    return refuse


def matching(partitions: Sequence[str], where: str, types: Mapping[str, str], *, table: str) -> list[str]:
    """Those partitions (as paths) for which the SQL predicate `where` over their columns is true.

    Raises InvalidPartitionExpression, see `check_partition_predicate`.
    """
    condition = check_partition_predicate(where, types, table=table)
    typed = ", ".join(f"CAST(v.{quote_name(n)} AS {t}) AS {quote_name(n)}" for n, t in types.items())
    values = [decode_partition(path) for path in partitions]
    texts = {n: pa.array([v.get(n) for v in values], pa.string()) for n in types}
    with scratch_connection() as con:
        con.register("v", pa.table({_PATH: pa.array(partitions, pa.string()), **texts}))
        try:
            rows_of_t = f"SELECT {_PATH}{', ' if typed else ''}{typed} FROM v"
            found = con.execute(f"SELECT {_PATH} FROM ({rows_of_t}) AS t WHERE (\n{condition}\n)")
            return sorted(str(path) for (path,) in found.fetchall())
        except duckdb.Error as error:
            why = f"has no answer ({str(error).splitlines()[0]})"
            raise _partition_refusal(where, types, table=table)(why) from None
