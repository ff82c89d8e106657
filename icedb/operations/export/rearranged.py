"""Which of the parts that came since an export hold nothing but rows that had been exported: a merge's, for example.

A merge tombstones its inputs at its own time, in their partition, where its outputs begin. So dead parts and those that
rows were moved into hang together, through several merges if need be. What hangs together is no change of the data if
all of it had been exported or was moved there, and the numbers of rows are the same. What cannot be known is a change:
programs that follow the log may read a row again, but miss none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from icedb.format.keys import partition_of
from icedb.format.records import Marker, total_rows
from icedb.format.replay import TableState

__all__ = ["rearranged"]

#: A commit's time and a partition.
_Place = tuple[int, str]


def rearranged(
    state: TableState, *, data_prefix: str, exported: Collection[str], now: Collection[str]
) -> frozenset[str]:
    """The keys of parts that are in just one of `exported` and `now`, and together change no row. Pure."""
    fresh = [m for key in now if key not in exported and (m := state.parts.get(key)) is not None]
    inputs: dict[_Place, list[Marker]] = {}
    outputs: dict[_Place, list[Marker]] = {}
    for marker in chain(state.dead, fresh):
        partition = partition_of(data_prefix, marker.key)
        if marker.tombstoned_ms is not None:
            inputs.setdefault((marker.tombstoned_ms, partition), []).append(marker)
        if marker.moved:
            outputs.setdefault((marker.created_ms, partition), []).append(marker)
    # What a restore brings back is a copy: its rows were there before, and not at the last export.
    buried = {m.digest for m in state.dead if m.digest is not None}
    found: set[str] = set()
    seen: set[str] = set()
    for marker in fresh:
        if not marker.moved or marker.key in seen:
            continue
        together = _together(marker, inputs, outputs, data_prefix, exported, now)
        seen |= together.keys()
        restored = any(m.key in now and m.digest in buried for m in together.values())
        if not restored and _same_rows(together.values(), exported, now):
            found |= {key for key in together if (key in exported) != (key in now)}
    return frozenset(found)


def _together(
    first: Marker,
    inputs: dict[_Place, list[Marker]],
    outputs: dict[_Place, list[Marker]],
    data_prefix: str,
    exported: Collection[str],
    now: Collection[str],
) -> dict[str, Marker]:
    """All parts that rows went from or to, no further back than what was exported."""
    together = {first.key: first}
    todo = [first]
    while todo:
        marker = todo.pop()
        partition = partition_of(data_prefix, marker.key)
        places = []
        if marker.moved and marker.key not in exported:
            places.append((marker.created_ms, partition))
        if marker.tombstoned_ms is not None and marker.key not in now:
            places.append((marker.tombstoned_ms, partition))
        for place in places:
            for other in (*inputs.get(place, ()), *outputs.get(place, ())):
                if other.key not in together:
                    together[other.key] = other
                    todo.append(other)
    return together


def _same_rows(markers: Iterable[Marker], exported: Collection[str], now: Collection[str]) -> bool:
    gone: list[Marker] = []
    came: list[Marker] = []
    for marker in markers:
        before, after = marker.key in exported, marker.key in now
        if not before and not marker.moved:
            return False  # rows that nobody who follows the log has seen
        if before != after:
            (came if after else gone).append(marker)
    before_rows, after_rows = total_rows(gone), total_rows(came)
    return before_rows is not None and before_rows == after_rows
