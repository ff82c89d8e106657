"""One SQL expression that somebody else wrote: parsed and checked, not pasted.

Partition expressions and predicates may come from a `_table.json` or a job's configuration. What passes is one DuckDB
expression over a row's own columns, without subqueries, windows, aggregates or volatile functions: it has one
value for a row, whenever it is asked. The SQL that runs is made from the syntax tree that was checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from icedb.engine import connect_sandbox
from icedb.errors import IceDBError, InvalidOption

__all__ = ["Conjunct", "Expression", "check_select", "is_type", "parse_expression"]

_UNSTABLE_KEYWORDS = frozenset(
    ("current_date", "current_time", "current_timestamp", "current_user", "localtime", "localtimestamp", "session_user")
)
# DuckDB calls these consistent, and what they give depends on the time, on chance or on the connection.
_UNSTABLE_BESIDES = frozenset(("age", "array_shuffle", "list_shuffle", "current_setting", "getvariable", "user"))


@dataclass(frozen=True, slots=True)
class Conjunct:
    """One condition, and the columns that it names, case folded. A parameter of a lambda looks like a column."""

    sql: str
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Expression:
    """`sql` is the expression without its alias, safe in a SELECT list or WHERE clause on a line of its own."""

    sql: str
    #: The name after AS; empty when there is none.
    alias: str
    #: The column that the whole expression is; empty when it is more than one.
    column: str
    #: What the expression is the AND of; itself when it is no AND.
    conjuncts: tuple[Conjunct, ...]


def parse_expression(text: str, *, refuse: Callable[[str], IceDBError]) -> Expression:
    """The expression in `text`. What is wrong with it is put to `refuse`, whose error is raised."""
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
    _check(expression, refuse)
    parts = expression["children"] if expression.get("type") == "CONJUNCTION_AND" else [expression]
    sql, *conjuncts = _to_sql([{**expression, "alias": ""}, *parts])
    pieces = tuple(Conjunct(text, _columns(part)) for text, part in zip(conjuncts, parts, strict=True))
    return Expression(sql, expression.get("alias") or "", _column_name(expression), pieces)


def check_select(query: str, *, table: str) -> str:
    """The query, fit to stand in parentheses on lines of its own. Raises InvalidOption unless it is one SELECT."""
    tree = _syntax_tree(query) if isinstance(query, str) else {"error": True}
    if tree.get("error") or len(tree["statements"]) != 1:
        reason = f" ({tree['error_message']})" if tree.get("error_message") else ""
        raise InvalidOption(f"{table}: {str(query).strip()[:200]!r} is not one SELECT over t{reason}.")
    return query.strip().rstrip(";")


def is_type(text: str) -> bool:
    """Whether `text` is the name of a type and nothing else: safe inside `CAST(... AS text)`."""
    tree = _syntax_tree(f"SELECT\nCAST(NULL AS {text}\n)\n")
    if tree.get("error") or len(tree["statements"]) != 1:
        return False
    node = tree["statements"][0]["node"]
    if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or _has_clauses(node):
        return False
    cast = node["select_list"][0]
    child = cast.get("child") or {}
    return cast.get("class") == "CAST" and not cast.get("alias") and child.get("class") == "CONSTANT"


def _check(expression: Mapping[str, Any], refuse: Callable[[str], IceDBError]) -> None:
    for inner in _walk(expression):
        if inner.get("class") in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER", "LAMBDA_REF"):
            raise refuse(f"holds a {inner['class'].lower()}, which has no one value per row")
        called = inner.get("function_name") if inner.get("class") == "FUNCTION" else _keyword(inner)
        if called in _unstable_functions():
            raise refuse(f"calls {called}(), which gives different values for one row")


def _to_sql(expressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The SQL of expressions again, from their trees: what was checked is what will run."""
    tree = _syntax_tree("SELECT 1")
    texts = []
    with connect_sandbox() as con:
        for expression in expressions:
            tree["statements"][0]["node"]["select_list"] = [{**expression, "alias": ""}]
            [(sql,)] = con.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()
            texts.append(str(sql).removeprefix("SELECT "))
    return texts


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


def _columns(expression: Mapping[str, Any]) -> frozenset[str]:
    names = [inner["column_names"] for inner in _walk(expression) if inner.get("class") == "COLUMN_REF"]
    return frozenset(str(n[1] if len(n) > 1 and n[0].casefold() == "t" else n[0]).casefold() for n in names)


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
