"""`BufferedWriter`: few commits for the rows of many senders, with an acknowledgement for each.

A sender waits for room and puts its rows into a queue. One thread takes groups from the queue and commits them, one
after the other. Meanwhile the next group fills. Writers that are still open when the interpreter ends are flushed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import threading
import time
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import accumulate
from types import TracebackType
from typing import Self, get_args

from icedb.buffering.committing import Committer
from icedb.buffering.ids import Ids, check_window
from icedb.buffering.queue import SubmissionQueue
from icedb.buffering.room import Room, Ticket
from icedb.buffering.submissions import Acknowledged, AcknowledgementFuture, BufferStats, Rows, Submission, measured
from icedb.errors import BufferFull, InvalidOption, WriterClosed
from icedb.format.timing import DAY_MS
from icedb.sources.batch import OnConflict
from icedb.sql.connections import MIB, check_write_memory
from icedb.table import Table
from icedb.util.arguments import checks_arguments

__all__ = ["BufferedWriter"]

logger = logging.getLogger(__name__)

# The time in which a writer that is open when the interpreter ends must commit its rows.
_EXIT_TIMEOUT_MS = 60_000
# The number of failed futures that are kept for `flush`, which raises one of them.
_FAILED_MAX = 1_000
# The upper limits (ms) by which durations of commits are counted.
_DURATION_LIMITS: tuple[float, ...] = (
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, math.inf,
)  # fmt: skip

_open: weakref.WeakSet[BufferedWriter] = weakref.WeakSet()


@checks_arguments
class BufferedWriter:
    """Collects rows and commits them in groups, by number, size or time, whichever limit is reached first.

    Threads and event loops can share a writer. Its own thread commits a group while the next one fills. A writer
    belongs to one process, and does not survive a fork. As a context manager, it is closed at the end of the block.

    Args:
        table: The table to write to.
        rows_max: Commit a group once it has this many rows.
        bytes_max: Commit a group once it has this many bytes (of rows as JSON, or of Arrow).
        delay_max_ms: Commit a group once its oldest rows have waited this long (milliseconds).
        pending_bytes_max: The bytes that may wait in all. Senders wait once they are reached.
        id_column: The column of idempotency keys. Rows with an id that was committed within `id_window_ms` are
            dropped and counted as repeated. This covers all writers of the table with the same `id_column`, also
            after crashes. Rows without an id (null or an empty text) are always accepted.
        id_window_ms: For how long ids are remembered (milliseconds).
        ids_max: The maximal number of ids to remember (16 bytes each). The oldest are forgotten first.
        on_conflict: As for `Table.insert`.
        retry_max_ms: For how long a group is retried if the store does not answer (milliseconds).
        memory_bytes: As for `Table.insert`.
        partitions_max: Reject submissions with rows in more partitions with TooManyPartitions. A group never has
            more partitions either.
        columns_max: Reject a submission with new columns with TooManyColumns if the table would then have more
            columns. Writers that add columns at the same moment may exceed the limit together.

    Raises:
        InvalidOption: An option is invalid.
        CorruptLog, StoreUnavailable, AccessDenied, BucketNotFound: The ids could not be read from the table. Only
            with `id_column`.

    Example:
        >>> with icedb.BufferedWriter(table) as writer:
        ...     writer.submit([{"ts": now, "user_id": 7}])
    """

    def __init__(
        self,
        table: Table,
        *,
        rows_max: int = 50_000,
        bytes_max: int = 32 * MIB,
        delay_max_ms: int = 1_000,
        pending_bytes_max: int = 128 * MIB,
        id_column: str | None = None,
        id_window_ms: int = DAY_MS,
        ids_max: int = 10_000_000,
        on_conflict: OnConflict = "raise",
        retry_max_ms: int = 60_000,
        memory_bytes: int | None = None,
        partitions_max: int | None = None,
        columns_max: int | None = None,
    ) -> None:
        """Start the writer and its thread."""
        self._table = table
        self._rows_max, self._bytes_max, self._delay_seconds = rows_max, bytes_max, delay_max_ms / 1000
        self._check_options(
            rows_max=rows_max,
            bytes_max=bytes_max,
            delay_max_ms=delay_max_ms,
            pending_bytes_max=pending_bytes_max,
            id_window_ms=id_window_ms,
            ids_max=ids_max,
            retry_max_ms=retry_max_ms,
            **{
                n: v for n, v in {"partitions_max": partitions_max, "columns_max": columns_max}.items() if v is not None
            },
        )
        if on_conflict not in get_args(OnConflict):
            raise InvalidOption(f"{table.uri}: on_conflict is {on_conflict!r}; give 'raise', 'cast' or 'quarantine'.")
        check_write_memory(memory_bytes, table=table.uri)
        handle = table.handle
        self._ids = Ids(handle, id_column, window_ms=id_window_ms, ids_max=ids_max) if id_column is not None else None
        self._give_up = threading.Event()
        self._committer = Committer(
            handle,
            partitions_max=partitions_max,
            columns_max=columns_max,
            on_conflict=on_conflict,
            memory_bytes=memory_bytes,
            ids=self._ids,
            retry_max_ms=retry_max_ms,
            give_up=self._give_up,
        )
        self._pid = os.getpid()
        self._room = Room(pending_bytes_max)
        #: Guards the attributes below, and is notified when one changes.
        self._changed = threading.Condition()
        self._queue = SubmissionQueue()
        self._group: list[Submission] = []
        #: Submissions up to this time are due at once.
        self._flush_requested_until = 0.0
        self._closed = False
        self._failed: deque[AcknowledgementFuture] = deque(maxlen=_FAILED_MAX)
        self._last_ms = self._total_ms = 0
        #: The number of groups by duration: each limit has those that are above the one before it.
        self._durations = [0] * len(_DURATION_LIMITS)
        # A daemon. Otherwise the interpreter would wait for it before it runs exit handlers.
        self._thread = threading.Thread(target=self._run, name=f"icedb-writer {table.uri}", daemon=True)
        self._thread.start()
        _open.add(self)

    def _check_options(self, **options: int) -> None:
        uri, timing = self._table.uri, self._table.spec.timing
        for name, value in options.items():
            least = 0 if name in ("delay_max_ms", "retry_max_ms") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidOption(f"{uri}: {name} is {value!r}; give a whole number of at least {least}.")
        check_window(options["id_window_ms"], timing, table=uri)

    def __repr__(self) -> str:
        return f"BufferedWriter({self._table!r})"

    # ------------------------------------------------------------------------------------ take rows

    def submit(self, rows: Rows, *, timeout_ms: int | None = None, sender: str | None = None) -> Future[Acknowledged]:
        """Submit rows, and return before they are committed.

        The rows of a submission are committed together or not at all. Cancelling the future drops the rows, unless
        the commit of their group has begun.

        Args:
            rows: A list of dicts, or Arrow. Do not change the dicts before the future is done.
            timeout_ms: How long to wait for room (milliseconds). None waits without limit, and 0 does not wait.
            sender: The name of the rows' owner, such as a tenant. Senders take turns in groups, and rejected rows of
                one delay the others as little as possible.

        Returns:
            A future with the acknowledgement once all rows are committed, or with the error.

        Raises:
            InvalidBatch: The rows are neither a list of dicts nor Arrow.
            BufferFull: There was no room within `timeout_ms`.
            WriterClosed: The writer is closed.

        Example:
            >>> future = writer.submit([{"user_id": 7}])
            >>> future.result().rows
            1
        """
        submission, ticket = self._arrive(rows, sender)
        try:
            ticket.result(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            if self._room.reject(ticket):
                raise self._full(timeout_ms) from None
        except BaseException:  # an interrupt
            self._leave(ticket)
            raise
        return self._put(submission)

    def write(self, rows: Rows, *, timeout_ms: int | None = None, sender: str | None = None) -> Acknowledged:
        """Submit rows, and wait until they are committed. Arguments and errors are those of `submit` and `insert`.

        Example:
            >>> writer.write([{"user_id": 7}]).rows
            1
        """
        return self.submit(rows, timeout_ms=timeout_ms, sender=sender).result()

    async def write_async(
        self, rows: Rows, *, timeout_ms: int | None = None, sender: str | None = None
    ) -> Acknowledged:
        """Do as `write`, without blocking the event loop. A cancelled call may still commit its rows.

        Example:
            >>> acknowledged = await writer.write_async([{"user_id": 7}])
        """
        submission, ticket = self._arrive(rows, sender)
        if not ticket.done():
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await asyncio.wrap_future(ticket)
            except TimeoutError:
                self._leave(ticket)
                raise self._full(timeout_ms) from None
            except BaseException:  # cancelled
                self._leave(ticket)
                raise
        return await asyncio.wrap_future(self._put(submission))

    def _arrive(self, rows: Rows, sender: str | None) -> tuple[Submission, Ticket]:
        """Return the submission, and a ticket that is done once it has room."""
        self._check_open()
        submission = measured(rows, table=self._table.uri)
        submission.sender = sender
        return submission, self._room.enter(submission.bytes)

    def _leave(self, ticket: Ticket) -> None:
        """Give up the room of a ticket, or its place in the queue."""
        if not self._room.reject(ticket) and not ticket.cancelled() and ticket.exception() is None:
            self._room.give_back(ticket.size)

    def _put(self, submission: Submission) -> AcknowledgementFuture:
        with self._changed:
            if self._closed:
                self._room.give_back(submission.bytes)
                raise self._is_closed()
            submission.since = time.monotonic()
            if not submission.count:
                self._room.give_back(submission.bytes)
                submission.answer.set_result(Acknowledged(0))
                return submission.answer
            self._queue.put(submission)
            if len(self._queue) == 1 or self._is_due():
                self._changed.notify_all()
        return submission.answer

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise self._is_closed()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # before any lock: a lock that was held during the fork is never released
            raise WriterClosed(
                f"{self._table.uri}: this BufferedWriter belongs to process {self._pid}, and was carried into "
                f"{os.getpid()} by a fork. Open the table and create a writer after the fork, in each process."
            )

    def _is_closed(self) -> WriterClosed:
        return WriterClosed(
            f"{self._table.uri}: this BufferedWriter is closed, so the rows were not taken. Create another writer."
        )

    def _full(self, timeout_ms: int | None) -> BufferFull:
        return BufferFull(
            f"{self._table.uri}: there was no room for these rows within {timeout_ms} ms: {self._room.taken} bytes are "
            "not committed yet. None of the rows was taken. Retry later, or set a larger pending_bytes_max."
        )

    # ------------------------------------------------------------------------------------ commit groups

    def _run(self) -> None:
        while group := self._next_group():
            began, left = time.monotonic(), list[Submission]()
            try:
                left = self._committer.commit(group)
            except BaseException as error:  # an error that rows cannot cause: the writer can no longer commit
                self._stop(error)
                raise
            finally:
                self._finish(group, left, began)
            del group, left  # the rows must not stay in memory until the next group comes
        if self._ids is not None:
            self._ids.close()

    def _next_group(self) -> list[Submission]:
        """Wait for the next group and return it. Return an empty one once the writer is closed."""
        with self._changed:
            while True:
                while not self._is_due():
                    if self._closed and not self._queue:
                        return []
                    self._changed.wait(self._seconds_left())
                self._group = self._take()
                if self._group:
                    return self._group

    def _is_due(self) -> bool:
        if not self._queue:
            return False
        enough = self._queue.rows >= self._rows_max or self._queue.bytes >= self._bytes_max
        is_flush_requested = (self._queue.since or 0) <= self._flush_requested_until
        return enough or self._closed or is_flush_requested or (self._seconds_left() or 0) <= 0

    def _seconds_left(self) -> float | None:
        """Return for how long the oldest submission may still wait, or None if there is none."""
        since = self._queue.since
        return None if since is None else since + self._delay_seconds - time.monotonic()

    def _take(self) -> list[Submission]:
        """Return the next group, without cancelled submissions."""
        group = []
        for submission in self._queue.take(self._rows_max, self._bytes_max):
            if submission.answer.begin():
                group.append(submission)
            else:
                self._room.give_back(submission.bytes)
        return group

    def _finish(self, group: Iterable[Submission], left: Sequence[Submission], began: float) -> None:
        """Record a commit. Submissions that are left return to the queue, and are due at once."""
        took_ms = round((time.monotonic() - began) * 1000)
        again = set(left)
        with self._changed:
            self._group = []
            self._last_ms, self._total_ms = took_ms, self._total_ms + took_ms
            self._durations[bisect_left(_DURATION_LIMITS, took_ms)] += 1
            self._failed = deque((a for a in self._failed if not a.seen), _FAILED_MAX)
            for submission in group:
                if submission in again:
                    continue
                self._room.give_back(submission.bytes)
                if submission.answer.done() and submission.answer.failed:
                    self._failed.append(submission.answer)
            if not self._give_up.is_set():
                self._queue.put_back(left)
                self._flush_requested_until = max((self._flush_requested_until, *(s.since for s in left)))
            self._changed.notify_all()
        if self._give_up.is_set():
            self._drop(left)

    def _stop(self, error: BaseException) -> None:
        """Accept no more rows, and set an error on all waiting submissions."""
        with self._changed:
            self._closed = True
            left = [*self._group, *self._queue.clear()]
        self._room.close(self._is_closed())
        for submission in left:
            if not submission.answer.done() and submission.answer.begin():
                submission.answer.set_exception(error)

    # ------------------------------------------------------------------------------------ flush and close

    def flush(self, *, timeout_ms: int | None = None) -> None:
        """Commit all submitted rows now, and wait until they are committed.

        Args:
            timeout_ms: How long to wait (milliseconds). None waits without limit.

        Raises:
            BufferFull: Not all rows were committed within `timeout_ms`.
            IceDBError: The first error of a submission whose future was not read.

        Example:
            >>> writer.flush()
        """
        self._check_open()
        self._raise_unseen(self._wait_for_all(timeout_ms))

    def close(self, *, timeout_ms: int | None = None) -> None:
        """Accept no more rows, commit the submitted ones, and stop the writer. May be called again.

        Args:
            timeout_ms: How long to wait (milliseconds). Groups that have not begun by then are dropped, and their
                futures have an error. None waits without limit.

        Raises:
            BufferFull, IceDBError: As for `flush`.

        Example:
            >>> writer.close(timeout_ms=10_000)
        """
        if os.getpid() != self._pid:
            return  # the parent process closes it
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._room.close(self._is_closed())
        _open.discard(self)
        try:
            answers = self._wait_for_all(timeout_ms)
        except BufferFull:
            self._abandon()
            raise
        self._thread.join()
        self._raise_unseen(answers)

    def _abandon(self) -> None:
        """Drop the groups that have not begun, and stop retrying. A commit in progress cannot be stopped."""
        self._give_up.set()
        with self._changed:
            left = self._queue.clear()
            self._changed.notify_all()
        self._drop(left)

    def _drop(self, submissions: Iterable[Submission]) -> None:
        """Set an error on submissions that were not committed before the writer was closed."""
        for submission in submissions:
            self._room.give_back(submission.bytes)
            if submission.answer.begin():
                submission.answer.set_exception(
                    WriterClosed(
                        f"{self._table.uri}: this BufferedWriter was closed before these rows were committed. Nothing "
                        "of them is in the table. Write them with another writer."
                    )
                )

    def _wait_for_all(self, timeout_ms: int | None) -> list[AcknowledgementFuture]:
        with self._changed:
            waiting = [s.answer for s in (*self._group, *self._queue.all())]
            self._flush_requested_until = time.monotonic()
            self._changed.notify_all()
        left = wait(waiting, timeout=None if timeout_ms is None else timeout_ms / 1000).not_done
        if left:
            raise BufferFull(
                f"{self._table.uri}: {len(left)} of {len(waiting)} submissions were not answered within {timeout_ms} "
                "ms. Check that the store can be reached, or set a longer timeout_ms."
            )
        return waiting

    def _raise_unseen(self, answers: list[AcknowledgementFuture]) -> None:
        """Raise the first unread error of these answers and of earlier ones."""
        with self._changed:
            unseen = [a for a in dict.fromkeys((*self._failed, *answers)) if a.failed and not a.seen]
            self._failed.clear()
        if not unseen:
            return
        if len(unseen) > 1:
            uri = self._table.uri
            logger.error("%s: %d submissions failed, and their errors were not read; one is raised", uri, len(unseen))
        for answer in unseen:
            answer.seen = True
        unseen[0].result()

    def stats(self) -> BufferStats:
        """Return the counts of committed and waiting rows.

        Raises:
            WriterClosed: The process was forked after the writer was created.

        Example:
            >>> writer.stats().pending_rows
            0
        """
        self._check_process()
        with self._changed:
            submissions = len(self._group) + len(self._queue)
            pending_rows = self._queue.rows + sum(s.count for s in self._group)
            pending_bytes = self._queue.bytes + sum(s.bytes for s in self._group)
            waits = self._queue.since
            oldest = min((*(s.since for s in self._group), *([] if waits is None else [waits])), default=None)
            last_ms, total_ms = self._last_ms, self._total_ms
            durations = tuple(zip(_DURATION_LIMITS, accumulate(self._durations), strict=True))
        counts = self._committer.counts
        return BufferStats(
            pending_submissions=submissions,
            pending_rows=pending_rows,
            pending_bytes=pending_bytes,
            oldest_pending_ms=0 if oldest is None else round((time.monotonic() - oldest) * 1000),
            commits=counts.commits,
            committed_rows=counts.rows,
            repeated_rows=counts.repeated_rows,
            quarantined_rows=counts.quarantined_rows,
            failed_submissions=counts.failed_submissions,
            failed_rows=counts.failed_rows,
            retries=counts.retries,
            last_commit_ms=last_ms,
            total_commit_ms=total_ms,
            commit_durations=durations,
            known_ids=self._ids.count if self._ids is not None else 0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end, error)

    def close_at_exit(self) -> None:
        """Close the writer, and log how many rows could not be committed: no caller can catch an error any more."""
        if os.getpid() != self._pid:
            return
        left = self.stats().pending_rows
        try:
            self.close(timeout_ms=_EXIT_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001  logged, whatever its type
            logger.error("%s: of %d rows that waited at exit, not all are committed: %s", self._table.uri, left, error)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.close()
            return
        with suppress(Exception):  # logged; the caller's own error comes first
            self.close()


def _close_all() -> None:
    """Close all open writers when the interpreter ends, and log the rows that are lost."""
    for writer in list(_open):
        writer.close_at_exit()


# This runs before `atexit` handlers: at that time no thread can be started, and writing parts needs threads. The last
# registered function runs first, so before the one of `icedb.writer.part_writer` that stops all thread pools.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
