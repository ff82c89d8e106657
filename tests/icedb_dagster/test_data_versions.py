"""Data versions: assets downstream are out of date when rows change, and not when a table is read or maintained."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import icedb
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from icedb.util.times import parse_as_of
from icedb_dagster import IceDBIOManager, IceDBResource, TimeToLive, build_table_definitions, observable_table
from icedb_dagster.metadata.data_versions import DATA_VERSION_TAG, data_version
from icedb_dagster.metadata.table_metadata import table_metadata
from tests.support.dagster.dagster_jobs import run_job

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

EVENTS = dg.AssetKey("events")


class Lake:
    """An observable table, and an asset below it, `report`, which is materialized eagerly."""

    def __init__(self, resource: IceDBResource, instance: dg.DagsterInstance, name: str) -> None:
        self.instance, self.name = instance, name
        self.events, self.report = dg.AssetKey(name), dg.AssetKey(f"{name}_report")
        self.table = resource.table_or_create(self.events, partition_by=["d"])

        @dg.asset(
            key=self.report,
            ins={"events": dg.AssetIn(self.events)},
            automation_condition=dg.AutomationCondition.eager(),
        )
        def report(events: pa.Table) -> pa.Table:
            return pa.table({"rows": [events.num_rows]})

        self.defs = dg.Definitions.merge(
            dg.Definitions(
                assets=[observable_table(self.events), report],
                resources={"icedb": resource, "io_manager": IceDBIOManager(icedb=resource)},
            ),
            build_table_definitions(name, ttl=TimeToLive("d", keep_days=30)),
        )
        self.cursor: Any = None

    def insert(self, *days: str) -> None:
        self.table.insert([{"d": day} for day in days])

    def observe(self) -> str:
        """Observe `events`, and return its data version."""
        job = self.defs.resolve_job_def("__ASSET_JOB")
        assert job.execute_in_process(instance=self.instance, asset_selection=[self.events]).success
        return self.version()

    def version(self) -> str:
        """Return the data version of the last observation of `events`."""
        event = self.instance.fetch_observations(self.events, limit=1).records[0].asset_observation
        assert event is not None
        assert event.tags is not None
        return event.tags[DATA_VERSION_TAG]

    def automate(self) -> int:
        """Evaluate the conditions as the daemon does, run what they request, and return the number of requests."""
        result = dg.evaluate_automation_conditions(defs=self.defs, instance=self.instance, cursor=self.cursor)
        self.cursor = result.cursor
        if result.total_requested:
            self.materialize_report()
        return result.total_requested

    def materialize_report(self) -> None:
        job = self.defs.resolve_job_def("__ASSET_JOB")
        assert job.execute_in_process(instance=self.instance, asset_selection=[self.report]).success

    def maintain(self, verb: str, **config: Any) -> None:
        assert run_job(self.instance, self.defs, f"{self.name}_{verb}", **config).success


@pytest.fixture
def observable(lake: IceDBResource, instance: dg.DagsterInstance, name: str) -> Lake:
    return Lake(lake, instance, name)


@pytest.mark.sampled(days=3)
def test_eager_assets_follow_rows_and_not_reads_or_maintenance(observable: Lake) -> None:
    observable.insert("2026-01-01", "2026-01-02")
    first = observable.observe()
    observable.automate()  # the first evaluation sees no change
    observable.insert("2026-01-01", "2026-01-02")
    second = observable.observe()
    assert first != second
    assert observable.automate() == 1
    assert observable.version() == second, "the report has read the table"
    assert observable.automate() == 0
    for verb in ("verify", "merge_newest", "merge_log", "cleanup"):
        observable.maintain(verb)
        assert observable.version() == second, verb
        assert observable.automate() == 0, verb
        assert observable.observe() == second, verb
        assert observable.automate() == 0, verb
    assert len(observable.table.snapshot().parts) == 2, "the merge has replaced all parts"
    observable.insert("2026-01-03")
    assert observable.observe() != second
    assert observable.automate() == 1


@pytest.mark.sampled(days=3)
def test_the_output_names_the_snapshots_that_were_read(observable: Lake) -> None:
    observable.insert("2026-01-01")
    snapshot = observable.table.snapshot()
    observable.materialize_report()
    event = observable.instance.get_latest_materialization_event(observable.report)
    assert event is not None
    assert event.asset_materialization is not None
    read = event.asset_materialization.metadata[f"icedb/read/{observable.name}"].value
    assert isinstance(read, dict)
    assert read["icedb/snapshot_id"] == snapshot.id
    as_of_ms = parse_as_of(read["icedb/snapshot_time"], table="events")
    assert observable.table.snapshot(as_of_ms).id == snapshot.id
    assert observable.instance.fetch_observations(observable.events, limit=9).records == []


CHANGES: dict[str, Callable[[icedb.Table], object]] = {
    "delete": lambda table: table.delete("n = 1"),
    "drop": lambda table: table.drop_partitions("d = '2026-01-01'"),
    "overwrite": lambda table: table.overwrite([{"d": "2026-01-01", "n": 9}]),
    # The parts before the merge are gone, so nothing shows that it kept the rows.
    "merge and cleanup": lambda table: (table.merge(), table.cleanup(grace_ms=0, allow_short_grace=True)),
}
LAYOUT: dict[str, Callable[[icedb.Table], object]] = {
    "nothing": lambda table: None,
    "merge": lambda table: table.merge(),
    "merge_log": lambda table: table.merge_log(),
    "alter": lambda table: table.alter(sort_by=["n"]),
}


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> icedb.Table:
    made = create_table(clocked, clock, partition_by=["d"])
    for n in range(3):
        made.insert([{"d": "2026-01-01", "n": n}])
        clock.advance(1_000)
    return made


def observed(instance: dg.DagsterInstance, table: icedb.Table) -> str:
    """Record an observation of the table, and return its data version."""
    snapshot = table.snapshot()
    version = data_version(instance, EVENTS, table, snapshot).value
    instance.report_runless_asset_event(
        dg.AssetObservation(EVENTS, metadata=table_metadata(snapshot), tags={DATA_VERSION_TAG: version})
    )
    return version


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("operation", [*CHANGES, *LAYOUT])
def test_each_operation_keeps_or_changes_the_version(table: icedb.Table, clock: ManualClock, operation: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        before = observed(instance, table)
        clock.advance(1_000)
        {**CHANGES, **LAYOUT}[operation](table)
        clock.advance(1_000)
        assert (observed(instance, table) == before) == (operation in LAYOUT)


def test_a_commit_that_arrives_late_changes_the_version(
    table: icedb.Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    behind = ManualClock(clock.now_ms() - 30_000, ids="random")
    with dg.DagsterInstance.ephemeral() as instance:
        before = observed(instance, table)
        clock.advance(10)
        open_table(clocked, behind).insert([{"d": "2026-01-01", "n": 7}])
        clock.advance(10)
        assert observed(instance, table) != before


def test_events_of_other_programs_have_no_effect(table: icedb.Table) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetObservation(EVENTS))
        assert data_version(instance, EVENTS, table, table.snapshot()).value == table.snapshot().id
        instance.report_runless_asset_event(dg.AssetMaterialization(EVENTS, tags={DATA_VERSION_TAG: "7"}))
        assert data_version(instance, EVENTS, table, table.snapshot()).value == table.snapshot().id
