"""The data source `icedb`, which Spark finds through the module `pyspark_icedb`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from icedb.spark.datasource.reader import open_reader, planned_schema
from icedb.spark.datasource.stream_reader import StreamReader
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.spark.datasource.writer import open_stream_writer, open_writer

__all__ = ["IceDBDataSource"]


class IceDBDataSource(DataSource):
    """The data source `format("icedb")`, for batches and streams.

    Reads and writes have the options `path`, storage options (`AWS_...`), and `memory_bytes` of a task. Options of a
    write: `overwrite` (`table`, `partitions` or `dynamic`) with mode `overwrite`; `partitions`, a JSON list of paths or
    a DuckDB predicate over the partition columns; `part_bytes`; `txn_application` and `txn_sequence`, the idempotency
    key (see `Table.insert`); `job`, up to 16 letters and digits as a prefix of the names of new parts. Options of a
    read: see `icedb.spark.datasource.read_options`.
    """

    #: The option that fixes the time of the schema. It is pickled with this object.
    _fixed_time: Mapping[str, str] | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "icedb"

    @hide_worker_traceback()
    def schema(self) -> StructType:
        """Return the schema, and fix the snapshot for all queries of the frame."""
        schema, self._fixed_time = planned_schema(dict(self.options.items()))
        return schema

    @hide_worker_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one query, see `open_reader`. Spark calls this in another process than `schema`."""
        options = {k: v for k, v in self.options.items() if k.lower() not in (self._fixed_time or {})}
        return open_reader(schema, {**options, **(self._fixed_time or {})})

    @hide_worker_traceback()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream, see `StreamReader`. It validates the options when Spark first calls it."""
        return StreamReader(schema, dict(self.options.items()))

    @hide_worker_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of one job, see `open_writer`."""
        return open_writer(schema, dict(self.options.items()), overwrite=overwrite)

    @hide_worker_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the writer of one micro-batch, see `open_stream_writer`."""
        return open_stream_writer(schema, dict(self.options.items()), overwrite=overwrite)
