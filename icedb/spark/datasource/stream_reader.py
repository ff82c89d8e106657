"""Stream reader of the data source: existing rows in bounded batches, then appended rows as they arrive.

An offset is a cursor of the change feed (`icedb.format.change_feed`), which Spark keeps in the stream's checkpoint. A
batch is the rows between two cursors, so a repeated batch has the same rows. One process of the driver computes offsets
as long as the stream runs. It keeps the log in memory and reads only new log files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from icedb.errors import InvalidOption, SnapshotExpired
from icedb.format.change_feed import BEGINNING, Cursor, Limits, advance, between
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import visible_schema
from icedb.reader.changes import Changes, changes_of, cursor_of, settled_ms
from icedb.reader.snapshot import take_snapshot
from icedb.spark.datasource.part_scan import PartScan, plan_scan, plan_tasks
from icedb.spark.datasource.read_options import ReadOptions, stream_read_options
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.table import Table
from icedb.transaction.table_handle import Handle

__all__ = ["StreamReader"]

#: An offset in Spark's form, which is JSON.
Offset = dict[str, Any]


@dataclass
class _StreamPlanner:
    """The state of a stream on the driver. `until_ms`: leave later rows to the next start (Trigger.AvailableNow)."""

    options: ReadOptions
    handle: Handle
    until_ms: int | None = None

    def begin(self) -> Cursor:
        """Return the start of a new stream, always the same one: Spark may repeat an unfinished first batch."""
        return BEGINNING if self.options.since is None else cursor_of(self.handle, self.options.since)

    def end(self, start: Cursor, limits: Limits, expected: Collection[str]) -> Cursor:
        """Return the end of the batch that begins at `start`, or `start` if there is nothing to read."""
        now_ms = self.handle.clock.now_ms()  # before reading the log
        state = self.handle.read()
        settled = settled_ms(self.handle, now_ms)
        where = self.options.where

        def chosen(markers: Sequence[Marker]) -> set[str]:
            return {p.key for p in self._changes(state, start, start, markers).in_partitions(where)}

        end, markers = advance(
            state,
            self.handle.keys,
            start,
            settled_ms=settled,
            until_ms=self.until_ms,
            limits=limits,
            counted=None if where is None else chosen,
        )
        if markers:
            self._check_columns(state, expected)
            return end
        # Without new rows the offset stays, and Spark runs no batch. But a checkpoint before the horizon of cleanup
        # could not be continued. So an empty batch moves it from time to time.
        return end if end.t_ms - start.t_ms > self.handle.timing.grace_ms // 4 else start

    def _check_columns(self, state: TableState, expected: Collection[str]) -> None:
        """Reject columns that Spark does not expect: a running stream would skip them, and never read them later."""
        if gone := sorted(self.handle.spec.dropped.keys() & set(expected)):
            raise InvalidOption(
                f"{self.handle.table}: columns were dropped after the stream started: {gone}. Restart the stream to "
                "continue without them."
            )
        visible = visible_schema(self.handle.spec, state.schema)
        if self.options.columns is None and (new := sorted(visible.keys() - expected)):
            raise InvalidOption(
                f"{self.handle.table}: columns were added after the stream started: {new}. Restart the "
                "stream to continue with them. To continue without them, set the option 'columns'."
            )

    def parts(self, start: Cursor, end: Cursor) -> Sequence[InputPartition]:
        state = self.handle.read()
        changes = self._changes(state, start, end, between(state, self.handle.keys, start, end))
        return list(plan_tasks(changes, changes.in_partitions(self.options.where), self.options.split_bytes))

    def _changes(self, state: TableState, start: Cursor, end: Cursor, markers: Sequence[Marker]) -> Changes:
        return changes_of(self.handle, state, start, end, markers, as_of_ms=state.newest_ms)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that Spark pickles to each task, without the driver's state. It contains the table's credentials.

    It opens the table at the first call, because Spark loses errors of `__init__`.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._options = options

    def __repr__(self) -> str:
        return "StreamReader()"

    def __getstate__(self) -> dict[str, Any]:
        return {"_scan": self._scan}

    @cached_property
    def _driver(self) -> _StreamPlanner:
        """The state on the driver. Raises InvalidRequestError errors, CorruptLog and the store's errors."""
        options = stream_read_options(self._options)
        return _StreamPlanner(options, Table.open(options.path, storage_options=options.storage_options).handle)

    @cached_property
    def _scan(self) -> PartScan:
        return plan_scan(take_snapshot(self._driver.handle), self._schema, self._driver.options)

    def _cursor(self, offset: Offset) -> Cursor:
        try:
            return msgspec.convert(offset, Cursor)
        except msgspec.ValidationError as error:
            raise InvalidOption(
                f"{self._driver.handle.table}: the stream's checkpoint is of another source, or of a newer version of "
                f"this one ({error}). Start with a new checkpoint."
            ) from None

    @hide_worker_traceback()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the start of a new stream: `since`, or the beginning of the table."""
        return _offset(self._driver.begin())

    @hide_worker_traceback()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, because Spark would otherwise request all rows at once."""
        return ReadMaxBytes(self._driver.options.batch_bytes_max)

    @hide_worker_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of the batch that begins at `start`. Raises SnapshotExpired and errors of reading the log."""
        options = self._driver.options
        bounded = Limits(options.batch_parts_max, options.batch_bytes_max)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else bounded
        return _offset(self._driver.end(self._cursor(start), limits, self._schema.fieldNames()))

    @hide_worker_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the stream at the current rows."""
        planner = self._driver
        now_ms, newest_ms = planner.handle.clock.now_ms(), planner.handle.read(fresh=True).newest_ms
        # The clock of a writer may be ahead of this one, by up to twice the maximum skew.
        planner.until_ms = max(now_ms, min(newest_ms, now_ms + 2 * planner.handle.timing.max_skew_ms))

    @hide_worker_traceback()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts of a batch, grouped by task. Raises SnapshotExpired and errors of reading the log."""
        return self._driver.parts(self._cursor(start), self._cursor(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's parts. Raises SnapshotExpired, MissingPart, the store's and DuckDB's errors."""
        with hide_worker_traceback():
            try:
                yield from self._scan.batches(partition)
            except SnapshotExpired as error:
                raise SnapshotExpired(
                    f"{self._scan.location.uri}: the stream is behind the grace period of cleanup, and a "
                    f"part that it must read is deleted ({error}) Start with a new checkpoint, and give cleanup a "
                    "longer grace_ms.",
                    horizon_ms=error.horizon_ms,
                ) from None


def _offset(cursor: Cursor) -> Offset:
    offset: Offset = msgspec.to_builtins(cursor)
    return offset
