"""When a shared sensor checks each of its tables: a quiet table is checked ever more rarely.

The schedule is in the memory of the code server. After its restart, all tables are due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TickSchedule"]

_GROWTH = 2


@dataclass(slots=True)
class _Rhythm:
    """A table's times in monotonic seconds, and the last result."""

    interval_s: float
    next_s: float = float("-inf")
    last_result: str | None = None


class TickSchedule:
    """The next check of each table. `intervals` are the seconds between two checks of a table that changes.

    Each check of a table without a change doubles its interval, up to `quiet_interval_s`.
    """

    def __init__(self, intervals: Mapping[str, float], *, quiet_interval_s: float) -> None:
        self._intervals = dict(intervals)
        self._quiet_interval_s = quiet_interval_s
        self._rhythms = {name: _Rhythm(interval_s) for name, interval_s in self._intervals.items()}
        # Ticks are not exact: a check that is due within half a tick takes place now.
        self._slack_s = min(self._intervals.values()) / 2

    def due(self, now_s: float) -> list[str]:
        """Return the names of the tables to check now, the longest due first."""
        due = [name for name, rhythm in self._rhythms.items() if rhythm.next_s <= now_s + self._slack_s]
        return sorted(due, key=lambda name: self._rhythms[name].next_s)

    def checked(self, name: str, result: str | None, now_s: float) -> bool:
        """Record a check, and return whether the table has changed: if `result` is None, or differs from the last."""
        rhythm, base_s = self._rhythms[name], self._intervals[name]
        changed = result is None or result != rhythm.last_result
        grown_s = max(base_s, min(_GROWTH * rhythm.interval_s, self._quiet_interval_s))
        self._rhythms[name] = _Rhythm(
            interval_s=base_s if changed else grown_s,
            next_s=now_s + (base_s if changed else grown_s),
            last_result=result,
        )
        return changed
