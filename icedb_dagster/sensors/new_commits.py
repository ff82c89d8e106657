"""Commits that brought rows since the last tick: the change feed, commit by commit.

Parts with the same time came in one commit. Its log file is the one that has that time and names them, until log files
are merged. After that, two commits of the same millisecond look like one. Commits that are too young are left for a
later tick, see `CommitsSensor.settle_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from icedb.format.change_feed import Cursor, advance
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.reader.changes import Changes, changes_of, settled_ms
from icedb.transaction.table_handle import Handle
from icedb_dagster.sensors.feed_position import FeedPosition

__all__ = ["CommitBatch", "NewCommit", "read_new_commits"]


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit that brought rows. `created_ms` is its time (unix milliseconds).

    `log_file` is the key of its own log file; None after that was merged into another one.
    """

    created_ms: int
    log_file: str | None
    markers: tuple[Marker, ...]

    @property
    def parts(self) -> frozenset[str]:
        """The keys of its parts."""
        return frozenset(m.key for m in self.markers)


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The commits of one tick in order, the position for the next tick, and the table's state at this one."""

    commits: tuple[NewCommit, ...]
    end: FeedPosition
    #: Whether more commits are old enough to be reported.
    more: bool
    table: Changes


def read_new_commits(handle: Handle, begin: FeedPosition, *, settle_ms: int, commits_max: int) -> CommitBatch:
    """Return the commits after `begin` that are at least `settle_ms` old, the oldest first.

    The log is read afresh, with one LIST for each thousand stored log files, so a table that was deleted and recreated
    is noticed. Raises SnapshotExpired, the errors of `LogReader.read`, and UncoordinatedMaintenance. The latter has a
    time if an IceDB v3 program hides new commits.
    """
    now_ms = handle.clock.now_ms()  # before the log is read
    state, start = handle.read(fresh=True), begin.changes
    settled = settled_ms(handle, now_ms)
    until_ms = max(start.t_ms, now_ms - settle_ms)

    def up_to(until_ms: int) -> tuple[Cursor, list[NewCommit]]:
        end, markers = advance(
            state, handle.keys, start, settled_ms=settled, until_ms=until_ms, consumed_ms=begin.known_ms
        )
        return end, _commits(state, markers)

    end, commits = up_to(until_ms)
    more = len(commits) > commits_max
    if more:
        # Two programs may commit in the same millisecond. Commits with the same time stay together.
        until_ms = commits[commits_max - 1].created_ms
        end, commits = up_to(until_ms)
    table = changes_of(handle, state, start, end, state.live, as_of_ms=max(now_ms - 1, state.newest_ms))
    return CommitBatch(tuple(commits), FeedPosition(end, known_ms=_known_ms(handle, now_ms, until_ms)), more, table)


def _known_ms(handle: Handle, now_ms: int, until_ms: int) -> int:
    """Return the time up to which all superseded commits are reported, after a read at `now_ms` up to `until_ms`.

    A part that appears after the read is superseded after it, by a clock that may be behind by twice the skew.
    """
    return min(until_ms, now_ms - 2 * handle.timing.max_skew_ms - 1)


def _commits(state: TableState, markers: Iterable[Marker]) -> list[NewCommit]:
    def identity(marker: Marker) -> tuple[int, str]:
        return marker.created_ms, _log_file(state, marker) or ""

    by_commit = groupby(sorted(markers, key=lambda m: (*identity(m), m.key)), key=identity)
    return [NewCommit(t_ms, log_file or None, tuple(of_commit)) for (t_ms, log_file), of_commit in by_commit]


def _log_file(state: TableState, marker: Marker) -> str | None:
    """The log file that published a part."""
    naming = state.parts_named[marker.key].by
    return next((k for k in naming if state.files[k].file.t_ms == marker.created_ms), None)
