"""The runs of an example: on a Dagster instance in the local stack's Postgres, in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from examples.shared.recovery import fail_dead_runs, process_tags
from examples.shared.report import ExampleReport, ProgressHandler
from icedb_dagster.dev import stack

__all__ = ["QUIET", "maintain", "materialize", "on_postgres", "show_progress"]

POSTGRES: tuple[stack.ServiceName, ...] = ("postgres",)
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@contextmanager
def on_postgres(project: Path, report: ExampleReport) -> Iterator[dg.DagsterInstance]:
    """Yield the instance of the local stack in a folder. Stop its Postgres afterwards, unless it ran before."""
    report.say("[bold]start Dagster's Postgres[/bold]")
    started = stack.up(project, services=POSTGRES, progress=lambda line: report.say(f"  {line}"))
    try:
        os.environ.update(stack.environment(started))
        with dg.DagsterInstance.get() as instance:
            for run_id in fail_dead_runs(instance):
                report.say(f"  run {run_id[:8]} of a killed process is marked as failed, and its lock is freed")
            yield instance
    finally:
        stack.release(started)


def show_progress(logger: str, report: ExampleReport) -> None:
    """Print the log records of a logger as progress lines."""
    work_logger = logging.getLogger(logger)
    work_logger.setLevel(logging.INFO)
    work_logger.addHandler(ProgressHandler(report))


def materialize(
    instance: dg.DagsterInstance,
    defs: dg.Definitions,
    *keys: dg.AssetKey,
    partitions: Sequence[str] = (),
) -> dg.ExecuteInProcessResult:
    """Materialize assets in one Dagster run. `partitions`: from the first to the last of them in that run."""
    tags = process_tags()
    if partitions:
        tags["dagster/asset_partition_range_start"] = partitions[0]
        tags["dagster/asset_partition_range_end"] = partitions[-1]
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, asset_selection=[*keys], run_config=QUIET, tags=tags)


def maintain(
    instance: dg.DagsterInstance, defs: dg.Definitions, job: str, config: Mapping[str, object] | None = None
) -> dg.ExecuteInProcessResult:
    """Run one maintenance job, which holds the table's pool."""
    run_config = {**QUIET, "ops": {f"{job}_work": {"config": dict(config or {})}}}
    return defs.resolve_job_def(job).execute_in_process(instance=instance, run_config=run_config, tags=process_tags())
