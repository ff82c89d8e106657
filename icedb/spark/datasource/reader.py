"""Batch reader of the data source: the driver plans, and tasks read parts (data files) with DuckDB.

The driver resolves the snapshot and assigns parts to tasks, without the partitions that `where` excludes. A task reads
from the store without a Hadoop file system. It passes Arrow batches to Spark and never holds a whole part.

The reader has no `pushFilters`. Spark 4.3 keeps one planned reader for each loaded frame and reuses it for later
plans. A filter that the reader accepted for one query would remove rows from every later query of that frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from icedb.errors import InvalidOption, InvariantViolated
from icedb.reader.changes import take_changes
from icedb.reader.snapshot import Snapshot
from icedb.spark.datasource import pushdown_warning
from icedb.spark.datasource.part_scan import PartScan, plan_scan, plan_tasks, select_columns
from icedb.spark.datasource.read_options import ReadOptions, batch_read_options, read_options
from icedb.spark.datasource.type_mapping import spark_schema
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.table import Table

__all__ = ["open_reader", "planned_schema"]


def planned_schema(options: Mapping[str, str]) -> tuple[StructType, dict[str, str]]:
    """Return the schema of a read, and the option that fixes its time. Raises as `open_reader`."""
    read = read_options(options)
    # Also for changes: a continued stream uses its checkpoint instead of `since`, which may be before the horizon.
    table = Table.open(read.path, storage_options=read.storage_options)
    snapshot = table.snapshot(read.as_of_ms)
    if isinstance(read.until, int) and read.until < snapshot.as_of_ms:
        snapshot = table.snapshot(read.until)  # changes up to a time have the columns of that time
    if read.where is not None:
        snapshot.partitions(read.where)  # reject an invalid predicate now, not when the query runs
    schema = spark_schema(select_columns(snapshot, read.columns))
    if read.since is None:
        return schema, {"as_of": str(snapshot.as_of_ms)}
    if read.until is not None:
        return schema, {}
    least_ms = read.since if isinstance(read.since, int) else 0  # another clock may be ahead of this one
    return schema, {"until": str(max(snapshot.as_of_ms, least_ms))}


def open_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Open the reader of one query; runs on the driver.

    Raises InvalidOption for a read without a fixed snapshot, other InvalidRequestError errors, CorruptLog and the
    store's errors.
    """
    pushdown_warning.warn_in_worker()
    read = batch_read_options(options)
    if read.as_of_ms is None and (read.since is None or read.until is None):
        # With a schema of the caller, Spark skips `IceDBDataSource.schema`, which fixes the snapshot.
        raise InvalidOption(
            f"{read.path}: the read has its own schema and no fixed snapshot. Its rows would depend on when Spark "
            "plans it. Read without a schema and name the columns (option 'columns'), or set the option "
            f"{'as_of' if read.since is None else 'until'!r}."
        )
    snapshot = _take_snapshot(read)
    parts = snapshot.in_partitions(read.where)
    return _Reader(plan_scan(snapshot, schema, read), list(plan_tasks(snapshot, parts, read.split_bytes)))


def _take_snapshot(read: ReadOptions) -> Snapshot:
    table = Table.open(read.path, storage_options=read.storage_options)
    if read.since is None:
        return table.snapshot(read.as_of_ms)
    return take_changes(table.handle, read.since, read.until)


class _Reader(DataSourceReader):
    """Reader that Spark pickles to each task, without the list of tasks. It contains the table's credentials."""

    def __init__(self, scan: PartScan, tasks: list[InputPartition]) -> None:
        self._scan = scan
        self._tasks: list[InputPartition] | None = tasks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scan.location.uri!r}, as_of_ms={self._scan.as_of_ms})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tasks": None}

    @hide_worker_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of each task; runs on the driver. For an empty list, Spark makes one task without parts."""
        if self._tasks is None:
            raise InvariantViolated(f"{self._scan.location.uri}: a task cannot plan tasks; only the driver can.")
        return self._tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's parts."""
        with hide_worker_traceback():
            yield from self._scan.batches(partition)
