"""A batch with an idempotency key is committed once, under crashes, pauses, races and retries at every request.

A table of two columns and one commit is the world of each story; `n` tells which batch a row came from. The same
transaction is tried by several actors with parts of their own: whichever batch won, all of it is there, and only it.
Most stories have lists of row numbers for parts; tests of the whole way to a commit have Parquet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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
from icedb.format.replay import TableState
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.storage.obstore_store import ObjectExists, ObjectStore
from icedb.testing import (
    ClockedStore,
    Crash,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from icedb.util.clock import Clock
from tests.support.tables.fault_walk import SavedState
from tests.support.tables.plain_table import PlainTable, part_rows

TIMEOUT_MS = 5 * MINUTE_MS
TXN = ("app", 5)
Batch = tuple[tuple[int, int], ...]
BASE: Batch = ((0, 0), (1, 1))
ONE: Batch = ((0, 10), (1, 11))
TWO: Batch = ((0, 20), (1, 21))


class World:
    """A table with one commit, and what is in it."""

    def __init__(self, open_it: Callable[[ObjectStore, Clock], Table] = PlainTable.of) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self._open = open_it
        create_table(self.store, self.clock, partition_by=["k"], sort_by=["n"])
        insert(open_it(self.store, self.clock), BASE)
        self.clock.advance(1_000)
        self._begin = SavedState(self.store, self.clock)

    def reset(self) -> None:
        self._begin.restore()

    def actor(self, *, skew_ms: int = 0) -> tuple[Table, FaultyStore]:
        store = FaultyStore(self.store)
        return self._open(store, self.clock.skewed(skew_ms)), store

    def rows(self, state: TableState | None = None) -> Batch:
        """From the live parts themselves."""
        live = (self.state() if state is None else state).live
        return tuple(sorted(row for m in live for row in part_rows(self.store.objects[m.key].body)))

    def state(self) -> TableState:
        return check_sound(self.store)

    def unnamed(self) -> set[str]:
        return {i.key for i in self.store.list("table/_data/")} - self.state().parts.keys()

    def claims(self) -> list[str]:
        return [k for k in self.store.objects if "_claims/txn-" in k]

    def requests(self, act: Callable[[Table], object]) -> Iterator[Request]:
        """Those of an undisturbed run, one after the other, each time with the world as it was."""
        self.reset()
        table, store = self.actor()
        act(table)
        for request in store.requests[1:]:  # the first reads the spec
            self.reset()
            yield request


@pytest.fixture(scope="module")
def shared_world() -> World:
    return World()


@pytest.fixture
def world(shared_world: World) -> World:
    shared_world.reset()
    return shared_world


@pytest.fixture
def parquet_world() -> World:
    return World(open_table)


def insert(table: Table, batch: Batch, *, txn: tuple[str, int] | None = None, **columns: object) -> Commit:
    return table.insert([{"k": k, "n": n, **columns} for k, n in batch], txn=txn)


def one(table: Table) -> Commit:
    return insert(table, ONE, txn=TXN)


def one_with_column(table: Table) -> Commit:
    return insert(table, ONE, txn=TXN, c=1)


KINDS = pytest.mark.parametrize("act", [one, one_with_column], ids=["plain", "brings a column"])


def there(*batches: Batch) -> Batch:
    return tuple(sorted(row for batch in (BASE, *batches) for row in batch))


def queried(world: World) -> Batch:
    """As a reader that knows epochs sees it."""
    return world.rows(open_table(world.store, world.clock).handle.read())


def once(store: FaultyStore, kind: str, key: str, then: Callable[[], object], *, after: bool = False) -> None:
    """Let something happen before (or after) the next such request."""

    def interrupt(request: Request) -> None:
        if request.kind == kind and key in request.keys[0]:
            store.before = store.after = None
            then()

    if after:
        store.after = interrupt
    else:
        store.before = interrupt


def at_request(store: FaultyStore, number: int, then: Callable[[], object]) -> None:
    """Let something happen before the request of that number."""

    def interrupt(request: Request) -> None:
        if request.number == number:
            store.before = None
            then()

    store.before = interrupt


# ------------------------------------------------------------------------------------------ the promise


@KINDS
def test_the_same_transaction_again_adds_nothing(parquet_world: World, act: Callable[[Table], Commit]) -> None:
    table, _ = parquet_world.actor()
    first, again, elsewhere = act(table), act(table), act(parquet_world.actor()[0])
    assert (first.committed, first.repeated, first.rows) == (True, False, 2)
    assert [(c.committed, c.repeated, c.rows) for c in (again, elsewhere)] == [(False, True, 0)] * 2
    assert parquet_world.rows() == there(ONE)
    assert parquet_world.unnamed() == set()
    assert parquet_world.state().txn["app"][0] == 5


def test_applications_do_not_know_each_other_and_a_lower_sequence_is_done(world: World) -> None:
    table, _ = world.actor()
    assert insert(table, TWO, txn=("app", 6)).committed
    assert insert(table, ONE, txn=TXN).repeated
    assert insert(table, ONE, txn=("other app", 5)).committed  # of the same millisecond, too
    assert insert(table, ((7, 7),)).committed
    assert world.rows() == there(ONE, TWO, ((7, 7),))


@pytest.mark.parametrize(
    "txn",
    [("", 1), (" ", 1), ("a", -1), ("a", True), ("a", 2**63), ("a", 1.0), ("a\ud800", 1), ("a",), "a", 5, (1, "a")],
)
def test_what_names_no_transaction_is_refused_before_anything_is_written(parquet_world: World, txn: object) -> None:
    table, store = parquet_world.actor()
    with pytest.raises(InvalidOption, match="txn"):
        table.insert([{"k": 0, "n": 1}], txn=txn)  # type: ignore[arg-type]
    assert store.counts["create"] == 0


def test_a_transaction_alone_costs_two_lists_and_two_puts_beside_its_parts(parquet_world: World) -> None:
    table, store = parquet_world.actor()
    insert(table, TWO, txn=("app", 4))
    store.requests.clear()
    one(table)
    asked = [f"{r.kind} {r.keys[0].split('/')[1]}" for r in store.requests if r.kind != "get"]
    assert asked == ["list _log", *["create _data"] * 2, "create _claims", "list _log", "create _log"]
    assert store.counts["get"] <= 1  # the log file that its last transaction made
    store.requests.clear()
    one(table)
    assert dict(store.counts) == {"list": 1, "get": 1}


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("later_ms", [0, TIMEOUT_MS + 1, 2 * HOUR_MS])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@KINDS
def test_after_a_crash_anywhere_another_try_leaves_one_batch(
    world: World, act: Callable[[Table], Commit], fault: Fault, later_ms: int
) -> None:
    for request in world.requests(act):
        table, store = world.actor()
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            act(table)
        claimed = bool(world.claims())
        assert world.rows() in (BASE, there(ONE))
        world.clock.advance(later_ms)
        other, _ = world.actor()
        commit = insert(other, TWO, txn=TXN)
        # The claim decides which batch it is; nothing else does.
        assert (commit.repeated, world.rows()) == (claimed, there(ONE if claimed else TWO)), request
        assert insert(other, TWO, txn=TXN).repeated
        assert claimed is (world.unnamed() == set()) or not claimed, request


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT, Fault.DELAY])
@KINDS
def test_an_answer_that_is_lost_anywhere_does_not_double_or_lose_a_row(
    world: World, act: Callable[[Table], Commit], fault: Fault
) -> None:
    for request in world.requests(act):
        table, store = world.actor()
        store.inject(fault, number=request.number)
        try:
            act(table)
            done = True
        except (StoreUnavailable, CommitStateUnknown):
            done = False
        assert world.rows() == there(ONE) if done else world.rows() in (BASE, there(ONE))
        with contextlib.suppress(ObjectExists):  # it comes too late
            store.deliver()
        act(table)
        assert world.rows() == there(ONE), (fault, request)


@KINDS
def test_two_who_try_the_same_at_once_leave_one_batch_whole(world: World, act: Callable[[Table], Commit]) -> None:
    other_act = one_with_column if act is one else one
    for request in world.requests(act):
        table, store = world.actor()
        other, _ = world.actor()
        others: list[Commit] = []
        then = partial(lambda other, others: others.append(other_act(other)), other, others)
        at_request(store, request.number, then)
        commit = act(table)
        assert world.rows() == there(ONE), request
        assert len(world.state().live) == 4
        assert sorted(c.repeated for c in (commit, *others)) in ([False, True], [False, False]), request
        if commit.committed and others[0].committed:  # one published for the other, and both may say so
            assert {p.key for p in commit.parts} == {p.key for p in others[0].parts}
        assert world.unnamed() == set(), request


# ------------------------------------------------------------------------------------------ sleepers


@pytest.mark.parametrize("ms", [0, TIMEOUT_MS + 1, 2 * HOUR_MS])
@pytest.mark.parametrize("at", [("create", "_claims/txn"), ("list", "_log/"), ("create", "_log/")])
@KINDS
def test_who_sleeps_while_others_publish_merge_and_clean_up_adds_nothing(
    world: World, act: Callable[[Table], Commit], at: tuple[str, str], ms: int
) -> None:
    for after in (False, True):
        world.reset()
        table, store = world.actor()
        other, _ = world.actor()

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

        def fall_asleep(
            request: Request, store: FaultyStore = store, ages: Callable[[], None] = ages_pass, after: bool = after
        ) -> None:
            if request.kind == "create" and "_data/" in request.keys[0]:
                once(store, *at, ages, after=after)

        store.before = fall_asleep
        act(table)
        # A put that hangs for hours is beyond what the format promises v3 readers.
        rows = world.rows() if ms < HOUR_MS else queried(world)
        assert rows in (there(ONE), there(TWO)), after
        assert act(table).repeated


def test_a_key_that_was_closed_replaced_and_deleted_is_no_success_for_a_late_put(world: World) -> None:
    table, store = world.actor()

    def meanwhile() -> None:
        world.clock.advance(TIMEOUT_MS + 1)
        other, faulty = world.actor()
        faulty.inject(Fault.CRASH_BEFORE, kind="create", key="_claims/epoch")
        with pytest.raises(Crash):  # it has closed the key
            insert(other, TWO, txn=TXN)
        third, _ = world.actor()
        third.alter(sort_by=[])  # replaces log files without parts
        for _ in range(2):
            world.clock.advance(2 * HOUR_MS)
            third.cleanup()
        assert store.requests[-1].keys[0] not in world.store.objects

    once(store, "create", "_log/", meanwhile)
    assert one(table).committed
    assert store.before is None, "they did come in between"
    assert queried(world) == there(ONE)


def test_a_key_that_is_taken_by_another_log_file_is_no_obstacle(world: World) -> None:
    table, store = world.actor()
    file = encode(LogFile(world.clock.now_ms(), {}))
    once(store, "create", "_log/", lambda: world.store.create(store.requests[-1].keys[0], file))
    commit = one(table)
    assert commit.epoch == 2
    assert world.rows() == there(ONE)


def test_a_claim_that_is_gone_when_it_is_read_back_is_taken_anew(world: World) -> None:
    other, faulty = world.actor()
    faulty.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn")
    with pytest.raises(Crash):
        insert(other, TWO, txn=TXN)
    table, store = world.actor()
    once(store, "get", "_claims/txn", lambda: world.store.delete(world.claims()))
    assert one(table).committed
    assert world.rows() == there(ONE)


def test_one_that_is_never_left_alone_says_so(world: World) -> None:
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


def test_parts_that_are_too_old_are_not_claimed(world: World) -> None:
    table, store = world.actor()
    once(store, "create", "_data/", lambda: world.clock.advance(13 * HOUR_MS))
    with pytest.raises(CommitTimedOut):
        one(table)
    assert (world.rows(), world.claims()) == (BASE, [])


def test_claims_that_are_none_are_named(world: World) -> None:
    table, _ = world.actor()
    claim = world.store.location.keys.txn_claim(*TXN)
    one(table)
    body = msgspec.json.decode(world.store.objects[claim].body)
    for bad, said in ((b"{", "not a transaction's claim"), (msgspec.json.encode(body | {"sequence": 4}), "copied")):
        world.reset()
        world.store.create(claim, bad)
        with pytest.raises(CorruptLog, match=said):
            one(world.actor()[0])


# ------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize(("column", "value", "error"), [("c", "text", SchemaConflict), ("C", 1, InvalidBatch)])
def test_a_batch_that_another_columns_type_refuses_blocks_nobody(
    world: World, column: str, value: object, error: type[Exception]
) -> None:
    for request in world.requests(one_with_column):
        table, store = world.actor()
        other, _ = world.actor()

        def bring(other: Table = other) -> None:
            with contextlib.suppress(error):
                insert(other, ((9, 9),), **{column: value})

        at_request(store, request.number, bring)
        try:
            one_with_column(table)
            batch = ONE
        except error:
            assert world.unnamed() == set(), request  # the claim stays; the next generation decides
            batch = TWO
        insert(other, TWO, txn=TXN)
        assert [r for r in world.rows() if r[0] != 9] == list(there(batch)), request
        assert world.unnamed() == set()


def test_two_batches_that_meet_a_refused_claim_are_one(world: World) -> None:
    def leave_refused_claim() -> None:
        table, store = world.actor()
        store.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn-")
        with pytest.raises(Crash):
            one_with_column(table)
        insert(world.actor()[0], ((9, 9),), c="text")

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

        # The other stops at each of its own requests in turn, while the first goes on to its end.
        def meanwhile(other: Table = other, others: FaultyStore = others, number: int = request.number) -> None:
            at_request(others, number, lambda: insert(world.actor()[0], ((0, 40), (1, 41)), txn=TXN))
            insert(other, ((0, 30), (1, 31)), txn=TXN)

        at_request(store, request.number, meanwhile)
        two(table)
        rows = [r for r in world.rows() if r[0] != 9]
        assert len(rows) == len(BASE) + 2, request
        assert world.unnamed() - {m.key for m in world.state().live} == _claimed_only(world), request


def _claimed_only(world: World) -> set[str]:
    """The part of the refused claim: only the claim names it."""
    return {key for key in world.unnamed() if any(key.encode() in world.store.objects[c].body for c in world.claims())}


def test_both_get_through_when_the_column_has_the_same_type(world: World) -> None:
    for request in world.requests(one_with_column):
        table, store = world.actor()
        other, _ = world.actor()

        at_request(store, request.number, partial(insert, other, ((9, 9),), c=2))
        one_with_column(table)
        assert world.rows() == there(ONE, ((9, 9),)), request


def test_a_log_that_disagrees_with_itself_takes_no_claimed_part_away(world: World) -> None:
    table, store = world.actor()
    file = LogFile(world.clock.now_ms(), {"n": "VARCHAR"})
    v3 = world.store.location.keys.log_file(file.t_ms, merged=False, writer="v3")

    def claimed(request: Request) -> None:
        if "_claims/txn" in request.keys[0]:  # what follows is the look at the log
            once(store, "list", "_log/", lambda: world.store.create(v3, encode(file)), after=True)

    store.before = claimed
    with pytest.raises(SchemaConflict, match="log file"):
        one_with_column(table)
    world.store.delete([v3])
    assert len(world.unnamed()) == 2
    insert(world.actor()[0], TWO, txn=TXN)
    assert world.rows() == there(ONE), "the claim names the first batch, and its parts are still there"


# ------------------------------------------------------------------------------------------ what the log remembers


def test_the_record_outlives_every_kind_of_maintenance(parquet_world: World) -> None:
    table, _ = parquet_world.actor()
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
    assert parquet_world.unnamed() == set()


def test_the_record_goes_after_its_retention_and_not_before(world: World) -> None:
    table, _ = world.actor()
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


def test_a_claim_that_outlived_its_record_does_not_bring_deleted_parts_back(world: World) -> None:
    # The table rested for longer than transactions are remembered: no cleanup ran while the log still had it.
    table, _ = world.actor()
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
    assert insert(world.actor()[0], TWO, txn=TXN).committed, "it is a new one by now"
    assert world.rows() == there(ONE, TWO)


@pytest.mark.parametrize("skew_ms", [-10 * HOUR_MS, 10 * HOUR_MS])
@KINDS
def test_a_wrong_clock_claims_nothing(world: World, act: Callable[[Table], Commit], skew_ms: int) -> None:
    table, _ = world.actor(skew_ms=skew_ms)
    with pytest.raises(ClockSkew):
        act(table)
    assert (world.rows(), world.claims(), world.unnamed()) == (BASE, [], set())
