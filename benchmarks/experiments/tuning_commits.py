"""Experiments with commits: their number and partitions, statistics in the log, and merges of the log."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.experiments.lab import FULL_SCAN, PROCESSOR, SECONDS, UNSYNCED, Lab, counted, million_bytes, timed
from benchmarks.harness.figures import Finding
from icedb import Table

__all__ = ["batches", "depths", "divisions", "partitions", "statistics"]

BATCH_ROWS = {"1": 1, "100": 100, "10k": 10_000, "100k": 100_000, "1M": 1_000_000}
PARTITIONS = (1, 10, 30, 100, 1_000)
ROWS_PER_PARTITION_MIN = 10
DEPTHS = (10, 100, 1_000, 5_000)
ROWS_PER_COMMIT = 100
NOT_MERGED, LOG_MERGED, MERGED = STATES = ("not merged", "log merged", "merged")
# Deeper logs would take too long in S3 with latency.
DEPTH_IN_S3_MAX = 1_000
# The rows of each commit of the experiment with statistics, and the factor by which it has fewer commits than the
# longest log.
STATISTICS_ROWS = 600
STATISTICS_FEWER = 125


# ------------------------------------------------------------------------------------------ a batch


def batches(lab: Lab) -> list[Finding]:
    """Measure the time of a row by the size of the batch."""
    sizes = {name: rows for name, rows in BATCH_ROWS.items() if rows <= lab.rows}
    works = {}
    for name, rows in sizes.items():
        table = lab.table(f"batch-{name}", sort_by=["user_id", "ts"])
        works[name] = partial(_insert, table, lab.events.slice(0, rows))
    [took] = [f for f in lab.turns("batch", "inserting", works, same_answers=False) if f.unit == PROCESSOR]
    values = {way.name: [v * 1_000 / sizes[way.name] for v in way.values] for way in took.ways}
    return [timed("batch", "inserting", "processor µs a row", values)]


def _insert(table: Table, data: pa.Table) -> object:
    return table.insert(data).rows


def partitions(lab: Lab) -> list[Finding]:
    """Insert one batch into a growing number of partitions, and query all rows."""
    rows = lab.some
    numbers = [n for n in PARTITIONS if n * ROWS_PER_PARTITION_MIN <= len(rows)]

    def made(what: str, n: int) -> Table:
        by = f"hash(session_id) % {n} AS bucket"
        return lab.table(f"partitions-{what}-{n}", partition_by=[by], sort_by=["user_id"])

    inserts = {str(n): partial(_insert, made("inserting", n), rows) for n in numbers}
    tables = {str(n): made("asking", n) for n in numbers}
    for table in tables.values():
        table.insert(rows)
    snapshots = {name: table.snapshot() for name, table in tables.items()}
    return [
        counted("partitions", "parts", "", {name: len(s.parts) for name, s in snapshots.items()}),
        counted("partitions", "size", "MB", {name: s.bytes / 1e6 for name, s in snapshots.items()}),
        *lab.turns("partitions", "inserting", inserts),
        *lab.query("partitions", "all rows", tables, FULL_SCAN),
    ]


def divisions(lab: Lab) -> list[Finding]:
    """Partition a month of events by month, day and hour."""
    tables = {
        name: lab.table(f"by-{name}", partition_by=[f"strftime(ts, '{text}') AS p"], sort_by=["user_id", "ts"])
        for name, text in lab.PARTITION_FORMATS.items()
    }
    for table in tables.values():
        table.insert(lab.some)
    day = "ts >= '2026-10-09 00:00:00Z' AND ts < '2026-10-10 00:00:00Z'"
    return [
        counted("divisions", "parts", "", {name: len(t.snapshot().parts) for name, t in tables.items()}),
        counted("divisions", "size", "MB", {name: million_bytes(t) for name, t in tables.items()}),
        *lab.query("divisions", "all rows", tables, FULL_SCAN),
        *lab.query("divisions", "one user", tables, lab.of_one_user),
        *lab.query("divisions", "one day", tables, f"SELECT count(*), sum(amount), max(page) FROM t WHERE {day}"),
    ]


# ------------------------------------------------------------------------------------------ the log


def statistics(lab: Lab) -> list[Finding]:
    """Compare statistics in the log of no column, one, two and all. A commit has rows of some users only."""
    commits = max(2, lab.commits // STATISTICS_FEWER)
    rows = lab.events.slice(0, commits * STATISTICS_ROWS).sort_by("user_id")
    step = -(-len(rows) // commits)
    columns = ["user_id", "ts", *(c for c in rows.schema.names if c not in ("user_id", "ts"))]
    tables, per_part = {}, {}
    for name, sort_by in (("none", []), ("1", columns[:1]), ("2", columns[:2]), ("all 10", columns)):
        lab.on_step(f"statistics of {name}")
        tables[name] = lab.table(f"statistics-{name}", partition_by=["CAST(ts AS DATE) AS day"], sort_by=sort_by)
        for first in range(0, len(rows), step):
            tables[name].insert(rows.slice(first, step))
        tables[name].merge_log()
        log = max(file.stat().st_size for file in Path(tables[name].uri, "_log").iterdir())
        per_part[name] = log / len(tables[name].snapshot().parts)
    findings = [
        counted("statistics", "the log", "bytes a part", per_part),
        *lab.turns("statistics", "opening", {name: partial(_open, table.uri) for name, table in tables.items()}),
    ]
    conditions = {
        "all": "true",
        "one user": f"user_id = {lab.user}",
        "one hour": "ts BETWEEN '2026-10-09 12:00:00Z' AND '2026-10-09 13:00:00Z'",
        "one kind of event": "event = 'checkout'",
        "one session": f"session_id = '{rows['session_id'][0]}'",
    }
    for title, condition in conditions.items():
        opened = {name: len(table.snapshot().files(condition)) for name, table in tables.items()}
        findings.append(counted("statistics", f"{title}: opened", "parts", opened))
    return findings


def _open(uri: str) -> object:
    return Table.open(uri, storage_options=UNSYNCED).snapshot().rows


def depths(lab: Lab) -> list[Finding]:
    """Open and query a table after a growing number of commits: unmerged, with merged log, with merged parts too."""
    growing = lab.table("depths", sort_by=["user_id", "ts"])
    numbers = [n for n in DEPTHS if n <= lab.commits]
    tables: dict[int, dict[str, Table]] = {}
    for number in range(1, max(numbers) + 1):
        growing.insert(lab.events.slice(number * ROWS_PER_COMMIT % (lab.rows - ROWS_PER_COMMIT), ROWS_PER_COMMIT))
        if number in numbers:
            lab.on_step(f"merging {number:,} commits")
            tables[number] = {state: _copied(lab, growing, number, state) for state in STATES}
    findings = []
    for what, work in (("opening", _open), ("all rows", _first_query)):
        values: dict[tuple[str, str], dict[str, Sequence[float]]] = {}
        for number, of_number in tables.items():
            works = {state: partial(work, table.uri) for state, table in of_number.items()}
            for finding in lab.turns("commits", f"{what} after {number:,} commits", works):
                for way in finding.ways:
                    values.setdefault((way.name, finding.unit), {})[f"{number:,}"] = way.values
        findings += [timed("commits", f"{what}, {state}", unit, measured) for (state, unit), measured in values.items()]
    return findings + _depths_in_s3(lab, [n for n in numbers if n <= DEPTH_IN_S3_MAX])


def _copied(lab: Lab, table: Table, number: int, state: str) -> Table:
    target = lab.folder / "tables" / f"depth-{number}-{state.replace(' ', '-')}"
    shutil.copytree(table.uri, target)
    copied = Table.open(target, storage_options=UNSYNCED)
    if state == MERGED:
        copied.merge()
    if state != NOT_MERGED:
        copied.merge_log()
    return copied


def _first_query(uri: str) -> object:
    """Open the table and query all rows."""
    return Table.open(uri, storage_options=UNSYNCED).query(FULL_SCAN).fetchall()


def _depths_in_s3(lab: Lab, numbers: Sequence[int]) -> list[Finding]:
    """Measure while the table grows, then after a merge of the log, then after a merge of the parts."""
    table = lab.store.create("depths", sort_by=["user_id", "ts"])
    open_it = partial(lambda: lab.store.open("depths").snapshot().rows)
    findings: dict[str, dict[str, tuple[Sequence[float], int]]] = {}

    def look(state: str, name: str) -> None:
        [seconds] = [f for f in lab.turns("commits", f"{state}, S3", {name: open_it}) if f.unit == SECONDS]
        findings.setdefault(state, {})[name] = seconds.ways[0].values, lab.store.requests(open_it)

    for number in range(1, max(numbers) + 1):
        table.insert(lab.events.slice(number % (lab.rows - ROWS_PER_COMMIT), ROWS_PER_COMMIT))
        if number in numbers:
            look(NOT_MERGED, f"{number:,}")
    table.merge_log()
    look(LOG_MERGED, f"{max(numbers):,}")
    table.merge()
    table.merge_log()
    look(MERGED, f"{max(numbers):,}")
    seconds = [
        timed("commits", f"opening, {state}, S3", SECONDS, {name: measured[0] for name, measured in of_state.items()})
        for state, of_state in findings.items()
    ]
    requests = [
        counted(
            "commits", f"opening, {state}, S3", "requests", {name: measured[1] for name, measured in of_state.items()}
        )
        for state, of_state in findings.items()
    ]
    return seconds + requests
