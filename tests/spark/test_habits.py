"""Habits of users of Delta Lake and Iceberg: they work, or the message names the way of icedb."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import icedb.spark
from icedb.errors import InvalidOption, SnapshotExpired
from icedb.spark.datasource.options import stream_options, write_options
from icedb.spark.datasource.read_options import batch_read_options, read_options, stream_read_options
from icedb.spark.datasource.writer import _TaskMessage, open_writer
from tests.support.spark.spark_clusters import Driver, environment
from tests.support.spark.spark_tables import Create, content

pytestmark = pytest.mark.filterwarnings("ignore:Cannot infer the eval type")


def append(options: dict[str, str]) -> Any:
    return write_options(options, overwrite=False)


def overwrite(options: dict[str, str]) -> Any:
    return write_options(options, overwrite=True)


def append_stream(options: dict[str, str]) -> Any:
    return stream_options(options, complete=False)


@pytest.mark.parametrize(
    ("parse", "option", "hint"),
    [
        (batch_read_options, "timestampAsOf", "timestampAsOf is called as_of"),
        (batch_read_options, "as-of-timestamp", "as-of-timestamp is called as_of"),
        (batch_read_options, "versionAsOf", "versionAsOf is as_of with a time"),
        (overwrite, "replaceWhere", "replaceWhere is overwrite='partitions' with partitions="),
        (append, "txnAppId", "txnAppId is called txn_application"),
        (append, "txnVersion", "txnVersion is called txn_sequence"),
        (append, "mergeSchema", "mergeSchema is not needed: the columns that a batch adds"),
        (append_stream, "mergeSchema", "mergeSchema is not needed"),
        (stream_read_options, "maxFilesPerTrigger", "maxFilesPerTrigger is called batch_parts_max"),
        (stream_read_options, "maxBytesPerTrigger", "maxBytesPerTrigger is called batch_bytes_max"),
        (stream_read_options, "startingTimestamp", "startingTimestamp is called since"),
        (stream_read_options, "ignoreChanges", "ignoreChanges is not needed"),
        (batch_read_options, "readChangeFeed", "readChangeFeed is not needed: since reads"),
    ],
)
def test_an_option_of_another_format_is_rejected_with_ours(
    parse: Callable[[dict[str, str]], Any], option: str, hint: str
) -> None:
    for name in (option, option.lower()):
        with pytest.raises(InvalidOption) as caught:
            parse({"path": "lake/events", name: "x"})
        assert f"unknown options ['{name}']. {hint.replace(option, name)}" in str(caught.value)


def test_the_page_names_the_options_that_are_rejected_with_ours() -> None:
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    section = page.partition("## Habits from Delta Lake and Iceberg\n")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if re.search(r"\| rejected: (use|new|a stream) ", row)]
    options = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(options) > 10
    for option in options:
        with pytest.raises(InvalidOption, match=rf"unknown options \['{option}'\]\. {option} is "):
            read_options({"path": "lake/events", option: "x"})


@pytest.mark.parametrize("parse", [append, read_options])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        # as CREATE TABLE ... USING icedb LOCATION passes them
        (
            {"path": "file:/t", "location": "file:/t", "provider": "icedb", "owner": "root"},
            r"^file:/t: the table cannot be an entry of Spark's catalog.*CREATE TEMPORARY VIEW name USING icedb",
        ),
        # as a query of such an entry passes them
        ({}, r"^icedb: the option path is missing.*entry of its catalog .*: drop it\. In SQL, name the table with"),
        ({"paths": '["lake/a","lake/b"]'}, r'^icedb: load\(\) has several paths: \["lake/a","lake/b"\].*unionByName'),
    ],
)
def test_a_table_of_the_catalog_is_rejected_with_the_remedy(
    parse: Callable[[dict[str, str]], Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse(options)


@pytest.mark.spark
@pytest.mark.sampled(days=3)
def test_sql_reads_and_writes_a_table_by_a_view(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 1, "price": 1.5}], schema={"n": "BIGINT", "price": "DOUBLE"}, partition_by=["n % 2 AS half"])
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW habits USING icedb OPTIONS (path '{table.uri}')")
    assert [tuple(row) for row in spark.sql("SELECT * FROM habits").collect()] == [(1, 1.5, 1)]
    # The partition column of the view is computed: it may be repeated, or left out.
    spark.sql("INSERT INTO habits SELECT n + 2, price, half FROM habits")
    spark.sql("INSERT INTO habits (n, price) SELECT CAST(4 AS INT), CAST(2.5 AS FLOAT)")
    with pytest.raises(PySparkException, match=r"InvalidBatch: .*column 'half' has other values .*'0' instead of '1'"):
        spark.sql("INSERT INTO habits SELECT n, price, 0L FROM habits")
    assert content(table, "n, price") == [(1, 1.5), (3, 1.5), (4, 2.5)]
    assert table.schema() == {"n": "BIGINT", "price": "DOUBLE"}

    # A frame and a view keep their snapshot.
    spark.sql("REFRESH TABLE habits")
    assert spark.table("habits").count() == 1
    with pytest.raises(PySparkException, match=r"InvalidOption: .*cannot be an entry of Spark's catalog"):
        spark.sql(f"CREATE TABLE habits_entry USING icedb LOCATION '{table.uri}'")
    spark.sql("CREATE TABLE habits_entry (n BIGINT, price DOUBLE) USING icedb")
    try:
        with pytest.raises(PySparkException, match=r"InvalidOption: .*the option path is missing.*drop it"):
            spark.sql("SELECT * FROM habits_entry").collect()
        spark.sql(f"INSERT INTO habits_entry WITH (path = '{table.uri}') VALUES (6, 0.5)")
        then_ms = table.snapshot().as_of_ms
        counted = f"SELECT count(*) FROM habits_entry WITH (path = '{table.uri}', as_of = '{then_ms}')"
        assert spark.sql(counted).collect()[0][0] == 4
        saved = spark.range(1).selectExpr("id AS n", "2.5D AS price").write.format("icedb").mode("append")
        saved.option("path", table.uri).saveAsTable("habits_saved")
        assert table.snapshot().rows == 5
        with pytest.raises(PySparkException, match=r"InvalidOption: .*the option path is missing.*drop it"):
            spark.table("habits_saved").count()
    finally:
        spark.sql("DROP TABLE habits_entry")
        spark.sql("DROP TABLE IF EXISTS habits_saved")
        spark.catalog.dropTempView("habits")


@pytest.mark.spark
@pytest.mark.sampled(days=3)
def test_a_frame_whose_parts_are_deleted_is_an_expired_snapshot(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 1}])
    table.insert([{"n": 2}])
    frame = icedb.spark.read(spark, table.uri)
    table.merge()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    copy = icedb.Table.create(f"{table.uri}-copy")
    expired = r"/table: the frame reads the part '_data/.*', which is deleted\. .* Read the table again\.$"
    with pytest.raises(SnapshotExpired, match=expired):
        icedb.spark.write(frame, copy.uri)
    with pytest.raises(Exception, match="FILE_NOT_EXIST") as caught:
        frame.count()
    with pytest.raises(SnapshotExpired, match=expired):
        raise icedb.spark.translate_error(caught.value, table.uri)
    assert icedb.spark.read(spark, table.uri).count() == 2


@pytest.mark.spark
@pytest.mark.sampled(days=3)
def test_an_error_in_foreach_batch_becomes_one_line(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    table = create([{"n": 1}])
    spark.range(3).write.parquet(str(tmp_path / "source"))

    def replace_all(batch: Any, batch_id: int) -> None:
        batch.write.format("icedb").mode("overwrite").save(table.uri)

    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "source")).writeStream.foreachBatch(replace_all)
    query = stream.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination()
    error = icedb.spark.translate_error(caught.value, table.uri)
    assert type(error) is InvalidOption
    assert str(error).startswith(f"{table.uri}: mode('overwrite') would replace every row of the table")
    assert "\n" not in str(error)


def test_an_empty_frame_states_that_its_columns_are_not_recorded(
    create: Create, caplog: pytest.LogCaptureFixture
) -> None:
    table = create()
    schema = StructType([StructField("n", LongType())])
    for columns, messages in (({}, ["the frame has no rows"]), ({"n": 1}, [])):
        if columns:
            table.insert([columns])
        caplog.clear()
        with caplog.at_level(logging.WARNING, "icedb"):
            open_writer(schema, {"path": table.uri}, overwrite=False).commit([_TaskMessage(None, None)])
        assert [m for m in messages if m in caplog.text] == messages
        assert bool(caplog.records) == bool(messages)


def many_parts(spark: SparkSession) -> Any:
    """Return a frame of 40 tasks that each have rows of 3 partitions."""
    return spark.range(0, 400, 1, 40).selectExpr("id AS n", "id % 3 AS p")


@pytest.mark.spark
@pytest.mark.sampled(days=3)
def test_a_write_of_many_small_parts_raises_one_warning(
    spark: SparkSession, create: Create, caplog: pytest.LogCaptureFixture
) -> None:
    table = create(partition_by=["p"])
    icedb.spark.write(many_parts(spark), table.uri)
    [warning] = caplog.messages
    assert f"{table.uri}: the job wrote 120 parts" in warning
    assert "distribution='partition'" in warning
    caplog.clear()
    icedb.spark.write(many_parts(spark), table.uri, distribution="partition")
    assert caplog.messages == []


@pytest.mark.spark
@pytest.mark.slow(seconds=20)
def test_plain_pyspark_prints_the_warning_about_small_parts(spark_home: Path, tmp_path: Path) -> None:
    table = icedb.Table.create(tmp_path / "table", partition_by=["n % 3 AS third"])
    with Driver({"spark.master": "local[2]"}, tmp_path / "driver", environment(spark_home)) as driver:
        driver.ask("append", place={"path": table.uri}, first=0, last=400, tasks=40)
    output = (tmp_path / "driver" / "driver.log").read_text()
    assert output.count(f"{table.uri}: the job wrote 120 parts") == 1
    assert output.count("distribution='partition'") == 1
