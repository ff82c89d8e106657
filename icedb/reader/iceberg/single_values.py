"""Values of one column in Iceberg's encodings: binary for bounds, Avro for the partition values of files.

The log and the paths have values as DuckDB's texts. The values of a column are converted together, which takes a tenth
of the time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import Any

from icedb.reader.iceberg.avro import avro_boolean, avro_long, avro_text
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_texts

__all__ = ["avro_type", "avro_value", "binary_value", "encode_bounds", "parse_values"]

# Enough digits for each decimal; Python's default has 28.
_EXACT = Context(prec=80)
# How DuckDB computes the number that Iceberg stores, from a text `v`.
_TEMPORAL = {
    "date": ("DATE", "CASE WHEN isfinite({0}) THEN {0} - DATE '1970-01-01' END"),
    "time": ("TIME", "epoch_us({0})"),
    "timestamp": ("TIMESTAMP", "CASE WHEN isfinite({0}) THEN epoch_us({0}) END"),
    "timestamptz": ("TIMESTAMP WITH TIME ZONE", "CASE WHEN isfinite({0}) THEN epoch_us({0}) END"),
    "timestamp_ns": ("TIMESTAMP_NS", "CASE WHEN isfinite({0}::TIMESTAMP) THEN epoch_ns({0}) END"),
}


def parse_values(type_: str, texts: Sequence[str | None]) -> list[Any]:
    """Return Iceberg's values of an Iceberg type: an int for times; None for null and for texts that are no value."""
    if type_ == "string":
        return list(texts)
    if type_ in _TEMPORAL:
        of, number = _TEMPORAL[type_]
        return _queried(number.format(f"TRY_CAST(v AS {of})"), texts)
    parse = _PARSERS.get(type_.partition("(")[0])
    return [None] * len(texts) if parse is None else [_parsed(parse, text) for text in texts]


def _queried(value: str, texts: Sequence[str | None]) -> list[Any]:
    with scratch_connection() as con:
        rows = con.execute(f"SELECT {value} FROM (SELECT unnest({quote_texts(texts)}) AS v)").fetchall()
        return [v for (v,) in rows]


def _parsed(parse: Callable[[str], Any], text: str | None) -> Any:
    try:
        return None if text is None else parse(text)
    except (ValueError, ArithmeticError):  # another program wrote it
        return None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean, "int": int, "long": int, "float": float, "double": float, "decimal": Decimal,
}  # fmt: skip
_STRUCTS = {
    "int": struct.Struct("<i"), "date": struct.Struct("<i"), "long": struct.Struct("<q"), "time": struct.Struct("<q"),
    "timestamp": struct.Struct("<q"), "timestamptz": struct.Struct("<q"), "timestamp_ns": struct.Struct("<q"),
    "float": struct.Struct("<f"), "double": struct.Struct("<d"),
}  # fmt: skip


def binary_value(type_: str, value: Any) -> bytes:
    """Encode a value as Iceberg's "binary single-value serialization" does."""
    if type_ == "string":
        return str(value).encode()
    if type_ == "boolean":
        return avro_boolean(value)  # the same byte in both encodings
    if type_.startswith("decimal"):
        unscaled = _unscaled(type_, value)
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return _STRUCTS[type_].pack(value)


def encode_bounds(type_: str, values: Iterable[Any], *, upper: bool = False) -> list[bytes | None]:
    """Encode values that no value of a column is less than, or greater than if `upper`. None for no such value.

    All are None if the type has no such bounds.
    """
    if type_ in ("float", "double"):
        # Iceberg's order has -0.0 before 0.0, and DuckDB's bounds do not tell which it is.
        zero = 0.0 if upper else -0.0
        values = [None if v is None or not math.isfinite(v) else v or zero for v in values]
    encode = _BOUNDS.get(type_)
    if encode is None:
        return [None for _ in values]
    return [None if v is None else encode(v) for v in values]


def _packed(form: str) -> Callable[[Any], bytes | None]:
    pack = struct.Struct(form).pack

    def packed(value: Any) -> bytes | None:
        try:
            return pack(value)
        except (struct.error, OverflowError):  # another program recorded a number that is not of the type
            return None

    return packed


_BOUNDS: dict[str, Callable[[Any], bytes | None]] = {
    "string": str.encode, "boolean": avro_boolean, **{type_: _packed(s.format) for type_, s in _STRUCTS.items()},
}  # fmt: skip


def avro_type(type_: str, name: str) -> Any:
    """Return the type of partition values of an Iceberg type in Avro's JSON. `name` is unique in the schema."""
    logical = {
        "date": {"type": "int", "logicalType": "date"},
        "time": {"type": "long", "logicalType": "time-micros"},
        "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
        "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    }
    if type_.startswith("decimal"):
        precision, scale = _precision(type_)
        size = _decimal_bytes(precision)
        of = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {"type": "fixed", "name": name, "size": size, **of}
    return logical.get(type_, type_)


def avro_value(type_: str, value: Any) -> bytes:
    """Encode a partition value that is not null as Avro."""
    if type_ == "string":
        return avro_text(value)
    if type_ == "boolean":
        return avro_boolean(value)
    if type_ in ("float", "double"):
        return _STRUCTS[type_].pack(value)
    if type_.startswith("decimal"):
        return _unscaled(type_, value).to_bytes(_decimal_bytes(_precision(type_)[0]), "big", signed=True)
    return avro_long(value)


def _precision(type_: str) -> tuple[int, int]:
    precision, scale = type_.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def _decimal_bytes(precision: int) -> int:
    """Return the fewest bytes that hold each number of so many digits."""
    return (int(10**precision - 1).bit_length() + 8) // 8


def _unscaled(type_: str, value: Decimal) -> int:
    return int(value.scaleb(_precision(type_)[1], _EXACT))
