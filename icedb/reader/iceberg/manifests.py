"""Manifests: Avro files that list parts (data files) with their partition values, row counts and bounds.

Parts are ordered by time and key, and divided where the digest of a key says so, into manifests of some four thousand.
So an append changes the last manifest only, and the others of the next snapshot are the same bytes. Every entry has the
status `existing`, with the time of the part's commit as its sequence number: an entry does not depend on the snapshot
that lists it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from icedb.errors import InvalidPartitionValue
from icedb.reader.iceberg.avro import NULL, avro_boolean, avro_bytes, avro_file, avro_long, avro_optional, avro_text
from icedb.reader.iceberg.layout import IcebergLayout, PartitionField
from icedb.reader.iceberg.single_values import (
    avro_type,
    avro_value,
    binary_value,
    lower_bound,
    parse_values,
    upper_bound,
)
from icedb.reader.path_values import PathValues
from icedb.sql.column_stats import bounds_of
from icedb.sql.field_ids import field_id
from icedb.storage.parts import Part

__all__ = ["Manifest", "build_manifests", "ends_manifest", "manifest_list", "snapshot_id", "snapshot_ms"]

# The mean number of parts in a manifest.
_PARTS = 4096
_EXISTING = avro_long(0)
_DATA = avro_long(0)
_PARQUET = avro_text("PARQUET")
_ID_BITS = 21
_EXAMPLES = 3


class PartitionSummary(NamedTuple):
    """The values of one partition field in a manifest, by which readers skip the manifest."""

    has_null: bool
    has_nan: bool
    low: bytes | None
    high: bytes | None


#: The id of a column, the number of its nulls, and its encoded bounds.
_ColumnBounds = tuple[int, int, bytes | None, bytes | None]


class _File(NamedTuple):
    """A part with the values of its partition fields, and the bounds of its columns."""

    part: Part
    partition: Sequence[Any]
    bounds: Sequence[_ColumnBounds]


@dataclass(frozen=True)
class Manifest:
    """An encoded manifest, and the facts about it that a manifest list has."""

    body: bytes
    spec_id: int
    files: int
    rows: int
    oldest_ms: int
    newest_ms: int
    summaries: tuple[PartitionSummary, ...]


def snapshot_id(t_ms: int, content: str) -> int:
    """Return the id of the snapshot at a time, with the digest of its parts and schema.

    The upper 42 bits are the time. A commit that arrives late changes the content of a time, and so the id.
    """
    return t_ms << _ID_BITS | crc32(content.encode()) & ((1 << _ID_BITS) - 1)


def snapshot_ms(id_: int) -> int:
    """Return the time in the id of a snapshot."""
    return id_ >> _ID_BITS


def ends_manifest(key: str) -> bool:
    """Return whether the part with this key is the last of its manifest, in the order of times and keys."""
    return crc32(key.encode()) % _PARTS == 0


def build_manifests(
    layout: IcebergLayout,
    parts: Sequence[Part],
    values: Sequence[PathValues],
    rows: Mapping[str, int],
    *,
    table: str,
) -> list[Manifest]:
    """Return the manifests of these parts. `rows` has the row counts that the log does not have, by key.

    Raises InvalidPartitionValue if a path has a value that is not of the column's type.
    """
    parsed = {f.name: _parsed(f, {v[f.name] for v in values}, table) for f in layout.partition_fields}
    files = sorted(
        (
            _File(part, [parsed[f.name][texts[f.name]] for f in layout.partition_fields], of_part)
            for part, texts, of_part in zip(parts, values, _bounds(layout, parts), strict=True)
        ),
        key=lambda file: (file.part.created_ms, file.part.key),
    )
    schema = _manifest_schema(layout)
    properties = {
        "schema": msgspec.json.encode(layout.schema),
        "schema-id": str(layout.schema["schema-id"]).encode(),
        "partition-spec": msgspec.json.encode(layout.partition_spec["fields"]),
        "partition-spec-id": str(layout.partition_spec["spec-id"]).encode(),
        "format-version": b"2",
        "content": b"data",
    }
    manifests = []
    for some in _divided(files):
        counts = [rows[file.part.key] if file.part.rows is None else file.part.rows for file in some]
        entries = [_entry(layout, file, count) for file, count in zip(some, counts, strict=True)]
        of_fields = zip(*(file.partition for file in some), strict=True)
        manifests.append(
            Manifest(
                avro_file(schema, properties, entries),
                int(layout.partition_spec["spec-id"]),
                files=len(some),
                rows=sum(counts),
                oldest_ms=some[0].part.created_ms,
                newest_ms=some[-1].part.created_ms,
                summaries=tuple(
                    _summary(f.iceberg_type, set(of_field))
                    for f, of_field in zip(layout.partition_fields, of_fields, strict=True)
                ),
            )
        )
    return manifests


def _parsed(field: PartitionField, texts: Collection[str | None], table: str) -> dict[str | None, Any]:
    parsed = dict(zip(texts, parse_values(field.iceberg_type, list(texts)), strict=True))
    if rejected := sorted(text for text, value in parsed.items() if text is not None and value is None):
        raise InvalidPartitionValue(
            f"{table}: the partition column '{field.name}' ({field.type}) has values that Iceberg does not support: "
            f"{rejected[:_EXAMPLES]}. Nothing was exported. Name the column in exclude_columns to export without it."
        )
    return parsed


def _divided(files: Iterable[_File]) -> Iterator[list[_File]]:
    some: list[_File] = []
    for file in files:
        some.append(file)
        if ends_manifest(file.part.key):
            yield some
            some = []
    if some:
        yield some


def _summary(type_: str, values: set[Any]) -> PartitionSummary:
    # Iceberg orders texts by their UTF-8, as Python does.
    present = [v for v in values if v is not None and v == v]
    low, high = (binary_value(type_, f(present)) if present else None for f in (min, max))
    return PartitionSummary(None in values, any(v != v for v in values), low, high)


# ------------------------------------------------------------------------------------------------ bounds


def _bounds(layout: IcebergLayout, parts: Sequence[Part]) -> Iterator[list[_ColumnBounds]]:
    """Yield the bounds of each part."""
    plain = {c: t for c, t in layout.columns.items() if isinstance(layout.types[c], str)}
    of_columns = []
    # The column of a superseded part may have had another type.
    stats = [msgspec.UNSET if p.tombstoned_ms is not None else p.stats for p in parts]
    by_part = bounds_of(stats, plain)
    for place, column in enumerate(plain):
        type_ = str(layout.types[column])
        of_column = [of_part[place] for of_part in by_part]
        if not any(of_column):
            continue
        low = parse_values(type_, [one and one[0] for one in of_column])
        high = parse_values(type_, [one and one[1] for one in of_column])
        of_columns.append(
            [
                one
                and (
                    field_id(column),
                    one[2],
                    None if least is None else lower_bound(type_, least),
                    None if greatest is None else upper_bound(type_, greatest),
                )
                for one, least, greatest in zip(of_column, low, high, strict=True)
            ]
        )
    if not of_columns:
        return iter([[]] * len(parts))
    return ([one for one in of_part if one] for of_part in zip(*of_columns, strict=True))


# ------------------------------------------------------------------------------------------------ entries


def _entry(layout: IcebergLayout, file: _File, rows: int) -> bytes:
    part, bounds = file.part, file.bounds
    time = avro_optional(avro_long(part.created_ms))
    values = [
        NULL if value is None else avro_optional(avro_value(field.iceberg_type, value))
        for field, value in zip(layout.partition_fields, file.partition, strict=True)
    ]
    return b"".join(
        [
            _EXISTING,
            avro_optional(avro_long(part.created_ms << _ID_BITS)),
            time,
            time,
            _DATA,
            avro_text(part.path),
            _PARQUET,
            *values,
            avro_long(rows),
            avro_long(part.bytes),
            _map([(id_, avro_long(rows)) for id_, _, _, _ in bounds]),
            _map([(id_, avro_long(nulls)) for id_, nulls, _, _ in bounds]),
            _map([(id_, avro_bytes(low)) for id_, _, low, _ in bounds if low is not None]),
            _map([(id_, avro_bytes(high)) for id_, _, _, high in bounds if high is not None]),
        ]
    )


def _map(items: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode an optional map by id, which is an array of pairs in Avro."""
    if not items:
        return NULL
    return avro_optional(avro_long(len(items)) + b"".join(avro_long(id_) + value for id_, value in items) + NULL)


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


def _manifest_schema(layout: IcebergLayout) -> bytes:
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


# ------------------------------------------------------------------------------------------------ manifest list

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
_LIST_SCHEMA = msgspec.json.encode(
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


def manifest_list(manifests: Sequence[tuple[str, Manifest]]) -> bytes:
    """Return the manifest list of a snapshot. `manifests` have their paths."""
    records = []
    for path, manifest in manifests:
        summaries = [
            avro_boolean(of_field.has_null)
            + avro_optional(avro_boolean(of_field.has_nan))
            + avro_optional(None if of_field.low is None else avro_bytes(of_field.low))
            + avro_optional(None if of_field.high is None else avro_bytes(of_field.high))
            for of_field in manifest.summaries
        ]
        fields = [
            avro_text(path),
            *map(
                avro_long,
                (
                    len(manifest.body),
                    manifest.spec_id,
                    0,
                    manifest.newest_ms,
                    manifest.oldest_ms,
                    manifest.newest_ms << _ID_BITS,
                    0,
                    manifest.files,
                    0,
                    0,
                    manifest.rows,
                    0,
                ),
            ),
            avro_optional((avro_long(len(summaries)) if summaries else b"") + b"".join(summaries) + NULL),
        ]
        records.append(b"".join(fields))
    return avro_file(_LIST_SCHEMA, {"format-version": b"2"}, records)
