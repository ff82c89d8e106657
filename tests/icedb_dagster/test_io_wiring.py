"""How the IO manager is wired: its tables, ops that are no assets, optional inputs, and dropped or empty partitions."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidArgument, InvalidBatch, InvalidOption, TooManyPartitions
from icedb_dagster import IceDBIOManager, IceDBResource
from tests.support.dagster.dagster_instance import ONE, AssetRun, returning, rows

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

DAYS = dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08")
PICTURES = {"icedb/part_sizes", "icedb/preview"}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def events(key: str, per_day: int, metadata: dict[str, Any] | None = None, **options: Any) -> dg.AssetsDefinition:
    """Return a daily asset with that many rows a day, at different times."""

    @dg.asset(key=key, partitions_def=DAYS, metadata=metadata, **options)
    def asset(context: dg.AssetExecutionContext) -> pa.Table:
        return day_rows(context.partition_keys, per_day)

    return asset


def day_rows(days: list[str], per_day: int) -> pa.Table:
    times = [datetime.fromisoformat(day) + timedelta(minutes=n) for day in days for n in range(per_day)]
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), "n": list(range(len(times)))})


BY_DAY = {"partition_expr": "CAST(ts AS DATE) AS day"}


# ------------------------------------------------------------------------------------------ the lake


@pytest.mark.sampled(days=3)
def test_one_object_locates_the_tables(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> None:
    io_manager = IceDBIOManager(root=lake.root, storage_options={"fsync": "false"})
    dg.Definitions(assets=[returning(name, ONE)], resources={"io_manager": io_manager})
    assert dg.materialize([returning(name, ONE)], resources={"io_manager": io_manager}, instance=instance).success
    assert rows(lake, name) == [(1,)]
    assert io_manager.icedb.storage_options == {"fsync": "false"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "icedb is missing.*root='s3://bucket/prefix'"),
        ({"icedb": None}, "icedb is missing"),
        ({"icedb": "s3://lake"}, "icedb is a str"),
        ({"root": "s3://lake", "icedb": IceDBResource(root="s3://lake")}, "both root and icedb"),
        ({"storage_options": {"AWS_SECRET_ACCESS_KEY": "hidden"}}, "storage_options and s3 need root"),
        ({"root": 7}, "root"),
    ],
)
def test_wrong_wiring_is_an_error_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        IceDBIOManager(**fields)
    assert "hidden" not in str(error.value)


@pytest.mark.sampled(days=3)
def test_the_root_may_come_from_the_launchpad(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> None:
    at_launch = IceDBResource.configure_at_launch()
    job = dg.Definitions(
        assets=[returning(name, ONE)],
        jobs=[dg.define_asset_job("all_assets")],
        resources={"lake": at_launch, "io_manager": IceDBIOManager(icedb=at_launch)},
    ).resolve_job_def("all_assets")
    config = {"resources": {"lake": {"config": {"root": lake.root}}}}
    assert job.execute_in_process(run_config=config, instance=instance).success
    assert rows(lake, name) == [(1,)]


# ------------------------------------------------------------------------------------------ ops


@pytest.mark.sampled(days=3)
def test_inner_ops_of_a_graph_asset_need_no_table(run: AssetRun) -> None:
    @dg.op
    def numbers() -> list[int]:
        return [1, 2]

    @dg.op
    def doubled(values: list[int], upstream: pa.Table) -> pa.Table:
        return pa.table({"n": [2 * v for v in values] + upstream["n"].to_pylist()})

    @dg.graph_asset(name=run.name)
    def graph(upstream: pa.Table) -> Any:
        return doubled(numbers(), upstream)

    assert run(returning("upstream", ONE), graph).success
    assert run.rows() == [(1,), (2,), (4,)]


@pytest.mark.sampled(days=3)
def test_ops_pass_values_under_the_io_manager(run: AssetRun) -> None:
    received = []

    @dg.op
    def nothing():  # type: ignore[no-untyped-def]
        return None

    @dg.op
    def take(value) -> None:  # type: ignore[no-untyped-def]
        received.append(value)

    @dg.job(resource_defs={"io_manager": IceDBIOManager(icedb=run.lake)})
    def ops() -> None:
        take(nothing())

    assert ops.execute_in_process(instance=run.instance).success
    assert received == [None]


def test_an_op_output_outside_a_run_is_rejected(run: AssetRun) -> None:
    context = dg.build_output_context(name="result")
    with pytest.raises(InvalidOption, match="Give the context an asset_key"):
        IceDBIOManager(icedb=run.lake).handle_output(context, ONE)


# ------------------------------------------------------------------------------------------ optional inputs


def test_an_optional_input_of_the_first_run_is_none(run: AssetRun) -> None:
    received: list[Any] = []
    yesterday = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        key=run.name,
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
        ins={"before": dg.AssetIn(run.name, partition_mapping=yesterday)},
    )
    def total(context: dg.AssetExecutionContext, before: pa.Table | None) -> pa.Table:
        received.append(before)
        last = 0 if before is None else before["total"][0].as_py()
        return pa.table({"day": [datetime.fromisoformat(context.partition_key).date()], "total": [last + 1]})

    for day in ("2024-03-01", "2024-03-02", "2024-03-01"):
        run(total, partition_key=day)
    assert [value is None for value in received] == [True, False, True]
    assert run.rows("total") == [(1,), (2,)]


# ------------------------------------------------------------------------------------------ empty and dropped


@pytest.mark.sampled(days=3)
def test_an_empty_partition_is_cleared_and_an_empty_table_is_an_error(run: AssetRun) -> None:
    full = events(run.name, 3, BY_DAY)
    for day in ("2024-03-01", "2024-03-02"):
        run(full, partition_key=day)
    run(events(run.name, 0, BY_DAY), partition_key="2024-03-01")
    assert run.rows("day::VARCHAR") == [("2024-03-02",)] * 3
    whole = returning(run.name, day_rows([], 0))
    with pytest.raises(Exception, match="on_empty"):
        run(whole)
    strict = events(run.name, 0, {**BY_DAY, "on_empty": "raise"})
    with pytest.raises(Exception, match="on_empty"):
        run(strict, partition_key="2024-03-02")
    assert len(run.rows()) == 3


@pytest.mark.sampled(days=3)
def test_dropped_rows_are_not_read_as_an_empty_partition(run: AssetRun) -> None:
    upstream, downstream = f"{run.name}_up", f"{run.name}_down"
    source = events(upstream, 4, BY_DAY)
    expired = {"2024-03-01"}

    def copies(**options: Any) -> dg.AssetsDefinition:
        @dg.asset(
            key=downstream,
            partitions_def=DAYS,
            metadata={"partition_expr": "day"},
            ins={"loaded": dg.AssetIn(upstream, metadata=options)},
        )
        def asset(loaded: pa.Table) -> pa.Table:
            return loaded

        return asset

    for day in ("2024-03-01", "2024-03-02"):
        assert run(source, copies(), partition_key=day).success
    run.lake.table(upstream).drop_partitions([f"day={day}" for day in expired])
    with pytest.raises(InvalidOption, match=r"no rows any more \(2024-03-01\).* had 4: they were dropped"):
        run(source, copies(), selection=[copies()], partition_key="2024-03-01")
    assert len(rows(run.lake, downstream)) == 8
    # A partition that is not dropped can be run again, and a never materialized one is empty.
    assert run(source, copies(), selection=[copies()], partition_key="2024-03-02").success
    assert run(source, copies(), selection=[copies()], partition_key="2024-03-03").success
    assert len(rows(run.lake, downstream)) == 8
    assert run(source, copies(on_dropped="empty"), selection=[copies()], partition_key="2024-03-01").success
    assert rows(run.lake, downstream, "day::VARCHAR") == [("2024-03-02",)] * 4
    with pytest.raises(InvalidOption, match="on_dropped is 'ignore'"):
        run(source, copies(on_dropped="ignore"), selection=[copies()], partition_key="2024-03-01")


@pytest.mark.sampled(days=3)
def test_a_backfill_in_one_run_reports_each_partition(run: AssetRun) -> None:
    @dg.asset(key=run.name, partitions_def=DAYS, metadata=BY_DAY, backfill_policy=dg.BackfillPolicy.single_run())
    def asset(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.concat_tables(day_rows([day], n) for n, day in enumerate(context.partition_keys, 1))

    tags = {"dagster/asset_partition_range_start": "2024-03-01", "dagster/asset_partition_range_end": "2024-03-03"}
    result = run(asset, tags=tags)
    materialized = result.asset_materializations_for_node(run.name)
    counts = {m.partition: m.metadata["dagster/partition_row_count"].value for m in materialized}
    assert counts == {"2024-03-01": 1, "2024-03-02": 2, "2024-03-03": 3}
    # The preview and the picture are large, so one event has them.
    assert [m.partition for m in materialized if m.metadata.keys() & PICTURES] == ["2024-03-03"]
    assert materialized[-1].metadata.keys() >= PICTURES


# ------------------------------------------------------------------------------------------ too many partitions


def test_a_raw_timestamp_makes_no_partition_of_each_row(run: AssetRun) -> None:
    metadata = {"partition_expr": "ts"}
    with pytest.raises(TooManyPartitions, match=r"\"strftime\(ts, '%Y-%m-%d'\) AS day\"") as error:
        run(events(run.name, 5, metadata), partition_key="2024-03-01")
    assert "lie in 5 partitions, and 1 are allowed" in str(error.value)
    assert run.table().snapshot().parts == ()
    # One value for each day is a good partition column.
    for day in ("2024-03-01", "2024-03-02"):
        run(events(run.name, 1, metadata), partition_key=day)
    assert len(run.rows()) == 2
    with pytest.raises(TooManyPartitions, match="strftime"):
        run(events(run.name, 5, metadata), partition_key="2024-03-01")
    assert len(run.rows()) == 2


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_partitions_max_limits_every_output(run: AssetRun, mode: str) -> None:
    table = pa.table({"n": list(range(20))})
    metadata = {"partition_by": ["n"], "mode": mode}
    with pytest.raises(TooManyPartitions, match=r"20 partitions, and 10 are allowed.*icedb/partitions_max"):
        run(returning(run.name, table, metadata), io={"partitions_max": 10})
    assert run.table().snapshot().parts == ()
    assert run(returning(run.name, table, {**metadata, "partitions_max": 20}), io={"partitions_max": 10}).success
    assert len(run.rows()) == 20
    with pytest.raises(InvalidOption, match="partitions_max is 0"):
        run(returning(run.name, table, {**metadata, "partitions_max": 0}))


def test_a_lazy_relation_is_limited_before_a_part_is_written(run: AssetRun) -> None:
    relation = duckdb.sql("SELECT range AS n FROM range(2000)")
    with pytest.raises(TooManyPartitions, match="2000 partitions, and 1024 are allowed"):
        run(returning(run.name, relation, {"partition_by": ["n"]}))
    assert run.table().snapshot().parts == ()


# ------------------------------------------------------------------------------------------ columns that go


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("setting", ["schema_mode", "icedb/schema_mode"])
def test_an_overwrite_of_the_schema_drops_the_columns_that_the_rows_lack(run: AssetRun, setting: str) -> None:
    first = pa.table({"n": [1], "old": ["x"]})
    assert run(returning(run.name, first)).success
    before_ms = run.table().snapshot().as_of_ms
    assert run(returning(run.name, pa.table({"n": [2], "new": [True]}), {setting: "overwrite"})).success
    assert run.table().schema() == {"n": "BIGINT", "new": "BOOLEAN"}
    assert run.rows() == [(2, True)]
    assert run.table().query("SELECT * FROM t", as_of=before_ms).fetchall() == [(1, "x")]
    with pytest.raises(InvalidBatch, match="'old', which was dropped"):  # merge is the default
        run(returning(run.name, first))


def test_the_schema_of_some_partitions_cannot_be_replaced(run: AssetRun) -> None:
    daily = events(run.name, 2, {**BY_DAY, "schema_mode": "overwrite"})
    with pytest.raises(InvalidOption, match=r"replaces the columns of the whole table, but the asset is partitioned"):
        run(daily, partition_key="2024-03-01")
    with pytest.raises(InvalidOption, match="but the mode is 'append'"):
        run(returning(run.name, ONE, {"mode": "append", "schema_mode": "overwrite"}))
    with pytest.raises(InvalidOption, match="schema_mode"):
        run(returning(run.name, ONE, {"schema_mode": "replace"}))
