"""Manifests: Avro files that list parts (data files) with their partition values, row counts and bounds.

Parts are ordered by time and key, and divided where the digest of a key says so, into manifests of some four thousand.
So an append changes the last manifest only, and the others of the next snapshot are the same bytes. Every entry has the
status `existing`, with the time of the part's commit as its sequence number: an entry does not depend on the snapshot
that lists it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.errors import InvalidPartitionValue
from icedb.format.packed_markers import key_checksums
from icedb.reader.iceberg.avro import NULL, avro_boolean, avro_bytes, avro_file, avro_long, avro_optional, avro_text
from icedb.reader.iceberg.data_files import DataFiles
from icedb.reader.iceberg.layout import IcebergLayout, PartitionField
from icedb.reader.iceberg.manifest_entries import ID_BITS, encode_entries, encode_partition_values
from icedb.reader.iceberg.manifest_schemas import LIST_SCHEMA, manifest_schema
from icedb.reader.iceberg.single_values import binary_value, parse_values
from icedb.reader.path_values import PathValues

__all__ = [
    "Manifest",
    "build_manifests",
    "divided",
    "ends_manifest",
    "manifest_list",
    "snapshot_id",
    "snapshot_ms",
]

# The mean number of parts in a manifest.
_PARTS = 4096
_EXAMPLES = 3


class PartitionSummary(NamedTuple):
    """The values of one partition field in a manifest, by which readers skip the manifest."""

    has_null: bool
    has_nan: bool
    low: bytes | None
    high: bytes | None


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
    return t_ms << ID_BITS | crc32(content.encode()) & ((1 << ID_BITS) - 1)


def snapshot_ms(id_: int) -> int:
    """Return the time in the id of a snapshot."""
    return id_ >> ID_BITS


def ends_manifest(checksums: pa.Array) -> pa.Array:
    """Return for each part, given by the CRC-32 of its key, whether it is the last of its manifest."""
    parts = pa.scalar(_PARTS, pa.uint32())
    return pc.equal(pc.multiply(pc.divide(checksums, parts), parts), checksums)


def build_manifests(
    layout: IcebergLayout,
    files: DataFiles,
    values: Sequence[PathValues],
    *,
    table: str,
) -> list[Manifest]:
    """Return the manifests of these parts, which are in key order.

    `values` has the values of the partition columns of each part.

    Raises InvalidPartitionValue if a path has a value that is not of the column's type.
    """
    # The parts of a partition share an object.
    distinct = {id(of_part): of_part for of_part in values}
    parsed = {f.name: _parsed(f, {v[f.name] for v in distinct.values()}, table) for f in layout.partition_fields}
    partitions = {
        id_: [parsed[f.name][of_part[f.name]] for f in layout.partition_fields] for id_, of_part in distinct.items()
    }
    encoded = {id_: encode_partition_values(layout, partition) for id_, partition in partitions.items()}
    entries = encode_entries(layout, files, [encoded[id(of_part)] for of_part in values])
    schema = manifest_schema(layout)
    properties = {
        "schema": msgspec.json.encode(layout.schema),
        "schema-id": str(layout.schema["schema-id"]).encode(),
        "partition-spec": msgspec.json.encode(layout.partition_spec["fields"]),
        "partition-spec-id": str(layout.partition_spec["spec-id"]).encode(),
        "format-version": b"2",
        "content": b"data",
    }
    manifests = []
    checksums = key_checksums(pa.array(files.keys, pa.large_string()))
    for of_manifest in divided(checksums, pa.array(files.created_ms, pa.int64())):
        places: list[int] = of_manifest.to_pylist()
        of_fields = zip(*(partitions[id_] for id_ in {id(values[place]) for place in places}), strict=True)
        manifests.append(
            Manifest(
                avro_file(schema, properties, [entries[place] for place in places]),
                int(layout.partition_spec["spec-id"]),
                files=len(places),
                rows=sum(files.rows[place] for place in places),
                oldest_ms=files.created_ms[places[0]],
                newest_ms=files.created_ms[places[-1]],
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


def divided(checksums: pa.Array, created_ms: pa.Array) -> Iterator[pa.Array]:
    """Yield the places of the parts of each manifest, in the order of times and keys. The parts are in key order."""
    order = pc.array_sort_indices(created_ms)  # stable, so parts of one time stay in key order
    last = pc.indices_nonzero(ends_manifest(checksums).take(order)).to_pylist()
    for start, stop in pairwise([0, *(place + 1 for place in last), len(order)]):
        if start < stop:
            yield order.slice(start, stop - start)


def _summary(type_: str, values: set[Any]) -> PartitionSummary:
    # Iceberg orders texts by their UTF-8, as Python does.
    present = [v for v in values if v is not None and v == v]
    low, high = (binary_value(type_, f(present)) if present else None for f in (min, max))
    return PartitionSummary(None in values, any(v != v for v in values), low, high)


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
                    manifest.newest_ms << ID_BITS,
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
    return avro_file(LIST_SCHEMA, {"format-version": b"2"}, records)
