"""Snapshots for Arrow: the rows and types of a query, read by Arrow itself from every kind of store."""

from __future__ import annotations

import pickle
import re
from datetime import date

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from icedb import Table
from icedb.engines.arrow import dataset, record_batches
from icedb.errors import InvalidOption, MissingPart, SnapshotExpired, UnknownColumn, UnsupportedType
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import created
from tests.support.tables.reader_tables import WIDENED, by_hour, every_type, forget, rows_by, widened


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_dataset_has_the_rows_and_types_of_a_query(place: Place) -> None:
    snapshot = every_type(place).snapshot()
    read = dataset(snapshot)
    rows = read.to_table()
    expected = snapshot.to_arrow()
    assert rows.column_names == expected.column_names
    types = {field.name: field.type for field in expected.schema}
    assert {field.name: field.type for field in read.schema} == types | {"id": pa.uuid()}
    assert rows.schema.equals(read.schema)
    with_text = [{**row, "id": row["id"] and str(row["id"])} for row in rows.to_pylist()]
    assert sorted(with_text, key=lambda row: row["n"]) == sorted(expected.to_pylist(), key=lambda row: row["n"])
    assert duckdb.connect().from_arrow(rows).select("id").types == ["UUID"]
    assert read.count_rows() == 5


@pytest.mark.sampled(days=3)
def test_filters_on_partition_columns_and_predicates_skip_parts(place: Place) -> None:
    table = created(place, partition_by=["day", "shop"])
    days = [date(2026, 11, d) for d in (20, 21, 22)]
    table.insert(pa.table({"day": days * 2, "shop": ["a", "a", "a", "b", "b", None], "n": range(6)}))
    snapshot = table.snapshot()
    read = dataset(snapshot)
    wanted = (pc.field("day") == days[1]) & (pc.field("shop") == "b")
    assert read.to_table(filter=wanted, columns=["n"]).to_pylist() == [{"n": 4}]
    assert read.to_table(filter=pc.field("shop").is_null())["n"].to_pylist() == [5]
    selected = dataset(snapshot, parts_where="shop = 'b' AND day < '2026-11-21'")
    assert len(list(selected.get_fragments())) == 1
    assert selected.to_table()["n"].to_pylist() == [3]
    computed = created(place.below("2"), partition_by=["n % 3 AS third"])
    computed.insert([{"n": n} for n in range(9)])
    thirds = dataset(computed.snapshot())
    assert len(list(thirds.get_fragments(filter=pc.field("third") == 2))) == 1
    assert sorted(thirds.to_table(filter=pc.field("third") == 2)["n"].to_pylist()) == [2, 5, 8]


@pytest.mark.sampled(days=3)
def test_filters_take_booleans_and_json_with_their_types(local: Place) -> None:
    import polars as pl

    table = Table.create(local.uri, partition_by=["n > 1 AS late"])
    rows = "SELECT n, [true, false, NULL][n % 3 + 1] AS yes, {'ok': n = 2} AS nested, ('[' || n || ']')::JSON AS json"
    table.insert(duckdb.connect().sql(f"{rows} FROM range(4) AS r(n)"))
    read = dataset(table.snapshot())
    assert len(list(read.get_fragments(filter=pc.field("late")))) == 1
    for arrow, polars, expected in [
        (pc.field("yes"), pl.col("yes"), [0, 3]),
        (~pc.field("yes"), ~pl.col("yes"), [1]),
        (pc.field("yes") == pa.scalar(False), pl.col("yes") == False, [1]),  # noqa: E712
        (pc.field("late"), pl.col("late"), [2, 3]),
        (pc.field("late") & pc.field("yes"), pl.col("late") & pl.col("yes"), [3]),
        (pc.field("nested", "ok"), pl.col("nested").struct.field("ok"), [2]),
        (pc.field("json") == "[1]", pl.col("json") == "[1]", [1]),
    ]:
        assert sorted(read.to_table(filter=arrow)["n"].to_pylist()) == expected
        assert sorted(pl.scan_pyarrow_dataset(read).filter(polars).collect()["n"].to_list()) == expected
    lazy = pl.scan_pyarrow_dataset(read).collect_schema()
    assert (lazy["yes"], lazy["late"], lazy["json"]) == (pl.Boolean, pl.Boolean, pl.String)


def test_a_dataset_does_not_change_and_can_be_pickled(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n % 2 AS parity"])
    table.insert([{"n": 1}, {"n": 2}])
    read = dataset(table.snapshot())
    table.overwrite([{"n": 3}])
    assert sorted(pickle.loads(pickle.dumps(read)).to_table()["n"].to_pylist()) == [1, 2]


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
    assert dataset(table.snapshot()).to_table()["n"].to_pylist() == [1], "the part has the column"
    table.alter(partition_by=["n % 2 AS parity"])
    message = rf"the part '{re.escape(part.key)}' was written before .* by \['parity'\].*Query the snapshot"
    with pytest.raises(InvalidOption, match=message):
        dataset(table.snapshot())


@pytest.mark.s3
def test_other_engines_scan_a_dataset_lazily_and_push_filters_down(s3: Place) -> None:
    import polars as pl

    table = created(s3, partition_by=["n % 3 AS third"])
    table.insert([{"n": n} for n in range(9)])
    read = dataset(table.snapshot())
    assert isinstance(read, ds.FileSystemDataset)
    lazy = pl.scan_pyarrow_dataset(read).filter(pl.col("third") == 1).select("n")
    assert sorted(lazy.collect()["n"].to_list()) == [1, 4, 7]
    con = duckdb.connect()
    con.register("events", read)
    assert con.sql("SELECT sum(n) FROM events WHERE third = 0").fetchall() == [(9,)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_dataset_at_a_time_of_changes_and_with_later_columns(shared_place: Place) -> None:
    table, before = by_hour(shared_place)
    for snapshot in (before, table.snapshot(before.as_of_ms), table.snapshot(), table.changes()):
        expected = snapshot.to_arrow()
        read = dataset(snapshot).to_table()
        assert read.schema == expected.schema
        assert rows_by("n", read) == rows_by("n", expected)
    assert [row["n"] for row in rows_by("n", dataset(table.snapshot()).to_table())] == [1, 1, 2, 2, 3, 3, 4, 5]


def test_narrower_types_in_parts_are_widened(local: Place) -> None:
    snapshot = widened(local).snapshot()
    expected = snapshot.to_arrow()
    read = dataset(snapshot).to_table()
    assert read.schema == expected.schema
    assert rows_by("n", read) == rows_by("n", expected)
    assert all(value is not None for value in rows_by("n", read)[1].values())
    assert set(read.column_names) == {"n", *WIDENED}
    assert rows_by("n", record_batches(snapshot).read_all()) == rows_by("n", expected)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parts_that_a_predicate_leaves_out_are_not_opened_and_others_are_not_filtered(shared_place: Place) -> None:
    table = created(shared_place, partition_by=["n // 10 AS tens"])
    table.insert([{"n": n} for n in range(30)])
    snapshot = table.snapshot()
    selected = dataset(snapshot, "tens = 1")
    assert forget(snapshot, "tens = 1") == 2
    assert selected.count_rows() == 10
    assert record_batches(snapshot, where="tens = 1").read_all().num_rows == 10
    assert dataset(snapshot).to_table(filter=pc.field("tens") == 1).num_rows == 10
    with pytest.raises(FileNotFoundError):
        dataset(snapshot).to_table()


def test_uuids_as_bytes_can_be_filtered_by(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["id AS owner"])
    table.insert(duckdb.connect().sql("SELECT n, uuid() AS id, [uuid()] AS others FROM range(3) AS r(n)"))
    snapshot = table.snapshot()
    [(id_,)] = snapshot.query("SELECT id FROM t WHERE n = 1").fetchall()
    read = dataset(snapshot, uuid=pa.binary(16))
    assert read.schema.field("others").type.value_type == pa.binary(16)
    for column in ("id", "owner"):
        assert read.to_table(filter=pc.field(column) == id_.bytes)["n"].to_pylist() == [1]
    assert len(list(read.get_fragments(filter=pc.field("owner") == id_.bytes))) == 1


@pytest.mark.long
def test_wide_numbers_in_paths_are_decimals_and_types_that_arrow_lacks_are_rejected(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n::HUGEINT * 10000000000000000000000 AS wide"])
    table.insert([{"n": 1}, {"n": -2}])
    assert rows_by("n", dataset(table.snapshot()).to_table()) == rows_by("n", table.snapshot().to_arrow())
    for n, (expression, message) in enumerate(
        [("n::VARCHAR::BIT AS p", "'p' is BIT"), ("md5_number(n::VARCHAR)::UHUGEINT AS p", "cannot store as UHUGEINT")]
    ):
        other = Table.create(f"{local.uri}-{n}", partition_by=[expression])
        other.insert([{"n": 1}])
        with pytest.raises(UnsupportedType, match=rf"{message}.*Query the snapshot"):
            dataset(other.snapshot())


# ------------------------------------------------------------------------------------------------ record batches


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_record_batches_are_the_rows_and_types_of_a_query(place: Place) -> None:
    table = every_type(place)
    snapshot = table.snapshot()
    batches = list(record_batches(snapshot, rows_max=2))
    expected = snapshot.to_arrow()
    assert batches[0].schema == expected.schema
    assert rows_by("n", pa.Table.from_batches(batches)) == rows_by("n", expected)
    assert max(batch.num_rows for batch in batches) == 2
    late = record_batches(snapshot, ["n", "odd"], where="late AND parity = 1").read_all()
    assert rows_by("n", late) == [{"n": 3, "odd": "a/b 1"}, {"n": 9, "odd": "a/b 1"}]


def test_a_predicate_selects_rows_of_record_batches_and_parts_of_a_dataset(local: Place) -> None:
    table = Table.create(local.uri, sort_by=["n"])
    for start in (0, 10, 20):
        table.insert([{"n": n} for n in range(start, start + 10)])
    snapshot = table.snapshot()
    rows = record_batches(snapshot, where="n BETWEEN 8 AND 12").read_all()
    assert sorted(rows["n"].to_pylist()) == [8, 9, 10, 11, 12]
    read = dataset(snapshot, "n BETWEEN 8 AND 12")
    assert len(list(read.get_fragments())) == 2, "by the statistics in the log"
    assert read.count_rows() == 20, "rows are not filtered"


def test_record_batches_of_a_partitioning_before_an_alter(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": n} for n in range(4)])
    table.alter(partition_by=["n % 2 AS parity"])
    table.insert([{"n": 5}])
    assert sorted(record_batches(table.snapshot(), where="parity = 1").read_all()["n"].to_pylist()) == [1, 3, 5]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_record_batches_are_streamed_and_raise_for_a_deleted_part(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n // 200000 AS p"], storage_options={"fsync": "false"})
    table.insert(duckdb.connect().sql("SELECT n, hash(n) AS h FROM range(2000000) AS r(n)"))
    snapshot = table.snapshot()
    first, second = (record_batches(snapshot, rows_max=1_000) for _ in range(2))
    assert first.read_next_batch().num_rows == second.read_next_batch().num_rows == 1_000
    assert forget(snapshot, "p = 0") == 9
    with pytest.raises(MissingPart, match="the live part"):
        first.read_all()
    table.drop_partitions("p <> 0")
    table.cleanup(grace_ms=0, allow_short_grace=True)
    with pytest.raises(SnapshotExpired, match="was cleaned up"):
        second.read_all()


def test_invalid_columns_and_sizes_are_rejected(local: Place) -> None:
    table = Table.create(local.uri)
    assert record_batches(table.snapshot()).read_all().num_columns == 0
    table.insert([{"n": 1}])
    snapshot = table.snapshot()
    with pytest.raises(UnknownColumn, match=r"no column 'm'; the snapshot has \['n'\]"):
        record_batches(snapshot, ["m"])
    for columns in ("n", []):
        with pytest.raises(InvalidOption, match=r"columns must be a list of texts|pass a list of names"):
            record_batches(snapshot, columns)
    for rows_max in (0, 1.5, True):
        with pytest.raises(InvalidOption, match="rows_max"):
            record_batches(snapshot, rows_max=rows_max)  # type: ignore[arg-type]
