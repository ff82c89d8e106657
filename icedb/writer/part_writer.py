"""Encoding and upload of parts (data files): each partition of staged rows becomes Parquet files with their markers.

The parts are not visible until a commit names them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvariantViolated
from icedb.format.records import Marker
from icedb.sources.batch import Batch
from icedb.storage.obstore_store import ObjectExists, ObjectStore
from icedb.util.clock import Clock
from icedb.util.progress import progress
from icedb.util.thread_pool import start_thread_pool
from icedb.writer.batch_loader import too_little_memory
from icedb.writer.batch_schema import WriteContext
from icedb.writer.part_sizing import split_ranges
from icedb.writer.staging import PartitionRange, StagedBatch, stage_rows

__all__ = ["StoredPart", "WrittenParts", "digest", "discard", "put_part", "put_parts", "write_parts"]

logger = logging.getLogger(__name__)

# Enough to hide the latency of a put behind the encoding of the next partition.
CONCURRENT_PUTS = 8
# Faster by a third than DuckDB's default. Parts of sorted rows are as small, others larger by an eighth until a merge.
ZSTD_LEVEL = 1


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
    try:
        ranges = stage.ranges if part_bytes is None else split_ranges(stage, part_bytes)
    except duckdb.OutOfMemoryException as error:
        raise too_little_memory(context.table, error) from None
    keys = [context.location.keys.part(r.partition, context.job + clock.new_id()) for r in ranges]
    encoding = Semaphore(stage.threads)
    begun: list[str] = []

    def write(key: str, piece: PartitionRange) -> StoredPart:
        path = stage.folder / key.rpartition("/")[2]
        with encoding:
            _check_rows(context, piece, stage.write(path, piece.first, piece.last, level=ZSTD_LEVEL))
        begun.append(key)
        stored = put_part(store, key, path)
        advance(piece.rows)
        return stored

    with (
        progress("writing parts", sum(r.rows for r in ranges), "rows") as advance,
        start_thread_pool(CONCURRENT_PUTS) as pool,  # limits the number of local files, one for each thread
    ):
        writes = [pool.submit(write, key, piece) for key, piece in zip(keys, ranges, strict=True)]
        try:
            wait(writes, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)  # a failed write is among those that were started, before cancelled ones
            stored_parts = [written.result() for written in writes]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            discard(store, begun)
            raise
    markers = tuple(
        Marker(key, part.bytes, 0, rows=piece.rows, stats=piece.stats, digest=part.digest)
        for key, part, piece in zip(keys, stored_parts, ranges, strict=True)
    )
    return WrittenParts(stage.columns, markers, oldest_part_ms)


def _check_rows(context: WriteContext, piece: PartitionRange, copied: int) -> None:
    if not copied == piece.rows == piece.last - piece.first + 1:
        raise InvariantViolated(
            f"{context.table}: the partition '{piece.partition}' has {piece.rows} rows in row ids {piece.first} to "
            f"{piece.last}, and {copied} were written. Nothing was published."
        )


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The size of a part in bytes, and its digest: the first 32 hexadecimal digits of its SHA-256."""

    bytes: int
    digest: str


def digest(path: Path) -> str:
    """Return the digest of a file for its marker: half of its SHA-256, which detects damage but not forgery."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def put_part(store: ObjectStore, key: str, path: Path) -> StoredPart:
    """Put a finished Parquet file under its key, and delete the local file."""
    stored = StoredPart(path.stat().st_size, digest(path))
    try:
        store.create(key, path)
    except ObjectExists:
        # The id is random, so this is the same put, which the client library repeated after a lost response.
        if store.head(key).bytes != stored.bytes:
            raise InvariantViolated(f"{store.location.uri}: '{key}' was written by another program.") from None
    path.unlink()
    return stored


def discard(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete parts that no log file names. Parts that cannot be deleted remain as orphans until an orphan sweep."""
    try:
        store.delete(keys)
    except IceDBError as error:
        logger.warning("%d unused parts remain as orphans: %s", len(keys), error)
