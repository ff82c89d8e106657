"""The latency of a Spark stream into a table that is merged and cleaned up at the same time.

    python -m benchmarks.stream --minutes 20 --speedup 4 --plot docs/images/stream-latency.png

Files of events arrive in a folder at a steady rate, and a Spark stream writes them to a table. The latency of a file is
the time from its renaming into the folder until a polling reader has its rows in a snapshot. Spark runs as `local[2]`
on this machine. The table is in a local folder, and each part and log file is synced to disk. A first file warms up and
is not measured. At the end all rows are counted.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pyspark
import typer
from pyspark.sql import SparkSession
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.harness.figures import percentile
from benchmarks.harness.plots import LEGEND, figure_of, save
from icedb import Table, Timing
from icedb.spark.java import prepare_environment
from icedb.util.plot_style import BLUE, INK, ORANGE, RED, SILVER, TEXT_SIZE, title, with_grid

__all__ = ["StreamResults", "StreamRun", "draw", "measure"]

# Short, so that cleanup deletes objects within minutes.
TIMING = Timing(max_skew_ms=1_000, commit_timeout_ms=5_000, grace_ms=20_000)
# The interval of the reader's polls, which is the resolution of latencies.
POLL_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
# Time for the stream to process the last arrival.
PATIENCE_SECONDS = 120
PERCENTILES = (50, 90, 99, 100)
WARM_UP = -1
SCHEMA = "file long, ts timestamp, user_id long, event string, amount double"


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The arrivals, and the maintenance of the table. `every` and `minutes` are times of events."""

    minutes: float
    every: float
    rows: int
    speedup: float
    maintain_every: float

    @property
    def files(self) -> int:
        """The number of measured files."""
        return max(1, round(self.minutes * 60 / self.every))

    @property
    def pause(self) -> float:
        """The real seconds between two arrivals."""
        return self.every / self.speedup


@dataclass(frozen=True, slots=True)
class Sample:
    """The table at a time: real seconds since the first arrival, live parts, stored log files."""

    second: float
    parts: int
    log_files: int


@dataclass(slots=True)
class StreamResults:
    """The times of a run in seconds, by one clock, and the files by number."""

    plan: StreamRun
    arrived: dict[int, float] = field(default_factory=dict)
    visible: dict[int, float] = field(default_factory=dict)
    #: Clock, live parts, log files.
    readings: list[tuple[float, int, int]] = field(default_factory=list)
    maintained: list[float] = field(default_factory=list)

    @property
    def latencies(self) -> list[float]:
        """The latencies of the files, in the order of their arrival."""
        return [self.visible[n] - self.arrived[n] for n in range(self.plan.files)]

    @property
    def samples(self) -> list[Sample]:
        """The table from the first arrival to the last."""
        first, last = self.arrived[0], self.arrived[self.plan.files - 1]
        return [Sample(at - first, parts, logs) for at, parts, logs in self.readings if first <= at <= last]

    def minute(self, number: int) -> float:
        """Return the arrival of a file in the events' time."""
        return number * self.plan.every / 60


# ------------------------------------------------------------------------------------------ concurrent work


def measure(plan: StreamRun, folder: Path) -> StreamResults:
    """Measure the latencies of files that arrive in an empty folder. Raises AssertionError for wrong rows."""
    measured, over = StreamResults(plan), threading.Event()
    staged, files = folder / "staged", folder / "files"
    files.mkdir()
    _make_files(plan, staged)
    path = folder / "table"
    table = Table.create(
        path, partition_by=["date_part('minute', ts) // 5 AS five_minutes"], sort_by=["event", "ts"], timing=TIMING
    )
    with _session(folder) as spark, _stream(spark, files, path, folder / "checkpoint"), ThreadPoolExecutor() as pool:
        try:
            helpers = [
                pool.submit(_watch, Table.open(path), measured, over),
                pool.submit(_maintain, Table.open(path), measured, over),
            ]
            _arrive(measured, WARM_UP, staged, files)
            _await_all(measured, [WARM_UP], helpers)
            started = time.monotonic()
            for number in range(plan.files):
                over.wait(max(0.0, started + number * plan.pause - time.monotonic()))
                _arrive(measured, number, staged, files)
            _await_all(measured, range(plan.files), helpers)
        finally:
            over.set()
        for helper in helpers:
            helper.result()
    _check(table, plan)
    return measured


def _make_files(plan: StreamRun, staged: Path) -> None:
    """Write a file for each number, with events spread over its share of time."""
    staged.mkdir()
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        for number in range(WARM_UP, plan.files):
            first_ms = int(max(0, number) * plan.every * 1000)
            con.execute(
                f"""
                COPY (
                    SELECT {number}::BIGINT AS file,
                        TIMESTAMPTZ '2026-11-01 12:00:00+00'
                            + to_milliseconds({first_ms} + (i * {plan.every * 1000} // {plan.rows})::BIGINT) AS ts,
                        (hash(i, {number}, 1) % 100000)::BIGINT AS user_id,
                        ['view', 'click', 'search', 'purchase'][1 + (hash(i, {number}, 2) % 4)::BIGINT] AS event,
                        (hash(i, {number}, 3) % 10000) / 100 AS amount
                    FROM range({plan.rows}) r(i)
                ) TO '{_name(staged, number)}' (FORMAT parquet)
                """
            )


def _name(folder: Path, number: int) -> Path:
    return folder / f"{number - WARM_UP:06}.parquet"


def _arrive(measured: StreamResults, number: int, staged: Path, files: Path) -> None:
    _name(staged, number).rename(_name(files, number))
    measured.arrived[number] = time.monotonic()


@contextmanager
def _stream(spark: SparkSession, files: Path, path: Path, checkpoint: Path) -> Iterator[None]:
    source = spark.readStream.schema(SCHEMA).parquet(str(files))
    query = source.writeStream.format("icedb").option("checkpointLocation", str(checkpoint)).start(str(path))
    try:
        yield
        if error := query.exception():
            raise error
    finally:
        query.stop()


def _watch(table: Table, measured: StreamResults, over: threading.Event) -> None:
    """Poll snapshots, and record the files of new parts."""
    read_keys: set[str] = set()
    with duckdb.connect(config={"threads": 1}) as con:
        while not over.wait(POLL_SECONDS):
            snapshot = table.snapshot()
            now = time.monotonic()
            new = [part for part in snapshot.parts if part.key not in read_keys]
            read_keys.update(part.key for part in new)
            query = "SELECT DISTINCT file FROM read_parquet(?, hive_partitioning = false)"
            for (number,) in con.execute(query, [[p.path for p in new]]).fetchall() if new else []:
                measured.visible.setdefault(number, now)
            if not measured.readings or now - measured.readings[-1][0] >= SAMPLE_SECONDS:
                log_files = len(table.handle.store.list(table.handle.keys.log_prefix))
                measured.readings.append((now, len(snapshot.parts), log_files))


def _maintain(table: Table, measured: StreamResults, over: threading.Event) -> None:
    while not over.wait(measured.plan.maintain_every):
        table.merge()
        table.merge_log()
        table.cleanup()
        measured.maintained.append(time.monotonic())


def _await_all(measured: StreamResults, numbers: Sequence[int], helpers: Sequence[Future[None]]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while missing := [n for n in numbers if n not in measured.visible]:
        for helper in helpers:
            if helper.done():
                helper.result()  # raises: they only end by an error
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{len(missing)} of {len(numbers)} files are not in the table, the first: {missing[0]}"
            )
        time.sleep(POLL_SECONDS)


def _check(table: Table, plan: StreamRun) -> None:
    """Raise AssertionError unless the table has the right rows."""
    rows = table.query("SELECT count(*), count(DISTINCT file) FROM t").fetchall()
    expected = [((plan.files + 1) * plan.rows, plan.files + 1)]
    if rows != expected:
        raise AssertionError(f"rows and files are {rows} instead of {expected}")
    if problems := table.verify(deep=True).problems:
        raise AssertionError(f"the table is damaged: {problems}")


def _session(folder: Path) -> SparkSession:
    prepare_environment()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("icedb-stream-benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()  # a session is a context that stops it


# ------------------------------------------------------------------------------------------ output


def draw(measured: StreamResults, target: Path) -> None:
    """Draw the latencies over time and by percentile, and below them the parts and log files of the table."""
    plan, latencies = measured.plan, measured.latencies
    minutes = [measured.minute(n) for n in range(plan.files)]
    figure, (over_time, spread, counts, text_panel) = figure_of(
        f"Half of the files can be read {percentile(latencies, 50):.2f} s after they arrive, and 99 % after "
        f"{percentile(latencies, 99):.2f} s",
        height=5.2, rows=2, columns=2, width_ratios=(3, 1), height_ratios=(3, 2), sharex="col", sharey="row",
    )  # fmt: skip
    over_time.scatter(minutes, latencies, s=8, color=SILVER, linewidths=0, label="one file")
    whole = sorted({int(m) for m in minutes})
    grouped = {w: [v for m, v in zip(minutes, latencies, strict=True) if int(m) == w] for w in whole}
    for percent, colour, name in ((50, BLUE, "median of a minute"), (90, ORANGE, "90th percentile of a minute")):
        line = [percentile(grouped[w], percent) for w in whole]
        over_time.plot([w + 0.5 for w in whole], line, color=colour, linewidth=1.8, label=name)
    over_time.set_ylabel("seconds from a file's arrival\nuntil its rows can be read")
    over_time.set_ylim(bottom=0)

    percents = [100 * (n + 1) / len(latencies) for n in range(len(latencies))]
    spread.plot(percents, sorted(latencies), color=BLUE, linewidth=1.8)
    spread.plot(PERCENTILES, [percentile(latencies, p) for p in PERCENTILES], "o", color=RED, markersize=4)
    title(spread, "the same files, sorted")
    spread.tick_params(labelbottom=True)
    spread.set_xlabel("percent of the files")
    text_panel.set_axis_off()
    text_panel.text(
        0.5, 0.75, "\n".join(f"{as_word(p):>6} {percentile(latencies, p):5.2f} s" for p in PERCENTILES),
        family="monospace", fontsize=TEXT_SIZE, color=INK, ha="center", va="top", transform=text_panel.transAxes,
    )  # fmt: skip

    at = [s.second * plan.speedup / 60 for s in measured.samples]
    counts.plot(
        at, [s.log_files for s in measured.samples], color=ORANGE, linewidth=1.6, label="log files in the store"
    )
    counts.plot(at, [s.parts for s in measured.samples], color=BLUE, linewidth=1.6, label="live parts")
    counts.set_ylim(bottom=0)
    counts.set_ylabel("objects")
    counts.set_xlabel(
        f"minutes of the events' time, {plan.speedup:.3g} times as fast as real time; a file of {plan.rows:,} events\n"
        f"every {plan.pause:.3g} s of real time, merged and cleaned up every {plan.maintain_every:.3g} s"
    )
    for panel in (over_time, counts):
        panel.legend(loc="lower left", bbox_to_anchor=(0, 1), **LEGEND, ncols=3)
    for panel in (over_time, spread, counts):
        with_grid(panel)
    save(figure, target)


def as_word(percent: int) -> str:
    """Return the name of a percentile."""
    return {50: "median", 100: "max"}.get(percent, f"p{percent}")


def as_json(measured: StreamResults) -> dict[str, Any]:
    """Return the results as JSON."""
    latencies, samples = measured.latencies, measured.samples
    return {
        "files": measured.plan.files,
        "rows": measured.plan.files * measured.plan.rows,
        "seconds_between_files": measured.plan.pause,
        "maintained": len(measured.maintained),
        "percentiles": {str(p): percentile(latencies, p) for p in PERCENTILES},
        "latencies": latencies,
        "live_parts": [s.parts for s in samples],
        "log_files": [s.log_files for s in samples],
    }


def as_grid(measured: StreamResults, title: str) -> Grid:
    """Return the results as a table."""
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("", *map(as_word, PERCENTILES)):
        grid.add_column(name, justify="right" if name else "left", no_wrap=True)
    rows: dict[str, Sequence[float]] = {
        "seconds from arrival to visibility": measured.latencies,
        "live parts": [s.parts for s in measured.samples],
        "log files": [s.log_files for s in measured.samples],
    }
    for name, values in rows.items():
        grid.add_row(
            name, *(f"{percentile(values, p):.{0 if isinstance(values[0], int) else 2}f}" for p in PERCENTILES)
        )
    return grid


def main(
    minutes: Annotated[float, typer.Option(min=0.05, max=60, help="Minutes of the events' time.")] = 20,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds of the events' time in a file.")] = 5,
    rows: Annotated[int, typer.Option(min=1, help="Events in a file.")] = 5_000,
    speedup: Annotated[float, typer.Option(min=0.1, help="Factor by which the events' time is faster.")] = 4,
    maintain_every: Annotated[float, typer.Option(min=0.1, help="Real seconds between two merges.")] = 10,
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files, on a fast local disk.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for the plot. Needs matplotlib.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results as JSON.")] = None,
) -> None:
    """Measure the latency of a stream into a table."""
    plan = StreamRun(minutes, every, rows, speedup, maintain_every)
    console = Console()
    seconds = plan.files * plan.pause
    with (
        tempfile.TemporaryDirectory(prefix="icedb-stream-", dir=folder) as name,
        console.status(f"{plan.files} files arrive within {seconds:.0f} seconds"),
    ):
        measured = measure(plan, Path(name))
    versions = f"Spark {pyspark.__version__}, DuckDB {duckdb.__version__}, {os.cpu_count()} processors"
    console.print(
        as_grid(
            measured,
            f"{plan.files} files of {rows:,} events, {len(measured.maintained)} rounds of maintenance; {versions}",
        )
    )
    if plot is not None:
        draw(measured, plot)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(measured), indent=2))


if __name__ == "__main__":
    typer.run(main)
