"""The Dagster side, on a real instance: its events and pools are in the Postgres that the local stack starts."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

# ruff: noqa: E402 - without the extra there is nothing to import
from dagster._core.storage.event_log.schema import ConcurrencySlotsTable

import icedb
from icedb.errors import (
    EmptyBatch,
    GraceTooShort,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    PoolNotExclusive,
    SchemaConflict,
    TableNotFound,
)
from icedb_dagster import (
    IceDBIOManager,
    IceDBResource,
    TimeToLive,
    build_table_definitions,
    ensure_pool,
    icedb_pool,
    maintenance,
    stack,
)
from icedb_dagster.locks import check_pool_held

pytestmark = pytest.mark.dagster
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What leads Dagster to the stack of this module: a Postgres server of its own."""
    project = tmp_path_factory.mktemp("dagster") / "project"
    project.mkdir()
    environ = {k: v for k, v in os.environ.items() if k != "ICEDB_POSTGRES_URL"}
    started = stack.up(project, services=("postgres",), environ=environ)
    kept = dict(os.environ)
    os.environ.pop("ICEDB_POSTGRES_URL", None)
    os.environ.update(stack.environment(started))
    yield stack.environment(started)
    os.environ.clear()
    os.environ.update(kept)
    stack.down(project)


@pytest.fixture(scope="module")
def instance(environment: dict[str, str]) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.get() as opened:
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> IceDBResource:
    return IceDBResource(root=str(tmp_path / "lake"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A table that no other test has: all share the instance, and with it the pools."""
    return "".join(c if c.isalnum() else "_" for c in request.node.name)


Materialize = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def materialize(instance: dg.DagsterInstance, lake: IceDBResource) -> Materialize:
    """Materializes assets in the lake, on the instance; raises what they raise."""

    def run(*assets: Any, mode: str = "overwrite", **options: Any) -> dg.ExecuteInProcessResult:
        resources = {"io_manager": IceDBIOManager(icedb=lake, mode=mode), "icedb": lake}
        return dg.materialize(list(assets), resources=resources, instance=instance, **options)

    return run


def returning(key: Any, value: Any, metadata: dict[str, Any] | None = None, **options: Any) -> dg.AssetsDefinition:
    """An asset that returns a value, or what a function gives."""

    @dg.asset(key=key, metadata=metadata, **options)
    def asset() -> Any:
        return value() if callable(value) else value

    return asset


def rows(lake: IceDBResource, key: Any, columns: str = "*") -> list[tuple[Any, ...]]:
    return lake.table(key).query(f"SELECT {columns} FROM t ORDER BY ALL").fetchall()


ONE = pa.table({"n": [1]})
TWO = pa.table({"n": [2]})


# ------------------------------------------------------------------------------------------ IO manager


def test_an_arrow_table_goes_in_and_out_of_a_table_that_the_metadata_describes(
    materialize: Materialize, lake: IceDBResource
) -> None:
    numbers = pa.table({"n": [3, 1, 2], "word": ["c", "a", None]})
    seen = []

    @dg.asset(metadata={"partition_by": ["n % 2 AS parity"], "sort_by": ["n"]})
    def odd_and_even() -> pa.Table:
        return numbers

    @dg.asset
    def reader(odd_and_even: pa.Table) -> pa.Table:
        seen.append(odd_and_even)
        return odd_and_even.select(["n"])

    @dg.asset
    def looker(odd_and_even: icedb.Snapshot, reader: Any) -> None:
        seen.extend([odd_and_even, reader])

    assert materialize(odd_and_even, reader, looker).success
    table, snapshot, unannotated = seen
    assert sorted(table.to_pylist(), key=lambda row: row["n"]) == [
        {"n": 1, "word": "a", "parity": 1},
        {"n": 2, "word": None, "parity": 0},
        {"n": 3, "word": "c", "parity": 1},
    ]
    assert snapshot.partitions() == ["parity=0", "parity=1"]
    assert sorted(unannotated["n"].to_pylist()) == [1, 2, 3]
    spec = lake.table("odd_and_even").spec
    assert (spec.partition_by, spec.sort_by) == (("n % 2 AS parity",), ("n",))


def test_the_event_log_tells_of_the_table_that_was_materialized(
    materialize: Materialize, lake: IceDBResource, instance: dg.DagsterInstance, name: str
) -> None:
    materialize(returning(name, pa.table({"n": [1, 2, 3]}), {"partition_by": ["n % 2 AS parity"]}))
    event = instance.get_latest_materialization_event(dg.AssetKey(name))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    snapshot = lake.table(name).snapshot()
    told = {key: value.value for key, value in metadata.items() if key != "dagster/column_schema"}
    assert {"dagster/row_count": 3, "icedb/live_parts": 2, "icedb/partitions": 2, "icedb/log_files": 1}.items() <= (
        told.items()
    )
    assert told["icedb/bytes"] == snapshot.bytes
    assert told["icedb/snapshot_id"] == snapshot.id
    assert told["dagster/uri"] == snapshot.table
    columns = metadata["dagster/column_schema"].value.columns
    assert [(c.name, c.type) for c in columns] == [("n", "BIGINT"), ("parity", "BIGINT")]


def test_overwrite_is_the_default_and_one_commit(materialize: Materialize, lake: IceDBResource, name: str) -> None:
    materialize(returning(name, ONE))
    older = lake.table(name).snapshot()
    logs = {o.key for o in lake.table(name).handle.store.list(lake.table(name).handle.keys.log_prefix)}
    materialize(returning(name, TWO))
    assert rows(lake, name) == [(2,)]
    assert older.to_arrow()["n"].to_pylist() == [1]
    assert len({o.key for o in lake.table(name).handle.store.list(lake.table(name).handle.keys.log_prefix)} - logs) == 1


@pytest.mark.parametrize(
    ("mode", "metadata", "expected"),
    [
        ("append", {}, [(1,), (2,)]),
        ("overwrite", {"icedb/mode": "append"}, [(1,), (2,)]),
        ("append", {"icedb/mode": "overwrite"}, [(2,)]),
        ("overwrite", {"icedb/mode": dg.MetadataValue.text("append")}, [(1,), (2,)]),
    ],
)
def test_the_mode_is_the_asset_s_or_else_the_io_manager_s(
    materialize: Materialize,
    lake: IceDBResource,
    name: str,
    mode: str,
    metadata: dict[str, Any],
    expected: list[tuple[int]],
) -> None:
    materialize(returning(name, ONE, metadata), mode=mode)
    materialize(returning(name, TWO, metadata), mode=mode)
    assert rows(lake, name) == expected


def test_batches_and_readers_of_batches_are_stored(materialize: Materialize, lake: IceDBResource) -> None:
    batches = [pa.record_batch({"n": [n, n + 1]}) for n in (1, 3)]
    materialize(
        returning("batch", batches[0]),
        returning("reader", lambda: pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))),
    )
    assert rows(lake, "batch") == [(1,), (2,)]
    assert rows(lake, "reader") == [(1,), (2,), (3,), (4,)]


def test_none_stands_for_a_table_that_the_asset_wrote_by_itself(
    materialize: Materialize, lake: IceDBResource, name: str
) -> None:
    def write() -> None:
        lake.table_or_create(name).insert(ONE)

    result = materialize(returning(name, write))
    assert rows(lake, name) == [(1,)]
    [event] = result.asset_materializations_for_node(name)
    assert event.metadata["dagster/row_count"].value == 1


def test_none_without_a_table_is_an_error(materialize: Materialize, lake: IceDBResource, name: str) -> None:
    with pytest.raises(TableNotFound):
        materialize(returning(name, None))
    assert not Path(lake.uri(name)).exists()


@pytest.mark.parametrize(
    ("value", "metadata", "message"),
    [
        ([{"n": 1}], {}, "returned a builtins.list"),
        (5, {}, "returned a builtins.int"),
        (ONE, {"icedb/mode": "upsert"}, "mode is 'upsert'"),
        (ONE, {"sort_by": "n"}, "'sort_by' must be a list of texts, not 'n'"),
        (ONE, {"partition_by": [1]}, "'partition_by' must be a list of texts"),
        (ONE, {"partition_by": 5}, "'partition_by' must be a list of texts"),
        (ONE, {"partition_by": ["random() AS r"]}, "different values for one row"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_there_is_a_table(
    materialize: Materialize, lake: IceDBResource, value: Any, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidBatch, InvalidOption, InvalidPartitionExpression), match=message) as error:
        materialize(returning("bad", value, metadata))
    assert lake.uri("bad") in str(error.value)
    assert not Path(lake.uri("bad")).exists()


def test_an_unknown_mode_of_the_io_manager_is_refused(materialize: Materialize, lake: IceDBResource) -> None:
    with pytest.raises(InvalidOption, match="mode is 'replace'"):
        materialize(returning("bad", ONE), mode="replace")
    assert not Path(lake.uri("bad")).exists()


def test_an_overwrite_without_rows_or_with_another_type_changes_nothing(
    materialize: Materialize, lake: IceDBResource, name: str
) -> None:
    materialize(returning(name, ONE))
    before = lake.table(name).snapshot().id
    with pytest.raises(EmptyBatch):
        materialize(returning(name, ONE.slice(0, 0)))
    with pytest.raises(SchemaConflict):
        materialize(returning(name, pa.table({"n": ["x"]})))
    assert lake.table(name).snapshot().id == before
    materialize(returning(name, ONE.slice(0, 0)), mode="append")
    assert lake.table(name).snapshot().id == before


DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])


def test_a_partitioned_asset_is_refused_and_may_do_what_the_message_says(
    materialize: Materialize, lake: IceDBResource, name: str
) -> None:
    with pytest.raises(InvalidOption, match=r"overwrite\(rows, partitions=.*return None"):
        materialize(returning(name, ONE, partitions_def=DAYS), partition_key="monday")
    assert not Path(lake.uri(name)).exists()

    @dg.asset(key=name, partitions_def=DAYS)
    def daily(context: dg.AssetExecutionContext) -> Any:
        day = pa.table({"day": [context.partition_key]})
        lake.table_or_create(name, partition_by=["day"]).overwrite(day, partitions=[f"day={context.partition_key}"])

    for key in ("monday", "tuesday", "monday"):
        assert materialize(daily, partition_key=key).success
    assert rows(lake, name) == [("monday",), ("tuesday",)]

    seen = []

    @dg.asset(partitions_def=DAYS, ins={"upstream": dg.AssetIn(name)})
    def whole(upstream: pa.Table) -> None:
        seen.append(upstream)

    @dg.asset(partitions_def=DAYS, ins={"upstream": dg.AssetIn(name)})
    def careful(context: dg.AssetExecutionContext, upstream: icedb.Snapshot) -> None:
        seen.append(upstream.to_arrow(where=f"day = '{context.partition_key}'"))

    with pytest.raises(InvalidOption, match=r"icedb\.Snapshot"):
        materialize(daily, whole, partition_key="monday", selection=[whole])
    assert seen == []
    materialize(daily, careful, partition_key="monday", selection=[careful])
    assert [table.to_pylist() for table in seen] == [[{"day": "monday"}]]


def test_an_input_of_another_type_or_without_a_table_is_refused(materialize: Materialize, name: str) -> None:
    numbers = returning(name, ONE)

    @dg.asset(ins={"upstream": dg.AssetIn(name)})
    def wants_a_list(upstream: list) -> None:  # type: ignore[type-arg]
        raise AssertionError("not to be run")

    @dg.asset(ins={"upstream": dg.AssetIn(name)})
    def wants_a_table(upstream: pa.Table) -> None:
        raise AssertionError("not to be run")

    with pytest.raises(TableNotFound):
        materialize(numbers, wants_a_table, selection=[wants_a_table])
    materialize(numbers)
    with pytest.raises(InvalidOption, match="cannot be loaded as"):
        materialize(numbers, wants_a_list, selection=[wants_a_list])


def test_a_spark_input_without_a_session_says_what_is_missing(materialize: Materialize, name: str) -> None:
    pyspark = pytest.importorskip("pyspark.sql")
    numbers = returning(name, ONE)

    @dg.asset(ins={"upstream": dg.AssetIn(name)})
    def wants_spark(upstream: pyspark.DataFrame) -> None:
        raise AssertionError("not to be run")

    materialize(numbers)
    with pytest.raises(InvalidOption, match="PySparkResource"):
        materialize(numbers, wants_spark, selection=[wants_spark])


@pytest.mark.spark
def test_spark_frames_go_in_and_out(environment: dict[str, str], lake: IceDBResource, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    _run_script("spark_assets.py", lake.root, str(tmp_path / "result.json"))
    told = json.loads((tmp_path / "result.json").read_text())
    assert told["success"] == [True, True, False]
    assert "EmptyBatch" in told["failure"]
    wall = datetime(2024, 1, 2, 3, 4, 5)
    assert rows(lake, "spark_numbers") == [(n, wall, n % 2) for n in range(10)]
    assert lake.table("spark_numbers").spec.sort_by == ("n",)
    assert rows(lake, "spark_squares", "square, wall, parity") == [(n * n, wall, n % 2) for n in range(10)]
    assert rows(lake, "spark_growing") == [(n,) for n in (0, 0, 1, 1, 2, 2)]
    assert rows(lake, "counts", "squares, numbers") == [(10, 10)]
    assert lake.table("spark_nothing").snapshot().parts == ()


def _run_script(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments], capture_output=True, check=False, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-5000:]


# ------------------------------------------------------------------------------------------ resource


@pytest.mark.parametrize("root", ["s3://lake/events", "s3://lake/events/"])
def test_the_table_of_an_asset_is_the_root_and_the_parts_of_its_key(root: str) -> None:
    lake = IceDBResource(root=root)
    assert lake.uri("flights") == "s3://lake/events/flights"
    assert lake.uri(["a", "b"]) == lake.uri(dg.AssetKey(["a", "b"])) == "s3://lake/events/a/b"


def test_assets_whose_keys_have_several_parts_are_folders_in_folders(
    materialize: Materialize, lake: IceDBResource, tmp_path: Path
) -> None:
    materialize(returning(["a", "b"], ONE), returning(["a", "c"], TWO))
    assert rows(lake, ["a", "b"]) == [(1,)]
    assert rows(lake, ["a", "c"]) == [(2,)]
    assert lake.table(["a", "b"]).uri == str(tmp_path / "lake" / "a" / "b")


def test_a_table_is_opened_or_created_once(lake: IceDBResource) -> None:
    with pytest.raises(TableNotFound):
        lake.table("events")
    first = lake.table_or_create("events", partition_by=["n"], sort_by=["m"])
    again = lake.table_or_create("events", partition_by=["m"])
    assert first.spec == again.spec == lake.table("events").spec
    assert first.spec.partition_by == ("n",)


def test_the_log_of_another_program_is_not_taken_for_a_missing_table(lake: IceDBResource) -> None:
    table = lake.table_or_create("events")
    table.insert(ONE)
    (Path(table.uri) / "_table.json").unlink()
    assert lake.table_or_create("events").snapshot().rows == table.snapshot().rows == 1
    assert not (Path(table.uri) / "_table.json").exists()


SECRET = "sEcReT-that-must-not-be-shown"


def test_what_is_shown_of_a_resource_has_no_secret_in_it() -> None:
    lake = IceDBResource(root="s3://lake", storage_options={"AWS_SECRET_ACCESS_KEY": SECRET})
    for text in (repr(lake), str(lake), f"{lake}", repr(IceDBIOManager(icedb=lake)), str(IceDBIOManager(icedb=lake))):
        assert "s3://lake" in text
        assert SECRET not in text


@pytest.mark.s3
def test_secrets_come_from_the_environment_and_stay_out_of_the_event_log(
    instance: dg.DagsterInstance, s3: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**s3.storage_options, "AWS_SECRET_ACCESS_KEY": dg.EnvVar("THE_SECRET")}
    lake = IceDBResource(root=s3.uri, storage_options=given)
    resources = {"io_manager": IceDBIOManager(icedb=lake), "icedb": lake}

    @dg.asset(ins={"upstream": dg.AssetIn(name)})
    def reader(upstream: pa.Table, icedb: IceDBResource) -> pa.Table:
        assert icedb.table(name).snapshot().rows == upstream.num_rows
        return upstream

    assets = [returning(name, ONE), reader]
    monkeypatch.setenv("THE_SECRET", s3.storage_options["AWS_SECRET_ACCESS_KEY"])
    good = dg.materialize(assets, resources=resources, instance=instance)
    assert good.success
    stored = icedb.Table.open(f"{s3.uri}/reader", storage_options=s3.storage_options)
    assert stored.query("SELECT n FROM t").fetchall() == [(1,)]

    monkeypatch.setenv("THE_SECRET", SECRET)
    bad = dg.materialize(assets, resources=resources, instance=instance, raise_on_error=False)
    [failure] = bad.get_step_failure_events()
    assert "AccessDenied" in str(failure.step_failure_data.error)
    for result, secret in ((good, s3.storage_options["AWS_SECRET_ACCESS_KEY"]), (bad, SECRET)):
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        kept = [
            *map(str, instance.all_logs(run.run_id)),
            str(run),
            str(instance.get_job_snapshot(run.job_snapshot_id or "")),
        ]
        assert len(kept) > 10
        assert not any(secret in text for text in kept)


# ------------------------------------------------------------------------------------------ maintenance jobs


def definitions(lake: IceDBResource, table: Any, **options: Any) -> dg.Definitions:
    return dg.Definitions.merge(build_table_definitions(table, **options), dg.Definitions(resources={"icedb": lake}))


def maintain(
    instance: dg.DagsterInstance, lake: IceDBResource, table: str, verb: str, **config: Any
) -> dg.ExecuteInProcessResult:
    job = definitions(lake, table, ttl=TimeToLive("d", keep_days=30)).resolve_job_def(f"{table}_{verb}")
    run_config = {"ops": {f"{table}_{verb}_work": {"config": config}}}
    return job.execute_in_process(instance=instance, run_config=run_config)


def dated(lake: IceDBResource, table: Any, *days: str | None) -> icedb.Table:
    """A table with a partition for each day, and a part for each mention of it."""
    made = lake.table_or_create(table, partition_by=["d"])
    for day in days:
        made.insert(pa.table({"d": pa.array([day], pa.string()), "n": [1]}))
    return made


def test_a_table_gets_a_job_and_a_stopped_schedule_for_each_kind_of_maintenance(lake: IceDBResource) -> None:
    defs = definitions(lake, "events", ttl=TimeToLive("d", keep_days=30))
    dg.Definitions.validate_loadable(defs)
    schedules = {schedule.name: schedule for schedule in defs.schedules or ()}
    assert set(schedules) == {f"events_{verb}_schedule" for verb in ("merge", "ttl", "cleanup")}
    for verb in ("merge", "ttl", "cleanup"):
        schedule = schedules[f"events_{verb}_schedule"]
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        assert schedule.job_name == f"events_{verb}"
        job = defs.resolve_job_def(f"events_{verb}")
        assert job.get_node_named(f"events_{verb}_work").definition.pool == icedb_pool("events") == "icedb/events"


def test_without_a_time_to_live_there_is_no_such_job(lake: IceDBResource) -> None:
    defs = definitions(lake, "events")
    assert {s.name for s in defs.schedules or ()} == {"events_merge_schedule", "events_cleanup_schedule"}


@pytest.mark.parametrize(
    ("key", "prefix", "pool"),
    [(["a", "b"], "a__b", "icedb/a/b"), (["my-team", "v1.2"], "my_team__v1_2", "icedb/my-team/v1.2")],
)
def test_a_key_of_several_parts_gives_jobs_and_a_pool(
    instance: dg.DagsterInstance, lake: IceDBResource, key: list[str], prefix: str, pool: str
) -> None:
    table = dated(lake, key, "2024-01-01", "2024-01-01")
    assert icedb_pool(key) == icedb_pool(dg.AssetKey(key)) == pool
    result = definitions(lake, key).resolve_job_def(f"{prefix}_merge").execute_in_process(instance=instance)
    assert result.success
    assert len(table.snapshot().parts) == 1
    assert instance.event_log_storage.get_concurrency_info(pool).slot_count == 1


def test_merge_merges_and_reports_what_the_table_is_like_now(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    table = dated(lake, name, "2024-01-01", "2024-01-01", "2024-01-02")
    result = maintain(instance, lake, name, "merge", order="newest")
    assert table.snapshot().partitions() == ["d=2024-01-01", "d=2024-01-02"]
    assert (len(table.snapshot().parts), table.snapshot().rows) == (2, 3)
    event = instance.fetch_observations(dg.AssetKey(name), limit=1).records[0]
    assert event.run_id == result.run_id
    metadata = event.asset_observation.metadata
    assert metadata["icedb/live_parts"].value == 2
    assert metadata["dagster/row_count"].value == 3
    assert "| parts merged | 2 |" in metadata["merge"].value


@pytest.mark.parametrize(
    ("config", "message"),
    [({"order": "random"}, "order is 'random'"), ({"order": ""}, "give 'newest' or 'oldest'")],
)
def test_a_merge_order_that_does_not_exist_is_refused(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str, config: dict[str, Any], message: str
) -> None:
    dated(lake, name, "2024-01-01", "2024-01-01")
    with pytest.raises(InvalidOption, match=message):
        maintain(instance, lake, name, "merge", **config)


def test_time_to_live_drops_what_is_older_than_the_reference_date_less_the_days(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    table = dated(lake, name, "2024-01-01", "2024-01-31", "2024-02-01", "2024-03-01", "none", None)
    before = table.snapshot()
    maintain(instance, lake, name, "ttl", reference_date="2024-03-02", dry_run=True)
    assert table.snapshot().id == before.id
    told = instance.fetch_observations(dg.AssetKey(name), limit=1).records[0].asset_observation.metadata["ttl"].value
    assert "| partitions dropped | 2 |" in told
    assert "| older than | 2024-02-01 |" in told

    maintain(instance, lake, name, "ttl", reference_date="2024-03-02")  # 30 days: the first of February stays
    assert rows(lake, name, "d") == [("2024-02-01",), ("2024-03-01",), ("none",), (None,)]
    assert before.rows == 6
    assert table.query("SELECT count(*) FROM t", as_of=before.as_of_ms).fetchall() == [(6,)]

    maintain(instance, lake, name, "ttl", reference_date="2024-03-02", keep_days=1)
    assert rows(lake, name, "d") == [("2024-03-01",), ("none",), (None,)]


def test_time_to_live_counts_from_today(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> None:
    today = datetime.now(UTC).date()
    kept = [(today - timedelta(days=n)).isoformat() for n in (29, 0)]
    gone = (today - timedelta(days=32)).isoformat()
    dated(lake, name, gone, *kept)
    maintain(instance, lake, name, "ttl")
    assert rows(lake, name, "d") == [(day,) for day in kept]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"reference_date": "yesterday"}, "reference_date is 'yesterday'"),
        ({"reference_date": "2024-02-30"}, "write it as YYYY-MM-DD"),
        ({"keep_days": -1000}, "keep_days is -1000"),
        ({"keep_days": 10_000_000}, "keep_days is 10000000"),
    ],
)
def test_a_time_to_live_that_makes_no_sense_drops_nothing(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str, config: dict[str, Any], message: str
) -> None:
    table = dated(lake, name, "2024-01-01", date.today().isoformat())
    with pytest.raises(InvalidOption, match=message):
        maintain(instance, lake, name, "ttl", **config)
    assert len(table.snapshot().parts) == 2


def test_a_time_to_live_on_a_column_without_dates_is_refused(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    dated(lake, name, "2024-01", "2024-02")
    with pytest.raises(InvalidOption, match="'d', where no value is a date"):
        maintain(instance, lake, name, "ttl")
    other = f"{name}_other"
    lake.table_or_create(other, partition_by=["n"]).insert(ONE)
    with pytest.raises(InvalidPartitionExpression, match="does not fit the partition columns"):
        maintain(instance, lake, other, "ttl")


def test_maintenance_of_an_empty_table_does_nothing(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    table = lake.table_or_create(name, partition_by=["d"])
    for verb in ("merge", "ttl", "cleanup"):
        assert maintain(instance, lake, name, verb).success
    assert table.snapshot().log_files == 0


def test_maintenance_of_a_table_that_is_not_there_says_so(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    with pytest.raises(TableNotFound):
        maintain(instance, lake, name, "merge")


def test_cleanup_deletes_what_was_superseded_if_told_that_nobody_reads_it(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str
) -> None:
    table = dated(lake, name, "2024-01-01", "2024-01-01")
    table.merge()
    stored = len(list(Path(table.uri).rglob("*.parquet")))
    assert stored == 3
    maintain(instance, lake, name, "cleanup")  # the table's grace period is an hour
    with pytest.raises(GraceTooShort):
        maintain(instance, lake, name, "cleanup", grace_ms=0)
    maintain(instance, lake, name, "cleanup", grace_ms=0, allow_short_grace=True, dry_run=True)
    assert len(list(Path(table.uri).rglob("*.parquet"))) == 3
    maintain(instance, lake, name, "cleanup", grace_ms=0, allow_short_grace=True)
    assert len(list(Path(table.uri).rglob("*.parquet"))) == len(table.snapshot().parts) == 1
    assert rows(lake, name, "n") == [(1,), (1,)]


def test_config_that_does_not_exist_is_refused(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="odrer"):
        maintain(instance, lake, name, "merge", odrer="oldest")


# ------------------------------------------------------------------------------------------ the pool


@pytest.mark.parametrize(("verb", "method"), [("merge", "merge"), ("ttl", "drop_partitions"), ("cleanup", "cleanup")])
@pytest.mark.parametrize("limit", [None, 5])
def test_the_work_holds_the_only_slot_whatever_limit_the_pool_had(
    instance: dg.DagsterInstance,
    lake: IceDBResource,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    method: str,
    limit: int | None,
) -> None:
    dated(lake, name, "2024-01-01", "2024-01-01")
    storage, pool = instance.event_log_storage, icedb_pool(name)
    assert pool not in storage.get_concurrency_keys()
    if limit is not None:
        storage.set_concurrency_slots(pool, limit)
    during = []
    work = getattr(icedb.Table, method)

    def looking(*args: Any, **options: Any) -> Any:
        during.append(storage.get_concurrency_info(pool))
        return work(*args, **options)

    monkeypatch.setattr(icedb.Table, method, looking)
    result = maintain(instance, lake, name, verb)
    [info] = during
    assert (info.slot_count, [slot.run_id for slot in info.claimed_slots]) == (1, [result.run_id])
    after = storage.get_concurrency_info(pool)
    assert (after.slot_count, after.claimed_slots, after.pending_steps) == (1, [], [])


def test_a_pool_that_many_runs_use_first_at_the_same_moment_has_the_limit_one(
    instance: dg.DagsterInstance, name: str
) -> None:
    runs, errors = 8, []

    def ensure(pool: str, barrier: threading.Barrier) -> None:
        barrier.wait(60)
        try:
            ensure_pool(instance, pool)
        except Exception as error:
            errors.append(error)

    for attempt in range(5):
        pool, barrier = f"{name}/{attempt}", threading.Barrier(runs)
        threads = [threading.Thread(target=ensure, args=(pool, barrier)) for _ in range(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        info = instance.event_log_storage.get_concurrency_info(pool)
        assert (info.slot_count, info.limit, info.using_default_limit) == (1, 1, False)
    assert errors == []


def test_a_run_that_fails_frees_the_slot(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> None:
    dated(lake, name, "2024-01-01", "2024-01-01")
    with pytest.raises(InvalidOption):
        maintain(instance, lake, name, "merge", order="random")
    assert instance.event_log_storage.get_concurrency_info(icedb_pool(name)).claimed_slots == []
    assert maintain(instance, lake, name, "merge").success


def test_an_instance_without_pools_is_refused(lake: IceDBResource, name: str) -> None:
    table = dated(lake, name, "2024-01-01", "2024-01-01")
    with dg.DagsterInstance.ephemeral() as ephemeral, pytest.raises(PoolNotExclusive, match="icedb-dagster up"):
        maintain(ephemeral, lake, name, "merge")
    assert len(table.snapshot().parts) == 2


def test_an_instance_whose_pools_hold_runs_instead_of_steps_is_refused(
    environment: dict[str, str], lake: IceDBResource, name: str, tmp_path: Path
) -> None:
    ours = (Path(environment["DAGSTER_HOME"]) / "dagster.yaml").read_text()
    assert "granularity: op" in ours
    (tmp_path / "dagster.yaml").write_text(ours.replace("granularity: op", "granularity: run"))
    table = dated(lake, name, "2024-01-01", "2024-01-01")
    with (
        dg.DagsterInstance.from_config(str(tmp_path)) as by_run,
        pytest.raises(PoolNotExclusive, match=r"taken by nobody.*granularity: op"),
    ):
        maintain(by_run, lake, name, "merge")
    assert len(table.snapshot().parts) == 2


@pytest.mark.parametrize("after_s", [0, 0.2])
def test_a_run_whose_slot_dagster_gave_away_twice_waits_for_the_other(
    instance: dg.DagsterInstance, lake: IceDBResource, name: str, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """What Dagster does on Postgres when two runs ask at the same moment: the second overwrites the first's name."""
    table = dated(lake, name, "2024-01-01", "2024-01-01")
    storage, pool, rival, step = instance.event_log_storage, icedb_pool(name), "the-rival", f"{name}_merge_work"
    events: list[str] = []
    threads: list[threading.Timer] = []

    def take() -> None:
        slots = ConcurrencySlotsTable
        with storage.index_connection() as connection:
            taken = slots.update().values(run_id=rival).where(slots.c.concurrency_key == pool)
            assert connection.execute(taken).rowcount == 1

    def free() -> None:
        events.append("the rival is done")
        storage.free_concurrency_slot_for_step(rival, step)

    def check(context: dg.OpExecutionContext, checked: str) -> None:
        if not threads:
            storage.add_pending_step(pool, rival, step, should_assign=True)
            threads.extend([threading.Timer(after_s, take), threading.Timer(2, free)])
            for thread in threads:
                thread.start()
            if not after_s:
                threads[0].join()
        check_pool_held(context, checked)

    merge = icedb.Table.merge

    def merging(*args: Any, **options: Any) -> Any:
        events.append("merge")
        return merge(*args, **options)

    monkeypatch.setattr(maintenance, "check_pool_held", check)
    monkeypatch.setattr(icedb.Table, "merge", merging)
    try:
        assert maintain(instance, lake, name, "merge").success
    finally:
        for thread in threads:
            thread.join()
    assert events == ["the rival is done", "merge"]
    assert len(table.snapshot().parts) == 1
    assert storage.get_concurrency_info(pool).claimed_slots == []


def test_runs_of_one_table_never_overlap(environment: dict[str, str], lake: IceDBResource, tmp_path: Path) -> None:
    for table in ("busy", "other"):
        dated(lake, table, "2024-01-01", "2024-01-01", "2024-01-01")
    tables = ["busy"] * 4 + ["other"] * 2
    _run_script(
        "maintenance_runs.py",
        json.dumps({"root": lake.root, "tables": tables, "hold_s": 0.5, "folder": str(tmp_path)}),
    )
    runs = json.loads((tmp_path / "all.json").read_text())
    assert [run["errors"] for run in runs if not run["success"]] == []
    spans = {t: sorted(tuple(s) for r in runs if r["table"] == t for s in r["spans"]) for t in ("busy", "other")}
    assert [len(spans["busy"]), len(spans["other"])] == [4, 2]
    for of_table in spans.values():
        assert all(ended < began for (_, ended), (began, _) in pairwise(of_table))
    for table in ("busy", "other"):
        snapshot = lake.table(table).snapshot()
        assert (len(snapshot.parts), snapshot.rows) == (1, 3)


# ------------------------------------------------------------------------------------------ without the extra

IMPORT_WITHOUT_DAGSTER = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dagster":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import icedb
print("icedb is there")
import icedb_dagster
"""


def test_without_dagster_icedb_works_and_icedb_dagster_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_DAGSTER], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode != 0
    assert done.stdout.strip() == "icedb is there"
    assert "pip install 'icedb-dagster[dagster]'" in done.stderr.splitlines()[-1]
