"""The states of a bucket at all times that the log knows, as sums over the markers of its visible parts.

Only parts that the bucket shows are counted. So a commit that changes none of them changes no time, sum or id here.
A state is known without a list of its parts: a part adds its numbers at the time of its marker, and subtracts them at
the time of its tombstone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from icedb.format.keys import partition_of
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.reader.iceberg.manifests import snapshot_id
from icedb.services.proxy.config.tenants import Scope

__all__ = ["StateSums", "VisibleHistory", "visible_markers"]


class StateSums(NamedTuple):
    """Sums over the live parts of a state. `uncounted` is the number of parts whose rows the log does not know."""

    keys: int = 0
    parts: int = 0
    rows: int = 0
    uncounted: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, markers: Iterable[Marker]) -> StateSums:
        """Return the sums of these markers."""
        total = [0] * len(cls._fields)
        for marker in markers:
            _add(total, marker, 1)
        return cls(*total)

    def snapshot_id(self, at_ms: int) -> int:
        """Return the Iceberg id of a snapshot of this time with these parts."""
        return snapshot_id(at_ms, f"{self.keys:x}")


def _add(total: list[int], marker: Marker, sign: int) -> None:
    total[0] += sign * crc32(marker.key.encode())
    total[1] += sign
    if marker.rows is None:
        total[3] += sign
    else:
        total[2] += sign * marker.rows
    total[4] += sign * marker.bytes


@dataclass(frozen=True)
class VisibleHistory:
    """The times at which the visible parts changed, in order, and the sums from each of them on."""

    times: Sequence[int]
    #: A column for each field of `StateSums`. Tables have as many times as commits, so objects would be large.
    columns: Sequence[Sequence[int]]

    @classmethod
    def of(cls, markers: Iterable[Marker]) -> VisibleHistory:
        """Return the history of all markers, live or not, that the bucket shows."""
        changes: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(StateSums._fields))
        for marker in markers:
            _add(changes[marker.created_ms], marker, 1)
            if marker.tombstoned_ms is not None:
                _add(changes[marker.tombstoned_ms], marker, -1)
        times = sorted(changes)
        columns = (accumulate(changes[t][n] for t in times) for n in range(len(StateSums._fields)))
        return cls(array("q", times), [array("q", column) for column in columns])

    @property
    def newest_ms(self) -> int | None:
        """The time of the newest change; None if the bucket never had a part."""
        return self.times[-1] if self.times else None

    def at(self, at_ms: int) -> StateSums:
        """Return the sums of the state at a time."""
        number = bisect_right(self.times, at_ms)
        return StateSums(*(column[number - 1] for column in self.columns)) if number else StateSums()

    def next_change_ms(self, at_ms: int) -> int | None:
        """Return the time at which the state of a time ended; None if it is the newest."""
        number = bisect_right(self.times, at_ms)
        return self.times[number] if number < len(self.times) else None

    def earlier(self, before_ms: int, *, since_ms: int, count: int) -> list[int]:
        """Return the newest `count` times of states that began before a time, and at `since_ms` or later, in order."""
        stop = bisect_right(self.times, before_ms - 1)
        start = max(bisect_right(self.times, since_ms - 1), stop - count, 0)
        return list(self.times[start:stop])


def visible_markers(state: TableState, scope: Scope, data_prefix: str) -> Iterable[Marker]:
    """Return the markers of all parts that the bucket shows, live or not."""
    markers = state.parts.values()
    if not scope.partitions:
        return markers
    shown: dict[str, bool] = {}

    def shows(marker: Marker) -> bool:
        partition = partition_of(data_prefix, marker.key)
        if partition not in shown:
            shown[partition] = scope.shows(partition)
        return shown[partition]

    return filter(shows, markers)
