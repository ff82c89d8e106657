"""Text charts of `icedb info`: partitions by size, parts by size, and gauges of figures with thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table as Rows
from rich.text import Text

from icedb.operations.health.gauges import Gauge, gauges
from icedb.operations.health.table_health import PartitionHealth, SizeClass, TableHealth, Thresholds
from icedb.util.counts import binary_size_text, count_text, size_text

__all__ = ["STYLES", "charts"]

#: Styles of a figure that is fine, due for maintenance, or beyond its threshold.
STYLES = ("", "yellow", "red")

# Limits that keep the page on one screen; `--json` has everything.
PARTITIONS_MAX = 8
CLASSES_MAX = 8
# Terminals of this width have the first two charts side by side.
_WIDE_COLUMNS = 112
_BAR_COLUMNS = 24
_FINE, _TO_MERGE = ("█", "blue"), ("▒", "yellow")


def charts(health: TableHealth, thresholds: Thresholds, *, width: int) -> RenderableType:
    """Return the charts for a terminal of `width` columns."""
    figures = _titled("figures beside their thresholds", _gauges(gauges(health, thresholds)))
    if not health.live_parts:
        return figures
    partitions = _titled("partitions by size", _partitions(health.partitions))
    sizes = _titled("parts by size", _sizes(health.sizes))
    if width < _WIDE_COLUMNS:
        return Group(partitions, "", sizes, _legend(health), "", figures)
    both = Rows.grid(padding=(0, 4))
    both.add_row(partitions, sizes)
    return Group(both, _legend(health), "", figures)


def _titled(title: str, chart: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold"), chart)


def _legend(health: TableHealth) -> RenderableType:
    if not health.small_parts:
        return Text("nothing to merge", style="dim")
    return Text.assemble((_TO_MERGE[0], _TO_MERGE[1]), (" small enough to merge", "dim"))


def _bar(fine: int, to_merge: int, longest: int) -> Text:
    """Return a bar of two pieces. A value above 0 is always visible."""
    length = _length(fine + to_merge, longest)
    marked = min(_length(to_merge, longest), length)
    return Text.assemble((_FINE[0] * (length - marked), _FINE[1]), (_TO_MERGE[0] * marked, _TO_MERGE[1]))


def _length(value: int, longest: int) -> int:
    return max(1, round(_BAR_COLUMNS * value / longest)) if value else 0


def _partitions(partitions: Sequence[PartitionHealth]) -> RenderableType:
    largest = sorted(partitions, key=lambda p: (-p.bytes, p.path))
    charted = largest[:PARTITIONS_MAX]
    rows = _rows(whole=False)
    for one in charted:
        rows.add_row(
            Text(one.path or "(all)"),
            _bar(one.bytes - one.small_bytes, one.small_bytes, charted[0].bytes),
            size_text(one.bytes),
            count_text(one.parts, "part"),
        )
    if rest := largest[PARTITIONS_MAX:]:
        size = sum(p.bytes for p in rest)
        rows.add_row(Text(f"and {len(rest):,} more", style="dim"), "", size_text(size), "")
    return rows


def _sizes(sizes: Sequence[SizeClass]) -> RenderableType:
    """Return a bar for each size class. Each class spans enough powers of two to limit their number."""
    numbers = {one.bytes_min.bit_length(): one for one in sizes}
    low, high = min(numbers), max(numbers)
    powers = -(-(high - low + 1) // CLASSES_MAX)
    bars = []
    for first in range(low, high + 1, powers):
        classes = [numbers[n] for n in range(first, first + powers) if n in numbers]
        bars.append((first, sum(c.parts for c in classes), sum(c.small_parts for c in classes)))
    longest = max(parts for _, parts, _ in bars)
    rows = _rows()
    for first, parts, small in bars:
        rows.add_row(
            f"from {binary_size_text(1 << first >> 1)}",
            _bar(parts - small, small, longest),
            count_text(parts, "part") if parts else "",
            "",
        )
    return rows


def _gauges(figures: Sequence[Gauge]) -> RenderableType:
    rows = _rows()
    for one in figures:
        filled = min(_length(one.value, one.limit), _BAR_COLUMNS)
        style = STYLES[one.level]
        bar = Text.assemble(("█" * filled, style or "green"), ("·" * (_BAR_COLUMNS - filled), "dim"))
        value, limit = (size_text(n) if one.unit == "B" else f"{n:,}" for n in (one.value, one.limit))
        rows.add_row(one.name, bar, Text(f"{value} of {limit}", style=style), "")
    return rows


def _rows(*, whole: bool = True) -> Rows:
    """Return a grid of a name, a bar and two figures. `whole`: never break a name over two lines."""
    rows = Rows.grid(padding=(0, 2, 0, 0))
    rows.add_column(overflow="fold", no_wrap=whole)
    rows.add_column(no_wrap=True, min_width=_BAR_COLUMNS)
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(justify="right", no_wrap=True)
    return rows
