"""The Spark data source on executors in other processes, with a folder and the S3 server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import icedb
from icedb import spark as icedb_spark
from tests.support.spark.spark_tables import log_keys, part_keys
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


@dataclass(frozen=True)
class SparkTarget:
    """A table, and the options with which Spark opens it."""

    table: icedb.Table
    options: dict[str, str]

    def write(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("icedb").mode(mode).options(**self.options, **options).save()

    def overwrite(self, frame: DataFrame) -> None:
        self.write(frame, "overwrite", overwrite="table")

    def rows(self, columns: str = "*", as_of: int | None = None) -> list[tuple[Any, ...]]:
        return self.table.query(f"SELECT {columns} FROM t ORDER BY ALL", as_of=as_of).fetchall()

    def log_files(self) -> list[str]:
        return sorted(log_keys(self.table))

    def objects(self) -> list[str]:
        return sorted(part_keys(self.table))


Create = Callable[..., SparkTarget]


def _create(place: Any, **spec: Any) -> SparkTarget:
    table = icedb.Table.create(place.uri, storage_options=place.storage_options, **spec)
    return SparkTarget(table, {"path": place.uri, **(place.storage_options or {})})


@pytest.fixture
def create(local: Any) -> Create:
    """Return a function that creates a table in a folder."""
    return lambda **spec: _create(local, **spec)


@pytest.fixture
def create_shared(shared_place: Any) -> Create:
    """Return a function that creates a table in a folder or, as another parameter, in the S3 server's bucket."""
    return lambda **spec: _create(shared_place, **spec)


def numbers(spark: SparkSession, *values: int, tasks: int = 1, label: str = "'a'") -> DataFrame:
    """Return a frame (n BIGINT, label STRING) with one row for each value, in that many tasks."""
    frame = spark.createDataFrame([(v,) for v in values], "n long")
    return frame.selectExpr("n", f"{label} AS label").repartition(tasks, "n")


def touching(path: Path) -> Any:
    """Return a column whose computation creates a file, which shows that a task has run."""

    def touch(n: int) -> int:
        path.touch()
        return n

    return F.udf(touch, "long")("n")


@pytest.mark.sampled(days=3)
def test_tasks_run_in_executors_that_are_other_processes(spark: SparkSession) -> None:
    def ancestors(_rows: Iterator[int]) -> Iterator[str]:
        import time

        time.sleep(0.5)  # long enough that the tasks cannot all go to one executor
        pid = os.getpid()
        while pid > 1:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "CoarseGrainedExecutorBackend" in command:
                yield f"{pid} {sys.executable}"
                return
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

    executors = spark.sparkContext.parallelize(range(4), 4).mapPartitions(ancestors).collect()
    assert len(executors) == 4
    assert len(set(executors)) == 2
    assert {line.split(" ", 1)[1] for line in executors} == {sys.executable}


@pytest.mark.sampled(cases=1, days=3)
def test_a_job_of_many_tasks_is_one_commit(spark: SparkSession, create_shared: Create) -> None:
    target = create_shared(partition_by=["n % 2 AS parity"], sort_by=["n"])
    target.write(numbers(spark, *range(40), tasks=4))
    snapshot = target.table.snapshot()
    assert len(target.log_files()) == snapshot.log_files == 1
    assert len(snapshot.parts) > 4  # several tasks, each with both partitions
    assert target.rows() == [(n, "a", n % 2) for n in range(40)]
    assert target.objects() == sorted(p.key for p in snapshot.parts)

    target.write(numbers(spark, *range(40, 50), tasks=2))
    assert len(target.log_files()) == 2
    assert [n for n, *_ in target.rows()] == list(range(50))


@pytest.mark.sampled(days=3)
def test_each_part_of_a_task_is_sorted(spark: SparkSession, create: Create) -> None:
    target = create(partition_by=["n % 3 AS third"], sort_by=["label", "n"])
    frame = numbers(spark, *((i * 7919) % 1009 for i in range(1009)), tasks=2, label="cast(n % 5 AS string)")
    target.write(frame)
    snapshot = target.table.snapshot()
    assert snapshot.rows == 1009
    assert len(snapshot.parts) == 6
    for part in snapshot.parts:
        rows = pq.ParquetFile(part.path).read(["label", "n"]).to_pylist()
        keys = [(r["label"], r["n"]) for r in rows]
        assert len(keys) == part.rows > 1
        assert keys == sorted(keys)
        assert {f"third={n % 3}" for _, n in keys} == {part.partition}


#: Column -> the type of Spark, a value, the type of DuckDB.
COLUMNS: dict[str, tuple[str, Any, str]] = {
    "id": ("INT", 1, "INTEGER"),
    "tiny": ("TINYINT", -128, "TINYINT"),
    "small": ("SMALLINT", 32767, "SMALLINT"),
    "big": ("BIGINT", -(2**63), "BIGINT"),
    "single": ("FLOAT", 1.5, "FLOAT"),
    "twice": ("DOUBLE", 1e308, "DOUBLE"),
    "price": ("DECIMAL(20, 4)", Decimal("9999999999999999.9999"), "DECIMAL(20,4)"),
    "flag": ("BOOLEAN", True, "BOOLEAN"),
    "word": ("STRING", "Žluťoučký 🐎\n\"'\\", "VARCHAR"),
    "raw": ("BINARY", b"\x00\xff'", "BLOB"),
    "day": ("DATE", date(1583, 1, 1), "DATE"),
    "moment": ("TIMESTAMP", datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=UTC), "TIMESTAMP WITH TIME ZONE"),
    "wall": ("TIMESTAMP_NTZ", datetime(2024, 3, 31, 2, 30, 0, 999999), "TIMESTAMP"),
    "list": ("ARRAY<INT>", [1, None, -3], "INTEGER[]"),
    "words": ("ARRAY<STRING>", ["", None, "ü"], "VARCHAR[]"),
    "counts": ("MAP<STRING, BIGINT>", {"a": 1, "b": None}, "MAP(VARCHAR, BIGINT)"),
    "point": ("STRUCT<x: INT, tags: ARRAY<STRING>>", {"x": 7, "tags": ["n"]}, "STRUCT(x INTEGER, tags VARCHAR[])"),
    "points": ("ARRAY<STRUCT<x: INT>>", [{"x": None}, {"x": 2}], "STRUCT(x INTEGER)[]"),
}
TYPES = ", ".join(f"{name} {spark_type}" for name, (spark_type, _, _) in COLUMNS.items())
FULL = {name: value for name, (_, value, _) in COLUMNS.items()}
NULLS = dict.fromkeys(COLUMNS) | {"id": 2}


@pytest.mark.sampled(days=3)
def test_duckdb_and_spark_read_back_values_of_every_type(spark: SparkSession, create: Create) -> None:
    target = create(sort_by=["id"])
    target.write(spark.createDataFrame([FULL, NULLS], TYPES))
    assert target.table.schema() == {name: duckdb_type for name, (_, _, duckdb_type) in COLUMNS.items()}
    stored = target.table.query("SELECT * FROM t ORDER BY id").to_arrow_table()
    # Arrow returns a map as pairs.
    rows = [{**r, "counts": r["counts"] and dict(r["counts"])} for r in stored.to_pylist()]
    assert rows == [FULL, NULLS]

    again = icedb_spark.read(spark, target.table.uri).orderBy("id")
    assert again.schema.simpleString() == spark.createDataFrame([], TYPES).schema.simpleString()
    moments = again.selectExpr("cast(moment AS string)", "cast(wall AS string)").collect()
    assert [tuple(row) for row in moments] == [
        ("2024-03-31 01:30:00.123456", "2024-03-31 02:30:00.999999"),
        (None, None),
    ]
    others = [c for c in again.columns if c not in ("moment", "wall")]
    rows_read = [row.asDict(recursive=True) for row in again.select(*others).collect()]
    assert rows_read == [{name: row[name] for name in others} for row in (FULL, NULLS)]


@pytest.mark.sampled(days=3)
def test_the_session_timezone_changes_no_instant(spark: SparkSession, create: Create) -> None:
    target = create(partition_by=["strftime(moment, '%Y-%m-%d') AS d"])
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        target.write(spark.sql("SELECT timestamp'2024-06-30 23:30:00' AS moment"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert target.rows("moment, d") == [(datetime(2024, 7, 1, 3, 30, tzinfo=UTC), "2024-07-01")]


PLACES = ["Zürich", "日本/東京", "a=b&c", "..", "100%", 'it\'s "x"', " ", "", None]


@pytest.mark.sampled(cases=1, days=3)
def test_any_text_and_null_can_be_a_partition_value(spark: SparkSession, create_shared: Create) -> None:
    target = create_shared(partition_by=["place"])
    target.write(spark.createDataFrame(list(enumerate(PLACES)), "id INT, place STRING").repartition(2))
    assert {p.values["place"] for p in target.table.snapshot().parts} == set(PLACES)
    assert dict(target.rows("id, place")) == dict(enumerate(PLACES))
    assert target.table.query("SELECT id FROM t", where="place IS NULL").fetchall() == [(len(PLACES) - 1,)]


@pytest.mark.sampled(days=3)
def test_a_frame_without_rows_is_no_commit(spark: SparkSession, create: Create) -> None:
    target = create(partition_by=["label"], sort_by=["n"])
    target.write(numbers(spark, 1).where("n < 0"))
    assert target.log_files() == target.objects() == []
    target.write(numbers(spark, 1, 2))
    before = target.log_files()
    target.write(numbers(spark, 1).where("n < 0"))
    assert target.log_files() == before


@pytest.mark.sampled(days=3)
def test_an_append_may_add_a_column_and_omit_one(spark: SparkSession, create: Create) -> None:
    target = create(sort_by=["n"])
    target.write(numbers(spark, 1))
    target.write(spark.sql("SELECT 2L AS n, date'2024-01-02' AS day"))
    assert target.table.schema() == {"n": "BIGINT", "label": "VARCHAR", "day": "DATE"}
    assert target.rows("n, label, day") == [(1, "a", None), (2, None, date(2024, 1, 2))]
    assert len(target.log_files()) == 2


@pytest.mark.sampled(days=3)
def test_a_column_of_nulls_gets_its_type_later(spark: SparkSession, create: Create) -> None:
    target = create()
    target.write(spark.sql("SELECT 1 AS n, null AS later"))
    assert target.table.schema() == {"n": "INTEGER"}
    target.write(spark.sql("SELECT 2 AS n, 'now' AS later"))
    target.write(spark.sql("SELECT 3 AS n, null AS later"))
    assert target.rows("n, later") == [(1, None), (2, "now"), (3, None)]


@pytest.mark.sampled(days=3)
def test_a_conflicting_column_is_rejected_before_any_task(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    target = create(sort_by=["n"])
    target.write(numbers(spark, 1))
    before = target.log_files(), target.objects()
    frame = numbers(spark, 2).select(touching(tmp_path / "ran").cast("string").alias("n"))
    with pytest.raises(PySparkException, match=r"SchemaConflict.*column 'n' is BIGINT in the table and VARCHAR in the"):
        target.write(frame)
    assert not (tmp_path / "ran").exists()
    assert (target.log_files(), target.objects()) == before
    assert frame.collect() == [("2",)]
    assert (tmp_path / "ran").exists()  # the frame does leave a trace, when a task runs


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1 AS n, interval 1 month AS bad", r"UnsupportedType.*column 'bad' is interval month"),
        ("SELECT 1 AS n, array() AS bad", r"UnsupportedType.*column 'bad' is array<void>"),
        ("SELECT 1 AS n, map() AS bad", r"UnsupportedType.*column 'bad' is map<void,void>"),
        ("SELECT 1 AS n, parse_json('{}') AS bad", r"UnsupportedType.*column 'bad' is variant"),
        ("SELECT 1 AS n, struct(parse_json('{}') AS v) AS bad", r"UnsupportedType.*column 'bad' is struct<v:variant>"),
        ("SELECT 1 AS n, 2 AS N", r"InvalidBatch.*'n' and 'N' differ only in case"),
        ("SELECT 1 AS other", r"UnknownColumn.*sort_by names 'n'"),
    ],
)
def test_unsupported_columns_are_rejected(spark: SparkSession, create: Create, query: str, message: str) -> None:
    target = create(sort_by=["n"])
    with pytest.raises(PySparkException, match=message):
        target.write(spark.sql(query))
    assert target.log_files() == target.objects() == []


@pytest.mark.sampled(days=3)
def test_a_task_respects_its_memory_limit(spark: SparkSession, create: Create) -> None:
    target = create(sort_by=["n"])
    target.write(numbers(spark, 3, 1, 2), memory_bytes=str(64 * 1024 * 1024))
    assert [n for n, _ in target.rows()] == [1, 2, 3]


@pytest.mark.sampled(days=3)
def test_a_path_is_required_and_must_be_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    frame = numbers(spark, 1)
    with pytest.raises(PySparkException, match=r"InvalidOption.*the option path is missing"):
        frame.write.format("icedb").mode("append").save()
    with pytest.raises(PySparkException, match=r"TableNotFound.*Table\.create"):
        frame.write.format("icedb").mode("append").save(str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.sampled(days=3)
def test_errors_of_a_bucket_or_credentials_contain_no_secret(spark: SparkSession, s3: Any) -> None:
    target = _create(s3)
    wrong = "sEcReT-that-must-not-be-shown"
    options = {**target.options, "AWS_SECRET_ACCESS_KEY": wrong, "AWS_SESSION_TOKEN": wrong + "-token"}
    with pytest.raises(PySparkException, match="AccessDenied") as denied:
        SparkTarget(target.table, options).write(numbers(spark, 1))
    with pytest.raises(PySparkException, match="BucketNotFound") as lost:
        SparkTarget(target.table, {**target.options, "path": "s3://no-such-bucket/table"}).write(numbers(spark, 1))
    with pytest.raises(PySparkException, match="unknown options") as unknown:
        SparkTarget(target.table, {**target.options, "secret": wrong}).write(numbers(spark, 1))
    for error in (denied, lost, unknown):
        text = f"{error.value} {error.value!r} {error.value.__cause__!r} {error.value.__context__!r}"
        assert wrong not in text
        assert s3.storage_options["AWS_SECRET_ACCESS_KEY"] not in text
    assert target.log_files() == []


@pytest.mark.sampled(days=3)
def test_a_failed_task_prints_no_secret(spark: SparkSession, s3: Any) -> None:
    target = _create(s3, partition_by=["n // 0 AS d", "CAST(label AS INTEGER) AS i"])
    with pytest.raises(PySparkException, match="Could not convert string 'a' to INT32") as error:
        target.write(numbers(spark, 1))
    assert s3.storage_options["AWS_SECRET_ACCESS_KEY"] not in str(error.value)
    assert target.log_files() == target.objects() == []


@pytest.mark.sampled(cases=1, days=3)
def test_overwrite_replaces_all_rows_in_one_commit(spark: SparkSession, create_shared: Create) -> None:
    target = create_shared(partition_by=["label"], sort_by=["n"])
    target.write(numbers(spark, 1, 2))
    target.write(numbers(spark, 3, label="'b'"))
    older = target.table.snapshot()
    logs = set(target.log_files())
    target.overwrite(numbers(spark, 8, 9, tasks=2, label="'c'"))
    assert target.rows() == [(8, "c"), (9, "c")]
    assert len(set(target.log_files()) - logs) == 1
    assert older.query("SELECT n, label FROM t ORDER BY n").fetchall() == [(1, "a"), (2, "a"), (3, "b")]
    assert target.rows("n", as_of=older.as_of_ms) == [(1,), (2,), (3,)]


@pytest.mark.sampled(days=3)
def test_the_dynamic_session_setting_does_not_truncate_the_table(spark: SparkSession, create: Create) -> None:
    target = create(partition_by=["label"])
    target.write(numbers(spark, 1, label="'kept'"))
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with pytest.raises(PySparkException, match="would replace every row"):
            target.write(numbers(spark, 2), "overwrite")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert target.rows() == [(1, "kept")]


@pytest.mark.sampled(days=3)
def test_an_overwrite_without_rows_is_rejected_and_deletes_nothing(spark: SparkSession, create: Create) -> None:
    target = create()
    target.write(numbers(spark, 1))
    with pytest.raises(PySparkException, match="EmptyBatch"):
        target.overwrite(numbers(spark, 1).where("n < 0"))
    assert target.rows() == [(1, "a")]


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_other_save_modes_are_rejected(spark: SparkSession, create: Create, mode: str) -> None:
    target = create()
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        target.write(numbers(spark, 1), mode)
    assert target.log_files() == target.objects() == []


@pytest.mark.sampled(days=3)
def test_a_job_whose_task_fails_leaves_nothing_visible(spark: SparkSession, create: Create) -> None:
    target = create(partition_by=["n // 100 AS h"])
    target.write(numbers(spark, 1))
    folder, written = Path(target.table.uri), len(target.objects())
    before = target.table.snapshot().id, target.log_files()

    def fail_last(n: int) -> int:
        if n == 19:
            wait_until(lambda: len(list(folder.rglob("*.parquet"))) != written, "another task has put its part")
            raise ValueError("row 19 is not to be had")
        return n

    frame = spark.range(0, 20, 1, 4).select(F.udf(fail_last, "long")("id").alias("n"), F.lit("b").alias("label"))
    with pytest.raises(PySparkException, match="row 19 is not to be had"):
        target.write(frame)
    assert (target.table.snapshot().id, target.log_files()) == before
    assert target.rows("n") == [(1,)]
    with pytest.raises(PySparkException, match="row 19 is not to be had"):
        target.overwrite(frame)
    assert target.rows("n") == [(1,)]


@pytest.mark.sampled(days=3)
def test_a_task_that_succeeds_at_its_second_attempt_writes_each_row_once(spark: SparkSession, create: Create) -> None:
    target = create(sort_by=["n"])

    def fail_first(n: int) -> int:
        context = TaskContext.get()
        if n == 13 and context is not None and context.attemptNumber() == 0:
            raise ValueError("not yet")
        return n

    target.write(spark.range(0, 20, 1, 4).select(F.udf(fail_first, "long")("id").alias("n")))
    assert target.rows("n") == [(n,) for n in range(20)]
    assert len(target.log_files()) == 1


KILL_AFTER_FIRST_PART = """
import os, pathlib, signal, sys
from tests.support.waiting import wait_until
folder, executor = pathlib.Path(sys.argv[1]), int(sys.argv[2])
print("watching", flush=True)
wait_until(lambda: any(folder.rglob("*.parquet")), "a part is put", every_seconds=0.001)
os.kill(executor, signal.SIGKILL)
"""


@pytest.mark.sampled(days=3)
def test_an_executor_killed_during_its_parts_writes_each_row_once(spark: SparkSession, create: Create) -> None:
    target = create(partition_by=["n"])
    folder = target.table.uri

    def doom_first(n: int) -> int:
        import subprocess

        context = TaskContext.get()
        if n == 0 and context is not None and context.attemptNumber() == 0:
            daemon = os.getppid()
            executor = Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1]
            command = [sys.executable, "-c", KILL_AFTER_FIRST_PART, folder, executor]
            killer = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
            assert killer.stdout is not None
            assert killer.stdout.readline() == b"watching\n"  # before the first part is put
        return n

    target.write(spark.range(0, 300, 1, 1).select(F.udf(doom_first, "long")("id").alias("n")))
    assert target.rows("n") == [(n,) for n in range(300)]
    assert len(target.log_files()) == 1
    assert len(target.objects()) > 300  # the parts of the killed attempt are orphans


@pytest.mark.sampled(cases=1, days=3)
def test_read_with_as_of_and_where(spark: SparkSession, shared_place: Any) -> None:
    target = _create(shared_place, partition_by=["n % 2 AS parity"], sort_by=["n"])
    target.table.insert(pa.table({"n": [1, 2, 3]}))
    then_ms = target.table.snapshot().as_of_ms
    target.table.insert(pa.table({"n": [4, 5]}))

    def read(**options: Any) -> list[tuple[int, int]]:
        frame = icedb_spark.read(spark, shared_place.uri, storage_options=shared_place.storage_options, **options)
        assert frame.columns == ["n", "parity"]
        return [tuple(row) for row in frame.orderBy("n").collect()]

    assert read() == [(1, 1), (2, 0), (3, 1), (4, 0), (5, 1)]
    assert read(as_of=then_ms) == [(1, 1), (2, 0), (3, 1)]
    assert read(where="parity = 0") == [(2, 0), (4, 0)]
    assert read(as_of=then_ms, where="parity = 0") == [(2, 0)]


@pytest.mark.sampled(days=3)
def test_read_widens_unsigned_integers(spark: SparkSession, create: Create) -> None:
    target = create()
    columns = {"a": pa.uint8(), "b": pa.uint16(), "c": pa.uint32(), "d": pa.uint64()}
    largest = {"a": 2**8 - 1, "b": 2**16 - 1, "c": 2**32 - 1, "d": 2**64 - 1}
    target.table.insert(pa.table({c: pa.array([largest[c], None], t) for c, t in columns.items()}))
    frame = icedb_spark.read(spark, target.table.uri)
    assert frame.schema.simpleString() == "struct<a:smallint,b:int,c:bigint,d:decimal(20,0)>"
    assert [tuple(row) for row in frame.orderBy(F.col("a").desc()).collect()] == [
        (255, 65535, 2**32 - 1, Decimal(2**64 - 1)),
        (None, None, None, None),
    ]
