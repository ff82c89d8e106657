"""Spark with IceDB beside Spark alone and DuckDB alone: writing, reading, merging.

    python -m benchmarks.spark --rows 10000000 --rounds 3
    python -m benchmarks.spark --only write --json write.json

Spark runs as `local[2]` on this machine, and tables are in a local folder. No way syncs files to disk: Spark does not,
so our tables have `fsync=false`. All files are in the page cache. The cases of a group take turns after a warm-up
round, and the result is the median of the rounds. Each result is checked.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import duckdb
import pyspark
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

import icedb.spark
from benchmarks.harness.events import PARTITION_BY, SORT_BY, Events, make_events
from benchmarks.harness.rounds import Case, Footprint, Result, Work, run_rounds
from icedb import Table
from icedb.spark.java import prepare_environment

__all__ = ["GROUPS", "measure"]

Group = Literal["write", "read", "merge"]
GROUPS: tuple[Group, ...] = ("write", "read", "merge")

UNSYNCED = {"fsync": "false"}
# Batches of a table before its merge.
BATCHES = 6
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bench:
    """The environment of all cases. `work` is an empty folder."""

    spark: SparkSession
    events: Events
    work: Path

    def frame(self) -> DataFrame:
        """The events as a Spark data frame."""
        return self.spark.read.parquet(str(self.events.folder))

    def check(self, rows: int) -> None:
        """Raise AssertionError unless the result is right."""
        if rows != self.events.rows:
            raise AssertionError(f"{rows:,} rows instead of {self.events.rows:,}")

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a new address, which is emptied afterwards."""
        path = self.work / "case"
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def new_table(self, path: Path) -> Table:
        """Create an empty table."""
        return Table.create(path, partition_by=[PARTITION_BY], sort_by=SORT_BY, storage_options=UNSYNCED)


# ------------------------------------------------------------------------------------------ write


def write_cases(bench: Bench) -> list[Case]:
    """Return cases that write unsorted rows as sorted, zstd-compressed Parquet files, a folder for each day."""
    return [
        Case("write", "Spark alone", partial(_written_by, bench, _spark_alone)),
        Case("write", "icedb, not distributed", partial(_written_as_table, bench, "none"), goal=0.65),
        Case("write", "icedb, distributed", partial(_written_as_table, bench, "partition"), goal=0.85),
        Case("write", "DuckDB alone", partial(_written_by, bench, _duckdb_alone)),
    ]


@contextmanager
def _written_by(bench: Bench, write: Callable[[Bench, Path], None]) -> Iterator[Work]:
    with bench.folder() as path:

        def look() -> Footprint:
            bench.check(_count(f"{path}/*/*.parquet"))
            return _footprint(path)

        def work() -> Callable[[], Footprint]:
            write(bench, path)
            return look

        yield work


def _spark_alone(bench: Bench, path: Path) -> None:
    by_day = bench.frame().withColumn("day", F.to_date("ts"))
    ordered = by_day.repartition("day").sortWithinPartitions("day", *SORT_BY)
    ordered.write.partitionBy("day").option("compression", "zstd").parquet(str(path))


def _duckdb_alone(bench: Bench, path: Path) -> None:
    with _duckdb() as con:
        con.execute(
            f"COPY (SELECT *, {PARTITION_BY} FROM '{bench.events.glob}' ORDER BY day, {', '.join(SORT_BY)}) "
            f"TO '{path}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day))"
        )


@contextmanager
def _written_as_table(bench: Bench, distribution: Literal["none", "partition"]) -> Iterator[Work]:
    with bench.folder() as path:
        table = bench.new_table(path)

        def work() -> Callable[[], Footprint]:
            commit = icedb.spark.write(bench.frame(), path, distribution=distribution, storage_options=UNSYNCED)
            bench.check(commit.rows)
            return lambda: _live(table)

        yield work


# ------------------------------------------------------------------------------------------ read


def read_cases(bench: Bench) -> list[Case]:
    """Return cases that read the same files as a plain folder, and as the live parts of a table."""
    path, plain = bench.work / "read", bench.work / "plain"
    table = bench.new_table(path)
    icedb.spark.write(bench.frame(), path, distribution="partition", storage_options=UNSYNCED)
    for part in table.snapshot().parts:
        link = plain / part.partition / Path(part.path).name
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(part.path, link)
    ways: dict[str, Callable[[], DataFrame]] = {
        "spark.read.parquet": lambda: bench.spark.read.parquet(str(plain)),
        "icedb.spark.read": lambda: icedb.spark.read(bench.spark, path, storage_options=UNSYNCED),
        "format('icedb')": lambda: bench.spark.read.format("icedb").options(**UNSYNCED).load(str(path)),
    }
    questions: dict[str, Callable[[DataFrame], int | None]] = {"read, aggregated": _aggregate, "read, whole": _scan}
    return [
        Case(group, name, partial(_read, bench, frame, ask), goal=1.05 if name == "icedb.spark.read" else None)
        for group, ask in questions.items()
        for name, frame in ways.items()
    ]


@contextmanager
def _read(bench: Bench, frame: Callable[[], DataFrame], ask: Callable[[DataFrame], int | None]) -> Iterator[Work]:
    def work() -> Callable[[], None]:
        rows = ask(frame())
        if rows is not None:
            bench.check(rows)
        return lambda: None

    yield work


def _aggregate(frame: DataFrame) -> int:
    by = frame.groupBy("event", "country").agg(F.count("*").alias("rows"), F.sum("amount"), F.max("ts"))
    return sum(row["rows"] for row in by.collect())


def _scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# ------------------------------------------------------------------------------------------ merge


def merge_cases(bench: Bench) -> list[Case]:
    """Return cases that merge a table of several batches of all days into one part for each day."""
    from icedb.spark import SparkEngine

    original = bench.work / "batches"
    table = bench.new_table(original)
    for number in range(BATCHES):
        table.insert([str(f) for f in sorted(bench.events.folder.glob("*.parquet"))[number::BATCHES]])
    engines: dict[str, Callable[[], dict[str, Any]]] = {
        "on Spark": lambda: {"engine": SparkEngine(bench.spark)},
        "in this process": dict,
    }
    return [
        Case("merge", "DuckDB alone", partial(_merged_by_duckdb, bench, table)),
        *(
            Case("merge", f"icedb, {name}", partial(_merged, bench, original, arguments), goal=goal)
            for (name, arguments), goal in zip(engines.items(), (1.5, None), strict=True)
        ),
    ]


@contextmanager
def _merged_by_duckdb(bench: Bench, table: Table) -> Iterator[Work]:
    groups: dict[str, list[str]] = {}
    for part in table.snapshot().parts:
        groups.setdefault(part.partition, []).append(part.path)
    with bench.folder() as path:

        def work() -> Callable[[], Footprint]:
            with _duckdb() as con:
                for partition, files in groups.items():
                    (path / partition).mkdir(parents=True)
                    con.execute(
                        f"COPY (SELECT * FROM read_parquet({files}, hive_partitioning = false) ORDER BY "
                        f"{', '.join(SORT_BY)}) TO '{path / partition / '0.parquet'}' "
                        "(FORMAT parquet, COMPRESSION zstd)"
                    )
            return look

        def look() -> Footprint:
            bench.check(_count(f"{path}/*/*.parquet"))
            return _footprint(path)

        yield work


@contextmanager
def _merged(bench: Bench, original: Path, arguments: Callable[[], dict[str, Any]]) -> Iterator[Work]:
    with bench.folder() as path:
        shutil.copytree(original, path, copy_function=os.link)  # files are never changed in place
        table = Table.open(path, storage_options=UNSYNCED)

        def work() -> Callable[[], Footprint]:
            report = table.merge(**arguments())
            if report.remaining:
                raise AssertionError(f"a merge of {report.merged_parts} parts left some for the next")
            return look

        def look() -> Footprint:
            bench.check(table.snapshot().rows or 0)
            return _live(table)

        yield work


# ------------------------------------------------------------------------------------------ footprint


@contextmanager
def _duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """Set as many threads as Spark has."""
    with duckdb.connect(config={"threads": 2}) as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        yield con


def _count(glob: str) -> int:
    with _duckdb() as con:
        [(rows,)] = con.execute(f"SELECT count(*) FROM '{glob}'").fetchall()
    return int(rows)


def _live(table: Table) -> Footprint:
    parts = table.snapshot().parts
    return Footprint(len(parts), sum(p.bytes for p in parts))


def _footprint(path: Path) -> Footprint:
    files = list(path.rglob("*.parquet"))
    return Footprint(len(files), sum(f.stat().st_size for f in files))


# ------------------------------------------------------------------------------------------ the run

_CASES: dict[Group, Callable[[Bench], list[Case]]] = {"write": write_cases, "read": read_cases, "merge": merge_cases}


def measure(
    *,
    rows: int,
    rounds: int,
    groups: Sequence[Group] = GROUPS,
    cache: Path | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run the groups. The folder `cache` keeps the events for the next run, and has the tables of this one."""
    cache = cache or Path(tempfile.gettempdir(), "icedb-benchmarks")
    on_step(f"generating {rows:,} events, unless {cache} has them")
    events = make_events(cache, rows)
    with tempfile.TemporaryDirectory(prefix="run-", dir=cache) as folder, _session(Path(folder)) as spark:
        bench = Bench(spark, events, Path(folder))
        results = []
        for group in groups:
            on_step(f"{group}: preparing")
            results += run_rounds(_CASES[group](bench), rounds, on_step=on_step)
        return results


def _session(folder: Path) -> AbstractContextManager[SparkSession]:
    prepare_environment()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",  # Spark's own sort must not spill
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.files.maxPartitionBytes": str(32 * MIB),  # eight tasks for all ways: two processors, no straggler
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("icedb-benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()  # a session is a context that stops it


def ratio(result: Result, results: Sequence[Result]) -> float:
    """Return the ratio to the first case of the group."""
    return result.median_seconds / next(r for r in results if r.case.group == result.case.group).median_seconds


def as_grid(results: Sequence[Result], title: str) -> Grid:
    """Return the results as a table. `worker` is the peak resident memory of a Python worker in MiB."""
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("case", "seconds", "ratio", "goal", "files", "MiB", "worker"):
        grid.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    group = ""
    for result in results:
        case, left, ratio_to_best = result.case, result.footprint, ratio(result, results)
        if case.group != group:
            group = case.group
            grid.add_section()
            grid.add_row(f"[bold]{group}")
        grid.add_row(
            f"  {case.name}",
            *(f"{result.median_seconds:.2f}", f"{ratio_to_best:.2f}"),
            "" if case.goal is None else f"{case.goal:.2f} {'met' if ratio_to_best <= case.goal else 'missed'}",
            *(("", "") if left is None else (f"{left.files:,}", f"{left.bytes / MIB:,.1f}")),
            f"{result.worker_bytes / MIB:,.0f}" if result.worker_bytes else "",
        )
    return grid


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the results as JSON."""
    return [
        {
            "group": r.case.group,
            "case": r.case.name,
            "seconds": r.seconds,
            "median_seconds": r.median_seconds,
            "ratio": ratio(r, results),
            "goal": r.case.goal,
            "files": r.footprint.files if r.footprint else None,
            "bytes": r.footprint.bytes if r.footprint else None,
            "worker_bytes_max": r.worker_bytes,
        }
        for r in results
    ]


def main(
    rows: Annotated[int, typer.Option(min=1000, help="Number of events.")] = 10_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after a warm-up round.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure this group: write, read or merge. May be repeated.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for events and tables, on a fast local disk.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results as JSON.")] = None,
) -> None:
    """Measure writing, reading and merging on Spark."""
    console = Console()
    groups = [g for g in GROUPS if only is None or g in only]
    if unknown := set(only or ()) - set(GROUPS):
        raise typer.BadParameter(f"{sorted(unknown)}: give {', '.join(GROUPS)}")
    with console.status("starting Spark") as status:
        results = measure(rows=rows, rounds=rounds, groups=groups, cache=folder, on_step=status.update)
    versions = f"icedb on Spark {pyspark.__version__}, DuckDB {duckdb.__version__}, {os.cpu_count()} processors"
    console.print(as_grid(results, f"{rows:,} events, median of {rounds}; {versions}"))
    if json_file is not None:
        json_file.write_text(json.dumps({"rows": rows, "rounds": rounds, "results": as_json(results)}, indent=2))


if __name__ == "__main__":
    typer.run(main)
