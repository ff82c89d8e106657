"""Daily metrics of each tenant, computed by DuckDB."""

import dagster as dg
from duckdb import DuckDBPyRelation

from web_analytics.settings import PARTITIONS


@dg.asset(
    partitions_def=PARTITIONS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    kinds={"icedb", "parquet", "duckdb"},
    group_name="web",
    metadata={"partition_expr": "day", "sort_by": ["tenant"]},
)
def daily_metrics(sessions: DuckDBPyRelation) -> DuckDBPyRelation:
    """One row for each tenant and day. It has no personal data, so it is kept when events and sessions are deleted."""
    return sessions.query(
        "sessions",
        """
        SELECT tenant, day, count(DISTINCT user_id) AS visitors, count(*) AS sessions,
               sum(page_views)::BIGINT AS page_views, count(*) FILTER (page_views = 1) / count(*) AS bounce_rate,
               median(seconds) AS seconds_median, sum(purchases)::BIGINT AS purchases,
               sum(revenue_cents)::BIGINT AS revenue_cents
        FROM sessions GROUP BY tenant, day
        """,
    )
