"""Delete what expired tombstones point at.

A tombstone says when a part or a log file was superseded. Readers that listed the log before then may still open
it, so cleanup waits `grace_ms`, by the writer's time and by the store's. It never rewrites rows and never makes
a part visible. It may stop after any request: the next run finishes the work. Objects that no log file names are
not its concern (they are orphans).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from icedb.commit import Commit, nothing_to_commit
from icedb.errors import GraceTooShort
from icedb.exclusive import exclusive
from icedb.format.rewrite import Draft, draft
from icedb.format.snapshot import LogState, Named
from icedb.handle import Handle

__all__ = ["CleanupPlan", "CleanupReport", "cleanup", "plan_cleanup"]

# With a grace period of (nearly) nothing, forgetting makes new ripe tombstones; each round leaves fewer.
ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Keys whose grace period is over."""

    log_files: tuple[str, ...]
    parts: tuple[str, ...]
    part_bytes: int


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What a cleanup deleted, or would delete. `forgotten` markers left the log, which moved the horizon."""

    deleted_log_files: tuple[str, ...]
    deleted_parts: tuple[str, ...]
    deleted_bytes: int
    deleted_claims: tuple[str, ...]
    forgotten: int
    horizon_ms: int
    commit: Commit
    dry_run: bool


def plan_cleanup(state: LogState, *, now_ms: int, grace_ms: int) -> CleanupPlan:
    """What may be deleted. Pure. `state` must have been read with `everything`."""
    cutoff_ms = now_ms - grace_ms
    replaced = [
        k
        for k, t in state.log_tombstones.items()
        if k in state.listed_ms and _is_ripe(t, state.logs_named[k], cutoff_ms) and _may_go(state, k)
    ]
    ignored = [
        k
        for k in state.ignored
        if k not in state.log_tombstones and k in state.listed_ms and state.listed_ms[k] <= cutoff_ms
    ]
    dead = {
        k: m
        for k, m in state.parts.items()
        if m.tombstoned_ms is not None and _is_ripe(m.tombstoned_ms, state.parts_named[k], cutoff_ms)
    }
    return CleanupPlan(tuple(sorted({*replaced, *ignored})), tuple(sorted(dead)), sum(m.bytes for m in dead.values()))


def _is_ripe(tombstoned_ms: int, named: Named, cutoff_ms: int) -> bool:
    """Older than the grace period, and carried by a log file that has been in the store that long."""
    return tombstoned_ms <= cutoff_ms and min(named.tombstoned_by_ms, default=cutoff_ms + 1) <= cutoff_ms


def _may_go(state: LogState, key: str) -> bool:
    """An ignored log file has all its markers elsewhere. On a v3 tombstone alone: only if that is so."""
    if key in state.ignored or key not in state.files:
        return True
    return all(
        any(k not in state.log_tombstones for k in state.parts_named[m.key].by) for m in state.files[key].file.markers
    )


def cleanup(
    handle: Handle, *, grace_ms: int | None = None, allow_short_grace: bool = False, dry_run: bool = False
) -> CleanupReport:
    """Delete what was superseded longer than `grace_ms` ago (default: the table's), and forget it.

    Below twice the commit timeout it needs `allow_short_grace` (tests; one writer at rest), and then it repeats
    until nothing is ripe. Raises GraceTooShort, CommitContended, CommitUncertain and the store's errors.
    """
    grace_ms = handle.timing.grace_ms if grace_ms is None else grace_ms
    short = grace_ms < 2 * handle.timing.commit_timeout_ms
    if grace_ms < 0 or (short and not allow_short_grace):
        raise GraceTooShort(
            f"{handle.table}: a grace period of {grace_ms} ms could delete what a running reader or writer still "
            f"needs; it must be at least {2 * handle.timing.commit_timeout_ms} ms. If nothing else uses the table "
            "now, pass allow_short_grace=True."
        )
    total = _round(handle, grace_ms, dry_run, at_rest=short)
    for _ in range(ROUNDS_MAX if short and not dry_run else 0):
        more = _round(handle, grace_ms, dry_run, at_rest=short)
        total = _add(total, more)
        if not (more.deleted_log_files or more.deleted_parts or more.forgotten):
            break
    return total


def _round(handle: Handle, grace_ms: int, dry_run: bool, *, at_rest: bool) -> CleanupReport:
    state = handle.read(everything=True)
    now_ms = handle.clock.now_ms()
    if at_rest:
        # Commits of one millisecond get rising times, so the newest may be a little ahead of the clock.
        now_ms = max(now_ms, *(t for t in state.times_ms if t <= now_ms + 2 * handle.timing.max_skew_ms), 0)
    plan = plan_cleanup(state, now_ms=now_ms, grace_ms=grace_ms)
    commit, forget = nothing_to_commit(handle), 0
    claims: tuple[str, ...] = ()
    if not dry_run:
        handle.check_writable()
        # Log files first: a part's markers can be forgotten once no log file in the store calls it live.
        handle.store.delete(plan.log_files)
        handle.store.delete(plan.parts)
        if plan.parts:
            operation = _Forget(plan.parts, now_ms - handle.timing.late_ms)
            commit = exclusive(handle, operation)
            forget = operation.forgotten if commit.committed else 0
        state = handle.read()
        claims = _delete_claims(handle, state, now_ms - grace_ms)
    return CleanupReport(plan.log_files, plan.parts, plan.part_bytes, claims, forget, state.horizon_ms, commit, dry_run)


def _add(one: CleanupReport, more: CleanupReport) -> CleanupReport:
    new_parts = set(more.deleted_parts) - set(one.deleted_parts)
    return replace(
        one,
        deleted_log_files=(*one.deleted_log_files, *more.deleted_log_files),
        deleted_parts=(*one.deleted_parts, *sorted(new_parts)),
        deleted_bytes=one.deleted_bytes + (more.deleted_bytes if new_parts else 0),
        deleted_claims=(*one.deleted_claims, *more.deleted_claims),
        forgotten=one.forgotten + more.forgotten,
        horizon_ms=more.horizon_ms,
        commit=more.commit if more.commit.committed else one.commit,
    )


def _delete_claims(handle: Handle, state: LogState, cutoff_ms: int) -> tuple[str, ...]:
    """Claims whose epoch is history. The probe stays: it is asked at every opening."""
    old = [
        info.key
        for info in handle.store.list(handle.keys.claims_prefix)
        if info.stored_ms <= cutoff_ms and (handle.keys.parse_epoch_claim(info.key) or state.epoch + 1) <= state.epoch
    ]
    handle.store.delete(old)
    return tuple(old)


@dataclass(slots=True)
class _Forget:
    """Replace the log files that hold markers of deleted parts by one without them; the horizon moves."""

    parts: Sequence[str]
    late_cutoff_ms: int
    forgotten: int = 0
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    born_ms: int | None = None
    reads_everything: bool = True

    def build(self, state: LogState, t_ms: int) -> Draft | None:
        live_somewhere = {
            m.key for f in state.files.values() for m in f.file.markers if m.tombstoned_ms is None
        }  # a v3 reader ignores log tombstones: it would see such a part come back
        dead = [
            k
            for k in self.parts
            if k in state.parts and state.parts[k].tombstoned_ms is not None and k not in live_somewhere
        ]
        self.forgotten = len(dead)
        if not dead:
            return None
        planned = draft(state, t_ms=t_ms, replaces=state.replaceable(dead), forget=set(dead))
        return self._without_late_tombstones(planned, state.listed_ms.keys())

    def _without_late_tombstones(self, planned: Draft, in_store: Collection[str]) -> Draft:
        """Log tombstones are kept while the file exists, and as long as a copy of it may still arrive."""
        kept = tuple(t for t in planned.file.tombstones if t.key in in_store or t.created_ms > self.late_cutoff_ms)
        return replace(planned, file=msgspec.structs.replace(planned.file, tombstones=kept))
