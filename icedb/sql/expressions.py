"""Checks of untrusted SQL expressions, and helpers for DuckDB's syntax trees.

Partition expressions and predicates can come from a `_table.json` or a job's configuration. Each must be one DuckDB
expression over a row's own columns, without subqueries, windows, aggregates or volatile functions, so that it always
has the same value for a row. The SQL that runs is written from the checked syntax tree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

from icedb.errors import IceDBError
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_text

__all__ = [
    "Conjunct",
    "Expression",
    "columns_of",
    "is_stable",
    "is_type",
    "items_sql",
    "parse_expression",
    "query_sql",
    "renamed",
    "replaced",
    "sees_more",
    "select_items_sql",
    "syntax_tree",
    "tree_of",
    "walk",
]

# Deeper trees exhaust the stack of code that walks them. DuckDB's own limit is 1,000 expressions.
_LEVELS_MAX = 500
# In these, DuckDB takes any value for a truth value: `d = 1 OR 2` is true for every row.
_LOGIC = frozenset(("CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_NOT"))
_TOO_DEEP: dict[str, Any] = {"error": True, "error_message": "it is nested too deep"}

# fmt: off
_UNSTABLE_KEYWORDS = frozenset((
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "localtime", "localtimestamp", "session_user",
))
# fmt: on
# DuckDB declares these consistent, although they depend on the time or on chance.
_UNSTABLE_THOUGH_CONSISTENT = frozenset(
    ("age", "ago", "array_shuffle", "current_localtime", "current_localtimestamp", "list_shuffle", "vector_type")
)
# Functions that read or change more than their arguments: settings, variables, sequences, the catalog, the connection.
# fmt: off
_BEYOND_ARGUMENTS = frozenset((
    "current_catalog", "current_connection_id", "current_database", "current_query", "current_query_id",
    "current_role", "current_schema", "current_schemas", "current_setting", "current_transaction_id",
    "current_user", "currval", "format_type", "get_block_size", "getenv", "getvariable", "in_search_path",
    "json_execute_serialized_sql", "json_serialize_plan", "nextval", "session_user", "set_config", "setseed",
    "sleep_ms", "stats", "txid_current", "user", "vector_type", "version", "which_secret", "write_log",
))
# fmt: on
_BEYOND_ARGUMENTS_PREFIXES = ("__internal_", "duckdb_", "inet_", "pg_", "pragma_")
_OF_ARGUMENTS = frozenset(("pg_size_pretty", "pg_typeof"))


@dataclass(frozen=True, slots=True)
class Conjunct:
    """A condition, and the columns that it names, case folded. A parameter of a lambda looks like a column."""

    sql: str
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. `sql` lacks the alias and is safe in a SELECT list or WHERE clause on a line of its own."""

    sql: str
    #: The name after AS; empty if there is none.
    alias: str
    #: The column, if the whole expression is just a column; otherwise empty.
    column: str
    #: The operands of the top-level AND; otherwise the expression itself.
    conjuncts: tuple[Conjunct, ...]
    #: The leaves of the tree of AND, OR and NOT.
    conditions: tuple[Conjunct, ...]
    #: The operands of each OR in that tree.
    alternatives: tuple[Conjunct, ...]


def parse_expression(text: str, *, refuse: Callable[[str], IceDBError], stable: bool = True) -> Expression:
    """Parse and check the expression in `text`. Raises the error that `refuse` returns for the reason.

    With `stable`, the expression must always have the same value. Otherwise it may call `now()`.
    """
    if not isinstance(text, str):
        raise refuse("is empty")
    parsed = _parsed(text, stable)
    if isinstance(parsed, str):
        raise refuse(parsed)
    return parsed


@lru_cache(maxsize=1024)  # a commit parses the same ones repeatedly, and each takes DuckDB some milliseconds
def _parsed(text: str, stable: bool) -> Expression | str:
    """Return the expression, or the reason why it is invalid."""
    try:
        return _parse(text, stable)
    except _InvalidExpression as reason:
        return str(reason)


class _InvalidExpression(Exception):
    """The reason why an expression is invalid. The caller turns it into its own error."""


def _parse(text: str, stable: bool) -> Expression:
    if not text.strip():
        raise _InvalidExpression("is empty")
    with scratch_connection() as con:
        tree = tree_of(con, f"SELECT\n{text}\n")
        if tree.get("error"):
            raise _InvalidExpression(f"is not valid SQL ({tree.get('error_message')})")
        if len(tree["statements"]) != 1:
            raise _InvalidExpression("holds more than one statement")
        node = tree["statements"][0]["node"]
        if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or _has_clauses(node):
            raise _InvalidExpression("is more than one expression")
        expression = node["select_list"][0]
        _check(expression, stable)
        parts = expression["children"] if expression.get("type") == "CONJUNCTION_AND" else [expression]
        conditions, alternatives = _conditions(expression)
        pieces = [*parts, *conditions, *alternatives]
        sql, *texts = items_sql(con, [expression, *pieces])
    conjuncts = [Conjunct(text, columns_of(piece)) for text, piece in zip(texts, pieces, strict=True)]
    first, second = len(parts), len(parts) + len(conditions)
    return Expression(
        sql,
        expression.get("alias") or "",
        _column_name(expression),
        tuple(conjuncts[:first]),
        tuple(conjuncts[first:second]),
        tuple(conjuncts[second:]),
    )


def _conditions(expression: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the leaves of the tree of AND, OR and NOT, and the operands of each OR."""
    conditions: list[Mapping[str, Any]] = []
    alternatives: list[Mapping[str, Any]] = []
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        if node.get("type") not in _LOGIC:
            conditions.append(node)
            continue
        waiting.extend(reversed(node["children"]))
        if node["type"] == "CONJUNCTION_OR":
            alternatives.extend(node["children"])
    return conditions, alternatives


def is_type(text: str) -> bool:
    """Return whether `text` is the name of a type and nothing else, so that it is safe inside `CAST(... AS text)`."""
    tree = syntax_tree(f"SELECT\nCAST(NULL AS {text}\n)\n")
    if tree.get("error") or len(tree["statements"]) != 1:
        return False
    node = tree["statements"][0]["node"]
    if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or _has_clauses(node):
        return False
    cast = node["select_list"][0]
    child = cast.get("child") or {}
    return cast.get("class") == "CAST" and not cast.get("alias") and child.get("class") == "CONSTANT"


def _check(expression: Mapping[str, Any], stable: bool) -> None:
    for inner in walk(expression):
        if inner.get("class") in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER", "LAMBDA_REF", "POSITIONAL_REFERENCE"):
            raise _InvalidExpression(f"holds a {inner['class'].lower()}, which has no one value per row")
        called = inner["function_name"] if inner.get("class") == "FUNCTION" else _keyword(inner)
        if stable and (called in _unstable_functions() or sees_more(called)):
            raise _InvalidExpression(f"calls {called}(), which gives different values for one row")
        if sees_more(called):
            raise _InvalidExpression(f"calls {called}(), which sees or does more than its arguments say")
        if called in _table_functions():
            raise _InvalidExpression(f"calls {called}(), which gives a table and not one value per row")


@lru_cache(maxsize=1)
def _table_functions() -> frozenset[str]:
    """Functions that only FROM can call, such as those that read files."""
    with scratch_connection() as con:
        rows = con.execute(
            "SELECT function_name FROM duckdb_functions() GROUP BY function_name "
            "HAVING bool_and(function_type IN ('table', 'table_macro', 'pragma'))"
        )
        # DuckDB allows `unnest` in an expression. Its several values are rejected when the expression is bound.
        return frozenset(str(name).lower() for (name,) in rows.fetchall()) - {"unnest"}


def is_stable(expression: Mapping[str, Any]) -> bool:
    """Return whether an expression, as a syntax tree, always has the same value for a row."""
    try:
        _check(expression, stable=True)
    except _InvalidExpression:
        return False
    return True


def sees_more(function: str) -> bool:
    """Return whether a function, by its name in lower case, reads or changes more than its arguments."""
    beyond = function in _BEYOND_ARGUMENTS or function.startswith(_BEYOND_ARGUMENTS_PREFIXES)
    return beyond and function not in _OF_ARGUMENTS


def select_items_sql(expressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the SQL of expressions from their syntax trees, without aliases."""
    with scratch_connection() as con:
        return items_sql(con, expressions)


def items_sql(con: duckdb.DuckDBPyConnection, expressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Run `select_items_sql` on a given connection. Raises DuckDB's errors for a tree that is no expression."""
    tree = _serialized(con, "SELECT 1")
    texts = []
    for expression in expressions:
        tree["statements"][0]["node"]["select_list"] = [{**expression, "alias": ""}]
        texts.append(_to_sql(con, tree).removeprefix("SELECT "))
    return texts


def query_sql(tree: Mapping[str, Any]) -> str:
    """Write the SQL of a query's syntax tree. Raises DuckDB's errors for a tree that cannot be written as SQL."""
    with scratch_connection() as con:
        return _to_sql(con, tree)


def _to_sql(con: duckdb.DuckDBPyConnection, tree: Mapping[str, Any]) -> str:
    [(sql,)] = con.execute(f"SELECT json_deserialize_sql({quote_text(json.dumps(tree))}::JSON)").fetchall()
    return str(sql)


def syntax_tree(sql: str) -> dict[str, Any]:
    """Parse queries into DuckDB's syntax tree, with the key "statements".

    For invalid SQL, "error" is true and "error_message" has the reason. No name is resolved, and nothing is run.
    """
    with scratch_connection() as con:
        return tree_of(con, sql)


def tree_of(con: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Run `syntax_tree` on a given connection."""
    if "\0" in sql:
        return {"error": True, "error_message": "it holds a zero character"}  # at which DuckDB's parser would stop
    try:
        sql.encode()
        tree = _serialized(con, sql)
    except UnicodeEncodeError:
        return {"error": True, "error_message": "it holds half of a surrogate pair"}
    except RecursionError:
        return _TOO_DEEP
    for node in walk(tree):
        _keep_double(node)
    return _TOO_DEEP if _levels(tree) > _LEVELS_MAX else tree


def _serialized(con: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    [(text,)] = con.execute(f"SELECT json_serialize_sql({quote_text(sql)})").fetchall()
    tree: dict[str, Any] = json.loads(text)
    return tree


def _keep_double(node: dict[str, Any]) -> None:
    """Replace a DOUBLE such as `1e3` by a cast, because DuckDB writes it as `1000.0`, which it parses as a DECIMAL."""
    value = node["value"] if node.get("class") == "CONSTANT" else None
    if value and value["type"]["id"] == "DOUBLE" and not value["is_null"]:
        text = {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": repr(float(value["value"]))}
        constant = {**node, "alias": "", "value": text}
        node.update({"class": "CAST", "type": "OPERATOR_CAST", "child": constant, "try_cast": False})
        node["cast_type"] = node.pop("value")["type"]


def _has_clauses(node: Mapping[str, Any]) -> bool:
    clauses = ("where_clause", "group_expressions", "having", "sample", "qualify", "modifiers")
    return node["from_table"]["type"] != "EMPTY" or any(node.get(c) for c in clauses) or bool(node["cte_map"]["map"])


def walk(tree: object) -> Iterator[dict[str, Any]]:
    """Yield every object of a syntax tree in pre-order."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(node.values()))
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def replaced(tree: Any, replacement: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> Any:
    """Return a copy of a syntax tree with objects replaced. An object stays if its replacement is None.

    The children of a replacement are not visited.
    """
    whole: Any = [tree]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]  # no recursion, whose limit the deepest trees exceed
    while waiting:
        copy, place = waiting.pop()
        node = copy[place]
        if isinstance(node, list):
            copy[place] = [*node]
            waiting.extend((copy[place], n) for n in range(len(node)))
        elif isinstance(node, dict) and (new := replacement(node)) is not None:
            copy[place] = new
        elif isinstance(node, dict):
            copy[place] = {**node}
            waiting.extend((copy[place], key) for key in node)
    return whole[0]


def renamed(tree: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return a copy of a syntax tree with unqualified columns. `names` maps folded names to new ones."""

    def column(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if node.get("class") != "COLUMN_REF":
            return None
        name = str(node["column_names"][-1])
        return {**node, "column_names": [(names or {}).get(name.casefold(), name)]}

    copy: Mapping[str, Any] = replaced(tree, column)
    return copy


def _levels(tree: object) -> int:
    """Return the depth of a tree."""
    levels, row = 0, [tree]
    while row := [n for node in row for n in _children(node)]:
        levels += 1
    return levels


def _children(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else ()


def columns_of(expression: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns that a syntax tree names, case folded. A parameter of a lambda looks like a column."""
    names = [inner["column_names"] for inner in walk(expression) if inner.get("class") == "COLUMN_REF"]
    return frozenset(str(n[1] if len(n) > 1 and n[0].casefold() == "t" else n[0]).casefold() for n in names)


def _column_name(expression: Mapping[str, Any]) -> str:
    return str(expression["column_names"][-1]) if expression.get("class") == "COLUMN_REF" else ""


@lru_cache(maxsize=1)
def _unstable_functions() -> frozenset[str]:
    with scratch_connection() as con:
        rows = con.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'")
        return frozenset(str(name) for (name,) in rows.fetchall()) | _UNSTABLE_KEYWORDS | _UNSTABLE_THOUGH_CONSISTENT


def _keyword(expression: Mapping[str, Any]) -> str:
    """Return the function that a bare word calls, or an empty text. The parser takes `current_date` for a column."""
    names: list[str] = expression["column_names"] if expression.get("class") == "COLUMN_REF" else []
    name = str(names[0]).casefold() if len(names) == 1 else ""
    return name if name in _UNSTABLE_KEYWORDS else ""
