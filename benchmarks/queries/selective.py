"""Selective queries of a table of many parts: the parts that they open, with pruning and without.

The table has as many batches as days, and each batch has a part for each day. A batch has events of some users only,
and its parts are sorted by user. So a day is in one part of each batch, by the paths. A user is in one batch, by the
statistics in the log. A user on a day is in one part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import duckdb

from benchmarks.harness.connections import connected
from benchmarks.harness.slow_store import BUCKET, SlowStore, s3_server, slow, storage_options
from benchmarks.queries.opens import files_opened
from icedb import Table
from icedb.engines.duckdb.attached_tables import attach
from icedb.sql.connections import attach_s3, quote_text
from icedb.storage.location import parse_location

__all__ = [
    "BARE",
    "GOAL",
    "WAYS",
    "QueryCost",
    "RefreshCost",
    "MadeTable",
    "Question",
    "make",
    "measure_local",
    "measure_looks",
    "measure_store",
]

#: The goal: the factor by which pruning reduces the opened files.
GOAL = 20.0

ROWS_PER_PART = 10
USERS_PER_BATCH = 1_000
LOOKS = 20
# Rounds in a folder. Without pruning, each takes some seconds.
ROUNDS = 3

_UNSYNCED = {"fsync": "false"}
_FIGURES = "count(*), round(sum(amount), 2)"


@dataclass(frozen=True, slots=True)
class Question:
    """A query's condition for the table, and for the bare files, which have no column `day`."""

    name: str
    condition: str
    of_files: str


@dataclass(frozen=True, slots=True)
class QueryCost:
    """The measurement of a query in one way: opened parts (`files`), and all requests to the store."""

    question: str
    way: str
    parts: int
    files: int
    seconds: list[float]
    requests: int | None = None

    @property
    def median_seconds(self) -> float:
        """Of all rounds."""
        return median(self.seconds)


@dataclass(frozen=True, slots=True)
class RefreshCost:
    """The measurement of a repeated small query without new commits. `requests` is by kind."""

    place: str
    way: str
    seconds: list[float]
    requests: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table with its storage options and number of parts."""

    uri: str
    options: Mapping[str, str]
    paths: Sequence[str]
    questions: Sequence[Question]


#: Runs a prepared query, and returns its row.
RunQuery = Callable[[], object]


def make(uri: str, options: Mapping[str, str], parts: int) -> MadeTable:
    """Create a table with the greatest square number of parts up to `parts`, and one log file."""
    side = math.isqrt(parts)
    table = Table.create(
        uri, partition_by=["CAST(ts AS DATE) AS day"], sort_by=["user_id"], storage_options=dict(options)
    )
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        for batch in range(side):
            table.insert(
                con.sql(
                    f"""
                    SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' + to_days((i % {side})::INTEGER) AS ts,
                        {batch * USERS_PER_BATCH} + (i // {side}) * {USERS_PER_BATCH // ROWS_PER_PART} AS user_id,
                        (hash(i, {batch}) % 10000) / 100 AS amount
                    FROM range({side * ROWS_PER_PART}) r(i)
                    """
                )
            )
    table.merge_log()
    live = table.snapshot().parts
    if len(live) != side * side:
        raise AssertionError(f"the table has {len(live)} parts instead of {side * side}")
    day = f"DATE '2026-01-01' + {side // 2}"
    first = (side // 3) * USERS_PER_BATCH
    users = f"user_id BETWEEN {first} AND {first + USERS_PER_BATCH - 1}"
    return MadeTable(
        uri,
        options,
        [p.path for p in live],
        [
            Question("one day", f"day = {day}", f"CAST(ts AS DATE) = {day}"),
            Question("some users", users, users),
            Question("some users on one day", f"day = {day} AND {users}", f"CAST(ts AS DATE) = {day} AND {users}"),
        ],
    )


# ------------------------------------------------------------------------------------------ ways to query


@contextmanager
def _bare(made: MadeTable, question: Question) -> Iterator[RunQuery]:
    paths = ", ".join(map(quote_text, made.paths))
    with connected() as con:
        if made.uri.startswith("s3:"):
            attach_s3(con, parse_location(made.uri, dict(made.options)))
        con.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet([{paths}], hive_partitioning = false)")
        yield partial(_answer, con, f"SELECT {_FIGURES} FROM events WHERE {question.of_files}")


@contextmanager
def _view(made: MadeTable, question: Question) -> Iterator[RunQuery]:
    with connected() as con:
        attach(con, made.uri, "events", storage_options=dict(made.options))
        yield partial(_answer, con, f"SELECT {_FIGURES} FROM events WHERE {question.condition}")


@contextmanager
def _macro(made: MadeTable, question: Question) -> Iterator[RunQuery]:
    with connected() as con:
        attach(con, made.uri, "events", storage_options=dict(made.options))
        yield partial(_answer, con, f"SELECT {_FIGURES} FROM events(filter := {quote_text(question.condition)})")


@contextmanager
def _query(made: MadeTable, question: Question) -> Iterator[RunQuery]:
    table = Table.open(made.uri, storage_options=dict(made.options))
    sql = f"SELECT {_FIGURES} FROM t WHERE {question.condition}"
    yield lambda: table.query(sql).fetchone()


def _answer(con: duckdb.DuckDBPyConnection, sql: str) -> object:
    return con.execute(sql).fetchone()


Way = Callable[[MadeTable, Question], AbstractContextManager[RunQuery]]
BARE = "bare files"
WAYS: dict[str, Way] = {
    BARE: _bare,
    "attached view": _view,
    "attached macro, filter := ...": _macro,
    "table.query": _query,
}


# ------------------------------------------------------------------------------------------ costs


def measure_local(folder: Path, parts: int, *, rounds: int = ROUNDS, on_step: Callable[[str], None]) -> list[QueryCost]:
    """Measure each query in each way in turns, on a table in an empty folder, with warm caches."""
    on_step(f"a table of {parts:,} parts")
    made = make(str(folder / "table"), _UNSYNCED, parts)
    measured_looks = []
    for question in made.questions:
        answers, files = {}, {}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for way, ready in WAYS.items():
            on_step(f"{question.name}, {way}: counting")
            with ready(made, question) as run_query, files_opened(folder / "table" / "_data") as opened:
                answers[way] = run_query()
            files[way] = len(opened)
        _check(question, answers)
        for number in range(rounds):
            for way, ready in WAYS.items():
                on_step(f"{question.name}, {way}: round {number + 1}")
                with ready(made, question) as run_query:
                    run_query()
                    seconds[way].append(_timed(run_query))
        measured_looks += [QueryCost(question.name, way, len(made.paths), files[way], seconds[way]) for way in WAYS]
    return measured_looks


def measure_store(folder: Path, parts: int, latency_ms: float, *, on_step: Callable[[str], None]) -> list[QueryCost]:
    """Measure on an S3 server with delayed requests. Each way includes the opening of the table."""
    measured_looks = []
    with s3_server(folder / "server") as endpoint:
        on_step(f"a table of {parts:,} parts in S3")
        uri = f"s3://{BUCKET}/table"
        made = make(uri, storage_options(endpoint), parts)
        with slow(endpoint, latency_ms) as proxy:
            through = MadeTable(uri, storage_options(proxy.endpoint), made.paths, made.questions)
            for question in made.questions:
                answers = {}
                for way, ready in WAYS.items():
                    on_step(f"{question.name}, {way}, {latency_ms:g} ms a request")
                    proxy.reset()
                    started = time.perf_counter()
                    with ready(through, question) as run_query:
                        answers[way] = run_query()
                    seconds = time.perf_counter() - started
                    opened = {r.path for r in proxy.requests if "/_data/" in r.path}
                    measured_looks.append(
                        QueryCost(question.name, way, len(made.paths), len(opened), [seconds], len(proxy.requests))
                    )
                _check(question, answers)
    return measured_looks


def _timed(run_query: RunQuery) -> float:
    started = time.perf_counter()
    run_query()
    return time.perf_counter() - started


def _check(question: Question, answers: Mapping[str, object]) -> None:
    """Raise AssertionError unless the result is right and not empty."""
    expected = answers[BARE]
    if not isinstance(expected, tuple) or not expected[0]:
        raise AssertionError(f"{question.name!r} has no row: {expected}")
    if wrong := {way: measured_looks for way, measured_looks in answers.items() if measured_looks != expected}:
        raise AssertionError(f"the result of {question.name!r} is {wrong} instead of {expected}")


# ------------------------------------------------------------------------------------------ refreshes


def measure_looks(folder: Path, latency_ms: float, *, on_step: Callable[[str], None]) -> list[RefreshCost]:
    """Measure a repeated query of a table of nine parts: in a folder, in S3, and in S3 with delay."""
    on_step("looks at a quiet table")
    local = make(str(folder / "quiet"), _UNSYNCED, 9)
    measured_looks = _looks("folder", local, None)
    with s3_server(folder / "quiet-server") as endpoint:
        uri = f"s3://{BUCKET}/quiet"
        made = make(uri, storage_options(endpoint), 9)
        for latency in (0.0, latency_ms):
            with slow(endpoint, latency) as proxy:
                through = MadeTable(uri, storage_options(proxy.endpoint), made.paths, made.questions)
                measured_looks += _looks(f"S3, {latency:g} ms a request", through, proxy)
    return measured_looks


def _looks(place: str, made: MadeTable, proxy: SlowStore | None) -> list[RefreshCost]:
    measured_looks = []
    for way in (BARE, "attached view", "table.query"):
        with WAYS[way](made, made.questions[1]) as run_query:
            run_query()
            if proxy is not None:
                proxy.reset()
            seconds = [_timed(run_query) for _ in range(LOOKS)]
            counts = None if proxy is None else {str(kind): n / LOOKS for kind, n in proxy.counts.items()}
        measured_looks.append(RefreshCost(place, way, seconds, counts))
    return measured_looks
