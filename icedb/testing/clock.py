"""Clocks for tests, whose time passes only when the test advances it.

Ids are derived from a counter, so that a failing run can be repeated. `ids="random"` gives random ids.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Literal

from icedb.util.clock import Clock, SystemClock

__all__ = ["ManualClock", "SkewedClock"]

# A date in 2027: thirteen digits, as in every log file's name, and later than any real time of a test run.
START_MS = 1_800_000_000_000


class ManualClock:
    """A clock whose time changes only by `set` and `advance`. Actors that share it never get the same id twice.

    Args:
        now_ms: The initial time in unix milliseconds.
        ids: `"counted"` for reproducible ids, `"random"` for random ones.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(3_600_000)
    """

    def __init__(self, now_ms: int = START_MS, *, ids: Literal["counted", "random"] = "counted") -> None:
        self._now_ms = now_ms
        self._random = SystemClock() if ids == "random" else None
        self._count = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the current time in unix milliseconds."""
        return self._now_ms

    def new_id(self) -> str:
        """Return an id that this clock has not returned before."""
        if self._random is not None:
            return self._random.new_id()
        with self._lock:
            self._count += 1
            return hashlib.sha256(str(self._count).encode()).hexdigest()[:32]

    def set(self, now_ms: int) -> None:
        """Set the time (unix milliseconds), forwards or backwards."""
        self._now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """Advance the time by this many milliseconds."""
        self._now_ms += by_ms

    def skewed(self, by_ms: int) -> SkewedClock:
        """Return the clock of a machine that is ahead by `by_ms` milliseconds (behind, if negative)."""
        return SkewedClock(self, by_ms)


class SkewedClock:
    """A clock with a constant offset to another clock, whose ids it shares."""

    def __init__(self, clock: Clock, by_ms: int) -> None:
        self._clock = clock
        self._by_ms = by_ms

    def now_ms(self) -> int:
        """Return the other clock's time plus the offset, in unix milliseconds."""
        return self._clock.now_ms() + self._by_ms

    def new_id(self) -> str:
        """Return the other clock's next id."""
        return self._clock.new_id()
