"""Where settings are tried: the same events in tables that are made in different ways, which are then asked the same.

Each setting is a `Way` of a `Finding`, in turns with the others; a finding has one unit. All tables lie in one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.events import make_events
from benchmarks.figures import Finding, Step, Way
from benchmarks.rounds import Case, Footprint, run_rounds
from benchmarks.rounds import Work as Timed
from benchmarks.slow_store import BUCKET, SlowStore, s3_server, slow, storage_options
from icedb import Table

__all__ = ["FULL_SCAN", "PROCESSOR", "SECONDS", "UNSYNCED", "Lab", "bytes_read", "counted", "million_bytes"]

#: Units of times. Processor time is that of this process, DuckDB's threads included: it is hardly changed by whatever
#: the machine does besides.
PROCESSOR, SECONDS = "processor ms", "seconds"
#: Where syncing to disk is not what is asked about.
UNSYNCED = {"fsync": "false"}
#: Reads all rows, and half of the columns.
FULL_SCAN = """
    SELECT event, count(*), sum(amount), max(user_id), max(ts), min(page) FROM t GROUP BY event ORDER BY event
"""

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket of an S3 server. Its `proxy` counts requests and lets each wait; `endpoint` does neither."""

    endpoint: str
    proxy: SlowStore

    def create(self, name: str, **options: Any) -> Table:
        """A new table, which is made without delay."""
        return Table.create(f"s3://{BUCKET}/{name}", storage_options=storage_options(self.endpoint), **options)

    def open(self, name: str) -> Table:
        """A table, as it is over a network."""
        return Table.open(f"s3://{BUCKET}/{name}", storage_options=storage_options(self.proxy.endpoint))

    def requests(self, work: Work) -> int:
        """How many requests somebody's work takes."""
        self.proxy.reset()
        work()
        return len(self.proxy.requests)


@dataclass(frozen=True)
class Lab:
    """`rows` are those of the largest tables, `commits` those of the longest log, `folder` is empty at first."""

    folder: Path
    rows: int
    commits: int
    rounds: int
    latency_ms: float
    on_step: Step
    #: Ends what was started, the S3 server and its proxy.
    closing: ExitStack

    @cached_property
    def events(self) -> pa.Table:
        """All rows, in the order in which chance brings them."""
        self.on_step(f"making {self.rows:,} events")
        made = make_events(self.folder / "cache", self.rows)
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            return con.execute(f"FROM read_parquet('{made.glob}')").to_arrow_table().combine_chunks()

    @cached_property
    def user(self) -> int:
        """Somebody who has about as many rows as most have."""
        values_of_users = sorted(self.events["user_id"].slice(0, 10_001).to_pylist())
        return int(values_of_users[len(values_of_users) // 2])

    @cached_property
    def store(self) -> Store:
        """An S3 server that starts when it is first asked for."""
        self.on_step("starting an S3 server")
        endpoint = self.closing.enter_context(s3_server(self.folder / "server"))
        return Store(endpoint, self.closing.enter_context(slow(endpoint, self.latency_ms)))

    @property
    def of_one_user(self) -> str:
        """A query that needs some of all rows."""
        return f"SELECT count(*), min(ts), max(ts), max(page), sum(amount) FROM t WHERE user_id = {self.user}"

    @property
    def some(self) -> pa.Table:
        """A quarter of the rows."""
        return self.events.slice(0, max(1, self.rows // 4))

    def table(self, name: str, **options: Any) -> Table:
        """A new table in the folder."""
        return Table.create(self.folder / "tables" / name, storage_options=UNSYNCED, **options)

    def turns(self, key: str, title: str, works: Mapping[str, Work], *, same_answers: bool = True) -> list[Finding]:
        """The processor time and the time of works that are done in turns.

        Raises AssertionError when they do not all answer the same, and when the answer is nothing.
        """
        answers: dict[str, object] = {}
        cases = [Case(title, name, _ready(name, work, answers)) for name, work in works.items()]
        results = run_rounds(cases, self.rounds, on_step=self.on_step, only_reads=True)
        if same_answers:
            check_same(title, answers)
        processor = {r.case.name: [s * 1000 for s in r.processor_seconds] for r in results}
        seconds = {r.case.name: r.seconds for r in results}
        return [timed(key, title, PROCESSOR, processor), timed(key, title, SECONDS, seconds)]

    def asked(self, key: str, title: str, tables: Mapping[str, Table], sql: str) -> list[Finding]:
        """What a query of each table takes that is open, and how many bytes it reads of it."""
        works = {name: partial(_answer, table, sql) for name, table in tables.items()}
        read = {name: bytes_read(work) / 1e6 for name, work in works.items()}
        return [*self.turns(key, title, works), counted(key, title, "MB read", read)]

    def asked_in_s3(self, key: str, title: str, tables: Mapping[str, Table], sql: str) -> list[Finding]:
        """What a query of each table takes that is open, and how many requests."""
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
    """Raise AssertionError unless all answers are the same, and say something."""
    first = next(iter(answers.values()))
    if not first or (wrong := {name: a for name, a in answers.items() if a != first}):
        raise AssertionError(f"{title}: the answers differ, or say nothing: {first}, {wrong if first else ''}")


def timed(key: str, title: str, unit: str, values: Mapping[str, Sequence[float]]) -> Finding:
    """A finding of some settings' values in each round."""
    return Finding(key, title, unit, [Way(name, values_of_users) for name, values_of_users in values.items()])


def counted(key: str, title: str, unit: str, values: Mapping[str, float]) -> Finding:
    """A finding of figures that each run gives alike."""
    return Finding(key, title, unit, [Way(name, [value]) for name, value in values.items()])


def bytes_read(work: Work) -> int:
    """What this process reads of files, cached by the system or not, while it works. Linux only."""
    before = _read_so_far()
    work()
    return _read_so_far() - before


def _read_so_far() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def million_bytes(table: Table) -> float:
    """Of all live parts."""
    return table.snapshot().bytes / 1e6
