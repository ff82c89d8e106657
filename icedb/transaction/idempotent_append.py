"""Exactly-once appends: a batch with a name is committed once, however often and by whomever it is tried.

The name is `(application, sequence)`; the sequences of one application are committed in order (a stream's
micro-batches, the attempts of a retried step). A create-only claim decides which parts the transaction consists of,
and after it was created or found, the log decides whether it is done already: a header records the last sequence of
each application. While the claim is young, everybody publishes its very bytes under its very key. Later, the key is
closed by a log file without parts, and the content goes through an exclusive commit, which looks at the headers again
on every rebase. So a transaction that raised may always be tried again.
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

__all__ = ["Txn", "append_once", "check_txn", "is_recorded", "repeated"]

logger = logging.getLogger(__name__)

# Each new try means that a claim was removed, a key closed or a put not answered since the last one.
TXN_ATTEMPTS_MAX = 20
# What a signed number of 64 bits holds, in every program that reads the log.
SEQUENCE_MAX = 2**63 - 1

#: The application's name, and the number of the batch.
Txn = tuple[str, int]


def check_txn(txn: object, *, table: str) -> Txn:
    """Raise InvalidOption unless it is `(application, sequence)`."""
    match txn:
        case (str(application), int(sequence)) if (
            application.strip()
            and application.isprintable()  # neither half a character nor a line break: it is said in messages
            and 0 <= sequence <= SEQUENCE_MAX
            and not isinstance(sequence, bool)
        ):
            return application, sequence
    raise InvalidOption(
        f"{table}: txn is {txn!r}; give (application, sequence): a text that names the writer for good, and a number "
        f"from 0 to {SEQUENCE_MAX} that rises with each batch and is the same when a batch is tried again."
    )


def is_recorded(state: TableState, txn: Txn) -> bool:
    """Whether the log says that this sequence, or a later one of the application, was committed."""
    application, sequence = txn
    return state.txn.get(application, (-1, 0))[0] >= sequence


def repeated(handle: Handle) -> Commit:
    """The result of a transaction that was committed before."""
    return Commit(handle.table, None, repeated=True)


def append_once(handle: Handle, written: WrittenParts, txn: Txn) -> Commit:
    """Publish parts as this transaction, unless it is done; parts that it does not need are deleted.

    Raises SchemaConflict, InvalidBatch, ClockSkew, CommitTimedOut, CommitConflict, CorruptLog and the store's
    errors; after each of them the same transaction may be tried again.
    """
    check_clock(handle, written.markers, written.oldest_part_ms)
    unanswered = generation = 0
    for attempt in range(TXN_ATTEMPTS_MAX):
        try:
            commit = _attempt(handle, written, txn, generation)
        except _Refused as refused:
            if refused.ours:
                discard(handle.store, [m.key for m in written.markers])
                raise refused.reason from None
            generation += 1
            continue
        except (StoreUnavailable, CommitStateUnknown) as error:
            unanswered += 1
            if unanswered == UNANSWERED_MAX:
                raise StoreUnavailable(
                    f"{handle.table}: transaction {txn} is not known to be committed ({error}) Try the same "
                    "transaction again: it is never committed twice."
                ) from None
            continue
        if commit is not None:
            return commit
        logger.info("%s: attempt %d at transaction %s is tried again", handle.table, attempt + 1, txn)
    raise CommitConflict(
        f"{handle.table}: transaction {txn} met {TXN_ATTEMPTS_MAX} changes in a row. Try the same transaction again."
    )


def _attempt(handle: Handle, written: WrittenParts, txn: Txn, generation: int) -> Commit | None:
    """None: something changed under our hands, look again. Raises _Refused: the next generation decides."""
    own = _plan(handle, written, txn, generation)
    claim = _take(handle, own)
    if claim is None:
        return None
    # Only now: whoever finds the claim gone, and makes it anew, must see that the transaction is done.
    read_ms = handle.clock.now_ms()
    state = handle.read(fresh=True)
    file = decode(claim.body.encode(), claim.key, handle.keys)
    # By its parts, not by its key: an earlier, unanswered claim of ours may be the one that was found.
    ours = {m.key for m in file.markers} == {m.key for m in written.markers}
    if is_recorded(state, txn) or any(m.key in state.parts for m in file.markers):
        return _settled(handle, state, written, claimed=ours)
    try:
        commit = _publish(handle, claim, file, state, read_ms=read_ms)
    except _Refused as refused:
        refused.ours = ours
        raise
    if commit is None:
        return None
    if not ours:
        discard(handle.store, [m.key for m in written.markers])
        return repeated(handle)
    handle.learn_schema(file.schema)
    return commit


class _Refused(Exception):
    """The content of a claim can never be published, by anybody: everyone who reads the log finds the same.

    The claim stays, for one that was deleted could be another's by then; the next generation takes its place.
    """

    def __init__(self, reason: InvalidRequestError | CommitTimedOut) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.ours = False


def _plan(handle: Handle, written: WrittenParts, txn: Txn, generation: int) -> TxnClaim:
    """The claim that we would like: our parts, now."""
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
    """The claim that decides this transaction, ours or another's; None when it was removed just now."""
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
    """See to it that the claim's content is in the log; None: look again. `state` was read since `read_ms`."""
    try:  # what was known when the claim was made may have been another column of that name
        check_columns(file.schema, state.schema, table=handle.table)
    except InvalidRequestError as error:
        _close_for_good(handle, claim)
        raise _Refused(error) from None
    timeout_ms = handle.timing.commit_timeout_ms
    young = handle.clock.now_ms() - claim.since_ms <= timeout_ms
    # A key that was closed and replaced is closed for good, whatever a late put makes of it.
    if not claim.brings_columns and claim.key not in state.ignored:
        outcome = put_if_absent(handle.store, claim.key, claim.body.encode()) if young else _close(handle, claim)
        if outcome is PutOutcome.CREATED and handle.clock.now_ms() - read_ms <= timeout_ms:
            return report(handle, claim.key, file, tombstoned=())
        if outcome is not PutOutcome.CONFLICT:
            return None  # also when it took so long that the key may have been closed, replaced and deleted before
    if not young and (lost := _lost_part(handle, file)):
        if is_recorded(handle.read(fresh=True), (claim.application, claim.sequence)):
            return None  # while we were asleep
        _close_for_good(handle, claim)
        raise _Refused(_too_late(handle, claim, lost))
    operation = _PublishOnce(file, (claim.application, claim.sequence))
    try:
        commit = commit_exclusive(handle, operation)
    except InvalidRequestError as error:
        if error is not operation.refused:
            raise  # the log disagrees with itself, which says nothing of the claim
        _close_for_good(handle, claim)
        raise _Refused(error) from None
    return commit if commit.committed else None  # recorded meanwhile: the log tells by whom


def _lost_part(handle: Handle, file: LogFile) -> str | None:
    """A part of an old claim that is not there: it was committed, merged and cleaned up before the log forgot it."""
    for marker in file.markers:
        try:
            handle.store.head(marker.key)
        except ObjectNotFound:
            return marker.key
    return None


def _too_late(handle: Handle, claim: TxnClaim, lost: str) -> CommitTimedOut:
    memory = duration_text(handle.timing.txn_retention_ms)
    return CommitTimedOut(
        f"{handle.table}: the part '{lost}' of transaction {(claim.application, claim.sequence)} is not there any "
        f"more, and the log no longer tells what became of it (it remembers {memory}). "
        "Nothing was published. Look whether the rows are there before you write them again."
    )


def _close(handle: Handle, claim: TxnClaim) -> PutOutcome:
    """Make sure that the claim's key never holds its content; CREATED: it does already."""
    try:
        handle.store.create(claim.key, encode(LogFile(claim.t, {})))
    except (ObjectExists, StoreUnavailable):
        try:
            found = handle.store.get(claim.key).body
        except ObjectNotFound:
            return PutOutcome.NOT_FOUND
        return PutOutcome.CREATED if found == claim.body.encode() else PutOutcome.CONFLICT
    return PutOutcome.CONFLICT


def _close_for_good(handle: Handle, claim: TxnClaim) -> None:
    """Before the next generation counts, nobody who was asleep may publish this one. Raises StoreUnavailable."""
    if not claim.brings_columns and _close(handle, claim) is PutOutcome.NOT_FOUND:
        raise StoreUnavailable(f"{handle.table}: the store did not answer when '{claim.key}' was closed.")


def _settled(handle: Handle, state: TableState, written: WrittenParts, *, claimed: bool) -> Commit:
    """The transaction is recorded: by our parts, which others may have published for us, or by others.

    Parts that the claim names stay: beside a later sequence that came first, somebody may just be publishing them.
    """
    named = [state.parts[m.key] for m in written.markers if m.key in state.parts]
    if not named:
        if not claimed:
            discard(handle.store, [m.key for m in written.markers])
        return repeated(handle)
    handle.learn_schema(written.schema)
    key = state.parts_named[named[0].key].by[0]
    commit = report(handle, key, LogFile(named[0].created_ms, {}), tombstoned=())
    return replace(commit, parts=tuple(handle.part(m) for m in named))


class _PublishOnce:
    """The content of a claim as an exclusive commit, unless a header says that it is done."""

    reads_everything = False
    # The claim names the parts, so no sweep takes them; and nothing here may delete them: others may publish them.
    oldest_part_ms: int | None = None
    outputs: Sequence[str] = ()

    def __init__(self, file: LogFile, txn: Txn) -> None:
        self._file = file
        self._txn = txn
        self.unused: list[str] = []
        self.refused: InvalidRequestError | None = None

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """None when it is recorded. Raises `refused` when a column has another type by now."""
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
