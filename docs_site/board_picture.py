"""The picture of the Grafana board in the docs: its panels, evaluated by a Prometheus server and drawn by matplotlib.

    python -m docs_site.board_picture http://127.0.0.1:9090 --since 2026-11-28T00:24:00Z --until 2026-11-28T00:36:00Z

Grafana is not required. It draws the same panels from the same expressions in its own style.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from icedb.util.counts import size_text
from icedb.util.plot_style import INK, PAPER, SERIES, TEXT_SIZE, title, with_grid

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "deploy" / "grafana" / "icedb.json"
PICTURE = ROOT / "docs" / "images" / "board.png"
#: Inches of a column and a row of the board's grid.
COLUMN, ROW, DPI = 0.62, 0.27, 90
_POINTS = 150
_LEGEND_MAX = 6


class Prometheus:
    """A server that evaluates expressions between two times, in unix seconds."""

    def __init__(self, url: str, since: float, until: float, rate_interval: str) -> None:
        self.url, self.since, self.until = url, since, until
        self._rate_interval = rate_interval

    def evaluate(self, expression: str, variables: dict[str, str]) -> list[tuple[dict[str, str], list[list[Any]]]]:
        """Return the labels and the samples (time and value) of each series."""
        values = {**variables, "__rate_interval": self._rate_interval}
        query = {
            "query": re.sub(r"\$(\w+)", lambda match: values[match[1]], expression),
            "start": self.since,
            "end": self.until,
            "step": max(1, round((self.until - self.since) / _POINTS)),
        }
        address = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=60) as response:  # noqa: S310  the caller's own server
            document = json.load(response)
        return [(series["metric"], series["values"]) for series in document["data"]["result"]]


def draw(board: dict[str, Any], prometheus: Prometheus) -> Figure:
    """Return a figure of all panels, at their places on the board."""
    variables = {v["name"]: v["query"] for v in board["templating"]["list"] if v["type"] == "textbox"} | {"table": ".*"}
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = Figure(figsize=(24 * COLUMN, rows * ROW), dpi=DPI, facecolor=PAPER)
    for panel in board["panels"]:
        at = panel["gridPos"]
        left, top, width, height = at["x"] / 24, 1 - at["y"] / rows, at["w"] / 24, at["h"] / rows
        if panel["type"] == "row":
            figure.text(left + 0.004, top - height * 0.7, panel["title"], fontsize=13, color=INK, weight="bold")
            continue
        inner = (left + 0.042, top - height + 2.1 / rows, width - 0.05, height - 3.2 / rows)
        if panel["type"] == "stat":
            _draw_stat(figure, panel, prometheus, variables, left + width / 2, top - height / 2)
        else:
            _draw_graph(figure.add_axes(inner), panel, prometheus, variables)
    return figure


def _draw_stat(
    figure: Figure, panel: dict[str, Any], prometheus: Prometheus, variables: dict[str, str], x: float, y: float
) -> None:
    series = prometheus.evaluate(panel["targets"][0]["expr"], variables)
    value = float(series[0][1][-1][1]) if series else 0.0
    figure.text(x, y, _text(value, panel["fieldConfig"]["defaults"]["unit"]), fontsize=20, color=INK, ha="center")
    figure.text(x, y - 0.011, panel["title"], fontsize=TEXT_SIZE + 1, color=INK, ha="center")


def _draw_graph(axes: Axes, panel: dict[str, Any], prometheus: Prometheus, variables: dict[str, str]) -> None:
    title(with_grid(axes, "y"), panel["title"])
    colours, drawn = cycle(SERIES), 0
    for target in panel["targets"]:
        for labels, samples in prometheus.evaluate(target["expr"], variables):
            name = _legend(target["legendFormat"], labels)
            label = name if drawn < _LEGEND_MAX else None
            times, values = [float(at) for at, _ in samples], [float(value) for _, value in samples]
            axes.plot(times, values, linewidth=1.2, color=next(colours), label=label)
            drawn += 1
    axes.set_xlim(prometheus.since, prometheus.until)
    axes.set_ylim(bottom=0)
    axes.set_xticks(_times(prometheus.since, prometheus.until))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{datetime.fromtimestamp(at, UTC):%H:%M}"))
    axes.locator_params(axis="y", nbins=4)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(value, unit)))
    if drawn:
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.05, -0.14), ncols=3, fontsize=TEXT_SIZE - 1.5, frameon=False,
            handlelength=1, columnspacing=1, labelcolor=INK,
        )  # fmt: skip


def _times(since: float, until: float) -> list[float]:
    """Return some round times between two times, in unix seconds."""
    step = next(s for s in (60, 300, 900, 3_600, 21_600, 86_400, math.inf) if (until - since) / s <= 5)
    return [n * step for n in range(math.ceil(since / step), math.floor(until / step) + 1)]


def _legend(template: str, labels: dict[str, str]) -> str:
    """Return the name of a series, with the last two segments of a path only."""
    name = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), template).strip()
    return f"…/{'/'.join(name.split('/')[-2:])}" if name.startswith("/") else name


def _text(value: float, unit: str) -> str:
    match unit:
        case "bytes" | "Bps":
            return size_text(round(value))
        case "s":
            return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:,.0f} s"
        case "currencyUSD":
            return f"${value:,.2f}"
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.2g}"


def main(
    url: str,
    since: Annotated[datetime, typer.Option(formats=["%Y-%m-%dT%H:%M:%SZ"])],
    until: Annotated[datetime, typer.Option(formats=["%Y-%m-%dT%H:%M:%SZ"])],
    rate_interval: str = "1m",
) -> None:
    """Draw the board between two times in UTC, into docs/images/board.png."""
    seconds = (since.replace(tzinfo=UTC).timestamp(), until.replace(tzinfo=UTC).timestamp())
    draw(json.loads(BOARD.read_text()), Prometheus(url, *seconds, rate_interval)).savefig(PICTURE)


if __name__ == "__main__":
    typer.run(main)
