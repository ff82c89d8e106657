"""Plots of findings: a bar for each way with a line at each goal, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import OURS, Check, Curve, Finding, Way
from benchmarks.harness.words import quantity

__all__ = ["draw", "goal_lines"]

_OURS, _OURS_TOO, _OTHERS, _GOAL = "#2b6ca3", "#8db6d8", "#a9adb5", "#b03a48"
# Distinct also for colour-blind readers.
_LINES = ("#2b6ca3", "#d9822b", "#5c8a4d", "#8a8f98", "#b03a48", "#6b4c9a")
# The ratio of the longest bar to the shortest from which the axis is logarithmic.
_LOG_FROM = 60
_WIDTH = 8.5
# The size of each curve's panel, and the panels of a row.
_CURVE_WIDTH, _CURVE_HEIGHT, _COLUMNS = 4.6, 3.0, 3


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


def _bars(finding: Finding, ways: Sequence[Way], target: Path) -> None:
    figure, (panel,) = _panels(_WIDTH, 1.1 + 0.38 * len(ways))
    at = range(len(ways))
    medians = [way.median for way in ways]
    spread = [
        [way.median - min(way.values) for way in ways],
        [max(way.values) - way.median for way in ways],
    ]
    colours = [_OURS if way.name == OURS else _OURS_TOO if _is_ours(way) else _OTHERS for way in ways]
    panel.barh(at, medians, 0.7, color=colours, xerr=spread, error_kw={"ecolor": "#3a3d42", "elinewidth": 0.9})
    if min(medians) > 0 and max(medians) / min(medians) > _LOG_FROM:
        panel.set_xscale("log")
    for n, way in enumerate(ways):
        panel.annotate(
            quantity(way.median, finding.unit),
            (max(way.values), n),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    styles = ("--", ":", "-.")
    for n, (name, limit) in enumerate(goal_lines(finding)):
        panel.axvline(limit, color=_GOAL, linewidth=1, linestyle=styles[n % len(styles)], label=name)
    panel.set_yticks(at, [way.name for way in ways])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel(finding.unit + (", more is better" if finding.is_rate else ", less is better"))
    panel.grid(axis="x", color="#e3e5e8", linewidth=0.8)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    _style(panel, finding.title)
    if panel.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
    _save(figure, target)


def _is_ours(way: Way) -> bool:
    """Return whether a way is ours: its name begins with ours, or other ways are compared with it."""
    return way.name.startswith(OURS) or way.ours == way.name


def _curves(finding: Finding, target: Path) -> None:
    columns = min(len(finding.curves), _COLUMNS)
    rows = -(-len(finding.curves) // columns)
    figure, panels = _panels(_WIDTH if columns == 1 else _CURVE_WIDTH * columns, _CURVE_HEIGHT * rows, rows, columns)
    for curve, panel in zip_longest(finding.curves, panels):
        if curve is None:
            panel.set_visible(False)
        else:
            _curve(curve, panel)
    _save(figure, target)


def _curve(curve: Curve, panel: Any) -> None:
    for n, (name, values) in enumerate(curve.lines.items()):
        panel.plot(curve.x, values, color=_LINES[n % len(_LINES)], linewidth=1.6, label=name)
    if curve.limit is not None:
        panel.axhline(curve.limit, color=_GOAL, linewidth=1, linestyle="--", label=f"goal: {curve.limit:,g}")
    least = min(0, *(v for values in curve.lines.values() for v in values))
    panel.set_ylim(bottom=least)
    panel.margins(y=0.1)
    panel.set_xlabel(curve.x_label)
    panel.set_ylabel(curve.y_label)
    panel.grid(color="#e3e5e8", linewidth=0.8)
    _style(panel, curve.title)
    if len(curve.lines) > 1 or curve.limit is not None:
        panel.legend(loc="best", frameon=False, fontsize=8)


def _panels(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure  # measurements alone do not need it

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _style(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, target: Path) -> None:
    # Without time and version, equal figures make equal files.
    figure.savefig(target, dpi=130, metadata={"Software": None})
