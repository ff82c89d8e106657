"""Conversion of numpy scalars, enums, subclasses and the missing values of pandas to plain Python values."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Mapping
from decimal import Decimal
from types import NoneType

import msgspec

__all__ = ["PLAIN", "UnknownValue", "json_text", "plain", "plain_all"]

#: The exact types that have a column type of their own.
PLAIN = frozenset((NoneType, bool, int, float, Decimal, str, bytes, uuid.UUID, dict, list)) | frozenset(
    (dt.date, dt.datetime, dt.time, dt.timedelta)
)
_MISSING = frozenset(("NAType", "NaTType"))
# Special types before general ones: a datetime is a date, and bool an int.
_BASES: tuple[type, ...] = (str, int, float, Decimal, bytes)


class UnknownValue(ValueError):
    """The error of a value that no column can hold. Its text describes the value and the remedy."""


def plain_all(values: list[object]) -> list[object]:
    """Convert values to plain ones. Returns the same list if they are plain already. Raises UnknownValue."""
    return [plain(v) for v in values] if set(map(type, values)) - PLAIN else values


def plain(value: object) -> object:
    """Convert a value to a plain type, but not the elements of lists and dicts. Raises UnknownValue."""
    own = type(value)
    if own in PLAIN:
        return value
    module = own.__module__.partition(".")[0]
    if module == "pandas" and own.__name__ in _MISSING:
        return None
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if module == "numpy" and hasattr(value, "dtype"):
        return _from_numpy(value)
    for base in _BASES:
        if isinstance(value, base):
            return base(value)
    return _from_subclass(value)


def _from_subclass(value: object) -> object:
    if isinstance(value, dt.datetime):
        if getattr(value, "nanosecond", 0):
            raise UnknownValue("a time with nanoseconds. Round it, or give an Arrow array of timestamps")
        return dt.datetime.combine(value.date(), value.timetz())
    if isinstance(value, dt.timedelta):
        return dt.timedelta(value.days, value.seconds, value.microseconds)
    if isinstance(value, dt.date):
        return dt.date(value.year, value.month, value.day)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, set | frozenset):
        raise UnknownValue("a set, which has no order. Give a list")
    raise UnknownValue(f"a {type(value).__module__}.{type(value).__qualname__}. Convert it to a type that Arrow has")


def _from_numpy(value: object) -> object:
    """Convert a numpy scalar or array. Its own `item` and `tolist` would turn nanoseconds into plain numbers."""
    kind, shape = value.dtype.kind, getattr(value, "shape", ())  # type: ignore[attr-defined]
    if shape:
        return list(value) if kind in "mM" else value.tolist()  # type: ignore[call-overload, attr-defined]
    if kind in "mM" and str(value) == "NaT":
        return None
    if kind == "M":
        micros = value.astype("datetime64[us]")  # type: ignore[attr-defined]
        if micros != value:
            raise UnknownValue("a time with nanoseconds. Round it, or give an Arrow array of timestamps")
        day = str(value.dtype) in ("datetime64[D]", "datetime64[M]", "datetime64[Y]", "datetime64[W]")  # type: ignore[attr-defined]
        return micros.item().date() if day else micros.item()
    if kind == "m":
        return dt.timedelta(0)  # no column holds an INTERVAL, so its length does not matter
    item = value.item()  # type: ignore[attr-defined]
    if type(item) in PLAIN:
        return item
    raise UnknownValue(f"a numpy {value.dtype}. Convert it to a type that Arrow has")  # type: ignore[attr-defined]


_JSON = msgspec.json.Encoder(decimal_format="number")


def json_text(value: object) -> str:
    """Encode a value as JSON without loss, with long numbers, NaN and infinities in DuckDB's notation.

    Raises UnknownValue for bytes, which JSON does not have.
    """
    return _JSON.encode(_for_json(value)).decode()


def _for_json(value: object) -> object:
    value = plain(value)
    match value:
        case bytes():
            raise UnknownValue("bytes, which JSON cannot hold. Write them as text")
        case float() if value != value or value in (float("inf"), float("-inf")):
            return msgspec.Raw(b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity")
        case bool():
            return value
        case int():
            return msgspec.Raw(str(value).encode())
        case dt.timedelta():
            raise UnknownValue("a duration, which JSON cannot hold. Write it as a number or text")
        case dict():
            return {_key(k): _for_json(v) for k, v in value.items()}
        case list():
            return [_for_json(v) for v in value]
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise UnknownValue(f"a dict with the key {key!r}, which is not text. Declare the column as a MAP")
    return key
