"""The costs of a table at a large scale: a year of commits, simulated by their requests.

    python -m benchmarks.scale
    python -m benchmarks.scale --rate 250000 --every 10 --json

The requests of each operation were counted on a real S3 server (`benchmarks.scale_requests`). The simulation runs
commits, merges (compactions), log merges, cleanups and drops for a year in steps of five minutes, with Dagster's
default schedules. Beside it are the figures of a month in closed form. No row is written, and no store is used.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.harness.plots import LEGEND, bars, figure_of, save
from benchmarks.harness.words import number
from benchmarks.scale_requests import Costs, read_costs, requests_of
from icedb.format.timing import Timing
from icedb.operations.retention.merge_log import LOG_FILES_MIN
from icedb.operations.rewrite.merge import PART_BYTES_MAX, TINY_BYTES, TieredMerge
from icedb.util.plot_style import INK, SERIES, TEXT_SIZE, with_grid

__all__ = ["LOADS", "Inputs", "Load", "MonthlyCosts", "Prices", "on_paper", "simulate"]

STEP_S = 300
DAY_S = 86_400
MONTH_S = 30 * DAY_S
YEAR_DAYS = 365
CLEANUP_S = 6 * 3_600
GB = 1_000_000_000
# Objects of a listing request and of a deletion request.
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Prices:
    """The list prices of S3 Standard in us-east-1, in dollars. Deletions are free."""

    put: float = 0.005 / 1_000
    get: float = 0.0004 / 1_000
    gb_month: float = 0.023

    def of(self, kind: str) -> float:
        """Return the price of a request."""
        return {"PUT": self.put, "LIST": self.put, "GET": self.get, "HEAD": self.get}.get(kind, 0.0)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Measured and assumed figures, to be replaced by your own.

    Rows per second are those of two processors. `busy` is the share of the time in which they have work.
    """

    event_bytes: float = 40
    insert_rows_s: float = 1_000_000
    merge_rows_s: float = 1_400_000
    busy: float = 0.7
    keep_days: int = 30
    #: Programs that follow the table, and the interval of their refreshes.
    readers: int = 10
    refresh_s: float = 60
    #: Bytes of a part's line in the log, of the rest of an append's log file, and of a part in a reader's memory.
    line_bytes: float = 250
    header_bytes: float = 170
    state_bytes: float = 160
    #: The time to open a table, for each live part.
    open_s_per_part: float = 2.2e-6


@dataclass(frozen=True, slots=True)
class Load:
    """The rate and the interval of commits of all writers together. Each commit has a part for each of `partitions`.

    Partitions are days, or several for a day with another partition column.
    """

    events_per_second: float
    every_s: float
    partitions: int = 1
    part_bytes_max: int = PART_BYTES_MAX

    def part_bytes(self, inputs: Inputs) -> float:
        """The bytes of each part of an append."""
        return self.events_per_second * self.every_s * inputs.event_bytes / self.partitions


#: 1k, 100k and 10M events a second, the latter also with larger parts.
LOADS: Mapping[str, Load] = {
    "1k": Load(1_000, 30),
    "100k": Load(100_000, 5),
    "10M": Load(10_000_000, 0.5),
    "10M, large parts": Load(10_000_000, 2.5, part_bytes_max=1024 * 1024 * 1024),
}


@dataclass(slots=True)
class MonthlyCosts:
    """The costs of a month, and the state of the table. Requests and dollars are those of 30 days, by kind."""

    requests: dict[str, float]
    dollars: dict[str, float]
    commits_per_second: float
    batch_rows: float
    part_bytes: float
    bytes_per_day: float
    #: The write amplification: how often each byte is written after its insert.
    rewrites: float
    live_parts: float
    stored_bytes: float
    #: The log files that an exclusive commit lists, and those that an opening of the table fetches.
    stored_log_files: float
    log_files: float
    open_s: float
    state_bytes: float
    insert_machines: float
    merge_machines: float

    @property
    def total_dollars(self) -> float:
        """The dollars of a month."""
        return sum(self.dollars.values())


@dataclass(slots=True)
class _Small:
    """The parts of a partition that are not full, by tier. The last tier ends at a full part."""

    limits: Sequence[float]
    counts: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start another partition."""
        self.counts, self.sizes = [0.0] * len(self.limits), [0.0] * len(self.limits)

    def add(self, count: float, size: float) -> None:
        """Add the parts of an append, by their total bytes."""
        self.counts[0] += count
        self.sizes[0] += size

    def merge(self) -> tuple[float, float, float]:
        """Merge like the planner. Return the groups, inputs and bytes."""
        for tier in reversed(range(len(self.limits))):
            size, count = sum(self.sizes[: tier + 1]), sum(self.counts[: tier + 1])
            full = tier == len(self.limits) - 1
            if size < self.limits[tier] or (not full and count < TieredMerge().hot_tier // 2):
                continue
            groups = size // self.limits[tier] if full else 1
            taken = groups * self.limits[tier] / size if full else 1.0
            merged = groups, count * taken, size * taken
            for below in range(tier + 1):
                self.counts[below] *= 1 - taken
                self.sizes[below] *= 1 - taken
            if not full:
                self.counts[tier + 1] += 1
                self.sizes[tier + 1] += size
            return merged
        return 0, 0, 0


def limits_of(part_bytes: float, part_bytes_max: int) -> list[float]:
    """Return the size limits above a part of an append, ascending; none if it is full from the start."""
    limits, limit = [], float(part_bytes_max)
    while limit > max(part_bytes, TINY_BYTES):
        limits.append(limit)
        limit /= TieredMerge().hot_tier
    return limits[::-1]


def simulate(
    load: Load,
    *,
    days: int = YEAR_DAYS,
    inputs: Inputs | None = None,
    prices: Prices | None = None,
    costs: Costs | None = None,
) -> MonthlyCosts:
    """Simulate so many days. Requests are scaled to 30 days; sizes are those at the end."""
    inputs, costs = inputs or Inputs(), costs or read_costs()
    played = _Year(load, inputs, costs)
    for step in range(days * DAY_S // STEP_S):
        played.step(step)
    month = MONTH_S / (days * DAY_S)
    return _outcome(
        load,
        inputs,
        prices or Prices(),
        {kind: n * month for kind, n in played.requests.items()},
        rewrites=played.rewritten / max(1.0, played.inserted),
        live_parts=sum(played.parts_of_day),
        dead_bytes=played.dead_bytes,
        stored_log_files=played.most_log_files,
        log_files=played.most_to_read,
    )


class _Year:
    """The simulated table."""

    def __init__(self, load: Load, inputs: Inputs, costs: Costs) -> None:
        self._load, self._inputs, self._costs = load, inputs, costs
        self._part_bytes = load.part_bytes(inputs)
        self._small = _Small(limits_of(self._part_bytes, load.part_bytes_max))
        self.requests: dict[str, float] = defaultdict(float)
        self.inserted = self.rewritten = 0.0
        self.parts_of_day: list[float] = [0.0]
        self.dead_bytes = self._dead_before = 0.0
        #: Log files that readers fetch, and replaced ones that are still stored.
        self._to_read = self._replaced = self._replaced_before = 0.0
        self.most_log_files = self.most_to_read = 0.0

    def step(self, step: int) -> None:
        """Simulate the appends and refreshes of five minutes, then the jobs that are due."""
        seconds = step * STEP_S
        if step and seconds % DAY_S == 0:
            self._next_day()
        commits = STEP_S / self._load.every_s
        self._ask("append", commits, part=self._load.partitions)
        self.inserted += commits * self._part_bytes * self._load.partitions
        self.parts_of_day[-1] += commits * self._load.partitions
        self._to_read += commits
        looks = self._inputs.readers * STEP_S / self._inputs.refresh_s
        recent = commits * Timing().late_publication_ms / 1_000 / STEP_S
        self._ask("refresh", looks, pages=recent / PAGE, log_file=commits / (looks / self._inputs.readers))
        self._note()
        if self._small.limits:
            self._small.add(commits, commits * self._part_bytes)
            self._merge(self._small.merge())
        if seconds % 3_600 == 0 and self._to_read >= LOG_FILES_MIN:
            self._open()
            self._ask("merge_log", pages=self._pages())
            self._replaced, self._to_read = self._replaced + self._to_read, 1
        if seconds % CLEANUP_S == 0:
            self._clean()

    def _ask(self, operation: str, times: float = 1, *, pages: float = 0, **units: float) -> None:
        for kind, n in requests_of(self._costs, operation, **units).items():
            self.requests[kind] += times * n * (max(1, math.ceil(pages)) if kind == "LIST" else 1)

    def _pages(self) -> float:
        return (self._to_read + self._replaced) / PAGE

    def _note(self) -> None:
        self.most_log_files = max(self.most_log_files, self._to_read + self._replaced)
        self.most_to_read = max(self.most_to_read, self._to_read)

    def _open(self) -> None:
        """Count the requests of a job's start: a new process reads the log, and checks the store's create-only puts."""
        self._ask("open", pages=self._pages(), log_file=self._to_read)
        self.requests["PUT"] += 1

    def _merge(self, merged: tuple[float, float, float]) -> None:
        groups, parts, size = (n * self._load.partitions for n in merged)
        self._open()
        if not groups:
            return
        self._ask("merge", pages=self._pages(), group=groups, input=parts)
        self.rewritten += size
        self.parts_of_day[-1] += groups - parts
        self.dead_bytes += size
        # The log files of the merged parts. Those of appends have no other lines.
        gone = min(self._to_read, merged[1])
        self._replaced, self._to_read = self._replaced + gone, self._to_read - gone + 1

    def _clean(self) -> None:
        """Delete objects that were superseded before the grace period."""
        share = 1 - 3_600 / CLEANUP_S
        deleted = self._replaced_before + (self._replaced - self._replaced_before) * share
        self._open()
        self._ask("cleanup", pages=self._pages(), log_file=self._to_read + self._replaced)
        self.requests["DELETE MANY"] += deleted // PAGE
        self._replaced -= deleted
        self._replaced_before = self._replaced
        freed = self._dead_before + (self.dead_bytes - self._dead_before) * share
        self.dead_bytes -= freed
        self._dead_before = self.dead_bytes

    def _next_day(self) -> None:
        """Merge the rest of the day into one part, and drop the oldest day."""
        left = sum(self._small.counts), sum(self._small.sizes)
        if left[0] > 1:
            self._merge((1, *left))
        self._small.clear()
        self.parts_of_day.append(0.0)
        if len(self.parts_of_day) > self._inputs.keep_days:
            self._open()
            self._ask("drop", pages=self._pages())
            self.parts_of_day.pop(0)
            self.dead_bytes += self._load.events_per_second * DAY_S * self._inputs.event_bytes


def on_paper(
    load: Load, *, inputs: Inputs | None = None, prices: Prices | None = None, costs: Costs | None = None
) -> MonthlyCosts:
    """Compute the same in closed form. Each limit is reached exactly, and nothing remains at midnight."""
    inputs, costs = inputs or Inputs(), costs or read_costs()
    part_bytes, commits = load.part_bytes(inputs), MONTH_S / load.every_s
    limits = limits_of(part_bytes, load.part_bytes_max)
    month_bytes = load.events_per_second * MONTH_S * inputs.event_bytes
    # The output of each tier is the input of the next.
    outputs = [month_bytes / limit for limit in limits]
    merged = sum([commits * load.partitions, *outputs][: len(limits)])
    steps = MONTH_S / STEP_S
    runs = min(steps, sum(outputs) / load.partitions) if limits else 0.0
    per_run = min(commits / steps, merged / max(1.0, runs)) if limits else 0.0
    to_read = max(commits / steps, LOG_FILES_MIN / 2)
    stored = CLEANUP_S * 7 / 6 / load.every_s + to_read
    pages = max(1, math.ceil(stored / PAGE))
    looks = inputs.readers * MONTH_S / inputs.refresh_s
    cleanups, hours = MONTH_S / CLEANUP_S, MONTH_S / 3_600
    log_merges = hours if not limits or runs < steps / 2 else min(hours, runs / LOG_FILES_MIN)
    opens = (steps if limits else 0.0) + cleanups + log_merges + 30
    requests: dict[str, float] = defaultdict(float)

    def ask(operation: str, times: float, list_pages: float, **units: float) -> None:
        for kind, n in requests_of(costs, operation, **units).items():
            requests[kind] += times * n * (list_pages if kind == "LIST" else 1)

    ask("append", commits, 1, part=load.partitions)
    recent = Timing().late_publication_ms / 1_000 / load.every_s
    ask("refresh", looks, max(1, math.ceil(recent / PAGE)), log_file=commits / (looks / inputs.readers))
    ask("open", opens, pages, log_file=to_read)
    requests["PUT"] += opens
    if runs:
        ask("merge", runs, pages, group=sum(outputs) / runs, input=merged / runs)
    ask("merge_log", log_merges, pages)
    ask("cleanup", cleanups, pages, log_file=stored)
    ask("drop", 30, pages)
    requests["DELETE MANY"] += cleanups * (CLEANUP_S / load.every_s // PAGE)
    full = month_bytes / limits[-1] if limits else commits * load.partitions
    return _outcome(
        load,
        inputs,
        prices or Prices(),
        dict(requests),
        rewrites=float(len(limits)),
        live_parts=full * inputs.keep_days / 30,
        dead_bytes=(len(limits) * CLEANUP_S * 7 / 12 / DAY_S + 0.5 * (CLEANUP_S + 3_600) / DAY_S) * month_bytes / 30,
        stored_log_files=stored,
        log_files=max(to_read, per_run),
    )


def _outcome(
    load: Load,
    inputs: Inputs,
    prices: Prices,
    requests: Mapping[str, float],
    *,
    rewrites: float,
    live_parts: float,
    dead_bytes: float,
    stored_log_files: float,
    log_files: float,
) -> MonthlyCosts:
    bytes_per_day = load.events_per_second * DAY_S * inputs.event_bytes
    stored_bytes = bytes_per_day * inputs.keep_days + dead_bytes
    dollars = {kind: n * prices.of(kind) for kind, n in requests.items() if prices.of(kind)}
    return MonthlyCosts(
        requests=dict(sorted(requests.items())),
        dollars=dict(sorted(dollars.items())) | {"storage": stored_bytes / GB * prices.gb_month},
        commits_per_second=1 / load.every_s,
        batch_rows=load.events_per_second * load.every_s,
        part_bytes=load.part_bytes(inputs),
        bytes_per_day=bytes_per_day,
        rewrites=rewrites,
        live_parts=live_parts,
        stored_bytes=stored_bytes,
        stored_log_files=stored_log_files,
        log_files=log_files,
        open_s=live_parts * inputs.open_s_per_part,
        state_bytes=live_parts * inputs.state_bytes,
        insert_machines=load.events_per_second / inputs.insert_rows_s / inputs.busy,
        merge_machines=load.events_per_second * rewrites / inputs.merge_rows_s / inputs.busy,
    )


# ------------------------------------------------------------------------------------------------ by itself


def draw(outcomes: Mapping[str, MonthlyCosts], inputs: Inputs, prices: Prices, folder: Path) -> None:
    """Draw `scale-money.png`, the costs of a month by kind, and `scale-interval.png`, the costs by commit interval."""
    kinds = ("PUT", "LIST", "GET", "storage")
    names = list(outcomes)
    shares = [outcomes[name].dollars.get("storage", 0.0) / outcomes[name].total_dollars for name in names]
    figure, (panel,) = figure_of(
        f"Storage is {shares[0]:.0%} of the costs at {names[0]} events a second, and {shares[1]:.0%} at {names[1]}",
        height=3.6,
    )
    dollars = {kind: [max(0.01, outcome.dollars.get(kind, 0.0)) for outcome in outcomes.values()] for kind in kinds}
    for drawn in bars(panel, names, dollars):
        panel.bar_label(drawn, [number(bar.get_height()) for bar in drawn], fontsize=TEXT_SIZE - 1, color=INK)
    panel.set_yscale("log")
    panel.set_xlabel("events a second")
    panel.set_ylabel("dollars a month")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    with_grid(panel, "y")
    figure.legend(loc="outside lower center", **LEGEND, ncols=len(kinds))
    save(figure, folder / "scale-money.png")

    every = (0.5, 1, 2, 5, 10, 30, 60, 120, 300)
    months = {rate: [on_paper(Load(rate, s), inputs=inputs, prices=prices) for s in every] for rate in (1_000, 100_000)}
    lines = {rate: [m.total_dollars - m.dollars["storage"] for m in of_rate] for rate, of_rate in months.items()}
    least = min(line[every.index(1)] / line[every.index(60)] for line in lines.values())
    figure, (panel,) = figure_of(
        f"Requests cost {math.floor(least)} times as much with a commit a second as with one a minute", height=3.6
    )
    for (rate, line), colour in zip(lines.items(), SERIES, strict=False):
        panel.plot(
            every, line, color=colour, linewidth=1.8, marker="o", markersize=4, label=f"{rate:,} events a second"
        )
    for set_scale, axis in ((panel.set_xscale, panel.xaxis), (panel.set_yscale, panel.yaxis)):
        set_scale("log")
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    panel.set_xlabel("seconds between commits")
    panel.set_ylabel("dollars of requests a month")
    with_grid(panel)
    panel.legend(loc="upper right", **LEGEND)
    save(figure, folder / "scale-interval.png")


def main(
    rate: Annotated[float | None, typer.Option(help="Events a second, instead of the default loads.")] = None,
    every: Annotated[float, typer.Option(help="With --rate: seconds between commits.")] = 30,
    partitions: Annotated[int, typer.Option(min=1, help="With --rate: partitions of each commit.")] = 1,
    part_bytes_max: Annotated[int, typer.Option(help="With --rate: bytes of a full part.")] = PART_BYTES_MAX,
    days: Annotated[int, typer.Option(min=1, help="Days to simulate.")] = YEAR_DAYS,
    keep_days: Annotated[int, typer.Option(min=1, help="Days after which a day is dropped.")] = Inputs().keep_days,
    event_bytes: Annotated[float, typer.Option(help="Bytes of an event in Parquet.")] = Inputs().event_bytes,
    insert_rows: Annotated[
        float, typer.Option(help="Inserted rows a second, on two processors.")
    ] = Inputs().insert_rows_s,
    merge_rows: Annotated[float, typer.Option(help="Merged rows a second, on two processors.")] = Inputs().merge_rows_s,
    readers: Annotated[int, typer.Option(min=0, help="Programs that refresh every minute.")] = Inputs().readers,
    put_price: Annotated[float, typer.Option(help="Dollars for 1,000 PUT or LIST.")] = 0.005,
    get_price: Annotated[float, typer.Option(help="Dollars for 1,000 GET or HEAD.")] = 0.0004,
    storage_price: Annotated[float, typer.Option(help="Dollars for a GB and month.")] = Prices().gb_month,
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Print the requests, bytes and costs of a month, simulated and in closed form."""
    inputs = replace(
        Inputs(),
        event_bytes=event_bytes,
        insert_rows_s=insert_rows,
        merge_rows_s=merge_rows,
        keep_days=keep_days,
        readers=max(readers, 1),
    )
    prices = Prices(put_price / 1_000, get_price / 1_000, storage_price)
    loads = LOADS if rate is None else {f"{rate:,.0f}": Load(rate, every, partitions, part_bytes_max)}
    outcomes = {name: simulate(load, days=days, inputs=inputs, prices=prices) for name, load in loads.items()}
    paper = {name: on_paper(load, inputs=inputs, prices=prices) for name, load in loads.items()}
    if as_json:
        both = {name: {"simulated": asdict(outcomes[name]), "on paper": asdict(paper[name])} for name in loads}
        typer.echo(json.dumps(both, indent=2))
    else:
        Console().print(_grid(outcomes, paper))
    if plots is not None:
        draw(outcomes, inputs, prices, plots)


def _grid(outcomes: Mapping[str, MonthlyCosts], paper: Mapping[str, MonthlyCosts]) -> Grid:
    """Return a table with a column for each load. Requests and dollars in brackets are those in closed form."""
    grid = Grid("30 days, simulated (on paper); events a second:", box=SIMPLE_HEAD)
    for name in outcomes:
        grid.add_column(name, justify="right")
    for title, value_of in _FIGURES.items():
        grid.add_row(title, *(value_of(o) for o in outcomes.values()))
    for kind in next(iter(outcomes.values())).requests:
        grid.add_row(
            f"requests: {kind}", *(_both(outcomes[n].requests, paper[n].requests, kind, ",.0f") for n in outcomes)
        )
    for kind in next(iter(outcomes.values())).dollars:
        grid.add_row(
            f"dollars: {kind}", *(_both(outcomes[n].dollars, paper[n].dollars, kind, ",.2f") for n in outcomes)
        )
    return grid


def _both(simulated: Mapping[str, float], paper: Mapping[str, float], kind: str, form: str) -> str:
    return f"{simulated.get(kind, 0.0):{form}} ({paper.get(kind, 0.0):{form}})"


_FIGURES: Mapping[str, Callable[[MonthlyCosts], str]] = {
    "commits a second": lambda o: f"{o.commits_per_second:.3g}",
    "rows of a commit": lambda o: f"{o.batch_rows:,.0f}",
    "GB a day": lambda o: f"{o.bytes_per_day / GB:,.1f}",
    "GB stored": lambda o: f"{o.stored_bytes / GB:,.0f}",
    "live parts": lambda o: f"{o.live_parts:,.0f}",
    "each byte is written again, times": lambda o: f"{o.rewrites:.2f}",
    "log files to read, and stored": lambda o: f"{o.log_files:,.0f}, {o.stored_log_files:,.0f}",
    "opening: seconds, MB of memory": lambda o: f"{o.open_s:.2f}, {o.state_bytes / 1e6:,.1f}",
    "machines of two processors: insert, merge": lambda o: f"{o.insert_machines:.2f}, {o.merge_machines:.2f}",
}


if __name__ == "__main__":
    typer.run(main)
