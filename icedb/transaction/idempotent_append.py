"""Exactly-once appends: a batch with an idempotency key (`txn`) is committed once, even if several writers retry it.

The key is `(application, sequence)`. The sequences of one application are committed in order (a stream's micro-batches,
the attempts of a retried step). A create-only claim decides which parts the transaction has. After it was created or
read, the log decides whether the transaction is done: a header records the last sequence of each application. While the
claim is young, every writer publishes its exact bytes under its exact key. Later, the key is closed by a log file
without parts, and the content goes through an exclusive commit, which reads the headers again on every rebase. So a
transaction that raised an error can always be retried.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from icedb.errors import (
    CommitConflict,
    CommitStateUnknown,
    CommitTimedOut,
    CorruptLog,
    InvalidOption,
    InvalidRequestError,
    StoreUnavailable,
)
from icedb.format.claims import TxnClaim, decode_txn_claim
from icedb.format.codec import decode, encode
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import LogFile, Marker
from icedb.format.replay import TableState
from icedb.sql.types import check_columns, new_columns
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound
from icedb.transaction.append import UNANSWERED_MAX, Commit, PutOutcome, check_age, check_clock, put_if_absent, report
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.util.durations import duration_text
from icedb.writer.part_writer import WrittenParts, discard

__all__ = ["SEQUENCE_MAX", "Txn", "append_once", "check_txn", "is_recorded", "repeated"]

logger = logging.getLogger(__name__)

# Each retry means that a claim was removed, a key was closed or a put was not answered since the last attempt.
TXN_ATTEMPTS_MAX = 20
# The largest signed integer of 64 bits, which every program that reads the log can hold.
SEQUENCE_MAX = 2**63 - 1

#: The application's name, and the number of the batch.
Txn = tuple[str, int]


def check_txn(txn: object, *, table: str) -> Txn:
    """Raise InvalidOption unless `txn` is `(application, sequence)`."""
    match txn:
        case (str(application), int(sequence)) if (
            application.strip()
            and application.isprintable()  # without lone surrogates and line breaks, because messages contain it
            and 0 <= sequence <= SEQUENCE_MAX
            and not isinstance(sequence, bool)
        ):
            return application, sequence
    raise InvalidOption(
        f"{table}: txn is {txn!r}; give (application, sequence): a text that names the writer for good, and a number "
        f"from 0 to {SEQUENCE_MAX} that rises with each batch and stays the same if a batch is retried."
    )


def is_recorded(state: TableState, txn: Txn) -> bool:
    """Whether the log records this sequence, or a later one of the application, as committed."""
    application, sequence = txn
    return state.txn.get(application, (-1, 0))[0] >= sequence


def repeated(handle: Handle) -> Commit:
    """Return the result of a transaction that was committed before."""
    return Commit(handle.table, None, repeated=True)


def append_once(handle: Handle, written: WrittenParts, txn: Txn) -> Commit:
    """Publish parts as this transaction, unless it is done, and delete the parts that it does not need.

    Raises SchemaConflict, InvalidBatch, ClockSkew, CommitTimedOut, CommitConflict, CorruptLog and the store's
    errors. After each of them the same transaction can be retried.
    """
    check_clock(handle, written.markers, written.oldest_part_ms)
    unanswered = generation = 0
    for attempt in range(TXN_ATTEMPTS_MAX):
        try:
            commit = _attempt(handle, written, txn, generation)
        except _ClaimRejected as refused:
            if refused.ours:
                discard(handle.store, [m.key for m in written.markers])
                raise refused.reason from None
            generation += 1
            continue
        except (StoreUnavailable, CommitStateUnknown) as error:
            unanswered += 1
            if unanswered == UNANSWERED_MAX:
                raise StoreUnavailable(
                    f"{handle.table}: transaction {txn} is not known to be committed ({error}) Retry the same "
                    "transaction: it is never committed twice."
                ) from None
            continue
        if commit is not None:
            return commit
        logger.info("%s: attempt %d at transaction %s is retried", handle.table, attempt + 1, txn)
    raise CommitConflict(
        f"{handle.table}: transaction {txn} lost {TXN_ATTEMPTS_MAX} consecutive conflicts. Retry the same transaction: "
        "it is never committed twice."
    )


def _attempt(handle: Handle, written: WrittenParts, txn: Txn, generation: int) -> Commit | None:
    """Return the commit, or None if the caller must try again. Raises _ClaimRejected if another claim must decide."""
    own = _plan(handle, written, txn, generation)
    claim = _take(handle, own)
    if claim is None:
        return None
    # Read the log only now: a writer that creates a removed claim again must see that the transaction is done.
    read_ms = handle.clock.now_ms()
    state = handle.read(fresh=True)
    file = decode(claim.body.encode(), claim.key, handle.keys)
    # Compare the parts, not the key: the stored claim may be an earlier, unanswered one of ours.
    ours = {m.key for m in file.markers} == {m.key for m in written.markers}
    if is_recorded(state, txn) or any(m.key in state.parts for m in file.markers):
        return _settled(handle, state, written, claimed=ours)
    try:
        commit = _publish(handle, claim, file, state, read_ms=read_ms)
    except _ClaimRejected as refused:
        refused.ours = ours
        raise
    if commit is None:
        return None
    if not ours:
        discard(handle.store, [m.key for m in written.markers])
        return repeated(handle)
    handle.cache.learn_columns(file.schema)
    return commit


class _ClaimRejected(Exception):
    """The content of a claim can never be published: every writer that reads the log rejects it.

    The claim stays, because a deletion could hit another writer's claim by then. A claim of the next
    generation, under another key, decides instead.
    """

    def __init__(self, reason: InvalidRequestError | CommitTimedOut) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.ours = False


def _plan(handle: Handle, written: WrittenParts, txn: Txn, generation: int) -> TxnClaim:
    """Return the claim for our parts, as of now."""
    check_age(handle, written.oldest_part_ms)
    application, sequence = txn
    t_ms = handle.clock.now_ms()
    markers = tuple(msgspec.structs.replace(m, created_ms=t_ms) for m in written.markers)
    file = LogFile(t_ms, dict(written.schema), markers, txn={application: (sequence, t_ms)}, operation="insert")
    key = handle.keys.log_file(t_ms, merged=False, writer=handle.fresh_writer())
    brings_columns = bool(new_columns(written.schema, handle.known_schema))
    return TxnClaim(
        key=key,
        t=t_ms,
        body=encode(file).decode(),
        application=application,
        sequence=sequence,
        brings_columns=brings_columns,
        generation=generation,
    )


def _take(handle: Handle, own: TxnClaim) -> TxnClaim | None:
    """Return the claim that decides this transaction, ours or another's, or None if it was just removed."""
    key = handle.keys.txn_claim(own.application, own.sequence, own.generation)
    if put_if_absent(handle.store, key, msgspec.json.encode(own)) is PutOutcome.CREATED:
        return own
    try:
        stored = handle.store.get(key)
    except ObjectNotFound:
        return None
    try:
        return decode_txn_claim(stored.body, key, handle.keys, stored_ms=stored.stored_ms)
    except CorruptLog as error:
        raise CorruptLog(f"{handle.table}: {error}", key=key) from None


def _publish(handle: Handle, claim: TxnClaim, file: LogFile, state: TableState, *, read_ms: int) -> Commit | None:
    """Publish the claim's content. Returns None if the caller must try again. `state` was read after `read_ms`."""
    try:  # the table may have another column of that name since the claim was made
        check_columns(file.schema, state.schema, table=handle.table)
    except InvalidRequestError as error:
        _close_for_good(handle, claim)
        raise _ClaimRejected(error) from None
    timeout_ms = handle.timing.commit_timeout_ms
    young = handle.clock.now_ms() - claim.since_ms <= timeout_ms
    # A key that was closed and replaced stays closed, even if a late put creates it again.
    if not claim.brings_columns and claim.key not in state.ignored:
        outcome = put_if_absent(handle.store, claim.key, claim.body.encode()) if young else _close(handle, claim)
        if outcome is PutOutcome.CREATED and handle.clock.now_ms() - read_ms <= timeout_ms:
            return report(handle, claim.key, file, tombstoned=())
        if outcome is not PutOutcome.CONFLICT:
            return None  # also if it took so long that the key may have been closed, replaced and deleted before
    if not young and (lost := _lost_part(handle, file)):
        if is_recorded(handle.read(fresh=True), (claim.application, claim.sequence)):
            return None  # recorded while this process was suspended
        _close_for_good(handle, claim)
        raise _ClaimRejected(_too_late(handle, claim, lost))
    operation = _PublishOnce(file, (claim.application, claim.sequence))
    try:
        commit = commit_exclusive(handle, operation)
    except InvalidRequestError as error:
        if error is not operation.refused:
            raise  # an error of the log, not of the claim
        _close_for_good(handle, claim)
        raise _ClaimRejected(error) from None
    return commit if commit.committed else None  # recorded meanwhile: the next attempt reads by which writer


def _lost_part(handle: Handle, file: LogFile) -> str | None:
    """Return a missing part of an old claim. Cleanup deleted it after a merge, before the log forgot the claim."""
    for marker in file.markers:
        try:
            handle.store.head(marker.key)
        except ObjectNotFound:
            return marker.key
    return None


def _too_late(handle: Handle, claim: TxnClaim, lost: str) -> CommitTimedOut:
    memory = duration_text(handle.timing.txn_retention_ms)
    return CommitTimedOut(
        f"{handle.table}: the part '{lost}' of transaction {(claim.application, claim.sequence)} no longer exists, and "
        f"the log no longer records whether it was committed (it keeps transactions for {memory}). Nothing was "
        "published. Check whether the table has the rows before you write them again."
    )


def _close(handle: Handle, claim: TxnClaim) -> PutOutcome:
    """Close the claim's key, so that it never gets the content. Returns CREATED if it already has the content."""
    try:
        handle.store.create(claim.key, encode(LogFile(claim.t, {})))
    except (ObjectExists, StoreUnavailable):
        try:
            stored = handle.store.get(claim.key).body
        except ObjectNotFound:
            return PutOutcome.NOT_FOUND
        return PutOutcome.CREATED if stored == claim.body.encode() else PutOutcome.CONFLICT
    return PutOutcome.CONFLICT


def _close_for_good(handle: Handle, claim: TxnClaim) -> None:
    """Close the key, so that no suspended writer publishes this generation after the next. Raises StoreUnavailable."""
    if not claim.brings_columns and _close(handle, claim) is PutOutcome.NOT_FOUND:
        raise StoreUnavailable(
            f"{handle.table}: the store did not answer when '{claim.key}' was closed. Retry the same transaction."
        )


def _settled(handle: Handle, state: TableState, written: WrittenParts, *, claimed: bool) -> Commit:
    """Return the result of a recorded transaction: our commit, which others may have published, or another writer's.

    Parts that the claim names stay: if a later sequence came first, another writer may just be publishing them.
    """
    named = [state.parts[m.key] for m in written.markers if m.key in state.parts]
    if not named:
        if not claimed:
            discard(handle.store, [m.key for m in written.markers])
        return repeated(handle)
    handle.cache.learn_columns(written.schema)
    key = state.parts_named[named[0].key].by[0]
    commit = report(handle, key, LogFile(named[0].created_ms, {}), tombstoned=())
    return replace(commit, parts=tuple(handle.part(m) for m in named))


class _PublishOnce:
    """The content of a claim as an exclusive commit, unless a header records the transaction."""

    reads_everything = False
    # The claim names the parts, so no sweep deletes them. This operation must not delete them: others may publish them.
    oldest_part_ms: int | None = None
    outputs: Sequence[str] = ()

    def __init__(self, file: LogFile, txn: Txn) -> None:
        self._file = file
        self._txn = txn
        self.unused: list[str] = []
        self.refused: InvalidRequestError | None = None

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return None if the transaction is recorded. Raises `refused` if a column now has another type."""
        application, sequence = self._txn
        if is_recorded(state, self._txn) or any(m.key in state.parts for m in self._file.markers):
            return None
        try:
            check_columns(self._file.schema, state.schema, table=state.table)
        except InvalidRequestError as error:
            self.refused = error
            raise
        markers: Sequence[Marker] = self._file.markers
        txn = {application: (sequence, t_ms)}
        operation = self._file.operation
        return draft(state, t_ms=t_ms, schema=dict(self._file.schema), txn=txn, add=markers, operation=operation)
