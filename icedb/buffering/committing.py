"""Commits of groups of submissions: one commit for a group, unless a submission is rejected.

An error of a batch concerns the whole batch. So a rejected group is divided until the submissions at fault are alone:
each sender gets the error of its own rows, and the rows of the others are committed. A group of several senders is
divided by sender first. For a named sender, only one half is tried then. The other half returns to the queue, so that
a sender cannot delay others by rejected rows.

Parts are written first, then published. If the outcome is unknown, the keys of the parts in the log decide it, and
publishing the same parts again is safe. So only the senders for whom the outcome stays unknown get that error.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, TypeVar

import pyarrow as pa

from icedb.buffering.ids import Ids
from icedb.buffering.submissions import Acknowledged, Submission
from icedb.errors import (
    AccessDenied,
    BucketNotFound,
    ClockSkew,
    CommitConflict,
    CommitStateUnknown,
    CommitTimedOut,
    IceDBError,
    InvalidRequestError,
    RetryableError,
    SnapshotExpired,
    TableNotFound,
    UnsupportedStore,
)
from icedb.operations.commits.publish import publish_append
from icedb.operations.write.insert import Unpublished, discard_views_and_quarantine, write_unpublished
from icedb.operations.write.views import publish_views
from icedb.sources.batch import OnConflict
from icedb.sql.types import new_columns
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts

__all__ = ["Committer", "Counts"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Each attempt means that another writer has just committed ids.
_SEQUENCES_MAX = 200
_WAIT_FIRST_SECONDS = 0.1
_WAIT_SECONDS_MAX = 5.0
#: Errors of the table's environment, which an operator must change. No single row is at fault.
_ENVIRONMENT_ERRORS = (TableNotFound, BucketNotFound, AccessDenied, UnsupportedStore, ClockSkew, SnapshotExpired)


class _RowsRejected(Exception):
    """The rows are rejected. None of them is visible."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(slots=True)
class Counts:
    """The counts of a writer since its start."""

    commits: int = 0
    rows: int = 0
    repeated_rows: int = 0
    quarantined_rows: int = 0
    failed_submissions: int = 0
    failed_rows: int = 0
    retries: int = 0


class Committer:
    """Commits groups of submissions, one at a time. Only one thread may use it."""

    def __init__(
        self,
        handle: Handle,
        *,
        partitions_max: int | None = None,
        columns_max: int | None = None,
        on_conflict: OnConflict,
        memory_bytes: int | None,
        ids: Ids | None,
        retry_max_ms: int,
        give_up: threading.Event,
    ) -> None:
        """Create a committer. Once `give_up` is set, it retries nothing."""
        self._handle = handle
        self._partitions_max = partitions_max
        self._columns_max = columns_max
        self._on_conflict = on_conflict
        self._memory_bytes = memory_bytes
        self._ids = ids
        self._retry_max_ms = retry_max_ms
        self._give_up = give_up
        self._deadline = 0.0
        self.counts = Counts()

    def commit(self, submissions: Sequence[Submission]) -> list[Submission]:
        """Commit submissions, those of one kind together, and answer each. Never raises an Exception.

        Returns the submissions that are left for later. They are neither committed nor answered.
        """
        kinds: list[list[Submission]] = []
        for submission in submissions:
            # Schemas are compared, not hashed: equal schemas may differ in their metadata.
            same = next((k for k in kinds if k[0].kind == submission.kind), None)
            if same is None:
                kinds.append([submission])
            else:
                same.append(submission)
        return [left for alike in kinds for left in self._commit(alike)]

    def _commit(self, group: Sequence[Submission]) -> list[Submission]:
        self._deadline = time.monotonic() + self._retry_max_ms / 1000
        try:
            answers = self._committed(group)
        except _RowsRejected as refused:
            if len(group) == 1:
                self._fail(group, refused.reason)
                return []
            return self._commit_apart(group)
        except Exception as error:  # noqa: BLE001  the waiting sender gets it, whatever its type
            self._fail(group, error)
        else:
            for submission, answer in zip(group, answers, strict=True):
                self.counts.rows += answer.rows
                self.counts.repeated_rows += answer.repeated_rows
                submission.answer.set_result(answer)
        return []

    def _commit_apart(self, group: Sequence[Submission]) -> list[Submission]:
        """Commit a rejected group by sender, or by halves. Returns the submissions that are left for later."""
        of_senders: dict[str | None, list[Submission]] = {}
        for submission in group:
            of_senders.setdefault(submission.sender, []).append(submission)
        if len(of_senders) > 1:
            return [left for own in sorted(of_senders.values(), key=len) for left in self._commit(own)]
        middle = len(group) // 2
        left = self._commit(group[:middle])
        rest = group[middle:]
        return [*left, *(rest if group[0].sender is not None else self._commit(rest))]

    def _fail(self, group: Sequence[Submission], error: Exception) -> None:
        if not isinstance(error, IceDBError):
            logger.error("%s: rows could not be committed", self._handle.table, exc_info=error)
        _let_go(error)
        for submission in group:
            self.counts.failed_submissions += 1
            self.counts.failed_rows += submission.count
            submission.answer.set_exception(error)

    def _committed(self, group: Sequence[Submission]) -> list[Acknowledged]:
        if self._ids is None:
            commit, misfits = self._append(group, frozenset(), None)
            return [_answer(s, 0, commit, misfits) for s in group]
        return self._append_new(group, self._ids)

    # ------------------------------------------------------------------------------------ with ids

    def _append_new(self, group: Sequence[Submission], ids: Ids) -> list[Acknowledged]:
        """Commit the rows with new ids as the next sequence, or as a later one if another writer took that."""
        for _ in range(_SEQUENCES_MAX):
            self._persist(ids.refresh)
            try:
                dropped = ids.repeated(group)
            except Exception as error:  # noqa: BLE001  this reads no store, so the rows are at fault
                raise _RowsRejected(error) from None
            commit, misfits = None, 0
            if len(dropped) < sum(s.count for s in group):
                commit, misfits = self._append(group, dropped, (ids.application, ids.sequence))
                if commit.repeated:
                    ids.lost()
                    self.counts.retries += 1
                    continue
                if commit.committed:
                    ids.committed(commit)
            gone = _of_each(group, dropped)
            return [_answer(s, n, commit, misfits) for s, n in zip(group, gone, strict=True)]
        raise CommitConflict(
            f"{self._handle.table}: another writer committed rows with ids first, {_SEQUENCES_MAX} times in a row. "
            "Nothing was published. Retry with fewer writers or larger groups."
        )

    # ------------------------------------------------------------------------------------ one commit

    def _append(self, group: Sequence[Submission], dropped: Collection[int], txn: Txn | None) -> tuple[Commit, int]:
        """Return the commit and its number of quarantined rows. Raises _RowsRejected, or the error of the commit."""
        unpublished = self._persist(lambda: self._write(group, dropped))
        try:
            commit = self._publish(self._handle, unpublished.written, txn, group)
        except IceDBError as error:
            discard_views_and_quarantine(unpublished)
            if _is_at_fault(error):  # the table was changed after the parts were written
                raise _RowsRejected(error) from None
            raise
        if commit.repeated:
            discard_views_and_quarantine(unpublished)
            return commit, 0
        self.counts.commits += commit.committed
        if unpublished.quarantined is not None:
            self._commit_quarantine(*unpublished.quarantined, commit)
            self.counts.quarantined_rows += unpublished.misfits
        publish_views(self._handle, unpublished.views, None)
        return commit, unpublished.misfits

    def _write(self, group: Sequence[Submission], dropped: Collection[int]) -> Unpublished:
        try:
            rows = _rows(group, dropped)
            return write_unpublished(
                self._handle,
                rows,
                on_conflict=self._on_conflict,
                memory_bytes=self._memory_bytes,
                partitions_max=self._partitions_max,
                columns_max=self._columns_max,
            )
        except Exception as error:
            if _is_at_fault(error) or not isinstance(error, IceDBError):
                raise _RowsRejected(error) from None
            raise

    def _publish(
        self, target: Handle, written: WrittenParts, txn: Txn | None, group: Sequence[Submission] = ()
    ) -> Commit:
        """Publish written parts, with retries. Raises CommitStateUnknown if the outcome stays unknown for a sender."""
        unsure = False
        began_ms = target.clock.now_ms()

        def attempt() -> Commit:
            nonlocal unsure
            if unsure and txn is None:
                published = _published(target, written)
                if published is not None:
                    return published
                # Parts that were published so long ago may be merged and forgotten. Do not commit lost parts.
                late = target.clock.now_ms() - began_ms > target.timing.grace_ms // 2
                if late or new_columns(written.schema, target.known_schema):
                    # The next exclusive commit may still complete its claim, so it must not be committed twice.
                    raise CommitStateUnknown(_not_known(target))
            try:
                return publish_append(target, written, txn=txn)
            except IceDBError as error:
                # Other writers may publish the content of our claim, unless it was rejected for good.
                claimed = txn is not None and not _is_at_fault(error)
                unsure = unsure or claimed or isinstance(error, CommitStateUnknown)
                raise

        try:
            commit = self._persist(attempt)
        except IceDBError as error:
            if unsure and not self._may_be_sent_again(group):
                raise CommitStateUnknown(f"{_not_known(target)} ({error})") from None
            raise
        slept = target.clock.now_ms() - began_ms > target.timing.commit_timeout_ms
        if commit.repeated and slept and not self._may_be_sent_again(group):
            # Other writers may have published our parts, and merged and forgotten them.
            raise CommitStateUnknown(_not_known(target))
        return commit

    def _may_be_sent_again(self, group: Sequence[Submission]) -> bool:
        """Whether all rows have an id, so that sending them again is safe."""
        return self._ids is not None and all(map(self._ids.all_have_ids, group))

    def _commit_quarantine(self, quarantine: Handle, misfits: WrittenParts, commit: Commit) -> None:
        """Commit rejected rows to the quarantine. Raises CommitStateUnknown if only the other rows are committed."""
        try:
            self._publish(quarantine, misfits, None)
        except IceDBError as error:
            there = "are committed" if commit.committed else "are none"
            raise CommitStateUnknown(
                f"{self._handle.table}: the rows that fit {there}, and the other rows could not be committed to "
                f"'{quarantine.table}' ({error}). Check both tables before you write the rows again."
            ) from None

    def _persist(self, action: Callable[[], _T]) -> _T:
        """Retry unanswered requests and lost races until the action succeeds or the group's time is over."""
        wait_seconds = _WAIT_FIRST_SECONDS
        while True:
            try:
                return action()
            except CommitTimedOut:
                raise  # the parts are too old, and a retry does not change that
            except (RetryableError, CommitStateUnknown) as error:
                left = self._deadline - time.monotonic()
                if left <= 0 or self._give_up.wait(min(wait_seconds, left)):
                    raise
                self.counts.retries += 1
                logger.info("%s: retrying after: %s", self._handle.table, error)
                wait_seconds = min(2 * wait_seconds, _WAIT_SECONDS_MAX)


def _is_at_fault(error: Exception) -> bool:
    """Whether the rows are at fault, and not the table's environment."""
    return isinstance(error, InvalidRequestError) and not isinstance(error, _ENVIRONMENT_ERRORS)


def _let_go(error: BaseException) -> None:
    """Clear the tracebacks of an error: their frames would keep the rows in memory as long as the error is kept."""
    chain_of_errors: list[BaseException | None] = [error]
    for each in chain_of_errors:
        if each is not None:
            each.__traceback__ = None
            chain_of_errors += [e for e in (each.__cause__, each.__context__) if e not in chain_of_errors]


def _not_known(target: Handle) -> str:
    return (
        f"{target.table}: it is not known whether these rows were published. Check whether the table has them before "
        "you write them again."
    )


def _published(target: Handle, written: WrittenParts) -> Commit | None:
    """Return the commit of these parts according to the log, or None."""
    state = target.read(fresh=True)
    named = [state.parts[m.key] for m in written.markers if m.key in state.parts]
    if not named:
        return None
    parts = tuple(map(target.part, named))
    return Commit(target.table, state.parts_named[named[0].key].by[0], named[0].created_ms, parts=parts)


def _rows(group: Sequence[Submission], dropped: Collection[int]) -> Any:
    """Return the rows of all submissions as one batch, without the rows at the dropped positions."""
    if isinstance(group[0].rows, pa.Table):
        table = pa.concat_tables([s.rows for s in group])
        if dropped:
            kept = pa.array([n not in dropped for n in range(table.num_rows)], pa.bool_())
            table = table.filter(kept)
        return table
    if len(group) == 1 and not dropped:
        return group[0].rows
    rows = chain.from_iterable(s.rows for s in group)
    return [row for n, row in enumerate(rows) if n not in dropped] if dropped else list(rows)


def _of_each(group: Sequence[Submission], dropped: Collection[int]) -> list[int]:
    """Return the number of dropped rows of each submission."""
    ends = list(accumulate(s.count for s in group))
    counts = [0] * len(group)
    for number in dropped:
        counts[bisect_right(ends, number)] += 1
    return counts


def _answer(submission: Submission, repeated: int, commit: Commit | None, misfits: int) -> Acknowledged:
    if commit is None or repeated == submission.count:
        return Acknowledged(0, repeated)
    return Acknowledged(submission.count - repeated, repeated, commit.key, commit.created_ms, misfits)
