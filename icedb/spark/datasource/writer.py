"""Spark's side of a write, batch or stream: parts by the tasks, one commit by the driver for a job or micro-batch.

Each task hands its rows to `icedb.writer.part_writer.write_parts`, as every other writer does: DuckDB sorts, partitions
and encodes them, and the parts go straight to the store, without Hadoop's file systems. Nothing is visible until the
driver commits what all tasks report. A task that is retried, killed or run twice leaves parts that no log file names:
orphans, which an orphan sweep removes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from icedb.errors import InvalidOption, InvariantViolated, SchemaConflict, StaleCheckpoint, StaleView
from icedb.format.claims import TxnClaim, decode_txn_claim
from icedb.format.codec import decode
from icedb.format.keys import partition_of
from icedb.format.records import total_rows
from icedb.operations.commits.publish import publish_append, publish_overwrite
from icedb.spark.datasource.options import WriteOptions, stream_options, write_options
from icedb.spark.datasource.task_resources import processors, scratch_folder
from icedb.spark.datasource.type_mapping import arrow_schema
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.sql.types import check_columns
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectNotFound, open_store
from icedb.table import Table
from icedb.transaction.idempotent_append import Txn
from icedb.transaction.table_handle import Handle
from icedb.util.clock import SystemClock
from icedb.writer.batch_schema import WriteContext
from icedb.writer.part_writer import WrittenParts, discard, write_parts
from icedb.writer.staging import check_batch

__all__ = ["open_stream_writer", "open_writer"]

logger = logging.getLogger(__name__)


# What Spark's tasks are told of the stream that they work for: its id stays the same as long as its checkpoint.
_QUERY_ID = "sql.streaming.queryId"
# The program in which Spark has a micro-batch committed or aborted.
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"


def open_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of one job; runs on the driver, before any task. Raises InvalidRequestError errors and the store's."""
    told = write_options(options, overwrite=overwrite)
    return _BatchWriter(told, _context(schema, told))


def open_stream_writer(
    schema: StructType, options: Mapping[str, str], *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one micro-batch of a stream; as `open_writer`.

    Spark wants one before the tasks, and another one to commit or abort what they wrote. The other one looks at
    nothing: when the store is lost, an abort that fails would hide the reason.
    """
    told = stream_options(options, complete=overwrite)
    return _StreamWriter(told, None if _COMMITTING in sys.orig_argv else _context(schema, told))


def _context(schema: StructType, options: WriteOptions) -> WriteContext:
    handle = _opened(options)
    handle.check_writable()
    handle.read()
    if handle.spec.views:
        raise InvalidOption(
            f"{options.path}: the table has views ({[v.name for v in handle.spec.views]}), which a Spark job does not "
            "feed. Write with Table.insert(frame.toArrow()), or drop the views."
        )
    context = replace(handle.write_context(), job=options.job)
    check_batch(context, arrow_schema(schema, options.path))
    return context


def _opened(options: WriteOptions) -> Handle:
    return Table.open(options.path, storage_options=options.storage_options).handle


@dataclass
class _TaskMessage(WriterCommitMessage):
    """What one task wrote, None when it had no rows; and the id of the stream that it worked for, if it did."""

    written: WrittenParts | None
    stream: str | None


class _Writer:
    """Pickled to each task; that of a batch job also to the driver's process that commits."""

    def __init__(self, options: WriteOptions, context: WriteContext | None) -> None:
        self._options = options
        self._context = context

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.path!r}, overwrite={self._options.overwrite!r})"

    @hide_worker_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: turn its rows into parts."""
        if self._context is None:
            raise InvariantViolated(f"{self._options.path}: a writer that was made for a commit is asked to write.")
        task = TaskContext.get()
        stream = None if task is None else task.getLocalProperty(_QUERY_ID)
        first = next(iterator, None)
        if first is None:
            return _TaskMessage(None, stream)
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
        return _TaskMessage(written, stream)

    def _collected(self, handle: Handle, messages: Sequence[WriterCommitMessage | None]) -> WrittenParts:
        """What all tasks wrote together. Raises SchemaConflict, InvariantViolated."""
        reports = _reports(messages)
        if len(reports) < len(messages):
            raise InvariantViolated(
                f"{handle.table}: {len(messages) - len(reports)} of {len(messages)} tasks did not say what they "
                "wrote. Nothing was published."
            )
        return WrittenParts(
            schema=_schema(handle, reports),
            markers=tuple(m for p in reports for m in p.markers),
            oldest_part_ms=min((p.oldest_part_ms for p in reports), default=handle.clock.now_ms()),
        )

    def _take_back(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when the job failed.

        Spark asks for a commit when every task has reported, and only then. So when one has not, nothing was published,
        and what the others wrote is deleted. Else the commit may have landed, or may land yet, and all of it stays.
        """
        parts = [m.key for r in _reports(messages) for m in r.markers]
        if not parts:
            return
        path = self._options.path
        if None in messages:
            discard(open_store(parse_location(path, self._options.storage_options)), parts)
            logger.warning("%s: the job failed; %d parts of it are deleted", path, len(parts))
        else:
            logger.warning(
                "%s: the job failed when it was published; unless that succeeded, %d parts may stay behind as orphans",
                path,
                len(parts),
            )


class _BatchWriter(_Writer, DataSourceArrowWriter):
    @hide_worker_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: one log file for the whole job."""
        handle = _opened(self._options)
        written = self._collected(handle, messages)
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
        """See `_take_back`."""
        self._take_back(messages)


class _StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Each micro-batch is a transaction: the stream's id, which its checkpoint keeps, and the number of the batch.

    A stream that is started again does its last batch once more if Spark does not know whether it was committed. The
    table knows. Any other batch that the table has already is refused: which of its rows are new, nobody can tell.
    """

    @hide_worker_traceback()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver: one log file for the micro-batch, once. Raises StaleCheckpoint."""
        handle = _opened(self._options)
        written = self._collected(handle, messages)
        if not written.markers:
            return
        txn = (f"spark-stream-{_stream_of(messages)}", batchId)
        last, _ = handle.read(fresh=True).txn.get(txn[0], (-1, 0))
        if last > batchId:
            discard(handle.store, [m.key for m in written.markers])
            raise _behind(handle, f"the stream is at batch {batchId}, and the table has its batch {last}")
        if publish_append(handle, written, txn=txn).repeated:
            _check_same_batch(handle, txn, written.rows)
        _check_views(handle)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See `_take_back`."""
        self._take_back(messages)


def _stream_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    [stream] = {m.stream for m in messages if isinstance(m, _TaskMessage)}
    if stream is None:
        raise InvariantViolated(f"Spark did not tell its tasks {_QUERY_ID}, which names the stream.")
    return stream


def _check_same_batch(handle: Handle, txn: Txn, rows: int) -> None:
    """A checkpoint that was put back may be just one batch behind: then that batch has what arrived since, too.

    Its claim tells how many rows were committed, until a cleanup removes it. Raises StaleCheckpoint.
    """
    claims = list(_claims_of(handle, txn))
    if not claims:
        return
    committed = total_rows(decode(claims[-1].body.encode(), claims[-1].key, handle.keys).markers)
    if committed != rows:
        raise _behind(handle, f"batch {txn[1]} of the stream has {rows} rows now, and had {committed} when it was done")


def _claims_of(handle: Handle, txn: Txn) -> Iterator[TxnClaim]:
    """Of each generation: the last one is what was committed."""
    for generation in count():
        key = handle.keys.txn_claim(*txn, generation)
        try:
            stored = handle.store.get(key)
        except ObjectNotFound:
            return
        yield decode_txn_claim(stored.body, key, handle.keys, stored_ms=stored.stored_ms)


def _behind(handle: Handle, what: str) -> StaleCheckpoint:
    return StaleCheckpoint(
        f"{handle.table}: {what}. None of these rows were added. If another driver runs this stream, leave it to that "
        "one. Else an older state of the checkpoint was put back, or the query was changed amid a batch, and nobody "
        "knows which rows are new: go back to the last state, or begin with a new checkpoint, which is a new stream "
        "that reads its source from the start."
    )


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
    """A view that somebody made while the job ran lacks its rows. Raises StaleView."""
    handle.read(fresh=True)
    if views := sorted(view.name for view in handle.spec.views):
        raise StaleView(
            f"{handle.table}: the rows are committed, and the views {views}, which were made meanwhile, may lack them. "
            "Refresh them with refresh_view(name); do not write the rows again."
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenParts]:
    """What the tasks wrote. One that had no rows wrote nothing."""
    nothing = WrittenParts({}, (), SystemClock().now_ms())
    return [m.written or nothing for m in messages if isinstance(m, _TaskMessage)]


def _partitions_of(handle: Handle, written: WrittenParts) -> list[str]:
    return sorted({partition_of(handle.keys.data_prefix, m.key) for m in written.markers})
