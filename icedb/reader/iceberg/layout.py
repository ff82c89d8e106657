"""The schema, the name mapping and the partition spec of a snapshot, as Iceberg describes them.

Partition columns that only paths contain are columns of the schema and identity fields of the partition spec: readers
fill them from the manifests. A partition column that is also stored is a plain column. Its value in a row may differ
from the path's, so it must not be a partition field; its bounds prune the parts.

Ids are digests of names and types, so that the schemas and partition specs of all snapshots have their own ids without
a list of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import msgspec

from icedb.errors import UnsupportedType
from icedb.reader.iceberg.iceberg_types import NANOSECONDS, IcebergType, file_types, inner_fields, path_types
from icedb.reader.snapshot import Snapshot
from icedb.sql.field_ids import field_id

__all__ = ["IcebergLayout", "PartitionField", "layout_of"]

# Iceberg's ids of partition fields begin here.
_PARTITION_IDS = 1000
_BITS = 29


@dataclass(frozen=True)
class PartitionField:
    """An identity field of the partition spec. `source_id` is the id of its column in the schema."""

    name: str
    #: The types in DuckDB and in Iceberg.
    type: str
    iceberg_type: str
    source_id: int
    id: int


@dataclass(frozen=True)
class IcebergLayout:
    """The columns of a snapshot. `columns` are those of the files: name -> DuckDB type."""

    columns: Mapping[str, str]
    types: Mapping[str, IcebergType]
    partition_fields: Sequence[PartitionField]

    @cached_property
    def fields(self) -> list[dict[str, Any]]:
        """The fields of Iceberg's schema."""
        fields = [_field(field_id(name), name, type_) for name, type_ in self.types.items()]
        return fields + [_field(f.source_id, f.name, f.iceberg_type) for f in self.partition_fields]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Iceberg's schema."""
        return {"type": "struct", "schema-id": _digest(self.fields), "fields": self.fields}

    @cached_property
    def partition_spec(self) -> dict[str, Any]:
        """Iceberg's partition spec."""
        fields = [
            {"source-id": f.source_id, "field-id": f.id, "name": f.name, "transform": "identity"}
            for f in self.partition_fields
        ]
        return {"spec-id": _digest(fields) if fields else 0, "fields": fields}

    @property
    def format_version(self) -> int:
        """The lowest format version that has the types."""
        return 3 if any(type_ == NANOSECONDS for _, _, type_ in self.all_fields()) else 2

    @property
    def last_column_id(self) -> int:
        """The greatest id of a field."""
        return max((id_ for id_, _, _ in self.all_fields()), default=0)

    @property
    def name_mapping(self) -> list[dict[str, object]]:
        """The names by which readers find the fields in parts without field ids.

        Partition columns of paths are not in it: a part may contain a dropped column of that name.
        """
        return [_mapped(field_id(name), name, type_) for name, type_ in self.types.items()]

    def all_fields(self) -> Iterator[tuple[int, str, IcebergType]]:
        """Yield the id, the name and the type of each column, and of each field in it."""
        for field in self.fields:
            yield from _with_inner(field["id"], field["name"], field["type"])


def layout_of(snapshot: Snapshot, columns: Mapping[str, str], partitions: Mapping[str, str]) -> IcebergLayout:
    """Return the layout of these columns of files, and of these partition columns of paths: name -> DuckDB type.

    Raises UnsupportedType, which names the columns that have no Iceberg type.
    """
    in_paths = path_types(partitions, table=snapshot.table)
    layout = IcebergLayout(
        columns,
        file_types(columns, table=snapshot.table),
        [_partition_field(name, partitions[name], type_) for name, type_ in in_paths.items()],
    )
    _check_ids(snapshot, layout)
    return layout


def _partition_field(name: str, type_: str, iceberg_type: str) -> PartitionField:
    # Its type is part of the id, because a partition column may change its type when the table is altered.
    id_ = crc32(f"{name}\x1f{iceberg_type}".encode()) & ((1 << _BITS) - 1)
    return PartitionField(name, type_, iceberg_type, field_id("", name, iceberg_type), _PARTITION_IDS + id_)


def _check_ids(snapshot: Snapshot, layout: IcebergLayout) -> None:
    """Raise UnsupportedType if two fields have the same id, which is the case for one in a million tables."""
    # Columns that are excluded, or were dropped, are in the files with their ids.
    others = [c for c in (*snapshot.spec.dropped, *snapshot.schema) if c not in layout.columns]
    names = {field_id(column): column for column in others}
    for id_, name, _ in layout.all_fields():
        if names.setdefault(id_, name) != name:
            raise UnsupportedType(
                f"{snapshot.table}: the columns '{names[id_]}' and '{name}' have the same Iceberg field id, {id_}. "
                "Nothing was exported. Store one of them under another name, or export as Delta or Parquet."
            )


def _field(id_: int, name: str, type_: IcebergType) -> dict[str, Any]:
    return {"id": id_, "name": name, "required": False, "type": type_}


def _with_inner(id_: int, name: str, type_: IcebergType) -> Iterator[tuple[int, str, IcebergType]]:
    yield id_, name, type_
    for inner_id, inner_name, inner in inner_fields(type_):
        yield from _with_inner(inner_id, f"{name}.{inner_name}", inner)


def _mapped(id_: int, name: str, type_: IcebergType) -> dict[str, object]:
    inner = [_mapped(*field) for field in inner_fields(type_)]
    return {"field-id": id_, "names": [name], **({"fields": inner} if inner else {})}


def _digest(value: object) -> int:
    return crc32(msgspec.json.encode(value)) & ((1 << _BITS) - 1) or 1
