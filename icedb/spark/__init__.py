"""IceDB on Spark: functions to read and write tables, the data source `icedb`, and an engine for maintenance.

Spark finds the data source through the module `pyspark_icedb`:

    df.write.format("icedb").mode("append").option("path", "s3://lake/events").save()

The functions need pyspark (`pip install 'icedb-dagster[spark]'`); the import of this package does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icedb.spark.spark_engine import SparkEngine

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from icedb.errors import IceDBError
    from icedb.operations.upsert.upsert import UpsertReport, WhenMatched
    from icedb.operations.write.spark_frames import Distribution
    from icedb.reader.snapshot import Snapshot
    from icedb.sources.batch import OnConflict
    from icedb.spark.datasource.options import Overwrite
    from icedb.spark.read_frames import ReadEngine
    from icedb.transaction.append import Commit
    from icedb.transaction.idempotent_append import Txn
    from icedb.util.times import AsOf

__all__ = ["SparkEngine", "frame", "read", "register", "translate_error", "upsert", "write"]


def register(spark: SparkSession) -> None:
    """Register the data source `icedb` in a session that does not discover it by itself.

    Args:
        spark: a classic session or one of Spark Connect.

    Example:
        icedb.spark.register(spark)
    """
    from icedb.spark.datasource.source import IceDBDataSource

    spark.dataSource.register(IceDBDataSource)


def write(
    frame: DataFrame,
    uri: str | os.PathLike[str],
    *,
    overwrite: Overwrite | None = None,
    partitions: Sequence[str] | str | None = None,
    distribution: Distribution = "auto",
    txn: Txn | None = None,
    part_bytes: int | None = None,
    memory_bytes: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Commit:
    """Write a DataFrame to a table with the data source, in one commit for the whole job.

    Args:
        frame: the rows.
        uri: the address of the table.
        overwrite: None appends. `"table"` replaces all rows, `"partitions"` the rows of `partitions`, and `"dynamic"`
            the rows of each partition that the frame has rows of.
        partitions: paths, or a DuckDB predicate over the partition columns.
        distribution: `"none"` writes without a shuffle: a part (data file) for each partition and task.
            `"partition"` shuffles first, so that the rows of a partition are in one task, or in several tasks if
            Spark's adaptive execution splits them.
            `"auto"` chooses for frames that read files or a cache, with filters and projections only: `"partition"`
            from 128 MiB on if the rows may have several partitions, else `"none"`. Below 128 MiB there is at most one
            task for each 16 MiB. Any other frame is written with `"none"`. The choice is logged.
        txn: the idempotency key of an append, as for `Table.insert`.
        part_bytes: split parts that would be much larger than this number of bytes (128 MiB).
        memory_bytes: the memory of DuckDB in each task, in bytes, before it spills to disk (512 MiB).
        storage_options: options of the store, as for `Table.open`.

    Returns:
        The commit.

    Raises:
        SparkJobFailed: the job failed for a reason that is not an error of IceDB.
        IceDBError: as for `Table.insert` and `Table.overwrite`.

    Example:
        icedb.spark.write(df, "s3://lake/events", distribution="partition")
    """
    from icedb.spark import write_frames
    from icedb.table import Table

    return write_frames.write(
        frame,
        Table.open(uri, storage_options=storage_options),
        overwrite=overwrite,
        partitions=partitions,
        distribution=distribution,
        txn=txn,
        part_bytes=part_bytes,
        memory_bytes=memory_bytes,
    )


def upsert(
    frame: DataFrame,
    uri: str | os.PathLike[str],
    on: Sequence[str],
    *,
    when_matched: WhenMatched = "update",
    columns: Sequence[str] | None = None,
    delete_where: str | None = None,
    order_by: Sequence[str] = (),
    on_conflict: OnConflict = "raise",
    txn: Txn | None = None,
    dry_run: bool = False,
    memory_bytes: int | None = None,
    driver_memory_bytes: int | None = None,
    tasks_max: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> UpsertReport:
    """Insert rows with new keys, and update or delete the stored rows with the others, in one exclusive commit.

    It does what `Table.upsert` does. Spark's tasks compute the rows of the frame, search for their keys in the parts
    (data files), and rewrite the parts with rows that change. The driver writes the new rows and commits once.

    The rows of the frame (the batch) are a file on the driver, and are sent compressed to each task of the search. A
    task holds them in memory besides `memory_bytes`: about twice their size as Arrow. Spark Connect takes at most 90
    MiB, compressed. Split a larger batch, or replace its partitions with `write(overwrite="dynamic")`.

    Args:
        frame: the rows. Spark must compute the same rows again if it repeats a task.
        uri: the address of the table.
        on: the key columns.
        when_matched: as for `Table.upsert`, and so are `columns`, `delete_where`, `order_by` and `on_conflict`.
        txn: the idempotency key of the upsert, as for `Table.upsert`. In `foreachBatch`: `(name, batch_id)`.
        dry_run: return the report, and write nothing.
        memory_bytes: the memory of DuckDB in each task, in bytes, before it spills to disk (512 MiB).
        driver_memory_bytes: the memory of DuckDB on the driver, in bytes, as `memory_bytes` of `Table.upsert`.
        tasks_max: the maximum number of tasks of a job (1,000).
        storage_options: options of the store, as for `Table.open`.

    Returns:
        The report.

    Raises:
        InvalidBatch: the frame cannot be computed, a key occurs twice, or a row is invalid.
        SparkJobFailed: a job failed for a reason that is not an error of IceDB. Nothing was changed.
        IceDBError: as for `Table.upsert`.

    Example:
        icedb.spark.upsert(
            changes, "s3://lake/users", on=["id"], delete_where="op = 'd'", order_by=["ts_ms"]
        )
    """
    from icedb.spark import upsert_frames
    from icedb.spark.spark_engine import MEMORY_BYTES
    from icedb.table import Table

    return upsert_frames.upsert(
        frame,
        Table.open(uri, storage_options=storage_options),
        on,
        when_matched=when_matched,
        columns=columns,
        delete_where=delete_where,
        order_by=order_by,
        on_conflict=on_conflict,
        txn=txn,
        dry_run=dry_run,
        driver_memory_bytes=driver_memory_bytes,
        engine=SparkEngine(
            frame.sparkSession,
            memory_bytes=MEMORY_BYTES if memory_bytes is None else memory_bytes,
            tasks_max=tasks_max,
        ),
    )


def read(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    *,
    as_of: AsOf | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    engine: ReadEngine = "auto",
) -> DataFrame:
    """Return a snapshot of a table as a lazy DataFrame.

    Every query of the frame reads the same snapshot. Queries fail after cleanup (VACUUM) has deleted its parts: then
    read again. A column whose type Spark does not have becomes a wider number or text, see
    `icedb.spark.datasource.type_mapping`.

    Args:
        spark: a classic session or one of Spark Connect.
        uri: the address of the table.
        as_of: the time of the snapshot; None: the latest.
        where: a DuckDB predicate over the partition columns. It skips whole partitions before any part is opened.
        columns: the columns to read; None: the columns of the parts, then the partition columns.
        storage_options: options of the store, as for `Table.open`.
        engine: `"native"` is Spark's own Parquet scan, which reads only the columns that a query needs. From S3 it
            needs hadoop-aws with credentials of its own. `"python"` is the data source (`spark.read.format("icedb")`):
            DuckDB in Spark's tasks, for all stores, types and layouts. `"auto"` is native for a table in a folder if
            that returns the same rows, else the data source.

    Raises:
        InvalidPartitionExpression: `where` is invalid.
        UnknownColumn: `columns` names a column that the table does not have.
        InvalidOption: an argument is invalid, or `"native"` would return other rows.
        IceDBError: as for `Table.open` and `Table.snapshot`.

    Example:
        df = icedb.spark.read(
            spark, "s3://lake/events", where="d >= DATE '2026-11-01'", columns=["user_id"]
        )
    """
    from icedb.table import Table

    snapshot = Table.open(uri, storage_options=storage_options).snapshot(as_of)
    return frame(spark, snapshot, where=where, columns=columns, engine=engine)


def frame(
    spark: SparkSession,
    snapshot: Snapshot,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    engine: ReadEngine = "auto",
) -> DataFrame:
    """Return an existing snapshot as a lazy DataFrame. See `read` for the arguments and errors.

    Example:
        df = icedb.spark.frame(spark, table.changes(since="2026-11-21T10:00:00Z"))
    """
    from icedb.spark import read_frames

    return read_frames.frame(spark, snapshot, where=where, columns=columns, engine=engine)


def translate_error(error: Exception, uri: str | os.PathLike[str]) -> IceDBError:
    """Return the error of this library that an exception of Spark contains or means, with a message of one line.

    Spark wraps an error of its tasks, of `foreachBatch` or of a frame's scan in pages of traces.

    Args:
        error: an exception of Spark, such as `StreamingQueryException`.
        uri: the address of the table, for the message.

    Returns:
        The error of this library that was raised in a task or in `foreachBatch`, with its type and message.
        `SnapshotExpired` if a part (data file) of the frame's snapshot is deleted. `InvalidOption` if Spark rejected a
        path or a query. Otherwise `SparkJobFailed` with the reason.

    Example:
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise icedb.spark.translate_error(error, table.uri) from None
    """
    import os

    from icedb.operations.write.spark_errors import explained

    return explained(error, table=os.fspath(uri))
