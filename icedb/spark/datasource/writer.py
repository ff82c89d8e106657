"""Writers of the data source: tasks write parts (data files), and the driver makes one commit for a job or micro-batch.

Each task passes its rows to `icedb.writer.part_writer.write_parts`, as all writers do: DuckDB sorts, partitions and
encodes them. The parts go to the store without a Hadoop file system. They become visible when the driver commits the
reports of all tasks. A task that is retried, killed or run twice leaves parts that no log file names. These are
orphans, which an orphan sweep deletes.
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
from icedb.format.records import Marker, total_rows
from icedb.operations.commits.publish import publish_append, publish_overwrite
from icedb.operations.write.small_parts import warn_of_small_parts
from icedb.spark.datasource.options import SparkWriteOptions, stream_options, write_options
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
from icedb.writer.staged_batch import too_many_partitions
from icedb.writer.staging import check_batch

__all__ = ["open_stream_writer", "open_writer"]

logger = logging.getLogger(__name__)


# Property of Spark's tasks with the id of their stream, which stays the same as long as the checkpoint.
_QUERY_ID = "sql.streaming.queryId"
# The program in which Spark commits or aborts a micro-batch.
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"


def open_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> DataSourceArrowWriter:
    """Open the writer of one job, on the driver before any task. Raises InvalidRequestError errors and the store's."""
    parsed = write_options(options, overwrite=overwrite)
    context = _context(schema, parsed)
    return _BatchWriter(parsed, context, [c for c in schema.fieldNames() if c not in context.known_schema])


def open_stream_writer(
    schema: StructType, options: Mapping[str, str], *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Open the writer of one micro-batch of a stream, as `open_writer`.

    Spark opens one writer before the tasks, and another one to commit or abort. The other one does not read the table:
    if the store is unreachable, an error of the abort would hide the original one.
    """
    parsed = stream_options(options, complete=overwrite)
    return _StreamWriter(parsed, None if _COMMITTING in sys.orig_argv else _context(schema, parsed))


def _context(schema: StructType, options: SparkWriteOptions) -> WriteContext:
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


def _opened(options: SparkWriteOptions) -> Handle:
    return Table.open(options.path, storage_options=options.storage_options).handle


@dataclass
class _TaskMessage(WriterCommitMessage):
    """The parts of one task, None if it had no rows, and the id of its stream, if any."""

    written: WrittenParts | None
    stream: str | None


class _Writer:
    """Base of the writers. Spark pickles it to each task, and for a batch also to the process that commits."""

    def __init__(self, options: SparkWriteOptions, context: WriteContext | None) -> None:
        self._options = options
        self._context = context

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.path!r}, overwrite={self._options.overwrite!r})"

    @hide_worker_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task as parts."""
        if self._context is None:
            raise InvariantViolated(f"{self._options.path}: a writer that was opened for a commit cannot write rows.")
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
        """Combine the reports of all tasks. Raises SchemaConflict, InvariantViolated."""
        reports = _reports(messages)
        if len(reports) < len(messages):
            raise InvariantViolated(
                f"{handle.table}: {len(messages) - len(reports)} of {len(messages)} tasks did not report what they "
                "wrote. Nothing was published."
            )
        markers = tuple(m for p in reports for m in p.markers)
        self._check_partitions_max(handle, markers)
        return WrittenParts(
            schema=_schema(handle, reports),
            markers=markers,
            oldest_part_ms=min((p.oldest_part_ms for p in reports), default=handle.clock.now_ms()),
        )

    def _check_partitions_max(self, handle: Handle, markers: Sequence[Marker]) -> None:
        """Delete the parts and raise TooManyPartitions if there are too many partitions."""
        partitions_max = self._options.partitions_max
        if partitions_max is None:
            return
        partitions = len({partition_of(handle.keys.data_prefix, m.key) for m in markers})
        if partitions > partitions_max:
            discard(handle.store, [m.key for m in markers])
            raise too_many_partitions(handle.table, partitions, partitions_max)

    def _take_back(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the parts of a failed job, on the driver, unless its commit may have succeeded.

        Spark commits only after every task has reported. So if a report is missing, nothing was published, and the
        parts are deleted. Else the commit may have succeeded or may still succeed, and the parts stay.
        """
        parts = [m.key for r in _reports(messages) for m in r.markers]
        if not parts:
            return
        path = self._options.path
        if None in messages:
            discard(open_store(parse_location(path, self._options.storage_options)), parts)
            logger.warning("%s: the job failed; its %d parts are deleted", path, len(parts))
        else:
            logger.warning(
                "%s: the job failed during the commit; unless the commit succeeded, %d parts may remain as orphans",
                path,
                len(parts),
            )


class _BatchWriter(_Writer, DataSourceArrowWriter):
    """Writer of a job. `added`: the columns of the frame that the table lacks."""

    def __init__(self, options: SparkWriteOptions, context: WriteContext, added: Sequence[str]) -> None:
        super().__init__(options, context)
        self._added = added

    @hide_worker_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the whole job with one log file, on the driver."""
        handle = _opened(self._options)
        written = self._collected(handle, messages)
        if self._added and not written.markers:
            logger.warning(
                "%s: the frame has no rows, so nothing was committed. The table does not have its columns %s. Declare "
                "them with Table.alter(schema=...).",
                handle.table,
                list(self._added),
            )
        match self._options.overwrite:
            case None:
                publish_append(handle, written, txn=self._options.txn)
            case "table" | "partitions":
                publish_overwrite(handle, written, self._options.partitions)
            case "dynamic":
                if written.markers:  # without rows there is no partition to replace
                    publish_overwrite(handle, written, _partitions_of(handle, written))
        _check_views(handle)
        if not self._options.job:  # else the caller in the driver's process has the commit, and warns
            warn_of_small_parts(handle, [handle.part(m) for m in written.markers])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the parts of a failed job, see `_take_back`."""
        self._take_back(messages)


class _StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of a micro-batch. Its txn (idempotency key) is the stream's id in the checkpoint, and the batch number.

    A restarted stream repeats its last batch if Spark does not know whether it was committed. The table knows it, and
    the repetition adds nothing. Any other batch that the table already has is rejected, because the new rows in it
    cannot be identified.
    """

    @hide_worker_traceback()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the micro-batch exactly once, on the driver. Raises StaleCheckpoint."""
        handle = _opened(self._options)
        written = self._collected(handle, messages)
        if not written.markers:
            return
        txn = (f"spark-stream-{_stream_of(messages)}", batchId)
        last, _ = handle.read(fresh=True).txn.get(txn[0], (-1, 0))
        if last > batchId:
            discard(handle.store, [m.key for m in written.markers])
            raise _stale_checkpoint(handle, f"the stream is at batch {batchId}, and the table has its batch {last}")
        if publish_append(handle, written, txn=txn).repeated:
            _check_same_batch(handle, txn, written.rows)
        _check_views(handle)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the parts of a failed micro-batch, see `_take_back`."""
        self._take_back(messages)


def _stream_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    [stream] = {m.stream for m in messages if isinstance(m, _TaskMessage)}
    if stream is None:
        raise InvariantViolated(f"Spark did not set the property {_QUERY_ID} of its tasks, which names the stream.")
    return stream


def _check_same_batch(handle: Handle, txn: Txn, rows: int) -> None:
    """Reject a repeated batch with another number of rows. Raises StaleCheckpoint.

    A restored checkpoint may be one batch behind, and then that batch also contains newer rows. The claim of the batch
    records the number of committed rows, until a cleanup deletes it.
    """
    claims = list(_claims_of(handle, txn))
    if not claims:
        return
    committed = total_rows(decode(claims[-1].body.encode(), claims[-1].key, handle.keys).markers)
    if committed != rows:
        raise _stale_checkpoint(
            handle, f"batch {txn[1]} of the stream has {rows} rows now, and had {committed} when it was done"
        )


def _claims_of(handle: Handle, txn: Txn) -> Iterator[TxnClaim]:
    """Yield the claim of each generation. The last one was committed."""
    for generation in count():
        key = handle.keys.txn_claim(*txn, generation)
        try:
            stored = handle.store.get(key)
        except ObjectNotFound:
            return
        yield decode_txn_claim(stored.body, key, handle.keys, stored_ms=stored.stored_ms)


def _stale_checkpoint(handle: Handle, finding: str) -> StaleCheckpoint:
    return StaleCheckpoint(
        f"{handle.table}: {finding}. None of these rows were added. If another driver runs this stream, stop this one. "
        "Otherwise an older state of the checkpoint was restored, or the query was changed during a batch, and the new "
        "rows cannot be identified. Restore the last state, or start with a new checkpoint: a new stream, which reads "
        "its source from the start."
    )


def _schema(handle: Handle, reports: Sequence[WrittenParts]) -> dict[str, str]:
    """Return the columns of all tasks. The insert query may return other types in each task. Raises SchemaConflict."""
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
    """Check for views that were created during the job, and lack its rows. Raises StaleView."""
    handle.read(fresh=True)
    if views := sorted(view.name for view in handle.spec.views):
        raise StaleView(
            f"{handle.table}: the rows are committed, and the views {views} were created during the job and may lack "
            "them. Refresh them with refresh_view(name). Do not write the rows again."
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenParts]:
    """Return the reports of the tasks. The report of a task without rows is empty."""
    nothing = WrittenParts({}, (), SystemClock().now_ms())
    return [m.written or nothing for m in messages if isinstance(m, _TaskMessage)]


def _partitions_of(handle: Handle, written: WrittenParts) -> list[str]:
    return sorted({partition_of(handle.keys.data_prefix, m.key) for m in written.markers})
