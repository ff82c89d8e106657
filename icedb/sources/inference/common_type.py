"""The type that holds every value of a column unchanged: the table's, or the natural type of the values.

Both follow from the column's `Shape` alone. No value is rounded, truncated or converted to text to make it fit.
"""

from __future__ import annotations

from icedb.sources.inference.type_tree import INTEGERS, ColumnType
from icedb.sources.inference.value_types import Shape

__all__ = ["MixedTypes", "fits", "natural_type"]

# Every integer up to here is a float of 32 bits.
_FLOAT_INT_MAX = 2**24
# The widths of decimals; the smaller one takes half the bytes.
_WIDTHS = (18, 38)


class MixedTypes(Exception):
    """The error of values without a common type. `types` are those of earlier values and of the value in row `row`."""

    def __init__(self, path: str, types: tuple[str, str], row: int, *, reason: str = "") -> None:
        super().__init__(reason)
        self.path = path
        self.types = types
        self.row = row
        self.reason = reason


def fits(shape: Shape, type_: ColumnType, *, json: bool) -> bool:
    """Return True if a column of that type holds every value unchanged. `json`: all numbers are of one kind."""
    kinds = set(shape.kinds)
    if not kinds:
        return True
    match type_.name:
        case "DOUBLE" | "FLOAT":
            return _fits_double(shape, type_, json=json)
        case "DECIMAL":
            digits = shape.digits <= type_.width - type_.scale and shape.scale <= type_.scale
            return kinds <= {"INTEGER", "DECIMAL"} and digits
        case "HUGEINT" | "UHUGEINT":
            return kinds == {"INTEGER"} and shape.digits <= _WIDTHS[-1] and (type_.name == "HUGEINT" or shape.low >= 0)
        case "TIMESTAMP_NS":
            return kinds == {"TIMESTAMP"}
        case "JSON":
            return True
        case "LIST" | "ARRAY" | "MAP" | "STRUCT":
            return _fits_nested(shape, type_, kinds, json=json)
    if type_.name in INTEGERS:
        low, high = INTEGERS[type_.name]
        return kinds == {"INTEGER"} and low <= shape.low and shape.high <= high
    return kinds == {type_.name}


def _fits_double(shape: Shape, type_: ColumnType, *, json: bool) -> bool:
    if not set(shape.kinds) <= ({"INTEGER", "DOUBLE", "DECIMAL"} if json else {"INTEGER", "DOUBLE"}):
        return False
    if type_.name == "FLOAT":
        whole = max(shape.high, -shape.low) <= _FLOAT_INT_MAX
        return whole and shape.is_single and "DECIMAL" not in shape.kinds
    return shape.inexact_integer is None and shape.inexact_decimal is None


def _fits_nested(shape: Shape, type_: ColumnType, kinds: set[str], *, json: bool) -> bool:
    inner = [t for _, t in type_.children]
    match type_.name:
        case "STRUCT":
            types = dict(type_.children)
            fields = shape.fields.items()
            return kinds == {"STRUCT"} and all(n in types and fits(s, types[n], json=json) for n, s in fields)
        case "MAP":
            if kinds != {"STRUCT"} or shape.keys is None or shape.mapped is None:
                return False
            return fits(shape.keys, inner[0], json=json) and fits(shape.mapped, inner[1], json=json)
        case "ARRAY":
            if shape.lengths != {type_.size}:
                return False
    return kinds == {"LIST"} and shape.element is not None and fits(shape.element, inner[0], json=json)


def natural_type(shape: Shape, *, json: bool) -> ColumnType:
    """Return the natural type of the values. Raises MixedTypes if there is none.

    Struct fields that are null in all rows are omitted: their type is unknown, and a missing field is null.
    """
    kinds = sorted(shape.kinds, key=lambda k: shape.kinds[k])
    numbers = [k for k in kinds if k in ("INTEGER", "DOUBLE", "DECIMAL")]
    if not kinds:
        return ColumnType("NULL")
    for kind in kinds[1:]:
        if kind not in numbers or kinds[0] not in numbers:
            raise MixedTypes(shape.path, (_type_name(kinds[0]), _type_name(kind)), shape.kinds[kind])
    if numbers:
        return _number(shape, numbers, json=json)
    match kinds[0]:
        case "LIST":
            element = ColumnType("NULL") if shape.element is None else natural_type(shape.element, json=json)
            return ColumnType("LIST", (("element", element),))
        case "STRUCT" if shape.keys is not None and shape.mapped is not None:
            pair = natural_type(shape.keys, json=json), natural_type(shape.mapped, json=json)
            return ColumnType("MAP", (("key", pair[0]), ("value", pair[1])))
        case "STRUCT":
            fields = [(n, natural_type(s, json=json)) for n, s in shape.fields.items()]
            typed = [(n, t) for n, t in fields if t.name != "NULL"]
            return ColumnType("STRUCT", tuple(typed or fields))
    return ColumnType(kinds[0])


def _type_name(kind: str) -> str:
    return "BIGINT" if kind == "INTEGER" else kind


def _number(shape: Shape, kinds: list[str], *, json: bool) -> ColumnType:
    if kinds == ["INTEGER"]:
        return _integer(shape)
    if "DOUBLE" not in kinds and not json:
        return _decimal(shape)
    if "DECIMAL" in kinds and not json:
        raise MixedTypes(shape.path, (_type_name(kinds[0]), _type_name(kinds[1])), shape.kinds[kinds[1]])
    if shape.inexact_decimal is not None:
        reason = "a number that no DOUBLE holds exactly. Declare the column as a DECIMAL, or write it as text"
        raise MixedTypes(shape.path, ("DOUBLE", "DECIMAL"), shape.inexact_decimal, reason=reason)
    if shape.inexact_integer is not None:
        raise MixedTypes(shape.path, ("DOUBLE", "BIGINT"), shape.inexact_integer)
    return ColumnType("DOUBLE")


def _integer(shape: Shape) -> ColumnType:
    for name in ("BIGINT", "UBIGINT"):
        low, high = INTEGERS[name]
        if low <= shape.low and shape.high <= high:
            return ColumnType(name)
    reason = (
        "an integer that neither BIGINT nor UBIGINT holds. Declare the column as DECIMAL(38,0), or write it as text"
    )
    row = shape.kinds["INTEGER"] if shape.beyond_64_bits is None else shape.beyond_64_bits
    raise MixedTypes(shape.path, ("BIGINT", "HUGEINT"), row, reason=reason)


def _decimal(shape: Shape) -> ColumnType:
    for width in _WIDTHS:
        if shape.digits + shape.scale <= width:
            return ColumnType("DECIMAL", width=width, scale=shape.scale)
    reason = "decimals of more than 38 digits. Round them, or write them as text"
    raise MixedTypes(shape.path, ("DECIMAL", "DECIMAL"), shape.kinds["DECIMAL"], reason=reason)
