"""The tables behind the proxy: their states, read from their logs, and views of them.

A response shows the state of a table as of at most `refresh_ms` ago. A refresh is one LIST of the log if nothing
changed. Concurrent requests share a refresh. Each response is of one snapshot, and all pages of a listing are of the
snapshot of its first page.

A replaced part can still be fetched for `hold_ms`, because a client may have listed it just before a merge
(compaction). The times of the log decide this, so all proxies agree, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from icedb.errors import BucketNotFound, IceDBError, InvalidOption, RetryableError, SnapshotExpired, TableNotFound
from icedb.format.keys import partition_of
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.reader.time_bounds import check_readable_time, markers_at
from icedb.services.proxy.catalog.bucket_view import BucketView, VirtualObject
from icedb.services.proxy.catalog.view_cache import ViewCache
from icedb.services.proxy.config.tenants import AHEAD_MS_MAX, Scope, VirtualBucket
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.storage.obstore_store import ObjectStore
from icedb.table import Table
from icedb.transaction.table_handle import Handle
from icedb.util.clock import Clock, SystemClock
from icedb.util.lru_cache import LruCache

__all__ = ["BucketState", "RefreshObserver", "TableCatalog"]

logger = logging.getLogger("icedb.proxy")

# A part of a state that is not older is served without a refresh.
PART_STATE_SECONDS = 10
# Interval of checks that an address still has the same table, and not one created in its place.
REOPEN_SECONDS = 60
# Number of expired times that are remembered for a table.
EXPIRED_MAX = 1_000
# Clock adjustments are smaller. A larger difference of clocks means that the machine slept.
SLEEP_MS = 5_000
# Threads for reading logs. A store that does not respond blocks one thread for each of its tables.
THREADS = 32


_Result = TypeVar("_Result")


class RefreshObserver(Protocol):
    """Receives the outcomes of refreshes."""

    def record_refresh(self, ok: bool, seconds: float) -> None:
        """Record a refresh of a table."""
        ...


@dataclass(frozen=True)
class _CurrentState:
    """The state of a table as of a refresh."""

    handle: Handle
    state: TableState
    latest: BucketView
    #: Start of the refresh on the loop's clock, and on the machine's clock, which continues while the machine sleeps.
    read_at: float
    read_ms: int
    #: Time on the loop's clock at which the table was opened, or last confirmed to be the same.
    opened_at: float

    def find(self, key: str) -> Marker | None:
        """Return the marker of a part, live or not, by its virtual key."""
        return self.state.parts.get(self.latest.data_prefix + key)


@dataclass
class _OpenTable:
    """An open table with its cached state. Only the event loop changes it; threads read logs."""

    address: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    current: _CurrentState | None = None
    #: Start time and error code of the last refresh if it failed.
    failed: tuple[float, str] | None = None
    #: Views by snapshot and partitions of the scope, for the next pages of listings.
    views: ViewCache[tuple[str, tuple[str, ...]]] = field(default_factory=ViewCache)
    #: Views of the whole table by as-of time, stored with the time of the loop's clock.
    at_time: ViewCache[int] = field(default_factory=ViewCache)
    #: Limits requests to the store for as-of times to one at a time.
    time_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Expired as-of times, with the time on the loop's clock at which this was found.
    expired: LruCache[int, float] = field(default_factory=lambda: LruCache(EXPIRED_MAX))

    def reset(self) -> None:
        """Drop all cached state: another table may be at the address."""
        self.current = None
        self.views.clear()
        self.at_time.clear()
        self.expired.clear()


@dataclass(frozen=True)
class BucketState:
    """The latest known state of a bucket's table, and the view of the bucket if it is as of a time."""

    handle: Handle
    state: TableState
    #: None: the bucket shows the latest state.
    view: BucketView | None
    #: When the state was read, on the loop's clock.
    read_at: float

    @property
    def at_ms(self) -> int | None:
        """The as-of time, in unix milliseconds; None: the latest."""
        return None if self.view is None else self.view.as_of_ms


class TableCatalog:
    """Opens tables on demand and caches their states and views. Belongs to one event loop."""

    def __init__(
        self,
        storage_options: Mapping[str, str] | None = None,
        *,
        refresh_ms: int = 1_000,
        hold_ms: int = 15 * 60_000,
        tables_open: int = 256,
        clock: Clock | None = None,
        observer: RefreshObserver | None = None,
        open_table: Callable[[str, Mapping[str, str] | None], Handle] | None = None,
    ) -> None:
        """Create a catalog. A replaced part can still be fetched for `hold_ms`.

        `tables_open` is the maximum number of open tables. The least recently used one is closed.
        """
        self._storage_options = storage_options or None
        self._max_age = refresh_ms / 1000
        self._hold_ms = hold_ms
        self._clock = clock or SystemClock()
        self._observer = observer
        self._open_table = open_table or _open
        self._tables: LruCache[str, _OpenTable] = LruCache(tables_open)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="icedb-proxy")

    def close(self) -> None:
        """Release the threads without waiting for refreshes in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def hold_ms(self) -> int:
        """The time for which a replaced part can still be fetched."""
        return self._hold_ms

    @property
    def open_count(self) -> int:
        """The number of open tables."""
        return len(self._tables)

    @property
    def live_parts(self) -> int:
        """The number of live parts of the open tables, as of their last refreshes."""
        return sum(len(t.current.latest.keys) for t in self._tables.values() if t.current is not None)

    @property
    def snapshot_times(self) -> dict[str, int]:
        """When the state of each open table was last read, in unix milliseconds, by the address of the table."""
        return {t.address: t.current.read_ms for t in self._tables.values() if t.current is not None}

    # ------------------------------------------------------------------------------------ views

    async def view(self, bucket: VirtualBucket, as_of_ms: int | None) -> BucketView:
        """Return the view of a bucket, latest or as of a time. Raises S3Error."""
        at_ms = self.checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        whole = (await self._latest(table)).latest if at_ms is None else await self._at(table, at_ms)
        return await self._within(table, whole, bucket.scope)

    async def read(self, bucket: VirtualBucket, as_of_ms: int | None, *, fresh: bool = False) -> BucketState:
        """Return the state of a bucket's table, with the view of an as-of time as `view` returns it. Raises S3Error.

        With `fresh`, the log is read now, also if the cached state is younger than `refresh_ms`.
        """
        at_ms = self.checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        view = None if at_ms is None else await self._within(table, await self._at(table, at_ms), bucket.scope)
        current = await self._latest(table, fresh=fresh)
        return BucketState(current.handle, current.state, view, current.read_at)

    async def run(self, bucket: VirtualBucket, work: Callable[[], _Result]) -> _Result:
        """Run work on a bucket in a thread. Raises S3Error if the table cannot be read."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except SnapshotExpired:
            raise _expired() from None
        except (IceDBError, OSError) as error:
            raise error if isinstance(error, S3Error) else _error_for(error, bucket.table) from None

    async def resume_view(
        self, bucket: VirtualBucket, as_of_ms: int | None, *, began_ms: int, snapshot_id: str
    ) -> BucketView | None:
        """Return the view of the first page of a listing, or None if it no longer exists.

        A listing of the latest state ends `hold_ms` after its start, because its parts may be gone by then.
        """
        at_ms = self.checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        now_ms = self._clock.now_ms()
        if at_ms is None and now_ms - began_ms > self._hold_ms:
            return None
        view = table.views.get((snapshot_id, bucket.scope.partitions))
        if view is not None and at_ms == view.as_of_ms:
            return view
        # A client can forge the time in a token. The cached view proves that it was the latest within `hold_ms`.
        if view is not None and at_ms is None and now_ms - view.as_of_ms <= self._hold_ms:
            return replace(view, as_of_ms=max(view.as_of_ms, began_ms))  # the next page starts no earlier than this one
        if (
            at_ms is None
            and began_ms > now_ms + AHEAD_MS_MAX
            and began_ms > (await self._latest(table)).latest.as_of_ms
        ):
            return None  # no listing started then, not even if a clock far ahead wrote commits
        try:
            whole = await self._at(table, began_ms if at_ms is None else at_ms)
        except S3Error as error:
            if error.status == 404:
                return None
            raise
        return await self._within(table, whole, bucket.scope) if whole.snapshot_id == snapshot_id else None

    # ------------------------------------------------------------------------------------ objects

    async def find(self, bucket: VirtualBucket, as_of_ms: int | None, key: str) -> tuple[VirtualObject, ObjectStore]:
        """Return an object of a bucket and its store. Raises S3Error (NoSuchKey)."""
        at_ms = self.checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        current = table.current
        if at_ms is not None:
            object_ = (await self._at(table, at_ms)).find(key)
            current = table.current or await self._latest(table)
        else:
            object_ = None
            if current is not None and self._is_fresh(current, PART_STATE_SECONDS):
                object_ = self._find(current, key)
            if object_ is None:
                current = await self._latest(table)
                object_ = self._find(current, key)
        if object_ is None or current is None:
            raise S3Error("NoSuchKey")
        if not bucket.scope.shows(partition_of(current.latest.data_prefix, object_.stored_key)):
            raise S3Error("NoSuchKey")
        return object_, current.handle.store

    def _find(self, current: _CurrentState, key: str) -> VirtualObject | None:
        marker = current.find(key)
        return current.latest.object(marker) if marker is not None and self._is_held(current, marker) else None

    def _is_fresh(self, current: _CurrentState, seconds: float) -> bool:
        """Return whether a state is not older. Check both clocks: the loop's clock stops while the machine sleeps."""
        age = asyncio.get_running_loop().time() - current.read_at
        return age <= seconds and self._clock.now_ms() - current.read_ms <= seconds * 1000

    def _is_held(self, current: _CurrentState, marker: Marker) -> bool:
        """Return whether a part is live, or was replaced within `hold_ms`, so that a client may still read it.

        A part is replaced when its tombstone's log file is published. If that file was merged since, the time is the
        tombstone's time plus the longest delay of a publication.
        """
        if marker.tombstoned_ms is None:
            return True
        latest_ms = marker.tombstoned_ms + current.handle.timing.late_publication_ms
        named = current.state.parts_named.get(marker.key)
        replaced_ms: int = min((latest_ms, *(named.tombstoned_by_ms if named else ())))
        return self._clock.now_ms() - replaced_ms <= self._hold_ms

    # ------------------------------------------------------------------------------------ times

    def checked_time(self, scope: Scope, as_of_ms: int | None) -> int | None:
        """Return the as-of time of a response, or None for the latest state. Raises S3Error."""
        if as_of_ms is None or as_of_ms == scope.as_of_ms:
            return scope.as_of_ms
        if scope.as_of_ms is not None or not scope.time_travel:
            raise S3Error("AccessDenied", "This bucket cannot be read as of another time.")
        if scope.earliest_ms is not None and as_of_ms < scope.earliest_ms:
            raise S3Error("AccessDenied", "This bucket cannot be read as of so early a time.")
        if as_of_ms > self._clock.now_ms() + AHEAD_MS_MAX:
            raise S3Error("InvalidArgument", "The time after the bucket's name is in the future.")
        return as_of_ms

    # ------------------------------------------------------------------------------------ refreshes

    def _table(self, bucket: VirtualBucket) -> _OpenTable:
        table = self._tables.get(bucket.table)
        if table is None:
            table = _OpenTable(bucket.table)
            self._tables.put(bucket.table, table)
        return table

    async def _latest(self, table: _OpenTable, *, fresh: bool = False) -> _CurrentState:
        """Return a state that is at most `refresh_ms` old. With `fresh`, refresh it now. Raises S3Error."""
        oldest = asyncio.get_running_loop().time() - (0 if fresh else self._max_age)
        async with table.lock:  # requests that waited share the outcome, also a failure
            if table.failed is not None and table.failed[0] >= oldest:
                raise _unavailable(table.failed[1])
            current = table.current
            sleep_ms = 0 if current is None else self._clock.now_ms() - current.read_ms - 1000 * self._max_age
            if current is None or current.read_at < oldest or sleep_ms > SLEEP_MS:
                current = table.current = await self._refresh(table, current)
        return current

    async def _refresh(self, table: _OpenTable, current: _CurrentState | None) -> _CurrentState:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            refreshed = await loop.run_in_executor(self._threads, self._read, table.address, current, began)
        except (IceDBError, OSError) as error:
            self._notify(ok=False, seconds=loop.time() - began)
            if not _is_transient(error):
                table.reset()
            answer = _error_for(error, table.address)
            table.failed = began, answer.code
            raise answer from None
        self._notify(ok=True, seconds=loop.time() - began)
        table.failed = None
        if current is not None and refreshed.handle is not current.handle:
            table.reset()
        return refreshed

    def _notify(self, *, ok: bool, seconds: float) -> None:
        if self._observer is not None:
            self._observer.record_refresh(ok, seconds)

    def _read(self, address: str, current: _CurrentState | None, began: float) -> _CurrentState:
        """Read the state in a thread. If nothing changed, the view shares the keys of the current one."""
        if current is not None and (not current.handle.spec.id or began - current.opened_at <= REOPEN_SECONDS):
            handle, opened_at = current.handle, current.opened_at  # tables of v3 have no id
        else:
            handle, opened_at = self._open_table(address, self._storage_options), began
            if current is not None and handle.spec.id == current.handle.spec.id:
                handle = current.handle
        now_ms = self._clock.now_ms() - 1  # as for a snapshot: later commits of this millisecond are not included
        state = handle.read()
        as_of_ms = max(now_ms, state.newest_ms)
        if current is not None and state is current.state:
            latest = replace(current.latest, as_of_ms=as_of_ms)
            return replace(current, latest=latest, read_at=began, read_ms=now_ms + 1, opened_at=opened_at)
        view = BucketView.of(state.live, data_prefix=handle.keys.data_prefix, as_of_ms=as_of_ms)
        return _CurrentState(handle, state, view, began, now_ms + 1, opened_at)

    async def _at(self, table: _OpenTable, at_ms: int) -> BucketView:
        """Return the view as of a time, from the cache if possible. Raises S3Error."""
        loop = asyncio.get_running_loop()
        if (cached := self._cached_at(table, at_ms)) is not None:
            return cached
        async with table.time_lock:  # requests that waited share the view
            if (cached := self._cached_at(table, at_ms)) is not None:
                return cached
            expired_at = table.expired.get(at_ms)
            if expired_at is not None and expired_at >= loop.time() - self._max_age:
                raise _expired()
            current = await self._latest(table)
            if current.latest.as_of_ms < at_ms:  # the view must include all commits until then
                current = await self._latest(table, fresh=True)
            try:
                view = await loop.run_in_executor(self._threads, _view_at, current, at_ms)
            except SnapshotExpired:
                table.expired.put(at_ms, loop.time())
                raise _expired() from None
            except InvalidOption:
                why = "The time after the bucket's name is before the table's creation, or in the future."
                raise S3Error("InvalidArgument", why) from None
            except (IceDBError, OSError) as error:
                raise _error_for(error, table.address) from None
            same = table.views.get((view.snapshot_id, ()))
            view = view if same is None else replace(same, as_of_ms=at_ms)
            view = replace(view, numbers={})
            table.at_time.put(at_ms, view, at=loop.time())
        return view

    def _cached_at(self, table: _OpenTable, at_ms: int) -> BucketView | None:
        """Return the cached view as of a time, if it is at most `hold_ms` old."""
        return table.at_time.get(at_ms, since=asyncio.get_running_loop().time() - self._hold_ms / 1000)

    async def _within(self, table: _OpenTable, whole: BucketView, scope: Scope) -> BucketView:
        name = whole.snapshot_id, scope.partitions
        view = table.views.get(name)
        if view is None:
            view = replace(whole, numbers={})  # only the latest view keeps the index of partitions
            if scope.partitions:
                view = await asyncio.get_running_loop().run_in_executor(self._threads, whole.within, scope)
        elif view.as_of_ms != whole.as_of_ms:
            view = replace(view, as_of_ms=whole.as_of_ms)
        table.views.put(name, view)
        return view


def _open(address: str, storage_options: Mapping[str, str] | None) -> Handle:
    return Table.open(address, storage_options=storage_options).handle


def _view_at(current: _CurrentState, at_ms: int) -> BucketView:
    handle, state = current.handle, current.state
    check_readable_time(handle, state, at_ms, now_ms=handle.clock.now_ms())
    view = BucketView.of(markers_at(handle, state, at_ms), data_prefix=handle.keys.data_prefix, as_of_ms=at_ms)
    return replace(current.latest, as_of_ms=at_ms) if view.snapshot_id == current.latest.snapshot_id else view


def _expired() -> S3Error:
    return S3Error("NoSuchBucket", "The table can no longer be read as of that time.")


def _error_for(error: Exception, address: str) -> S3Error:
    """Log why a table cannot be read, and return an error for the client without the reason."""
    logger.error("the table %s cannot be read: %s", address, error)
    return _unavailable("ServiceUnavailable" if _is_transient(error) else "InternalError")


def _is_transient(error: Exception) -> bool:
    """Return whether the table is likely unchanged, and readable once the store or the permissions are back."""
    return isinstance(error, RetryableError | OSError) and not isinstance(error, TableNotFound | BucketNotFound)


def _unavailable(code: str) -> S3Error:
    message = "This bucket cannot be shown. Contact the operator of this endpoint." if code == "InternalError" else ""
    return S3Error(code, message)
