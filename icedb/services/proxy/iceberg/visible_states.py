"""The parts that a bucket shows, and its states at all times that the log knows, as sums over these parts.

Only parts that the bucket shows are counted. So a commit that changes none of them changes no time, sum or id here.
A state is known without a list of its parts: a part adds its numbers at the time of its marker, and subtracts them at
the time of its tombstone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.keys import partition_of
from icedb.format.packed_state import MarkerView
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.reader.iceberg.manifests import snapshot_id
from icedb.services.proxy.config.tenants import Scope

__all__ = ["StateSums", "VisibleHistory", "VisibleParts", "known_markers"]


@dataclass(frozen=True)
class VisibleParts:
    """Parts that a bucket shows, in key order, with columns of their markers: those of a large table are packed."""

    markers: Sequence[Marker]

    @classmethod
    def of(cls, markers: Sequence[Marker], scope: Scope, data_prefix: str) -> VisibleParts:
        """Return those of the markers, which are in key order, that a scope shows."""
        if not scope.partitions:
            return cls(markers)
        shown: dict[str, bool] = {}
        places = []
        for place, key in enumerate(cls(markers).keys):
            folder = key.rpartition("/")[0]
            if folder not in shown:
                shown[folder] = scope.shows(partition_of(data_prefix, key))
            if shown[folder]:
                places.append(place)
        return cls(cls(markers).chosen(places))

    def __len__(self) -> int:
        return len(self.markers)

    def chosen(self, places: Sequence[int]) -> Sequence[Marker]:
        """Return the markers at these places, in key order."""
        in_order = sorted(places)
        if isinstance(self.markers, MarkerView):
            return self.markers.chosen(in_order)
        return [self.markers[place] for place in in_order]

    @cached_property
    def keys(self) -> Sequence[str]:
        """The keys of the parts."""
        return list(self.markers.keys) if isinstance(self.markers, MarkerView) else [m.key for m in self.markers]

    @cached_property
    def digests(self) -> Sequence[int]:
        """A number for each key."""
        return [crc32(key.encode()) for key in self.keys]

    @cached_property
    def created_ms(self) -> Sequence[int]:
        """The time of each part, in unix milliseconds."""
        return [at_ms or 0 for at_ms in self.column("created_ms")]

    def column(self, name: str) -> Sequence[int | None]:
        """Return a field of the markers that has numbers."""
        if isinstance(self.markers, MarkerView):
            return list(self.markers.values_of(name))
        return [getattr(m, name) for m in self.markers]

    @cached_property
    def snapshot_key(self) -> int:
        """The sum of the digests, which is `StateSums.keys` of a state with these parts."""
        return sum(self.digests)

    def sums(self) -> StateSums:
        """Return the sums of a state with these parts."""
        rows = self.column("rows")
        counted = [n for n in rows if n is not None]
        bytes_ = sum(n or 0 for n in self.column("bytes"))
        return StateSums(self.snapshot_key, len(self), sum(counted), len(rows) - len(counted), bytes_)


class StateSums(NamedTuple):
    """Sums over the live parts of a state. `uncounted` is the number of parts whose rows the log does not know."""

    keys: int = 0
    parts: int = 0
    rows: int = 0
    uncounted: int = 0
    bytes: int = 0

    def snapshot_id(self, at_ms: int) -> int:
        """Return the Iceberg id of a snapshot of this time with these parts."""
        return snapshot_id(at_ms, f"{self.keys:x}")


@dataclass(frozen=True)
class VisibleHistory:
    """The times at which the visible parts changed, in order, and the sums from each of them on."""

    times: Sequence[int]
    #: A column for each field of `StateSums`. Tables have as many times as commits, so objects would be large.
    columns: Sequence[Sequence[int]]

    @classmethod
    def of(cls, parts: VisibleParts) -> VisibleHistory:
        """Return the history of all parts, live or not, that the bucket shows."""
        rows = pa.array(parts.column("rows"), pa.int64())
        born = pa.table(
            {
                "time": pa.array(parts.created_ms, pa.int64()),
                "keys": pa.array(parts.digests, pa.int64()),
                "parts": pa.array([1] * len(parts), pa.int64()),
                "rows": rows.fill_null(0),
                "uncounted": rows.is_null().cast(pa.int64()),
                "bytes": pa.array(parts.column("bytes"), pa.int64()),
            }
        )
        dead = born.set_column(0, "time", pa.array(parts.column("tombstoned_ms"), pa.int64()))
        dead = dead.filter(dead["time"].is_valid())
        names = StateSums._fields
        gone = dead.select(["time"])
        for name in names:
            gone = gone.append_column(name, pc.negate(dead[name]))
        changes = pa.concat_tables([born, gone]).group_by("time").aggregate([(name, "sum") for name in names])
        changes = changes.sort_by("time")
        columns = (accumulate(changes[f"{name}_sum"].to_pylist()) for name in names)
        return cls(array("q", changes["time"].to_pylist()), [array("q", column) for column in columns])

    @property
    def newest_ms(self) -> int | None:
        """The time of the newest change; None if the bucket never had a part."""
        return self.times[-1] if self.times else None

    def at(self, at_ms: int) -> StateSums:
        """Return the sums of the state at a time."""
        number = bisect_right(self.times, at_ms)
        return StateSums(*(column[number - 1] for column in self.columns)) if number else StateSums()

    def changed_at(self, at_ms: int) -> bool:
        """Return whether a state began at a time."""
        number = bisect_right(self.times, at_ms)
        return number > 0 and self.times[number - 1] == at_ms

    def next_change_ms(self, at_ms: int) -> int | None:
        """Return the time at which the state of a time ended; None if it is the newest."""
        number = bisect_right(self.times, at_ms)
        return self.times[number] if number < len(self.times) else None

    def earlier(self, before_ms: int, *, since_ms: int, count: int) -> list[int]:
        """Return the newest `count` times of states that began before a time, and at `since_ms` or later, in order."""
        stop = bisect_right(self.times, before_ms - 1)
        start = max(bisect_right(self.times, since_ms - 1), stop - count, 0)
        return list(self.times[start:stop])


def known_markers(state: TableState) -> Sequence[Marker]:
    """Return the markers of all parts that the log knows, live or not, in key order."""
    return state.columns.all if state.columns is not None else [m for _, m in sorted(state.parts.items())]
