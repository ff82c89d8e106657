"""The interface of object stores: the few requests that a table makes, and the meaning of their responses.

The library's stores (`icedb.storage.obstore_store`, `icedb.storage.split_store`) and those for tests (`icedb.testing`)
implement it, and pass the same conformance tests. An object is created once, atomically, and deleted once. No object is
ever replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from icedb.errors import IceDBError
from icedb.storage.location import Location

__all__ = ["DELETES_PER_REQUEST", "STORED_MS_PRECISION", "ObjectExists", "ObjectInfo", "ObjectNotFound", "ObjectStore",
           "StoredObject", "chunks"]  # fmt: skip

# The maximum of keys in one DeleteObjects of S3.
DELETES_PER_REQUEST = 1_000
#: S3 returns the time of an object in whole seconds.
STORED_MS_PRECISION = 1_000


class ObjectExists(IceDBError):
    """The key of a create-only put already exists. Not in the public tree, because commits handle it."""


class ObjectNotFound(IceDBError):
    """No object has that key. Not in the public tree, because readers handle it."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An entry of a listing. `stored_ms` is the time of the put by the store's clock."""

    key: str
    bytes: int
    stored_ms: int
    #: Whether this is a symbolic link in a local folder, which no store reads.
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's content and the store's time of its put."""

    body: bytes
    stored_ms: int


class ObjectStore(Protocol):
    """The requests that a table makes to a store. `icedb.testing` wraps it to inject faults."""

    @property
    def location(self) -> Location:
        """The address, for messages and for DuckDB."""
        ...

    def sibling(self, location: Location) -> ObjectStore:
        """Return the store of another table, with the same access. Makes no request."""
        ...

    def create(self, key: str, body: bytes | Path) -> None:
        """Put a new object. Raises ObjectExists. After StoreUnavailable the object may or may not exist."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, to a key that was never used. The copy has the time of this request.

        Raises ObjectNotFound if the source does not exist.
        """
        ...

    def get(self, key: str) -> StoredObject:
        """Read an object. Raises ObjectNotFound."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return the listing entry of one object. Raises ObjectNotFound."""
        ...

    def get_many(self, keys: Sequence[str]) -> Mapping[str, StoredObject]:
        """Return the existing objects by key; missing keys are omitted."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """List all objects whose key starts with `prefix` (which ends in a slash) and is beyond `after`, by key."""
        ...

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """Delete objects, a thousand per request. A missing object counts as deleted.

        After an error, some of them may be deleted and others not. With `repeat`, a request that the store did not
        serve is repeated. Use it only for keys that no later put uses, such as those of parts: the store may execute
        the first request after the repeated one, and would delete the new object.
        """
        ...


_Item = TypeVar("_Item")


def chunks(items: Sequence[_Item], size: int = DELETES_PER_REQUEST) -> Iterator[list[_Item]]:
    """Split items, such as keys, into lists of at most `size`. By default they fit in one request."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
