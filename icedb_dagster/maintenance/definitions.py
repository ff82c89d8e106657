"""A table's jobs, schedules, sensors and checks.

A job is two steps: one makes sure that the table's pool lets one run at a time in, the other does all the work while
it holds the pool. So runs of one table queue up behind each other however they were started. Definitions are made
without a look at the store or the instance, and cheaply: a platform has hundreds of tables.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import dagster as dg

from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Due
from icedb.operations.rewrite.engine import Engine
from icedb_dagster.checks import TableChecks, build_table_checks
from icedb_dagster.locking.table_lock import POOL_TAG, await_pool, check_pool_held, icedb_pool
from icedb_dagster.maintenance.reports import log_report
from icedb_dagster.maintenance.time_to_live import Expiry, TimeToLive
from icedb_dagster.maintenance.verbs import VERBS, MaintenanceTask, MaintenanceVerb, ttl_verb
from icedb_dagster.resource import IceDBResource, folders_of
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor
from icedb_dagster.sensors import commits_sensor as build_commits_sensor
from icedb_dagster.sensors import maintenance_sensor as build_maintenance_sensor

__all__ = ["CRONS", "EngineName", "Lock", "build_table_definitions"]

EngineName = Literal["in_process", "spark"]
Lock = Literal["pool", "claim"]
# A job, or what becomes one when all assets are known.
Job = Any

#: When the schedules of a table start its jobs, by the jobs' names: of one table, no two in the same minute.
CRONS: Mapping[str, str] = {
    "merge_newest": "*/5 * * * *",
    "merge_oldest": "7-59/15 * * * *",
    "merge_log": "13 * * * *",
    "checks": "23 * * * *",
    "cleanup": "33 */6 * * *",
    "ttl": "18 3 * * *",
    "orphans": "43 4 * * *",
    "verify": "53 5 * * *",
}

# Of the runs in the queue, the daemon starts the one with the highest number first; a pool goes by the same.
PRIORITY_TAG = "dagster/priority"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all jobs of a table have in common. `pool`: None when the claims of the store are the only lock."""

    key: dg.AssetKey
    name: str
    pool: str | None
    resource_key: str
    #: Where the Spark session is; None: this process rewrites parts.
    spark_key: str | None


def build_table_definitions(
    table: dg.AssetKey | Sequence[str] | str,
    *,
    ttl: TimeToLive | Expiry | None = None,
    engine: EngineName = "in_process",
    lock: Lock = "pool",
    merge_newest_cron: str | None = CRONS["merge_newest"],
    merge_oldest_cron: str | None = CRONS["merge_oldest"],
    merge_log_cron: str | None = CRONS["merge_log"],
    cleanup_cron: str | None = CRONS["cleanup"],
    ttl_cron: str | None = CRONS["ttl"],
    orphans_cron: str | None = CRONS["orphans"],
    verify_cron: str | None = CRONS["verify"],
    schedules_running: bool = False,
    maintenance_sensor: MaintenanceSensor | None = None,
    commits_sensor: CommitsSensor | None = None,
    checks: TableChecks | None = None,
    checks_cron: str | None = CRONS["checks"],
    resource_key: str = "icedb",
    spark_resource_key: str = "pyspark",
) -> dg.Definitions:
    """Jobs that maintain a table, with schedules, and if you ask for them sensors and checks.

    Jobs: `<table>_merge_newest`, `_merge_oldest`, `_merge_log`, `_cleanup`, `_orphans`, `_verify`, and `_ttl` with
    `ttl`, each with a schedule `<job>_schedule` (None leaves it out); `_rewrite`, `_delete` and `_restore` are started
    by hand. Schedules are stopped until somebody starts them, unless `schedules_running`. The config of a run is that
    of its step: `{"ops": {"<job>_work": {"config": {...}}}}`. They need an `IceDBResource` under `resource_key`; the
    table need not be an asset of these definitions.

    `ttl`: a `TimeToLive`, or a function of the open table and the reference time that gives the partitions to drop:
    paths, or a predicate over the partition columns. `engine="spark"`: merges, rewrites and deletions are done by the
    session of the resource `spark_resource_key` (a `PySparkResource`, or anything with a `spark_session`).

    `lock`: with `"pool"`, what changes the table holds the pool `icedb_pool(table)`, and refuses an instance whose
    pools cannot hold it. `"claim"`: no pool is used, and the claims in the store alone keep the table right; two runs
    may then do the same work, of which one's is thrown away.

    `maintenance_sensor`: the sensor `<table>_maintenance_sensor` starts jobs when they are due. `commits_sensor`:
    `<table>_commits_sensor` tells Dagster of commits that others make. `checks`: asset checks of the table, as
    `build_table_checks` makes them, and a job `<table>_checks` with a schedule. Raises InvalidOption.
    """
    key = dg.AssetKey.from_coercible(table)
    folders_of(key)  # better now than when a run opens the table
    _check(key, "engine", engine, ("in_process", "spark"))
    _check(key, "lock", lock, ("pool", "claim"))
    plan = _Plan(
        key,
        key.to_python_identifier(),
        icedb_pool(key) if lock == "pool" else None,
        resource_key,
        spark_resource_key if engine == "spark" else None,
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
    }
    lock_op = _lock_op(plan.name, plan.pool) if plan.pool is not None else None
    verbs = [*VERBS, *([ttl_verb(ttl)] if ttl is not None else [])]
    jobs = {verb.name: _job(plan, verb, lock_op if verb.exclusive else None) for verb in verbs}
    asset_checks = None if checks is None else build_table_checks(key, checks, resource_key=resource_key)
    started: dict[str, Job] = {**jobs, **({} if asset_checks is None else {"checks": _checks_job(plan, asset_checks)})}
    scheduled = [(started[verb], cron) for verb, cron in crons.items() if verb in started and cron is not None]
    return dg.Definitions(
        jobs=[*started.values()],
        schedules=[_schedule(job, cron, running=schedules_running) for job, cron in scheduled],
        sensors=_sensors(plan, jobs, maintenance_sensor, commits_sensor),
        asset_checks=[] if asset_checks is None else [asset_checks],
    )


def _check(key: dg.AssetKey, name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidOption(f"{key.to_user_string()}: {name} is {value!r}; give '{choices[0]}' or '{choices[1]}'.")


def _schedule(job: Job, cron: str, *, running: bool) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description=f"Starts {job.name}. {'Runs until you stop it.' if running else 'Stopped until you start it.'}",
    )


def _sensors(
    plan: _Plan,
    jobs: Mapping[str, dg.JobDefinition],
    maintenance: MaintenanceSensor | None,
    commits: CommitsSensor | None,
) -> list[dg.SensorDefinition]:
    sensors = []
    if maintenance is not None:
        due = {name: jobs[name] for name in get_args(Due)}
        sensors.append(build_maintenance_sensor(plan.key, maintenance, jobs=due, resource_key=plan.resource_key))
    if commits is not None:
        sensors.append(build_commits_sensor(plan.key, commits, resource_key=plan.resource_key))
    return sensors


def _checks_job(plan: _Plan, checks: dg.AssetChecksDefinition) -> Any:
    """Of all checks of the table. It changes nothing, so it needs no pool."""
    return dg.define_asset_job(
        f"{plan.name}_checks",
        selection=dg.AssetSelection.checks(*checks.check_keys),
        description="Runs the checks of the table. Changes nothing.",
        executor_def=dg.in_process_executor,
        tags={"icedb/table": plan.name, "icedb/verb": "checks"},
    )


def _job(plan: _Plan, verb: MaintenanceVerb[Any], lock: dg.OpDefinition | None) -> dg.JobDefinition:
    """Without Dagster's decorators: they look at each function's signature, which takes seconds for a thousand jobs."""
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
    # In one process: a step of its own process takes seconds to start, and the work is DuckDB's.
    return graph.to_job(
        executor_def=dg.in_process_executor,
        tags={"icedb/table": plan.name, "icedb/verb": verb.name, PRIORITY_TAG: str(verb.priority), **queued},
    )


def _lock_op(name: str, pool: str) -> dg.OpDefinition:
    def lock(context: dg.OpExecutionContext, inputs: Mapping[str, object]) -> Iterator[dg.Output[None]]:
        await_pool(context, pool)
        yield dg.Output(None)

    return dg.OpDefinition(
        compute_fn=lock,
        name=f"{name}_lock",
        description=f"Makes sure that the pool {pool} lets one run at a time in.",
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
        tags={"icedb/table": plan.name},
    )


def _engine(context: dg.OpExecutionContext, spark_key: str | None) -> Engine | None:
    if spark_key is None:
        return None
    from icedb.spark import SparkEngine  # with it comes pyspark

    return SparkEngine(getattr(context.resources, spark_key).spark_session)
