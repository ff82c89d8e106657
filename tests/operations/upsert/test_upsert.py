"""An upsert leaves the rows that a dictionary of keys and rows has after the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Replacing, Table
from icedb.errors import (
    InvalidArgument,
    InvalidBatch,
    InvalidOption,
    SchemaConflict,
    TooManyPartitions,
    UnknownColumn,
)
from icedb.testing import ClockedStore, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.tables.engines import ENGINES
from tests.support.tables.numbered_rows import data_keys
from tests.support.tables.reader_tables import every_type


def make(place: Any, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


def rows(table: Table, columns: str = "*") -> list[Any]:
    return table.query(f"SELECT {columns} FROM t ORDER BY ALL").fetchall()


def counts(report: Any) -> tuple[int, int, int, int]:
    return report.inserted_rows, report.updated_rows, report.unchanged_rows, report.deleted_rows


# ------------------------------------------------------------------------------------------ what changes


@pytest.mark.sampled(cases=1, days=3)
def test_rows_are_updated_moved_and_inserted_and_other_parts_are_not_touched(place: Any) -> None:
    table = make(place, partition_by=["day"], sort_by=["id"])
    table.insert([{"day": f"2026-11-{d}", "id": 10 * d + n, "v": n} for d in (20, 21, 22) for n in (2, 0, 1)])
    before, as_of = rows(table), table.snapshot().as_of_ms
    parts = {p.partition: p for p in table.snapshot().parts}
    report = table.upsert(
        [
            {"day": "2026-11-21", "id": 211, "v": 50},
            {"day": "2026-11-23", "id": 212, "v": 2},
            {"day": "2026-11-22", "id": 220, "v": 0},
            {"day": "2026-11-23", "id": 230, "v": 7},
        ],
        on=["id"],
    )
    assert counts(report) == (1, 2, 1, 0)
    assert (report.live_parts, report.rewritten_parts, report.removed_parts) == (3, 1, 0)
    assert report.searched_parts == 2, "the statistics of the sort column exclude a part"
    assert report.bytes == parts["day=2026-11-21"].bytes
    assert rows(table, "id, day, v") == [
        (200, "2026-11-20", 0), (201, "2026-11-20", 1), (202, "2026-11-20", 2),
        (210, "2026-11-21", 0), (211, "2026-11-21", 50), (212, "2026-11-23", 2),
        (220, "2026-11-22", 0), (221, "2026-11-22", 1), (222, "2026-11-22", 2), (230, "2026-11-23", 7),
    ]  # fmt: skip
    assert {parts["day=2026-11-20"].key, parts["day=2026-11-22"].key} < {p.key for p in table.snapshot().parts}
    assert table.query("FROM t ORDER BY ALL", as_of=as_of).fetchall() == before
    assert table.history(limit=1)[0].kind == "upsert"
    check_sound(table.handle.store)


def test_the_change_feed_has_new_and_changed_rows_only(memory: Any) -> None:
    table = make(memory, sort_by=["id"])
    table.insert([{"id": n, "v": n} for n in range(10)])
    cursor = table.changes().cursor
    table.upsert([{"id": 3, "v": 30}, {"id": 4, "v": 4}, {"id": 11, "v": 11}], on=["id"])
    assert table.changes(cursor).query("FROM t ORDER BY id").fetchall() == [(3, 30), (11, 11)]


def test_a_repeated_batch_commits_nothing(memory: Any) -> None:
    table = make(memory)
    batch = [{"id": 1, "v": None, "n": float("nan")}, {"id": 2, "v": "x", "n": 1.0}]
    assert counts(table.upsert(batch, on=["id"])) == (2, 0, 0, 0)
    epoch = table.handle.read().epoch
    second = table.upsert(batch, on=["id"])
    assert counts(second) == (0, 0, 2, 0)
    assert not second.commit.committed
    assert table.handle.read().epoch == epoch


def test_columns_that_the_batch_lacks_keep_their_values(memory: Any) -> None:
    table = make(memory, partition_by=["k"], row_id=True)
    table.insert([{"k": 1, "id": 1, "a": 1, "b": "x"}, {"k": 2, "id": 2, "a": 2, "b": "y"}])
    ids = dict(rows(table, "id, _row_id"))
    assert counts(table.upsert([{"id": 1, "a": 10}, {"id": 3, "a": 30}], on=["id"])) == (1, 1, 0, 0)
    assert rows(table, "id, k, a, b") == [(1, 1, 10, "x"), (2, 2, 2, "y"), (3, None, 30, None)]
    assert dict(rows(table, "id, _row_id")).items() >= ids.items(), "an updated row keeps its id"


@pytest.mark.long
def test_kept_values_of_every_type_are_unchanged(local: Any) -> None:
    table = every_type(local)
    rest = [c for c in table.schema() if c != "text"]
    columns = ", ".join(f'"{c}"' for c in rest)
    before = table.query(f"SELECT {columns} FROM t ORDER BY n").fetchall()
    types = table.schema()
    assert counts(table.upsert([{"n": 2, "text": "changed"}], on=["n"])) == (0, 1, 0, 0)
    assert table.update({"text": "text || '!'"}, where="n IN (1, 2)").updated_rows == 2
    assert table.query(f"SELECT {columns} FROM t ORDER BY n").fetchall() == before
    assert table.query("SELECT text FROM t ORDER BY n").fetchall() == [
        ("é0",),
        ("é1!",),
        ("changed!",),
        ("é3",),
        (None,),
    ]
    assert table.schema() == types
    expected = sorted(table.query("SELECT n, text FROM t").fetchall(), key=repr)
    for engine in ENGINES:
        assert engine.answer(table.snapshot(), ["n", "text"]) == expected, engine.name


def test_only_the_named_columns_are_updated_and_inserted_rows_have_all(memory: Any) -> None:
    table = make(memory)
    table.insert([{"id": 1, "a": 1, "b": 1}])
    batch = [{"id": 1, "a": 2, "b": 2}, {"id": 2, "a": 2, "b": 2}]
    assert counts(table.upsert(batch, on=["id"], columns=["b"])) == (1, 1, 0, 0)
    assert rows(table, "id, a, b") == [(1, 1, 2), (2, 2, 2)]


def test_stored_rows_can_be_skipped(memory: Any) -> None:
    table = make(memory)
    table.insert([{"id": 1, "v": 1}])
    report = table.upsert([{"id": 1, "v": 9}, {"id": 2, "v": 2}], on=["id"], when_matched="skip")
    assert counts(report) == (1, 0, 1, 0)
    assert not report.commit.tombstoned
    assert rows(table) == [(1, 1), (2, 2)]


def test_a_condition_deletes_stored_rows_and_its_column_is_not_stored(memory: Any) -> None:
    table = make(memory, required=["v"])
    table.insert([{"id": n, "v": n} for n in range(4)])
    batch = [
        {"id": 0, "v": None, "op": "D", "at": 1},
        {"id": 1, "v": 10, "op": "U", "at": 1},
        {"id": 1, "v": 11, "op": "U", "at": 2},
        {"id": 2, "v": 20, "op": "U", "at": 1},
        {"id": 2, "v": None, "op": "D", "at": 2},
        {"id": 8, "v": None, "op": "D", "at": 1},
        {"id": 9, "v": 9, "op": "C", "at": None},
    ]
    report = table.upsert(batch, on=["id"], delete_where="op = 'D'", order_by=["at"])
    assert counts(report) == (1, 1, 0, 2)
    assert rows(table) == [(1, 11), (3, 3), (9, 9)]
    assert table.schema() == {"id": "BIGINT", "v": "BIGINT"}


def test_a_column_of_the_table_is_stored_although_the_condition_names_it(memory: Any) -> None:
    table = make(memory)
    table.insert([{"id": 1, "op": "C"}])
    table.upsert([{"id": 2, "op": "U"}], on=["id"], delete_where="op = 'D'")
    assert rows(table) == [(1, "C"), (2, "U")]


@pytest.mark.parametrize(
    ("options", "upsert"),
    [
        ({}, {"on": ["id"], "delete_where": "id < 0"}),
        ({}, {"on": ["id"], "order_by": ["id"]}),
        ({}, {"on": ["v"], "columns": ["id"], "order_by": ["id"]}),
        ({}, {"on": ["v"], "delete_where": "list_contains(list_filter([1], lambda id: id = 2), 1)"}),
        ({"sort_by": ["id"]}, {"on": ["v"], "order_by": ["id"]}),
        ({"required": ["id"]}, {"on": ["v"], "delete_where": "id < 0"}),
        ({"partition_by": ["id % 2 AS odd"]}, {"on": ["v"], "delete_where": "id < 0"}),
    ],
)
def test_a_column_that_the_table_needs_is_stored_although_a_condition_names_it(
    memory: Any, options: dict[str, Any], upsert: dict[str, Any]
) -> None:
    table = make(memory, **options)
    assert table.upsert([{"id": 1, "v": 2}], **upsert).inserted_rows == 1
    assert rows(table, "id, v") == [(1, 2)]
    assert table.upsert([{"id": 1, "v": 2}], **upsert).unchanged_rows == 1


def test_each_stored_row_of_a_key_is_updated(memory: Any) -> None:
    table = make(memory)
    table.insert([{"id": 1, "v": 1}, {"id": 1, "v": 2}])
    assert counts(table.upsert([{"id": 1, "v": 2}], on=["id"])) == (0, 1, 1, 0)
    assert rows(table) == [(1, 2), (1, 2)]


def test_null_keys_never_match(memory: Any) -> None:
    table = make(memory)
    table.insert([{"a": 1, "b": None}, {"a": None, "b": None}])
    batch = [{"a": 1, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": 1}]
    assert counts(table.upsert(batch, on=["a", "b"])) == (3, 0, 0, 0)
    assert len(rows(table)) == 5


def test_the_first_upsert_creates_the_columns_and_later_ones_add_more(memory: Any) -> None:
    table = make(memory, sort_by=["id"])
    assert counts(table.upsert([{"id": 1}], on=["id"])) == (1, 0, 0, 0)
    assert counts(table.upsert([{"id": 1, "new": "x"}, {"id": 2, "new": None}], on=["id"])) == (1, 1, 0, 0)
    assert rows(table) == [(1, "x"), (2, None)]
    for nothing in ([], pa.table({"id": pa.array([], pa.int64())})):
        assert not table.upsert(nothing, on=["id"]).commit.committed
        assert table.upsert(nothing, on=["id"], txn=("quiet", 1)).commit.committed == (nothing == [])
    assert table.upsert([{"id": 3}], on=["id"], txn=("quiet", 1)).commit.repeated


KEYS = {
    "BOOLEAN": [True, False],
    "VARCHAR": ["", "a", "ä' --", "\U0001f680"],
    "BLOB": [b"", b"\x00\xff"],
    "DOUBLE": [0.0, float("inf"), float("nan"), -1.5],
    "DECIMAL(38,2)": [Decimal("1.10"), Decimal("-12345678901234567890.00")],
    "UBIGINT": [2**64 - 1, 0],
    "DATE": [date(1, 1, 1), date(9999, 12, 31)],
    "TIMESTAMP": [datetime(1677, 1, 1), datetime(2262, 5, 1, microsecond=1)],
    "TIMESTAMP WITH TIME ZONE": [datetime(2026, 3, 29, 1, tzinfo=UTC)],
    "TIME": [datetime(2026, 1, 1, 23, 59, 59, 999999).time()],
    "UUID": [UUID(int=1), UUID(int=2**128 - 1)],
    "JSON": [{"a": 1}, ["b"]],
    "INTEGER[]": [[1, 2], [], [None]],
    "STRUCT(a INTEGER, b VARCHAR)": [{"a": 1, "b": None}, {"a": None, "b": "x"}],
    "MAP(VARCHAR, INTEGER)": [{"a": 1}],
}


@pytest.mark.long
@pytest.mark.parametrize("type_", KEYS)
def test_a_key_can_have_any_type(memory: Any, type_: str) -> None:
    table = make(memory, schema={"key": type_, "n": "BIGINT"})
    values = KEYS[type_]
    for round_ in range(2):
        report = table.upsert([{"key": value, "n": round_} for value in values], on=["key"])
        assert counts(report) == ((len(values), 0, 0, 0) if round_ == 0 else (0, len(values), 0, 0))
    assert table.query("SELECT count(*), min(n) FROM t").fetchall() == [(len(values), 1)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["filename", "file_row_number", "ROW", "key", "t", "i", "number", "is_same", "rowid"])
def test_columns_can_have_any_name(memory: Any, name: str) -> None:
    table = make(memory, sort_by=[name])
    table.insert([{name: n, "v": n} for n in range(4)])
    table.insert([{name: n, "v": n, "Kept": 1} for n in range(4, 6)])
    report = table.upsert([{name: 1, "v": 10}, {name: 4, "v": 40}, {name: 9, "v": 90}], on=[name])
    assert counts(report) == (1, 2, 0, 0)
    assert rows(table, f'"{name}", v, Kept') == [
        (0, 0, None), (1, 10, None), (2, 2, None), (3, 3, None), (4, 40, 1), (5, 5, 1), (9, 90, None),
    ]  # fmt: skip


def test_a_column_of_the_path_alone_can_be_key_and_value(memory: Any) -> None:
    table = make(memory, path_columns={"tenant": "VARCHAR"})
    table.insert([{"tenant": t, "id": n, "v": n} for t in ("a", "b") for n in range(3)])
    report = table.upsert([{"tenant": "a", "id": 1, "v": 9}, {"tenant": "c", "id": 1, "v": 1}], on=["tenant", "id"])
    assert counts(report) == (1, 1, 0, 0)
    assert report.searched_parts == 1
    assert counts(table.upsert([{"tenant": "d", "id": 2}], on=["id"])) == (0, 2, 0, 0)
    assert rows(table, "tenant, id, v") == [
        ("a", 0, 0), ("a", 1, 9), ("b", 0, 0), ("b", 1, 1), ("c", 1, 1), ("d", 2, 2), ("d", 2, 2),
    ]  # fmt: skip
    with pytest.raises(InvalidBatch, match="lacks 'tenant'"):
        table.upsert([{"id": 1, "v": 9}], on=["id"])
    with pytest.raises(UnknownColumn, match="on names 'Tenant'"):
        table.upsert([{"tenant": "a", "id": 1, "v": 9}], on=["Tenant", "id"])
    assert counts(table.upsert([{"Tenant": "a", "ID": 1, "v": 8}], on=["tenant", "id"])) == (0, 1, 0, 0)


def test_values_of_the_path_have_the_type_of_the_column(memory: Any) -> None:
    table = make(memory, path_columns={"p": "INTEGER"})
    table.insert([{"p": 2, "id": 0, "v": "a"}])
    with pytest.raises(SchemaConflict, match="'p' is INTEGER"):
        table.upsert([{"p": "02", "id": 0, "v": "y"}], on=["p", "id"])
    assert counts(table.upsert([{"p": 2, "id": 0, "v": "y"}], on=["p", "id"])) == (0, 1, 0, 0)


@pytest.mark.parametrize("keys", [["a\0b"], ["x" * 10_000, "y"], [f"{n:03}" + "é" * 90 for n in range(99)]])
def test_keys_can_be_long_and_have_a_zero_character(memory: Any, keys: list[str]) -> None:
    table = make(memory, sort_by=["key"])
    table.insert([{"key": key, "v": 0} for key in [*keys, "other"]])
    assert counts(table.upsert([{"key": key, "v": 1} for key in keys], on=["key"])) == (0, len(keys), 0, 0)


def test_a_batch_in_too_many_partitions_is_rejected(memory: Any) -> None:
    table = make(memory, partition_by=["id"])
    with pytest.raises(TooManyPartitions):
        table.upsert([{"id": n} for n in range(3)], on=["id"], partitions_max=2)
    assert table.handle.store.list(table.handle.keys.data_prefix) == []


def test_rows_of_an_earlier_partitioning_are_matched_and_move(memory: Any) -> None:
    table = make(memory, partition_by=["id // 10 AS tens"])
    table.insert([{"id": n, "v": 0} for n in range(20)])
    table.alter(partition_by=["id % 2 AS odd"])
    assert counts(table.upsert([{"id": n, "v": 1} for n in (3, 12)], on=["id"])) == (0, 2, 0, 0)
    assert rows(table, "id, v")[3] == (3, 1)
    assert sorted({p.partition for p in table.snapshot().parts}) == ["odd=0", "odd=1", "tens=0", "tens=1"]


def test_a_dropped_column_does_not_come_back(memory: Any) -> None:
    table = make(memory)
    table.insert([{"id": n, "v": n, "gone": n} for n in range(3)])
    table.alter(drop_columns=["gone"])
    table.upsert([{"id": 1, "v": 9}], on=["id"])
    assert rows(table) == [(0, 0), (1, 9), (2, 2)]
    with pytest.raises(InvalidBatch, match="dropped"):
        table.upsert([{"id": 1, "gone": 9}], on=["id"])


def test_the_rows_are_those_of_the_insert_query(memory: Any) -> None:
    table = make(memory, insert_query="SELECT id, upper(name) AS name FROM _rows")
    table.insert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    assert counts(table.upsert([{"id": 1, "name": "c"}, {"id": 2, "name": "b"}], on=["id"])) == (0, 1, 1, 0)
    assert rows(table, "id, name") == [(1, "C"), (2, "B")]


@pytest.mark.sampled(days=3)
def test_views_are_not_updated(memory: Any) -> None:
    table = make(memory)
    table.create_view("sums", "SELECT sum(v)::BIGINT AS v FROM _rows")
    table.insert([{"id": 1, "v": 1}])
    table.upsert([{"id": 1, "v": 5}, {"id": 2, "v": 5}], on=["id"])
    view = Table.open(memory.uri.rsplit("/", 1)[0] + "/sums", storage_options=memory.storage_options)
    assert rows(view) == [(1,)]
    table.refresh_view("sums")
    assert rows(view) == [(10,)]


def test_a_transaction_is_committed_once(memory: Any) -> None:
    table = make(memory)
    table.insert([{"id": 1, "v": 1}])
    assert counts(table.upsert([{"id": 1, "v": 2}], on=["id"], txn=("cdc", 1))) == (0, 1, 0, 0)
    table.upsert([{"id": 1, "v": 3}], on=["id"])
    again = table.upsert([{"id": 1, "v": 2}], on=["id"], txn=("cdc", 1))
    assert again.commit.repeated
    assert rows(table) == [(1, 3)]
    empty = table.upsert([{"id": 1, "v": 3}], on=["id"], txn=("cdc", 2))
    assert empty.commit.committed, "the log records the transaction although no row changed"
    assert table.upsert([{"id": 1, "v": 9}], on=["id"], txn=("cdc", 2)).commit.repeated


def test_a_dry_run_reports_the_same_and_writes_nothing(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"], sort_by=["id"]).insert(
        [{"k": n % 2, "id": n, "v": n} for n in range(10)]
    )
    store = FaultyStore(clocked)
    table = open_table(store, clock)
    batch = [{"k": 0, "id": n, "v": -1} for n in (0, 2, 4, 6, 8, 10)] + [{"k": 1, "id": 1, "v": -1}]
    planned = table.upsert(batch, on=["id"], dry_run=True)
    assert not [r for r in store.requests if r.kind in ("create", "put", "delete")]
    done = table.upsert(batch, on=["id"])
    for field in (
        "inserted_rows",
        "updated_rows",
        "unchanged_rows",
        "deleted_rows",
        "live_parts",
        "searched_parts",
        "rewritten_parts",
        "removed_parts",
        "bytes",
    ):
        assert getattr(planned, field) == getattr(done, field), field
    assert (planned.dry_run, planned.commit.committed, done.removed_parts) == (True, False, 1)


# ------------------------------------------------------------------------------------------ what is rejected

REJECTED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"on": []}, InvalidOption, "on is empty"),
    ({"on": "id"}, InvalidArgument, "on must be a list of texts"),
    ({"partitions_max": 0}, InvalidOption, "partitions_max"),
    ({"on": ["id", "id"]}, InvalidOption, "twice"),
    ({"on": ["nosuch"]}, UnknownColumn, "on names 'nosuch'"),
    ({"when_matched": "delete"}, InvalidOption, "when_matched must be one of"),
    ({"columns": []}, InvalidOption, "columns is empty"),
    ({"columns": ["id"]}, InvalidOption, "in on= and columns="),
    ({"columns": ["nosuch"]}, UnknownColumn, "columns names 'nosuch'"),
    ({"columns": ["v"], "when_matched": "skip"}, InvalidOption, "Leave out one"),
    ({"order_by": ["nosuch"]}, UnknownColumn, "order_by names 'nosuch'"),
    ({"delete_where": "nosuch = 1"}, UnknownColumn, "delete_where 'nosuch = 1' names 'nosuch', and the batch has no"),
    ({"delete_where": "id"}, InvalidOption, "true nor false"),
    ({"delete_where": "(SELECT true)"}, InvalidOption, "subquery"),
    ({"delete_where": "CAST('x' || v AS INT) = 1"}, InvalidOption, "no value for some row"),
    ({"on_conflict": "quarantine"}, InvalidOption, "'raise' or 'cast'"),
    ({"memory_bytes": 1}, InvalidOption, "memory_bytes"),
    ({"txn": ("x", -1)}, InvalidOption, "txn"),
    ({"data": [{"id": 1, "v": 1}, {"id": 1, "v": 2}]}, InvalidBatch, "2 rows of the batch have the key id = 1"),
    ({"data": [{"id": 1, "v": 1}, {"id": 1, "v": 1}], "order_by": ["v"]}, InvalidBatch, "equal values"),
    ({"data": [{"id": 1, "v": "text"}]}, SchemaConflict, "v"),
    ({"data": [{"id": 1, "v": None}]}, InvalidBatch, "requires"),
    ({"data": [{"id": 1, "v": 1, "_partition": "k=1"}]}, InvalidBatch, "_partition"),
]


@pytest.mark.parametrize(("options", "error", "text"), REJECTED)
def test_an_invalid_argument_is_rejected_before_anything_is_written(
    memory: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    table = make(memory, required=["v"])
    table.insert([{"id": 1, "v": 1}])
    before = table.handle.store.list("")
    with pytest.raises(error, match=text):
        table.upsert(**{"data": [{"id": 1, "v": 2}, {"id": 2, "v": 2}], "on": ["id"], **options})
    assert table.handle.store.list("") == before


def test_a_table_whose_merges_combine_rows_is_rejected(memory: Any) -> None:
    table = make(memory, merging=Replacing(by=("id",), version="v"))
    table.insert([{"id": 1, "v": 1}])
    with pytest.raises(InvalidOption, match="merges combine"):
        table.upsert([{"id": 1, "v": 2}], on=["id"])
    with pytest.raises(InvalidOption, match="merges combine"):
        table.update({"v": "2"}, where="id = 1")


# ------------------------------------------------------------------------------------------ a model

OPTIONAL = st.one_of(st.none(), st.integers(0, 3))
BATCHES = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 6)), OPTIONAL, OPTIONAL, st.booleans()),
    min_size=1,
    max_size=8,
    unique_by=lambda row: object() if row[0] is None else row[0],
)


@pytest.mark.long
@settings(max_examples=10)
@given(st.data())
def test_upserts_agree_with_a_dictionary(data: st.DataObject) -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock, partition_by=["p"], sort_by=["k"])
    model: dict[int, tuple[Any, Any]] = {}
    nulls: list[tuple[Any, Any]] = []
    table.insert([{"k": 9, "p": 0, "v": 0}])
    model[9] = 0, 0
    for _ in range(data.draw(st.integers(1, 5))):
        batch = data.draw(BATCHES)
        skip = data.draw(st.booleans())
        expected = dict.fromkeys(("inserted", "updated", "unchanged", "deleted"), 0)
        for k, p, v, gone in batch:
            if k not in model:
                if not gone:
                    expected["inserted"] += 1
                    if k is None:
                        nulls.append((p, v))
                    else:
                        model[k] = p, v
            elif gone:
                expected["deleted"] += 1
                del model[k]
            elif skip or model[k] == (p, v):
                expected["unchanged"] += 1
            else:
                expected["updated"] += 1
                model[k] = p, v
        report = table.upsert(
            [{"k": k, "p": p, "v": v, "gone": gone} for k, p, v, gone in batch],
            on=["k"], delete_where="gone", when_matched="skip" if skip else "update",
        )  # fmt: skip
        assert counts(report) == tuple(expected.values())
        act = data.draw(st.sampled_from(["nothing", "merge", "cleanup"]))
        if act == "merge":
            table.merge()
        elif act == "cleanup":
            clock.advance(3_600_000 * 3)
            table.cleanup()
        stored: Sequence[Any] = table.query("SELECT k, p, v FROM t").fetchall() if table.schema() else []
        wanted = [(k, *values) for k, values in model.items()] + [(None, *values) for values in nulls]
        assert sorted(stored, key=repr) == sorted(wanted, key=repr)
        check_sound(table.handle.store)
    clock.advance(3_600_000 * 48)
    table.delete_orphans()
    table.cleanup()
    assert data_keys(table.handle.store) == {m.key for m in check_sound(table.handle.store).live}
