"""An object store in a dict, whose own clock is the test's: `stored_ms` is what the clock said at the put.

The store of `memory://` is for trying the library out; this one is for tests in which time matters.
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
    """What a test's actors share. Every request happens at once and whole."""

    def __init__(self, clock: Clock, *, prefix: str = "table") -> None:
        self.clock = clock
        self.location = Location("memory", "clocked", prefix)
        self.objects: dict[str, StoredObject] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ClockedStore({len(self.objects)} objects)"

    def beside(self, location: Location) -> ClockedStore:
        """The same store under another table's address: they share all objects that are there now or put later."""
        other = copy.copy(self)
        other.location = location
        return other

    def create(self, key: str, body: bytes | Path) -> None:
        """Put an object that is not there yet."""
        content = body.read_bytes() if isinstance(body, Path) else bytes(body)
        with self._lock:
            if key in self.objects:
                raise ObjectExists(key)
            self.objects[key] = StoredObject(content, self.clock.now_ms())

    def copy(self, source: str, target: str) -> None:
        """Copy an object; the copy has the time of now."""
        with self._lock:
            if source not in self.objects:
                raise ObjectNotFound(source)
            self.objects[target] = StoredObject(self.objects[source].body, self.clock.now_ms())

    def get(self, key: str) -> StoredObject:
        """Read an object."""
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(key) from None

    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""
        found = self.get(key)
        return ObjectInfo(key, len(found.body), found.stored_ms)

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """Those that are there."""
        return {k: self.objects[k] for k in keys if k in self.objects}

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """List objects by key."""
        with self._lock:
            found = [k for k in self.objects if k.startswith(prefix) and (after is None or k > after)]
            return [ObjectInfo(k, len(self.objects[k].body), self.objects[k].stored_ms) for k in sorted(found)]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there counts as done."""
        with self._lock:
            for key in keys:
                self.objects.pop(key, None)
