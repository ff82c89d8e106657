"""Partition expressions: DuckDB SQL with a name, evaluated by one engine wherever rows are written.

    ["strftime(make_timestamp(ts * 1000), '%Y-%m-%d') AS d", "user_id AS u", "country"]

An expression may come from a `_table.json` that somebody else wrote, so it is parsed, not pasted: exactly one
named expression over the row's own columns, without subqueries, windows, aggregates or volatile functions (a
row must belong to the same partition whenever it is asked).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

from icedb.engine import connect_sandbox, quote_name, quote_text
from icedb.errors import InvalidPartitionExpression
from icedb.format.names import decode_partition
from icedb.schema import describe, typed_nothing

__all__ = ["PartitionExpression", "matching", "parse_partition_by", "partition_types"]

_PROBE = "__icedb_partition_value"
_PATH = "__icedb_path"

_UNSTABLE_KEYWORDS = frozenset(
    ("current_date", "current_time", "current_timestamp", "current_user", "localtime", "localtimestamp", "session_user")
)
# DuckDB calls these consistent, and what they give depends on the time, on chance or on the connection.
_UNSTABLE_BESIDES = frozenset(("age", "array_shuffle", "list_shuffle", "current_setting", "getvariable", "user"))


@dataclass(frozen=True, slots=True)
class PartitionExpression:
    """`sql` is the expression without its name, checked; safe to put into a SELECT list on a line of its own."""

    name: str
    sql: str


def parse_partition_by(partition_by: Sequence[str], *, table: str) -> tuple[PartitionExpression, ...]:
    """The expressions of a spec. Raises InvalidPartitionExpression, naming the expression and the remedy."""
    if isinstance(partition_by, str):
        raise InvalidPartitionExpression(f"{table}: partition_by is a list of expressions, not one text.")
    parsed = tuple(_parse(text, table) for text in partition_by)
    names = [p.name.casefold() for p in parsed]
    if len(set(names)) < len(names):
        raise InvalidPartitionExpression(f"{table}: two partition expressions have one name: {list(partition_by)}.")
    return parsed


def _parse(text: str, table: str) -> PartitionExpression:
    def refuse(why: str) -> InvalidPartitionExpression:
        return InvalidPartitionExpression(
            f"{table}: the partition expression '{text}' {why}. Write one DuckDB expression over the row's columns "
            "with a name, such as \"strftime(ts, '%Y-%m-%d') AS d\"."
        )

    if not isinstance(text, str) or not text.strip():
        raise refuse("is empty")
    tree = _syntax_tree(f"SELECT\n{text}\n")
    if tree.get("error"):
        raise refuse(f"is not valid SQL ({tree.get('error_message')})")
    if len(tree["statements"]) != 1:
        raise refuse("holds more than one statement")
    node = tree["statements"][0]["node"]
    if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or _has_clauses(node):
        raise refuse("is more than one expression")
    expression = node["select_list"][0]
    for inner in _walk(expression):
        if inner.get("class") in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER", "LAMBDA_REF"):
            raise refuse(f"holds a {inner['class'].lower()}, which has no one value per row")
        called = inner.get("function_name") if inner.get("class") == "FUNCTION" else _keyword(inner)
        if called in _unstable_functions():
            raise refuse(f"calls {called}(), which gives different values for one row")
    name = expression.get("alias") or _column_name(expression)
    if not name:
        raise refuse("has no name; add 'AS name'")
    return PartitionExpression(name, _without_alias(text, expression, name))


def _without_alias(text: str, expression: Mapping[str, Any], name: str) -> str:
    """The expression's SQL again, from its tree: what was checked is what will run."""
    bare = {**expression, "alias": ""}
    tree = _syntax_tree("SELECT 1")
    tree["statements"][0]["node"]["select_list"] = [bare]
    with connect_sandbox() as con:
        row = con.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchone()
    if row is None:
        raise InvalidPartitionExpression(f"the partition expression '{text}' ({name}) cannot be read back.")
    return str(row[0]).removeprefix("SELECT ")


def _syntax_tree(sql: str) -> dict[str, Any]:
    with connect_sandbox() as con:
        row = con.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    return tree


def _has_clauses(node: Mapping[str, Any]) -> bool:
    clauses = ("where_clause", "group_expressions", "having", "sample", "qualify", "modifiers")
    return node["from_table"]["type"] != "EMPTY" or any(node.get(c) for c in clauses) or bool(node["cte_map"]["map"])


def _walk(tree: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _walk(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _walk(value)


def _column_name(expression: Mapping[str, Any]) -> str:
    return str(expression["column_names"][-1]) if expression.get("class") == "COLUMN_REF" else ""


@lru_cache(maxsize=1)
def _unstable_functions() -> frozenset[str]:
    with connect_sandbox() as con:
        rows = con.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'")
        return frozenset(str(name) for (name,) in rows.fetchall()) | _UNSTABLE_KEYWORDS | _UNSTABLE_BESIDES


def _keyword(expression: Mapping[str, Any]) -> str | None:
    """What a bare word calls: to the parser, `current_date` is a column's name."""
    names: list[str] = expression["column_names"] if expression.get("class") == "COLUMN_REF" else []
    name = str(names[0]).casefold() if len(names) == 1 else ""
    return name if name in _UNSTABLE_KEYWORDS else None


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
    with connect_sandbox() as con:
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
        try:
            # Beside the row's columns, so that an aggregate is refused as it would be when rows are written.
            query = f"SELECT *, {expression.sql} AS {_PROBE} FROM ({source})"
            described = describe(con, query)
            one_value = con.execute(f"SELECT count(*) FROM ({query})").fetchone() == (1,)
        except duckdb.Error as error:
            raise InvalidPartitionExpression(
                f"{table}: the partition expression '{expression.sql} AS {expression.name}' does not fit the rows: "
                f"{str(error).splitlines()[0]} (columns: {sorted(columns)})."
            ) from None
        if not one_value:
            raise InvalidPartitionExpression(
                f"{table}: the partition expression '{expression.sql} AS {expression.name}' gives several values, or "
                "none, for one row. Use a function that gives exactly one."
            )
        types[expression.name] = described[_PROBE]
    return types


def matching(partitions: Sequence[str], where: str, types: Mapping[str, str], *, table: str) -> list[str]:
    """Those partitions (as paths) for which the SQL predicate `where` over their columns is true."""
    typed = ", ".join(f"CAST(v.{quote_name(n)} AS {t}) AS {quote_name(n)}" for n, t in types.items())
    texts = "".join(f", {quote_name(n)} VARCHAR" for n in types)
    with connect_sandbox() as con:
        con.execute(f"CREATE TABLE v ({_PATH} VARCHAR{texts})")
        rows = [[p, *(decode_partition(p).get(n) for n in types)] for p in partitions]
        if rows:
            con.executemany(f"INSERT INTO v VALUES ({', '.join('?' * (len(types) + 1))})", rows)
        try:
            found = con.execute(
                f"SELECT {_PATH} FROM (SELECT {_PATH}{', ' if typed else ''}{typed} FROM v) WHERE (\n{where}\n)"
            )
            return sorted(str(path) for (path,) in found.fetchall())
        except duckdb.Error as error:
            raise InvalidPartitionExpression(
                f"{table}: the predicate {quote_text(where)} does not fit the partition columns "
                f"({', '.join(f'{n} {t}' for n, t in types.items()) or 'there are none'}): {str(error).splitlines()[0]}"
            ) from None
