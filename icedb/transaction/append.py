"""Publication of log files: the only point at which a change becomes visible.

A *plain append* puts its parts (data files), then one log file with a create-only put. It needs no lock and no listing,
and reads nothing. Commits that tombstone parts or add a column go through `icedb.transaction.exclusive`. Both settle an
unanswered put by reading the key back, reject parts that are too old, and return a `Commit`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from icedb.errors import AccessDenied, ClockSkew, CommitConflict, CommitStateUnknown, CommitTimedOut, StoreUnavailable
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import COMMITTING, progress
from icedb.writer.part_writer import discard

__all__ = [
    "UNANSWERED_MAX",
    "Commit",
    "PutOutcome",
    "append",
    "check_age",
    "check_clock",
    "nothing_to_commit",
    "put_if_absent",
    "report",
    "uncertain",
]

# A plain append only conflicts with a log file of its own process and millisecond, or with its own unanswered put.
APPEND_ATTEMPTS_MAX = 20
# The client library has already retried each put for a minute.
UNANSWERED_MAX = 3


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of a commit. `key` is None if there was nothing to commit. Times are unix milliseconds."""

    table: str
    key: str | None
    created_ms: int | None = None
    epoch: int | None = None
    #: Not in the `repr`: there may be thousands.
    parts: tuple[Part, ...] = field(default=(), repr=False)
    tombstoned: tuple[Part, ...] = field(default=(), repr=False)
    #: The transaction (idempotency key) had been committed before, and nothing was added now.
    repeated: bool = False
    #: The number of rows that did not fit, and the address of their table (`on_conflict="quarantine"`).
    quarantined_rows: int = 0
    quarantine: str | None = None

    @property
    def committed(self) -> bool:
        """Whether a log file was published."""
        return self.key is not None

    @property
    def rows(self) -> int:
        """The number of rows in the new parts."""
        return sum(p.rows or 0 for p in self.parts)

    @property
    def bytes(self) -> int:
        """The size of the new parts in bytes."""
        return sum(p.bytes for p in self.parts)


def nothing_to_commit(handle: Handle) -> Commit:
    """Return the result of an operation that had nothing to do."""
    return Commit(handle.table, None)


class PutOutcome(Enum):
    """The result of a create-only put: the store has our object, another one, or none."""

    CREATED = auto()
    CONFLICT = auto()
    NOT_FOUND = auto()


def put_if_absent(store: ObjectStore, key: str, body: bytes) -> PutOutcome:
    """Put an object unless the key exists, and settle the outcome by reading back.

    A client's retry may conflict with its own success, and a put may be rejected because credentials expire in between.
    Raises AccessDenied only if there is no object.
    """
    try:
        with progress(COMMITTING, 1, "objects"):
            store.create(key, body)
    except (ObjectExists, StoreUnavailable, AccessDenied) as error:
        try:
            return PutOutcome.CREATED if _read_back(store, key) == body else PutOutcome.CONFLICT
        except ObjectNotFound:
            if isinstance(error, AccessDenied):
                raise error from None
            return PutOutcome.NOT_FOUND
    return PutOutcome.CREATED


def _read_back(store: ObjectStore, key: str) -> bytes:
    """Return the stored bytes. Raises StoreUnavailable for AccessDenied: the put itself may have succeeded."""
    try:
        return store.get(key).body
    except AccessDenied as error:
        raise StoreUnavailable(
            f"the outcome of the put of '{key}' is unknown: reading it back failed: {error}"
        ) from None


def append(handle: Handle, markers: Sequence[Marker], schema: Mapping[str, str], *, oldest_part_ms: int) -> Commit:
    """Publish parts without new columns, with one put, whatever other writers do.

    Raises CommitTimedOut, CommitStateUnknown and the store's errors.
    """
    check_clock(handle, markers, oldest_part_ms)
    unanswered = 0
    for _ in range(APPEND_ATTEMPTS_MAX):
        t_ms = handle.cache.next_append_ms(handle.clock.now_ms())
        check_age(handle, oldest_part_ms)
        made = tuple(msgspec.structs.replace(m, created_ms=t_ms) for m in markers)
        file = LogFile(t_ms, dict(schema), made, operation="insert")
        key = handle.keys.log_file(t_ms, merged=False, writer=handle.writer)
        body = encode(file)
        if handle.clock.now_ms() - t_ms > handle.timing.commit_timeout_ms:
            continue  # suspended for so long that readers assume that no commit of that time can appear any more
        try:
            outcome = put_if_absent(handle.store, key, body)
        except StoreUnavailable as error:
            raise uncertain(handle, key) from error
        if outcome is PutOutcome.CREATED:
            return report(handle, key, file, tombstoned=())
        # Another append of this handle took the key in the same millisecond, or an unanswered put has not landed.
        # If it lands later, it names the same parts with another timestamp.
        unanswered += outcome is PutOutcome.NOT_FOUND
        late = handle.clock.now_ms() - t_ms > handle.timing.grace_ms
        if outcome is PutOutcome.NOT_FOUND and (late or unanswered == UNANSWERED_MAX):
            raise uncertain(handle, key)
    raise CommitConflict(
        f"{handle.table}: {APPEND_ATTEMPTS_MAX} log file names in a row were taken. Nothing was published. Retry."
    )


def check_clock(handle: Handle, markers: Sequence[Marker], oldest_part_ms: int) -> None:
    """Compare the clock with a new part's time, once per handle. Before raising ClockSkew, delete all parts."""
    try:
        handle.checks.check_clock(markers[0].key, put_after_ms=oldest_part_ms)
    except ClockSkew:
        discard(handle.store, [m.key for m in markers])
        raise
    except ObjectNotFound:
        raise CommitTimedOut(
            f"{handle.table}: the part '{markers[0].key}' no longer exists: an orphan sweep may have deleted it. "
            "Nothing was published. Write the batch again."
        ) from None


def check_age(handle: Handle, oldest_part_ms: int | None) -> None:
    """Raise CommitTimedOut if the oldest part is too old to be published. None means that there are no parts."""
    if oldest_part_ms is None:
        return
    handle.learn_changed_times()
    age_ms = handle.clock.now_ms() - oldest_part_ms
    if age_ms > handle.times.part_timeout_ms(oldest_part_ms):
        raise CommitTimedOut(
            f"{handle.table}: the parts were written {age_ms / 60_000:,.1f} minutes ago and are not published any "
            "more: an orphan sweep may have deleted them. Write the batch again, in smaller pieces."
        )


def uncertain(handle: Handle, key: str) -> CommitStateUnknown:
    """Return the error for a log file whose publication is unknown."""
    return CommitStateUnknown(
        f"{handle.table}: it is not known whether '{key}' was published. Nothing was deleted. Check whether the table "
        "has the rows before you write them again."
    )


def report(handle: Handle, key: str, file: LogFile, *, tombstoned: Collection[Marker]) -> Commit:
    """Return the Commit of a published log file."""
    return Commit(
        table=handle.table,
        key=key,
        created_ms=file.t_ms,
        epoch=handle.keys.parse_log_file(key).epoch,
        parts=tuple(handle.part(m) for m in file.markers if m.created_ms == file.t_ms and m.tombstoned_ms is None),
        tombstoned=tuple(handle.part(m) for m in tombstoned),
    )
