"""Spark's side of a batch write: parts by the tasks, one commit by the driver.

Each task hands its rows to `icedb.parts.write_parts`, as every other writer does: DuckDB sorts, partitions and
encodes them, and the parts go straight to the store, without Hadoop's file systems. Nothing is visible until the
driver commits what all tasks report. A task that is retried, killed or run twice leaves parts that no log file
names: orphans, which an orphan sweep removes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from icedb.clock import SystemClock
from icedb.errors import InvalidOption, InvariantViolated
from icedb.parts import WrittenParts, write_parts
from icedb.publishing import publish_append, publish_overwrite
from icedb.shaping import WriteContext
from icedb.spark.options import WriteMode, write_options
from icedb.spark.types import arrow_schema
from icedb.staging import check_batch
from icedb.store import open_store
from icedb.table import Table
from icedb.transactions import Txn

__all__ = ["open_writer"]

logger = logging.getLogger(__name__)


def open_writer(schema: StructType, options: Mapping[str, str], mode: WriteMode) -> DataSourceArrowWriter:
    """The writer of one job; runs on the driver, before any task. Raises FixInput errors."""
    told = write_options(options, mode)
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
    return _BatchWriter(context, told.storage_options, mode, told.memory_bytes, told.txn)


@dataclass
class _TaskMessage(WriterCommitMessage):
    """What one task wrote; None when it had no rows."""

    written: WrittenParts | None


class _BatchWriter(DataSourceArrowWriter):
    """Pickled to each task. It carries the storage options, so its repr says nothing of them."""

    def __init__(
        self,
        context: WriteContext,
        storage_options: Mapping[str, str],
        mode: WriteMode,
        memory_bytes: int,
        txn: Txn | None,
    ) -> None:
        self._context = context
        self._storage_options = dict(storage_options)
        self._mode = mode
        self._memory_bytes = memory_bytes
        self._txn = txn

    def __repr__(self) -> str:
        return f"_BatchWriter({self._context.table!r}, mode={self._mode!r})"

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
            memory_bytes=self._memory_bytes,
        )
        return _TaskMessage(written)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: one log file for the whole job."""
        reports = [m for m in messages if isinstance(m, _TaskMessage)]
        if len(reports) < len(messages):
            raise InvariantViolated(
                f"{self._context.table}: {len(messages) - len(reports)} of {len(messages)} tasks did not say what they "
                "wrote. Nothing was published."
            )
        pieces = [m.written for m in reports if m.written is not None]
        handle = Table.open(self._context.location.uri, storage_options=self._storage_options).handle
        written = WrittenParts(
            schema={c: t for p in pieces for c, t in p.schema.items()},
            markers=tuple(m for p in pieces for m in p.markers),
            born_ms=min((p.born_ms for p in pieces), default=handle.clock.now_ms()),
        )
        if self._mode == "overwrite":
            publish_overwrite(handle, written, None)
        else:
            publish_append(handle, written, txn=self._txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when the job failed; Spark may call it after a commit that landed, so nothing is deleted."""
        parts = sum(len(m.written.markers) for m in messages if isinstance(m, _TaskMessage) and m.written is not None)
        logger.warning(
            "%s: the write job was aborted; up to %d parts stay behind as orphans", self._context.table, parts
        )
