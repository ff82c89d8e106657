"""Queries over a table, beside the same queries over its bare Parquet files in the same run.

    python -m benchmarks.query --scale 0.1 --parts 10000 --plot docs/images/query-pruning.png

All queries run in DuckDB with its default number of threads. TPC-H: all 22 queries, over tables and over views of the
same files, with a check of the results. A selective query over a table of many parts: the parts opened with pruning and
without, counted by the kernel in a folder, and by a proxy that delays each request to an S3 server. A small query of a
table without new commits: the cost of the refresh.

The ways take turns; results are medians. Only a wrong result is an error.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import duckdb
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.harness.plots import LEGEND, bars, figure_of, goal_line, save
from benchmarks.harness.rounds import run_rounds
from benchmarks.queries import selective, tpch
from benchmarks.queries.selective import QueryCost, RefreshCost
from benchmarks.queries.tpch import Ratios
from icedb.util.plot_style import INK, TEXT_SIZE, title, with_grid

__all__ = ["QueryResults", "QueryRun", "as_grids", "as_json", "draw", "measure"]


@dataclass(frozen=True, slots=True)
class QueryRun:
    """The sizes of a run: `parts` of the table in a folder, `store_parts` of the one in S3."""

    scale: float
    rounds: int
    parts: int
    store_parts: int
    latency_ms: float


@dataclass(frozen=True, slots=True)
class QueryResults:
    """All results."""

    plan: QueryRun
    tpch: list[Ratios]
    local: list[QueryCost]
    store: list[QueryCost]
    looks: list[RefreshCost]


def measure(plan: QueryRun, folder: Path, *, on_step: Callable[[str], None] = lambda _: None) -> QueryResults:
    """Create tables in an empty folder, and query them. Raises AssertionError for a wrong result."""
    on_step(f"TPC-H: making tables of scale {plan.scale:g}")
    with tpch.make_layouts(folder / "tpch", plan.scale) as layouts:
        results = run_rounds(tpch.cases(layouts), plan.rounds, on_step=on_step, only_reads=True)
        ratios = tpch.ratios(layouts, results)
    return QueryResults(
        plan,
        ratios,
        selective.measure_local(folder / "local", plan.parts, on_step=on_step),
        selective.measure_store(folder / "store", plan.store_parts, plan.latency_ms, on_step=on_step),
        selective.measure_looks(folder / "looks", plan.latency_ms, on_step=on_step),
    )


# ------------------------------------------------------------------------------------------ output


def fewer(measurement: QueryCost, all_costs: Sequence[QueryCost]) -> float:
    """Return the factor by which pruning reduces the opened parts."""
    return _bare(measurement, all_costs).files / max(measurement.files, 1)


def _bare(measurement: QueryCost, all_costs: Sequence[QueryCost]) -> QueryCost:
    return next(a for a in all_costs if a.question == measurement.question and a.way == selective.BARE)


def as_grids(measured: QueryResults, versions: str) -> list[Grid]:
    """Return the results as tables."""
    plan = measured.plan
    return [
        _tpch_grid(measured.tpch, f"TPC-H {plan.scale:g}, ratio to bare files, median of {plan.rounds}; {versions}"),
        _selective_grid(measured.local, "Parts opened, in a folder"),
        _selective_grid(
            measured.store, f"Parts opened, in S3 with {plan.latency_ms:g} ms a request, from the opening on"
        ),
        _look_grid(measured.looks, "A small query of a quiet table"),
    ]


def _grid(title: str, left: Sequence[str], right: Sequence[str]) -> Grid:
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in left:
        grid.add_column(name, no_wrap=True)
    for name in right:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def _verdict(goal: float, met: bool) -> str:
    return f"{goal:.4g} {'met' if met else 'missed'}"


def _tpch_grid(ratios: Sequence[Ratios], title: str) -> Grid:
    grid = _grid(title, [""], [f"{r.way}\n{r.layout}, {r.parts} parts" for r in ratios])
    for number in ratios[0].queries:
        grid.add_row(f"query {number}", *(f"{r.queries[number]:.2f}" for r in ratios))
    grid.add_section()
    grid.add_row("seconds, bare files", *(f"{sum(b for b, _ in r.seconds.values()):.3f}" for r in ratios))
    grid.add_row("seconds", *(f"{sum(o for _, o in r.seconds.values()):.3f}" for r in ratios))
    grid.add_row("all", *(f"{r.total:.3f}" for r in ratios))
    grid.add_row("  least, greatest of a round", *(f"{min(r.rounds):.2f}, {max(r.rounds):.2f}" for r in ratios))
    grid.add_row("  of processor time", *(f"{r.processor:.3f}" for r in ratios))
    grid.add_row("median of the queries", *(f"{r.median:.3f}" for r in ratios))
    grid.add_row("geometric mean", *(f"{r.geometric_mean:.3f}" for r in ratios))
    grid.add_row("goal, for all and the median", *(_verdict(tpch.GOAL, _meets(r)) for r in ratios))
    return grid


def _meets(ratios: Ratios) -> bool:
    return max(ratios.total, ratios.median) <= tpch.GOAL


def _selective_grid(measurement: Sequence[QueryCost], title: str) -> Grid:
    grid = _grid(title, ["question", "way"], ["parts", "opened", "times fewer", "requests", "seconds", "ratio"])
    question = ""
    for one in measurement:
        if one.question != question:
            grid.add_section()
        grid.add_row(
            "" if one.question == question else one.question,
            one.way,
            f"{one.parts:,}",
            f"{one.files:,}",
            f"{fewer(one, measurement):,.0f}",
            "" if one.requests is None else f"{one.requests:,}",
            f"{one.median_seconds:.3f}",
            f"{one.median_seconds / _bare(one, measurement).median_seconds:.3f}",
        )
        question = one.question
    grid.add_section()
    for way in dict.fromkeys(a.way for a in measurement):
        least = min(fewer(a, measurement) for a in measurement if a.way == way)
        if way != selective.BARE:
            grid.add_row("goal", way, "", "", _verdict(selective.GOAL, least >= selective.GOAL))
    return grid


def _look_grid(looks: Sequence[RefreshCost], title: str) -> Grid:
    grid = _grid(title, ["place", "way"], ["ms, median", "ms, least", "requests"])
    for look in looks:
        summary = ", ".join(f"{number:g} {kind}" for kind, number in sorted((look.requests or {}).items()))
        grid.add_row(
            look.place, look.way, f"{median(look.seconds) * 1000:.1f}", f"{min(look.seconds) * 1000:.1f}", summary
        )
    return grid


def as_json(measured: QueryResults) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "plan": asdict(measured.plan),
        "tpch": [
            asdict(r)
            | {"ratios": r.queries, "total": r.total, "median": r.median, "geometric_mean": r.geometric_mean}
            | {"goal": tpch.GOAL}
            for r in measured.tpch
        ],
        **{
            name: [asdict(a) | {"times_fewer": fewer(a, measurement), "goal": selective.GOAL} for a in measurement]
            for name, measurement in (("local", measured.local), ("store", measured.store))
        },
        "looks": [asdict(look) for look in measured.looks],
    }


def draw(measured: QueryResults, target: Path) -> None:
    """Draw the ratios of the queries, and below them the opened parts and the time of selective queries."""
    plan = measured.plan
    totals = sorted(ratios.total for ratios in measured.tpch)
    figure, (queries, left, right) = figure_of(
        f"TPC-H takes {totals[0]:.2f} to {totals[-1]:.2f} times the time of the bare files", height=6, mosaic="qq;lr"
    )
    ratios_by_way = {f"{r.way}, {r.layout}: {r.total:.2f}": list(r.queries.values()) for r in measured.tpch}
    bars(queries, [str(n) for n in measured.tpch[0].queries], ratios_by_way)
    queries.axhline(1, color=INK, linewidth=0.8)
    goal_line(queries, tpch.GOAL, "goal")
    title(queries, f"TPC-H {plan.scale:g}, its 22 queries")
    queries.set_ylabel("ratio to the bare files")
    for panel, measurement, value, head, unit in (
        (left, measured.local, _files, f"a folder, {measured.local[0].parts:,} parts", "parts opened"),
        (
            right,
            measured.store,
            _seconds,
            f"S3 with {plan.latency_ms:g} ms a request, {measured.store[0].parts:,} parts",
            "seconds, opening the table included",
        ),
    ):
        ways = list(dict.fromkeys(a.way for a in measurement))
        values = {way: [value(a) for a in measurement if a.way == way] for way in ways}
        for drawn in bars(panel, list(dict.fromkeys(a.question for a in measurement)), values):
            heights = [bar.get_height() for bar in drawn]
            panel.bar_label(
                drawn, [f"{v:,.2g}" if v < 10 else f"{v:,.0f}" for v in heights], fontsize=TEXT_SIZE - 1, color=INK,
                rotation=90, padding=2,
            )  # fmt: skip
        panel.set_yscale("log")
        panel.margins(y=0.2)
        title(panel, head)
        panel.set_ylabel(unit)
    for panel in (queries, left, right):
        with_grid(panel, "y")
    queries.legend(loc="upper left", **LEGEND, ncols=3)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", **LEGEND, ncols=4)
    save(figure, target)


def _files(measurement: QueryCost) -> float:
    return measurement.files


def _seconds(measurement: QueryCost) -> float:
    return measurement.median_seconds


def main(
    scale: Annotated[float, typer.Option(help="TPC-H's scale factor: 0.01, 0.1 or 1.")] = 0.1,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of TPC-H, after a warm-up round.")] = 15,
    parts: Annotated[int, typer.Option(min=9, help="Parts of the table in a folder.")] = 10_000,
    store_parts: Annotated[
        int, typer.Option(min=9, help="Parts of the table in S3. All are opened without pruning.")
    ] = 1_024,
    latency_ms: Annotated[float, typer.Option(min=0, help="Delay of each request to S3.")] = 20,
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files, on a fast local disk.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for the plot. Needs matplotlib.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results as JSON.")] = None,
) -> None:
    """Measure queries over tables."""
    if scale not in tpch.SCALES:
        raise typer.BadParameter(f"scale is {scale:g}: answers are known for {', '.join(map(str, tpch.SCALES))}")
    plan = QueryRun(scale, rounds, parts, store_parts, latency_ms)
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="icedb-query-", dir=folder) as name,
        console.status("starting") as status,
    ):
        measured = measure(plan, Path(name), on_step=status.update)
    for grid in as_grids(measured, f"DuckDB {duckdb.__version__}, {os.cpu_count()} processors"):
        console.print(grid)
    if plot is not None:
        draw(measured, plot)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(measured), indent=2))


if __name__ == "__main__":
    typer.run(main)
