"""A table whose log lies in one store and whose parts lie in another, as one store.

Each key says where it belongs: what is below the log's or the claims' prefix is in the log's store, everything else
beside the parts. So nothing above knows of two stores, and a commit is still one put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from icedb.errors import InvariantViolated
from icedb.storage.location import Location
from icedb.storage.object_store import ObjectInfo, ObjectStore, StoredObject

__all__ = ["TwoStores"]


class TwoStores:
    """`data` holds parts and spec, `log` holds log files and claims."""

    def __init__(self, data: ObjectStore, log: ObjectStore) -> None:
        self.data = data
        self.log = log
        self.location: Location = replace(data.location, log=log.location)
        keys = self.location.keys
        self._of_log = (keys.log_prefix, keys.claims_prefix)

    def __repr__(self) -> str:
        return f"TwoStores({self.data!r}, {self.log!r})"

    def beside(self, location: Location) -> ObjectStore:
        """See ObjectStore. Where another table's log is, its own location says."""
        return self.data.beside(location)

    def store_of(self, key: str) -> ObjectStore:
        """The one of the two that a key belongs to."""
        return self.log if key.startswith(self._of_log) else self.data

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
        of_log, of_data = self._split(keys)
        return {**(self.log.get_many(of_log) if of_log else {}), **(self.data.get_many(of_data) if of_data else {})}

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore."""
        return self.store_of(prefix).list(prefix, after=after)

    def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore. Log files first: nothing may name a part that is gone."""
        of_log, of_data = self._split(keys)
        self.log.delete(of_log)
        self.data.delete(of_data)

    def _split(self, keys: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        of_log = [k for k in keys if k.startswith(self._of_log)]
        return of_log, [k for k in keys if not k.startswith(self._of_log)]
