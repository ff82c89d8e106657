"""Real processes on one table lose and duplicate no row, and a killed one leaves no partial commit."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from icedb import Table, Timing
from icedb.testing import check_sound
from tests.support.programs.worker import main
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.process

# Forked by a server that has imported everything: a start costs milliseconds, not half a second of a processor.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["icedb.table", "icedb.testing"])
# Short enough for a test to wait for, and far longer than any of its commits takes.
SHORT = {"max_skew_ms": 1_500, "commit_timeout_ms": 2_000, "grace_ms": 4_000}


class Worker:
    """A process of `tests/support/programs/worker.py`."""

    def __init__(self, place: Any, **task: Any) -> None:
        self._results, results = PROCESSES.Pipe(duplex=False)
        task |= {"uri": place.uri, "storage_options": place.storage_options}
        self._process = PROCESSES.Process(target=main, args=(results, task), daemon=True)
        self._process.start()
        results.close()

    def result(self) -> Any:
        """Wait for the result. Raises EOFError when the process failed, which has printed its error."""
        assert self._results.poll(SECONDS_MAX)
        return self._results.recv()

    def was_killed(self) -> bool:
        """Wait for the end. Return whether it was SIGKILL."""
        self._process.join(SECONDS_MAX)
        return self._process.exitcode == -signal.SIGKILL


def make(place: Any, timing: Timing | None = None) -> Table:
    options = place.storage_options
    return Table.create(place.uri, partition_by=["k"], sort_by=["n"], storage_options=options, timing=timing)


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return table.query("SELECT who, n, i FROM t ORDER BY ALL").fetchall()


@pytest.mark.sampled(cases=1)
def test_concurrent_inserts_of_eight_processes_lose_nothing(shared_place: Any, tmp_path: Path) -> None:
    table = make(shared_place)
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    batches = 6
    processes = [
        Worker(shared_place, do="insert", who=who, batches=batches, barrier=str(barrier), processes=8,
              new_column_at=3 if who < 3 else None)
        for who in range(8)
    ]  # fmt: skip
    for process in processes:
        process.result()
    assert rows_of(table) == [(who, n, i) for who in range(8) for n in range(batches) for i in range(5)]
    assert {"c0", "c1", "c2"} <= table.schema().keys()
    state = check_sound(table.handle.store)
    assert 1 + 3 <= state.epoch <= 8 + 3, "three new columns, and the first schema by all who were first at once"


@pytest.mark.sampled(cases=1)
def test_two_merges_started_at_the_same_moment_leave_every_row_once(shared_place: Any, tmp_path: Path) -> None:
    table = make(shared_place)
    for n in range(6):
        table.insert([{"k": k, "who": 0, "n": n, "i": k} for k in range(3)])
    expected = rows_of(table)
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    two = [Worker(shared_place, do="merge", barrier=str(barrier), processes=2) for _ in range(2)]
    reports = [process.result() for process in two]
    assert rows_of(table) == expected
    # One did the work; the other found its inputs gone, or came after it.
    assert sorted(r["merged"] for r in reports) == [0, 18]
    state = check_sound(table.handle.store)
    assert len(state.live) == 3
    stored = {info.key for info in table.handle.store.list(table.handle.keys.data_prefix)}
    assert stored == state.parts.keys(), "the loser deleted what it wrote"


@pytest.mark.sampled(cases=2)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("key", ["_claims/epoch-", "_log/"])
def test_a_merge_that_is_killed_leaves_the_next_one_a_whole_table(shared_place: Any, when: str, key: str) -> None:
    table = make(shared_place)
    for n in range(4):
        table.insert([{"k": 0, "who": 0, "n": n, "i": 0}])
    expected, before = rows_of(table), table.snapshot().id
    killed = Worker(shared_place, do="merge", kill={"when": when, "key": key})
    assert killed.was_killed()
    published = (when, key) == ("after", "_log/")
    assert (table.snapshot().id != before) is published
    assert rows_of(table) == expected

    report = table.merge()
    assert rows_of(table) == expected
    assert len(table.snapshot().parts) == 1
    state = check_sound(table.handle.store)
    # With a claim in the store, the next merge completes it and has nothing left to do; without, it merges itself.
    claimed = (when, key) != ("before", "_claims/epoch-")
    assert report.commit.committed is not claimed
    assert state.epoch == 2


@pytest.mark.s3
def test_a_merge_that_was_killed_long_ago_is_void(s3: Any) -> None:
    table = make(s3, Timing(**SHORT))
    for n in range(4):
        table.insert([{"k": 0, "who": 0, "n": n, "i": 0}])
    expected = rows_of(table)
    killed = Worker(s3, do="merge", kill={"when": "after", "key": "_claims/epoch-"})
    assert killed.was_killed()
    time.sleep((SHORT["commit_timeout_ms"] + 200) / 1000)
    report = table.merge()
    assert (report.commit.committed, report.merged_parts) == (True, 4)
    assert rows_of(table) == expected
    state = check_sound(table.handle.store)
    # A claim of the second merge is void, too, if the machine takes so long for an attempt.
    void = sorted(f.file.epoch or 0 for f in state.files.values() if f.file.void)
    assert void == [*range(2, report.commit.epoch or 0)]


@pytest.mark.sampled(cases=1)
def test_an_insert_that_is_killed_is_visible_whole_or_not_at_all(shared_place: Any) -> None:
    table = make(shared_place)
    table.insert([{"k": 0, "who": 9, "n": 0, "i": 0}, {"k": 1, "who": 9, "n": 0, "i": 1}])
    for when, visible in (("before", 2), ("after", 7)):
        killed = Worker(shared_place, do="insert", who=1, batches=1, kill={"when": when, "key": "_log/"})
        assert killed.was_killed()
        assert len(rows_of(table)) == visible
    check_sound(table.handle.store)
