"""The tables behind the proxy: open ones, what is known of their logs, and the views of them.

Who lists a bucket, or fetches from it, gets what the log said at most `refresh_ms` ago: to look again is one LIST of
the log as long as nothing changed, whoever waits shares it, and a state that is known is kept. Every answer is of one
snapshot, and a listing of many pages finds its own again.

A part that was replaced can still be fetched for `hold_ms`: who has listed it, a moment before a merge, is still
reading. That is asked of the log's own times, so that it is the same behind every proxy and after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from icedb.errors import BucketNotFound, IceDBError, InvalidOption, RetryableError, SnapshotExpired, TableNotFound
from icedb.format.keys import partition_of
from icedb.format.records import Marker
from icedb.format.replay import TableState, live_markers
from icedb.services.proxy.catalog.bucket_view import BucketView, VirtualObject
from icedb.services.proxy.catalog.view_cache import ViewCache
from icedb.services.proxy.config.tenants import Scope, VirtualBucket
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.storage.obstore_store import ObjectStore
from icedb.table import Table
from icedb.transaction.pin_objects import is_pinned
from icedb.transaction.table_handle import Handle
from icedb.transaction.time_bounds import check_readable_time
from icedb.util.clock import Clock, SystemClock
from icedb.util.lru_cache import LruCache

__all__ = ["RefreshObserver", "TableCatalog"]

logger = logging.getLogger("icedb.proxy")

# Clients whose clocks are ahead may ask for their own now.
AHEAD_MS_MAX = 60_000
# A known part is given out without another look at the log, if that is not older.
KNOWN_SECONDS = 10
# So often it is asked whether a table is still the one that was opened: another may have been made in its place.
SAME_SECONDS = 60
# Times of one table that are known to be gone.
EXPIRED_MAX = 1_000
# Clocks are set: only what is more than that is a machine that slept.
ASLEEP_MS = 5_000
# For looks at logs; a store that does not answer holds one thread for each of its tables.
THREADS = 32


class RefreshObserver(Protocol):
    """Who is told of looks at logs."""

    def refreshed(self, ok: bool, seconds: float) -> None:
        """The log of a table was looked at."""
        ...


@dataclass(frozen=True)
class _CurrentState:
    """What a look at a table's log told."""

    handle: Handle
    state: TableState
    latest: BucketView
    #: By the loop's clock, when the look began; and by the machine's, which goes on when the machine sleeps.
    read_at: float
    read_ms: int
    #: By the loop's clock, when the table was opened, or was seen to be still the same.
    opened_at: float

    def find(self, key: str) -> Marker | None:
        """A part that the log has, live or not, by its virtual key."""
        return self.state.parts.get(self.latest.data_prefix + key)


@dataclass
class _OpenTable:
    """A table, and what is known of it. Its event loop's alone: threads only read logs for it."""

    address: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    known: _CurrentState | None = None
    #: Of the last look, if it failed: when it began, and the code of what was answered.
    failed: tuple[float, str] | None = None
    #: By snapshot and partitions of the scope: a listing of many pages comes back for it.
    views: ViewCache[tuple[str, tuple[str, ...]]] = field(default_factory=ViewCache)
    #: Whole views by the times that somebody asked for, kept by the loop's clock.
    at_time: ViewCache[int] = field(default_factory=ViewCache)
    #: One look at a time asks the store for what the log alone does not tell.
    time_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Times that cannot be read any more, and when that was found.
    expired: LruCache[int, float] = field(default_factory=lambda: LruCache(EXPIRED_MAX))

    def forget(self) -> None:
        """What is at the address may be another table by now."""
        self.known = None
        self.views.clear()
        self.at_time.clear()
        self.expired.clear()


class TableCatalog:
    """Opens tables when somebody asks for them. Belongs to one event loop."""

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
        """`storage_options`: those of all tables, as for `Table.open`. `open_table` is for tests.

        `tables_open`: so many are kept; the one that nobody asked for longest is let go.
        """
        self._storage_options = storage_options or None
        self._refresh = refresh_ms / 1000
        self._hold_ms = hold_ms
        self._clock = clock or SystemClock()
        self._observer = observer
        self._open_table = open_table or _open
        self._tables: LruCache[str, _OpenTable] = LruCache(tables_open)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="icedb-proxy")

    def close(self) -> None:
        """Let go of the threads; looks that are under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def open_count(self) -> int:
        """How many tables are held open."""
        return len(self._tables)

    @property
    def live_parts(self) -> int:
        """How many live parts they have, as far as is known."""
        return sum(len(t.known.latest.keys) for t in self._tables.values() if t.known is not None)

    # ------------------------------------------------------------------------------------ views

    async def view(self, bucket: VirtualBucket, as_of_ms: int | None) -> BucketView:
        """What a bucket shows, now or as of a time. Raises S3Error."""
        at_ms = self._checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        whole = (await self._latest(table)).latest if at_ms is None else await self._at(table, at_ms)
        return await self._within(table, whole, bucket.scope)

    async def resume_view(
        self, bucket: VirtualBucket, as_of_ms: int | None, *, began_ms: int, snapshot_id: str
    ) -> BucketView | None:
        """The view that a listing began with, by its time and `snapshot_id`; None: it is no more.

        Of a bucket that shows the latest, what began longer ago than replaced parts are held is no more.
        """
        at_ms = self._checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        now_ms = self._clock.now_ms()
        if at_ms is None and now_ms - began_ms > self._hold_ms:
            return None
        view = table.views.get((snapshot_id, bucket.scope.partitions))
        if view is not None and at_ms == view.as_of_ms:
            return view
        # The time in a token is the client's word: that the view was the latest not long ago, we must know ourselves.
        if view is not None and at_ms is None and now_ms - view.as_of_ms <= self._hold_ms:
            return replace(view, as_of_ms=max(view.as_of_ms, began_ms))  # the next page begins no earlier than this one
        if (
            at_ms is None
            and began_ms > now_ms + AHEAD_MS_MAX
            and began_ms > (await self._latest(table)).latest.as_of_ms
        ):
            return None  # no listing began then, not even of a table with commits from a clock far ahead
        try:
            whole = await self._at(table, began_ms if at_ms is None else at_ms)
        except S3Error as error:
            if error.status == 404:
                return None
            raise
        return await self._within(table, whole, bucket.scope) if whole.snapshot_id == snapshot_id else None

    # ------------------------------------------------------------------------------------ objects

    async def find(self, bucket: VirtualBucket, as_of_ms: int | None, key: str) -> tuple[VirtualObject, ObjectStore]:
        """An object of a bucket, and the store that has it. Raises S3Error: NoSuchKey."""
        at_ms = self._checked_time(bucket.scope, as_of_ms)
        table = self._table(bucket)
        known = table.known
        if at_ms is not None:
            found = (await self._at(table, at_ms)).find(key)
            known = table.known or await self._latest(table)
        else:
            found = None
            if known is not None and self._is_fresh(known, KNOWN_SECONDS):
                found = self._find(known, key)
            if found is None:
                known = await self._latest(table)
                found = self._find(known, key)
        if found is None or known is None:
            raise S3Error("NoSuchKey")
        if not bucket.scope.shows(partition_of(known.latest.data_prefix, found.stored_key)):
            raise S3Error("NoSuchKey")
        return found, known.handle.store

    def _find(self, known: _CurrentState, key: str) -> VirtualObject | None:
        marker = known.find(key)
        return known.latest.object(marker) if marker is not None and self._is_held(known, marker) else None

    def _is_fresh(self, known: _CurrentState, seconds: float) -> bool:
        """Whether a look is not older; by both clocks, as one stands while the machine sleeps."""
        age = asyncio.get_running_loop().time() - known.read_at
        return age <= seconds and self._clock.now_ms() - known.read_ms <= seconds * 1000

    def _is_held(self, known: _CurrentState, marker: Marker) -> bool:
        """Whether a part is live, or was for somebody who may still be reading.

        A replaced one was until the store got the log file that says so. That file may have been merged since; then its
        time counts and how late it can have come.
        """
        if marker.tombstoned_ms is None:
            return True
        gone_ms = marker.tombstoned_ms + known.handle.timing.late_publication_ms
        named = known.state.parts_named.get(marker.key)
        told_ms: int = min((gone_ms, *(named.tombstoned_by_ms if named else ())))
        return self._clock.now_ms() - told_ms <= self._hold_ms

    # ------------------------------------------------------------------------------------ times

    def _checked_time(self, scope: Scope, as_of_ms: int | None) -> int | None:
        """The time that an answer is of; None: the latest. Raises S3Error."""
        if as_of_ms is None or as_of_ms == scope.as_of_ms:
            return scope.as_of_ms
        if scope.as_of_ms is not None or not scope.time_travel:
            raise S3Error("AccessDenied", "This bucket cannot be read as of another time.")
        if scope.earliest_ms is not None and as_of_ms < scope.earliest_ms:
            raise S3Error("AccessDenied", "This bucket cannot be read as of a time so long ago.")
        if as_of_ms > self._clock.now_ms() + AHEAD_MS_MAX:
            raise S3Error("InvalidArgument", "The time after the bucket's name is in the future.")
        return as_of_ms

    # ------------------------------------------------------------------------------------ looking at logs

    def _table(self, bucket: VirtualBucket) -> _OpenTable:
        table = self._tables.get(bucket.table)
        if table is None:
            table = _OpenTable(bucket.table)
            self._tables.put(bucket.table, table)
        return table

    async def _latest(self, table: _OpenTable, *, fresh: bool = False) -> _CurrentState:
        """What a look at the log told that began at most `refresh_ms` ago, or, `fresh`, now. Raises S3Error."""
        oldest = asyncio.get_running_loop().time() - (0 if fresh else self._refresh)
        async with table.lock:  # whoever waited meanwhile has the answer too, also when there is none
            if table.failed is not None and table.failed[0] >= oldest:
                raise _refusal(table.failed[1])
            known = table.known
            asleep_ms = 0 if known is None else self._clock.now_ms() - known.read_ms - 1000 * self._refresh
            if known is None or known.read_at < oldest or asleep_ms > ASLEEP_MS:
                known = table.known = await self._look(table, known)
        return known

    async def _look(self, table: _OpenTable, known: _CurrentState | None) -> _CurrentState:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found = await loop.run_in_executor(self._threads, self._read, table.address, known, began)
        except (IceDBError, OSError) as error:
            self._tell(ok=False, seconds=loop.time() - began)
            if not _may_pass(error):
                table.forget()
            answer = _answer_for(error, table.address)
            table.failed = began, answer.code
            raise answer from None
        self._tell(ok=True, seconds=loop.time() - began)
        table.failed = None
        if known is not None and found.handle is not known.handle:
            table.forget()
        return found

    def _tell(self, *, ok: bool, seconds: float) -> None:
        if self._observer is not None:
            self._observer.refreshed(ok, seconds)

    def _read(self, address: str, known: _CurrentState | None, began: float) -> _CurrentState:
        """In a thread: the state now, and its view, which is the known one when nothing changed."""
        if known is not None and (not known.handle.spec.id or began - known.opened_at <= SAME_SECONDS):
            handle, opened_at = known.handle, known.opened_at  # what a program of v3 made has no id
        else:
            handle, opened_at = self._open_table(address, self._storage_options), began
            if known is not None and handle.spec.id == known.handle.spec.id:
                handle = known.handle
        now_ms = self._clock.now_ms() - 1  # as for a snapshot: what this millisecond still brings is later
        state = handle.read()
        as_of_ms = max(now_ms, state.newest_ms)
        if known is not None and state is known.state:
            latest = replace(known.latest, as_of_ms=as_of_ms)
            return replace(known, latest=latest, read_at=began, read_ms=now_ms + 1, opened_at=opened_at)
        view = BucketView.of(state.live, data_prefix=handle.keys.data_prefix, as_of_ms=as_of_ms)
        return _CurrentState(handle, state, view, began, now_ms + 1, opened_at)

    async def _at(self, table: _OpenTable, at_ms: int) -> BucketView:
        """The view as of a time. Once told it stays as it is, while it is remembered. Raises S3Error."""
        loop = asyncio.get_running_loop()
        if (told := self._told(table, at_ms)) is not None:
            return told
        async with table.time_lock:  # whoever waited meanwhile has the answer too
            if (told := self._told(table, at_ms)) is not None:
                return told
            gone_at = table.expired.get(at_ms)
            if gone_at is not None and gone_at >= loop.time() - self._refresh:
                raise _no_more()
            known = await self._latest(table)
            if known.latest.as_of_ms < at_ms:  # what was committed until then is asked for
                known = await self._latest(table, fresh=True)
            try:
                view = await loop.run_in_executor(self._threads, _view_at, known, at_ms)
            except SnapshotExpired:
                table.expired.put(at_ms, loop.time())
                raise _no_more() from None
            except InvalidOption:
                why = "The time after the bucket's name is before the table's creation, or in the future."
                raise S3Error("InvalidArgument", why) from None
            except (IceDBError, OSError) as error:
                raise _answer_for(error, table.address) from None
            same = table.views.get((view.snapshot_id, ()))
            view = view if same is None else replace(same, as_of_ms=at_ms)
            view = replace(view, numbers={})
            table.at_time.keep(at_ms, view, at=loop.time())
        return view

    def _told(self, table: _OpenTable, at_ms: int) -> BucketView | None:
        """What was last told of a time."""
        return table.at_time.get(at_ms, since=asyncio.get_running_loop().time() - self._hold_ms / 1000)

    async def _within(self, table: _OpenTable, whole: BucketView, scope: Scope) -> BucketView:
        name = whole.snapshot_id, scope.partitions
        view = table.views.get(name)
        if view is None:
            view = replace(whole, numbers={})  # the latest view alone keeps what scopes are made with
            if scope.partitions:
                view = await asyncio.get_running_loop().run_in_executor(self._threads, whole.within, scope)
        elif view.as_of_ms != whole.as_of_ms:
            view = replace(view, as_of_ms=whole.as_of_ms)
        table.views.keep(name, view)
        return view


def _open(address: str, storage_options: Mapping[str, str] | None) -> Handle:
    return Table.open(address, storage_options=storage_options).handle


def _view_at(known: _CurrentState, at_ms: int) -> BucketView:
    handle, state = known.handle, known.state
    check_readable_time(handle, state, at_ms, now_ms=handle.clock.now_ms())
    pinned = at_ms < state.horizon_ms and is_pinned(handle, at_ms)
    markers = live_markers(state, at_ms, pinned=pinned)
    view = BucketView.of(markers, data_prefix=handle.keys.data_prefix, as_of_ms=at_ms)
    return replace(known.latest, as_of_ms=at_ms) if view.snapshot_id == known.latest.snapshot_id else view


def _no_more() -> S3Error:
    return S3Error("NoSuchBucket", "The table can no longer be read as of that time.")


def _answer_for(error: Exception, address: str) -> S3Error:
    """What a client is told of a table that cannot be read; the log says what it is."""
    logger.error("the table %s cannot be shown: %s", address, error)
    return _refusal("ServiceUnavailable" if _may_pass(error) else "InternalError")


def _may_pass(error: Exception) -> bool:
    """Whether the table is still what it was, and can be shown again when the store, or who may read it, is back."""
    return isinstance(error, RetryableError | OSError) and not isinstance(error, TableNotFound | BucketNotFound)


def _refusal(code: str) -> S3Error:
    message = "This bucket cannot be shown. Whoever runs the endpoint has to look." if code == "InternalError" else ""
    return S3Error(code, message)
