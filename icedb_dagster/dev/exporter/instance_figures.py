"""The state of an instance: the locks of tables, the last ticks of sensors, and the heartbeats of the daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import dagster as dg
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from icedb_dagster.dev.doctor.locks import table_pools_of
from icedb_dagster.dev.exporter.run_figures import ACTIVE
from icedb_dagster.locking.table_lock import POOL_TAG, table_of

__all__ = ["InstanceFigures", "LockFigures", "SensorFigures", "read_instance"]


@dataclass(frozen=True, slots=True)
class LockFigures:
    """The pool of a table: runs that hold it, and runs that wait for it."""

    held: int
    waiting: int


@dataclass(frozen=True, slots=True)
class SensorFigures:
    """The last tick of a running sensor. `tick_s` is in unix seconds."""

    tick_s: float
    failed: bool


@dataclass(frozen=True, slots=True)
class InstanceFigures:
    """The state of an instance at one time."""

    #: By the path of the table.
    locks: Mapping[str, LockFigures] = field(default_factory=dict)
    #: By name.
    sensors: Mapping[str, SensorFigures] = field(default_factory=dict)
    #: The last heartbeat in unix seconds, by kind of daemon.
    heartbeats: Mapping[str, float] = field(default_factory=dict)

    def metrics(self) -> Iterator[Metric]:
        """Yield the figures as metrics."""
        held = GaugeMetricFamily("icedb_dagster_lock_held", "Runs that hold the table's lock.", labels=["table"])
        waiting = GaugeMetricFamily(
            "icedb_dagster_lock_waiting", "Queued and started runs that wait for the lock.", labels=["table"]
        )
        for table, lock in self.locks.items():
            held.add_metric([table], lock.held)
            waiting.add_metric([table], lock.waiting)
        ticks = GaugeMetricFamily(
            "icedb_dagster_sensor_tick_timestamp_seconds", "Time of the sensor's last tick.", labels=["sensor"]
        )
        failed = GaugeMetricFamily(
            "icedb_dagster_sensor_failed", "Whether the sensor's last tick failed.", labels=["sensor"]
        )
        for name, sensor in self.sensors.items():
            ticks.add_metric([name], sensor.tick_s)
            failed.add_metric([name], float(sensor.failed))
        beats = GaugeMetricFamily(
            "icedb_dagster_daemon_heartbeat_timestamp_seconds", "Time of the last heartbeat.", labels=["daemon"]
        )
        for kind, at_s in self.heartbeats.items():
            beats.add_metric([kind], at_s)
        yield from (held, waiting, ticks, failed, beats)


def read_instance(instance: dg.DagsterInstance) -> InstanceFigures:
    """Read the state, with a query for each running sensor and a few others."""
    return InstanceFigures(
        locks=_locks(instance),
        sensors=dict(_sensors(instance)),
        heartbeats={b.daemon_type: b.timestamp for b in instance.get_daemon_heartbeats().values()},
    )


def _locks(instance: dg.DagsterInstance) -> dict[str, LockFigures]:
    pools = table_pools_of(instance)
    if not pools:
        return {}
    infos = instance.event_log_storage.get_concurrency_infos(list(pools))
    holders = {pool: {slot.run_id for slot in infos[pool].claimed_slots} for pool in pools}
    # A run waits in the queue, or in the step before the one that holds the pool: then it is not pending in the pool.
    active = instance.get_runs(dg.RunsFilter(statuses=list(ACTIVE), tags={POOL_TAG: list(pools)}))
    waiting = Counter(run.tags[POOL_TAG] for run in active if run.run_id not in holders[run.tags[POOL_TAG]])
    return {table_of({POOL_TAG: pool}) or "": LockFigures(len(holders[pool]), waiting[pool]) for pool in pools}


def _sensors(instance: dg.DagsterInstance) -> Iterator[tuple[str, SensorFigures]]:
    for state in instance.all_instigator_state():
        if state.instigator_type.value == "SENSOR" and state.is_running:
            for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1):
                yield state.instigator_name, SensorFigures(tick.timestamp, tick.is_failure)
