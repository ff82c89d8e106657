"""A process of the mixed load that may be killed at any moment. It writes, upserts, merges, changes, cleans or reads.

Started by tests/support/programs/mixed_load.py; credentials come by the environment. What it means to do and what was
acknowledged it writes to a journal, synced, before and after. Half of its lives end by its own hand, right before or
after some request: a kill by the clock rarely falls between two of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from icedb import Table, Timing
from icedb.errors import InvalidOption, OutcomeUnknownError, RetryableError, SnapshotExpired
from icedb.reader.snapshot import Snapshot
from icedb.storage.location import parse_location
from icedb.storage.object_store import StoredObject
from icedb.storage.obstore_store import open_store
from icedb.testing import FaultyStore, Request
from icedb.transaction.open_table import open_handle
from tests.support.processes import json_lines

# As short as possible on a busy machine, so that claims become void and grace periods end within a minute.
TIMING = Timing(
    max_skew_ms=1_000, commit_timeout_ms=2_000, grace_ms=8_000, part_timeout_ms=6_000, min_age_ms=12_000, late_ms=60_000
)
# S3 reports times in whole seconds, and a busy machine reads its clock late.
SLACK_MS = 1_500
# Nothing is published this far back any more.
SETTLED_MS = TIMING.commit_timeout_ms + 2 * TIMING.max_skew_ms + SLACK_MS

#: Writer number -> its role. The two of `once` are the same application, as two attempts of one step would be.
WRITERS = {"plain": 0, "columns": 1, "once-a": 2, "once-b": 2}
#: The roles that upsert the same rows, whose partition changes, all at once.
UPSERTERS = {"upserter-a": 8, "upserter-b": 8}
UPSERTED_ROWS = 10
#: The partition and the writer number of rows that come and go.
CHANGING = 9
COLUMNS_MAX = 12

#: (writer, batch)
Batch = tuple[int, int]


class MortalStore(FaultyStore):
    """Counts many gets as one request, so that they are made as they always are: at once."""

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        return dict(self._do("get", tuple(keys), lambda: self.inner.get_many(keys))) if keys else {}


class Journal:
    """A file of one role over all its lives. Each line is synced before the role continues."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, **line: Any) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())
        os.fsync(self._file)


def batches(folder: Path, kind: str) -> set[Batch]:
    """Return the batches that a writer intended (`intent`), or that were acknowledged (`ack`)."""
    return {
        (number, line[kind])
        for role, number in {**WRITERS, **UPSERTERS}.items()
        for line in json_lines(folder / f"{role}.jsonl")
        if kind in line
    }


def batch_rows(writer: int, batch: int, *, attempt: str, brings: bool) -> list[dict[str, Any]]:
    total = 1 + batch % 7
    column = {f"c{batch // 6 % COLUMNS_MAX}": 1} if brings and batch % 6 == 5 else {}
    return [
        {"k": (batch + i) % 3, "writer": writer, "batch": batch, "i": i, "total": total, "attempt": attempt, **column}
        for i in range(total)
    ]


def check_batches(snapshot: Snapshot) -> set[Batch]:
    """Return the batches of a snapshot. Each must be complete, from one attempt, and stored once."""
    counts = snapshot.query(
        "SELECT writer, batch, count(*), count(DISTINCT i), count(DISTINCT attempt), max(total) FROM t "
        f"WHERE writer != {CHANGING} GROUP BY ALL"
    ).fetchall()
    wrong = [row for row in counts if not row[2] == row[3] == row[5] or row[4] != 1]
    if wrong:
        raise AssertionError(
            f"at {snapshot.as_of_ms}, epoch {snapshot.epoch}: batches that are not there whole and once (writer, "
            f"batch, rows, distinct rows, attempts, rows there should be): {wrong}"
        )
    return {(writer, batch) for writer, batch, *_ in counts}


@dataclass
class ProcessLife:
    """One process's time, from its start to its stop or death."""

    role: str
    number: int
    uri: str
    folder: Path
    seed: int
    parent: int = field(default_factory=os.getppid)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed} {self.role} {self.number}")
        self.journal = Journal(self.folder / f"{self.role}.jsonl")
        self.fatal_request = self.chance.randint(2, 60) if self.chance.random() < 0.5 else 0
        self.hook = self.chance.choice(["before", "after"])

    def open(self) -> Table:
        store = MortalStore(open_store(parse_location(self.uri)))
        setattr(store, self.hook, self._die)
        table = Table(open_handle(store))
        self.journal.add(opened=self.number)
        return table

    def _die(self, request: Request) -> None:
        if request.number == self.fatal_request:
            os.kill(os.getpid(), signal.SIGKILL)

    def goes_on(self, *, pause_s: float) -> bool:
        time.sleep(self.chance.random() * pause_s)
        return not (self.folder / "stop").exists() and os.getppid() == self.parent


def write(life: ProcessLife) -> None:
    """Batch after batch; with a transaction, the same one until it is acknowledged."""
    table, writer, once = life.open(), WRITERS[life.role], life.role.startswith("once")
    lines = json_lines(life.folder / f"{life.role}.jsonl")
    last = "ack" if once else "intent"
    batch = 1 + max((line[last] for line in lines if last in line), default=-1)
    tries = 0
    # A test's S3 server does one request at a time: writers alone could keep it busy.
    pause_s = 0.5 if life.uri.startswith("s3:") else 0.1
    while life.goes_on(pause_s=pause_s):
        tries += 1
        rows = batch_rows(writer, batch, attempt=f"{life.role}-{life.number}-{tries}", brings=life.role != "plain")
        life.journal.add(intent=batch)
        try:
            commit = table.insert(rows, txn=("once", batch) if once else None)
        except RetryableError as error:
            life.journal.add(again=type(error).__name__)  # no row of it is stored, now or later
            continue
        except OutcomeUnknownError:
            life.journal.add(uncertain=batch)
            batch += not once
            continue
        life.journal.add(ack=batch, repeated=commit.repeated)
        batch += 1


def maintain(life: ProcessLife, acts: Iterable[Callable[[Table], Any]], *, pause_s: float) -> None:
    table, choices = life.open(), list(acts)
    while life.goes_on(pause_s=pause_s):
        act = life.chance.choice(choices)
        try:
            done = act(table)
        except (RetryableError, OutcomeUnknownError, SnapshotExpired) as error:
            life.journal.add(again=type(error).__name__)
            continue
        committed = getattr(getattr(done, "commit", done), "committed", False)
        life.journal.add(done=type(done).__name__, committed=committed)
        if life.chance.random() < 0.1:
            table = life.open()


def merge(life: ProcessLife) -> None:
    maintain(life, [lambda t: t.merge(), lambda t: t.merge(part_bytes_max=8_000), lambda t: t.merge_log()], pause_s=0.4)


def clean(life: ProcessLife) -> None:
    maintain(life, [lambda t: t.cleanup(), lambda t: t.cleanup(), lambda t: t.delete_orphans()], pause_s=0.6)


def change(life: ProcessLife) -> None:
    """Remove rows in every way, in a separate partition."""
    path = f"k={CHANGING}"
    rows = [{"k": CHANGING, "writer": CHANGING, "batch": life.number, "i": i, "total": 20} for i in range(20)]

    def rewrite(table: Table) -> Any:
        if path not in table.snapshot().partitions():
            return table.insert(rows)
        return table.rewrite_partition(path, "SELECT * FROM t WHERE i % 2 = 0")

    maintain(
        life,
        [
            lambda t: t.insert(rows),
            lambda t: t.overwrite(rows, partitions=[path]),
            lambda t: t.drop_partitions([path], missing_ok=True),
            lambda t: t.delete(f"writer = {CHANGING} AND i < 5"),
            rewrite,
        ],
        pause_s=0.5,
    )


def upsert(life: ProcessLife) -> None:
    """Replace the same rows again and again. Each snapshot has each of them once, and all from one attempt."""
    writer, tries = UPSERTERS[life.role], 0

    def replace(table: Table) -> Any:
        nonlocal tries
        tries += 1
        life.journal.add(intent=0)
        attempt = f"{life.role}-{life.number}-{tries}"
        rows = [
            {"k": (tries + i) % 3, "writer": writer, "batch": 0, "i": i, "total": UPSERTED_ROWS, "attempt": attempt}
            for i in range(UPSERTED_ROWS)
        ]
        report = table.upsert(rows, on=["writer", "batch", "i"])
        life.journal.add(ack=0)
        return report

    maintain(life, [replace, replace, lambda t: t.update({"k": "(k + 1) % 3"}, f"writer = {writer}")], pause_s=0.5)


def read(life: ProcessLife) -> None:
    """Check that snapshots have every earlier acknowledged batch, and stay the same during the grace period."""
    table = life.open()
    held: tuple[float, set[Batch], Snapshot] | None = None
    past: dict[int, tuple[frozenset[str], Any]] = {}
    while life.goes_on(pause_s=0.2):
        if held is None or life.chance.random() < 0.4:
            before = time.monotonic() * 1000, batches(life.folder, "ack")
            try:
                held = (*before, table.snapshot())
            except RetryableError as error:
                life.journal.add(again=type(error).__name__)
                continue
        if not _read_again(life, *held):
            held = None
        _travel(life, table, past)
        if life.chance.random() < 0.1:
            table = life.open()


def _read_again(life: ProcessLife, since_ms: float, acknowledged: set[Batch], snapshot: Snapshot) -> bool:
    """Return whether the snapshot can still be read, which it must for nearly the grace period."""
    try:
        missing = acknowledged - check_batches(snapshot)
    except (SnapshotExpired, duckdb.IOException) as error:
        age_ms = time.monotonic() * 1000 - since_ms
        if age_ms < TIMING.grace_ms - SLACK_MS:
            raise AssertionError(f"{snapshot} cannot be read any more after {age_ms:.0f} ms") from error
        life.journal.add(again=type(error).__name__)
        return False
    except RetryableError as error:
        life.journal.add(again=type(error).__name__)
        return True
    if missing:
        raise AssertionError(f"{snapshot}, epoch {snapshot.epoch}: acknowledged, and not there: {missing}")
    life.journal.add(read=len(snapshot.parts))
    return True


def _travel(life: ProcessLife, table: Table, past: dict[int, tuple[frozenset[str], Any]]) -> None:
    past.setdefault(time.time_ns() // 1_000_000 - SETTLED_MS, (frozenset(), None))
    at_ms = life.chance.choice(list(past))
    try:
        snapshot = table.snapshot(as_of=at_ms)
        rows = snapshot.query("SELECT count(*), sum(hash(writer, batch, i, attempt)) FROM t").fetchall()
        check_batches(snapshot)
    except (SnapshotExpired, RetryableError, duckdb.IOException) as error:
        life.journal.add(again=f"{type(error).__name__} of the past")
        del past[at_ms]
        return
    except InvalidOption as error:
        if "before the table's creation" not in str(error):
            raise
        del past[at_ms]
        return
    now, before = (frozenset(p.key for p in snapshot.parts), rows), past[at_ms]
    if before[1] is not None and now != before:
        raise AssertionError(
            f"the snapshot at {at_ms} has changed: {before[1]} became {rows}; new parts {now[0] - before[0]}, "
            f"missing parts {before[0] - now[0]}"
        )
    past[at_ms] = now
    life.journal.add(travelled=at_ms)


ACTS: dict[str, Callable[[ProcessLife], None]] = {
    **dict.fromkeys(WRITERS, write),
    "merger-a": merge,
    "merger-b": merge,
    "changer": change,
    **dict.fromkeys(UPSERTERS, upsert),
    "cleaner": clean,
    "reader-a": read,
    "reader-b": read,
}


def live(role: str, number: int, uri: str, folder: Path, seed: int) -> None:
    """Run a process. Its errors are written to a file beside its journal."""
    os.dup2(os.open(folder / f"{role}.err", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    ACTS[role](ProcessLife(role, number, uri, folder, seed))
