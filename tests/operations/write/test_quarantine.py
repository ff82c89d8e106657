"""Rows that do not fit go to the quarantine, whole and with their reason, and the others are committed."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icedb import Commit, Table
from icedb.errors import (
    CommitStateUnknown,
    EmptyBatch,
    InvalidBatch,
    InvalidOption,
    InvalidURI,
    SchemaConflict,
    StoreUnavailable,
)
from icedb.testing import ClockedStore, Crash, Fault, ManualClock, create_table
from tests.operations.write.test_views import content, listing, make
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.siblings import CRASHES, HALVES, LOST_RESPONSES, Rows, Siblings
from tests.support.waiting import SECONDS_MAX

TXN = ("app", 5)
COLUMNS = ["quarantined_at", "source", "reason", "row"]


def beside(table: Table, name: str = "events_quarantine") -> Table:
    location = table.handle.location
    return Table.open(location.sibling(name).uri, storage_options=location.storage_options)


def aside(table: Table) -> list[tuple[str, dict[str, Any]]]:
    """Read reason and row of each row in the quarantine."""
    quarantined = beside(table).query("SELECT reason, row FROM t ORDER BY ALL").fetchall()
    return [(reason, json.loads(row)) for reason, row in quarantined]


def rows_aside(table: Table) -> list[dict[str, Any]]:
    return [row for _, row in aside(table)]


@pytest.fixture
def table(shared_place: Any) -> Table:
    """A table (k BIGINT, v BIGINT) with a row."""
    made = make(shared_place)
    made.insert([{"k": 0, "v": 0}])
    return made


# ------------------------------------------------------------------------------------------ what goes where


@pytest.mark.sampled(cases=1, days=3)
def test_rows_that_do_not_fit_are_set_aside_with_time_source_and_reason(table: Table) -> None:
    before = datetime.now(UTC)
    batch = [{"k": 1, "v": 1}, {"k": 2, "v": "two"}, {"k": "three", "v": 3, "more": [1]}]
    commit = table.insert(batch, on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows, commit.committed) == (1, 2, True)
    assert commit.quarantine == beside(table).uri == f"{table.uri}_quarantine"
    assert content(table) == [(0, 0), (1, 1)]
    assert aside(table) == [
        ("column 'k' is BIGINT, and the value is \"three\"", {"k": "three", "v": 3, "more": [1]}),
        ("column 'v' is BIGINT, and the value is \"two\"", {"k": 2, "v": "two", "more": None}),
    ]
    [(at, source)] = beside(table).query("SELECT DISTINCT quarantined_at, source FROM t").fetchall()
    assert source == "insert"
    assert before.replace(microsecond=0) <= at <= datetime.now(UTC)
    assert list(beside(table).schema()) == COLUMNS


@pytest.mark.sampled(cases=1)
def test_a_batch_of_valid_rows_creates_no_quarantine(shared_place: Any) -> None:
    table = make(shared_place)
    commit = table.insert([{"k": 1, "v": 1}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows, commit.quarantine) == (1, 0, None)
    assert not any("quarantine" in key for key in listing(shared_place))


@pytest.mark.sampled(cases=1, days=3)
def test_the_quarantine_is_made_once_and_grows(table: Table) -> None:
    for n in range(3):
        assert table.insert([{"k": "x", "v": n}], on_conflict="quarantine").quarantined_rows == 1
    assert [row["v"] for row in rows_aside(table)] == [0, 1, 2]
    beside(table).merge()
    table.insert([{"k": "x", "v": 3}], on_conflict="quarantine")
    assert [row["v"] for row in rows_aside(table)] == [0, 1, 2, 3]


@pytest.mark.sampled(cases=1, days=3)
def test_a_batch_without_valid_rows_commits_nothing_to_the_table(table: Table) -> None:
    commit = table.insert([{"k": "x", "v": 1}, {"k": "y", "v": 2}], on_conflict="quarantine", txn=TXN)
    assert (commit.committed, commit.rows, commit.quarantined_rows) == (False, 0, 2)
    assert commit.quarantine == f"{table.uri}_quarantine"
    assert content(table) == [(0, 0)]
    again = table.insert([{"k": "x", "v": 1}, {"k": "y", "v": 2}], on_conflict="quarantine", txn=TXN)
    assert again.quarantined_rows == 2
    assert len(rows_aside(table)) == 2, "the same transaction puts them there once"


@pytest.mark.sampled(cases=1)
def test_required_columns_that_are_null_are_a_reason(shared_place: Any) -> None:
    table = make(shared_place, schema={"k": "BIGINT", "v": "BIGINT"}, required=["k", "v"])
    batch = [{"k": 1, "v": 1}, {"k": None, "v": 2}, {"k": 3, "v": None}]
    commit = table.insert(batch, on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, 2)
    assert [reason for reason, _ in aside(table)] == [
        f"column '{c}' is missing or null, and the table requires it" for c in "kv"
    ]
    with pytest.raises(InvalidBatch, match="requires"):
        table.insert([{"k": 1}], on_conflict="quarantine")


def test_each_value_is_checked_and_no_cast_loses_anything(memory: Any) -> None:
    table = make(memory, schema={"small": "TINYINT", "real": "DOUBLE", "money": "DECIMAL(5,2)", "day": "DATE"})
    batch = pa.table(
        {
            "small": pa.array([1, 2, 3, 4], pa.int8()),
            "real": pa.array([1, 2**53 + 1, 3, 4], pa.int64()),
            "money": pa.array([Decimal("1.10"), Decimal("2.20"), Decimal("1000.00"), Decimal("4.40")]),
            "day": pa.array([date(2026, 1, 1)] * 4),
        }
    )
    commit = table.insert(batch, on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (2, 2)
    assert [r["small"] for r in rows_aside(table)] == [3, 2]
    assert rows_aside(table)[1]["real"] == 2**53 + 1


@pytest.mark.sampled(cases=1)
def test_rows_with_a_null_in_a_conflicting_column_are_kept(table: Table) -> None:
    batch = pa.table({"k": pa.array([1, 2, 3]), "v": pa.array([None, "a", "1"])})
    commit = table.insert(batch, on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, 2)
    assert content(table) == [(0, 0), (1, None)]
    assert [row["v"] for row in rows_aside(table)] == ["1", "a"]


@pytest.mark.sampled(cases=1)
def test_a_new_column_has_the_type_of_its_first_value(table: Table) -> None:
    commit = table.insert([{"k": 1, "new": 1}, {"k": 2, "new": "text"}, {"k": 3, "new": 3}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (2, 1)
    assert table.schema()["new"] == "BIGINT"
    assert [row["new"] for row in rows_aside(table)] == ["text"]


@pytest.mark.sampled(cases=1)
def test_files_are_the_source_of_their_rows(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "batch.csv"
    path.write_text("k,v\n1,1\n2,oops\n")
    commit = table.insert(str(path), on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, 1)
    [(source, row)] = beside(table).query("SELECT source, row FROM t").fetchall()
    assert "batch.csv" in source
    assert json.loads(row)["v"] == "oops"


# ------------------------------------------------------------------------------------------ the row is whole


def test_the_row_as_json_has_every_value_of_every_type(memory: Any) -> None:
    table = make(memory, schema={"bad": "TINYINT"})
    nested = pa.struct([("list", pa.list_(pa.int64())), ("map", pa.map_(pa.string(), pa.decimal128(38, 10)))])
    batch = pa.table(
        {
            "bad": pa.array([1000], pa.int64()),
            "text": ["a'\"\\\n\0ü😀"],
            "odd \"name' 1": [1],
            "blob": [b"\0\xffa\\"],
            "flag": [True],
            "huge": pa.array([2**64 - 1], pa.uint64()),
            "least": pa.array([-(2**63)], pa.int64()),
            "nan": [float("nan")],
            "infinite": [float("-inf")],
            "real": [0.1],
            "money": pa.array([Decimal("1234567890123456789012345678.1234567891")], pa.decimal128(38, 10)),
            "day": [date(1969, 1, 1)],
            "clock": [time(1, 2, 3, 456789)],
            "wall": [datetime(2026, 11, 21, 1, 2, 3, 456789)],
            "instant": [datetime(2026, 11, 21, 1, 2, 3, 456789, tzinfo=UTC)],
            "nested": pa.array([{"list": [1, None], "map": [("a", Decimal("0.0000000001"))]}], nested),
            "nothing": pa.array([None], pa.int32()),
        }
    )
    assert table.insert(batch, on_conflict="quarantine").quarantined_rows == 1
    [(text,)] = beside(table).query("SELECT row FROM t").fetchall()
    row = json.loads(text, parse_float=Decimal, parse_constant=str)
    assert row.pop("nothing") is None
    assert row == {
        "bad": 1000,
        "text": "a'\"\\\n\0ü😀",
        "odd \"name' 1": 1,
        "blob": "\\x00\\xFFa\\x5C",
        "flag": True,
        "huge": 2**64 - 1,
        "least": -(2**63),
        "nan": "NaN",
        "infinite": "-Infinity",
        "real": Decimal("0.1"),
        "money": Decimal("1234567890123456789012345678.1234567891"),
        "day": "1969-01-01",
        "clock": "01:02:03.456789",
        "wall": "2026-11-21 01:02:03.456789",
        "instant": "2026-11-21 01:02:03.456789+00",
        "nested": {"list": [1, None], "map": {"a": Decimal("0.0000000001")}},
    }


def test_a_number_beyond_all_integer_types_is_set_aside_exactly(memory: Any) -> None:
    table = make(memory, schema={"n": "BIGINT"})
    commit = table.insert([{"n": 1}, {"n": 2**63}, {"n": -(2**70)}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, 2)
    assert {row["n"] for row in rows_aside(table)} == {2**63, -(2**70)}


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.sampled(cases=1)
def test_a_rejected_batch_creates_no_quarantine(shared_place: Any) -> None:
    table = make(shared_place, partition_by=["k AS p"], required=["v"])
    table.insert([{"k": 0, "v": 0}])
    before = listing(shared_place)
    bad = [{"k": 1, "v": 1}, {"k": 2, "v": None}]
    for error, act in (
        (InvalidBatch, partial(table.overwrite, bad, partitions=["p=2"])),
        (EmptyBatch, partial(table.overwrite, bad[1:])),
        (InvalidOption, partial(table.overwrite, bad, on_conflict="ignore")),  # type: ignore[arg-type]
        (InvalidBatch, partial(table.insert, [{"k": 1, "V": 1, "v": None}])),
        (SchemaConflict, partial(table.insert, [{"k": 1, "v": 1}, {"k": "x", "v": 2}], on_conflict="raise")),
    ):
        arguments = {} if "on_conflict" in act.keywords else {"on_conflict": "quarantine"}
        with pytest.raises(error):
            act(**arguments)
        assert listing(shared_place).keys() == before.keys()


def test_a_table_at_the_root_of_a_bucket_has_no_quarantine(s3_server: Any) -> None:
    s3_server.client().create_bucket(Bucket="whole-bucket")
    table = Table.create("s3://whole-bucket", storage_options=s3_server.storage_options, required=["v"])
    assert table.insert([{"k": 1, "v": 1}], on_conflict="quarantine").rows == 1
    store = table.handle.store
    before = store.list("")
    with pytest.raises(InvalidURI, match="whole bucket"):
        table.insert([{"k": 1, "v": 1}, {"k": 2, "v": None}], on_conflict="quarantine")
    with pytest.raises(InvalidURI, match="whole bucket"):
        table.create_view("view", "SELECT k FROM _rows")
    assert store.list("") == before


@pytest.mark.sampled(cases=1)
def test_another_table_of_the_quarantine_s_name_takes_no_rows(shared_place: Any) -> None:
    table = make(shared_place, required=["v"])
    other = Table.create(shared_place.below("events_quarantine").uri, storage_options=shared_place.storage_options)
    other.insert([{"mine": 1}])
    before = listing(shared_place)
    with pytest.raises(InvalidOption, match="has other columns than a quarantine"):
        table.insert([{"k": 1, "v": 1}, {"k": 2, "v": None}], on_conflict="quarantine")
    assert [k for k in listing(shared_place) if k not in before] == []
    assert other.schema() == {"mine": "BIGINT"}


# ------------------------------------------------------------------------------------------ overwrite


@pytest.mark.sampled(cases=1, days=3)
def test_an_overwrite_sets_aside_invalid_rows(table: Table) -> None:
    commit = table.overwrite([{"k": 1, "v": 1}, {"k": 2, "v": "x"}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows, len(commit.tombstoned)) == (1, 1, 1)
    assert content(table) == [(1, 1)]
    assert rows_aside(table) == [{"k": 2, "v": "x"}]


# ------------------------------------------------------------------------------------------ at once


@pytest.mark.sampled(cases=1)
def test_concurrent_writers_create_one_quarantine(shared_place: Any) -> None:
    table = make(shared_place, schema={"k": "BIGINT", "v": "BIGINT"}, required=["v"])
    start = threading.Barrier(4)

    def write(number: int) -> None:
        own = Table.open(table.uri, storage_options=shared_place.storage_options)
        start.wait(SECONDS_MAX)
        own.insert([{"k": number, "v": 1}, {"k": number, "v": None}], on_conflict="quarantine")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(row["k"] for row in rows_aside(table)) == [0, 1, 2, 3]
    assert beside(table).spec.sort_by == ("quarantined_at",)
    assert content(table) == [(n, 1) for n in range(4)]


# ------------------------------------------------------------------------------------------ faults


GOOD: Rows = [(1, 1), (2, 2)]


def _begin(store: ClockedStore, clock: ManualClock) -> None:
    table = create_table(store, clock, sort_by=["k"])
    table.insert([{"k": 0, "v": 0}])


@pytest.fixture(scope="module")
def shared_world() -> Siblings:
    return Siblings(_begin)


def insert(table: Table, txn: tuple[str, int] | None = None) -> Commit:
    batch = [{"k": k, "v": v} for k, v in GOOD] + [{"k": 3, "v": "bad"}]
    return table.insert(batch, on_conflict="quarantine", txn=txn)


def all_rows(world: Siblings) -> tuple[Rows, list[int]]:
    """Return the rows of the table, and the keys k of the rows in the quarantine."""
    set_aside = world.rows("events_quarantine", "row")
    return world.rows("events", "k", "v"), [json.loads(row)["k"] for (row,) in set_aside]


BEFORE: tuple[Rows, list[int]] = ([(0, 0)], [])
AFTER: tuple[Rows, list[int]] = ([(0, 0), *GOOD], [3])


@pytest.mark.sampled(cases=1, days=3)
@CRASHES
@HALVES
def test_the_same_txn_after_a_crash_stores_each_row_once(world: Siblings, fault: Fault, half: int) -> None:
    act = partial(insert, txn=TXN)
    for request, table, store in world.attempts(act, half):
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            act(table)
        assert all_rows(world) in (BEFORE, (BEFORE[0], [3]), AFTER), request
        act(world.table())
        assert all_rows(world) == AFTER, request
        assert act(world.table()).repeated
        assert all_rows(world) == AFTER, request


@pytest.mark.sampled(cases=1, days=3)
@CRASHES
@HALVES
def test_a_crash_without_a_txn_loses_no_row(world: Siblings, fault: Fault, half: int) -> None:
    for request, table, store in world.attempts(insert, half):
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            insert(table)
        assert all_rows(world) in (BEFORE, (BEFORE[0], [3]), AFTER), request
        if all_rows(world)[0] == BEFORE[0]:  # the caller must retry
            insert(world.table())
        kept, set_aside = all_rows(world)
        assert kept == AFTER[0], request
        assert set_aside in ([3], [3, 3]), request


@pytest.mark.sampled(cases=1, days=3)
@LOST_RESPONSES
@pytest.mark.parametrize("txn", [None, TXN], ids=["without txn", "with txn"])
@HALVES
def test_a_lost_response_loses_no_row(world: Siblings, fault: Fault, txn: tuple[str, int] | None, half: int) -> None:
    act = partial(insert, txn=txn)
    for request, table, store in world.attempts(act, half):
        store.inject(fault, number=request.number)
        try:
            commit = act(table)
        except (StoreUnavailable, CommitStateUnknown):
            assert all_rows(world) in (BEFORE, (BEFORE[0], [3]), AFTER), request
            if txn is not None or all_rows(world)[0] == BEFORE[0]:
                act(world.table())
            kept, set_aside = all_rows(world)
            assert kept == AFTER[0], request
            assert set_aside == [3] if txn else set_aside in ([3], [3, 3]), request
        else:
            assert (commit.rows, commit.quarantined_rows) == (2, 1)
            assert all_rows(world) == AFTER, request


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("txn", [None, TXN], ids=["without txn", "with txn"])
@HALVES
def test_two_concurrent_inserts_create_one_quarantine(world: Siblings, txn: tuple[str, int] | None, half: int) -> None:
    act = partial(insert, txn=txn)
    for request, table, store in world.attempts(act, half):
        act_before(store, lambda: act(world.table()), number=request.number)
        act(table)
        twice = 1 if txn else 2
        assert all_rows(world) == ([(0, 0), *sorted(GOOD * twice)], [3] * twice), request
        assert world.unnamed() == set(), request
        assert world.table("events_quarantine").spec.sort_by == ("quarantined_at",), request


def test_rows_that_become_invalid_before_a_retry_are_set_aside(world: Siblings) -> None:
    """Another writer may set the type of a new column between two attempts, and so change which rows are valid."""
    batch: list[dict[str, object]] = [{"k": 1, "new": 1}, {"k": 2, "new": "text"}]
    table, store = world.actor()
    store.inject(Fault.CRASH_BEFORE, kind="create", key="events/_claims/txn")
    with pytest.raises(Crash):
        table.insert(batch, on_conflict="quarantine", txn=TXN)
    assert all_rows(world)[1] == [2]
    world.table().insert([{"k": 9, "new": "text"}])
    commit = world.table().insert(batch, on_conflict="quarantine", txn=TXN)
    assert (commit.rows, commit.quarantined_rows) == (1, 1)
    assert all_rows(world)[1] == [1, 2]
    assert world.rows("events", "k") == [(0,), (2,), (9,)]


@pytest.mark.parametrize("key", ["events/_data/", "events_quarantine/_data/", "events_quarantine/_table.json"])
def test_a_permanent_failure_leaves_no_commit_and_no_part(world: Siblings, key: str) -> None:
    table, store = world.actor()
    store.inject(Fault.FAIL, kind="create", key=key, times=100)
    with pytest.raises(StoreUnavailable):
        insert(table)
    assert all_rows(world) == BEFORE
    assert world.unnamed() == set()


def test_the_quarantine_records_the_transaction_of_the_batch(world: Siblings) -> None:
    insert(world.table(), txn=TXN)
    assert {name: {a: n for a, (n, _) in world.state(name).txn.items()} for name in world.names()} == {
        "events": {"app": 5},
        "events_quarantine": {"app": 5},
    }


def test_a_repeated_batch_reports_no_rows(world: Siblings) -> None:
    assert insert(world.table(), txn=TXN).quarantined_rows == 1
    again = insert(world.table(), txn=TXN)
    assert (again.repeated, again.rows, again.quarantined_rows, again.quarantine) == (True, 0, 0, None)
