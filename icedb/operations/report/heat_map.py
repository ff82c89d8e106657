"""The partitions of a table as a heat map by size, rows and small parts.

A cell is a partition. If there are more than `CELLS_MAX`, a cell has several neighbours, so that the page of any table
is small. A row has the partitions of one folder, unless there are too many folders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from icedb.format.records import total_rows
from icedb.operations.health.gauges import parts_threshold
from icedb.operations.health.table_health import PartitionHealth, Thresholds

__all__ = ["LEVELS", "HeatCell", "HeatMap", "HeatRow", "HeatScale", "heat_map", "is_due"]

CELLS_MAX = 2_000
ROWS_MAX = 40
#: The levels of a figure above 0. The level of 0 is 0.
LEVELS = 6


@dataclass(frozen=True, slots=True)
class HeatScale:
    """A logarithmic scale between the least and the greatest figure above 0. Both are 0 if there is none."""

    least: float
    greatest: float

    @classmethod
    def of(cls, figures: Iterable[float | None]) -> HeatScale:
        """Return the scale of these figures. None is unknown."""
        above = [figure for figure in figures if figure]
        return cls(min(above, default=0), max(above, default=0))

    def level(self, figure: float | None) -> int | None:
        """Return the level of a figure, from 0 to `LEVELS`; None if the figure is unknown."""
        if not figure:
            return None if figure is None else 0
        if self.greatest <= self.least:
            return LEVELS // 2 + 1
        share = math.log(figure / self.least) / math.log(self.greatest / self.least)
        return 1 + min(LEVELS - 1, int(LEVELS * share))


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Neighbouring partitions, from the path `first` to `last`. The figures are sums; None is unknown."""

    first: str
    last: str
    partitions: int
    parts: int
    rows: int | None
    bytes: int
    small_parts: int
    #: Whether a merge of one of them is due.
    is_due: bool

    @property
    def means(self) -> tuple[float, float | None, float]:
        """Bytes, rows and small parts of a partition."""
        rows = None if self.rows is None else self.rows / self.partitions
        return self.bytes / self.partitions, rows, self.small_parts / self.partitions


@dataclass(frozen=True, slots=True)
class HeatRow:
    """The cells of one folder. `folder` is empty if all partitions are in one row."""

    folder: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The map, with the scales of bytes, rows and small parts of a partition."""

    rows: tuple[HeatRow, ...]
    partitions: int
    #: The most partitions of a cell.
    partitions_per_cell: int
    scales: tuple[HeatScale, HeatScale, HeatScale]


def heat_map(partitions: Sequence[PartitionHealth], thresholds: Thresholds) -> HeatMap:
    """Return the map of some partitions, which are sorted by path."""
    per_cell = math.ceil(len(partitions) / CELLS_MAX)
    rows = tuple(
        HeatRow(folder, tuple(_cell(members[n : n + per_cell], thresholds) for n in range(0, len(members), per_cell)))
        for folder, members in _rows(partitions)
    )
    means = [cell.means for row in rows for cell in row.cells]
    sizes, counts, small = (HeatScale.of(mean[n] for mean in means) for n in range(3))
    return HeatMap(rows, len(partitions), per_cell, (sizes, counts, small))


def is_due(partition: PartitionHealth, thresholds: Thresholds) -> bool:
    """Whether a merge of the partition is due."""
    return not partition.at_rest and partition.small_parts >= parts_threshold(partition, thresholds) // 2


def _rows(partitions: Sequence[PartitionHealth]) -> Iterator[tuple[str, list[PartitionHealth]]]:
    """Yield the folders with their partitions: the deepest folders of which there are at most `ROWS_MAX`."""

    def folder(partition: PartitionHealth) -> str:
        return "/".join(partition.path.split("/")[:depth])

    depth = min((p.path.count("/") for p in partitions), default=0)
    while depth and len({folder(p) for p in partitions}) > ROWS_MAX:
        depth -= 1
    # Sorted, because a folder's name may begin with another's, and `/` is not the least character.
    for name, members in groupby(sorted(partitions, key=folder), key=folder):
        yield name, list(members)


def _cell(members: Sequence[PartitionHealth], thresholds: Thresholds) -> HeatCell:
    return HeatCell(
        first=members[0].path,
        last=members[-1].path,
        partitions=len(members),
        parts=sum(p.parts for p in members),
        rows=total_rows(members),
        bytes=sum(p.bytes for p in members),
        small_parts=sum(p.small_parts for p in members),
        is_due=any(is_due(p, thresholds) for p in members),
    )
