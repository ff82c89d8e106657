"""Runs of merge jobs, each in a process of its own, all started at the same moment.

Run as `python maintenance_runs.py '{"root": ..., "tables": [...], "verb": ..., "hold_s": 1, "folder": ...}'` by
tests/icedb_dagster/test_locks.py; writes into `all.json` when each run's work began and ended. Dagster is imported once
and the processes are forked from there: on two cores, importing it ten times would take longer than all the runs.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import dagster as dg

import icedb
from icedb_dagster import IceDBResource, build_table_definitions


def run(job: dg.JobDefinition, table: str, hold_s: float, barrier: Barrier, out: Path) -> None:
    moments: list[float] = []
    merge = icedb.Table.merge

    def slow_merge(self: icedb.Table, **options: Any) -> Any:
        moments.append(time.monotonic())
        time.sleep(hold_s)
        report = merge(self, **options)
        moments.append(time.monotonic())
        return report

    icedb.Table.merge = slow_merge  # type: ignore[method-assign]
    with dg.DagsterInstance.get() as instance:
        barrier.wait()
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    errors = [str(event.step_failure_data.error) for event in result.get_step_failure_events()]
    outcome = {"table": table, "success": result.success, "errors": errors, "began": moments[0], "ended": moments[-1]}
    out.write_text(json.dumps(outcome))


def main(task: dict[str, Any]) -> None:
    fork = multiprocessing.get_context("fork")
    tables = task["tables"]
    barrier = fork.Barrier(len(tables))
    resources = dg.Definitions(resources={"icedb": IceDBResource(root=task["root"])})
    built = {t: dg.Definitions.merge(build_table_definitions(t), resources) for t in set(tables)}
    jobs = {t: defs.resolve_job_def(f"{t}_{task['verb']}") for t, defs in built.items()}
    with dg.DagsterInstance.get():
        pass  # imports what it needs, once for all; its connections are closed again
    outs = [Path(task["folder"], f"{n}.json") for n in range(len(tables))]
    children = [
        fork.Process(target=run, args=(jobs[table], table, task["hold_s"], barrier, out))
        for table, out in zip(tables, outs, strict=True)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    Path(task["folder"], "all.json").write_text(json.dumps([json.loads(out.read_text()) for out in outs]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
