"""Spark's side of a read through the data source: parts by the tasks, through DuckDB, as Arrow batches.

The driver resolves the snapshot and says which parts each task reads. A task opens them where they are, so no file
system of Hadoop is needed, and hands Spark small batches: it never holds a whole part. Partitions that `where`
excludes are given to no task.

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
from icedb.spark.datasource.part_scan import PartScan, chosen_columns, in_tasks, scan_of
from icedb.spark.datasource.read_options import ReadOptions, batch_read_options, read_options
from icedb.spark.datasource.type_mapping import spark_schema
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.table import Table

__all__ = ["open_reader", "planned_schema"]


def planned_schema(options: Mapping[str, str]) -> tuple[StructType, dict[str, str]]:
    """What a read with these options gives, and the option that says of what time it is. Raises as `open_reader`."""
    told = read_options(options)
    # Of changes, too: when a stream goes on, `since` may be long past, and what counts is in its checkpoint.
    table = Table.open(told.path, storage_options=told.storage_options)
    snapshot = table.snapshot(told.as_of_ms)
    if isinstance(told.until, int) and told.until < snapshot.as_of_ms:
        snapshot = table.snapshot(told.until)  # changes up to a time have the columns of that time
    if told.where is not None:
        snapshot.partitions(told.where)  # a wrong one is told now, not when the rows are asked for
    schema = spark_schema(chosen_columns(snapshot, told.columns))
    if told.since is None:
        return schema, {"as_of": str(snapshot.as_of_ms)}
    if told.until is not None:
        return schema, {}
    least_ms = told.since if isinstance(told.since, int) else 0  # by a clock that may be ahead of this one
    return schema, {"until": str(max(snapshot.as_of_ms, least_ms))}


def open_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Open the reader of one query; runs on the driver.

    Raises InvalidOption for a read without a fixed snapshot, other InvalidRequestError errors, CorruptLog and the
    store's errors.
    """
    pushdown_warning.warn_in_worker()
    read = batch_read_options(options)
    if read.as_of_ms is None and (read.since is None or read.until is None):
        # Spark skips `IceDBDataSource.schema` for a schema of the caller, and so nothing fixed the snapshot.
        raise InvalidOption(
            f"{read.path}: the read has a schema of its own and no fixed snapshot. Its rows would depend on when Spark "
            "plans it. Read without a schema and name the columns (option 'columns'), or set the option "
            f"{'as_of' if read.since is None else 'until'!r}."
        )
    snapshot = _taken(read)
    parts = snapshot.in_partitions(read.where)
    return _Reader(scan_of(snapshot, schema, read), list(in_tasks(snapshot, parts, read.split_bytes)))


def _taken(told: ReadOptions) -> Snapshot:
    table = Table.open(told.path, storage_options=told.storage_options)
    if told.since is None:
        return table.snapshot(told.as_of_ms)
    return take_changes(table.handle, told.since, told.until)


class _Reader(DataSourceReader):
    """Pickled to each task, without the list of tasks. It carries the table's credentials."""

    def __init__(self, scan: PartScan, tasks: list[InputPartition]) -> None:
        self._scan = scan
        self._tasks: list[InputPartition] | None = tasks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scan.location.uri!r}, as_of_ms={self._scan.as_of_ms})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tasks": None}

    @hide_worker_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that each task reads; runs on the driver. Spark makes one task without parts of none."""
        if self._tasks is None:
            raise InvariantViolated(
                f"{self._scan.location.uri}: a task was asked to plan tasks, which the driver does."
            )
        return self._tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of its parts."""
        with hide_worker_traceback():
            yield from self._scan.batches(partition)
