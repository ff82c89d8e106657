"""Whether a run is asked for: what was asked before, and what became of it.

Everything here is pure. What was asked before is in the sensor's cursor, which Dagster stores when a tick has ended.
A run's key is made of the cursor's own numbers: a tick that is evaluated again with the same cursor asks for the very
same runs. When a run did not help, the next one waits, twice as long each time.
"""

from __future__ import annotations

from collections.abc import Callable
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

#: How long after a run that did not help the next one is asked for, and after many of them.
WAIT_MS = 60_000
WAIT_MAX_MS = 3_600_000


class RequestedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last run of one kind that was asked for: its number, for what, when (unix milliseconds).

    `ended_ms`: since when it is known that no run is under way although the work is still to be done; the next one
    comes `wait_ms` later.
    """

    number: int
    basis: str
    asked_ms: int
    wait_ms: int = WAIT_MS
    ended_ms: int | None = None


class RequestCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cursor. `begun_ms` (unix milliseconds) is in all keys of runs: a cursor that is begun anew asks anew."""

    begun_ms: int
    asked: dict[Due, RequestedRun] = {}
    version: Literal[1] = 1


def begin(now_ms: int) -> RequestCursor:
    """A cursor that has asked for nothing."""
    return RequestCursor(now_ms)


def encode(memory: RequestCursor) -> str:
    """As JSON."""
    return msgspec.json.encode(memory).decode()


def decode(text: str) -> RequestCursor | None:
    """A cursor that was stored; None for what is none of this version."""
    try:
        return msgspec.json.decode(text, type=RequestCursor)
    except msgspec.MsgspecError:
        return None


def run_key(name: str, memory: RequestCursor, due: Due) -> str:
    """The key of the last run of a kind that was asked for; no other run has it."""
    return f"{name}/{due}/{memory.begun_ms}/{memory.asked[due].number}"


def next_request(
    before: RequestedRun | None, recommended: Recommendation, *, now_ms: int, failed: Callable[[], bool]
) -> tuple[RequestedRun, bool]:
    """What to remember, and whether to ask for a run now. No run of that kind is under way.

    `failed`: whether the last run of that kind ended badly; only looked at when the table has changed since.
    """
    if before is None:
        return RequestedRun(1, recommended.basis, now_ms), True
    if before.basis != recommended.basis and not failed():
        return RequestedRun(before.number + 1, recommended.basis, now_ms), True
    if before.ended_ms is None or not 0 <= now_ms - before.ended_ms <= 2 * WAIT_MAX_MS:
        before = msgspec.structs.replace(before, ended_ms=now_ms)  # just now, or the clock was set
    if waits(before, now_ms):
        return before, False
    wait_ms = min(2 * before.wait_ms, WAIT_MAX_MS)
    return RequestedRun(before.number + 1, recommended.basis, now_ms, wait_ms), True


def waits(asked: RequestedRun, now_ms: int) -> str:
    """Until when the next run waits, as a text; empty: it does not."""
    if asked.ended_ms is None or now_ms >= asked.ended_ms + asked.wait_ms:
        return ""
    until = datetime.fromtimestamp((asked.ended_ms + asked.wait_ms) / 1000, tz=UTC)
    return until.isoformat(sep=" ", timespec="seconds")
