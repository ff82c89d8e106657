"""Maintenance jobs of a table on a real instance: their effects and their metadata."""

import itertools
import json
import os
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

dg = pytest.importorskip("dagster")

from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

import icedb
from icedb.errors import (
    GraceTooShort,
    InvalidOption,
    InvalidPartitionExpression,
    PoolNotExclusive,
    SnapshotExpired,
    StoreUnavailable,
    TableNotFound,
)
from icedb.operations.rewrite import merge_loop
from icedb.testing import ClockedStore, ManualClock, check_sound, create_table, open_table
from icedb.util.clock import SystemClock
from icedb_dagster import IceDBResource, TableExport, TimeToLive, build_table_definitions, ensure_pool, icedb_pool
from icedb_dagster.dev.doctor.maintenance_runs import FailedJob, read_failed_jobs
from icedb_dagster.locking.run_kinds import failed_kinds
from icedb_dagster.metadata import markdown
from tests.support.dagster.dagster_instance import ONE, rows, run_script
from tests.support.dagster.dagster_jobs import TableJobs, dated, definitions, maintain, run_job
from tests.support.processes import run_python
from tests.support.programs.watch_program import WatchProgram

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.dagster.dagster_jobs"]

DUE = ["merge_newest", "merge_oldest", "merge_log", "cleanup"]
BY_SENSOR = [*DUE, "maintain"]
BY_CRON = ["ttl", "orphans", "verify"]
SCHEDULED = DUE + BY_CRON
STARTED = BY_SENSOR + BY_CRON
BY_HAND = ["rewrite", "delete", "restore"]
TTL = TimeToLive("d", keep_days=30)
DAY = "2024-01-01"


def stored(table: icedb.Table) -> dict[str, int]:
    """Return the size of every object of a table."""
    return {i.key: i.bytes for i in table.handle.store.list("")}


# ------------------------------------------------------------------------------------------ definitions


def test_a_table_gets_eleven_jobs_a_sensor_and_a_schedule_for_all_else(lake: IceDBResource) -> None:
    defs = definitions(lake, "events", ttl=TTL)
    dg.Definitions.validate_loadable(defs)
    schedules = {schedule.name: schedule for schedule in defs.schedules or ()}
    assert set(schedules) == {f"events_{verb}_schedule" for verb in BY_CRON}
    [sensor] = defs.sensors or ()
    assert (sensor.name, sensor.default_status) == ("events_maintenance_sensor", dg.DefaultSensorStatus.STOPPED)
    assert {job.name for job in sensor.jobs} == {f"events_{verb}" for verb in BY_SENSOR}
    crons = {f"{verb}_cron": f"{n} * * * *" for n, verb in enumerate(DUE)}
    running = definitions(lake, "events", ttl=TTL, running=True, **crons)
    assert all(s.default_status is dg.DefaultScheduleStatus.RUNNING for s in running.schedules or ())
    assert all(s.default_status is dg.DefaultSensorStatus.RUNNING for s in running.sensors or ())
    assert len(list(running.schedules or ())) == len(SCHEDULED)
    for name, schedule in schedules.items():
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        assert f"{schedule.job_name}_schedule" == name
    assert len({schedule.cron_schedule for schedule in schedules.values()}) == len(BY_CRON)
    assert {job.name for job in defs.jobs or ()} == {f"events_{verb}" for verb in STARTED + BY_HAND}
    for verb in STARTED + BY_HAND:
        pool = defs.resolve_job_def(f"events_{verb}").get_node_named(f"events_{verb}_work").definition.pool
        assert pool == (None if verb == "verify" else icedb_pool("events")), verb


def test_unneeded_definitions_are_omitted_and_unknown_options_rejected(lake: IceDBResource) -> None:
    none = {f"{verb}_cron": None for verb in SCHEDULED}
    quiet = build_table_definitions("events", **{**none, "verify_cron": "0 0 * * 0"})
    assert [s.name for s in quiet.schedules or ()] == ["events_verify_schedule"]
    assert not any("ttl" in job.name for job in quiet.jobs or ())
    for options, message in (({"engine": "ray"}, "engine is 'ray'"), ({"lock": "none"}, "give 'pool' or 'claim'")):
        with pytest.raises(InvalidOption, match=message):
            build_table_definitions("events", **options)
    on_spark = definitions(lake, "events", engine="spark", spark_resource_key="cluster")
    for verb in [*STARTED, *BY_HAND]:
        if verb == "ttl":
            continue
        needed = next(j for j in on_spark.jobs or () if j.name == f"events_{verb}").graph.node_dict
        keys = needed[f"events_{verb}_work"].definition.required_resource_keys
        spark_works = verb in ("merge_newest", "merge_oldest", "maintain", "rewrite", "delete")
        assert keys == {"icedb", "cluster"} if spark_works else keys == {"icedb"}, verb


LOADING = """
import cProfile, pstats, socket

def refuse(*_):
    raise AssertionError("a connection while definitions load")

import dagster as dg
import icedb_dagster

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
lake = icedb_dagster.IceDBResource(root="s3://lake/events", storage_options={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
ttl = icedb_dagster.TimeToLive("d", keep_days=30)

def load(tables):
    made = [icedb_dagster.build_table_definitions(["team", f"t{n}"], ttl=ttl) for n in range(tables)]
    defs = dg.Definitions.merge(*made, dg.Definitions(resources={"icedb": lake}))
    return len(defs.get_repository_def().get_all_jobs())

load(1)  # what is imported and cached once
for tables in (10, 100):
    profile = cProfile.Profile()
    print(profile.runcall(load, tables), pstats.Stats(profile).total_calls)
"""


@pytest.mark.sampled(days=3)
def test_loading_definitions_is_linear_in_the_tables_and_makes_no_connection() -> None:
    (few_jobs, few_calls), (many_jobs, many_calls) = (
        map(int, line.split()) for line in run_python("-c", LOADING).stdout.splitlines()
    )
    assert (few_jobs, many_jobs) == (10 * len(STARTED + BY_HAND), 100 * len(STARTED + BY_HAND))
    assert many_calls < 11 * few_calls, "calls of functions"


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("key", "prefix", "pool"),
    [(["a", "b"], "a__b", "icedb/a/b"), (["my-team", "v1.2"], "my_team__v1_2", "icedb/my-team/v1.2")],
)
def test_a_key_of_several_parts_gives_jobs_and_a_pool(
    instance: dg.DagsterInstance, lake: IceDBResource, key: list[str], prefix: str, pool: str
) -> None:
    table = dated(lake, key, DAY, DAY)
    assert icedb_pool(key) == icedb_pool(dg.AssetKey(key)) == pool
    assert run_job(instance, definitions(lake, key), f"{prefix}_merge_newest").success
    assert len(table.snapshot().parts) == 1
    assert instance.event_log_storage.get_concurrency_info(pool).slot_count == 1


# ------------------------------------------------------------------------------------------ all of them


def configs(then_ms: int) -> dict[str, dict[str, Any]]:
    """Return a complete config for each job."""
    return {
        "merge_newest": {},
        "merge_oldest": {},
        "merge_log": {},
        "maintain": {"kinds": ["merge_newest", "merge_log", "cleanup"]},
        "ttl": {"reference_date": "2024-03-02"},
        "cleanup": {"grace_ms": 0, "allow_short_grace": True},
        "orphans": {},
        "rewrite": {"partition": "d=2024-03-01", "query": "SELECT * REPLACE (n + 1 AS n) FROM _rows"},
        "delete": {"where": "n = 1"},
        "restore": {"as_of": str(then_ms)},
    }


@pytest.mark.sampled(days=3)
def test_a_dry_run_of_any_job_changes_nothing(jobs: TableJobs) -> None:
    table = jobs.dated(DAY, DAY, "2024-03-01")
    then_ms = table.snapshot().as_of_ms
    table.drop_partitions(["d=2024-03-01"])
    jobs.dated("2024-03-01")
    before = stored(table)
    for verb, config in configs(then_ms).items():
        jobs.run(verb, **config, dry_run=True)
        metadata = jobs.metadata()
        assert "| dry run | yes: nothing was changed |" in metadata[verb], verb
        assert metadata["icedb/live_parts"] == 3
    assert stored(table) == before
    jobs.run("verify")
    assert stored(table) == before
    assert "| result | sound |" in jobs.metadata()["verify"]


def test_exports_have_jobs_without_a_pool_and_schedules_of_their_own(jobs: TableJobs) -> None:
    jobs.lake.table_or_create(jobs.name).insert([{"n": 1, "secret": "x"}])
    defs = definitions(
        jobs.lake, jobs.name, export_delta=TableExport(), export_iceberg=TableExport(exclude_columns=["secret"])
    )
    crons = {s.job_name.removeprefix(f"{jobs.name}_"): s.cron_schedule for s in defs.schedules or ()}
    assert len({*crons.values()}) == len(crons)
    for verb in ("export_delta", "export_iceberg"):
        for dry_run, version, new in ((True, "none", "no"), (False, "0", "yes"), (False, "0", "no")):
            assert run_job(jobs.instance, defs, f"{jobs.name}_{verb}", dry_run=dry_run).success
            for line in (f"| version | {version} |", f"| new version | {new} |", "| parts | 1 |", "| rows | 1 |"):
                assert line in jobs.metadata()[verb], (verb, dry_run)
        assert crons[verb]
        job = defs.resolve_job_def(f"{jobs.name}_{verb}")
        assert [(node.name, node.definition.pool) for node in job.nodes] == [(f"{jobs.name}_{verb}_work", None)]
    metadata = str(jobs.lake.table(jobs.name).export_iceberg(exclude_columns=["secret"], dry_run=True).metadata)
    assert markdown.escaped(metadata) in jobs.metadata()["export_iceberg"]
    assert [f.name for f in StaticTable.from_metadata(metadata).schema().fields] == ["n"]


def test_jobs_with_the_claim_alone_need_no_pool(lake: IceDBResource, name: str) -> None:
    table = dated(lake, name, DAY, DAY)
    with dg.DagsterInstance.ephemeral() as ephemeral:
        with pytest.raises(PoolNotExclusive, match="icedb-dagster up"):
            ensure_pool(ephemeral, icedb_pool(name))
        maintain(ephemeral, lake, name, "verify")  # needs no pool
        defs = definitions(lake, name, lock="claim")
        assert run_job(ephemeral, defs, f"{name}_merge_oldest").success
    assert len(table.snapshot().parts) == 1
    job = defs.resolve_job_def(f"{name}_merge_oldest")
    assert [(node.name, node.definition.pool) for node in job.nodes] == [(f"{name}_merge_oldest_work", None)]


@pytest.mark.sampled(days=3)
def test_an_instance_without_pools_works_under_the_claim(
    lake: IceDBResource, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """So `dagster dev` without Postgres maintains its tables."""
    table = dated(lake, name, DAY, DAY)
    with dg.DagsterInstance.ephemeral() as ephemeral:
        assert maintain(ephemeral, lake, name, "merge_oldest").success
    assert len(table.snapshot().parts) == 1
    assert f"'{icedb_pool(name)}' is no lock" in capfd.readouterr().err


@pytest.mark.sampled(days=3)
def test_an_empty_table_stays_empty_and_a_missing_one_is_an_error(jobs: TableJobs) -> None:
    with pytest.raises(TableNotFound):
        jobs.run("merge_oldest")
    table = jobs.lake.table_or_create(jobs.name, partition_by=["d"])
    for verb in SCHEDULED:
        assert jobs.run(verb).success
    assert table.snapshot().log_files == 0


@pytest.mark.sampled(cases=6)
@pytest.mark.parametrize(
    ("verb", "config", "error", "message"),
    [
        ("merge_newest", {"odrer": "oldest"}, dg.DagsterInvalidConfigError, "odrer"),
        ("merge_newest", {"seconds_max": 0}, InvalidOption, "max_seconds is 0"),
        ("delete", {}, dg.DagsterInvalidConfigError, "where"),
        ("delete", {"where": "n = 1", "passes_max": 0}, InvalidOption, "passes_max is 0"),
        ("rewrite", {"partition": "d=2020-01-01", "query": "FROM _rows"}, InvalidOption, "no partition 'd=2020-01-01'"),
        ("restore", {"as_of": "2024-01-01"}, InvalidOption, "write a time with its zone"),
        ("restore", {"as_of": "4102444800000"}, InvalidOption, "4102444800000"),
        ("cleanup", {"grace_ms": 0}, GraceTooShort, "allow_short_grace"),
        ("orphans", {"min_age_ms": 0}, GraceTooShort, "only 0 s old may belong to a running writer"),
        ("ttl", {"reference_date": "yesterday"}, InvalidOption, "reference_date is 'yesterday'"),
        ("ttl", {"reference_date": "2024-02-30"}, InvalidOption, "write it as YYYY-MM-DD"),
        ("ttl", {"reference_date": "20240301"}, InvalidOption, "write it as YYYY-MM-DD"),
        ("ttl", {"reference_date": "9999-12-31"}, InvalidOption, "which is in the future"),
        ("restore", {"as_of": "20261121"}, InvalidOption, "write a time with its zone"),
        ("restore", {"as_of": "1795313126"}, InvalidOption, "write a time with its zone"),
        ("ttl", {"keep_days": -1000}, InvalidOption, "keep_days is -1000"),
        ("ttl", {"keep_days": 10_000_000}, InvalidOption, "keep_days is 10000000"),
    ],
)
def test_invalid_configurations_are_rejected_and_change_nothing(
    jobs: TableJobs, verb: str, config: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = jobs.dated(DAY, date.today().isoformat())
    before = stored(table)
    with pytest.raises(error, match=message):
        jobs.run(verb, **config)
    assert stored(table) == before


# ------------------------------------------------------------------------------------------ merges


@pytest.mark.sampled(days=3)
def test_a_merge_reports_the_state_of_the_table(jobs: TableJobs) -> None:
    table = jobs.dated(DAY, DAY, "2024-01-02")
    result = jobs.run("merge_newest")
    assert table.snapshot().partitions() == ["d=2024-01-01", "d=2024-01-02"]
    assert (len(table.snapshot().parts), table.snapshot().rows) == (2, 3)
    event = jobs.instance.fetch_observations(dg.AssetKey(jobs.name), limit=1).records[0]
    assert event.run_id == result.run_id
    metadata = jobs.metadata()
    assert (metadata["icedb/live_parts"], metadata["dagster/row_count"]) == (2, 3)
    assert "| parts merged | 2 |" in metadata["merge_newest"]
    assert "| groups remaining | 0 |" in metadata["merge_newest"]


class LakeInMemory(IceDBResource):
    """A lake of one table in memory, with a simulated clock."""

    clock: ClassVar[ManualClock] = ManualClock()
    store: ClassVar[ClockedStore] = ClockedStore(clock)

    def table(self, key: Any) -> icedb.Table:
        return open_table(self.store, self.clock)


@pytest.mark.sampled(days=3)
def test_a_long_merge_yields_after_a_minute(
    instance: dg.DagsterInstance, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, merge = LakeInMemory(root="memory://"), merge_loop.merge

    def merge_slowly(*args: Any, **options: Any) -> icedb.MergeReport:
        report = merge(*args, **options)
        lake.clock.advance(20_000 * report.new_parts)
        return report

    monkeypatch.setattr(merge_loop, "merge", merge_slowly)
    table = create_table(lake.store, lake.clock, partition_by=["k"])
    for _ in range(2):
        table.insert([{"k": k} for k in range(8)])
    two_parts = 2 * max(part.bytes for part in table.snapshot().parts) - 1
    remaining = []
    for _ in range(4):
        began_ms = lake.clock.now_ms()
        run_job(instance, definitions(lake, name), f"{name}_merge_oldest", part_bytes_max=two_parts)
        assert lake.clock.now_ms() - began_ms <= 80_000, "it takes a minute, and at most one more group"
        remaining.append(len([p for p in table.snapshot().parts if p.rows == 1]) // 2)
    assert remaining[0] > remaining[1] > 0
    assert remaining[-1] == 0
    assert table.snapshot().rows == 16
    check_sound(lake.store)


@pytest.mark.sampled(days=3)
def test_merge_newest_runs_first(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> None:
    # Large, and each worker imports this module.
    from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

    for other in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED])):
        instance.report_run_canceled(other)
    came = ["merge_oldest", "cleanup", "merge_newest"]
    jobs = {verb: definitions(lake, name).resolve_job_def(f"{name}_{verb}") for verb in came}
    code = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("code"), "__repository__")
    runs = {
        verb: instance.create_run_for_job(
            job, tags=job.run_tags, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=code.get_job_origin(job.name)
        )
        for verb, job in jobs.items()
    }
    dequeued = []
    for _ in came:  # the tag limits each table to one dequeued run
        [run] = QueuedRunCoordinatorDaemon(1)._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None)
        dequeued.append(run.tags["icedb/verb"])
        instance.report_run_canceled(run)
    assert dequeued == ["merge_newest", "cleanup", "merge_oldest"]

    storage, pool = instance.event_log_storage, icedb_pool(name)
    ensure_pool(instance, pool)
    assert storage.claim_concurrency_slot(pool, "a-rival", "a-step").is_claimed
    steps = {verb: f"{name}_{verb}_work" for verb in came}
    for verb, run in runs.items():  # a new context for each claim, as in the executor
        assert not InstanceConcurrencyContext(instance, run).claim(pool, steps[verb])
    storage.free_concurrency_slot_for_step("a-rival", "a-step")
    verbs = []
    for _ in came:
        [verb] = [v for v, run in runs.items() if InstanceConcurrencyContext(instance, run).claim(pool, steps[v])]
        verbs.append(verb)
        storage.free_concurrency_slot_for_step(runs.pop(verb).run_id, steps[verb])
    assert verbs == ["merge_newest", "cleanup", "merge_oldest"]


# ------------------------------------------------------------------------------------------ time to live


@pytest.mark.sampled(days=3)
def test_time_to_live_drops_partitions_older_than_its_days(jobs: TableJobs) -> None:
    table = jobs.dated(DAY, "2024-01-31", "2024-02-01", "2024-03-01", "none", None)
    before = table.snapshot()
    jobs.run("ttl", reference_date="2024-03-02", dry_run=True)
    assert table.snapshot().id == before.id
    assert "| partitions dropped | 2 |" in jobs.metadata()["ttl"]
    assert "| older than | 2024-02-01 |" in jobs.metadata()["ttl"]

    jobs.run("ttl", reference_date="2024-03-02")  # 30 days: the first of February stays
    assert jobs.rows("d") == [("2024-02-01",), ("2024-03-01",), ("none",), (None,)]
    assert before.rows == 6
    assert table.query("SELECT count(*) FROM t", as_of=before.as_of_ms).fetchall() == [(6,)]

    jobs.run("ttl", reference_date="2024-03-02", keep_days=1)
    assert jobs.rows("d") == [("2024-03-01",), ("none",), (None,)]


@pytest.mark.sampled(days=3)
def test_a_partition_that_holds_a_month_expires_with_its_last_day(jobs: TableJobs) -> None:
    jobs.dated("2023-12-01", "2024-01-01", "2024-02-01")
    monthly = build_table_definitions(jobs.name, ttl=TimeToLive("d", keep_days=30, period="month"), lock="claim")
    job = dg.Definitions.merge(monthly, dg.Definitions(resources={"icedb": jobs.lake})).resolve_job_def(
        f"{jobs.name}_ttl"
    )

    def run(reference: str) -> None:
        config = {"ops": {f"{jobs.name}_ttl_work": {"config": {"reference_date": reference}}}}
        assert job.execute_in_process(instance=jobs.instance, run_config=config).success

    run("2024-03-01")  # the last day of January is 30 days before
    assert jobs.rows("d") == [("2024-01-01",), ("2024-02-01",)]
    run("2024-03-02")
    assert jobs.rows("d") == [("2024-02-01",)]
    with pytest.raises(InvalidOption, match="'fortnight'"):
        TimeToLive("d", keep_days=30, period="fortnight")  # type: ignore[arg-type]


@pytest.mark.sampled(days=3)
def test_time_to_live_counts_from_today(jobs: TableJobs) -> None:
    today = datetime.now(UTC).date()
    recent = [(today - timedelta(days=n)).isoformat() for n in (29, 0)]
    gone = (today - timedelta(days=32)).isoformat()
    jobs.dated(gone, *recent)
    jobs.run("ttl")
    assert jobs.rows("d") == [(day,) for day in recent]


def test_a_time_to_live_on_a_column_without_dates_is_rejected(jobs: TableJobs) -> None:
    jobs.dated("2024-01", "2024-02")
    with pytest.raises(InvalidOption, match="'d', in which no value is a date"):
        jobs.run("ttl")
    other = f"{jobs.name}_other"
    jobs.lake.table_or_create(other, partition_by=["n"]).insert(ONE)
    with pytest.raises(InvalidPartitionExpression, match="does not fit the partition columns"):
        maintain(jobs.instance, jobs.lake, other, "ttl")


def test_a_function_can_select_the_expired_partitions(jobs: TableJobs) -> None:
    jobs.dated("2023-12", "2024-01", "2024-02")
    answers: list[Any] = []

    def months_gone(table: icedb.Table, reference: datetime) -> Sequence[str] | str:
        answers.append((table.uri, reference))
        return [p for p in table.snapshot().partitions() if p < f"d={reference:%Y-%m}"]

    def drop(function: Any, **config: Any) -> None:
        run_job(jobs.instance, definitions(jobs.lake, jobs.name, ttl=function), f"{jobs.name}_ttl", **config)

    drop(months_gone, reference_date="2024-01-15", dry_run=True)
    assert len(jobs.rows()) == 3
    drop(months_gone, reference_date="2024-01-15")
    assert answers == [(jobs.lake.uri(jobs.name), datetime(2024, 1, 15, tzinfo=UTC))] * 2
    assert jobs.rows("d") == [("2024-01",), ("2024-02",)]
    assert "months\\_gone" in jobs.metadata()["ttl"]

    drop(lambda table, reference: [])
    drop(lambda table, reference: f"d < '{reference:%Y-%m}'", reference_date="2024-02-01")
    assert jobs.rows("d") == [("2024-02",)]
    for wrong in (None, [1], b"d=2024-02"):
        with pytest.raises(InvalidOption, match="as the expired partitions"):
            drop(lambda table, reference, wrong=wrong: wrong)
    with pytest.raises(InvalidOption, match="decides which partitions expire"):
        drop(months_gone, keep_days=3)
    assert jobs.rows("d") == [("2024-02",)]


# ------------------------------------------------------------------------------------------ the others


@pytest.mark.sampled(days=3)
def test_cleanup_deletes_superseded_parts_and_orphans_unnamed_ones(jobs: TableJobs) -> None:
    table = jobs.dated(DAY, DAY)
    table.merge()
    parts = lambda: sorted(p.name for p in Path(table.uri).rglob("*.parquet"))  # noqa: E731
    assert len(parts()) == 3
    jobs.run("cleanup")  # the table's grace period is an hour
    assert len(parts()) == 3
    jobs.run("cleanup", grace_ms=0, allow_short_grace=True)
    assert len(parts()) == len(table.snapshot().parts) == 1
    assert "| parts deleted | 2 |" in jobs.metadata()["cleanup"]

    live = Path(table.snapshot().parts[0].path)
    old, young = live.with_name(f"{'0' * 32}.parquet"), live.with_name(f"{'1' * 32}.parquet")
    for orphan in (old, young):
        orphan.write_bytes(live.read_bytes())
    os.utime(old, (0, 0))
    jobs.run("orphans", dry_run=True)
    assert "| orphans deleted | 1 |" in jobs.metadata()["orphans"]
    jobs.run("orphans")
    assert parts() == sorted([live.name, young.name])
    assert "| young parts, possibly still being written | 1 |" in jobs.metadata()["orphans"]


@pytest.mark.sampled(days=3)
def test_merge_log_changes_no_part(jobs: TableJobs) -> None:
    table = jobs.dated(*[DAY] * 6)
    parts = table.snapshot().parts
    jobs.run("merge_log")
    assert table.snapshot().log_files == 6, "few log files are not merged"
    jobs.run("merge_log", files_min=2)
    assert table.snapshot().log_files < 6
    assert table.snapshot().parts == parts
    assert "| log files that readers open |" in jobs.metadata()["merge_log"]


def test_maintain_does_what_is_due_in_one_run(jobs: TableJobs) -> None:
    table = jobs.dated(*[DAY] * 8)
    jobs.run("maintain", hot_parts=32)
    assert jobs.metadata()["maintain"].splitlines()[2] == "| kinds of maintenance | none: nothing is due |"
    jobs.run("maintain", hot_parts=8)
    assert len(table.snapshot().parts) == 1
    assert "| kinds of maintenance | merge\\_newest |" in jobs.metadata()["maintain"]
    jobs.dated(DAY)
    jobs.run("maintain", kinds=["cleanup", "merge_log", "merge_oldest"])
    assert "| merge_log, cleanup, merge_oldest |".replace("_", "\\_") in jobs.metadata()["maintain"]
    assert table.snapshot().log_files == 1
    assert not table.health().small_log_files


def test_a_kind_of_maintenance_that_fails_does_not_hold_up_the_others(
    jobs: TableJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = jobs.dated(*[DAY] * 4)

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store\ndoes not answer")

    def failed_jobs() -> list[FailedJob]:
        return [job for job in read_failed_jobs(jobs.instance, SystemClock()) if job.table == jobs.name]

    monkeypatch.setattr(icedb.Table, "merge", fail)
    cause = "StoreUnavailable: the store does not answer"
    with pytest.raises(dg.Failure) as failure:
        jobs.run("maintain", kinds=["merge_newest", "merge_log"])
    assert failure.value.description == f"merge_newest: {cause}"
    assert table.snapshot().log_files == 1
    assert "| merge_log: log files merged | 4 |" in jobs.metadata()["maintain"]
    [run] = jobs.instance.get_runs(dg.RunsFilter(job_name=f"{jobs.name}_maintain"))
    assert list(failed_kinds(run)) == ["merge_newest"]
    [failed] = failed_jobs()
    assert (failed.verb, failed.error) == (
        "merge_newest",
        f"dagster._core.definitions.events.Failure: merge_newest: {cause}",
    )
    with pytest.raises(dg.Failure, match=f"merge_newest: {cause}; merge_oldest: {cause}"):
        jobs.run("maintain", kinds=["merge_oldest", "merge_newest"])
    with pytest.raises(InvalidOption, match="kinds has 'vacuum'; give some of merge_newest, merge_oldest, merge_log"):
        jobs.run("maintain", kinds=["cleanup", "vacuum"])
    assert {job.verb for job in failed_jobs()} >= {"merge_newest", "merge_oldest"}
    monkeypatch.undo()
    jobs.run("merge_newest")
    jobs.run("maintain", kinds=["cleanup", "merge_oldest"])
    assert failed_jobs() == [], "a success with any job ends a finding"


@pytest.mark.sampled(days=3)
def test_delete_repeats_until_no_row_is_left(jobs: TableJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    table = jobs.lake.table_or_create(jobs.name, partition_by=["d"])
    table.insert(pa.table({"d": ["a", "a", "b"], "user": [7, 8, 7]}))
    then_ms = table.snapshot().as_of_ms
    delete, passes = icedb.Table.delete, []

    def while_others_insert(self: icedb.Table, where: str, **options: Any) -> Any:
        report = delete(self, where, **options)
        if not passes:
            table.insert(pa.table({"d": ["c"], "user": [7]}))
        passes.append(report)
        return report

    monkeypatch.setattr(icedb.Table, "delete", while_others_insert)
    jobs.run("delete", where="user = 7 OR user = 7")
    assert [report.deleted_rows for report in passes] == [2, 1, 0]
    assert jobs.rows("user") == [(8,)]
    report = jobs.metadata()["delete"]
    assert "| rows deleted | 3 |" in report
    assert "| no such row is left | yes |" in report
    monkeypatch.setattr(icedb.Table, "delete", delete)
    jobs.run("delete", where="user = 8", passes_max=1)
    assert "unknown: run the job again" in jobs.metadata()["delete"]

    jobs.run("restore", as_of=datetime.fromtimestamp(then_ms / 1000, UTC).isoformat())
    assert jobs.rows("user") == [(7,), (7,), (8,)]
    assert "| rows restored | 3 |" in jobs.metadata()["restore"]
    table.cleanup(grace_ms=0, allow_short_grace=True)
    with pytest.raises(SnapshotExpired):
        jobs.run("restore", as_of=str(then_ms))


@pytest.mark.sampled(days=3)
def test_a_partition_is_rewritten_by_a_query(jobs: TableJobs) -> None:
    jobs.dated("a", "a", "b")
    jobs.run("rewrite", partition="d=a", query="SELECT DISTINCT d, n + 1 AS n FROM _rows")
    assert jobs.rows("d, n") == [("a", 2), ("b", 1)]
    report = jobs.metadata()["rewrite"]
    assert "| rows before | 2 |" in report
    assert "| rows | 1 |" in report


def test_verify_fails_with_the_problems_of_a_damaged_table(jobs: TableJobs) -> None:
    table = jobs.dated(DAY, "2024-01-02")
    (Path(table.uri) / "notes | to myself.txt").write_text("hello")
    jobs.run("verify", deep=True)
    assert "| warning |" in jobs.metadata()["problems"]

    part = table.snapshot().parts[0]
    Path(part.path).unlink()
    with pytest.raises(dg.Failure, match=r"is damaged: .*is not in the store") as failure:
        jobs.run("verify")
    for metadata in (jobs.metadata(), {n: v.value for n, v in failure.value.metadata.items()}):
        assert "| result | DAMAGED |" in metadata["verify"]
        error, warning = metadata["problems"].splitlines()[2:]
        assert error.startswith("| error |")
        assert part.key.rpartition("/")[2] in error
        assert "restore the object" in error
        assert warning.count(" | ") == error.count(" | ") == 3
    assert len(table.snapshot().parts) == 2


# ------------------------------------------------------------------------------------------ engines, and both at once


@pytest.mark.slow(seconds=15)
@pytest.mark.spark
def test_spark_runs_merges_and_deletions(environment: dict[str, str], lake: IceDBResource, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    dated(lake, "on_spark", DAY, DAY, "2024-01-02", "2024-01-02")
    run_script("spark/spark_maintenance.py", lake.root, "on_spark", str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_text())
    # The statistics of the rewritten parts show that none has a matching row, so the second pass searches no part.
    assert result["works"] == ["rewriting parts", "searching parts", "rewriting parts"]
    assert result["parts"] == [4, 2]
    assert "icedb/on_spark" in result["held"]
    assert rows(lake, "on_spark", "d, n") == [("2024-01-02", 1), ("2024-01-02", 1)]
    assert lake.table("on_spark").verify(deep=True).ok


@pytest.mark.sampled(days=6)
def test_concurrent_watches_jobs_and_inserts_keep_every_row(jobs: TableJobs) -> None:
    table = jobs.lake.table_or_create(jobs.name, partition_by=["k"], sort_by=["n"])
    # Slow enough to leave the jobs something, now and then.
    watches = [WatchProgram(table.uri, "--order", order, every="500ms") for order in ("newest", "oldest")]
    inserted, enough = 0, threading.Event()

    def insert() -> None:
        nonlocal inserted
        while not enough.is_set():
            table.insert(pa.table({"k": [n % 4 for n in range(20)], "n": [inserted + n for n in range(20)]}))
            inserted += 20

    writer = threading.Thread(target=insert)
    writer.start()
    merged = 0
    try:
        for verb in itertools.cycle(("merge_newest", "merge_oldest")):
            assert jobs.run(verb).success
            merged += "| parts merged | 0 |" not in jobs.metadata()[verb]
            if merged > 1 and all(watch.lines for watch in watches):  # the test's timeout ends what does not get there
                break
        enough.set()
        writer.join()
        assert [watch.end(signal.SIGTERM) for watch in watches] == [0, 0]
    finally:
        enough.set()
        writer.join()
        for watch in watches:
            watch.kill()
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in range(inserted)]
    assert table.verify(deep=True).ok
    check_sound(table.handle.store)
