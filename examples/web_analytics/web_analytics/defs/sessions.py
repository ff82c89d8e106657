"""Sessions, computed by Spark: the events of one user without a gap of half an hour."""

from typing import Any

import dagster as dg
from dagster_pyspark import PySparkResource
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from web_analytics.settings import PARTITIONS

INACTIVE_MS = 30 * 60 * 1000
COLUMNS = ["event_id", "ts", "tenant", "user_id", "country", "device", "referrer", "kind", "page", "cents"]

#: A session may have begun on the previous day, or continue after midnight. Phones may deliver a day late.
NEIGHBOURS = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=1)


@dg.asset(
    partitions_def=PARTITIONS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    ins={
        "events": dg.AssetIn(
            partition_mapping=NEIGHBOURS,
            metadata={"columns": COLUMNS},
        )
    },
    kinds={"icedb", "parquet", "spark"},
    group_name="web",
    metadata={"partition_expr": "day", "sort_by": ["tenant", "user_id", "started_at"], "icedb/preview_rows": 0},
)
def sessions(context: dg.AssetExecutionContext, events: DataFrame, pyspark: PySparkResource) -> DataFrame:
    """The sessions that began on a day, one row each."""
    return sessions_of(events).where(sf.col("day").isin(list(context.partition_keys)))


def sessions_of(events: DataFrame) -> DataFrame:
    """Return one row for each session of these events."""
    in_order = Window.partitionBy("tenant", "user_id").orderBy("ts", "event_id")
    silence = sf.unix_millis("ts") - sf.unix_millis(sf.lag("ts").over(in_order))
    begins = sf.when(silence.isNull() | (silence > INACTIVE_MS), 1).otherwise(0)
    numbered = events.withColumn("begins", begins).withColumn("number", sf.sum("begins").over(in_order))
    return (
        numbered.groupBy("tenant", "user_id", "number")
        .agg(
            _first("event_id").alias("session_id"),
            sf.min("ts").alias("started_at"),
            sf.max("ts").alias("ended_at"),
            ((sf.unix_millis(sf.max("ts")) - sf.unix_millis(sf.min("ts"))) / 1000).alias("seconds"),
            _count("page_view").alias("page_views"),
            _count("click").alias("clicks"),
            _count("purchase").alias("purchases"),
            sf.coalesce(sf.sum("cents"), sf.lit(0)).alias("revenue_cents"),
            _first("page").alias("landing_page"),
            _first("referrer").alias("referrer"),
            _first("country").alias("country"),
            _first("device").alias("device"),
        )
        .withColumn("day", sf.date_format("started_at", "yyyy-MM-dd"))
        .drop("number")
    )


def _first(column: str) -> Any:
    return sf.min_by(column, sf.struct("ts", "event_id"))


def _count(kind: str) -> Any:
    return sf.count_if(sf.col("kind") == kind)
