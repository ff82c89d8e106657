"""Upserts of Spark DataFrames leave the rows that the same upserts without Spark leave, in one commit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import icedb.spark
from icedb import Table, UpsertReport
from icedb.errors import InvalidBatch, InvalidOption, SchemaConflict, UnknownColumn, UnsupportedType
from icedb.operations.rewrite import part_search
from icedb.spark import SparkEngine, spark_engine, spark_tasks
from tests.support.object_stores.counting_proxy import CountingProxy
from tests.support.object_stores.stores import Place
from tests.support.spark.spark_clusters import SharedDriver
from tests.support.spark.spark_streams import ChangeFolder, Moment, kill_drivers
from tests.support.spark.spark_tables import Create, content, log_keys, part_keys

pytestmark = pytest.mark.spark

CDC = {"delete_where": "op = 'd'", "order_by": ["ts"]}


def counts(report: UpsertReport) -> tuple[int, int, int, int]:
    return report.inserted_rows, report.updated_rows, report.unchanged_rows, report.deleted_rows


def fill(place: Place) -> Table:
    """Return a table of users with two parts in each of three partitions."""
    table = Table.create(
        place.uri, storage_options=place.storage_options, partition_by=["id % 3 AS third"], sort_by=["id"]
    )
    for batch in range(2):
        table.insert([{"id": n, "name": f"{n}", "visits": 1} for n in range(50 * batch, 50 * (batch + 1))])
    return table


def changes(spark: SparkSession) -> DataFrame:
    """Return changes of the users 10 to 109, twice for each user, in seven tasks: some delete, some change nothing."""
    return spark.range(0, 200, 1, 7).selectExpr(
        "10 + id % 100 AS id",
        "if(id % 4 = 0, concat('é', id), cast(10 + id % 100 AS string)) AS name",
        "if(id % 5 = 0, 'd', 'u') AS op",
        "timestamp '2026-11-27 08:00:00' + make_dt_interval(0, 0, 0, id) AS ts",
    )


@pytest.mark.s3
@pytest.mark.sampled(cases=1)
def test_an_upsert_equals_one_without_spark(
    shared_place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's time zone does not matter, and each part is searched in a task of its own."""
    table, twin = fill(shared_place.below("spark")), fill(shared_place.below("here"))
    batch = changes(spark)
    expected = twin.upsert(batch.toArrow(), ["id"], **CDC)
    names: list[str] = []
    run_tasks = spark_engine.run_tasks

    def record(session: SparkSession, assignment: Any, shares: Any) -> Any:
        names.append(f"{assignment.work.name} in {len(shares)} tasks")
        return run_tasks(session, assignment, shares)

    monkeypatch.setattr(spark_engine, "run_tasks", record)
    monkeypatch.setattr(spark_engine, "BYTES_PER_TASK", 1)
    monkeypatch.setattr(part_search, "_BYTES_PER_BATCH", 1)
    options: dict[str, Any] = {**CDC, "storage_options": shared_place.storage_options}
    before = log_keys(table), part_keys(table)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        planned = icedb.spark.upsert(batch, table.uri, ["id"], dry_run=True, **options)
        assert (log_keys(table), part_keys(table)) == before
        report = icedb.spark.upsert(batch, table.uri, ["id"], txn=("users", 1), **options)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert counts(planned) == counts(report) == counts(expected)
    assert min(counts(report)) > 0
    assert len(log_keys(table) - before[0]) == 1
    assert content(table, "id, name, visits, third") == content(twin, "id, name, visits, third")
    assert table.schema() == twin.schema()
    assert table.verify(deep=True).problems == ()
    assert names == ["searching parts in 6 tasks"] * 2 + ["rewriting parts in 6 tasks"]
    again = icedb.spark.upsert(_failing(spark), table.uri, ["id"], txn=("users", 1), **options)
    assert again.commit.repeated, "the frame is not computed again"


def _failing(spark: SparkSession) -> DataFrame:
    """Return a frame whose rows cannot be computed."""
    fail = udf(lambda n: 1 // (n - 3), "long")
    return spark.range(0, 5, 1, 2).select("id", fail("id").alias("visits"))


def test_a_frame_that_cannot_be_computed_is_an_invalid_batch(create: Create, spark: SparkSession) -> None:
    """Also in a write, although Spark does not report whether a Python function of the frame or the commit failed."""
    table = create([{"id": 1, "visits": 1}])
    for frame in (_failing(spark), spark.range(1).selectExpr("id", "1 % id AS visits")):
        for call in (icedb.spark.write, partial(icedb.spark.upsert, on=["id"])):
            with pytest.raises(InvalidBatch, match=r"the frame cannot be computed: .*\b(modulo|Remainder) by zero"):
                call(frame, table.uri)
    assert content(table, "id, visits") == [(1, 1)]


def test_an_invalid_call_starts_no_job(create: Create, spark: SparkSession) -> None:
    table = create([{"id": 1, "visits": 1}])
    with pytest.raises(InvalidOption, match="when_matched must be one of"):
        icedb.spark.upsert(_failing(spark), table.uri, ["id"], when_matched="replace")  # type: ignore[arg-type]
    with pytest.raises(UnknownColumn, match="order_by names 'ts'"):
        icedb.spark.upsert(_failing(spark), table.uri, ["id"], order_by=["ts"])
    with pytest.raises(SchemaConflict, match="column 'visits' is BIGINT in the table and VARCHAR in the batch"):
        icedb.spark.upsert(_failing(spark).selectExpr("id", "string(visits) AS visits"), table.uri, ["id"])
    with pytest.raises(InvalidOption, match="SparkEngine: memory_bytes is 1,"):
        icedb.spark.upsert(_failing(spark), table.uri, ["id"], memory_bytes=1)
    with pytest.raises(UnsupportedType, match="column 'visits' is interval"):
        icedb.spark.upsert(spark.range(1).selectExpr("id", "make_dt_interval(1) AS visits"), table.uri, ["id"])
    with pytest.raises(InvalidOption, match=r"Call icedb\.spark\.upsert"):
        table.upsert(_failing(spark), ["id"])


def test_a_batch_beyond_the_messages_of_spark_connect_is_rejected(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the module of the session's class is known before the message is sent."""
    monkeypatch.setattr(spark_tasks, "CONNECT_BYTES_MAX", 1_000)
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    table = create([{"id": 1}])
    with pytest.raises(InvalidOption, match=r"searching parts sends \d+ bytes to each task, .* takes at most 1000"):
        table.upsert([{"id": n} for n in range(1_000)], ["id"], engine=SparkEngine(session))
    assert content(table, "id") == [(1,)]


# ------------------------------------------------------------------------------------------ streams


@pytest.fixture
def table(s3: Place) -> Table:
    """Return an empty table of users in the S3 server's bucket."""
    return Table.create(s3.uri, partition_by=["id % 3 AS third"], sort_by=["id"], storage_options=s3.storage_options)


@pytest.fixture
def source(tmp_path: Path, place: dict[str, str]) -> ChangeFolder:
    return ChangeFolder(tmp_path, place)


# What the proxy sees of a micro-batch, and what Spark writes to the checkpoint.
MOMENTS: list[Moment] = [
    ("before", "PUT", "/_log/"),
    ("after", "PUT", "/_log/"),  # committed, and Spark has not noted it
    ("before", "PUT", "/_data/"),
    ("after", "PUT", "/_data/"),
    ("after", "PUT", "/_claims/"),
    ("before", "GET", "/_table.json"),
    ("checkpoint", "", "offsets"),
    ("checkpoint", "", "commits"),
]


@pytest.mark.s3
@pytest.mark.sampled(days=6)
@pytest.mark.parametrize(
    ("moments", "times"),
    [
        pytest.param(MOMENTS[:1], 1, id="one"),
        pytest.param(MOMENTS, 2, id="all", marks=[pytest.mark.slow(seconds=250), pytest.mark.timeout(3600)]),
    ],
)
def test_a_driver_that_is_killed_repeatedly_applies_each_change_once(
    driver: SharedDriver,
    table: Table,
    proxy: CountingProxy,
    source: ChangeFolder,
    moments: list[Moment],
    times: int,
    spark_home: Path,
    tmp_path: Path,
) -> None:
    for moment in kill_drivers(moments, times, source, proxy, tmp_path, spark_home):
        state = [] if not table.schema() else content(table, "id, name")
        assert state in source.states, moment
    source.stream(driver)
    assert content(table, "id, name") == source.states[-1]
    assert table.schema() == {"id": "BIGINT", "name": "VARCHAR"}
    assert [c.kind for c in table.history()].count("upsert") == source.arrived
    assert table.verify(deep=True).problems == ()
