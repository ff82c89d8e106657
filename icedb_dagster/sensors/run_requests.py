"""Decide whether to request a maintenance run, from the last request and its outcome.

This module is pure. The last requests are in the sensor's cursor, which Dagster stores after a tick. A run's key is
made of the cursor's own numbers and the kinds of maintenance that it does, so a tick that is evaluated again with the
same cursor, table and runs requests the same runs. If a run did not help, the next request waits, twice as long each
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from icedb.operations.health.table_health import Due, Recommendation

__all__ = [
    "WAIT_MAX_MS",
    "WAIT_MS",
    "RequestedRun",
    "RequestCursor",
    "begin",
    "decode",
    "encode",
    "run_key",
    "next_request",
    "waits",
]

#: The wait after a run that did not help, and after many of them.
WAIT_MS = 60_000
WAIT_MAX_MS = 3_600_000


class RequestedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last requested run of one kind: its number, the reason for it, and its time (unix milliseconds).

    `ended_ms` is the time since which no run is active although the work remains. The next request follows `wait_ms`
    later.
    """

    number: int
    basis: str
    requested_ms: int = msgspec.field(name="asked_ms")
    wait_ms: int = WAIT_MS
    ended_ms: int | None = None


class RequestCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sensor's cursor. Run keys contain `begun_ms` (unix milliseconds), so a new cursor requests new runs."""

    begun_ms: int
    requests: dict[Due, RequestedRun] = msgspec.field(default_factory=dict, name="asked")
    version: Literal[1] = 1


def begin(now_ms: int) -> RequestCursor:
    """Return a cursor without requests."""
    return RequestCursor(now_ms)


def encode(cursor: RequestCursor) -> str:
    """Return the cursor as JSON."""
    return msgspec.json.encode(cursor).decode()


def decode(text: str) -> RequestCursor | None:
    """Return a stored cursor; None for a text that is not a cursor of this version."""
    try:
        return msgspec.json.decode(text, type=RequestCursor)
    except msgspec.MsgspecError:
        return None


def run_key(name: str, cursor: RequestCursor, kinds: Sequence[Due]) -> str:
    """Return the unique key of the last requested run of these kinds."""
    numbers = "+".join(str(cursor.requests[due].number) for due in kinds)
    return f"{name}/{'+'.join(kinds)}/{cursor.begun_ms}/{numbers}"


def next_request(
    before: RequestedRun | None, recommended: Recommendation, *, now_ms: int, failed: Callable[[], bool]
) -> tuple[RequestedRun, bool]:
    """Return the request to remember, and whether to request a run now. No run of that kind may be active.

    `failed` returns whether the last run of that kind failed. It is called only if the table has changed since.
    """
    if before is None:
        return RequestedRun(1, recommended.basis, now_ms), True
    if before.basis != recommended.basis and not failed():
        return RequestedRun(before.number + 1, recommended.basis, now_ms), True
    if before.ended_ms is None or not 0 <= now_ms - before.ended_ms <= 2 * WAIT_MAX_MS:
        before = msgspec.structs.replace(before, ended_ms=now_ms)  # first tick after the run, or the clock was changed
    if waits(before, now_ms):
        return before, False
    wait_ms = min(2 * before.wait_ms, WAIT_MAX_MS)
    return RequestedRun(before.number + 1, recommended.basis, now_ms, wait_ms), True


def waits(request: RequestedRun, now_ms: int) -> str:
    """Return the time until which the next request waits, as text; empty if it does not wait."""
    if request.ended_ms is None or now_ms >= request.ended_ms + request.wait_ms:
        return ""
    until = datetime.fromtimestamp((request.ended_ms + request.wait_ms) / 1000, tz=UTC)
    return until.isoformat(sep=" ", timespec="seconds")
