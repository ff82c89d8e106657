"""Reads with Spark's own Parquet scan and with the data source, compared with DuckDB's read of the same snapshot.

The executors are processes of their own (see conftest); the S3 server is a real one, which they read over HTTP.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

import icedb
from icedb import spark as icedb_spark
from icedb.errors import (
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    MissingPart,
    SnapshotExpired,
    TableNotFound,
    UnknownColumn,
)
from icedb.reader.snapshot import Snapshot
from icedb.spark.datasource.part_scan import group_parts
from icedb.spark.datasource.reader import open_reader, planned_schema
from icedb.spark.datasource.type_mapping import spark_schema, type_mapping_of
from icedb.sql.connections import MIB
from icedb.storage.parts import Part
from tests.promises.test_column_times_readers import dropped, evolved
from tests.support.spark.spark_answers import plan_of, rows_of
from tests.support.spark.spark_tables import Create

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]

ENGINES = ("native", "python")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    """Return the engine that reads the parts."""
    return request.param


def is_native(frame: DataFrame) -> bool:
    return "FileScan parquet" in plan_of(frame)


def check_same(frame: DataFrame, snapshot: Snapshot, *, by: str = "n", **options: Any) -> None:
    """Check that the frame has the columns, types, rows and partition values of DuckDB's read."""
    expected = snapshot.to_arrow(**options)
    columns = {n: t for n, t in {**snapshot.schema, **snapshot.partition_schema}.items() if n in expected.schema.names}
    assert frame.columns == expected.schema.names
    assert frame.schema == spark_schema({n: columns[n] for n in frame.columns})
    rows_read = frame.toArrow()
    assert rows_read.sort_by(by).to_pylist() == expected.cast(rows_read.schema).sort_by(by).to_pylist()


# ------------------------------------------------------------------------------------------ the same rows


READABLE = """
    SELECT i AS n, i % 2 = 0 AS flag, i::TINYINT AS tiny, i::UTINYINT AS ubyte, i::USMALLINT AS ushort,
        (4294967295 - i)::UINTEGER AS uint, (18446744073709551615 - i)::UBIGINT AS ubig, (i / 3)::FLOAT AS single,
        'žluť ' || i AS word, '\\xFF\\x00'::BLOB AS raw, DATE '1000-01-01' + i::INTEGER AS day,
        TIMESTAMP '1000-01-01 00:00:00.000001' AS wall, TIMESTAMPTZ '2024-03-31 01:30:00.123456+00' AS moment,
        (i / 7)::DECIMAL(20, 4) AS price,
        {'a b': [i, NULL], 'm': MAP {'k': {'x': i::UTINYINT}}} AS deep, ('{"i":' || i || '}')::JSON AS doc,
        (['a', 'b'])[i % 2 + 1]::ENUM('a', 'b') AS choice, CASE WHEN i > 2 THEN [[i], []] END AS lists
    FROM range(6) r(i)
"""


@pytest.mark.sampled(days=3)
def test_types_of_spark_are_read_unchanged(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(rows_of(READABLE), partition_by=["n % 3 AS third", "strftime(day, '%Y') AS y"], sort_by=["n"])
    frame = icedb_spark.read(spark, table.uri, engine=engine)
    assert is_native(frame) == (engine == "native")
    assert is_native(icedb_spark.read(spark, table.uri))  # the default
    check_same(frame, table.snapshot())
    moments = frame.where("n = 0").selectExpr("CAST(moment AS STRING)", "CAST(wall AS STRING)").first()
    assert tuple(moments or ()) == ("2024-03-31 01:30:00.123456", "1000-01-01 00:00:00.000001")


@pytest.mark.sampled(days=3)
def test_types_that_spark_lacks_are_read_as_text(spark: SparkSession, create: Create) -> None:
    table = create()
    table.insert(
        rows_of(
            """SELECT 1 AS n, '11111111-2222-3333-4444-555555555555'::UUID AS id, TIME '10:11:12.5' AS clock,
            TIMESTAMP_NS '2024-01-01 00:00:00.123456789' AS nano,
            {'ids': ['11111111-2222-3333-4444-555555555555'::UUID], 'at': MAP {1: TIME '01:00:00'}} AS deep"""
        )
    )
    frame = icedb_spark.read(spark, table.uri)
    assert frame.schema.simpleString() == (
        "struct<n:int,id:string,clock:string,nano:string,deep:struct<ids:array<string>,at:map<int,string>>>"
    )
    rows_read = frame.first()
    assert rows_read is not None
    uuid = "11111111-2222-3333-4444-555555555555"
    assert rows_read.asDict(recursive=True) == {
        "n": 1,
        "id": uuid,
        "clock": "10:11:12.5",
        "nano": "2024-01-01 00:00:00.123456789",
        "deep": {"ids": [uuid], "at": {1: "01:00:00"}},
    }
    with pytest.raises(InvalidOption, match=r"Spark's own scan cannot read this: column 'id' is UUID"):
        icedb_spark.read(spark, table.uri, engine="native")
    # Only the selected columns must be readable.
    assert is_native(icedb_spark.read(spark, table.uri, columns=["n"], engine="native"))


@pytest.mark.sampled(cases=1, days=3)
def test_the_session_timezone_changes_no_instant(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(partition_by=["date_trunc('hour', moment) AS hour", "wall AS at"])
    table.insert(
        rows_of("SELECT 1 AS n, TIMESTAMPTZ '2024-07-01 03:30:00+00' moment, TIMESTAMP '2024-07-01 03:30' wall")
    )
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = icedb_spark.read(spark, table.uri, engine=engine)
        texts = frame.selectExpr(*(f"CAST({c} AS STRING)" for c in ("moment", "hour", "wall", "at"))).first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert tuple(texts or ()) == (
        "2024-06-30 23:30:00",
        "2024-06-30 23:00:00",
        "2024-07-01 03:30:00",
        "2024-07-01 03:30:00",
    )


NESTED = """
    n INT, price DECIMAL(38, 18), moment TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, raw BINARY, single FLOAT,
    text STRING, list ARRAY<ARRAY<DECIMAL(10, 2)>>, counts MAP<STRING, ARRAY<TIMESTAMP>>,
    point STRUCT<x: BIGINT, `the tags`: ARRAY<STRUCT<raw: BINARY, at: TIMESTAMP_NTZ>>, m: MAP<DATE, STRUCT<q: BOOLEAN>>>
"""


def _random_row(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)

    def maybe(make: Callable[[], Any]) -> Any:
        return None if chance.random() < 0.25 else make()

    def some(make: Callable[[], Any]) -> list[Any]:
        return [maybe(make) for _ in range(chance.randrange(4))]

    def wall() -> datetime:
        return datetime(1583, 1, 1) + timedelta(days=chance.randrange(10**5), microseconds=chance.randrange(10**10))

    def moment() -> datetime:
        return wall().replace(tzinfo=UTC)

    def raw() -> bytes:
        return chance.randbytes(chance.randrange(5))

    def cents() -> Decimal:
        return Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-2)

    return {
        "n": seed,
        "price": maybe(lambda: Decimal(chance.randrange(-(10**37), 10**37)).scaleb(-18)),
        "moment": maybe(moment),
        "wall": maybe(wall),
        "day": maybe(lambda: wall().date()),
        "raw": maybe(raw),
        "single": maybe(lambda: float(chance.randrange(1000)) / 8),
        "text": maybe(lambda: chance.choice(["", "žluť", "🐎\0\n"])),
        "list": maybe(lambda: some(lambda: some(cents))),
        "counts": maybe(lambda: {k: maybe(lambda: some(moment)) for k in "ab"[: chance.randrange(3)]}),
        "point": maybe(
            lambda: {
                "x": maybe(lambda: chance.randrange(-(2**63), 2**63)),
                "the tags": maybe(lambda: some(lambda: {"raw": maybe(raw), "at": maybe(wall)})),
                "m": maybe(
                    lambda: {date(2024, 1, d + 1): maybe(lambda: {"q": True}) for d in range(chance.randrange(3))}
                ),
            }
        ),
    }


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("large", ["false", "true"])
def test_nested_values_of_every_type_are_read_back(spark: SparkSession, create: Create, large: str) -> None:
    table = create(sort_by=["n"])
    frame = spark.createDataFrame([_random_row(seed) for seed in range(200)], NESTED)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        frame.write.format("icedb").mode("append").save(table.uri)
        for engine in ENGINES:
            again = icedb_spark.read(spark, table.uri, engine=engine)  # type: ignore[arg-type]
            assert again.schema == frame.schema
            assert again.orderBy("n").toArrow().to_pylist() == frame.orderBy("n").toArrow().to_pylist()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("type_", ["TIME", "INTERVAL DAY TO SECOND", "INTERVAL YEAR TO MONTH", "ARRAY<TIME(3)>"])
def test_a_time_or_an_interval_is_rejected_before_the_write(spark: SparkSession, create: Create, type_: str) -> None:
    table = create()
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        with pytest.raises(PySparkException, match=r"UnsupportedType.*column 'bad' is .*Cast it"):
            spark.createDataFrame([], f"n INT, bad {type_}").write.format("icedb").mode("append").save(table.uri)
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    assert table.schema() == {}


# ------------------------------------------------------------------------------------------ partitions


def _by_value(create: Create, columns: dict[str, list[str | None]]) -> icedb.Table:
    """Return a table with a row and a part for each value. `columns`: partition expressions over `v0`, `v1`, ..."""
    table = create(partition_by=[f"{expression} AS p{i}" for i, expression in enumerate(columns)])
    longest = max(map(len, columns.values()))
    texts = {f"v{i}": v + [None] * (longest - len(v)) for i, v in enumerate(columns.values())}
    table.insert(pa.table({"n": range(longest), **{c: pa.array(v, pa.string()) for c, v in texts.items()}}))
    return table


TEXTS: list[str | None] = [
    "Zürich", "日本/東京", "a=b&c", "..", "100%", "%41", 'it\'s "x"', " ", "1e5", "2026-01-01", "007", "true", "NULL",
    "\x01", None,
]  # fmt: skip
DAYS: list[str | None] = ["0001-01-01", "2024-02-29", "9999-12-31"]
# More than the longest key allows, so in two tables.
VALUES: list[dict[str, list[str | None]]] = [
    {
        "v0 || ''": TEXTS,
        "v1::BIGINT": ["-9223372036854775808", "0", "9223372036854775807"],
        "v2::TINYINT": ["-128", "127"],
        "v3::BOOLEAN": ["true", "false"],
        "v4::DATE": DAYS,
        "v5::UUID": ["11111111-2222-3333-4444-55555555555a"],
    },
    {
        "v0::TIMESTAMP": ["0001-01-01", "2024-02-29 23:59:59.999999"],
        "v1::TIMESTAMPTZ": ["1900-01-01 00:00:01+00", "2024-02-29 12:00:00.5+05"],
        "v2::DECIMAL(10,2)": ["-12345.60", "0.05", "7"],
        "v3::JSON": ['{"a": 1}'],
        "v4::UBIGINT": ["0", "18446744073709551615"],
    },
]


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize("columns", VALUES, ids=["first", "second"])
def test_partition_values_equal_those_of_duckdb(
    spark: SparkSession, create: Create, engine: Any, columns: dict[str, list[str | None]]
) -> None:
    table = _by_value(create, columns)
    check_same(icedb_spark.read(spark, table.uri, engine=engine), table.snapshot())


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize(
    ("expression", "values", "why"),
    [
        ("v0 || ''", ["", "a"], "would parse other values in the path 'p0='"),
        ("v0 || ''", ["\x85"], "would parse other values in the path 'p0=%C2%85'"),
        ("v0::DOUBLE", ["1e20", "nan", "-inf", "0.5"], "partition column 'p0' is DOUBLE"),
        ("v0::DATE", ["0044-01-01 (BC)", "2024-01-01"], "would parse other values in the path"),
    ],
)
def test_values_that_spark_misparses_are_read_by_duckdb(
    spark: SparkSession, create: Create, expression: str, values: list[str | None], why: str
) -> None:
    table = _by_value(create, {expression: values})
    with pytest.raises(InvalidOption, match=why):
        icedb_spark.read(spark, table.uri, engine="native")
    frame = icedb_spark.read(spark, table.uri)
    assert not is_native(frame)
    assert is_native(icedb_spark.read(spark, table.uri, columns=["v0", "n"]))  # needs no values from paths
    # As text, because Python has no date before Christ.
    rows_read = {r.n: r.p for r in frame.selectExpr("n", "CAST(p0 AS STRING) AS p").collect()}
    spelled = {"1e20": "1.0E20", "nan": "NaN", "-inf": "-Infinity", "0044-01-01 (BC)": "-0043-01-01"}
    assert rows_read == {n: spelled.get(str(v), v) for n, v in enumerate(values)}


@pytest.mark.sampled(cases=1, days=3)
def test_partition_columns_and_folders_may_have_any_names(spark: SparkSession, tmp_path: Path, engine: Any) -> None:
    table = icedb.Table.create(
        tmp_path / "a b=c%20" / "d#1,2" / "t", partition_by=['n % 2 AS "the half / %"', 'n AS "É"']
    )
    table.insert(pa.table({"n": [1, 2, 3], "x y`z": ["a", "b", None]}))
    check_same(icedb_spark.read(spark, table.uri, engine=engine), table.snapshot())


@pytest.mark.sampled(days=3)
def test_a_folder_that_spark_treats_as_a_pattern_is_read_by_duckdb(spark: SparkSession, tmp_path: Path) -> None:
    table = icedb.Table.create(tmp_path / "{a,b}")
    table.insert(pa.table({"n": [1]}))
    frame = icedb_spark.read(spark, table.uri)
    assert not is_native(frame)
    check_same(frame, table.snapshot())


@pytest.mark.sampled(cases=1, days=3)
def test_a_data_column_hides_an_equal_partition_column(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(pa.table({"n": [1, 2, 3], "place": ["A", "B", ""]}), partition_by=["lower(place) AS place"])
    frame = icedb_spark.read(spark, table.uri, engine=engine)
    check_same(frame, table.snapshot())
    assert [r.place for r in frame.orderBy("n").collect()] == ["A", "B", ""]


@pytest.mark.sampled(days=3)
def test_stored_partition_columns_are_read_by_duckdb(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["n % 2 AS half", "lower(place) AS place"])
    table.insert(pa.table({"n": [1, 2, 3], "place": ["A", "B", ""]}))
    with pytest.raises(InvalidOption, match="column 'place' is stored"):
        icedb_spark.read(spark, table.uri, engine="native")
    frame = icedb_spark.read(spark, table.uri)
    assert not is_native(frame)
    check_same(frame, table.snapshot())
    check_same(
        icedb_spark.read(spark, table.uri, columns=["n", "place"], engine="native"),
        table.snapshot(),
        columns=["n", "place"],
    )


def test_the_native_scan_rejects_files_that_spark_skips(spark: SparkSession, create: Create) -> None:
    table = create(pa.table({"n": [1]}))
    snapshot = table.snapshot()
    hidden = dataclasses.replace(snapshot.parts[0], key="_data/_hidden.parquet")  # a name of another program
    with pytest.raises(InvalidOption, match=r"skips files with names such as '_data/_hidden\.parquet'"):
        icedb_spark.frame(spark, dataclasses.replace(snapshot, parts=(hidden,)), engine="native")


@pytest.mark.sampled(cases=1, days=3)
def test_where_skips_partitions_before_parts_are_opened(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(pa.table({"n": list(range(9))}), partition_by=["n % 3 AS third"])
    snapshot = table.snapshot()
    frame = icedb_spark.frame(spark, snapshot, where="third = 1", engine=engine)
    for part in snapshot.parts:
        if part.partition != "third=1":
            Path(part.path).unlink()
    check_same(frame, snapshot, where="third = 1")
    with pytest.raises((PySparkException, MissingPart)):
        icedb_spark.frame(spark, snapshot, engine=engine).collect()


def test_parts_of_an_older_partitioning_are_filtered_by_rows(spark: SparkSession, create: Create) -> None:
    table = create(pa.table({"n": [1, 2, 3]}), partition_by=["n % 2 AS half"])
    table.alter(partition_by=["n % 3 AS third"])
    table.insert(pa.table({"n": [4, 5, 6]}))
    frame = icedb_spark.read(spark, table.uri)
    assert not is_native(frame)
    check_same(frame, table.snapshot())
    check_same(icedb_spark.read(spark, table.uri, where="third = 1"), table.snapshot(), where="third = 1")
    with pytest.raises(InvalidOption, match=r"parts of an older partitioning \('half=0'\)"):
        icedb_spark.read(spark, table.uri, engine="native")
    with pytest.raises(InvalidOption, match="older partitioning, whose paths do not say"):
        icedb_spark.read(spark, table.uri, where="third = 1", columns=["n"], engine="native")


# ------------------------------------------------------------------------------------------ snapshots


@pytest.mark.sampled(cases=1, days=3)
def test_a_frame_is_one_snapshot_despite_later_writes(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(pa.table({"n": [1, 2]}), partition_by=["n % 2 AS half"])
    first = table.snapshot()
    frame = icedb_spark.read(spark, table.uri, engine=engine)
    source = spark.read.format("icedb").load(table.uri)
    table.insert(pa.table({"n": [3], "label": ["new"]}))
    table.overwrite(pa.table({"n": [4], "label": ["newer"]}))
    then = datetime.fromtimestamp(first.as_of_ms / 1000, tz=UTC)
    for same in (frame, source, icedb_spark.frame(spark, first, engine=engine)):
        assert sorted(tuple(r) for r in same.select("n", "half").collect()) == [(1, 1), (2, 0)]
    for as_of in (first.as_of_ms, then):
        read = icedb_spark.read(spark, table.uri, as_of=as_of, engine=engine)
        check_same(read, table.snapshot(as_of))
    for text in (str(first.as_of_ms), then.isoformat()):
        assert spark.read.format("icedb").option("as_of", text).load(table.uri).count() == 2
    assert [tuple(r) for r in icedb_spark.read(spark, table.uri, engine=engine).collect()] == [(4, "newer", 0)]


@pytest.mark.sampled(days=3)
def test_a_dropped_column_is_hidden_and_rejected(spark: SparkSession, create: Create, engine: str) -> None:
    table = create(partition_by=["d"], sort_by=["a"])
    before_ms, last_ms = dropped(table)
    for at_ms, columns, values in ((before_ms, {"d", "a", "b", "c"}, [1]), (last_ms, {"d", "a", "c"}, [1, 2])):
        frame = icedb_spark.read(spark, table.uri, as_of=at_ms, engine=engine)
        assert (set(frame.columns), sorted(row.a for row in frame.collect())) == (columns, values)
    rejected = spark.createDataFrame([("x", 3, 3)], "d STRING, a BIGINT, b BIGINT")
    with pytest.raises(InvalidBatch, match="'b', which was dropped"):
        icedb_spark.write(rejected, table.uri)
    assert table.snapshot().rows == 2


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize("way", ["read", "frame", "data source"])
def test_a_read_has_the_columns_of_its_time(spark: SparkSession, create: Create, engine: Any, way: str) -> None:
    """Also after an alter with another partitioning and a declared column, and after a merge."""
    table = create(partition_by=["d"])
    first_ms, second_ms = evolved(table)
    for at_ms, columns, values in ((first_ms, {"d", "a"}, [1]), (second_ms, {"d", "a", "b"}, [1, 2])):
        if way == "read":
            frame = icedb_spark.read(spark, table.uri, as_of=at_ms, engine=engine)
        elif way == "frame":
            frame = icedb_spark.frame(spark, table.snapshot(at_ms), engine=engine)
        else:
            frame = spark.read.format("icedb").option("as_of", str(at_ms)).load(table.uri)
        assert (set(frame.columns), len(frame.columns)) == (columns, len(columns))
        assert sorted(row["a"] for row in frame.collect()) == values


@pytest.mark.sampled(cases=1, days=3)
def test_missing_columns_of_parts_are_null(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(pa.table({"n": [1]}), schema={"declared": "STRUCT(x INTEGER)[]"})
    table.insert(pa.table({"label": ["b"], "n": [2]}))
    table.insert(rows_of("SELECT 3 AS n, MAP {'a': 1} AS m").project("n::BIGINT AS n, m"))
    frame = icedb_spark.read(spark, table.uri, engine=engine)
    check_same(frame, table.snapshot())
    assert [r.n for r in frame.where("label IS NULL AND m IS NULL").collect()] == [1]


@pytest.mark.sampled(cases=1, days=3)
def test_no_rows_are_an_empty_frame_with_the_columns(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(partition_by=["n % 2 AS half"])
    assert icedb_spark.read(spark, table.uri, engine=engine).columns == []
    assert spark.read.format("icedb").load(table.uri).schema.simpleString() == "struct<>"
    table.insert(pa.table({"n": [1], "word": ["a"]}))
    none = icedb_spark.read(spark, table.uri, where="half = 7", engine=engine)
    assert none.schema.simpleString() == "struct<n:bigint,word:string,half:bigint>"
    assert none.collect() == []
    source = spark.read.format("icedb").option("where", "half = 7").load(table.uri)
    assert source.schema == none.schema
    assert source.collect() == []


@pytest.mark.sampled(cases=1)
def test_columns_are_selected_in_any_order(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(pa.table({"n": [1, 2], "a, b": ["x", "y"], "c": [True, None]}), partition_by=["n % 2 AS half"])
    chosen = ["half", "a, b", "n"]
    check_same(icedb_spark.read(spark, table.uri, columns=chosen, engine=engine), table.snapshot(), columns=chosen)
    assert spark.read.format("icedb").option("columns", "c, half").load(table.uri).columns == ["c", "half"]
    with pytest.raises(UnknownColumn, match=r"columns names 'x', and the table has no such column \(it has"):
        icedb_spark.read(spark, table.uri, columns=["x"], engine=engine)
    with pytest.raises(InvalidOption, match="distinct names"):
        icedb_spark.read(spark, table.uri, columns=["n", "n"], engine=engine)


def test_the_native_scan_prunes_columns_and_partitions(spark: SparkSession, create: Create) -> None:
    table = create(pa.table({"n": list(range(9)), "wide": ["x"] * 9}), partition_by=["n % 3 AS third"])
    frame = icedb_spark.read(spark, table.uri).where("n > 4 AND third = 1").select("n")
    plan = plan_of(frame)
    assert "ReadSchema: struct<n:bigint>" in plan
    assert "PushedFilters: [IsNotNull(n), GreaterThan(n,4)]" in plan
    assert "PartitionFilters: [isnotnull(third" in plan
    assert "Batched: true" in plan
    assert [r.n for r in frame.collect()] == [7]


def test_filters_on_a_stored_partition_column_skip_partitions(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["place", "day", "k", "n % 2 AS half"], sort_by=["n"])
    days = [date(2026, 11, 1), date(2026, 11, 2), None, date(2026, 11, 1)]
    table.insert(pa.table({"n": range(4), "place": ["A", "B", None, "a b"], "day": days, "k": [1, -2, None, 3]}))
    table.insert([{"n": 4, "place": "A", "day": days[0], "k": 1}])
    table.merge()
    filters = ("place = 'A'", "day = date'2026-11-01' AND k > 0", "place IS NULL", "half = 0 AND place <> 'B'")
    frame = icedb_spark.read(spark, table.uri)
    check_same(frame, table.snapshot())
    for condition in filters:
        plan = plan_of(frame.where(condition))
        assert "FileScan parquet" in plan
        assert "PartitionFilters: []" not in plan
        check_same(frame.where(condition), table.snapshot(), where=condition.replace("date'", "DATE '"))

    # A row of another partition than its values say: the paths do not have its values.
    table.insert([{"n": 9, "place": "A", "_partition": "place=B/day=2026-11-09/k=7/half=0"}])
    columns = ["n", "place", "k"]
    stored = icedb_spark.read(spark, table.uri, columns=columns)
    assert "PartitionFilters: []" in plan_of(stored.where("place = 'A'"))
    for condition in ("place = 'A'", "place = 'B'", "k IS NULL"):
        check_same(stored.where(condition), table.snapshot(), columns=columns, where=condition)
    everything = icedb_spark.read(spark, table.uri)
    assert not is_native(everything)
    check_same(everything, table.snapshot())


@pytest.mark.sampled(days=3)
def test_parts_are_listed_without_a_spark_job(spark: SparkSession, create: Create) -> None:
    setting = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(setting)
    table = create(pa.table({"n": range(int(before or 0) + 8)}), partition_by=["n AS p"])
    spark.sparkContext.setJobGroup("finding", "")
    frame = icedb_spark.read(spark, table.uri, engine="native")
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup("finding")
    assert frame.count() == table.snapshot().rows
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("finding")
    assert spark.conf.get(setting) == before


@pytest.mark.sampled(days=3)
def test_small_parts_share_a_task_and_large_ones_have_their_own(spark: SparkSession, create: Create) -> None:
    table = create()
    for n in range(4):
        table.insert(pa.table({"n": [n]}))
    source = spark.read.format("icedb")
    usual, many = source.load(table.uri), source.option("split_bytes", "1").load(table.uri)
    assert usual.rdd.getNumPartitions() == min(4, os.cpu_count() or 1)
    assert many.rdd.getNumPartitions() == 4
    assert sorted(r.n for r in usual.collect()) == sorted(r.n for r in many.collect()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sizes", "processors", "tasks"),
    [
        ([], 4, 0),
        ([1], 4, 1),
        ([1] * 4, 2, 2),
        ([1] * 4, 100, 4),
        ([1] * 600, 2, 20),  # 31 parts weigh 124 MiB and a little more
        ([40 * MIB] * 5, 2, 3),
        ([500 * MIB, 1, 1, 500 * MIB], 2, 3),
        ([1] * 10_000, 1, 323),
    ],
)
def test_parts_are_divided_among_tasks_by_bytes_and_number(sizes: list[int], processors: int, tasks: int) -> None:
    parts = [Part(f"k{n}", f"/t/k{n}", "", size, 1, 0) for n, size in enumerate(sizes)]
    groups = list(group_parts(parts, split_bytes=128 * MIB, processors=processors))
    assert [part for group in groups for part in group] == parts
    assert len(groups) == tasks
    assert [len(g) for g in group_parts(parts, split_bytes=1, processors=processors)] == [1] * len(parts)


def test_a_large_part_is_read_in_bounded_batches(create: Create) -> None:
    table = create(rows_of("SELECT i AS n, repeat('x', 10000) || i AS word FROM range(4000) r(i)"), sort_by=["n"])
    table.insert(rows_of("SELECT i AS n FROM range(4000, 204000) r(i)"))
    options = {"path": table.uri}
    schema, of_time = planned_schema(options)
    reader = open_reader(schema, {**options, **of_time})
    in_task = pickle.loads(pickle.dumps(reader))
    batches = [batch for task in reader.partitions() for batch in in_task.read(task)]
    assert all(b.schema.equals(to_arrow_schema(schema, timezone="UTC")) for b in batches)
    assert max(b.num_rows for b in batches) <= 64 * 1024 + 2048
    assert max(b.nbytes for b in batches) < 40_000_000 // 1.1  # one part has more than that
    assert sorted(n for b in batches for n in b["n"].to_pylist()) == list(range(204_000))


# ------------------------------------------------------------------------------------------ S3


@pytest.mark.s3
def test_executors_read_from_s3_without_hadoop_and_no_text_has_the_secret(spark: SparkSession, s3: Any) -> None:
    table = icedb.Table.create(
        s3.uri, storage_options=s3.storage_options, partition_by=["p || '' AS place"], sort_by=["n"]
    )
    table.insert(rows_of("SELECT i AS n, (['Zürich', 'a=b&c', '', ' %', NULL])[i % 5 + 1] AS p FROM range(500) r(i)"))
    table.insert(rows_of("SELECT 1000 AS n, 'late' AS p, MAP {'k': [now()]} AS m").project("n::BIGINT n, p, m"))
    frame = icedb_spark.read(spark, s3.uri, storage_options=s3.storage_options)
    check_same(frame, table.snapshot())
    assert [r.n for r in frame.where("n >= 1000 AND place = 'late'").collect()] == [1000]
    secret = s3.storage_options["AWS_SECRET_ACCESS_KEY"]
    assert secret not in plan_of(frame.where("n > 1"))
    options = {"path": s3.uri, **s3.storage_options}
    schema, of_time = planned_schema(options)
    reader = open_reader(schema, {**options, **of_time})
    assert repr(reader) == f"_Reader('{s3.uri}', as_of_ms={of_time['as_of']})"
    assert secret not in f"{reader!r} {vars(reader)!r} {reader.partitions()!r}"
    with pytest.raises(InvalidOption, match=r"needs hadoop-aws to read from S3.*engine='python'"):
        icedb_spark.read(spark, s3.uri, storage_options=s3.storage_options, engine="native", columns=["n"])


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_denied_access_is_reported_without_the_secret(spark: SparkSession, s3: Any, s3_server: Any) -> None:
    table = icedb.Table.create(s3.uri, storage_options=s3.storage_options)
    table.insert(pa.table({"n": [1]}))
    frame = icedb_spark.read(spark, s3.uri, storage_options=s3.storage_options)
    bucket, _, key = table.snapshot().parts[0].path.removeprefix("s3://").partition("/")
    s3_server.client().delete_object(Bucket=bucket, Key=key)
    with pytest.raises(PySparkException, match=r"MissingPart.*cannot be read.*restore it") as lost:
        frame.collect()
    wrong = "sEcReT-that-must-not-be-shown"
    source = spark.read.format("icedb").options(**s3.storage_options).option("AWS_SECRET_ACCESS_KEY", wrong)
    with pytest.raises(PySparkException, match="AccessDenied") as denied:
        source.load(s3.uri)
    for error in (lost, denied):
        assert wrong not in str(error.value)
        assert s3.storage_options["AWS_SECRET_ACCESS_KEY"] not in str(error.value)


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.sampled(days=3)
def test_a_missing_part_is_an_error_in_every_session(spark: SparkSession, create: Create, engine: Any) -> None:
    table = create(pa.table({"n": [1, 2]}))
    snapshot = table.snapshot()
    frame = icedb_spark.frame(spark, snapshot, engine=engine)
    table.overwrite(pa.table({"n": [3]}))
    Path(snapshot.parts[0].path).unlink()  # as cleanup does after the grace period
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        # Errors of Spark's own scan are not PySparkExceptions and have Spark's text.
        with pytest.raises(Exception, match="SnapshotExpired" if engine == "python" else "File does not exist"):
            frame.collect()
        with pytest.raises((SnapshotExpired, PySparkException), match=r"was cleaned up\. Take a new snapshot"):
            icedb_spark.frame(spark, snapshot, engine=engine).collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_invalid_addresses_and_predicates_are_rejected(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        icedb_spark.read(spark, tmp_path / "nothing")
    with pytest.raises(PySparkException, match="TableNotFound"):
        spark.read.format("icedb").load(str(tmp_path / "nothing"))
    with pytest.raises(PySparkException, match=r"InvalidOption.*the option path is missing"):
        spark.read.format("icedb").load()
    table = create(pa.table({"n": [1]}), partition_by=["n % 2 AS half"])
    with pytest.raises(InvalidPartitionExpression, match="does not fit the partition columns"):
        icedb_spark.read(spark, table.uri, where="n = 1")
    with pytest.raises(InvalidOption, match="engine is 'java'"):
        icedb_spark.read(spark, table.uri, engine="java")  # type: ignore[arg-type]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overwrite": "table"}, r"InvalidOption.*unknown options \['overwrite'\]\. Known: path, since, where"),
        ({"as_of": "yesterday"}, r"InvalidOption.*as_of is 'yesterday'"),
        ({"as_of": "2026-01-01T00:00:00"}, r"InvalidOption.*as_of is .*with its zone"),
        ({"columns": "[1]"}, r"InvalidOption.*columns is '\[1\]'"),
        ({"columns": "n,,m"}, r"InvalidOption.*columns is 'n,,m'"),
        ({"columns": "m"}, r"UnknownColumn.*columns names 'm'"),
        ({"where": "n = 1"}, r"InvalidPartitionExpression.*does not fit the partition columns"),
        ({"where": "true) OR (SELECT 1) = (1"}, r"InvalidPartitionExpression"),
        ({"split_bytes": "0"}, r"InvalidOption.*split_bytes is '0'"),
        ({"memory_bytes": "1GB"}, r"InvalidOption.*memory_bytes is '1GB'"),
    ],
)
def test_unknown_options_are_rejected(
    spark: SparkSession, create: Create, options: dict[str, str], message: str
) -> None:
    table = create(pa.table({"n": [1]}), partition_by=["n % 2 AS half"])
    with pytest.raises(PySparkException, match=message):
        spark.read.format("icedb").options(**options).load(table.uri)


@pytest.mark.sampled(days=3)
def test_a_schema_of_the_caller_must_equal_the_table_s(spark: SparkSession, create: Create) -> None:
    table = create(pa.table({"n": [1], "word": ["a"]}))
    source = spark.read.format("icedb")
    now = str(table.snapshot().as_of_ms)
    pinned = source.schema("word STRING, n BIGINT").option("as_of", now).load(table.uri)
    table.insert(pa.table({"n": [2]}))
    assert [tuple(r) for r in pinned.collect()] == [("a", 1)]
    for options in ({}, {"since": now}):
        with pytest.raises(PySparkException, match=r"InvalidOption.*no fixed snapshot.*set the option '(as_of|until)'"):
            spark.read.format("icedb").schema("n BIGINT").options(**options).load(table.uri).collect()
    with pytest.raises(PySparkException, match=r"InvalidOption.*column 'n' is bigint.*this read has int\."):
        source.schema("n INT").load(table.uri).collect()
    with pytest.raises(PySparkException, match=r"UnknownColumn.*columns names 'm'"):
        source.schema("m INT").load(table.uri).collect()


def test_a_time_before_the_horizon_has_expired(spark: SparkSession, create: Create) -> None:
    table = create(pa.table({"n": [1]}))
    then_ms = table.snapshot().as_of_ms - 10_000
    table.overwrite(pa.table({"n": [2]}))
    table.cleanup(grace_ms=0, allow_short_grace=True)
    with pytest.raises(PySparkException, match=r"SnapshotExpired.*can no longer be read"):
        spark.read.format("icedb").option("as_of", str(then_ms)).load(table.uri)
    with pytest.raises(SnapshotExpired):
        icedb_spark.read(spark, table.uri, as_of=then_ms)


def test_a_table_in_memory_is_rejected_with_an_alternative(spark: SparkSession, memory: Any) -> None:
    table = icedb.Table.create(memory.uri)
    table.insert(pa.table({"n": [1]}))
    with pytest.raises(InvalidOption, match=r"spark\.createDataFrame\(snapshot\.to_arrow\(\)\)"):
        icedb_spark.frame(spark, table.snapshot())


def test_types_of_any_depth_have_a_spark_type() -> None:
    assert type_mapping_of("INTEGER[3]").cast == "INTEGER[]"
    assert type_mapping_of("MAP(UUID, UTINYINT[])").cast == "MAP(VARCHAR, SMALLINT[])"
    assert type_mapping_of('STRUCT("a ""b" TIME, e ENUM(\'x\'))').cast == 'STRUCT("a ""b" VARCHAR, "e" VARCHAR)'
    assert type_mapping_of("HUGEINT").spark.simpleString() == "string"
    assert type_mapping_of("DECIMAL(4,1)[][]").spark.simpleString() == "array<array<decimal(4,1)>>"
