"""One store for a table whose log is in one store and whose parts are in another.

The key decides: objects under the prefix of the log or of the claims are in the log's store, and all others are in the
store of the parts. So other code does not distinguish the two stores, and a commit is still one put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from icedb.errors import InvariantViolated
from icedb.storage.location import Location
from icedb.storage.object_store import ObjectInfo, ObjectStore, StoredObject

__all__ = ["SplitStore"]


class SplitStore:
    """`data` holds parts and spec, `log` holds log files and claims."""

    def __init__(self, data: ObjectStore, log: ObjectStore) -> None:
        self.data = data
        self.log = log
        self.location: Location = replace(data.location, log=log.location)
        keys = self.location.keys
        self._log_prefixes = (keys.log_prefix, keys.claims_prefix)

    def __repr__(self) -> str:
        return f"SplitStore({self.data!r}, {self.log!r})"

    def sibling(self, location: Location) -> ObjectStore:
        """See ObjectStore. The other table's location names the store of its log."""
        return self.data.sibling(location)

    def store_of(self, key: str) -> ObjectStore:
        """Return the store to which a key belongs."""
        return self.log if key.startswith(self._log_prefixes) else self.data

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore."""
        self.store_of(key).create(key, body)

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        store = self.store_of(source)
        if store is not self.store_of(target):
            raise InvariantViolated(
                f"{self.location.uri}: '{source}' and '{target}' are in two stores; no store copies between them."
            )
        store.copy(source, target)

    def get(self, key: str) -> StoredObject:
        """See ObjectStore."""
        return self.store_of(key).get(key)

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        return self.store_of(key).head(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """See ObjectStore."""
        log, data = self._split(keys)
        return {**(self.log.get_many(log) if log else {}), **(self.data.get_many(data) if data else {})}

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore."""
        return self.store_of(prefix).list(prefix, after=after)

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """See ObjectStore. Deletes log files first, so that no log file names a part that is deleted."""
        log, data = self._split(keys)
        self.log.delete(log, repeat=repeat)
        self.data.delete(data, repeat=repeat)

    def _split(self, keys: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        log = [k for k in keys if k.startswith(self._log_prefixes)]
        return log, [k for k in keys if not k.startswith(self._log_prefixes)]
