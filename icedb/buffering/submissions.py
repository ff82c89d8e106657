"""Submissions of rows to a group commit, and their acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from icedb.errors import InvalidBatch

__all__ = ["Acknowledged", "AcknowledgementFuture", "BufferStats", "Rows", "Submission", "measured"]

#: The rows of a submission: a list of dicts, or Arrow (a Table, a RecordBatch, an object with `__arrow_c_stream__`).
Rows = Any

# The number of rows that are measured at a time, to bound the memory that their JSON needs.
_ROWS_AT_A_TIME = 1_000
# The assumed size of a value that cannot be written as JSON.
_VALUE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The result of a submission whose rows are committed and visible to readers. Times are unix milliseconds.

    `rows` are new in the table. `repeated_rows` have an id that was committed before, or that occurs earlier in the
    submission. `key` and `created_ms` belong to the commit, which other submissions share. They are None if the
    submission has no new rows. With `on_conflict="quarantine"`, `commit_quarantined_rows` of the whole commit went to
    the quarantine; they count as rows.
    """

    rows: int
    repeated_rows: int = 0
    key: str | None = None
    created_ms: int | None = None
    commit_quarantined_rows: int = 0


@dataclass(frozen=True, slots=True)
class BufferStats:
    """The counts of a writer since its start. `pending` counts submissions that are not answered yet."""

    pending_submissions: int = 0
    pending_rows: int = 0
    pending_bytes: int = 0
    #: For how long the oldest pending submission has waited (ms); 0 if there is none.
    oldest_pending_ms: int = 0
    commits: int = 0
    committed_rows: int = 0
    #: Rows that were dropped because their id was committed before.
    repeated_rows: int = 0
    quarantined_rows: int = 0
    failed_submissions: int = 0
    failed_rows: int = 0
    #: The number of retries because the store did not answer, or another writer committed first.
    retries: int = 0
    #: The time from the first attempt of the last group to its answers (ms), and the sum for all groups.
    last_commit_ms: int = 0
    total_commit_ms: int = 0
    #: Upper limit (ms) -> the number of groups that took at most this time. The last limit is infinite.
    commit_durations: tuple[tuple[float, int], ...] = ()
    #: Ids that are remembered; 0 without `id_column`.
    known_ids: int = 0


class AcknowledgementFuture(Future[Acknowledged]):
    """A future that records whether it was read: `flush` and `close` raise unread errors."""

    seen = False

    @property
    def failed(self) -> bool:
        """Whether it is done, with an error."""
        return self.done() and not self.cancelled() and super().exception() is not None

    def begin(self) -> bool:
        """Return whether to commit the rows: False if the answer was cancelled."""
        return self.running() or self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Acknowledged:
        """See Future."""
        self.seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See Future."""
        self.seen = True
        return super().exception(timeout)


@dataclass(eq=False, slots=True)
class Submission:
    """Rows that are committed together or not at all. `rows` is a list of mappings, or a pyarrow Table."""

    rows: Sequence[Any] | pa.Table
    count: int
    bytes: int
    #: When it was submitted, by a monotonic clock (seconds).
    since: float = 0.0
    #: The owner of the rows. Senders do not wait for each other.
    sender: str | None = None
    answer: AcknowledgementFuture = field(default_factory=AcknowledgementFuture)

    @property
    def kind(self) -> object:
        """The kind of rows. Submissions of one kind can form one batch."""
        return self.rows.schema if isinstance(self.rows, pa.Table) else list


def measured(data: Rows, *, table: str) -> Submission:
    """Return a submission of these rows. Raises InvalidBatch unless they are rows in memory."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif not isinstance(data, pa.Table) and hasattr(data, "__arrow_c_stream__"):
        try:
            data = pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InvalidBatch(f"{table}: the rows cannot be read as Arrow: {reason}.") from None
    if isinstance(data, pa.Table):
        return Submission(data, data.num_rows, data.nbytes)
    if isinstance(data, Mapping | str | bytes | bytearray | memoryview) or not isinstance(data, Sequence):
        raise InvalidBatch(
            f"{table}: a BufferedWriter takes a list of dicts, or Arrow, and got a {type(data).__name__}. Pass a "
            "single row as a list of one dict."
        )
    rows = list(data)  # the caller may change its own list
    return Submission(rows, len(rows), _bytes(rows))


def _bytes(rows: Sequence[Any]) -> int:
    """Estimate the size of rows by their JSON, which is fast and grows with them."""
    size = 0
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        some = rows[first : first + _ROWS_AT_A_TIME]
        try:
            size += len(msgspec.json.encode(some, enc_hook=str))
        except Exception:  # noqa: BLE001  a value may raise anything; the commit reports what is wrong with it
            size += sum(_VALUE_BYTES * (len(row) if isinstance(row, Mapping) else 1) for row in some)
    return size
