"""A predicate over rows as a condition over a part's bounds: may the part hold a row for which it is true?

The predicate's syntax tree is walked, with NOT pushed down: of each piece it is asked whether a row may make it true,
and whether one may make it false. A comparison of a column with a constant is answered by the column's bounds, pieces
over path columns alone by their values; whatever else there is may be anything. DuckDB binds a comparison with a
bound as it binds the one with the column, and only such are used in which the column's side keeps its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from icedb.sql.connections import quote_text
from icedb.sql.expressions import items_sql, renamed, walk
from icedb.sql.types import describe, typed_nothing

__all__ = ["ReferencedColumn", "Condition", "bounds_condition"]

_WHOLE = frozenset((
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT",
))  # fmt: skip
_MOMENTS = frozenset((
    "DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE",
))  # fmt: skip
_ALONE = frozenset(("BOOLEAN", "TIME", "UUID", "VARCHAR"))
_UNITS = frozenset(("year", "quarter", "month", "week", "day", "hour", "minute", "second"))

_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_PREFIX_FUNCTIONS = frozenset(("starts_with", "prefix", "^@"))
_LIKE = frozenset(("~~", "!~~"))
# These have no one value per row, or names of their own.
_OPAQUE = frozenset((
    "SUBQUERY", "WINDOW", "STAR", "PARAMETER", "LAMBDA", "LAMBDA_REF", "POSITIONAL_REFERENCE", "DEFAULT",
))  # fmt: skip
# Of LIKE, whose patterns have no escape of their own.
_WILDCARD = re.compile("[%_]")
# Of any part.
_TRUE = "true"
# A longer list is taken for the range from its least to its greatest value.
_IN_LIST_MAX = 32

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReferencedColumn:
    """A column that a condition asks for.

    Of a path column there are `value<number>`, and `told<number>`: whether the path tells it. Of another one there are
    `lo<number>`, `hi<number>` and `nulls<number>`, and `known<number>`: whether the log tells. Both bounds are null
    when all values are.
    """

    name: str
    type: str
    in_path: bool
    number: int


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL that is true of a part unless it certainly holds no such row, and the columns that it asks for.

    It is `true` when nothing needs to be known of a part.
    """

    sql: str
    columns: tuple[ReferencedColumn, ...]


@dataclass(frozen=True, slots=True)
class _Possible:
    """SQL: whether a row of the part may make a piece true, and whether one may make it false."""

    true: str
    false: str

    def negated(self) -> _Possible:
        return _Possible(self.false, self.true)


_ANYTHING = _Possible(_TRUE, _TRUE)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """SQL of the bounds and nulls of a column, or of what keeps its order; `unknown` where there are none."""

    of: ReferencedColumn
    lo: str
    hi: str
    nulls: str
    unknown: str


def bounds_condition(
    con: duckdb.DuckDBPyConnection, tree: Node, columns: Mapping[str, str], path_columns: Mapping[str, str]
) -> Condition:
    """The condition for a predicate's syntax tree over columns and path columns (DuckDB types, no name in both).

    Raises DuckDB's errors for a predicate that does not fit them.
    """
    conditions = _ConditionBuilder(con, tree, columns, path_columns)
    return Condition(conditions.may(tree).true, tuple(conditions.asked.values()))


class _ConditionBuilder:
    def __init__(
        self, con: duckdb.DuckDBPyConnection, tree: Node, columns: Mapping[str, str], path_columns: Mapping[str, str]
    ) -> None:
        self._con = con
        known = [(name, type_, False) for name, type_ in columns.items()]
        known += [(name, type_, True) for name, type_ in path_columns.items()]
        self._all = {name.casefold(): (name, type_, in_path) for name, type_, in_path in known}
        self.asked: dict[str, ReferencedColumn] = {}
        for node in walk(tree):
            self._resolve(node)
        named = typed_nothing({c.name: c.type for c in self.asked.values()})
        con.execute(f"CREATE OR REPLACE TEMP VIEW typed AS {named}")

    def may(self, node: Node) -> _Possible:
        columns = self._columns_of(node)
        if columns is not None and all(c.in_path for c in columns):
            return self._of_paths(node, columns)
        match node.get("type"):
            case "CONJUNCTION_AND":
                pieces = [self.may(child) for child in node["children"]]
                return _Possible(_all(p.true for p in pieces), _any(p.false for p in pieces))
            case "CONJUNCTION_OR":
                pieces = [self.may(child) for child in node["children"]]
                return _Possible(_any(p.true for p in pieces), _all(p.false for p in pieces))
            case "OPERATOR_NOT":
                return self.may(node["children"][0]).negated()
        return (columns is not None and self._piece(node)) or _ANYTHING

    # -------------------------------------------------------------------------------------------- pieces

    def _of_paths(self, node: Node, columns: Sequence[ReferencedColumn]) -> _Possible:
        """All rows of a part have the same values of path columns, so a piece over these is evaluated as it is."""
        [sql] = self._sql([node])
        unknown = "".join(f"NOT told{c.number} OR " for c in columns)
        return _Possible(*(f"({unknown}coalesce(TRY(({sql}) IS {value}), true))" for value in ("TRUE", "FALSE")))

    def _piece(self, node: Node) -> _Possible | None:
        """A condition over a column that is not in the paths, with anything that is constant in a part."""
        type_ = str(node.get("type"))
        children: Sequence[Node] = node.get("children") or ()
        if type_ in _COMPARISONS:
            return self._comparison(_COMPARISONS[type_], node["left"], node["right"])
        match type_:
            case "COMPARE_BETWEEN":
                return self._between(node["input"], node["lower"], node["upper"])
            case "COMPARE_IN" | "COMPARE_NOT_IN":
                found = self._among(children[0], children[1:])
                return found.negated() if found and type_ == "COMPARE_NOT_IN" else found
            case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
                found = self._null(children[0])
                return found.negated() if found and type_ == "OPERATOR_IS_NOT_NULL" else found
            case "COLUMN_REF":
                return self._truth(node)
            case "FUNCTION":
                return self._prefix(str(node["function_name"]), children)
        return None

    def _comparison(self, operator: str, left: Node, right: Node) -> _Possible | None:
        if self._ordered(left) is None:
            left, right, operator = right, left, _TURNED.get(operator, operator)
        column = self._bounds(left, [right])
        if column is None:
            return None
        [k] = self._sql([right])
        lo, hi = column.lo, column.hi
        if operator in _NEGATED:
            true, false = (f"{lo if o in ('<', '<=') else hi} {o} ({k})" for o in (operator, _NEGATED[operator]))
            return self._unless_unknown(column, true, false)
        equal, other = _equal(column, k), _other(column, k)
        if "DISTINCT" in operator:
            equal = f"{equal} OR (({k}) IS NULL AND {column.nulls} > 0)"
            other += f" OR (({k}) IS NULL AND {lo} IS NOT NULL) OR (({k}) IS NOT NULL AND {column.nulls} > 0)"
        found = self._unless_unknown(column, equal, other)
        return found if operator in ("=", "IS NOT DISTINCT FROM") else found.negated()

    def _null(self, operand: Node) -> _Possible | None:
        column = self._bounds(operand)
        if column is None:
            return None
        return self._unless_unknown(column, f"{column.nulls} > 0", f"{column.lo} IS NOT NULL")

    def _truth(self, operand: Node) -> _Possible | None:
        column = self._bounds(operand)
        if column is None or column.of.type != "BOOLEAN":
            return None
        return self._unless_unknown(column, f"{column.hi} = true", f"{column.lo} = false")

    def _between(self, operand: Node, lower: Node, upper: Node) -> _Possible | None:
        column = self._bounds(operand, [lower, upper])
        if column is None:
            return None
        a, b = self._sql([lower, upper])
        inside = f"{column.hi} >= ({a}) AND {column.lo} <= ({b})"
        outside = f"(({column.lo} < ({a})) IS TRUE) OR (({column.hi} > ({b})) IS TRUE)"
        return self._unless_unknown(column, inside, outside)

    def _among(self, operand: Node, values: Sequence[Node]) -> _Possible | None:
        column = self._bounds(operand, values)
        if column is None:
            return None
        texts = self._sql(values)
        if len(texts) > _IN_LIST_MAX:
            least, greatest = (f"{function}({', '.join(texts)})" for function in ("least", "greatest"))
            return self._unless_unknown(column, f"{column.lo} <= {greatest} AND {column.hi} >= {least}", _TRUE)
        return self._unless_unknown(
            column, _any(_equal(column, k) for k in texts), _all(f"({_other(column, k)})" for k in texts)
        )

    def _prefix(self, function: str, arguments: Sequence[Node]) -> _Possible | None:
        """Beginnings of texts are in the order of the texts that they begin."""
        if function not in _LIKE | _PREFIX_FUNCTIONS or len(arguments) != 2:
            return None
        column, pattern = self._bounds(arguments[0]), _literal(arguments[1])
        if column is None or column.of.type != "VARCHAR" or pattern is None:
            return None
        prefix = _WILDCARD.split(pattern)[0] if function in _LIKE else pattern
        text, lo, hi = quote_text(prefix), f"left({column.lo}, {len(prefix)})", f"left({column.hi}, {len(prefix)})"
        no_more = function in _PREFIX_FUNCTIONS or pattern == f"{prefix}%"
        false = f"NOT ({lo} = {text} AND {hi} = {text})" if no_more else f"{column.lo} IS NOT NULL"
        found = self._unless_unknown(column, f"{lo} <= {text} AND {hi} >= {text}", false)
        return found.negated() if function == "!~~" else found

    def _unless_unknown(self, column: _Bounds, true: str, false: str) -> _Possible:
        """A piece of which whatever is unknown, or has no answer, may be anything."""
        return _Possible(
            *(
                _TRUE if sql == _TRUE else f"({column.unknown} OR coalesce(TRY(({sql}) IS TRUE), true))"
                for sql in (true, false)
            )
        )

    # ------------------------------------------------------------------------------------------- operands

    def _ordered(self, node: Node) -> ReferencedColumn | None:
        """The column, not of the paths, that an expression is, or whose order it keeps: equal or greater stays so."""
        if node.get("class") == "COLUMN_REF":
            column = self._resolve(node)
            return None if column is None or column.in_path or _family(column.type) is None else column
        if node.get("class") == "CAST" and not node["try_cast"]:
            inner = node["child"]
        elif node.get("function_name") in ("date_trunc", "datetrunc") and len(node["children"]) == 2:
            unit, inner = node["children"]
            if (_literal(unit) or "").casefold() not in _UNITS:
                return None
        else:
            return None
        column = self._ordered(inner)
        if column is None:
            return None
        before, after = map(_family, self._types([inner, node]))
        return column if before == after and before in ("number", "moment", "BOOLEAN") else None

    def _bounds(self, operand: Node, constants: Sequence[Node] = ()) -> _Bounds | None:
        """The bounds of a column, or of what keeps its order, to be compared with what is constant in a part."""
        column = self._ordered(operand)
        if column is None or (constants and not self._fit(operand, constants)):
            return None
        n = column.number
        lo, hi = items_sql(self._con, [renamed(operand, {column.name.casefold(): f"{b}{n}"}) for b in ("lo", "hi")])
        of_paths = {c.number for k in constants for c in self._columns_of(k) or ()}
        unknown = " OR ".join((f"NOT known{n}", *(f"NOT told{k}" for k in sorted(of_paths))))
        return _Bounds(column, lo, hi, f"nulls{n}", unknown)

    def _fit(self, operand: Node, constants: Sequence[Node]) -> bool:
        """Whether DuckDB compares them in a type in which the operand keeps its order, each as all of them together."""
        for constant in constants:
            columns = self._columns_of(constant)
            collated = any(n.get("class") == "COLLATE" or "collation" in n for n in walk(constant))
            if columns is None or collated or not all(c.in_path for c in columns):
                return False
        type_, *types = self._types([operand, *constants])
        family = _family(type_)
        if family == "VARCHAR":
            return set(types) <= {"VARCHAR"}
        literals = [_literal(constant) is not None for constant in constants]
        if any(literals):
            return all(literals)  # DuckDB makes a value of the column's type of them
        if {_family(t) for t in types} != {family}:
            return False
        return len(set(types)) == 1 or type_ == "DOUBLE" or {type_, *types} <= _WHOLE

    def _resolve(self, node: Node) -> ReferencedColumn | None:
        """The column that a node names."""
        names: Sequence[str] = node["column_names"] if node.get("class") == "COLUMN_REF" else ()
        if len(names) == 2 and names[0].casefold() == "t" and "t" not in self._all:
            names = names[1:]
        found = self._all.get(names[0].casefold()) if len(names) == 1 else None
        if found is None:
            return None
        return self.asked.setdefault(found[0], ReferencedColumn(*found, len(self.asked)))

    def _columns_of(self, node: Node) -> list[ReferencedColumn] | None:
        """The columns that an expression names; None when it names something else, or more than its row."""
        found = {}
        for inner in walk(node):
            if inner.get("class") in _OPAQUE:
                return None
            if inner.get("class") == "COLUMN_REF":
                column = self._resolve(inner)
                if column is None:
                    return None
                found[column.number] = column
        return list(found.values())

    def _types(self, nodes: Sequence[Node]) -> list[str]:
        texts = items_sql(self._con, nodes)
        selected = ", ".join(f"({sql}) AS c{n}" for n, sql in enumerate(texts))
        return list(describe(self._con, f"SELECT {selected} FROM typed AS t").values())

    def _sql(self, nodes: Sequence[Node]) -> list[str]:
        """The SQL of expressions over path columns, or over what these were replaced by."""
        names = {c.name.casefold(): f"value{c.number}" for c in self.asked.values() if c.in_path}
        return items_sql(self._con, [renamed(node, names) for node in nodes])


def _literal(node: Node) -> str | None:
    """A text as it is written; None for all else."""
    value = node["value"] if node.get("class") == "CONSTANT" else None
    return str(value["value"]) if value and value["type"]["id"] == "VARCHAR" and not value["is_null"] else None


def _family(type_: str) -> str | None:
    """Types between which a cast keeps the order; None for those that have no statistics or no plain order."""
    if type_ in _WHOLE or type_ in ("FLOAT", "DOUBLE") or type_.startswith("DECIMAL("):
        return "number"
    return "moment" if type_ in _MOMENTS else type_ if type_ in _ALONE else None


def _equal(column: _Bounds, k: str) -> str:
    """Whether a value may equal k."""
    return f"(({column.lo} <= ({k}) AND {column.hi} >= ({k})) IS TRUE)"


def _other(column: _Bounds, k: str) -> str:
    """Whether a value may be there that is not k. Bounds need not be values, but between two that are k all are."""
    return f"((NOT ({column.lo} = ({k}) AND {column.hi} = ({k}))) IS TRUE)"


def _all(pieces: Iterable[str]) -> str:
    asking = [piece for piece in pieces if piece != _TRUE]
    return f"({' AND '.join(asking)})" if asking else _TRUE


def _any(pieces: Iterable[str]) -> str:
    alternatives = list(pieces)
    return _TRUE if _TRUE in alternatives else f"({' OR '.join(alternatives)})"
