"""The times of snapshots, pins and restores: which are valid, and which state of the table each means.

A valid time is not before the table's creation, and not in the future. Before the horizon, only pinned times are
readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icedb.errors import InvalidOption
from icedb.format.column_times import schema_at
from icedb.format.records import Marker
from icedb.format.replay import TableState, live_markers
from icedb.format.table_spec import TableSpec, all_columns, spec_at
from icedb.storage.object_store import STORED_MS_PRECISION
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.pin_objects import is_pinned
from icedb.transaction.table_handle import Handle
from icedb.util.times import time_text

__all__ = ["StateTime", "check_past_time", "check_readable_time", "markers_at", "newest_ms", "resolve_time"]


@dataclass(frozen=True, slots=True)
class StateTime:
    """A time of a table's state, with the spec and the columns of that time."""

    as_of_ms: int
    is_latest: bool
    spec: TableSpec
    columns: Mapping[str, str]


def resolve_time(handle: Handle, state: TableState, as_of_ms: int | None, *, now_ms: int) -> StateTime:
    """Return the state's time, spec and columns for a time. None, or a time after `now_ms`, is the latest."""
    latest_ms = max(now_ms, state.newest_ms)
    if as_of_ms is None or as_of_ms > latest_ms:
        return StateTime(latest_ms, True, handle.spec, all_columns(handle.spec, state.schema))
    spec = spec_at(handle.spec, as_of_ms)
    return StateTime(as_of_ms, False, spec, all_columns(spec, schema_at(state, as_of_ms)))


def markers_at(handle: Handle, state: TableState, as_of_ms: int) -> Sequence[Marker]:
    """Return the parts of the snapshot at a time, in key order. Raises SnapshotExpired.

    A time before the horizon is readable if it is pinned. Only then are the pins read, after the log.
    """
    pinned = as_of_ms < state.horizon_ms and is_pinned(handle, as_of_ms)
    return live_markers(state, as_of_ms, pinned=pinned)


def check_readable_time(
    handle: Handle, state: TableState, as_of_ms: int, *, now_ms: int, may_precede: bool = False
) -> None:
    """Raise InvalidOption for a time before the table's creation, or in the future.

    A time up to twice `max_skew_ms` ahead of this clock is valid: it may come from the clock of another machine. With
    `may_precede`, a time before the table's creation is valid.
    """
    latest_ms = max(handle.far_ahead_ms(now_ms) - 1, state.newest_ms)
    if as_of_ms > latest_ms:
        raise _ahead(handle, as_of_ms, max(now_ms, state.newest_ms))
    if not may_precede:
        _check_created(handle, state, as_of_ms)


def check_past_time(handle: Handle, state: TableState, as_of_ms: int, *, now_ms: int) -> None:
    """Raise InvalidOption as `check_readable_time`, and also for a time after both the newest commit and this clock.

    For pins and restores.
    """
    latest_ms = max(now_ms, newest_ms(handle, state, now_ms))
    if as_of_ms > latest_ms:
        raise _ahead(handle, as_of_ms, latest_ms)
    _check_created(handle, state, as_of_ms)


def _ahead(handle: Handle, as_of_ms: int, latest_ms: int) -> InvalidOption:
    return InvalidOption(
        f"{handle.table}: the time {time_text(as_of_ms)} is in the future. Give {time_text(latest_ms)} or earlier."
    )


def _check_created(handle: Handle, state: TableState, as_of_ms: int) -> None:
    """Raise InvalidOption for a time before the table's creation. A table with a horizon is always older than that."""
    if state.horizon_ms or not state.files or as_of_ms >= min(state.times_ms):
        return
    # Without a horizon nothing is forgotten: the first commit's time is that of its parts.
    first_ms = min(state.times_ms)
    first_ms = min((m.created_ms for m in state.parts.values()), default=first_ms)
    if as_of_ms >= first_ms:
        return
    try:
        stored_ms = handle.store.head(handle.keys.spec).stored_ms
    except ObjectNotFound:  # a table of IceDB v3
        stored_ms = first_ms
    created_ms = min(first_ms, stored_ms)
    if as_of_ms < created_ms - handle.timing.max_skew_ms - STORED_MS_PRECISION:
        raise InvalidOption(
            f"{handle.table}: the time {time_text(as_of_ms)} is before the table's creation at "
            f"{time_text(created_ms)}. Its first commit is of {time_text(first_ms)}. Give that time or later."
        )


def newest_ms(handle: Handle, state: TableState, now_ms: int) -> int:
    """Return the newest time in the log, except times of a clock far ahead. 0 if there is none.

    Later exclusive commits have later times.
    """
    return max((t for t in state.times_ms if t < handle.far_ahead_ms(now_ms)), default=0)
