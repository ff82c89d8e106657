"""Parts have a bloom filter for just the columns of `bloom_filters`, and each reader's answers are the same with it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from datafusion import SessionContext, col, lit

from icedb import Snapshot, Table
from icedb.engines import arrow, chdb, datafusion, pandas, polars
from icedb.errors import InvalidOption, UnknownColumn
from icedb.sql.connections import quote_name, quote_text
from icedb.writer.encoding.bloom_filters import filter_options
from tests.operations.integrity.test_repair_types import foreign_append
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import created
from tests.support.tables.reader_tables import EVERY_TYPE

ROWS = 3_000
#: The columns of EVERY_TYPE that can have a filter.
FILTERED = ["n", "day", "id", "json", "bytes", "instant", "wall", "nanos", "time", "price", "text", "small", "choice"]
UNFILTERED = ["yes", "nested", "map", "booleans", "pair"]


def key(n: int) -> str:
    """Return a text whose order is not that of the numbers."""
    return str(uuid.UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))


def rows(first: int = 0, count: int = ROWS) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {"n": numbers, "user": [key(n) for n in numbers], "kind": [n % 3 for n in numbers], "price": [1.5] * count}
    )


def part_files(table: Table) -> list[Path]:
    """Return the local files of the live parts."""
    return [Path(table.uri) / part.key for part in table.snapshot().parts]


def filter_bytes(path: Path) -> dict[str, int]:
    """Return the size of the filters of each column that has one in every row group of a file."""
    query = (
        "SELECT path_in_schema, sum(bloom_filter_length), count(*) = count(bloom_filter_offset) "
        f"FROM parquet_metadata({quote_text(str(path))}) WHERE num_values > 0 "
        "GROUP BY ALL HAVING count(bloom_filter_offset) > 0"
    )
    sizes = duckdb.sql(query).fetchall()
    assert all(in_each for _, _, in_each in sizes)
    return {name: size for name, size, _ in sizes}


def excluded(path: Path, column: str, value: object) -> list[bool]:
    """Return whether the filter of each row group excludes a value."""
    query = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe({quote_text(str(path))}, {quote_text(column)}, ?)"
    return [excludes for (excludes,) in duckdb.execute(query, [value]).fetchall()]


# ------------------------------------------------------------------------------------------ the filters of parts


@pytest.mark.sampled(days=3)
def test_parts_have_a_filter_for_just_these_columns(local: Place) -> None:
    table = created(local, partition_by=["kind"], sort_by=["n"], bloom_filters=["user", "n"])
    table.insert(rows())
    files = part_files(table)
    assert len(files) == 3
    for path in files:
        assert filter_bytes(path).keys() == {"user", "n"}
        # 98 % of absent keys are excluded, and no present one.
        absent = [excluded(path, "user", key(n)) for n in range(ROWS, ROWS + 100)]
        assert absent.count([True]) > 80
        present = [n for n in range(0, ROWS, 50) if path.parent.name == f"kind={n % 3}"]
        assert present
        for n in present:
            assert excluded(path, "user", key(n)) == excluded(path, "n", n) == [False]


def test_each_row_group_has_its_own_filter(local: Place) -> None:
    table = created(local, sort_by=["n"], row_group_rows=2_048, bloom_filters=["user"])
    table.insert(rows(count=5_000))
    [path] = part_files(table)
    assert excluded(path, "user", key(3)) == [False, True, True]
    assert excluded(path, "user", key(4_999)) == [True, True, False]


@pytest.mark.parametrize("count", [1, 4_000, 122_880])
def test_a_filter_takes_up_to_two_bytes_for_each_value(local: Place, count: int) -> None:
    table = created(local, bloom_filters=["n"])
    table.insert(pa.table({"n": range(count)}))
    [path] = part_files(table)
    assert filter_bytes(path)["n"] <= 64 + 2.2 * count


def test_a_filter_of_a_default_row_group_has_128_kib(local: Place) -> None:
    table = created(local, bloom_filters=["n"])
    table.insert(pa.table({"n": range(122_880)}))
    [path] = part_files(table)
    assert filter_bytes(path)["n"] - 128 * 1024 in range(100)


def test_only_parts_after_an_alter_have_the_new_filters(local: Place) -> None:
    table = created(local, partition_by=["kind"], sort_by=["n"])
    table.insert(rows(0, 3))
    before = set(part_files(table))
    table.alter(bloom_filters=["user"])
    table.insert(rows(3, 3))
    after = set(part_files(table)) - before
    table.alter(bloom_filters=[])
    table.insert(rows(6, 3))
    last = set(part_files(table)) - before - after
    assert len(before) == len(after) == len(last) == 3
    assert all(not filter_bytes(path) for path in before | last)
    assert all(filter_bytes(path).keys() == {"user"} for path in after)


def test_merges_write_the_filters(local: Place) -> None:
    table = created(local, sort_by=["n"], bloom_filters=["user"])
    table.insert(rows(0, 500))
    table.insert(rows(500, 500))
    assert table.merge().merged_parts == 2
    [path] = part_files(table)
    assert filter_bytes(path).keys() == {"user"}
    assert excluded(path, "user", key(0)) == excluded(path, "user", key(999)) == [False]


def test_a_batch_may_lack_the_column(local: Place) -> None:
    table = created(local, schema={"user": "VARCHAR"}, bloom_filters=["user"])
    table.insert([{"n": 1}])
    table.insert([{"n": 2, "user": None}])
    assert sorted(filter_bytes(path).keys() == {"user"} for path in part_files(table)) == [False, True]
    assert table.query("SELECT n FROM t WHERE \"user\" = 'a'").fetchall() == []
    assert len(table.query('SELECT n FROM t WHERE "user" IS NULL').fetchall()) == 2


def test_row_ids_can_have_a_filter(local: Place) -> None:
    table = created(local, row_id=True, bloom_filters=["_row_id"])
    table.insert([{"n": 1}])
    [path] = part_files(table)
    assert filter_bytes(path).keys() == {"_row_id"}


def test_a_field_of_a_struct_with_the_path_of_a_column_gets_no_filter(local: Place) -> None:
    table = created(local, bloom_filters=["a.b", "c.d"])
    table.insert(duckdb.sql("SELECT 'x' AS \"a.b\", {'b': true} AS a, 'y' AS \"c.d\""))
    [path] = part_files(table)
    assert filter_bytes(path).keys() == {"c.d"}
    assert table.query('SELECT "a.b", "c.d" FROM t WHERE "a.b" = \'x\'').fetchall() == [("x", "y")]


def test_the_encoder_skips_columns_that_cannot_have_a_filter() -> None:
    schema = pa.schema(
        {"f": pa.float32(), "yes": pa.bool_(), "list": pa.list_(pa.int64()), "s": pa.struct({"a": pa.int64()})}
    )
    assert filter_options(schema, [*schema.names, "absent"], 10) is None


# ------------------------------------------------------------------------------------------ readers


def by_query(snapshot: Snapshot, column: str, value: Any) -> list[int]:
    literal = quote_text(value) if isinstance(value, str) else value
    return [n for (n,) in snapshot.query(f"SELECT n FROM t WHERE {quote_name(column)} = {literal}").fetchall()]


def by_dataset(snapshot: Snapshot, column: str, value: Any) -> list[int]:
    return arrow.dataset(snapshot).to_table(columns=["n"], filter=pc.field(column) == value)["n"].to_pylist()


def by_polars(snapshot: Snapshot, column: str, value: Any) -> list[int]:
    return polars.scan(snapshot).filter(pl.col(column) == value).collect()["n"].to_list()


def by_pandas(snapshot: Snapshot, column: str, value: Any) -> list[int]:
    frame = pandas.read(snapshot)
    return frame[frame[column] == value]["n"].tolist()


def by_datafusion(snapshot: Snapshot, column: str, value: Any) -> list[int]:
    context = SessionContext()
    datafusion.register(context, "t", snapshot)
    batches = context.table("t").filter(col(quote_name(column)) == lit(value)).collect()
    return [n for batch in batches for n in batch["n"].to_pylist()]


def by_chdb(snapshot: Snapshot, column: str, value: Any) -> list[int]:
    literal = quote_text(value) if isinstance(value, str) else value
    return chdb.query(f"SELECT n FROM t WHERE {quote_name(column)} = {literal}", snapshot)["n"].to_pylist()


READERS = [by_query, by_dataset, by_polars, by_pandas, by_datafusion, by_chdb]


@pytest.fixture
def mixed(local: Place) -> Table:
    """Return a table with parts of three kinds: without filters, with them, and of another program."""
    table = created(local, sort_by=["n"])
    table.insert(rows(0, 100))
    table.alter(bloom_filters=["user", "n"])
    table.insert(rows(100, 100))
    foreign = {"n": ("BIGINT", pa.int64(), [200]), "user": ("VARCHAR", pa.string(), [key(200)])}
    foreign_append(table.handle.store, table.handle.read().newest_ms + 1, foreign)
    return table


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("read", READERS, ids=[read.__name__.removeprefix("by_") for read in READERS])
def test_readers_find_the_same_rows_with_and_without_filters(
    mixed: Table, read: Callable[[Snapshot, str, Any], list[int]]
) -> None:
    snapshot = mixed.snapshot()
    for n in (50, 150, 200):
        assert read(snapshot, "user", key(n)) == read(snapshot, "n", n) == [n]
    assert read(snapshot, "user", key(201)) == read(snapshot, "n", 201) == []


def test_a_query_does_not_read_a_row_group_that_the_filter_excludes(local: Place) -> None:
    """A filter without values excludes also the row that the part has."""
    table = created(local, bloom_filters=["user"])
    table.insert(rows(0, 100))
    assert by_query(table.snapshot(), "user", key(7)) == [7]
    [path] = part_files(table)
    metadata = f"parquet_metadata({quote_text(str(path))})"
    query = f"SELECT bloom_filter_offset, bloom_filter_length FROM {metadata} WHERE path_in_schema = 'user'"
    [(offset, size)] = duckdb.sql(query).fetchall()
    body = bytearray(path.read_bytes())
    bits = 1 << (size.bit_length() - 1)
    body[offset + size - bits : offset + size] = bytes(bits)
    path.chmod(0o600)
    path.write_bytes(body)
    assert by_query(table.snapshot(), "user", key(7)) == []


@pytest.fixture
def typed(local: Place) -> Table:
    """Return a table with a filter for a column of each type that can have one."""
    table = created(local, bloom_filters=FILTERED)
    table.insert(duckdb.connect().sql(f"SELECT {', '.join(FILTERED)}, yes FROM ({EVERY_TYPE})"))
    [path] = part_files(table)
    assert filter_bytes(path).keys() == set(FILTERED)
    return table


@pytest.mark.sampled(days=3)
def test_duckdb_finds_the_values_of_each_type(typed: Table) -> None:
    snapshot = typed.snapshot()
    for column in FILTERED:
        text = f"CAST({quote_name(column)} AS VARCHAR)"
        texts = [text for (text,) in snapshot.query(f"SELECT DISTINCT {text} FROM t").fetchall()]
        literals = [f"CAST({quote_text(text)} AS {snapshot.schema[column]})" for text in texts]
        counts = " + ".join(f"(SELECT count(*) FROM t WHERE {quote_name(column)} = {literal})" for literal in literals)
        assert snapshot.query(f"SELECT {counts}").fetchall() == [(4,)], column


def test_datafusion_finds_the_values_of_each_type(typed: Table) -> None:
    context = SessionContext()
    datafusion.register(context, "t", typed.snapshot())
    frame = context.table("t")
    for column in FILTERED:
        values = pa.table(frame.select(col(quote_name(column))))[column].combine_chunks()
        counts = [frame.filter(col(quote_name(column)) == lit(value)).count() for value in values.unique()]
        assert sum(counts) == 4, column


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("type_", ["BOOLEAN", "FLOAT", "DOUBLE", "BIGINT[]", "DECIMAL(9,2)[]", "STRUCT(a BIGINT)"])
def test_a_type_without_a_filter_is_rejected_where_it_is_known(local: Place, type_: str) -> None:
    message = "bloom_filters names 'x', which is .*Remove it from bloom_filters"
    with pytest.raises(InvalidOption, match=message) as caught:
        Table.create(local.uri, schema={"x": type_}, bloom_filters=["x"])
    assert local.uri in str(caught.value)
    assert not Table.exists(local.uri)
    batch = duckdb.sql(f"SELECT 1 AS n, CAST(NULL AS {type_}) AS x")
    table = created(local.below("declared"), schema={"x": type_})
    filled = created(local.below("filled"))
    filled.insert(batch)
    for existing in (table, filled):
        with pytest.raises(InvalidOption, match=message):
            existing.alter(bloom_filters=["x"])
        assert existing.spec.bloom_filters == ()
    opened = created(local.below("open"), bloom_filters=["x"])
    with pytest.raises(InvalidOption, match=message):
        opened.insert(batch)
    assert opened.snapshot().parts == ()
    opened.alter(bloom_filters=[])
    assert opened.insert(batch).rows == 1


def test_an_unknown_column_is_rejected_as_in_sort_by(local: Place) -> None:
    message = "bloom_filters names 'usr', and there is no such column"
    with pytest.raises(UnknownColumn, match=message):
        Table.create(local.uri, schema={"user": "VARCHAR"}, schema_policy="declared", bloom_filters=["usr"])
    table = created(local, bloom_filters=["usr"])  # a batch can still bring it
    with pytest.raises(UnknownColumn, match=message):
        table.insert([{"user": "a"}])
    table.alter(bloom_filters=["user"])
    table.insert([{"user": "a"}])
    with pytest.raises(UnknownColumn, match=message):
        table.alter(bloom_filters=["usr"])
    assert table.spec.bloom_filters == ("user",)


def test_imported_files_are_checked_as_a_batch(local: Place, tmp_path: Path) -> None:
    duckdb.sql("SELECT 1.5::DOUBLE AS price").write_parquet(str(tmp_path / "a.parquet"))
    for column, error in (("price", InvalidOption), ("user", UnknownColumn)):
        table = created(local.below(column), bloom_filters=[column])
        with pytest.raises(error, match=f"bloom_filters names '{column}'"):
            table.import_files(tmp_path / "a.parquet")
        table.alter(bloom_filters=[])
        assert table.import_files(tmp_path / "a.parquet").rows == 1


def test_a_column_of_another_program_does_not_stop_inserts(local: Place) -> None:
    """That program ignores the option, so it may add the column with any type."""
    table = created(local, bloom_filters=["x"])
    foreign_append(table.handle.store, table.handle.read().newest_ms + 1, {"x": ("DOUBLE", pa.float64(), [0.5])})
    assert table.insert([{"x": 1.5}]).rows == 1
    assert sorted(table.query("SELECT x FROM t WHERE x > 0").fetchall()) == [(0.5,), (1.5,)]
    assert all(not filter_bytes(path) for path in part_files(table))


# ------------------------------------------------------------------------------------------ the spec


@pytest.mark.sampled(days=3)
def test_the_spec_has_the_key_only_if_there_are_columns(local: Place) -> None:
    for name, columns in (("without", []), ("with", ["user"])):
        table = created(local.below(name), bloom_filters=columns)
        stored = json.loads((Path(table.uri) / "_table.json").read_text())
        assert stored.get("bloom_filters", []) == columns
        assert ("bloom_filters" in stored) == bool(columns)
        assert Table.open(table.uri).spec.bloom_filters == tuple(columns)
