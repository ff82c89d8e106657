"""Iceberg's field ids in the schema of a Parquet file, by which readers of Iceberg find columns and fields."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from icedb.sql.field_ids import field_id

__all__ = ["with_field_ids"]

_KEY = b"PARQUET:field_id"


@lru_cache(maxsize=1024)
def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the id of each field; without ids if two fields have the same one."""
    fields = [_field(field, field.name) for field in schema]
    ids = [id_ for field in fields for id_ in _ids(field)]
    return pa.schema(fields) if len(ids) == len(set(ids)) else schema


def _field(field: pa.Field, *path: str) -> pa.Field:
    return field.with_type(_type(field.type, path)).with_metadata({_KEY: str(field_id(*path)).encode()})


def _type(type_: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([_field(field, *path, field.name) for field in type_.fields])
    if pa.types.is_map(type_):
        return pa.map_(
            _field(type_.key_field, *path, "key"), _field(type_.item_field, *path, "value"), type_.keys_sorted
        )
    if pa.types.is_list(type_):
        return pa.list_(_field(type_.value_field, *path, "element"))
    if pa.types.is_large_list(type_):
        return pa.large_list(_field(type_.value_field, *path, "element"))
    return type_


def _ids(field: pa.Field) -> Iterator[bytes]:
    yield field.metadata[_KEY]
    for number in range(field.type.num_fields):
        yield from _inner_ids(field.type.field(number))


def _inner_ids(field: pa.Field) -> Iterator[bytes]:
    """Yield the ids of a field in a nested type. The entries of a map have no id, but their keys and values do."""
    if field.metadata and _KEY in field.metadata:
        yield from _ids(field)
    else:
        for number in range(field.type.num_fields):
            yield from _inner_ids(field.type.field(number))
