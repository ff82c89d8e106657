"""The parts that a bucket shows, and its states at all times that the log knows, as sums over these parts.

Only parts that the bucket shows are counted. So a commit that changes none of them changes no time, sum or id here.
A state is known without a list of its parts: a part adds its numbers at the time of its marker, and subtracts them at
the time of its tombstone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.keys import partition_of
from icedb.format.packed_markers import key_checksums, row_numbers
from icedb.format.packed_state import MarkerView
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.reader.iceberg.manifests import snapshot_id
from icedb.services.proxy.config.tenants import Scope

__all__ = ["StateSums", "VisibleHistory", "VisibleParts", "key_texts", "known_markers"]


#: The columns of markers that metadata depends on, besides keys.
_NUMBERS = ("created_ms", "tombstoned_ms", "rows", "bytes")


@dataclass(frozen=True)
class VisibleParts:
    """Parts that a bucket shows, in key order."""

    markers: Sequence[Marker]
    #: `checksum` of the key (CRC-32), and the fields of the markers in `_NUMBERS`. Times are unix milliseconds.
    columns: pa.Table

    @classmethod
    def of(cls, markers: Sequence[Marker], scope: Scope, data_prefix: str) -> VisibleParts:
        """Return those of the markers, which are in key order, that a scope shows."""
        if scope.partitions:
            markers = _filtered(markers, _shown(markers, scope, data_prefix))
        if isinstance(markers, MarkerView):
            checksums = markers.key_checksums()
            numbers = [markers.column(name, pa.int64()).combine_chunks() for name in _NUMBERS]
        else:
            checksums = key_checksums(key_texts(markers))
            numbers = [pa.array([getattr(m, name) for m in markers], pa.int64()) for name in _NUMBERS]
        return cls(markers, pa.table([checksums, *numbers], ["checksum", *_NUMBERS]))

    def __len__(self) -> int:
        return len(self.markers)

    def column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        return self.columns[name].combine_chunks()

    @cached_property
    def keys(self) -> Sequence[str]:
        """The keys of the parts."""
        texts: list[str] = key_texts(self.markers).to_pylist()
        return texts

    @cached_property
    def created_ms(self) -> Sequence[int]:
        """The time of each part, in unix milliseconds."""
        times: list[int] = self.columns["created_ms"].to_pylist()
        return times

    def live(self) -> VisibleParts:
        """Return the parts without a tombstone."""
        alive = self.column("tombstoned_ms").is_null()
        if pc.all(alive).as_py():
            return self
        return VisibleParts(_filtered(self.markers, alive), self.columns.filter(alive))

    def chosen(self, places: Iterable[int]) -> VisibleParts:
        """Return the parts at these places, in key order."""
        in_order = sorted(places)
        if isinstance(self.markers, MarkerView):
            markers: Sequence[Marker] = self.markers.chosen(in_order)
        else:
            markers = [self.markers[place] for place in in_order]
        return VisibleParts(markers, self.columns.take(row_numbers(in_order)))

    @property
    def snapshot_key(self) -> int:
        """The sum of the checksums, which is `StateSums.keys` of a state with these parts."""
        return pc.sum(self.columns["checksum"]).as_py() or 0

    def sums(self) -> StateSums:
        """Return the sums of a state with these parts."""
        rows, bytes_ = (pc.sum(self.columns[name]).as_py() or 0 for name in ("rows", "bytes"))
        return StateSums(self.snapshot_key, len(self), rows, self.columns["rows"].null_count, bytes_)


def key_texts(markers: Sequence[Marker]) -> pa.Array:
    """Return the keys of markers as large strings."""
    if isinstance(markers, MarkerView):
        return markers.key_texts()
    return pa.array([m.key for m in markers], pa.large_string())


def _filtered(markers: Sequence[Marker], mask: pa.Array) -> Sequence[Marker]:
    return markers.filter(mask) if isinstance(markers, MarkerView) else list(compress(markers, mask.to_pylist()))


def _shown(markers: Sequence[Marker], scope: Scope, data_prefix: str) -> pa.Array:
    """Return for each marker whether a scope shows its part. All parts of a folder are in one partition."""
    if isinstance(markers, MarkerView):
        texts, numbers = markers.folder_numbers()
    else:
        encoded = pa.array([m.key[: m.key.rfind("/") + 1] for m in markers], pa.string()).dictionary_encode()
        texts, numbers = encoded.dictionary, encoded.indices
    used = set(numbers.unique().to_pylist())
    shows = [
        number in used and scope.shows(partition_of(data_prefix, f"{folder}part"))
        for number, folder in enumerate(texts.to_pylist())
    ]
    return pa.array(shows, pa.bool_()).take(numbers)


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
        rows = parts.column("rows")
        born = pa.table(
            {
                "time": parts.column("created_ms"),
                "keys": parts.column("checksum").cast(pa.int64()),
                "parts": pa.repeat(1, len(parts)),
                "rows": rows.fill_null(0),
                "uncounted": rows.is_null().cast(pa.int64()),
                "bytes": parts.column("bytes"),
            }
        )
        dead = born.set_column(0, "time", parts.column("tombstoned_ms"))
        dead = dead.filter(dead["time"].is_valid())
        names = StateSums._fields
        gone = dead.select(["time"])
        for name in names:
            gone = gone.append_column(name, pc.negate(dead[name]))
        changes = pa.concat_tables([born, gone]).group_by("time").aggregate([(name, "sum") for name in names])
        changes = changes.sort_by("time")
        sums = [pc.cumulative_sum(changes[f"{name}_sum"]) for name in names]
        times, *columns = (array("q", column.to_pylist()) for column in (changes["time"], *sums))
        return cls(times, columns)

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
