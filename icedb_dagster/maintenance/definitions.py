"""Build a table's jobs, schedules, sensors and checks.

A job has two steps. The first ensures that the table's pool admits one run at a time. The second does all the work
while it holds the pool. So runs of one table queue up, however they were started. Building definitions accesses
neither the store nor the instance, and is cheap: a platform has hundreds of tables.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import dagster as dg

from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Due
from icedb.operations.rewrite.engine import Engine
from icedb_dagster.checks import TableChecks, build_table_checks
from icedb_dagster.locking.run_kinds import FAILED_TAG, MAINTAIN
from icedb_dagster.locking.table_lock import POOL_TAG, TABLE_TAG, VERB_TAG, await_pool, check_pool_held, icedb_pool
from icedb_dagster.maintenance.exports import TableExport, export_verb
from icedb_dagster.maintenance.reports import log_report
from icedb_dagster.maintenance.schedules import IdleCheck, build_schedule
from icedb_dagster.maintenance.time_to_live import Expiry, TimeToLive
from icedb_dagster.maintenance.verbs import VERBS, MaintenanceTask, MaintenanceVerb, ttl_verb
from icedb_dagster.resource import IceDBResource, folders_of
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor
from icedb_dagster.sensors import commits_sensor as build_commits_sensor
from icedb_dagster.sensors import maintenance_sensor as build_maintenance_sensor

__all__ = ["CRONS", "MAX_RUNTIME_S", "EngineName", "Lock", "build_table_definitions"]

EngineName = Literal["in_process", "spark"]
Lock = Literal["pool", "claim"]
# A job, or an unresolved asset job.
Job = Any

#: The cron expressions of a table's schedules, by job name. No two jobs of a table start in the same minute. The
#: maintenance sensor starts the jobs that have no schedule (None) when they are due.
CRONS: Mapping[str, str | None] = {
    "merge_newest": None,
    "merge_oldest": None,
    "merge_log": None,
    "checks": "23 * * * *",
    "export_delta": "9 * * * *",
    "export_iceberg": "39 * * * *",
    "cleanup": None,
    "ttl": "18 3 * * *",
    "orphans": "43 4 * * *",
    "verify": "53 5 * * *",
}

#: The seconds after which run monitoring ends a maintenance run. An ended run loses the work since its last commit.
MAX_RUNTIME_S = 6 * 3600
_SENSOR = MaintenanceSensor()

# The daemon dequeues runs with a higher number first. So does a pool.
PRIORITY_TAG = "dagster/priority"
# Run monitoring terminates a run after this many seconds.
MAX_RUNTIME_TAG = "dagster/max_runtime"


@dataclass(frozen=True, slots=True)
class _Plan:
    """The settings that all jobs of a table share. `pool` is None if the claims in the store are the only lock."""

    key: dg.AssetKey
    name: str
    pool: str | None
    resource_key: str
    #: The key of the resource with the Spark session; None: this process rewrites parts.
    spark_key: str | None
    #: Tags of all runs.
    tags: Mapping[str, str]


def build_table_definitions(
    table: dg.AssetKey | Sequence[str] | str,
    *,
    ttl: TimeToLive | Expiry | None = None,
    export_delta: TableExport | None = None,
    export_iceberg: TableExport | None = None,
    engine: EngineName = "in_process",
    lock: Lock = "pool",
    max_runtime_s: int | None = MAX_RUNTIME_S,
    merge_newest_cron: str | None = CRONS["merge_newest"],
    merge_oldest_cron: str | None = CRONS["merge_oldest"],
    merge_log_cron: str | None = CRONS["merge_log"],
    cleanup_cron: str | None = CRONS["cleanup"],
    ttl_cron: str | None = CRONS["ttl"],
    orphans_cron: str | None = CRONS["orphans"],
    verify_cron: str | None = CRONS["verify"],
    export_delta_cron: str | None = CRONS["export_delta"],
    export_iceberg_cron: str | None = CRONS["export_iceberg"],
    running: bool = False,
    maintenance_sensor: MaintenanceSensor | None = _SENSOR,
    commits_sensor: CommitsSensor | None = None,
    checks: TableChecks | None = None,
    checks_cron: str | None = CRONS["checks"],
    resource_key: str = "icedb",
    spark_resource_key: str = "pyspark",
) -> dg.Definitions:
    """Return a table's maintenance jobs, and the sensor and schedules that start them, with checks on request.

    The jobs are `<table>_merge_newest`, `_merge_oldest`, `_merge_log`, `_cleanup`, `_orphans`, `_verify`, and `_ttl`,
    `_export_delta` and `_export_iceberg` if the argument of that name is given. The sensor `<table>_maintenance_sensor`
    starts merges and cleanups that are due: if several are, as one run of `<table>_maintain`. The other jobs have a
    schedule `<job>_schedule`. The jobs `_rewrite`, `_delete` and `_restore` have none and are started by hand. A run's
    config is that of its step: `{"ops": {"<job>_work": {"config": {...}}}}`. The table need not be an asset of these
    definitions.

    A schedule of a merge, a cleanup or a TTL starts no run if its job has nothing to do. Its tick shows the reason.

    Args:
        table: The asset key of the table, in any form that Dagster accepts.
        ttl: A `TimeToLive`, or a function of the open table and the reference time. The function returns the partitions
            to drop: paths, or a predicate over the partition columns.
        export_delta: Adds the job `<table>_export_delta`, which exports the table as Delta Lake, without copies.
        export_iceberg: As `export_delta`, for Iceberg.
        engine: `"in_process"`, or `"spark"`: the session of `spark_resource_key` does merges, rewrites and deletions.
        lock: `"pool"`: jobs that change the table hold the pool `icedb_pool(table)`. An instance without pools, as
            `dagster dev` has without Postgres, works as with `"claim"`, with a warning. `"claim"`: no pool is used, and
            the claims in the store alone keep the table right. Two runs may then do the same work, and the work of one
            is discarded.
        max_runtime_s: Seconds after which Dagster's run monitoring ends a run, so that no run holds the lock for ever;
            None: no limit.
        merge_newest_cron: Cron expression of the job's schedule, as for the other `_cron` arguments; None: no schedule.
        merge_oldest_cron: As `merge_newest_cron`.
        merge_log_cron: As `merge_newest_cron`.
        cleanup_cron: As `merge_newest_cron`.
        ttl_cron: As `merge_newest_cron`.
        orphans_cron: As `merge_newest_cron`.
        verify_cron: As `merge_newest_cron`.
        export_delta_cron: As `merge_newest_cron`.
        export_iceberg_cron: As `merge_newest_cron`.
        running: Whether schedules and sensors are started from the beginning.
        maintenance_sensor: Settings of the sensor `<table>_maintenance_sensor`; None: no sensor. Then give the merges
            and the cleanup a cron expression, or start them otherwise.
        commits_sensor: Adds the sensor `<table>_commits_sensor`, which reports commits made outside Dagster.
        checks: Adds the table's asset checks, as `build_table_checks` does, and the job `<table>_checks`.
        checks_cron: As `merge_newest_cron`.
        resource_key: The key of the `IceDBResource`.
        spark_resource_key: The key of a `PySparkResource`, or of any resource with a `spark_session`.

    Raises:
        InvalidOption: An argument is invalid.

    Example:
        ttl = TimeToLive("day", keep_days=90)
        defs = build_table_definitions("events", ttl=ttl, running=True)
    """
    key = dg.AssetKey.from_coercible(table)
    folders_of(key)  # fail now, not when a run opens the table
    _check(key, "engine", engine, ("in_process", "spark"))
    _check(key, "lock", lock, ("pool", "claim"))
    if max_runtime_s is not None and max_runtime_s < 1:
        raise InvalidOption(f"{key.to_user_string()}: max_runtime_s is {max_runtime_s}; give at least 1, or None.")
    plan = _Plan(
        key,
        key.to_python_identifier(),
        icedb_pool(key) if lock == "pool" else None,
        resource_key,
        spark_resource_key if engine == "spark" else None,
        {} if max_runtime_s is None else {MAX_RUNTIME_TAG: str(max_runtime_s)},
    )
    crons = {
        "merge_newest": merge_newest_cron,
        "merge_oldest": merge_oldest_cron,
        "merge_log": merge_log_cron,
        "checks": checks_cron,
        "cleanup": cleanup_cron,
        "ttl": ttl_cron,
        "orphans": orphans_cron,
        "verify": verify_cron,
        "export_delta": export_delta_cron,
        "export_iceberg": export_iceberg_cron,
    }
    lock_op = _lock_op(plan.name, plan.pool) if plan.pool is not None else None
    verbs = [*VERBS, *([ttl_verb(ttl)] if ttl is not None else [])]
    verbs += [] if export_delta is None else [export_verb("delta", export_delta)]
    verbs += [] if export_iceberg is None else [export_verb("iceberg", export_iceberg)]
    jobs = {verb.name: _job(plan, verb, lock_op if verb.exclusive else None) for verb in verbs}
    asset_checks = None if checks is None else build_table_checks(key, checks, resource_key=resource_key)
    started: dict[str, Job] = {**jobs, **({} if asset_checks is None else {"checks": _checks_job(plan, asset_checks)})}
    scheduled = {name: cron for name, cron in crons.items() if name in started and cron is not None}
    idle = {verb.name: IdleCheck(key, resource_key, verb) for verb in verbs if verb.may_be_idle}
    return dg.Definitions(
        jobs=[*started.values()],
        schedules=[
            build_schedule(started[name], cron, running=running, idle=idle.get(name))
            for name, cron in scheduled.items()
        ],
        sensors=_sensors(plan, jobs, maintenance_sensor, commits_sensor, running=running),
        asset_checks=[] if asset_checks is None else [asset_checks],
    )


def _check(key: dg.AssetKey, name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidOption(f"{key.to_user_string()}: {name} is {value!r}; give '{choices[0]}' or '{choices[1]}'.")


def _sensors(
    plan: _Plan,
    jobs: Mapping[str, dg.JobDefinition],
    maintenance: MaintenanceSensor | None,
    commits: CommitsSensor | None,
    *,
    running: bool,
) -> list[dg.SensorDefinition]:
    sensors = []
    if running:
        maintenance = maintenance and replace(maintenance, running=True)
        commits = commits and replace(commits, running=True)
    if maintenance is not None:
        due = {name: jobs[name] for name in get_args(Due)}
        sensors.append(
            build_maintenance_sensor(
                plan.key,
                maintenance,
                jobs=due,
                # With Spark, the resource starts a session with each run, and only merges need one.
                maintain=jobs[MAINTAIN] if plan.spark_key is None else None,
                resource_key=plan.resource_key,
            )
        )
    if commits is not None:
        sensors.append(build_commits_sensor(plan.key, commits, resource_key=plan.resource_key))
    return sensors


def _checks_job(plan: _Plan, checks: dg.AssetChecksDefinition) -> Any:
    """Return the job of all checks of the table. It changes nothing, so it needs no pool."""
    return dg.define_asset_job(
        f"{plan.name}_checks",
        selection=dg.AssetSelection.checks(*checks.check_keys),
        description="Runs the checks of the table. Changes nothing.",
        executor_def=dg.in_process_executor,
        tags={TABLE_TAG: plan.name, VERB_TAG: "checks", **plan.tags},
    )


def _job(plan: _Plan, verb: MaintenanceVerb[Any], lock: dg.OpDefinition | None) -> dg.JobDefinition:
    """Build a job without Dagster's decorators: they inspect signatures, which takes seconds for a thousand jobs."""
    work = _work_op(plan, verb, None if lock is None else plan.pool)
    after = {} if lock is None else {"locked": dg.DependencyDefinition(lock.name)}
    nodes = [work] if lock is None else [lock, work]
    graph = dg.GraphDefinition(
        name=f"{plan.name}_{verb.name}",
        description=f"{verb.description} {f'Holds the pool {plan.pool}.' if lock is not None else ''}".rstrip(),
        node_defs=nodes,
        dependencies={work.name: after},
    )
    queued = {} if lock is None or plan.pool is None else {POOL_TAG: plan.pool}
    # In one process: a separate process per step takes seconds to start, and DuckDB does the work.
    return graph.to_job(
        executor_def=dg.in_process_executor,
        tags={
            TABLE_TAG: plan.name,
            VERB_TAG: verb.name,
            PRIORITY_TAG: str(verb.priority),
            **queued,
            **plan.tags,
        },
    )


def _lock_op(name: str, pool: str) -> dg.OpDefinition:
    def lock(context: dg.OpExecutionContext, inputs: Mapping[str, object]) -> Iterator[dg.Output[None]]:
        await_pool(context, pool)
        yield dg.Output(None)

    return dg.OpDefinition(
        compute_fn=lock,
        name=f"{name}_lock",
        description=f"Ensures that the pool {pool} admits one run at a time.",
        outs={"result": dg.Out(dg.Nothing)},
    )


def _work_op(plan: _Plan, verb: MaintenanceVerb[Any], pool: str | None) -> dg.OpDefinition:
    spark_key = plan.spark_key if verb.rewrites else None

    def work(context: dg.OpExecutionContext, inputs: Mapping[str, object]) -> Iterator[dg.Output[None]]:
        if pool is not None:
            check_pool_held(context, pool)
        resource: IceDBResource = getattr(context.resources, plan.resource_key)
        table = resource.table(plan.key)
        config = verb.config(**context.op_config)
        report = verb.work(MaintenanceTask(table, config, _engine(context, spark_key)))
        if report.failed_kinds:
            context.instance.add_run_tags(context.run_id, {FAILED_TAG: ",".join(report.failed_kinds)})
        log_report(context, plan.key, verb.name, table, report)
        yield dg.Output(None)

    return dg.OpDefinition(
        compute_fn=work,
        name=f"{plan.name}_{verb.name}_work",
        description=verb.description,
        pool=pool,
        ins={} if pool is None else {"locked": dg.In(dg.Nothing)},
        outs={"result": dg.Out(dg.Nothing)},
        config_schema=verb.config_schema,
        required_resource_keys={plan.resource_key} | ({spark_key} if spark_key is not None else set()),
        tags={TABLE_TAG: plan.name},
    )


def _engine(context: dg.OpExecutionContext, spark_key: str | None) -> Engine | None:
    if spark_key is None:
        return None
    from icedb.spark import SparkEngine  # imports pyspark

    return SparkEngine(getattr(context.resources, spark_key).spark_session)
