"""Parts (data files) as readers see them, and the paths by which engines open them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from icedb.format.keys import decode_partition
from icedb.format.records import Stats
from icedb.storage.local_store import check_links
from icedb.storage.object_store import ObjectStore
from icedb.storage.obstore_store import fetch
from icedb.util.temporary_files import make_folder, remove_folder, temporary_folder

__all__ = ["Part", "PartPaths"]

# DuckDB interprets these characters, or an address cannot contain them.
_NO_PATH = frozenset("?*[]\\\n\r")
# DuckDB does not open parts at such addresses. They are fetched to a local path.
_COPIED = ("memory://", "az://", "gs://")


@dataclass(frozen=True, slots=True)
class Part:
    """A part (data file): one immutable Parquet file. `rows` is None for a v3 part. Times are unix milliseconds."""

    key: str
    path: str
    partition: str
    bytes: int
    rows: int | None
    created_ms: int
    tombstoned_ms: int | None = None
    #: The column statistics in the log, still encoded; see `icedb.sql.column_stats`.
    stats: Stats = field(default=msgspec.UNSET, repr=False, compare=False)

    @property
    def values(self) -> dict[str, str | None]:
        """The value of each partition column, as text."""
        return decode_partition(self.partition)


class PartPaths:
    """The paths of a table's parts, and local copies of parts that DuckDB cannot open. Threads can share it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._copies: tuple[int, Path] | None = None
        self._lock = threading.Lock()

    def original(self, parts: Sequence[Part]) -> list[str]:
        """Return the paths of the parts themselves. Raises SymbolicLink, also for parent folders."""
        location = self._store.location
        if location.scheme == "file":
            root = location.root
            check_links(root, (p.key for p in parts if p.path == f"{root}/{p.key}"))  # a fetched copy lies elsewhere
        return [p.path for p in parts]

    def readable(self, parts: Sequence[Part]) -> list[str]:
        """Return paths that DuckDB can open: of the parts, or of local copies. Raises SymbolicLink.

        DuckDB cannot open parts in this process's memory, in Azure or in Google Cloud, nor the names of v3 parts that
        it takes for a pattern.
        """
        self.original(parts)
        return [self._readable(p) for p in parts]

    def _readable(self, part: Part) -> str:
        if not part.path.startswith(_COPIED) and _NO_PATH.isdisjoint(part.key):
            return part.path
        copies = self.copies
        path = copies / part.key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary_folder("part", below=copies) as folder:
                whole = folder / "part"
                fetch(self._store, part.key, whole)
                whole.replace(path)  # atomically, for other threads
        return str(path)

    @property
    def copies(self) -> Path:
        """The folder of the copies, which the first thread that needs it creates."""
        with self._lock:
            # It lasts until the process ends: a lazy relation may outlive its table. A forked process has its own.
            if self._copies is None or self._copies[0] != os.getpid():
                self._copies = os.getpid(), make_folder("memory")
            return self._copies[1]

    def remove_copies(self) -> None:
        """Remove the copies before the process ends. No relation may use them any more."""
        with self._lock:
            if self._copies is not None:
                remove_folder(self._copies[1])
            self._copies = None
