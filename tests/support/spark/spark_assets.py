"""Assets that give and take Spark DataFrames, in a process of their own: there is one Spark per process.

Run as `python spark_assets.py <root> <result>` by tests/icedb_dagster/test_io.py, on the Dagster instance of the
environment.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster_pyspark import PySparkResource
from pyspark.sql import DataFrame

from icedb import Snapshot
from icedb_dagster import IceDBIOManager, IceDBResource
from tests.support.spark.spark_clusters import dagster_spark


@dg.asset(metadata={"partition_by": ["n % 2 AS parity"], "sort_by": ["n"]})
def spark_numbers(pyspark: PySparkResource) -> DataFrame:
    return pyspark.spark_session.range(0, 10, 1, 2).selectExpr("id AS n", "timestamp_ntz'2024-01-02 03:04:05' AS wall")


@dg.asset
def spark_squares(pyspark: PySparkResource, spark_numbers: DataFrame) -> DataFrame:
    return spark_numbers.selectExpr("n * n AS square", "wall", "parity")


@dg.multi_asset(
    outs={"spark_growing": dg.AssetOut(metadata={"icedb/mode": "append"}), "after": dg.AssetOut()},
    retry_policy=dg.RetryPolicy(max_retries=1),
)
def spark_growing_and_after(context: dg.AssetExecutionContext, pyspark: PySparkResource) -> Iterator[dg.Output[Any]]:
    yield dg.Output(pyspark.spark_session.range(3), output_name="spark_growing")
    if not context.retry_number:
        raise OSError("after the commit")
    yield dg.Output(pa.table({"n": [1]}), output_name="after")


DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "CAST(ts AS DATE) AS day"})
def spark_daily(context: dg.AssetExecutionContext, pyspark: PySparkResource) -> DataFrame:
    day, version = context.partition_key, context.run.tags["version"]
    return pyspark.spark_session.range(1).selectExpr(f"timestamp_ntz'{day} 12:00:00' AS ts", f"{version} AS version")


@dg.asset(
    partitions_def=DAYS,
    ins={"spark_daily": dg.AssetIn(metadata={"columns": ["day", "version"]})},
    metadata={"partition_expr": "day", "icedb/mode": "append"},
)
def spark_copies(pyspark: PySparkResource, spark_daily: DataFrame) -> DataFrame:
    return spark_daily


@dg.asset
def counts(spark_squares: pa.Table, spark_numbers: Snapshot) -> pa.Table:
    return pa.table({"squares": [spark_squares.num_rows], "numbers": [spark_numbers.rows]})


@dg.asset
def spark_nothing(pyspark: PySparkResource) -> DataFrame:
    return pyspark.spark_session.range(0)


def main(root: str, result: str) -> None:
    pyspark = dagster_spark(Path(f"{result}.spark-home"))
    resources = {"io_manager": IceDBIOManager(icedb=IceDBResource(root=root)), "pyspark": pyspark}
    with dg.DagsterInstance.get() as instance:

        def materialize(*assets: dg.AssetsDefinition, **options: Any) -> dg.ExecuteInProcessResult:
            return dg.materialize(list(assets), resources=resources, instance=instance, raise_on_error=False, **options)

        growing = [spark_growing_and_after]
        first = materialize(spark_numbers, spark_squares, counts, *growing)
        again = materialize(spark_numbers, *growing)
        days = [
            materialize(spark_daily, spark_copies, partition_key=f"2024-01-0{day}", tags={"version": str(version)})
            for version, day in enumerate((1, 2, 1), 1)
        ]
        empty = materialize(spark_nothing)
    [failure] = empty.get_step_failure_events()
    results = {
        "success": {
            "first": first.success,
            "again": again.success,
            "days": all(day.success for day in days),
            "empty": empty.success,
        },
        "failure": str(failure.step_failure_data.error),
        "repeated": [
            event.metadata["icedb/repeated"].value
            for run in (first, again)
            for event in run.asset_materializations_for_node("spark_growing_and_after")
            if event.asset_key.path == ["spark_growing"] and event.metadata["icedb/repeated"].value
        ],
    }
    Path(result).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
