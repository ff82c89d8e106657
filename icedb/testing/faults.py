"""A store that fails on purpose, and lets others act between any two requests.

It wraps any store. Every request is counted and recorded; `before` and `after` are called around it, so a test
can let another actor run at exactly that point; `inject` makes one request fail in a chosen way. After a crash
the store is dead to its actor, as the world is to a killed process: no `finally` of his reaches it any more.

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
    """The actor died here. Not an Exception: nothing that handles errors may survive it."""


class Fault(Enum):
    """What happens to a request."""

    #: The actor dies; the store never sees the request.
    CRASH_BEFORE = auto()
    #: The store does it; the actor dies before it knows.
    CRASH_AFTER = auto()
    #: The store does it; the actor gets StoreUnavailable.
    LOSE_RESPONSE = auto()
    #: The store does not do it; the actor gets StoreUnavailable.
    FAIL = auto()
    #: The store does it twice; the actor gets the second answer, as after a retry by the client library.
    REPEAT = auto()
    #: The actor gets StoreUnavailable; the store does it when the test calls `deliver`.
    DELAY = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the store. `number` counts from 1.

    A delete has up to a thousand keys, a copy its source and its target, a listing its prefix.
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
    """A store around a store. Each actor of a test has one of his own, around the one that they share."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        #: Called with each request before and after the store does it.
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
        """That of the store inside."""
        return self.inner.location

    def beside(self, location: Location) -> ObjectStore:
        """The store of another table, for the same actor: its requests are counted, fail and kill him here."""
        return _Beside(self.inner.beside(location), self)

    @property
    def counts(self) -> Counter[Kind]:
        """How many requests of each kind were made."""
        return Counter(r.kind for r in self.requests)

    def inject(
        self, fault: Fault, *, number: int | None = None, kind: Kind | None = None, key: str = "", times: int = 1
    ) -> None:
        """Let a fault happen to the next `times` requests of that number, kind, and with `key` in a key."""
        self._rules.append(_Rule(fault, number, kind, key, times))

    def deliver(self) -> None:
        """Let the store do what was delayed, in order."""
        delayed, self._delayed = self._delayed, []
        for action in delayed:
            action()

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore."""
        content = body.read_bytes() if isinstance(body, Path) else body  # a delayed put outlives its file
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
        """See ObjectStore. One request per key, one after the other, so that runs can be repeated."""
        found = {}
        for key in keys:
            try:
                found[key] = self.get(key)
            except ObjectNotFound:
                continue
        return found

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore."""
        return self._do("list", (prefix,), lambda: self.inner.list(prefix, after=after))

    def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore. Nothing to delete is no request, a thousand keys are one; what fails is the last."""
        for some in chunks(keys):
            self._do("delete", tuple(some), partial(self.inner.delete, some))

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
        finally:  # also when the store refused: its answer does not arrive either
            if fault is Fault.CRASH_AFTER:
                self.dead = True
                self._check_alive()
            if fault is Fault.LOSE_RESPONSE:
                raise lost

    def _check_alive(self) -> None:
        if self.dead:
            raise Crash


class _Beside(FaultyStore):
    """The store of a table beside an actor's first one."""

    def __init__(self, inner: ObjectStore, first: FaultyStore) -> None:
        super().__init__(inner)
        self._first = first

    def beside(self, location: Location) -> ObjectStore:
        """See FaultyStore."""
        return self._first.beside(location)

    def _do(self, kind: Kind, keys: tuple[str, ...], action: Callable[[], _Answer]) -> _Answer:
        return self._first._do(kind, keys, action)
