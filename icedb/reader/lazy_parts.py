"""A lazy sequence of a large snapshot's parts: an object is created on access, columns are read for all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import pyarrow as pa

from icedb.format.packed_state import MarkerView
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["LiveParts", "latest_parts", "live_parts"]

# Columns whose statistics are cached: some ten bytes for each part, or more if the values are long texts.
_CACHED_COLUMNS_MAX = 3


class LiveParts(Sequence[Part]):
    """An immutable sequence of parts in key order. It is equal to a tuple of the same parts."""

    def __init__(self, handle: Handle, markers: MarkerView) -> None:
        self._handle = handle
        self.markers = markers
        #: Name and type of a column -> its decoded statistics, a row for each part; see `icedb.reader.part_pruning`.
        self.cached_stats: dict[tuple[str, str], pa.Table] = {}

    def __len__(self) -> int:
        return len(self.markers)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        if isinstance(index, slice):
            return self.chosen(range(len(self))[index])
        return self._handle.part(self.markers[index])

    def __iter__(self) -> Iterator[Part]:
        return map(self._handle.part, self.markers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveParts | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"LiveParts({len(self)} parts)"

    def __reduce__(self) -> tuple[type[tuple[Part, ...]], tuple[list[Part]]]:
        return tuple, (list(self),)

    def chosen(self, places: Iterable[int]) -> LiveParts:
        """Return the parts at these places, which ascend."""
        return LiveParts(self._handle, self.markers.chosen(places))

    def paths(self, keys: Iterable[str]) -> list[str]:
        """Return the paths of parts with these keys."""
        root = self._handle.location.root_uri
        return [f"{root}/{key}" for key in keys]

    def cache_stats(self, column: tuple[str, str], stats: pa.Table) -> None:
        """Cache the statistics of a column, and drop those of the oldest columns."""
        self.cached_stats = dict([*self.cached_stats.items(), (column, stats)][-_CACHED_COLUMNS_MAX:])

    @cached_property
    def partitions(self) -> tuple[Mapping[int, str], Sequence[int]]:
        """The paths of the partitions by number, and the number of each part's partition."""
        folders, numbers = self.markers.folders
        start = len(self._handle.keys.data_prefix)
        return {number: folder[start:-1] for number, folder in folders.items()}, numbers


def live_parts(handle: Handle, markers: Sequence[Marker]) -> Sequence[Part]:
    """Return the parts of these markers. Those of a large table are created on access."""
    if isinstance(markers, MarkerView):
        return LiveParts(handle, markers)
    return tuple(handle.part(m) for m in markers)


def latest_parts(handle: Handle, state: TableState) -> Sequence[Part]:
    """Return the live parts of a state that a handle has just read. The same state has the same parts object."""
    return handle.cache.live_parts(state, lambda: live_parts(handle, state.live))
