"""The sensor that asks for the maintenance of a table that is due.

A tick looks at the table once (`Table.health`, one LIST for each thousand log files that are stored, when nothing
is new) and asks for the jobs of what is recommended: at half of each threshold, so that the threshold itself is not
reached. While a run of a job is queued or under way, whoever started it in this code location, no other is asked for.
What was asked for is in the cursor, see `icedb_dagster.sensors.run_requests`.

What is relied on in Dagster's sensor daemon:

- It evaluates one tick of a sensor at a time, and evaluating has no effect of its own: what the answer asks for
  happens afterwards, in the daemon.
- Before it creates the runs of a tick, it stores them, their ids and the new cursor with the tick. Restarted in
  between, it goes on with that tick, for a day, and evaluates nothing anew.
- Killed before that, it evaluates the tick again with the old cursor. The answer has the same run keys, and of a key
  that a run of this sensor has already, it starts none; if that run was created and never started, it starts that one.
- The cursor of a tick that failed is not stored.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import dagster as dg
import msgspec

from icedb import Recommendation, TableHealth, Thresholds
from icedb.errors import TableNotFound
from icedb.operations.health.table_health import Due
from icedb_dagster.sensors.open_tables import open_tables
from icedb_dagster.sensors.run_requests import RequestCursor, begin, decode, encode, next_request, run_key, waits
from icedb_dagster.sensors.sensor_settings import MaintenanceSensor

__all__ = ["maintenance_sensor"]

#: On each run that the sensor asks for: why.
REASON_TAG = "icedb/reason"
# Not those that were created and never started: Dagster starts them when they are asked for again, or nobody does.
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
# Among them may be some of another code location's job of the same name, but hardly so many.
_RUNS_MAX = 100
_MERGES: tuple[Due, ...] = ("merge_newest", "merge_oldest")
_MEGABYTE = 1_000_000


def maintenance_sensor(
    key: dg.AssetKey, settings: MaintenanceSensor, *, jobs: Mapping[Due, dg.JobDefinition], resource_key: str
) -> dg.SensorDefinition:
    """The sensor `<table>_maintenance_sensor`: asks for runs of `jobs` when `Table.health` recommends them.

    `resource_key`: of the `IceDBResource`. Nothing is opened or asked until the first tick.
    """
    name = f"{key.to_python_identifier()}_maintenance_sensor"
    names = {due: job.name for due, job in jobs.items()}

    def tick(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult | dg.SkipReason:
        lake = getattr(context.resources, resource_key)
        try:
            with open_tables.use(lake, key) as table:
                health = table.health(settings.thresholds)
        except TableNotFound as error:
            return dg.SkipReason(f"there is nothing to maintain yet. {error}")
        if not health.log_files:
            open_tables.forget(lake, key)
        return _MaintenanceTick(context, name, names, health, settings.thresholds).answer()

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=tick,
        jobs=list(jobs.values()),
        minimum_interval_seconds=settings.interval_s,
        description=f"Asks for maintenance of {key.to_user_string()} when it is due.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={resource_key},
    )


class _MaintenanceTick:
    """One look at a table, and what follows from it."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        name: str,
        jobs: Mapping[Due, str],
        health: TableHealth,
        thresholds: Thresholds,
    ) -> None:
        self._context = context
        self._name = name
        self._jobs = jobs
        # A merge that took other parts for small, or other partitions for hot, could find nothing to do.
        merging = {name: getattr(thresholds, name) for name in ("part_bytes_max", "hot_ms", "hot_parts")}
        self._configs = {jobs[due]: merging for due in _MERGES if due in jobs}
        if "merge_log" in jobs:
            self._configs[jobs["merge_log"]] = {"files_min": 2}  # as few as the thresholds say
        self._health = health
        #: Why something that is due is not asked for.
        self._notes: list[str] = []

    def answer(self) -> dg.SensorResult:
        """Requests of runs, or why there are none; and the new cursor."""
        memory = decode(self._context.cursor) if self._context.cursor else None
        if memory is None:
            return self._begin()
        requests = []
        for recommended in self._health.recommendations:
            memory, wanted = self._consider(memory, recommended)
            if wanted:
                requests.append(self._request(memory, recommended))
        if requests:
            return dg.SensorResult(run_requests=requests, cursor=encode(memory))
        due = "; ".join(self._notes) or "nothing is due"
        return dg.SensorResult(skip_reason=f"{due}. {_figures(self._health)}", cursor=encode(memory))

    def _begin(self) -> dg.SensorResult:
        """Asking is for the next tick: then the numbers in the keys of its runs are in a cursor that is stored."""
        if self._context.cursor:
            self._context.log.warning("the cursor %r is of no use here, and is begun anew", self._context.cursor[:80])
        told = f"the sensor begins now; the next look asks for what is due. {_figures(self._health)}"
        return dg.SensorResult(skip_reason=told, cursor=encode(begin(self._health.at_ms)))

    def _request(self, memory: RequestCursor, recommended: Recommendation) -> dg.RunRequest:
        job = self._jobs[recommended.due]
        return dg.RunRequest(
            run_key=run_key(self._name, memory, recommended.due),
            job_name=job,
            run_config={"ops": {f"{job}_work": {"config": self._configs[job]}}} if job in self._configs else None,
            tags={REASON_TAG: recommended.reason},
        )

    def _consider(self, memory: RequestCursor, recommended: Recommendation) -> tuple[RequestCursor, bool]:
        """What to remember of one recommendation, and whether to ask for a run."""
        due = recommended.due
        job, before = self._jobs.get(due), memory.asked.get(due)
        if job is None:
            self._notes.append(f"{due} is due and has no job: {recommended.reason}")
            return memory, False
        if self._is_under_way(job):
            self._notes.append(f"{due} is due, and a run of {job} is queued or under way")
            if before is None or before.ended_ms is None:
                return memory, False
            asked, wanted = msgspec.structs.replace(before, ended_ms=None), False
        else:
            asked, wanted = next_request(
                before, recommended, now_ms=self._health.at_ms, failed=partial(self._failed, job)
            )
            if not wanted:
                until = waits(asked, self._health.at_ms)
                self._notes.append(f"{due} is due, but the last run did not help; the next is asked for at {until}")
        return msgspec.structs.replace(memory, asked={**memory.asked, due: asked}), wanted

    def _is_under_way(self, job: str) -> bool:
        return next(self._runs(job, _UNDER_WAY), None) is not None

    def _failed(self, job: str) -> bool:
        last = next(self._runs(job, _ENDED), None)
        return last is not None and last.status != dg.DagsterRunStatus.SUCCESS

    def _runs(self, job: str, statuses: Sequence[dg.DagsterRunStatus]) -> Iterator[dg.DagsterRun]:
        """The newest runs of a job first, without those of another code location's job of that name."""
        wanted = dg.RunsFilter(job_name=job, statuses=statuses)
        return filter(self._is_of_here, self._context.instance.get_runs(wanted, limit=_RUNS_MAX))

    def _is_of_here(self, run: dg.DagsterRun) -> bool:
        """As Dagster tells the runs of equal run keys apart; a run that was started in a process has no origin."""
        location, origin = self._context.code_location_origin, run.remote_job_origin
        if location is None or origin is None:
            return True
        of_run = origin.repository_origin
        here = location.location_name, self._context.repository_name
        return (of_run.code_location_origin.location_name, of_run.repository_name) == here


def _figures(health: TableHealth) -> str:
    """What the table is like, in a line."""
    return (
        f"{health.table}: {health.small_parts:,} small parts of {health.live_parts:,} in "
        f"{len(health.partitions):,} partitions, {health.log_files:,} log files, expired: "
        f"{health.expired_parts:,} parts of {health.expired_bytes / _MEGABYTE:,.1f} MB"
    )
