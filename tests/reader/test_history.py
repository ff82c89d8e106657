"""The history of a table is exact where the log records it, and marked where the log has forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icedb import CommitInfo, Table
from icedb.errors import InvalidOption, SnapshotExpired
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.replay import COLUMNS_MIN
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.reader.diff import columns_of
from icedb.reader.history import LogFileInfo, log_files
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from tests.support.object_stores.stores import Place


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["k"], sort_by=["n"])


def rows(*numbers: int, **more: object) -> list[dict[str, object]]:
    return [{"k": n % 2, "n": n, **more} for n in numbers]


def counts(commit: CommitInfo) -> tuple[str, int, int | None, int, int | None]:
    return commit.kind, commit.added_parts, commit.added_rows, commit.removed_parts, commit.removed_rows


#: Operations on two partitions with two parts of one row each, and the kind and counts of their commit.
OPERATIONS: dict[str, tuple[Callable[[Table, int], object], tuple[str, int, int | None, int, int | None]]] = {
    "insert": (lambda t, _: t.insert(rows(4, 6, 8)), ("insert", 1, 3, 0, 0)),
    "overwrite": (lambda t, _: t.overwrite(rows(4), partitions=["k=0"]), ("overwrite", 1, 1, 2, 2)),
    "merge": (lambda t, _: t.merge(), ("merge", 2, 4, 4, 4)),
    "delete": (lambda t, _: (t.insert(rows(4, 6, 8)), t.delete("n = 8")), ("delete", 1, 2, 1, 3)),
    "drop": (lambda t, _: t.drop_partitions(["k=1"]), ("drop", 0, 0, 2, 2)),
    "restore": (lambda t, then: (t.drop_partitions(["k=1"]), t.restore(then)), ("restore", 2, 2, 0, 0)),
    "restore of a merge": (lambda t, then: (t.merge(), t.restore(then)), ("restore", 4, 4, 2, 4)),
    "merge again": (lambda t, then: (t.merge(), t.restore(then), t.merge()), ("merge", 2, 4, 4, 4)),
    "rewrite": (
        lambda t, _: t.rewrite_partition("k=0", "SELECT unnest([n, n]) AS n, k FROM _rows"),
        ("rewrite", 1, 4, 2, 2),
    ),
    "alter": (lambda t, _: t.alter(row_group_rows=10_000), ("alter", 0, 0, 0, 0)),
    "log": (lambda t, _: t.merge_log(), ("merge_log", 0, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_one_commit_of_the_history(table: Table, clock: ManualClock, name: str) -> None:
    table.insert(rows(0, 1))
    table.insert(rows(2, 3))
    then = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    act, expected = OPERATIONS[name]
    act(table, then)
    newest = table.history()[0]
    assert counts(newest) == expected
    assert newest.exact
    assert newest.at_ms == table.handle.read().newest_ms
    assert newest.log_file in table.handle.read().files
    assert (newest.added_bytes > 0, newest.removed_bytes > 0) == (newest.added_parts > 0, newest.removed_parts > 0)


def test_commits_stay_in_the_history_after_their_log_files_are_deleted(table: Table, clock: ManualClock) -> None:
    times = []
    for n in range(3):
        clock.advance(MINUTE_MS)
        commit = table.insert(rows(2 * n, 2 * n + 1), txn=("app", n))
        times.append(commit.created_ms)
    before = table.history()
    assert [c.at_ms for c in before] == times[::-1]
    assert [c.txn for c in before] == [{"app": 2}, {"app": 1}, {"app": 0}]
    assert len({c.writer for c in before}) == 3
    assert all(c.writer and c.log_file for c in before)
    assert [c.at_ms for c in table.history(limit=2)] == times[:0:-1]
    assert [c.at_ms for c in table.history(since=times[1])] == times[:0:-1]

    clock.advance(MINUTE_MS)
    table.merge_log()
    assert table.history()[1:] == before  # the log files are still stored
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    after = table.history()
    assert [counts(c) for c in after[-3:]] == [counts(c) for c in before]
    assert [c.at_ms for c in after[-3:]] == times[::-1]
    assert all(c.exact for c in after)  # no part was forgotten
    # The log files are deleted, and only the last transaction is recorded.
    assert [(c.writer, c.log_file) for c in after[-3:]] == [(None, None)] * 3
    assert [c.txn for c in after[-3:]] == [{"app": 2}, {}, {}]


def test_commits_that_cleanup_forgot_are_marked_inexact(table: Table, clock: ManualClock) -> None:
    for n in range(2):
        clock.advance(MINUTE_MS)
        table.insert(rows(n))  # one in each partition: no merge takes the first
    clock.advance(MINUTE_MS)
    table.insert(rows(3))
    table.merge()
    for _ in range(2):  # first the merged parts, then the log file of the merge
        clock.advance(2 * HOUR_MS)
        table.cleanup()
    clock.advance(MINUTE_MS)
    table.insert(rows(5))
    commits = table.history()
    # The inserts of merged parts are forgotten. The merge has no inputs, and keeps its name.
    assert [(*counts(c), c.exact) for c in commits if c.kind != "cleanup"] == [
        ("insert", 1, 1, 0, 0, True),
        ("merge", 1, 2, 0, 0, False),
        ("insert", 1, 1, 0, 0, True),  # its own log file is still there
    ]
    assert [c.exact for c in commits if c.kind == "cleanup"] == [True]


def test_two_commits_of_one_millisecond_are_separate(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert(rows(0))
    other = open_table(clocked, clock)
    clock.advance(MINUTE_MS)
    table.insert(rows(2, 4), txn=("one", 1))
    other.insert(rows(6), txn=("other", 7))
    newest, next_ = table.history(limit=2)
    assert newest.at_ms == next_.at_ms
    assert {(c.added_rows, *c.txn.items()) for c in (newest, next_)} == {(2, ("one", 1)), (1, ("other", 7))}


def test_a_commit_of_v3_without_row_counts(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert(rows(0, 1))
    old, new = table.snapshot().parts[0], table.handle.keys.part("k=0", "ff" * 16)
    clock.advance(MINUTE_MS)
    at_ms = clock.now_ms()
    file = LogFile(at_ms, {"n": "BIGINT"}, (Marker(new, 10, at_ms), Marker(old.key, old.bytes, old.created_ms, at_ms)))
    clocked.create(table.handle.keys.log_file(at_ms, merged=True, writer="old"), encode(file))
    newest = table.history()[0]
    assert counts(newest) == ("overwrite", 1, None, 1, 1)
    assert newest.writer == "old"


def test_an_invalid_limit_or_time_is_rejected(table: Table) -> None:
    assert table.history() == []
    with pytest.raises(InvalidOption, match="limit is 0"):
        table.history(limit=0)
    with pytest.raises(InvalidOption, match="since is 5"):
        table.history(since=5)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_history_of_many_parts_is_that_of_few(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert(rows(0))
    clock.advance(MINUTE_MS)
    at_ms = clock.now_ms()
    keys = [table.handle.keys.part(f"k={n % 7}", f"{n:032x}") for n in range(COLUMNS_MIN)]
    markers = tuple(Marker(key, 10, at_ms, rows=2) for key in keys)
    clocked.create(
        table.handle.keys.log_file(at_ms, merged=False, writer="web-1-0123456789ab"),
        encode(LogFile(at_ms, {"n": "BIGINT"}, markers)),
    )
    assert table.handle.read().columns is not None
    newest, first = table.history()
    assert (counts(newest), newest.partitions) == (("insert", COLUMNS_MIN, 2 * COLUMNS_MIN, 0, 0), 7)
    assert counts(first) == ("insert", 1, 1, 0, 0)
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=3"])
    assert counts(table.history(limit=1)[0]) == ("drop", 0, 0, len(keys[3::7]), 2 * len(keys[3::7]))
    diff = table.diff(at_ms)
    assert [(p.path, p.removed_parts, p.removed_rows, p.added_parts) for p in diff.partitions] == [
        ("k=3", len(keys[3::7]), 2 * len(keys[3::7]), 0)
    ]


# ------------------------------------------------------------------------------------------------ log files


def test_log_files_have_states_and_counts(table: Table, clock: ManualClock) -> None:
    table.insert(rows(0, 1))
    clock.advance(MINUTE_MS)
    table.insert(rows(2))
    clock.advance(MINUTE_MS)
    table.merge()
    merge, second, first = log_files(table.handle)
    assert (first.state, second.state, merge.state) == ("replaced", "replaced", "current")
    assert (first.lines, first.epoch, second.epoch, merge.epoch) == (None, 1, None, 2)
    counts_of_merge = (
        merge.added_parts,
        merge.removed_parts,
        merge.carried_parts,
        merge.replaced_log_files,
        merge.columns,
    )
    assert counts_of_merge == (1, 2, 1, 2, 2)
    body = table.handle.store.get(merge.key).body
    assert (merge.lines, merge.bytes) == (body.count(b"\n") + 1, len(body))
    assert {f.key for f in (merge, second, first)} == set(table.handle.read().listed_ms)


def test_a_log_file_of_a_superseded_epoch_is_ignored(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert(rows(0))
    clock.advance(MINUTE_MS)
    table.alter(row_group_rows=10_000)
    clock.advance(MINUTE_MS)
    table.alter(row_group_rows=20_000)
    late = table.handle.keys.log_file(clock.now_ms(), merged=False, writer="web-1-0123456789ab.e2")
    body = encode(LogFile(clock.now_ms(), {}, epoch=2, live_epochs=(1, 2)))
    (of_two,) = (f.key for f in log_files(table.handle) if f.epoch == 2)
    clocked.delete([of_two])
    clocked.create(late, body)
    infos: dict[str, LogFileInfo] = {f.key: f for f in log_files(table.handle)}
    assert infos[late].state == "ignored"
    assert all(c.log_file != late for c in table.history())


# ------------------------------------------------------------------------------------------------ diff


def test_a_diff_has_parts_rows_and_columns_of_each_partition(table: Table, clock: ManualClock) -> None:
    table.insert(rows(0, 1, 2))
    then = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    table.insert(rows(4, extra="x"))
    between = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=1"])
    diff = table.diff(then)
    assert [(p.path, p.added_parts, p.added_rows, p.removed_parts, p.removed_rows) for p in diff.partitions] == [
        ("k=0", 1, 1, 0, 0),
        ("k=1", 0, 0, 1, 1),
    ]
    assert (diff.new_columns, diff.new_columns_exact) == ({"extra": "VARCHAR"}, True)
    assert (diff.added_parts, diff.added_rows, diff.removed_parts, diff.removed_rows) == (1, 1, 1, 1)
    assert (diff.inserted_rows, diff.deleted_rows) == (None, None)
    assert [p.path for p in table.diff(then, between).partitions] == ["k=0"]
    after = table.diff(between)
    assert ([p.path for p in after.partitions], after.new_columns) == (["k=1"], {})
    assert table.diff(between, between).partitions == ()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_merged_rows_are_not_a_difference(table: Table, clock: ManualClock) -> None:
    for n in range(3):
        table.insert(rows(n, n + 2, at=[n], x=float("nan")))
    then = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    table.merge()
    merged = table.diff(then, rows=True)
    assert (merged.added_rows, merged.removed_rows) == (4, 4)
    assert (merged.inserted_rows, merged.deleted_rows) == (0, 0)
    table.insert(rows(0, 2, at=[0]))
    table.delete("n = 1")
    diff = table.diff(then, rows=True)
    assert (diff.inserted_rows, diff.deleted_rows) == (2, 1)


def test_new_columns_are_reported_after_their_log_files_are_deleted(table: Table, clock: ManualClock) -> None:
    table.insert(rows(0))
    then = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    table.insert(rows(2, extra=1))
    clock.advance(MINUTE_MS)
    table.merge_log()
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    diff = table.diff(then)
    assert (diff.new_columns, diff.new_columns_exact) == ({"extra": "BIGINT"}, True)
    assert [(c.name, c.since_exact) for c in columns_of(table.handle)] == [("k", True), ("n", True), ("extra", True)]


def test_times_in_the_wrong_order_or_expired_are_rejected(table: Table, clock: ManualClock) -> None:
    table.insert(rows(0, 1))
    then = table.snapshot().as_of_ms
    with pytest.raises(InvalidOption, match="Exchange them"):
        table.diff(then + 1, then)
    with pytest.raises(InvalidOption, match="is in the future"):
        table.diff(clock.now_ms() + HOUR_MS)
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=1"])
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    with pytest.raises(SnapshotExpired):
        table.diff(then)


def test_columns_have_the_properties_of_the_spec(memory: Place) -> None:
    table = Table.create(
        memory.uri,
        schema={"n": "BIGINT", "later": "DOUBLE"},
        required=["n"],
        partition_by=["n % 2 AS odd"],
        path_columns={"region": "VARCHAR"},
    )
    table.insert([{"n": 1, "region": "eu"}])
    at_ms = table.handle.read().newest_ms
    assert [(c.name, c.type, c.required, c.expression, c.since_ms) for c in columns_of(table.handle)] == [
        ("n", "BIGINT", True, None, at_ms),
        ("later", "DOUBLE", False, None, None),
        ("odd", "BIGINT", False, "(n % 2)", None),
        ("region", "VARCHAR", False, "", None),
    ]
