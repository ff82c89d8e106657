"""What a table needs of an object store, whichever it is: a few requests, and what their answers mean.

Stores of the library (`icedb.storage.obstore_store`, `icedb.storage.split_store`) and those for tests (`icedb.testing`)
keep these promises, and one suite of tests holds them to it. An object is created once, whole, and deleted once;
nothing is ever replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from icedb.errors import IceDBError
from icedb.storage.location import Location

__all__ = [
    "DELETES_PER_REQUEST",
    "ObjectExists",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "StoredObject",
    "chunks",
]

# What S3 takes in one DeleteObjects.
DELETES_PER_REQUEST = 1_000


class ObjectExists(IceDBError):
    """A create-only put met an object. Not part of the public tree: commits decide what it means."""


class ObjectNotFound(IceDBError):
    """No object has that key. Not part of the public tree: readers decide what it means."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of an object; `stored_ms` is by the store's clock."""

    key: str
    bytes: int
    stored_ms: int
    #: In a folder: whether a symbolic link has this name, of a file or a folder. No store reads it.
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's content and the store's time for it."""

    body: bytes
    stored_ms: int


class ObjectStore(Protocol):
    """What a table needs of a store. `icedb.testing` wraps this to inject faults."""

    @property
    def location(self) -> Location:
        """The address, for messages and for DuckDB."""
        ...

    def beside(self, location: Location) -> ObjectStore:
        """The store of another table, reached in the same way. Makes no request."""
        ...

    def create(self, key: str, body: bytes | Path) -> None:
        """Put an object that is not there yet. Raises ObjectExists; StoreUnavailable leaves it open."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, to a key that nothing has or had: the copy is as old as this request.

        Raises ObjectNotFound when the source is gone.
        """
        ...

    def get(self, key: str) -> StoredObject:
        """Raises ObjectNotFound."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """What a listing would say of one object. Raises ObjectNotFound."""
        ...

    def get_many(self, keys: Sequence[str]) -> Mapping[str, StoredObject]:
        """Those that are there."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """All objects whose key starts with `prefix` (which ends in a slash), beyond `after`, by key."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand per request; one that is not there counts as done.

        After an error some of them are deleted and others are not.
        """
        ...


def chunks(keys: Sequence[str], size: int = DELETES_PER_REQUEST) -> Iterator[list[str]]:
    """The keys, as many at a time as one request takes."""
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])
