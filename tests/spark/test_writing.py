"""`icedb.spark.write` and the options of the data source: distribution, size of parts, kinds of overwrites."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import icedb
from icedb import spark as icedb_spark
from icedb.errors import EmptyBatch, InvalidBatch, InvalidOption, InvalidPartitionExpression, SchemaConflict, StaleView
from icedb.spark import distribution_choice
from icedb.spark.datasource.writer import open_writer
from icedb.spark.distribution import distribute
from icedb.spark.distribution_choice import choose_distribution, source_bytes
from icedb.spark.partition_locality import partition_text
from tests.support.spark.spark_answers import rows_of
from tests.support.spark.spark_tables import Create, part_keys

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


def options(table: icedb.Table) -> dict[str, str]:
    return {"path": table.uri, **table.handle.location.storage_options}


def numbers(spark: SparkSession, rows: int, tasks: int = 4, expression: str = "id % 10") -> DataFrame:
    """Return a frame (n, p) of `rows` numbers and their `expression`, in that many tasks."""
    return spark.range(0, rows, 1, tasks).selectExpr("id AS n", f"{expression} AS p")


def partitions(table: icedb.Table) -> Counter[str]:
    """Return the number of live parts of each partition."""
    return Counter(p.partition for p in table.snapshot().parts)


def content(table: icedb.Table) -> list[tuple[Any, ...]]:
    return table.query("SELECT p, count(*), min(n), max(n) FROM t GROUP BY p ORDER BY p").fetchall()


@pytest.mark.sampled(days=3)
def test_without_a_shuffle_each_task_writes_all_its_partitions(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"], sort_by=["n"])
    commit = icedb_spark.write(numbers(spark, 400), table.uri, distribution="none")
    assert set(partitions(table).values()) == {4}
    assert commit.key
    assert {p.key for p in commit.parts} == {p.key for p in table.snapshot().parts}


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("size", "many_partitions", "distribution", "tasks_max"),
    [
        (None, True, "none", None),
        (0, True, "none", 1),
        (16 * MIB, True, "none", 1),
        (16 * MIB + 1, False, "none", 2),
        (128 * MIB - 1, True, "none", 8),
        (128 * MIB, False, "none", None),
        (128 * MIB, True, "partition", None),
    ],
)
def test_the_distribution_is_chosen_by_size(
    size: int | None, many_partitions: bool, distribution: str, tasks_max: int | None
) -> None:
    choice = choose_distribution(size, many_partitions=many_partitions)
    assert (choice.distribution, choice.tasks_max) == (distribution, tasks_max)


@pytest.mark.sampled(days=3)
def test_the_size_is_known_for_frames_that_only_read(spark: SparkSession, tmp_path: Path) -> None:
    numbers(spark, 1_000).write.parquet(str(tmp_path / "numbers"))
    files = spark.read.parquet(str(tmp_path / "numbers"))
    written = sum(f.stat().st_size for f in (tmp_path / "numbers").glob("*.parquet"))
    assert source_bytes(files) == written
    assert 0 < (source_bytes(files.where("p > 3").select("n")) or 0) < written
    assert source_bytes(files.union(files)) == 2 * written
    for computed in (
        files.repartition(2),
        files.groupBy("p").count(),
        files.join(files, "n"),
        files.mapInArrow(lambda batches: batches, files.schema),
        files.where("n > (SELECT max(id) FROM range(5))"),
        spark.createDataFrame([(1, 1)], "n long, p long"),
    ):
        assert source_bytes(computed) is None


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize(
    ("spec", "how", "shuffle_bytes_min", "chosen", "parts"),
    [
        ({"partition_by": ["p"]}, {}, 128 * MIB, "'none' in at most 1 tasks", 2),
        ({"partition_by": ["p"]}, {}, 1, "'partition'", 2),
        ({}, {}, 1, "'none': ", 4),
        ({"partition_by": ["p"]}, {"overwrite": "partitions", "partitions": ["p=0"]}, 1, "'none': ", 4),
    ],
    ids=["small", "large", "unpartitioned", "one-partition"],
)
def test_a_write_chooses_its_distribution_and_logs_it(
    spark: SparkSession,
    create: Create,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    spec: dict[str, Any],
    how: dict[str, Any],
    shuffle_bytes_min: int,
    chosen: str,
    parts: int,
) -> None:
    monkeypatch.setattr(distribution_choice, "SHUFFLE_BYTES_MIN", shuffle_bytes_min)
    caplog.set_level(logging.INFO, logger="icedb.spark")
    table = create(**spec)
    cached = numbers(spark, 400, expression="0" if how else "id % 2").persist()
    try:
        commit = icedb_spark.write(cached, table.uri, **how)
    finally:
        cached.unpersist()
    assert (commit.rows, len(commit.parts)) == (400, parts)
    assert f"{table.uri}: writing with distribution={chosen}" in caplog.text


@pytest.mark.sampled(cases=1)
def test_with_a_shuffle_each_partition_is_one_part_in_one_commit(spark: SparkSession, create_shared: Create) -> None:
    table = create_shared(partition_by=["p % 5 AS five", "CAST(n % 2 AS BOOLEAN) AS odd"], sort_by=["n"])
    frame = numbers(spark, 10_000)
    commit = icedb_spark.write(
        frame, table.uri, distribution="partition", storage_options=table.handle.location.storage_options
    )
    assert set(partitions(table).values()) == {1}
    assert len(commit.parts) == 10
    assert table.snapshot().log_files == 1
    assert content(table) == [(p, 1_000, p, 9_990 + p) for p in range(10)]
    assert table.verify().problems == ()


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set Spark's settings below `spark.sql.` during the block, by names with `__` for each dot."""
    names = {f"spark.sql.{name.replace('__', '.')}": value for name, value in values.items()}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.sampled(days=3)
def test_a_partition_with_most_of_the_rows_is_written_by_several_tasks(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"], sort_by=["n"])
    frame = numbers(spark, 40_000, tasks=8, expression="CASE WHEN id % 10 < 7 THEN 3 ELSE id % 10 END")
    with settings(spark, adaptive__advisoryPartitionSizeInBytes="32k", shuffle__partitions="200"):
        icedb_spark.write(frame, table.uri, distribution="partition")
    parts = [p.rows or 0 for p in table.snapshot().files("p = 3")]
    assert len(parts) >= 3
    assert max(parts) <= 2 * min(parts)
    assert partitions(table)["p=8"] == 1
    assert table.query("SELECT count(*), count(DISTINCT n) FROM t").fetchall() == [(40_000, 40_000)]
    for part in table.snapshot().parts:
        rows = [n for (n,) in rows_of(f"SELECT n FROM '{part.path}'").fetchall()]
        assert rows == sorted(rows)


@pytest.mark.sampled(days=3)
def test_tasks_get_whole_partitions_and_similar_numbers_of_rows(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"])

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = [p for batch in batches for p in batch.column("p").to_pylist()]
        yield pa.record_batch({"rows": [len(values)], "partitions": [len(set(values))]})

    with settings(spark, shuffle__partitions="200", adaptive__coalescePartitions__minPartitionSize="1k"):
        shuffled = distribute(numbers(spark, 40_000, expression="id % 40"), table.handle)
        tasks = [tuple(row) for row in shuffled.mapInArrow(count, "rows long, partitions long").collect()]
    assert sum(partitions for _, partitions in tasks) == 40
    assert len(tasks) > 1
    assert max(rows for rows, _ in tasks) < 2 * 40_000 / len(tasks)


@pytest.mark.sampled(days=3)
def test_without_adaptive_execution_each_partition_is_in_one_task(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"])
    unpartitioned = icedb.Table.create(f"{table.uri}-unpartitioned")
    with settings(spark, adaptive__enabled="false"):
        icedb_spark.write(numbers(spark, 400), table.uri, distribution="partition")
        icedb_spark.write(numbers(spark, 400), unpartitioned.uri, distribution="partition")
    assert partitions(table) == {f"p={n}": 1 for n in range(10)}
    assert partitions(unpartitioned) == {"": 4}


@pytest.mark.sampled(cases=2)
@pytest.mark.parametrize(
    ("spec", "select"),
    [
        ({"partition_by": ["strftime(day, '%Y-%m') AS m"]}, "id, date_add(date'2026-01-01', int(id % 90)) AS day"),
        ({"path_columns": {"region": "VARCHAR"}}, "id, concat('r ', id % 7) AS region"),
        ({"partition_by": ["k"]}, "id, concat('k', id % 7) AS `_partition_key`, id % 3 AS K"),
        ({"partition_by": ["coalesce(absent, 'none') AS a"], "schema": {"absent": "VARCHAR", "id": "BIGINT"}}, "id"),
        ({}, "id, map('a', id) AS m"),
    ],
    ids=["expression", "path-column", "another-case", "lacking-column", "unpartitioned"],
)  # fmt: skip
def test_any_expression_distributes_rows(
    spark: SparkSession, create: Create, spec: dict[str, Any], select: str
) -> None:
    table = create(**spec)
    frame = spark.range(0, 3_000, 1, 4).selectExpr(*_split(select))
    icedb_spark.write(frame, table.uri, distribution="partition")
    counts = partitions(table)
    assert set(counts.values()) == {1}
    assert table.query("SELECT count(*), count(DISTINCT id) FROM t").fetchall() == [(3_000, 3_000)]


def _split(select: str) -> list[str]:
    """Split a SELECT list into columns. Commas in parentheses do not separate columns."""
    parts, depth = [""], 0
    for char in select:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize(
    ("expression", "select", "by_spark"),
    [
        ("CAST(ts AS DATE) AS p", "timestamp_seconds(id * 9000) AS ts", True),
        ("strftime(make_timestamp(ts * 1000), '%Y-%m-%dT%Hh') AS p", "id * 9000 * 1000 AS ts", True),
        ("strftime(day, 'it''s %d') AS p", "date_from_unix_date(id % 5) AS day", True),
        ("date_trunc('month', day) AS p", "date_from_unix_date(int(id % 90)) AS day", True),
        ("(n % 7) // 2 AS p", "id AS n", True),
        ("lower(text) AS p", "concat('A', id % 5) AS text", True),
        ("year(day) * 100 + month(day) AS p", "date_from_unix_date(int(id % 90)) AS day", False),
        ("strftime(day, '%A') AS p", "date_from_unix_date(int(id % 90)) AS day", False),
        ("CAST(hash(n) % 5 AS INTEGER) AS p", "id AS n", False),
        ("s.x AS p", "named_struct('x', id % 5) AS s", False),
        ("CAST(text AS DATE) AS p", "string(date_from_unix_date(int(id % 5))) AS text", True),
        ("p", "CASE WHEN id % 5 > 0 THEN id % 5 END AS p", True),
    ],
)
def test_spark_computes_known_partition_expressions(
    spark: SparkSession, create: Create, expression: str, select: str, by_spark: bool
) -> None:
    table = create(partition_by=[expression])
    frame = spark.range(0, 300, 1, 3).selectExpr(select.replace("(id % 5) AS day", "(int(id % 5)) AS day"), "id")
    assert (partition_text(frame, table.handle) is not None) == by_spark
    commit = icedb_spark.write(frame, table.uri, distribution="partition")
    assert commit.rows == 300
    assert set(partitions(table).values()) == {1}
    assert len(partitions(table)) > 1


@pytest.mark.sampled(days=3)
def test_rows_with_a_partition_column_are_distributed_by_it(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["n // 1000 AS thousand"])
    frame = spark.range(0, 2_000, 1, 4).selectExpr("id AS n", "concat('thousand=', id % 4) AS `_partition`")
    icedb_spark.write(frame, table.uri, distribution="partition")
    assert partitions(table) == {f"thousand={n}": 1 for n in range(4)}


@pytest.mark.sampled(days=3)
def test_a_frame_without_rows_is_no_commit(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"])
    commit = icedb_spark.write(numbers(spark, 0), table.uri, distribution="partition")
    assert not commit.committed
    assert table.snapshot().parts == ()


@pytest.mark.sampled(days=3)
def test_an_invalid_frame_is_rejected_before_the_shuffle(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 1, "p": 1}], partition_by=["p"])
    with pytest.raises(SchemaConflict, match="'p'"):
        icedb_spark.write(numbers(spark, 10, expression="'one'"), table.uri, distribution="partition")
    with pytest.raises(InvalidPartitionExpression, match="'p AS p'"):
        icedb_spark.write(spark.range(3).selectExpr("id AS n"), create_other(table).uri, distribution="partition")
    failing = numbers(spark, 10, expression="CASE WHEN id = 7 THEN raise_error('no seven') ELSE id END")
    with pytest.raises(InvalidBatch, match=r"\A.*table.*no seven"):
        icedb_spark.write(failing, table.uri, distribution="partition")
    assert content(table) == [(1, 1, 1, 1)]


def create_other(table: icedb.Table) -> icedb.Table:
    """Create another table in the same folder."""
    return icedb.Table.create(f"{table.uri}-other", partition_by=["p"])


def test_a_table_with_an_insert_query_cannot_be_distributed(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"], insert_query="SELECT n, n % 3 AS p FROM _rows")
    with pytest.raises(InvalidOption, match="distribution='none'"):
        icedb_spark.write(numbers(spark, 10), table.uri, distribution="partition")
    icedb_spark.write(numbers(spark, 10), table.uri)
    assert sorted(partitions(table)) == ["p=0", "p=1", "p=2"]


@pytest.mark.sampled(days=3)
def test_a_large_partition_is_split_by_part_bytes(spark: SparkSession, create: Create) -> None:
    table = create(sort_by=["n"])
    frame = spark.range(0, 200_000, 1, 1).selectExpr("id AS n", "md5(cast(id AS string)) AS text")
    icedb_spark.write(frame, table.uri, part_bytes=1024 * 1024)
    parts = table.snapshot().parts
    assert len(parts) > 3
    assert all(512 * 1024 < p.bytes < 2 * 1024 * 1024 for p in parts)
    assert table.query("SELECT count(*), count(DISTINCT n) FROM t").fetchall() == [(200_000, 200_000)]


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize(
    "how",
    [
        {"overwrite": "partitions", "partitions": json.dumps(["p=1", "p=2"])},
        {"overwrite": "partitions", "partitions": "p IN (1, 2)"},
        {"overwrite": "dynamic"},
        {"partitionOverwriteMode": "dynamic"},
    ],
    ids=["paths", "predicate", "dynamic", "spark's-name"],
)
def test_an_overwrite_replaces_its_partitions(spark: SparkSession, create_shared: Create, how: dict[str, str]) -> None:
    table = create_shared([{"n": n, "p": n % 4} for n in range(40)], partition_by=["p"])
    frame = spark.createDataFrame([(100, 1), (200, 2)], "n long, p long")
    frame.write.format("icedb").mode("overwrite").options(**options(table), **how).save()
    assert content(table) == [(0, 10, 0, 36), (1, 1, 100, 100), (2, 1, 200, 200), (3, 10, 3, 39)]
    assert table.snapshot().epoch == 2


@pytest.mark.sampled(days=3)
def test_only_named_partitions_are_emptied(spark: SparkSession, create: Create) -> None:
    table = create([{"n": n, "p": n % 4} for n in range(40)], partition_by=["p"])
    frame = spark.createDataFrame([(100, 1)], "n long, p long")
    icedb_spark.write(frame, table.uri, overwrite="dynamic")
    assert [p for p, *_ in content(table)] == [0, 1, 2, 3]
    icedb_spark.write(frame, table.uri, overwrite="partitions", partitions=["p=1", "p=2"])
    assert [p for p, *_ in content(table)] == [0, 1, 3]
    table.overwrite(frame, partitions="p < 3")  # the same by the table's own method
    assert [p for p, *_ in content(table)] == [1, 3]


@pytest.mark.sampled(days=3)
def test_a_dynamic_overwrite_without_rows_replaces_nothing(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 1, "p": 1}], partition_by=["p"])
    assert not icedb_spark.write(numbers(spark, 0), table.uri, overwrite="dynamic").committed
    assert content(table) == [(1, 1, 1, 1)]
    with pytest.raises(EmptyBatch):
        icedb_spark.write(numbers(spark, 0), table.uri, overwrite="partitions", partitions=["p=1"])
    assert content(table) == [(1, 1, 1, 1)]


@pytest.mark.sampled(days=3)
def test_rows_outside_the_named_partitions_are_rejected(spark: SparkSession, create: Create) -> None:
    table = create([{"n": 1, "p": 1}], partition_by=["p"])
    with pytest.raises(InvalidBatch, match="outside the partitions to overwrite"):
        icedb_spark.write(numbers(spark, 10), table.uri, overwrite="partitions", partitions=["p=1"])
    assert content(table) == [(1, 1, 1, 1)]
    assert len(part_keys(table)) == 1


@pytest.mark.sampled(cases=10, days=3)
@pytest.mark.parametrize(
    ("mode", "how", "message"),
    [
        ("overwrite", {}, "would replace every row"),
        ("overwrite", {}, "option('overwrite', 'table')"),
        ("overwrite", {"overwrite": "all"}, "'table', 'partitions' or 'dynamic'"),
        ("overwrite", {"overwrite": "partitions"}, "none is named"),
        ("overwrite", {"overwrite": "partitions", "partitions": "[1]"}, "JSON list of paths"),
        ("overwrite", {"overwrite": "partitions", "partitions": "[]"}, "JSON list of paths"),
        ("overwrite", {"overwrite": "table", "partitions": "p = 1"}, "the option partitions requires an overwrite"),
        ("overwrite", {"overwrite": "table", "partitionOverwriteMode": "dynamic"}, "Pass only one"),
        ("overwrite", {"overwrite": "table", "PARTITIONOVERWRITEMODE": "DYNAMIC"}, "dynamic, and overwrite is 'table'"),
        ("overwrite", {"overwrite": "table", "txn_application": "a", "txn_sequence": "1"}, "overwrite takes no txn"),
        ("overwrite", {"overwrite": "table", "partitionOverwriteMode": "dynamik"}, "'static' or 'dynamic'"),
        ("overwrite", {"overwrite": "dynamic", "partitionOverwriteMode": "static"}, "Pass only one"),
        ("append", {"overwrite": "table"}, "replaces nothing"),
        ("append", {"txn_application": "a", "txn_sequence": "²"}, "txn is"),
        ("append", {"txn_application": "a", "txn_sequence": "-1"}, "txn is"),
        ("append", {"txn_application": "a", "txn_sequence": "one"}, "txn is"),
        ("append", {"txn_application": " ", "txn_sequence": "1"}, "txn is"),
        ("append", {"txn_application": "a"}, "txn is"),
        ("append", {"txn_sequence": "1"}, "txn is"),
        ("append", {"job": "../x"}, "job is '../x'"),
        ("append", {"job": "j" * 17}, "job is"),
        ("append", {"compression": "gzip", "fanout": "1"}, "unknown options ['compression', 'fanout']"),
        ("append", {"AWS_REGIONS": "x"}, "unknown storage options"),
        ("append", {"partitions": "p = 1"}, "the option partitions requires an overwrite"),
        ("append", {"distribution": "partition"}, "icedb.spark.write"),
        ("append", {"distribution": "hash"}, "Pass 'none'"),
        ("append", {"part_bytes": "1"}, "part_bytes"),
        ("append", {"memory_bytes": "64M"}, "memory_bytes is '64M'"),
        ("append", {"memory_bytes": "1000"}, "at least 67108864"),
    ],
)
def test_invalid_options_are_rejected_before_any_task(
    spark: SparkSession, create: Create, mode: str, how: dict[str, str], message: str
) -> None:
    table = create([{"n": 1, "p": 1}], partition_by=["p"])
    writer = numbers(spark, 10).write.format("icedb").mode(mode)
    with pytest.raises(Exception, match="InvalidOption") as caught:
        writer.options(**options(table), **how).save()
    assert message in str(caught.value)
    assert content(table) == [(1, 1, 1, 1)]
    assert len(part_keys(table)) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"distribution": "hash"}, "'auto', 'none' or 'partition'"),
        ({"distribution": "partition", "memory_bytes": 1}, "memory_bytes"),
        ({"distribution": "partition", "part_bytes": 1}, "part_bytes"),
        ({"overwrite": "all"}, "'table', 'partitions' or 'dynamic'"),
        ({"overwrite": "partitions"}, "Pass both"),
        ({"overwrite": "table", "partitions": ["p=1"]}, "Pass both"),
        ({"overwrite": "table", "txn": ("a", 1)}, "takes no txn"),
    ],
)
def test_exclusive_arguments_are_rejected(
    spark: SparkSession, create: Create, how: dict[str, Any], message: str
) -> None:
    table = create(partition_by=["p"])
    with pytest.raises(InvalidOption, match=f"{table.uri}.*{message}"):
        icedb_spark.write(numbers(spark, 10), table.uri, **how)
    assert table.snapshot().parts == ()


@pytest.mark.sampled(days=3)
def test_an_invalid_partition_value_is_reported(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["CAST(text AS INTEGER) AS p"])
    frame = spark.range(100).selectExpr("concat('x', id) AS text")
    for distribution in ("none", "partition"):
        with pytest.raises(InvalidPartitionExpression, match="x"):
            icedb_spark.write(frame, table.uri, distribution=distribution)
    assert table.snapshot().parts == ()


def test_a_skewed_partition_of_maps_is_written_too(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["m['a'] // 1000 AS p"])
    frame = spark.range(0, 500, 1, 2).selectExpr("map('a', id) AS m")
    icedb_spark.write(frame, table.uri, distribution="partition")
    assert table.query("SELECT count(*) FROM t").fetchall() == [(500,)]


def test_a_view_created_during_a_job_is_reported_as_stale(spark: SparkSession, create: Create) -> None:
    table = create()
    schema = StructType([StructField("n", LongType())])
    writer = open_writer(schema, options(table), overwrite=False)
    message = writer.write(iter([pa.record_batch({"n": [1, 2]})]))
    table.create_view("copy", "SELECT n FROM _rows")
    with pytest.raises(StaleView, match=r"copy.*refresh_view"):
        writer.commit([message])
    assert table.query("SELECT count(*) FROM t").fetchall() == [(2,)]


@pytest.mark.sampled(days=3)
def test_a_predicate_may_start_like_a_list(spark: SparkSession, create: Create) -> None:
    table = create([{"n": n, "p": n % 4} for n in range(40)], partition_by=["p"])
    frame = spark.createDataFrame([(100, 1)], "n long, p long")
    table.overwrite(frame, partitions="[1, 2].list_contains(p)")
    assert [p for p, *_ in content(table)] == [0, 1, 3]


@pytest.mark.sampled(days=3)
def test_a_transaction_is_written_once(spark: SparkSession, create: Create) -> None:
    table = create(partition_by=["p"])
    first = icedb_spark.write(numbers(spark, 10), table.uri, txn=("job", 1), distribution="partition")
    again = icedb_spark.write(numbers(spark, 10), table.uri, txn=("job", 1), distribution="partition")
    assert first.committed
    assert again.repeated
    assert table.query("SELECT count(*) FROM t").fetchall() == [(10,)]
