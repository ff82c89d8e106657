"""Checks of maintenance runs: the last ended run of each job of a table succeeded, and none waits for hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import get_args

import dagster as dg

from icedb.operations.health.table_health import Due
from icedb.util.clock import Clock
from icedb.util.durations import duration_text
from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.dev.project.workspace import first_cause
from icedb_dagster.locking.run_kinds import MAINTAIN, failed_kinds, kinds_of
from icedb_dagster.locking.table_lock import TABLE_TAG, VERB_TAG

__all__ = ["FailedJob", "LateRun", "judge_maintenance", "read_failed_jobs", "read_late_runs"]

# A failing job that runs daily has failed within them.
DAYS = 7
# Most runs take a minute. Run monitoring ends them after six hours.
LATE_S = 3600
# A page of the newest failed runs. The sensor repeats a failing job at least hourly.
_PAGE = 500
_RUNS_MAX = 5_000
# Dagster's tags of a run that a schedule or a sensor started.
_STARTED_BY = {"dagster/schedule_name", "dagster/sensor_name"}
_FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A maintenance job whose last ended run failed. Times are in unix seconds."""

    table: str
    verb: str
    #: Failed runs since the last success, within the days that were read.
    failures: int
    #: The last of them.
    run_id: str
    failed_s: float
    error: str
    #: Whether neither a schedule nor a sensor started it.
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class LateRun:
    """A maintenance run that has been queued or started for long, since a time in unix seconds."""

    table: str
    verb: str
    run_id: str
    status: str
    since_s: float


def read_late_runs(instance: dg.DagsterInstance, clock: Clock) -> list[LateRun]:
    """Return the maintenance runs that have been queued or started for over an hour, the oldest first."""
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED])
    late = []
    for record in instance.get_run_records(wanted, limit=_PAGE, ascending=True):
        run = record.dagster_run
        since_s = record.start_time or record.create_timestamp.timestamp()
        if VERB_TAG in run.tags and since_s < clock.now_ms() / 1000 - LATE_S:
            table, status = run.tags.get(TABLE_TAG, ""), run.status.value.lower()
            late.append(LateRun(table, run.tags[VERB_TAG], run.run_id, status, since_s))
    return late


def read_failed_jobs(instance: dg.DagsterInstance, clock: Clock) -> list[FailedJob]:
    """Return the kinds of maintenance of each table whose last run failed within the last days."""
    failed: dict[tuple[str, str], list[dg.RunRecord]] = {}
    for record in _failed_runs(instance, datetime.fromtimestamp(clock.now_ms() / 1000, UTC) - timedelta(days=DAYS)):
        run = record.dagster_run
        verb = run.tags.get(VERB_TAG)
        if verb is not None:
            for kind in failed_kinds(run) if verb == MAINTAIN else (verb,):
                failed.setdefault((run.job_name.removesuffix(verb), kind), []).append(record)
    jobs = []
    for (prefix, kind), records in failed.items():
        success_s = _last_success_s(instance, prefix, kind)
        since = [record for record in records if _end_s(record) > success_s]
        if since:
            last = max(since, key=_end_s)
            run = last.dagster_run
            table, error = run.tags.get(TABLE_TAG, ""), _error(instance, run.run_id)
            by_hand = not _STARTED_BY & run.tags.keys()
            jobs.append(FailedJob(table, kind, len(since), run.run_id, _end_s(last), error, by_hand))
    return jobs


def _last_success_s(instance: dg.DagsterInstance, prefix: str, kind: str) -> float:
    """Return when a run last did a kind of maintenance with success, alone or with other kinds; 0: never."""
    succeeded = [dg.DagsterRunStatus.SUCCESS]
    records = list(instance.get_run_records(dg.RunsFilter(job_name=f"{prefix}{kind}", statuses=succeeded), limit=1))
    if kind in get_args(Due):
        several = dg.RunsFilter(job_name=f"{prefix}{MAINTAIN}", statuses=succeeded)
        records += [r for r in instance.get_run_records(several, limit=_PAGE) if kind in kinds_of(r.dagster_run)]
    return max(map(_end_s, records), default=0.0)


def _failed_runs(instance: dg.DagsterInstance, after: datetime) -> list[dg.RunRecord]:
    """Return failed runs, newest first."""
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=after)
    runs: list[dg.RunRecord] = []
    while len(runs) < _RUNS_MAX:
        cursor = runs[-1].dagster_run.run_id if runs else None
        page = instance.get_run_records(wanted, limit=_PAGE, cursor=cursor)
        runs += page
        if len(page) < _PAGE:
            break
    return runs


def _end_s(record: dg.RunRecord) -> float:
    return record.end_time or record.update_timestamp.timestamp()


def _error(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the error of the step that failed, or else of the run."""
    records = instance.get_records_for_run(run_id, of_type=_FAILURES).records
    events = [record.event_log_entry.get_dagster_event() for record in records]
    for event in events:
        if event.is_step_failure:
            return first_cause(event.step_failure_data.error)
    return events[0].message or "no reason given" if events else "no reason given"


def judge_maintenance(jobs: Sequence[FailedJob], late: Sequence[LateRun], clock: Clock) -> list[DoctorFinding]:
    """Judge the maintenance jobs whose last run failed, and late runs.

    A user who started a run by hand may know of its failure.
    """
    findings = []
    for run in late:
        age = duration_text(clock.now_ms() - 1000 * run.since_s)
        observed = f"{run.verb} of {run.table}: run {run.run_id} has been {run.status} for {age}"
        remedy = "see its log, and which run holds the lock of the table; terminate a run that hangs"
        findings.append(warning("maintenance", observed, remedy, since_s=run.since_s))
    for job in sorted(jobs, key=lambda job: (job.table, job.verb)):
        age = duration_text(clock.now_ms() - 1000 * job.failed_s)
        failures = f"its last {job.failures} runs" if job.failures > 1 else "its last run"
        observed = f"{job.verb} of {job.table}: {failures} failed, {age} ago run {job.run_id}: {job.error}"
        remedy = "correct the error and start the job again; a run that succeeds ends this finding"
        judged = warning if job.by_hand else problem
        findings.append(judged("maintenance", observed, remedy, since_s=job.failed_s))
    return findings or [ok("maintenance", f"no job of a table is late, or failed at its last run in {DAYS} days")]
