"""Copy files of an import below a table's `_data`: by the store itself where it can, else through this machine.

The key of a copy begins with the id of the file, so that a run which comes later knows it. What it may use again is
young: an orphan sweep takes the old ones, and could be doing so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from icedb.errors import InvalidBatch, InvariantViolated
from icedb.format.names import partition_of
from icedb.format.records import Marker
from icedb.format.snapshot import LogState
from icedb.handle import Handle
from icedb.maintenance.adoption import Takeover
from icedb.maintenance.footers import Footers
from icedb.maintenance.sources import Source
from icedb.parts import digest
from icedb.store import ObjectExists, ObjectInfo, ObjectNotFound, ObjectStore

__all__ = ["Copied", "copy_files", "stored_parts"]

logger = logging.getLogger(__name__)

# The store does the work; this hides the latency of asking.
COPIES_AT_ONCE = 16
# A file that goes through this machine takes its disk and memory.
STREAMS_AT_ONCE = 4
FILES_PER_LINE = 100
_ID_LENGTH = 16
# So many folders are listed one by one; for more, all of `_data` is.
FOLDERS_MAX = 32


@dataclass(frozen=True, slots=True)
class Copied:
    """The copies' markers, by the id of the file; `born_ms` is when the oldest of them was made, None without any."""

    markers: dict[str, Marker]
    born_ms: int | None


def copy_files(handle: Handle, state: LogState, source: Source, footers: Footers, files: Sequence[Takeover]) -> Copied:
    """Copy what has not been copied yet. Nothing is visible then. Raises InvalidBatch, the store's errors."""
    if not files:
        return Copied({}, None)
    born_ms = handle.clock.now_ms()
    before = _copied_before(handle, state, {f.partition for f in files}, born_ms)
    markers: dict[str, Marker] = {}
    todo = []
    for file in files:
        found = before.get((file.source.id, file.source.bytes, file.partition))
        if found is None:
            todo.append(file)
        else:
            markers[file.source.id] = file.marker(found.key)
            born_ms = min(born_ms, found.stored_ms)
    copier = _Copier(handle, source, footers)
    with ThreadPoolExecutor(COPIES_AT_ONCE if copier.within else STREAMS_AT_ONCE) as pool:
        try:
            for number, (file, marker) in enumerate(zip(todo, pool.map(copier.copy, todo), strict=True), start=1):
                markers[file.source.id] = marker
                if number % FILES_PER_LINE == 0 or number == len(todo):
                    logger.info("%s: %d of %d files are copied", handle.table, number, len(todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Copied(markers, born_ms)


def stored_parts(handle: Handle, partitions: Iterable[str]) -> list[ObjectInfo]:
    """The objects of some partitions, and maybe of others."""
    prefix = handle.keys.data_prefix
    folders = sorted({f"{prefix}{path}/" if path else prefix for path in partitions})
    if len(folders) > FOLDERS_MAX or prefix in folders:
        return handle.store.list(prefix)
    return [info for folder in folders for info in handle.store.list(folder)]


def _copied_before(
    handle: Handle, state: LogState, partitions: Iterable[str], now_ms: int
) -> Mapping[tuple[str, int, str], ObjectInfo]:
    """What may be used again: parts that the log does not name and no sweep will take in the next hours."""
    least_ms = now_ms - handle.timing.part_timeout_ms // 2
    prefix = handle.keys.data_prefix
    return {
        (info.key.rpartition("/")[2][:_ID_LENGTH], info.bytes, partition_of(prefix, info.key)): info
        for info in stored_parts(handle, partitions)
        if info.key not in state.parts and info.stored_ms >= least_ms
    }


@dataclass(frozen=True, slots=True)
class _Copier:
    handle: Handle
    source: Source
    footers: Footers

    @property
    def within(self) -> bool:
        """Whether the files lie in the table's own store, which copies them itself."""
        return self.source.store is self.handle.store

    def copy(self, file: Takeover) -> Marker:
        """Put one file under a new key."""
        keys, clock = self.handle.keys, self.handle.clock
        key = keys.part(file.partition, file.source.id + clock.new_id()[: 32 - _ID_LENGTH])
        if not self.within:
            with self.footers.fetched(file.source) as path:
                return file.marker(key, _put(self.handle.store, key, path, file.source.bytes))
        try:
            self.handle.store.copy(file.source.key, key)
        except ObjectNotFound:
            raise InvalidBatch(
                f"{self.handle.table}: '{file.source.path}' was removed while it was imported. Nothing was imported."
            ) from None
        return file.marker(key)


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
