"""Detection of parts that changed since an export without a change of the rows, such as those of a merge (compaction).

A merge tombstones its inputs and adds its outputs in one partition, at one time. So the dead parts and the parts into
which their rows moved are linked, through several merges if necessary. A group of linked parts changes no row if each
part was exported or holds moved rows, and the row counts are equal. In doubt it counts as a change, so that programs
which follow the log may read a row again, but miss none.
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
    """Return the keys that are in only one of `exported` and `now` and together change no row. Pure."""
    fresh = [m for key in now if key not in exported and (m := state.parts.get(key)) is not None]
    inputs: dict[_Place, list[Marker]] = {}
    outputs: dict[_Place, list[Marker]] = {}
    for marker in chain(state.dead, fresh):
        partition = partition_of(data_prefix, marker.key)
        if marker.tombstoned_ms is not None:
            inputs.setdefault((marker.tombstoned_ms, partition), []).append(marker)
        if marker.moved:
            outputs.setdefault((marker.created_ms, partition), []).append(marker)
    # A restored part is a copy of a dead one, whose rows the last export did not have.
    dead_digests = {m.digest for m in state.dead if m.digest is not None}
    unchanged: set[str] = set()
    visited: set[str] = set()
    for marker in fresh:
        if not marker.moved or marker.key in visited:
            continue
        group = _linked(marker, inputs, outputs, data_prefix, exported, now)
        visited |= group.keys()
        restored = any(m.key in now and m.digest in dead_digests for m in group.values())
        if not restored and _same_rows(group.values(), exported, now):
            unchanged |= {key for key in group if (key in exported) != (key in now)}
    return frozenset(unchanged)


def _linked(
    first: Marker,
    inputs: dict[_Place, list[Marker]],
    outputs: dict[_Place, list[Marker]],
    data_prefix: str,
    exported: Collection[str],
    now: Collection[str],
) -> dict[str, Marker]:
    """Return all parts from or to which rows moved, back to the exported ones."""
    group = {first.key: first}
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
                if other.key not in group:
                    group[other.key] = other
                    todo.append(other)
    return group


def _same_rows(markers: Iterable[Marker], exported: Collection[str], now: Collection[str]) -> bool:
    removed: list[Marker] = []
    added: list[Marker] = []
    for marker in markers:
        before, after = marker.key in exported, marker.key in now
        if not before and not marker.moved:
            return False  # rows that no export had
        if before != after:
            (added if after else removed).append(marker)
    before_rows, after_rows = total_rows(removed), total_rows(added)
    return before_rows is not None and before_rows == after_rows
