"""Materialized views: their rows, the inserts that feed them, failures at any request, and their repair."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from icedb import Commit, Table
from icedb.errors import (
    CommitStateUnknown,
    InvalidOption,
    InvalidPartitionValue,
    InvalidQuery,
    SchemaConflict,
    StaleView,
    StoreUnavailable,
    TableExists,
    TableNotFound,
)
from icedb.format.records import LogFile
from icedb.format.table_spec import Aggregating, Dedup, Replacing, TableSpec, ViewSpec, encode_spec
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.testing import ClockedStore, Crash, Fault, ManualClock, create_table, open_table
from tests.support.object_stores.interruptions import act_before
from tests.support.object_stores.stores import Place
from tests.support.tables.siblings import CRASHES, HALVES, LOST_RESPONSES, Rows, Siblings

TOTALS = "SELECT k, count(*) AS n, sum(v)::BIGINT AS v FROM _rows GROUP BY k"
SUMMED = Aggregating(by=("k",), sum=("n", "v"))
TXN = ("app", 5)
BASE: Rows = [(0, 0), (1, 1)]
ONE: Rows = [(0, 10), (1, 11)]
TWO: Rows = [(0, 20)]


def rows(*pairs: tuple[int, int], **columns: object) -> list[dict[str, object]]:
    return [{"k": k, "v": v, **columns} for k, v in pairs]


def listing(place: Any) -> dict[str, bytes]:
    """Read all objects of the folder or prefix that contains the tables."""
    store = open_store(parse_location(place.uri, place.storage_options))
    prefix = store.location.prefix
    return {i.key: store.get(i.key).body for i in store.list(f"{prefix}/" if prefix else "")}


def content(table: Table, columns: str = "k, v", source: str = "t") -> Rows:
    return table.query(f"SELECT {columns} FROM {source} ORDER BY ALL").fetchall()


@pytest.fixture
def table(shared_place: Any) -> Table:
    return make(shared_place)


def make(place: Any, **spec: Any) -> Table:
    return Table.create(place.below("events").uri, storage_options=place.storage_options, **spec)


def again(table: Table) -> Table:
    """Open the table as another program."""
    return Table.open(table.uri, storage_options=table.handle.location.storage_options)


# ------------------------------------------------------------------------------------------ what a view shows


@pytest.mark.sampled(cases=1, days=3)
def test_a_view_contains_existing_and_inserted_rows(table: Table) -> None:
    table.insert(rows(*BASE))
    view = table.create_view("totals", TOTALS, merging=SUMMED)
    assert content(view, "k, n, v") == [(0, 1, 0), (1, 1, 1)]
    commit = table.insert(rows((0, 5), (0, 6)))
    assert (commit.rows, commit.committed) == (2, True)
    assert content(view, "k, n, v") == [(0, 1, 0), (0, 2, 11), (1, 1, 1)]
    assert content(view, "k, n, v", "final") == [(0, 3, 11), (1, 1, 1)]
    view.merge()
    assert content(view, "k, n, v") == [(0, 3, 11), (1, 1, 1)]
    # The programs that open the table later feed it, too.
    again(table).insert(rows((1, 4)))
    assert content(view, "k, n, v", "final") == [(0, 3, 11), (1, 2, 5)]


@pytest.mark.sampled(cases=1, days=3)
def test_without_backfill_a_view_contains_later_inserts_only(table: Table) -> None:
    table.insert(rows(*BASE))
    view = table.create_view("copy", "SELECT k, v FROM _rows WHERE v > 3", backfill=False, sort_by=["v"])
    table.insert(rows(*ONE, (2, 2)))
    assert content(view) == ONE
    table.refresh_view("copy")
    assert content(view) == ONE


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize(
    ("merging", "expected"),
    [
        (Dedup(by=("k", "v")), [(0, 1, "a"), (0, 2, "b"), (1, 1, "a")]),
        (Replacing(by=("k",), version="v"), [(0, 2, "b"), (1, 1, "a")]),
        (Aggregating(by=("k",), max=("v",), min=("s",)), [(0, 2, "a"), (1, 1, "a")]),
    ],
)
def test_final_of_a_merging_view_is_the_same_after_a_merge(memory: Any, merging: Any, expected: Rows) -> None:
    table = make(memory)
    table.insert([{"k": 0, "v": 1, "s": "a"}])
    view = table.create_view("merged", "SELECT * FROM _rows", merging=merging, sort_by=["k"])
    for row in ({"k": 0, "v": 2, "s": "b"}, {"k": 1, "v": 1, "s": "a"}, {"k": 0, "v": 1, "s": "a"}):
        table.insert([row])
    assert content(view, "k, v, s", "final") == expected
    view.merge()
    assert content(view, "k, v, s") == content(view, "k, v, s", "final") == expected


@pytest.mark.sampled(cases=1, days=3)
def test_a_view_may_be_partitioned_and_its_columns_declared(table: Table) -> None:
    view = table.create_view(
        "by_parity", "SELECT v, v % 2 AS parity FROM _rows", partition_by=["v % 2 AS p"], schema={"v": "INTEGER"}
    )
    table.insert(rows((0, 1), (0, 2), (0, 3)))
    assert {p.partition for p in view.snapshot().parts} == {"p=0", "p=1"}
    assert view.schema() == {"v": "INTEGER", "parity": "BIGINT"}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_every_type_goes_through_a_view_unchanged(memory: Any) -> None:
    table = make(memory)
    row = {
        "text": "a'\"\n\0ü😀",
        "blob": b"\0\xff",
        "flag": True,
        "small": -1,
        "real": float("nan"),
        "money": Decimal("12345678901234567890.123456"),
        "day": date(2026, 11, 21),
        "wall": datetime(2026, 11, 21, 1, 2, 3, 456789),
        "instant": datetime(2026, 11, 21, 1, 2, 3, 456789, tzinfo=UTC),
        "nested": {"list": [1, None], "map": [("a", Decimal("1.5"))]},
        "nothing": None,
    }
    nested = pa.struct([("list", pa.list_(pa.int8())), ("map", pa.map_(pa.string(), pa.decimal128(3, 1)))])
    batch = pa.table({c: [v] for c, v in row.items() if c not in ("nested", "nothing")})
    batch = batch.append_column("nested", pa.array([row["nested"]], nested))
    batch = batch.append_column("nothing", pa.array([None], pa.uint16()))
    table.insert(batch)
    extra = "gen_random_uuid() AS id, '{\"a\": [1]}'::JSON AS doc, TIME '01:02:03' AS clock"
    rich = table.query(f"SELECT *, {extra} FROM t")
    source = Table.create(memory.below("rich").uri)
    source.insert(rich.to_arrow_table())
    filled = source.create_view("filled", "SELECT * FROM _rows")
    fed = source.create_view("fed", "SELECT * FROM _rows", backfill=False)
    source.insert(source.query("FROM t").to_arrow_table())
    assert filled.schema() == fed.schema() == source.schema()
    expected = source.query("FROM t").fetchall()
    assert repr(filled.query("FROM t").fetchall()) == repr(expected)
    assert repr(fed.query("FROM t").fetchall()) == repr(expected[:1])


@pytest.mark.sampled(cases=1, days=3)
def test_a_view_query_sees_all_columns_of_the_table(table: Table) -> None:
    table.insert(rows(*BASE, label="x"))
    view = table.create_view("labels", "SELECT label, count(*) AS n FROM _rows GROUP BY ALL", merging=None)
    table.insert(rows(*TWO))
    assert content(view, "label, n") == [("x", 2), (None, 1)]


@pytest.mark.sampled(days=3)
def test_a_view_query_sees_the_stored_rows(memory: Any) -> None:
    table = make(memory, insert_query="SELECT k, v * 2 AS v FROM _rows", row_id=True, required=["v"])
    view = table.create_view("copy", "SELECT k, v, _row_id FROM _rows")
    commit = table.insert([{"k": 0, "v": 1}, {"k": 1, "v": None}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, 1)
    assert content(view, "k, v, _row_id") == content(table, "k, v, _row_id") != []


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_stored_partition_column_does_not_partition_the_view(memory: Any) -> None:
    table = make(memory, preserve_partition=True, path_columns={"d": "VARCHAR"})
    view = table.create_view("totals", "SELECT sum(v)::BIGINT AS v FROM _rows")
    table.insert([{"_partition": f"d={n}", "v": n} for n in range(3)])
    assert [(p.partition, p.rows) for p in view.snapshot().parts] == [("", 1)]
    assert content(view, "v") == [(3,)]
    # Unless the answer says so.
    copy = table.create_view("copy", "SELECT v, 'd=' || v AS _partition FROM _rows")
    assert sorted(p.partition for p in copy.snapshot().parts) == ["d=0", "d=1", "d=2"]


# ------------------------------------------------------------------------------------------ batches without rows


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_an_insert_that_leaves_no_rows_in_its_source_feeds_nothing(memory: Any) -> None:
    table = make(memory, required=["v"], schema={"k": "BIGINT", "v": "BIGINT"})
    view = table.create_view("counts", "SELECT count(*) AS n FROM _rows")
    assert not table.insert([]).committed
    assert not table.insert(pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.int64())})).committed
    assert table.insert([{"k": 1, "v": None}], on_conflict="quarantine").quarantined_rows == 1
    assert view.snapshot().parts == ()
    table.insert(rows(*BASE))
    assert content(view, "n") == [(2,)]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("chosen", [{}, {"_partition": pa.array([], pa.string())}], ids=["", "chosen partitions"])
def test_a_batch_without_rows_runs_no_query_and_adds_no_column(memory: Any, chosen: dict[str, pa.Array]) -> None:
    table = make(memory, insert_query="SELECT count(*) AS n, max(v) AS last FROM _rows", required=["last"])
    view = table.create_view("counts", "SELECT count(*) AS n FROM _rows")
    without_rows: list[Any] = [[], pa.table({"v": pa.array([], pa.int64()), **chosen})]
    for empty in without_rows:
        assert not table.insert(empty).committed
    assert (table.schema(), view.snapshot().parts) == ({}, ())
    table.insert([{"v": 1}, {"v": 2}])
    assert content(table, "n, last") == [(2, 2)]
    assert content(view, "n") == [(1,)]


@pytest.mark.sampled(cases=1, days=3)
def test_a_result_without_rows_adds_no_part_to_the_view(table: Table) -> None:
    table.insert(rows(*BASE))
    view = table.create_view("large", "SELECT k, v FROM _rows WHERE v > 100")
    table.insert(rows(*ONE))
    assert view.snapshot().parts == ()
    table.insert(rows((0, 101)))
    assert content(view) == [(0, 101)]


@pytest.mark.sampled(cases=1, days=3)
def test_a_refresh_may_empty_the_view(table: Table) -> None:
    table.insert(rows((0, 101)))
    view = table.create_view("large", "SELECT k, v FROM _rows WHERE v > 100")
    table.overwrite(rows(*BASE))
    assert table.refresh_view("large").parts == ()
    assert content(view) == []
    table.insert(rows((0, 102)))
    table.delete("true")
    assert content(view) == [(0, 102)]
    table.refresh_view("large")
    assert content(view) == []
    assert not table.refresh_view("large").committed


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("events", InvalidOption),
        ("events_quarantine", InvalidOption),
        ("../out", InvalidOption),
        ("a/b", InvalidOption),
        ("", InvalidOption),
        ("_log", InvalidOption),
        ("taken", TableExists),
    ],
)
def test_an_invalid_view_name_is_rejected(local: Any, name: str, error: type[Exception]) -> None:
    table = make(local)
    Table.create(local.below("taken").uri, storage_options=local.storage_options)
    before = listing(local)
    with pytest.raises(error):
        table.create_view(name, TOTALS)
    assert listing(local) == before
    assert table.spec.views == ()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM other",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT getenv('HOME') AS home FROM _rows",
        "DROP TABLE _rows",
        "SELECT 1 AS a; SELECT 2 AS b",
        "",
    ],
)
def test_a_query_of_more_than_the_rows_is_rejected(local: Any, query: str) -> None:
    table = make(local)
    before = listing(local)
    with pytest.raises(InvalidQuery):
        table.create_view("view", query)
    assert listing(local) == before


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT nowhere FROM _rows", InvalidQuery),
        ("SELECT sum(v) FROM _rows", InvalidQuery),
        ("SELECT CAST('x' || v AS INTEGER) AS k FROM _rows", InvalidQuery),
        ("SELECT CAST(v AS VARCHAR) AS v FROM _rows", SchemaConflict),
        ("SELECT v + 0.5 AS v FROM _rows", SchemaConflict),
        ("SELECT k FROM _rows", InvalidQuery),  # the view is sorted by v
        ("SELECT 'd=1/../..' AS _partition, v FROM _rows", InvalidPartitionValue),
    ],
)
def test_an_insert_that_a_view_cannot_store_is_rejected(local: Any, query: str, error: type[Exception]) -> None:
    table = make(local, required=["v"])
    table.create_view("first", "SELECT k, v FROM _rows")
    table.create_view("view", query, schema={"v": "BIGINT"}, sort_by=["v"])
    before = listing(local)
    with pytest.raises(error):
        table.insert([*rows(*BASE), {"k": 1, "v": None}], on_conflict="quarantine")
    assert listing(local) == before
    table.drop_view("view")
    table.insert(rows(*BASE))
    assert content(table) == BASE


def test_numbers_are_converted_to_the_types_of_the_view_without_loss(memory: Any) -> None:
    table = make(memory)
    view = table.create_view("sums", "SELECT sum(v) AS v FROM _rows", schema={"v": "BIGINT"})
    table.insert(rows(*BASE))
    assert view.schema() == {"v": "BIGINT"}
    with pytest.raises(SchemaConflict, match="without loss"):
        table.insert(rows((0, 2**62), (0, 2**62)))
    assert content(table) == BASE


@pytest.mark.sampled(cases=1)
def test_a_missing_view_is_named_before_anything_is_written(shared_place: Any) -> None:
    table = make(shared_place)
    view = table.create_view("copy", "SELECT k, v FROM _rows")
    store = view.handle.store
    store.delete([i.key for p in ("_log/", "_claims/") for i in store.list(f"{_prefix(view)}{p}")])
    store.delete([view.handle.keys.spec])
    before = listing(shared_place)
    with pytest.raises(TableNotFound, match=r"drop_view\('copy'\)"):
        table.insert(rows(*BASE))
    with pytest.raises(TableNotFound, match="copy"):
        table.refresh_view("copy")
    assert listing(shared_place) == before
    table.drop_view("copy")
    assert table.insert(rows(*BASE)).rows == 2


def _prefix(table: Table) -> str:
    return table.handle.keys.log_prefix.removesuffix("_log/")


def test_an_unknown_view_is_rejected(memory: Any) -> None:
    table = make(memory)
    for act in (partial(table.refresh_view, "copy"), partial(table.drop_view, "copy")):
        with pytest.raises(InvalidOption, match="no view 'copy'"):
            act()


@pytest.mark.sampled(cases=1, days=3)
def test_a_dropped_view_keeps_its_rows_and_is_not_updated(table: Table) -> None:
    view = table.create_view("copy", "SELECT k, v FROM _rows")
    table.insert(rows(*BASE))
    table.drop_view("copy")
    table.insert(rows(*ONE))
    assert content(view) == BASE
    with pytest.raises(TableExists):
        table.create_view("copy", TOTALS)
    table.create_view("copy", "SELECT k, v FROM _rows", backfill=False)  # fed again
    table.insert(rows(*TWO))
    assert content(view) == sorted([*BASE, *TWO])
    table.create_view("copy", "SELECT k, v FROM _rows")
    assert content(view) == content(table)


# ------------------------------------------------------------------------------------------ views of views


@pytest.mark.sampled(cases=1, days=3)
def test_a_view_of_a_view_is_fed_by_the_inserts_into_the_first_table(table: Table) -> None:
    table.insert(rows(*BASE))
    large = table.create_view("positive", "SELECT k, v FROM _rows WHERE v > 0")
    totals = large.create_view("totals", TOTALS, merging=SUMMED)
    assert content(totals, "k, n, v") == [(1, 1, 1)]
    table.insert(rows(*ONE, (5, 0)))
    assert content(large) == [(0, 10), (1, 1), (1, 11)]
    assert content(totals, "k, n, v", "final") == [(0, 1, 10), (1, 2, 12)]
    table.insert(rows((7, 0)))  # leaves no rows in the first, so nothing for the second
    assert content(totals, "k, n, v", "final") == [(0, 1, 10), (1, 2, 12)]


@pytest.mark.parametrize("ring", [("events",), ("a", "events"), ("a", "b", "a")])
def test_a_forged_cycle_of_views_is_rejected(ring: tuple[str, ...]) -> None:
    clock = ManualClock()
    world = Siblings(lambda *_: None)
    for name, view in zip(("events", *ring), (*ring, ""), strict=True):
        views = (ViewSpec(view, "SELECT k, v FROM _rows"),) if view else ()
        store, spec = world.beside(name), TableSpec(id=clock.new_id(), views=views)
        if store.location.keys.spec not in world.store.objects:
            store.create(store.location.keys.spec, encode_spec(spec))
    with pytest.raises(InvalidOption, match="no view of this one"):
        world.table().insert(rows(*BASE))
    assert [k for k in world.store.objects if "/_data/" in k or "/_log/" in k] == []


# ------------------------------------------------------------------------------------------ what does not reach a view


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.overwrite([{"k": 9, "v": 9}]),
        lambda t: t.delete("k = 0"),
        lambda t: t.drop_partitions("p = 0"),
        lambda t: t.rewrite_partition("p=0", "SELECT k, v + 1 AS v FROM _rows"),
        lambda t: t.merge(),
    ],
)
def test_other_changes_reach_a_view_at_its_refresh(memory: Any, change: Callable[[Table], object]) -> None:
    table = make(memory, partition_by=["k AS p"])
    view = table.create_view("copy", "SELECT k, v FROM _rows")
    for _ in range(2):
        table.insert(rows(*BASE))
    change(table)
    assert content(view) == sorted([*BASE, *BASE])
    table.refresh_view("copy")
    assert content(view) == content(table)


@pytest.mark.sampled(cases=1, days=3)
def test_an_open_table_feeds_a_new_view_after_it_reads_the_log(table: Table) -> None:
    table.insert(rows(*BASE))
    other = again(table)
    other.insert(rows(*TWO))  # an append of known columns does not read the log
    view = table.create_view("copy", "SELECT k, v FROM _rows")
    other.insert(rows((7, 7)))
    assert content(view) == sorted([*BASE, *TWO])
    other.snapshot()
    other.insert(rows((8, 8)))
    assert content(view) == sorted([*BASE, *TWO, (8, 8)])
    table.refresh_view("copy")
    assert content(view) == content(table)


@pytest.mark.sampled(cases=1, days=3)
def test_views_of_a_table_with_a_separate_log_are_beside_its_parts(shared_place: Any) -> None:
    table = make(shared_place, log_uri=shared_place.below("logs/events").uri, required=["v"])
    view = table.create_view("copy", "SELECT k, v FROM _rows")
    commit = again(table).insert([*rows(*BASE), {"k": 9, "v": None}], on_conflict="quarantine")
    assert content(view) == BASE
    assert commit.quarantine == shared_place.below("events_quarantine").uri
    tables = {key.rpartition("/_")[0].rpartition("/")[2] for key in listing(shared_place) if "/_log/" in key}
    assert tables == {"events", "copy", "events_quarantine"}
    assert view.handle.location.log is None


# ------------------------------------------------------------------------------------------ at once


@pytest.mark.sampled(cases=1, days=3)
def test_concurrent_inserts_all_feed_the_view(shared_place: Any) -> None:
    table = make(shared_place)
    view = table.create_view("totals", TOTALS, merging=SUMMED)

    def write(number: int, own: Table) -> None:
        for n in range(3):
            own.insert(rows((number, n)), txn=(f"app-{number}", n) if number % 2 else None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4), [again(table) for _ in range(4)]))
    assert content(view, "k, n, v", "final") == [(k, 3, 3) for k in range(4)]
    view.merge()
    assert content(view, "k, n, v") == [(k, 3, 3) for k in range(4)]


# ------------------------------------------------------------------------------------------ a world of three tables


def _begin(store: ClockedStore, clock: ManualClock) -> None:
    table = create_table(store, clock, sort_by=["k", "v"])
    table.insert(rows(*BASE))
    copy = table.create_view("copy", "SELECT k, v FROM _rows")
    copy.create_view("doubled", "SELECT k, 2 * v AS v FROM _rows")


@pytest.fixture(scope="module")
def shared_world() -> Siblings:
    return Siblings(_begin)


def insert(table: Table, batch: Rows = ONE, txn: tuple[str, int] | None = None) -> Commit:
    return table.insert(rows(*batch), txn=txn)


def all_rows(world: Siblings) -> tuple[Rows, Rows, Rows]:
    """Return the rows of the three tables, those of `doubled` with half of their values."""
    doubled = [(k, v // 2) for k, v in world.rows("doubled", "k", "v")]
    return world.rows("events", "k", "v"), world.rows("copy", "k", "v"), sorted(doubled, key=repr)


def all_of(*batches: Rows) -> tuple[Rows, Rows, Rows]:
    expected: Rows = sorted((row for batch in (BASE, *batches) for row in batch), key=repr)
    return expected, expected, expected


def check_no_view_is_ahead(world: Siblings) -> None:
    """Check that all rows of a view are committed to its source."""
    source, copy, doubled = map(Counter, all_rows(world))
    assert copy <= source
    assert doubled <= copy


@pytest.mark.sampled(cases=1)
@CRASHES
@HALVES
def test_the_same_txn_after_a_crash_completes_all_tables(world: Siblings, fault: Fault, half: int) -> None:
    act = partial(insert, txn=TXN)
    seen = set()
    for request, table, store in world.attempts(act, half):
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            act(table)
        check_no_view_is_ahead(world)
        seen.add(tuple(map(len, all_rows(world))))
        act(world.table())
        assert all_rows(world) == all_of(ONE), request
        assert act(world.table()).repeated
        assert all_rows(world) == all_of(ONE), request
    assert seen >= {(2, 2, 2), (4, 2, 2), (4, 4, 2)}, "each commit was the last one for once"


@pytest.mark.sampled(cases=1, days=3)
@CRASHES
@HALVES
def test_a_refresh_repairs_views_after_a_crash_without_a_txn(world: Siblings, fault: Fault, half: int) -> None:
    for request, table, store in world.attempts(insert, half):
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            insert(table)
        check_no_view_is_ahead(world)
        source, *_ = all_rows(world)
        assert source in (all_of()[0], all_of(ONE)[0])
        world.table().refresh_view("copy")
        world.table("copy").refresh_view("doubled")
        assert all_rows(world) == (source, source, source), request


@pytest.mark.sampled(cases=1, days=3)
@LOST_RESPONSES
@pytest.mark.parametrize("txn", [None, TXN], ids=["without txn", "with txn"])
@HALVES
def test_a_lost_response_is_recovered(world: Siblings, fault: Fault, txn: tuple[str, int] | None, half: int) -> None:
    act = partial(insert, txn=txn)
    for request, table, store in world.attempts(act, half):
        store.inject(fault, number=request.number)
        try:
            act(table)
        except (StoreUnavailable, CommitStateUnknown, StaleView) as error:
            check_no_view_is_ahead(world)
            source, *_ = all_rows(world)
            if isinstance(error, StaleView):
                assert source == all_of(ONE)[0], request
            if isinstance(error, StoreUnavailable) and txn is None:
                assert source == all_of()[0], request  # it may be tried again
            if txn is not None:
                act(world.table())
                source = all_of(ONE)[0]
            else:
                world.table().refresh_view("copy")
                world.table("copy").refresh_view("doubled")
            assert all_rows(world) == (source, source, source), request
        else:
            assert all_rows(world) == all_of(ONE), request


@pytest.mark.sampled(cases=1, days=3)
@HALVES
def test_two_concurrent_inserts_of_a_txn_store_one_batch(world: Siblings, half: int) -> None:
    act = partial(insert, txn=TXN)
    for request, table, store in world.attempts(act, half):
        act_before(store, lambda: act(world.table()), number=request.number)
        act(table)
        assert all_rows(world) == all_of(ONE), request
        assert world.unnamed() == set(), request


@pytest.mark.sampled(days=3)
def test_an_insert_rejected_at_its_commit_leaves_no_part_of_a_view(world: Siblings) -> None:
    table, store = world.actor()

    act_before(store, lambda: world.table().insert(rows(*TWO, extra="text")), kind="create", key="events/_data/")
    with pytest.raises(SchemaConflict):
        table.insert(rows(*ONE, extra=1))
    assert all_rows(world) == all_of(TWO)
    assert world.unnamed() == set()


# ------------------------------------------------------------------------------------------ behind


def behind(world: Siblings, name: str, txn: tuple[str, int] | None) -> StaleView:
    table, store = world.actor()
    store.inject(Fault.FAIL, kind="create", key=f"{name}/_log/", times=1_000)
    with pytest.raises(StaleView) as raised:
        insert(table, txn=txn)
    return raised.value


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_an_unpublished_view_and_its_own_views_are_stale(world: Siblings) -> None:
    error = behind(world, "copy", None)
    assert "['copy']" in str(error)
    assert "Do not insert again: refresh_view('copy')" in str(error)
    assert all_rows(world) == (all_of(ONE)[0], *all_of()[1:])
    world.table().refresh_view("copy")
    world.table("copy").refresh_view("doubled")
    assert all_rows(world) == all_of(ONE)


@pytest.mark.sampled(days=3)
def test_a_stale_view_of_a_view_is_named_by_its_path(world: Siblings) -> None:
    assert "['copy/doubled']" in str(behind(world, "doubled", None))
    assert all_rows(world) == (*all_of(ONE)[:2], all_of()[2])
    world.table("copy").refresh_view("doubled")
    assert all_rows(world) == all_of(ONE)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("name", ["copy", "doubled"])
def test_a_retry_with_the_same_txn_completes_a_stale_view(world: Siblings, name: str) -> None:
    assert f"Insert again with the same txn {TXN}" in str(behind(world, name, TXN))
    assert insert(world.table(), txn=TXN).repeated
    assert all_rows(world) == all_of(ONE)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_retry_after_a_refresh_does_not_duplicate_rows(world: Siblings) -> None:
    behind(world, "copy", TXN)
    world.table().refresh_view("copy")
    assert insert(world.table(), txn=TXN).repeated
    assert all_rows(world) == all_of(ONE), "the view of the view was behind, and was completed"
    world.table("copy").refresh_view("doubled")
    assert insert(world.table(), txn=TXN).repeated
    assert all_rows(world) == all_of(ONE)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("backfill", [True, False])
def test_a_repeated_txn_from_before_the_view_does_not_feed_it(world: Siblings, backfill: bool) -> None:
    insert(world.table(), txn=TXN)
    world.table().create_view("late", "SELECT k, v FROM _rows", backfill=backfill)
    held = world.rows("late", "k", "v")
    assert held == (all_of(ONE)[0] if backfill else [])
    assert insert(world.table(), txn=TXN).repeated
    assert world.rows("late", "k", "v") == held
    insert(world.table(), TWO, txn=("app", 6))
    assert world.rows("late", "k", "v") == sorted([*held, *TWO], key=repr)


@pytest.mark.sampled(days=3)
def test_a_refresh_keeps_the_transactions_of_the_view(world: Siblings) -> None:
    insert(world.table("copy"), TWO, txn=("direct", 1))
    insert(world.table(), txn=TXN)
    world.table().refresh_view("copy")
    assert {a: n for a, (n, _) in world.state("copy").txn.items()} == {"direct": 1, "app": 5}


@pytest.mark.long
def test_a_view_whose_column_changed_its_type_is_stale(world: Siblings) -> None:
    world.table().create_view("typed", "SELECT k, v AS fresh FROM _rows", backfill=False)
    table, store = world.actor()

    act_before(store, lambda: world.table("typed").insert([{"fresh": "text"}]), kind="create", key="events/_log/")
    with pytest.raises(StaleView, match="typed"):
        insert(table)
    assert all_rows(world) == all_of(ONE), "the others are fed all the same"
    assert world.unnamed() == set()
    with pytest.raises(SchemaConflict):
        world.table().refresh_view("typed")


# ------------------------------------------------------------------------------------------ creation


@pytest.mark.sampled(cases=1, days=6)
@CRASHES
@pytest.mark.parametrize("inserted", [False, True], ids=["", "inserted before the next try"])
@HALVES
def test_a_crashed_creation_of_a_view_is_repeated(world: Siblings, fault: Fault, inserted: bool, half: int) -> None:
    def create(table: Table) -> None:
        table.create_view("late", "SELECT k, v FROM _rows", sort_by=["v"])

    for request, table, store in world.attempts(create, half):
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            create(table)
        healthy = world.table()
        if inserted:
            insert(healthy)
        create(healthy)
        expected = all_of(ONE)[0] if inserted else all_of()[0]
        assert world.rows("late", "k", "v") == expected, request
        assert [v.name for v in healthy.spec.views] == ["copy", "late"]


def test_an_existing_table_is_not_used_as_the_view(world: Siblings) -> None:
    for name, spec in (("empty", TableSpec(id="x")), ("used", TableSpec(id="x", sort_by=("k",)))):
        world.beside(name).create(f"lake/{name}/_table.json", encode_spec(spec))
    insert(world.table("used"))
    for name in ("empty", "used"):
        with pytest.raises(TableExists):
            world.table().create_view(name, "SELECT k, v FROM _rows")
    assert [v.name for v in world.table().spec.views] == []
    assert all_rows(world) == all_of()


def test_views_are_visible_after_the_log_is_read(world: Siblings) -> None:
    state = world.state("events")
    assert isinstance(next(iter(state.effective.values())).file, LogFile)
    assert not isinstance(state.spec, msgspec.UnsetType)
    assert [v.name for v in open_table(world.store, world.clock).spec.views] == []  # until it reads the log
    assert open_table(world.store, world.clock).views() == ["copy"]
    opened = open_table(world.store, world.clock)
    opened.schema()
    assert [v.name for v in opened.spec.views] == ["copy"]


@pytest.mark.long
def test_another_table_forged_into_the_spec_is_not_written(local: Place) -> None:
    victim = Table.create(local.below("lake/victim").uri)
    victim.insert([{"p": 1}])
    source = Table.create(local.below("lake/src").uri)
    path = Path(source.uri) / "_table.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "views": [{"name": "victim", "query": "SELECT -1 AS p FROM _rows"}]}))
    with pytest.raises(InvalidOption, match="is another table"):
        Table.open(source.uri).insert([{"p": 2}])
    assert victim.snapshot().rows == 1
    assert Table.open(source.uri).snapshot().rows == 0
