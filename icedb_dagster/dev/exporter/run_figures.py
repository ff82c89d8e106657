"""The maintenance runs of an instance: how many ended how, their durations, and how long they were queued.

A run is counted when it is first seen as ended. The runs that ended before the exporter started are not counted, but
the time of the last one of each kind is known from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import dagster as dg
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from icedb.util.lru_cache import LruCache
from icedb_dagster.dev.doctor.locks import table_pools_of
from icedb_dagster.locking.table_lock import POOL_TAG, VERB_TAG, table_of
from icedb_dagster.maintenance.definitions import CRONS
from icedb_dagster.maintenance.verbs import VERBS

__all__ = ["ACTIVE", "RunFigures"]

#: The values of the tag `icedb/verb`, and with them of the label `verb`.
MAINTENANCE_VERBS = tuple(sorted({*CRONS, *(verb.name for verb in VERBS)}))
_USUAL = ("merge_newest", "merge_oldest", "merge_log", "cleanup", "maintain", "orphans", "verify")
#: Ended runs by the label `status`.
_ENDED = {
    dg.DagsterRunStatus.SUCCESS: "success",
    dg.DagsterRunStatus.FAILURE: "failure",
    dg.DagsterRunStatus.CANCELED: "canceled",
}
#: Active runs, likewise.
ACTIVE = {
    dg.DagsterRunStatus.QUEUED: "queued",
    dg.DagsterRunStatus.NOT_STARTED: "queued",
    dg.DagsterRunStatus.STARTING: "started",
    dg.DagsterRunStatus.STARTED: "started",
    dg.DagsterRunStatus.CANCELING: "started",
}
#: The runs before the start of the exporter from which the last ones are known. A `verify` may run monthly.
HISTORY = timedelta(days=35)
_HISTORY_RUNS_MAX, _SEEN_RUNS_MAX = 5_000, 20_000
#: Runs are read again for this long after their last update, because the clocks of workers and database differ.
_OVERLAP = timedelta(minutes=2)
_SECONDS = (1, 5, 15, 60, 300, 900, 3_600, 7_200, 21_600)


class RunFigures:
    """Counts of runs. One thread at a time reads them from the instance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._runs = Counter(
            "icedb_dagster_runs",
            "Maintenance runs that ended since the start of the exporter.",
            ("table", "verb", "status"),
            registry=registry,
        )
        self._durations = Histogram(
            "icedb_dagster_run_duration_seconds", "Time from the start of a maintenance run to its end.",
            ("verb", "status"), buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._waits = Histogram(
            "icedb_dagster_run_wait_seconds", "Time from the creation of a maintenance run to its start.",
            ("verb",), buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._last = Gauge(
            "icedb_dagster_last_run_timestamp_seconds", "Time of the end of the last maintenance run.",
            ("table", "verb", "status"), registry=registry,
        )  # fmt: skip
        self._active = Gauge(
            "icedb_dagster_active_runs", "Maintenance runs that are queued or started.",
            ("verb", "status"), registry=registry,
        )  # fmt: skip
        self._since: datetime | None = None
        #: The ids of the last ended runs that were counted. Dagster may update a run after its end.
        self._seen: LruCache[str, bool] = LruCache(_SEEN_RUNS_MAX)

    def read(self, instance: dg.DagsterInstance, now_ms: int) -> None:
        """Count the runs that ended since the last call, and those that are active now."""
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        first, since = self._since is None, self._since or now - HISTORY
        self._begin_at_zero(table_pools_of(instance))
        ended = instance.get_run_records(
            dg.RunsFilter(statuses=list(_ENDED), tags=_maintenance(), updated_after=since - _OVERLAP),
            limit=_HISTORY_RUNS_MAX if first else None,
        )
        for record in reversed(ended):  # the newest last
            if record.dagster_run.run_id not in self._seen:
                self._record(record, count=not first)
            self._seen.put(record.dagster_run.run_id, True)
        self._since = now
        self._count_active(instance.get_runs(dg.RunsFilter(statuses=list(ACTIVE), tags=_maintenance())))

    def _begin_at_zero(self, pools: Iterable[str]) -> None:
        """Let the counters of usual runs begin at 0, because a rate needs a sample before the first run."""
        for pool in pools:
            for verb in _USUAL:
                for status in ("success", "failure"):
                    self._runs.labels(table_of({POOL_TAG: pool}), verb, status)

    def _record(self, record: dg.RunRecord, *, count: bool) -> None:
        run = record.dagster_run
        verb, status = run.tags[VERB_TAG], _ENDED[run.status]
        labels = table_of(run.tags) or "", verb, status
        if record.end_time is not None:
            self._last.labels(*labels).set(record.end_time)
        self._runs.labels(*labels).inc(int(count))
        if not count or record.start_time is None:
            return
        self._waits.labels(verb).observe(max(0.0, record.start_time - record.create_timestamp.timestamp()))
        if record.end_time is not None:
            self._durations.labels(verb, status).observe(record.end_time - record.start_time)

    def _count_active(self, runs: Iterable[dg.DagsterRun]) -> None:
        counts = dict.fromkeys(((verb, status) for verb in MAINTENANCE_VERBS for status in ("queued", "started")), 0)
        for run in runs:
            counts[run.tags[VERB_TAG], ACTIVE[run.status]] += 1
        for labels, number in counts.items():
            self._active.labels(*labels).set(number)


def _maintenance() -> dict[str, list[str]]:
    return {VERB_TAG: list(MAINTENANCE_VERBS)}
