"""Checks of a Dagster instance's settings (`dagster.yaml`): storage, pool granularity, run queue, run monitoring."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.locking.table_lock import POOL_TAG

__all__ = ["InstanceSettings", "judge_settings", "read_settings"]

# The acceptable wait of a table's next run after a worker died.
SLOT_FREE_S_MAX = 60


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """The settings of an instance, as Dagster parsed them. None: not set."""

    storage: str
    has_pools: bool
    granularity: str | None
    coordinator: str
    runs_max: int | None
    waits_in_queue: bool
    monitoring: bool
    poll_s: int
    free_slots_s: int | None
    #: Whether the run launcher can detect that a started run's worker is gone.
    knows_workers: bool

    @property
    def on_postgres(self) -> bool:
        """True if runs, events and pools are in Postgres."""
        return self.storage.startswith("Postgres")

    @property
    def slot_free_s(self) -> int:
        """Seconds until a dead worker's slot is free: one poll fails the run, a later one frees its slot."""
        return 2 * self.poll_s + (self.free_slots_s or 0)


def read_settings(instance: dg.DagsterInstance) -> InstanceSettings:
    """Return the settings of an instance."""
    concurrency = instance.get_concurrency_config()
    granularity = concurrency.pool_config.pool_granularity
    queue = concurrency.run_queue_config
    return InstanceSettings(
        storage=type(instance.event_log_storage).__name__,
        has_pools=instance.event_log_storage.supports_global_concurrency_limits,
        granularity=granularity.value if granularity else None,
        coordinator=type(instance.run_coordinator).__name__,
        runs_max=queue.max_concurrent_runs if queue else None,
        waits_in_queue=queue is not None
        and any(limit.get("key") == POOL_TAG for limit in queue.tag_concurrency_limits),
        monitoring=instance.run_monitoring_enabled,
        poll_s=instance.run_monitoring_poll_interval_seconds,
        free_slots_s=instance.run_monitoring_settings.get("free_slots_after_run_end_seconds") or None,
        knows_workers=instance.run_launcher.supports_check_run_worker_health,
    )


def judge_settings(settings: InstanceSettings) -> list[DoctorFinding]:
    """Return one finding each for storage, pool granularity, run queue and run monitoring."""
    return [_storage(settings), _granularity(settings), _queue(settings), _monitoring(settings)]


def _storage(settings: InstanceSettings) -> DoctorFinding:
    check = "storage"
    if settings.on_postgres and settings.has_pools:
        return ok(check, "runs, events and pools are in Postgres")
    if settings.on_postgres:
        return problem(check, "the event log in Postgres has no tables for pools", "run: dagster instance migrate")
    return problem(
        check,
        f"{settings.storage}: runs on several machines or in several processes share no lock",
        "in dagster.yaml: storage: {postgres: {postgres_url: {env: ...}}}; here: icedb-dagster up",
    )


def _granularity(settings: InstanceSettings) -> DoctorFinding:
    check = "pool granularity"
    if settings.granularity == "op":
        return ok(check, "op: each step that works on a table holds its pool")
    if settings.granularity is None:
        state = "not set: a later Dagster may have another default"
        return warning(check, state, "in dagster.yaml: concurrency: {pools: {granularity: op}}")
    return problem(
        check,
        f"{settings.granularity}: only the queue checks pools, so runs started without it hold none",
        "in dagster.yaml: concurrency: {pools: {granularity: op}}",
    )


def _queue(settings: InstanceSettings) -> DoctorFinding:
    check = "run queue"
    remedy = "in dagster.yaml: concurrency: {runs: {max_concurrent_runs: 4}}"
    if settings.runs_max is None:
        return problem(
            check,
            f"{settings.coordinator}: every run starts at once, and each that waits for a table's pool occupies a "
            "process",
            f"in dagster.yaml: run_coordinator: {{module: dagster, class: QueuedRunCoordinator}}; {remedy}",
        )
    if settings.runs_max < 0:
        return warning(check, "no limit: a backfill starts all its runs at once", remedy)
    if not settings.waits_in_queue:
        return warning(
            check,
            f"at most {settings.runs_max} concurrent runs, and each that waits for a table's lock takes one of these "
            "places",
            f"in dagster.yaml: concurrency: {{runs: {{tag_concurrency_limits: [{{key: {POOL_TAG}, value: "
            "{applyLimitPerUniqueValue: true}, limit: 1}]}}",
        )
    return ok(check, f"at most {settings.runs_max} concurrent runs, and one for each table's lock")


def _monitoring(settings: InstanceSettings) -> DoctorFinding:
    check = "run monitoring"
    remedy = (
        "in dagster.yaml: run_monitoring: {enabled: true, poll_interval_seconds: 10, "
        "free_slots_after_run_end_seconds: 30}"
    )
    if not settings.monitoring:
        return problem(check, "off: a worker that dies holds its table's pool for ever", remedy)
    if settings.free_slots_s is None:
        return problem(check, "the slots of ended runs are never freed", remedy)
    if not settings.knows_workers:
        return warning(
            check,
            "a worker that dies together with its code server holds its table's pool until its run is terminated",
            "in dagster.yaml: run_launcher: {module: icedb_dagster.launcher, class: MonitoredRunLauncher}; or a "
            "launcher that starts a container for each run",
        )
    state = f"a dead worker's slot is freed within {settings.slot_free_s} s"
    if settings.slot_free_s > SLOT_FREE_S_MAX:
        return warning(check, f"{state}; the table's runs wait that long", remedy)
    return ok(check, state)
