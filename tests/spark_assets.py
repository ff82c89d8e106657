"""Assets that give and take Spark DataFrames, in a process of their own: there is one Spark per process.

Run as `python spark_assets.py <root> <result>` by tests/test_dagster.py, on the Dagster instance of the environment.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import json
import sys
from pathlib import Path

import dagster as dg
import pyarrow as pa
from dagster_pyspark import PySparkResource
from pyspark.sql import DataFrame

from icedb import Snapshot
from icedb.spark.java import prepare_environment
from icedb_dagster import IceDBIOManager, IceDBResource

SPARK_CONFIG = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
}


@dg.asset(metadata={"partition_by": ["n % 2 AS parity"], "sort_by": ["n"]})
def spark_numbers(pyspark: PySparkResource) -> DataFrame:
    return pyspark.spark_session.range(0, 10, 1, 2).selectExpr("id AS n", "timestamp_ntz'2024-01-02 03:04:05' AS wall")


@dg.asset
def spark_squares(pyspark: PySparkResource, spark_numbers: DataFrame) -> DataFrame:
    return spark_numbers.selectExpr("n * n AS square", "wall", "parity")


@dg.asset(metadata={"icedb/mode": "append"})
def spark_growing(pyspark: PySparkResource) -> DataFrame:
    return pyspark.spark_session.range(3)


@dg.asset
def counts(spark_squares: pa.Table, spark_numbers: Snapshot) -> pa.Table:
    return pa.table({"squares": [spark_squares.num_rows], "numbers": [spark_numbers.rows]})


@dg.asset
def spark_nothing(pyspark: PySparkResource) -> DataFrame:
    return pyspark.spark_session.range(0)


def main(root: str, result: str) -> None:
    prepare_environment()
    resources = {
        "io_manager": IceDBIOManager(icedb=IceDBResource(root=root)),
        "pyspark": PySparkResource(spark_config=SPARK_CONFIG),
    }
    with dg.DagsterInstance.get() as instance:

        def materialize(*assets: dg.AssetsDefinition) -> dg.ExecuteInProcessResult:
            return dg.materialize(list(assets), resources=resources, instance=instance, raise_on_error=False)

        first = materialize(spark_numbers, spark_squares, counts, spark_growing)
        again = materialize(spark_numbers, spark_growing)
        empty = materialize(spark_nothing)
    [failure] = empty.get_step_failure_events()
    told = {
        "success": [first.success, again.success, empty.success],
        "failure": str(failure.step_failure_data.error),
    }
    Path(result).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
