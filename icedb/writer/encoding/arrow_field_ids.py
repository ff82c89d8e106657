"""Iceberg's field ids in the schema of a Parquet file, by which readers of Iceberg find columns and fields."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from icedb.sql.field_ids import field_id

__all__ = ["with_field_ids"]

_KEY = b"PARQUET:field_id"


@lru_cache(maxsize=1024)
def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the id of each field; without ids if two fields have the same one."""
    ids: list[int] = []
    fields = [_field(field, (field.name,), ids) for field in schema]
    return pa.schema(fields) if len(ids) == len(set(ids)) else schema


def _field(field: pa.Field, path: tuple[str, ...], ids: list[int]) -> pa.Field:
    """Return the field with its id and those of the fields in it, and add the ids to `ids`."""
    id_ = field_id(*path)
    ids.append(id_)
    return field.with_type(_type(field.type, path, ids)).with_metadata({_KEY: str(id_).encode()})


def _type(type_: pa.DataType, path: tuple[str, ...], ids: list[int]) -> pa.DataType:
    def inner(field: pa.Field, name: str) -> pa.Field:
        return _field(field, (*path, name), ids)

    if pa.types.is_struct(type_):
        return pa.struct([inner(field, field.name) for field in type_.fields])
    if pa.types.is_map(type_):
        return pa.map_(inner(type_.key_field, "key"), inner(type_.item_field, "value"), type_.keys_sorted)
    if pa.types.is_list(type_):
        return pa.list_(inner(type_.value_field, "element"))
    if pa.types.is_large_list(type_):
        return pa.large_list(inner(type_.value_field, "element"))
    return type_
