"""Twelve processes on one table, killed at random and started again; then every batch is counted.

    python -m tests.support.programs.mixed_load --uri s3://bucket/table --seconds 120 --seed 7

Four writers, two that upsert the same rows, two mergers, two readers, one that overwrites, drops, rewrites and
deletes, and one that cleans up and sweeps orphans, all with times of seconds instead of hours. An acknowledged batch
must be stored completely and once; an unacknowledged one completely and once, or not at all. This holds for every
read. The last line has the figures. The seed decides which process is killed when, as far as the machine's timing
allows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from icedb import Table
from icedb.testing import check_sound
from tests.support.processes import json_lines
from tests.support.programs.mixed_load_roles import (
    ACTS,
    CHANGING,
    SLACK_MS,
    TIMING,
    UPSERTERS,
    WRITERS,
    batch_rows,
    batches,
    check_batches,
    live,
)

# Forked by a server that has imported everything: a start costs milliseconds, not half a second of a core.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["icedb.table", "icedb.testing", "pyarrow.dataset", "ssl"])
KILL_EVERY_S = (0.1, 0.7)
STOP_SECONDS_MAX = 240
# The last merge is alone, and finds all that killed or slow merges have left.
AT_REST = replace(TIMING, part_timeout_ms=20_000, min_age_ms=40_000)
# A machine that does much else runs on until each role has done something.
PATIENCE_S = 240
LONG_S = 60
#: Keys of journal lines of finished work.
DONE = {"ack", "done", "read"}


class MixedLoad:
    """The processes, and the number of kills."""

    def __init__(self, uri: str, folder: Path, seed: int, roles: Sequence[str]) -> None:
        self.uri, self.folder, self.seed, self.roles = uri, folder, seed, roles
        self.killed = 0
        self._lives: Counter[str] = Counter()
        self._processes: dict[str, BaseProcess] = {}

    def start(self, role: str) -> None:
        self._lives[role] += 1
        task = (role, self._lives[role], self.uri, self.folder, self.seed)
        self._processes[role] = PROCESSES.Process(target=live, args=task, name=role)
        self._processes[role].start()

    def run(self, seconds: float) -> None:
        chance = random.Random(self.seed)
        for role in self.roles:
            self.start(role)
        end = time.monotonic() + seconds
        while time.monotonic() < end or (time.monotonic() < end + PATIENCE_S and not all(map(self._done, self.roles))):
            time.sleep(chance.uniform(*KILL_EVERY_S))
            self._kill(chance.choice(self.roles), at_once=chance.random() < 0.2)
            for ended in [r for r, p in self._processes.items() if not p.is_alive()]:
                self._bury(ended)
                self.start(ended)

    def _kill(self, role: str, *, at_once: bool) -> None:
        """Kill a role, mostly after it has finished some work, so that a busy machine makes progress."""
        lines = json_lines(self.folder / f"{role}.jsonl")
        opened = [n for n, line in enumerate(lines) if line.get("opened") == self._lives[role]]
        if opened and (at_once or any(DONE & line.keys() for line in lines[opened[0] :])):
            self._processes[role].kill()
            self._processes[role].join()

    def _done(self, role: str) -> bool:
        return any(DONE & line.keys() for line in json_lines(self.folder / f"{role}.jsonl"))

    def stop(self) -> None:
        (self.folder / "stop").touch()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for role, process in self._processes.items():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                raise AssertionError(f"{role} does not stop")
            self._bury(role)

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()

    def _bury(self, role: str) -> None:
        code = self._processes[role].exitcode
        self.killed += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"{role} failed:\n{(self.folder / f'{role}.err').read_text()[-4000:]}")

    def figures(self, table: Table, seconds: float) -> str:
        lines = [line for role in self.roles for line in json_lines(self.folder / f"{role}.jsonl")]
        did = Counter(line["done"] for line in lines if line.get("committed"))
        again = Counter(line["again"] for line in lines if "again" in line)
        summary = ", ".join(f"{name} {count}" for name, count in sorted(again.items())) or "no errors"
        return (
            f"{self.killed} processes killed, {sum('ack' in line for line in lines) + did.total()} commits, "
            f"{did['MergeReport'] + did['MergeLogReport']} merges, epoch {table.snapshot().epoch}, "
            f"{sum('read' in line for line in lines)} snapshots and {sum('travelled' in line for line in lines)} past "
            f"ones read, {table.snapshot().rows} rows, {seconds:.0f} s, seed {self.seed} ({summary})"
        )


def audit(table: Table, folder: Path) -> None:
    """Check that every acknowledged batch is stored, each batch completely and once, and that the table is sound."""
    snapshot = table.snapshot()
    visible, intended, acknowledged = check_batches(snapshot), batches(folder, "intent"), batches(folder, "ack")
    if acknowledged - visible or visible - intended:
        raise AssertionError(f"lost: {sorted(acknowledged - visible)}; from nowhere: {sorted(visible - intended)}")
    report = table.verify(deep=True)
    if not report.ok:
        raise AssertionError(str(report))
    check_sound(table.handle.store)


def finish(table: Table, folder: Path, *, sweep: bool) -> None:
    """Repeat unfinished transactions, then check that no dead object is left."""
    writer = WRITERS["once-a"]
    for _, batch in sorted(b for b in batches(folder, "intent") - batches(folder, "ack") if b[0] == writer):
        table.insert(batch_rows(writer, batch, attempt="last", brings=True), txn=("once", batch))
        check_batches(table.snapshot())
    table.merge()
    table.merge_log()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    audit(table, folder)
    if sweep:
        time.sleep((AT_REST.min_age_ms + AT_REST.max_skew_ms + SLACK_MS) / 1000)
        Table.open(table.uri).delete_orphans()
        audit(table, folder)
        stored = {i.key for i in table.handle.store.list(table.handle.keys.data_prefix)}
        live = {p.key for p in table.snapshot().parts}
        if stored != live:
            raise AssertionError(f"left in the store though nothing needs it: {sorted(stored - live)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill processes at random, then count every batch.")
    parser.add_argument("--uri", required=True, help="where to create a table; credentials come by the environment")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    sys.stdout.write(f"seed {options.seed}\n")
    sys.stdout.flush()
    table = Table.create(options.uri, partition_by=["k"], sort_by=["writer", "batch"], timing=TIMING)
    table.insert([{"k": CHANGING, "writer": CHANGING, "batch": 0, "i": 0, "total": 1, "attempt": ""}])
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="icedb-mixed-load-") as name:
        # A test's S3 server does one request at a time, and an upsert sends many: a short run would not end.
        without = UPSERTERS if options.uri.startswith("s3:") and options.seconds < LONG_S else {}
        roles = [role for role in ACTS if role not in without]
        load = MixedLoad(options.uri, Path(name), options.seed, roles)
        try:
            load.run(options.seconds)
            load.stop()
            table = Table.open(options.uri)
            table.alter(timing=AT_REST)
            time.sleep((TIMING.grace_ms + TIMING.late_publication_ms) / 1_000)  # a sweep may use the old ones
            audit(table, load.folder)
            finish(table, load.folder, sweep=options.seconds >= LONG_S)
            sys.stdout.write(f"{load.figures(table, time.monotonic() - started)}\n")
        finally:
            load.kill_all()


if __name__ == "__main__":
    main()
