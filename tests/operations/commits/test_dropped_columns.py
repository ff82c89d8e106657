"""Dropped columns: hidden at once, as they were in earlier snapshots, and without old values if they return."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icedb
from icedb import Table
from icedb.errors import (
    InvalidArgument,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    InvalidRequestError,
    SchemaConflict,
    UnknownColumn,
)
from icedb.reader.part_footers import parts_with_columns
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.object_stores.interruptions import act_before
from tests.support.object_stores.stores import Place
from tests.support.tables.fault_walk import SavedState, attempts

FIRST = [{"day": "a", "n": 1, "email": "x@y"}, {"day": "b", "n": 2, "email": "z@y"}]


@pytest.fixture
def table(place: Place) -> Table:
    made = Table.create(place.uri, partition_by=["day"], sort_by=["n"], storage_options=place.storage_options)
    made.insert(FIRST)
    return made


def rows(table: Table, columns: str = "*", **options: Any) -> list[tuple[Any, ...]]:
    return sorted(table.query(f"SELECT {columns} FROM t", **options).fetchall(), key=repr)


def stored_columns(table: Table) -> list[set[str]]:
    """Return the columns of each live part's object."""
    store = table.handle.store
    return [set(pq.read_schema(pa.BufferReader(store.get(p.key).body)).names) for p in table.snapshot().parts]


@pytest.mark.sampled(days=3)
def test_a_dropped_column_is_hidden_by_one_commit_without_a_new_part(table: Table) -> None:
    before = table.snapshot()
    commit = table.alter(drop_columns=["email"])
    assert (commit.committed, commit.parts) == (True, ())
    assert table.schema() == {"day": "VARCHAR", "n": "BIGINT"}
    assert rows(table) == [("a", 1), ("b", 2)]
    assert [p.key for p in table.snapshot().parts] == [p.key for p in before.parts]
    assert rows(table, as_of=before.as_of_ms) == [("a", 1, "x@y"), ("b", 2, "z@y")]
    assert before.query("SELECT email FROM t WHERE n = 1").fetchall() == [("x@y",)]
    with pytest.raises(icedb.errors.InvalidQuery, match="email"):
        table.query("SELECT email FROM t")
    with pytest.raises(UnknownColumn, match="email"):
        table.delete("email = 'x@y'")
    other = Table.open(table.uri, storage_options=table.handle.location.storage_options)
    assert list(other.schema()) == ["day", "n"]
    assert table.history()[0].kind == "alter"


def test_a_batch_with_a_dropped_column_is_rejected_before_anything_is_written(table: Table) -> None:
    table.alter(drop_columns=["email"])
    keys = [entry.key for entry in table.handle.store.list(table.handle.keys.data_prefix)]
    for name in ("email", "EMAIL"):
        with pytest.raises(InvalidBatch, match=f"has the column '{name}', which was dropped at .*Leave it out"):
            table.insert([{"day": "a", "n": 3, name: "w@y"}])
        with pytest.raises(InvalidBatch, match="was dropped at"):
            table.overwrite([{"day": "a", "n": 3, name: "w@y"}], partitions="day = 'a'")
    assert [entry.key for entry in table.handle.store.list(table.handle.keys.data_prefix)] == keys
    with pytest.raises(InvalidBatch, match="was dropped at"):
        table.rewrite_partition("day=a", "SELECT *, 'w@y' AS email FROM _rows", new_columns=True)
    assert [entry.key for entry in table.handle.store.list(table.handle.keys.data_prefix)] == keys
    table.insert([{"day": "a", "n": 3}])
    assert rows(table) == [("a", 1), ("a", 3), ("b", 2)]


def test_merges_deletions_and_rewrites_leave_a_dropped_column_out(table: Table) -> None:
    table.insert(FIRST)
    table.insert([{"day": "c", "n": n, "email": "c@y"} for n in range(4)])
    before_ms = table.snapshot().as_of_ms
    table.alter(drop_columns=["email"])
    assert all("email" in names for names in stored_columns(table))
    table.merge(part_bytes_max=1 << 30)
    table.delete("n = 3")
    assert stored_columns(table) == [{"day", "n"}] * 3
    table.rewrite_partition("day=a", "SELECT * FROM _rows")
    table.merge_log()
    expected = [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("c", 0), ("c", 1), ("c", 2)]
    assert rows(table) == expected
    assert len(rows(table, "email", as_of=before_ms)) == 8
    assert not table.verify(deep=True).problems


def test_a_column_returns_only_when_no_live_part_has_its_old_values(table: Table) -> None:
    before_ms = table.snapshot().as_of_ms
    table.alter(drop_columns=["email"])
    hidden_ms = table.snapshot().as_of_ms
    match = r"'email' was dropped at .*, and its old values are still in 2 live parts .*rewrite_partition\('day=a'"
    with pytest.raises(InvalidOption, match=match):
        table.alter(schema={"email": "VARCHAR"})
    for partition in ("day=a", "day=b"):
        table.rewrite_partition(partition, "SELECT * FROM _rows")
    with pytest.raises(SchemaConflict, match="email"):
        table.alter(schema={"email": "BIGINT"})
    with pytest.raises((SchemaConflict, InvalidBatch), match=r"(?i)email"):
        table.alter(schema={"Email": "VARCHAR"})
    table.alter(schema={"email": "VARCHAR"})
    assert rows(table, "day, n, email") == [("a", 1, None), ("b", 2, None)]
    table.insert([{"day": "a", "n": 3, "email": "new"}])
    assert rows(table, "n, email") == [(1, None), (2, None), (3, "new")]
    assert rows(table, "n, email", as_of=before_ms) == [(1, "x@y"), (2, "z@y")]
    assert rows(table, as_of=hidden_ms) == [("a", 1), ("b", 2)]
    table.alter(drop_columns=["email"])  # and again
    assert rows(table, "n") == [(1,), (2,), (3,)]
    assert list(table.spec.dropped) == ["email"]


def test_a_restore_has_the_columns_of_its_time(table: Table) -> None:
    before_ms = table.snapshot().as_of_ms
    table.alter(drop_columns=["email"])
    hidden_ms = table.snapshot().as_of_ms
    assert table.restore(before_ms, dry_run=True).commit.committed is False
    table.restore(before_ms)  # the parts are the same: only the column returns
    assert rows(table) == [("a", 1, "x@y"), ("b", 2, "z@y")]
    table.insert([{"day": "c", "n": 3, "email": "c@y"}])
    table.restore(hidden_ms)
    assert rows(table) == [("a", 1), ("b", 2)]
    with pytest.raises(InvalidBatch, match="was dropped"):
        table.insert([{"day": "c", "n": 3, "email": "c@y"}])
    table.restore(before_ms)
    table.alter(sort_by=["email"])
    with pytest.raises(InvalidOption, match="'email' cannot be dropped, because sort_by needs it"):
        table.restore(hidden_ms)
    assert rows(table) == [("a", 1, "x@y"), ("b", 2, "z@y")]


@pytest.mark.parametrize(
    ("options", "drop", "message"),
    [
        ({}, ["nope"], r"'nope', and the table has no such column \(it has \['day', 'email', 'n'\]\)"),
        ({}, ["Email"], "'Email', and the table has no such column"),
        ({}, ["n"], "'n' cannot be dropped, because sort_by needs it. Change that first"),
        ({}, ["day"], "because partition_by needs it"),
        ({"required": ["email"]}, ["email"], "because required needs it"),
        ({"bloom_filters": ["email"]}, ["email"], "because bloom_filters needs it"),
        ({"merging": icedb.Replacing(by=("day", "n"), version="email")}, ["email"], "because merging needs it"),
        (
            {"merge_query": "SELECT * REPLACE (lower(email) AS email) FROM source_files"},
            ["email"],
            "because merge_query",
        ),
        ({"row_id": True}, ["_row_id"], "because row_id needs it"),
    ],
)
def test_a_column_that_the_table_needs_is_kept(
    local: Place, options: dict[str, Any], drop: list[str], message: str
) -> None:
    table = Table.create(local.uri, partition_by=["day"], sort_by=["n"], **options)
    table.insert(FIRST)
    before = table.spec
    with pytest.raises((InvalidOption, UnknownColumn), match=message):
        table.alter(drop_columns=drop)
    assert Table.open(table.uri).spec == before


def test_the_last_column_and_both_ways_at_once_are_rejected(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    with pytest.raises(InvalidOption, match="would drop all of them"):
        table.alter(drop_columns=["n"])
    with pytest.raises(InvalidOption, match="'n' is in schema and in drop_columns"):
        table.alter(schema={"n": "BIGINT"}, drop_columns=["n"])
    with pytest.raises(InvalidArgument, match="drop_columns must be a list of texts"):
        table.alter(drop_columns="n")
    assert not table.alter(drop_columns=[]).committed


@pytest.mark.sampled(days=3)
def test_a_needed_column_goes_with_the_change_of_what_needs_it(table: Table) -> None:
    table.alter(sort_by=["email"])
    table.alter(sort_by=["n"], drop_columns=["email"])
    with pytest.raises((UnknownColumn, InvalidPartitionExpression, InvalidOption), match="email"):
        table.alter(sort_by=["email"])
    assert rows(table) == [("a", 1), ("b", 2)]


def test_a_declared_column_without_rows_is_dropped_and_returns(local: Place) -> None:
    table = Table.create(local.uri, schema={"n": "BIGINT", "later": "DATE"}, schema_policy="declared")
    table.insert([{"n": 1}])
    before_ms = table.snapshot().as_of_ms
    table.alter(drop_columns=["later"])
    assert table.schema() == {"n": "BIGINT"}
    assert list(table.snapshot(before_ms).schema) == ["n", "later"]
    with pytest.raises(InvalidBatch, match="was dropped"):
        table.insert(pa.table({"n": [2], "later": pa.array([None], pa.date32())}))
    table.alter(schema={"later": "DATE"})
    assert rows(table) == [(1, None)]


def test_a_program_that_still_writes_the_column_shows_nothing() -> None:
    """A handle that was opened before commits a part with the column: rows are added, values stay hidden."""
    clock = ManualClock()
    store = ClockedStore(clock)
    table = create_table(store, clock)
    table.insert([{"n": 1, "email": "x@y"}])
    stale = open_table(store, clock)
    stale.snapshot()
    table.alter(drop_columns=["email"])
    stale.insert([{"n": 2, "email": "late"}])
    assert rows(table) == [(1,), (2,)]
    stale.snapshot()  # reads the log
    with pytest.raises(InvalidBatch, match="was dropped"):
        stale.insert([{"n": 3, "email": "later"}])
    with pytest.raises(InvalidOption, match="still in 2 live parts"):
        table.alter(schema={"email": "VARCHAR"})


# ------------------------------------------------------------------------------------------ overwrites of the schema


@pytest.mark.sampled(days=3)
def test_an_overwrite_of_the_schema_has_exactly_the_columns_of_the_rows(table: Table) -> None:
    before_ms = table.snapshot().as_of_ms
    plan = table.overwrite([{"day": "c", "n": 9, "price": 1.5}], schema_mode="overwrite", dry_run=True)
    assert (plan.replaced_rows, plan.new_columns) == (2, {"price": "DOUBLE"})
    assert list(table.schema()) == ["day", "n", "email"]
    commit = table.overwrite([{"day": "c", "n": 9, "price": 1.5}], schema_mode="overwrite")
    assert commit.committed
    assert table.schema() == {"day": "VARCHAR", "n": "BIGINT", "price": "DOUBLE"}
    assert rows(table) == [("c", 9, 1.5)]
    assert rows(table, as_of=before_ms) == [("a", 1, "x@y"), ("b", 2, "z@y")]
    with pytest.raises(InvalidBatch, match="'email', which was dropped"):
        table.insert(FIRST)
    # The rows of before are all replaced, so the column may come back at once.
    table.overwrite(FIRST, schema_mode="overwrite")
    assert rows(table) == [("a", 1, "x@y"), ("b", 2, "z@y")]
    assert list(table.spec.dropped) == ["price"]
    table.overwrite(FIRST[:1], schema_mode="overwrite")
    assert rows(table) == [("a", 1, "x@y")]
    table.overwrite([{"day": "a", "n": 1}])  # the default keeps all columns
    assert rows(table) == [("a", 1, None)]


def test_an_overwrite_of_the_schema_that_does_not_fit_changes_nothing(table: Table) -> None:
    keys = [entry.key for entry in table.handle.store.list("")]
    for data, options, message in (
        ([{"day": "a", "email": "x"}], {}, "n"),  # sort_by
        ([{"day": "a", "n": "text"}], {}, "n"),
        (FIRST, {"partitions": "day = 'a'"}, "replaces the columns of the whole table, but partitions is"),
        (FIRST, {"schema_mode": "replace"}, "schema_mode"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            table.overwrite(data, **{"schema_mode": "overwrite", **options})  # type: ignore[call-overload]
    assert [entry.key for entry in table.handle.store.list("")] == keys
    assert rows(table) == [("a", 1, "x@y"), ("b", 2, "z@y")]


# ------------------------------------------------------------------------------------------ concurrency and faults


def insert_with_it(table: Table) -> None:
    table.insert([{"day": "a", "n": 5, "email": "new"}])


def insert_without_it(table: Table) -> None:
    table.insert([{"day": "a", "n": 5}])


def overwrite(table: Table) -> None:
    table.overwrite([{"day": "a", "n": 5, "email": "new"}], partitions="day = 'a'")


def merge(table: Table) -> None:
    table.merge(part_bytes_max=1 << 30)


def delete(table: Table) -> None:
    table.delete("n = 2")


def rewrite(table: Table) -> None:
    table.rewrite_partition("day=b", "SELECT * FROM _rows")


#: The numbers that the table may have afterwards: those before, and those after the operation.
BEFORE = [1, 1, 2, 2]
OPERATIONS: list[tuple[Callable[[Table], None], list[int]]] = [
    (insert_with_it, [1, 1, 2, 2, 5]),
    (insert_without_it, [1, 1, 2, 2, 5]),
    (overwrite, [2, 2, 5]),
    (merge, BEFORE),
    (delete, [1, 1]),
    (rewrite, BEFORE),
]


@pytest.mark.sampled(cases=2, days=6)
@pytest.mark.long
@pytest.mark.parametrize(("act", "after"), OPERATIONS, ids=[act.__name__ for act, _ in OPERATIONS])
def test_a_drop_at_any_request_of_an_operation_hides_the_column(act: Callable[[Table], None], after: list[int]) -> None:
    """The operation succeeds or is rejected. The column has no value when it returns later."""
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["day"], sort_by=["n"])
    for _ in range(2):
        table.insert(FIRST)
    saved = SavedState(base, clock)
    for number in count(1):
        saved.restore()
        store = FaultyStore(base)
        actor, other = open_table(store, clock), open_table(base, clock)
        store.requests.clear()
        act_before(store, lambda other=other: other.alter(drop_columns=["email"]), number=number)
        rejected = False
        try:
            act(actor)
        except InvalidBatch:
            rejected = True
        reader = open_table(base, clock)
        if "email" in reader.schema():  # the operation makes fewer requests
            assert number > 3
            break
        numbers = [n for (n,) in rows(reader, "n")]
        assert numbers == (BEFORE if rejected else after), number
        assert list(reader.schema()) == ["day", "n"]
        check_sound(base)
        for part in parts_with_columns(reader.handle, list(reader.snapshot().parts), ["email"]):
            if any(p.key == part.key for p in reader.snapshot().parts):
                reader.rewrite_partition(part.partition, "SELECT * FROM _rows")
        reader.alter(schema={"email": "VARCHAR"})
        assert rows(reader, "DISTINCT email") == [(None,)]


FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.FAIL]


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_an_overwrite_of_the_schema_with_a_fault_is_whole_or_nothing(fault: Fault) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    create_table(base, clock, partition_by=["day"]).insert(FIRST)
    clock.advance(1000)
    rows_after = [{"day": "c", "price": 1.5}]
    for attempt in attempts(base, clock, fault, lambda table: table.overwrite(rows_after, schema_mode="overwrite")):
        attempt.deliver()
        reader = open_table(base, clock)
        new = "price" in reader.schema()
        assert rows(reader) == ([("c", 1.5)] if new else [("a", 1, "x@y"), ("b", 2, "z@y")])
        assert new or not attempt.done
        check_sound(base)


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_restore_with_a_fault_has_rows_and_columns_of_one_time(fault: Fault) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["day"])
    table.insert(FIRST)
    clock.advance(1000)
    before_ms = clock.now_ms()
    clock.advance(1000)
    table.alter(drop_columns=["email"])
    table.overwrite([{"day": "c", "n": 9}])
    clock.advance(1000)
    for attempt in attempts(base, clock, fault, lambda table: table.restore(before_ms)):
        attempt.deliver()
        reader = open_table(base, clock)
        restored = "email" in reader.schema()
        assert rows(reader) == ([("a", 1, "x@y"), ("b", 2, "z@y")] if restored else [("c", 9)])
        assert restored or not attempt.done
        check_sound(base)
