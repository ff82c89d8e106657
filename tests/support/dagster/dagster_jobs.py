"""Tables with days, and the jobs that maintain them.

A module takes the fixture `jobs` with `pytest_plugins`, beside those of `dagster_instance`.

PYTEST_DONT_REWRITE: a test module imports this before pytest takes it as a plugin, too late for its asserts.
"""

from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import icedb
from icedb_dagster import IceDBResource, TimeToLive, build_table_definitions
from tests.support.dagster.dagster_instance import rows


def definitions(lake: IceDBResource, table: Any, **options: Any) -> dg.Definitions:
    """Return the jobs of a table, with its lake."""
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
    """Create a table with a partition for each day, and a part for each mention of a day."""
    made = lake.table_or_create(table, partition_by=["d"])
    for day in days:
        made.insert(pa.table({"d": pa.array([day], pa.string()), "n": [1]}))
    return made


@dataclass(frozen=True)
class TableJobs:
    """The test's table in the lake, and its maintenance jobs on the instance."""

    instance: dg.DagsterInstance
    lake: IceDBResource
    name: str

    def dated(self, *days: str | None) -> icedb.Table:
        return dated(self.lake, self.name, *days)

    def run(self, verb: str, **config: Any) -> dg.ExecuteInProcessResult:
        return maintain(self.instance, self.lake, self.name, verb, **config)

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return rows(self.lake, self.name, columns)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the newest observation of the table."""
        event = self.instance.fetch_observations(dg.AssetKey(self.name), limit=1).records[0].asset_observation
        assert event is not None
        return {name: value.value for name, value in event.metadata.items()}


@pytest.fixture
def jobs(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> TableJobs:
    return TableJobs(instance, lake, name)
