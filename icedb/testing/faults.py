"""A store with fault injection, which also lets other actors run between any two requests.

`FaultyStore` wraps any store and records every request. It calls `before` and `after` around each request, so that a
test can run another actor at exactly that point. `inject` makes a request fail in a chosen way. After a crash every
further request of the actor fails, as in a killed process, so its `finally` blocks do not reach the store.

    store = FaultyStore(inner)
    store.inject(Fault.LOSE_RESPONSE, kind="create", key="_log/")
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from icedb.errors import StoreUnavailable
from icedb.storage.location import Location
from icedb.storage.object_store import ObjectInfo, ObjectNotFound, ObjectStore, StoredObject, chunks

__all__ = ["Crash", "Fault", "FaultyStore", "Kind", "Request"]

Kind = Literal["create", "copy", "get", "head", "list", "delete"]
_Answer = TypeVar("_Answer")


class Crash(BaseException):
    """The actor crashed. Not an Exception, so that no error handler catches it."""


class Fault(Enum):
    """The faults that can happen to a request."""

    #: The actor crashes, and the store never gets the request.
    CRASH_BEFORE = auto()
    #: The store executes the request, and the actor crashes before it gets the response.
    CRASH_AFTER = auto()
    #: The store executes the request, and the actor gets StoreUnavailable.
    LOSE_RESPONSE = auto()
    #: The store does not execute the request, and the actor gets StoreUnavailable.
    FAIL = auto()
    #: The store executes the request twice, and the actor gets the second response, as after a retry by the client.
    REPEAT = auto()
    #: The actor gets StoreUnavailable. The store executes the request when the test calls `deliver`.
    DELAY = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the store. `number` counts from 1.

    `keys` has up to a thousand keys for a delete, source and target for a copy, and the prefix for a listing.
    """

    number: int
    kind: Kind
    keys: tuple[str, ...]


@dataclass(slots=True)
class _Rule:
    fault: Fault
    number: int | None
    kind: Kind | None
    key: str
    times: int

    def takes(self, request: Request) -> bool:
        if self.times <= 0 or (self.number or request.number) != request.number:
            return False
        return self.kind in (None, request.kind) and any(self.key in k for k in request.keys)


class FaultyStore:
    """A store that wraps another one and injects faults. Each actor of a test has its own, around a shared store.

    Args:
        inner: The store that executes the requests.

    Example:
        >>> store = FaultyStore(inner)
        >>> store.inject(Fault.CRASH_AFTER, kind="create", key="_log/")
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        #: Called with each request before and after the store executes it.
        self.before: Callable[[Request], None] | None = None
        self.after: Callable[[Request], None] | None = None
        self.requests: list[Request] = []
        self.dead = False
        self._rules: list[_Rule] = []
        self._delayed: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    @property
    def location(self) -> Location:
        """The location of the inner store."""
        return self.inner.location

    def sibling(self, location: Location) -> ObjectStore:
        """Return the store of another table, for the same actor: requests and faults are those of this store."""
        return _SiblingStore(self.inner.sibling(location), self)

    @property
    def counts(self) -> Counter[Kind]:
        """The number of requests by kind."""
        return Counter(r.kind for r in self.requests)

    def inject(
        self, fault: Fault, *, number: int | None = None, kind: Kind | None = None, key: str = "", times: int = 1
    ) -> None:
        """Inject a fault into the next `times` requests that match.

        Args:
            fault: The fault.
            number: The number of the request; None matches any.
            kind: The kind of the request; None matches any.
            key: A text that one of the request's keys must contain.
            times: The number of matching requests that get the fault.
        """
        self._rules.append(_Rule(fault, number, kind, key, times))

    def deliver(self) -> None:
        """Execute the delayed requests, in order."""
        delayed, self._delayed = self._delayed, []
        for action in delayed:
            action()

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore."""
        content = body.read_bytes() if isinstance(body, Path) else body  # the file may be deleted before a delayed put
        self._do("create", (key,), lambda: self.inner.create(key, content))

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        self._do("copy", (source, target), lambda: self.inner.copy(source, target))

    def get(self, key: str) -> StoredObject:
        """See ObjectStore."""
        return self._do("get", (key,), lambda: self.inner.get(key))

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        return self._do("head", (key,), lambda: self.inner.head(key))

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """See ObjectStore. Makes one request per key, sequentially, so that runs can be repeated."""
        objects = {}
        for key in keys:
            try:
                objects[key] = self.get(key)
            except ObjectNotFound:
                continue
        return objects

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore."""
        return self._do("list", (prefix,), lambda: self.inner.list(prefix, after=after))

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """See ObjectStore. Makes one request per thousand keys, and stops at the first that fails."""
        for some in chunks(keys):
            self._do("delete", tuple(some), partial(self.inner.delete, some, repeat=repeat))

    def _do(self, kind: Kind, keys: tuple[str, ...], action: Callable[[], _Answer]) -> _Answer:
        with self._lock:
            request = Request(len(self.requests) + 1, kind, keys)
            self.requests.append(request)
            rule = next((r for r in self._rules if r.takes(request)), None)
            if rule is not None:
                rule.times -= 1
        self._check_alive()
        if self.before is not None:
            self.before(request)
        try:
            return self._act(None if rule is None else rule.fault, request, action)
        finally:
            if self.after is not None and not self.dead:
                self.after(request)

    def _act(self, fault: Fault | None, request: Request, action: Callable[[], _Answer]) -> _Answer:
        lost = StoreUnavailable(f"{self.location.uri}: {request.kind} '{request.keys[0]}' had no answer (injected).")
        match fault:
            case Fault.CRASH_BEFORE:
                self.dead = True
                self._check_alive()
            case Fault.FAIL:
                raise lost
            case Fault.DELAY:
                self._delayed.append(action)
                raise lost
            case Fault.REPEAT:
                action()
        try:
            return action()
        finally:  # also if the store raised an error: that response is lost too
            if fault is Fault.CRASH_AFTER:
                self.dead = True
                self._check_alive()
            if fault is Fault.LOSE_RESPONSE:
                raise lost

    def _check_alive(self) -> None:
        if self.dead:
            raise Crash


class _SiblingStore(FaultyStore):
    """The store of another table of the same actor. The first store counts its requests and injects faults."""

    def __init__(self, inner: ObjectStore, first: FaultyStore) -> None:
        super().__init__(inner)
        self._first = first

    def sibling(self, location: Location) -> ObjectStore:
        """See FaultyStore."""
        return self._first.sibling(location)

    def _do(self, kind: Kind, keys: tuple[str, ...], action: Callable[[], _Answer]) -> _Answer:
        return self._first._do(kind, keys, action)
