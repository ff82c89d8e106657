"""`Table.insert` and `Table.overwrite` of Spark DataFrames, with tasks in other processes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")


import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icedb import Table
from icedb.errors import (
    EmptyBatch,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionValue,
    InvalidQuery,
    SchemaConflict,
    UnknownColumn,
)
from icedb.format.table_spec import Aggregating, Replacing
from tests.support.spark.spark_tables import Create, content, log_keys, part_keys

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


def numbers(spark: SparkSession, *values: int, tasks: int = 2) -> DataFrame:
    """Return a frame (n BIGINT) with these rows, in that many tasks."""
    return spark.createDataFrame([(v,) for v in values], "n long").repartition(tasks, "n")


@pytest.mark.sampled(cases=1, days=3)
def test_insert_and_overwrite_return_the_commit(spark: SparkSession, create_shared: Create) -> None:
    table = create_shared(partition_by=["n % 2 AS parity"], sort_by=["n"])
    first = table.insert(numbers(spark, *range(10), tasks=3))
    assert (first.rows, first.committed, first.repeated, first.table) == (10, True, False, table.uri)
    assert {first.key} == log_keys(table)
    assert {p.key for p in first.parts} == part_keys(table) == {p.key for p in table.snapshot().parts}
    assert {p.partition for p in first.parts} == {"parity=0", "parity=1"}
    assert first.bytes == sum(p.bytes for p in table.snapshot().parts)
    assert first.created_ms == first.parts[0].created_ms
    assert first.tombstoned == ()

    second = table.insert(numbers(spark, 10))
    assert (second.rows, len(second.parts), second.epoch) == (1, 1, None)
    assert content(table) == [(n,) for n in range(11)]

    third = table.overwrite(numbers(spark, 20, 21))
    assert third.rows == 2
    assert third.epoch is not None
    assert {p.key for p in third.tombstoned} == {p.key for p in (*first.parts, *second.parts)}
    assert content(table) == [(20,), (21,)]


@pytest.mark.sampled(days=6)
def test_the_table_sees_the_columns_of_a_job_immediately(spark: SparkSession, create: Create) -> None:
    table = create(numbers(spark, 1))
    assert table.schema() == {"n": "BIGINT"}
    assert table.insert([{"n": 2}]).epoch is None  # no exclusive commit, because the column exists
    table.insert(numbers(spark, 3).selectExpr("n", "'x' AS label"))
    assert content(table, "n, label") == [(1, None), (2, None), (3, "x")]


@pytest.mark.sampled(days=3)
def test_the_commit_is_identified_among_others(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 0}])
    uri = table.uri

    def write_and_merge(rows: Any) -> Any:
        for n in range(3):
            Table.open(uri).insert([{"n": 100 + n}])
        Table.open(uri).merge()
        yield from rows

    commit = table.insert(numbers(spark, 1, 2, tasks=1).mapInArrow(write_and_merge, "n long"))
    assert (commit.rows, len(commit.parts)) == (2, 1)
    assert [n for (n,) in content(table)] == [0, 1, 2, 100, 101, 102]


@pytest.mark.sampled(cases=1, days=3)
def test_a_transaction_is_committed_once_by_any_writer(spark: SparkSession, create_shared: Create) -> None:
    table = create_shared()
    frame = numbers(spark, 1, 2, 3)
    first = table.insert(frame, txn=("app", 5))
    assert (first.rows, first.repeated) == (3, False)
    again = Table.open(table.uri, storage_options=table.handle.location.storage_options).insert(frame, txn=("app", 5))
    assert (again.rows, again.repeated, again.key) == (0, True, None)
    assert table.insert([{"n": 9}], txn=("app", 4)).repeated
    assert table.insert(numbers(spark, 4), txn=("app", 6)).rows == 1
    assert content(table) == [(1,), (2,), (3,), (4,)]
    assert {a: n for a, (n, _) in table.handle.read(fresh=True).txn.items()} == {"app": 6}


@pytest.mark.sampled(days=3)
def test_a_transaction_that_another_writer_commits_meanwhile_is_repeated(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 0}])
    uri = table.uri

    def be_late(rows: Any) -> Any:
        Table.open(uri).insert([{"n": 7}], txn=("app", 1))
        yield from rows

    commit = table.insert(numbers(spark, 1, tasks=1).mapInArrow(be_late, "n long"), txn=("app", 1))
    assert (commit.repeated, commit.rows) == (True, 0)
    assert content(table) == [(0,), (7,)]


@pytest.mark.sampled(days=3)
def test_a_frame_without_rows_is_no_commit_and_no_overwrite(spark: SparkSession, create: Create) -> None:
    table = create()
    empty = numbers(spark, 1).where("n < 0")
    commit = table.insert(empty)
    assert (commit.committed, commit.rows, commit.parts) == (False, 0, ())
    assert not table.insert(empty, txn=("app", 1)).repeated
    table.insert(numbers(spark, 1))
    with pytest.raises(EmptyBatch):
        table.overwrite(empty)
    assert content(table) == [(1,)]


def test_unsupported_writes_are_rejected_before_the_job(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 0}], partition_by=["n AS p"])
    frame = numbers(spark, 1)
    before = part_keys(table), log_keys(table)
    for on_conflict in ("cast", "quarantine"):
        with pytest.raises(InvalidOption, match="toArrow"):
            table.insert(frame, on_conflict=on_conflict)
        with pytest.raises(InvalidOption, match="toArrow"):
            table.overwrite(frame, on_conflict=on_conflict)
    with pytest.raises(InvalidOption, match="txn"):
        table.insert(frame, txn=("app", -1))
    with pytest.raises(InvalidOption, match="memory_bytes"):
        table.insert(frame, memory_bytes=1000)
    assert (part_keys(table), log_keys(table)) == before


def test_a_table_in_memory_is_rejected(spark: SparkSession, memory: Any) -> None:
    with pytest.raises(InvalidOption, match="memory"):
        Table.create(memory.uri).insert(numbers(spark, 1))


def test_a_table_with_views_rejects_a_frame_but_not_its_arrow_rows(spark: SparkSession, create: Create) -> None:
    table = create()
    view = table.create_view("copy", "SELECT n FROM _rows")
    with pytest.raises(InvalidOption, match=r"views.*copy.*toArrow"):
        table.insert(numbers(spark, 1))
    with pytest.raises(PySparkException, match=r"InvalidOption.*views.*copy"):
        numbers(spark, 1).write.format("icedb").mode("append").option("path", table.uri).save()
    table.insert(numbers(spark, 1).toArrow())
    assert content(view) == content(table) == [(1,)]


@pytest.mark.sampled(days=3)
def test_options_of_the_table_reach_the_job(spark: SparkSession, local: Any) -> None:
    table = Table.create(local.uri, storage_options={"fsync": "false"}, sort_by=["n"])
    assert table.insert(numbers(spark, 1), memory_bytes=128 * 1024 * 1024).rows == 1


@pytest.mark.sampled(cases=1, days=3)
def test_each_task_runs_the_insert_query_over_its_rows(spark: SparkSession, create_shared: Create) -> None:
    query = "SELECT n % 10 AS bucket, count(*) AS rows, sum(n)::BIGINT AS total FROM _rows GROUP BY ALL"
    table = create_shared(insert_query=query, merging=Aggregating(by=("bucket",), sum=("rows", "total")))
    commit = table.insert(numbers(spark, *range(100), tasks=4))
    assert commit.rows > 10, "several tasks had rows of the same bucket"
    expected = [(b, 10, sum(range(b, 100, 10))) for b in range(10)]
    assert table.query("SELECT bucket, rows, total FROM final ORDER BY ALL").fetchall() == expected
    table.merge()
    assert content(table, "bucket, rows, total") == expected


@pytest.mark.sampled(days=3)
def test_a_task_without_rows_runs_no_query(spark: SparkSession, create: Create) -> None:
    table = create(insert_query="SELECT count(*) AS rows FROM _rows")
    assert table.insert(numbers(spark, 1, tasks=4)).rows == 1
    assert not table.insert(numbers(spark, 1, tasks=4).where("n < 0")).committed
    assert content(table, "rows") == [(1,)]


@pytest.mark.sampled(days=3)
def test_an_invalid_insert_query_is_rejected_before_any_task(spark: SparkSession, create: Create) -> None:
    table = create(insert_query="SELECT nowhere FROM _rows")
    with pytest.raises(InvalidQuery, match="nowhere"):
        table.insert(numbers(spark, 1))
    assert part_keys(table) == log_keys(table) == set()


@pytest.mark.sampled(days=3)
def test_rows_get_ids_and_counts_from_each_task(spark: SparkSession, create: Create) -> None:
    merging = Aggregating(by=("n",), count="seen", any=("_row_id",))
    table = create(numbers(spark, *range(20), tasks=4), row_id=True, merging=merging)
    assert len({i for _, i in content(table, "n, _row_id")}) == 20
    table.insert(numbers(spark, *range(10), tasks=2))
    table.merge()
    assert content(table, "n, seen") == [(n, 2 if n < 10 else 1) for n in range(20)]


@pytest.mark.sampled(days=3)
def test_replacing_tables_take_frames(spark: SparkSession, create: Create) -> None:
    table = create(merging=Replacing(by=("n",), version="v"))
    for v in (2, 1):
        table.insert(numbers(spark, 1, 2).selectExpr("n", f"{v} AS v"))
    assert table.query("SELECT n, v FROM final ORDER BY ALL").fetchall() == [(1, 2), (2, 2)]


@pytest.mark.sampled(days=3)
def test_a_required_column_that_is_null_in_some_task_fails_the_job(spark: SparkSession, create: Create) -> None:
    table = create(required=["v"])
    frame = numbers(spark, *range(8), tasks=4)
    with pytest.raises(InvalidBatch, match="'v' is null in 1 rows"):
        table.insert(frame.selectExpr("n", "CASE WHEN n <> 5 THEN n END AS v"))
    with pytest.raises(InvalidBatch, match="'v' is missing"):
        table.insert(frame)
    assert log_keys(table) == set()
    assert table.insert(frame.selectExpr("n", "n AS v")).rows == 8


@pytest.mark.sampled(days=3)
def test_only_declared_columns_are_accepted_with_their_types(spark: SparkSession, create: Create) -> None:
    table = create(schema={"n": "BIGINT"}, schema_policy="declared")
    with pytest.raises(UnknownColumn, match="extra"):
        table.insert(numbers(spark, 1).selectExpr("n", "1 AS extra"))
    with pytest.raises(SchemaConflict, match="'n'"):
        table.insert(numbers(spark, 1).selectExpr("cast(n AS string) AS n"))
    assert table.insert(numbers(spark, 1)).rows == 1


@pytest.mark.sampled(cases=1, days=3)
def test_rows_choose_their_partitions_in_every_task(spark: SparkSession, create_shared: Create) -> None:
    table = create_shared(partition_by=["n AS d"])
    frame = numbers(spark, *range(6), tasks=3).selectExpr(
        "n", "CASE WHEN n < 3 THEN concat('d=', n % 2 + 7) END AS _partition"
    )
    commit = table.insert(frame)
    assert {p.partition for p in commit.parts} == {"d=7", "d=8", "d=3", "d=4", "d=5"}
    assert table.schema() == {"n": "BIGINT"}
    assert content(table) == [(n,) for n in range(6)]
    with pytest.raises(InvalidPartitionValue):
        table.insert(numbers(spark, 1).selectExpr("n", "'d=1/../../out' AS _partition"))
    assert content(table) == [(n,) for n in range(6)]


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("hidden", ["false", "true"])
@pytest.mark.parametrize("kind", ["plain", "pandas", "arrow"])
def test_a_python_function_that_fails_is_an_invalid_batch(
    spark: SparkSession, create: Create, kind: str, hidden: str
) -> None:
    def fail(values: Any) -> Any:
        raise ValueError("bad record")

    def fail_pandas(values: pd.Series) -> pd.Series:
        return fail(values)

    def fail_arrow(values: pa.Array) -> pa.Array:
        return fail(values)

    function = {
        "plain": F.udf(fail, "long"),
        "pandas": F.pandas_udf(fail_pandas, "long"),
        "arrow": F.arrow_udf(fail_arrow, "long"),
    }[kind]
    table = create([{"n": 0}])
    frame = numbers(spark, 1, tasks=1).select(function("n").alias("n"))
    setting = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
    spark.conf.set(setting, hidden)
    try:
        for txn in (None, ("app", 1)):
            with pytest.raises(InvalidBatch, match=r": the frame cannot be computed: ValueError: bad record$"):
                table.insert(frame, txn=txn)
    finally:
        spark.conf.unset(setting)
    assert content(table) == [(0,)]
    assert part_keys(table) == {p.key for p in table.snapshot().parts}
