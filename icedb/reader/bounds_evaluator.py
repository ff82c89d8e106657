"""Translation of a predicate over rows into a condition over the bounds (minimum and maximum) of a part.

The condition is true if the part may have a row for which the predicate is true. For each piece of the predicate's
syntax tree, two conditions are derived: whether a row can make it true, and whether a row can make it false. NOT
exchanges the two. A comparison of a column with a constant uses the column's bounds. A piece over path columns alone
uses their values. Every other piece can have any value. DuckDB binds a comparison with a bound like the comparison with
the column. Only comparisons are used in which the column's side keeps the order of its values.
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
# Expressions of these classes have no single value per row, or introduce names.
_OPAQUE = frozenset((
    "SUBQUERY", "WINDOW", "STAR", "PARAMETER", "LAMBDA", "LAMBDA_REF", "POSITIONAL_REFERENCE", "DEFAULT",
))  # fmt: skip
# The wildcards of LIKE. Its patterns have no escape character by default.
_WILDCARD = re.compile("[%_]")
# The condition that prunes nothing.
_TRUE = "true"
# A longer list is treated as the range from its minimum to its maximum.
_IN_LIST_MAX = 32

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReferencedColumn:
    """A column that a condition uses.

    A path column has `value<number>`, and `has_value<number>`, which is whether the path has it. Another column has
    `lo<number>`, `hi<number>` and `nulls<number>`, and `has_bounds<number>`, which is whether the log has its bounds.
    Both bounds are null if all values are null.
    """

    name: str
    type: str
    in_path: bool
    number: int


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL that is true for a part unless it certainly has no matching row, and the columns in the SQL.

    It is `true` if it prunes nothing.
    """

    sql: str
    columns: tuple[ReferencedColumn, ...]


@dataclass(frozen=True, slots=True)
class _Possible:
    """SQL of two conditions: whether a row of the part can make a piece true, and whether one can make it false."""

    true: str
    false: str

    def negated(self) -> _Possible:
        return _Possible(self.false, self.true)


_ANYTHING = _Possible(_TRUE, _TRUE)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """SQL of the bounds and nulls of an expression that keeps a column's order. `unknown`: whether they are missing."""

    of: ReferencedColumn
    lo: str
    hi: str
    nulls: str
    unknown: str


def bounds_condition(
    con: duckdb.DuckDBPyConnection, tree: Node, columns: Mapping[str, str], path_columns: Mapping[str, str]
) -> Condition:
    """Return the condition for a predicate's syntax tree over columns and path columns (DuckDB types, no name in both).

    Raises DuckDB's errors if the predicate does not fit the columns.
    """
    conditions = _ConditionBuilder(con, tree, columns, path_columns)
    return Condition(conditions.possible(tree).true, tuple(conditions.referenced.values()))


class _ConditionBuilder:
    def __init__(
        self, con: duckdb.DuckDBPyConnection, tree: Node, columns: Mapping[str, str], path_columns: Mapping[str, str]
    ) -> None:
        self._con = con
        all_columns = [(name, type_, False) for name, type_ in columns.items()]
        all_columns += [(name, type_, True) for name, type_ in path_columns.items()]
        self._all = {name.casefold(): (name, type_, in_path) for name, type_, in_path in all_columns}
        self.referenced: dict[str, ReferencedColumn] = {}
        for node in walk(tree):
            self._resolve(node)
        named = typed_nothing({c.name: c.type for c in self.referenced.values()})
        con.execute(f"CREATE OR REPLACE TEMP VIEW typed AS {named}")

    def possible(self, node: Node) -> _Possible:
        """Return whether a row of the part can make a piece of the predicate true, and false."""
        columns = self._columns_of(node)
        if columns is not None and all(c.in_path for c in columns):
            return self._of_paths(node, columns)
        match node.get("type"):
            case "CONJUNCTION_AND":
                pieces = [self.possible(child) for child in node["children"]]
                return _Possible(_all(p.true for p in pieces), _any(p.false for p in pieces))
            case "CONJUNCTION_OR":
                pieces = [self.possible(child) for child in node["children"]]
                return _Possible(_any(p.true for p in pieces), _all(p.false for p in pieces))
            case "OPERATOR_NOT":
                return self.possible(node["children"][0]).negated()
        return (columns is not None and self._piece(node)) or _ANYTHING

    # -------------------------------------------------------------------------------------------- pieces

    def _of_paths(self, node: Node, columns: Sequence[ReferencedColumn]) -> _Possible:
        """Evaluate a piece over path columns as it is, because all rows of a part have the same values of them."""
        [sql] = self._sql([node])
        unknown = "".join(f"NOT has_value{c.number} OR " for c in columns)
        return _Possible(*(f"({unknown}coalesce(TRY(({sql}) IS {value}), true))" for value in ("TRUE", "FALSE")))

    def _piece(self, node: Node) -> _Possible | None:
        """Translate a condition over a column that is not in the paths, with operands that are constant in a part."""
        type_ = str(node.get("type"))
        children: Sequence[Node] = node.get("children") or ()
        if type_ in _COMPARISONS:
            return self._comparison(_COMPARISONS[type_], node["left"], node["right"])
        match type_:
            case "COMPARE_BETWEEN":
                return self._between(node["input"], node["lower"], node["upper"])
            case "COMPARE_IN" | "COMPARE_NOT_IN":
                possible = self._in_list(children[0], children[1:])
                return possible.negated() if possible and type_ == "COMPARE_NOT_IN" else possible
            case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
                possible = self._null(children[0])
                return possible.negated() if possible and type_ == "OPERATOR_IS_NOT_NULL" else possible
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
        possible = self._unless_unknown(column, equal, other)
        return possible if operator in ("=", "IS NOT DISTINCT FROM") else possible.negated()

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

    def _in_list(self, operand: Node, values: Sequence[Node]) -> _Possible | None:
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
        """Translate a condition on the beginning of a text. Prefixes have the order of the texts."""
        if function not in _LIKE | _PREFIX_FUNCTIONS or len(arguments) != 2:
            return None
        column, pattern = self._bounds(arguments[0]), _literal(arguments[1])
        if column is None or column.of.type != "VARCHAR" or pattern is None:
            return None
        prefix = _WILDCARD.split(pattern)[0] if function in _LIKE else pattern
        text, lo, hi = quote_text(prefix), f"left({column.lo}, {len(prefix)})", f"left({column.hi}, {len(prefix)})"
        no_more = function in _PREFIX_FUNCTIONS or pattern == f"{prefix}%"
        false = f"NOT ({lo} = {text} AND {hi} = {text})" if no_more else f"{column.lo} IS NOT NULL"
        possible = self._unless_unknown(column, f"{lo} <= {text} AND {hi} >= {text}", false)
        return possible.negated() if function == "!~~" else possible

    def _unless_unknown(self, column: _Bounds, true: str, false: str) -> _Possible:
        """Return the two conditions, each true where bounds are unknown or the condition fails or is null."""
        return _Possible(
            *(
                _TRUE if sql == _TRUE else f"({column.unknown} OR coalesce(TRY(({sql}) IS TRUE), true))"
                for sql in (true, false)
            )
        )

    # ------------------------------------------------------------------------------------------- operands

    def _ordered(self, node: Node) -> ReferencedColumn | None:
        """Return the column, not of the paths, that an expression is, or whose order it keeps; None if none."""
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
        """Return the bounds of an expression that keeps the order of a column; None unless `constants` fit it."""
        column = self._ordered(operand)
        if column is None or (constants and not self._fit(operand, constants)):
            return None
        n = column.number
        lo, hi = items_sql(self._con, [renamed(operand, {column.name.casefold(): f"{b}{n}"}) for b in ("lo", "hi")])
        of_paths = {c.number for k in constants for c in self._columns_of(k) or ()}
        unknown = " OR ".join((f"NOT has_bounds{n}", *(f"NOT has_value{k}" for k in sorted(of_paths))))
        return _Bounds(column, lo, hi, f"nulls{n}", unknown)

    def _fit(self, operand: Node, constants: Sequence[Node]) -> bool:
        """Return whether DuckDB compares operand and constants in a type in which the operand keeps its order.

        The comparison of all together must use the same type as the comparison with each.
        """
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
            return all(literals)  # DuckDB converts text literals to the column's type
        if {_family(t) for t in types} != {family}:
            return False
        return len(set(types)) == 1 or type_ == "DOUBLE" or {type_, *types} <= _WHOLE

    def _resolve(self, node: Node) -> ReferencedColumn | None:
        """Return the column that a node names; None if it names none."""
        names: Sequence[str] = node["column_names"] if node.get("class") == "COLUMN_REF" else ()
        if len(names) == 2 and names[0].casefold() == "t" and "t" not in self._all:
            names = names[1:]
        column = self._all.get(names[0].casefold()) if len(names) == 1 else None
        if column is None:
            return None
        return self.referenced.setdefault(column[0], ReferencedColumn(*column, len(self.referenced)))

    def _columns_of(self, node: Node) -> list[ReferencedColumn] | None:
        """Return the columns that an expression names; None if it depends on anything else."""
        columns = {}
        for inner in walk(node):
            if inner.get("class") in _OPAQUE:
                return None
            if inner.get("class") == "COLUMN_REF":
                column = self._resolve(inner)
                if column is None:
                    return None
                columns[column.number] = column
        return list(columns.values())

    def _types(self, nodes: Sequence[Node]) -> list[str]:
        texts = items_sql(self._con, nodes)
        selected = ", ".join(f"({sql}) AS c{n}" for n, sql in enumerate(texts))
        return list(describe(self._con, f"SELECT {selected} FROM typed AS t").values())

    def _sql(self, nodes: Sequence[Node]) -> list[str]:
        """Return the SQL of expressions, with the values of path columns in place of their names."""
        names = {c.name.casefold(): f"value{c.number}" for c in self.referenced.values() if c.in_path}
        return items_sql(self._con, [renamed(node, names) for node in nodes])


def _literal(node: Node) -> str | None:
    """Return the value of a text literal; None for any other node."""
    value = node["value"] if node.get("class") == "CONSTANT" else None
    return str(value["value"]) if value and value["type"]["id"] == "VARCHAR" and not value["is_null"] else None


def _family(type_: str) -> str | None:
    """Return the family of types between which a cast keeps the order; None for types without usable statistics."""
    if type_ in _WHOLE or type_ in ("FLOAT", "DOUBLE") or type_.startswith("DECIMAL("):
        return "number"
    return "moment" if type_ in _MOMENTS else type_ if type_ in _ALONE else None


def _equal(column: _Bounds, k: str) -> str:
    """Return SQL of whether a value can equal k."""
    return f"(({column.lo} <= ({k}) AND {column.hi} >= ({k})) IS TRUE)"


def _other(column: _Bounds, k: str) -> str:
    """Return SQL of whether a value can differ from k. If both bounds are k, all values are k."""
    return f"((NOT ({column.lo} = ({k}) AND {column.hi} = ({k}))) IS TRUE)"


def _all(pieces: Iterable[str]) -> str:
    conditions = [piece for piece in pieces if piece != _TRUE]
    return f"({' AND '.join(conditions)})" if conditions else _TRUE


def _any(pieces: Iterable[str]) -> str:
    alternatives = list(pieces)
    return _TRUE if _TRUE in alternatives else f"({' OR '.join(alternatives)})"
