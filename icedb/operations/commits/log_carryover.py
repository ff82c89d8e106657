"""What is written again with a log file that is replaced, and when that is worth it.

A commit that replaces a log file carries all that it holds, for as long as it must be held: a log tombstone for a day.
Commits that come often would write the same lines again and again. So a merge replaces only log files that hold little
besides the parts that it merges, and tombstones the parts of others without; a cleanup replaces these later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from icedb.format.records import tombstone_flags, tombstoned
from icedb.format.replay import TableState

__all__ = ["LINES_MAX", "OTHERS_MAX", "calling_live", "cheap_to_replace"]

# Lines that are carried for each part that gives cause. More is written again too often; with less, more log files stay
# that readers open (benchmarks/life.py).
OTHERS_MAX = 4
# So few lines are carried anyway: what they name is forgotten sooner.
LINES_MAX = 16


def cheap_to_replace(state: TableState, part_keys: Collection[str], *, t_ms: int) -> list[str]:
    """Of `state.replaceable`, the log files with few other lines: `OTHERS_MAX` for each part, or `LINES_MAX`."""
    named = Counter(key for part in part_keys for key in state.parts_named[part].by)
    return [key for key in state.replaceable(part_keys, t_ms=t_ms) if _is_cheap(state, key, named[key])]


def _is_cheap(state: TableState, key: str, named: int) -> bool:
    file = state.files[key].file
    others = len(file.markers) + len(file.tombstones) - named
    return others <= max(OTHERS_MAX * named, LINES_MAX)


def calling_live(state: TableState, *, t_ms: int) -> set[str]:
    """The log files that call a dead part live, of those that a commit of `t_ms` may replace.

    As long as they are there, no log file may forget that the part is dead. What only a
    program of v3 tombstoned does not count, for its tombstone is not trusted.
    """
    exclusive = [f.file for f in state.effective.values() if f.file.epoch is not None]
    dead = {m.key for file in exclusive for m in tombstoned(file.markers)}
    ahead = state.far_ahead(t_ms)
    return {
        key
        for key, stored in state.effective.items()
        if key not in ahead and any(not is_dead and part in dead for part, is_dead in tombstone_flags(stored.file.markers))
    }
