"""The JSON document that an Iceberg reader opens first: schemas, partition specs and snapshots of a table.

The document of a later snapshot takes over the snapshots of an earlier one that can still be read, with their schemas
and partition specs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icedb.reader.iceberg.layout import IcebergLayout
from icedb.reader.iceberg.manifests import Manifest, snapshot_id

__all__ = ["MAIN", "IcebergSnapshot", "TableMetadata", "snapshot_entry", "table_metadata"]

#: The name of the branch that readers read by default.
MAIN = "main"
# Iceberg's number of the last partition field if there is none.
_NO_PARTITION_FIELD = 999
_UNSORTED = {"order-id": 0, "fields": []}
_NAME_MAPPING = "schema.name-mapping.default"


class IcebergSnapshot(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """A snapshot in a metadata document."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    schema_id: int
    summary: dict[str, str]
    #: Required by format version 3, whose row ids no reader needs.
    first_row_id: int | None = None
    added_rows: int | None = None


class TableMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """A metadata document, as far as this library writes it."""

    format_version: int
    table_uuid: str
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    current_schema_id: int
    schemas: list[dict[str, Any]]
    default_spec_id: int
    partition_specs: list[dict[str, Any]]
    last_partition_id: int
    default_sort_order_id: int
    sort_orders: list[dict[str, Any]]
    properties: dict[str, str]
    #: -1 without a snapshot, as in Iceberg's own library.
    current_snapshot_id: int
    snapshots: list[IcebergSnapshot]
    snapshot_log: list[dict[str, int]]
    refs: dict[str, dict[str, Any]]
    #: Required by format version 3.
    next_row_id: int | None = None


def snapshot_entry(
    layout: IcebergLayout, manifests: Sequence[Manifest], manifest_list: str, *, t_ms: int, content: str, size: int
) -> IcebergSnapshot:
    """Return the entry of a snapshot. `content` is the digest of its parts and schema, `size` is in bytes."""
    rows = sum(m.rows for m in manifests)
    return IcebergSnapshot(
        snapshot_id=snapshot_id(t_ms, content),
        sequence_number=t_ms,
        timestamp_ms=t_ms,
        manifest_list=manifest_list,
        schema_id=layout.schema["schema-id"],
        summary={
            "operation": "overwrite",  # incremental readers must not take the files of this snapshot for an append
            "total-records": str(rows),
            "total-data-files": str(sum(m.files for m in manifests)),
            "total-files-size": str(size),
            "total-delete-files": "0",
        },
        first_row_id=0 if layout.format_version == 3 else None,
        added_rows=rows if layout.format_version == 3 else None,
    )


def table_metadata(
    layout: IcebergLayout,
    current: IcebergSnapshot | None,
    others: Sequence[tuple[IcebergSnapshot, IcebergLayout]],
    *,
    earlier: TableMetadata | None,
    kept: Sequence[IcebergSnapshot],
    tags: Mapping[str, int],
    table_uuid: str,
    location: str,
    properties: Mapping[str, str],
    t_ms: int,
) -> TableMetadata:
    """Return the document of a table whose current snapshot has this layout.

    Args:
        layout: The columns of the current snapshot.
        current: The current snapshot; None if the table has none.
        others: Further snapshots, with their layouts.
        earlier: The previous document.
        kept: The snapshots of the previous document that can still be read.
        tags: Name -> id of a snapshot.
        table_uuid: The table's id, a UUID.
        location: The table's address.
        properties: Further properties of the table.
        t_ms: The time of the document, in unix milliseconds.
    """
    of_kept = {s.schema_id for s in kept}
    schemas = [s for s in earlier.schemas if s["schema-id"] in of_kept] if earlier else []
    layouts = [*(of for _, of in others), layout]
    specs = [*(earlier.partition_specs if earlier and kept else ()), *(of.partition_spec for of in layouts)]
    currents = () if current is None else (current,)
    by_id = {s.snapshot_id: s for s in (*kept, *(s for s, _ in others), *currents)}
    snapshots = sorted(by_id.values(), key=lambda s: (s.timestamp_ms, s.snapshot_id))
    version = max(of.format_version for of in layouts)
    if earlier is not None:
        version = max(version, earlier.format_version)
    refs = {name: {"snapshot-id": id_, "type": "tag"} for name, id_ in tags.items()}
    if current is not None:
        refs[MAIN] = {"snapshot-id": current.snapshot_id, "type": "branch"}
    log = [*(s for s in snapshots if current is None or s.timestamp_ms < current.timestamp_ms), *currents]
    return TableMetadata(
        format_version=version,
        table_uuid=table_uuid,
        location=location,
        last_sequence_number=max((s.sequence_number for s in snapshots), default=0),
        last_updated_ms=max([t_ms, *(s.timestamp_ms for s in snapshots)]),
        last_column_id=max([*(of.last_column_id for of in layouts), earlier.last_column_id if earlier else 0]),
        current_schema_id=layout.schema["schema-id"],
        schemas=list({s["schema-id"]: s for s in (*schemas, *(of.schema for of in layouts))}.values()),
        default_spec_id=layout.partition_spec["spec-id"],
        partition_specs=list({s["spec-id"]: s for s in specs}.values()),
        last_partition_id=max((f["field-id"] for s in specs for f in s["fields"]), default=_NO_PARTITION_FIELD),
        default_sort_order_id=0,
        sort_orders=[_UNSORTED],
        properties={
            _NAME_MAPPING: msgspec.json.encode(_name_mapping(layouts, earlier if kept else None)).decode(),
            "write.format.default": "parquet",
            **properties,
        },
        current_snapshot_id=-1 if current is None else current.snapshot_id,
        snapshots=snapshots,
        snapshot_log=[{"timestamp-ms": s.timestamp_ms, "snapshot-id": s.snapshot_id} for s in log],
        refs=refs,
        next_row_id=max((int(s.summary["total-records"]) for s in snapshots), default=0) if version == 3 else None,
    )


def _name_mapping(layouts: Sequence[IcebergLayout], earlier: TableMetadata | None) -> list[dict[str, Any]]:
    """Return the names of the columns of all snapshots, because a document has one mapping.

    A column that was dropped later is in the parts of earlier snapshots, perhaps without an id. `layouts` have the
    current one last.
    """
    mappings: list[list[dict[str, Any]]] = [of.name_mapping for of in reversed(layouts)]
    if earlier is not None:
        mappings.append(msgspec.json.decode(earlier.properties.get(_NAME_MAPPING, "[]")))
    by_id: dict[int, dict[str, Any]] = {}
    for mapping in mappings:
        for field in mapping:
            by_id.setdefault(field["field-id"], field)
    return list(by_id.values())
