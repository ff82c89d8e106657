"""Spark's side of a batch write: parts by the tasks, one commit by the driver.

Each task hands its rows to `icedb.parts.write_parts`, as every other writer does: DuckDB sorts, partitions and
encodes them, and the parts go straight to the store, without Hadoop's file systems. Nothing is visible until the
driver commits what all tasks report. A task that is retried, killed or run twice leaves parts that no log file
names: orphans, which an orphan sweep removes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from icedb.clock import SystemClock
from icedb.errors import InvalidOption, InvariantViolated, SchemaConflict, ViewBehind
from icedb.format.names import partition_of
from icedb.handle import Handle
from icedb.parts import WrittenParts, discard, write_parts
from icedb.publishing import publish_append, publish_overwrite
from icedb.schema import check_columns
from icedb.shaping import WriteContext
from icedb.spark.options import WriteOptions, write_options
from icedb.spark.plain import plainly
from icedb.spark.resources import processors, scratch_folder
from icedb.spark.types import arrow_schema
from icedb.staging import check_batch
from icedb.store import open_store
from icedb.table import Table

__all__ = ["open_writer"]

logger = logging.getLogger(__name__)


def open_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of one job; runs on the driver, before any task. Raises FixInput errors and the store's."""
    told = write_options(options, overwrite=overwrite)
    table = Table.open(told.path, storage_options=told.storage_options)
    table.handle.check_writable()
    table.schema()
    if table.spec.views:
        raise InvalidOption(
            f"{told.path}: the table has views ({[v.name for v in table.spec.views]}), which a Spark job does not "
            "feed. Write with Table.insert(frame.toArrow()), or drop the views."
        )
    context = replace(table.handle.write_context(), job=told.job)
    check_batch(context, arrow_schema(schema, told.path))
    return _BatchWriter(context, told)


@dataclass
class _TaskMessage(WriterCommitMessage):
    """What one task wrote; None when it had no rows."""

    written: WrittenParts | None


class _BatchWriter(DataSourceArrowWriter):
    """Pickled to each task, and to the driver's process that commits."""

    def __init__(self, context: WriteContext, options: WriteOptions) -> None:
        self._context = context
        self._options = options

    def __repr__(self) -> str:
        return f"_BatchWriter({self._context.table!r}, overwrite={self._options.overwrite!r})"

    @plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: turn its rows into parts."""
        first = next(iterator, None)
        if first is None:
            return _TaskMessage(None)
        written = write_parts(
            self._context,
            pa.RecordBatchReader.from_batches(first.schema, chain([first], iterator)),
            store=open_store(self._context.location),
            clock=SystemClock(),
            memory_bytes=self._options.memory_bytes,
            threads=processors(),
            folder=scratch_folder(),
            part_bytes=self._options.part_bytes,
        )
        return _TaskMessage(written)

    @plainly()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: one log file for the whole job."""
        reports = _reports(messages)
        if len(reports) < len(messages):
            raise InvariantViolated(
                f"{self._context.table}: {len(messages) - len(reports)} of {len(messages)} tasks did not say what they "
                "wrote. Nothing was published."
            )
        handle = self._open()
        written = WrittenParts(
            schema=_schema(handle, reports),
            markers=tuple(m for p in reports for m in p.markers),
            born_ms=min((p.born_ms for p in reports), default=handle.clock.now_ms()),
        )
        match self._options.overwrite:
            case None:
                publish_append(handle, written, txn=self._options.txn)
            case "table" | "partitions":
                publish_overwrite(handle, written, self._options.partitions)
            case "dynamic":
                if written.markers:  # no rows, no partitions
                    publish_overwrite(handle, written, _partitions_of(handle, written))
        _check_views(handle)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when the job failed.

        Spark asks for a commit when every task has reported, and only then. So when one has not, nothing was published,
        and what the others wrote is deleted. Else the commit may have landed, or may land yet, and all of it stays.
        """
        parts = [m.key for r in _reports(messages) for m in r.markers]
        if not parts:
            return
        if None in messages:
            discard(open_store(self._context.location), parts)
            logger.warning("%s: the job failed; %d parts of it are deleted", self._context.table, len(parts))
        else:
            logger.warning(
                "%s: the job failed when it was published; unless that succeeded, %d parts may stay behind as orphans",
                self._context.table,
                len(parts),
            )

    def _open(self) -> Handle:
        return Table.open(self._context.location.uri, storage_options=self._options.storage_options).handle


def _schema(handle: Handle, reports: Sequence[WrittenParts]) -> dict[str, str]:
    """The columns of all tasks. Queries may give a column another type in each. Raises SchemaConflict."""
    schema: dict[str, str] = {}
    for report in reports:
        try:
            check_columns(report.schema, schema, table=handle.table)
        except SchemaConflict:
            discard(handle.store, [m.key for r in reports for m in r.markers])
            raise
        schema |= report.schema
    return schema


def _check_views(handle: Handle) -> None:
    """A view that somebody made while the job ran lacks its rows. Raises ViewBehind."""
    handle.read(fresh=True)
    if views := sorted(view.name for view in handle.spec.views):
        raise ViewBehind(
            f"{handle.table}: the rows are committed, and the views {views}, which were made meanwhile, may lack them. "
            "Refresh them with refresh_view(name); do not write the rows again."
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenParts]:
    """What the tasks wrote. One that had no rows wrote nothing."""
    nothing = WrittenParts({}, (), SystemClock().now_ms())
    return [m.written or nothing for m in messages if isinstance(m, _TaskMessage)]


def _partitions_of(handle: Handle, written: WrittenParts) -> list[str]:
    return sorted({partition_of(handle.keys.data_prefix, m.key) for m in written.markers})
