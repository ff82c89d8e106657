"""Copy files of an import below a table's `_data`: by the store itself where it can, else through this machine.

The key of a copy begins with the id of the file, so that a run which comes later knows it. What it may use again is
young: an orphan sweep takes the old ones, and could be doing so.
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
from icedb.operations.importing.import_plan import Takeover
from icedb.operations.importing.inspect_files import each
from icedb.operations.importing.list_files import Origin, Source
from icedb.operations.importing.parquet_footer import Footers
from icedb.operations.rewrite.engine import LOCAL_ENGINE, DistributedTask, Engine, ResourceLimits
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectExists, ObjectInfo, ObjectNotFound, ObjectStore
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import digest

__all__ = ["Copied", "Copying", "copy_files", "stored_parts"]

logger = logging.getLogger(__name__)

# The store does the work; this hides the latency of asking.
COPIES_AT_ONCE = 16
# A file that goes through this machine takes its disk and memory.
STREAMS_AT_ONCE = 4
_ID_LENGTH = 16
# So many folders are listed one by one; for more, all of `_data` is.
FOLDERS_MAX = 32


@dataclass(frozen=True, slots=True)
class Copied:
    """The markers of the copies, by file id. `oldest_part_ms`: when the oldest copy was made; None without copies."""

    markers: dict[str, Marker]
    oldest_part_ms: int | None


def copy_files(
    handle: Handle, state: TableState, source: Source, files: Sequence[Takeover], engine: Engine = LOCAL_ENGINE
) -> Copied:
    """Copy what has not been copied yet. Nothing is visible then. Raises InvalidBatch, the store's and the engine's."""
    if not files:
        return Copied({}, None)
    oldest_part_ms = handle.clock.now_ms()
    before = _copied_before(handle, state, {f.partition for f in files}, oldest_part_ms)
    markers: dict[str, Marker] = {}
    todo = []
    for file in files:
        found = before.get((file.source.id, file.source.bytes, file.partition))
        if found is None:
            todo.append(file)
        else:
            markers[file.source.id] = file.marker(found.key)
            oldest_part_ms = min(oldest_part_ms, found.stored_ms)
    made = engine.run(handle, Copying(source.origin), todo)
    again = len(files) - len(made)
    logger.info("%s: %d files are copied%s", handle.table, len(made), f", {again} were before" if again else "")
    markers |= {file.source.id: marker for file, marker in zip(todo, made, strict=True)}
    return Copied(markers, oldest_part_ms)


def stored_parts(handle: Handle, partitions: Iterable[str]) -> list[ObjectInfo]:
    """The objects of some partitions, and maybe of others."""
    prefix = handle.keys.data_prefix
    folders = sorted({f"{prefix}{path}/" if path else prefix for path in partitions})
    if len(folders) > FOLDERS_MAX or prefix in folders:
        return handle.store.list(prefix)
    return [info for folder in folders for info in handle.store.list(folder)]


def _copied_before(
    handle: Handle, state: TableState, partitions: Iterable[str], now_ms: int
) -> Mapping[tuple[str, int, str], ObjectInfo]:
    """What may be used again: parts that the log does not name and no sweep will take in the next hours."""
    least_ms = now_ms - handle.part_timeout_ms(now_ms - handle.timing.part_timeout_ms) // 2
    prefix = handle.keys.data_prefix
    return {
        (info.key.rpartition("/")[2][:_ID_LENGTH], info.bytes, partition_of(prefix, info.key)): info
        for info in stored_parts(handle, partitions)
        if info.key not in state.parts and info.stored_ms >= least_ms and not info.is_link
    }


@dataclass(frozen=True, slots=True)
class Copying(DistributedTask[Takeover, Marker]):
    """Puts files under new keys; the markers of the copies. A copy that was made stays, for the next import."""

    origin: Origin

    name = "copying files"
    items_per_task = STREAMS_AT_ONCE

    def reads(self) -> tuple[Location, ...]:
        """See Work."""
        return (self.origin.location,)

    def bytes_of(self, item: Takeover) -> int:
        """See Work."""
        return item.source.bytes

    def do(self, handle: Handle, items: Sequence[Takeover], means: ResourceLimits) -> list[Marker]:
        """See Work. Raises InvalidBatch, the store's errors."""
        if self.origin.own:
            return each(handle, self.name, items, partial(_copy_within, handle), at_once=COPIES_AT_ONCE)
        with Footers(self.origin, table=handle.store, means=means) as footers:
            return each(
                handle,
                self.name,
                items,
                partial(_copy_through, handle, footers),
                at_once=means.threads or STREAMS_AT_ONCE,
            )


def _new_key(handle: Handle, file: Takeover) -> str:
    return handle.keys.part(file.partition, file.source.id + handle.clock.new_id()[: 32 - _ID_LENGTH])


def _copy_within(handle: Handle, file: Takeover) -> Marker:
    """The file lies in the table's own store, which copies it itself."""
    key = _new_key(handle, file)
    try:
        handle.store.copy(file.source.key, key)
    except ObjectNotFound:
        raise InvalidBatch(
            f"{handle.table}: '{file.source.path}' was removed while it was imported. Nothing was imported."
        ) from None
    return file.marker(key)


def _copy_through(handle: Handle, footers: Footers, file: Takeover) -> Marker:
    key = _new_key(handle, file)
    with footers.fetched(file.source) as path:
        return file.marker(key, _put(handle.store, key, path, file.source.bytes))


def _put(store: ObjectStore, key: str, path: Path, size: int) -> str:
    """Put a file and leave it where it is; its digest."""
    hashed = digest(path)
    try:
        store.create(key, path)
    except ObjectExists:
        # Half of the name is random, so this is our own put: answered too late, and repeated by the client library.
        if store.head(key).bytes != size:
            raise InvariantViolated(f"{store.location.uri}: '{key}' was written by somebody else.") from None
    return hashed
