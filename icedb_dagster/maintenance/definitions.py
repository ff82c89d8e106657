"""A table's jobs and schedules.

A job is two steps: one makes sure that the table's pool lets one run at a time in, the other does all the work while
it holds the pool. So runs of one table queue up behind each other however they were started. Definitions are made
without a look at the store or the instance, and cheaply: a platform has hundreds of tables.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg

from icedb.errors import InvalidOption
from icedb.work import Engine
from icedb_dagster.locks import POOL_TAG, await_pool, check_pool_held, icedb_pool
from icedb_dagster.maintenance.reports import log_report
from icedb_dagster.maintenance.time_to_live import Expiry, TimeToLive
from icedb_dagster.maintenance.verbs import VERBS, Task, Verb, ttl_verb
from icedb_dagster.resource import IceDBResource

__all__ = ["EngineName", "Lock", "build_table_definitions"]

EngineName = Literal["in_process", "spark"]
Lock = Literal["pool", "claim"]

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
    merge_newest_cron: str | None = "*/5 * * * *",
    merge_oldest_cron: str | None = "7-59/15 * * * *",
    merge_log_cron: str | None = "13 * * * *",
    cleanup_cron: str | None = "33 * * * *",
    ttl_cron: str | None = "18 3 * * *",
    orphans_cron: str | None = "43 4 * * *",
    verify_cron: str | None = "53 5 * * *",
    resource_key: str = "icedb",
    spark_resource_key: str = "pyspark",
) -> dg.Definitions:
    """Jobs that maintain a table, and schedules for them, stopped until somebody starts them.

    Jobs: `<table>_merge_newest`, `_merge_oldest`, `_merge_log`, `_cleanup`, `_orphans`, `_verify`, and `_ttl` with
    `ttl`, each with a schedule `<job>_schedule` (None leaves it out); `_rewrite`, `_delete` and `_restore` are started
    by hand. The config of a run is that of its step: `{"ops": {"<job>_work": {"config": {...}}}}`. They need an
    `IceDBResource` under `resource_key`; the table need not be an asset of these definitions.

    `ttl`: a `TimeToLive`, or a function of the open table and the reference time that gives the partitions to drop:
    paths, or a predicate over the partition columns. `engine="spark"`: merges, rewrites and deletions are done by the
    session of the resource `spark_resource_key` (a `PySparkResource`, or anything with a `spark_session`).

    `lock`: with `"pool"`, what changes the table holds the pool `icedb_pool(table)`, and refuses an instance whose
    pools cannot hold it. `"claim"`: no pool is used, and the claims in the store alone keep the table right; two runs
    may then do the same work, of which one's is thrown away. Raises InvalidOption.
    """
    key = dg.AssetKey.from_coercible(table)
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
        "cleanup": cleanup_cron,
        "ttl": ttl_cron,
        "orphans": orphans_cron,
        "verify": verify_cron,
    }
    lock_op = _lock_op(plan.name, plan.pool) if plan.pool is not None else None
    verbs = [*VERBS, *([ttl_verb(ttl)] if ttl is not None else [])]
    jobs = {verb.name: _job(plan, verb, lock_op if verb.exclusive else None) for verb in verbs}
    schedules = [_schedule(jobs[verb], cron) for verb, cron in crons.items() if verb in jobs and cron is not None]
    return dg.Definitions(jobs=list(jobs.values()), schedules=schedules)


def _check(key: dg.AssetKey, name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidOption(f"{key.to_user_string()}: {name} is {value!r}; give '{choices[0]}' or '{choices[1]}'.")


def _schedule(job: dg.JobDefinition, cron: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Starts {job.name}. Stopped until you start it.",
    )


def _job(plan: _Plan, verb: Verb[Any], lock: dg.OpDefinition | None) -> dg.JobDefinition:
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


def _work_op(plan: _Plan, verb: Verb[Any], pool: str | None) -> dg.OpDefinition:
    spark_key = plan.spark_key if verb.rewrites else None

    def work(context: dg.OpExecutionContext, inputs: Mapping[str, object]) -> Iterator[dg.Output[None]]:
        if pool is not None:
            check_pool_held(context, pool)
        resource: IceDBResource = getattr(context.resources, plan.resource_key)
        table = resource.table(plan.key)
        config = verb.config(**context.op_config)
        report = verb.work(Task(table, config, _engine(context, spark_key)))
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
    from icedb.spark import SparkMergeEngine  # with it comes pyspark

    return SparkMergeEngine(getattr(context.resources, spark_key).spark_session)
