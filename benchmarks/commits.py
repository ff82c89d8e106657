"""How many commits a second a table takes from eight writers at once, in a folder and over a network; and whether that
stays so while the log grows.

Each writer is a program of its own, which has the table open and appends a hundred rows at a time. All have begun, and
committed once, before anything is measured; at the end each table must have every row of every commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema

from benchmarks.commits_writer import ROWS, Task, Turn, batch
from benchmarks.figures import OURS, Check, Curve, Finding, Plan, Step, Way, ratio_to
from benchmarks.processes import stop
from benchmarks.slow_store import BUCKET, SlowStore, s3_server, slow, storage_options
from icedb import Table

__all__ = ["DELTALAKE", "WRITERS", "Writers", "measure"]

DELTALAKE = "deltalake"
WRITERS = 8
#: Of one way in one round.
SECONDS = 1.5
TENTHS = 10
GOAL = 5.0
FLAT = 0.9
# Appends of one writer whose requests are counted.
COUNTED = 10

_WHY = (
    "by profile, a commit's time goes into the batch's way through DuckDB (an instance of its own, the sort, the "
    "Parquet file), not into publishing it, which is one file. Eight writers on two processors share those; for more, "
    "small batches would have to do without an engine of their own for each"
)


def measure(plan: Plan, folder: Path, on_step: Step) -> list[Finding]:
    """The rows of the results about commits per second."""
    found: list[Finding] = []
    if plan.wants("commits"):
        with _started(plan, on_step) as both:
            found += [_local(both, plan, folder / "local", on_step), _network(both, plan, folder / "network", on_step)]
    return found


# ------------------------------------------------------------------------------------------ writers


@dataclass(slots=True)
class Writers:
    """Programs that append to one table when they are told to."""

    way: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    uri: str = ""
    options: dict[str, str] = field(default_factory=dict)
    #: To this table: all that they made, and the attempts that one lost to another.
    commits: int = 0
    lost: int = 0

    def start(self) -> None:
        """One more."""
        command = [sys.executable, "-m", "benchmarks.commits_writer", self.way]
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        folder = Path(__file__).parents[1]
        self.processes.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=env)
        )

    def open(self, uri: str, options: Mapping[str, str]) -> None:
        """Make a table; each opens it and commits once."""
        self.uri, self.options, self.commits, self.lost = uri, dict(options), 0, 0
        _create(self.way, uri, options)
        self.do(Task(open=uri, options=self.options))

    def do(self, task: Task) -> list[Turn]:
        """All do the same at the same time."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.write(msgspec.json.encode(task) + b"\n")
                process.stdin.flush()
        turns = [msgspec.json.decode(_line(process), type=Turn) for process in self.processes]
        self.commits += sum(turn.commits for turn in turns)
        self.lost += sum(turn.lost for turn in turns)
        return turns

    def check(self) -> None:
        """Raise AssertionError unless the table has all rows of all commits, and no others."""
        if self.way == DELTALAKE:
            actions = DeltaTable(self.uri, storage_options=self.options).get_add_actions(flatten=True)
            rows = sum(pa.table(actions)["num_records"].to_pylist())
        else:
            rows = Table.open(self.uri, storage_options=self.options).snapshot().rows or 0
        if rows != self.commits * ROWS:
            raise AssertionError(f"{self.uri} has {rows} rows after {self.commits} commits of {ROWS}")


def _line(process: subprocess.Popen[bytes]) -> bytes:
    line = process.stdout.readline() if process.stdout is not None else b""
    if not line:
        raise RuntimeError("a writer ended before it was told to; what it says is above")
    return line


@contextmanager
def _started(plan: Plan, on_step: Step) -> Iterator[dict[str, Writers]]:
    """Of both ways as many; they end with the block."""
    count = max(2, plan.size(WRITERS))
    both = {way: Writers(way) for way in (OURS, DELTALAKE)}
    on_step(f"commits: starting {count} writers of each")
    try:
        for writers in both.values():
            for _ in range(count):
                writers.start()
        yield both
    finally:
        for process in [process for writers in both.values() for process in writers.processes]:
            stop(process)


def _create(way: str, uri: str, options: Mapping[str, str]) -> None:
    if way == DELTALAKE:
        DeltaTable.create(uri, schema=Schema.from_arrow(batch().schema), storage_options=dict(options))
    else:
        columns = {"ts": "BIGINT", "user_id": "BIGINT", "event": "VARCHAR", "amount": "DOUBLE"}
        Table.create(uri, schema=columns, sort_by=["ts"], storage_options=options)


def _rate(turns: Sequence[Turn]) -> float:
    """Commits per second of all writers together."""
    return sum(turn.commits / turn.seconds for turn in turns)


# ------------------------------------------------------------------------------------------ in turns


def _local(both: Mapping[str, Writers], plan: Plan, folder: Path, on_step: Step) -> Finding:
    folder.mkdir(parents=True)
    for way, writers in both.items():
        writers.open(str(folder / way), {})
    ways = _in_turns(both, plan, on_step, "local")
    flat, curves = _flatness(both[OURS], plan, on_step)
    for writers in both.values():
        writers.check()
    return Finding(
        "commits",
        f"commits of {ROWS} rows by {WRITERS} writers at once, local",
        "commits per second",
        ways,
        [_goal(ways), flat],
        curves=curves,
        notes=[
            *_notes(both),
            "icedb's commits survive a power failure: each waits for four syncs, of two files and their folders. "
            "deltalake syncs nothing.",
        ],
    )


def _network(both: Mapping[str, Writers], plan: Plan, folder: Path, on_step: Step) -> Finding:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        on_step("commits, S3: starting the server")
        store = stack.enter_context(slow(stack.enter_context(s3_server(folder / "server")), plan.latency_ms))
        options = {OURS: storage_options(store.endpoint)}
        options[DELTALAKE] = options[OURS] | {"AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}
        counts = _requests(store, f"s3://{BUCKET}/counted", options[OURS])
        for way, writers in both.items():
            writers.open(f"s3://{BUCKET}/{way}", options[way])
        ways = _in_turns(both, plan, on_step, "S3")
        for writers in both.values():
            writers.check()
    most = WRITERS / (2 * plan.latency_ms / 1000)
    return Finding(
        "commits",
        f"commits of {ROWS} rows by {WRITERS} writers at once, S3 with {plan.latency_ms:g} ms per request",
        "commits per second",
        ways,
        [_goal(ways)],
        counts=counts,
        notes=[
            *_notes(both),
            f"{WRITERS} writers that wait for two requests of {plan.latency_ms:g} ms each, and for nothing else, would "
            f"make {most:,.0f} commits per second; the server and the proxy share the two processors with them.",
        ],
    )


def _in_turns(both: Mapping[str, Writers], plan: Plan, on_step: Step, where: str) -> list[Way]:
    task = Task(seconds=SECONDS / plan.shrink)
    rates: dict[str, list[float]] = {way: [] for way in both}
    for number in range(plan.rounds + 1):
        for way, writers in both.items():
            on_step(f"commits, {where}, {way}: " + (f"round {number}" if number else "warm-up"))
            rate = _rate(writers.do(task))
            if number:
                rates[way].append(rate)
    return [Way(way, values) for way, values in rates.items()]


def _goal(ways: Sequence[Way]) -> Check:
    ours, theirs = ways
    value, spread = ratio_to(ours, theirs)
    return Check(f"at least {GOAL:g} times deltalake", value, GOAL, at_least=True, why=_WHY, spread=spread)


def _notes(both: Mapping[str, Writers]) -> list[str]:
    lost = both[DELTALAKE].lost
    return [
        "Each writer is a process with the table open; each appends its batch, sorted in icedb and as it is in "
        f"deltalake, and begins again. Both tables grew to some {both[OURS].commits:,} and "
        f"{both[DELTALAKE].commits:,} commits. Writers of icedb never meet; one of deltalake that finds its version "
        f"taken looks and tries the next, up to 1,000 times, and gave up {lost:,} times.",
    ]


def _requests(store: SlowStore, uri: str, options: Mapping[str, str]) -> dict[str, float]:
    """What one append asks of the store, by kind, as soon as its handle has appended once."""
    _create(OURS, uri, options)
    table, rows = Table.open(uri, storage_options=options), batch()
    table.insert(rows)
    store.reset()
    for _ in range(COUNTED):
        table.insert(rows)
    return {f"{kind} of an append": number / COUNTED for kind, number in sorted(store.counts.items())}


# ------------------------------------------------------------------------------------------ over a long life


def _flatness(writers: Writers, plan: Plan, on_step: Step) -> tuple[Check, list[Curve]]:
    """Our rate, and a commit's processor time, in each tenth of many commits to the table."""
    commits = plan.size(2_000, 20_000)
    each = max(1, commits // (TENTHS * len(writers.processes)))
    rates, costs, upto = [], [], []
    for tenth in range(TENTHS):
        on_step(f"commits, local: {commits:,} of {OURS}, tenth {tenth + 1}")
        turns = writers.do(Task(commits=each))
        rates.append(_rate(turns))
        costs.append(1000 * sum(t.processor_seconds for t in turns) / sum(t.commits for t in turns))
        upto.append(float((tenth + 1) * each * len(writers.processes)))
    flat = Check(
        f"flat over {upto[-1]:,.0f} commits: the last tenth's rate to the first's at least {FLAT:g}",
        rates[-1] / rates[0],
        FLAT,
        at_least=True,
        why=f"a commit took {costs[0]:.1f} ms of processor time in the first tenth and {costs[-1]:.1f} ms in the last",
        spread=(min(rates) / rates[0], max(rates) / rates[0]),
    )
    return flat, [
        Curve("commits per second while the log grows", "commits", "commits per second", upto, {OURS: rates}),
        Curve("processor time of a commit while the log grows", "commits", "ms", upto, {OURS: costs}),
    ]
