"""Publish log files: the only point at which anything becomes visible.

A *plain append* is parts first, then one create-only put; it needs no lock, no listing, and reads nothing. What
tombstones, or brings a column, goes through `icedb.transaction.exclusive`. Both settle a put that was not answered by
reading the key back, refuse to publish parts that are too old, and report the same `Commit`.
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
from icedb.transaction.table_handle import Handle, Part
from icedb.writer.part_writer import discard

__all__ = [
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

# A plain append only meets its own process's log file of the same millisecond, or a put that was not answered.
APPEND_ATTEMPTS_MAX = 20
# The client library has repeated each of them already, for a minute.
UNANSWERED_MAX = 3


@dataclass(frozen=True, slots=True)
class Commit:
    """What became visible. `key` is None when there was nothing to commit; times are unix milliseconds."""

    table: str
    key: str | None
    created_ms: int | None = None
    epoch: int | None = None
    #: Left out of its text: there may be thousands.
    parts: tuple[Part, ...] = field(default=(), repr=False)
    tombstoned: tuple[Part, ...] = field(default=(), repr=False)
    #: The transaction had been committed before: nothing was added now.
    repeated: bool = False
    #: Rows that did not fit, and the address of the table that they went to (`on_conflict="quarantine"`).
    quarantined_rows: int = 0
    quarantine: str | None = None

    @property
    def committed(self) -> bool:
        """Whether a log file was published."""
        return self.key is not None

    @property
    def rows(self) -> int:
        """Rows in the new parts."""
        return sum(p.rows or 0 for p in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of the new parts."""
        return sum(p.bytes for p in self.parts)


def nothing_to_commit(handle: Handle) -> Commit:
    """The result of an operation that found nothing to do."""
    return Commit(handle.table, None)


class PutOutcome(Enum):
    """How a create-only put ended: ours is there, another's is, or nothing is."""

    CREATED = auto()
    CONFLICT = auto()
    NOT_FOUND = auto()


def put_if_absent(store: ObjectStore, key: str, body: bytes) -> PutOutcome:
    """A create-only put, settled by reading back: a client's retry fails against its own success.

    It may also be refused, when credentials expire in between. Raises AccessDenied only when the object is not there.
    """
    try:
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
    """Credentials that expire just now do not mean that the put was refused."""
    try:
        return store.get(key).body
    except AccessDenied as error:
        raise StoreUnavailable(f"whether '{key}' was put cannot be read back: {error}") from None


def append(handle: Handle, markers: Sequence[Marker], schema: Mapping[str, str], *, oldest_part_ms: int) -> Commit:
    """Publish parts whose columns the table has: one put, whoever else is writing.

    Raises CommitTimedOut, CommitStateUnknown and the store's errors.
    """
    check_clock(handle, markers, oldest_part_ms)
    t_ms, unanswered = handle.last_append_ms, 0
    for _ in range(APPEND_ATTEMPTS_MAX):
        t_ms = max(handle.clock.now_ms(), t_ms + 1)
        check_age(handle, oldest_part_ms)
        made = tuple(msgspec.structs.replace(m, created_ms=t_ms) for m in markers)
        file = LogFile(t_ms, dict(schema), made, operation="insert")
        key = handle.keys.log_file(t_ms, merged=False, writer=handle.writer)
        body = encode(file)
        if handle.clock.now_ms() - t_ms > handle.timing.commit_timeout_ms:
            continue  # this process was asleep, and readers may rely on the past to be over
        try:
            outcome = put_if_absent(handle.store, key, body)
        except StoreUnavailable as error:
            raise uncertain(handle, key) from error
        if outcome is PutOutcome.CREATED:
            handle.last_append_ms = t_ms
            return report(handle, key, file, tombstoned=())
        # Taken by another append of this handle in the same millisecond, or not answered and not there. It cannot
        # land any more, or if it does, it names the same parts: another timestamp.
        unanswered += outcome is PutOutcome.NOT_FOUND
        late = handle.clock.now_ms() - t_ms > handle.timing.grace_ms
        if outcome is PutOutcome.NOT_FOUND and (late or unanswered == UNANSWERED_MAX):
            raise uncertain(handle, key)
    raise CommitConflict(f"{handle.table}: {APPEND_ATTEMPTS_MAX} log file names in a row were taken. Try again.")


def check_clock(handle: Handle, markers: Sequence[Marker], oldest_part_ms: int) -> None:
    """Once per handle, by a part that was just put; with a wrong clock, all of them are deleted. Raises ClockSkew."""
    try:
        handle.check_clock(markers[0].key, put_after_ms=oldest_part_ms)
    except ClockSkew:
        discard(handle.store, [m.key for m in markers])
        raise
    except ObjectNotFound:
        raise CommitTimedOut(
            f"{handle.table}: the part '{markers[0].key}' is not there any more: an orphan sweep may have taken it. "
            "Nothing was published. Write the batch again."
        ) from None


def check_age(handle: Handle, oldest_part_ms: int | None) -> None:
    """Raise CommitTimedOut when the oldest part is too old to be published; None: there are no parts."""
    if oldest_part_ms is None:
        return
    handle.learn_changed_times()
    age_ms = handle.clock.now_ms() - oldest_part_ms
    if age_ms > handle.part_timeout_ms(oldest_part_ms):
        raise CommitTimedOut(
            f"{handle.table}: the parts were written {age_ms / 60_000:,.1f} minutes ago and are not published any "
            "more: an orphan sweep may have taken them. Write the batch again, in smaller pieces."
        )


def uncertain(handle: Handle, key: str) -> CommitStateUnknown:
    """The error for a log file of which nobody can tell whether it was published."""
    return CommitStateUnknown(
        f"{handle.table}: it is not known whether '{key}' was published. Nothing was deleted. Look whether the rows "
        "are there before you write them again."
    )


def report(handle: Handle, key: str, file: LogFile, *, tombstoned: Collection[Marker]) -> Commit:
    """What a published log file made visible, and what it tombstoned."""
    return Commit(
        table=handle.table,
        key=key,
        created_ms=file.t_ms,
        epoch=handle.keys.parse_log_file(key).epoch,
        parts=tuple(handle.part(m) for m in file.markers if m.created_ms == file.t_ms and m.tombstoned_ms is None),
        tombstoned=tuple(handle.part(m) for m in tombstoned),
    )
