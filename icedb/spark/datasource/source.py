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
    """`format("icedb")`. Options of all kinds: `path`, storage options (`AWS_...`), `memory_bytes` of a task.

    To write: `overwrite` (`table`, `partitions` or `dynamic`) with mode `overwrite`, `partitions` (a JSON list of
    paths, or a DuckDB predicate over the partition columns), `part_bytes`; `txn_application` and `txn_sequence`, the
    two halves of a `txn` (see `Table.insert`); `job`, up to 16 letters and digits that the names of the new parts begin
    with. To read: see `icedb.spark.datasource.read_options`.
    """

    #: The option that says of what time the schema is which Spark was told; it is pickled with this object.
    _of_time: Mapping[str, str] | None = None

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "icedb"

    @hide_worker_traceback()
    def schema(self) -> StructType:
        """The columns of the snapshot that is read, which from here on is the same for every query of the frame."""
        schema, self._of_time = planned_schema(dict(self.options.items()))
        return schema

    @hide_worker_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query; see `open_reader`. Spark asks for it in another process than for the schema."""
        told = {k: v for k, v in self.options.items() if k.lower() not in (self._of_time or {})}
        return open_reader(schema, {**told, **(self._of_time or {})})

    @hide_worker_traceback()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream; see `StreamReader`. What is wrong with the options is told when Spark asks it."""
        return StreamReader(schema, dict(self.options.items()))

    @hide_worker_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of one job; see `open_writer`."""
        return open_writer(schema, dict(self.options.items()), overwrite=overwrite)

    @hide_worker_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer of one micro-batch; see `open_stream_writer`."""
        return open_stream_writer(schema, dict(self.options.items()), overwrite=overwrite)
