"""The sensor that starts the maintenance of a table that is due.

A tick computes the table's health once (`Table.health`; one LIST for each thousand stored log files if nothing is new).
It requests runs of the recommended jobs at half of each threshold, so that the threshold itself is not reached. While
a run of a job is queued or active in this code location, however it was started, no other is requested. The cursor has
the last requests, see `icedb_dagster.sensors.run_requests`.

A run takes seconds of processor time to start, so one run does several kinds of maintenance that are due. A kind whose
last run failed gets a run of its own, so that it does not make such a run fail again and again.

The sensor relies on this behavior of Dagster's sensor daemon:

- It evaluates one tick of a sensor at a time. Evaluation has no side effects: the daemon acts on the result afterwards.
- Before it creates the runs of a tick, it stores them, their ids and the new cursor with the tick. If it is restarted
  in between, it continues that tick, for a day, and evaluates nothing again.
- If it is killed before that, it evaluates the tick again with the old cursor. With the same health and
  runs, the result has the same run keys. For a key that a run of this sensor has already, it starts no run. If that run
  was created and never started, it starts it.
- The cursor of a failed tick is not stored.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import dagster as dg
import msgspec

from icedb import Recommendation, TableHealth, Thresholds
from icedb.errors import TableNotFound
from icedb.operations.health.table_health import Due
from icedb_dagster.locking.run_kinds import config_of, failed_kinds, kinds_of, merging_limits
from icedb_dagster.sensors.open_tables import open_tables
from icedb_dagster.sensors.run_requests import RequestCursor, begin, decode, encode, next_request, run_key, waits
from icedb_dagster.sensors.sensor_settings import SENSOR_TAG, MaintenanceSensor

__all__ = ["maintenance_sensor"]

#: A tag of each requested run, with the reason.
REASON_TAG = "icedb/reason"
# Without runs that were created and never started: Dagster starts them only if they are requested again.
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
# Some may be of another code location's job of the same name, but hardly this many.
_RUNS_MAX = 100
_MEGABYTE = 1_000_000


def maintenance_sensor(
    key: dg.AssetKey,
    settings: MaintenanceSensor,
    *,
    jobs: Mapping[Due, dg.JobDefinition],
    maintain: dg.JobDefinition | None = None,
    resource_key: str,
) -> dg.SensorDefinition:
    """Return the sensor `<table>_maintenance_sensor`, which requests runs of `jobs` that `Table.health` recommends.

    One run of `maintain` does several kinds that are due. `resource_key` is the key of the `IceDBResource`. Nothing is
    opened before the first tick.
    """
    name = f"{key.to_python_identifier()}_maintenance_sensor"
    names = _Names(name, {due: job.name for due, job in jobs.items()}, None if maintain is None else maintain.name)

    def tick(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        lake = getattr(context.resources, resource_key)
        try:
            with open_tables.use(lake, key) as table:
                health = table.health(settings.thresholds)
        except TableNotFound as error:
            return dg.SensorResult(skip_reason=f"the table does not exist yet. {error}")
        if not health.log_files:
            open_tables.forget(lake, key)
        return _MaintenanceTick(context, names, health, settings.thresholds).answer()

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=tick,
        jobs=[*jobs.values(), *([] if maintain is None else [maintain])],
        minimum_interval_seconds=settings.interval_s,
        description=f"Starts maintenance of {key.to_user_string()} when it is due.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={resource_key},
        tags={SENSOR_TAG: "maintenance"},
    )


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the sensor, of the job of each kind of maintenance, and of the job that does several kinds."""

    sensor: str
    jobs: Mapping[Due, str]
    maintain: str | None


class _MaintenanceTick:
    """One evaluation of the sensor."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        names: _Names,
        health: TableHealth,
        thresholds: Thresholds,
    ) -> None:
        self._context = context
        self._names = names
        self._health = health
        self._thresholds = thresholds
        #: The runs of each job and statuses, read once.
        self._records: dict[tuple[str, tuple[dg.DagsterRunStatus, ...]], Sequence[dg.RunRecord]] = {}
        #: Why maintenance that is due is not requested.
        self._notes: list[str] = []

    def answer(self) -> dg.SensorResult:
        """Return the run requests, or the reason why there are none, and the new cursor."""
        cursor = decode(self._context.cursor) if self._context.cursor else None
        if cursor is None:
            return self._begin()
        wanted = []
        for recommended in self._health.recommendations:
            cursor, is_wanted = self._consider(cursor, recommended)
            if is_wanted:
                wanted.append(recommended)
        if wanted:
            return dg.SensorResult(run_requests=list(self._requests(cursor, wanted)), cursor=encode(cursor))
        due = "; ".join(self._notes) or "nothing is due"
        return dg.SensorResult(skip_reason=f"{due}. {_figures(self._health)}", cursor=encode(cursor))

    def _begin(self) -> dg.SensorResult:
        """Store a new cursor. The next tick requests runs, so that the numbers in their keys are in a stored cursor."""
        if self._context.cursor:
            self._context.log.warning("the cursor %r cannot be read; a new one begins", self._context.cursor[:80])
        reason = f"the sensor begins now; the next tick requests runs that are due. {_figures(self._health)}"
        return dg.SensorResult(skip_reason=reason, cursor=encode(begin(self._health.at_ms)))

    def _requests(self, cursor: RequestCursor, wanted: Sequence[Recommendation]) -> Iterator[dg.RunRequest]:
        """Yield one request for the kinds that one run does, and one for each other kind."""
        if (maintain := self._names.maintain) is not None and len(wanted) > 1:
            together = [r for r in wanted if not self._failed(r.due)]
            if len(together) > 1:
                config = {"kinds": [r.due for r in together], **merging_limits(self._thresholds)}
                yield self._request(cursor, together, maintain, config)
                wanted = [r for r in wanted if r not in together]
        for r in wanted:
            yield self._request(cursor, [r], self._names.jobs[r.due], config_of(r.due, self._thresholds))

    def _request(
        self, cursor: RequestCursor, work: Sequence[Recommendation], job: str, config: Mapping[str, object]
    ) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=run_key(self._names.sensor, cursor, [r.due for r in work]),
            job_name=job,
            run_config={"ops": {f"{job}_work": {"config": config}}} if config else None,
            tags={REASON_TAG: "; ".join(r.reason for r in work)},
        )

    def _consider(self, cursor: RequestCursor, recommended: Recommendation) -> tuple[RequestCursor, bool]:
        """Return the cursor after one recommendation, and whether to request a run."""
        due = recommended.due
        job, before = self._names.jobs.get(due), cursor.requests.get(due)
        if job is None:
            self._notes.append(f"{due} is due, but has no job: {recommended.reason}")
            return cursor, False
        if (run := next(self._runs(due, _UNDER_WAY), None)) is not None:
            self._notes.append(f"{due} is due, but a run of {run.job_name} is queued or active")
            if before is None or before.ended_ms is None:
                return cursor, False
            request, wanted = msgspec.structs.replace(before, ended_ms=None), False
        else:
            request, wanted = next_request(
                before, recommended, now_ms=self._health.at_ms, failed=partial(self._failed, due)
            )
            if not wanted:
                until = waits(request, self._health.at_ms)
                self._notes.append(f"{due} is due, but the last run did not help; the next is requested at {until}")
        return msgspec.structs.replace(cursor, requests={**cursor.requests, due: request}), wanted

    def _failed(self, due: Due) -> bool:
        last = next(self._runs(due, _ENDED), None)
        if last is None or last.status == dg.DagsterRunStatus.SUCCESS:
            return False
        return last.job_name != self._names.maintain or due in failed_kinds(last)

    def _runs(self, due: Due, statuses: Sequence[dg.DagsterRunStatus]) -> Iterator[dg.DagsterRun]:
        """Yield the runs that do a kind of maintenance, the newest first."""
        own, maintain = self._names.jobs[due], self._names.maintain
        of_maintain = () if maintain is None else self._runs_of(maintain, statuses)
        several = (record for record in of_maintain if due in kinds_of(record.dagster_run))
        records = sorted(chain(self._runs_of(own, statuses), several), key=lambda record: -record.storage_id)
        return (record.dagster_run for record in records)

    def _runs_of(self, job: str, statuses: Sequence[dg.DagsterRunStatus]) -> Sequence[dg.RunRecord]:
        """Return runs of a job, without those of another code location's job of that name."""
        key = job, tuple(statuses)
        if key not in self._records:
            wanted = dg.RunsFilter(job_name=job, statuses=statuses)
            records = self._context.instance.get_run_records(wanted, limit=_RUNS_MAX)
            self._records[key] = [record for record in records if self._is_of_here(record.dagster_run)]
        return self._records[key]

    def _is_of_here(self, run: dg.DagsterRun) -> bool:
        """Return whether a run is of this code location, for Dagster's run keys. In-process runs have no origin."""
        location, origin = self._context.code_location_origin, run.remote_job_origin
        if location is None or origin is None:
            return True
        of_run = origin.repository_origin
        here = location.location_name, self._context.repository_name
        return (of_run.code_location_origin.location_name, of_run.repository_name) == here


def _figures(health: TableHealth) -> str:
    """Return the table's health in one line."""
    return (
        f"{health.table}: {health.small_parts:,} small parts of {health.live_parts:,} in "
        f"{len(health.partitions):,} partitions, {health.log_files:,} log files, expired: "
        f"{health.expired_parts:,} parts of {health.expired_bytes / _MEGABYTE:,.1f} MB"
    )
