"""The HTML page of a report: one file that loads nothing, with its style and its script inside.

Jinja escapes every text of the document. The page's content security policy admits the style and the script by their
digests, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from icedb.operations.health.figures import shortened
from icedb.operations.report.commit_chart import CommitChart
from icedb.operations.report.document import ReportDocument
from icedb.operations.report.heat_map import LEVELS, HeatCell, HeatMap, HeatRow
from icedb.util.counts import count_text, number_text, size_text
from icedb.util.durations import duration_text
from icedb.util.optional_deps import import_optional
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["render_page"]

# Maps with at most this number of cells have large cells with their names.
_LARGE_CELLS_MAX = 40
_LABEL_CHARACTERS_MAX = 24
_PATH_CHARACTERS_MAX = 50


def render_page(document: ReportDocument) -> str:
    """Render the page. Raises MissingExtra if Jinja is not installed."""
    return _template().render(
        document=document,
        css=_resource("page.css"),
        script=_resource("page.js"),
        policy=_policy(),
        levels=range(LEVELS + 1),
        heat=None if document.heat_map is None else _heat_view(document.heat_map),
        chart=None if document.commits is None else _chart_view(document.commits),
    )


@cache
def _template() -> Template:
    import_optional("jinja2", extra="cli")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_resource("page.html.jinja"))


@cache
def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _policy() -> str:
    """Return the content security policy of the page."""
    style, script = (
        f"'sha256-{base64.b64encode(hashlib.sha256(_resource(name).encode()).digest()).decode()}'"
        for name in ("page.css", "page.js")
    )
    only = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"{only}; style-src {style}; script-src {script}"


# ------------------------------------------------------------------------------------------------ the heat map


@dataclass(frozen=True, slots=True)
class _CellView:
    classes: str
    title: str
    #: Name and size in a large cell.
    label: str
    size: str


@dataclass(frozen=True, slots=True)
class _Legend:
    metric: str
    name: str
    least: str
    greatest: str


@dataclass(frozen=True, slots=True)
class _HeatView:
    is_large: bool
    rows: Sequence[tuple[str, str, Sequence[_CellView]]]
    legends: Sequence[_Legend]
    note: str


# The class of each metric, its name, and how its figures are formatted.
_METRICS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("b", "size", size_text),
    ("r", "rows", "{:,.0f}".format),
    ("s", "small parts", "{:,.0f}".format),
)


def _heat_view(heat: HeatMap) -> _HeatView:
    cells = sum(len(row.cells) for row in heat.rows)
    note = f"Each cell is one of {count_text(heat.partitions, 'partition')}."
    if heat.partitions_per_cell > 1:
        note = (
            f"{heat.partitions:,} partitions in {cells:,} cells: each cell is up to {heat.partitions_per_cell:,} "
            "neighbours by path, and has the colour of their mean."
        )
    if heat.partitions == 1:
        note = "The table has one partition."
    is_large = cells <= _LARGE_CELLS_MAX
    return _HeatView(
        is_large=is_large,
        rows=[
            (shortened(row.folder, _PATH_CHARACTERS_MAX) if row.folder else "", _span(row),
             [_cell_view(cell, heat, is_large=is_large) for cell in row.cells])
            for row in heat.rows
        ],
        legends=[
            _Legend(metric, name, text(scale.least), text(scale.greatest))
            for (metric, name, text), scale in zip(_METRICS, heat.scales, strict=True)
        ],
        note=note,
    )  # fmt: skip


def _span(row: HeatRow) -> str:
    """Return the first and the last path of a row that is not named by its folder."""
    first, last = row.cells[0].first, row.cells[-1].last
    if row.folder or first == last:
        return ""
    return f"{shortened(first, _PATH_CHARACTERS_MAX)} to {shortened(last, _PATH_CHARACTERS_MAX)}"


def _cell_view(cell: HeatCell, heat: HeatMap, *, is_large: bool) -> _CellView:
    levels = [scale.level(mean) for scale, mean in zip(heat.scales, cell.means, strict=True)]
    classes = [f"{metric}{'x' if at is None else at}" for (metric, _, _), at in zip(_METRICS, levels, strict=True)]
    name = shortened(cell.first, _PATH_CHARACTERS_MAX)
    if cell.partitions > 1:
        name += f" to {shortened(cell.last, _PATH_CHARACTERS_MAX)} ({cell.partitions:,} partitions)"
    figures = (
        size_text(cell.bytes),
        f"{number_text(cell.rows)} rows",
        count_text(cell.parts, "part"),
        count_text(cell.small_parts, "small part"),
        *(("merge is due",) if cell.is_due else ()),
    )
    return _CellView(
        " ".join([*classes, *(["due"] if cell.is_due else [])]),
        f"{name}: {', '.join(figures)}",
        shortened(cell.first.rpartition("/")[2], _LABEL_CHARACTERS_MAX) if is_large else "",
        size_text(cell.bytes) if is_large else "",
    )


# ------------------------------------------------------------------------------------------------ the commit chart


@dataclass(frozen=True, slots=True)
class _Block:
    """A rectangle of the chart, which is `_CHART_UNITS` wide and high."""

    operation: str
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class _ChartView:
    operations: Sequence[str]
    blocks: Sequence[_Block]
    most: str
    start: str
    end: str
    bar: str


_CHART_UNITS = 1_000
# The share of a bar's width that is filled.
_BAR_FILL = 0.85


def _chart_view(chart: CommitChart) -> _ChartView:
    width = _CHART_UNITS * chart.bar_ms / (chart.end_ms - chart.start_ms)
    blocks = []
    for bar in chart.bars:
        base = float(_CHART_UNITS)
        for operation, count in zip(chart.operations, bar.counts, strict=True):
            if count:
                height = _CHART_UNITS * count / chart.most
                base -= height
                title = f"{iso_text(bar.start_ms, timespec='seconds')}: {operation}, {count_text(count, 'commit')}"
                x = _CHART_UNITS * chart.share(bar.start_ms)
                blocks.append(
                    _Block(operation, round(x, 2), round(base, 2), round(_BAR_FILL * width, 2), round(height, 2), title)
                )
    return _ChartView(
        chart.operations,
        blocks,
        count_text(chart.most, "commit"),
        iso_text(chart.start_ms, timespec="minutes"),
        iso_text(chart.end_ms, timespec="minutes"),
        duration_text(chart.bar_ms),
    )
