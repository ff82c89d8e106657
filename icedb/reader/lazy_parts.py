"""The parts of a snapshot that are many: made when somebody asks for one, and asked for together by their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import pyarrow as pa

from icedb.format.packed_state import MarkerView
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.transaction.table_handle import Handle, Part

__all__ = ["LiveParts", "latest_parts", "live_parts"]

# Columns of which it is remembered what the log says: some ten bytes for each part, or as long as their texts are.
_TOLD_MAX = 3


class LiveParts(Sequence[Part]):
    """Parts in key order. Nothing changes them; equal to the tuple of the same."""

    def __init__(self, handle: Handle, markers: MarkerView) -> None:
        self._handle = handle
        self.markers = markers
        #: Name and type of a column -> what the log says of it, a row for each part; see `icedb.reader.part_pruning`.
        self.told: dict[tuple[str, str], pa.Table] = {}

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
        """Those at some places, which rise."""
        return LiveParts(self._handle, self.markers.chosen(places))

    def keep_told(self, column: tuple[str, str], told: pa.Table) -> None:
        """Remember what the log says of a column; of many columns, the last ones."""
        self.told = dict([*self.told.items(), (column, told)][-_TOLD_MAX:])

    @cached_property
    def partitions(self) -> tuple[Mapping[int, str], Sequence[int]]:
        """Number of a partition -> its path; and the number of each part's partition."""
        folders, numbers = self.markers.folders
        start = len(self._handle.keys.data_prefix)
        return {number: folder[start:-1] for number, folder in folders.items()}, numbers


def live_parts(handle: Handle, markers: Sequence[Marker]) -> Sequence[Part]:
    """The parts of these markers: made at once, if they are not many."""
    if isinstance(markers, MarkerView):
        return LiveParts(handle, markers)
    return tuple(handle.part(m) for m in markers)


def latest_parts(handle: Handle, state: TableState) -> Sequence[Part]:
    """The live parts of a state that a handle has just read; the same ones as long as it reads the same state."""
    if handle.latest is None or handle.latest[0] is not state:
        handle.latest = state, live_parts(handle, state.live)
    return handle.latest[1]
