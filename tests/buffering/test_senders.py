"""Senders that share a writer take turns, and rejected rows of one delay the others little."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb import Acknowledged, BufferedWriter, Table
from icedb.buffering.queue import SubmissionQueue
from icedb.buffering.submissions import Submission
from icedb.errors import (
    BufferFull,
    InvalidBatch,
    InvalidOption,
    SchemaConflict,
    TooManyColumns,
    TooManyPartitions,
    WriterClosed,
)
from tests.buffering.test_writer import LONG_MS, Gate, gate, rows_of
from tests.support.waiting import SECONDS_MAX

__all__ = ["gate"]  # the fixture


def of(sender: str | None, size: int, since: float = 0.0) -> Submission:
    return Submission([{}] * size, size, size, since=since, sender=sender)


def senders(group: list[Submission]) -> str:
    return "".join(s.sender or "-" for s in group)


def filled(*submissions: Submission) -> SubmissionQueue:
    queue = SubmissionQueue()
    for number, submission in enumerate(submissions):
        submission.since = float(number)
        queue.put(submission)
    return queue


# ------------------------------------------------------------------------------------------------ the queue


def test_without_senders_the_queue_is_first_in_first_out() -> None:
    ones = [of(None, size) for size in (5, 1, 4, 2)]
    queue = filled(*ones)
    assert queue.take(10, 10) == ones[:3]
    assert queue.take(10, 10) == ones[3:]


def test_a_flood_of_one_sender_leaves_the_others_their_place_in_the_next_group() -> None:
    queue = filled(*(of("h", 10) for _ in range(100)), of("v", 1), of("v", 1), of("w", 1))
    assert senders(queue.take(30, 10**6)).count("v") == 2
    assert queue.since == 3.0  # of the flood three were taken


def test_large_and_small_submissions_take_turns() -> None:
    queue = filled(*(of("h", 50) for _ in range(3)), *(of("v", 1) for _ in range(120)))
    first, second = queue.take(50, 10**6), queue.take(50, 10**6)
    assert senders(first) == "h"  # it waits longest
    assert senders(second).startswith("v" * 49)  # now another begins
    assert "h" in senders(second + queue.take(50, 10**6))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=60),
    st.integers(1, 30),
    st.integers(1, 30),
    st.data(),
)
def test_the_queue_keeps_each_sender_s_order(
    sizes: list[tuple[str, int]], rows_max: int, bytes_max: int, data: st.DataObject
) -> None:
    ones = [of(*each) for each in sizes]
    queue, taken = filled(*ones), list[Submission]()
    groups = 0
    while len(queue):
        groups += 1
        group = queue.take(rows_max, bytes_max)
        assert group
        assert sum(s.count for s in group[:-1]) < min(rows_max, bytes_max)
        left = data.draw(st.integers(0, len(group) - 1)) if groups < 20 else 0
        queue.put_back(group[len(group) - left :])
        taken += group[: len(group) - left]
        assert (queue.rows, queue.bytes) == (sum(s.count for s in queue.all()), sum(s.bytes for s in queue.all()))
        assert queue.since == min((s.since for s in queue.all()), default=None)
    for sender in "abc":
        assert [s for s in taken if s.sender == sender] == [s for s in ones if s.sender == sender]
    assert queue.take(1, 1) == queue.clear() == []


# ------------------------------------------------------------------------------------------------ the writer


def outcomes(futures: list[Future[Acknowledged]]) -> list[str]:
    wait(futures, SECONDS_MAX)
    return [type(f.exception()).__name__ if f.exception() else "ok" for f in futures]


@pytest.mark.long
def test_a_sender_whose_rows_are_refused_costs_the_others_no_commit(gate: Gate) -> None:
    """All submissions are in one group. The valid rows of the other sender are one commit, and come first."""
    order: list[str] = []
    with BufferedWriter(gate.table, delay_max_ms=0) as writer:
        first = writer.submit([{"n": 0}])
        assert gate.reached.wait(SECONDS_MAX)
        bad, good = [], []
        for n in range(10):
            bad.append(writer.submit([{"n": "x" if n % 2 else 100 + n}], sender="hostile"))
            good.append(writer.submit([{"n": n + 1}], sender="victim"))
        bad[0].add_done_callback(lambda _: order.append("hostile"))
        good[-1].add_done_callback(lambda _: order.append("victim"))
        good.append(writer.submit([{"n": 11}], sender="victim"))  # fewer than the hostile's, or more
        gate.open.set()
        assert outcomes([first, *good]) == ["ok"] * 12
        assert outcomes(bad) == ["ok", "SchemaConflict"] * 5
        assert len({f.result().key for f in good}) == 1
    assert rows_of(gate.table) == [-1, *range(12), 100, 102, 104, 106, 108]


@pytest.mark.long
def test_partitions_of_a_submission_and_of_a_commit_are_limited(memory: Any) -> None:
    table = Table.create(memory.uri, partition_by=["p"])
    with BufferedWriter(table, partitions_max=3, delay_max_ms=LONG_MS) as writer:
        futures = [writer.submit([{"p": f"{n}-{i}"} for i in range(size)]) for n, size in enumerate((2, 4, 3, 1, 1))]
        writer.submit([{"p": "0-0"}] * 9)
        with pytest.raises(TooManyPartitions, match="the rows lie in 4 partitions, and 3 are allowed"):
            writer.flush()
        assert outcomes(futures) == ["ok", "TooManyPartitions", "ok", "ok", "ok"]
    made: dict[int, int] = {}
    for part in table.snapshot().parts:
        made[part.created_ms] = made.get(part.created_ms, 0) + 1
    assert max(made.values()) <= 3
    assert table.snapshot().rows == 2 + 3 + 1 + 1 + 9


@pytest.mark.long
def test_partitions_of_a_view_are_limited_as_well(memory: Any) -> None:
    table = Table.create(memory.uri)
    table.create_view("by_p", "SELECT p, n FROM _rows", partition_by=["p"])
    with BufferedWriter(table, partitions_max=3, delay_max_ms=0) as writer:
        with pytest.raises(TooManyPartitions):
            writer.write([{"p": n, "n": 1} for n in range(4)])
        assert writer.write([{"p": n, "n": 1} for n in range(3)]).rows == 3
    assert table.snapshot().rows == 3


def test_columns_that_rows_bring_are_limited_and_others_writers_columns_count(memory: Any) -> None:
    table = Table.create(memory.uri, schema={"a": "BIGINT"})
    with BufferedWriter(table, columns_max=3, delay_max_ms=0) as writer:
        assert writer.write([{"a": 1, "b": 1}]).rows == 1
        Table.open(memory.uri).insert([{"c": 1, "d": 1}])  # another program, which has no limit
        with pytest.raises(TooManyColumns, match=r"bring 1 new columns \('e'\), and the table has 4 of the 3"):
            writer.write([{"a": 1, "e": 1}])
        assert writer.write([{"a": 1, "b": 1, "c": 1, "d": 1}]).rows == 1  # of what is there, all
    assert list(table.schema()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("timeout_ms", [None, 50])
def test_submissions_put_back_are_committed_or_dropped_by_close(gate: Gate, timeout_ms: int | None) -> None:
    writer = BufferedWriter(gate.table, delay_max_ms=0)
    first = writer.submit([{"n": 0}])
    assert gate.reached.wait(SECONDS_MAX)
    futures = [writer.submit([{"n": "x" if n == 5 else n}], sender="one") for n in range(1, 8)]
    closing = threading.Thread(target=_close, args=(writer, timeout_ms))
    closing.start()
    if timeout_ms is not None:
        closing.join(SECONDS_MAX)
    gate.open.set()
    closing.join(SECONDS_MAX)
    results = outcomes(futures)
    assert first.result(SECONDS_MAX).rows == 1
    assert results == (["ok"] * 4 + ["SchemaConflict"] + ["ok"] * 2 if timeout_ms is None else ["WriterClosed"] * 7)


def _close(writer: BufferedWriter, timeout_ms: int | None) -> None:
    with suppress(BufferFull, SchemaConflict):
        writer.close(timeout_ms=timeout_ms)


def test_submissions_put_back_after_close_are_answered(gate: Gate) -> None:
    """The writer is closed during a commit. The first half of the group is committed, and the rest is rejected."""
    writer = BufferedWriter(gate.table, delay_max_ms=LONG_MS)
    futures = [writer.submit([{"n": "x" if n == 3 else n}], sender="one") for n in range(4)]
    hurry = threading.Thread(target=_flush, args=(writer,))
    hurry.start()
    assert gate.reached.wait(SECONDS_MAX)  # the first half
    _close(writer, 50)
    gate.open.set()
    hurry.join(SECONDS_MAX)
    assert outcomes(futures) == ["ok", "ok", "WriterClosed", "WriterClosed"]
    assert writer.stats().pending_bytes == 0


def _flush(writer: BufferedWriter) -> None:
    with suppress(BufferFull, InvalidBatch, SchemaConflict, WriterClosed):
        writer.flush()


@pytest.mark.parametrize("options", [{"partitions_max": 0}, {"columns_max": True}, {"partitions_max": "3"}])
def test_invalid_limits_are_rejected(memory: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=r"give a whole number of at least 1|must be a whole number or None"):
        BufferedWriter(Table.create(memory.uri), **options)
