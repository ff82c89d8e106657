"""Experiments with tables: maintenance, partitions, order, views, open handles, cold starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.experiments.lab import FULL_SCAN, PROCESSOR, Lab, bytes_read, check_same, counted, million_bytes, timed
from benchmarks.harness.figures import Finding
from icedb import Aggregating, Table

__all__ = ["cold", "maintenance", "opening", "orders", "partitions", "tables"]

ROWS_PER_COMMIT = 100
# Commits between two measurements of the maintained and the other table, and the number of measurements.
LOOK_EVERY = 50
LOOKS = 8
PARTITION_ROWS = 100_000
DEPTHS = (1, 10, 100, 300)
TYPED_ROWS = 10_000


# ------------------------------------------------------------------------------------------ maintenance


def maintenance(lab: Lab) -> list[Finding]:
    """Open and query two tables with small commits, of which one is merged and cleaned up."""
    states = ("left alone", f"merged and cleaned up every {LOOK_EVERY} commits")
    requests: dict[str, dict[str, float]] = {state: {} for state in states}
    stored: dict[str, dict[str, float]] = {state: {} for state in states}
    tables = {state: lab.store.create(f"kept-{n}", sort_by=["user_id", "ts"]) for n, state in enumerate(states)}
    looks = min(LOOKS, lab.commits // LOOK_EVERY)
    for number in range(1, looks * LOOK_EVERY + 1):
        rows = lab.events.slice(number * ROWS_PER_COMMIT % (lab.rows - ROWS_PER_COMMIT), ROWS_PER_COMMIT)
        for table in tables.values():
            table.insert(rows)
        if number % LOOK_EVERY == 0:
            lab.on_step(f"maintenance: {number} commits")
            answers: dict[str, object] = {}
            for n, (state, table) in enumerate(tables.items()):
                requests[state][str(number)] = lab.store.requests(partial(_first_query, lab, f"kept-{n}", answers))
                stored[state][str(number)] = _objects(table)
            check_same(f"after {number} commits", answers)
            kept = tables[states[1]]
            kept.merge()
            kept.merge_log()
            kept.cleanup(grace_ms=0, allow_short_grace=True)  # nothing else uses the table
    return [
        *(
            counted("maintenance", state, "requests of opening and one query", counts_by_way)
            for state, counts_by_way in requests.items()
        ),
        *(counted("maintenance", state, "objects stored", counts_by_way) for state, counts_by_way in stored.items()),
    ]


def _objects(table: Table) -> int:
    return len(table.handle.store.list(table.handle.keys.data_prefix.removesuffix("_data/")))


def _first_query(lab: Lab, name: str, answers: dict[str, object]) -> object:
    """Open the table and query all rows."""
    answers[name] = lab.store.open(name).query(FULL_SCAN).fetchall()
    return answers[name]


# ------------------------------------------------------------------------------------------ partitions


def partitions(lab: Lab) -> list[Finding]:
    """Insert a month of events in one batch, partitioned by month, day and hour."""
    rows = lab.events.slice(0, min(len(lab.events), PARTITION_ROWS))
    inserts, scans, sizes, log = {}, {}, {}, {}
    answers: dict[str, object] = {}
    for name, text in lab.PARTITION_FORMATS.items():
        lab.on_step(f"partitions by {name}")
        options = {"partition_by": [f"strftime(ts, '{text}') AS p"], "sort_by": ["user_id", "ts"]}
        made = lab.store.create(f"by-{name}", **options)
        table = lab.store.open(f"by-{name}")
        inserts[name] = lab.store.requests(partial(table.insert, rows))

        def ask(name: str = name, table: Table = table) -> None:
            answers[name] = table.query(FULL_SCAN).fetchall()

        scans[name] = lab.store.requests(ask)
        parts = made.snapshot().parts
        sizes[name] = sum(part.bytes for part in parts) / len(parts) / 1e3
        log[name] = sum(o.bytes for o in made.handle.store.list(made.handle.keys.log_prefix)) / 1e3
    check_same("all rows", answers)
    return [
        counted("partitions", "the insert", "requests to S3", inserts),
        counted("partitions", "a query of all rows", "requests to S3", scans),
        counted("partitions", "mean size", "kB of a part", sizes),
        counted("partitions", "size", "kB of the log", log),
    ]


# ------------------------------------------------------------------------------------------ order


def orders(lab: Lab) -> list[Finding]:
    """Measure the bytes that selective queries read of one part in four orders."""
    tables = {name: lab.table(f"order-{name}", sort_by=order) for name, order in lab.ORDERS.items()}
    for name, table in tables.items():
        lab.on_step(f"sorted by {name}")
        table.insert(lab.events)
    queries = {"one user": lab.of_one_user, "one kind of event": lab.OF_A_KIND, "one hour": lab.OF_AN_HOUR}
    return [
        counted("sort", "size", "MB stored", {name: million_bytes(t) for name, t in tables.items()}),
        *(counted("sort", title, "MB read", _read(title, tables, sql)) for title, sql in queries.items()),
    ]


def _read(title: str, tables: Mapping[str, Table], sql: str | Mapping[str, str]) -> dict[str, float]:
    """Return the megabytes that the query reads of each open table. The results must be equal."""
    answers: dict[str, object] = {}
    read = {}
    for name, table in tables.items():
        of_table = sql if isinstance(sql, str) else sql[name]

        def ask(name: str = name, table: Table = table, of_table: str = of_table) -> None:
            answers[name] = table.query(of_table).fetchall()

        ask()
        read[name] = bytes_read(ask) / 1e6
    check_same(title, answers)
    return read


# ------------------------------------------------------------------------------------------ a table for each question


def tables(lab: Lab) -> list[Finding]:
    """Run three queries on one table with either order, and on a table with a view for each query."""
    by_user = lab.table("one-by-user", sort_by=["user_id", "ts"])
    by_kind = lab.table("one-by-kind", sort_by=["event", "ts"])
    source = lab.table("three-by-user", sort_by=["user_id", "ts"])
    of_kinds = source.create_view("three-by-kind", "SELECT * FROM _rows", sort_by=["event", "ts"])
    daily = source.create_view(
        "three-daily",
        "SELECT CAST(ts AS DATE) AS day, event, count(*) AS n FROM _rows GROUP BY ALL",
        sort_by=["day", "event"],
        merging=Aggregating(by=("day", "event"), sum=("n",)),
    )
    ways = {"one, by user": by_user, "one, by kind": by_kind, "three": source}
    for name, table in ways.items():
        lab.on_step(f"tables: {name}")
        table.insert(lab.events)
    counts = "SELECT CAST(ts AS DATE) AS day, event, count(*)::BIGINT AS n FROM t GROUP BY ALL ORDER BY ALL"
    of_view = "SELECT day, event, sum(n)::BIGINT AS n FROM t GROUP BY ALL ORDER BY ALL"
    queries_by_way = dict.fromkeys(ways, counts) | {"three": of_view}
    stored = {name: million_bytes(table) for name, table in ways.items()}
    stored["three"] += million_bytes(of_kinds) + million_bytes(daily)
    read = [
        counted("tables", "one user", "MB read", _read("one user", ways, lab.of_one_user)),
        counted("tables", "one kind", "MB read", _read("one kind", ways | {"three": of_kinds}, lab.OF_A_KIND)),
        counted(
            "tables", "counts by day and kind", "MB read", _read("counts", ways | {"three": daily}, queries_by_way)
        ),
    ]
    put: dict[str, float] = {}
    for name, table in ways.items():
        before = _files(lab)
        table.insert(lab.events.slice(0, ROWS_PER_COMMIT))
        put[name] = _files(lab) - before
    return [
        *read,
        counted("tables", "size", "MB stored", stored),
        counted("tables", "a further insert", "objects", put),
    ]


def _files(lab: Lab) -> int:
    return sum(1 for path in (lab.folder / "tables").rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------ what stays open


def opening(lab: Lab) -> list[Finding]:
    """Append and read the schema, with a table that stays open and with one that is opened each time."""
    table = lab.store.create("open", sort_by=["user_id", "ts"])
    kept = lab.store.open("open")
    rows = lab.events.slice(0, ROWS_PER_COMMIT)
    requests_by_title: dict[str, dict[str, float]] = {
        "append, opened each time": {}, "append, kept open": {}, "schema(), kept open": {},
    }  # fmt: skip
    depths = [depth for depth in DEPTHS if depth <= lab.commits]
    for number in range(1, max(depths) + 1):
        table.insert(rows)
        if number in depths:
            lab.on_step(f"opening: {number} log files")
            kept.insert(rows)  # knows the columns from here on
            kept.schema()
            name = str(number)
            requests_by_title["append, kept open"][name] = lab.store.requests(lambda: kept.insert(rows))
            kept.schema()
            requests_by_title["schema(), kept open"][name] = lab.store.requests(kept.schema)
            requests_by_title["append, opened each time"][name] = lab.store.requests(
                lambda: lab.store.open("open").insert(rows)
            )
    return [
        *(
            counted("opening", title, "requests to S3", counts_by_way)
            for title, counts_by_way in requests_by_title.items()
        ),
        _typed(lab),
    ]


def _typed(lab: Lab) -> Finding:
    """Insert rows whose types are inferred each time, and rows with a given schema."""
    typed = lab.events.slice(0, TYPED_ROWS)
    dicts = typed.to_pylist()
    table = lab.table("typed", sort_by=["user_id", "ts"])
    table.insert(typed)  # so that its columns have these types
    works = {
        "dicts": lambda: table.insert(dicts).rows,
        "dicts, with a kept schema": lambda: table.insert(pa.Table.from_pylist(dicts, schema=typed.schema)).rows,
        "Arrow": lambda: table.insert(typed).rows,
    }
    [processor, _] = lab.turns("opening", "inserting", works)
    per_row = {way.name: [ms * 1000 / len(dicts) for ms in way.values] for way in processor.ways}
    return timed("opening", "inserting", "processor µs a row", per_row)


# ------------------------------------------------------------------------------------------ a cold start


def cold(lab: Lab) -> list[Finding]:
    """Measure a new process: the processor time of each step, and the memory after it."""
    table = lab.table("cold", sort_by=["user_id"])
    table.insert([{"ts": "2026-11-21 10:00:00", "user_id": 1, "event": "open"}])
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = kept | {
        "PYTHONPYCACHEPREFIX": str(lab.folder / "bytecode")
    }  # images contain bytecode; the warm-up compiles it
    took: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for number in range(lab.rounds + 1):
        lab.on_step(f"cold start: {f'round {number}' if number else 'warm-up'}")
        command = [sys.executable, "-m", "benchmarks.experiments.tips_child", table.uri]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)
        for step, (seconds, peak_bytes) in json.loads(done.stdout).items():
            if number and step != "nothing":
                took.setdefault(step, []).append(seconds * 1000)
                memory.setdefault(step, []).append(peak_bytes / 1e6)
    return [
        timed("cold", "each step", PROCESSOR, took),
        timed("cold", "memory of the process", "MB at most so far", memory),
    ]
