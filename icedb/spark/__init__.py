"""IceDB on Spark: the data source `icedb`, found by Spark through the module `pyspark_icedb`.

    df.write.format("icedb").mode("append").option("path", "s3://lake/events").save()

Importing this package needs no pyspark; using it does (`pip install 'icedb-dagster[spark]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icedb.snapshot import Snapshot
    from icedb.table import AsOf

__all__ = ["frame", "read", "register"]


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

    return frame(spark, Table.open(uri, storage_options=storage_options).snapshot(as_of), where=where)


def frame(spark: SparkSession, snapshot: Snapshot, *, where: str | None = None) -> DataFrame:
    """A snapshot that was taken already as a Spark DataFrame; see `read`. Unsigned integers become wider ones."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = snapshot.to_arrow(where=where)
    signed = _signed(rows.schema)
    # Told the types, or Spark would take a wall time for an instant in the session's timezone.
    return spark.createDataFrame(rows.cast(signed), from_arrow_schema(signed, prefer_timestamp_ntz=True))


def _signed(schema: pa.Schema) -> pa.Schema:
    """Spark has no unsigned integers: each becomes the smallest type that holds all its values."""
    import pyarrow as pa

    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20),
    }
    return pa.schema([field.with_type(wider.get(field.type, field.type)) for field in schema])
