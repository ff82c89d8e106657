"""Copies of parts on the disk here, for work that reads the whole of many small ones.

A rewrite needs all bytes of its parts. DuckDB would ask a store several times for each of them, and for few of them at
once; so they are fetched, one request each, many at a time, and before their turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from icedb.format.keys import has_unsafe_segment
from icedb.storage.obstore_store import FETCH_BYTES, fetch
from icedb.transaction.table_handle import Handle, Part

__all__ = ["Fetched", "concurrent_fetches", "fetch_parts"]

# Of a larger part in S3 DuckDB reads many ranges at once, and it would take much of the disk.
PART_BYTES_MAX = 256 * 1024 * 1024
# The longest name that a file can have, in bytes of UTF-8.
_NAME_BYTES_MAX = 255
CONCURRENT_FETCHES_MAX = 32
# Of the memory that the work has, the part that pieces on their way may take.
_MEMORY_SHARE = 4


def concurrent_fetches(memory_bytes: int) -> int:
    """How many parts may be on their way at a time, of which each takes `FETCH_BYTES` of memory at most."""
    return max(1, min(CONCURRENT_FETCHES_MAX, memory_bytes // _MEMORY_SHARE // FETCH_BYTES))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Parts, some of which are on their way to a folder."""

    folder: Path
    parts: Sequence[Part | Future[Part]]

    @contextmanager
    def here(self) -> Iterator[tuple[Part, ...]]:
        """The parts, once all are there: DuckDB opens what their `path` says. Their copies are gone after the block.

        Raises ObjectNotFound and the store's errors.
        """
        try:
            yield tuple(p.result() if isinstance(p, Future) else p for p in self.parts)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def fetch_parts(handle: Handle, parts: Sequence[Part], folder: Path, pool: Executor) -> Fetched:
    """Begin to copy parts into a folder of their own, which need not be there. Files stay where they are.

    So do the few that DuckDB reads as well by itself, or whose names no file can have.
    """
    return Fetched(folder, [pool.submit(_fetch, handle, p, folder) if _is_to_fetch(handle, p) else p for p in parts])


def _is_to_fetch(handle: Handle, part: Part) -> bool:
    scheme = handle.location.scheme
    if scheme not in ("s3", "az") or (scheme == "s3" and part.bytes > PART_BYTES_MAX):
        return False
    names = part.key.split("/")
    return not has_unsafe_segment(names) and all(len(n.encode()) <= _NAME_BYTES_MAX for n in names)


def _fetch(handle: Handle, part: Part, folder: Path) -> Part:
    path = folder / part.key  # as a whole: the path tells the partition
    path.parent.mkdir(parents=True, exist_ok=True)
    fetch(handle.store, part.key, path)
    return replace(part, path=str(path))
