"""The style of all plots: the charts of a table's health, and those of the benchmarks.

At run time the module imports no matplotlib. Its functions take matplotlib's axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

__all__ = ["BLUE", "GRID", "INK", "LIGHT_BLUE", "ORANGE", "PAPER", "RED", "SERIES", "SILVER", "TEXT_SIZE", "TITLE_SIZE",
           "annotate", "plain", "title", "with_grid"]  # fmt: skip

INK, GRID, PAPER = "#3b4252", "#d5d9e0", "#ffffff"
BLUE, ORANGE, LIGHT_BLUE, SILVER, RED = "#5b8fc9", "#e07b2e", "#b3cbe6", "#b4b8c0", "#b03a48"
#: The colours of lines and bars beside each other, distinct also for colour-blind readers.
SERIES = (BLUE, ORANGE, "#2f8a6b", "#a8639f", "#6f7681", "#8a5a2b")
#: Sizes in points.
TITLE_SIZE, TEXT_SIZE = 9.5, 8


def plain(axes: Axes) -> Axes:
    """Remove the frame of axes."""
    axes.set_facecolor(PAPER)
    axes.tick_params(which="both", colors=INK, labelsize=TEXT_SIZE, length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return axes


def with_grid(axes: Axes, which: Literal["x", "y", "both"] = "both") -> Axes:
    """Remove the frame of axes, and draw a grid behind what they show."""
    plain(axes).grid(axis=which, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=TEXT_SIZE, color=INK)
    return axes


def title(axes: Axes, text: str, *, side: Literal["left", "right"] = "left") -> None:
    """Set the title of axes."""
    axes.set_title(text, fontsize=TITLE_SIZE, color=INK, loc=side)


def annotate(axes: Axes, text: str, at: tuple[float, float], points: tuple[float, float], **where: Any) -> Annotation:
    """Write a small text some points away from a position."""
    return axes.annotate(text, at, points, textcoords="offset points", fontsize=TEXT_SIZE, color=INK, **where)
