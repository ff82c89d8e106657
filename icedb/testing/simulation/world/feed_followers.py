"""Consumers of the change feed, which keep their cursor and rows, and may crash within or between batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from icedb.errors import SnapshotExpired
from icedb.format.change_feed import Limits
from icedb.reader.changes import take_changes
from icedb.testing.simulation.world.plain_parts import read_rows
from icedb.testing.simulation.world.process import WorldInterface
from icedb.testing.simulation.world.setting import LATE_MS, TIMING
from icedb.testing.simulation.world.truth import Violation
from icedb.transaction.table_handle import Handle

__all__ = ["Follower", "Followers"]


@dataclass(slots=True)
class Follower:
    """One consumer. `must` are the rows that it must have got since it began at the request `began_step`."""

    cursor: str | None = None
    rows: set[int] = field(default_factory=set)
    #: How often each row was removed, less how often a restore brought it back.
    removed: Counter[int] = field(default_factory=Counter)
    must: set[int] = field(default_factory=set)
    began_step: int = 0
    #: The last time at which it had everything; None if never.
    caught_up_ms: int | None = None
    busy: bool = False
    #: The begin, the end and the parts of the last batch.
    batch: tuple[str, str, frozenset[str]] | None = None


@dataclass(slots=True)
class Followers:
    """All consumers of a world. One that fell behind cleanup is removed."""

    active: list[Follower] = field(default_factory=list)

    def idle(self) -> Follower:
        """Return the first idle consumer, or a new one."""
        follower = next((f for f in self.active if not f.busy), None)
        if follower is None:
            follower = Follower()
            self.active.append(follower)
        return follower

    def follow(self, world: WorldInterface, handle: Handle, follower: Follower, limits: Limits | None) -> None:
        """Read the next batch, and keep it together with the cursor. Raises Violation, and the errors of readers."""
        follower.busy = True
        try:
            self._follow(world, handle, follower, limits)
        finally:  # also after a crash: the consumer continues in another process
            follower.busy = False

    def _follow(self, world: WorldInterface, handle: Handle, follower: Follower, limits: Limits | None) -> None:
        first, began_ms = world.step, world.clock.now_ms()
        try:
            changes = take_changes(handle, follower.cursor, limits=limits)
            rows = read_rows(handle, [p.key for p in changes.parts])
            superseded, moved = (
                Counter(read_rows(handle, [m.key for m in markers]))
                for markers in (changes.removals.superseded, changes.removals.moved)
            )
        except SnapshotExpired:
            kept_up_ms = began_ms if follower.cursor is None else follower.caught_up_ms
            slow_ms = TIMING.grace_ms - LATE_MS - 2 * TIMING.max_skew_ms
            if kept_up_ms is not None and world.clock.now_ms() - kept_up_ms < slow_ms:
                raise Violation("a consumer of changes that kept up got SnapshotExpired") from None
            self.active.remove(follower)
            raise
        self._repeat(handle, follower)
        follower.batch = (changes.since, changes.cursor, frozenset(p.key for p in changes.parts))
        if twice := follower.rows & set(rows) or len(set(rows)) < len(rows):
            raise Violation(f"a consumer of changes got rows twice: {twice} in {sorted(rows)}")
        if follower.cursor is None:
            follower.must, follower.began_step = world.truth.must_see(first, world.step), world.step
        follower.rows |= set(rows)
        follower.removed.update(superseded)
        follower.removed.subtract(moved)
        follower.cursor = changes.cursor
        if limits is None:
            follower.caught_up_ms = began_ms
            appended = {
                r for r, lives in world.truth.fates.items() if follower.began_step < lives[0].added_step <= first
            }
            if lost := (follower.must | appended) - follower.rows:
                raise Violation(f"a consumer of changes did not get rows {sorted(lost)}")
            self._compare(world, follower, first)

    def _compare(self, world: WorldInterface, follower: Follower, first: int) -> None:
        """Check that the rows of a consumer, without those that were removed, are those of the table."""
        alive, seen = world.truth.must_see(first, world.step), world.truth.may_see(first, world.step)
        for row in follower.rows:
            is_left = follower.removed[row] == 0
            if is_left and row not in seen:
                raise Violation(f"a consumer of changes was not told that row {row} was removed")
            if not is_left and row in alive:
                raise Violation(f"a consumer of changes was told {follower.removed[row]} times that row {row} went")

    def _repeat(self, handle: Handle, follower: Follower) -> None:
        """Check that the last batch has the same parts when it is read again, unless cleanup has forgotten them."""
        if follower.batch is None:
            return
        since, until, parts = follower.batch
        try:
            again = take_changes(handle, since, until)
        except SnapshotExpired:
            return
        if (repeated := {p.key for p in again.parts}) != parts:
            raise Violation(f"a repeated batch of changes has {sorted(repeated)} and had {sorted(parts)}")
