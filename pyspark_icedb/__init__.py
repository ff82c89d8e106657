"""Spark looks for data sources in top-level modules named `pyspark_*`; this one says where `icedb` is."""

from icedb.spark.datasource.source import IceDBDataSource as DefaultSource

__all__ = ["DefaultSource"]
