"""Insert queries: their result is stored in the table's types, or the insert stores nothing."""

from __future__ import annotations

from typing import Any

import pytest

from icedb import Table
from icedb.errors import (
    InvalidBatch,
    InvalidOption,
    InvalidPartitionValue,
    InvalidQuery,
    SchemaConflict,
    UnsupportedType,
)
from tests.support.object_stores.stores import Place

EVENTS = [
    {"ts": 10, "user": "a", "event": "open"},
    {"ts": 20, "user": "b", "event": "open"},
    {"ts": 30, "user": "a", "event": "close"},
]


def create(place: Place, query: str, **options: Any) -> Table:
    return Table.create(place.uri, insert_query=query, storage_options=place.storage_options, **options)


def rows(table: Table, sql: str = "SELECT * FROM t ORDER BY ALL") -> list[tuple[Any, ...]]:
    return table.query(sql).fetchall()


def objects(table: Table) -> list[str]:
    store, keys = table.handle.store, table.handle.keys
    return [i.key for prefix in (keys.log_prefix, keys.data_prefix) for i in store.list(prefix)]


@pytest.mark.sampled(days=3)
def test_the_result_is_stored_instead_of_the_rows(place: Place) -> None:
    query = """
        WITH per_user AS (SELECT "user", count(*) AS n FROM _rows GROUP BY ALL)
        SELECT r.*, n, '_rows' AS origin FROM _rows r JOIN per_user USING ("user") WHERE event <> 'close'
    """
    table = create(place, query, partition_by=['"user" AS u'], sort_by=["ts"])
    assert table.insert(EVENTS).rows == 2
    assert rows(table, 'SELECT ts, "user", n, origin, u FROM t ORDER BY ts') == [
        (10, "a", 2, "_rows", "a"), (20, "b", 1, "_rows", "b")
    ]  # fmt: skip
    assert Table.open(place.uri, storage_options=place.storage_options).insert(EVENTS).rows == 2


@pytest.mark.sampled(days=3)
def test_a_number_becomes_the_columns_type_where_nothing_is_lost(place: Place) -> None:
    table = create(place, 'SELECT "user", sum(ts) AS total FROM _rows GROUP BY ALL', schema={"total": "BIGINT"})
    table.insert(EVENTS)
    assert table.schema()["total"] == "BIGINT"
    assert rows(table, 'SELECT "user", total FROM t ORDER BY ALL') == [("a", 40), ("b", 20)]
    before = objects(table)
    with pytest.raises(SchemaConflict, match=r"1 rows of the query's result .* 9223372036854775808") as caught:
        table.insert([{"user": "c", "ts": 2**63 - 1}, {"user": "c", "ts": 1}, {"user": "d", "ts": 5}])
    assert (caught.value.column, caught.value.types) == ("total", ("BIGINT", "HUGEINT"))
    assert objects(table) == before


def test_a_type_that_cannot_be_stored_is_refused_with_the_remedy(local: Place) -> None:
    table = create(local, "SELECT sum(ts) AS total FROM _rows")
    with pytest.raises(UnsupportedType, match=r"'total' is HUGEINT.*Cast it to BIGINT"):
        table.insert(EVENTS)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT ts, count(*) FROM _rows GROUP BY ts", r"count.*AS"),
        ("SELECT ts, user AS event FROM _rows", "drops the column 'user'"),
        ('SELECT "user", event FROM _rows', "drops the column 'ts'"),
        ("SELECT *, nothing FROM _rows", "nothing"),
        ("SELECT *, 1 AS ts FROM _rows", "twice"),
    ],
)
def test_a_result_that_cannot_be_stored_is_rejected(query: str, message: str, local: Place) -> None:
    table = create(local, query, partition_by=['"user" AS u'], sort_by=["ts"])
    with pytest.raises(InvalidQuery, match=message):
        table.insert(EVENTS)
    assert objects(table) == []


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "SELECT 1; SELECT 2",
        "DELETE FROM _rows",
        "SELECT * FROM t",
        "SELECT * FROM 'x.csv'",
        "SELECT * FROM _rows, other",
    ],
)
def test_a_query_over_anything_else_is_refused_at_creation(query: str, local: Place) -> None:
    if not query:
        assert create(local, query).spec.insert_query == ""
        return
    with pytest.raises(InvalidQuery, match=local.uri):
        create(local, query)
    assert not Table.exists(local.uri)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_query_can_be_changed_and_taken_back(place: Place) -> None:
    table = create(place, "SELECT *, 1 AS version FROM _rows")
    table.insert(EVENTS[:1])
    table.alter(insert_query="SELECT *, 2 AS version FROM _rows")
    table.insert(EVENTS[:1])
    Table.open(place.uri, storage_options=place.storage_options).insert(EVENTS[:1])
    table.alter(insert_query="")
    table.insert(EVENTS[:1])
    assert rows(table, "SELECT version FROM t ORDER BY ALL") == [(1,), (2,), (2,), (None,)]


@pytest.mark.sampled(days=3)
def test_the_query_runs_for_each_chosen_partition(place: Place) -> None:
    table = create(place, "SELECT event, count(*) AS n FROM _rows GROUP BY ALL")
    chosen = [{**row, "_partition": f"u={row['user']}/day=x y"} for row in EVENTS]
    commit = table.insert(chosen)
    assert sorted(p.partition for p in commit.parts) == ["u=a/day=x%20y", "u=b/day=x%20y"]
    assert rows(table) == [("close", 1), ("open", 1), ("open", 1)]


# ------------------------------------------------------------------------------------------------ _partition, row ids


@pytest.mark.sampled(days=3)
def test_a_row_may_choose_its_partition(place: Place) -> None:
    table = Table.create(place.uri, partition_by=["day AS d"], storage_options=place.storage_options)
    commit = table.insert([{"day": "1", "n": 1}, {"day": "1", "n": 2, "_partition": "d=late/r"[:6]}])
    assert sorted(p.partition for p in commit.parts) == ["d=1", "d=late"]
    assert table.schema() == {"day": "VARCHAR", "n": "BIGINT"}
    assert rows(table, "SELECT d, n FROM t ORDER BY n") == [("1", 1), ("late", 2)]


@pytest.mark.parametrize("path", ["d=../x", "d=1/e=2", "e=1", "/d=1", "d=1/", "..", "d", "=1", "d=" + "x" * 300])
def test_an_invalid_chosen_partition_is_rejected(path: str, local: Place) -> None:
    table = Table.create(local.uri, partition_by=["day AS d"])
    with pytest.raises(InvalidPartitionValue, match=local.uri):
        table.insert([{"day": "1", "_partition": path}])
    assert objects(table) == []
    with pytest.raises(InvalidBatch, match=r"_partition.*is BIGINT"):
        table.insert([{"day": "1", "_partition": 7}])


@pytest.mark.sampled(days=3)
def test_the_chosen_partition_is_stored_with_preserve_partition(place: Place) -> None:
    table = Table.create(place.uri, preserve_partition=True, storage_options=place.storage_options)
    table.insert([{"n": 1, "_partition": "team=a&b"}, {"n": 2}])
    assert rows(table, "SELECT n, _partition FROM t ORDER BY n") == [(1, "team=a&b"), (2, None)]
    assert table.snapshot().partitions() == ["", "team=a%26b"]


def test_path_columns_take_their_values_from_paths(place: Place) -> None:
    table = Table.create(place.uri, path_columns={"d": "DATE", "k": "INTEGER"}, storage_options=place.storage_options)
    table.insert([{"n": 1, "d": "2026-01-02", "k": 7}])
    table.insert([{"n": 2, "_partition": "d=2026-01-03/k=8"}])
    assert table.schema() == {"n": "BIGINT"}
    assert rows(table, "SELECT n, CAST(d AS VARCHAR), k + 1 FROM t ORDER BY n") == [
        (1, "2026-01-02", 8), (2, "2026-01-03", 9)
    ]  # fmt: skip
    assert rows(table, "SELECT n FROM t WHERE d > DATE '2026-01-02'") == [(2,)]
    assert [p.partition for p in table.snapshot().files("k = 7")] == ["d=2026-01-02/k=7"]
    with pytest.raises(InvalidBatch, match="lacks 'k'"):
        table.insert([{"n": 3, "d": "2026-01-02"}])
    with pytest.raises(InvalidBatch, match="neither a '_partition' nor a column 'd'"):
        table.insert([{"n": 3, "_partition": "d=2026-01-03/k=8"}, {"n": 4}])
    assert table.merge().merged_parts == 0
    assert table.snapshot().rows == 2


def test_each_row_gets_an_id_unless_it_brings_one(place: Place) -> None:
    table = Table.create(place.uri, row_id=True, storage_options=place.storage_options)
    table.insert([{"n": 1}, {"n": 2}])
    table.insert([{"n": 3, "_row_id": "mine"}, {"n": 4}])
    ids = rows(table, "SELECT n, _row_id FROM t ORDER BY n")
    assert table.schema()["_row_id"] == "VARCHAR"
    assert ids[2] == (3, "mine")
    assert len({i for _, i in ids if i}) == len(ids) == 4


def test_an_invalid_type_of_a_path_column_is_rejected(local: Place) -> None:
    with pytest.raises((InvalidOption, InvalidBatch)):
        Table.create(local.uri, path_columns={"d": "NOSUCHTYPE"})
    assert not Table.exists(local.uri)
