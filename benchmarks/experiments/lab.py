"""The environment of experiments: the same events in tables with different settings, and the same queries over them.

Each setting is a `Way` of a `Finding`, measured in turns with the others. A finding has one unit. All tables are in one
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from benchmarks.harness.events import make_events
from benchmarks.harness.figures import Finding, Step, Way
from benchmarks.harness.rounds import Case, Footprint, run_rounds
from benchmarks.harness.rounds import Work as Timed
from benchmarks.harness.slow_store import BUCKET, SlowStore, s3_server, slow, storage_options
from icedb import Table

__all__ = ["FULL_SCAN", "PROCESSOR", "SECONDS", "UNSYNCED", "Lab", "bytes_read", "check_same", "counted",
           "million_bytes", "timed"]  # fmt: skip

#: Units of times. Processor time is that of this process, DuckDB's threads included. Other load of the machine hardly
#: changes it.
PROCESSOR, SECONDS = "processor ms", "seconds"
#: The storage options of tables whose time must not include syncs to disk.
UNSYNCED = {"fsync": "false"}
#: Reads all rows, and half of the columns.
FULL_SCAN = """
    SELECT event, count(*), sum(amount), max(user_id), max(ts), min(page) FROM t GROUP BY event ORDER BY event
"""

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket of an S3 server. Its `proxy` counts and delays requests; `endpoint` does neither."""

    endpoint: str
    proxy: SlowStore

    def create(self, name: str, **options: Any) -> Table:
        """Create a table without delay."""
        return Table.create(f"s3://{BUCKET}/{name}", storage_options=storage_options(self.endpoint), **options)

    def open(self, name: str) -> Table:
        """Open a table with the latency of a network."""
        return Table.open(f"s3://{BUCKET}/{name}", storage_options=storage_options(self.proxy.endpoint))

    def requests(self, work: Work) -> int:
        """Return the number of requests of some work."""
        self.proxy.reset()
        work()
        return len(self.proxy.requests)


@dataclass(frozen=True)
class Lab:
    """The sizes, events and stores of a run: `rows` of the largest tables, `commits` of the longest log."""

    folder: Path
    rows: int
    commits: int
    rounds: int
    latency_ms: float
    on_step: Step
    #: Stops the S3 server and its proxy.
    closing: ExitStack

    ORDERS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "user, time": ("user_id", "ts"), "kind, time": ("event", "ts"), "time": ("ts",), "unsorted": (),
    }  # fmt: skip
    PARTITION_FORMATS: ClassVar[Mapping[str, str]] = {"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
    #: Queries of one kind of event, and of one hour.
    OF_A_KIND: ClassVar[str] = "SELECT count(*), max(page), sum(amount) FROM t WHERE event = 'checkout'"
    OF_AN_HOUR: ClassVar[str] = """
        SELECT count(*), max(page), sum(amount) FROM t
        WHERE ts BETWEEN '2026-10-09 12:00:00Z' AND '2026-10-09 13:00:00Z'
    """

    @cached_property
    def events(self) -> pa.Table:
        """All rows in random order."""
        self.on_step(f"making {self.rows:,} events")
        made = make_events(self.folder / "cache", self.rows)
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            return con.execute(f"FROM read_parquet('{made.glob}')").to_arrow_table().combine_chunks()

    @cached_property
    def user(self) -> int:
        """A user with a typical number of rows."""
        values_of_users = sorted(self.events["user_id"].slice(0, 10_001).to_pylist())
        return int(values_of_users[len(values_of_users) // 2])

    @cached_property
    def store(self) -> Store:
        """An S3 server, started on first use."""
        self.on_step("starting an S3 server")
        endpoint = self.closing.enter_context(s3_server(self.folder / "server"))
        return Store(endpoint, self.closing.enter_context(slow(endpoint, self.latency_ms)))

    @property
    def of_one_user(self) -> str:
        """A query of one user's rows."""
        return f"SELECT count(*), min(ts), max(ts), max(page), sum(amount) FROM t WHERE user_id = {self.user}"

    @property
    def some(self) -> pa.Table:
        """A quarter of the rows."""
        return self.events.slice(0, max(1, self.rows // 4))

    def table(self, name: str, **options: Any) -> Table:
        """Create a table in the folder."""
        return Table.create(self.folder / "tables" / name, storage_options=UNSYNCED, **options)

    def turns(self, key: str, title: str, works: Mapping[str, Work], *, same_answers: bool = True) -> list[Finding]:
        """Measure processor time and wall time of works in turns.

        Raises AssertionError if their results differ or are empty.
        """
        answers: dict[str, object] = {}
        cases = [Case(title, name, _ready(name, work, answers)) for name, work in works.items()]
        results = run_rounds(cases, self.rounds, on_step=self.on_step, only_reads=True)
        if same_answers:
            check_same(title, answers)
        processor = {r.case.name: [s * 1000 for s in r.processor_seconds] for r in results}
        seconds = {r.case.name: r.seconds for r in results}
        return [timed(key, title, PROCESSOR, processor), timed(key, title, SECONDS, seconds)]

    def query(self, key: str, title: str, tables: Mapping[str, Table], sql: str) -> list[Finding]:
        """Measure a query of each open table, and the bytes that it reads."""
        works = {name: partial(_answer, table, sql) for name, table in tables.items()}
        read = {name: bytes_read(work) / 1e6 for name, work in works.items()}
        return [*self.turns(key, title, works), counted(key, title, "MB read", read)]

    def query_in_s3(self, key: str, title: str, tables: Mapping[str, Table], sql: str) -> list[Finding]:
        """Measure a query of each open table in S3, and its requests."""
        title = f"{title}, S3"
        works = {name: partial(_answer, table, sql) for name, table in tables.items()}
        requests = {name: self.store.requests(work) for name, work in works.items()}
        seconds = [f for f in self.turns(key, title, works) if f.unit == SECONDS]
        return [*seconds, counted(key, title, "requests", requests)]


def _ready(name: str, work: Work, answers: dict[str, object]) -> Callable[[], AbstractContextManager[Timed]]:
    def timed_work() -> Callable[[], Footprint | None]:
        answers[name] = work()
        return lambda: None

    return lambda: nullcontext(timed_work)


def _answer(table: Table, sql: str) -> object:
    return table.query(sql).fetchall()


def check_same(title: str, answers: Mapping[str, object]) -> None:
    """Raise AssertionError unless all results are equal and not empty."""
    first = next(iter(answers.values()))
    if not first or (wrong := {name: a for name, a in answers.items() if a != first}):
        raise AssertionError(f"{title}: the results differ or are empty: {first}, {wrong if first else ''}")


def timed(key: str, title: str, unit: str, values: Mapping[str, Sequence[float]]) -> Finding:
    """Return a finding with values for each round."""
    return Finding(key, title, unit, [Way(name, of_rounds) for name, of_rounds in values.items()])


def counted(key: str, title: str, unit: str, values: Mapping[str, float]) -> Finding:
    """Return a finding of figures that are equal in every run."""
    return Finding(key, title, unit, [Way(name, [value]) for name, value in values.items()])


def bytes_read(work: Work) -> int:
    """Return the bytes that this process reads from files during the work, cached by the system or not. Linux only."""
    before = _read_so_far()
    work()
    return _read_so_far() - before


def _read_so_far() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def million_bytes(table: Table) -> float:
    """Return the megabytes of all live parts."""
    return table.snapshot().bytes / 1e6
