"""Schedules that start no run without work, and the events of partitions that a TTL has dropped."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")

from dagster._core.definitions.reconstruct import ReconstructableRepository

from icedb_dagster import IceDBIOManager, IceDBResource, TimeToLive, build_table_definitions
from tests.support.dagster.dagster_jobs import dated

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

TTL = TimeToLive("d", keep_days=30)
TODAY = datetime.now(UTC).date()
CRONS = dict.fromkeys(("merge_newest_cron", "merge_oldest_cron", "merge_log_cron", "cleanup_cron"), "* * * * *")

#: A code location: a job finds the partitions of its table's asset in it.
CODE = """
import dagster as dg
import pyarrow as pa
from icedb_dagster import IceDBIOManager, TimeToLive, build_table_definitions

@dg.asset(key="{name}", partitions_def=dg.DailyPartitionsDefinition("{start}"), metadata={{"partition_expr": "d"}})
def asset(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({{"d": [context.partition_key] * 3, "n": [1, 2, 3]}})

io_manager = IceDBIOManager(root="{root}")
defs = dg.Definitions.merge(
    dg.Definitions(assets=[asset], resources={{"io_manager": io_manager, "icedb": io_manager.icedb}}),
    build_table_definitions("{name}", ttl=TimeToLive("d", keep_days=30)),
)
"""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def evaluate(instance: dg.DagsterInstance, lake: IceDBResource, table: str, verb: str) -> tuple[int, str | None]:
    """Return the number of runs that one tick of a schedule requests, and the reason to skip it."""
    built = build_table_definitions(table, ttl=TTL, **CRONS)
    schedule = next(s for s in built.schedules or () if s.name == f"{table}_{verb}_schedule")
    now = datetime.now(UTC)
    with dg.build_schedule_context(instance, scheduled_execution_time=now, resources={"icedb": lake}) as context:
        ticked = schedule.evaluate_tick(context)
    return len(ticked.run_requests or ()), ticked.skip_message


@pytest.mark.parametrize("verb", ["merge_newest", "merge_oldest", "merge_log", "cleanup", "ttl"])
def test_a_tick_without_work_starts_no_run(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str, verb: str
) -> None:
    runs, reason = evaluate(instance, lake, name, verb)
    assert (runs, "does not exist yet" in (reason or "")) == (0, True)
    table = dated(lake, name, TODAY.isoformat())
    before = table.snapshot().id
    assert evaluate(instance, lake, name, verb) == (0, f"{verb} of {table.uri} has nothing to do")
    assert table.snapshot().id == before


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("verb", ["merge_newest", "merge_log", "ttl"])
def test_a_tick_with_work_starts_a_run(instance: dg.DagsterInstance, lake: IceDBResource, name: str, verb: str) -> None:
    old = (TODAY - timedelta(days=60)).isoformat()
    table = dated(lake, name, *[old] * (40 if verb == "merge_log" else 8))
    before = table.snapshot().id
    assert evaluate(instance, lake, name, verb) == (1, None)
    assert table.snapshot().id == before  # a tick changes nothing


def test_the_schedule_of_a_verification_always_starts_a_run(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    dated(lake, name, TODAY.isoformat())
    assert evaluate(instance, lake, name, "verify") == (1, None)


def test_dropped_partitions_are_named_and_observed(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str, tmp_path: Path
) -> None:
    old, older, recent = ((TODAY - timedelta(days=n)).isoformat() for n in (40, 50, 10))
    code = tmp_path / "code_location.py"
    code.write_text(CODE.format(name=name, root=lake.root, start=(TODAY - timedelta(days=100)).isoformat()))
    location = ReconstructableRepository.for_file(str(code), "defs")
    asset = location.get_definition().assets_defs_by_key[dg.AssetKey(name)]
    for day in (old, older, recent):
        resources = {"io_manager": IceDBIOManager(icedb=lake), "icedb": lake}
        dg.materialize([asset], resources=resources, instance=instance, partition_key=day)
    job = location.get_reconstructable_job(f"{name}_ttl")

    def run_ttl(**config: Any) -> list[Any]:
        run_config = {"ops": {f"{name}_ttl_work": {"config": config}}}
        with dg.execute_job(job, instance=instance, run_config=run_config, raise_on_error=True) as result:
            events = [e.event_specific_data for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]
        return [event.asset_observation for event in events]

    [planned] = run_ttl(dry_run=True)
    assert f"| d={older} | 1 | 3 |" in planned.metadata["dropped partitions"].value
    assert planned.partition is None
    *dropped, report = run_ttl()
    assert [event.partition for event in dropped] == [older, old]
    assert dropped[0].description.startswith("The partition was dropped, with 3 rows.")
    assert report.metadata["dropped partitions"].value.count("\n") == 3
    # Each observation keeps the data version of the materialization, so nothing downstream is out of date.
    wanted = dg.AssetRecordsFilter(dg.AssetKey(name), asset_partitions=[old])
    materialized = instance.fetch_materializations(wanted, limit=1).records[0].asset_materialization
    assert materialized is not None
    assert dropped[1].tags["dagster/data_version"] == (materialized.tags or {})["dagster/data_version"]
    [again] = run_ttl()
    assert "dropped partitions" not in again.metadata
