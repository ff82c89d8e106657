"""The change feed: the parts that brought new rows to the table, and the cursors of consumers.

A part into which a commit moved rows (a merge, a rewrite) brings no new rows. A part that brought new rows stays in the
feed after it is merged: its object exists for the grace period, and its marker until cleanup forgets it.

The feed is in the order of commit times, but a log file may appear some time after its commit time. So a cursor has a
time up to which everything was consumed. It is at most the settled time, before which no log file can appear any more.
Beyond that time the cursor lists the consumed parts.

Everything here is pure: the same log and the same cursors give the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from icedb.errors import InvalidOption, SnapshotExpired, UncoordinatedMaintenance
from icedb.format.keys import Keys
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.util.times import time_text

__all__ = ["BEGINNING", "Cursor", "Limits", "Removals", "advance", "at_time", "between", "check_order",
           "decode_cursor", "encode_cursor", "removals"]  # fmt: skip

#: Returns the keys of those parts that count towards the limits.
Counted = Callable[[Sequence[Marker]], Collection[str]]
#: Commit time, whether all parts of that time are included, and otherwise the key of the last included part.
_Position = tuple[int, bool, str]


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={
    "t_ms": "t", "key": "p", "seen": "seen", "snapshot": "snapshot", "gone": "gone", "removed_ms": "r",
}):  # fmt: skip
    """The position of a consumer in the change feed. Keys are relative to the table's `_data/`.

    All parts up to the time `t_ms` are consumed. With `key`, parts of exactly that time are consumed only up to this
    key. The later parts in `seen` are consumed as well.

    A consumer that begins with a snapshot of the table consumes only those of these parts that were live. Parts with a
    tombstone not later than `t_ms`, and those in `gone`, were dead. With `snapshot`, only parts up to that key are
    consumed yet.

    The removals of rows are consumed up to the time `removed_ms` (None: up to `t_ms`). Only exclusive commits remove
    rows. Each of them has a later time than those before it, so a time is enough.
    """

    t_ms: int
    key: str | None = None
    seen: tuple[str, ...] = ()
    snapshot: str | None = None
    gone: tuple[str, ...] = ()
    removed_ms: int | None = None

    @property
    def removals_ms(self) -> int:
        """The time (unix milliseconds) up to which the removals of rows are consumed."""
        return self.t_ms if self.removed_ms is None else self.removed_ms


@dataclass(frozen=True, slots=True)
class Removals:
    """The parts from which commits removed rows, and the parts to which they moved the other rows of these."""

    superseded: list[Marker]
    moved: list[Marker]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one batch; None means no limit. A batch always includes its first part, whatever its size."""

    parts: int | None = None
    bytes: int | None = None


def at_time(t_ms: int) -> Cursor:
    """Return the cursor at which everything up to a time is consumed."""
    return Cursor(t_ms)


#: The cursor before everything. The first batch fixes the snapshot with which the consumer begins.
BEGINNING = Cursor(0, snapshot="")


def _snapshot_cursor(state: TableState, keys: Keys, settled_ms: int) -> Cursor:
    """Return the cursor from which a consumer reads the current snapshot, and then later changes.

    The cursor describes the live parts by a settled time and the differences from the table at that time. This stays
    valid when log files appear later, so a large table can be consumed in many batches.
    """
    t_ms = max(settled_ms, state.horizon_ms, 0)
    prefix = keys.data_prefix
    seen = sorted(k.removeprefix(prefix) for k, m in state.parts.items() if m.created_ms > t_ms)
    gone = sorted(k.removeprefix(prefix) for k, m in state.parts.items() if (m.tombstoned_ms or 0) > t_ms)
    return _with_removals(Cursor(t_ms, seen=tuple(seen), snapshot="", gone=tuple(gone)), _newest_exclusive_ms(state))


def _newest_exclusive_ms(state: TableState) -> int:
    """Return the time of the newest exclusive commit; 0 if there is none. Every later removal has a later time."""
    files = (stored.file for stored in state.effective.values())
    return max((f.t_ms for f in files if f.epoch is not None and not f.void), default=0)


def _with_removals(cursor: Cursor, removed_ms: int) -> Cursor:
    """Return a cursor that has consumed the removals up to a time, or up to its own if that is later."""
    own_ms = cursor.t_ms if cursor.key is None else cursor.t_ms - 1
    newest_ms = max(own_ms, removed_ms)
    return msgspec.structs.replace(cursor, removed_ms=None if newest_ms == cursor.t_ms else newest_ms)


def removals(state: TableState, start: Cursor, end: Cursor) -> Removals:
    """Return the removals of rows that are consumed at `end` but not at `start`.

    The rows that were removed are those of the superseded parts without those of the moved ones, as multisets: a row
    that was moved twice is in two parts of each.
    """
    first_ms, last_ms = start.removals_ms, end.removals_ms
    if start == BEGINNING:
        first_ms = last_ms
    superseded = [
        m for m in state.parts.values() if m.tombstoned_ms is not None and first_ms < m.tombstoned_ms <= last_ms
    ]
    moved = [m for m in state.parts.values() if m.moved and first_ms < m.created_ms <= last_ms]
    both = {m.key for m in superseded} & {m.key for m in moved}
    return Removals([m for m in superseded if m.key not in both], [m for m in moved if m.key not in both])


def encode_cursor(cursor: Cursor) -> str:
    """Encode a cursor as JSON."""
    return msgspec.json.encode(cursor).decode()


def decode_cursor(text: str, *, table: str) -> Cursor:
    """Decode the text of a cursor. Raises InvalidOption."""
    try:
        return msgspec.json.decode(text, type=Cursor)
    except msgspec.MsgspecError as error:
        raise InvalidOption(
            f"{table}: {text[:80]!r} is no cursor of this table's changes ({error}). Give one that a read of changes "
            "returned, or a time."
        ) from None


def between(state: TableState, keys: Keys, start: Cursor, end: Cursor) -> list[Marker]:
    """Return the parts that are consumed at `end` but not at `start`, in the order of the feed.

    Raises SnapshotExpired if cleanup forgot some of them, and UncoordinatedMaintenance if the log does not show which
    parts are new.
    """
    if start == BEGINNING:
        start = msgspec.structs.replace(end, snapshot="")
    feed, reached = _Feed(state, keys, start), _Reach(end, keys)
    began = feed.snapshot if end.snapshot is None else [m for m in feed.snapshot if feed.name(m) <= end.snapshot]
    return began + [m for m in feed.appended if reached.has(m)]


def advance(
    state: TableState,
    keys: Keys,
    start: Cursor,
    *,
    settled_ms: int,
    until_ms: int | None = None,
    limits: Limits | None = None,
    counted: Counted | None = None,
    consumed_ms: int = 0,
) -> tuple[Cursor, list[Marker]]:
    """Return the end of the batch that begins at `start`, and its parts: those of commits up to `until_ms`.

    `limits` may end the batch earlier. `counted` returns the parts that count towards the limits; the consumer skips
    the others. No log file of the time `settled_ms` or before can appear any more.

    The consumer has consumed everything that was superseded by `consumed_ms` (unix milliseconds), even if `start` is
    before it, so cleanup may have forgotten it. Raises the same errors as `between`.
    """
    begins = start == BEGINNING
    if begins:
        start = _snapshot_cursor(state, keys, settled_ms)
    feed = _Feed(state, keys, start, consumed_ms)
    appended = [m for m in feed.appended if until_ms is None or m.created_ms <= until_ms]
    taken = _within(limits or Limits(), [*feed.snapshot, *appended], counted)
    if len(taken) < len(feed.snapshot):
        return msgspec.structs.replace(start, snapshot=feed.name(taken[-1])), taken
    if begins:
        return msgspec.structs.replace(start, snapshot=None), taken
    left = {m.key for m in feed.appended} - {m.key for m in taken}
    frontier = max(feed.start.frontier, (settled_ms if until_ms is None else min(settled_ms, until_ms), True, ""))
    first_left = min((feed.start.position(m) for m in feed.appended if m.key in left), default=None)
    if first_left is not None and first_left <= frontier:
        passed = (p for m in feed.all if (p := feed.start.position(m)) < first_left)
        frontier = max(feed.start.frontier, max(passed, default=feed.start.frontier))
    t_ms, whole, key = frontier
    beyond = sorted(feed.name(m) for m in feed.all if m.key not in left and feed.start.position(m) > frontier)
    # The rows of a commit that replaced others are consumed together with the removal of these.
    bounds = [_newest_exclusive_ms(state), *(m.created_ms - 1 for m in feed.all if m.key in left)]
    removed_ms = max(start.removals_ms, min(bounds if until_ms is None else [*bounds, until_ms]))
    return _with_removals(Cursor(t_ms, None if whole else key, tuple(beyond)), removed_ms), taken


class _Reach:
    """The parts before a cursor. Parts of an unfinished snapshot count as before it: the feed does not return them."""

    def __init__(self, cursor: Cursor, keys: Keys) -> None:
        self._data_prefix = keys.data_prefix
        self._seen = frozenset(cursor.seen)
        self.frontier: _Position = (cursor.t_ms, cursor.key is None, cursor.key or "")

    def name(self, marker: Marker) -> str:
        """Return the key of a part as cursors name it."""
        return marker.key.removeprefix(self._data_prefix)

    def position(self, marker: Marker) -> _Position:
        """Return the position of a part in the feed."""
        return marker.created_ms, False, self.name(marker)

    def has(self, marker: Marker) -> bool:
        return self.position(marker) <= self.frontier or self.name(marker) in self._seen


class _Feed:
    """The parts after a cursor: the rest of its snapshot, then the appended parts, in order."""

    def __init__(self, state: TableState, keys: Keys, start: Cursor, consumed_ms: int = 0) -> None:
        _check_readable(state, start, consumed_ms)
        self.start = _Reach(start, keys)
        self.name = self.start.name
        self.snapshot: list[Marker] = []
        if (after := start.snapshot) is not None:
            gone = frozenset(start.gone)
            began = (m for m in state.parts.values() if self.start.has(m) and self.name(m) > after)
            self.snapshot = sorted((m for m in began if not self._was_dead(m, start.t_ms, gone)), key=self.name)
        #: Every part that brought new rows since the cursor's time, consumed or not.
        self.all = sorted(
            (m for m in state.parts.values() if m.created_ms >= start.t_ms and not m.moved), key=self.start.position
        )
        self.appended = [m for m in self.all if not self.start.has(m)]

    def _was_dead(self, marker: Marker, t_ms: int, gone: frozenset[str]) -> bool:
        dead_ms = marker.tombstoned_ms
        return dead_ms is not None and (dead_ms <= t_ms or self.name(marker) in gone)


def _within(limits: Limits, markers: list[Marker], counted: Counted | None) -> list[Marker]:
    if limits.parts is None and limits.bytes is None:
        return markers
    counting = None if counted is None else counted(markers)
    parts = size = 0
    for number, marker in enumerate(markers):
        if counting is not None and marker.key not in counting:
            continue
        parts, size = parts + 1, size + marker.bytes
        too_many = limits.parts is not None and parts > limits.parts
        if parts > 1 and (too_many or (limits.bytes is not None and size > limits.bytes)):
            return markers[:number]
    return markers


def check_order(start: Cursor, end: Cursor, keys: Keys, *, table: str) -> None:
    """Raise InvalidOption unless `end` is at or after `start`."""
    of_one_beginning = start == BEGINNING or (
        (start.t_ms, start.seen, start.gone) == (end.t_ms, end.seen, end.gone)
        and start.snapshot is not None
        and start.snapshot <= (end.snapshot or start.snapshot)
    )
    if of_one_beginning if end.snapshot is not None else _Reach(start, keys).frontier <= _Reach(end, keys).frontier:
        return
    raise InvalidOption(
        f"{table}: until is a cursor that does not come after since. Give a later one of the same reader."
    )


def _check_readable(state: TableState, start: Cursor, consumed_ms: int) -> None:
    if max(start.t_ms, consumed_ms) < state.horizon_ms:
        remedy = (
            "The consumer was still reading its first snapshot. Begin anew with larger batches, or with a longer "
            "grace_ms until the snapshot is read."
            if start.snapshot is not None
            else "Begin anew with the table as it is (no 'since', or a new checkpoint). Set a grace_ms that is longer "
            "than a consumer may fall behind."
        )
        raise SnapshotExpired(
            f"{state.table}: cleanup has forgotten what was superseded before {time_text(state.horizon_ms)}, and "
            f"changes since {time_text(start.t_ms)} may be among it. {remedy}",
            horizon_ms=state.horizon_ms,
        )
    foreign_ms = max((f.file.newest_foreign_ms for f in state.effective.values()), default=0)
    if start.t_ms < foreign_ms:
        raise UncoordinatedMaintenance(
            f"{state.table}: a program of IceDB v3 merged or dropped parts at {time_text(foreign_ms)} and did not "
            "record which of its parts brought new rows. Maintain the table with merge and cleanup of this version "
            "only. Begin anew with the table as it is (no 'since', or a new checkpoint) a quarter of an hour later.",
            foreign_ms=foreign_ms,
        )
