"""`BufferedWriter`: rows of many senders become few commits, and each sender hears when his are committed.

Whoever submits waits for room, and puts his rows into a queue. One thread takes groups from it and commits them, one
after the other; while it does, the next group gathers. What is open when the interpreter ends is flushed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from types import TracebackType
from typing import Self, get_args

from icedb.buffering.committing import Committer
from icedb.buffering.ids import Ids, check_window
from icedb.buffering.queue import SubmissionQueue
from icedb.buffering.room import Room, Ticket
from icedb.buffering.submissions import Acknowledged, Answer, BufferStats, Rows, Submission, measured
from icedb.errors import BufferFull, InvalidOption, WriterClosed
from icedb.format.timing import DAY_MS
from icedb.operations.write.insert import BatchLimits
from icedb.sources.batch import OnConflict
from icedb.sql.connections import MIB, check_write_memory
from icedb.table import Table
from icedb.util.arguments import checks_arguments

__all__ = ["BufferedWriter"]

logger = logging.getLogger(__name__)

# What is open when the interpreter ends has so long.
_EXIT_TIMEOUT_MS = 60_000
# So many futures with errors are kept for `flush`, which raises one of them.
_FAILED_MAX = 1_000

_open: weakref.WeakSet[BufferedWriter] = weakref.WeakSet()


@checks_arguments
class BufferedWriter:
    """Gathers rows and commits them together: by number, by size or by time, whichever comes first.

        with icedb.BufferedWriter(table) as writer:
            writer.submit([{"ts": now, "user_id": 7}])

    Safe to share between threads and event loops. A commit is made by a thread of the writer's own while the next
    rows gather. One process, one writer: it does not survive a fork.
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
        """Begin to gather.

        A group is committed when it has `rows_max` rows or `bytes_max` bytes (of rows as JSON, or of Arrow), or when
        its oldest rows have waited `delay_max_ms`. `pending_bytes_max`: what may wait in all, before senders must.

        `id_column`: rows whose value there was committed within the last `id_window_ms` are dropped and counted as
        repeated, whichever writer of this table with the same `id_column` committed them, and whatever died in
        between. Up to `ids_max` ids are remembered (16 bytes each), the youngest. Rows without an id, null or an empty
        text, are always taken.

        `retry_max_ms`: so long a group is tried again when the store does not answer. `on_conflict` and `memory_bytes`
        are as for `Table.insert`.

        `partitions_max`: rows of a submission that lie in more partitions are refused with TooManyPartitions, and a
        group never has more. `columns_max`: a submission that brings columns is refused with TooManyColumns, if the
        table would have more than that; writers that bring columns at the same moment may go beyond it together.

        Raises InvalidOption; with `id_column` the ids are read from the table, so CorruptLog and the store's errors.
        """
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
            limits=BatchLimits(partitions_max, columns_max),
            on_conflict=on_conflict,
            memory_bytes=memory_bytes,
            ids=self._ids,
            retry_max_ms=retry_max_ms,
            give_up=self._give_up,
        )
        self._pid = os.getpid()
        self._room = Room(pending_bytes_max)
        #: Guards what follows, and is notified when any of it changes.
        self._changed = threading.Condition()
        self._queue = SubmissionQueue()
        self._group: list[Submission] = []
        #: Submissions up to this time are due, whatever they are.
        self._hurried_until = 0.0
        self._closed = False
        self._failed: deque[Answer] = deque(maxlen=_FAILED_MAX)
        self._last_ms = self._total_ms = 0
        # A daemon, for otherwise the interpreter would wait for it before it tells anybody that it ends.
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
        """Hand over rows: a list of dicts, or Arrow. Do not change the dicts before they are answered.

        Waits until there is room, at most `timeout_ms` (None: as long as it takes; 0: not at all). The future has the
        acknowledgement once all rows are committed, or the error: it is all of these rows or none of them. Cancelled
        before its group is begun, they are dropped.

        `sender`: a name for those whose rows they are, such as a tenant. Each sender has its turn in groups, and rows
        of one that are refused delay others as little as can be.

        Raises InvalidBatch, BufferFull, WriterClosed.
        """
        submission, ticket = self._arrive(rows, sender)
        try:
            ticket.result(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            if self._room.turn_away(ticket):
                raise self._full(timeout_ms) from None
        except BaseException:  # an interrupt
            self._leave(ticket)
            raise
        return self._put(submission)

    def write(self, rows: Rows, *, timeout_ms: int | None = None, sender: str | None = None) -> Acknowledged:
        """As `submit`, and wait until they are committed. Raises what was wrong, too."""
        return self.submit(rows, timeout_ms=timeout_ms, sender=sender).result()

    async def write_async(
        self, rows: Rows, *, timeout_ms: int | None = None, sender: str | None = None
    ) -> Acknowledged:
        """As `write`, without blocking the event loop. Who cancels it may find the rows committed all the same."""
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
        """The rows, and a ticket that is done when they have room."""
        self._check_open()
        submission = measured(rows, table=self._table.uri)
        submission.sender = sender
        return submission, self._room.enter(submission.bytes)

    def _leave(self, ticket: Ticket) -> None:
        """Who had, or waits for, room does not need it any more."""
        if not self._room.turn_away(ticket) and not ticket.cancelled() and ticket.exception() is None:
            self._room.give_back(ticket.size)

    def _put(self, submission: Submission) -> Answer:
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
        if os.getpid() != self._pid:  # before any lock: one that was held when the process forked is held for ever
            raise WriterClosed(
                f"{self._table.uri}: this BufferedWriter belongs to process {self._pid}, and was carried into "
                f"{os.getpid()} by a fork. Open the table and make a writer after the fork, in each process."
            )

    def _is_closed(self) -> WriterClosed:
        return WriterClosed(
            f"{self._table.uri}: this BufferedWriter is closed, so the rows were not taken. Make another."
        )

    def _full(self, timeout_ms: int | None) -> BufferFull:
        return BufferFull(
            f"{self._table.uri}: there was no room for these rows within {timeout_ms} ms: {self._room.taken} bytes are "
            "not committed yet. Nothing of them was taken. Send them again later, or give a larger pending_bytes_max."
        )

    # ------------------------------------------------------------------------------------ commit groups

    def _run(self) -> None:
        while group := self._next_group():
            began, left = time.monotonic(), list[Submission]()
            try:
                left = self._committer.commit(group)
            except BaseException as error:  # not one that the rows could cause: nothing can be promised any more
                self._stop(error)
                raise
            finally:
                self._finish(group, left, began)
            del group, left  # until the next one comes, its rows need not stay in memory
        if self._ids is not None:
            self._ids.close()

    def _next_group(self) -> list[Submission]:
        """Wait for the next group; an empty one at the end."""
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
        hurried = (self._queue.since or 0) <= self._hurried_until
        return enough or self._closed or hurried or (self._seconds_left() or 0) <= 0

    def _seconds_left(self) -> float | None:
        """How long the oldest may still wait; None: nothing waits."""
        since = self._queue.since
        return None if since is None else since + self._delay_seconds - time.monotonic()

    def _take(self) -> list[Submission]:
        """The next group; submissions that were cancelled are dropped."""
        group = []
        for submission in self._queue.take(self._rows_max, self._bytes_max):
            if submission.answer.begin():
                group.append(submission)
            else:
                self._room.give_back(submission.bytes)
        return group

    def _finish(self, group: Iterable[Submission], left: Sequence[Submission], began: float) -> None:
        """Take note of a commit. Those that are left go back to the queue, and are due."""
        took_ms = round((time.monotonic() - began) * 1000)
        again = set(left)
        with self._changed:
            self._group = []
            self._last_ms, self._total_ms = took_ms, self._total_ms + took_ms
            self._failed = deque((a for a in self._failed if not a.seen), _FAILED_MAX)
            for submission in group:
                if submission in again:
                    continue
                self._room.give_back(submission.bytes)
                if submission.answer.done() and submission.answer.failed:
                    self._failed.append(submission.answer)
            if not self._give_up.is_set():
                self._queue.put_back(left)
                self._hurried_until = max((self._hurried_until, *(s.since for s in left)))
            self._changed.notify_all()
        if self._give_up.is_set():
            self._drop(left)

    def _stop(self, error: BaseException) -> None:
        """Take nothing more, and answer all who wait with an error."""
        with self._changed:
            self._closed = True
            left = [*self._group, *self._queue.clear()]
        self._room.close(self._is_closed())
        for submission in left:
            if not submission.answer.done() and submission.answer.begin():
                submission.answer.set_exception(error)

    # ------------------------------------------------------------------------------------ flush and close

    def flush(self, *, timeout_ms: int | None = None) -> None:
        """Commit now what was submitted so far, and wait for it.

        Raises BufferFull when that takes longer than `timeout_ms`, and the first error of rows that failed and whose
        future nobody has looked at.
        """
        self._check_open()
        self._raise_unseen(self._wait_for_all(timeout_ms))

    def close(self, *, timeout_ms: int | None = None) -> None:
        """Take no more rows, commit what is there, and stop. May be called again.

        After `timeout_ms` what is not begun is dropped: its futures say so, BufferFull is raised. Raises as `flush`.
        """
        if os.getpid() != self._pid:
            return  # it is its parent's to close
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
        """Drop what is not begun, and try nothing again. The commit that is under way cannot be called back."""
        self._give_up.set()
        with self._changed:
            left = self._queue.clear()
            self._changed.notify_all()
        self._drop(left)

    def _drop(self, submissions: Iterable[Submission]) -> None:
        """Answer submissions that are never committed, because the writer was closed."""
        for submission in submissions:
            self._room.give_back(submission.bytes)
            if submission.answer.begin():
                submission.answer.set_exception(
                    WriterClosed(
                        f"{self._table.uri}: this BufferedWriter was closed before these rows were committed. Nothing "
                        "of them is in the table."
                    )
                )

    def _wait_for_all(self, timeout_ms: int | None) -> list[Answer]:
        with self._changed:
            waiting = [s.answer for s in (*self._group, *self._queue.all())]
            self._hurried_until = time.monotonic()
            self._changed.notify_all()
        left = wait(waiting, timeout=None if timeout_ms is None else timeout_ms / 1000).not_done
        if left:
            raise BufferFull(
                f"{self._table.uri}: {len(left)} of {len(waiting)} submissions were not answered within {timeout_ms} "
                "ms. Is the store slow, or away?"
            )
        return waiting

    def _raise_unseen(self, answers: list[Answer]) -> None:
        """Raise the first error that nobody has looked at, of these and of those that came before."""
        with self._changed:
            unseen = [a for a in dict.fromkeys((*self._failed, *answers)) if a.failed and not a.seen]
            self._failed.clear()
        if not unseen:
            return
        if len(unseen) > 1:
            logger.error("%s: %d submissions failed, and nobody asked; one is raised", self._table.uri, len(unseen))
        for answer in unseen:
            answer.seen = True
        unseen[0].result()

    def stats(self) -> BufferStats:
        """What was done, and what waits. Raises WriterClosed after a fork."""
        self._check_process()
        with self._changed:
            submissions = len(self._group) + len(self._queue)
            pending_rows = self._queue.rows + sum(s.count for s in self._group)
            pending_bytes = self._queue.bytes + sum(s.bytes for s in self._group)
            waits = self._queue.since
            oldest = min((*(s.since for s in self._group), *([] if waits is None else [waits])), default=None)
            last_ms, total_ms = self._last_ms, self._total_ms
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
        """Close, and say what could not be committed: nobody is there any more to be told."""
        if os.getpid() != self._pid:
            return
        left = self.stats().pending_rows
        try:
            self.close(timeout_ms=_EXIT_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001  whatever it is, it is said
            logger.error("%s: of %d rows that waited at exit not all are committed: %s", self._table.uri, left, error)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.close()
            return
        with suppress(Exception):  # said by the log; the caller's own error comes first
            self.close()


def _close_all() -> None:
    """When the interpreter ends: commit what is there, or say that it is lost."""
    for writer in list(_open):
        writer.close_at_exit()


# Earlier than `atexit`: by then no thread may be started, and to write parts takes some. The last that is registered is
# called first, so before what stops all pools of threads: that came with `icedb.writer.part_writer`.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
