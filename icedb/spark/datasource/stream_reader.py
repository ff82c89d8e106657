"""A table as the source of a stream: what it has, in bounded batches, and then what is appended, as it comes.

An offset is a cursor of the change feed (`icedb.format.change_feed`), which Spark keeps in the stream's checkpoint. A
batch is what lies between two of them, whenever it is planned: so a batch that is done again has the same rows. One
process of the driver asks for offsets as long as the stream runs; it keeps the log, and looks for new log files only.
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
from icedb.reader.changes import Changes, changes_of, cursor_of, settled_ms
from icedb.reader.snapshot import take_snapshot
from icedb.spark.datasource.part_scan import PartScan, in_tasks, scan_of
from icedb.spark.datasource.read_options import ReadOptions, stream_read_options
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.table import Table
from icedb.transaction.table_handle import Handle

__all__ = ["StreamReader"]

#: As Spark hands it over: JSON.
Offset = dict[str, Any]


@dataclass
class _Feeding:
    """What only the driver needs. `until_ms`: what came later is left to the next start (Trigger.AvailableNow)."""

    told: ReadOptions
    handle: Handle
    until_ms: int | None = None

    def begin(self) -> Cursor:
        """The same whenever Spark asks: it does so again for a first batch that was not finished."""
        return BEGINNING if self.told.since is None else cursor_of(self.handle, self.told.since)

    def end(self, start: Cursor, limits: Limits, promised: Collection[str]) -> Cursor:
        """Where the batch that begins at `start` ends; `start` itself when there is nothing to read."""
        now_ms = self.handle.clock.now_ms()  # before the log is read
        state = self.handle.read()
        settled = settled_ms(self.handle, now_ms)
        where = self.told.where

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
            self._check_columns(state, promised)
            return end
        # Of a quiet table Spark is told nothing new, and does nothing. But a checkpoint that stays behind cleanup would
        # be of no use when the stream is started again, so it is moved now and then, by a batch without rows.
        return end if end.t_ms - start.t_ms > self.handle.timing.grace_ms // 4 else start

    def _check_columns(self, state: TableState, promised: Collection[str]) -> None:
        """What a running stream was not promised it could only leave out, and never read again."""
        if self.told.columns is None and (new := sorted(state.schema.keys() - promised)):
            raise InvalidOption(
                f"{self.handle.table}: the table has columns that it had not when the stream began: {new}. Start the "
                "stream again: it goes on where it was, with them. To do without, name its columns (option 'columns')."
            )

    def parts(self, start: Cursor, end: Cursor) -> Sequence[InputPartition]:
        state = self.handle.read()
        changes = self._changes(state, start, end, between(state, self.handle.keys, start, end))
        return list(in_tasks(changes, changes.in_partitions(self.told.where), self.told.split_bytes))

    def _changes(self, state: TableState, start: Cursor, end: Cursor, markers: Sequence[Marker]) -> Changes:
        return changes_of(self.handle, state, start, end, markers, as_of_ms=state.newest_ms)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled to each task, without what only the driver needs. It carries the table's credentials.

    The table is opened when Spark asks for something: what `__init__` raised, Spark would lose.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._options = options

    def __repr__(self) -> str:
        return "StreamReader()"

    def __getstate__(self) -> dict[str, Any]:
        return {"_scan": self._scan}

    @cached_property
    def _driver(self) -> _Feeding:
        """Raises InvalidRequestError errors, CorruptLog and the store's errors."""
        told = stream_read_options(self._options)
        return _Feeding(told, Table.open(told.path, storage_options=told.storage_options).handle)

    @cached_property
    def _scan(self) -> PartScan:
        return scan_of(take_snapshot(self._driver.handle), self._schema, self._driver.told)

    def _cursor(self, offset: Offset) -> Cursor:
        try:
            return msgspec.convert(offset, Cursor)
        except msgspec.ValidationError as error:
            raise InvalidOption(
                f"{self._driver.handle.table}: the stream's checkpoint is of another source, or of a newer version of "
                f"this one ({error}). Begin with a new checkpoint."
            ) from None

    @hide_worker_traceback()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new stream begins: at `since`, or before all that the table has."""
        return _offset(self._driver.begin())

    @hide_worker_traceback()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """That a batch is bounded, unless Spark wants all at once; by what is known here already."""
        return ReadMaxBytes(self._driver.told.batch_bytes_max)

    @hide_worker_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The end of the batch that begins at `start`. Raises SnapshotExpired and what reading the log raises."""
        told = self._driver.told
        bounded = Limits(told.batch_parts_max, told.batch_bytes_max)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else bounded
        return _offset(self._driver.end(self._cursor(start), limits, self._schema.fieldNames()))

    @hide_worker_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """All there is now, and then no more."""
        feeding = self._driver
        now_ms, newest_ms = feeding.handle.clock.now_ms(), feeding.handle.read(fresh=True).newest_ms
        # A commit may be ahead of this clock, but not of all clocks.
        feeding.until_ms = max(now_ms, min(newest_ms, now_ms + 2 * feeding.handle.timing.max_skew_ms))

    @hide_worker_traceback()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The parts of a batch, by tasks. Raises SnapshotExpired and what reading the log raises."""
        return self._driver.parts(self._cursor(start), self._cursor(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of its parts. Raises SnapshotExpired, MissingPart, the store's and DuckDB's errors."""
        with hide_worker_traceback():
            try:
                yield from self._scan.batches(partition)
            except SnapshotExpired as error:
                raise SnapshotExpired(
                    f"{self._scan.location.uri}: the stream is further behind than the grace period of cleanup: a part "
                    f"that it must read is gone ({error}) Begin with a new checkpoint, and give cleanup a longer "
                    "grace_ms.",
                    horizon_ms=error.horizon_ms,
                ) from None


def _offset(cursor: Cursor) -> Offset:
    made: Offset = msgspec.to_builtins(cursor)
    return made
