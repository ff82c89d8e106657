"""Exclusive commits: all commits that tombstone parts or log files, record a spec, or add a column.

An exclusive commit takes the claim of the next epoch, lists again to check that the epoch is not decided yet, and
publishes the content of the claim, its own or another's. So the store puts exclusive commits in sequence. A crash at
any point leaves nothing visible, or a claim. The next exclusive commit completes that claim, or voids it if it is old.
A commit that lost is rebased on the commit that came first. docs/format.md, "Commits", has the reasons.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from icedb.errors import (
    ClockSkew,
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    IceDBError,
    StoreUnavailable,
)
from icedb.format.claims import EpochClaim, decode_epoch_claim
from icedb.format.codec import decode, encode
from icedb.format.commit_draft import CommitDraft, check_draft
from icedb.format.records import LogFile
from icedb.format.replay import TableState
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.append import (
    UNANSWERED_MAX,
    Commit,
    PutOutcome,
    check_age,
    nothing_to_commit,
    put_if_absent,
    report,
    uncertain,
)
from icedb.transaction.epoch_guard import claims_beyond, foreign_maintenance, refuse_foreign
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import discard

__all__ = ["EXCLUSIVE_ATTEMPTS_MAX", "CommitOperation", "commit_exclusive", "rebases"]

logger = logging.getLogger(__name__)

# Each lost attempt means that another exclusive commit succeeded. So many in a row mean that the table's lock fails.
EXCLUSIVE_ATTEMPTS_MAX = 50

_rebases: Counter[str] = Counter()
_rebases_lock = threading.Lock()


class CommitOperation(Protocol):
    """The plan of an exclusive commit, which is made again from the table's state at each attempt."""

    @property
    def outputs(self) -> Collection[str]:
        """The keys of the parts that this operation wrote and that are still in its plan."""
        ...

    @property
    def unused(self) -> list[str]:
        """The parts that it wrote and that a rebase made useless. Emptied when they are deleted.

        An operation never removes one itself: a claim of an earlier attempt may name it.
        """
        ...

    @property
    def oldest_part_ms(self) -> int | None:
        """When its first part was written (unix ms), or None if it writes none."""
        ...

    @property
    def reads_everything(self) -> bool:
        """Whether `build` also needs ignored log files."""
        ...

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file to publish, or None if nothing is (left) to do. May raise InvalidRequestError."""
        ...


def rebases() -> Mapping[str, int]:
    """Return the attempts of this process that were rebased, by the address of the table, for metrics.

    Another writer took the claim, or the store did not answer.
    """
    with _rebases_lock:
        return dict(_rebases)


@dataclass(slots=True)
class _ClaimAttempts:
    """The log files of earlier attempts, which this operation or another writer may have published."""

    keys: list[str] = field(default_factory=list)
    epoch: int = 0
    since_ms: int = 0
    last_ms: int = 0
    unanswered: int = 0

    @property
    def open(self) -> bool:
        """Whether another writer may still complete a claim of ours. If so, the parts that it names must stay."""
        return bool(self.keys)

    def add(self, key: str, epoch: int, t_ms: int) -> None:
        self.since_ms = self.since_ms if self.keys else t_ms
        self.last_ms = t_ms
        self.epoch = max(self.epoch, epoch)
        self.keys.append(key)

    def settle(self, epoch: int) -> None:
        """Record that the log has this epoch without our commit: other writers took the epochs that we claimed."""
        if epoch >= self.epoch:
            self.keys.clear()


def commit_exclusive(handle: Handle, operation: CommitOperation) -> Commit:
    """Publish an operation as the next epoch, rebased on all commits that came before it.

    Raises CommitConflict, CommitStateUnknown, CommitTimedOut, the errors of `operation.build` and of the store. After
    an error of `build` the operation's parts are deleted, unless a log file may still name them.
    """
    handle.check_writable()
    tried = _ClaimAttempts()
    try:
        for attempt in range(EXCLUSIVE_ATTEMPTS_MAX):
            commit = _attempt(handle, operation, tried)
            if commit is not None:
                return commit
            with _rebases_lock:
                _rebases[handle.table] += 1
            logger.info("%s: attempt %d at an exclusive commit is rebased", handle.table, attempt + 1)
        commit = _reconcile_own_claims(handle, handle.read(fresh=True), operation, tried)
    except CommitStateUnknown:
        raise
    except IceDBError as error:
        # After any error, others may still complete a claim of ours. A caller that writes the rows again would then
        # duplicate them, and a caller that deletes the parts of a rejected batch would delete live parts.
        if tried.open:
            raise uncertain(handle, tried.keys[-1]) from error
        raise
    if commit is not None:
        return commit
    if tried.open:
        raise uncertain(handle, tried.keys[-1])
    raise CommitConflict(
        f"{handle.table}: the commit lost {EXCLUSIVE_ATTEMPTS_MAX} consecutive conflicts with other exclusive commits. "
        "Nothing was published. Ensure that only one maintenance run holds the table's lock, then retry."
    )


def _attempt(handle: Handle, operation: CommitOperation, tried: _ClaimAttempts) -> Commit | None:
    """Try to commit the next epoch. Returns None if another writer took it and the operation must be rebased."""
    started_ms, newest_epoch = handle.clock.now_ms(), handle.cache.newest_epoch
    state = handle.read(everything=operation.reads_everything, fresh=True)
    committed = _reconcile_own_claims(handle, state, operation, tried)
    if committed is not None:
        return committed
    refuse_foreign(handle, state, newest_epoch)
    epoch = state.epoch + 1
    t_ms = max(_next_t_ms(handle, state), tried.last_ms + 1)
    draft = _build(handle, operation, state, t_ms, tried)
    if draft is not None and handle.clock.now_ms() - t_ms > handle.timing.max_skew_ms:
        # The build took long (a restore copies parts), and a new claim must not be old. The second build has no work.
        t_ms = max(_next_t_ms(handle, state), t_ms + 1)
        draft = _build(handle, operation, state, t_ms, tried)
    if draft is None:
        if tried.open:  # the content of an earlier claim of ours may still be published
            raise uncertain(handle, tried.keys[-1])
        return nothing_to_commit(handle)
    check_age(handle, operation.oldest_part_ms)
    file = _finish(handle, state, draft, epoch)
    # Each attempt has its own writer name: two threads of one handle must not mistake each other's log file for theirs.
    key = handle.keys.log_file(t_ms, merged=file.carries_tombstones, writer=f"{handle.fresh_writer()}.e{epoch}")
    own, before_ms = EpochClaim(key, t_ms, encode(file).decode()), handle.clock.now_ms()
    claim = _take_claim(handle, epoch, own, tried)
    if claim is own:
        _check_clock(handle, state, epoch, own, operation, tried, before_ms=before_ms)
    if claim is None or not _publish_claim(handle, state, epoch, claim, own, operation, started_ms):
        return None
    return _own(handle, key, file)


def _next_t_ms(handle: Handle, state: TableState) -> int:
    """Return a time after all visible commits, except those of a clock that is far ahead.

    Each clock may differ from the store's by `max_skew_ms`, so the clocks of two writers may differ by twice that.
    """
    now_ms = handle.clock.now_ms()
    sane = [t for t in state.times_ms if t <= now_ms + 2 * handle.timing.max_skew_ms]
    return max(now_ms, 1 + max(sane, default=0))


def _build(
    handle: Handle, operation: CommitOperation, state: TableState, t_ms: int, tried: _ClaimAttempts
) -> CommitDraft | None:
    try:
        draft = operation.build(state, t_ms)
    except IceDBError:
        if not tried.open:
            discard(handle.store, [*operation.outputs, *operation.unused])
        raise
    if operation.unused and not tried.open:
        discard(handle.store, operation.unused)
        operation.unused.clear()
    if draft is not None:
        check_draft(state, draft)
    return draft


def _finish(handle: Handle, state: TableState, draft: CommitDraft, epoch: int) -> LogFile:
    """Return the log file with its epoch, with a spec if the log records none, and without expired entries.

    Log tombstones are kept while the file exists, and as long as a copy of it may still arrive. Transactions are kept
    as long as a pipeline may pause.
    """
    timing = handle.timing
    replaced = {state.files[k].file.epoch for k in draft.replaces}
    late_ms, forget_ms = draft.file.t_ms - timing.late_ms, draft.file.t_ms - timing.txn_retention_ms
    return msgspec.structs.replace(
        draft.file,
        epoch=epoch,
        spec=draft.file.spec if draft.file.spec or state.spec else handle.stored_spec,
        live_epochs=tuple(sorted((state.live_epochs - replaced) | {epoch})),
        tombstones=tuple(t for t in draft.file.tombstones if t.key in state.listed_ms or t.created_ms > late_ms),
        txn={application: last for application, last in draft.file.txn.items() if last[1] > forget_ms},
    )


def _take_claim(handle: Handle, epoch: int, own: EpochClaim, tried: _ClaimAttempts) -> EpochClaim | None:
    """Return the claim that decides this epoch, ours or another's, or None if the caller must read the log again."""
    key = handle.keys.epoch_claim(epoch)
    tried.add(own.key, epoch, own.t)  # before the put, because an unanswered put may succeed
    try:
        if put_if_absent(handle.store, key, msgspec.json.encode(own)) is PutOutcome.CREATED:
            return own
        stored = handle.store.get(key)
    except StoreUnavailable as error:
        # The client library has already retried it for a minute.
        tried.unanswered += 1
        if tried.unanswered == UNANSWERED_MAX:
            raise uncertain(handle, own.key) from error
        return None
    except ObjectNotFound:
        return None
    try:
        claim = decode_epoch_claim(stored.body, key, handle.keys, stored_ms=stored.stored_ms)
    except CorruptLog:
        tried.keys.clear()
        raise
    if claim.key not in tried.keys:
        tried.keys.clear()  # another writer takes this epoch, so none of our log files can be published as it
    return claim


def _publish_claim(
    handle: Handle,
    state: TableState,
    epoch: int,
    claim: EpochClaim,
    own: EpochClaim,
    operation: CommitOperation,
    started_ms: int,
) -> bool:
    """Decide the claim's epoch, and return whether our own log file became it."""
    mine = claim.key == own.key
    if _epoch_decided(handle, state, epoch, min(own.t, claim.t)):
        return False  # the next attempt checks whether it was ours
    if not mine and claims_beyond(handle, epoch) and not _epoch_decided(handle, state, epoch, min(own.t, claim.t)):
        raise foreign_maintenance(handle, epoch)
    body = claim.body.encode()
    # In a log whose epochs are gone, the content of a claim may have been replaced long ago. It is never published.
    epochs_gone = state.epoch == 0 and state.files and not mine
    # A program whose clock was far ahead crashed before it could void its claim.
    is_ahead = not mine and claim.t >= handle.far_ahead_ms(handle.clock.now_ms())
    if epochs_gone or is_ahead or handle.clock.now_ms() - claim.since_ms > handle.timing.commit_timeout_ms:
        body = encode(_void(state, epoch, claim.t))
    elif mine:
        check_age(handle, operation.oldest_part_ms)  # after a pause, a sweep may have deleted the parts
    try:
        outcome = put_if_absent(handle.store, claim.key, body)
        published = body if outcome is PutOutcome.CREATED else handle.store.get(claim.key).body
    except (StoreUnavailable, ObjectNotFound):
        return False
    if not mine or decode(published, claim.key, handle.keys).void:
        return False
    # If this took longer, our put may have come after a void that was replaced and deleted. Only the log shows that.
    return handle.clock.now_ms() - started_ms <= handle.timing.commit_timeout_ms


def _check_clock(
    handle: Handle,
    state: TableState,
    epoch: int,
    own: EpochClaim,
    operation: CommitOperation,
    tried: _ClaimAttempts,
    *,
    before_ms: int,
) -> None:
    """Compare the clocks by the claim that was just created. If this clock is wrong, void the claim."""
    try:
        handle.checks.check_clock(handle.keys.epoch_claim(epoch), put_after_ms=before_ms)
    except (ObjectNotFound, StoreUnavailable):
        return  # the epoch is decided, as the second listing will show, or the next commit compares the clocks
    except ClockSkew:
        outcome = put_if_absent(handle.store, own.key, encode(_void(state, epoch, own.t)))
        if outcome is PutOutcome.CONFLICT:
            return  # another writer completed it
        if outcome is PutOutcome.NOT_FOUND:
            raise uncertain(handle, own.key) from None
        tried.keys.clear()
        discard(handle.store, [*operation.outputs, *operation.unused])
        raise


def _epoch_decided(handle: Handle, state: TableState, epoch: int, t_ms: int) -> bool:
    """Whether this epoch, or a later one, has become visible since `state` was read."""
    # List from the head's key on: later epochs have later times, unless the head is from a clock that is far ahead.
    heads = [k for k, f in state.files.items() if f.file.epoch == state.epoch and f.file.t_ms < t_ms]
    for key in handle.log.list_after(heads[0] if heads else None):
        announced = handle.keys.parse_log_file(key).epoch
        if announced is not None and announced >= epoch:
            stored = handle.log.fetch(key)
            if stored is None or (stored.file.epoch or 0) >= epoch:
                return True
    return False


def _void(state: TableState, epoch: int, t_ms: int) -> LogFile:
    return LogFile(t_ms, {}, epoch=epoch, live_epochs=tuple(sorted(state.live_epochs | {epoch})), void=True)


def _reconcile_own_claims(
    handle: Handle, state: TableState, operation: CommitOperation, tried: _ClaimAttempts
) -> Commit | None:
    """Return our commit of an earlier attempt, if the log has it, and otherwise settle the claims that were lost."""
    committed = _find_own(handle, state, operation, tried) if tried.open else None
    if committed is None:
        tried.settle(state.epoch)
    return committed


def _find_own(handle: Handle, state: TableState, operation: CommitOperation, tried: _ClaimAttempts) -> Commit | None:
    late = handle.clock.now_ms() - tried.since_ms > handle.timing.grace_ms
    # A claim of an earlier attempt names parts that a rebase has removed from the plan since.
    written = [*operation.outputs, *operation.unused]
    for key in tried.keys:
        counts = key in state.files and key not in state.ignored
        stored = state.files.get(key) or (handle.log.fetch(key) if key in state.listed_ms else None)
        if stored is None or stored.file.void:
            continue
        # Otherwise it was replaced, or our late put came after a void that was replaced and deleted.
        if counts or not (late or written):
            return _own(handle, key, stored.file)
    named = [state.parts[k] for k in written if k in state.parts]
    if named:  # our log file was replaced already; its markers were carried
        t_ms = named[0].created_ms
        key = next(k for k in tried.keys if handle.keys.parse_log_file(k).t_ms == t_ms)
        dead = tuple(m for m in state.parts.values() if m.tombstoned_ms == t_ms)
        return _own(handle, key, LogFile(t_ms, dict(state.schema), (*named, *dead), epoch=None))
    if late:  # it may have been replaced and deleted since, and a second try would affect later rows
        raise uncertain(handle, tried.keys[-1])
    return None


def _own(handle: Handle, key: str, file: LogFile) -> Commit:
    handle.cache.learn_columns(file.schema)
    return report(handle, key, file, tombstoned=[m for m in file.markers if m.tombstoned_ms == file.t_ms])
