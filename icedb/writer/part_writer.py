"""Encoding and upload of parts (data files): each partition of staged rows becomes Parquet files with their markers.

The parts are not visible until a commit names them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Semaphore

import pyarrow as pa

from icedb.errors import IceDBError, InvariantViolated
from icedb.format.records import Marker
from icedb.sources.batch import Batch
from icedb.storage.obstore_store import ObjectExists, ObjectStore
from icedb.util.clock import Clock
from icedb.util.progress import Advance, progress
from icedb.util.thread_pool import SynchronousExecutor, start_thread_pool
from icedb.writer.batch_schema import WriteContext
from icedb.writer.encoding.parquet_encoder import EncodedFile, ParquetSettings
from icedb.writer.encoding.parquet_file import EncodedPart
from icedb.writer.encoding.part_stats import PartBounds, encode_bounds
from icedb.writer.part_sizing import split_ranges
from icedb.writer.staged_batch import PartitionRange, StagedBatch
from icedb.writer.staging import stage_rows

__all__ = ["CONCURRENT_PUTS", "StoredPart", "WrittenParts", "discard", "put_part", "put_parts", "write_parts"]

logger = logging.getLogger(__name__)

# Enough to hide the latency of a put behind the encoding of the next partition.
CONCURRENT_PUTS = 8
# Adjacent parts of at most so many rows together are gathered at once.
_GROUP_ROWS = 65_536
# More permits than encoders wait for.
_ENCODERS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """Parts in the store that no log file names yet. `schema` has the batch's columns only."""

    schema: Mapping[str, str]
    markers: tuple[Marker, ...]
    oldest_part_ms: int

    @property
    def rows(self) -> int:
        """The number of rows in all parts."""
        return sum(m.rows or 0 for m in self.markers)


def write_parts(
    context: WriteContext,
    stream: pa.RecordBatchReader,
    *,
    store: ObjectStore,
    clock: Clock,
    memory_bytes: int | None = None,
    threads: int | None = None,
    folder: Path | None = None,
    part_bytes: int | None = None,
) -> WrittenParts:
    """Write a stream of rows as parts. Raises as `stage_rows` and `put_parts` do."""
    with stage_rows(context, Batch(stream), memory_bytes=memory_bytes, threads=threads, folder=folder) as stage:
        return put_parts(stage, store=store, clock=clock, part_bytes=part_bytes)


def put_parts(stage: StagedBatch, *, store: ObjectStore, clock: Clock, part_bytes: int | None = None) -> WrittenParts:
    """Encode the partitions of staged rows, one for each thread at a time, and put them concurrently.

    A partition becomes one part, or several of about `part_bytes`. If it fails, the parts that were put are deleted.
    Without rows there are no parts. Raises InvalidOption, InvalidBatch, InvariantViolated and the store's errors.
    """
    oldest_part_ms = clock.now_ms()
    context = stage.context
    ranges = stage.ranges if part_bytes is None else split_ranges(stage, part_bytes)
    keys = [context.location.keys.part(r.partition, context.job + clock.new_id()) for r in ranges]
    groups = list(_groups(list(zip(keys, ranges, strict=True)), _GROUP_ROWS if stage.is_encodable else 0))
    begun: list[str] = []
    with (
        progress("writing parts", sum(r.rows for r in ranges), "rows") as advance,
        # To start a thread takes longer than to encode a small part.
        start_thread_pool(stage.threads) if len(groups) > 1 else SynchronousExecutor() as encoding,
        start_thread_pool(CONCURRENT_PUTS) if len(ranges) > 1 else SynchronousExecutor() as putting,
    ):
        writing = _Writing(stage, store, putting, begun, advance)
        writes = [encoding.submit(writing.write, group) for group in groups]
        try:
            wait(writes, return_when=FIRST_EXCEPTION)
            encoded = [part for written in writes for part in written.result()]
            stored = [put.result() for put, _ in encoded]
        except BaseException:
            writing.stop()
            encoding.shutdown(cancel_futures=True)
            putting.shutdown(cancel_futures=True)
            discard(store, begun)
            raise
    stats = encode_bounds(stage.con, [bounds for _, bounds in encoded])
    markers = tuple(
        Marker(key, part.bytes, 0, rows=piece.rows, stats=of_part, digest=part.digest)
        for key, piece, part, of_part in zip(keys, ranges, stored, stats, strict=True)
    )
    return WrittenParts(stage.columns, markers, oldest_part_ms)


def _groups(pieces: Sequence[tuple[str, PartitionRange]], rows_max: int) -> Iterator[list[tuple[str, PartitionRange]]]:
    """Yield adjacent small parts together, because to gather their rows at once is faster."""
    group: list[tuple[str, PartitionRange]] = []
    rows = 0
    for key, piece in pieces:
        if group and rows + piece.rows > rows_max:
            yield group
            group, rows = [], 0
        group.append((key, piece))
        rows += piece.rows
    if group:
        yield group


@dataclass(slots=True)
class _Writing:
    """The writes of a batch's parts. Encoders wait while too many encoded parts have not been put."""

    stage: StagedBatch
    store: ObjectStore
    putting: Executor
    #: The keys of the parts whose put has begun.
    begun: list[str]
    advance: Advance
    #: Set by the first failure.
    stopped: Event = field(default_factory=Event)
    room: Semaphore = field(default_factory=lambda: Semaphore(2 * CONCURRENT_PUTS))

    def write(self, group: Sequence[tuple[str, PartitionRange]]) -> list[tuple[Future[StoredPart], PartBounds]]:
        """Encode adjacent parts, and begin to put each. After a failure of another part, the rest is skipped."""
        written: list[tuple[Future[StoredPart], PartBounds]] = []
        try:
            gathered = self._gather(group)
            settings = self.stage.settings()
            for key, piece in group:
                self.room.acquire()
                if self.stopped.is_set():
                    break
                part = self._encode(key, piece, settings, gathered, piece.first - group[0][1].first)
                self.begun.append(key)
                written.append((self.putting.submit(self._put, key, part.file), part.bounds))
        except BaseException:
            self.stop()
            raise
        return written

    def stop(self) -> None:
        """Let all encoders end, also those that wait."""
        self.stopped.set()
        self.room.release(_ENCODERS_MAX)

    def _gather(self, group: Sequence[tuple[str, PartitionRange]]) -> pa.Table | None:
        """Return the rows of a group; None for a single part, whose rows are read in pieces if they are in DuckDB."""
        rows = sum(piece.rows for _, piece in group)
        return None if len(group) == 1 else pa.concat_tables(self.stage.read(group[0][1].first, rows))

    def _encode(
        self, key: str, piece: PartitionRange, settings: ParquetSettings, gathered: pa.Table | None, offset: int
    ) -> EncodedPart:
        stage = self.stage
        tables: Iterable[pa.Table] = (
            [gathered.slice(offset, piece.rows)] if gathered is not None else stage.read(piece.first, piece.rows)
        )
        if stage.in_arrow is not None:
            tables = list(tables)
        path = stage.folder / key.rpartition("/")[2] if stage.in_arrow is None and gathered is None else None
        part = stage.encode(tables, piece, settings, path)
        if part.file.rows != piece.rows:
            raise InvariantViolated(
                f"{stage.context.table}: the partition '{piece.partition}' has {piece.rows} rows, and {part.file.rows} "
                "were written. Nothing was published."
            )
        return part

    def _put(self, key: str, file: EncodedFile) -> StoredPart:
        try:
            stored = put_part(self.store, key, file)
            self.advance(file.rows)
            return stored
        except BaseException:
            self.stop()
            raise
        finally:
            self.room.release()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The size of a part in bytes, and its digest: the first 32 hexadecimal digits of its SHA-256."""

    bytes: int
    digest: str


def put_part(store: ObjectStore, key: str, file: EncodedFile) -> StoredPart:
    """Put a finished Parquet file under its key, and delete the local file if it is one."""
    try:
        store.create(key, file.body)
    except ObjectExists:
        # The id is random, so this is the same put, which the client library repeated after a lost response.
        if store.head(key).bytes != file.bytes:
            raise InvariantViolated(f"{store.location.uri}: '{key}' was written by another program.") from None
    if isinstance(file.body, Path):
        file.body.unlink()
    return StoredPart(file.bytes, file.digest)


def discard(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete parts that no log file names. Parts that cannot be deleted remain as orphans until an orphan sweep."""
    try:
        store.delete(keys, repeat=True)
    except IceDBError as error:
        logger.warning("%d unused parts remain as orphans: %s", len(keys), error)
