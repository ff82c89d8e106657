"""Assets that are SQL: their rows, their partitions, what they read, and queries that are rejected."""

import uuid
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption, InvalidQuery
from icedb_dagster import IceDBIOManager, IceDBResource, sql_asset
from tests.support.dagster.dagster_instance import AssetRun, returning, rows
from tests.support.object_stores.stores import BUCKET

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

DAYS = dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-03-06")
BY_DAY = {"partition_expr": "day"}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def visits() -> dg.AssetsDefinition:
    """Return an asset with n rows on the n-th day."""

    @dg.asset(partitions_def=DAYS, metadata=BY_DAY)
    def visits(context: dg.AssetExecutionContext) -> pa.Table:
        days = [date.fromisoformat(key) for key in context.partition_keys for _ in range(int(key[-1]))]
        return pa.table({"day": days, "user": [n % 2 for n in range(len(days))]})

    return visits


@pytest.mark.sampled(days=3)
def test_the_rows_of_a_query_are_committed(run: AssetRun) -> None:
    orders = returning(["raw", "orders"], pa.table({"item": [1, 2, 2], "price": [5.0, 7.0, 8.0]}))
    items = returning("items", pa.table({"item": [1, 2], "name": ["tea", "rice"]}))
    query = "SELECT name, sum(price) AS price FROM o JOIN items USING (item) GROUP BY name"
    inputs = {"o": ["raw", "orders"], "items": "items"}
    revenue = sql_asset(run.name, query, inputs=inputs, metadata={"sort_by": ["name"]}, group_name="sales")
    assert run(orders, items, revenue).success
    assert run.rows() == [("rice", 15.0), ("tea", 5.0)]
    assert run.table().spec.sort_by == ("name",)
    spec = revenue.get_asset_spec(dg.AssetKey(run.name))
    assert spec.group_name == "sales"
    assert {"icedb", "duckdb", "sql"} <= spec.kinds
    assert query in (spec.description or "")
    assert {dep.asset_key for dep in spec.deps} == {dg.AssetKey("items"), dg.AssetKey(["raw", "orders"])}


@pytest.mark.sampled(days=3)
def test_a_partition_reads_the_partitions_that_it_depends_on(run: AssetRun, visits: dg.AssetsDefinition) -> None:
    daily = sql_asset(
        run.name, "SELECT day, count(*) AS n FROM visits GROUP BY day", inputs=["visits"], partitions_def=DAYS,
        metadata=BY_DAY,
    )  # fmt: skip
    for day in ("2024-03-01", "2024-03-02", "2024-03-03", "2024-03-02"):
        result = run(visits, daily, partition_key=day)
        assert result.success
    assert run.rows() == [(date(2024, 3, n), n) for n in (1, 2, 3)]
    [event] = result.asset_materializations_for_node(run.name)
    assert "icedb/read/visits" in event.metadata
    assert event.metadata["icedb/rows_written"].value == 1


@pytest.mark.sampled(days=3)
def test_a_window_of_days_is_a_pair_of_parameters(run: AssetRun, visits: dg.AssetsDefinition) -> None:
    """Each day counts the rows of two days, by a partition mapping and the time window of the run."""
    two_days = dg.AssetIn("visits", partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1))
    query = """
        SELECT $partition_start::DATE AS day, count(*) AS n, min(day) AS first, $partition_key AS key,
            date_diff('hour', $partition_start, $partition_end) AS hours
        FROM visits
    """
    trend = sql_asset(run.name, query, inputs={"visits": two_days}, partitions_def=DAYS, metadata=BY_DAY)
    for day in ("2024-03-01", "2024-03-02", "2024-03-03"):
        assert run(visits, trend, partition_key=day).success
    day = timedelta(days=1)
    first = date(2024, 3, 1)
    assert run.rows() == [
        (first, 1, first, "2024-03-01", 24),
        (first + day, 3, first, "2024-03-02", 24),
        (first + 2 * day, 5, first + day, "2024-03-03", 24),
    ]


@pytest.mark.sampled(days=3)
def test_a_backfill_in_one_run_has_all_keys(run: AssetRun, visits: dg.AssetsDefinition) -> None:
    policy = dg.BackfillPolicy.single_run()
    query = (
        "SELECT day, count(*) AS n, len($partition_keys) AS keys FROM visits WHERE day < $partition_end GROUP BY day"
    )
    daily = sql_asset(run.name, query, inputs=["visits"], partitions_def=DAYS, metadata=BY_DAY, backfill_policy=policy)
    for day in ("2024-03-01", "2024-03-02", "2024-03-03"):
        assert run(visits, partition_key=day).success
    tags = {"dagster/asset_partition_range_start": "2024-03-01", "dagster/asset_partition_range_end": "2024-03-03"}
    assert run(visits, daily, selection=[daily], tags=tags).success
    assert run.rows() == [(date(2024, 3, n), n, 3) for n in (1, 2, 3)]


def test_wall_times_are_those_of_the_zone_of_the_partitions(run: AssetRun) -> None:
    days = dg.DailyPartitionsDefinition("2024-03-30", timezone="Europe/Berlin", end_date="2024-04-02")
    query = "SELECT $partition_start::DATE AS day, $partition_start AS s, $partition_end AS e"
    times = sql_asset(run.name, query, partitions_def=days, metadata=BY_DAY)
    assert run(times, partition_key="2024-03-31").success  # has 23 hours
    assert run.rows("CAST(day AS VARCHAR), CAST(s AS VARCHAR), CAST(e AS VARCHAR)") == [
        ("2024-03-31", "2024-03-31 00:00:00", "2024-04-01 00:00:00")
    ]


@pytest.mark.sampled(days=3)
def test_an_append_is_exactly_once_and_a_large_result_spills(run: AssetRun) -> None:
    query = "SELECT range AS n, md5(range::VARCHAR) AS text FROM range(300000) ORDER BY text"
    large = sql_asset(run.name, query, metadata={"mode": "append"}, memory_bytes=64 << 20)
    assert run(large).success
    assert run.rows("count(DISTINCT n), count(DISTINCT text)") == [(300_000, 300_000)]


@pytest.mark.sampled(days=3)
def test_inputs_of_all_types_and_partitionings_are_read_more_than_once(
    run: AssetRun, visits: dg.AssetsDefinition
) -> None:
    """The table has parts of an older partitioning, a UUID and a column of one day only."""
    assert run(visits, partition_key="2024-03-02").success
    table = run.lake.table("visits")
    table.alter(partition_by=["day", '"user"'])
    table.insert([{"day": date(2024, 3, 3), "user": 7, "id": uuid.UUID(int=5)}])
    query = "SELECT a.day, a.user, b.user AS other, b.id FROM visits a JOIN visits b ON a.user <= b.user AND b.user = 7"
    pairs = sql_asset(run.name, query, inputs=["visits"])
    assert run(visits, pairs, selection=[pairs]).success
    third, second = date(2024, 3, 3), date(2024, 3, 2)
    assert sorted(run.rows('day, "user", other, id')) == [
        (second, 0, 7, uuid.UUID(int=5)), (second, 1, 7, uuid.UUID(int=5)), (third, 7, 7, uuid.UUID(int=5)),
    ]  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_inputs_in_buckets_and_folders_are_joined(run: AssetRun, storage_options: dict[str, str], name: str) -> None:
    bucket = IceDBResource(root=f"s3://{BUCKET}/{name}", storage_options={k: dg.EnvVar(k) for k in storage_options})
    remote = returning("remote", pa.table({"n": [1, 2]}), io_manager_key="bucket")
    local = returning("local", pa.table({"n": [2, 3]}))
    both = sql_asset(name, "SELECT n FROM local JOIN remote USING (n)", inputs=["local", "remote"])
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in storage_options.items():
            patch.setenv(variable, value)
        resources = {"bucket": IceDBIOManager(icedb=bucket), "io_manager": IceDBIOManager(icedb=run.lake)}
        assert dg.materialize([remote, local, both], resources=resources, instance=run.instance).success
    assert run.rows() == [(2,)]


@pytest.mark.parametrize(
    ("query", "fields", "message"),
    [
        ("SELECT", {}, "not valid SQL"),
        ("SELECT 1; SELECT 2", {}, "not one SELECT"),
        ("DELETE FROM t", {}, "not one SELECT"),
        ("SELECT $day", {"partitions_def": DAYS}, r"\$day, which is no parameter. Use \$partition_key, "),
        ("SELECT $partition_key", {}, r"\$partition_key, and the asset has no partitions_def"),
        (
            "SELECT $partition_end",
            {"partitions_def": dg.StaticPartitionsDefinition(["a"])},
            "no time windows. Use .partition_key",
        ),
        ("SELECT 1", {"inputs": "visits"}, r"Give a list: inputs=\['visits'\]"),
        ("SELECT 1", {"inputs": [["a", "visits"], ["b", "visits"]]}, "two inputs are named 'visits'"),
        ("SELECT 1", {"inputs": {"my-visits": "visits"}}, "'my-visits' needs a name of letters"),
        ("SELECT 1", {"memory_bytes": 1}, "memory_bytes is 1"),
    ],
)
def test_an_invalid_definition_is_rejected_when_it_is_made(query: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        sql_asset("numbers", query, **fields)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nope FROM n", "nope"),
        ("SELECT * FROM missing", "missing"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("SELECT error('in a row') FROM n", "in a row"),
    ],
)
def test_a_failing_query_commits_nothing_and_names_the_asset(run: AssetRun, query: str, message: str) -> None:
    upstream = returning("n", pa.table({"n": [1]}))
    good, bad = sql_asset(run.name, "SELECT n FROM n", inputs=["n"]), sql_asset(run.name, query, inputs=["n"])
    assert run(upstream, good).success
    with pytest.raises(InvalidQuery, match=rf"the asset {run.name}: .*{message}"):
        run(upstream, bad, selection=[bad])
    assert run.rows() == [(1,)]


@pytest.mark.sampled(days=3)
def test_a_column_lineage_of_the_definition_is_in_each_materialization(run: AssetRun) -> None:
    upstream = returning("prices", pa.table({"price": [1, 2]}))
    lineage = dg.TableColumnLineage({"total": [dg.TableColumnDep("prices", "price")]})
    metadata = {"dagster/column_lineage": lineage}
    query = "SELECT CAST(sum(price) AS BIGINT) AS total FROM prices"
    total = sql_asset(run.name, query, inputs=["prices"], metadata=metadata)
    [event] = run(upstream, total).asset_materializations_for_node(run.name)
    assert event.metadata["dagster/column_lineage"].value == lineage
    assert rows(run.lake, run.name) == [(3,)]
