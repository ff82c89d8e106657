"""A scheduled job that deletes old runs, their events and their captured logs from the instance.

Dagster keeps runs for ever. Maintenance is most of them: each run has some 80 kB of events. Deleting a run deletes its
events, so a run stays if Dagster still needs one of them:

- a materialization, also a planned one: the history of an asset and the status of its partitions
- an observation of a partition, and the newest observation of an asset, which may have its data version
- the newest evaluation of an asset check
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
from pydantic import Field

from icedb.errors import InvalidOption
from icedb.util.clock import SystemClock
from icedb_dagster.maintenance.schedules import build_schedule

__all__ = ["DeletedRuns", "RunRetentionConfig", "build_run_retention", "delete_old_runs"]

KEEP_DAYS = 30
# A first deletion from a large instance is repeated by the next ticks. A run takes some 20 ms.
RUNS_MAX = 20_000
PAGE_RUNS, PAGE_EVENTS = 500, 1_000
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_MATERIALIZED = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED}
_ASSET_EVENTS = {
    *_MATERIALIZED,
    dg.DagsterEventType.ASSET_OBSERVATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
}


@dataclass(frozen=True, slots=True)
class DeletedRuns:
    """The effect of `delete_old_runs`, or of its dry run. `remaining`: the limit was reached before the end."""

    deleted: int
    #: Old runs with an event that Dagster still needs.
    kept: int
    remaining: bool


class RunRetentionConfig(dg.Config):
    """The config of the job."""

    keep_days: float = Field(default=KEEP_DAYS, ge=1, description="Keep runs that were created since so many days.")
    runs_max: int = Field(default=RUNS_MAX, ge=1, description="Delete at most so many runs.")
    dry_run: bool = Field(default=False, description="Only count the runs.")


def build_run_retention(
    *, keep_days: float = KEEP_DAYS, cron: str = "15 4 * * *", running: bool = False, name: str = "icedb_run_retention"
) -> dg.Definitions:
    """Return a job that deletes old runs with their events and captured logs, and its schedule.

    Runs with an event that Dagster still needs stay: materializations, observations of partitions, and the newest
    observation or check of an asset. One such job serves an instance.

    Args:
        keep_days: Keep runs that were created since so many days, at least 1.
        cron: When the schedule starts the job, in UTC.
        running: Whether the schedule runs by default, without being started in the UI.
        name: The name of the job.

    Raises:
        InvalidOption: `keep_days` is below 1.

    Example:
        defs = dg.Definitions.merge(defs, build_run_retention(keep_days=14, running=True))
    """
    if keep_days < 1:
        raise InvalidOption(f"{name}: keep_days is {keep_days}; give at least 1.")

    @dg.op(name=f"{name}_delete")
    def delete(context: dg.OpExecutionContext, config: RunRetentionConfig) -> None:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        before = now - timedelta(days=config.keep_days)
        deleted = delete_old_runs(context.instance, before, runs_max=config.runs_max, dry_run=config.dry_run)
        context.log.info(
            "%s %d runs from before %s; %d stay, because Dagster needs their events%s",
            "would delete" if config.dry_run else "deleted",
            deleted.deleted,
            before.isoformat(" ", "minutes"),
            deleted.kept,
            ". More are left for the next run" if deleted.remaining else "",
        )

    @dg.job(
        name=name,
        executor_def=dg.in_process_executor,
        config=dg.RunConfig(ops={f"{name}_delete": RunRetentionConfig(keep_days=keep_days)}),
        description=f"Deletes runs, their events and captured logs after {keep_days:g} days.",
    )
    def retention() -> None:
        delete()

    return dg.Definitions(jobs=[retention], schedules=[build_schedule(retention, cron, running=running, idle=None)])


def delete_old_runs(
    instance: dg.DagsterInstance, before: datetime, *, runs_max: int = RUNS_MAX, dry_run: bool = False
) -> DeletedRuns:
    """Delete ended runs that were created before a time, with their events and captured logs. See the module."""
    old, cursor = dg.RunsFilter(statuses=_ENDED, created_before=before), None
    deleted = kept = 0
    while page := instance.get_run_records(old, limit=PAGE_RUNS, cursor=cursor, ascending=True):
        for run_id in (record.dagster_run.run_id for record in page):
            if _is_needed(instance, run_id):
                kept += 1
                cursor = run_id  # a cursor is a run that exists
                continue
            if deleted == runs_max:
                return DeletedRuns(deleted, kept, remaining=True)
            deleted += 1
            if dry_run:
                cursor = run_id
            else:
                # First the logs: after a crash in between, the run is found again.
                instance.compute_log_manager.delete_logs(prefix=[run_id])
                instance.delete_run(run_id)
    return DeletedRuns(deleted, kept, remaining=False)


def _is_needed(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether Dagster still needs an event of a run."""
    cursor, more = None, True
    while more:
        records = instance.get_records_for_run(run_id, cursor=cursor, of_type=_ASSET_EVENTS, limit=PAGE_EVENTS)
        if any(_is_needed_event(instance, record.event_log_entry) for record in records.records):
            return True
        cursor, more = records.cursor, records.has_more
    return False


def _is_needed_event(instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> bool:
    event = entry.get_dagster_event()
    if event.event_type in _MATERIALIZED or event.partition is not None:
        return True
    if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        check = event.asset_check_evaluation_data.asset_check_key
        newest = instance.event_log_storage.get_latest_asset_check_execution_by_key([check]).get(check)
        return newest is not None and newest.run_id == entry.run_id
    key = event.asset_key
    observations = instance.fetch_observations(key, limit=1).records if key is not None else ()
    return any(observation.run_id == entry.run_id for observation in observations)
