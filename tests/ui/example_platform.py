"""The example project on its own platform, with its tables in a bucket, for the tests of the UI.

A copy of `examples/web_analytics` with a few generated events on each of `DAYS` days. Events and sessions exist; the
tests start the rest by clicks: the daily metrics, a merge, a failing check, a sensor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import dagster as dg
from dagster._core.scheduler.instigation import InstigatorStatus

import icedb
from icedb_dagster.dev import stack
from icedb_dagster.dev.stack.ports import free_port
from tests.support.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "web_analytics"
#: Days of September 2026, from the first.
DAYS = 21
LAKE = "s3://lake/web-analytics"
GENERATE = """
from web_analytics import generate, settings
generate.generate(settings.INBOX, settings.DAYS, scale=0.1)
"""


@dataclass(frozen=True)
class ExamplePlatform:
    """The running platform: the address of its UI, its instance and its tables."""

    url: str
    instance: dg.DagsterInstance
    project: Path

    def table(self, name: str) -> icedb.Table:
        """Open a table of the project."""
        return icedb.Table.open(f"{LAKE}/{name}")

    def put(self, key: str, content: bytes) -> None:
        """Put a foreign object below the tables."""
        bucket, _, prefix = LAKE.removeprefix("s3://").partition("/")
        boto3.client("s3").put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=content)

    def switched_on(self) -> set[str]:
        """Return the schedules and sensors that run."""
        states = self.instance.all_instigator_state()
        return {state.instigator_name for state in states if state.status is InstigatorStatus.RUNNING}


@contextmanager
def example_platform(folder: Path, *, storage_options: Mapping[str, str]) -> Iterator[ExamplePlatform]:
    """Start the platform in a folder, fill its first tables, and stop it at the end."""
    project = folder / "web_analytics"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("data", ".icedb-dagster", "__pycache__"))
    saved = dict(os.environ)
    for name in ("ICEDB_POSTGRES_URL", "DAGSTER_HOME"):
        os.environ.pop(name, None)
    os.environ |= {
        **storage_options,
        "LAKE_ROOT": LAKE,
        "WEB_ANALYTICS_DATA": str(folder / "data"),
        "WEB_ANALYTICS_DAYS": str(DAYS),
    }
    try:
        started = stack.up(project, port=free_port())
        assert started.warnings == (), started.warnings
        os.environ.update(stack.environment(started))
        run_python("-c", GENERATE, cwd=project)
        _materialize(project, "events", "sessions")
        with dg.DagsterInstance.get() as instance:
            yield ExamplePlatform(str(started.webserver_url), instance, project)
    finally:
        stack.down(project)
        os.environ.clear()
        os.environ.update(saved)


def _materialize(project: Path, *assets: str) -> None:
    days = f"2026-09-01...2026-09-{DAYS:02}"
    select = ",".join(assets)
    command = ["dagster", "asset", "materialize", "-m", "web_analytics.definitions", "--select", select]
    run_python("-m", *command, "--partition-range", days, cwd=project)
