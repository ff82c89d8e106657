"""The types and bounds of a column's values.

A `Shape` observes them chunk by chunk, down into lists and dicts. It never keeps values.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, compress
from types import NoneType

from icedb.sources.inference.fields import columns_of
from icedb.sources.inference.python_values import PLAIN, UnknownValue, plain_all
from icedb.sources.inference.type_tree import ColumnType

__all__ = ["UnsupportedValue", "Shape", "is_exact_double"]

# Every integer up to here is a double.
_DOUBLE_INT_MAX = 2**53
_KINDS: dict[type, str] = {
    bool: "BOOLEAN",
    int: "INTEGER",
    float: "DOUBLE",
    Decimal: "DECIMAL",
    str: "VARCHAR",
    bytes: "BLOB",
    dt.date: "DATE",
    dt.timedelta: "INTERVAL",
    uuid.UUID: "UUID",
    dict: "STRUCT",
    list: "LIST",
}


class UnsupportedValue(Exception):
    """The error of a value in row `row` that no column can hold. `reason` describes the value and the remedy."""

    def __init__(self, path: str, row: int, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.row = row
        self.reason = reason


def is_exact_double(text: str) -> bool:
    """Return True if the double of a number, printed with as many digits, is the same text."""
    double = float(text)
    if repr(double) == text:  # the usual notation
        return True
    number = Decimal(text)
    digits = len(number.as_tuple().digits)
    return double - double == 0 and Decimal(f"{double:.{digits - 1}e}") == number


@dataclass(slots=True)
class Shape:
    """The kinds and bounds of the values at `path`: of a column, or inside it. Row numbers are those of the batch."""

    path: str
    #: The first row of each kind.
    kinds: dict[str, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    #: The first rows with an integer of more than 64 bits, an integer that is no double, a decimal that is no exact
    #: double.
    beyond_64_bits: int | None = None
    inexact_integer: int | None = None
    inexact_decimal: int | None = None
    #: True if all floats have 32 bits; computed only for a FLOAT column of the table.
    is_single: bool = True
    #: The most digits of integers and decimals before and after the point.
    digits: int = 0
    scale: int = 0
    #: The lengths of lists, the fields of dicts, or the keys and values of maps.
    lengths: set[int] = field(default_factory=set)
    fields: dict[str, Shape] = field(default_factory=dict)
    element: Shape | None = None
    keys: Shape | None = None
    mapped: Shape | None = None

    def observe(self, values: list[object], rows: Sequence[int], want: ColumnType | None) -> None:
        """Observe the values of these rows. `want` is the table's type. Raises UnsupportedValue."""
        types = set(map(type, values))
        if not types <= PLAIN:
            values = self._plain(values, rows)
            types = set(map(type, values))
        for type_ in types - {NoneType}:
            of_type, at = values, rows
            if len(types) > 1:
                are = [type(v) is type_ for v in values]
                of_type, at = list(compress(values, are)), list(compress(rows, are))
            if type_ in (dt.datetime, dt.time):
                self._times(of_type, at, "TIMESTAMP" if type_ is dt.datetime else "TIME")
                continue
            self._note(_KINDS[type_], at[0])
            observe_type = _OBSERVERS.get(type_)
            if observe_type is not None:
                observe_type(self, of_type, at, want)

    def _plain(self, values: list[object], rows: Sequence[int]) -> list[object]:
        try:
            return plain_all(values)
        except UnknownValue:
            for value, row in zip(values, rows, strict=True):
                try:
                    plain_all([value])
                except UnknownValue as error:
                    raise UnsupportedValue(self.path, row, str(error)) from None
            raise

    def _note(self, kind: str, row: int) -> None:
        self.kinds[kind] = min(row, self.kinds.get(kind, row))

    def _times(self, values: list[object], rows: Sequence[int], kind: str) -> None:
        naive = [v.tzinfo is None for v in values]  # type: ignore[attr-defined]
        for is_naive in set(naive):
            self._note(kind if is_naive else f"{kind} WITH TIME ZONE", rows[naive.index(is_naive)])

    def _integers(self, values: list[int], rows: Sequence[int], want: ColumnType | None) -> None:
        low, high = min(values), max(values)
        self.low, self.high = min(low, self.low), max(high, self.high)
        self.digits = max(self.digits, len(str(max(high, -low))))
        if max(high, -low) > _DOUBLE_INT_MAX:
            for value, row in zip(values, rows, strict=True):
                if self.inexact_integer is None and not _is_double(value):
                    self.inexact_integer = row
                if self.beyond_64_bits is None and not -(2**63) <= value < 2**64:
                    self.beyond_64_bits = row

    def _floats(self, values: list[float], rows: Sequence[int], want: ColumnType | None) -> None:
        if want is not None and want.name == "FLOAT" and self.is_single:
            self.is_single = all(map(_is_single, values))

    def _decimals(self, values: list[Decimal], rows: Sequence[int], want: ColumnType | None) -> None:
        for value, row in zip(values, rows, strict=True):
            _, digits, exponent = value.as_tuple()
            if not isinstance(exponent, int):
                raise UnsupportedValue(self.path, row, f"the decimal {value}, which no DECIMAL holds. Leave it out")
            self.scale = max(self.scale, -exponent)
            self.digits = max(self.digits, len(digits) + exponent)
            if self.inexact_decimal is None and not is_exact_double(str(value)):
                self.inexact_decimal = row

    def _lists(self, values: list[list[object]], rows: Sequence[int], want: ColumnType | None) -> None:
        self.lengths.update(map(len, values))
        if self.element is None:
            self.element = Shape(f"{self.path}[]")
        flat = list(chain.from_iterable(values))
        at = [r for v, r in zip(values, rows, strict=True) for _ in v]
        self.element.observe(flat, at, want.child("element") if want is not None else None)

    def _dicts(self, values: list[dict[object, object]], rows: Sequence[int], want: ColumnType | None) -> None:
        if want is not None and want.name == "MAP":
            self._maps(values, rows, want)
            return
        for name, field_values in columns_of(values).items():
            if not isinstance(name, str):
                row = next(r for v, r in zip(values, rows, strict=True) if name in v)
                reason = f"a dict with the key {name!r}, which is not text. Convert it, or declare the column as a MAP"
                raise UnsupportedValue(self.path, row, reason)
            if name not in self.fields:
                self.fields[name] = Shape(f"{self.path}.{name}")
            inner = want.child(name) if want is not None and want.name == "STRUCT" else None
            self.fields[name].observe(field_values, rows, inner)

    def _maps(self, values: list[dict[object, object]], rows: Sequence[int], want: ColumnType) -> None:
        if self.keys is None or self.mapped is None:
            self.keys, self.mapped = Shape(f"{self.path}.key"), Shape(f"{self.path}.value")
        at = [r for v, r in zip(values, rows, strict=True) for _ in v]
        self.keys.observe(list(chain.from_iterable(values)), at, want.child("key"))
        self.mapped.observe(list(chain.from_iterable(v.values() for v in values)), at, want.child("value"))


# The values of other types have no bounds.
_OBSERVERS: dict[type, Callable[..., None]] = {
    int: Shape._integers,
    float: Shape._floats,
    Decimal: Shape._decimals,
    list: Shape._lists,
    dict: Shape._dicts,
}


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _is_single(value: float) -> bool:
    try:
        return value != value or bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False
