"""DuckDB types as Iceberg types, for columns of existing Parquet files and for values in paths.

    BOOLEAN, FLOAT, DOUBLE, DATE, TIME, UUID, BLOB   boolean, float, double, date, time, uuid, binary
    TINYINT, SMALLINT, INTEGER, UTINYINT, USMALLINT  int
    BIGINT, UINTEGER                                 long
    DECIMAL                                          decimal
    VARCHAR, JSON, ENUM                              string
    TIMESTAMP, TIMESTAMP WITH TIME ZONE              timestamp, timestamptz
    TIMESTAMP_NS                                     timestamp_ns, of format version 3
    T[], T[n], MAP, STRUCT                           list, map, struct

UBIGINT has no Iceberg type with which engines read the files correctly. The values of a partition column are texts in
paths, so it may also be a UBIGINT (decimal) or a UUID (string, because some engines reject a UUID there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import duckdb
from duckdb.sqltypes import DuckDBPyType

from icedb.errors import UnsupportedType
from icedb.sql.field_ids import field_id

__all__ = ["NANOSECONDS", "IcebergType", "file_types", "inner_fields", "path_types"]

#: The type that only format version 3 has.
NANOSECONDS = "timestamp_ns"

_PLAIN = {
    "boolean": "boolean", "tinyint": "int", "smallint": "int", "integer": "int", "bigint": "long", "utinyint": "int",
    "usmallint": "int", "uinteger": "long", "float": "float", "double": "double", "varchar": "string",
    "enum": "string", "blob": "binary", "date": "date", "time": "time", "uuid": "uuid", "timestamp": "timestamp",
    "timestamp with time zone": "timestamptz", "timestamp_ns": NANOSECONDS,
}  # fmt: skip
_IN_PATHS = {
    "ubigint": "decimal(20, 0)", "uuid": "string", "timestamp_s": "timestamp", "timestamp_ms": "timestamp",
}  # fmt: skip
_NOT_IN_PATHS = ("binary", NANOSECONDS)

#: A type in Iceberg's JSON: a name, or an object for a nested type.
IcebergType = str | dict[str, Any]
_Type = TypeVar("_Type", bound=IcebergType)


def file_types(columns: Mapping[str, str], *, table: str) -> dict[str, IcebergType]:
    """Return the Iceberg types of columns that files contain. Raises UnsupportedType, which names all that fail."""
    types = {name: _of(duckdb.sqltype(text), name) for name, text in columns.items()}
    return _all_supported(types, columns, table)


def path_types(columns: Mapping[str, str], *, table: str) -> dict[str, str]:
    """Return the Iceberg types of partition columns that are only in paths. Raises UnsupportedType."""
    types = {}
    for name, text in columns.items():
        of_path = _IN_PATHS.get(duckdb.sqltype(text).id) or _of(duckdb.sqltype(text), name)
        types[name] = of_path if isinstance(of_path, str) and of_path not in _NOT_IN_PATHS else None
    return _all_supported(types, columns, table)


def inner_fields(type_: IcebergType) -> list[tuple[int, str, IcebergType]]:
    """Return the id, the name and the type of each field that is directly in a nested type."""
    if isinstance(type_, str):
        return []
    if type_["type"] == "struct":
        return [(f["id"], f["name"], f["type"]) for f in type_["fields"]]
    names = ("element",) if type_["type"] == "list" else ("key", "value")
    return [(type_[f"{name}-id"], name, type_[name]) for name in names]


def _all_supported(types: Mapping[str, _Type | None], columns: Mapping[str, str], table: str) -> dict[str, _Type]:
    if unsupported := [f"'{name}' ({columns[name]})" for name, type_ in types.items() if type_ is None]:
        raise UnsupportedType(
            f"{table}: Iceberg has no type for {', '.join(unsupported)}. Nothing was exported. "
            "Name them in exclude_columns to export the others, or export as Parquet."
        )
    return {name: type_ for name, type_ in types.items() if type_ is not None}


def _of(type_: DuckDBPyType, *path: str) -> IcebergType | None:
    """Return the Iceberg type of the field at a path; None if it, or a field in it, has none."""
    match type_.id:
        case "decimal":
            of = dict(type_.children)
            return f"decimal({of['precision']}, {of['scale']})"
        case "list" | "array":
            element = _inner(type_)["child"]
            return _nested(
                "list",
                {"element-id": field_id(*path, "element"), "element-required": False},
                element=_of(element, *path, "element"),
            )
        case "map":
            inner = _inner(type_)
            ids = {"key-id": field_id(*path, "key"), "value-id": field_id(*path, "value"), "value-required": False}
            return _nested("map", ids, key=_of(inner["key"], *path, "key"), value=_of(inner["value"], *path, "value"))
        case "struct":
            types = {name: _of(inner, *path, name) for name, inner in _inner(type_).items()}
            if None in types.values():
                return None
            fields = [
                {"id": field_id(*path, name), "name": name, "required": False, "type": of} for name, of in types.items()
            ]
            return {"type": "struct", "fields": fields}
    return _PLAIN.get(type_.id)


def _inner(type_: DuckDBPyType) -> dict[str, DuckDBPyType]:
    """Return the types in a nested type, without the size of an array."""
    return {name: inner for name, inner in type_.children if isinstance(inner, DuckDBPyType)}


def _nested(kind: str, ids: Mapping[str, Any], **types: IcebergType | None) -> IcebergType | None:
    return None if None in types.values() else {"type": kind, **ids, **types}
