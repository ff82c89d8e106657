"""Rows on their way into a group commit, and what their sender is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from icedb.errors import InvalidBatch

__all__ = ["Acknowledged", "Answer", "BufferStats", "Rows", "Submission", "measured"]

#: What is submitted: a list of dicts, or Arrow (a Table, a RecordBatch, whatever has `__arrow_c_stream__`).
Rows = Any

# So many rows are measured at a time: what that takes is little then.
_ROWS_AT_A_TIME = 1_000
# For what cannot be written as JSON.
_VALUE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Rows of one submission are committed, all that were not refused: readers see them. Times are unix milliseconds.

    `rows` are new in the table; `repeated_rows` were committed before, by their id, or stand twice in the submission.
    `key` and `created_ms` are of the commit, which others' rows share; None when nothing of this submission was new.
    With `on_conflict="quarantine"`, `commit_quarantined_rows` of that whole commit were set aside; they count as rows.
    """

    rows: int
    repeated_rows: int = 0
    key: str | None = None
    created_ms: int | None = None
    commit_quarantined_rows: int = 0


@dataclass(frozen=True, slots=True)
class BufferStats:
    """What a writer has done since it was made, and what waits. `pending` is what is submitted and not answered yet."""

    pending_submissions: int = 0
    pending_rows: int = 0
    pending_bytes: int = 0
    #: How long the oldest pending submission has been waiting (ms); 0 when none is.
    oldest_pending_ms: int = 0
    commits: int = 0
    committed_rows: int = 0
    #: Rows that were dropped because their id was committed before.
    repeated_rows: int = 0
    quarantined_rows: int = 0
    failed_submissions: int = 0
    failed_rows: int = 0
    #: How often something was tried again because the store did not answer, or others came first.
    retries: int = 0
    #: How long the last group took from its first attempt to its answers (ms), and all together.
    last_commit_ms: int = 0
    total_commit_ms: int = 0
    #: Ids that are remembered; 0 without `id_column`.
    known_ids: int = 0


class Answer(Future[Acknowledged]):
    """Knows whether anybody has looked at it: an error that nobody saw is raised by `flush` and `close`."""

    seen = False

    @property
    def failed(self) -> bool:
        """Whether it is done, with an error."""
        return self.done() and not self.cancelled() and super().exception() is not None

    def begin(self) -> bool:
        """Return whether the rows are to be committed: False once the answer was cancelled."""
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
    #: When it was submitted, by a clock that only goes forwards (seconds).
    since: float = 0.0
    #: Whose rows they are; senders do not wait for one another's.
    sender: str | None = None
    answer: Answer = field(default_factory=Answer)

    @property
    def kind(self) -> object:
        """Submissions of one kind can be one batch."""
        return self.rows.schema if isinstance(self.rows, pa.Table) else list


def measured(data: Rows, *, table: str) -> Submission:
    """A submission of these rows. Raises InvalidBatch for what holds no rows in memory."""
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
            f"{table}: a BufferedWriter takes a list of dicts, or Arrow, and got a {type(data).__name__}. Give one row "
            "as a list of one."
        )
    rows = list(data)  # the caller may go on with his own
    return Submission(rows, len(rows), _bytes(rows))


def _bytes(rows: Sequence[Any]) -> int:
    """About what rows take: as JSON, which is quick to tell and grows as they do."""
    size = 0
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        some = rows[first : first + _ROWS_AT_A_TIME]
        try:
            size += len(msgspec.json.encode(some, enc_hook=str))
        except Exception:  # noqa: BLE001  whatever a value does; what is wrong with it is said when it is committed
            size += sum(_VALUE_BYTES * (len(row) if isinstance(row, Mapping) else 1) for row in some)
    return size
