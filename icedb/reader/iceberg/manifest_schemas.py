"""The Avro schemas of manifests and manifest lists, with Iceberg's ids of their fields."""

from __future__ import annotations

import msgspec

from icedb.reader.iceberg.layout import IcebergLayout
from icedb.reader.iceberg.single_values import avro_type

__all__ = ["LIST_SCHEMA", "manifest_schema"]


def _field(name: str, id_: int, type_: object, *, optional: bool = False) -> dict[str, object]:
    if optional:
        return {"name": name, "type": ["null", type_], "default": None, "field-id": id_}
    return {"name": name, "type": type_, "field-id": id_}


def _map_field(name: str, id_: int, key_id: int, value_id: int, value: str) -> dict[str, object]:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field("key", key_id, "int"), _field("value", value_id, value)],
    }
    return _field(name, id_, {"type": "array", "logicalType": "map", "items": pair}, optional=True)


def manifest_schema(layout: IcebergLayout) -> bytes:
    """Return the schema of manifest entries."""
    # Avro allows fewer characters in names than columns have. Readers find the fields by their ids.
    partition = [
        _field(f"p{f.id}", f.id, avro_type(f.iceberg_type, f"d{f.id}"), optional=True) for f in layout.partition_fields
    ]
    data_file = [
        _field("content", 134, "int"),
        _field("file_path", 100, "string"),
        _field("file_format", 101, "string"),
        _field("partition", 102, {"type": "record", "name": "r102", "fields": partition}),
        _field("record_count", 103, "long"),
        _field("file_size_in_bytes", 104, "long"),
        _map_field("value_counts", 109, 119, 120, "long"),
        _map_field("null_value_counts", 110, 121, 122, "long"),
        _map_field("lower_bounds", 125, 126, 127, "bytes"),
        _map_field("upper_bounds", 128, 129, 130, "bytes"),
    ]
    entry = [
        _field("status", 0, "int"),
        _field("snapshot_id", 1, "long", optional=True),
        _field("sequence_number", 3, "long", optional=True),
        _field("file_sequence_number", 4, "long", optional=True),
        _field("data_file", 2, {"type": "record", "name": "r2", "fields": data_file}),
    ]
    return msgspec.json.encode({"type": "record", "name": "manifest_entry", "fields": entry})


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", 509, "boolean"),
        _field("contains_nan", 518, "boolean", optional=True),
        _field("lower_bound", 510, "bytes", optional=True),
        _field("upper_bound", 511, "bytes", optional=True),
    ],
}
#: The schema of manifest lists.
LIST_SCHEMA = msgspec.json.encode(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _field("manifest_path", 500, "string"),
            _field("manifest_length", 501, "long"),
            _field("partition_spec_id", 502, "int"),
            _field("content", 517, "int"),
            _field("sequence_number", 515, "long"),
            _field("min_sequence_number", 516, "long"),
            _field("added_snapshot_id", 503, "long"),
            _field("added_files_count", 504, "int"),
            _field("existing_files_count", 505, "int"),
            _field("deleted_files_count", 506, "int"),
            _field("added_rows_count", 512, "long"),
            _field("existing_rows_count", 513, "long"),
            _field("deleted_rows_count", 514, "long"),
            _field("partitions", 507, {"type": "array", "items": _SUMMARY, "element-id": 508}, optional=True),
        ],
    }
)
