"""Picture of `icedb plot`: the figures, charts and recommendations of `icedb info` as a PNG."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from icedb.cli.render.health_page import due_text, figures
from icedb.cli.render.text_tables import size_text
from icedb.operations.health.gauges import Gauge, gauges
from icedb.operations.health.size_chart import DPI, FINE, TO_MERGE, as_png, draw_sizes, shortened
from icedb.operations.health.table_health import TableHealth, Thresholds
from icedb.util.counts import count_text
from icedb.util.optional_deps import import_optional
from icedb.util.plot_style import GRID, INK, PAPER, TEXT_SIZE, annotate, plain, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_health"]

WIDTH_PX, HEIGHT_PX = 1_080, 640
PARTITIONS_MAX = 10
# Limits of the text in the right half of the picture.
LINE_CHARACTERS_MAX = 78
LINES_MAX = 9
ADDRESS_CHARACTERS_MAX = 100


def draw_health(health: TableHealth, thresholds: Thresholds) -> bytes:
    """Draw the PNG. Raises MissingExtra."""
    import_optional("matplotlib", extra="plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI, facecolor=PAPER)
    figure.text(
        0.02,
        0.955,
        shortened(health.table, ADDRESS_CHARACTERS_MAX),
        fontsize=12,
        color=INK,
        weight="bold",
        parse_math=False,
    )
    _write_figures(figure, health, thresholds)
    if health.sizes:
        to_merge = Counter({one.bytes_min.bit_length(): one.small_parts for one in health.sizes if one.small_parts})
        fine = Counter(
            {c.bytes_min.bit_length(): c.parts - c.small_parts for c in health.sizes if c.parts > c.small_parts}
        )
        draw_sizes(plain(figure.add_axes((0.02, 0.45, 0.46, 0.26))), fine, to_merge, thresholds.part_bytes_max)
        _draw_partitions(plain(figure.add_axes((0.72, 0.41, 0.19, 0.30))), health)
    _draw_gauges(plain(figure.add_axes((0.24, 0.03, 0.15, 0.25))), gauges(health, thresholds))
    _write_due(figure, health)
    return as_png(figure, WIDTH_PX, HEIGHT_PX)


def _write_figures(figure: Figure, health: TableHealth, thresholds: Thresholds) -> None:
    """Write the figures in two columns below the address."""
    entries = [(name, text) for name, text, _ in figures(health, thresholds)]
    half = -(-len(entries) // 2)
    for place, (name, text) in enumerate(entries):
        left, top = (0.02, 0.42)[place // half], 0.915 - 0.033 * (place % half)
        figure.text(left, top, name, fontsize=TEXT_SIZE, color=INK, weight="bold")
        figure.text(left + 0.09, top, text, fontsize=TEXT_SIZE, color=INK, parse_math=False)


def _draw_partitions(axes: Axes, health: TableHealth) -> None:
    """Draw a bar for each of the largest partitions, with the bytes that a merge would take."""
    largest = sorted(health.partitions, key=lambda p: (-p.bytes, p.path))
    charted = largest[:PARTITIONS_MAX]
    at = range(len(charted))
    fine = [p.bytes - p.small_bytes for p in charted]
    axes.barh(at, fine, height=0.72, color=FINE)
    axes.barh(at, [p.small_bytes for p in charted], left=fine, height=0.72, color=TO_MERGE)
    for row, one in enumerate(charted):
        annotate(
            axes, f"{size_text(one.bytes)}, {count_text(one.parts, 'part')}", (one.bytes, row), (3, 0), va="center"
        )
    axes.set_yticks(at, [shortened(p.path) for p in charted], parse_math=False)
    axes.set_xticks([])
    axes.set_ylim(PARTITIONS_MAX - 0.5, -0.5)  # the same bar height for any number of bars
    axes.set_xlim(0, 1.05 * max(1, charted[0].bytes))
    more = f"the {len(charted)} largest of {len(largest):,} partitions" if len(largest) > len(charted) else "partitions"
    title(axes, f"{more} by size")


def _draw_gauges(axes: Axes, figures_: tuple[Gauge, ...]) -> None:
    """Draw a bar for each figure, which is full at its threshold."""
    at = range(len(figures_))
    filled = [min(one.value / one.limit, 1) for one in figures_]
    axes.barh(at, [1] * len(figures_), height=0.5, color=GRID)
    axes.barh(at, filled, height=0.5, color=[TO_MERGE if one.level else FINE for one in figures_])
    axes.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    for row, one in enumerate(figures_):
        value, limit = (size_text(n) if one.unit == "B" else f"{n:,}" for n in (one.value, one.limit))
        annotate(axes, f"{value} of {limit}", (1, row), (4, 0), va="center")
    axes.set_yticks(at, [one.name for one in figures_])
    axes.set_xticks([0.5], ["due from here on"])
    axes.set_ylim(len(figures_) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    due = sum(1 for one in figures_ if one.level)
    title(axes, f"{due or 'none'} of {len(figures_)} figures beyond half of {'its' if due == 1 else 'their'} threshold")


def _write_due(figure: Figure, health: TableHealth) -> None:
    lines = [
        line
        for name, reason in due_text(health)
        for line in (f"due: {name}", *textwrap.wrap(reason, LINE_CHARACTERS_MAX, break_long_words=True))
    ] or ["nothing is due"]
    for row, line in enumerate(lines[:LINES_MAX]):
        is_head = line.startswith(("due: ", "nothing"))
        figure.text(
            0.52, 0.29 - 0.03 * row, line, fontsize=TEXT_SIZE, color=INK, parse_math=False,
            weight="bold" if is_head else "normal",
        )  # fmt: skip
