"""A snapshot has the columns of its time, also after the log files that added them were replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icedb import Replacing, Table
from icedb.format.column_times import UNKNOWN_MS, column_times
from icedb.format.timing import DAY_MS, MINUTE_MS
from icedb.reader.diff import columns_of
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from tests.format.test_operation_names import edit_header

Step = Callable[[Table], object]


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["d"], sort_by=["a"])


def two_columns(table: Table, clock: ManualClock) -> tuple[int, int]:
    """Insert rows, then rows with a column `b`; return the times of both commits."""
    table.insert([{"d": "x", "a": 1}])
    first_ms = clock.now_ms()
    clock.advance(MINUTE_MS)
    table.insert([{"d": "x", "a": 2, "b": 2}])
    return first_ms, clock.now_ms()


STEPS: dict[str, Step] = {
    "nothing": lambda table: None,
    "merge": lambda table: table.merge(),
    "merge_log": lambda table: table.merge_log(),
    "delete": lambda table: table.delete("a = 2"),
    "overwrite": lambda table: table.overwrite([{"d": "x", "a": 3, "b": 1, "c": 1}], partitions=["d=x"]),
    "drop": lambda table: table.drop_partitions(["d=x"]),
    "alter": lambda table: table.alter(sort_by=["b"]),
    "all": lambda table: (table.merge(), table.alter(sort_by=["b"]), table.merge_log(), table.delete("a = 2")),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_snapshot_has_the_columns_of_its_time(table: Table, clock: ManualClock, step: Step) -> None:
    first_ms, second_ms = two_columns(table, clock)
    clock.advance(MINUTE_MS)
    step(table)
    clock.advance(MINUTE_MS)
    for at_ms, columns in ((first_ms, ["d", "a"]), (second_ms - 1, ["d", "a"]), (second_ms, ["d", "a", "b"])):
        assert list(table.snapshot(at_ms).schema) == columns
        assert table.query("SELECT * FROM t", as_of=at_ms).to_arrow().column_names == columns
    assert list(table.snapshot(first_ms - 1).schema) == ["d", "a"], "before the first rows, it has the first columns"
    assert {"a", "b"} <= table.snapshot().schema.keys()
    assert table.snapshot(clock.now_ms()).schema == table.snapshot().schema


def test_column_times_outlive_cleanup_and_their_log_files(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    _, second_ms = two_columns(table, clock)
    table.pin("kept", second_ms - 1)
    for _ in range(4):
        clock.advance(DAY_MS)
        table.merge()
        table.merge_log()
        table.cleanup()
    assert not any(f"_log/{second_ms}" in key for key in clocked.objects)
    assert list(table.snapshot(second_ms - 1).schema) == ["d", "a"]
    assert list(table.snapshot(clock.now_ms()).schema) == ["d", "a", "b"]


def test_an_append_earlier_than_the_commit_of_its_column_is_read_completely(
    clocked: ClockedStore, clock: ManualClock, table: Table
) -> None:
    table.insert([{"d": "x", "a": 1}])
    clock.advance(2 * MINUTE_MS)
    table.insert([{"d": "x", "a": 2, "b": 2}])
    behind = open_table(clocked, clock)
    clock.set(clock.now_ms() - MINUTE_MS)
    early = behind.insert([{"d": "x", "a": 3, "b": 3}])
    clock.advance(5 * MINUTE_MS)
    table.merge_log()
    at_ms = early.created_ms
    assert at_ms is not None
    assert sorted(table.query("SELECT a, b FROM t", as_of=at_ms).fetchall()) == [(1, None), (3, 3)]


def test_columns_without_times_are_in_every_snapshot(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    first_ms, _ = two_columns(table, clock)
    clock.advance(MINUTE_MS)
    table.merge_log()
    [key] = [key for key in clocked.objects if "_m_" in key]
    edit_header(clocked, key, lambda header: [header.pop(name) for name in ("st", "ct")])
    again = open_table(clocked, clock)
    assert column_times(again.handle.read()) == {"d": UNKNOWN_MS, "a": UNKNOWN_MS, "b": UNKNOWN_MS}
    assert list(again.snapshot(first_ms).schema) == ["d", "a", "b"]
    assert (again.diff(first_ms).new_columns, again.diff(first_ms).new_columns_exact) == ({}, False)
    assert not any(c.since_exact for c in columns_of(again.handle))
    again.insert([{"d": "x", "a": 1, "c": 1}])
    clock.advance(MINUTE_MS)
    again.merge_log()
    assert list(again.snapshot(first_ms).schema) == ["d", "a", "b"], "carried as unknown"


def test_a_snapshot_before_an_alter_has_the_partition_columns_of_its_time(table: Table, clock: ManualClock) -> None:
    first_ms, _ = two_columns(table, clock)
    clock.advance(MINUTE_MS)
    table.alter(partition_by=["d", "b % 2 AS e"], schema={"later": "DATE"})
    clock.advance(MINUTE_MS)
    table.insert([{"d": "x", "a": 4, "b": 4}])
    clock.advance(MINUTE_MS)
    table.alter(partition_by=["b % 3 AS f"], schema={"last": "DATE"})
    clock.advance(MINUTE_MS)
    table.merge_log()
    then = table.snapshot(first_ms)
    assert (list(then.schema), list(then.partition_schema)) == (["d", "a"], ["d"])
    middle = table.snapshot(clock.now_ms() - MINUTE_MS - 1)
    assert {"later"} == middle.schema.keys() - {"d", "a", "b"}
    assert list(middle.partition_schema) == ["d", "e"]
    assert sorted(middle.query("SELECT a, e FROM t").fetchall()) == [(1, None), (2, 0), (4, 0)]
    assert list(table.snapshot().partition_schema) == ["f"]
    assert table.snapshot().schema.keys() == {"d", "a", "b", "later", "last"}


def test_the_final_rows_of_a_snapshot_follow_the_merging_of_its_time(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    first_ms = two_columns(table, clock)[0]
    clock.advance(MINUTE_MS)
    table.alter(merging=Replacing(by=("d",), version="b"))
    assert table.query("SELECT a FROM final", as_of=first_ms).fetchall() == [(1,)]
    assert table.query("SELECT a FROM final").fetchall() == [(2,)]


def test_a_spec_without_earlier_ones_has_the_partition_columns_that_fit(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    first_ms, _ = two_columns(table, clock)
    clock.advance(MINUTE_MS)
    key = table.alter(partition_by=["d", "b % 2 AS e"]).key
    assert key is not None
    edit_header(clocked, key, lambda header: header["spec"].pop("earlier"))
    then = open_table(clocked, clock).snapshot(first_ms)
    assert list(then.partition_schema) == ["d"]
    assert then.query("SELECT * FROM t").fetchall() == [("x", 1)]


def test_changes_until_a_time_have_the_columns_of_that_time(table: Table, clock: ManualClock) -> None:
    first_ms, second_ms = two_columns(table, clock)
    assert list(table.changes(first_ms - 1, until=first_ms).schema) == ["d", "a"]
    assert list(table.changes(first_ms - 1, until=second_ms).schema) == ["d", "a", "b"]
