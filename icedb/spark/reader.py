"""Spark's side of a read through the data source: parts by the tasks, through DuckDB, as Arrow batches.

The driver resolves the snapshot and says which parts each task reads. A task opens them where they are, so no file
system of Hadoop is needed, and hands Spark small batches: it never holds a whole part. Partitions that `where`
excludes, and parts of which the log says that no row passes Spark's filters, are given to no task.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from icedb.changes import take_changes
from icedb.errors import InvariantViolated
from icedb.handle import Handle, Part
from icedb.scan import visible_partitions
from icedb.snapshot import Snapshot
from icedb.spark.filters import Condition, condition_of
from icedb.spark.part_scan import PartScan, chosen_columns, in_tasks, scan_of
from icedb.spark.plain import plainly
from icedb.spark.read_options import ReadOptions, batch_read_options, read_options
from icedb.spark.types import held, spark_schema
from icedb.statistics import may_hold
from icedb.table import Table

__all__ = ["open_reader", "planned_schema"]

# Spark asks for filters in a worker of its own, and refuses a reader that takes some anywhere else.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


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
    """The reader of one query; runs on the driver. Raises FixInput errors, DamagedLog and the store's errors."""
    told = batch_read_options(options)
    snapshot = _taken(told)
    reader = _FilteringReader if _takes_filters() else _Reader
    return reader(scan_of(snapshot, schema, told), _Planning(snapshot.handle, snapshot, told.split_bytes))


def _taken(told: ReadOptions) -> Snapshot:
    table = Table.open(told.path, storage_options=told.storage_options)
    if told.since is None:
        return table.snapshot(told.as_of_ms)
    return take_changes(table.handle, told.since, told.until)


def _takes_filters() -> bool:
    """Whether this process is the worker that pushes filters down: there is one if Spark's setting says so.

    Without its daemon, Spark starts the worker as the main module.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


@dataclass(frozen=True)
class _Planning:
    """What only the driver needs: which parts there are, and how they go into tasks."""

    handle: Handle
    snapshot: Snapshot
    split_bytes: int

    def parts(self, where: str | None, conditions: Sequence[Condition]) -> list[Part]:
        """Those that may hold a row for which all is true."""
        visible = visible_partitions(self.snapshot.schema, self.snapshot.partition_schema)
        of_partitions = [c.sql for c in conditions if c.column in visible]
        of_rows = [c for c in conditions if c.column not in visible and c.bounds]
        parts = self.snapshot.in_partitions(where)
        if of_partitions:
            chosen = {p.key for p in self.snapshot.in_partitions(" AND ".join(of_partitions))}
            parts = [p for p in parts if p.key in chosen]
        return self._within_bounds(parts, of_rows) if of_rows else parts

    def _within_bounds(self, parts: Sequence[Part], conditions: Sequence[Condition]) -> list[Part]:
        told = self.handle.read().parts
        markers = [told[p.key] for p in parts if p.key in told]
        silent = {p.key for p in parts if p.key not in told}
        for condition in conditions:
            type_ = held(self.snapshot.schema[condition.column]).cast
            markers = may_hold(markers, condition.column, type_, str(condition.bounds))
        stay = silent | {m.key for m in markers}
        return [p for p in parts if p.key in stay]


class _Reader(DataSourceReader):
    """Pickled to each task, without what only the driver needs. It carries the table's credentials."""

    def __init__(self, scan: PartScan, planning: _Planning) -> None:
        self._scan = scan
        self._planning: _Planning | None = planning
        self._conditions: list[Condition] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scan.location.uri!r}, as_of_ms={self._scan.as_of_ms})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_planning": None}

    @plainly()
    def partitions(self) -> Sequence[InputPartition]:
        """On the driver: which parts each task reads. Spark makes one task without parts of none."""
        if self._planning is None:
            raise InvariantViolated(
                f"{self._scan.location.uri}: a task was asked to plan tasks, which the driver does."
            )
        planning = self._planning
        parts = planning.parts(self._scan.where, self._conditions)
        return list(in_tasks(planning.snapshot, parts, planning.split_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of its parts."""
        with plainly():
            yield from self._scan.batches(partition)


class _FilteringReader(_Reader):
    """One that takes filters, which Spark allows only where it asks for them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """On the driver: keep those that DuckDB answers as Spark does, and give back the others."""
        rest = []
        for filter_ in filters:
            condition = condition_of(filter_, self._scan.columns)
            if condition is None:
                rest.append(filter_)
            else:
                self._conditions.append(condition)
        self._scan = replace(self._scan, conditions=tuple(c.sql for c in self._conditions))
        return rest
