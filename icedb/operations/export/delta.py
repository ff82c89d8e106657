"""Publish a table as a Delta table: a Delta log over the same parts, so that nothing is copied.

    look       read the Delta log, then take a snapshot: who comes first with the next version has a snapshot that is
               no older than those of all versions before
    pin        keep the snapshot's parts, also after a merge has superseded them: Delta's readers see them until the
               next export
    publish    put the next version, create-only, with the difference; who finds it taken looks again
    tidy       remove pins that are of no use any more, add a checkpoint, delete what is old

A process that dies leaves a pin too much, never one too few: the pin of a version is there before the version is. It is
named for the version that it is for. One of an older version goes when that has been superseded for the grace period,
for its readers; one of the same version when a greater one is there, so that two exports never remove each other's.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from icedb.errors import CommitConflict, CommitTimedOut, InvalidOption, StoreUnavailable
from icedb.format.timing import DAY_MS
from icedb.operations.export.delta_log import (
    ENGINE,
    Action,
    DeltaCommitInfo,
    DeltaLog,
    checkpoint_key,
    encoded,
    version_key,
    write_checkpoint,
)
from icedb.operations.export.delta_plan import DeltaPlan, plan_export
from icedb.operations.retention.pins import pin, unpin
from icedb.storage.obstore_store import ObjectExists
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Handle
from icedb.util.temporary_files import temporary_folder

__all__ = ["KEEP", "DeltaReport", "export_delta"]

#: How long the parts of an export are kept, if no other follows.
KEEP = timedelta(days=7)
ATTEMPTS_MAX = 20
# Readers open so many versions, or bytes of them, at most beside a checkpoint.
VERSIONS_PER_CHECKPOINT = 10
BYTES_PER_CHECKPOINT = 16 * 1024 * 1024
# Versions that a checkpoint of this age makes needless are deleted.
RETENTION_MS = 7 * DAY_MS
_PIN = re.compile(r"delta-export-(\d+)-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class DeltaReport:
    """What an export to Delta did, or would do. `version` is the newest one now; None: there is none yet."""

    #: The table's address, which is that of the Delta table too.
    table: str
    as_of_ms: int
    version: int | None
    #: Whether this export made that version: without a difference there is no new one.
    published: bool
    parts: int
    #: None when a part does not say how many it has.
    rows: int | None
    added_parts: int
    removed_parts: int
    #: Those of the added ones that hold nothing but rows which were exported before.
    rearranged_parts: int
    #: Whether columns, or partition columns, are others than before; in the first version they are.
    columns_changed: bool
    #: Until when the parts are kept, whatever supersedes them; None: until the next export, or nothing was done.
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
    if keep is not None and keep <= timedelta(0):
        raise InvalidOption(f"{handle.table}: keep is {keep}; give a timedelta above 0, or None.")
    for _ in range(ATTEMPTS_MAX):
        with temporary_folder("delta") as folder:
            plan = plan_export(handle, as_of_ms, exclude_columns, folder)
            if dry_run:
                return _report(plan, dry_run=True)
            kept = _pin(handle, plan, keep)
            if not plan.differs or _publish(handle, plan, kept):
                _tidy(handle, plan, kept, folder)
                return _report(plan, kept=kept)
        unpin(handle, kept.name)
    raise CommitConflict(
        f"{handle.table}: {ATTEMPTS_MAX} times another export came first. Nothing was exported. Let one program export."
    )


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


def _pin(handle: Handle, plan: DeltaPlan, keep: timedelta | None) -> Pin:
    """Keep the snapshot. Raises SnapshotExpired when that cannot be promised any more, and as `pin` does."""
    name = f"delta-export-{plan.version}-{handle.clock.new_id()[:12]}"
    return pin(handle, name, plan.pin_ms, expires=keep)


def _publish(handle: Handle, plan: DeltaPlan, kept: Pin) -> bool:
    """Put the next version; whether it is ours. Raises CommitTimedOut; StoreUnavailable when that is not known."""
    if kept.expired(handle.clock.now_ms()):
        raise CommitTimedOut(f"{handle.table}: the export took longer than keep. Nothing was exported. Try again.")
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
    match put_if_absent(handle.store, key, body):
        case PutOutcome.CONFLICT:
            return False
        case PutOutcome.NOT_FOUND:
            raise StoreUnavailable(f"{handle.table}: the store did not answer, and '{key}' is not there. Try again.")
    log = plan.log
    log.version = plan.version
    log.bytes_since_checkpoint += len(body)
    log.versions_ms[log.version] = handle.clock.now_ms()
    for action in actions:
        log.apply(action)
    return True


# ------------------------------------------------------------------------------------------------ tidy


def _tidy(handle: Handle, plan: DeltaPlan, kept: Pin, folder: Path) -> None:
    log = plan.log
    for other in read_pins(handle):
        if _is_needless(handle, log, other, kept):
            unpin(handle, other.name)
    far = log.version - log.checkpoint >= VERSIONS_PER_CHECKPOINT
    if far or log.bytes_since_checkpoint >= BYTES_PER_CHECKPOINT:
        path = folder / "checkpoint.parquet"
        write_checkpoint(log, path)
        with suppress(ObjectExists):  # another export made it
            handle.store.create(checkpoint_key(handle, log.version), path)
    before_ms = handle.clock.now_ms() - RETENTION_MS
    base = max((v for v, stored_ms in log.checkpoints_ms.items() if stored_ms <= before_ms), default=0)
    old = [version_key(handle, v) for v in log.versions_ms if v < base]
    if old:
        # One that a program of Delta put may name a checkpoint that goes now.
        last = f"{handle.keys.delta_prefix}_last_checkpoint"
        handle.store.delete([last, *old, *(checkpoint_key(handle, v) for v in log.checkpoints_ms if v < base)])


def _is_needless(handle: Handle, log: DeltaLog, other: Pin, kept: Pin) -> bool:
    found = _PIN.fullmatch(other.name)
    if found is None or other.name == kept.name:
        return False
    version = int(found[1])
    if version >= log.version:
        return version == log.version and _rank(other) < _rank(kept)
    superseded_ms = log.versions_ms.get(version + 1, 0)  # of one that was deleted, long ago
    return superseded_ms + handle.timing.grace_ms + handle.timing.max_skew_ms <= handle.clock.now_ms()


def _rank(one: Pin) -> tuple[bool, int, str]:
    return one.expires_ms is None, one.expires_ms or 0, one.name
