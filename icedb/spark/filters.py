"""Spark's filters as DuckDB's conditions: only those that both engines answer alike for every value.

A condition is asked three times: of the partitions' values, of what markers say of their parts' columns, and of the
rows, where it also skips row groups. So it must never be false where Spark's is true. What is left to Spark: columns
inside of others, binary values, and of floating-point numbers all that NaN or a negative zero could decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from icedb.engine import quote_name, quote_text
from icedb.spark.types import held

__all__ = ["Condition", "condition_of"]

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
_FLOATS = ("FLOAT", "DOUBLE")
_COMPARISONS = {EqualTo: "=", LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">="}
_TEXT_FUNCTIONS = {StringStartsWith: "starts_with", StringEndsWith: "suffix", StringContains: "contains"}


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of a row, in DuckDB's SQL over `t`.

    `bounds` is what must be true of a part that has such a row, in the terms of `icedb.statistics.may_hold`; None says
    nothing.
    """

    column: str
    sql: str
    bounds: str | None


def condition_of(filter_: Filter, columns: Mapping[str, str]) -> Condition | None:
    """The condition that says the same of a table with these columns (DuckDB types); None: Spark must look itself."""
    negated = isinstance(filter_, Not)
    inner = filter_.child if isinstance(filter_, Not) else filter_
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in columns:
        return None
    column = _Column(path[0], columns[path[0]])
    if negated and not isinstance(inner, IsNull | IsNotNull) and column.type in _FLOATS:
        return None  # NaN is unlike every number, and a row group's figures do not tell of it
    sql = column.sql_of(inner)
    if sql is None:
        return None
    return Condition(column.name, f"(NOT {sql})" if negated else sql, None if negated else column.bounds_of(inner))


class _Column:
    """A column as Spark sees it: its name, the DuckDB type of its values there, and an expression for them."""

    def __init__(self, name: str, stored: str) -> None:
        self.name = name
        self.type = held(stored).cast
        self._sql = quote_name(name) if self.type == stored else f"CAST({quote_name(name)} AS {self.type})"
        # Figures are in the order of the stored type, which a text of it need not have.
        self._ordered = self.type == stored or self.type != "VARCHAR"

    def sql_of(self, filter_: Filter) -> str | None:
        """The filter as an expression with the same three values: true, false and null."""
        match filter_:
            case IsNull():
                return f"({self._sql} IS NULL)"
            case IsNotNull():
                return f"({self._sql} IS NOT NULL)"
            case EqualNullSafe(value=value):
                literal = self._literal(value)
                return None if literal is None else f"({self._sql} IS NOT DISTINCT FROM {literal})"
            case In(value=values):
                literals = [self._literal(v) for v in values]
                return f"({self._sql} IN ({', '.join(filter(None, literals))}))" if all(literals) and values else None
            case StringStartsWith() | StringEndsWith() | StringContains():
                literal = self._literal(filter_.value)
                text = literal is not None and filter_.value is not None and self.type == "VARCHAR"
                return f"{_TEXT_FUNCTIONS[type(filter_)]}({self._sql}, {literal})" if text else None
            case EqualTo() | LessThan() | LessThanOrEqual() | GreaterThan() | GreaterThanOrEqual():
                if self.type in _FLOATS and isinstance(filter_, GreaterThan | GreaterThanOrEqual):
                    return None  # NaN is greater than every number
                literal = self._literal(filter_.value)
                return None if literal is None else f"({self._sql} {_COMPARISONS[type(filter_)]} {literal})"
        return None

    def bounds_of(self, filter_: Filter) -> str | None:
        """What must hold for lo, hi and nulls of a part with such a row; for a filter of which `sql_of` says it all."""
        match filter_:
            case IsNull() | EqualNullSafe(value=None):
                return "nulls > 0"
            case IsNotNull():
                return "lo IS NOT NULL OR nulls < rows"
        if not self._ordered:
            return None
        match filter_:
            case EqualTo(value=value) | EqualNullSafe(value=value):
                return _between(self._literal(value))
            case In(value=values):
                return " OR ".join(_between(self._literal(v)) for v in values)
            case LessThan() | LessThanOrEqual():
                return f"lo {_COMPARISONS[type(filter_)]} {self._literal(filter_.value)}"
            case GreaterThan() | GreaterThanOrEqual():
                return f"hi {_COMPARISONS[type(filter_)]} {self._literal(filter_.value)}"
            case StringStartsWith(value=value):
                # Beginnings are in the order of the texts that they begin, by code points in DuckDB as in Spark.
                literal = self._literal(value)
                return f"left(lo, {len(value)}) <= {literal} AND left(hi, {len(value)}) >= {literal}"
        return None

    def _literal(self, value: object) -> str | None:
        """The value as this column's type; None when it is not exactly one of it, or one to leave to Spark."""
        if value is None:
            return "NULL"
        text = _text(value, self.type)
        return None if text is None else f"CAST({quote_text(text)} AS {self.type})"


def _between(literal: str | None) -> str:
    return f"(lo <= {literal} AND hi >= {literal})"


def _text(value: object, type_: str) -> str | None:
    """What DuckDB reads as exactly this value of the type."""
    match value:
        case bool():
            return str(value).lower() if type_ == "BOOLEAN" else None
        case int() if type_ in _BITS:
            return str(value) if -(1 << _BITS[type_] - 1) <= value < 1 << _BITS[type_] - 1 else None
        case int() | Decimal() if type_.startswith("DECIMAL("):
            return _decimal(Decimal(value), type_)
        case float() if type_ in _FLOATS:
            # A Bloom filter takes 0.0 and -0.0 for two numbers.
            return repr(value) if math.isfinite(value) and value != 0 else None
        case str() if type_ == "VARCHAR":
            return value if "\0" not in value and _is_unicode(value) else None
        case datetime() if type_ == "TIMESTAMP" and value.tzinfo is None:
            return value.isoformat()
        case datetime() if type_ == "TIMESTAMP WITH TIME ZONE" and value.tzinfo is not None:
            return value.astimezone(UTC).isoformat()
        case date() if type_ == "DATE" and not isinstance(value, datetime):
            return value.isoformat()
    return None


def _decimal(value: Decimal, type_: str) -> str | None:
    precision, scale = map(int, type_.removeprefix("DECIMAL(").removesuffix(")").split(","))
    if not value.is_finite() or abs(value) >= Decimal(10) ** (precision - scale):
        return None
    text = f"{value:f}"
    return text if len(text.rpartition(".")[2].rstrip("0") if "." in text else "") <= scale else None


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in text)
