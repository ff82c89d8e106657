"""Copy the files of an import below a table's `_data`, by the store itself if possible, else through this machine.

The key of a copy begins with the id of the file, so a later run recognizes it. Only young copies are reused, because an
orphan sweep may be deleting the old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from icedb.errors import InvalidBatch, InvariantViolated
from icedb.format.keys import partition_of
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.operations.importing.import_plan import PlannedFile
from icedb.operations.importing.inspect_files import map_files
from icedb.operations.importing.list_files import ImportSource, Origin
from icedb.operations.importing.parquet_footer import Footers
from icedb.operations.rewrite.engine import LOCAL_ENGINE, DistributedTask, Engine, ResourceLimits
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectExists, ObjectInfo, ObjectNotFound, ObjectStore
from icedb.transaction.table_handle import Handle
from icedb.writer.encoding.parquet_encoder import file_digest

__all__ = ["CopiedFiles", "CopyTask", "copy_files", "stored_parts"]

logger = logging.getLogger(__name__)

# The store copies the files; concurrency hides the latency of the requests.
COPIES_AT_ONCE = 16
# A file that is copied through this machine uses its disk and memory.
STREAMS_AT_ONCE = 4
_ID_LENGTH = 16
# Up to so many folders are listed one by one; for more, all of `_data` is listed.
FOLDERS_MAX = 32


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """The markers of the copies, by file id. `oldest_part_ms` is the time of the oldest copy; None without copies."""

    markers: dict[str, Marker]
    oldest_part_ms: int | None


def copy_files(
    handle: Handle, state: TableState, source: ImportSource, files: Sequence[PlannedFile], engine: Engine = LOCAL_ENGINE
) -> CopiedFiles:
    """Copy the files that no earlier run has copied. Nothing becomes visible.

    Raises InvalidBatch and the errors of the store and the engine.
    """
    if not files:
        return CopiedFiles({}, None)
    oldest_part_ms = handle.clock.now_ms()
    before = _copied_before(handle, state, {f.partition for f in files}, oldest_part_ms)
    markers: dict[str, Marker] = {}
    todo = []
    for file in files:
        copy = before.get((file.source.id, file.source.bytes, file.partition))
        if copy is None:
            todo.append(file)
        else:
            markers[file.source.id] = file.marker(copy.key)
            oldest_part_ms = min(oldest_part_ms, copy.stored_ms)
    made = engine.run(handle, CopyTask(source.origin), todo)
    reused = len(files) - len(made)
    logger.info("%s: copied %d files%s", handle.table, len(made), f", reused {reused} earlier copies" if reused else "")
    markers |= {file.source.id: marker for file, marker in zip(todo, made, strict=True)}
    return CopiedFiles(markers, oldest_part_ms)


def stored_parts(handle: Handle, partitions: Iterable[str]) -> list[ObjectInfo]:
    """Return the objects of some partitions, and possibly of others."""
    prefix = handle.keys.data_prefix
    folders = sorted({f"{prefix}{path}/" if path else prefix for path in partitions})
    if len(folders) > FOLDERS_MAX or prefix in folders:
        return handle.store.list(prefix)
    return [info for folder in folders for info in handle.store.list(folder)]


def _copied_before(
    handle: Handle, state: TableState, partitions: Iterable[str], now_ms: int
) -> Mapping[tuple[str, int, str], ObjectInfo]:
    """Return the copies that may be reused: parts that the log does not name, and too young for an orphan sweep."""
    least_ms = now_ms - handle.times.part_timeout_ms(now_ms - handle.timing.part_timeout_ms) // 2
    prefix = handle.keys.data_prefix
    return {
        (info.key.rpartition("/")[2][:_ID_LENGTH], info.bytes, partition_of(prefix, info.key)): info
        for info in stored_parts(handle, partitions)
        if info.key not in state.parts and info.stored_ms >= least_ms and not info.is_link
    }


@dataclass(frozen=True, slots=True)
class CopyTask(DistributedTask[PlannedFile, Marker]):
    """Puts files under new keys and returns the markers of the copies. Copies remain after a failure, for the next
    import.
    """

    origin: Origin

    name = "copying files"
    items_per_task = STREAMS_AT_ONCE

    def reads(self) -> tuple[Location, ...]:
        """See `DistributedTask`."""
        return (self.origin.location,)

    def bytes_of(self, item: PlannedFile) -> int:
        """See `DistributedTask`."""
        return item.source.bytes

    def do(self, handle: Handle, items: Sequence[PlannedFile], limits: ResourceLimits) -> list[Marker]:
        """See `DistributedTask`. Raises InvalidBatch and the store's errors."""
        if self.origin.own:
            return map_files(handle, self.name, items, partial(_copy_within, handle), at_once=COPIES_AT_ONCE)
        with Footers(self.origin, table=handle.store, limits=limits) as footers:
            return map_files(
                handle,
                self.name,
                items,
                partial(_copy_through, handle, footers),
                at_once=limits.threads or STREAMS_AT_ONCE,
            )


def _new_key(handle: Handle, file: PlannedFile) -> str:
    return handle.keys.part(file.partition, file.source.id + handle.clock.new_id()[: 32 - _ID_LENGTH])


def _copy_within(handle: Handle, file: PlannedFile) -> Marker:
    """Copy a file within the table's own store."""
    key = _new_key(handle, file)
    try:
        handle.store.copy(file.source.key, key)
    except ObjectNotFound:
        raise InvalidBatch(
            f"{handle.table}: '{file.source.path}' was removed while it was imported. Nothing was imported."
        ) from None
    return file.marker(key)


def _copy_through(handle: Handle, footers: Footers, file: PlannedFile) -> Marker:
    key = _new_key(handle, file)
    with footers.fetched(file.source) as path:
        return file.marker(key, _put(handle.store, key, path, file.source.bytes))


def _put(store: ObjectStore, key: str, path: Path, size: int) -> str:
    """Put a file, leave the original in place, and return its digest."""
    hashed = file_digest(path)
    try:
        store.create(key, path)
    except ObjectExists:
        # Half of the name is random, so this is our own put, which the client library repeated after a late response.
        if store.head(key).bytes != size:
            raise InvariantViolated(f"{store.location.uri}: '{key}' was written by another program.") from None
    return hashed
