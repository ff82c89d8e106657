"""Iceberg's ids of columns and of the fields in them.

An id depends on nothing but the names on the path to a field, so every writer and every reader computes the same one,
and the log needs no key for it. The elements of a list are `element`, those of a map are `key` and `value`, as in
Iceberg's name mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import duckdb
from duckdb.sqltypes import DuckDBPyType

from icedb.sql.connections import quote_text

__all__ = ["field_id", "field_ids_sql"]

_SEPARATOR = "\x1f"
# Iceberg reserves the greatest 32-bit integers for its own columns.
_BITS = 30


def field_id(*path: str) -> int:
    """Return the id of a field: the CRC-32 of its path, of which the lowest 30 bits are used. 0 is replaced by 1."""
    return (crc32(_SEPARATOR.join(path).encode()) & ((1 << _BITS) - 1)) or 1


def field_ids_sql(columns: Mapping[str, str]) -> str:
    """Return the value of FIELD_IDS in a COPY statement, for columns with these DuckDB types."""
    return _struct_sql({name: _ids_sql(duckdb.sqltype(type_), name) for name, type_ in columns.items()})


def _ids_sql(type_: DuckDBPyType, *path: str) -> str:
    id_ = str(field_id(*path))
    if type_.id not in ("list", "map", "struct"):
        return id_
    children = ((name, child) for name, child in type_.children if isinstance(child, DuckDBPyType))
    inner = {"element" if type_.id == "list" else name: child for name, child in children}
    return _struct_sql({"__duckdb_field_id": id_, **{n: _ids_sql(child, *path, n) for n, child in inner.items()}})


def _struct_sql(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quote_text(name)}: {value}" for name, value in values.items()) + "}"
