"""The plan of an export to Iceberg: a snapshot, its metadata, and the objects that do not exist yet."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from icedb.errors import InvalidPartitionValue, SnapshotExpired, UnsupportedType
from icedb.operations.export.export_pins import ExportPins, is_export_pin
from icedb.operations.export.exported_snapshot import exported_columns, exported_snapshot
from icedb.operations.export.iceberg_folder import (
    MANIFESTS,
    AvroName,
    MetadataFolder,
    address_of,
    properties_of,
    read_folder,
    referenced,
    table_uuid,
)
from icedb.reader.iceberg.data_files import DataFiles, uncounted
from icedb.reader.iceberg.layout import IcebergLayout, layout_of
from icedb.reader.iceberg.manifests import build_manifests, manifest_list
from icedb.reader.iceberg.table_metadata import MAIN, IcebergSnapshot, TableMetadata, snapshot_entry, table_metadata
from icedb.reader.part_footers import part_rows
from icedb.reader.path_values import path_values
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Handle

__all__ = ["IcebergPlan", "plan_export"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IcebergPlan:
    """A snapshot, the folder's content, and what an export would add."""

    folder: MetadataFolder
    snapshot: Snapshot
    #: The time to pin for it. None: the time of the newest commit.
    pin_ms: int | None
    document: TableMetadata
    #: Bodies of the Avro files that do not exist, by key. Lists come after their manifests.
    new_files: dict[str, bytes]
    #: The numbers of rows and manifests of the snapshot.
    rows: int
    manifests: int
    columns_changed: bool
    #: The pins of earlier exports whose snapshots the document no longer lists.
    superseded_pins: list[Pin]

    @cached_property
    def differs(self) -> bool:
        """True if there is anything to publish. The time of a document is no difference."""
        newest = self.folder.newest
        return newest is None or _content(newest) != _content(self.document)

    @cached_property
    def version(self) -> int:
        """The next version, or the newest if nothing differs. Cached, because publishing changes the folder."""
        return self.folder.version + self.differs


def _content(document: TableMetadata) -> object:
    """Return the fields in which two documents of the same content are equal."""
    lists = {s.snapshot_id: (s.manifest_list, s.schema_id) for s in document.snapshots}
    return (
        document.format_version,
        document.location,
        document.current_schema_id,
        document.default_spec_id,
        document.properties,
        sorted(lists.values()),
        {name: lists[ref["snapshot-id"]] for name, ref in document.refs.items()},
    )


def plan_export(handle: Handle, as_of_ms: int | None, exclude_columns: Sequence[str], pins: ExportPins) -> IcebergPlan:
    """Read the folder and the pins, then take a snapshot.

    Raises UnsupportedType, InvalidPartitionValue, UnknownColumn, InvalidOption, and as `read_folder` and
    `take_snapshot` do.
    """
    folder = read_folder(handle)
    existing_pins = read_pins(handle)
    snapshot, pin_ms = exported_snapshot(handle, as_of_ms)
    files = _AvroFiles(handle, folder)
    current = _built(snapshot, exclude_columns, files)
    # The addresses in the documents of a table that was moved are not valid.
    earlier = folder.newest if folder.newest and folder.newest.location == handle.location.uri else None
    superseded = pins.superseded(existing_pins, folder.versions_ms)
    now_ms = handle.clock.now_ms()
    in_force = [p for p in existing_pins if not p.expired(now_ms) and p not in superseded]
    kept = _kept(earlier, [p for p in in_force if pins.version_of(p) is not None])
    tagged, tags = _tagged(handle, exclude_columns, in_force, earlier, current, files)
    kept += [s for s in (earlier.snapshots if earlier else ()) if s.snapshot_id in tags.values() and s not in kept]
    document = table_metadata(
        current.layout,
        current.entry,
        [(one.entry, one.layout) for one in tagged],
        earlier=earlier,
        kept=kept,
        tags=tags,
        table_uuid=table_uuid(handle),
        location=handle.location.uri,
        properties=properties_of(handle),
        t_ms=now_ms,
    )
    return IcebergPlan(
        folder=folder,
        snapshot=snapshot,
        pin_ms=pin_ms,
        document=document,
        new_files=files.new,
        rows=current.rows,
        manifests=current.manifests,
        columns_changed=earlier is None or earlier.current_schema_id != document.current_schema_id,
        superseded_pins=superseded,
    )


@dataclass(frozen=True)
class _Built:
    """The entry of a snapshot in the document."""

    layout: IcebergLayout
    entry: IcebergSnapshot
    rows: int
    manifests: int


@dataclass
class _AvroFiles:
    """Names for Avro files: that of the newest version's file of the same content, or a new one."""

    handle: Handle
    folder: MetadataFolder
    new: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def _reusable(self) -> dict[tuple[bool, str], AvroName]:
        """The files of the newest version, which no export deletes before a later version exists."""
        names = referenced(self.folder.newest) if self.folder.newest else set()
        return {(n.is_list, n.digest): n for n in self.folder.avro_files if str(n) in names}

    def add(self, body: bytes, *, is_list: bool) -> str:
        """Return the address of a file with this content."""
        digest = hashlib.sha256(body).hexdigest()[:32]
        name = self._reusable.get((is_list, digest))
        key = f"{self.handle.keys.iceberg_prefix}{name or AvroName(is_list, self.folder.version + 1, digest)}"
        if name is None:
            self.new[key] = body
        return address_of(self.handle, key)


def _built(snapshot: Snapshot, exclude_columns: Sequence[str], files: _AvroFiles) -> _Built:
    columns, partitions = exported_columns(snapshot, exclude_columns)
    layout = layout_of(snapshot, columns, partitions)
    parts = snapshot.parts
    manifests = build_manifests(
        layout,
        DataFiles.of(parts, part_rows(snapshot.handle, uncounted(parts))),
        path_values(snapshot, parts, list(partitions)),
        table=snapshot.table,
    )
    listed = [(files.add(m.body, is_list=False), m) for m in manifests]
    address = files.add(manifest_list(listed), is_list=True)
    entry = snapshot_entry(layout, manifests, address, t_ms=snapshot.as_of_ms, content=snapshot.id, size=snapshot.bytes)
    names = " ".join(path.rpartition("/")[2] for path, _ in listed)
    entry = msgspec.structs.replace(entry, summary={**entry.summary, MANIFESTS: names})
    return _Built(layout, entry, sum(m.rows for m in manifests), len(manifests))


def _kept(earlier: TableMetadata | None, pins: Collection[Pin]) -> list[IcebergSnapshot]:
    """Return the snapshots of earlier exports whose pins are in force."""
    times = {p.as_of_ms for p in pins}
    return [s for s in earlier.snapshots if s.timestamp_ms in times] if earlier else []


def _tagged(
    handle: Handle,
    exclude_columns: Sequence[str],
    pins: Collection[Pin],
    earlier: TableMetadata | None,
    current: _Built,
    files: _AvroFiles,
) -> tuple[list[_Built], dict[str, int]]:
    """Return the snapshots of callers' pins that no document has yet, and the id of each pin's snapshot by its name."""
    entries = {s.snapshot_id: s for s in earlier.snapshots} if earlier else {}
    existing = {name: entries[ref["snapshot-id"]] for name, ref in earlier.refs.items()} if earlier else {}
    built = {current.entry.timestamp_ms: current}
    tags: dict[str, int] = {}
    for pin in pins:
        if is_export_pin(pin) or pin.name == MAIN:
            continue
        if (tagged := existing.get(pin.name)) is not None and tagged.timestamp_ms == pin.as_of_ms:
            tags[pin.name] = tagged.snapshot_id
            continue
        if pin.as_of_ms not in built:
            pinned = _built_pin(handle, pin, exclude_columns, files)
            if pinned is None:
                continue
            built[pin.as_of_ms] = pinned
        tags[pin.name] = built[pin.as_of_ms].entry.snapshot_id
    return [one for one in built.values() if one is not current], tags


def _built_pin(handle: Handle, pin: Pin, exclude_columns: Sequence[str], files: _AvroFiles) -> _Built | None:
    """Return the snapshot of a pin; None if it has no column to export, or Iceberg cannot hold it.

    The caller cannot exclude a column that the table had only then. An earlier snapshot must not prevent the export of
    the current one.
    """
    try:
        snapshot = take_snapshot(handle, pin.as_of_ms, may_precede=True)
        excluded = [c for c in exclude_columns if c in snapshot.columns]
        if snapshot.schema.keys() <= set(excluded):
            return None
        return _built(snapshot, excluded, files)
    except (UnsupportedType, InvalidPartitionValue, SnapshotExpired) as error:  # the pin may have been removed since
        logger.warning("%s: the pin '%s' is not listed in the Iceberg metadata: %s", handle.table, pin.name, error)
        return None
