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

import duckdb

from icedb.errors import IceDBError
from icedb.sql.sandbox_pool import scratch_connection

__all__ = [
    "Conjunct",
    "Expression",
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

# Deeper trees exhaust the stack of whatever walks them; DuckDB's own limit is 1,000 expressions.
_LEVELS_MAX = 500
# What DuckDB takes anything for a truth value in: `d = 1 OR 2` is true for every row.
_LOGIC = frozenset(("CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_NOT"))
_TOO_DEEP: dict[str, Any] = {"error": True, "error_message": "it is nested too deep"}

# fmt: off
_UNSTABLE_KEYWORDS = frozenset((
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "localtime", "localtimestamp", "session_user",
))
# fmt: on
# DuckDB calls these consistent, and what they give depends on the time or on chance.
_UNSTABLE_BESIDES = frozenset(
    ("age", "ago", "array_shuffle", "current_localtime", "current_localtimestamp", "list_shuffle", "vector_type")
)
# Functions that see or change more than their arguments: settings, variables, sequences, the catalog, the connection.
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
    #: The operands of AND, OR and NOT that are none of these themselves; the expression when it is none of these.
    conditions: tuple[Conjunct, ...]
    #: The operands of each OR among them.
    alternatives: tuple[Conjunct, ...]


def parse_expression(text: str, *, refuse: Callable[[str], IceDBError], stable: bool = True) -> Expression:
    """The expression in `text`. What is wrong with it is put to `refuse`, whose error is raised.

    With `stable`, it must have the same value whenever it is asked; else it may call `now()`.
    """
    if not isinstance(text, str):
        raise refuse("is empty")
    parsed = _parsed(text, stable)
    if isinstance(parsed, str):
        raise refuse(parsed)
    return parsed


@lru_cache(maxsize=1024)  # a commit asks for the same ones again and again, and each takes DuckDB some milliseconds
def _parsed(text: str, stable: bool) -> Expression | str:
    """The expression, or what is wrong with it."""
    try:
        return _parse(text, stable)
    except _InvalidExpression as refused:
        return str(refused)


class _InvalidExpression(Exception):
    """What is wrong with an expression, before whoever asked makes an error of it."""


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
    conjuncts = [Conjunct(text, _columns(piece)) for text, piece in zip(texts, pieces, strict=True)]
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
    """The operands of AND, OR and NOT that are none of these themselves, and the operands of each OR."""
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
    """Whether `text` is the name of a type and nothing else: safe inside `CAST(... AS text)`."""
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
        # An expression may hold an unnest to DuckDB; that it has several values is said where that is found.
        return frozenset(str(name).lower() for (name,) in rows.fetchall()) - {"unnest"}


def is_stable(expression: Mapping[str, Any]) -> bool:
    """Whether an expression, by its syntax tree, has the same value for a row whenever and wherever it is asked."""
    try:
        _check(expression, stable=True)
    except _InvalidExpression:
        return False
    return True


def sees_more(function: str) -> bool:
    """Whether a function, by its name in small letters, sees or changes more than the arguments that it is given."""
    beyond = function in _BEYOND_ARGUMENTS or function.startswith(_BEYOND_ARGUMENTS_PREFIXES)
    return beyond and function not in _OF_ARGUMENTS


def select_items_sql(expressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The SQL of expressions again, without their aliases, from their trees: what was checked is what will run."""
    with scratch_connection() as con:
        return items_sql(con, expressions)


def items_sql(con: duckdb.DuckDBPyConnection, expressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """`select_items_sql` by a connection that is there already. Raises DuckDB's errors for what is no expression."""
    tree = _serialized(con, "SELECT 1")
    texts = []
    for expression in expressions:
        tree["statements"][0]["node"]["select_list"] = [{**expression, "alias": ""}]
        texts.append(_to_sql(con, tree).removeprefix("SELECT "))
    return texts


def query_sql(tree: Mapping[str, Any]) -> str:
    """The SQL of a query's syntax tree. Raises DuckDB's errors for a tree that cannot be written as SQL."""
    with scratch_connection() as con:
        return _to_sql(con, tree)


def _to_sql(con: duckdb.DuckDBPyConnection, tree: Mapping[str, Any]) -> str:
    [(sql,)] = con.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()
    return str(sql)


def syntax_tree(sql: str) -> dict[str, Any]:
    """DuckDB's syntax tree of queries, under "statements". If there is none, "error" is true; "error_message" says why.

    Nothing is bound or run, and no name is looked up.
    """
    with scratch_connection() as con:
        return tree_of(con, sql)


def tree_of(con: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """`syntax_tree` by a connection that is there already."""
    if "\0" in sql:
        return {"error": True, "error_message": "it holds a zero character"}  # where DuckDB's parser would stop
    try:
        sql.encode()
        tree = _serialized(con, sql)
    except UnicodeEncodeError:
        return {"error": True, "error_message": "it holds half of a surrogate pair"}
    except RecursionError:
        return _TOO_DEEP
    for node in walk(tree):
        _keep_double(node)
    return _TOO_DEEP if _levels(tree) > _LEVELS_MAX else tree  # as it will be when its SQL is parsed again


def _serialized(con: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    [(text,)] = con.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree: dict[str, Any] = json.loads(text)
    return tree


def _keep_double(node: dict[str, Any]) -> None:
    """Make a DOUBLE such as `1e3` a cast: DuckDB writes it as `1000.0`, which is a DECIMAL when it is read again."""
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
    """Every object of a syntax tree, from the root down, each before what it holds."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(node.values()))
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def replaced(tree: Any, replacement: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> Any:
    """A copy of a syntax tree in which each object has its replacement's place, and is as it was where that is None.

    What a replacement holds is not looked at.
    """
    whole: Any = [tree]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]  # not by recursion, which ends before the deepest tree does
    while waiting:
        copy, place = waiting.pop()
        node = copy[place]
        if isinstance(node, list):
            copy[place] = [*node]
            waiting.extend((copy[place], n) for n in range(len(node)))
        elif isinstance(node, dict) and (found := replacement(node)) is not None:
            copy[place] = found
        elif isinstance(node, dict):
            copy[place] = {**node}
            waiting.extend((copy[place], key) for key in node)
    return whole[0]


def renamed(tree: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """A copy of a syntax tree in which columns have no qualifiers, and the other `names`, by the folded ones."""

    def column(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if node.get("class") != "COLUMN_REF":
            return None
        name = str(node["column_names"][-1])
        return {**node, "column_names": [(names or {}).get(name.casefold(), name)]}

    copy: Mapping[str, Any] = replaced(tree, column)
    return copy


def _levels(tree: object) -> int:
    """How deep a tree is nested."""
    levels, row = 0, [tree]
    while row := [n for node in row for n in _children(node)]:
        levels += 1
    return levels


def _children(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else ()


def _columns(expression: Mapping[str, Any]) -> frozenset[str]:
    names = [inner["column_names"] for inner in walk(expression) if inner.get("class") == "COLUMN_REF"]
    return frozenset(str(n[1] if len(n) > 1 and n[0].casefold() == "t" else n[0]).casefold() for n in names)


def _column_name(expression: Mapping[str, Any]) -> str:
    return str(expression["column_names"][-1]) if expression.get("class") == "COLUMN_REF" else ""


@lru_cache(maxsize=1)
def _unstable_functions() -> frozenset[str]:
    with scratch_connection() as con:
        rows = con.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'")
        return frozenset(str(name) for (name,) in rows.fetchall()) | _UNSTABLE_KEYWORDS | _UNSTABLE_BESIDES


def _keyword(expression: Mapping[str, Any]) -> str:
    """What a bare word calls: to the parser, `current_date` is a column's name. Empty: nothing."""
    names: list[str] = expression["column_names"] if expression.get("class") == "COLUMN_REF" else []
    name = str(names[0]).casefold() if len(names) == 1 else ""
    return name if name in _UNSTABLE_KEYWORDS else ""
