"""An in-memory object store that uses the clock of a test: `stored_ms` is that clock's time at the put.

Use `memory://` to try the library, and this store for tests that depend on time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from pathlib import Path

from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectExists, ObjectInfo, ObjectNotFound, StoredObject
from icedb.util.clock import Clock

__all__ = ["ClockedStore"]


class ClockedStore:
    """A store that the actors of a test share. Every request is atomic and has no latency.

    Args:
        clock: The clock for the times of objects.
        prefix: The prefix of the table.

    Example:
        >>> store = ClockedStore(ManualClock())
    """

    def __init__(self, clock: Clock, *, prefix: str = "table") -> None:
        self.clock = clock
        self.location = Location("memory", "clocked", prefix)
        self.objects: dict[str, StoredObject] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ClockedStore({len(self.objects)} objects)"

    def sibling(self, location: Location) -> ClockedStore:
        """Return the same store for another table's location. Both share all present and future objects."""
        other = copy.copy(self)
        other.location = location
        return other

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore."""
        content = body.read_bytes() if isinstance(body, Path) else bytes(body)
        with self._lock:
            if key in self.objects:
                raise ObjectExists(key)
            self.objects[key] = StoredObject(content, self.clock.now_ms())

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        with self._lock:
            if source not in self.objects:
                raise ObjectNotFound(source)
            self.objects[target] = StoredObject(self.objects[source].body, self.clock.now_ms())

    def get(self, key: str) -> StoredObject:
        """See ObjectStore."""
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(key) from None

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        stored = self.get(key)
        return ObjectInfo(key, len(stored.body), stored.stored_ms)

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """See ObjectStore."""
        return {k: self.objects[k] for k in keys if k in self.objects}

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore."""
        with self._lock:
            keys = [k for k in self.objects if k.startswith(prefix) and (after is None or k > after)]
            return [ObjectInfo(k, len(self.objects[k].body), self.objects[k].stored_ms) for k in sorted(keys)]

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """See ObjectStore."""
        with self._lock:
            for key in keys:
                self.objects.pop(key, None)
