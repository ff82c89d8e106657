"""The type of a column as a tree, parsed from DuckDB's name and converted to that name or to Arrow's type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_name

__all__ = ["INTEGERS", "ColumnType", "arrow_type", "parse_type", "sql_type", "is_arrow_exact"]

#: The least and greatest value of each integer type that DuckDB and Arrow have.
INTEGERS = {
    **{name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in
       (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64))},
    **{name: (0, 2**bits - 1) for name, bits in
       (("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64))},
}  # fmt: skip

# Text and bytes have 64-bit offsets: a chunk of long texts may be more than 2 GB. UUIDs and JSON travel as text, and
# 128-bit integers as decimals; a cast makes them what they are.
_ARROW = {
    "NULL": pa.null(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "HUGEINT": pa.decimal128(38, 0),
    "UHUGEINT": pa.decimal128(38, 0),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.large_string(),
    "JSON": pa.large_string(),
    "UUID": pa.large_string(),
    "BLOB": pa.large_binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}
_ONLY_BY_CAST = frozenset(("HUGEINT", "UHUGEINT", "JSON", "UUID"))


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type. `name` is DuckDB's name of a scalar, or NULL, DECIMAL, STRUCT, LIST, ARRAY, MAP.

    `children`: a struct's fields by name; a list's or array's `element`; a map's `key` and `value`. `width` and `scale`
    are a decimal's, `size` an array's.
    """

    name: str
    children: tuple[tuple[str, ColumnType], ...] = ()
    width: int = 0
    scale: int = 0
    size: int = 0

    def child(self, name: str) -> ColumnType | None:
        """Return the child of that name, or None."""
        return dict(self.children).get(name)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ColumnType:
    """Parse DuckDB's name of a column type. Raises duckdb.Error if it is none."""
    with scratch_connection() as con:
        return _from_duckdb(con.sqltype(text))


def _from_duckdb(type_: duckdb.sqltypes.DuckDBPyType) -> ColumnType:
    if type_.id not in ("struct", "list", "array", "map", "decimal"):
        return ColumnType(str(type_))
    inner: dict[str, Any] = dict(type_.children)
    match type_.id:
        case "decimal":
            return ColumnType("DECIMAL", width=int(inner["precision"]), scale=int(inner["scale"]))
        case "struct":
            return ColumnType("STRUCT", tuple((n, _from_duckdb(t)) for n, t in inner.items()))
        case "map":
            return ColumnType("MAP", (("key", _from_duckdb(inner["key"])), ("value", _from_duckdb(inner["value"]))))
        case "array":
            return ColumnType("ARRAY", (("element", _from_duckdb(inner["child"])),), size=int(inner["size"]))
    return ColumnType("LIST", (("element", _from_duckdb(inner["child"])),))


def sql_type(type_: ColumnType) -> str:
    """Return DuckDB's name of a type, quoted for a statement."""
    inner = [sql_type(t) for _, t in type_.children]
    match type_.name:
        case "NULL":
            return '"NULL"'
        case "DECIMAL":
            return f"DECIMAL({type_.width},{type_.scale})"
        case "STRUCT":
            fields = (f"{quote_name(n)} {t}" for (n, _), t in zip(type_.children, inner, strict=True))
            return f"STRUCT({', '.join(fields)})"
        case "MAP":
            return f"MAP({', '.join(inner)})"
        case "ARRAY":
            return f"{inner[0]}[{type_.size}]"
        case "LIST":
            return f"{inner[0]}[]"
    return type_.name


def arrow_type(type_: ColumnType) -> pa.DataType:
    """Return Arrow's type. Raises KeyError for a type that no inferred column has."""
    inner = [arrow_type(t) for _, t in type_.children]
    match type_.name:
        case "DECIMAL":
            return pa.decimal128(type_.width, type_.scale)
        case "STRUCT":
            return pa.struct([(n, t) for (n, _), t in zip(type_.children, inner, strict=True)])
        case "MAP":
            return pa.map_(*inner)
        case "ARRAY":
            return pa.list_(inner[0], type_.size)
        case "LIST":
            return pa.list_(inner[0])
    return _ARROW[type_.name]


def is_arrow_exact(type_: ColumnType) -> bool:
    """Return True if DuckDB reads Arrow's type as this type. Otherwise the column is cast when it is read."""
    return type_.name not in _ONLY_BY_CAST and all(is_arrow_exact(t) for _, t in type_.children)
