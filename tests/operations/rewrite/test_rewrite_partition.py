"""Rewrites of a partition: the result of a query replaces its rows atomically."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icedb import Dedup, Table
from icedb.errors import (
    CommitConflict,
    InvalidBatch,
    InvalidOption,
    InvalidQuery,
    MissingPart,
    SchemaConflict,
    UnsupportedType,
)
from icedb.format.records import Marker
from icedb.operations.rewrite.rewrite_partition import REWRITE_ATTEMPTS_MAX, rewrite_partition
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.fault_walk import check_atomic
from tests.support.tables.numbered_rows import data_keys


def make(place: Any, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


@pytest.mark.sampled(cases=1, days=3)
def test_the_result_replaces_the_partition(place: Any) -> None:
    table = make(place, partition_by=["n // 10 AS tens"], sort_by=["n"])
    for _ in range(2):
        table.insert([{"n": n, "s": str(n)} for n in (12, 11, 10, 20, 1)])
    as_of, others = table.snapshot().as_of_ms, [p for p in table.snapshot().parts if p.partition != "tens=1"]
    report = table.rewrite_partition("tens=1", "SELECT DISTINCT * FROM t WHERE n <> 12 AND tens = 1;")
    assert (report.partition, report.replaced_parts, report.new_parts) == ("tens=1", 2, 1)
    assert (report.rows_before, report.rows) == (6, 2)
    assert [p.partition for p in report.commit.tombstoned] == ["tens=1", "tens=1"]
    expected = [(1, "1", 0), (1, "1", 0), (10, "10", 1), (11, "11", 1), (20, "20", 2), (20, "20", 2)]
    assert table.query("FROM t ORDER BY ALL").fetchall() == expected
    assert set(others) < set(table.snapshot().parts)
    assert table.schema() == {"n": "BIGINT", "s": "VARCHAR"}, "a partition column did not become a data column"
    assert len(table.query("FROM t", as_of=as_of).fetchall()) == 10
    check_sound(table.handle.store)


@pytest.mark.sampled(cases=1)
def test_a_new_column_is_filled(place: Any) -> None:
    table = make(place, partition_by=["k"])
    table.insert([{"k": 1, "n": 2}, {"k": 2, "n": 3}])
    table.rewrite_partition("k=1", "SELECT *, n * 2 AS twice FROM t", new_columns=True)
    assert table.schema() == {"k": "BIGINT", "n": "BIGINT", "twice": "BIGINT"}
    assert table.query("SELECT k, n, twice FROM t ORDER BY k").fetchall() == [(1, 2, 4), (2, 3, None)]


def test_an_empty_result_empties_the_partition(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    table.insert([{"k": 1}, {"k": 2}])
    report = table.rewrite_partition("k=1", "SELECT *, 1 AS extra FROM t WHERE false", new_columns=True)
    assert (report.new_parts, report.rows, report.commit.parts) == (0, 0, ())
    assert table.query("FROM t").fetchall() == [(2,)]
    assert table.schema() == {"k": "BIGINT"}
    check_sound(table.handle.store)


def test_a_table_without_partitions_is_rewritten_whole(memory: Any) -> None:
    table = make(memory)
    table.insert([{"a": 1}, {"a": 2}])
    table.rewrite_partition("", "SELECT a + 1 AS a FROM t")
    assert table.query("SELECT a FROM t ORDER BY a").fetchall() == [(2,), (3,)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_partition_may_be_named_unencoded(memory: Any) -> None:
    table = make(memory, partition_by=["city"])
    table.insert([{"city": "New York", "n": 1}, {"city": "00123", "n": 2}])
    for name in ("city=New York", "city=New%20York", "city=00123"):
        table.rewrite_partition(name, "SELECT * REPLACE (n + 1 AS n) FROM t")
    assert sorted(table.query("SELECT city, n FROM t").fetchall()) == [("00123", 3), ("New York", 3)]


@pytest.mark.sampled(days=3)
def test_every_type_survives(memory: Any) -> None:
    table = make(memory)
    row = {
        "i": pa.array([7], pa.int8()), "u": pa.array([7], pa.uint32()), "f": pa.array([0.5], pa.float32()),
        "d": pa.array([Decimal("1.20")]), "b": pa.array([b"\0x"]), "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)]),
        "naive": pa.array([datetime(2026, 1, 1)]), "l": pa.array([[1, None]]), "s": pa.array([{"x": {"y": "z"}}]),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "t": pa.array(["é"]), "o": pa.array([True]),
        "day": pa.array([datetime(2026, 1, 1).date()]), "id": pa.array([uuid.UUID(int=7).bytes], pa.uuid()),
        "ns": pa.array([1], pa.timestamp("ns")), "h": pa.array([1], pa.time64("us")),
    }  # fmt: skip
    table.insert(pa.table(row))
    before, types = table.query("FROM t").fetchall(), table.schema()
    table.rewrite_partition("", "FROM t")
    assert table.query("FROM t").fetchall() == before
    assert table.schema() == types


@pytest.mark.sampled(cases=12, days=3)
@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("", InvalidQuery),
        ("DELETE FROM t", InvalidQuery),
        ("SELECT 1; SELECT 2", InvalidQuery),
        ("SELECT missing FROM t", InvalidQuery),
        ("FROM other", InvalidQuery),
        ("FROM '/etc/passwd'", InvalidQuery),
        ("FROM read_text('/etc/passwd')", InvalidQuery),
        ("SELECT *, getenv('HOME') AS s2 FROM t", InvalidQuery),
        ("SELECT *, current_setting('memory_limit') AS s2 FROM t", InvalidQuery),
        ("SELECT n, k, k FROM t", InvalidQuery),
        ("SELECT tens FROM t", InvalidQuery),
        ("SELECT * REPLACE (CAST(s AS BIGINT) AS n) FROM t", InvalidQuery),
        ("SELECT *, n + 1 FROM t", InvalidQuery),
        ("SELECT * REPLACE (n + 10 AS n) FROM t", InvalidBatch),
        ("SELECT * EXCLUDE (n) FROM t", InvalidQuery),
        ("SELECT * REPLACE (n::VARCHAR AS s, 'x' AS k) FROM t", SchemaConflict),
        ("SELECT * REPLACE (k + 0.5 AS k) FROM t", SchemaConflict),
        ("SELECT * REPLACE (k * 2::HUGEINT ** 70 AS k) FROM t", SchemaConflict),
        ("SELECT *, n::HUGEINT AS huge FROM t", UnsupportedType),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_an_invalid_result_changes_nothing(memory: Any, query: str, error: type[Exception], dry_run: bool) -> None:
    table = make(memory, partition_by=["n // 10 AS tens"])
    table.insert([{"k": 1, "n": 12, "s": "x"}, {"k": 2, "n": 1, "s": "x"}])
    table.insert([{"k": 1, "n": 13, "s": "x"}])
    before = table.handle.store.list("")
    with pytest.raises(error, match="memory://"):
        rewrite_partition(table.handle, "tens=1", query, dry_run=dry_run, new_columns=True)
    assert table.handle.store.list("") == before


def test_a_new_column_must_be_allowed(memory: Any) -> None:
    table = make(memory)
    table.insert([{"n": 1}])
    before = table.handle.store.list("")
    with pytest.raises(InvalidQuery, match=r"gives a column 'twice'.*AS: n"):
        table.rewrite_partition("", "SELECT *, n * 2 AS twice FROM _rows")
    assert table.handle.store.list("") == before


@pytest.mark.sampled(cases=1)
def test_the_rows_have_two_names_and_any_number_of_mentions(place: Any) -> None:
    table = make(place, partition_by=["k"])
    table.insert([{"k": 1, "n": 2, "s": None}, {"k": 1, "n": 3, "s": "_rows"}, {"k": 2, "n": 9, "s": "x"}])
    table.rewrite_partition(
        "k=1",
        "WITH high AS (SELECT max(n) AS n FROM _rows) "
        "SELECT a.k, (SELECT sum(n) FROM t) + a.n AS n, NULL AS s FROM t AS a JOIN high USING (n)",
    )
    assert table.query("FROM t ORDER BY ALL").fetchall() == [(1, 8, None), (2, 9, "x")]
    assert table.schema() == {"k": "BIGINT", "n": "BIGINT", "s": "VARCHAR"}, "a sum is a HUGEINT, and fits here"


def test_rows_outside_the_partition_are_rejected_with_their_number(memory: Any) -> None:
    table = make(memory, partition_by=["n // 10 AS tens"])
    table.insert([{"n": n} for n in range(10, 20)])
    with pytest.raises(InvalidBatch, match=r"5 of 10 rows .* 'tens=2'"):
        table.rewrite_partition("tens=1", "SELECT n + 5 AS n FROM t")


def test_a_missing_partition_is_named(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    table.insert([{"k": 1}])
    with pytest.raises(InvalidOption, match=r"no partition 'k=7'.*k=1"):
        table.rewrite_partition("k=7", "FROM t")


@pytest.mark.sampled(days=3)
def test_a_dry_run_of_a_rewrite_writes_nothing(place: Any) -> None:
    table = make(place, partition_by=["k"])
    table.insert([{"k": 1, "n": n} for n in range(5)])
    before = table.handle.store.list(table.handle.keys.data_prefix)
    report = table.rewrite_partition("k=1", "FROM t WHERE n < 2", dry_run=True)
    assert (report.rows_before, report.rows, report.replaced_parts, report.new_parts) == (5, 2, 1, 1)
    assert report.dry_run
    assert not report.commit.committed
    assert table.handle.store.list(table.handle.keys.data_prefix) == before
    assert table.handle.read().epoch == 1


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "rewrite",
    [lambda t: t.rewrite_partition("", "FROM t"), lambda t: t.delete("a = 1"), lambda t: t.merge()],
    ids=["rewrite", "delete", "merge with a query"],
)
def test_a_missing_part_is_named(place: Any, rewrite: Callable[[Table], object]) -> None:
    table = make(place, merging=Dedup(by=("a",)))
    table.insert([{"a": 1}])
    part = table.insert([{"a": 1}]).parts[0]
    if place.kind == "memory":
        table = Table.open(place.uri)
    table.handle.store.delete([part.key])
    with pytest.raises(MissingPart, match=part.key):
        rewrite(table)


# ------------------------------------------------------------------------------------------ beside others


def world(store: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(store, clock, partition_by=["k"], sort_by=["n"])
    for n in (1, 2):
        table.insert([{"k": 1, "n": n}, {"k": 2, "n": n}])
    clock.advance(1_000)
    return table


def rows(table: Table) -> list[Any]:
    return table.query("SELECT k, n FROM t ORDER BY ALL").fetchall()


TENFOLD = "SELECT k, n * 10 AS n FROM t"


@pytest.fixture
def store(clocked: ClockedStore) -> FaultyStore:
    """The store of the actor that rewrites. Each test acts in between by the table `other`."""
    return FaultyStore(clocked)


@pytest.fixture
def other(clocked: ClockedStore, clock: ManualClock) -> Table:
    return world(clocked, clock)


def assert_no_orphans(store: FaultyStore) -> None:
    assert data_keys(store) == check_sound(store.inner).parts.keys()


def act_at_claims(store: FaultyStore, act: Callable[[], object], *, times: int = 1) -> None:
    act_before(store, act, kind="create", key="_claims/epoch", times=times)


@pytest.mark.sampled(days=3)
def test_rows_appended_during_a_rewrite_stay_unchanged(other: Table, store: FaultyStore, clock: ManualClock) -> None:
    act_at_claims(store, lambda: other.insert([{"k": 1, "n": 3}]))
    open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert rows(other) == [(1, 3), (1, 10), (1, 20), (2, 1), (2, 2)]
    assert_no_orphans(store)


def test_a_drop_of_others_does_not_repeat_the_query(other: Table, store: FaultyStore, clock: ManualClock) -> None:
    act_at_claims(store, lambda: other.drop_partitions(["k=2"]))
    open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert rows(other) == [(1, 10), (1, 20)]
    assert len([r for r in store.requests if r.kind == "create" and "_data/" in r.keys[0]]) == 1


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_merge_of_an_input_repeats_the_query(other: Table, store: FaultyStore, clock: ManualClock) -> None:
    act_at_claims(store, other.merge)
    report = open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert (report.replaced_parts, report.rows_before, report.rows) == (1, 2, 2)
    assert rows(other) == [(1, 10), (1, 20), (2, 1), (2, 2)]
    assert_no_orphans(store)


@pytest.mark.long
def test_a_rewrite_gives_up_after_repeated_conflicts(other: Table, store: FaultyStore, clock: ManualClock) -> None:
    act_at_claims(store, lambda: other.overwrite([{"k": 1, "n": 5}], partitions=["k=1"]), times=REWRITE_ATTEMPTS_MAX)
    with pytest.raises(CommitConflict, match="k=1"):
        open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert rows(other) == [(1, 5), (2, 1), (2, 2)]
    assert_no_orphans(store)


def test_a_new_column_of_a_conflicting_type_is_rejected(other: Table, store: FaultyStore, clock: ManualClock) -> None:
    act_at_claims(store, lambda: other.insert([{"k": 2, "n": 9, "c": "text"}]))
    with pytest.raises(SchemaConflict, match="'c'"):
        open_table(store, clock).rewrite_partition("k=1", "SELECT *, 1.5::DOUBLE AS c FROM t", new_columns=True)
    assert_no_orphans(store)


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_crash_at_any_request_leaves_the_table_whole(fault: Fault) -> None:
    query = "SELECT k, n * IF(n < 10, 10, 1) AS n FROM t"
    after = [(1, 10), (1, 20), (2, 1), (2, 2)]
    check_atomic(world, fault, lambda table: table.rewrite_partition("k=1", query), rows, after)


def test_the_data_plane_can_be_replaced(clocked: ClockedStore, clock: ManualClock) -> None:
    table = world(clocked, clock)

    def writer(
        handle: Handle, rewrite: Rewrite, query: str, schema: Mapping[str, str], /, *, dry_run: bool
    ) -> WrittenParts:
        assert (rewrite.partition, len(rewrite.inputs), query) == ("k=1", 2, "anything")
        key = handle.keys.part("k=1", "new")
        if not dry_run:
            handle.store.create(key, b"12")
        return WrittenParts({"k": "BIGINT"}, (Marker(key, 2, 0, rows=1),), handle.clock.now_ms())

    assert rewrite_partition(table.handle, "k=1", "anything", writer=writer, dry_run=True).rows == 1
    report = rewrite_partition(table.handle, "k=1", "anything", writer=writer)
    assert [p.key for p in report.commit.parts] == ["table/_data/k=1/new.parquet"]
    check_sound(clocked)
