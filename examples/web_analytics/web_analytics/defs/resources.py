"""The resources: the tables, and a local Spark."""

import dagster as dg
from dagster_pyspark import PySparkResource

from icedb.spark.java import prepare_environment
from icedb_dagster import IceDBIOManager, IceDBResource
from web_analytics.settings import LAKE

SPARK = {
    "spark.master": "local[2]",
    "spark.app.name": "web-analytics",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}

# Spark needs Java when a session starts. This finds the machine's Java, or the one from PyPI.
prepare_environment()

lake = IceDBResource(root=LAKE)


@dg.definitions
def resources() -> dg.Definitions:
    """Return the resources under their usual names."""
    return dg.Definitions(
        resources={
            "icedb": lake,
            "io_manager": IceDBIOManager(icedb=lake),
            "pyspark": PySparkResource(spark_config=SPARK),
        }
    )
