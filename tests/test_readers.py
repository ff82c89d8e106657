"""Snapshots for Arrow: the rows and types that a query gives, read by Arrow itself, from every kind of store."""

from __future__ import annotations

import pickle
from datetime import date

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from icedb import Table
from icedb.errors import InvalidOption
from icedb.readers.arrow import dataset
from tests.conftest import Place

EVERY_TYPE = """
    SELECT n, DATE '2026-11-21' + n::INT AS day, uuid() AS id, '{"a": 1}'::JSON AS json, 'a'::BLOB AS bytes,
        TIMESTAMPTZ '2026-11-21 00:00:00+00' AS instant, TIMESTAMP '2026-11-21 01:02:03.000004' AS wall,
        TIMESTAMP_NS '2026-11-21 00:00:00.000000001' AS nanos, TIME '01:02:03' AS time, 1.25::DECIMAL(10, 2) AS price,
        {'a': n, 'b': [n, NULL]} AS nested, MAP {'k': n} AS map, 'é' || n AS text, n::UTINYINT AS small, true AS yes,
        [{'deep': MAP {true: [false, NULL]}, 'json': ['[]'::JSON]}] AS booleans, 'b'::ENUM ('a', 'b') AS choice,
        ARRAY [1, 2]::FLOAT[2] AS pair
    FROM range(4) AS r(n)
"""


def test_a_dataset_has_the_rows_and_types_of_a_query(place: Place) -> None:
    table = Table.create(
        place.uri,
        partition_by=["day", "n % 2 AS parity", "'a/b ' || (n % 2) AS odd", "n > 1 AS late"],
        storage_options=place.storage_options,
    )
    table.insert(duckdb.connect().sql(EVERY_TYPE))
    table.insert([{"n": 9, "day": None, "later": "column"}])
    snapshot = table.snapshot()
    found = dataset(snapshot)
    rows = found.to_table()
    expected = snapshot.to_arrow()
    assert rows.column_names == expected.column_names
    types = {field.name: field.type for field in expected.schema}
    assert {field.name: field.type for field in found.schema} == types | {"id": pa.uuid()}
    assert rows.schema.equals(found.schema)
    with_text = [{**row, "id": row["id"] and str(row["id"])} for row in rows.to_pylist()]
    assert sorted(with_text, key=lambda row: row["n"]) == sorted(expected.to_pylist(), key=lambda row: row["n"])
    assert duckdb.connect().from_arrow(rows).select("id").types == ["UUID"]
    assert found.count_rows() == 5


def test_filters_on_partition_columns_and_predicates_skip_parts(place: Place) -> None:
    table = Table.create(place.uri, partition_by=["day", "shop"], storage_options=place.storage_options)
    days = [date(2026, 11, d) for d in (20, 21, 22)]
    table.insert(pa.table({"day": days * 2, "shop": ["a", "a", "a", "b", "b", None], "n": range(6)}))
    snapshot = table.snapshot()
    found = dataset(snapshot)
    wanted = (pc.field("day") == days[1]) & (pc.field("shop") == "b")
    assert found.to_table(filter=wanted, columns=["n"]).to_pylist() == [{"n": 4}]
    assert found.to_table(filter=pc.field("shop").is_null())["n"].to_pylist() == [5]
    chosen = dataset(snapshot, "shop = 'b' AND day < '2026-11-21'")
    assert len(list(chosen.get_fragments())) == 1
    assert chosen.to_table()["n"].to_pylist() == [3]
    computed = Table.create(f"{place.uri}-2", partition_by=["n % 3 AS third"], storage_options=place.storage_options)
    computed.insert([{"n": n} for n in range(9)])
    thirds = dataset(computed.snapshot())
    assert len(list(thirds.get_fragments(filter=pc.field("third") == 2))) == 1
    assert sorted(thirds.to_table(filter=pc.field("third") == 2)["n"].to_pylist()) == [2, 5, 8]


def test_booleans_and_json_are_filtered_by_as_what_they_are(local: Place) -> None:
    import polars as pl

    table = Table.create(local.uri, partition_by=["n > 1 AS late"])
    rows = "SELECT n, [true, false, NULL][n % 3 + 1] AS yes, {'ok': n = 2} AS nested, ('[' || n || ']')::JSON AS json"
    table.insert(duckdb.connect().sql(f"{rows} FROM range(4) AS r(n)"))
    found = dataset(table.snapshot())
    assert len(list(found.get_fragments(filter=pc.field("late")))) == 1
    for arrow, polars, expected in [
        (pc.field("yes"), pl.col("yes"), [0, 3]),
        (~pc.field("yes"), ~pl.col("yes"), [1]),
        (pc.field("yes") == pa.scalar(False), pl.col("yes") == False, [1]),  # noqa: E712
        (pc.field("late"), pl.col("late"), [2, 3]),
        (pc.field("late") & pc.field("yes"), pl.col("late") & pl.col("yes"), [3]),
        (pc.field("nested", "ok"), pl.col("nested").struct.field("ok"), [2]),
        (pc.field("json") == "[1]", pl.col("json") == "[1]", [1]),
    ]:
        assert sorted(found.to_table(filter=arrow)["n"].to_pylist()) == expected
        assert sorted(pl.scan_pyarrow_dataset(found).filter(polars).collect()["n"].to_list()) == expected
    lazy = pl.scan_pyarrow_dataset(found).collect_schema()
    assert (lazy["yes"], lazy["late"], lazy["json"]) == (pl.Boolean, pl.Boolean, pl.String)


def test_a_dataset_stays_as_it_is_and_goes_to_other_processes(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n % 2 AS parity"])
    table.insert([{"n": 1}, {"n": 2}])
    found = dataset(table.snapshot())
    table.overwrite([{"n": 3}])
    assert sorted(pickle.loads(pickle.dumps(found)).to_table()["n"].to_pylist()) == [1, 2]


def test_a_data_column_wins_over_a_partition_column_of_its_name(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["upper(shop) AS shop"])
    table.insert([{"shop": "north", "n": 1}])
    snapshot = table.snapshot()
    assert snapshot.partitions() == ["shop=NORTH"]
    assert dataset(snapshot).to_table().to_pylist() == [{"shop": "north", "n": 1}]


def test_tables_without_rows_or_columns(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["day"])
    assert dataset(table.snapshot()).to_table().num_columns == 0
    table.insert([{"day": "2026-11-21", "n": 1}])
    table.drop_partitions("true")
    empty = dataset(table.snapshot()).to_table()
    assert (empty.column_names, empty.num_rows) == (["day", "n"], 0)


def test_a_part_of_an_older_partitioning_is_named(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    [part] = table.snapshot().parts
    table.alter(partition_by=["n"])
    assert dataset(table.snapshot()).to_table()["n"].to_pylist() == [1], "its column is stored in the part"
    table.alter(partition_by=["n % 2 AS parity"])
    with pytest.raises(
        InvalidOption, match=r"the part '.*' was written before .* by \['parity'\].*Query the snapshot"
    ) as e:
        dataset(table.snapshot())
    assert part.key in str(e.value)


@pytest.mark.s3
def test_other_engines_scan_a_dataset_lazily_and_push_filters_down(s3: Place) -> None:
    import polars as pl

    table = Table.create(s3.uri, partition_by=["n % 3 AS third"], storage_options=s3.storage_options)
    table.insert([{"n": n} for n in range(9)])
    found = dataset(table.snapshot())
    assert isinstance(found, ds.FileSystemDataset)
    lazy = pl.scan_pyarrow_dataset(found).filter(pl.col("third") == 1).select("n")
    assert sorted(lazy.collect()["n"].to_list()) == [1, 4, 7]
    con = duckdb.connect()
    con.register("events", found)
    assert con.sql("SELECT sum(n) FROM events WHERE third = 0").fetchall() == [(9,)]
