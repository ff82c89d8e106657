"""Restore the table to its state at a time, in one commit: undo a drop, an overwrite, a deletion or a bad merge.

A tombstone is final, so a superseded part can never return under its key. It returns as a copy under a new key, made by
the store itself. Its marker keeps the description of the content. Parts that were added after that time are tombstoned,
and parts that are live in both states stay. So a restore is an ordinary commit: older snapshots stay readable, and it
can be undone in the same way. Parts that cleanup deleted cannot be restored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from icedb.errors import InvalidOption, SnapshotExpired
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.keys import partition_of
from icedb.format.records import Marker, total_rows
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, spec_at
from icedb.operations.commits.dropped_columns import spec_of_dropped
from icedb.reader.time_bounds import check_past_time, markers_at
from icedb.sql.column_stats import without_texts
from icedb.storage.obstore_store import ObjectNotFound
from icedb.storage.parts import Part
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.util.times import time_text

__all__ = ["RestorePlan", "RestoreReport", "plan_restore", "restore"]

logger = logging.getLogger(__name__)

# The store copies the objects; concurrency hides the latency of the requests.
CONCURRENT_COPIES = 16

#: The folder, digest and size of a part.
_Content = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Markers of the parts to restore (`back`), and of the parts to tombstone (`gone`)."""

    back: tuple[Marker, ...]
    gone: tuple[Marker, ...]

    def __bool__(self) -> bool:
        return bool(self.back or self.gone)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore, or of a dry run. `restored` are the original parts; `commit.parts` are their copies.

    `rows` and `bytes` are those of the restored parts. `rows_before` and `rows_after` are the table's rows in the state
    on which the restore was built. Each is None if a marker does not record its rows.
    """

    as_of_ms: int
    restored: tuple[Part, ...]
    rows: int | None
    bytes: int
    tombstoned: tuple[Part, ...]
    rows_before: int | None
    rows_after: int | None
    commit: Commit
    dry_run: bool


def plan_restore(state: TableState, as_of_ms: int, then: Sequence[Marker]) -> RestorePlan:
    """Return which parts must be restored or tombstoned for the table to have its state at `as_of_ms`. Pure.

    `then` are the live parts of that time. A live part with the same content as a superseded one replaces it, such as
    the copy of an earlier restore.
    """
    dead = [m for m in then if m.tombstoned_ms is not None]
    newer = [m for m in state.live if m.created_ms > as_of_ms]
    shared = Counter(map(_content, dead)) & Counter(map(_content, newer))
    shared.pop(None, None)
    return RestorePlan(_without(dead, shared), _without(newer, shared))


def _content(marker: Marker) -> _Content | None:
    """Return the identity of a part's content within its partition; None if the marker has no digest."""
    return None if marker.digest is None else (marker.key.rpartition("/")[0], marker.digest, marker.bytes)


def _without(markers: Sequence[Marker], shared: Mapping[_Content | None, int]) -> tuple[Marker, ...]:
    """Return the markers, except as many of each content as `shared` counts."""
    left = Counter(shared)
    kept = []
    for marker in markers:
        content = _content(marker)
        if left[content] > 0:
            left[content] -= 1
        else:
            kept.append(marker)
    return tuple(kept)


def restore(handle: Handle, as_of_ms: int, *, allow_empty: bool = False, dry_run: bool = False) -> RestoreReport:
    """Restore the table to its state at a time (unix milliseconds). See `Table.restore`."""
    if not dry_run:
        handle.check_writable()
    state = handle.read(fresh=True)
    check_past_time(handle, state, as_of_ms, now_ms=handle.clock.now_ms())
    operation = _Restore(handle, as_of_ms, allow_empty)
    plan = operation.plan(state)
    if dry_run or not (plan or operation.spec_of_columns(handle.clock.now_ms())):
        gone = tuple(map(handle.part, plan.gone))
        return _report(operation, plan.back, gone, nothing_to_commit(handle), dry_run)
    logger.info("%s: copying %d parts to restore %s", handle.table, len(plan.back), time_text(as_of_ms))
    commit = commit_exclusive(handle, operation)
    if commit.committed and operation.spec is not None:
        handle.current_spec.learn(operation.spec)  # the next write through this handle uses it
    # Reports the committed parts, not the last plan: another writer may have completed an earlier attempt.
    back = [operation.sources[p.key] for p in commit.parts if p.key in operation.sources]
    return _report(operation, back, commit.tombstoned, commit, dry_run)


def _report(
    operation: _Restore, back: Sequence[Marker], gone: Sequence[Part], commit: Commit, dry_run: bool
) -> RestoreReport:
    return RestoreReport(
        as_of_ms=operation.as_of_ms,
        restored=tuple(map(operation.handle.part, back)),
        rows=total_rows(back),
        bytes=sum(m.bytes for m in back),
        tombstoned=tuple(gone),
        rows_before=operation.rows_before,
        rows_after=operation.rows_after,
        commit=commit,
        dry_run=dry_run,
    )


@dataclass(slots=True)
class _Restore:
    """The commit, planned again at each attempt. A copy is reused as long as its source is not live."""

    handle: Handle
    as_of_ms: int
    allow_empty: bool
    rows_before: int | None = None
    rows_after: int | None = None
    #: The new spec, if the dropped columns of that time differ from those of now.
    spec: TableSpec | None = None
    #: The source's key -> the copy's marker.
    copies: dict[str, Marker] = field(default_factory=dict)
    #: The copy's key -> the source's marker, for all copies of all attempts.
    sources: dict[str, Marker] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = False

    @property
    def outputs(self) -> list[str]:
        return [m.key for m in self.copies.values()]

    def plan(self, state: TableState) -> RestorePlan:
        """Plan the restore. Raises SnapshotExpired, and InvalidOption if the table would be left without rows."""
        then = markers_at(self.handle, state, self.as_of_ms)
        plan = plan_restore(state, self.as_of_ms, then)
        self.rows_before, self.rows_after = total_rows(state.live), total_rows(then)
        if plan.gone and self.rows_after == 0 and not self.allow_empty:
            first_ms = min(m.created_ms for m in state.parts.values())
            raise InvalidOption(
                f"{self.handle.table}: at {time_text(self.as_of_ms)} the table had no rows, and a restore would remove "
                f"{'all' if self.rows_before is None else self.rows_before} rows. Nothing was restored. The oldest "
                f"part in the log is of {time_text(first_ms)}. Choose a later time, or pass allow_empty=True."
            )
        return plan

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file. Raises SnapshotExpired if the time, or one of its parts, can no longer be read."""
        plan = self.plan(state)
        self.spec = spec = self.spec_of_columns(t_ms)
        for key in self.copies.keys() - {m.key for m in plan.back}:
            self.unused.append(self.copies.pop(key).key)
        self._copy(state, [m for m in plan.back if m.key not in self.copies])
        if not plan and spec is None:
            return None
        gone = [m.key for m in plan.gone]
        return draft(
            state,
            t_ms=t_ms,
            spec=spec,
            moved=[self.copies[m.key] for m in plan.back],
            tombstone=gone,
            replaces=state.replaceable(gone, t_ms=t_ms),
            operation="restore",
        )

    def spec_of_columns(self, t_ms: int) -> TableSpec | None:
        """Return the spec with the dropped columns of that time; None if they are the same now.

        Raises InvalidOption if the table needs a column now that was dropped at that time.
        """
        return spec_of_dropped(self.handle, spec_at(self.handle.spec, self.as_of_ms).dropped, t_ms)

    def _copy(self, state: TableState, markers: Sequence[Marker]) -> None:
        if not markers:
            return
        self.oldest_part_ms = self.oldest_part_ms if self.oldest_part_ms is not None else self.handle.clock.now_ms()
        for marker in markers:  # recorded before the copies, so that a failure deletes them
            self.copies[marker.key] = copy = msgspec.structs.replace(
                marker, key=self._new_key(marker), tombstoned_ms=None, stats=without_texts(marker.stats)
            )
            self.sources[copy.key] = marker
        with ThreadPoolExecutor(min(CONCURRENT_COPIES, len(markers))) as pool:
            copying = [pool.submit(self.handle.store.copy, m.key, self.copies[m.key].key) for m in markers]
            try:
                for copied in copying:
                    copied.result()
            except ObjectNotFound as error:
                pool.shutdown(cancel_futures=True)
                raise SnapshotExpired(
                    f"{self.handle.table}: the part '{error}' of the snapshot at {time_text(self.as_of_ms)} was "
                    "cleaned up. Nothing was restored. Choose a later time.",
                    horizon_ms=max(state.horizon_ms, self.as_of_ms + 1),
                ) from None
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _new_key(self, marker: Marker) -> str:
        keys = self.handle.keys
        return keys.part(partition_of(keys.data_prefix, marker.key), self.handle.clock.new_id())
