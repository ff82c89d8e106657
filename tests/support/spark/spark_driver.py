"""A Spark driver that serves requests: a line of JSON in, a line of JSON out.

`tests.support.spark.spark_clusters.Driver` runs it as `python spark_driver.py '<the session's configuration as JSON>'`.
A request names a function below and its arguments. The end of the input stops the session.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import icedb
from icedb import spark as icedb_spark

Place = dict[str, str]  # the options of a data source: path, and how to get there


def events(spark: SparkSession, first: int, last: int, tasks: int) -> DataFrame:
    """Return the rows (n, label) of a range of numbers, in that many tasks."""
    return spark.range(first, last, 1, tasks).selectExpr("id AS n", "concat('é', id) AS label")


def session_of(config: dict[str, str]) -> SparkSession:
    """Return a session with this configuration."""
    builder = SparkSession.builder
    if remote := config.pop("spark.remote", None):
        builder = builder.remote(remote)
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def append(spark: SparkSession, place: Place, first: int, last: int, tasks: int = 4, **options: str) -> None:
    """Append the events of a range."""
    events(spark, first, last, tasks).write.format("icedb").mode("append").options(**place, **options).save()


def overwrite(spark: SparkSession, place: Place, first: int, last: int, tasks: int = 4, **options: str) -> None:
    """Overwrite with the events of a range. The options have the kind of overwrite."""
    events(spark, first, last, tasks).write.format("icedb").mode("overwrite").options(**place, **options).save()


def write(spark: SparkSession, place: Place, first: int, last: int, tasks: int = 4, **arguments: Any) -> int:
    """Write the events of a range with `icedb.spark.write`; gives the rows that it committed."""
    uri, storage_options = _address(place)
    frame = events(spark, first, last, tasks)
    return icedb_spark.write(frame, uri, storage_options=storage_options, **arguments).rows


def upsert(spark: SparkSession, place: Place, first: int, last: int, tasks: int = 4, **arguments: Any) -> list[int]:
    """Upsert the events of a range by their numbers; gives the inserted and the updated rows."""
    uri, storage_options = _address(place)
    frame = events(spark, first, last, tasks)
    report = icedb_spark.upsert(frame, uri, ["n"], storage_options=storage_options, **arguments)
    return [report.inserted_rows, report.updated_rows]


def read(spark: SparkSession, place: Place, **options: str) -> list[tuple[int, str, int]]:
    """Return the events in order, read by `format("icedb")`."""
    return _collected(spark.read.format("icedb").options(**place, **options).load())


def read_table(spark: SparkSession, place: Place, **arguments: Any) -> list[tuple[int, str, int]]:
    """Return the events in order, read by `icedb.spark.read`."""
    uri, storage_options = _address(place)
    return _collected(icedb_spark.read(spark, uri, storage_options=storage_options, **arguments))


def _address(place: Place) -> tuple[str, dict[str, str]]:
    return place["path"], {name: value for name, value in place.items() if name != "path"}


def _collected(frame: DataFrame) -> list[tuple[int, str, int]]:
    return [(row.n, row.label, row.third) for row in frame.orderBy("n").collect()]


def merge(spark: SparkSession, place: Place) -> int:
    """Merge the table by Spark's tasks; gives how many parts were merged."""
    uri, storage_options = _address(place)
    table = icedb.Table.open(uri, storage_options=storage_options)
    return table.merge(engine=icedb_spark.SparkEngine(spark)).merged_parts


def load(spark: SparkSession, place: Place, files: str, **options: str) -> None:
    """Append what Parquet files hold, all of it in one task."""
    spark.read.parquet(files).coalesce(1).write.format("icedb").mode("append").options(**place, **options).save()


def stream(
    spark: SparkSession,
    place: Place,
    files: str,
    checkpoint: str,
    mode: str = "append",
    files_per_batch: int = 1,
    **options: str,
) -> int:
    """Append what files of events hold, in micro-batches, until all are read; gives the last batch's number."""
    source = spark.readStream.schema("n long, label string").option("maxFilesPerTrigger", files_per_batch).json(files)
    query = (
        (source if mode == "append" else source.groupBy("n", "label").count())
        .writeStream.format("icedb")
        .outputMode(mode)
        .options(**place, **options, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def stream_changes(spark: SparkSession, place: Place, files: str, checkpoint: str) -> int:
    """Upsert the changes of users that files hold, one file in a batch, until all are read; gives the last batch."""
    uri, storage_options = _address(place)
    user = "STRUCT<id: BIGINT, name: STRING>"
    schema = f"op STRING, before {user}, after {user}, ts_ms BIGINT, source STRUCT<lsn: BIGINT>"

    def apply(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("coalesce(after, before) AS user", "op", "ts_ms", "source.lsn")
        icedb_spark.upsert(
            rows.select("user.*", "op", "ts_ms", "lsn"),
            uri,
            ["id"],
            delete_where="op = 'd'",
            order_by=["ts_ms", "lsn"],
            txn=("changes", number),
            storage_options=storage_options,
        )

    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(files)
    writer = source.writeStream.foreachBatch(apply).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def stream_and_append(
    spark: SparkSession,
    place: Place,
    files: str,
    checkpoint: str,
    stop: str,
    started: float,
    day_seconds: float,
    rows: int,
) -> dict[str, Any]:
    """Stream files into a table and append batches, until `stop` exists.

    Returns the day of each appended batch, and the number of the stream's batches.
    """
    schema = "writer string, batch long, i long, day long, total long"
    source = spark.readStream.schema(schema).json(files)
    query = source.writeStream.format("icedb").options(**place, checkpointLocation=checkpoint).start()
    days: list[int] = []
    while not Path(stop).exists():
        day = int((time.time() - started) / day_seconds)
        batch = spark.range(0, 2 * rows, 1, 4).selectExpr(
            "'spark' AS writer", f"{len(days)}L AS batch", "id AS i", f"{day} - id % 2 AS day", f"{rows}L AS total"
        )
        batch.write.format("icedb").mode("append").options(**place).save()
        days.append(day)
    query.processAllAvailable()
    query.stop()
    progress = query.lastProgress
    return {"days": days, "batches": 0 if progress is None else int(progress["batchId"]) + 1}


def executors(spark: SparkSession) -> list[tuple[str, int]]:
    """Return the host and the Java process of each task's executor."""

    def where(batches: Any) -> Any:
        import os

        time.sleep(0.5)  # long enough that the tasks cannot all go to one executor
        for _ in batches:
            pass
        parent = os.getppid()  # pyspark's daemon, whose parent is the executor
        java = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        yield pa.RecordBatch.from_pydict({"host": [os.environ.get("SPARK_LOCAL_IP", "")], "pid": [java]})

    rows = spark.range(0, 4, 1, 4).mapInArrow(where, "host string, pid long").collect()
    return [(row.host, row.pid) for row in rows]


def packages(spark: SparkSession) -> list[tuple[str, str]]:
    """Return the folders of the Python and of this library in each of two tasks."""

    def where(batches: Any) -> Any:
        import icedb

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"python": [sys.prefix], "library": [str(Path(icedb.__file__).parent)]})

    rows = spark.range(0, 2, 1, 2).mapInArrow(where, "python string, library string").collect()
    return [(row.python, row.library) for row in rows]


COMMANDS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        append,
        overwrite,
        write,
        upsert,
        read,
        read_table,
        merge,
        load,
        stream,
        stream_changes,
        stream_and_append,
        executors,
        packages,
    )
}


def main(config: str) -> None:
    """Answer until the input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # other output must not be read as an answer
    spark = session_of(json.loads(config))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": COMMANDS[request.pop("do")](spark, **request)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error)]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
