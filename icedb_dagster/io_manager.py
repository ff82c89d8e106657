"""Commit what assets return: one asset, one table, one commit per materialization.

An output is written as parts first and becomes visible in one commit, or not at all. `overwrite` (the default)
replaces the table's rows atomically; `append` adds to them. A table that is missing is created from the asset's
metadata: `partition_by` and `sort_by`.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
import typing
from collections.abc import Sequence
from typing import Any, Literal

import dagster as dg
import pyarrow as pa

from icedb import Snapshot, Table
from icedb.errors import InvalidBatch, InvalidOption
from icedb_dagster.metadata import table_metadata
from icedb_dagster.resource import IceDBResource

__all__ = ["IceDBIOManager"]

Mode = Literal["append", "overwrite"]


class IceDBIOManager(dg.ConfigurableIOManager):
    """Stores assets as IceDB tables.

    Outputs: a pyarrow Table, RecordBatch or RecordBatchReader, a Spark DataFrame, or None when the asset wrote its
    table by itself (then it must be there). Inputs, by annotation: pyarrow Table (the default), `icedb.Snapshot`,
    Spark DataFrame.

    `mode`: what an output does to the rows that are there, `overwrite` or `append`; an asset's metadata
    `icedb/mode` overrides it.
    """

    icedb: dg.ResourceDependency[IceDBResource]
    mode: str = "overwrite"

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Commit an asset's output. Raises InvalidBatch, InvalidOption, and as `Table.insert` and `overwrite` do."""
        table = self.icedb.table(context.asset_key) if obj is None else self._commit(context, obj)
        context.add_output_metadata(table_metadata(table.snapshot()))

    def _commit(self, context: dg.OutputContext, obj: Any) -> Table:
        """What is wrong with the asset's definition is said before a table is created for it."""
        uri = self.icedb.uri(context.asset_key)
        if context.has_asset_partitions:
            raise InvalidOption(
                f"{uri}: partitioned assets cannot be stored by this IO manager yet. Write the partition with "
                "Table.overwrite(rows, partitions=[...]) in the asset and return None."
            )
        _check_output(uri, obj)
        definition = context.definition_metadata or {}
        mode = self._mode(uri, definition)
        table = self.icedb.table_or_create(
            context.asset_key,
            partition_by=_texts(uri, definition, "partition_by"),
            sort_by=_texts(uri, definition, "sort_by"),
        )
        write = table.insert if mode == "append" else table.overwrite
        write(obj)
        return table

    def _mode(self, uri: str, definition: typing.Mapping[str, Any]) -> Mode:
        mode = _plain(definition.get("icedb/mode", self.mode))
        if mode not in ("append", "overwrite"):
            raise InvalidOption(f"{uri}: mode is '{mode}'; give 'append' or 'overwrite'.")
        return typing.cast("Mode", mode)

    def load_input(self, context: dg.InputContext) -> Any:
        """The upstream asset's table, as its type annotation wants it. Raises TableNotFound, InvalidOption."""
        table = self.icedb.table(context.asset_key)
        snapshot = table.snapshot()
        wanted = context.dagster_type.typing_type
        context.add_input_metadata({"icedb/snapshot_id": snapshot.id, "icedb/snapshot_time_ms": snapshot.as_of_ms})
        if wanted is Snapshot:
            return snapshot
        if context.has_asset_partitions:
            raise InvalidOption(
                f"{table.uri}: partitions of an asset cannot be loaded by this IO manager yet. Annotate the input as "
                "icedb.Snapshot and query the partitions that you want."
            )
        if isinstance(wanted, type) and _is_spark(wanted):
            return _spark_frame(table, snapshot)
        if wanted in (typing.Any, pa.Table, type(None)):
            return snapshot.to_arrow()
        raise InvalidOption(
            f"{table.uri}: an input cannot be loaded as {wanted}. Annotate it as pyarrow.Table, icedb.Snapshot or a "
            "Spark DataFrame."
        )


def _check_output(uri: str, obj: Any) -> None:
    if not isinstance(obj, pa.Table | pa.RecordBatch | pa.RecordBatchReader) and not _is_spark(type(obj)):
        raise InvalidBatch(
            f"{uri}: the asset returned a {type(obj).__module__}.{type(obj).__qualname__}. Return a pyarrow Table, "
            "RecordBatch or RecordBatchReader, a Spark DataFrame, or None if it wrote the table itself."
        )


def _is_spark(type_: type) -> bool:
    """Without importing pyspark: its DataFrame has subclasses for classic sessions and for Spark Connect."""
    return any(t.__module__.startswith("pyspark.sql") and t.__name__ == "DataFrame" for t in type_.__mro__)


def _spark_frame(table: Table, snapshot: Snapshot) -> Any:
    from pyspark.sql import SparkSession

    from icedb import spark as icedb_spark

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidOption(
            f"{table.uri}: the input wants a Spark DataFrame, and no Spark session is running in this step. Give the "
            "asset a PySparkResource."
        )
    return icedb_spark.frame(spark, snapshot)


def _texts(uri: str, definition: typing.Mapping[str, Any], name: str) -> Sequence[str]:
    value = _plain(definition.get(name, ()))
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise InvalidOption(f"{uri}: the asset's metadata '{name}' must be a list of texts, not {value!r}.")
    return tuple(value)


def _plain(value: Any) -> Any:
    """Metadata as it was given: Dagster wraps some values in MetadataValue."""
    return value.value if isinstance(value, dg.MetadataValue) else value
