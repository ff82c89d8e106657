"""Jobs and their schedules. Schedules are stopped until you start them."""

from datetime import timedelta

import dagster as dg

from web_analytics.settings import PARTITIONS

# In one process: a process per step takes seconds to start, and Spark even longer.
HERE = dg.in_process_executor

ingest = dg.define_asset_job("ingest", selection=["events"], partitions_def=PARTITIONS, executor_def=HERE)
derive = dg.define_asset_job(
    "derive", selection=["sessions", "daily_metrics", "dashboard"], partitions_def=PARTITIONS, executor_def=HERE
)
look = dg.define_asset_job("look", selection=dg.AssetSelection.all_asset_checks(), executor_def=HERE)


@dg.schedule(cron_schedule="30 0 * * *", job=ingest)
def ingest_yesterday(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Ingest the events that arrived yesterday."""
    return _of_day(context, days_ago=1)


@dg.schedule(cron_schedule="30 1 * * *", job=derive)
def derive_the_day_before(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Derive the day before yesterday, whose late events arrived yesterday."""
    return _of_day(context, days_ago=2)


def _of_day(context: dg.ScheduleEvaluationContext, *, days_ago: int) -> dg.RunRequest | dg.SkipReason:
    day = f"{context.scheduled_execution_time - timedelta(days=days_ago):%Y-%m-%d}"
    if PARTITIONS.has_partition_key(day):
        return dg.RunRequest(partition_key=day)
    return dg.SkipReason(f"{day} is not a day of the generated events")
