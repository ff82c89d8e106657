"""Maintenance jobs whose engine is Spark, in a process of their own: there is one Spark per process.

Run as `python spark_maintenance.py <root> <table> <result>` by tests/icedb_dagster/test_maintenance.py, on the Dagster
instance of the environment.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

import icedb.spark.spark_engine
from icedb_dagster import IceDBResource, build_table_definitions, icedb_pool
from tests.support.spark.spark_clusters import dagster_spark


def main(root: str, name: str, result: str) -> None:
    lake = IceDBResource(root=root)
    works: list[str] = []
    held: list[str] = []
    parts = [len(lake.table(name).snapshot().parts)]
    run_tasks = icedb.spark.spark_engine.run_tasks
    defs = dg.Definitions.merge(
        build_table_definitions(name, engine="spark"),
        dg.Definitions(resources={"icedb": lake, "pyspark": dagster_spark(Path(f"{result}.spark-home"))}),
    )
    with dg.DagsterInstance.get() as instance:

        def record_and_run(spark: Any, assignment: Any, shares: Sequence[Any]) -> Any:
            works.append(assignment.work.name)
            info = instance.event_log_storage.get_concurrency_info(icedb_pool(name))
            held.extend(slot.run_id and info.concurrency_key for slot in info.claimed_slots)
            return run_tasks(spark, assignment, shares)

        icedb.spark.spark_engine.run_tasks = record_and_run
        for job, config in ((f"{name}_merge_oldest", {}), (f"{name}_delete", {"where": "d = '2024-01-01' AND n = 1"})):
            run_config = {"ops": {f"{job}_work": {"config": config}}}
            assert defs.resolve_job_def(job).execute_in_process(instance=instance, run_config=run_config).success
            if len(parts) == 1:
                parts.append(len(lake.table(name).snapshot().parts))
    Path(result).write_text(json.dumps({"works": works, "parts": parts, "held": held}))


if __name__ == "__main__":
    main(*sys.argv[1:])
