"""Local copies of parts, for work that reads many small parts as a whole.

A rewrite needs all bytes of its parts. DuckDB would send several requests for each part, and read few parts at a time.
So parts are fetched ahead of their turn, with one request each, many at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from icedb.format.keys import has_unsafe_segment
from icedb.storage.obstore_store import FETCH_BYTES, fetch
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["Fetched", "concurrent_fetches", "fetch_parts", "small_parts_here"]

# DuckDB reads many ranges of a larger part in S3 at once, and its copy would need much disk space.
PART_BYTES_MAX = 256 * 1024 * 1024
# DuckDB sends some requests for each part, one after another. To fetch this many bytes at once takes less time.
_SEARCHED_BYTES_MAX = 2 * 1024 * 1024
# The longest name that a file can have, in bytes of UTF-8.
_NAME_BYTES_MAX = 255
CONCURRENT_FETCHES_MAX = 32
# The share of the work's memory for data in transfer, as a divisor.
_MEMORY_SHARE = 4


def concurrent_fetches(memory_bytes: int) -> int:
    """Return how many parts may be fetched at a time. Each takes at most `FETCH_BYTES` of memory."""
    return max(1, min(CONCURRENT_FETCHES_MAX, memory_bytes // _MEMORY_SHARE // FETCH_BYTES))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Parts, some of which are being fetched to a folder."""

    folder: Path
    parts: Sequence[Part | Future[Part]]

    @contextmanager
    def here(self) -> Iterator[tuple[Part, ...]]:
        """Wait for the parts and yield them, with the `path` of their local copies. Delete the copies after the block.

        Raises ObjectNotFound and the store's errors.
        """
        try:
            yield tuple(p.result() if isinstance(p, Future) else p for p in self.parts)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def fetch_parts(handle: Handle, parts: Sequence[Part], folder: Path, pool: Executor) -> Fetched:
    """Begin to copy parts into a folder of their own, which need not exist yet. Local files are not copied.

    Parts that DuckDB reads equally fast, or whose names no file can have, are not copied either.
    """
    return Fetched(folder, [pool.submit(_fetch, handle, p, folder) if _is_to_fetch(handle, p) else p for p in parts])


@contextmanager
def small_parts_here(
    handle: Handle, parts: Sequence[Part], folder: Path, memory_bytes: int
) -> Iterator[tuple[Part, ...]]:
    """Yield parts for a search of some columns: small ones as local copies in a folder of their own, the others as is.

    Raises as `Fetched.here`.
    """
    small = [p for p in parts if p.bytes <= _SEARCHED_BYTES_MAX]
    with (
        ThreadPoolExecutor(concurrent_fetches(memory_bytes)) as pool,
        fetch_parts(handle, small, folder, pool).here() as copies,
    ):
        by_key = {p.key: p for p in copies}
        yield tuple(by_key.get(p.key, p) for p in parts)


def _is_to_fetch(handle: Handle, part: Part) -> bool:
    scheme = handle.location.scheme
    if scheme not in ("s3", "az", "gs") or (scheme == "s3" and part.bytes > PART_BYTES_MAX):
        return False
    names = part.key.split("/")
    return not has_unsafe_segment(names) and all(len(n.encode()) <= _NAME_BYTES_MAX for n in names)


def _fetch(handle: Handle, part: Part, folder: Path) -> Part:
    path = folder / part.key  # the whole key, because the path contains the partition
    path.parent.mkdir(parents=True, exist_ok=True)
    fetch(handle.store, part.key, path)
    return replace(part, path=str(path))
