"""The data source `icedb`, which Spark finds through the module `pyspark_icedb`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from icedb.errors import InvalidOption
from icedb.spark.options import path_of
from icedb.spark.writer import open_writer

__all__ = ["IceDBDataSource"]


class IceDBDataSource(DataSource):
    """`format("icedb")`. Options: `path`, storage options (`AWS_...`), `memory_bytes`, and `overwrite`.

    `txn_application` and `txn_sequence`: the two halves of a `txn` (see `Table.insert`). `job`: up to 32 letters and
    digits that the names of the new parts begin with.
    """

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "icedb"

    def schema(self) -> StructType:
        """Spark asks for it only to read, which this source does not do."""
        raise InvalidOption(
            f"{path_of(self.options)}: spark.read.format('icedb') cannot read yet. Use icedb.spark.read(spark, uri)."
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of one job; see `open_writer`."""
        return open_writer(schema, dict(self.options.items()), "overwrite" if overwrite else "append")
