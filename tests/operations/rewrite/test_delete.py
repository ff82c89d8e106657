"""Deletions remove exactly the rows for which the predicate is true, also during concurrent commits."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Part, Table
from icedb.errors import InvalidOption, InvariantViolated, UnknownColumn
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.operations.rewrite.delete import MatchingRows, delete, find_rows
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from icedb.transaction.table_handle import Handle
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.fault_walk import check_atomic
from tests.support.tables.numbered_rows import data_keys


def make(place: Any, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


def stored(table: Table, part: Part) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(table.handle.store.get(part.key).body)).to_pylist()
    return rows


@pytest.mark.sampled(cases=1, days=3)
def test_exactly_the_matching_rows_go_and_other_parts_are_not_touched(place: Any) -> None:
    table = make(place, partition_by=["day"], sort_by=["user_id", "n"])
    table.insert([{"day": f"2026-11-{d}", "user_id": u, "n": n} for d in (20, 21, 22) for u in (7, 8) for n in (2, 1)])
    table.insert([{"day": "2026-11-22", "user_id": 7, "n": 3}])
    table.insert([{"day": "2026-11-23", "user_id": 8, "n": 4}])
    before, as_of = table.query("FROM t ORDER BY ALL").fetchall(), table.snapshot().as_of_ms
    untouched = {p.key for p in table.snapshot().parts if p.partition in ("day=2026-11-20", "day=2026-11-23")}
    report = table.delete("user_id = 7 AND day > '2026-11-20'")
    assert (report.matching_rows, report.deleted_rows) == (5, 5)
    assert (report.rewritten_parts, report.removed_parts, report.dropped_parts) == (2, 1, 0)
    assert report.bytes == sum(p.bytes for p in report.commit.tombstoned)
    assert report.second_pass_needed
    expected = [r for r in before if not (r[1] == 7 and r[0] > "2026-11-20")]
    assert table.query("FROM t ORDER BY ALL").fetchall() == expected
    assert untouched <= {p.key for p in table.snapshot().parts}
    assert table.query("FROM t ORDER BY ALL", as_of=as_of).fetchall() == before
    for part in report.commit.parts:
        rows = [(r["user_id"], r["n"]) for r in stored(table, part)]
        assert rows == sorted(rows), "the sort order is kept"
        assert len(rows) == part.rows
    check_sound(table.handle.store)
    second = table.delete("user_id = 7 AND day > '2026-11-20'")
    assert not second.commit.committed
    assert not second.second_pass_needed


def test_rows_for_which_the_predicate_is_null_or_false_stay(memory: Any) -> None:
    table = make(memory)
    table.insert([{"a": 1}, {"a": None}, {"a": 2}])
    table.delete("a <> 1")
    assert table.query("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (None,)]
    table.delete("a IS NULL")
    assert table.query("SELECT a FROM t").fetchall() == [(1,)]


def test_a_dry_run_of_a_deletion_writes_nothing(place: Any) -> None:
    table = make(place, partition_by=["k"])
    table.insert([{"k": 0, "n": 1}, {"k": 0, "n": 2}, {"k": 1, "n": 1}])
    before = table.handle.store.list(table.handle.keys.data_prefix), table.handle.read().epoch
    report = table.delete("n = 1", dry_run=True)
    assert (report.matching_rows, report.deleted_rows, report.rewritten_parts, report.removed_parts) == (2, 0, 1, 1)
    assert report.dry_run
    assert not report.commit.committed
    assert (table.handle.store.list(table.handle.keys.data_prefix), table.handle.read().epoch) == before


def test_a_predicate_over_partition_columns_opens_no_part(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["n % 3 AS rest"]).insert([{"n": n} for n in range(9)])
    store = FaultyStore(clocked)
    table = open_table(store, clock)
    actual = find_rows(table.handle, table.snapshot().parts, "rest = 2 OR rest IS NULL", table.schema())
    assert list(actual.rows.values()) == [3]
    assert not [r for r in store.requests if "_data/" in r.keys[0]]
    report = table.delete("rest >= 1")
    assert (report.removed_parts, report.rewritten_parts) == (2, 0)
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(0,), (3,), (6,)]


def test_conditions_on_partition_columns_prune_parts(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["n // 10 AS tens"]).insert([{"n": n} for n in range(50)])
    store = FaultyStore(clocked)
    table = open_table(store, clock)
    assert table.delete("tens < 3 AND n % 10 = 7 AND t.tens > 0").matching_rows == 2
    opened = {k for r in store.requests if r.kind == "get" for k in r.keys if "_data/" in k}
    assert {k.split("tens=")[1][0] for k in opened} == {"1", "2"}


def test_parts_whose_paths_lack_their_partition_are_searched(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    table.insert([{"k": 1, "n": 1}, {"k": 2, "n": 2}])
    [one, two] = table.snapshot().parts
    store = table.handle.store
    # A program of v3 may use other paths, and record no row count.
    bare = [Marker(f"{table.handle.keys.data_prefix}{n}.parquet", p.bytes, 1) for n, p in enumerate((one, two))]
    for marker, part in zip(bare, (one, two), strict=True):
        store.create(marker.key, store.get(part.key).body)
    table.drop_partitions("true")
    key = table.handle.keys.log_file(1_700_000_000_000, merged=False, writer="v3")
    store.create(key, encode(LogFile(1_700_000_000_000, {"k": "BIGINT", "n": "BIGINT"}, tuple(bare))))
    assert table.delete("k = 1").removed_parts == 1
    assert table.query("SELECT k, n FROM t").fetchall() == [(2, 2)]


def test_a_part_keeps_its_own_columns_and_a_predicate_sees_the_others_as_null(memory: Any) -> None:
    table = make(memory, partition_by=["n % 2 AS odd"])
    table.insert([{"n": 1}, {"n": 3}])
    table.insert([{"n": 1, "c": "x"}])
    assert table.delete("c IS NULL AND n = 1 AND odd = 1").matching_rows == 1
    assert sorted(map(repr, (stored(table, p) for p in table.snapshot().parts))) == [
        "[{'n': 1, 'c': 'x'}]",
        "[{'n': 3}]",
    ]


@pytest.mark.sampled(cases=1, days=3)
def test_parts_of_an_older_partitioning_are_searched_and_stay_where_they_are(place: Any) -> None:
    table = make(place, partition_by=["n // 10 AS tens"], sort_by=["n"])
    table.insert([{"n": n} for n in range(20)])
    table.alter(partition_by=["n % 2 AS odd", "n // 10 AS tens"])
    table.insert([{"n": n, "c": "x"} for n in range(20)])
    report = table.delete("odd = 1 AND tens = 0")
    assert (report.matching_rows, report.rewritten_parts, report.removed_parts) == (10, 1, 1)
    assert [(p.partition, list(stored(table, p)[0])) for p in report.commit.parts] == [("tens=0", ["n"])]
    left = [n for n in range(20) if n > 9 or n % 2 == 0]
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in left for _ in range(2)]
    assert table.delete("odd = 0").deleted_rows == 20
    assert table.query("SELECT DISTINCT odd FROM t").fetchall() == [(1,)]


@pytest.mark.sampled(cases=1)
def test_text_that_looks_like_something_else_stays_text(place: Any) -> None:
    table = make(place, partition_by=["code", "code AS kind"])
    table.insert([{"code": c, "n": n} for c in ("00123", "a b%2Fc", "NULL", "x='y'") for n in (1, 2)])
    assert table.delete("n = 1 AND kind <> 'NULL'").matching_rows == 3
    assert table.query("SELECT code, kind, n FROM t ORDER BY ALL").fetchall() == [
        ("00123", "00123", 2),
        ("NULL", "NULL", 1),
        ("NULL", "NULL", 2),
        ("a b%2Fc", "a b%2Fc", 2),
        ("x='y'", "x='y'", 2),
    ]


def test_a_data_column_wins_over_a_partition_column_of_its_name(memory: Any) -> None:
    table = make(memory, partition_by=["d"])
    table.insert([{"d": 1, "n": 1}, {"d": 2, "n": 2}])
    table.delete("d = 1")
    assert table.query("SELECT d, n FROM t").fetchall() == [(2, 2)]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("", InvalidOption),
        ("  ", InvalidOption),
        ("n", InvalidOption),
        ("n = 1, n = 2", InvalidOption),
        ("n = 1 AS x", InvalidOption),
        ("n = (SELECT max(n) FROM t)", InvalidOption),
        ("EXISTS (SELECT 1)", InvalidOption),
        ("n = max(n)", InvalidOption),
        ("row_number() OVER () = 1", InvalidOption),
        ("random() < 0.5", InvalidOption),
        ("n < epoch(current_timestamp)", InvalidOption),
        ("true; DROP TABLE t", InvalidOption),
        ("true) OR (true", InvalidOption),
        ("unnest([true, false])", InvalidOption),
        ("n = 'a'", InvalidOption),
        ("n = ", InvalidOption),
        ("missing = 1", UnknownColumn),
        ("other.n = 1", UnknownColumn),
        ("rowid = 0", UnknownColumn),
        ("__icedb_file = 'x'", UnknownColumn),
        ("strptime(s, '%Y') > TIMESTAMP '2026-01-01'", InvalidOption),
    ],
)
def test_an_invalid_predicate_is_rejected(memory: Any, where: str, error: type[Exception]) -> None:
    table = make(memory)
    table.insert([{"n": 1, "s": "no date"}])
    with pytest.raises(error, match="memory://"):
        table.delete(where)
    assert table.query("SELECT n FROM t").fetchall() == [(1,)]


def test_an_empty_table_has_nothing_to_delete(memory: Any) -> None:
    table = make(memory)
    with pytest.raises(UnknownColumn):
        table.delete("a = 1")
    assert not table.delete("true").second_pass_needed


values = st.one_of(st.none(), st.integers(-2, 2))
CONDITIONS = [
    "a = 1",
    "a <> b",
    "a > 0 OR k = 1",
    "k = 2",
    "NOT (a = b)",
    "k > 0 AND a IS NULL",
    "a IN (1, NULL)",
    "true",
]


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=12)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), values, values), min_size=1), min_size=1, max_size=3), st.data())
def test_a_deletion_keeps_the_rows_of_a_query(batches: list[list[tuple[int, Any, Any]]], data: st.DataObject) -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock, partition_by=["k"], sort_by=["a"])
    for batch in batches:
        table.insert([{"k": k, "a": a, "b": b} for k, a, b in batch] + [{"k": 0, "a": 0, "b": 0}])
    where = data.draw(st.sampled_from(CONDITIONS))
    expected = table.query(f"FROM t WHERE ({where}) IS NOT TRUE ORDER BY ALL").fetchall()
    total = table.snapshot().rows
    report = table.delete(where)
    assert table.query("FROM t ORDER BY ALL").fetchall() == expected
    assert total == len(expected) + report.deleted_rows
    check_sound(table.handle.store)


# ------------------------------------------------------------------------------------------ beside others


def world(store: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(store, clock, partition_by=["k"], sort_by=["n"])
    for n in range(2):
        table.insert([{"k": k, "n": 10 * n + i} for k in range(3) for i in range(2)])
    clock.advance(1_000)
    return table


def rows(table: Table) -> list[Any]:
    return table.query("SELECT k, n FROM t ORDER BY ALL").fetchall()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_rows_appended_during_a_deletion_need_a_second_pass(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    deleter = open_table(store, clock)

    def meanwhile() -> None:
        other.insert([{"k": 0, "n": 0}])
        other.drop_partitions(["k=2"])

    act_before(store, meanwhile, kind="create", key="_claims/epoch")
    report = deleter.delete("n = 0 OR n = 10")
    assert (report.matching_rows, report.deleted_rows) == (6, 4)
    assert (report.rewritten_parts, report.dropped_parts) == (4, 2)
    assert report.second_pass_needed
    assert rows(other) == [(0, 0), (0, 1), (0, 11), (1, 1), (1, 11)]
    assert data_keys(clocked) == check_sound(clocked).parts.keys(), "no part is an orphan"
    assert deleter.delete("n = 0 OR n = 10").deleted_rows == 1
    assert not deleter.delete("n = 0 OR n = 10").second_pass_needed


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_second_pass_deletes_from_parts_merged_during_the_first(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    act_before(store, other.merge, kind="create", key="_claims/epoch")
    report = open_table(store, clock).delete("n = 0")
    assert (report.deleted_rows, report.dropped_parts, report.commit.committed) == (0, 3, False)
    assert report.second_pass_needed
    assert len(rows(other)) == 12
    assert other.delete("n = 0").deleted_rows == 3
    assert len(rows(other)) == 9


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_crash_at_any_request_leaves_the_table_whole(fault: Fault) -> None:
    after = [(k, n) for k in range(3) for n in (0, 1, 10, 11) if n != 10 or k == 2]
    check_atomic(world, fault, lambda table: table.delete("n = 10 AND k < 2"), rows, after)


# ------------------------------------------------------------------------------------------ other engines


def test_both_data_planes_can_be_replaced(clocked: ClockedStore, clock: ManualClock) -> None:
    table = world(clocked, clock)

    def finder(handle: Handle, parts: Sequence[Part], where: str, schema: Mapping[str, str]) -> MatchingRows:
        assert (where, schema) == ("first", {"k": "BIGINT", "n": "BIGINT"})
        return MatchingRows("checked", {parts[0].key: 1, parts[1].key: 2})

    def rewriter(handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        assert [r.drop_where for r in rewrites] == ["checked", "checked"]
        key = handle.keys.part(rewrites[0].partition, "new")
        handle.store.create(key, b"12")
        return [Marker(key, 2, 0, rows=1), None]

    report = delete(table.handle, "first", finder=finder, rewriter=rewriter)
    assert (report.rewritten_parts, report.removed_parts, report.deleted_rows) == (1, 1, 3)
    check_sound(clocked)


def test_a_rewrite_that_lost_a_row_is_not_published(clocked: ClockedStore, clock: ManualClock) -> None:
    table = world(clocked, clock)
    before = rows(table)

    def rewriter(handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        key = handle.keys.part(rewrites[0].partition, "new")
        handle.store.create(key, b"12")
        return [Marker(key, 2, 0, rows=1), *([None] * (len(rewrites) - 1))]

    with pytest.raises(InvariantViolated):
        delete(table.handle, "n = 10", rewriter=rewriter)
    assert rows(table) == before
    assert not [k for k in clocked.objects if k.endswith("/new.parquet")]


def test_a_wrong_row_count_in_a_marker_stops_a_deletion(clocked: ClockedStore, clock: ManualClock) -> None:
    table = world(clocked, clock)
    [key] = [k for k, f in table.handle.read().files.items() if f.file.epoch]
    actual = table.handle.read().files[key].file
    wrong = msgspec.structs.replace(actual, markers=tuple(msgspec.structs.replace(m, rows=9) for m in actual.markers))
    del clocked.objects[key]
    clocked.create(key, encode(wrong))
    with pytest.raises(InvariantViolated, match="2 rows instead of 9"):
        open_table(clocked, clock).delete("n = 1")
