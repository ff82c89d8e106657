"""Predicates over a table's rows, for deletions and for queries with `where`.

A predicate is one checked DuckDB expression of type BOOLEAN over the columns of `t`, data and partition columns. It
selects a row if it is true, and not if it is FALSE or NULL. The operands of an AND are kept separately, because those
over partition columns alone are decided without opening a part. A predicate that chooses partitions uses partition
columns only.

DuckDB takes any number for a truth value: `WHERE 2026-11-21` is true for every row. So a predicate, and each operand of
its ANDs, ORs and NOTs, must have the type BOOLEAN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from icedb.errors import IceDBError, InvalidOption, InvalidPartitionExpression, UnknownColumn
from icedb.format.keys import decode_partition
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import RESERVED, quote_name, quote_text, quote_texts
from icedb.sql.expressions import Expression, items_sql, parse_expression, replaced, tree_of, walk
from icedb.sql.types import describe, typed_nothing

__all__ = [
    "Predicate",
    "check_partition_predicate",
    "check_predicate",
    "matching",
    "matching_each",
    "names_function",
    "parse_value",
]

_VALUE = f"{RESERVED}value"
_PATH = f"{RESERVED}path"
# The literals, as DuckDB writes them.
_TRUE, _FALSE = "CAST('t' AS BOOLEAN)", "CAST('f' AS BOOLEAN)"
# The functions that return the current time.
_TIMES = frozenset((
    "ago", "current_date", "current_localtime", "current_localtimestamp", "current_time", "current_timestamp",
    "get_current_time", "get_current_timestamp", "localtime", "localtimestamp", "now", "today",
    "transaction_timestamp",
))  # fmt: skip
_CALLS_CLOCK = re.compile(rf"\b({'|'.join(sorted(_TIMES))})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked predicate. `sql` is safe in a WHERE clause over `t` on a line of its own."""

    sql: str
    #: The conditions that use only partition columns.
    of_partitions: tuple[str, ...]
    #: Whether all conditions use only partition columns.
    is_of_partitions: bool
    #: The syntax tree of `sql`. It must not be modified.
    tree: Mapping[str, Any] = field(repr=False, compare=False)


def check_predicate(
    text: str,
    schema: Mapping[str, str],
    partition_schema: Mapping[str, str],
    *,
    table: str,
    at_once: bool = False,
    what: str = "the predicate",
    rows: str = "the table",
) -> Predicate:
    """Check the predicate in `text` over rows with these columns. Raises InvalidOption, UnknownColumn.

    With `at_once` it may call `now()`, which is evaluated once, here: the result replaces the call. `what` and `rows`
    name the predicate and the rows in messages.
    """

    def refuse(why: str) -> InvalidOption:
        return InvalidOption(
            f"{table}: {what} {quote_text(str(text))} {why}. Write one DuckDB condition over the columns of t, "
            "such as \"user_id = 7 AND d < '2026-01-01'\"."
        )

    columns = {**schema, **partition_schema}
    parsed = parse_value(text, columns, refuse=refuse, at_once=at_once)
    if names_function(parsed, columns, "user"):
        raise _unknown("user", text, columns, table, what=what, rows=rows)
    in_paths = {c.casefold() for c in partition_schema}
    with scratch_connection() as con:  # only one, because it takes longer than the queries
        try:
            _bind(con, parsed.sql, columns)
        except duckdb.Error as error:
            raise _unfit(error, text, columns, table, what=what, rows=rows) from None
        _check_boolean(con, parsed, columns, refuse=refuse)
        # Also checked by name, because DuckDB resolves some names that are not columns.
        needs_no_part = tuple(
            c.sql
            for c in parsed.conjuncts
            if c.columns and c.columns <= in_paths and _binds(con, c.sql, partition_schema)
        )
        tree = _tree(con, parsed.sql)
    return Predicate(parsed.sql, needs_no_part, len(needs_no_part) == len(parsed.conjuncts), tree)


def parse_value(
    text: str, columns: Collection[str], *, refuse: Callable[[str], IceDBError], at_once: bool = False
) -> Expression:
    """Parse an expression without a name. With `at_once` it may call `now()`, which is evaluated here.

    Raises the error that `refuse` returns for the reason.
    """
    if at_once and isinstance(text, str) and _CALLS_CLOCK.search(text):
        volatile = parse_expression(text, refuse=refuse, stable=False)
        parsed = parse_expression(_with_current_time(volatile.sql, columns), refuse=refuse)
    else:
        parsed = parse_expression(text, refuse=refuse)
    if parsed.alias:
        raise refuse(f"has a name ('{parsed.alias}')")
    return parsed


def names_function(parsed: Expression, columns: Iterable[str], name: str) -> bool:
    """Return whether an expression names no column, but what DuckDB takes for something else: `user` is a function."""
    named = frozenset[str]().union(*(c.columns for c in parsed.conjuncts))
    return name in named - {c.casefold() for c in columns}


def _tree(con: duckdb.DuckDBPyConnection, sql: str) -> Mapping[str, Any]:
    """Return the syntax tree of checked SQL. Pruning of parts uses the same SQL as the filter of rows."""
    tree: Mapping[str, Any] = tree_of(con, f"SELECT\n{sql}\n")["statements"][0]["node"]["select_list"][0]
    return tree


def _with_current_time(sql: str, columns: Collection[str]) -> str:
    """Replace the functions that return the current time by its value."""
    names = {c.casefold() for c in columns}
    with scratch_connection() as con:

        def value_of(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
            if not _calls_clock(node, names):
                return None
            [call] = items_sql(con, [node])
            [(text, type_)] = con.execute(f"SELECT CAST(({call}) AS VARCHAR), typeof({call})").fetchall()
            return _tree(con, f"CAST({quote_text(text)} AS {type_})")

        con.execute("BEGIN")  # all calls in one transaction return the same time
        [evaluated] = items_sql(con, [replaced(_tree(con, sql), value_of)])
    return evaluated


def _calls_clock(node: Mapping[str, Any], columns: Collection[str]) -> bool:
    if node.get("class") == "COLUMN_REF":  # the parser takes `current_date` for a column
        name = str(node["column_names"][0]).casefold()
        return len(node["column_names"]) == 1 and name in _TIMES and name not in columns
    if node.get("class") != "FUNCTION" or node["function_name"] not in _TIMES:
        return False
    return not any(inner.get("class") == "COLUMN_REF" for inner in walk(node["children"]))


def _bind(con: duckdb.DuckDBPyConnection, sql: str, columns: Mapping[str, str]) -> str:
    """Return the type of an expression over rows with these columns. A WHERE rejects aggregates."""
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


def _unfit(
    error: duckdb.Error, text: str, columns: Mapping[str, str], table: str, *, what: str, rows: str
) -> IceDBError:
    reason = str(error).splitlines()[0]
    missing = re.search(r'Referenced (?:column|table) "(.+?)" not found', reason)
    if missing:
        return _unknown(missing[1], text, columns, table, what=what, rows=rows)
    return InvalidOption(f"{table}: {what} {quote_text(text)} does not fit the rows: {reason}")


def _unknown(column: str, text: str, columns: Mapping[str, str], table: str, *, what: str, rows: str) -> UnknownColumn:
    return UnknownColumn(
        f"{table}: {what} {quote_text(text)} names '{column}', and {rows} has no such column (it has "
        f"{sorted(columns)}). Correct the name."
    )


def check_partition_predicate(text: str, types: Mapping[str, str], *, table: str) -> str:
    """Check a predicate that chooses partitions, over partition columns of these types, and return its SQL.

    It must name a partition column, also in each operand of an OR, or be `true` or `false`. It may call `now()`.
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
            raise refuse(f"cannot be evaluated ({str(error).splitlines()[0]})") from None
    if parsed.sql in (_TRUE, _FALSE):
        return parsed.sql
    in_paths = {name.casefold() for name in types}
    if not any(c.columns & in_paths for c in parsed.conjuncts):
        raise refuse("names no partition column (write true to choose all partitions)")
    for one in parsed.alternatives:
        if not one.columns & in_paths and one.sql != _FALSE:
            raise refuse(f"holds {quote_text(one.sql)} as an operand of OR, which names no partition column")
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
    """Return the partitions (as paths) for which the SQL predicate `where` over their columns is true.

    Raises InvalidPartitionExpression, see `check_partition_predicate`.
    """
    condition = check_partition_predicate(where, types, table=table)
    with scratch_connection() as con:
        rows_of_t = _rows_of_paths(partitions, types)
        try:
            matches = con.execute(f"SELECT {_PATH} FROM ({rows_of_t}) AS t WHERE (\n{condition}\n)")
            return sorted(str(path) for (path,) in matches.fetchall())
        except duckdb.Error as error:
            why = f"cannot be evaluated ({str(error).splitlines()[0]})"
            raise _partition_refusal(where, types, table=table)(why) from None


def matching_each(partitions: Sequence[str], conditions: Sequence[str], types: Mapping[str, str]) -> list[list[str]]:
    """Return the partitions for which each of the conditions is true, as `matching` does, in one query.

    The disjunction of the conditions must have been checked. Raises DuckDB's errors.
    """
    if not conditions:
        return []
    are_true = ", ".join(f"(\n{condition}\n)" for condition in conditions)
    with scratch_connection() as con:
        rows_of_t = _rows_of_paths(partitions, types)
        rows = con.execute(f"SELECT {_PATH}, [{are_true}] FROM ({rows_of_t}) AS t ORDER BY {_PATH}").fetchall()
    return [[str(path) for path, is_true in rows if is_true[n]] for n in range(len(conditions))]


def _rows_of_paths(partitions: Sequence[str], types: Mapping[str, str]) -> str:
    """Return the query of paths and their values with these types."""
    typed = ", ".join(f"CAST(v.{quote_name(n)} AS {t}) AS {quote_name(n)}" for n, t in types.items())
    values = [decode_partition(path) for path in partitions]
    texts = {_PATH: partitions, **{n: [v.get(n) for v in values] for n in types}}
    columns = ", ".join(f"unnest({quote_texts(of_column)}) AS {quote_name(n)}" for n, of_column in texts.items())
    return f"SELECT {_PATH}{', ' if typed else ''}{typed} FROM (SELECT {columns}) AS v"
