"""Implementation of `icedb.spark.upsert`: the rows come to the driver, and Spark's tasks search and rewrite the parts.

Spark computes the rows in parallel, as compressed Arrow batches in a shuffle. The driver fetches a share of the shuffle
at a time and writes the rows to a local file, which it sends to each task of the search. The new rows are written on
the driver, as in an upsert without Spark: their checks, their sort order and the sizes of their parts (data files)
concern all of them, and they are at most as many as the rows that were sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

from icedb.errors import IceDBError
from icedb.operations.upsert.upsert import UpsertReport, WhenMatched
from icedb.operations.write.spark_errors import explained_of_frame
from icedb.sources.batch import OnConflict
from icedb.spark.datasource.type_mapping import arrow_schema
from icedb.spark.spark_engine import SparkEngine
from icedb.table import Table
from icedb.transaction.idempotent_append import Txn, check_txn, is_recorded

__all__ = ["upsert"]

# The driver holds about one of so many shares of the compressed rows. Each share costs a small Spark job.
_SHARES = 4
_TASK = "task"
_ROWS = "rows"


def upsert(
    frame: DataFrame,
    table: Table,
    on: Sequence[str],
    *,
    when_matched: WhenMatched,
    columns: Sequence[str] | None,
    delete_where: str | None,
    order_by: Sequence[str],
    on_conflict: OnConflict,
    txn: Txn | None,
    dry_run: bool,
    driver_memory_bytes: int | None,
    engine: SparkEngine,
) -> UpsertReport:
    """Upsert a frame; see `icedb.spark.upsert`."""
    rows = _FrameRows(frame, table.uri)
    upsert_rows = partial(
        table.upsert,
        on=on,
        when_matched=when_matched,
        columns=columns,
        delete_where=delete_where,
        order_by=order_by,
        on_conflict=on_conflict,
        memory_bytes=driver_memory_bytes,
    )
    if txn is None or not is_recorded(table.handle.read(fresh=True), check_txn(txn, table=table.uri)):
        upsert_rows(rows.schema.empty_table(), dry_run=True)  # reject invalid arguments before the first job
    try:
        return upsert_rows(rows, txn=txn, dry_run=dry_run, engine=engine)
    except Exception:
        if rows.failure is not None:
            raise rows.failure from None
        raise


class _FrameRows:
    """The rows of a frame as an Arrow stream, computed when it is opened: a repeated transaction starts no job.

    Raises UnsupportedType.
    """

    def __init__(self, frame: DataFrame, table: str) -> None:
        #: The error of the job. Arrow and its readers raise another one instead.
        self.failure: IceDBError | None = None
        self._frame = frame
        self._table = table
        self.schema = arrow_schema(frame.schema, table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """See the Arrow PyCapsule interface."""
        with self._failing():
            fetched = _fetch(self._frame)
        stream = pa.RecordBatchReader.from_batches(self.schema, self._batches(fetched))
        return stream.__arrow_c_stream__(requested_schema)

    def _batches(self, fetched: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        with self._failing():
            for row in fetched:
                with pa.ipc.open_stream(row[_ROWS]) as stream:
                    for batch in stream:
                        yield batch.cast(self.schema)  # from the session's time zone

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = explained_of_frame(error, table=self._table)
            raise


def _fetch(frame: DataFrame) -> Iterator[Row]:
    """Return the rows of a frame as compressed Arrow streams in the column `rows`.

    All rows of a task are in one share. So a task that Spark repeats, whose rows may then have another order, changes
    no share that was fetched before.
    """
    serialized = frame.mapInArrow(_serialize, f"{_TASK} int, {_ROWS} binary")
    return serialized.repartitionById(_SHARES, _TASK).toLocalIterator()


def _serialize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn the batches of a task into rows of its number and an Arrow stream."""
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        rows = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.RecordBatch.from_arrays([pa.array([task], pa.int32()), rows], [_TASK, _ROWS])
