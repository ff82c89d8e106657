"""A writer process of `benchmarks.writes.commits`, which repeatedly appends the same small batch.

    python -m benchmarks.writes.commits_writer icedb

Each line of its input is a `Task` in JSON: a table to open and append to once, or the time or number of appends to the
open table. It prints a `Turn` in JSON for each task, and exits at the end of its input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa

__all__ = ["ROWS", "Task", "Turn", "batch"]

#: Rows of each append.
ROWS = 100
# Retries of a writer that loses a conflict. deltalake's default is 15.
RETRIES_MAX = 1_000


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command to a writer: one of `open`, `seconds` and `commits`."""

    open: str = ""
    options: dict[str, str] = {}
    seconds: float = 0
    commits: int = 0


class Turn(msgspec.Struct, frozen=True):
    """The result of a task: commits, attempts that were lost to other writers, and times."""

    commits: int
    lost: int
    seconds: float
    processor_seconds: float


def batch() -> pa.Table:
    """Return the batch of each append."""
    return pa.table(
        {
            "ts": pa.array(range(1_790_000_000_000, 1_790_000_000_000 + ROWS), pa.int64()),
            "user_id": pa.array([n % 7 for n in range(ROWS)], pa.int64()),
            "event": pa.array([("view", "click", "buy")[n % 3] for n in range(ROWS)]),
            "amount": pa.array([n / 7 for n in range(ROWS)]),
        }
    )


def _icedb(uri: str, options: Mapping[str, str]) -> Callable[[], bool]:
    from icedb import Table

    table, rows = Table.open(uri, storage_options=options), batch()

    def append() -> bool:
        return table.insert(rows).committed

    return append


def _deltalake(uri: str, options: Mapping[str, str]) -> Callable[[], bool]:
    from deltalake import CommitProperties, DeltaTable, write_deltalake
    from deltalake.exceptions import CommitFailedError

    table, rows = DeltaTable(uri, storage_options=dict(options)), batch()
    properties = CommitProperties(max_commit_retries=RETRIES_MAX)

    def append() -> bool:
        try:
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError:
            return False
        return True

    return append


def _turn(append: Callable[[], bool], task: Task) -> Turn:
    commits = lost = 0
    started, processor_started = time.perf_counter(), time.process_time()
    while commits < task.commits or time.perf_counter() - started < task.seconds:
        if append():
            commits += 1
        else:
            lost += 1
    return Turn(commits, lost, time.perf_counter() - started, time.process_time() - processor_started)


def _main(way: str) -> None:
    opened = {"icedb": _icedb, "deltalake": _deltalake}[way]
    append: Callable[[], bool] = lambda: True  # noqa: E731
    for line in sys.stdin:
        task = msgspec.json.decode(line, type=Task)
        if task.open:
            append, task = opened(task.open, task.options), Task(commits=1)
        sys.stdout.write(msgspec.json.encode(_turn(append, task)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
