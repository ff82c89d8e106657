"""The time at which each column was added to the table, from the effective log files.

A plain log file adds the columns of its schema at its own time. A log file that replaces others carries their columns,
and records the time of each in its header. A log file of an older program lacks these times and may carry a column from
any earlier time. Such a column belongs to every snapshot, so that no snapshot hides a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from icedb.format.records import LogFile
from icedb.format.replay import TableState

__all__ = ["UNKNOWN_MS", "column_times", "schema_at", "stored_times"]

#: The time of a column when the log does not record it: before every snapshot.
UNKNOWN_MS = 0


def column_times(state: TableState) -> dict[str, int]:
    """Return column -> the smallest time (unix milliseconds) that a log file gives it, or UNKNOWN_MS."""
    effective = state.effective
    groups: list[tuple[int, Collection[str]]] = []
    for key, stored in effective.items():
        file = stored.file
        groups.append((_schema_ms(key, file, effective), file.schema.keys() - file.column_ms.keys()))
        groups += [(at_ms, (column,)) for column, at_ms in file.column_ms.items() if column in file.schema]
    times: dict[str, int] = {}
    for at_ms, columns in sorted(groups, key=lambda group: -group[0]):  # the smallest time is written last
        times.update(dict.fromkeys(columns, at_ms))
    return times


def _schema_ms(key: str, file: LogFile, effective: Collection[str]) -> int:
    """Return the time of those columns of a log file that have none of their own."""
    if file.schema_ms is not None:
        return file.schema_ms
    # By its name: a v3 cleanup writes a log file again without its log tombstones.
    if key.rpartition("/")[2].split("_")[1] != "m":
        return file.t_ms
    # A v3 merge does not hide the log files that it replaces. While all of them exist, they give the times.
    derived = bool(file.tombstones) and all(t.key in effective for t in file.tombstones)
    return file.t_ms if derived else UNKNOWN_MS


def schema_at(state: TableState, at_ms: int) -> dict[str, str]:
    """Return the columns that existed at a time (unix milliseconds), with their current types.

    A time before the first column has the columns that were added first. It has no rows, but queries can name them.
    """
    times = column_times(state)
    at_ms = max([at_ms, *([min(times.values())] if times else ())])
    return {column: type_ for column, type_ in state.schema.items() if times[column] <= at_ms}


def stored_times(state: TableState, columns: Collection[str], t_ms: int) -> tuple[int | None, Mapping[str, int]]:
    """Return `schema_ms` and `column_ms` of the header for a log file of `t_ms` with these columns."""
    if not columns:
        return None, {}
    recorded = column_times(state)
    times = {column: min(t_ms, recorded.get(column, t_ms)) for column in columns}
    first_ms = min(times.values())
    return first_ms, {column: at_ms for column, at_ms in times.items() if at_ms != first_ms}
