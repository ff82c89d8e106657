"""Checks of untrusted queries: a query is parsed, checked and written again from its syntax tree.

A query of a table (on insert, on merge, of a view, of a rewrite) can come from a `_table.json` or from a job's
configuration. It must be one SELECT over its input rows. It must not read another table, a file, an address, a setting
or the state of the connection. Volatile functions such as `now()` and `random()` are allowed, because the result is
stored once. The SQL that runs is written from the checked syntax tree, and it only runs in
`icedb.sql.connections.connect_sandbox`. The check is the first barrier, the sandbox the second.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

from icedb.errors import InvalidQuery
from icedb.sql.expressions import query_sql, sees_more, select_items_sql, syntax_tree, walk

__all__ = ["QUERY_CHARS_MAX", "TABLE_FUNCTIONS", "UserQuery", "check_output", "check_query", "check_reads"]

# DuckDB takes seconds to parse some longer texts.
QUERY_CHARS_MAX = 100_000

#: The table functions that FROM may call. Their rows depend on the arguments alone.
TABLE_FUNCTIONS = frozenset(("generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"))
# The functions with which a query of IceDB v3 reads the parts.
_V3_TABLE_FUNCTIONS = frozenset(("parquet_scan", "read_parquet"))

_QUERIES = frozenset(("CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"))
_SOURCES = frozenset(("BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SUBQUERY", "TABLE_FUNCTION"))

# The parser takes these for columns. If there is no such column, DuckDB calls the function. `user` is often a column.
_KEYWORDS = frozenset(
    ("current_catalog", "current_database", "current_role", "current_schema", "current_user", "session_user")
)
_KEYWORD_OR_COLUMN = "user"


@dataclass(frozen=True, slots=True)
class UserQuery:
    """A checked query: `sql` is one SELECT over a relation of the name `relation`, safe on lines of its own."""

    sql: str
    relation: str


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that the query may use for its rows, case folded, and the name of the relation that runs."""

    relation: str
    all: frozenset[str]
    v3: bool
    #: Whether each name is a separate relation.
    distinct: bool = False


def check_query(
    text: str, *, relation: str, table: str, what: str, also: Sequence[str] = (), v3: bool = False
) -> UserQuery:
    """Check the query in `text`, which calls its rows `relation` or one of `also`.

    `what` names the query in messages, such as "insert_query". With `v3`, `read_parquet(?, ...)` is the relation, too.
    Raises InvalidQuery unless the query is one SELECT that reads only these rows.
    """
    if not isinstance(text, str):
        raise InvalidQuery(f"{table}: {what} is a {type(text).__name__}, and not a text. Write one SELECT.")
    return _checked(text, relation, table, what, tuple(also), v3)


@lru_cache(maxsize=256)  # every batch needs it, and to parse takes longer than to write a small batch
def _checked(text: str, relation: str, table: str, what: str, also: tuple[str, ...], v3: bool) -> UserQuery:
    def refuse(why: str) -> InvalidQuery:
        excerpt = text.strip() if len(text) <= 200 else f"{text.strip()[:200]}..."
        return InvalidQuery(f"{table}: {what} {excerpt!r} {why}. Write one SELECT over {relation}.")

    names = _Names(relation, frozenset(_folded(n) for n in (relation, *also)), v3)
    tree = _tree(text, refuse)
    _check(tree, names, refuse)
    tree["statements"][0]["named_param_map"] = []
    try:
        sql = query_sql(tree)
    except duckdb.Error as error:
        raise refuse(f"cannot be written as SQL again ({str(error).splitlines()[0]})") from None
    again = _tree(sql, refuse)
    if _bare(again) != _bare(tree):
        raise refuse("means something else when DuckDB writes it as SQL again; write it in a simpler way")
    return UserQuery(sql, relation)


def check_reads(text: str, *, tables: Sequence[str], table: str) -> None:
    """Raise InvalidQuery unless `text` is one SELECT over these relations, common table expressions and subqueries."""

    def refuse(why: str) -> InvalidQuery:
        return InvalidQuery(
            f"{table}: the query {text.strip()[:200]!r} {why}. It runs in a sandbox, which reads the table alone. "
            f"Write one SELECT over {tables[0]}. The table is called {tables[0]}. For SQL of your own: "
            "sandbox=False, or icedb query --no-sandbox."
        )

    names = _Names(tables[0], frozenset(map(_folded, tables)), v3=False, distinct=True)
    _check(_tree(text, refuse), names, refuse)


def _tree(text: str, refuse: Callable[[str], InvalidQuery]) -> dict[str, Any]:
    if len(text) > QUERY_CHARS_MAX:
        raise refuse(f"is longer than {QUERY_CHARS_MAX:,} characters")
    tree = syntax_tree(text)
    if tree.get("error"):
        raise refuse(f"is not one SELECT ({tree.get('error_message')}); PIVOT is none, conditional aggregates are")
    if len(tree["statements"]) != 1:
        raise refuse(f"holds {len(tree['statements'])} statements")
    return tree


def _check(tree: Mapping[str, Any], names: _Names, refuse: Callable[[str], InvalidQuery]) -> None:
    """Check all nodes, with the common table expressions in scope, and replace the names of the relation."""
    waiting: list[tuple[object, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, list):
            waiting.extend((child, scope) for child in node)
        elif isinstance(node, dict):
            if "cte_map" in node:
                scope = _enter(node, scope, waiting, refuse)
            elif "class" in node:
                _check_expression(node, refuse)
            elif "sample" in node:
                _check_source(node, scope, names, refuse)
            waiting.extend((child, scope) for key, child in node.items() if key != "cte_map")


def _enter(
    node: Mapping[str, Any],
    scope: frozenset[str],
    waiting: list[tuple[object, frozenset[str]]],
    refuse: Callable[[str], InvalidQuery],
) -> frozenset[str]:
    """Return the scope inside a query. A common table expression sees earlier ones, and itself if it is recursive."""
    if node["type"] not in _QUERIES:
        raise refuse(f"holds a {node['type'].lower()}")
    for entry in node["cte_map"]["map"]:
        name = _folded(entry["key"])
        recursive = entry["value"]["query"]["node"]["type"] == "RECURSIVE_CTE_NODE"
        waiting.append((entry["value"], scope | {name} if recursive else scope))
        scope |= {name}
    return scope


def _check_source(
    node: dict[str, Any], scope: frozenset[str], names: _Names, refuse: Callable[[str], InvalidQuery]
) -> None:
    kind = node["type"]
    if kind not in _SOURCES:
        raise refuse(f"asks for the description of a table ({kind.lower()})")
    if kind == "BASE_TABLE":
        _check_table(node, scope, names, refuse)
    elif kind == "TABLE_FUNCTION":
        _check_table_function(node, names, refuse)
    elif kind == "PIVOT" and any(p["pivot_enum"] for p in node["pivots"]):
        raise refuse("pivots over a type that does not exist")


def _check_table(
    node: dict[str, Any], scope: frozenset[str], names: _Names, refuse: Callable[[str], InvalidQuery]
) -> None:
    name = node["table_name"]
    qualified = ".".join(n for n in (node["catalog_name"], node["schema_name"], name) if n)
    if node["at_clause"]:
        raise refuse(f"asks for '{qualified}' at another time")
    if qualified == name and _folded(name) in scope:
        return
    if qualified != name or _folded(name) not in names.all:
        raise refuse(f"reads '{qualified}', which is neither {names.relation} nor made in the query")
    if names.distinct:
        return
    if _folded(name) != _folded(names.relation):
        node["alias"] = node["alias"] or name
    node["table_name"] = names.relation


def _check_table_function(node: dict[str, Any], names: _Names, refuse: Callable[[str], InvalidQuery]) -> None:
    call = node["function"]
    name = _folded(call.get("function_name", ""))
    if call["class"] != "FUNCTION" or call["schema"] or call["catalog"]:
        raise refuse(f"reads the table function '{call.get('schema')}.{name}' by a qualified name")
    if names.v3 and name in _V3_TABLE_FUNCTIONS and _reads_the_files(call):
        _become_relation(node, name, names.relation)
    elif name not in TABLE_FUNCTIONS:
        raise refuse(f"reads {name}(), and of table functions only {', '.join(sorted(TABLE_FUNCTIONS))} are allowed")


def _reads_the_files(call: Mapping[str, Any]) -> bool:
    """Return whether the first argument is a parameter and the others are options of the read, which are dropped."""
    first, *options = call["children"] or [{}]
    inner = [node.get("class") for option in options for node in walk(option)]
    return first.get("class") == "PARAMETER" and not {"PARAMETER", "SUBQUERY"} & set(inner)


def _become_relation(node: dict[str, Any], written: str, relation: str) -> None:
    kept = {key: node[key] for key in ("alias", "sample", "query_location", "column_name_alias")}
    node.clear()
    node.update(kept, type="BASE_TABLE", table_name=relation, schema_name="", catalog_name="", at_clause=None)
    node["alias"] = node["alias"] or written


def _check_expression(node: Mapping[str, Any], refuse: Callable[[str], InvalidQuery]) -> None:
    if node["class"] == "PARAMETER":
        raise refuse(f"has a parameter (?, or ${node['identifier']}), and nothing gives its value")
    names = node["column_names"] if node["class"] == "COLUMN_REF" else []
    if len(names) == 1 and _folded(names[0]) in _KEYWORDS:
        raise refuse(f"asks for {names[0]}; if that is a column, put the relation's name and a dot before it")
    if sees_more(_folded(node.get("function_name") or "")):
        raise refuse(f"calls {node['function_name']}(), which sees or does more than its arguments say")


def _folded(name: str) -> str:
    """Fold a name as DuckDB does: only ASCII letters."""
    return name.encode().lower().decode()


def _bare(tree: Any) -> Any:
    """Return the tree without positions in the text and without the SELECT that DuckDB writes around each VALUES."""
    if isinstance(tree, list):
        return [_bare(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    bare = {key: _bare(value) for key, value in tree.items() if key != "query_location"}
    if bare.get("type") == "SUBQUERY" and "sample" in bare:
        inner = bare["subquery"]["node"].get("from_table", {})
        if inner.get("type") == "EXPRESSION_LIST" and bare == _around_values(inner):
            return inner
    return bare


def _around_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the subquery that DuckDB writes around a VALUES in FROM."""
    select = {key: value for key, value in _values_query().items() if key != "query_location"}
    plain = {**select, "select_list": [_bare(item) for item in select["select_list"]], "from_table": values}
    return {
        "type": "SUBQUERY",
        "alias": values["alias"],
        "sample": None,
        "subquery": {"node": plain, "named_param_map": []},
        "column_name_alias": [],
    }


@lru_cache(maxsize=1)
def _values_query() -> dict[str, Any]:
    node: dict[str, Any] = syntax_tree("VALUES (1)")["statements"][0]["node"]
    return node


def check_output(
    names: Sequence[str],
    *,
    table_columns: Mapping[str, str],
    inputs: Iterable[str],
    needed: Iterable[str],
    query: UserQuery,
    what: str,
    table: str,
    new_columns: bool,
    lenient: bool = False,
) -> None:
    """Raise InvalidQuery unless the columns of a query's result, `names`, can be stored.

    `table_columns` are the table's columns, `inputs` those of the rows that the query reads. Each result column must
    have a name (`sum(x)` needs AS) that no other column has. It must be in `table_columns` or `inputs`, unless
    `new_columns`. The result must have all of `needed`, by which the table is partitioned and sorted. With `lenient`,
    a missing one is a warning.
    """

    def refuse(why: str) -> InvalidQuery:
        return InvalidQuery(f"{table}: {what} {why}")

    results = [name.casefold() for name in names]
    existing = {name.casefold() for name in (*table_columns, *inputs)}
    unnamed = {_plain(text) for text in _unnamed(query.sql)}
    for name, folded in zip(names, results, strict=True):
        if results.count(folded) > 1:
            raise refuse(f"has the column '{name}' twice in its result. Give each its own name with AS.")
        if _plain(name) in unnamed and folded not in existing:
            raise refuse(f"does not name '{name}'. Write {name} AS name, with the name of the column to store.")
        if not new_columns and folded not in existing:
            raise refuse(
                f"gives a column '{name}', which the table does not have. Give it the name of one of its columns with "
                f"AS: {', '.join(sorted(table_columns))}."
            )
    dropped = [name for name in needed if name.casefold() not in results]
    if dropped and not lenient:
        raise refuse(
            f"drops the column '{dropped[0]}', by which the table is partitioned or sorted. Select it, too "
            f"(the result has {', '.join(names) or 'no column'})."
        )
    if _KEYWORD_OR_COLUMN not in existing and _calls_user(query.sql):
        raise refuse("names 'user', and the rows have no such column. Correct the name.")
    if dropped:
        message = f"{table}: {what} drops {dropped}, by which the table is partitioned or sorted."
        warnings.warn(message, stacklevel=2)


@lru_cache(maxsize=256)
def _unnamed(sql: str) -> frozenset[str]:
    """Return the names that DuckDB gives to a query's unnamed expressions: their texts."""
    selected = [item for node in walk(syntax_tree(sql)) for item in node.get("select_list", ())]
    named = ("COLUMN_REF", "STAR")
    return frozenset(select_items_sql([i for i in selected if not i["alias"] and i["class"] not in named]))


def _plain(text: str) -> str:
    """Return an expression without quotes and blanks, which DuckDB does not write consistently."""
    return "".join(text.replace('"', "").casefold().split())


@lru_cache(maxsize=256)
def _calls_user(sql: str) -> bool:
    """Return whether the query uses `user` without qualifier, and no alias in the query has that name."""
    nodes = list(walk(syntax_tree(sql)))
    bare = [[n.casefold() for n in node.get("column_names") or ()] == [_KEYWORD_OR_COLUMN] for node in nodes]
    return any(bare) and not any(_KEYWORD_OR_COLUMN in _aliases(node) for node in nodes)


def _aliases(node: Mapping[str, Any]) -> set[str]:
    names = [node.get("alias"), *(node.get("aliases") or ()), *(node.get("column_name_alias") or ())]
    return {str(name).casefold() for name in names if name}
