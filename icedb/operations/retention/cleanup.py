"""Cleanup (VACUUM): delete the objects of expired tombstones, and remove their markers from the log.

A tombstone records when a part (data file) or a log file was superseded. A reader that listed the log before that time
may still open the object. So cleanup waits for the grace period, `grace_ms`, by the writer's clock and by the store's.
It keeps the objects and markers that a pin needs (see `icedb.operations.retention.pins`). It never rewrites rows and
never makes a part visible. It may stop after any request, and the next run finishes the work. It does not delete
orphans, the objects that no log file names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from icedb.errors import CorruptLog, GraceTooShort, InvalidOption
from icedb.format.claims import decode_txn_claim
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import LogReferences, Marker, tombstone_flags, tombstoned
from icedb.format.replay import TableState
from icedb.operations.commits.log_carryover import log_files_naming_live
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.idempotent_append import is_recorded
from icedb.transaction.pin_objects import Pin, is_needed, pins_in_force, read_pins
from icedb.transaction.table_handle import Handle
from icedb.transaction.table_place import below_other_tables
from icedb.util.durations import duration_text

__all__ = ["DELETES_MAX", "CleanupPlan", "CleanupReport", "cleanup", "plan_cleanup"]

logger = logging.getLogger(__name__)

# With a grace period near zero, removing markers creates new ripe tombstones. Each round leaves fewer of them.
ROUNDS_MAX = 10
# The limit of one call: a hundred requests, and as many removed markers in one commit as are read in a second.
DELETES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """The objects that one call deletes: keys of log files and markers of parts, in key order.

    `kept_for_pins` counts parts that are old enough but needed by a pin. `remaining` objects are left for the next
    call.
    """

    log_files: tuple[str, ...]
    parts: tuple[Marker, ...]
    kept_for_pins: int
    remaining: int


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """The result of a cleanup, or of a dry run.

    `forgotten` markers were removed from the log, which moved the horizon (the oldest readable time).
    `rewritten_log_files` were replaced by log files without these markers, and are deleted when they are old enough.

    `kept_for_pins` parts were old enough but needed by a pin. Pins that expired long ago were deleted. Run cleanup
    again if objects are `remaining`.
    """

    deleted_log_files: tuple[str, ...]
    deleted_parts: tuple[str, ...]
    deleted_bytes: int
    deleted_claims: tuple[str, ...]
    deleted_pins: tuple[str, ...]
    kept_for_pins: int
    forgotten: int
    rewritten_log_files: tuple[str, ...]
    remaining: int
    horizon_ms: int
    commit: Commit
    dry_run: bool


def plan_cleanup(
    state: TableState, *, now_ms: int, grace_ms: int, pins: Collection[Pin] = (), deletes_max: int = DELETES_MAX
) -> CleanupPlan:
    """Return the objects that may be deleted. Pure. `state` must have been read with `everything`, and the pins after
    `now_ms`.

    If `deletes_max` is too small, log files come first, because markers can be forgotten only after them. Then come the
    parts that were superseded first, so that the horizon moves no further than it must. Last come parts that can be
    deleted but not yet forgotten. They do not count as `remaining`, because the cleanup of the log files that name them
    deletes them again.
    """
    cutoff_ms = now_ms - grace_ms
    log_files = _old_log_files(state, cutoff_ms)
    old = (m for m in state.dead if m.tombstoned_ms is not None and m.tombstoned_ms <= cutoff_ms)
    dead = [m for m in old if _is_ripe(m.tombstoned_ms, state.parts_named[m.key], cutoff_ms)]
    named = _named_live(state, {m.key for m in dead}, but=frozenset(log_files))
    free = sorted(
        (m for m in dead if not is_needed(m, pins)), key=lambda m: (m.key in named, m.tombstoned_ms or 0, m.key)
    )
    logs_now = log_files[:deletes_max]
    parts_now = free[: deletes_max - len(logs_now)]
    left = sum(m.key not in named for m in free[len(parts_now) :])
    return CleanupPlan(
        log_files=tuple(logs_now),
        parts=tuple(sorted(parts_now, key=lambda m: m.key)),
        kept_for_pins=len(dead) - len(free),
        remaining=len(log_files) - len(logs_now) + left,
    )


def _old_log_files(state: TableState, cutoff_ms: int) -> list[str]:
    replaced = {
        k
        for k, t in state.log_tombstones.items()
        if k in state.listed_ms and _is_ripe(t, state.logs_named[k], cutoff_ms)
    }
    ignored = {
        k for k in state.ignored - state.log_tombstones.keys() if state.listed_ms.get(k, cutoff_ms + 1) <= cutoff_ms
    }
    return sorted(replaced - _still_needed(state, replaced) | ignored)


def _named_live(state: TableState, part_keys: Collection[str], *, but: frozenset[str] = frozenset()) -> set[str]:
    """Return those of the parts that a log file in the store lists as live, except for the log files in `but`.

    Their markers cannot be forgotten. A v3 reader ignores log tombstones, so such a part would reappear to it.
    """
    files = (stored.file for key, stored in state.files.items() if key not in but)
    return {key for file in files for key, is_dead in tombstone_flags(file.markers) if not is_dead and key in part_keys}


def _is_ripe(tombstoned_ms: int | None, named: LogReferences, cutoff_ms: int) -> bool:
    """Whether the tombstone is older than the grace period, and a log file with it has been stored that long."""
    if tombstoned_ms is None:
        return False
    return tombstoned_ms <= cutoff_ms and min(named.tombstoned_by_ms, default=cutoff_ms + 1) <= cutoff_ms


def _still_needed(state: TableState, replaced: Collection[str]) -> set[str]:
    """Return the superseded log files with content that no other log file carries.

    A log file that this library replaces is ignored by replay, because all its markers are carried over. A v3 program's
    tombstone does not guarantee that. So a log file without a tombstone must name each part, and each tombstone of a
    part.
    """
    unproven = [f for k in replaced if k not in state.ignored and (f := state.files.get(k)) is not None]
    if not unproven:
        return set()
    staying = [f.file for k, f in state.effective.items() if k not in state.log_tombstones]
    named = {key for f in staying for key, _ in tombstone_flags(f.markers)}
    dead = {m.key for f in staying for m in tombstoned(f.markers)}
    return {
        stored.key
        for stored in unproven
        if not all(key in (dead if is_dead else named) for key, is_dead in tombstone_flags(stored.file.markers))
    }


def cleanup(
    handle: Handle,
    *,
    grace_ms: int | None = None,
    allow_short_grace: bool = False,
    deletes_max: int = DELETES_MAX,
    dry_run: bool = False,
) -> CleanupReport:
    """Delete objects that were superseded longer than `grace_ms` ago (default: the table's), and forget their markers.

    Deletes at most `deletes_max` log files and parts; the report counts the rest as `remaining`. A grace period below
    twice the commit timeout requires `allow_short_grace` (for tests, or if no other program uses the table). It repeats
    until no tombstone is ripe. Pins rely on the table's grace period, so no writer may create a pin during a cleanup
    with a shorter one.

    Raises GraceTooShort, InvalidOption, ClockSkew, CorruptLog (a pin cannot be read), CommitConflict,
    CommitStateUnknown and the store's errors.
    """
    if grace_ms is not None:
        handle.learn_changed_times()
    short = _check_grace(handle, grace_ms, allow_short=allow_short_grace)
    if deletes_max < 1:
        raise InvalidOption(f"{handle.table}: deletes_max is {deletes_max}; pass at least 1.")
    run = _CleanupRun(
        handle, grace_ms, allow_short_grace, deletes_max, dry_run, short_grace=short, commit=nothing_to_commit(handle)
    )
    for _ in range(1 + (ROUNDS_MAX if short and not dry_run else 0)):
        if not run.round():
            break
    return run.report()


def _check_grace(handle: Handle, grace_ms: int | None, *, allow_short: bool) -> bool:
    """Return whether the grace period is too short for other programs. Raises GraceTooShort unless it is allowed."""
    if grace_ms is None:
        return False
    least_ms = 2 * handle.timing.commit_timeout_ms
    if grace_ms < 0 or (grace_ms < least_ms and not allow_short):
        raise GraceTooShort(
            f"{handle.table}: a grace period of {duration_text(grace_ms)} could delete what a running reader or writer "
            f"still needs; it must be at least {duration_text(least_ms)}. If nothing else uses the table now, pass "
            "allow_short_grace=True."
        )
    return grace_ms < least_ms


@dataclass(slots=True)
class _CleanupRun:
    """One call of cleanup and its results so far. It has one round, or several if the grace period is short."""

    handle: Handle
    #: None: the table's grace period.
    grace_ms: int | None
    allow_short_grace: bool
    deletes_left: int
    dry_run: bool
    short_grace: bool
    commit: Commit
    log_files: list[str] = field(default_factory=list)
    #: Key -> bytes.
    parts: dict[str, int] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)
    pins: list[str] = field(default_factory=list)
    kept_for_pins: int = 0
    forgotten: int = 0
    rewritten: list[str] = field(default_factory=list)
    remaining: int = 0
    horizon_ms: int = 0

    def round(self) -> bool:
        """Run one round, and return whether another round could delete more."""
        state = self.handle.read(everything=True)
        # Checked after the log was read, because another program may have changed the table's times.
        _check_grace(self.handle, self.grace_ms, allow_short=self.allow_short_grace)
        grace_ms = self.handle.timing.grace_ms if self.grace_ms is None else self.grace_ms
        now_ms = self._now_ms(state)
        cutoff_ms = now_ms - grace_ms
        plan = plan_cleanup(
            state,
            now_ms=now_ms,
            grace_ms=grace_ms,
            pins=pins_in_force(self.handle, cutoff_ms=cutoff_ms),
            deletes_max=self.deletes_left,
        )
        self.kept_for_pins, self.remaining = plan.kept_for_pins, plan.remaining
        forgotten = 0
        parts: Sequence[Marker] = plan.parts
        if not self.dry_run:
            self.handle.check_writable()
            # Log files first, because a marker can be forgotten only once no log file in the store lists it as live.
            self._delete(plan.log_files)
            parts = self._delete_parts(plan.parts, cutoff_ms)
            forgotten = self._forget(parts, cutoff_ms)
            state = self.handle.read()
        self.horizon_ms = state.horizon_ms
        self._delete_claims(state, cutoff_ms)
        new_parts = {m.key: m.bytes for m in parts if m.key not in self.parts}
        self.log_files += plan.log_files
        self.parts |= new_parts
        self.forgotten += forgotten
        self.deletes_left -= len(plan.log_files) + len(new_parts)
        return self.deletes_left > 0 and bool(plan.log_files or new_parts or forgotten)

    def _now_ms(self, state: TableState) -> int:
        now_ms = self.handle.clock.now_ms()
        if not self.short_grace:
            return now_ms
        # Commits within one millisecond get ascending times, so the newest may be slightly ahead of the clock.
        sane_ms = now_ms + 2 * self.handle.timing.max_skew_ms
        return max(now_ms, *(t for t in state.times_ms if t <= sane_ms), 0)

    def _delete_parts(self, planned: Sequence[Marker], cutoff_ms: int) -> Sequence[Marker]:
        """Read the pins again, then delete the parts. After an error the markers remain, and the next run retries."""
        if not planned:
            return ()
        pins = pins_in_force(self.handle, cutoff_ms=cutoff_ms)
        parts = [m for m in planned if not is_needed(m, pins)]
        self.kept_for_pins += len(planned) - len(parts)
        if foreign := below_other_tables(self.handle, (m.key for m in parts)):
            logger.warning("%s: the log names parts of another table; they were kept: %s", self.handle.table, foreign)
            parts = [m for m in parts if m.key not in foreign]
        self._delete([m.key for m in parts])
        return parts

    def _delete(self, keys: Sequence[str], *, repeat: bool = True) -> None:
        """Delete objects. Raises ClockSkew before any deletion: every object looks old to a clock far ahead."""
        if keys:
            self.handle.checks.check_clock("", put_after_ms=0)
            self.handle.store.delete(keys, repeat=repeat)

    def _forget(self, parts: Sequence[Marker], cutoff_ms: int) -> int:
        """Commit the log without the markers of deleted parts, and return the number of removed markers."""
        if not parts:
            return 0
        operation = _Forget([m.key for m in parts], lambda: pins_in_force(self.handle, cutoff_ms=cutoff_ms))
        commit = commit_exclusive(self.handle, operation)
        if not commit.committed:
            return 0
        self.commit = commit
        self.rewritten += operation.replaced
        return operation.forgotten

    def _delete_claims(self, state: TableState, cutoff_ms: int) -> None:
        """Delete claims of decided epochs, and pins that expired long ago. Openings read the probe, which stays."""
        handle = self.handle
        old = [i.key for i in handle.store.list(handle.keys.claims_prefix) if i.stored_ms <= cutoff_ms]
        claims = [k for k in old if _is_history(state, handle.keys.parse_epoch_claim(k))]
        claims += _recorded(handle, state, [k for k in old if handle.keys.is_txn_claim(k)])
        if not self.dry_run:
            self._delete(claims)
        # Read right before the deletion, because the name may have been used for a new pin, which a repeated deletion
        # could delete.
        has_pins = any(handle.keys.parse_pin(k) is not None for k in old)
        pins = [p.name for p in read_pins(handle) if p.expired(cutoff_ms)] if has_pins else []
        if not self.dry_run:
            self._delete([handle.keys.pin(name) for name in pins], repeat=False)
        self.claims += claims
        self.pins += pins

    def report(self) -> CleanupReport:
        return CleanupReport(
            deleted_log_files=tuple(self.log_files),
            deleted_parts=tuple(sorted(self.parts)),
            deleted_bytes=sum(self.parts.values()),
            deleted_claims=tuple(self.claims),
            deleted_pins=tuple(self.pins),
            kept_for_pins=self.kept_for_pins,
            forgotten=self.forgotten,
            rewritten_log_files=tuple(self.rewritten),
            remaining=self.remaining,
            horizon_ms=self.horizon_ms,
            commit=self.commit,
            dry_run=self.dry_run,
        )


def _is_history(state: TableState, epoch: int | None) -> bool:
    """Whether the claim of that epoch is no longer needed.

    The claim after each live epoch stays. If the log loses the later epochs, the next commit finds that claim taken,
    and later claims next to it.
    """
    return epoch is not None and epoch <= state.epoch and epoch - 1 not in state.live_epochs


def _recorded(handle: Handle, state: TableState, keys: Sequence[str]) -> list[str]:
    """Return the claims whose transaction the log records. `verify` reports claims that cannot be decoded."""
    recorded = []
    for key, stored in handle.store.get_many(keys).items():
        try:
            claim = decode_txn_claim(stored.body, key, handle.keys, stored_ms=stored.stored_ms)
        except CorruptLog:
            continue
        if is_recorded(state, (claim.application, claim.sequence)):
            recorded.append(key)
    return recorded


@dataclass(slots=True)
class _Forget:
    """Replace the log files with markers of deleted parts by one log file without them. The horizon moves.

    Log files that list a superseded part as live are replaced too. A later cleanup deletes them and can then forget the
    part.
    """

    parts: Sequence[str]
    pins: Callable[[], Collection[Pin]]
    forgotten: int = 0
    replaced: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = True

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        held = _named_live(state, frozenset(self.parts)) | state.held_far_ahead(t_ms)
        dead = [
            m
            for k in self.parts
            if k not in held and (m := state.parts.get(k)) is not None and m.tombstoned_ms is not None
        ]
        if dead:
            pins = self.pins()
            dead = [m for m in dead if not is_needed(m, pins)]
        self.forgotten = len(dead)
        keys = {m.key for m in dead}
        calling = log_files_naming_live(state, t_ms=t_ms)
        if not (dead or calling):
            return None
        self.replaced = tuple(sorted(calling.union(state.replaceable(keys, t_ms=t_ms))))
        return draft(state, t_ms=t_ms, replaces=self.replaced, forget=keys, operation="cleanup")
