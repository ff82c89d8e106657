"""Publish a table as an Iceberg table: metadata over the same parts, so that nothing is copied.

    plan       read the folder `metadata/`, then take a snapshot, so that each version has one no older than the last
    pin        keep the snapshot's parts after merges (compactions), for Iceberg's readers, until the next export
    publish    put manifests and lists, then the next version's document, create-only; plan again if it exists
    tidy       remove needless pins, delete old versions

`export_pins` states when pins are put and removed. A reader that opened a document can read its objects for a week
after the next export.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from icedb.format.timing import DAY_MS
from icedb.operations.export.export_pins import KEEP, ExportPins, check_keep, publish_pinned, put_exported
from icedb.operations.export.iceberg_folder import address_of, document_key, read_document, referenced
from icedb.operations.export.iceberg_plan import IcebergPlan, plan_export
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Handle

__all__ = ["IcebergReport", "export_iceberg"]

# Documents that were superseded for this time are deleted, with their manifests.
RETENTION_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class IcebergReport:
    """The result of an export to Iceberg, or its plan. `version` is the newest version, None if none exists."""

    #: The address of the table and of the Iceberg table.
    table: str
    as_of_ms: int
    version: int | None
    #: The address of the newest version's document, which readers open. None if none exists.
    metadata: str | None
    #: False if nothing had changed since the last version.
    published: bool
    parts: int
    rows: int
    #: The snapshots in the document: this one, earlier exports, and pinned times.
    snapshots: int
    manifests: int
    #: The manifests and manifest lists that did not exist.
    new_files: int
    new_bytes: int
    columns_changed: bool
    #: The time until which the parts are kept. None: until the next export, or in a dry run.
    kept_until_ms: int | None = None
    dry_run: bool = False


def export_iceberg(
    handle: Handle,
    as_of_ms: int | None,
    *,
    exclude_columns: Sequence[str] = (),
    keep: timedelta | None = KEEP,
    dry_run: bool = False,
) -> IcebergReport:
    """Publish a snapshot as the next version of the Iceberg table; see `Table.export_iceberg`."""
    check_keep(handle, keep)
    pins = ExportPins(handle, "iceberg")

    def plan_version() -> IcebergPlan:
        return plan_export(handle, as_of_ms, exclude_columns, pins)

    if dry_run:
        return _report(handle, plan_version(), dry_run=True)
    plan, kept = publish_pinned(pins, keep, plan_version, lambda plan, kept: _publish(handle, plan, kept, pins))
    _tidy(handle, plan, kept, pins)
    return _report(handle, plan, kept=kept)


def _report(handle: Handle, plan: IcebergPlan, *, kept: Pin | None = None, dry_run: bool = False) -> IcebergReport:
    version = plan.folder.version
    return IcebergReport(
        table=plan.snapshot.table,
        as_of_ms=plan.snapshot.as_of_ms,
        version=version if version >= 0 else None,
        metadata=address_of(handle, document_key(handle, version)) if version >= 0 else None,
        published=plan.differs and not dry_run,
        parts=len(plan.snapshot.parts),
        rows=plan.rows,
        snapshots=len(plan.document.snapshots),
        manifests=plan.manifests,
        new_files=len(plan.new_files),
        new_bytes=sum(map(len, plan.new_files.values())),
        columns_changed=plan.columns_changed,
        kept_until_ms=kept.expires_ms if kept else None,
        dry_run=dry_run,
    )


def _publish(handle: Handle, plan: IcebergPlan, kept: Pin, pins: ExportPins) -> bool:
    """Put the objects of the next version, and return False if it exists. Raises CommitTimedOut, StoreUnavailable."""
    for key, body in plan.new_files.items():
        put_exported(handle, key, body)  # if it exists, another export of this version put the same bytes
    pins.check_in_force(kept)
    key = document_key(handle, plan.version)
    if not put_exported(handle, key, msgspec.json.encode(plan.document)):
        return False
    plan.folder.version = plan.version
    plan.folder.versions_ms[plan.version] = handle.clock.now_ms()
    return True


def _tidy(handle: Handle, plan: IcebergPlan, kept: Pin, pins: ExportPins) -> None:
    pins.remove(plan.superseded_pins + pins.surplus(read_pins(handle), kept))
    versions_ms = plan.folder.versions_ms
    before_ms = handle.clock.now_ms() - RETENTION_MS
    base = max(
        (v for v, stored_ms in versions_ms.items() if stored_ms <= before_ms and v - 1 in versions_ms), default=0
    )
    if not base:
        return
    with suppress(ObjectNotFound):  # another export deleted it, with all that is deleted here
        needed = referenced(read_document(handle, base))
        old = [name for name in plan.folder.avro_files if name.version < base and str(name) not in needed]
        # The documents are deleted last, so that an export that dies before leaves them to the next one.
        handle.store.delete([f"{handle.keys.iceberg_prefix}{name}" for name in old])
        handle.store.delete([document_key(handle, v) for v in versions_ms if v < base])
