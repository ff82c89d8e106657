"""The Dagster definitions of the demo: two assets, and the maintenance of the flights' table."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import os
from pathlib import Path

import dagster as dg
import pyarrow as pa
from dagster_pyspark import PySparkResource

from icedb.spark.java import prepare_environment
from icedb_dagster import IceDBIOManager, IceDBResource, TimeToLive, build_table_definitions
from icedb_dagster.metadata.table_metadata import table_metadata
from spark_jobs.ingest_flights import PARTITION_BY, SORT_BY, ingest

__all__ = [
    "FLIGHTS",
    "LAKE",
    "PROJECT",
    "SPARK_CONFIG",
    "STATISTICS",
    "defs",
    "delays_by_carrier_and_month",
    "flights",
    "lake",
]

FLIGHTS = dg.AssetKey("flights")
STATISTICS = dg.AssetKey("delays_by_carrier_and_month")
#: The folder with `.icedb-dagster`, the local stack and its data.
PROJECT = Path(os.environ.get("ICEDB_DEMO_PROJECT") or Path(__file__).parents[2])
#: The root of the tables, a folder or a bucket (`ICEDB_LAKE=s3://lake/demo`).
LAKE = os.environ.get("ICEDB_LAKE") or str(PROJECT / ".icedb-dagster" / "lake")

SPARK_CONFIG = {
    "spark.master": "local[2]",
    "spark.app.name": "icedb-flights",
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


@dg.asset(key=FLIGHTS, kinds={"spark", "parquet"}, group_name="flights")
def flights(
    context: dg.AssetExecutionContext, icedb: IceDBResource, pyspark: PySparkResource
) -> dg.MaterializeResult[None]:
    """Departures from New York in 2013, cleaned by Spark, written in twelve commits."""
    table = icedb.table_or_create(FLIGHTS, partition_by=PARTITION_BY, sort_by=SORT_BY)
    ingest(
        pyspark.spark_session,
        table,
        storage_options=icedb.storage_options,
        on_batch=lambda b: context.log.info(
            "batch %d of %d: %d rows in %d parts", b.number, b.batches, b.rows, b.parts
        ),
    )
    return dg.MaterializeResult(metadata=table_metadata(table.snapshot()))


@dg.asset(
    key=STATISTICS,
    deps=[FLIGHTS],
    kinds={"duckdb", "parquet"},
    group_name="flights",
    io_manager_key="lake",
    metadata={"sort_by": ["carrier", "month"]},
)
def delays_by_carrier_and_month(icedb: IceDBResource) -> pa.Table:
    """Departure and arrival delays (minutes) of each carrier and month, over one snapshot of the flights."""
    return (
        icedb.table(FLIGHTS)
        .query(
            """
            SELECT carrier, local_month AS month, count(*) AS flights, count(departure) AS departed,
                   avg(dep_delay) AS departure_delay_mean, median(dep_delay) AS departure_delay_median,
                   avg(arr_delay) AS arrival_delay_mean,
                   count(*) FILTER (arr_delay > 15) AS arrived_late
            FROM t GROUP BY ALL ORDER BY ALL
            """
        )
        .to_arrow_table()
    )


lake = IceDBResource(root=LAKE)

defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[flights, delays_by_carrier_and_month],
        jobs=[dg.define_asset_job("flights_ingest", selection=dg.AssetSelection.groups("flights"))],
        resources={
            "icedb": lake,
            "lake": IceDBIOManager(icedb=lake),
            "pyspark": PySparkResource(spark_config=SPARK_CONFIG),
        },
    ),
    build_table_definitions(FLIGHTS, ttl=TimeToLive("local_day", keep_days=365)),
    build_table_definitions(STATISTICS),
)
