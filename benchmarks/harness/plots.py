"""Plots of findings: a bar for each way with a line at each goal, and curves. All benchmarks draw with its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import OURS, Check, Curve, Finding, Way
from benchmarks.harness.words import number, quantity
from icedb.util.plot_style import (
    BLUE,
    INK,
    LIGHT_BLUE,
    PAPER,
    RED,
    SERIES,
    SILVER,
    TEXT_SIZE,
    TITLE_SIZE,
    annotate,
    title,
    with_grid,
)  # fmt: skip

__all__ = ["LEGEND", "bars", "draw", "figure_of", "goal_line", "goal_lines", "headline", "save"]

# Relatives of our way, other ways, and the line of a goal.
_OURS, _OURS_TOO, _OTHERS, _GOAL = BLUE, LIGHT_BLUE, SILVER, RED
# The ratio of the longest bar to the shortest from which the axis is logarithmic.
_LOG_FROM = 60
# The column of a page is as wide as a figure, so that its text is as large as drawn.
WIDTH, DPI = 8.5, 130
# The parts of the width left and right of the panels, because the layout ignores how far the labels of axes reach.
MARGIN = 0.01
# The panels of a row, and the height of a panel of curves.
_COLUMNS, _CURVE_HEIGHT = 3, 2.6
LEGEND: Mapping[str, Any] = {"frameon": False, "fontsize": TEXT_SIZE, "labelcolor": INK, "handlelength": 1.5}


def draw(finding: Finding, stem: Path) -> list[Path]:
    """Draw PNG files whose names begin with `stem`: one of several compared ways, and one of all curves."""
    pictures = []
    ways = [way for way in finding.ways if way.ours]
    if len(ways) > 1:
        pictures.append(stem.with_name(f"{stem.name}.png"))
        _bars(finding, ways, pictures[-1])
    if finding.curves:
        pictures.append(stem.with_name(f"{stem.name}-curves.png"))
        _curves(finding, pictures[-1])
    return pictures


def goal_lines(finding: Finding) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each goal for our bar: a ratio to another way, or the value itself."""
    ours = next((way for way in finding.ways if way.name == OURS), None)
    if ours is None:
        return
    for check in finding.checks:
        of = {way.name: way.median for way in finding.ways if way is not ours}
        if math.isclose(check.value, ours.median, rel_tol=1e-9):
            yield _limit(check), check.limit
        else:
            for name, other in of.items():
                if other and math.isclose(check.value, ours.median / other, rel_tol=1e-9):
                    yield f"{_limit(check)} times {name}", check.limit * other
                    break


def _limit(check: Check) -> str:
    return f"goal: at {'least' if check.at_least else 'most'} {check.limit:,g}"


def headline(finding: Finding) -> str:
    """Return what the bars show: our speed beside that of the best other way, or the least and the greatest value."""
    ours = next((way for way in finding.ways if way.name == OURS), None)
    others = [way for way in finding.ways if way.ours == OURS and not way.name.startswith(OURS)]
    if ours is None or not others:
        drawn = sorted((way for way in finding.ways if way.ours), key=lambda way: way.median)
        least, greatest = drawn[0], drawn[-1]
        return f"From {_measured(least, finding.unit)} to {_measured(greatest, finding.unit)}"
    best = (max if finding.is_rate else min)(others, key=lambda way: way.median)
    speed = ours.median / best.median if finding.is_rate else best.median / ours.median
    if round(speed, 2) == 1:
        return f"{OURS} is as fast as the fastest other way, {best.name}"
    if speed > 1:
        return f"{OURS} is {number(speed)} times as fast as the fastest other way, {best.name}"
    return f"{OURS} takes {number(1 / speed)} times as long as the fastest other way, {best.name}"


def _measured(way: Way, unit: str) -> str:
    text = quantity(way.median, unit)
    return f"{text} ({way.name})" if text.endswith("s") else f"{text} {unit} ({way.name})"  # in milliseconds


def _bars(finding: Finding, ways: Sequence[Way], target: Path) -> None:
    figure, (panel,) = figure_of(headline(finding), height=1.3 + 0.34 * len(ways))
    at = range(len(ways))
    medians = [way.median for way in ways]
    spread = [
        [way.median - min(way.values) for way in ways],
        [max(way.values) - way.median for way in ways],
    ]
    colours = [_OURS if way.name == OURS else _OURS_TOO if _is_ours(way) else _OTHERS for way in ways]
    panel.barh(at, medians, 0.7, color=colours, xerr=spread, error_kw={"ecolor": INK, "elinewidth": 0.9})
    if min(medians) > 0 and max(medians) / min(medians) > _LOG_FROM:
        panel.set_xscale("log")
    for n, way in enumerate(ways):
        text = annotate(panel, quantity(way.median, finding.unit), (max(way.values), n), (4, 0), va="center")
        text.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 0.8})  # over the lines of goals
    styles = ("--", ":", "-.")
    for n, (name, limit) in enumerate(goal_lines(finding)):
        panel.axvline(limit, color=_GOAL, linewidth=1, linestyle=styles[n % len(styles)], label=name)
    panel.set_yticks(at, [way.name for way in ways])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel(finding.unit + (", more is better" if finding.is_rate else ", less is better"))
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    title(with_grid(panel, "x"), finding.title)
    if panel.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", **LEGEND, ncols=2)
    save(figure, target)


def _is_ours(way: Way) -> bool:
    """Return whether a way is ours: its name begins with ours, or other ways are compared with it."""
    return way.name.startswith(OURS) or way.ours == way.name


def _curves(finding: Finding, target: Path) -> None:
    columns = min(len(finding.curves), _COLUMNS)
    rows = -(-len(finding.curves) // columns)
    figure, panels = figure_of(finding.title, height=0.3 + _CURVE_HEIGHT * rows, rows=rows, columns=columns)
    for curve, panel in zip_longest(finding.curves, panels):
        if curve is None:
            panel.set_visible(False)
        else:
            _curve(curve, panel)
    save(figure, target)


def _curve(curve: Curve, panel: Any) -> None:
    for n, (name, values) in enumerate(curve.lines.items()):
        panel.plot(curve.x, values, color=SERIES[n % len(SERIES)], linewidth=1.6, label=name)
    if curve.limit is not None:
        goal_line(panel, curve.limit, f"goal: {curve.limit:,g}")
    least = min(0, *(v for values in curve.lines.values() for v in values))
    panel.set_ylim(bottom=least)
    panel.margins(y=0.1)
    panel.set_xlabel(curve.x_label)
    panel.set_ylabel(curve.y_label)
    title(with_grid(panel), curve.title)
    if len(curve.lines) > 1 or curve.limit is not None:
        panel.legend(loc="upper left", bbox_to_anchor=(0, -0.22), **LEGEND)


# ------------------------------------------------------------------------------------------ the style


def figure_of(
    head: str, *, height: float, rows: int = 1, columns: int = 1, mosaic: str = "", **layout: Any
) -> tuple[Any, list[Any]]:
    """Return a figure as wide as the column of a page, and its panels in their order.

    Args:
        head: What the figure shows, as a sentence.
        height: Inches.
        rows: Rows of panels of one size.
        columns: Panels of a row.
        mosaic: Instead of rows and columns, a letter for each panel, in matplotlib's notation ("aa;bc").
        layout: Further arguments of matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure  # measurements alone do not need it
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(rect=(MARGIN, 0, 1 - 2 * MARGIN, 1))
    figure = Figure(figsize=(WIDTH, height), layout=engine, facecolor=PAPER)
    figure.suptitle(head, x=0.01, ha="left", fontsize=TITLE_SIZE + 1, color=INK, weight="bold")
    if mosaic:
        return figure, list(figure.subplot_mosaic(mosaic, **layout).values())
    return figure, list(figure.subplots(rows, columns, squeeze=False, **layout).flat)


def bars(panel: Any, groups: Sequence[str], values: Mapping[str, Sequence[float]]) -> list[Any]:
    """Draw a group of bars for each name, with a bar of each series. Return the bars of each series."""
    width = 0.8 / len(values)
    drawn = []
    for n, (name, of_series) in enumerate(values.items()):
        at = [x + (n - (len(values) - 1) / 2) * width for x in range(len(groups))]
        drawn.append(panel.bar(at, of_series, width, color=SERIES[n % len(SERIES)], label=name))
    panel.set_xticks(range(len(groups)), groups)
    return drawn


def goal_line(panel: Any, limit: float, name: str) -> None:
    """Draw a horizontal line at a goal."""
    panel.axhline(limit, color=_GOAL, linewidth=1, linestyle="--", label=name)


def save(figure: Any, target: Path) -> None:
    """Write the PNG file, and its folder if it is missing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without time and version, equal figures make equal files.
    figure.savefig(target, dpi=DPI, metadata={"Software": None})
