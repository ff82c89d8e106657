"""The heat map of a report: a cell for each partition, or for neighbours if there are too many."""

from __future__ import annotations

import pytest

from icedb import Thresholds
from icedb.operations.health.table_health import PartitionHealth
from icedb.operations.report.heat_map import CELLS_MAX, LEVELS, ROWS_MAX, HeatMap, HeatScale, heat_map


def partition(
    path: str, size: int = 1_000, rows: int | None = 10, small: int = 0, *, hot: bool = False
) -> PartitionHealth:
    return PartitionHealth(path, max(small, 1), size, small, small, None, hot, path, rows=rows)


def folders(heat: HeatMap) -> dict[str, int]:
    return {row.folder: sum(cell.partitions for cell in row.cells) for row in heat.rows}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([""], {"": 1}),
        ([f"day={n:03}" for n in range(400)], {"": 400}),
        (["tenant=a b/day=1", "tenant=a/day=1", "tenant=a/day=2"], {"tenant=a b": 1, "tenant=a": 2}),
        ([f"y={n % 3}/m={n % 30}/d={n}" for n in range(90)], {f"y={y}/m={m}": 3 for m in range(30) for y in [m % 3]}),
        ([f"y={n % 3}/m={n % 90}/d={n}" for n in range(90)], {f"y={y}": 30 for y in range(3)}),
        ([f"y={n}/d=1" for n in range(ROWS_MAX + 1)], {"": ROWS_MAX + 1}),
        (["an=older", "y=1/d=1"], {"": 2}),
    ],
)  # fmt: skip
def test_a_row_has_the_partitions_of_a_folder(paths: list[str], expected: dict[str, int]) -> None:
    assert folders(heat_map([partition(path) for path in sorted(paths)], Thresholds())) == expected


@pytest.mark.parametrize(("count", "per_cell"), [(1, 1), (CELLS_MAX, 1), (CELLS_MAX + 1, 2), (50_000, 25)])
def test_neighbours_share_a_cell_of_a_large_map(count: int, per_cell: int) -> None:
    partitions = [partition(f"n={n:06}", size=n, small=n % 2) for n in range(count)]
    heat = heat_map(partitions, Thresholds())
    [row] = heat.rows
    assert (heat.partitions, heat.partitions_per_cell, len(row.cells)) == (count, per_cell, -(-count // per_cell))
    for name in ("bytes", "parts", "rows", "small_parts"):
        assert sum(getattr(cell, name) for cell in row.cells) == sum(getattr(p, name) for p in partitions)
    assert [p for cell in row.cells for p in (cell.first, cell.last)][:2] == ["n=000000", f"n={per_cell - 1:06}"]
    assert row.cells[-1].last == f"n={count - 1:06}"


def test_a_cell_is_due_if_a_merge_of_one_of_its_partitions_is() -> None:
    partitions = [partition("a", small=3), partition("b", small=4), partition("c", small=31, hot=True),
                  partition("d", small=32, hot=True)]  # fmt: skip
    [row] = heat_map(partitions, Thresholds()).rows
    assert [cell.is_due for cell in row.cells] == [False, True, False, True]


def test_unknown_rows_have_no_level() -> None:
    heat = heat_map([partition("a", rows=None), partition("b", rows=7)], Thresholds())
    assert [cell.rows for cell in heat.rows[0].cells] == [None, 7]
    assert heat.scales[1] == HeatScale(7, 7)
    assert heat.scales[1].level(None) is None


def test_levels_are_logarithmic() -> None:
    scale = HeatScale.of([0, 10**0, None, 10**6])
    assert [scale.level(10**n) for n in range(7)] == [1, 2, 3, 4, 5, 6, LEVELS]
    assert scale.level(0) == 0
    assert HeatScale.of([5, 5]).level(5) in range(1, LEVELS)
    assert HeatScale.of([]).level(0) == 0
