"""A batch with an idempotency key is committed once, under crashes, pauses, races and retries at every request.

Each test begins with a table of two columns and one commit. `n` shows which batch a row came from. Several actors try
the same transaction with parts of their own: one batch is committed completely, and no other. Most parts are lists of
row numbers. Tests of the whole commit have Parquet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from icedb import Commit, Table
from icedb.errors import (
    ClockSkew,
    CommitConflict,
    CommitStateUnknown,
    CommitTimedOut,
    CorruptLog,
    InvalidBatch,
    InvalidOption,
    SchemaConflict,
    StoreUnavailable,
)
from icedb.format.codec import encode
from icedb.format.records import LogFile
from icedb.format.timing import DAY_MS, HOUR_MS
from icedb.storage.obstore_store import ObjectExists, ObjectStore
from icedb.testing import Crash, Fault, FaultyStore, Kind, Request, open_table
from icedb.util.clock import Clock
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.plain_table import PlainTable
from tests.transaction.test_append import TIMEOUT_MS, CommitWorld, Rows

TXN = ("app", 5)
BASE: Rows = ((0, 0), (1, 1))
ONE: Rows = ((0, 10), (1, 11))
TWO: Rows = ((0, 20), (1, 21))


class TransactionWorld(CommitWorld):
    """A table with one commit."""

    def __init__(self, open_it: Callable[[ObjectStore, Clock], Table] = PlainTable.of) -> None:
        super().__init__(open_it, (BASE,))

    def claims(self) -> list[str]:
        return [k for k in self.store.objects if "_claims/txn-" in k]


@pytest.fixture(scope="module")
def shared_world() -> TransactionWorld:
    return TransactionWorld()


@pytest.fixture
def world(shared_world: TransactionWorld) -> TransactionWorld:
    shared_world.reset()
    return shared_world


@pytest.fixture
def parquet_world() -> TransactionWorld:
    return TransactionWorld(open_table)


def insert(table: Table, batch: Rows, *, txn: tuple[str, int] | None = None, **columns: object) -> Commit:
    return table.insert([{"k": k, "n": n, **columns} for k, n in batch], txn=txn)


def one(table: Table) -> Commit:
    return insert(table, ONE, txn=TXN)


def one_with_column(table: Table) -> Commit:
    return insert(table, ONE, txn=TXN, c=1)


Act = Callable[[Table], Commit]
KINDS = pytest.mark.parametrize("act", [one, one_with_column], ids=["plain", "brings a column"])


def rows_with(*batches: Rows) -> Rows:
    return tuple(sorted(row for batch in (BASE, *batches) for row in batch))


def queried(world: TransactionWorld) -> Rows:
    """Return the rows that a reader that knows epochs returns."""
    return world.rows_in(open_table(world.store, world.clock).handle.read())


# ------------------------------------------------------------------------------------------ the promise


@KINDS
def test_the_same_transaction_again_adds_nothing(parquet_world: TransactionWorld, act: Act) -> None:
    table = parquet_world.table()
    first, again, elsewhere = act(table), act(table), act(parquet_world.table())
    assert (first.committed, first.repeated, first.rows) == (True, False, 2)
    assert [(c.committed, c.repeated, c.rows) for c in (again, elsewhere)] == [(False, True, 0)] * 2
    assert parquet_world.rows() == rows_with(ONE)
    assert parquet_world.unnamed_parts() == set()
    assert parquet_world.state().txn["app"][0] == 5


def test_applications_are_independent_and_a_lower_sequence_is_repeated(world: TransactionWorld) -> None:
    table = world.table()
    assert insert(table, TWO, txn=("app", 6)).committed
    assert insert(table, ONE, txn=TXN).repeated
    assert insert(table, ONE, txn=("other app", 5)).committed  # also in the same millisecond
    assert insert(table, ((7, 7),)).committed
    assert world.rows() == rows_with(ONE, TWO, ((7, 7),))


@pytest.mark.parametrize(
    "txn",
    [("", 1), (" ", 1), ("a", -1), ("a", True), ("a", 2**63), ("a", 1.0), ("a\ud800", 1), ("a",), "a", 5, (1, "a")],
)
def test_an_invalid_transaction_is_rejected_before_any_write(parquet_world: TransactionWorld, txn: object) -> None:
    table, store = parquet_world.actor()
    with pytest.raises(InvalidOption, match="txn"):
        table.insert([{"k": 0, "n": 1}], txn=txn)  # type: ignore[arg-type]
    assert store.counts["create"] == 0


def test_a_transaction_costs_two_lists_and_two_puts_besides_its_parts(parquet_world: TransactionWorld) -> None:
    table, store = parquet_world.actor()
    insert(table, TWO, txn=("app", 4))
    store.requests.clear()
    one(table)
    requests = [f"{r.kind} {r.keys[0].split('/')[1]}" for r in store.requests if r.kind != "get"]
    assert requests == ["list _log", *["create _data"] * 2, "create _claims", "list _log", "create _log"]
    assert store.counts["get"] <= 1  # the log file of the last transaction
    store.requests.clear()
    one(table)
    assert dict(store.counts) == {"list": 1, "get": 1}


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("later_ms", [0, TIMEOUT_MS + 1, 2 * HOUR_MS])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@KINDS
def test_a_retry_after_a_crash_leaves_one_batch(world: TransactionWorld, act: Act, fault: Fault, later_ms: int) -> None:
    for request in world.requests(act):
        table, store = world.actor()
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            act(table)
        claimed = bool(world.claims())
        assert world.rows() in (BASE, rows_with(ONE))
        world.clock.advance(later_ms)
        other = world.table()
        commit = insert(other, TWO, txn=TXN)
        # Only the claim decides which batch is committed.
        assert (commit.repeated, world.rows()) == (claimed, rows_with(ONE if claimed else TWO)), request
        assert insert(other, TWO, txn=TXN).repeated
        assert claimed is (world.unnamed_parts() == set()) or not claimed, request


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT, Fault.DELAY])
@KINDS
def test_a_lost_response_duplicates_and_loses_no_row(world: TransactionWorld, act: Act, fault: Fault) -> None:
    for request in world.requests(act):
        table, store = world.actor()
        store.inject(fault, number=request.number)
        try:
            act(table)
            done = True
        except (StoreUnavailable, CommitStateUnknown):
            done = False
        assert world.rows() == rows_with(ONE) if done else world.rows() in (BASE, rows_with(ONE))
        with contextlib.suppress(ObjectExists):  # it arrives too late
            store.deliver()
        act(table)
        assert world.rows() == rows_with(ONE), (fault, request)


@KINDS
def test_two_concurrent_writers_of_one_transaction_commit_one_batch(world: TransactionWorld, act: Act) -> None:
    other_act = one_with_column if act is one else one
    for request in world.requests(act):
        table, store = world.actor()
        other = world.table()
        others: list[Commit] = []
        then = partial(lambda other, others: others.append(other_act(other)), other, others)
        act_before(store, then, number=request.number)
        commit = act(table)
        assert world.rows() == rows_with(ONE), request
        assert len(world.state().live) == 4
        assert sorted(c.repeated for c in (commit, *others)) in ([False, True], [False, False]), request
        if commit.committed and others[0].committed:  # one published for the other, and both may return that
            assert {p.key for p in commit.parts} == {p.key for p in others[0].parts}
        assert world.unnamed_parts() == set(), request


# ------------------------------------------------------------------------------------------ paused writers


@pytest.mark.parametrize("ms", [0, TIMEOUT_MS + 1, 2 * HOUR_MS])
@pytest.mark.parametrize("at", [("create", "_claims/txn"), ("list", "_log/"), ("create", "_log/")])
@KINDS
def test_a_writer_that_is_paused_during_publication_merge_and_cleanup_adds_nothing(
    world: TransactionWorld, act: Act, at: tuple[Kind, str], ms: int
) -> None:
    for after in (False, True):
        world.reset()
        table, store = world.actor()
        other = world.table()

        def ages_pass(other: Table = other) -> None:
            world.clock.advance(ms)
            insert(other, TWO, txn=TXN)
            other.merge_log()
            other.merge()
            for _ in range(3):
                world.clock.advance(ms)
                if ms > HOUR_MS:
                    other.cleanup()
            assert bool(world.claims()) is (ms < HOUR_MS)

        pause = partial(act_after if after else act_before, store, ages_pass, kind=at[0], key=at[1])
        act_before(store, pause, kind="create", key="_data/")
        act(table)
        # The format promises v3 readers nothing about a put that is delayed for hours.
        rows = world.rows() if ms < HOUR_MS else queried(world)
        assert rows in (rows_with(ONE), rows_with(TWO)), after
        assert act(table).repeated


def test_a_late_put_of_a_key_that_was_closed_replaced_and_deleted_is_not_a_success(world: TransactionWorld) -> None:
    table, store = world.actor()
    begun_ms = world.clock.now_ms()

    def meanwhile() -> None:
        world.clock.advance(TIMEOUT_MS + 1)
        other, faulty = world.actor()
        faulty.inject(Fault.CRASH_BEFORE, kind="create", key="_claims/epoch")
        with pytest.raises(Crash):  # after it closed the key
            insert(other, TWO, txn=TXN)
        third = world.table()
        third.alter(sort_by=[])  # replaces log files without parts
        for _ in range(2):
            world.clock.advance(2 * HOUR_MS)
            third.cleanup()
        assert store.requests[-1].keys[0] not in world.store.objects

    act_before(store, meanwhile, kind="create", key="_log/")
    assert one(table).committed
    assert world.clock.now_ms() > begun_ms, "the others did commit in between"
    assert queried(world) == rows_with(ONE)


def test_a_key_that_another_log_file_has_does_not_prevent_the_commit(world: TransactionWorld) -> None:
    table, store = world.actor()
    file = encode(LogFile(world.clock.now_ms(), {}))
    act_before(store, lambda: world.store.create(store.requests[-1].keys[0], file), kind="create", key="_log/")
    commit = one(table)
    assert commit.epoch == 2
    assert world.rows() == rows_with(ONE)


def test_a_claim_that_is_deleted_before_it_is_read_back_is_created_again(world: TransactionWorld) -> None:
    other, faulty = world.actor()
    faulty.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn")
    with pytest.raises(Crash):
        insert(other, TWO, txn=TXN)
    table, store = world.actor()
    act_before(store, lambda: world.store.delete(world.claims()), kind="get", key="_claims/txn")
    assert one(table).committed
    assert world.rows() == rows_with(ONE)


def test_a_transaction_that_is_always_interrupted_raises_commit_conflict(world: TransactionWorld) -> None:
    table, store = world.actor()
    claim = world.store.location.keys.txn_claim(*TXN)

    def restless(request: Request) -> None:
        if request.kind == "create" and request.keys[0] == claim:
            world.store.create(claim, b"{}")
        if request.kind == "get" and request.keys[0] == claim:
            world.store.delete([claim])

    store.before = restless
    with pytest.raises(CommitConflict, match="Retry the same"):
        one(table)
    assert world.rows() == BASE


def test_parts_that_are_too_old_are_not_claimed(world: TransactionWorld) -> None:
    table, store = world.actor()
    act_before(store, lambda: world.clock.advance(13 * HOUR_MS), kind="create", key="_data/")
    with pytest.raises(CommitTimedOut):
        one(table)
    assert (world.rows(), world.claims()) == (BASE, [])


def test_an_invalid_claim_raises_corrupt_log(world: TransactionWorld) -> None:
    table = world.table()
    claim = world.store.location.keys.txn_claim(*TXN)
    one(table)
    body = msgspec.json.decode(world.store.objects[claim].body)
    for bad, message in ((b"{", "not a transaction's claim"), (msgspec.json.encode(body | {"sequence": 4}), "copied")):
        world.reset()
        world.store.create(claim, bad)
        with pytest.raises(CorruptLog, match=message):
            one(world.table())


# ------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize(("column", "value", "error"), [("c", "text", SchemaConflict), ("C", 1, InvalidBatch)])
def test_a_batch_with_a_conflicting_column_does_not_block_the_transaction(
    world: TransactionWorld, column: str, value: object, error: type[Exception]
) -> None:
    for request in world.requests(one_with_column):
        table, store = world.actor()
        other = world.table()

        def bring(other: Table = other) -> None:
            with contextlib.suppress(error):
                insert(other, ((9, 9),), **{column: value})

        act_before(store, bring, number=request.number)
        try:
            one_with_column(table)
            batch = ONE
        except error:
            assert world.unnamed_parts() == set(), request  # the claim stays; the next generation decides
            batch = TWO
        insert(other, TWO, txn=TXN)
        assert [r for r in world.rows() if r[0] != 9] == list(rows_with(batch)), request
        assert world.unnamed_parts() == set()


def test_one_of_two_batches_is_committed_after_a_rejected_claim(world: TransactionWorld) -> None:
    def leave_refused_claim() -> None:
        table, store = world.actor()
        store.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn-")
        with pytest.raises(Crash):
            one_with_column(table)
        insert(world.table(), ((9, 9),), c="text")

    def two(table: Table) -> Commit:
        return insert(table, TWO, txn=TXN)

    leave_refused_claim()
    table, counting = world.actor()
    two(table)
    for request in counting.requests[1:]:
        world.reset()
        leave_refused_claim()
        table, store = world.actor()
        other, others = world.actor()

        # The other pauses before one of its own requests, while the first runs to its end.
        def meanwhile(other: Table = other, others: FaultyStore = others, number: int = request.number) -> None:
            act_before(others, lambda: insert(world.table(), ((0, 40), (1, 41)), txn=TXN), number=number)
            insert(other, ((0, 30), (1, 31)), txn=TXN)

        act_before(store, meanwhile, number=request.number)
        two(table)
        rows = [r for r in world.rows() if r[0] != 9]
        assert len(rows) == len(BASE) + 2, request
        assert world.unnamed_parts() - {m.key for m in world.state().live} == _claimed_only(world), request


def _claimed_only(world: TransactionWorld) -> set[str]:
    """Return the part of the rejected claim, which only the claim names."""
    return {
        key for key in world.unnamed_parts() if any(key.encode() in world.store.objects[c].body for c in world.claims())
    }


def test_two_writers_that_add_a_column_of_the_same_type_both_commit(world: TransactionWorld) -> None:
    for request in world.requests(one_with_column):
        table, store = world.actor()
        other = world.table()

        act_before(store, partial(insert, other, ((9, 9),), c=2), number=request.number)
        one_with_column(table)
        assert world.rows() == rows_with(ONE, ((9, 9),)), request


def test_a_schema_conflict_in_the_log_deletes_no_claimed_part(world: TransactionWorld) -> None:
    table, store = world.actor()
    file = LogFile(world.clock.now_ms(), {"n": "VARCHAR"})
    v3 = world.store.location.keys.log_file(file.t_ms, merged=False, writer="v3")
    at_next_list = partial(act_after, store, lambda: world.store.create(v3, encode(file)), kind="list", key="_log/")
    act_before(store, at_next_list, key="_claims/txn")
    with pytest.raises(SchemaConflict, match="log file"):
        one_with_column(table)
    world.store.delete([v3])
    assert len(world.unnamed_parts()) == 2
    insert(world.table(), TWO, txn=TXN)
    assert world.rows() == rows_with(ONE), "the claim names the first batch, and its parts are kept"


# ------------------------------------------------------------------------------------------ records in the log


def test_the_record_of_a_transaction_survives_all_maintenance(parquet_world: TransactionWorld) -> None:
    table = parquet_world.table()
    one(table)
    for n, act in enumerate(
        (
            table.merge_log,
            table.merge,
            lambda: table.overwrite([{"k": 0, "n": 3}]),
            lambda: table.drop_partitions("k=0"),
        )
    ):
        act()
        insert(table, ((5, n),))
        for _ in range(3):
            parquet_world.clock.advance(2 * HOUR_MS)
            table.cleanup()
        table.merge_log()
        assert parquet_world.state().txn["app"][0] == 5
        assert one(table).repeated
        assert insert(table, ONE, txn=("app", 4)).repeated
    assert parquet_world.claims() == []
    assert parquet_world.unnamed_parts() == set()


def test_the_record_of_a_transaction_is_removed_after_its_retention(world: TransactionWorld) -> None:
    table = world.table()
    one(table)
    world.clock.advance(29 * DAY_MS)
    table.merge()
    assert world.state().txn["app"][0] == 5
    world.clock.advance(DAY_MS + 1)
    table.overwrite([{"k": 0, "n": 3}])
    for _ in range(3):
        world.clock.advance(2 * HOUR_MS)
        table.cleanup()
    assert world.state().txn == {}


def test_a_claim_without_its_record_does_not_restore_deleted_parts(world: TransactionWorld) -> None:
    # No cleanup ran while the log recorded the transaction.
    table = world.table()
    one(table)
    table.merge()
    claim = world.claims()
    saved = {k: world.store.objects[k] for k in claim}
    world.clock.advance(31 * DAY_MS)
    for _ in range(3):
        table.cleanup()
        table.merge_log()
        world.clock.advance(2 * HOUR_MS)
    world.store.objects |= saved
    assert insert(world.table(), TWO, txn=TXN).committed, "the transaction is forgotten, so it counts as new"
    assert world.rows() == rows_with(ONE, TWO)


@pytest.mark.parametrize("skew_ms", [-10 * HOUR_MS, 10 * HOUR_MS])
@KINDS
def test_a_writer_with_a_wrong_clock_creates_no_claim(world: TransactionWorld, act: Act, skew_ms: int) -> None:
    table = world.table(skew_ms=skew_ms)
    with pytest.raises(ClockSkew):
        act(table)
    assert (world.rows(), world.claims(), world.unnamed_parts()) == (BASE, [], set())
