"""The simulated store, and each process's access to it, which injects all faults.

A listing of more than a few keys is several requests, as with a real store. So is the deletion of several objects, in
any order. Every request gives other actors a turn first. The store calls `landed` and `deleted` for its changes.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from icedb.errors import IceDBError, InvariantViolated, StoreUnavailable
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectExists, ObjectInfo, ObjectNotFound, StoredObject
from icedb.testing.faults import Crash, Kind
from icedb.testing.simulation.world.request_faults import SimulatedRequest, Strike, Trouble

__all__ = ["PAGE_KEYS", "StoreCaller", "SimulatedStore", "ProcessStore"]

#: Keys in one page of a listing: so few that most listings take several.
PAGE_KEYS = 3
_Answer = TypeVar("_Answer")


class SimulatedStore:
    """A bucket in a dict. Each method is one atomic request."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self.landed: Callable[[str, bytes], None] = lambda _key, _body: None
        self.deleted: Callable[[str, int], None] = lambda _key, _stored_ms: None

    def adopt(self, other: SimulatedStore) -> None:
        """Copy the objects of another store, with their times."""
        self.objects, self._keys = dict(other.objects), list(other._keys)

    def create(self, key: str, body: bytes) -> None:
        """Put a new object. Raises ObjectExists."""
        if key in self.objects:
            raise ObjectExists(key)
        self.put(key, body)

    def put(self, key: str, body: bytes) -> None:
        """Put an object, and replace an existing one. If the bytes are equal, only the time changes."""
        before = self.objects.get(key)
        if before is None:
            bisect.insort(self._keys, key)
        self.objects[key] = StoredObject(body, self._now_ms())
        if before is None or before.body != body:
            self.landed(key, body)

    def get(self, key: str) -> StoredObject:
        """Read an object. Raises ObjectNotFound."""
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(key) from None

    def page(self, prefix: str, after: str | None) -> list[ObjectInfo]:
        """Return one page of a listing: the first keys with this prefix and beyond `after`."""
        start = bisect.bisect_left(self._keys, prefix)
        if after is not None:
            start = max(start, bisect.bisect_right(self._keys, after))
        keys = [k for k in self._keys[start : start + PAGE_KEYS] if k.startswith(prefix)]
        return [ObjectInfo(k, len(self.objects[k].body), self.objects[k].stored_ms) for k in keys]

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys with this prefix. Not a request."""
        return [k for k in self._keys if k.startswith(prefix)]

    def delete(self, key: str) -> None:
        """Delete an object if it exists."""
        if key in self.objects:
            stored_ms = self.objects.pop(key).stored_ms
            self._keys.remove(key)
            self.deleted(key, stored_ms)


class StoreCaller(Protocol):
    """The process that makes requests through a ProcessStore. `Process` implements it."""

    @property
    def overwrites(self) -> bool:
        """True if the store overwrites objects in spite of create-only puts."""
        ...

    def turn(self, kind: Kind, key: str) -> tuple[SimulatedRequest, Strike | None]:
        """Give others a turn. Return the request, and the fault that hits it. Raises Crash after a crash."""
        ...

    def crash(self) -> None:
        """Crash, with all operations of the same process. Raises Crash."""
        ...

    def sleep(self, for_ms: int) -> None:
        """Give others turns for this time. Raises Crash after a crash."""
        ...

    def later(self, after_ms: int, action: Callable[[], None]) -> None:
        """Execute a request at the store after some time, even if this process has crashed."""
        ...

    def in_any_order(self, keys: Sequence[str]) -> list[str]:
        """Return the keys in a random order, because a real client makes these requests at the same time."""
        ...

    def lands_in_time(self, key: str, issued_ms: int) -> bool:
        """Return whether a put may still land: clients give up well before the commit timeout."""
        ...

    def now_ms(self) -> int:
        """Return the store's time."""
        ...


class ProcessStore:
    """The `ObjectStore` of one process: the objects below its location, and those that it may read `also`."""

    def __init__(
        self, store: SimulatedStore, location: Location, caller: StoreCaller, *, also: tuple[str, ...] = ()
    ) -> None:
        self._roots = (f"{location.prefix}/", *also)
        self.inner = store
        self.location = location
        self.caller = caller

    def __repr__(self) -> str:
        return f"ProcessStore({self.location.uri!r})"

    def sibling(self, location: Location) -> ProcessStore:
        """See ObjectStore."""
        return ProcessStore(self.inner, location, self.caller)

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore. A put that takes too long never lands."""
        content = body.read_bytes() if isinstance(body, Path) else bytes(body)
        issued_ms = self.caller.now_ms()
        arrived = False

        def create() -> None:
            nonlocal arrived
            if not arrived and not self.caller.lands_in_time(key, issued_ms):
                raise StoreUnavailable(f"{self.location.uri}: create '{key}' took too long (simulated).")
            arrived = True
            put = self.inner.put if self.caller.overwrites else self.inner.create
            put(key, content)

        self._request("create", key, create)

    def overwrite(self, key: str, body: bytes) -> None:
        """Put an object and replace an existing one, as programs of IceDB v3 do, within the same timeouts."""
        issued_ms = self.caller.now_ms()
        arrived = False

        def put() -> None:
            nonlocal arrived
            if not arrived and not self.caller.lands_in_time(key, issued_ms):
                raise StoreUnavailable(f"{self.location.uri}: put '{key}' took too long (simulated).")
            arrived = True
            self.inner.put(key, body)

        self._request("create", key, put)

    def get(self, key: str) -> StoredObject:
        """See ObjectStore."""
        return self._request("get", key, lambda: self.inner.get(key))

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        stored = self._request("head", key, lambda: self.inner.get(key))
        return ObjectInfo(key, len(stored.body), stored.stored_ms)

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """See ObjectStore. Makes one request per key."""
        objects = {}
        for key in self.caller.in_any_order(keys):
            try:
                objects[key] = self.get(key)
            except ObjectNotFound:
                continue
        return {k: objects[k] for k in keys if k in objects}

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """See ObjectStore. Makes one request per key, because a bulk deletion has no order and may be incomplete."""
        for key in self.caller.in_any_order(keys):
            self._delete(key)

    def _delete(self, key: str) -> None:
        self._request("delete", key, lambda: self.inner.delete(key))

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore. The copy is one atomic request."""
        self._request("create", target, lambda: self.inner.put(target, self.inner.get(source).body))

    def _request(self, kind: Kind, key: str, action: Callable[[], _Answer]) -> _Answer:
        if not key.startswith(self._roots):
            raise InvariantViolated(f"'{key}' is outside the store of {self.location.uri} (simulated)")
        request, strike = self.caller.turn(kind, key)
        if strike is None:
            return action()
        return self._hit(request, strike, action)

    def _hit(self, request: SimulatedRequest, strike: Strike, action: Callable[[], _Answer]) -> _Answer:
        lost = StoreUnavailable(f"{self.location.uri}: {request.kind} '{request.key}' had no answer (simulated).")
        trouble = strike.trouble if request.changes or strike.trouble is not Trouble.DELAY else Trouble.FAIL
        if trouble is Trouble.CRASH_BEFORE:
            self.caller.crash()
        if trouble is Trouble.SLEEP_BEFORE:
            self.caller.sleep(strike.delay_ms)
        if trouble is Trouble.DELAY:
            self.caller.later(strike.delay_ms, lambda: _do_again(action))
        if trouble in (Trouble.DELAY, Trouble.FAIL):
            raise lost
        if trouble is Trouble.REPEAT:
            _do_again(action)
        try:
            return action()
        finally:
            if trouble is Trouble.DUPLICATE:
                self.caller.later(strike.delay_ms, lambda: _do_again(action))
            if trouble is Trouble.CRASH_AFTER:
                self.caller.crash()
            if trouble is Trouble.SLEEP_AFTER:
                self.caller.sleep(strike.delay_ms)
            if trouble is Trouble.LOSE:
                raise lost

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore. Makes one request per page, each of which returns the state at its own time."""
        infos: list[ObjectInfo] = []
        while True:
            page = self._request("list", prefix, partial(self.inner.page, prefix, after))
            infos += page
            if len(page) < PAGE_KEYS:
                return infos
            after = page[-1].key


def _do_again(action: Callable[[], object]) -> None:
    """Execute a request whose response is lost."""
    try:
        action()
    except (IceDBError, Crash):
        return
