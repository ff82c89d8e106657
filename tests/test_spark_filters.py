"""Filters that Spark hands to the data source: fewer partitions, fewer parts, fewer rows, and never another answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pyspark = pytest.importorskip("pyspark")

# ruff: noqa: E402 - without the extra there is nothing to import
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import icedb
from icedb import spark as icedb_spark
from icedb.format.records import Marker
from icedb.statistics import may_hold
from tests.spark_answers import plan_of, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> icedb.Table:
    """A table with values on which engines disagree easily."""
    table = icedb.Table.create(
        tmp_path_factory.mktemp("filters") / "t", partition_by=["n % 4 AS quarter"], sort_by=["n", "word"]
    )
    table.insert(
        rows_of(
            """
        SELECT i AS n, (['a', 'A', 'žluť', 'ab', '', 'it''s', NULL, 'a%b_'])[i % 8 + 1] AS word, i % 3 = 0 AS flag,
            (['nan', '-0.0', '0.0', '1.5', '-inf', NULL])[i % 6 + 1]::DOUBLE AS f, (i % 7)::UTINYINT AS u,
            (18446744073709551610 + i % 5)::UBIGINT AS big, (i / 4)::DECIMAL(10, 2) AS price,
            DATE '2024-01-01' + (i % 9)::INTEGER AS day,
            TIMESTAMP '2024-01-01 12:00:00' + to_hours((i % 9)::INTEGER) AS wall,
            TIMESTAMPTZ '2024-01-01 12:00:00+00' + to_hours((i % 9)::INTEGER) AS moment, 'x'::BLOB AS raw,
            CASE WHEN i % 2 = 0 THEN {'a': i} END AS st, TIME '10:00:00' + to_minutes((i % 3)::INTEGER) AS clock
        FROM range(48) r(i)"""
        )
    )
    table.insert(rows_of("SELECT i AS n, NULL::VARCHAR AS word FROM range(100, 108) r(i)"))
    return table


FILTERS = [
    ("n = 7", True),
    ("n <> 7 AND n < 9", True),
    ("n IN (1, 2, 400)", True),
    ("n NOT IN (1, 2, 400)", True),
    ("n >= 100", True),
    ("n <= 3", True),
    ("n <=> 5", True),
    ("quarter = 2", True),
    ("NOT (quarter <=> 2) AND quarter > 0", True),
    ("word = 'a'", True),
    ("word <> 'a'", True),
    ("word > 'a'", True),
    ("word <=> NULL", True),
    ("word IS NULL", True),
    ("word LIKE 'a%'", True),
    ("word LIKE '%b_'", False),  # a pattern, not a text
    ("contains(word, '%')", True),
    ("word LIKE '%b'", True),
    ("NOT startswith(word, 'a')", True),
    ("word IN ('', 'it''s', 'žluť')", True),
    ("flag", True),
    ("NOT flag", True),
    ("f = 1.5D", True),
    ("f = 0.0D", False),
    ("f > 1.0D", False),
    ("f < 1.0D", True),
    ("f <> 1.5D", False),
    ("f = double('NaN')", False),
    ("f IS NOT NULL", True),
    ("u > 3", True),
    ("u = 5", True),
    ("big >= 18446744073709551612", True),
    ("price = 1.25", True),
    ("price < 2.5", True),
    ("day > DATE'2024-01-04'", True),
    ("wall = TIMESTAMP_NTZ'2024-01-01 14:00:00'", True),
    ("moment >= TIMESTAMP'2024-01-01 15:00:00'", True),
    ("raw = X'78'", False),
    ("st IS NULL", True),
    ("st.a > 3", False),
    ("clock = '10:01:00'", True),
]


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_filters_that_are_pushed_down_choose_the_rows_that_spark_chooses(
    spark: SparkSession, filtered: icedb.Table, zone: str
) -> None:
    filters = [(sql, pushed) for sql, pushed in FILTERS if zone == "UTC" or "TIMESTAMP" in sql]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        source = icedb_spark.read(spark, filtered.uri, engine="python")
        rows = spark.createDataFrame(source.collect(), source.schema)
        kept = rows.selectExpr("n", *(f"{sql} AS f{number}" for number, (sql, _) in enumerate(filters))).collect()
        for number, (sql, pushed) in enumerate(filters):
            frame = source.where(sql).select("n")  # one frame: what is looked at is what is run, planned once
            left = plan_of(frame).rpartition("== Physical Plan ==")[2]
            assert ("Filter" not in left.replace("RuntimeFilters", "")) == pushed, (sql, left)
            chosen = sorted(r.n for r in kept if r[f"f{number}"])
            assert sorted(r.n for r in frame.collect()) == chosen, sql
            assert chosen, sql
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.usefixtures("pushdown")
def test_no_part_is_opened_that_a_filter_excludes_by_its_path_or_its_statistics(
    spark: SparkSession, local: Any
) -> None:
    table = icedb.Table.create(local.uri, partition_by=["n % 2 AS half"], sort_by=["n", "word"])
    for start in (0, 10, 20):
        table.insert(pa.table({"n": range(start, start + 10), "word": [f"w{start}"] * 10}))
    source = spark.read.format("icedb").load(table.uri)
    for part in table.snapshot().parts:
        kept = part.partition == "half=0" and pq.read_table(part.path)["n"][0].as_py() >= 20
        if not kept:
            Path(part.path).unlink()
    for sql in (
        "n >= 20",
        "n > 19 AND n < 40",
        "n IN (20, 500)",
        "n = 24",
        "word LIKE 'w2%'",
        "word > 'w10' AND n <> 0",
    ):
        found = source.where(f"half = 0 AND {sql}").collect()
        assert found, sql
        assert {r.n for r in found} <= {20, 22, 24, 26, 28}
    assert source.where("half = 0 AND n > 1000").collect() == []
    with pytest.raises(PySparkException, match="MissingPart"):
        source.where("n < 15").collect()


def _marker(key: str, stats: Any, rows: int | None = 10) -> Marker:
    raw = msgspec.UNSET if stats is None else msgspec.Raw(msgspec.json.encode(stats))
    return Marker(key, bytes=1, created_ms=0, rows=rows, stats=raw)


def test_statistics_leave_out_a_part_only_if_it_surely_has_no_such_row() -> None:
    markers = [
        _marker("low", {"n": [1, 5, 0]}),
        _marker("high", {"n": [10, 20, 3]}),
        _marker("nulls", {"n": [None, None, 10]}),
        _marker("uncounted", {"n": [None, None, 10]}, rows=None),
        _marker("silent", None),
        _marker("other", {"m": [1, 2, 0]}),
        _marker("strange", {"n": ["a", "b", 0]}),
        _marker("broken", {"n": 5}),
    ]

    def kept(condition: str) -> set[str]:
        return {m.key for m in may_hold(markers, "n", "BIGINT", condition)}

    always = {"uncounted", "silent", "other", "strange", "broken"}
    assert kept("hi > 7") == always | {"high"}
    assert kept("lo < 7") == always | {"low"}
    assert kept("nulls > 0") == always | {"high", "nulls"}
    assert kept("lo IS NOT NULL OR nulls < rows") == always | {"low", "high"}
    assert kept("hi > 1000") == always
    assert may_hold([], "n", "BIGINT", "lo < 7") == []
