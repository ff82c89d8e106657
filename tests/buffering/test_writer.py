"""`BufferedWriter`: groups and acknowledgements, limits and waits, errors, flush and close."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icedb import Acknowledged, BufferedWriter, Table
from icedb.buffering.writer import _close_all
from icedb.errors import (
    BufferFull,
    CommitStateUnknown,
    InvalidBatch,
    InvalidOption,
    SchemaConflict,
    StoreUnavailable,
    WriterClosed,
)
from icedb.storage.obstore_store import ObjectExists
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, Request, check_sound, create_table, open_table
from tests.support.tables.numbered_rows import data_keys
from tests.support.waiting import SECONDS_MAX, wait_until

LONG_MS = 3_600_000


@pytest.fixture
def table(memory: Any) -> Table:
    return Table.create(memory.uri, sort_by=["n"])


def rows_of(table: Table, columns: str = "n") -> list[Any]:
    return [r[0] if len(r) == 1 else r for r in table.query(f"SELECT {columns} FROM t ORDER BY ALL").fetchall()]


def keys(futures: list[Future[Acknowledged]]) -> set[str | None]:
    return {f.result(SECONDS_MAX).key for f in futures}


class Gate:
    """A table whose commits wait before their first put of a part, until the test opens the gate."""

    def __init__(self) -> None:
        clock = ManualClock(ids="random")
        self.inner = ClockedStore(clock)
        create_table(self.inner, clock, sort_by=["n"])
        self.store = FaultyStore(self.inner)
        self.table = open_table(self.store, clock)
        self.table.insert([{"n": -1}])
        self.reached, self.open = threading.Event(), threading.Event()
        self.store.before = self._wait

    def _wait(self, request: Request) -> None:
        if request.kind == "create" and "/_data/" in request.keys[0]:
            self.reached.set()
            assert self.open.wait(SECONDS_MAX)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


# ------------------------------------------------------------------------------------------ groups


def test_a_group_is_one_commit_and_each_sender_gets_its_rows(table: Table) -> None:
    with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
        futures = [writer.submit([{"n": n}] * (n + 1)) for n in range(5)]
        assert not any(f.done() for f in futures)
        writer.flush()
        answers = [f.result(0) for f in futures]
    assert [a.rows for a in answers] == [1, 2, 3, 4, 5]
    assert len({a.key for a in answers}) == 1
    assert len(table.snapshot().parts) == 1
    assert table.snapshot().rows == 15
    assert answers[0].created_ms == table.snapshot().parts[0].created_ms
    stats = writer.stats()
    assert (stats.commits, stats.committed_rows, stats.pending_rows, stats.pending_bytes) == (1, 15, 0, 0)


@pytest.mark.parametrize("limit", [{"rows_max": 10}, {"bytes_max": 60}])
def test_a_large_group_does_not_wait(table: Table, limit: dict[str, Any]) -> None:
    with BufferedWriter(table, delay_max_ms=LONG_MS, **limit) as writer:
        few = writer.submit([{"n": 1}])
        assert not few.done()
        assert keys([few, writer.submit([{"n": n} for n in range(10)])]) == {few.result().key}


def test_the_oldest_rows_wait_for_delay_max_only(table: Table) -> None:
    with BufferedWriter(table, delay_max_ms=1) as writer:
        assert writer.submit([{"n": 1}]).result(SECONDS_MAX).rows == 1
        assert writer.write([{"n": 2}]).key != writer.write([{"n": 3}]).key


def test_the_next_group_gathers_during_a_commit(gate: Gate) -> None:
    with BufferedWriter(gate.table, delay_max_ms=0) as writer:
        first = writer.submit([{"n": 0}])
        assert gate.reached.wait(SECONDS_MAX)
        others = [writer.submit([{"n": n}]) for n in range(1, 9)]
        stats = writer.stats()
        assert (stats.pending_submissions, stats.pending_rows) == (9, 9)
        assert stats.oldest_pending_ms >= 0
        gate.open.set()
        assert len(keys([first])) == len(keys(others)) == 1
    assert writer.stats().commits == 2
    assert rows_of(gate.table) == list(range(-1, 9))


def test_dicts_and_arrow_of_any_kind_are_accepted(table: Table) -> None:
    with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
        futures = [
            writer.submit([{"n": 1}]),
            writer.submit(pa.table({"n": [2, 3]})),
            writer.submit(pa.record_batch({"n": [4]})),
            writer.submit(pa.table({"n": [5], "s": ["x"]})),
            writer.submit(
                pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), [pa.record_batch({"n": [6]})])
            ),
            writer.submit([{"n": 7}]),
            writer.submit([]),
        ]
        assert futures[-1].result() == Acknowledged(0)
        writer.flush()
    assert rows_of(table) == [1, 2, 3, 4, 5, 6, 7]
    assert len(keys([futures[0], futures[5]])) == len(keys([futures[1], futures[2], futures[4]])) == 1
    assert writer.stats().commits == 3, "one of dicts, and one for each Arrow schema"


@pytest.mark.parametrize("rows", [{"n": 1}, "rows", None, 5, b"x", {1, 2}])
def test_invalid_rows_are_rejected_at_once(table: Table, rows: object) -> None:
    with BufferedWriter(table) as writer, pytest.raises(InvalidBatch, match=r"memory://.* a list of dicts, or Arrow"):
        writer.submit(rows)


def test_rows_that_are_not_json_have_a_size(table: Table) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("odd")

    with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
        odd = writer.submit([{"n": 1, "odd": Odd()}, {"n": "\ud800"}])
        assert writer.stats().pending_bytes > 0
        with pytest.raises(InvalidBatch):
            writer.flush()
    assert odd.done()


def test_threads_and_event_loops_share_a_writer(table: Table) -> None:
    def thread(who: int) -> None:
        for n in range(5):
            assert writer.write([{"n": who * 100 + n}]).rows == 1

    def loop(who: int) -> None:
        async def one(n: int) -> None:
            assert (await writer.write_async([{"n": who * 100 + n}])).rows == 1

        async def every() -> None:
            await asyncio.gather(*map(one, range(20)))

        asyncio.run(every())

    with BufferedWriter(table, delay_max_ms=20) as writer, ThreadPoolExecutor(6) as pool:
        for done in [*(pool.submit(thread, who) for who in range(4)), *(pool.submit(loop, who) for who in (4, 5))]:
            done.result(SECONDS_MAX)
    assert rows_of(table) == sorted(
        [who * 100 + n for who in range(4) for n in range(5)] + [who * 100 + n for who in (4, 5) for n in range(20)]
    )
    assert writer.stats().commits < 60


# ------------------------------------------------------------------------------------------ rejected rows


def test_only_invalid_submissions_fail_and_name_their_row(table: Table) -> None:
    table.insert([{"n": 0}])
    with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
        good = [writer.submit([{"n": n}]) for n in range(1, 8)]
        text = writer.submit([{"n": 1}, {"n": "two"}])
        no_dict = writer.submit([{"n": 1}, ["n", 1]])
        more = [writer.submit([{"n": n}]) for n in range(8, 11)]
        wait_for_group(writer)
        with pytest.raises(SchemaConflict, match="in row 1"):
            text.result(0)
        with pytest.raises(InvalidBatch, match="row 1 is a list"):
            no_dict.result(0)
        assert None not in keys(good + more)
    assert rows_of(table) == list(range(11))
    stats = writer.stats()
    assert (stats.failed_submissions, stats.failed_rows, stats.committed_rows) == (2, 4, 10)
    assert unnamed(table) == set()


def wait_for_group(writer: BufferedWriter) -> None:
    """Wait as `flush` does, without raising errors."""
    writer._wait_for_all(None)


def unnamed(table: Table) -> set[str]:
    """Return the stored parts that the log does not name."""
    return data_keys(table.handle.store) - table.handle.read(fresh=True).parts.keys()


def test_conflicting_submissions_are_committed_one_after_the_other(table: Table) -> None:
    with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
        number, text = writer.submit([{"n": 1, "x": 1}]), writer.submit([{"n": 2, "x": "one"}])
        with pytest.raises(SchemaConflict, match="'x' is BIGINT in the table and VARCHAR in the batch"):
            writer.flush()
    assert text.done()
    assert number.result().rows == 1
    assert rows_of(table) == [1]


@pytest.mark.sampled(days=3)
def test_invalid_rows_are_quarantined_with_on_conflict_quarantine(table: Table) -> None:
    table.insert([{"n": 0}])
    with BufferedWriter(table, delay_max_ms=LONG_MS, on_conflict="quarantine") as writer:
        futures = [writer.submit([{"n": 1}]), writer.submit([{"n": "two"}, {"n": 3}])]
        writer.flush()
        only = writer.submit([{"n": "four"}])
        writer.flush()
    assert [(f.result().rows, f.result().commit_quarantined_rows) for f in futures] == [(1, 1), (2, 1)]
    assert only.result() == Acknowledged(1, commit_quarantined_rows=1)
    assert rows_of(table) == [0, 1, 3]
    aside = Table.open(f"{table.uri}_quarantine")
    assert rows_of(aside, "row") == ['{"n":"four"}', '{"n":"two"}']
    assert writer.stats().quarantined_rows == 2
    assert unnamed(table) == unnamed(aside) == set()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_view_is_fed(table: Table) -> None:
    table.insert([{"n": 0}])
    view = table.create_view("sums", "SELECT CAST(sum(n) AS BIGINT) AS s FROM _rows")
    with BufferedWriter(table) as writer:
        writer.submit([{"n": 1}])
        writer.submit([{"n": 2}])
    assert rows_of(view, "sum(s)") == [3]


# ------------------------------------------------------------------------------------------ room


def test_a_submission_waits_for_room_or_raises_buffer_full(gate: Gate) -> None:
    big = [{"n": n} for n in range(10)]  # some 90 bytes
    with BufferedWriter(gate.table, delay_max_ms=0, pending_bytes_max=100) as writer:
        first = writer.submit(big)
        assert gate.reached.wait(SECONDS_MAX)
        with pytest.raises(BufferFull, match=r"no room .* within 0 ms: \d+ bytes"):
            writer.submit(big, timeout_ms=0)
        with pytest.raises(BufferFull):
            writer.write(big, timeout_ms=1)
        second: list[Acknowledged] = []
        waiting = threading.Thread(target=lambda: second.append(writer.write(big)))
        waiting.start()
        with pytest.raises(BufferFull):
            asyncio.run(writer.write_async(big, timeout_ms=1))
        assert writer.stats().pending_submissions == 1
        gate.open.set()
        waiting.join(SECONDS_MAX)
        assert second[0].key != first.result().key
        assert writer.write([{"n": 1}] * 1000).rows == 1000, "larger than all room: alone"
    assert gate.table.snapshot().rows == 1 + 10 + 10 + 1000


def test_an_event_loop_runs_while_a_task_waits_for_room(gate: Gate) -> None:
    big = [{"n": n} for n in range(10)]

    async def story(writer: BufferedWriter) -> None:
        first = asyncio.create_task(writer.write_async(big))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(writer.write_async(big)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait(waiting, timeout=0.01)
        assert [t.done() for t in waiting] == [False, True, False]
        gate.open.set()
        answers = await asyncio.gather(first, waiting[0], waiting[2])
        assert len({a.key for a in answers}) == 3

    with BufferedWriter(gate.table, delay_max_ms=0, pending_bytes_max=100) as writer:
        asyncio.run(story(writer))
    assert writer.stats().pending_bytes == writer._room.taken == 0
    assert gate.table.snapshot().rows == 31


def test_a_submission_cancelled_before_its_group_is_dropped(gate: Gate) -> None:
    with BufferedWriter(gate.table, delay_max_ms=0) as writer:
        begun = writer.submit([{"n": 1}])
        assert gate.reached.wait(SECONDS_MAX)
        waiting = writer.submit([{"n": 2}])
        assert waiting.cancel()
        assert not begun.cancel()
        gate.open.set()
    assert rows_of(gate.table) == [-1, 1]
    assert writer._room.taken == 0


# ------------------------------------------------------------------------------------------ when the store is away


def no_waiting(writer: BufferedWriter) -> None:
    """Make the writer retry at once."""
    writer._give_up.wait = lambda timeout=None: False  # type: ignore[method-assign]


@pytest.fixture
def flaky() -> tuple[Table, FaultyStore]:
    clock = ManualClock(ids="random")
    inner = ClockedStore(clock)
    create_table(inner, clock, sort_by=["n"]).insert([{"n": 0}])
    store = FaultyStore(inner)
    return open_table(store, clock), store


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_RESPONSE, Fault.DELAY])
@pytest.mark.parametrize("rows", [[{"n": 1}], [{"n": 1, "new": 1}]], ids=["plain", "brings a column"])
@pytest.mark.parametrize("where", ["_data/", "_log/", "_claims/"])
def test_a_temporary_failure_duplicates_no_row(
    flaky: tuple[Table, FaultyStore], fault: Fault, rows: list[dict[str, int]], where: str
) -> None:
    table, store = flaky
    with BufferedWriter(table, delay_max_ms=0) as writer:
        no_waiting(writer)
        store.inject(fault, kind="create", key=where, times=2)
        store.inject(Fault.FAIL, kind="get", key="_log/", times=2)
        assert writer.write(rows).rows == 1
    for late in store._delayed:
        with suppress(ObjectExists):
            late()
    assert rows_of(table) == [0, 1]
    check_sound(store.inner)


def test_a_permanent_failure_is_raised_to_the_sender(flaky: tuple[Table, FaultyStore]) -> None:
    table, store = flaky
    with BufferedWriter(table, delay_max_ms=0, retry_max_ms=0) as writer:
        store.inject(Fault.FAIL, kind="create", key="_data/", times=100)
        with pytest.raises(StoreUnavailable):
            writer.write([{"n": 1}])
        store._rules.clear()
        assert writer.write([{"n": 2}]).rows == 1
    assert rows_of(table) == [0, 2]
    assert writer.stats().failed_rows == 1


def test_the_outcome_of_a_lost_response_is_determined(flaky: tuple[Table, FaultyStore]) -> None:
    table, store = flaky
    table.snapshot()  # the log is known, so the next that is read is what was put
    before = {i.key for i in store.inner.list("table/_log/")}
    with BufferedWriter(table, delay_max_ms=0) as writer:
        clock = table.handle.clock
        assert isinstance(clock, ManualClock)
        writer._give_up.wait = lambda timeout=None: bool(clock.advance(1_000))  # type: ignore[method-assign, func-returns-value]
        store.inject(Fault.LOSE_RESPONSE, kind="create", key="_log/")
        store.inject(Fault.FAIL, kind="get", key="_log/")  # reading back fails, too
        answer = writer.write([{"n": 1}])
    assert answer.key is not None
    assert {i.key for i in store.inner.list("table/_log/")} - before == {answer.key}, "not put a second time"
    assert rows_of(table) == [0, 1]
    assert writer.stats().retries == 1


def test_parts_that_may_be_merged_already_are_not_published_again(flaky: tuple[Table, FaultyStore]) -> None:
    """The response is lost. The machine pauses for hours, and the rows are merged into another part meanwhile."""
    table, store = flaky
    table.snapshot()
    clock = table.handle.clock
    assert isinstance(clock, ManualClock)
    slept: list[int] = []

    def sleep(timeout: float | None = None) -> bool:
        if not slept:
            other = open_table(store.inner, clock)
            clock.advance(60_000)
            other.merge()
            for _ in range(2):
                clock.advance(2 * LONG_MS)
                other.cleanup()
        slept.append(1)
        return len(slept) > 1

    with BufferedWriter(table, delay_max_ms=0) as writer:
        writer._give_up.wait = sleep  # type: ignore[method-assign]
        store.inject(Fault.LOSE_RESPONSE, kind="create", key="_log/")
        store.inject(Fault.FAIL, kind="get", key="_log/")
        with pytest.raises(CommitStateUnknown, match="Check whether the table has them"):
            writer.write([{"n": 1}])
    check_sound(store.inner)
    assert rows_of(open_table(store.inner, clock)) == [0, 1]


# ------------------------------------------------------------------------------------------ the end


def test_close_commits_all_rows_and_rejects_later_ones(table: Table) -> None:
    writer = BufferedWriter(table, delay_max_ms=LONG_MS)
    future = writer.submit([{"n": 1}])
    writer.close()
    writer.close()
    assert future.result(0).rows == 1
    for late in (lambda: writer.submit([{"n": 2}]), lambda: writer.write([{"n": 2}]), writer.flush):
        with pytest.raises(WriterClosed, match="is closed"):
            late()
    with pytest.raises(WriterClosed):
        asyncio.run(writer.write_async([{"n": 2}]))
    assert rows_of(table) == [1]
    assert not writer._thread.is_alive()


def test_close_with_a_timeout_drops_waiting_submissions(gate: Gate) -> None:
    writer = BufferedWriter(gate.table, delay_max_ms=0, pending_bytes_max=20)
    begun = writer.submit([{"n": 1}])
    assert gate.reached.wait(SECONDS_MAX)
    waiting = writer.submit([{"n": 2}])
    refused: list[BaseException] = []

    def without_room() -> None:
        try:
            writer.write([{"n": 3}] * 10)
        except WriterClosed as error:
            refused.append(error)

    thread = threading.Thread(target=without_room)
    thread.start()
    wait_until(lambda: writer._room._queue, "the thread waits for room")
    with pytest.raises(BufferFull, match="2 of 2 submissions were not answered within 1 ms"):
        writer.close(timeout_ms=1)
    with pytest.raises(WriterClosed, match="Nothing of them is in the table"):
        waiting.result(0)
    thread.join(SECONDS_MAX)
    assert len(refused) == 1
    gate.open.set()
    assert begun.result(SECONDS_MAX).rows == 1
    writer._thread.join(SECONDS_MAX)
    assert rows_of(gate.table) == [-1, 1]


def test_flush_with_a_timeout_reports_the_remaining_submissions(gate: Gate) -> None:
    with BufferedWriter(gate.table, delay_max_ms=0) as writer:
        writer.submit([{"n": 1}])
        assert gate.reached.wait(SECONDS_MAX)
        with pytest.raises(BufferFull, match="1 of 1"):
            writer.flush(timeout_ms=1)
        gate.open.set()
        writer.flush()


def test_an_unread_error_is_raised_by_close(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    table.insert([{"n": 0}])
    writer = BufferedWriter(table, delay_max_ms=LONG_MS)
    seen, first, second = (writer.submit([{"n": text}]) for text in "abc")
    wait_for_group(writer)
    with pytest.raises(SchemaConflict):
        seen.result(0)
    with pytest.raises(SchemaConflict):
        writer.close()
    assert "2 submissions failed, and their errors were not read" in caplog.text
    assert first.done()
    assert second.done()
    writer.close()


def two_and_an_error(table: Table) -> None:
    with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
        writer.submit([{"n": "text"}])
        writer.submit([{"n": 1}])
        raise KeyError("mine")


class Row(dict[str, Any]):
    """A row that weak references can track."""


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_kept_error_does_not_keep_its_rows(table: Table) -> None:
    table.insert([{"n": 0}])
    rows = [Row(n="text"), Row(n=1)]
    kept = [weakref.ref(row) for row in rows]
    with BufferedWriter(table, delay_max_ms=0) as writer:
        futures = [writer.submit([row]) for row in rows]
        wait(futures, SECONDS_MAX)
        rows.clear()
        wait_until(lambda: (gc.collect(), not any(ref() for ref in kept))[1], "no row is there any more")
        assert isinstance(futures[0].exception(), SchemaConflict)


def test_a_read_error_is_forgotten(table: Table) -> None:
    table.insert([{"n": 0}])
    with BufferedWriter(table, delay_max_ms=0) as writer:
        for _ in range(3):
            with pytest.raises(SchemaConflict):
                writer.write([{"n": "text"}])
        writer.write([{"n": 1}])
        writer.flush()
        assert not writer._failed


def test_the_error_of_a_with_block_comes_first(table: Table) -> None:
    table.insert([{"n": 0}])
    with pytest.raises(KeyError, match="mine"):
        two_and_an_error(table)
    assert rows_of(table) == [0, 1]


def test_a_with_block_of_an_event_loop_flushes(table: Table) -> None:
    async def story() -> None:
        async with BufferedWriter(table, delay_max_ms=LONG_MS) as writer:
            writer.submit([{"n": 1}])

    asyncio.run(story())
    assert rows_of(table) == [1]


def test_an_unexpected_error_stops_the_writer_and_ends_all_waits(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    writer = BufferedWriter(gate.table, delay_max_ms=0)
    monkeypatch.setattr(writer._committer, "commit", leave)
    futures = [writer.submit([{"n": 1}])]
    with pytest.raises(SystemExit):
        futures[0].result(SECONDS_MAX)
    with pytest.raises(WriterClosed):
        writer.submit([{"n": 2}])
    writer._thread.join(SECONDS_MAX)


def leave(group: object) -> None:
    raise SystemExit(1)


@contextmanager
def forked(act: Callable[[], None]) -> Iterator[int]:
    """Run `act` in a forked child, and yield its exit status: 0 if `act` raised nothing."""
    pid = os.fork()
    if not pid:
        try:
            act()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    yield os.waitpid(pid, 0)[1]


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_cannot_use_the_writer(table: Table) -> None:
    writer = BufferedWriter(table, delay_max_ms=LONG_MS)
    future = writer.submit([{"n": 1}])

    def child() -> None:
        with pytest.raises(WriterClosed, match=r"carried into .* by a fork"):
            writer.submit([{"n": 2}])
        with pytest.raises(WriterClosed):
            writer.flush()
        _close_all()
        writer.close()

    with forked(child) as status:
        assert status == 0
    writer.close()
    assert future.result().rows == 1


AT_EXIT = """
import sys, threading, icedb
table = icedb.Table.open(sys.argv[1])
writer = icedb.BufferedWriter(table, delay_max_ms=3_600_000)
writer.submit([{"n": 1}])
if sys.argv[2] == "lost":
    writer.submit([{"n": "text"}])
if sys.argv[2] == "raises":
    raise KeyError("mine")
"""


@pytest.mark.process
@pytest.mark.parametrize(("how", "status", "message"), [("raises", 1, "mine"), ("lost", 0, "not all are")])
def test_pending_rows_are_committed_or_reported_at_exit(local: Any, how: str, status: int, message: str) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 0}])
    command = [sys.executable, "-c", AT_EXIT, local.uri, how]
    cwd = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=cwd)
    assert done.returncode == status
    assert message in done.stderr
    assert ("BIGINT in the table" in done.stderr) is (how == "lost")
    assert rows_of(table) == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_max": 0}, "rows_max is 0"),
        ({"bytes_max": 1.5}, "bytes_max must be a whole number, not 1.5"),
        ({"delay_max_ms": -1}, "delay_max_ms is -1"),
        ({"pending_bytes_max": True}, "pending_bytes_max must be a whole number, not True"),
        ({"on_conflict": "ignore"}, "on_conflict must be one of"),
        ({"memory_bytes": 5}, "memory_bytes is 5"),
        ({"id_column": "id", "id_window_ms": 40 * 86_400_000}, "id_window_ms is 3456000000, but the log records"),
    ],
)
def test_invalid_options_are_rejected(table: Table, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        BufferedWriter(table, **options)
