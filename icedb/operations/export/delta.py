"""Publish a table as a Delta table: a Delta log over the same parts, so that nothing is copied.

    plan       read the Delta log, then take a snapshot, so that each version has a snapshot no older than the last
    pin        keep the snapshot's parts after merges (compactions), for Delta's readers, until the next export
    publish    put the next version, create-only, with the difference; plan again if it exists
    tidy       remove needless pins, add a checkpoint, delete old versions

`export_pins` states when pins are put and removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from icedb.format.timing import DAY_MS
from icedb.operations.export.delta_log import (
    ENGINE,
    Action,
    DeltaCommitInfo,
    checkpoint_key,
    encoded,
    version_key,
    write_checkpoint,
)
from icedb.operations.export.delta_plan import DeltaPlan, plan_export
from icedb.operations.export.export_pins import KEEP, ExportPins, check_keep, publish_pinned, put_exported
from icedb.storage.obstore_store import ObjectExists
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Handle
from icedb.util.temporary_files import temporary_folder

__all__ = ["DeltaReport", "export_delta"]

# The most versions, and bytes of them, that a reader opens beside a checkpoint.
VERSIONS_PER_CHECKPOINT = 10
BYTES_PER_CHECKPOINT = 16 * 1024 * 1024
# Versions before a checkpoint of this age are deleted.
RETENTION_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class DeltaReport:
    """The result of an export to Delta, or its plan. `version` is the newest version, None if none exists."""

    #: The address of the table and of the Delta table.
    table: str
    as_of_ms: int
    version: int | None
    #: False if nothing had changed since the last version.
    published: bool
    parts: int
    #: None if the row count of a part is unknown.
    rows: int | None
    added_parts: int
    removed_parts: int
    #: The added parts that only hold rows of earlier exports.
    rearranged_parts: int
    #: True if columns or partition columns changed, and in the first version.
    columns_changed: bool
    #: The time until which the parts are kept. None: until the next export, or in a dry run.
    kept_until_ms: int | None = None
    dry_run: bool = False


def export_delta(
    handle: Handle,
    as_of_ms: int | None,
    *,
    exclude_columns: Sequence[str] = (),
    keep: timedelta | None = KEEP,
    dry_run: bool = False,
) -> DeltaReport:
    """Publish the difference to the last export as a Delta version; see `Table.export_delta`."""
    check_keep(handle, keep)
    pins = ExportPins(handle, "delta")
    with temporary_folder("delta") as folder:

        def plan_version() -> DeltaPlan:
            return plan_export(handle, as_of_ms, exclude_columns, folder)

        if dry_run:
            return _report(plan_version(), dry_run=True)
        plan, kept = publish_pinned(pins, keep, plan_version, lambda plan, kept: _publish(handle, plan, kept, pins))
        _tidy(handle, plan, kept, pins, folder)
    return _report(plan, kept=kept)


def _report(plan: DeltaPlan, *, kept: Pin | None = None, dry_run: bool = False) -> DeltaReport:
    return DeltaReport(
        table=plan.snapshot.table,
        as_of_ms=plan.snapshot.as_of_ms,
        version=plan.log.version if plan.log.version >= 0 else None,
        published=plan.differs and not dry_run,
        parts=len(plan.snapshot.parts),
        rows=plan.snapshot.rows,
        added_parts=len(plan.adds),
        removed_parts=len(plan.removes),
        rearranged_parts=sum(not a.data_change for a in plan.adds),
        columns_changed=plan.meta_data is not None,
        kept_until_ms=kept.expires_ms if kept else None,
        dry_run=dry_run,
    )


# ------------------------------------------------------------------------------------------------ publish


def _publish(handle: Handle, plan: DeltaPlan, kept: Pin, pins: ExportPins) -> bool:
    """Put the next version, and return False if it exists. Raises CommitTimedOut, StoreUnavailable."""
    pins.check_in_force(kept)
    info = DeltaCommitInfo(
        timestamp=handle.clock.now_ms(),
        operation=plan.operation,
        engine_info=ENGINE,
        table=handle.spec.id,
        as_of=plan.snapshot.as_of_ms,
        pin=kept.name,
        txn_id=str(uuid.UUID(handle.clock.new_id())),
        is_blind_append=not plan.removes,
    )
    actions = [
        Action(commit_info=info),
        *([Action(protocol=plan.protocol)] if plan.protocol else ()),
        *([Action(meta_data=plan.meta_data)] if plan.meta_data else ()),
        *(Action(remove=remove) for remove in plan.removes),
        *(Action(add=add) for add in plan.adds),
    ]
    body = b"".join(encoded(actions))
    key = version_key(handle, plan.version)
    if not put_exported(handle, key, body):
        return False
    log = plan.log
    log.version = plan.version
    log.bytes_since_checkpoint += len(body)
    log.versions_ms[log.version] = handle.clock.now_ms()
    for action in actions:
        log.apply(action)
    return True


# ------------------------------------------------------------------------------------------------ tidy


def _tidy(handle: Handle, plan: DeltaPlan, kept: Pin, pins: ExportPins, folder: Path) -> None:
    log = plan.log
    existing = read_pins(handle)
    pins.remove(pins.superseded(existing, log.versions_ms) + pins.surplus(existing, kept))
    many_versions = log.version - log.checkpoint >= VERSIONS_PER_CHECKPOINT
    if many_versions or log.bytes_since_checkpoint >= BYTES_PER_CHECKPOINT:
        path = folder / "checkpoint.parquet"
        write_checkpoint(log, path)
        with suppress(ObjectExists):  # another export made it
            handle.store.create(checkpoint_key(handle, log.version), path)
    before_ms = handle.clock.now_ms() - RETENTION_MS
    base = max((v for v, stored_ms in log.checkpoints_ms.items() if stored_ms <= before_ms), default=0)
    old = [version_key(handle, v) for v in log.versions_ms if v < base]
    if old:
        # A `_last_checkpoint` of a Delta program may name a deleted checkpoint.
        last = f"{handle.keys.delta_prefix}_last_checkpoint"
        handle.store.delete([last, *old, *(checkpoint_key(handle, v) for v in log.checkpoints_ms if v < base)])
