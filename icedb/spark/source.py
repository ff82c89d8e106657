"""The data source `icedb`, which Spark finds through the module `pyspark_icedb`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from icedb.spark.plain import plainly
from icedb.spark.reader import open_reader, planned_schema
from icedb.spark.writer import open_writer

__all__ = ["IceDBDataSource"]


class IceDBDataSource(DataSource):
    """`format("icedb")`. Options of all kinds: `path`, storage options (`AWS_...`), `memory_bytes` of a task.

    To write: `overwrite` (`table`, `partitions` or `dynamic`) with mode `overwrite`, `partitions` (a JSON list of
    paths, or a DuckDB predicate over the partition columns), `part_bytes`; `txn_application` and `txn_sequence`, the
    two halves of a `txn` (see `Table.insert`); `job`, up to 16 letters and digits that the names of the new parts begin
    with. To read: see `icedb.spark.read_options`.
    """

    #: When the snapshot is that `schema` told of; it is pickled with this object.
    _as_of_ms: int | None = None

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "icedb"

    @plainly()
    def schema(self) -> StructType:
        """The columns of the snapshot that is read, which from here on is the same for every query of the frame."""
        schema, self._as_of_ms = planned_schema(dict(self.options.items()))
        return schema

    @plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query; see `open_reader`. Spark asks for it in another process than for the schema."""
        return open_reader(schema, dict(self.options.items()), as_of_ms=self._as_of_ms)

    @plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of one job; see `open_writer`."""
        return open_writer(schema, dict(self.options.items()), overwrite=overwrite)
