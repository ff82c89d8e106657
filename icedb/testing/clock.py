"""A clock that stands still until it is told to move, so that a test can sleep for an hour in no time.

Ids are counted, so a failing run can be repeated; `ids="random"` gives real ones.
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
    """Time that only the test moves. Actors that share it share its ids too, so these are never used twice."""

    def __init__(self, now_ms: int = START_MS, *, ids: Literal["counted", "random"] = "counted") -> None:
        self._now_ms = now_ms
        self._random = SystemClock() if ids == "random" else None
        self._given = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The time it was set to."""
        return self._now_ms

    def new_id(self) -> str:
        """An id that this clock has not given yet."""
        if self._random is not None:
            return self._random.new_id()
        with self._lock:
            self._given += 1
            return hashlib.sha256(str(self._given).encode()).hexdigest()[:32]

    def set(self, now_ms: int) -> None:
        """Set the time, forwards or backwards."""
        self._now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self._now_ms += by_ms

    def skewed(self, by_ms: int) -> SkewedClock:
        """The clock of a machine that is ahead by `by_ms` (behind, if negative)."""
        return SkewedClock(self, by_ms)


class SkewedClock:
    """Another clock's time and ids, off by a constant."""

    def __init__(self, clock: Clock, by_ms: int) -> None:
        self._clock = clock
        self._by_ms = by_ms

    def now_ms(self) -> int:
        """The other clock's time and the skew."""
        return self._clock.now_ms() + self._by_ms

    def new_id(self) -> str:
        """The other clock's next id."""
        return self._clock.new_id()
