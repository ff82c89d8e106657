"""Pins: times that stay readable, whatever cleanup does.

    pin         a create-only object beside the claims: a name, a time, and until when it holds
    needs       a pin needs the parts of the snapshot at its time: `created_ms <= as_of_ms < tombstoned_ms`
    in force    cleanup keeps objects and markers of what a pin needs, until it has expired for the grace period:
                readers may have taken the snapshot just before, and clocks differ

A cleanup that listed the pins before ours was put may be deleting already. So a time is only pinned when no cleanup
can have planned to delete what it needs, up to the last moment at which the pin's put counts: one that the store got
later than `commit_timeout_ms` after its time counts as expired, for everybody. That makes a pin valid or not by its
own bytes and the store's time for it, also if the process that put it died. Cleanup looks at the pins after it has
chosen what is old enough, and again before it deletes parts and before it forgets markers.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from icedb.errors import (
    ClockSkew,
    CommitTimedOut,
    IceDBError,
    InvalidOption,
    PinExists,
    SnapshotExpired,
    StoreUnavailable,
)
from icedb.format.replay import TableState, live_markers
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.pin_objects import Pin, decode_pin, encode_pin
from icedb.transaction.table_handle import STORED_MS_PRECISION, Handle
from icedb.transaction.time_bounds import check_past_time, newest_ms
from icedb.util.times import TIME_MS_MAX, time_text

__all__ = ["Expires", "pin", "unpin"]

logger = logging.getLogger(__name__)

#: Until when a pin holds: an aware datetime, unix milliseconds, or how long from now.
Expires = datetime | int | timedelta


def pin(
    handle: Handle, name: str, as_of_ms: int | None, *, expires: Expires | None = None, dry_run: bool = False
) -> Pin:
    """Keep a time readable (None: the newest commit's). See `Table.pin`."""
    if not dry_run:
        handle.check_writable()
    key = handle.keys.pin(name)
    _check_free(handle, key, name)
    created_ms = handle.clock.now_ms()
    state = handle.read(fresh=True)
    if as_of_ms is not None:
        check_past_time(handle, state, as_of_ms, now_ms=created_ms)
    else:
        as_of_ms = newest_ms(handle, state, created_ms) or created_ms - 1
    planned = Pin(name, as_of_ms, created_ms, _expires_ms(handle, expires, created_ms))
    _check_kept(handle, state, planned, now_ms=created_ms)
    if dry_run:
        return planned
    before_ms = handle.clock.now_ms()
    _put(handle, key, planned)
    try:
        _check_again(handle, key, planned, before_ms=before_ms)
    except (SnapshotExpired, CommitTimedOut, ClockSkew):
        _take_back(handle, key, planned)
        raise
    return planned


def unpin(handle: Handle, name: str, *, dry_run: bool = False) -> bool:
    """Remove a pin; whether there was one. See `Table.unpin`."""
    handle.check_spec()
    key = handle.keys.pin(name)
    try:
        handle.store.head(key)
    except ObjectNotFound:
        return False
    if not dry_run:
        handle.store.delete([key])
    return True


def _expires_ms(handle: Handle, expires: Expires | None, now_ms: int) -> int | None:
    if expires is None:
        return None
    if isinstance(expires, timedelta):
        expires_ms = now_ms + int(expires / timedelta(milliseconds=1))
    elif isinstance(expires, datetime) and expires.tzinfo is not None:
        expires_ms = int(expires.astimezone(UTC).timestamp() * 1000)
    elif isinstance(expires, int) and not isinstance(expires, bool):
        expires_ms = expires
    else:
        raise InvalidOption(
            f"{handle.table}: expires is {expires!r}; give datetime(..., tzinfo=UTC), unix milliseconds or a timedelta."
        )
    if expires_ms > TIME_MS_MAX:
        raise InvalidOption(
            f"{handle.table}: the pin would expire after 9999-12-31. Leave out expires: it then holds until unpin."
        )
    if expires_ms <= now_ms:
        raise InvalidOption(f"{handle.table}: the pin would expire at {time_text(expires_ms)}, which is in the past.")
    return expires_ms


def _check_kept(handle: Handle, state: TableState, planned: Pin, *, now_ms: int) -> None:
    """Raise SnapshotExpired when cleanup may have deleted, or be about to delete, what the pin needs."""
    timing = handle.timing
    # A cleanup whose clock is ahead may have listed the pins just before the store got ours, which is at most
    # `commit_timeout_ms` after its own time.
    latest_ms = max(planned.created_ms + timing.commit_timeout_ms, now_ms)
    doomed_ms = handle.doomed_ms(latest_ms) + 2 * timing.max_skew_ms + STORED_MS_PRECISION
    needed = live_markers(state, planned.as_of_ms)  # raises SnapshotExpired before the horizon
    doomed = [m for m in needed if m.tombstoned_ms is not None and m.tombstoned_ms <= doomed_ms]
    if doomed:
        dead_ms = [m.tombstoned_ms for m in state.parts.values() if m.tombstoned_ms is not None]
        oldest_ms = max(t for t in dead_ms if t <= doomed_ms)
        raise SnapshotExpired(
            f"{handle.table}: {len(doomed)} parts of the snapshot at {time_text(planned.as_of_ms)} were superseded so "
            f"long ago that a cleanup may be deleting them now. Pin {time_text(oldest_ms)} or later; "
            "or restore the snapshot and pin what you have then.",
            horizon_ms=oldest_ms,
        )


def _put(handle: Handle, key: str, planned: Pin) -> None:
    match put_if_absent(handle.store, key, encode_pin(planned)):
        case PutOutcome.CONFLICT:
            raise _taken(handle, key, planned.name)
        case PutOutcome.NOT_FOUND:
            raise StoreUnavailable(
                f"{handle.table}: the store did not answer, and '{key}' is not there. Try again; if the name is taken "
                "then, the pin was made after all."
            )


def _check_free(handle: Handle, key: str, name: str) -> None:
    """Early, and for stores that would replace the object: the put decides."""
    try:
        handle.store.head(key)
    except ObjectNotFound:
        return
    raise _taken(handle, key, name)


def _taken(handle: Handle, key: str, name: str) -> PinExists:
    return PinExists(
        f"{handle.table}: there is a pin '{name}' already ('{key}'). Nothing was replaced. Choose another name, or "
        f"remove that one first with unpin('{name}')."
    )


def _check_again(handle: Handle, key: str, planned: Pin, *, before_ms: int) -> None:
    """The store has the pin: did it come in time, and is all that it needs still there?"""
    now_ms = handle.clock.now_ms()
    try:
        handle.check_clock(key, put_after_ms=before_ms)
        stored = decode_pin(handle, key, handle.store.get(key))
    except ObjectNotFound:
        return  # unpinned meanwhile: first it was made, then it was removed
    if stored.expires_ms != planned.expires_ms:
        raise CommitTimedOut(f"{handle.table}: the pin '{planned.name}' reached the store too late. Try again.")
    _check_kept(handle, handle.read(fresh=True), planned, now_ms=now_ms)


def _take_back(handle: Handle, key: str, planned: Pin) -> None:
    """Best effort: a pin that stays behind keeps parts until it is removed, and nothing worse."""
    try:
        if handle.store.get(key).body == encode_pin(planned):
            handle.store.delete([key])
    except ObjectNotFound:
        return
    except IceDBError as error:
        logger.warning("%s: the refused pin '%s' stays behind; remove it with unpin: %s", handle.table, key, error)
