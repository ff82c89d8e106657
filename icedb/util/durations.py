"""Durations as text: `90s`, `5m`, `24h` or `7d` as input, `2 d 3 h` as output."""

from __future__ import annotations

import re
from datetime import timedelta

from icedb.errors import InvalidOption

__all__ = ["DURATION", "duration_text", "parse_duration"]

#: The regular expression of a duration.
DURATION = r"^\s*([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)\s*$"

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Unit -> its name in output, which has the two largest units only.
_UNIT_NAMES = (("d", "d"), ("h", "h"), ("m", "min"), ("s", "s"))


def parse_duration(text: str) -> timedelta:
    """Parse a number with its unit: ms, s, m, h or d. Raises InvalidOption."""
    match = re.match(DURATION, text)
    try:
        if match is not None:
            return timedelta(milliseconds=round(float(match[1]) * _UNIT_MS[match[2]]))
    except OverflowError:
        pass  # too long for a timedelta
    raise InvalidOption(f"{text!r} is no duration; write 90s, 5m, 24h or 7d.")


def duration_text(ms: float) -> str:
    """Format milliseconds in the two largest units, down to seconds: `2 d 3 h`, `5 min`, `0 s`."""
    rest = max(int(ms), 0)
    figures = []
    for unit, name in _UNIT_NAMES:
        number, rest = divmod(rest, _UNIT_MS[unit])
        figures.append((number, name))
    first = next((n for n, (number, _) in enumerate(figures) if number), len(figures) - 1)
    largest = figures[first : first + 2]
    return " ".join(f"{number} {name}" for number, name in largest if number or name == largest[0][1])
