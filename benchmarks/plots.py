"""Findings as pictures, all in one style: bars for ways with a line where a goal is, curves for what grows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS, Check, Curve, Finding

__all__ = ["draw", "goal_lines"]

_OURS, _OURS_TOO, _OTHERS, _GOAL = "#2b6ca3", "#8db6d8", "#a9adb5", "#b03a48"
# Told apart by those who see few colours, too.
_LINES = ("#2b6ca3", "#d9822b", "#5c8a4d", "#8a8f98", "#b03a48", "#6b4c9a")
# Between the shortest bar and the longest, where the short ones could not be seen any more.
_LOG_FROM = 60
_WIDTH = 8.5


def draw(finding: Finding, stem: Path) -> list[Path]:
    """PNG files whose names begin with `stem`: one of the ways, if there are several, and one of each curve."""
    pictures = []
    if len(finding.ways) > 1:
        pictures.append(stem.with_name(f"{stem.name}.png"))
        _bars(finding, pictures[-1])
    for n, curve in enumerate(finding.curves, 1):
        pictures.append(stem.with_name(f"{stem.name}-curve-{n}.png"))
        _curve(curve, pictures[-1])
    return pictures


def goal_lines(finding: Finding) -> Iterator[tuple[str, float]]:
    """Where our bar must end for each goal that is about the bars: a ratio to another way, or the value itself."""
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


def _bars(finding: Finding, target: Path) -> None:
    figure, panel = _panel(1.1 + 0.38 * len(finding.ways))
    at = range(len(finding.ways))
    medians = [way.median for way in finding.ways]
    spread = [
        [way.median - min(way.values) for way in finding.ways],
        [max(way.values) - way.median for way in finding.ways],
    ]
    colours = [
        _OURS if way.name == OURS else _OURS_TOO if way.name.startswith(OURS) else _OTHERS for way in finding.ways
    ]
    panel.barh(at, medians, 0.7, color=colours, xerr=spread, error_kw={"ecolor": "#3a3d42", "elinewidth": 0.9})
    if min(medians) > 0 and max(medians) / min(medians) > _LOG_FROM:
        panel.set_xscale("log")
    for n, way in enumerate(finding.ways):
        panel.annotate(
            _label(way.median), (max(way.values), n), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    styles = ("--", ":", "-.")
    for n, (name, where) in enumerate(goal_lines(finding)):
        panel.axvline(where, color=_GOAL, linewidth=1, linestyle=styles[n % len(styles)], label=name)
    panel.set_yticks(at, [way.name for way in finding.ways])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel(finding.unit + (", more is better" if finding.is_rate else ", less is better"))
    panel.grid(axis="x", color="#e3e5e8", linewidth=0.8)
    _finish(figure, panel, finding.title, target)


def _curve(curve: Curve, target: Path) -> None:
    figure, panel = _panel(3.6)
    for n, (name, values) in enumerate(curve.lines.items()):
        panel.plot(curve.x, values, color=_LINES[n % len(_LINES)], linewidth=1.6, label=name)
    if curve.limit is not None:
        panel.axhline(curve.limit, color=_GOAL, linewidth=1, linestyle="--", label=f"goal: {curve.limit:,g}")
    panel.set_ylim(bottom=min(0, *(v for values in curve.lines.values() for v in values)))
    panel.set_xlabel(curve.x_label)
    panel.set_ylabel(curve.y_label)
    panel.grid(color="#e3e5e8", linewidth=0.8)
    _finish(figure, panel, curve.title, target)


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _panel(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # here, so that measuring alone does not need it

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Any, panel: Any, title: str, target: Path) -> None:
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    if panel.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
    # No time and no version in the file: the same figures are the same picture.
    figure.savefig(target, dpi=130, metadata={"Software": None})
