"""A question about few rows of a table of many parts: what is opened for it, with pruning and without.

The table has a part for each day in each of as many batches; a batch has the events of some users only, by whom its
parts are sorted. So a day is in one part of each batch, which the paths tell; a user is in one batch, which the
statistics in the log tell; and a user on a day is in one part.
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

from benchmarks.opens import files_opened
from benchmarks.slow_store import BUCKET, SlowStore, s3_server, slow, storage_options
from benchmarks.tpch import connected
from icedb import Table
from icedb.engines.duckdb.attached_tables import attach
from icedb.sql.connections import attach_s3, quote_text
from icedb.storage.location import parse_location

__all__ = [
    "BARE",
    "GOAL",
    "WAYS",
    "Asked",
    "Look",
    "Made",
    "Question",
    "make",
    "measure_local",
    "measure_looks",
    "measure_store",
]

#: So many times fewer files are to be opened.
GOAL = 20.0

ROWS_PER_PART = 10
USERS_PER_BATCH = 1_000
LOOKS = 20
# In a folder; without pruning each takes some seconds.
ROUNDS = 3

_UNSYNCED = {"fsync": "false"}
_FIGURES = "count(*), round(sum(amount), 2)"


@dataclass(frozen=True, slots=True)
class Question:
    """Its condition on the rows of the table, and on those of the bare files, which have no column `day`."""

    name: str
    condition: str
    of_files: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One way to ask a question. `files` are parts that were opened, `requests` all that the store was asked."""

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
class Look:
    """What a small query costs that was asked before, when nothing new is there. `requests`: of each kind."""

    place: str
    way: str
    seconds: list[float]
    requests: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A table of `parts` parts, and how to get at it."""

    uri: str
    options: Mapping[str, str]
    paths: Sequence[str]
    questions: Sequence[Question]


#: Asks the same question each time, of what was prepared for it; the answer is the row.
Ask = Callable[[], object]


def make(uri: str, options: Mapping[str, str], parts: int) -> Made:
    """A table of the greatest square of at most so many parts, whose log is merged into one file."""
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
    return Made(
        uri,
        options,
        [p.path for p in live],
        [
            Question("one day", f"day = {day}", f"CAST(ts AS DATE) = {day}"),
            Question("some users", users, users),
            Question("some users on one day", f"day = {day} AND {users}", f"CAST(ts AS DATE) = {day} AND {users}"),
        ],
    )


# ------------------------------------------------------------------------------------------ the ways to ask


@contextmanager
def _bare(made: Made, question: Question) -> Iterator[Ask]:
    paths = ", ".join(map(quote_text, made.paths))
    with connected() as con:
        if made.uri.startswith("s3:"):
            attach_s3(con, parse_location(made.uri, dict(made.options)))
        con.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet([{paths}], hive_partitioning = false)")
        yield partial(_answer, con, f"SELECT {_FIGURES} FROM events WHERE {question.of_files}")


@contextmanager
def _view(made: Made, question: Question) -> Iterator[Ask]:
    with connected() as con:
        attach(con, made.uri, "events", storage_options=dict(made.options))
        yield partial(_answer, con, f"SELECT {_FIGURES} FROM events WHERE {question.condition}")


@contextmanager
def _macro(made: Made, question: Question) -> Iterator[Ask]:
    with connected() as con:
        attach(con, made.uri, "events", storage_options=dict(made.options))
        yield partial(_answer, con, f"SELECT {_FIGURES} FROM events(filter := {quote_text(question.condition)})")


@contextmanager
def _query(made: Made, question: Question) -> Iterator[Ask]:
    table = Table.open(made.uri, storage_options=dict(made.options))
    sql = f"SELECT {_FIGURES} FROM t WHERE {question.condition}"
    yield lambda: table.query(sql).fetchone()


def _answer(con: duckdb.DuckDBPyConnection, sql: str) -> object:
    return con.execute(sql).fetchone()


Way = Callable[[Made, Question], AbstractContextManager[Ask]]
BARE = "bare files"
WAYS: dict[str, Way] = {
    BARE: _bare,
    "attached view": _view,
    "attached macro, filter := ...": _macro,
    "table.query": _query,
}


# ------------------------------------------------------------------------------------------ what it takes


def measure_local(folder: Path, parts: int, *, rounds: int = ROUNDS, on_step: Callable[[str], None]) -> list[Asked]:
    """A table in a folder, which is empty: each question each way, in turns, all that can be known being known."""
    on_step(f"a table of {parts:,} parts")
    made = make(str(folder / "table"), _UNSYNCED, parts)
    measured_looks = []
    for question in made.questions:
        answers, files = {}, {}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for way, ready in WAYS.items():
            on_step(f"{question.name}, {way}: counting")
            with ready(made, question) as ask, files_opened(folder / "table" / "_data") as opened:
                answers[way] = ask()
            files[way] = len(opened)
        _check(question, answers)
        for number in range(rounds):
            for way, ready in WAYS.items():
                on_step(f"{question.name}, {way}: round {number + 1}")
                with ready(made, question) as ask:
                    ask()
                    seconds[way].append(_timed(ask))
        measured_looks += [Asked(question.name, way, len(made.paths), files[way], seconds[way]) for way in WAYS]
    return measured_looks


def measure_store(folder: Path, parts: int, latency_ms: float, *, on_step: Callable[[str], None]) -> list[Asked]:
    """A table on an S3 server that lets each request wait. Each way begins with nothing: with opening the table."""
    measured_looks = []
    with s3_server(folder / "server") as endpoint:
        on_step(f"a table of {parts:,} parts in S3")
        uri = f"s3://{BUCKET}/table"
        made = make(uri, storage_options(endpoint), parts)
        with slow(endpoint, latency_ms) as proxy:
            through = Made(uri, storage_options(proxy.endpoint), made.paths, made.questions)
            for question in made.questions:
                answers = {}
                for way, ready in WAYS.items():
                    on_step(f"{question.name}, {way}, {latency_ms:g} ms a request")
                    proxy.reset()
                    started = time.perf_counter()
                    with ready(through, question) as ask:
                        answers[way] = ask()
                    seconds = time.perf_counter() - started
                    opened = {r.path for r in proxy.requests if "/_data/" in r.path}
                    measured_looks.append(
                        Asked(question.name, way, len(made.paths), len(opened), [seconds], len(proxy.requests))
                    )
                _check(question, answers)
    return measured_looks


def _timed(ask: Ask) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


def _check(question: Question, answers: Mapping[str, object]) -> None:
    """Speed is of no use to an answer that is wrong, or that is nothing."""
    expected = answers[BARE]
    if not isinstance(expected, tuple) or not expected[0]:
        raise AssertionError(f"no row is asked for by {question.name!r}: {expected}")
    if wrong := {way: measured_looks for way, measured_looks in answers.items() if measured_looks != expected}:
        raise AssertionError(f"the answer to {question.name!r} is {wrong} instead of {expected}")


# ------------------------------------------------------------------------------------------ a look at a quiet table


def measure_looks(folder: Path, latency_ms: float, *, on_step: Callable[[str], None]) -> list[Look]:
    """A query of a table of nine parts, again and again: in a folder, in S3, and in S3 that takes its time."""
    on_step("looks at a quiet table")
    local = make(str(folder / "quiet"), _UNSYNCED, 9)
    measured_looks = _looks("folder", local, None)
    with s3_server(folder / "quiet-server") as endpoint:
        uri = f"s3://{BUCKET}/quiet"
        made = make(uri, storage_options(endpoint), 9)
        for latency in (0.0, latency_ms):
            with slow(endpoint, latency) as proxy:
                through = Made(uri, storage_options(proxy.endpoint), made.paths, made.questions)
                measured_looks += _looks(f"S3, {latency:g} ms a request", through, proxy)
    return measured_looks


def _looks(place: str, made: Made, proxy: SlowStore | None) -> list[Look]:
    measured_looks = []
    for way in (BARE, "attached view", "table.query"):
        with WAYS[way](made, made.questions[1]) as ask:
            ask()
            if proxy is not None:
                proxy.reset()
            seconds = [_timed(ask) for _ in range(LOOKS)]
            counts = None if proxy is None else {str(kind): n / LOOKS for kind, n in proxy.counts.items()}
        measured_looks.append(Look(place, way, seconds, counts))
    return measured_looks
