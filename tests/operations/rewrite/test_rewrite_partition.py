"""Rewrites of a partition: the result of a query replaces its rows atomically."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icedb import Table
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
from icedb.format.timing import HOUR_MS
from icedb.operations.rewrite.rewrite_partition import REWRITE_ATTEMPTS_MAX, rewrite_partition
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.testing import (
    ClockedStore,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts
from tests.support.tables.fault_walk import attempts


def make(place: Any, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


@pytest.mark.sampled(cases=1)
def test_the_answer_takes_the_place_of_the_partition(place: Any) -> None:
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


def test_an_empty_answer_empties_the_partition(memory: Any) -> None:
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


@pytest.mark.long
def test_a_partition_may_be_named_as_a_person_writes_it(memory: Any) -> None:
    table = make(memory, partition_by=["city"])
    table.insert([{"city": "New York", "n": 1}, {"city": "00123", "n": 2}])
    for name in ("city=New York", "city=New%20York", "city=00123"):
        table.rewrite_partition(name, "SELECT * REPLACE (n + 1 AS n) FROM t")
    assert sorted(table.query("SELECT city, n FROM t").fetchall()) == [("00123", 3), ("New York", 3)]


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
def test_an_answer_that_does_not_fit_changes_nothing(
    memory: Any, query: str, error: type[Exception], dry_run: bool
) -> None:
    table = make(memory, partition_by=["n // 10 AS tens"])
    table.insert([{"k": 1, "n": 12, "s": "x"}, {"k": 2, "n": 1, "s": "x"}])
    table.insert([{"k": 1, "n": 13, "s": "x"}])
    before = table.handle.store.list("")
    with pytest.raises(error, match="memory://"):
        rewrite_partition(table.handle, "tens=1", query, dry_run=dry_run, new_columns=True)
    assert table.handle.store.list("") == before


def test_a_new_column_is_refused_unless_it_is_wanted(memory: Any) -> None:
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


def test_rows_of_other_partitions_are_counted_and_one_is_named(memory: Any) -> None:
    table = make(memory, partition_by=["n // 10 AS tens"])
    table.insert([{"n": n} for n in range(10, 20)])
    with pytest.raises(InvalidBatch, match=r"5 of 10 rows .* 'tens=2'"):
        table.rewrite_partition("tens=1", "SELECT n + 5 AS n FROM t")


def test_a_partition_that_is_not_there_is_named(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    table.insert([{"k": 1}])
    with pytest.raises(InvalidOption, match=r"no partition 'k=7'.*k=1"):
        table.rewrite_partition("k=7", "FROM t")


def test_a_dry_run_writes_nothing_and_says_what_would_be(place: Any) -> None:
    table = make(place, partition_by=["k"])
    table.insert([{"k": 1, "n": n} for n in range(5)])
    before = table.handle.store.list(table.handle.keys.data_prefix)
    report = table.rewrite_partition("k=1", "FROM t WHERE n < 2", dry_run=True)
    assert (report.rows_before, report.rows, report.replaced_parts, report.new_parts) == (5, 2, 1, 1)
    assert report.dry_run
    assert not report.commit.committed
    assert table.handle.store.list(table.handle.keys.data_prefix) == before
    assert table.handle.read().epoch == 1


def test_a_missing_part_is_named(place: Any) -> None:
    table = make(place)
    part = table.insert([{"a": 1}]).parts[0]
    if place.kind == "memory":
        table = Table.open(place.uri)
    table.handle.store.delete([part.key])
    with pytest.raises(MissingPart, match=part.key):
        table.rewrite_partition("", "FROM t")


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


def at_each_claim(store: FaultyStore, act: Callable[[], object], *, times: int) -> None:
    left = [act] * times

    def maybe(request: Request) -> None:
        if left and request.kind == "create" and "_claims/epoch" in request.keys[0]:
            left.pop()()

    store.before = maybe


def test_a_plain_append_meanwhile_survives_as_it_is(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    at_each_claim(store, lambda: other.insert([{"k": 1, "n": 3}]), times=1)
    open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert rows(other) == [(1, 3), (1, 10), (1, 20), (2, 1), (2, 2)]
    check_sound(clocked)


def test_an_exclusive_commit_elsewhere_does_not_repeat_the_query(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    at_each_claim(store, lambda: other.drop_partitions(["k=2"]), times=1)
    open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert rows(other) == [(1, 10), (1, 20)]
    assert len([r for r in store.requests if r.kind == "create" and "_data/" in r.keys[0]]) == 1


@pytest.mark.long
def test_when_a_merge_takes_an_input_the_query_is_asked_again(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    at_each_claim(store, other.merge, times=1)
    report = open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert (report.replaced_parts, report.rows_before, report.rows) == (1, 2, 2)
    assert rows(other) == [(1, 10), (1, 20), (2, 1), (2, 2)]
    state = check_sound(clocked)
    assert {i.key for i in clocked.list(clocked.location.keys.data_prefix)} == state.parts.keys(), "nothing is orphaned"


@pytest.mark.long
def test_a_partition_that_never_holds_still_is_given_up(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    at_each_claim(store, lambda: other.overwrite([{"k": 1, "n": 5}], partitions=["k=1"]), times=REWRITE_ATTEMPTS_MAX)
    with pytest.raises(CommitConflict, match="k=1"):
        open_table(store, clock).rewrite_partition("k=1", TENFOLD)
    assert rows(other) == [(1, 5), (2, 1), (2, 2)]
    state = check_sound(clocked)
    assert {i.key for i in clocked.list(clocked.location.keys.data_prefix)} == state.parts.keys(), "nothing is orphaned"


def test_a_new_column_that_another_commit_gave_another_type_is_refused(
    clocked: ClockedStore, clock: ManualClock
) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    at_each_claim(store, lambda: other.insert([{"k": 2, "n": 9, "c": "text"}]), times=1)
    with pytest.raises(SchemaConflict, match="'c'"):
        open_table(store, clock).rewrite_partition("k=1", "SELECT *, 1.5::DOUBLE AS c FROM t", new_columns=True)
    state = check_sound(clocked)
    assert {i.key for i in clocked.list(clocked.location.keys.data_prefix)} == state.parts.keys(), "nothing is orphaned"


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_crash_at_any_request_leaves_the_table_whole(fault: Fault) -> None:
    clock = ManualClock()
    clocked = ClockedStore(clock)
    other = world(clocked, clock)
    before, after = rows(other), [(1, 10), (1, 20), (2, 1), (2, 2)]
    for attempt in attempts(clocked, clock, fault, lambda table: table.rewrite_partition("k=1", TENFOLD)):
        check_sound(clocked)
        other = open_table(clocked, clock)
        assert rows(other) in ([after] if attempt.done else [before, after]), "all of it or nothing"
        clock.advance(HOUR_MS)
        attempt.deliver()
        check_sound(clocked)
        other.rewrite_partition("k=1", "SELECT k, n * IF(n < 10, 10, 1) AS n FROM t")
        assert rows(other) == after


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
