"""The choice of log files that a commit replaces, by the lines that it must carry over.

A commit that replaces a log file carries all its lines for as long as they are needed: a log tombstone for a day.
Frequent commits would write the same lines again and again. So a merge replaces only log files with few lines besides
the parts that it merges. It tombstones parts without replacing their other log files, and a cleanup replaces these
later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from icedb.format.records import tombstone_flags, tombstoned
from icedb.format.replay import TableState

__all__ = ["LINES_MAX", "OTHERS_MAX", "log_files_naming_live", "cheap_to_replace"]

# The maximum of carried lines per replaced part. With more, lines are rewritten too often. With fewer, more log files
# stay for readers to open (benchmarks/life.py).
OTHERS_MAX = 4
# Up to this number, lines are always carried, so that cleanup forgets their parts sooner.
LINES_MAX = 16


def cheap_to_replace(state: TableState, part_keys: Collection[str], *, t_ms: int) -> list[str]:
    """Return the log files of `state.replaceable` with few other lines: `OTHERS_MAX` for each part, or `LINES_MAX`."""
    named = Counter(key for part in part_keys for key in state.parts_named[part].by)
    return [key for key in state.replaceable(part_keys, t_ms=t_ms) if _is_cheap(state, key, named[key])]


def _is_cheap(state: TableState, key: str, named: int) -> bool:
    file = state.files[key].file
    others = len(file.markers) + len(file.tombstones) - named
    return others <= max(OTHERS_MAX * named, LINES_MAX)


def log_files_naming_live(state: TableState, *, t_ms: int) -> set[str]:
    """Return the log files that name a dead part as live, of those that a commit of `t_ms` may replace.

    While they exist, no log file may forget that the part is dead. Tombstones of v3 programs do not count, because they
    are not trusted.
    """
    exclusive = [f.file for f in state.effective.values() if f.file.epoch is not None]
    dead = {m.key for file in exclusive for m in tombstoned(file.markers)}
    ahead = state.far_ahead(t_ms)
    return {
        key
        for key, stored in state.effective.items()
        if key not in ahead
        and any(not is_dead and part in dead for part, is_dead in tombstone_flags(stored.file.markers))
    }
