"""Spark results do not depend on earlier queries of the same frame, view or stream."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import icedb.spark
from icedb import Table
from icedb.spark.datasource import pushdown_warning
from tests.support.processes import run_python
from tests.support.spark.spark_answers import plan_of
from tests.support.spark.spark_clusters import connect_server, environment
from tests.support.spark.spark_plans import ROWS, check_sequence, create

SEEDS_OF_A_DAY = 12

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:spark.sql.python.filterPushdown")]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Return a table for reads only."""
    return create(tmp_path_factory.mktemp("plans"))


@pytest.fixture(params=["false", "true"])
def setting(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Set whether Spark offers filters to Python data sources."""
    spark.conf.set(pushdown_warning.SETTING, request.param)
    yield request.param
    spark.conf.unset(pushdown_warning.SETTING)


def keys(frame: DataFrame) -> list[int]:
    return sorted(r.k for r in frame.select("k").collect())


@pytest.mark.sampled(days=3)
@pytest.mark.usefixtures("pushdown")
def test_a_filter_of_one_query_stays_with_that_query(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    source = spark.read.format("icedb").load(table.uri)
    assert keys(source.where("k < 2")) == [0, 1]
    assert source.count() == ROWS
    assert keys(source.where("k < 2").union(source.where("k > 5"))) == [0, 1, 6, 7, 8]
    source.createOrReplaceTempView("v")
    assert spark.sql("SELECT * FROM v WHERE k = (SELECT max(k) FROM v WHERE half = 0)").count() == 1
    source.where("k = 1").explain()
    copy = Table.create(tmp_path / "copy")
    icedb.spark.write(source, copy.uri)
    assert copy.snapshot().rows == ROWS


@pytest.mark.sampled(days=3)
@pytest.mark.usefixtures("pushdown")
def test_spark_evaluates_every_filter(spark: SparkSession, table: Table) -> None:
    plan = plan_of(spark.read.format("icedb").load(table.uri).where("k < 2")).rpartition("== Physical Plan ==")[2]
    assert "Filter (" in plan


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("engine", ["python", "native"])
def test_results_equal_a_fresh_frame(
    spark: SparkSession, table: Table, setting: str, engine: Any, tmp_path: Path
) -> None:
    check_sequence(spark, table, engine, 3, tmp_path)


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize("engine", ["python", "native"])
def test_sequences_of_the_day(
    spark: SparkSession, table: Table, setting: str, engine: Any, tmp_path: Path, day: date
) -> None:
    first = day.toordinal() * SEEDS_OF_A_DAY
    for seed in range(first, first + SEEDS_OF_A_DAY):
        check_sequence(spark, table, engine, seed, tmp_path)


@pytest.mark.slow(seconds=90)
def test_sequences_of_plans_over_spark_connect(spark_home: Path, tmp_path: Path) -> None:
    env = environment(spark_home)
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server", env) as address:
        words = ("tests.support.spark.spark_plans", address, tmp_path / "tables", 4)
        run_python("-m", *words, env=env, cwd=Path(__file__).parents[2])


def _streamed(frame: DataFrame, folder: Path) -> list[int]:
    query = (
        frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    return keys(frame.sparkSession.read.parquet(str(folder / "out")))


@pytest.mark.sampled(days=3)
@pytest.mark.usefixtures("pushdown")
def test_streams_of_one_frame_read_their_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = create(tmp_path)
    stream = spark.readStream.format("icedb").option("columns", "k,word").load(table.uri)
    assert _streamed(stream.where("k < 2"), tmp_path / "first") == [0, 1]
    # Spark reuses the reader that it sent to the tasks of the first query: nothing in it may be of that query.
    table.alter(partition_by=["k % 3 AS third"])
    table.insert(pa.table({"k": [9, 10], "word": ["x", "y"]}))
    assert _streamed(stream, tmp_path / "second") == list(range(ROWS + 2))
    assert _streamed(stream.where("k < 2 OR k > 8"), tmp_path / "first") == [0, 1, 9, 10]


@pytest.mark.sampled(days=3)
def test_each_insert_through_one_view_writes_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t")
    table.insert(pa.table({"k": [1]}))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW target USING icedb OPTIONS (path '{table.uri}')")
    for k in (20, 21):
        spark.sql(f"INSERT INTO target SELECT CAST({k} AS BIGINT) AS k")
    assert table.query("SELECT k FROM t ORDER BY k").fetchall() == [(1,), (20,), (21,)]


def test_a_join_broadcasts_a_marked_frame(spark: SparkSession, table: Table) -> None:
    from pyspark.sql.functions import broadcast

    source = spark.read.format("icedb").load(table.uri)
    assert "BroadcastHashJoin" not in plan_of(source.join(source.select("k"), "k"))
    assert "BroadcastHashJoin" in plan_of(source.join(broadcast(source.select("k")), "k"))


def test_the_setting_raises_one_warning(spark: SparkSession, table: Table, pushdown: None) -> None:
    pushdown_warning._warn.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"filterPushdown.enabled is true.*Unset it"):
        icedb.spark.read(spark, table.uri)
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        icedb.spark.read(spark, table.uri)
    assert not [w for w in again if "filterPushdown" in str(w.message)]
    spark.conf.unset(pushdown_warning.SETTING)
    pushdown_warning._warn.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        icedb.spark.read(spark, table.uri)
