"""Experiments with the settings of a table: the figures and the plots of docs/tuning-measurements.md.

    python -m benchmarks.tuning --plots docs/images
    python -m benchmarks.tuning --only part-size,sort-order --rows 1000000 --json results.json

Each experiment creates tables of the same events that differ in one setting, runs the same queries on them, and checks
that the results are equal. Times are measured in turns after a warm-up round, and medians are reported. Compare
settings within one run only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import duckdb
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.experiments import tuning_commits, tuning_layouts
from benchmarks.experiments.lab import PROCESSOR, SECONDS, Lab
from benchmarks.harness.figures import Finding
from benchmarks.harness.plots import LEGEND, bars, figure_of, save
from icedb.util.plot_style import INK, SERIES, TEXT_SIZE, title, with_grid

__all__ = ["EXPERIMENTS", "Experiment", "as_grid", "by_experiment", "draw", "measure", "short"]

MARKERS = "osD^vP"
# The ratio of greatest to least value from which an axis is logarithmic.
LOG_FROM = 4
# Above the panel.
PLACE: Mapping[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (0, 1),
    "ncols": 2,
    "columnspacing": 1,
    "borderpad": 0,
}
# The end of a title, which plots show at the axis.
IN_S3 = ", S3"


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment with one setting.

    `grows`: its values are ordered, and drawn as a line. `finding` is the title of the plot. Without it, none is drawn.
    """

    title: str
    setting: str
    run: Callable[[Lab], list[Finding]]
    grows: bool = True
    finding: str = ""

    @property
    def drawn(self) -> bool:
        """True if there is a plot."""
        return bool(self.finding)


EXPERIMENTS: Mapping[str, Experiment] = {
    "part-size": Experiment(
        "Size of parts", "size of a part", tuning_layouts.part_sizes,
        finding="Large parts cost less to read than small ones, in S3 most of all",
    ),
    "sort-order": Experiment(
        "Sort order", "sorted by", tuning_layouts.sort_orders, grows=False,
        finding="A query reads least if the rows are sorted by its column",
    ),
    "row-groups": Experiment(
        "Row groups", "rows of a row group", tuning_layouts.row_groups,
        finding="Large row groups cost less to read than small ones, and more memory to write",
    ),
    "compression": Experiment(
        "Compression", "codec and level", tuning_layouts.compressions,
        finding="Higher levels of zstd take more time to write, and save few bytes",
    ),
    "types": Experiment("Types of columns", "columns are", tuning_layouts.types, grows=False),
    "batch": Experiment(
        "Rows of a batch", "rows of a batch", tuning_commits.batches,
        finding="A row costs less the larger its batch is",
    ),
    "partitions": Experiment(
        "Partitions of a batch", "partitions of a batch", tuning_commits.partitions,
        finding="A batch in many partitions costs more to insert and to read",
    ),
    "divisions": Experiment("Partitioned by time", "by", tuning_commits.divisions, grows=False),
    "statistics": Experiment("Statistics in the log", "columns", tuning_commits.statistics, grows=False),
    "commits": Experiment(
        "Commits since the last merge", "commits", tuning_commits.depths,
        finding="Opening and reading cost more with each commit, until a merge",
    ),
}  # fmt: skip


def measure(
    lab: Lab, only: Sequence[str] = (), *, experiments: Mapping[str, Experiment] = EXPERIMENTS
) -> list[Finding]:
    """Run the experiments, or some of them. Raises AssertionError for a wrong result."""
    all_findings = []
    for key, experiment in experiments.items():
        if not only or key in only:
            all_findings += experiment.run(lab)
            shutil.rmtree(lab.folder / "tables", ignore_errors=True)
    return all_findings


# ------------------------------------------------------------------------------------------ tables


def as_grid(experiment: Experiment, findings: Sequence[Finding]) -> Grid:
    """Return an experiment's table: a column for each setting, with the median of times and their spread below."""
    names = list(dict.fromkeys(way.name for f in findings for way in f.ways))
    grid = Grid(title=f"{experiment.title}, by {experiment.setting}", title_justify="left", box=SIMPLE_HEAD)
    grid.add_column("", no_wrap=True)
    for name in names:
        grid.add_column(name, justify="right", no_wrap=True)
    for finding in findings:
        cells = {way.name: _cell(way.values, way.median) for way in finding.ways}
        grid.add_row(f"{finding.title}, {finding.unit}".rstrip(", "), *(cells.get(name, "") for name in names))
    return grid


def _cell(values: Sequence[float], middle: float) -> str:
    spread = f"\n{short(min(values))}-{short(max(values))}" if len(values) > 1 else ""
    return short(middle) + spread


def short(value: float) -> str:
    """Format a figure with three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def by_experiment(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Return the findings of each experiment."""
    return {key: list(of_key) for key, of_key in groupby(findings, key=lambda f: f.key)}


# ------------------------------------------------------------------------------------------ plots


def draw(experiment: Experiment, findings: Sequence[Finding], target: Path) -> None:
    """Draw an experiment's findings, with a panel for each unit."""
    panels: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.unit and not (finding.unit == SECONDS and _has_processor_time(finding, findings)):
            panels.setdefault(finding.unit, []).append(finding)
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    rows = ceil(len(panels) / columns)
    figure, axes = figure_of(experiment.finding, height=0.3 + 2.7 * rows, rows=rows, columns=columns)
    for (unit, of_unit), panel in zip(panels.items(), axes, strict=False):
        (_draw_lines if experiment.grows else _draw_bars)(panel, of_unit)
        if {way.name for way in of_unit[0].ways} & {way.name for way in findings[0].ways}:
            panel.set_xlabel(experiment.setting)
        panel.set_ylabel(f"{unit}{IN_S3}" if all(f.title.endswith(IN_S3) for f in of_unit) else unit)
        with_grid(panel, "y")
        if len(of_unit) > 1 or experiment.grows:
            panel.legend(**LEGEND, **PLACE)
        else:
            title(panel, of_unit[0].title)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    save(figure, target)


def _has_processor_time(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Return whether processor time is known, which other load of the machine does not affect."""
    return any(f.title == finding.title and f.unit == PROCESSOR for f in findings)


def _draw_lines(panel: Any, findings: Sequence[Finding]) -> None:
    names = list(dict.fromkeys(way.name for f in findings for way in f.ways))
    for n, finding in enumerate(findings):
        at = [names.index(way.name) for way in finding.ways]
        middle = [way.median for way in finding.ways]
        spread = [
            [m - min(way.values) for m, way in zip(middle, finding.ways, strict=True)],
            [max(way.values) - m for m, way in zip(middle, finding.ways, strict=True)],
        ]
        colour = SERIES[n % len(SERIES)]
        panel.errorbar(
            at, middle, spread, color=colour, marker=MARKERS[n % len(MARKERS)], markersize=5, linewidth=1.8,
            elinewidth=0.8, capsize=2, label=finding.title.removesuffix(IN_S3),
        )  # fmt: skip
    panel.set_xticks(range(len(names)), names)
    values = [value for f in findings for way in f.ways for value in way.values]
    if max(values) > LOG_FROM * min(values) > 0:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        panel.yaxis.set_minor_formatter(lambda value, _: f"{value:,.10g}" if f"{value:e}"[0] in "235" else "")
    else:
        panel.set_ylim(bottom=0)


def _draw_bars(panel: Any, findings: Sequence[Finding]) -> None:
    names = [way.name for way in findings[0].ways]
    values = {finding.title: [way.median for way in finding.ways] for finding in findings}
    for drawn in bars(panel, names, values):
        labels = [short(bar.get_height()) for bar in drawn]
        panel.bar_label(
            drawn, labels, fontsize=TEXT_SIZE - 1, color=INK, rotation=90 if len(findings) > 2 else 0, padding=2
        )
    panel.margins(y=0.15)


def main(
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the largest tables.")] = 2_000_000,
    commits: Annotated[int, typer.Option(min=10, help="Commits of the longest log.")] = 5_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after a warm-up round.")] = 5,
    latency_ms: Annotated[float, typer.Option(min=0, help="Delay of each request to S3.")] = 20,
    only: Annotated[str, typer.Option(help="Run these experiments, separated by commas.")] = "",
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files, on a fast local disk.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots. Needs matplotlib.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results as JSON.")] = None,
) -> None:
    """Run experiments with settings."""
    chosen = [key for key in only.split(",") if key]
    if unknown := [key for key in chosen if key not in EXPERIMENTS]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}. Choose from {', '.join(EXPERIMENTS)}")
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="icedb-tuning-", dir=folder) as name,
        console.status("starting") as status,
        ExitStack() as closing,
    ):
        lab = Lab(Path(name), rows, commits, rounds, latency_ms, status.update, closing)
        findings = measure(lab, chosen)
    console.print(f"{rows:,} rows, DuckDB {duckdb.__version__}, {os.cpu_count()} processors")
    for key, of_key in by_experiment(findings).items():
        console.print(as_grid(EXPERIMENTS[key], of_key))
        if plots is not None and EXPERIMENTS[key].drawn:
            draw(EXPERIMENTS[key], of_key, plots / f"tuning-{key}.png")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(f) for f in findings], indent=2))


if __name__ == "__main__":
    typer.run(main)
