"""Lengths of time as people write and read them: `90s`, `5m`, `24h`, `7d`; `2 d 3 h`."""

from __future__ import annotations

import re
from datetime import timedelta

from icedb.errors import InvalidOption

__all__ = ["DURATION", "duration_text", "parse_duration"]

#: What a duration looks like, as a regular expression.
DURATION = r"^\s*([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)\s*$"

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# A text has the two largest units: nobody cares for the seconds of a week.
_SHOWN = (("d", "d"), ("h", "h"), ("m", "min"), ("s", "s"))


def parse_duration(text: str) -> timedelta:
    """A number with its unit: ms, s, m, h or d. Raises InvalidOption."""
    found = re.match(DURATION, text)
    try:
        if found is not None:
            return timedelta(milliseconds=round(float(found[1]) * _UNIT_MS[found[2]]))
    except OverflowError:
        pass  # longer than there are dates
    raise InvalidOption(f"{text!r} is no duration; write 90s, 5m, 24h or 7d.")


def duration_text(ms: float) -> str:
    """A length of time in its two largest units, of seconds at least: `2 d 3 h`, `5 min`, `0 s`."""
    rest = max(int(ms), 0)
    figures = []
    for unit, name in _SHOWN:
        number, rest = divmod(rest, _UNIT_MS[unit])
        figures.append((number, name))
    first = next((n for n, (number, _) in enumerate(figures) if number), len(figures) - 1)
    shown = figures[first : first + 2]
    return " ".join(f"{number} {name}" for number, name in shown if number or name == shown[0][1])
