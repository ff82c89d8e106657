"""What a query asks of a table: a predicate that is true of every row that it can use.

It is made of the query's own WHERE clauses, from DuckDB's syntax tree. Each place where the table stands in a FROM
gives the conditions on it alone; of several places, a row must fit one. Whatever is not plainly understood gives no
predicate, so that the query's answer is what it would be over all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icedb.sql.expressions import is_stable, renamed, syntax_tree, walk
from icedb.sql.user_queries import TABLE_FUNCTIONS

__all__ = ["pushed_down_predicate"]

# What may be in an expression over one row.
_PLAIN = frozenset(("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT",
                    "FUNCTION", "OPERATOR"))  # fmt: skip
_SOURCES = frozenset(("BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION"))
_NODES = frozenset(("RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"))
# Of which sides a condition of WHERE may be asked before the join: those whose rows are not made up there.
_SIDES = {"INNER": ("left", "right"), "LEFT": ("left",), "SEMI": ("left",), "ANTI": ("left",)}
_JOINS = frozenset(("REGULAR", "CROSS", "NATURAL"))

Node = Mapping[str, Any]


def pushed_down_predicate(sql: str, table: str, columns: Collection[str]) -> Node | None:
    """The syntax tree of the predicate, over columns by their bare names; None when there is none to be sure of.

    `table` and `columns` are in small letters. Never raises for a query that is none.
    """
    if "where" not in sql.casefold():
        return None
    tree = syntax_tree(sql)
    if tree.get("error") or len(tree["statements"]) != 1:
        return None
    nodes = list(walk(tree))
    if not all(map(_is_plain, nodes)) or any(_is_other_table(node, table) for node in nodes):
        return None
    # A table that stands elsewhere than in a FROM that was understood is counted here, and not there.
    mentioned = sum(_is_table(node, table) for node in nodes)
    selects = [node for node in nodes if node.get("type") == "SELECT_NODE"]
    asked = [predicate for select in selects for predicate in _asked_by(select, table, columns)]
    if not asked or len(asked) != mentioned or None in asked:
        return None
    return (
        asked[0]
        if len(asked) == 1
        else {"class": "CONJUNCTION", "type": "CONJUNCTION_OR", "alias": "", "children": asked}
    )


def _is_plain(node: Node) -> bool:
    """Whether an object of the tree is of a kind that is known here; all others could mean anything."""
    if "cte_map" in node:
        return node["type"] in _NODES and not node.get("sample")
    if "class" not in node and "sample" in node:
        return node["type"] in _SOURCES and not node["sample"] and _is_known_source(node)
    return node.get("class") != "PARAMETER"


def _is_known_source(node: Node) -> bool:
    if node["type"] == "TABLE_FUNCTION":  # others may read a table by its name
        return node["function"].get("function_name", "").casefold() in TABLE_FUNCTIONS
    return not node.get("at_clause") and not (node["type"] == "JOIN" and node["ref_type"] not in _JOINS)


def _is_table(node: Node, table: str) -> bool:
    return node.get("type") == "BASE_TABLE" and node["table_name"].casefold() == table


def _is_other_table(node: Node, table: str) -> bool:
    """Whether the table's name may mean another one, or another name the table's rows."""
    if "cte_map" in node and any(entry["key"].casefold() in (table, "final") for entry in node["cte_map"]["map"]):
        return True
    if node.get("type") != "BASE_TABLE":
        return False
    name = node["table_name"].casefold()
    return name == "final" or (name == table and bool(node["schema_name"] or node["catalog_name"]))


@dataclass(frozen=True, slots=True)
class _Place:
    """A relation in a FROM; `filtered`: conditions of the WHERE may be asked of its rows before all else."""

    node: Node
    filtered: bool

    @property
    def name(self) -> str:
        """What columns are qualified by, folded."""
        return str(self.node.get("alias") or self.node.get("table_name") or "").casefold()


def _asked_by(select: Node, table: str, columns: Collection[str]) -> Iterator[Node | None]:
    """For each place of the table in this FROM, what is asked of its rows; None: nothing, or it is not certain."""
    places = list(_places(select["from_table"], filtered=True))
    aliases = {str(item.get("alias") or "").casefold() for item in select["select_list"]}
    for place in places:
        if not _is_table(place.node, table):
            continue
        if not place.filtered or place.node["column_name_alias"] or not select["where_clause"]:
            yield None
            continue
        bare = set(columns) - aliases - {other.name for other in places}
        if len(places) > 1 and (sum(_is_table(p.node, table) for p in places) > 1 or _merges_columns(select)):
            bare = set()
        # With another relation of that name, DuckDB takes it for ambiguous; then nobody gets an answer.
        own = "" if place.name in columns else place.name
        conditions = [_bare(c, own, columns, bare) for c in _conjuncts(select["where_clause"])]
        yield _conjunction([c for c in conditions if c is not None])


def _places(source: Node, *, filtered: bool) -> Iterator[_Place]:
    if source["type"] != "JOIN":
        yield _Place(source, filtered)
        return
    sides = _SIDES.get(source["join_type"], ())
    for side in ("left", "right"):
        yield from _places(source[side], filtered=filtered and side in sides)


def _merges_columns(select: Node) -> bool:
    """Whether some join makes one column of two, by USING or NATURAL."""
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
    """The condition with bare names, if it is one over columns of the table alone, with one value for a row."""
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
