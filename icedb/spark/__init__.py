"""IceDB on Spark: the data source `icedb`, found by Spark through the module `pyspark_icedb`.

    df.write.format("icedb").mode("append").option("path", "s3://lake/events").save()

Importing this package needs no pyspark; using it does (`pip install 'icedb-dagster[spark]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icedb.spark.spark_engine import SparkEngine

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from icedb.reader.snapshot import Snapshot
    from icedb.spark.datasource.options import Overwrite
    from icedb.spark.read_frames import ReadEngine
    from icedb.spark.write_frames import Distribution
    from icedb.transaction.append import Commit
    from icedb.transaction.idempotent_append import Txn
    from icedb.util.times import AsOf

__all__ = ["SparkEngine", "frame", "read", "register", "write"]


def register(spark: SparkSession) -> None:
    """Make the data source known to a session that does not discover it by itself."""
    from icedb.spark.datasource.source import IceDBDataSource

    spark.dataSource.register(IceDBDataSource)


def write(
    frame: DataFrame,
    uri: str | os.PathLike[str],
    *,
    overwrite: Overwrite | None = None,
    partitions: Sequence[str] | str | None = None,
    distribution: Distribution = "none",
    tasks: int | None = None,
    txn: Txn | None = None,
    part_bytes: int | None = None,
    memory_bytes: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Commit:
    """Write a DataFrame to a table with the data source, and say what was committed: one commit for the whole job.

    `overwrite`: None appends; `"table"` replaces all rows, `"partitions"` those of `partitions` (paths, or a DuckDB
    predicate over the partition columns), `"dynamic"` those of the partitions that the frame has rows of.

    `distribution`: `"none"` writes the rows where they are: no shuffle, and a part for each partition and task.
    `"partition"` first shuffles them, so that each task has a range of partitions, of about `tasks` (None: one for each
    million rows); a partition with more rows than a task shall have gets several. It looks at a sample of the rows
    first, so cache a frame that is expensive.

    `part_bytes`: a part that would be much larger becomes several (128 MiB). `memory_bytes`: what DuckDB may use in
    each task before it spills to disk (512 MiB). `txn`: as for `Table.insert`.

    Raises as `Table.insert` and `Table.overwrite` do; SparkJobFailed when the job fails for another reason.
    """
    from icedb.spark import write_frames

    return write_frames.write(
        frame,
        uri,
        overwrite=overwrite,
        partitions=partitions,
        distribution=distribution,
        tasks=tasks,
        txn=txn,
        part_bytes=part_bytes,
        memory_bytes=memory_bytes,
        storage_options=storage_options,
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
    """A snapshot as a lazy DataFrame: the columns of the parts, then those of the partitions; `columns` chooses some.

    `where` is a DuckDB predicate over the partition columns, which leaves out whole partitions before any part is
    opened. What Spark has no type for comes as a wider number or as text (see `icedb.spark.datasource.type_mapping`).

    `engine`: `"native"` is Spark's own Parquet scan over the live parts, which reads only the columns that a query
    needs. From S3 that takes hadoop-aws, with credentials of its own. `"python"` is the data source
    (`spark.read.format("icedb")`): DuckDB in Spark's tasks, everywhere, of all types and layouts. `"auto"`: native in a
    folder, where that gives the very same rows; else the data source.

    Every query of the frame reads the same snapshot. After the grace period of a cleanup it fails: read again.

    Raises as `Table.open` and `Table.snapshot` do, InvalidPartitionExpression, UnknownColumn, and InvalidOption, also
    when `"native"` is asked for and would give other rows.
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
    """A snapshot that was taken already as a lazy DataFrame; see `read`."""
    from icedb.spark import read_frames

    return read_frames.frame(spark, snapshot, where=where, columns=columns, engine=engine)
