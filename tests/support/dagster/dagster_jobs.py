"""Tables with days, and the jobs that maintain them, for the Dagster tests."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from typing import Any

import dagster as dg
import pyarrow as pa

import icedb
from icedb_dagster import IceDBResource, TimeToLive, build_table_definitions


def definitions(lake: IceDBResource, table: Any, **options: Any) -> dg.Definitions:
    """The jobs of a table, with the lake that it is in."""
    return dg.Definitions.merge(build_table_definitions(table, **options), dg.Definitions(resources={"icedb": lake}))


def maintain(
    instance: dg.DagsterInstance, lake: IceDBResource, table: str, verb: str, **config: Any
) -> dg.ExecuteInProcessResult:
    """Run a job of a table whose rows live for thirty days; raises what it raises."""
    return run_job(instance, definitions(lake, table, ttl=TimeToLive("d", keep_days=30)), f"{table}_{verb}", **config)


def run_job(instance: dg.DagsterInstance, defs: dg.Definitions, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    """Run a maintenance job here, on an instance."""
    run_config = {"ops": {f"{job}_work": {"config": config}}}
    return defs.resolve_job_def(job).execute_in_process(instance=instance, run_config=run_config)


def dated(lake: IceDBResource, table: Any, *days: str | None) -> icedb.Table:
    """A table with a partition for each day, and a part for each mention of it."""
    made = lake.table_or_create(table, partition_by=["d"])
    for day in days:
        made.insert(pa.table({"d": pa.array([day], pa.string()), "n": [1]}))
    return made
