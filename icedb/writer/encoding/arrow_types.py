"""The Arrow type in which a column's values are encoded, for each DuckDB type that pyarrow writes as DuckDB does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

__all__ = ["arrow_schema", "arrow_type", "is_same_type"]

_PLAIN: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
    "UUID": pa.uuid(),
    "JSON": pa.json_(),
}


@lru_cache(maxsize=4096)
def arrow_type(duckdb_type: str) -> pa.DataType | None:
    """Return the Arrow type of a DuckDB type; None if pyarrow would write another type to Parquet than DuckDB.

    >>> arrow_type("DECIMAL(9,2)[]")
    ListType(list<element: decimal128(9, 2)>)
    """
    plain = _PLAIN.get(duckdb_type)
    return _nested(duckdb.sqltype(duckdb_type)) if plain is None else plain


def _nested(type_: Any) -> pa.DataType | None:
    plain = _PLAIN.get(str(type_))
    if plain is not None:
        return plain
    if type_.id == "decimal":
        (_, precision), (_, scale) = type_.children
        return pa.decimal128(precision, scale)
    if type_.id not in ("list", "struct", "map"):
        return None
    children = [(name, _nested(child)) for name, child in type_.children]
    if any(child is None for _, child in children):
        return None
    match type_.id:
        case "list":
            return pa.list_(pa.field("element", children[0][1]))
        case "struct":
            return pa.struct(children)
    return pa.map_(children[0][1], children[1][1])


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema | None:
    """Return the Arrow schema of columns with these DuckDB types; None if one has no Arrow type."""
    types = {column: arrow_type(type_) for column, type_ in columns.items()}
    return None if None in types.values() else pa.schema(types.items())


def is_same_type(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of a type can be encoded as `target` without a conversion: only the width of offsets,
    the names of list elements, and the name of a time zone may differ."""
    if source == target:
        return True
    if pa.types.is_large_string(source):
        return bool(pa.types.is_string(target))
    if pa.types.is_large_binary(source):
        return bool(pa.types.is_binary(target))
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return source.unit == target.unit and (source.tz is None) == (target.tz is None)
    return False
