"""IceDB on Spark: the data source `icedb`, found by Spark through the module `pyspark_icedb`.

    df.write.format("icedb").mode("append").option("path", "s3://lake/events").save()

Importing this package needs no pyspark; using it does (`pip install 'icedb-dagster[spark]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from icedb.table import AsOf

__all__ = ["read", "register"]


def register(spark: SparkSession) -> None:
    """Make the data source known to a session that does not discover it by itself."""
    from icedb.spark.source import IceDBDataSource

    spark.dataSource.register(IceDBDataSource)


def read(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    *,
    as_of: AsOf | None = None,
    where: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A snapshot as a Spark DataFrame, partition columns included.

    The rows come through the driver, so they must fit into its memory. `where` is a DuckDB predicate over the
    partition columns, which prunes before any part is opened. Raises as `Table.snapshot` does.
    """
    from icedb.table import Table

    snapshot = Table.open(uri, storage_options=storage_options).snapshot(as_of)
    return spark.createDataFrame(snapshot.to_arrow(where=where))
