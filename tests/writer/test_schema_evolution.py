"""Schema evolution: declared, missing and later columns, and conflicts of types."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icedb import Table
from icedb.errors import InvalidBatch, InvalidOption, SchemaConflict, UnknownColumn, UnsupportedType
from tests.operations.write.test_insert_query import objects, rows
from tests.support.object_stores.stores import Place


@pytest.mark.sampled(days=3)
def test_columns_are_the_union_over_all_rows_and_batches(place: Place) -> None:
    table = Table.create(place.uri, storage_options=place.storage_options)
    table.insert([{"a": 1}, {"b": "x"}, {"a": 2, "c": 1.5}])
    table.insert([{"d": True}])
    assert table.schema() == {"a": "BIGINT", "b": "VARCHAR", "c": "DOUBLE", "d": "BOOLEAN"}
    assert rows(table, "SELECT a, b, c, d FROM t ORDER BY ALL") == [
        (1, None, None, None), (2, None, 1.5, None), (None, "x", None, None), (None, None, None, True)
    ]  # fmt: skip


@pytest.mark.sampled(days=3)
def test_a_column_without_values_gets_its_type_later(place: Place) -> None:
    table = Table.create(place.uri, storage_options=place.storage_options)
    table.insert([{"a": 1, "later": None}])
    assert table.schema() == {"a": "BIGINT"}
    table.insert([{"a": 2, "later": date(2026, 1, 2)}])
    table.insert([{"a": 3, "later": None}])
    assert table.schema()["later"] == "DATE"
    assert rows(table, "SELECT later FROM t ORDER BY a") == [(None,), (date(2026, 1, 2),), (None,)]


# ------------------------------------------------------------------------------------------------ declared


@pytest.mark.sampled(cases=1)
def test_declared_columns_exist_before_the_first_row(place: Place) -> None:
    schema = {"id": "INT8", "price": "decimal(10, 2)"}
    table = Table.create(place.uri, schema=schema, sort_by=["id"], storage_options=place.storage_options)
    assert table.schema() == {"id": "BIGINT", "price": "DECIMAL(10,2)"}
    table.insert([{"id": 1}])
    assert rows(table, "SELECT id, price FROM t") == [(1, None)]
    table.insert([{"id": 2, "price": Decimal("1.5"), "note": "more are welcome"}])
    assert table.schema() == {"id": "BIGINT", "price": "DECIMAL(10,2)", "note": "VARCHAR"}
    with pytest.raises(SchemaConflict, match="price"):
        table.insert([{"id": 3, "price": "much"}])
    again = Table.open(place.uri, storage_options=place.storage_options)
    assert again.schema() == table.schema()
    with pytest.raises(SchemaConflict, match="price"):
        Table.open(place.uri, storage_options=place.storage_options).alter(schema={"price": "DOUBLE"})


@pytest.mark.sampled(cases=1, days=3)
def test_a_table_with_only_declared_columns_rejects_others(place: Place) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    table = Table.create(
        place.uri, schema=schema, schema_policy="declared", required=["id"], storage_options=place.storage_options
    )
    assert table.schema() == {"id": "BIGINT", "at": "TIMESTAMP WITH TIME ZONE"}
    with pytest.raises(UnknownColumn, match=r"'note'.*alter\(schema="):
        table.insert([{"id": 1, "note": "x"}])
    with pytest.raises(InvalidBatch, match="'id' is null in 1 rows"):
        table.insert([{"id": 1}, {"id": None}])
    with pytest.raises(InvalidBatch, match="'id' is missing"):
        table.insert(pa.table({"at": pa.array([datetime(2026, 1, 1)], pa.timestamp("us", "UTC"))}))
    assert objects(table) == []
    table.alter(schema={"note": "VARCHAR"})
    table.insert([{"id": 1, "note": "x"}])
    assert rows(table, "SELECT id, note FROM t") == [(1, "x")]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"schema": {"a": "NOSUCH"}}, InvalidOption, "NOSUCH"),
        ({"schema": {"a": "INTEGER) AS b, (SELECT 1"}}, InvalidOption, "which DuckDB does not have"),
        ({"schema": {"a": "HUGEINT"}}, UnsupportedType, "HUGEINT"),
        ({"schema": {"a": "BIGINT", "A": "BIGINT"}}, InvalidBatch, "only in case"),
        ({"schema": {"__icedb_x": "BIGINT"}}, InvalidOption, "reserved"),
        ({"schema": ["a"]}, InvalidOption, "dict of column"),
        ({"schema_policy": "closed"}, InvalidOption, "schema_policy"),
        ({"schema_policy": "declared"}, InvalidOption, "declared"),
        ({"schema": {"a": "BIGINT"}, "schema_policy": "declared", "required": ["b"]}, UnknownColumn, "'b'"),
        ({"schema": {"a": "BIGINT"}, "schema_policy": "declared", "sort_by": ["b"]}, UnknownColumn, "'b'"),
    ],
)
def test_invalid_columns_are_rejected(
    options: dict[str, Any], error: type[Exception], message: str, local: Place
) -> None:
    with pytest.raises(error, match=message):
        Table.create(local.uri, **options)
    assert not Table.exists(local.uri)


def test_an_open_schema_may_be_partitioned_by_an_undeclared_column(local: Place) -> None:
    table = Table.create(local.uri, schema={"id": "BIGINT"}, partition_by=["country AS c"])
    table.insert([{"id": 1, "country": "at"}])
    assert table.snapshot().partitions() == ["c=at"]


# ------------------------------------------------------------------------------------------------ conflicts


def batch(type_: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"x": pa.array(values, type_)})


#: The type of the table, a batch of a type whose values it all holds, and the stored values.
WIDENED: list[tuple[str, pa.Table, Sequence[Any]]] = [
    ("BIGINT", batch(pa.int32(), 1, -2, None), [-2, 1, None]),
    ("BIGINT", batch(pa.uint32(), 2**32 - 1), [2**32 - 1]),
    ("INTEGER", batch(pa.int8(), -128), [-128]),
    ("DOUBLE", batch(pa.float32(), 0.5), [0.5]),
    ("DOUBLE", batch(pa.int32(), 2**31 - 1), [float(2**31 - 1)]),
    ("DECIMAL(10,3)", batch(pa.decimal128(9, 2), Decimal("1.25")), [Decimal("1.250")]),
]


@pytest.mark.parametrize(("declared", "data", "stored"), WIDENED, ids=lambda v: v if isinstance(v, str) else "")
def test_a_narrower_type_is_widened(declared: str, data: pa.Table, stored: Sequence[Any], local: Place) -> None:
    table = Table.create(local.uri, schema={"x": declared}, sort_by=["x"], storage_options={"fsync": "false"})
    assert table.insert(data).rows == data.num_rows
    assert rows(table, "SELECT x FROM t ORDER BY x NULLS LAST") == [(value,) for value in stored]
    assert table.schema() == {"x": declared}
    assert table.verify(deep=True).ok


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"ID": pa.array([1], pa.int64()), "Price": pa.array([Decimal("1.5")], pa.decimal128(4, 1))}),
        [{"Id": 1, "PRICE": Decimal("1.5")}],
        "Id,PRICE\n1,1.5\n",
        '{"Id": 1, "PRICE": 1.5}\n',
    ],
    ids=["arrow", "dicts", "csv", "json lines"],
)
def test_the_case_of_a_name_does_not_matter(data: Any, local: Place, tmp_path: Path) -> None:
    table = Table.create(local.uri, schema={"id": "BIGINT", "price": "DECIMAL(10,2)"}, sort_by=["id"])
    if isinstance(data, str):
        file = tmp_path / ("rows.jsonl" if data.startswith("{") else "rows.csv")
        file.write_text(data)
        data = str(file)
    table.insert(data)
    table.overwrite(data)
    assert table.schema() == {"id": "BIGINT", "price": "DECIMAL(10,2)"}
    assert rows(table, "SELECT id, price FROM t") == [(1, Decimal("1.50"))]
    for twice in ({"ID": 1, "Id": 2}, {"ID": 1, "id": 2}):
        with pytest.raises(InvalidBatch, match="differ only in case"):
            table.insert([twice])
    table.insert([{"straße": 1}])
    with pytest.raises(InvalidBatch, match="differ only in case"):  # another name to SQL and to Spark
        table.insert([{"STRASSE": 2}])


# ------------------------------------------------------------------------------------------------ partition columns


@pytest.fixture
def computed(local: Place) -> Table:
    """Return a table with two computed partition columns and a row."""
    table = Table.create(local.uri, partition_by=["CAST(ts AS DATE) AS day", "n % 2 AS half"], sort_by=["n"])
    table.insert([{"n": 1, "ts": datetime(2026, 11, 1, 10)}])
    return table


@pytest.mark.parametrize("fresh", [False, True], ids=["the same handle", "another handle"])
def test_rows_of_a_query_can_be_inserted_again(computed: Table, fresh: bool) -> None:
    read = computed.query("SELECT n + 2 AS n, ts, day, half FROM t").to_arrow_table()
    table = Table.open(computed.uri) if fresh else computed
    table.insert(read)
    table.insert([{"n": 5, "ts": datetime(2026, 11, 1, 10), "DAY": "2026-11-01"}])  # the text of a date
    table.insert(pa.table({"n": [7], "ts": [datetime(2026, 11, 1, 10)], "day": pa.array([None], pa.date32())}))
    assert table.schema() == {"n": "BIGINT", "ts": "TIMESTAMP"}
    assert rows(table, "SELECT n, day, half FROM t ORDER BY n") == [(n, date(2026, 11, 1), 1) for n in (1, 3, 5, 7)]
    table.overwrite(table.query("SELECT * FROM t WHERE n < 5").to_arrow_table(), partitions=["day=2026-11-01/half=1"])
    assert rows(table, "SELECT n FROM t ORDER BY n") == [(1,), (3,)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"day": date(2026, 11, 2)}, "column 'day' .* in 1 rows, for example '2026-11-02' instead of '2026-11-01'"),
        ({"day": date(2026, 11, 1), "half": 0}, r"'half' .* '0' instead of '1'\. The table computes it as \(n % 2\)"),
        ({"half": 1.25}, "'1.25' instead of '1'"),
        ({"half": 1, "ts": None, "day": date(2026, 11, 1)}, "'2026-11-01' instead of null"),
        ({"_partition": "day=2026-11-01/half=1", "day": date(2026, 11, 1)}, "brings a column 'day'"),
    ],
)
def test_a_computed_column_with_other_values_is_rejected(computed: Table, wrong: dict[str, Any], message: str) -> None:
    before = objects(computed)
    for on_conflict in ("raise", "cast", "quarantine"):
        with pytest.raises(InvalidBatch, match=message):
            computed.insert([{"n": 1, "ts": datetime(2026, 11, 1, 10)} | wrong], on_conflict=on_conflict)
    assert objects(computed) == before


#: The type of the table, a batch of another type, and the values after a cast, or None if it is rejected.
CASTS: list[tuple[str, pa.Table, Sequence[Any] | None]] = [
    ("BIGINT", batch(pa.uint64(), 1), None),
    ("INTEGER", batch(pa.int64(), 1), None),
    ("UBIGINT", batch(pa.int8(), 1), None),
    ("DOUBLE", batch(pa.int64(), 2**53, -1), [-1.0, float(2**53)]),
    ("DOUBLE", batch(pa.int64(), 2**53 + 1), None),
    ("FLOAT", batch(pa.float64(), 0.5), None),
    ("DOUBLE", batch(pa.decimal128(9, 2), Decimal("1.25")), [1.25]),
    ("DECIMAL(9,2)", batch(pa.decimal128(10, 3), Decimal("1.250")), None),
    ("DECIMAL(4,2)", batch(pa.int64(), 99), [Decimal("99.00")]),
    ("DECIMAL(4,2)", batch(pa.int64(), 100), None),
    ("TIMESTAMP", batch(pa.date32(), date(2026, 1, 2)), [datetime(2026, 1, 2)]),
    ("DATE", batch(pa.timestamp("us"), datetime(2026, 1, 2)), None),
    ("TIMESTAMP WITH TIME ZONE", batch(pa.timestamp("us"), datetime(2026, 1, 2)), None),
    ("VARCHAR", batch(pa.int64(), 5), ["5"]),
    ("VARCHAR", batch(pa.struct([("a", pa.int64())]), {"a": 1}), ['{"a":1}']),
    ("VARCHAR", batch(pa.list_(pa.int64()), [1, None]), ["[1,null]"]),
    ("VARCHAR", batch(pa.timestamp("us"), datetime(2026, 1, 2)), ["2026-01-02 00:00:00"]),
    ("BIGINT", batch(pa.string(), "5"), None),
    ("BOOLEAN", batch(pa.int64(), 1), None),
    ("STRUCT(a BIGINT, b VARCHAR)", batch(pa.struct([("a", pa.int32())]), {"a": 1}), [{"a": 1, "b": None}]),
    ("STRUCT(a BIGINT)", batch(pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}), [{"a": 1}]),
    ("STRUCT(a BIGINT)", batch(pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "x"}), None),
    ("STRUCT(a BIGINT)", batch(pa.struct([("a", pa.string())]), {"a": "1"}), None),
    ("BIGINT[]", batch(pa.list_(pa.int16()), [1, 2]), [[1, 2]]),
    ("MAP(VARCHAR, BIGINT)", batch(pa.map_(pa.string(), pa.int32()), [("k", 1)]), [{"k": 1}]),
]


@pytest.mark.sampled(cases=10, days=3)
@pytest.mark.parametrize(("declared", "data", "stored"), CASTS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_cast_changes_no_value(declared: str, data: pa.Table, stored: Sequence[Any] | None, local: Place) -> None:
    table = Table.create(local.uri, schema={"x": declared}, storage_options={"fsync": "false"})
    with pytest.raises(SchemaConflict, match="column 'x'") as caught:
        table.insert(data)
    assert caught.value.column == "x"
    assert caught.value.types[0] == declared
    assert objects(table) == []
    if stored is None:
        with pytest.raises(SchemaConflict, match="'x'"):
            table.insert(data, on_conflict="cast")
        assert objects(table) == []
        return
    assert table.insert(data, on_conflict="cast").rows == data.num_rows
    assert rows(table, "SELECT x FROM t ORDER BY x NULLS LAST") == [(value,) for value in stored]
    assert table.schema() == {"x": declared}


def test_a_conflict_names_both_types_and_the_remedy_and_leaves_no_part(place: Place) -> None:
    table = Table.create(place.uri, storage_options=place.storage_options)
    table.insert([{"x": 1, "y": 1}])
    before = objects(table)
    with pytest.raises(
        SchemaConflict, match=r"'x' is BIGINT in the table and VARCHAR in the batch\. Cast it to BIGINT"
    ):
        table.insert([{"y": 2, "x": "one"}])
    with pytest.raises(SchemaConflict, match="'x'"):
        table.overwrite([{"y": 2, "x": "one"}])
    assert objects(table) == before


@pytest.mark.sampled(cases=1)
def test_values_of_several_types_are_cast_or_quarantined(place: Place) -> None:
    table = Table.create(place.uri, storage_options=place.storage_options)
    mixed = [{"x": 1}, {"x": "two"}, {"x": {"three": 3}}, {"x": None}]
    with pytest.raises(SchemaConflict, match="'x'"):
        table.insert(mixed)
    assert objects(table) == []
    table.insert(mixed, on_conflict="cast")
    assert rows(table, "SELECT x FROM t ORDER BY ALL") == [("1",), ("two",), ('{"three":3}',), (None,)]
    numbers = Table.create(place.below("n").uri, storage_options=place.storage_options)
    commit = numbers.insert(mixed, on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (2, 2)
    assert rows(numbers, "SELECT x FROM t ORDER BY ALL") == [(1,), (None,)]


@pytest.mark.sampled(days=3)
def test_one_of_two_writers_with_a_conflicting_new_column_commits(shared_place: Place) -> None:
    place = shared_place
    Table.create(place.uri, storage_options=place.storage_options).insert([{"id": 0}])
    tables = [Table.open(place.uri, storage_options=place.storage_options) for _ in range(2)]
    values: list[Any] = [1.5, "text"]
    together = threading.Barrier(2)

    def write(number: int) -> SchemaConflict | None:
        together.wait()
        try:
            tables[number].insert([{"id": number + 1, "new": values[number]}])
        except SchemaConflict as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(write, range(2)))
    [column] = [error.column for error in errors if error]
    assert column == "new"
    won = errors.index(None)
    table = Table.open(place.uri, storage_options=place.storage_options)
    assert rows(table, "SELECT id, new FROM t ORDER BY id") == [(0, None), (won + 1, values[won])]
    assert table.verify().ok
