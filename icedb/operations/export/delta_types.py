"""DuckDB types as Delta types, for columns of existing Parquet files.

    BOOLEAN, TINYINT to BIGINT, FLOAT, DOUBLE      boolean, byte to long, float, double
    UTINYINT, USMALLINT, UINTEGER                  the next wider integer: short, integer, long
    DECIMAL, DATE, BLOB                            decimal, date, binary
    VARCHAR, JSON, ENUM                            string
    TIMESTAMP                                      timestamp_ntz, which is a feature of its own
    TIMESTAMP WITH TIME ZONE                       timestamp
    T[], T[n], MAP, STRUCT                         array, map, struct

UBIGINT, TIME, TIMESTAMP_NS and UUID have no Delta type with which engines read the files correctly. The values of a
partition column are texts in paths, so it may also be a UBIGINT (decimal) or a UUID (string).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import duckdb
from duckdb.sqltypes import DuckDBPyType

from icedb.errors import UnsupportedType

__all__ = ["NO_ZONE", "delta_schema"]

#: The type that only programs with the feature `timestampNtz` read.
NO_ZONE = "timestamp_ntz"

_PLAIN = {
    "boolean": "boolean", "tinyint": "byte", "smallint": "short", "integer": "integer", "bigint": "long",
    "utinyint": "short", "usmallint": "integer", "uinteger": "long", "float": "float", "double": "double",
    "varchar": "string", "enum": "string", "blob": "binary", "date": "date", "timestamp": NO_ZONE,
    "timestamp with time zone": "timestamp",
}  # fmt: skip
_IN_PATHS = {"ubigint": "decimal(20,0)", "uuid": "string"}


def delta_schema(columns: Mapping[str, str], partitions: Mapping[str, str], *, table: str) -> str:
    """Return Delta's `schemaString`: columns of files, then partition columns. UnsupportedType names all that fail."""
    fields, unsupported = [], []
    for of_paths, name, text in [(False, *c) for c in columns.items()] + [(True, *c) for c in partitions.items()]:
        type_ = duckdb.sqltype(text)
        delta_type = _of_path(type_) if of_paths else _delta(type_)
        if delta_type is None:
            unsupported.append(f"'{name}' ({text})")
        fields.append(_field(name, delta_type))
    if unsupported:
        raise UnsupportedType(
            f"{table}: Delta has no type for {', '.join(unsupported)}. Nothing was exported. "
            "Name them in exclude_columns to export the others, or export as Parquet."
        )
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def _field(name: str, type_: object) -> dict[str, object]:
    return {"name": name, "type": type_, "nullable": True, "metadata": {}}


def _of_path(type_: DuckDBPyType) -> object:
    delta_type = _IN_PATHS.get(type_.id) or _delta(type_)
    return delta_type if isinstance(delta_type, str) and delta_type != "binary" else None


def _delta(type_: DuckDBPyType) -> object:
    """Return Delta's name of a type, an object for a nested type, or None if Delta has no such type."""
    match type_.id:
        case "decimal":
            of = dict(type_.children)
            return f"decimal({of['precision']},{of['scale']})"
        case "list" | "array":
            return _nested("array", elementType=_inner(type_)["child"], containsNull=True)
        case "map":
            inner = _inner(type_)
            return _nested("map", keyType=inner["key"], valueType=inner["value"], valueContainsNull=True)
        case "struct":
            fields = _inner(type_)
            if None in fields.values():
                return None
            return _nested("struct", fields=[_field(*f) for f in fields.items()])
    return _PLAIN.get(type_.id)


def _inner(type_: DuckDBPyType) -> dict[str, object]:
    """Return the types in a nested type, without the size of an array."""
    return {name: _delta(inner) for name, inner in type_.children if isinstance(inner, DuckDBPyType)}


def _nested(kind: str, **of: object) -> object:
    return None if None in of.values() else {"type": kind, **of}
