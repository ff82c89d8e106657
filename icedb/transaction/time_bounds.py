"""Which times a snapshot, a pin or a restore may name: from the table's creation on, and none in the future."""

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
    """Raise InvalidOption for a time that a read cannot mean: before the table's creation, or in the future.

    A time up to twice `max_skew_ms` ahead of this clock may be one that another machine read from its own clock.
    `may_precede`: a time before the table's creation is no error.
    """
    latest_ms = max(handle.far_ahead_ms(now_ms) - 1, state.newest_ms)
    if as_of_ms > latest_ms:
        raise _ahead(handle, as_of_ms, max(now_ms, state.newest_ms))
    if not may_precede:
        _check_created(handle, state, as_of_ms)


def check_past_time(handle: Handle, state: TableState, as_of_ms: int, *, now_ms: int) -> None:
    """`check_readable_time` for what is kept or restored: no time after the newest commit and this clock."""
    latest_ms = max(now_ms, newest_ms(handle, state, now_ms))
    if as_of_ms > latest_ms:
        raise _ahead(handle, as_of_ms, latest_ms)
    _check_created(handle, state, as_of_ms)


def _ahead(handle: Handle, as_of_ms: int, latest_ms: int) -> InvalidOption:
    return InvalidOption(
        f"{handle.table}: the time {time_text(as_of_ms)} is in the future. Give {time_text(latest_ms)} or earlier."
    )


def _check_created(handle: Handle, state: TableState, as_of_ms: int) -> None:
    """Raise InvalidOption for a time before the table's creation. After the horizon is always after that."""
    if state.horizon_ms or not state.files or as_of_ms >= min(state.times_ms):
        return
    # Nothing is forgotten before there is a horizon: the first commit's time is that of its parts.
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
    """The newest time in the log that no clock far ahead wrote; 0: none. Later exclusive commits have later ones."""
    return max((t for t in state.times_ms if t < handle.far_ahead_ms(now_ms)), default=0)
