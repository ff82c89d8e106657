"""Registration of the data source `icedb`: Spark searches top-level modules named `pyspark_*`."""

from icedb.spark.datasource.source import IceDBDataSource as DefaultSource

__all__ = ["DefaultSource"]
