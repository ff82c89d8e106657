"""Predicate pushdown: the predicate over one table that is true for every row which a query can use.

It is derived from the WHERE clauses in DuckDB's syntax tree. Each reference to the table in a FROM contributes the
conditions on this reference alone. With several references, a row must match the conditions of one. A query that is
not fully understood has no predicate, so its result never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icedb.sql.expressions import is_stable, renamed, syntax_tree, walk
from icedb.sql.user_queries import TABLE_FUNCTIONS

__all__ = ["pushed_down_predicate"]

# Classes of nodes in an expression over one row.
_PLAIN = frozenset(("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT",
                    "FUNCTION", "OPERATOR"))  # fmt: skip
_SOURCES = frozenset(("BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION"))
_NODES = frozenset(("RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"))
# The sides to which a condition of WHERE can be pushed down: those whose rows the join does not pad with null.
_SIDES = {"INNER": ("left", "right"), "LEFT": ("left",), "SEMI": ("left",), "ANTI": ("left",)}
_JOINS = frozenset(("REGULAR", "CROSS", "NATURAL"))

Node = Mapping[str, Any]


def pushed_down_predicate(sql: str, table: str, columns: Collection[str]) -> Node | None:
    """Return the syntax tree of the predicate, with unqualified columns; None if none is certain.

    `table` and `columns` are in lower case. Never raises for invalid SQL.
    """
    if "where" not in sql.casefold():
        return None
    tree = syntax_tree(sql)
    if tree.get("error") or len(tree["statements"]) != 1:
        return None
    nodes = list(walk(tree))
    if not all(map(_is_plain, nodes)) or any(_is_other_table(node, table) for node in nodes):
        return None
    # This also counts references outside of a FROM that is understood, for which there is no predicate.
    references = sum(_is_table(node, table) for node in nodes)
    selects = [node for node in nodes if node.get("type") == "SELECT_NODE"]
    predicates = [predicate for select in selects for predicate in _predicates_of(select, table, columns)]
    if not predicates or len(predicates) != references or None in predicates:
        return None
    if len(predicates) == 1:
        return predicates[0]
    return {"class": "CONJUNCTION", "type": "CONJUNCTION_OR", "alias": "", "children": predicates}


def _is_plain(node: Node) -> bool:
    """Return whether a node of the tree is of a kind that this module understands."""
    if "cte_map" in node:
        return node["type"] in _NODES and not node.get("sample")
    if "class" not in node and "sample" in node:
        return node["type"] in _SOURCES and not node["sample"] and _is_known_source(node)
    return node.get("class") != "PARAMETER"


def _is_known_source(node: Node) -> bool:
    if node["type"] == "TABLE_FUNCTION":  # other functions can read a table by its name
        return node["function"].get("function_name", "").casefold() in TABLE_FUNCTIONS
    return not node.get("at_clause") and not (node["type"] == "JOIN" and node["ref_type"] not in _JOINS)


def _is_table(node: Node, table: str) -> bool:
    return node.get("type") == "BASE_TABLE" and node["table_name"].casefold() == table


def _is_other_table(node: Node, table: str) -> bool:
    """Return whether the table's name can mean another table, or another name can mean the table's rows."""
    if "cte_map" in node and any(entry["key"].casefold() in (table, "final") for entry in node["cte_map"]["map"]):
        return True
    if node.get("type") != "BASE_TABLE":
        return False
    name = node["table_name"].casefold()
    return name == "final" or (name == table and bool(node["schema_name"] or node["catalog_name"]))


@dataclass(frozen=True, slots=True)
class _FromItem:
    """A relation in a FROM. `filtered`: conditions of the WHERE can be pushed down to its rows."""

    node: Node
    filtered: bool

    @property
    def name(self) -> str:
        """The qualifier of its columns, case folded."""
        return str(self.node.get("alias") or self.node.get("table_name") or "").casefold()


def _predicates_of(select: Node, table: str, columns: Collection[str]) -> Iterator[Node | None]:
    """Yield the predicate of each reference to the table in this FROM; None if there is none, or none is certain."""
    items = list(_from_items(select["from_table"], filtered=True))
    aliases = {str(item.get("alias") or "").casefold() for item in select["select_list"]}
    for item in items:
        if not _is_table(item.node, table):
            continue
        if not item.filtered or item.node["column_name_alias"] or not select["where_clause"]:
            yield None
            continue
        bare = set(columns) - aliases - {other.name for other in items}
        if len(items) > 1 and (sum(_is_table(i.node, table) for i in items) > 1 or _merges_columns(select)):
            bare = set()
        # If another relation has that name, DuckDB rejects the query as ambiguous.
        own = "" if item.name in columns else item.name
        conditions = [_bare(c, own, columns, bare) for c in _conjuncts(select["where_clause"])]
        yield _conjunction([c for c in conditions if c is not None])


def _from_items(source: Node, *, filtered: bool) -> Iterator[_FromItem]:
    if source["type"] != "JOIN":
        yield _FromItem(source, filtered)
        return
    sides = _SIDES.get(source["join_type"], ())
    for side in ("left", "right"):
        yield from _from_items(source[side], filtered=filtered and side in sides)


def _merges_columns(select: Node) -> bool:
    """Return whether a join unites two columns, by USING or NATURAL."""
    return any(
        node.get("using_columns") or node.get("ref_type") == "NATURAL"
        for node in walk(select["from_table"])
        if node.get("type") == "JOIN"
    )


def _conjuncts(condition: Node) -> Iterator[Node]:
    if condition.get("type") != "CONJUNCTION_AND":
        yield condition
        return
    for child in condition["children"]:
        yield from _conjuncts(child)


def _conjunction(conditions: Sequence[Node]) -> Node | None:
    if len(conditions) < 2:
        return conditions[0] if conditions else None
    return {"class": "CONJUNCTION", "type": "CONJUNCTION_AND", "alias": "", "children": [*conditions]}


def _bare(condition: Node, own: str, columns: Collection[str], bare: Collection[str]) -> Node | None:
    """Return the condition with unqualified names; None unless it is deterministic and over the table alone."""
    inner = [node for node in walk(condition) if "class" in node]
    if not all(node["class"] in _PLAIN for node in inner) or not is_stable(condition):
        return None
    for node in inner:
        if node["class"] == "COLUMN_REF" and not _is_own(node["column_names"], own, columns, bare):
            return None
    return renamed(condition)


def _is_own(names: Sequence[str], own: str, columns: Collection[str], bare: Collection[str]) -> bool:
    folded = [name.casefold() for name in names]
    if len(folded) == 1:
        return folded[0] in bare
    return len(folded) == 2 and bool(own) and folded[0] == own and folded[1] in columns
