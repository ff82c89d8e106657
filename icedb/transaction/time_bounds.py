"""The valid times of a snapshot, a pin or a restore: from the table's creation on, and not in the future."""

from __future__ import annotations

from icedb.errors import InvalidOption
from icedb.format.replay import TableState
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import STORED_MS_PRECISION, Handle
from icedb.util.times import time_text

__all__ = ["check_past_time", "check_readable_time", "newest_ms"]


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
