"""Commits per second of eight concurrent writers, in a folder and over a network, and while the log grows.

Each writer is a process with the table open, which appends a hundred rows at a time. All writers commit once before the
measurement. At the end each table must have every row of every commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema

from benchmarks.harness.figures import OURS, Check, Curve, Finding, Plan, Step, Way, ratio_to
from benchmarks.harness.processes import stop
from benchmarks.harness.slow_store import BUCKET, SlowStore, s3_server, slow, storage_options
from benchmarks.writes.commits_writer import ROWS, Task, Turn, batch
from icedb import Table

__all__ = ["DELTALAKE", "WRITERS", "Writers", "measure"]

DELTALAKE = "deltalake"
WRITERS = 8
#: The time of a way in a round.
SECONDS = 1.2
TENTHS = 10
GOAL = 6.0
FLAT = 0.9
# Appends of one writer whose requests are counted.
COUNTED = 10

_GROWS, _NEW = "the table that grows", "a new table, in turns with it"

_WHY = (
    "by profile, a third of the processor time of an append of a hundred rows is DuckDB's query of the partition "
    "expression, a third encodes the part, and the rest is checks, two files and the log's line. Eight writers share "
    "the processors"
)
_WHY_LOCAL = ". Each commit also syncs two files and their folders to disk, which deltalake omits"


def measure(plan: Plan, folder: Path, on_step: Step) -> list[Finding]:
    """Measure the rows about commits per second."""
    findings: list[Finding] = []
    if plan.wants("commits"):
        with _started(plan, on_step) as both:
            findings += [
                _local(both, plan, folder / "local", on_step),
                _network(both, plan, folder / "network", on_step),
            ]
    return findings


# ------------------------------------------------------------------------------------------ writers


@dataclass(slots=True)
class Writers:
    """Writer processes, which append to one table on command."""

    way: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    uri: str = ""
    options: dict[str, str] = field(default_factory=dict)
    #: The commits to this table, and the attempts that were lost to another writer.
    commits: int = 0
    lost: int = 0

    def start(self) -> None:
        """Start one more writer."""
        command = [sys.executable, "-m", "benchmarks.writes.commits_writer", self.way]
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        folder = Path(__file__).parents[2]
        self.processes.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=env)
        )

    def open(self, uri: str, options: Mapping[str, str]) -> None:
        """Create a table. Each writer opens it and commits once."""
        self.uri, self.options, self.commits, self.lost = uri, dict(options), 0, 0
        _create(self.way, uri, options)
        self.do(Task(open=uri, options=self.options))

    def beside(self, uri: str, task: Task) -> list[Turn]:
        """Do a task in a new table, and check its rows. Then each writer commits once to this table again."""
        current, commits, lost = self.uri, self.commits, self.lost
        self.open(uri, self.options)
        turns = self.do(task)
        self.check()
        self.uri, self.commits, self.lost = current, commits, lost
        self.do(Task(open=current, options=self.options))
        return turns

    def do(self, task: Task) -> list[Turn]:
        """Do a task in all writers at the same time."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.write(msgspec.json.encode(task) + b"\n")
                process.stdin.flush()
        turns = [msgspec.json.decode(_line(process), type=Turn) for process in self.processes]
        self.commits += sum(turn.commits for turn in turns)
        self.lost += sum(turn.lost for turn in turns)
        return turns

    def check(self) -> None:
        """Raise AssertionError unless the table has exactly the rows of all commits."""
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
        raise RuntimeError("a writer ended unexpectedly; its error is above")
    return line


@contextmanager
def _started(plan: Plan, on_step: Step) -> Iterator[dict[str, Writers]]:
    """Start the writers of both ways, and stop them after the block."""
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
    """Return the commits per second of all writers together."""
    return sum(turn.commits / turn.seconds for turn in turns)


# ------------------------------------------------------------------------------------------ in turns


def _local(both: Mapping[str, Writers], plan: Plan, folder: Path, on_step: Step) -> Finding:
    folder.mkdir(parents=True)
    for way, writers in both.items():
        writers.open(str(folder / way), {})
    ways = _in_turns(both, plan, on_step, "local")
    flat, curves = _flatness(both[OURS], plan, folder, on_step)
    for writers in both.values():
        writers.check()
    return Finding(
        "commits",
        f"commits of {ROWS} rows by {WRITERS} writers at once, local",
        "commits per second",
        ways,
        [_goal(ways, _WHY + _WHY_LOCAL), flat],
        curves=curves,
        short=f"{WRITERS} writers, local",
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
        [_goal(ways, _WHY)],
        counts=counts,
        short=f"{WRITERS} writers, S3",
        notes=[
            *_notes(both),
            f"{WRITERS} writers that only wait for two requests of {plan.latency_ms:g} ms each would make {most:,.0f} "
            "commits per second. The server and the proxy share the two processors with them.",
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


def _goal(ways: Sequence[Way], why: str) -> Check:
    ours, theirs = ways
    value, spread = ratio_to(ours, theirs)
    return Check(f"at least {GOAL:g} times deltalake", value, GOAL, at_least=True, why=why, spread=spread)


def _notes(both: Mapping[str, Writers]) -> list[str]:
    lost = both[DELTALAKE].lost
    return [
        "Each writer is a process with the table open, which repeatedly appends its batch, sorted in icedb and "
        f"unsorted in deltalake. The tables grew to some {both[OURS].commits:,} and {both[DELTALAKE].commits:,} "
        "commits. Writers of icedb never conflict. A writer of deltalake that loses a version retries the next one, up "
        f"to 1,000 times. It failed {lost:,} times.",
    ]


def _requests(store: SlowStore, uri: str, options: Mapping[str, str]) -> dict[str, float]:
    """Return the requests of one append by kind, for a handle that has appended once."""
    _create(OURS, uri, options)
    table, rows = Table.open(uri, storage_options=options), batch()
    table.insert(rows)
    store.reset()
    for _ in range(COUNTED):
        table.insert(rows)
    return {f"{kind} of an append": number / COUNTED for kind, number in sorted(store.counts.items())}


# ------------------------------------------------------------------------------------------ over a long life


def _flatness(writers: Writers, plan: Plan, folder: Path, on_step: Step) -> tuple[Check, list[Curve]]:
    """Measure our rate and a commit's processor time in each tenth of many commits, in turns with a new table.

    So other load of the machine is not mistaken for an effect of the growing log.
    """
    commits = plan.size(1_200, 20_000)
    task = Task(commits=max(1, commits // (TENTHS * len(writers.processes))))
    before, upto = writers.commits, []
    rates: dict[str, list[float]] = {_GROWS: [], _NEW: []}
    costs: dict[str, list[float]] = {_GROWS: [], _NEW: []}
    for tenth in range(TENTHS):
        on_step(f"commits, local: {commits:,} of {OURS}, tenth {tenth + 1}")
        for name, turns in (
            (_NEW, writers.beside(str(folder / f"new-{tenth}"), task)),
            (_GROWS, writers.do(task)),
        ):
            rates[name].append(_rate(turns))
            costs[name].append(1000 * sum(t.processor_seconds for t in turns) / sum(t.commits for t in turns))
        upto.append(float(writers.commits))
    late = [a / b for a, b in zip(rates[_GROWS], rates[_NEW], strict=True)][TENTHS // 2 :]
    cost = {name: median(values[TENTHS // 2 :]) for name, values in costs.items()}
    flat = Check(
        f"flat from {before:,} to {upto[-1]:,.0f} commits: in the second half, the rate to that of a new table at "
        f"least {FLAT:g}",
        median(late),
        FLAT,
        at_least=True,
        why=f"a commit took {cost[_GROWS]:.1f} ms of processor time there, and {cost[_NEW]:.1f} ms in a new table; "
        "the rest is time of waiting for the disk and the other writers",
        spread=(min(late), max(late)),
    )
    return flat, [
        Curve("commits per second while the log grows", "commits", "commits per second", upto, rates),
        Curve("processor time of a commit while the log grows", "commits", "ms", upto, costs),
    ]
