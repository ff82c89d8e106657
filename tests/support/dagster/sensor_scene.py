"""A table in memory with its sensors, and a simulated daemon for each.

Name this module in `pytest_plugins` for the fixture `scene`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import pytest

import icedb
from icedb import Thresholds
from icedb.format.timing import MINUTE_MS
from icedb.testing import ManualClock
from icedb_dagster import build_table_definitions, sensors
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor
from tests.support.dagster.sensor_worlds import WORLDS, Daemon, SensorWorld, SimulatedLake, reported_commits

SECOND_MS = 1_000
#: Small parts only.
PARTS = Thresholds(hot_parts=4, cold_parts=4, log_files=1_000)
KINDS = ("merge_newest", "merge_oldest", "merge_log", "cleanup")


@pytest.fixture(scope="module")
def in_memory() -> Iterator[dg.DagsterInstance]:
    """Return an instance in memory, for tests that need no pools. Each test has its own table, and so its own jobs."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def maintenance(name: str, settings: MaintenanceSensor | None = None, **jobs: Any) -> dg.SensorDefinition:
    by_name = {job.name: job for job in build_table_definitions(name).jobs or ()}
    jobs = jobs or {kind: by_name[f"{name}_{kind}"] for kind in KINDS}
    return sensors.maintenance_sensor(
        dg.AssetKey(name),
        settings or MaintenanceSensor(PARTS),
        jobs=jobs,
        maintain=by_name[f"{name}_maintain"],
        resource_key="icedb",
    )


def commits(name: str, **settings: Any) -> dg.SensorDefinition:
    return sensors.commits_sensor(dg.AssetKey(name), CommitsSensor(**settings), resource_key="icedb")


class SensorScene(SensorWorld):
    """The test's table, its instance, and a daemon for each of its sensors."""

    def __init__(self, instance: dg.DagsterInstance, name: str) -> None:
        super().__init__()
        self.instance, self.name, self.lake = instance, name, SimulatedLake(root=f"memory://{name}")

    def table(self, parts: int = 0, *, partition_by: Sequence[str] = ("p",)) -> icedb.Table:
        """Create the table with this number of parts in the partition `p=a`."""
        table = self.create(self.name, partition_by=list(partition_by))
        fill(table, parts)
        return table

    def maintenance(self, settings: MaintenanceSensor | None = None, **jobs: Any) -> Daemon:
        return Daemon(self.instance, maintenance(self.name, settings, **jobs), self.lake)

    def commits(self, definitions: dg.Definitions | None = None, **settings: Any) -> Daemon:
        return Daemon(self.instance, commits(self.name, **settings), self.lake, definitions=definitions)

    def tick(self, daemon: Daemon, times: int = 1, *, after_ms: int = MINUTE_MS) -> None:
        """Advance the clock, and evaluate the sensor this number of times."""
        self.clock.advance(after_ms)
        for _ in range(times):
            daemon.tick()

    def reported(self, kind: str = "materialization") -> list[dict[str, Any]]:
        """Return the metadata of the reported commits of the table."""
        return reported_commits(self.instance, self.name, kind=kind)

    def reported_ms(self, kind: str = "materialization") -> list[int]:
        return [event["icedb/commit_time_ms"] for event in self.reported(kind)]

    def observations(self) -> Sequence[Any]:
        return self.instance.fetch_observations(dg.AssetKey(self.name), limit=10).records


@pytest.fixture
def scene(in_memory: dg.DagsterInstance, name: str) -> Iterator[SensorScene]:
    WORLDS[f"memory://{name}"] = made = SensorScene(in_memory, name)
    yield made
    del WORLDS[f"memory://{name}"]


def fill(table: icedb.Table, parts: int, *, p: str = "a") -> None:
    for n in range(parts):
        if isinstance(table.handle.clock, ManualClock):
            table.handle.clock.advance(1)
        table.insert([{"p": p, "n": n}])


def requested(result: dg.SensorResult) -> list[str]:
    return [str(request.job_name) for request in result.run_requests or ()]
