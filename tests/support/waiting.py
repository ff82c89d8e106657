"""Waiting in tests: for a condition, with a generous limit, and with an error that shows what was seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

#: A loaded machine may need minutes for what usually takes a second. Only a test that fails waits this long.
SECONDS_MAX = 480


def wait_until(
    look: Callable[[], Seen], what: str, *, seconds_max: float = SECONDS_MAX, every_seconds: float = 0.02
) -> Seen:
    """Look again and again until the answer is true, and return it. Raises AssertionError with the last answer."""
    deadline = time.monotonic() + seconds_max
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {seconds_max:.0f} s: {what}; seen last: {seen!r}"
        time.sleep(every_seconds)
    return seen
