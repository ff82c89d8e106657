"""The operations of a simulation: the library's own operations on plain parts, each with checks of its result.

An operation is a function of an `OperationRun`. It calls the code under test and compares its report with the model.
A success must have its effect, and an error that promises so must have none. Unexpected errors end the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from icedb.errors import (
    CommitStateUnknown,
    CorruptLog,
    InvalidRequestError,
    RetryableError,
    SchemaConflict,
    SnapshotExpired,
)
from icedb.format.change_feed import Limits
from icedb.format.replay import live_markers
from icedb.operations.commits.alter import alter
from icedb.operations.commits.drop_partitions import drop_partitions
from icedb.operations.commits.publish import publish_append, publish_overwrite
from icedb.operations.retention.cleanup import cleanup
from icedb.operations.retention.merge_log import merge_log
from icedb.operations.retention.orphans import delete_orphans
from icedb.operations.retention.pins import pin, unpin
from icedb.operations.retention.restore import restore
from icedb.operations.rewrite.delete import delete
from icedb.operations.rewrite.merge import merge
from icedb.operations.rewrite.rewrite_partition import rewrite_partition
from icedb.operations.upsert.row_changes import RowChanges
from icedb.testing.simulation.world.operation_run import BASE_SCHEMA, OperationRun, RejectedOperation, Transactions
from icedb.testing.simulation.world.plain_changes import PlainChangedRows, key_of
from icedb.testing.simulation.world.plain_parts import plain_finder, plain_rewriter, plain_writer, read_rows
from icedb.testing.simulation.world.process import Act
from icedb.testing.simulation.world.setting import LATE_MS, PARTITIONS, TIMING
from icedb.testing.simulation.world.truth import Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.exclusive import commit_exclusive

__all__ = ["OPERATIONS", "Operation"]

#: The usual type of a new column, and one that conflicts with it.
TYPES = ("INTEGER", "VARCHAR")
UNUSUAL = 0.25
APPLICATIONS = ("stream", "job")


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of operation. `refuses`: its RetryableError and InvalidRequestError promise that nothing was published."""

    name: str
    run: Callable[[OperationRun], None]
    changes: bool = True
    refuses: bool = True

    def body(
        self, world: SimulatedWorld, transactions: Transactions, refusals: list[RejectedOperation]
    ) -> Callable[[Act], str]:
        """Return the function that an actor runs."""

        def run(act: Act) -> str:
            since_ms = act.process.handle.clock.now_ms()
            task = OperationRun(world, act, transactions, refusals, since_step=world.step, since_ms=since_ms)
            alone, spawned = act.process.busy == 1, act.process.spawned
            try:
                self.run(task)
            except (RetryableError, InvalidRequestError) as error:
                if self.refuses:
                    alone = alone and act.process.spawned == spawned and world.rng.random() < 0.5
                    act.process.retired |= alone
                    writer = act.process.name if alone else None
                    parts = frozenset(task.parts)
                    since = task.since_step, task.since_ms
                    refusals.append(RejectedOperation(act.name, type(error).__name__, parts, writer, *since))
                world.say(act.name, f"raised {type(error).__name__}: {error}")
                return type(error).__name__
            except CommitStateUnknown as error:
                world.say(act.name, f"raised CommitStateUnknown: {error}")
                return "CommitStateUnknown"
            return "done"

        return run


def _append(task: OperationRun) -> None:
    rows = task.new_rows(*dict.fromkeys((task.choose(PARTITIONS), task.choose(PARTITIONS))))
    task.must_have_added(publish_append(task.handle, task.write(rows)), rows)


def _column(task: OperationRun) -> None:
    """Append with a column that may be new, or that another writer may have added with another type."""
    rows = task.new_rows(task.choose(PARTITIONS))
    column = f"c{task.world.rng.randrange(6)}"
    written = task.write(rows, {**BASE_SCHEMA, column: TYPES[task.world.rng.random() < UNUSUAL]})
    task.must_have_added(publish_append(task.handle, written), rows)


def _txn(task: OperationRun) -> None:
    application = task.choose(APPLICATIONS)
    transactions = task.transactions
    sequence = transactions.next.setdefault(application, 0)
    rows = transactions.rows.setdefault((application, sequence), task.new_rows(task.choose(PARTITIONS)))
    schema = {**BASE_SCHEMA, f"c{sequence % 4}": TYPES[sequence // 4 % 2]} if sequence % 3 == 2 else BASE_SCHEMA
    written = task.write(rows, schema)
    try:
        commit = publish_append(task.handle, written, txn=(application, sequence))
    except SchemaConflict:
        # The application gives up this batch.
        transactions.next[application] = max(transactions.next[application], sequence + 1)
        raise
    task.must_have_added(commit, rows)
    transactions.next[application] = max(transactions.next[application], sequence + 1)


def _overwrite(task: OperationRun) -> None:
    partition = task.choose(PARTITIONS)
    rows = task.new_rows(partition)
    before = task.alive(lambda _, p: p == partition)
    commit = publish_overwrite(task.handle, task.write(rows), [partition])
    task.must_have_added(commit, rows)
    task.must_be_gone(before)


def _drop(task: OperationRun) -> None:
    partition = task.choose(PARTITIONS)
    before = task.alive(lambda _, p: p == partition)
    task.must_have_landed(drop_partitions(task.handle, [partition]).commit)
    task.must_be_gone(before)


def _delete(task: OperationRun) -> None:
    rest = task.world.rng.randrange(3)
    before = task.alive(lambda row, _: row % 3 == rest)
    report = delete(task.handle, f"{rest}", rewriter=plain_rewriter, finder=plain_finder)
    task.must_have_landed(report.commit)
    if not report.dropped_parts:
        task.must_be_gone(before)


def _upsert(task: OperationRun) -> None:
    """Replace the rows with the key of a new row, or insert the row only if none has the key."""
    world, partition = task.world, task.choose(PARTITIONS)
    [row] = world.new_rows(1)
    skip = world.rng.random() < UNUSUAL
    before = task.alive(lambda other, _: key_of(other) == key_of(row))
    put = partial(task.write, {partition: [row]})
    changes = RowChanges(task.handle, PlainChangedRows(task.handle, row, skip, put), "upsert")
    commit = commit_exclusive(task.handle, changes)
    task.must_have_landed(commit)
    if not skip:
        task.must_be_gone(before)
    if commit.key is None:
        return
    # Rows of earlier exclusive commits are always seen.
    landed = world.truth.landings[commit.key].step
    for other, lives in world.truth.fates.items():
        doubled = any(f.added_epoch and f.added_step < landed < f.removed_step for f in lives)
        if doubled and other != row and key_of(other) == key_of(row):
            raise Violation(f"row {row} was upserted, and row {other} with its key stayed")


def _rewrite(task: OperationRun) -> None:
    """Rewrite a partition without some of its rows."""
    rest = task.world.rng.randrange(3)
    partition = task.choose(PARTITIONS)
    before = task.alive(lambda row, p: p == partition and row % 3 == rest)
    report = rewrite_partition(task.handle, partition, f"{rest}", writer=plain_writer)
    task.must_have_landed(report.commit)
    task.must_be_gone(before)


def _merge(task: OperationRun) -> None:
    task.must_have_landed(merge(task.handle, rewriter=plain_rewriter).commit)


def _merge_log(task: OperationRun) -> None:
    task.must_have_landed(merge_log(task.handle).commit)


def _alter(task: OperationRun) -> None:
    rows = 2_048 * task.world.rng.randint(1, 1_000)
    commit = alter(task.handle, lambda spec: msgspec.structs.replace(spec, row_group_rows=rows))
    task.must_have_landed(commit)


def _restore(task: OperationRun) -> None:
    """Restore the table of a time. Rows of concurrent plain appends are kept."""
    as_of_ms = _some_time(task)
    truth = task.world.truth
    truth.revivers.add(task.act.process.name)
    began = task.world.step
    report = restore(task.handle, as_of_ms, allow_empty=True)
    task.must_have_landed(report.commit)
    if report.commit.key is None:
        return
    # Compare at the moment when it landed, because a plain append with an earlier time may have landed since.
    landing = truth.landings[report.commit.key]
    restored = landing.left
    then = {row for row in truth.rows_at(as_of_ms) if truth.fates[row][0].added_step <= landing.step}
    if lost := then - restored:
        raise Violation(f"the restore of {as_of_ms} lacks rows {sorted(lost)}")
    if extra := [row for row in restored - then if truth.fates[row][0].added_step <= began]:
        raise Violation(f"the restore of {as_of_ms} kept rows {sorted(extra)}")


def _cleanup(task: OperationRun) -> None:
    task.must_have_landed(cleanup(task.handle).commit)


def _sweep(task: OperationRun) -> None:
    """Delete orphans. A table without commits may have lost its log, so its old parts are kept."""
    before = len(task.world.truth.landings)
    try:
        delete_orphans(task.handle)
    except CorruptLog:
        if before:
            raise


def _pin(task: OperationRun) -> None:
    name = f"pin{task.world.step}"
    created = pin(task.handle, name, None if task.world.rng.random() < 0.5 else _some_time(task))
    task.world.checker.pins[name] = created.as_of_ms
    task.world.check(f"after '{name}' was made")


def _unpin(task: OperationRun) -> None:
    pins = task.world.checker.pins
    if not pins:
        task.handle.read()
        return
    name = task.choose(sorted(pins))
    del pins[name]
    unpin(task.handle, name)


def _read(task: OperationRun) -> None:
    """Read two latest snapshots, one after the other, as a long-lived reader does."""
    for _ in range(2):
        first, began_ms = task.world.step, task.world.clock.now_ms()
        try:
            rows = read_rows(task.handle, [m.key for m in task.handle.read().live])
        except SnapshotExpired:
            if task.world.clock.now_ms() - began_ms < TIMING.grace_ms - 2 * TIMING.max_skew_ms:
                raise Violation("a snapshot expired before the grace period was over") from None
            raise
        _once(rows, "the latest snapshot")
        truth, last = task.world.truth, task.world.step
        if lost := truth.must_see(first, last) - set(rows):
            raise Violation(f"a reader of requests {first} to {last} did not see rows {sorted(lost)}")
        newest, unseen = truth.epochs_seen(rows)
        if unseen < newest:
            raise Violation(f"a reader saw rows that epoch {newest} added and rows that epoch {unseen} had removed")
        if ghosts := set(rows) - truth.may_see(first, last):
            raise Violation(f"a reader of requests {first} to {last} saw rows {sorted(ghosts)}")


def _read_as_of(task: OperationRun) -> None:
    """Read a snapshot at some time, which is repeatable once the time is settled."""
    at_ms = _some_time(task)
    began_ms = task.world.clock.now_ms()
    state = task.handle.read()
    rows = read_rows(task.handle, [m.key for m in live_markers(state, at_ms)], as_of_ms=at_ms)
    _once(rows, f"the snapshot at {at_ms}")
    # A writer looks at its clock right before a put, which takes less than the commit timeout.
    settled = at_ms < began_ms - LATE_MS
    truth = task.world.truth
    if settled and set(rows) != (then := truth.rows_at(at_ms)):
        raise Violation(f"the snapshot at {at_ms} has {sorted(set(rows))} and must have {sorted(then)}")
    if early := [row for row in rows if truth.fates[row][0].added_ms > at_ms]:
        raise Violation(f"the snapshot at {at_ms} has rows {early}, which were added later")


def _follow(task: OperationRun) -> None:
    """Continue a consumer of the change feed: with all changes, or with a limited batch."""
    world = task.world
    limits = world.rng.choice((None, None, Limits(parts=1), Limits(parts=3)))
    world.followers.follow(world, task.handle, world.followers.idle(), limits)


def _some_time(task: OperationRun) -> int:
    world = task.world
    ago_ms = world.rng.choice((5, 300, 2 * TIMING.commit_timeout_ms + 200, TIMING.grace_ms, 3 * TIMING.grace_ms))
    return max(world.start_ms + 1, world.clock.now_ms() - ago_ms)


def _once(rows: Sequence[int], what: str) -> None:
    if len(set(rows)) < len(rows):
        raise Violation(f"{what} has rows twice: {sorted(rows)}")


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("append", _append),
        Operation("column", _column),
        Operation("txn", _txn, refuses=False),
        Operation("overwrite", _overwrite),
        Operation("drop", _drop),
        Operation("delete", _delete),
        Operation("upsert", _upsert),
        Operation("rewrite", _rewrite),
        Operation("merge", _merge),
        Operation("merge log", _merge_log),
        Operation("alter", _alter),
        Operation("restore", _restore),
        Operation("cleanup", _cleanup, refuses=False),
        Operation("sweep", _sweep, refuses=False),
        Operation("pin", _pin, refuses=False),
        Operation("unpin", _unpin, refuses=False),
        Operation("read", _read, changes=False),
        Operation("read as of", _read_as_of, changes=False),
        Operation("follow", _follow, changes=False),
    )
}
