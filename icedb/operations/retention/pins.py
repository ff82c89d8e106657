"""Pins (tags): named times that stay readable, regardless of cleanup.

    pin         a create-only object next to the claims: a name, a time, and an expiry
    needs       a pin needs the parts of the snapshot at its time: `created_ms <= as_of_ms < tombstoned_ms`
    in force    cleanup keeps the objects and markers that a pin needs until the pin has been expired for the grace
                period, because readers may have taken the snapshot just before, and clocks differ

A cleanup that listed the pins before a new pin was put may already be deleting. So a pin is only created if no cleanup
can have planned to delete the parts that it needs. That must hold up to the last moment at which its put is valid. A
pin that the store received later than `commit_timeout_ms` after its time counts as expired for every reader. So the
pin's bytes and its store time alone decide whether it is valid, even if the process that put it died. Cleanup reads the
pins after it has chosen the old objects, again before it deletes parts, and again before it forgets markers.
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
from icedb.reader.time_bounds import check_past_time, newest_ms
from icedb.storage.object_store import STORED_MS_PRECISION
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.pin_objects import Pin, decode_pin, encode_pin
from icedb.transaction.table_handle import Handle
from icedb.util.times import TIME_MS_MAX, time_text

__all__ = ["Expires", "pin", "unpin"]

logger = logging.getLogger(__name__)

#: The expiry of a pin: an aware datetime, unix milliseconds, or a timedelta from now.
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
    """Remove a pin, and return whether it existed. See `Table.unpin`."""
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
            f"{handle.table}: expires is {expires!r}; pass datetime(..., tzinfo=UTC), unix milliseconds or a timedelta."
        )
    if expires_ms > TIME_MS_MAX:
        raise InvalidOption(
            f"{handle.table}: the pin would expire after 9999-12-31. Omit expires: the pin then holds until unpin."
        )
    if expires_ms <= now_ms:
        raise InvalidOption(
            f"{handle.table}: the pin would expire at {time_text(expires_ms)}, which is in the past. Choose a later "
            "time."
        )
    return expires_ms


def _check_kept(handle: Handle, state: TableState, planned: Pin, *, now_ms: int) -> None:
    """Raise SnapshotExpired if cleanup may have deleted, or may be deleting, a part that the pin needs."""
    timing = handle.timing
    # A cleanup whose clock is ahead may have listed the pins just before the store received ours, at most
    # `commit_timeout_ms` after the pin's own time.
    latest_ms = max(planned.created_ms + timing.commit_timeout_ms, now_ms)
    deletable_until_ms = handle.times.deletable_until_ms(latest_ms) + 2 * timing.max_skew_ms + STORED_MS_PRECISION
    needed = live_markers(state, planned.as_of_ms)  # raises SnapshotExpired before the horizon
    doomed = [m for m in needed if m.tombstoned_ms is not None and m.tombstoned_ms <= deletable_until_ms]
    if doomed:
        dead_ms = [m.tombstoned_ms for m in state.parts.values() if m.tombstoned_ms is not None]
        oldest_ms = max(t for t in dead_ms if t <= deletable_until_ms)
        raise SnapshotExpired(
            f"{handle.table}: {len(doomed)} parts of the snapshot at {time_text(planned.as_of_ms)} were superseded so "
            f"long ago that a cleanup may be deleting them now. Pin {time_text(oldest_ms)} or later, or restore the "
            "snapshot and pin the result.",
            horizon_ms=oldest_ms,
        )


def _put(handle: Handle, key: str, planned: Pin) -> None:
    match put_if_absent(handle.store, key, encode_pin(planned)):
        case PutOutcome.CONFLICT:
            raise _taken(handle, key, planned.name)
        case PutOutcome.NOT_FOUND:
            raise StoreUnavailable(
                f"{handle.table}: the store did not answer, and '{key}' does not exist. Try again. If the name is "
                "taken then, the first attempt has created the pin."
            )


def _check_free(handle: Handle, key: str, name: str) -> None:
    """Check the name early, also for stores that would replace the object. The create-only put decides."""
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
    """Check, once the store has the pin, that it arrived in time and that all needed parts still exist."""
    now_ms = handle.clock.now_ms()
    try:
        handle.checks.check_clock(key, put_after_ms=before_ms)
        stored = decode_pin(handle, key, handle.store.get(key))
    except ObjectNotFound:
        return  # another program has removed the pin since
    if stored.expires_ms != planned.expires_ms:
        raise CommitTimedOut(f"{handle.table}: the pin '{planned.name}' reached the store too late. Try again.")
    _check_kept(handle, handle.read(fresh=True), planned, now_ms=now_ms)


def _take_back(handle: Handle, key: str, planned: Pin) -> None:
    """Delete a rejected pin, best effort. A pin that remains only keeps parts until it is removed."""
    try:
        if handle.store.get(key).body == encode_pin(planned):
            handle.store.delete([key])
    except ObjectNotFound:
        return
    except IceDBError as error:
        logger.warning("%s: the rejected pin '%s' remains; remove it with unpin: %s", handle.table, key, error)
