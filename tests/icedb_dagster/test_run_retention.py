"""Old runs are deleted with their logs, unless Dagster needs one of their events."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption
from icedb_dagster import build_run_retention
from icedb_dagster.maintenance import run_retention
from icedb_dagster.maintenance.run_retention import DeletedRuns, delete_old_runs

pytestmark = pytest.mark.dagster

LATER = datetime.now(UTC) + timedelta(days=1)
days = dg.StaticPartitionsDefinition(["a", "b"])


@dg.asset(partitions_def=days)
def materialized() -> int:
    return 1


@dg.op
def observe(context: dg.OpExecutionContext) -> None:
    context.log_event(dg.AssetObservation("observed"))


@dg.op
def observe_partition(context: dg.OpExecutionContext) -> None:
    context.log_event(dg.AssetObservation("materialized", partition="a"))


@dg.op
def fail() -> None:
    raise dg.Failure("intended", allow_retries=False)


@dg.op
def nothing() -> None:
    pass


@dg.asset_check(asset="materialized")
def check() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


def job(op: Any) -> Any:
    return dg.GraphDefinition(f"{op.name}_job", node_defs=[op]).to_job(executor_def=dg.in_process_executor)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Any]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as local:
        yield local


def run(instance: Any, target: Any, **options: Any) -> str:
    return str(target.execute_in_process(instance=instance, raise_on_error=False, **options).run_id)


def runs(instance: Any) -> set[str]:
    return set(instance.get_run_ids())


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("page", [1, 3, 500])
def test_a_run_stays_if_dagster_needs_its_events(instance: Any, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(run_retention, "PAGE_RUNS", page)
    defs = dg.Definitions(
        assets=[materialized],
        asset_checks=[check],
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(check))],
    )
    asset = defs.resolve_implicit_global_asset_job_def()
    checks = defs.resolve_job_def("checks")
    old = [run(instance, job(op)) for op in (nothing, fail, observe)]
    needed = [run(instance, asset, partition_key="a"), run(instance, job(observe_partition))]
    old += [run(instance, checks)]
    needed += [run(instance, checks), run(instance, job(observe))]
    begun = instance.create_run_for_job(job(nothing), status=dg.DagsterRunStatus.STARTED).run_id
    everything = {*old, *needed, begun}
    assert runs(instance) == everything
    assert all((Path(instance.storage_directory()) / of).exists() for of in old)

    assert delete_old_runs(instance, LATER - timedelta(days=2)) == DeletedRuns(0, 0, remaining=False)
    assert delete_old_runs(instance, LATER, dry_run=True) == DeletedRuns(4, 4, remaining=False)
    assert runs(instance) == everything
    assert delete_old_runs(instance, LATER, runs_max=1) == DeletedRuns(1, 0, remaining=True)
    assert runs(instance) == everything - {old[0]}
    assert delete_old_runs(instance, LATER) == DeletedRuns(3, 4, remaining=False)
    assert runs(instance) == {*needed, begun}
    assert not any((Path(instance.storage_directory()) / of).exists() for of in old)
    assert instance.get_materialized_partitions(materialized.key) == {"a"}
    assert instance.fetch_observations(dg.AssetKey("observed"), limit=9).records[0].run_id == needed[-1]
    assert delete_old_runs(instance, LATER) == DeletedRuns(0, 4, remaining=False)


def test_the_job_keeps_the_runs_of_so_many_days(instance: Any) -> None:
    defs = build_run_retention(keep_days=14, running=True)
    retention = defs.resolve_job_def("icedb_run_retention")
    first = run(instance, job(nothing))
    done = retention.execute_in_process(instance=instance)
    assert runs(instance) == {first, done.run_id}
    [schedule] = defs.schedules
    assert (schedule.cron_schedule, schedule.default_status) == ("15 4 * * *", dg.DefaultScheduleStatus.RUNNING)
    logged = [e.user_message for e in instance.all_logs(done.run_id) if "deleted 0 runs from before" in e.user_message]
    assert len(logged) == 1
    with pytest.raises(InvalidOption, match=r"keep_days is 0\.5; give at least 1"):
        build_run_retention(keep_days=0.5)
