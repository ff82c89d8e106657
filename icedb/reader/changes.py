"""Changes of a table: the parts that brought rows between two points of its history.

What a merge made is not among them, for its rows were there before; what was merged, dropped or replaced since then
is, as long as cleanup leaves it. See `icedb.format.change_feed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icedb.errors import InvalidOption
from icedb.format.change_feed import (
    BEGINNING,
    Cursor,
    Limits,
    advance,
    at_time,
    between,
    check_order,
    decode_cursor,
    encode_cursor,
)
from icedb.format.column_times import schema_at
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns, spec_at
from icedb.reader.snapshot import Snapshot
from icedb.transaction.table_handle import Handle
from icedb.transaction.time_bounds import check_readable_time
from icedb.util.times import time_text

__all__ = ["Changes", "changes_of", "cursor_of", "settled_ms", "take_changes"]


@dataclass(frozen=True)
class Changes(Snapshot):
    """The parts that brought rows, in `parts`; all that a snapshot can do, this can. Made by `Table.changes`.

    `cursor` is where they end: what the next call is given as `since`, to go on without a gap and without repetition.
    `since` is where they begin. Both are texts that a program may keep.
    """

    since: str
    cursor: str

    def __repr__(self) -> str:
        return f"Changes({self.table!r}, parts={len(self.parts)}, rows={self.rows}, as_of_ms={self.as_of_ms})"


def take_changes(
    handle: Handle,
    since: int | str | None = None,
    until: int | str | None = None,
    *,
    limits: Limits | None = None,
) -> Changes:
    """The changes after `since`: a time (unix milliseconds), a cursor, or None: first all that the table has.

    `until` is a time or a cursor, too. A time is not in the future, see `check_readable_time`.

    Raises InvalidOption, SnapshotExpired, UncoordinatedMaintenance and what `LogReader.read` raises.
    """
    _check_limits(handle, limits)
    now_ms = handle.clock.now_ms()  # before the log is read
    state = handle.read()
    for at_ms in (since, until):
        if isinstance(at_ms, int):
            check_readable_time(handle, state, at_ms, now_ms=now_ms, may_precede=True)
    settled, now_ms = settled_ms(handle, now_ms), now_ms - 1
    start = BEGINNING if since is None else cursor_of(handle, since)
    if isinstance(until, str):
        end = decode_cursor(until, table=handle.table)
        check_order(start, end, handle.keys, table=handle.table)
        markers = between(state, handle.keys, start, end)
    else:
        _check_until(handle, start, until)
        end, markers = advance(state, handle.keys, start, settled_ms=settled, until_ms=until, limits=limits)
    latest_ms = max(now_ms, state.newest_ms)
    if not isinstance(until, int) or until > latest_ms:
        as_of_ms = until if isinstance(until, int) else latest_ms
        return changes_of(handle, state, start, end, markers, as_of_ms=as_of_ms)
    spec, schema = spec_at(handle.spec, until), schema_at(state, until)
    changes = changes_of(handle, state, start, end, markers, as_of_ms=until)
    return replace(changes, schema=all_columns(spec, schema), _spec=spec)


def changes_of(
    handle: Handle, state: TableState, start: Cursor, end: Cursor, markers: Sequence[Marker], *, as_of_ms: int
) -> Changes:
    """Parts of the change feed as what can be queried."""
    return Changes(
        table=handle.table,
        as_of_ms=as_of_ms,
        parts=tuple(map(handle.part, markers)),
        schema=all_columns(handle.spec, state.schema),
        log_files=len(state.files),
        epoch=state.epoch,
        _handle=handle,
        _spec=handle.spec,
        since=encode_cursor(start),
        cursor=encode_cursor(end),
    )


def cursor_of(handle: Handle, since: int | str) -> Cursor:
    """Where a time, or a cursor's text, is. Raises InvalidOption."""
    return decode_cursor(since, table=handle.table) if isinstance(since, str) else at_time(since)


def settled_ms(handle: Handle, now_ms: int) -> int:
    """The time (unix milliseconds) up to which no log file can appear any more, in a log that was read after `now_ms`.

    Ask after the log was read, for it may say that publications may be later.
    """
    return now_ms - handle.timing.late_publication_ms


def _check_until(handle: Handle, start: Cursor, until_ms: int | None) -> None:
    if until_ms is None:
        return
    if start == BEGINNING:
        raise InvalidOption(f"{handle.table}: until goes with since; snapshot(until) is the table at a time.")
    if until_ms < start.t_ms:
        raise InvalidOption(
            f"{handle.table}: until ({time_text(until_ms)}) is before since ({time_text(start.t_ms)}). Exchange them."
        )


def _check_limits(handle: Handle, limits: Limits | None) -> None:
    for name, limit in () if limits is None else (("parts_max", limits.parts), ("bytes_max", limits.bytes)):
        if limit is not None and limit < 1:
            raise InvalidOption(f"{handle.table}: {name} is {limit}; give a number over 0, or None for no limit.")
