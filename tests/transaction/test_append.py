"""Commits are atomic under crashes, pauses, races and retries at every single request of every operation.

Each test begins with the same table of two partitions and two commits. An operation runs with a fault at one of its
requests. Another actor follows, at once or after the commit timeout. Then the test reads the rows from the parts
themselves and checks the invariants. Most parts are lists of row numbers, because the tests are about requests to the
store. Some are Parquet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from icedb import Commit, Table
from icedb.errors import (
    AccessDenied,
    CommitConflict,
    CommitStateUnknown,
    CommitTimedOut,
    CorruptLog,
    SchemaConflict,
    StoreUnavailable,
)
from icedb.format.codec import encode
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.keys import decode_partition, partition_of
from icedb.format.records import LogFile
from icedb.format.replay import TableState, live_markers
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.storage.obstore_store import ObjectExists, ObjectStore
from icedb.testing import (
    ClockedStore,
    Crash,
    Fault,
    FaultyStore,
    Kind,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from icedb.transaction.append import UNANSWERED_MAX, PutOutcome, put_if_absent
from icedb.transaction.exclusive import EXCLUSIVE_ATTEMPTS_MAX, commit_exclusive, rebases
from icedb.util.clock import Clock
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.fault_walk import SavedState
from tests.support.tables.plain_table import PlainTable, part_rows

TIMEOUT_MS = 5 * MINUTE_MS
Rows = tuple[tuple[int, int], ...]
BASE: Rows = ((0, 0), (0, 2), (1, 1), (1, 3))


@dataclass(frozen=True)
class TableOperation:
    """An operation and its effect on the rows (k, n)."""

    act: Callable[[Table], object]
    effect: Callable[[Rows], Rows]


def _insert(*rows: dict[str, int]) -> Callable[[Table], object]:
    return lambda table: table.insert(list(rows))


VERBS = {
    "insert": TableOperation(_insert({"k": 0, "n": 10}, {"k": 1, "n": 11}), lambda rows: (*rows, (0, 10), (1, 11))),
    "insert a column": TableOperation(_insert({"k": 0, "n": 20, "c": 1}), lambda rows: (*rows, (0, 20))),
    "merge": TableOperation(lambda table: table.merge(), lambda rows: rows),
    "overwrite": TableOperation(lambda table: table.overwrite([{"k": 1, "n": 30}]), lambda rows: ((1, 30),)),
    "overwrite a partition": TableOperation(
        lambda table: table.overwrite([{"k": 0, "n": 40}], partitions=["k=0"]),
        lambda rows: (*(r for r in rows if r[0] != 0), (0, 40)),
    ),
    "drop": TableOperation(
        lambda table: table.drop_partitions(["k=0"], missing_ok=True), lambda rows: tuple(r for r in rows if r[0] != 0)
    ),
}
EXCLUSIVE = [name for name in VERBS if name != "insert"]
#: A commit that always changes the table, and so always decides an open epoch.
RECOVERY = TableOperation(_insert({"k": 9, "n": 99, "z": 1}), lambda rows: (*rows, (9, 99)))


class CommitWorld:
    """A table in one store, at one moment. Actors get stores of their own around it."""

    def __init__(
        self,
        open_it: Callable[[ObjectStore, Clock], Table] = PlainTable.of,
        batches: Sequence[Rows] = (BASE[::2], BASE[1::2]),
    ) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self._open = open_it
        create_table(self.store, self.clock, partition_by=["k"], sort_by=["n"])
        table = self.table()
        for batch in batches:
            table.insert([{"k": k, "n": n} for k, n in batch])
            self.clock.advance(1_000)
        self.before_ms = self.clock.now_ms() - 1
        self._begin = SavedState(self.store, self.clock)

    def reset(self) -> None:
        self._begin.restore()

    def actor(self, *, skew_ms: int = 0) -> tuple[Table, FaultyStore]:
        store = FaultyStore(self.store)
        return self._open(store, self.clock.skewed(skew_ms)), store

    def table(self, *, skew_ms: int = 0) -> Table:
        return self.actor(skew_ms=skew_ms)[0]

    def state(self) -> TableState:
        return check_sound(self.store)

    def rows(self, at_ms: int | None = None) -> Rows:
        """Read the rows from the parts themselves, after the checks that must always hold."""
        return self.rows_in(self.state(), at_ms)

    def rows_in(self, state: TableState, at_ms: int | None = None) -> Rows:
        return tuple(sorted(row for m in live_markers(state, at_ms) for row in self._rows_of(state, m.key)))

    def _rows_of(self, state: TableState, key: str) -> list[tuple[int, int]]:
        read = part_rows(self.store.objects[key].body)
        assert len(read) == state.parts[key].rows
        assert {str(k) for k, _ in read} == {
            decode_partition(partition_of(self.store.location.keys.data_prefix, key))["k"]
        }
        return read

    def unnamed_parts(self) -> set[str]:
        """Return the stored parts that no log file names."""
        return {i.key for i in self.store.list(self.store.location.keys.data_prefix)} - self.state().parts.keys()

    def requests(self, act: Callable[[Table], object]) -> Iterator[Request]:
        """Yield each request of a run without faults, except the read of the spec. Restore the world before each."""
        self.reset()
        table, store = self.actor()
        act(table)
        for request in store.requests[1:]:
            self.reset()
            yield request


@pytest.fixture(scope="module")
def shared_world() -> CommitWorld:
    return CommitWorld()


@pytest.fixture
def world(shared_world: CommitWorld) -> CommitWorld:
    shared_world.reset()
    return shared_world


@pytest.fixture(scope="module")
def parquet_world() -> CommitWorld:
    return CommitWorld(open_table)


def expect(verb: TableOperation, rows: Rows) -> Rows:
    return tuple(sorted(verb.effect(rows)))


@pytest.mark.parametrize("name", VERBS)
def test_an_operation_without_faults_has_its_effect(world: CommitWorld, parquet_world: CommitWorld, name: str) -> None:
    costs = []
    for each in (world, parquet_world):
        each.reset()
        table, store = each.actor()
        VERBS[name].act(table)
        costs.append(store.counts)
        assert each.rows() == expect(VERBS[name], BASE)
        assert each.rows(each.before_ms) == BASE
        assert each.unnamed_parts() == set()
    assert costs[0] == costs[1]


# ------------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after the timeout"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("name", VERBS)
def test_a_crash_at_any_request_leaves_all_or_nothing(world: CommitWorld, name: str, fault: Fault, later: bool) -> None:
    verb = VERBS[name]
    after = expect(verb, BASE)
    for request in world.requests(verb.act):
        table, store = world.actor()
        store.inject(fault, number=request.number)
        with pytest.raises(Crash):
            verb.act(table)
        visible = world.rows()
        assert visible in (BASE, after), request
        claimed = any("_claims/epoch-2" in k for k in world.store.objects)
        published = any(f.file.epoch == 2 for f in world.state().files.values())

        if later:
            world.clock.advance(TIMEOUT_MS + 1)
        other = world.table()
        RECOVERY.act(other)
        # A young claim is completed, an old one becomes void, and published rows stay.
        decided = after if claimed and (published or not later) else visible
        assert world.rows() == expect(RECOVERY, decided), request
        assert world.rows(world.before_ms) == BASE, request


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_a_crash_while_completing_a_crashed_commit_is_completed_too(world: CommitWorld, name: str) -> None:
    verb = VERBS[name]
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
        for request in world.requests(RECOVERY.act):
            _crash_after_claim(world, verb)
            second, store = world.actor()
            store.inject(fault, number=request.number)
            # The log has one more file, so the second actor may need fewer or more requests.
            try:
                RECOVERY.act(second)
            except Crash:
                third = world.table()
                third.insert([{"k": 9, "n": 98, "y": 1}])
            rows = set(world.rows()) - {(9, 98), (9, 99)}
            assert rows == set(expect(verb, BASE)), (fault, request)
            assert len(world.rows()) == len(set(world.rows()))


def _crash_after_claim(world: CommitWorld, verb: TableOperation) -> None:
    table, store = world.actor()
    store.inject(Fault.CRASH_AFTER, kind="create", key="_claims/epoch-")
    with pytest.raises(Crash):
        verb.act(table)


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_parts_of_a_crashed_commit_stay_invisible_after_a_void(world: CommitWorld, name: str) -> None:
    _crash_after_claim(world, VERBS[name])
    world.clock.advance(TIMEOUT_MS + 1)
    table = world.table()
    RECOVERY.act(table)
    state = world.state()
    [void] = [f for f in state.files.values() if f.file.void]
    assert (void.file.epoch, void.file.schema, void.file.markers) == (2, {}, ())
    assert {1, 2, 3} <= state.live_epochs | {1}
    world.clock.advance(24 * HOUR_MS)
    table.cleanup()
    assert world.rows() == expect(RECOVERY, BASE)


# ------------------------------------------------------------------------------------------ lost, repeated, refused


@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT])
@pytest.mark.parametrize(
    ("kind", "name"), [*(("world", name) for name in VERBS), *(("parquet_world", name) for name in ("insert", "merge"))]
)
def test_a_request_without_a_response_is_settled_or_raises_commit_state_unknown(
    request: pytest.FixtureRequest, kind: str, name: str, fault: Fault
) -> None:
    world, verb = request.getfixturevalue(kind), VERBS[name]
    after = expect(verb, BASE)
    for request in world.requests(verb.act):
        table, store = world.actor()
        store.inject(fault, number=request.number)
        done = False
        try:
            verb.act(table)
            done = True
        except CommitStateUnknown:
            pass
        except StoreUnavailable:
            # The caller may retry: if this commit became visible later, its rows would exist twice.
            other = world.table()
            RECOVERY.act(other)
            assert world.rows() == expect(RECOVERY, BASE), request
            continue
        assert world.rows() == (after if done else world.rows()), request
        assert world.rows() in (BASE, after), request
        other = world.table()
        RECOVERY.act(other)
        assert world.rows() in (expect(RECOVERY, BASE), expect(RECOVERY, after)), request
        assert not done or world.rows() == expect(RECOVERY, after), request


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT])
@pytest.mark.parametrize("key", ["_claims/epoch-", "_log/"])
@pytest.mark.parametrize("name", VERBS)
def test_a_put_without_a_response_is_read_back_and_the_commit_continues(
    world: CommitWorld, name: str, key: str, fault: Fault
) -> None:
    table, store = world.actor()
    store.inject(fault, kind="create", key=key)
    VERBS[name].act(table)
    assert world.rows() == expect(VERBS[name], BASE)
    assert world.unnamed_parts() == set()


@pytest.mark.parametrize("name", VERBS)
def test_a_put_that_is_delivered_late_adds_nothing(world: CommitWorld, name: str) -> None:
    for key in ("_claims/epoch-", "_log/"):
        world.reset()
        table, store = world.actor()
        store.inject(Fault.DELAY, kind="create", key=key)
        VERBS[name].act(table)
        expected = expect(VERBS[name], BASE)
        with contextlib.suppress(ObjectExists):  # the commit continued with a second put
            store.deliver()
        assert world.rows() == expected
        RECOVERY.act(table)
        assert world.rows() == expect(RECOVERY, expected)


@pytest.mark.parametrize("name", VERBS)
def test_a_commit_that_cannot_read_its_put_back_is_uncertain_and_deletes_nothing(world: CommitWorld, name: str) -> None:
    verb = VERBS[name]
    for fault in (Fault.LOSE_RESPONSE, Fault.FAIL):
        world.reset()
        table, store = world.actor()
        store.inject(fault, kind="create", key="_log/")
        act_before(store, partial(store.inject, Fault.FAIL, times=10_000), kind="create", key="_log/")
        with pytest.raises(CommitStateUnknown, match="Nothing was deleted"):
            verb.act(table)
        assert "delete" not in store.counts
        assert world.rows() == (expect(verb, BASE) if fault is Fault.LOSE_RESPONSE else BASE)
        other = world.table()
        RECOVERY.act(other)
        completed = fault is Fault.LOSE_RESPONSE or name in EXCLUSIVE
        assert world.rows() == expect(RECOVERY, expect(verb, BASE) if completed else BASE)


def test_an_append_whose_puts_all_fail_stops_after_the_limit(world: CommitWorld) -> None:
    table, store = world.actor()
    store.inject(Fault.FAIL, kind="create", key="_log/", times=10_000)
    with pytest.raises(CommitStateUnknown):
        VERBS["insert"].act(table)
    assert sum("_log/" in r.keys[0] for r in store.requests if r.kind == "create") == UNANSWERED_MAX
    assert world.rows() == BASE


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_credentials_that_expire_after_the_claim_keep_the_parts_that_it_names(world: CommitWorld, name: str) -> None:
    # After other requests, AccessDenied deletes the parts of the batch. Here the claim names them.
    verb = VERBS[name]
    table, store = world.actor()

    def expire(request: Request) -> None:
        if request.kind == "create" and "_log/" in request.keys[0]:
            store.before = _denied
            _denied(request)

    store.before = expire
    with pytest.raises(CommitStateUnknown) as caught:
        verb.act(table)
    assert isinstance(caught.value.__cause__, AccessDenied)
    RECOVERY.act(world.table())
    assert world.rows() == expect(RECOVERY, expect(verb, BASE))


def _denied(request: Request | None) -> None:
    raise AccessDenied("expired")


def test_a_put_that_succeeded_and_was_then_denied_is_read_back(
    clocked: ClockedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client repeats a put without a response. If the credentials expire meanwhile, it receives only that error."""
    create = clocked.create

    def landing(key: str, body: Any) -> None:
        create(key, body)
        raise AccessDenied("expired")

    monkeypatch.setattr(clocked, "create", landing)
    assert put_if_absent(clocked, "table/_log/ours", b"{}") is PutOutcome.CREATED
    monkeypatch.setattr(clocked, "create", lambda key, body: _denied(None))
    assert put_if_absent(clocked, "table/_log/ours", b"others") is PutOutcome.CONFLICT
    with pytest.raises(AccessDenied):
        put_if_absent(clocked, "table/_log/another", b"{}")


# ------------------------------------------------------------------------------------------ others in between


@pytest.mark.parametrize("other_name", ["insert a column", "merge", "overwrite", "drop"])
@pytest.mark.parametrize("name", VERBS)
def test_another_commit_at_any_request_comes_before_or_after(world: CommitWorld, name: str, other_name: str) -> None:
    verb, other_verb = VERBS[name], VERBS[other_name]
    orders = {expect(verb, expect(other_verb, BASE)), expect(other_verb, expect(verb, BASE))}
    for request in world.requests(verb.act):
        table, store = world.actor()
        other = world.table()
        act_before(store, partial(other_verb.act, other), number=request.number)
        verb.act(table)
        assert world.rows() in orders, request
        assert world.unnamed_parts() == set(), request
        assert world.rows(world.before_ms) == BASE, request


def test_the_later_of_two_schema_changes_raises_and_leaves_no_parts(world: CommitWorld) -> None:
    for request in world.requests(VERBS["insert a column"].act):
        table, store = world.actor()
        other = world.table()

        def add_text_column(other: Table = other) -> None:
            with contextlib.suppress(SchemaConflict):
                other.insert([{"k": 0, "n": 50, "c": "text"}])

        act_before(store, add_text_column, number=request.number)
        try:
            table.insert([{"k": 0, "n": 20, "c": 1}])
            winner = 20
        except SchemaConflict:
            winner = 50
        assert world.rows() == tuple(sorted((*BASE, (0, winner)))), request
        assert world.unnamed_parts() == set(), request


def test_a_batch_that_is_rejected_after_its_claim_became_void_leaves_no_parts(world: CommitWorld) -> None:
    table, store = world.actor()
    other = world.table()
    then = lambda: other.insert([{"k": 0, "n": 50, "c": "text"}])  # noqa: E731
    _sleep_once(world, store, "create", "_claims/epoch-", ms=TIMEOUT_MS + 1, then=then)
    with pytest.raises(SchemaConflict):
        table.insert([{"k": 0, "n": 20, "c": 1}])
    assert world.rows() == tuple(sorted((*BASE, (0, 50))))
    assert world.unnamed_parts() == set()


def test_a_failure_while_completing_another_commit_raises_store_unavailable(world: CommitWorld) -> None:
    _crash_after_claim(world, VERBS["drop"])
    table, store = world.actor()
    act_before(store, lambda: store.inject(Fault.FAIL, kind="list"), kind="create", key="_claims/epoch-")
    with pytest.raises(StoreUnavailable):
        table.overwrite([{"k": 0, "n": 60}])


def test_two_writers_that_add_the_same_column_both_commit(world: CommitWorld) -> None:
    table, store = world.actor()
    other = world.table()
    act_before(store, lambda: other.insert([{"k": 0, "n": 50, "c": 2}]), kind="create", key="_claims/epoch")
    table.insert([{"k": 0, "n": 20, "c": 1}])
    assert world.rows() == tuple(sorted((*BASE, (0, 20), (0, 50))))


def test_two_appends_of_one_handle_in_one_millisecond_have_two_names(world: CommitWorld) -> None:
    table = world.table()
    commits = [table.insert([{"k": 0, "n": 100 + n}]) for n in range(30)]
    assert len({c.key for c in commits}) == 30
    assert len(world.rows()) == len(BASE) + 30


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.REPEAT])
@pytest.mark.parametrize("name", VERBS)
def test_a_lost_response_is_not_taken_for_a_lost_race(world: CommitWorld, name: str, fault: Fault) -> None:
    table, store = world.actor()
    before = set(world.store.objects)
    for key in ("_claims/epoch-", "_log/"):
        store.inject(fault, kind="create", key=key)
    VERBS[name].act(table)
    assert world.rows() == expect(VERBS[name], BASE)
    new = [k for k in set(world.store.objects) - before if "_log/" in k]
    assert len(new) == 1, "the same parts were published under a second name"


def test_an_operation_that_loses_every_epoch_raises_commit_conflict(world: CommitWorld) -> None:
    table, store = world.actor()
    other = world.table()
    count = iter(range(1_000))

    def always_first(request: Request) -> None:
        if request.kind == "create" and "_claims/epoch" in request.keys[0]:
            other.drop_partitions([f"k={100 + next(count)}"], missing_ok=True)
            other.insert([{"k": 9, "n": next(count), f"c{next(count)}": 1}])

    store.before = always_first
    with pytest.raises(CommitConflict, match="lock"):
        table.drop_partitions(["k=0"])
    claims = [r for r in store.requests if r.kind == "create" and "_claims/epoch" in r.keys[0]]
    assert len(claims) == EXCLUSIVE_ATTEMPTS_MAX
    assert set(BASE) <= set(world.rows())


# ------------------------------------------------------------------------------------------ paused writers


def _sleep_once(
    world: CommitWorld, store: FaultyStore, kind: Kind, key: str, *, ms: int, then: Callable[[], object]
) -> None:
    """Pause the actor right after that request, and call `then` meanwhile."""

    def pause() -> None:
        world.clock.advance(ms)
        then()

    act_after(store, pause, kind=kind, key=key)


@pytest.mark.parametrize("ms", [TIMEOUT_MS + 1, 2 * HOUR_MS, 30 * HOUR_MS])
@pytest.mark.parametrize("name", EXCLUSIVE)
def test_a_paused_claim_winner_publishes_once_or_is_uncertain(world: CommitWorld, name: str, ms: int) -> None:
    verb = VERBS[name]
    table, store = world.actor()
    _sleep_once(world, store, "create", "_claims/epoch-", ms=ms, then=lambda: None)
    try:
        verb.act(table)
        done = True
    except (CommitStateUnknown, CommitTimedOut):
        done = False
    assert world.rows() == (expect(verb, BASE) if done else BASE)
    # No other writer completed it, and its claim was too old, so the epoch is void.
    assert [f.file.epoch for f in world.state().files.values() if f.file.void] == [2]
    assert world.rows(world.before_ms) == BASE


@pytest.mark.parametrize("ms", [1_000, TIMEOUT_MS + 1, 2 * HOUR_MS, 30 * HOUR_MS])
@pytest.mark.parametrize("after_request", [("create", "_claims/epoch-"), ("list", "_log/")])
@pytest.mark.parametrize("name", EXCLUSIVE)
def test_a_paused_writer_commits_once(world: CommitWorld, name: str, after_request: tuple[Kind, str], ms: int) -> None:
    verb = VERBS[name]
    table, store = world.actor()
    other = world.table()

    def meanwhile() -> None:
        RECOVERY.act(other)
        other.insert([{"k": 9, "n": 98, "y": 1}])
        other.merge()
        world.clock.advance(2 * HOUR_MS if ms > TIMEOUT_MS + 1 else 0)
        other.cleanup()

    _sleep_once(world, store, *after_request, ms=ms, then=meanwhile)
    try:
        verb.act(table)
        done: bool | None = True
    except CommitTimedOut:
        done = False
    except CommitStateUnknown:
        done = None
    if ms > HOUR_MS and after_request[0] == "create":
        assert done is None, "cleanup may have deleted the evidence, so a retry could commit twice"
    late = {(9, 98), (9, 99)}
    first = set(expect(verb, BASE)) | (set() if name == "overwrite" else late)
    allowed = {True: [first, first | late], False: [set(BASE) | late], None: [set(BASE) | late, first | late]}[done]
    assert set(world.rows()) in allowed
    assert len(world.rows()) == len(set(world.rows()))


def test_a_recreated_claim_does_not_publish_old_state(world: CommitWorld) -> None:
    # The actor reads the log at epoch 1. During its pause, epochs pass and their claims are removed.
    table, store = world.actor()
    other = world.table()

    def epochs_pass() -> None:
        for n in range(3):
            world.clock.advance(MINUTE_MS)
            other.insert([{"k": 7, "n": n, f"c{n}": 1}])
        other.drop_partitions(["k=0"])
        for _ in range(3):
            world.clock.advance(2 * HOUR_MS)
            other.cleanup()
        assert not any("epoch-2" in k for k in world.store.objects), "the claim is deleted"

    act_before(store, epochs_pass, kind="create", key="_claims/epoch-2")
    with pytest.raises(CommitStateUnknown):  # its claim may have been decided before the pause
        table.drop_partitions(["k=1"])
    assert world.rows() == ((1, 1), (1, 3), (7, 0), (7, 1), (7, 2))
    report = table.drop_partitions(["k=1"])
    assert (report.commit.epoch or 0) > 4
    assert world.rows() == ((7, 0), (7, 1), (7, 2))


def test_a_publication_after_its_void_is_not_reported_as_success(world: CommitWorld) -> None:
    # The put is delayed until another writer has put a void at its key.
    table, store = world.actor()
    other = world.table()

    def put_void() -> None:
        world.clock.advance(TIMEOUT_MS + 1)
        RECOVERY.act(other)

    act_before(store, put_void, kind="create", key="_log/")
    VERBS["overwrite a partition"].act(table)
    assert world.rows() == tuple(sorted((*((k, n) for k, n in BASE if k), (0, 40), (9, 99))))
    assert [f.file.epoch for f in world.state().files.values() if f.file.void] == [2]


def test_parts_that_are_too_old_are_not_published(world: CommitWorld) -> None:
    for verb in (VERBS["insert"], VERBS["insert a column"], VERBS["overwrite"]):
        world.reset()
        table, store = world.actor()
        _sleep_once(world, store, "create", "_data/", ms=13 * HOUR_MS, then=lambda: None)
        with pytest.raises(CommitTimedOut, match=r"780\.0 minutes ago"):
            verb.act(table)
        assert world.rows() == BASE


def test_parts_that_become_too_old_after_the_claim_are_not_published_by_their_writer(
    world: CommitWorld,
) -> None:
    table, store = world.actor()
    age = {"_data/": 12 * HOUR_MS - MINUTE_MS, "_claims/epoch": 2 * MINUTE_MS}

    def sleep(request: Request) -> None:
        for part in [p for p in age if request.kind == "create" and p in request.keys[0]]:
            world.clock.advance(age.pop(part))  # once, because the clocks are compared by another object

    store.after = sleep
    with pytest.raises(CommitStateUnknown) as caught:
        VERBS["overwrite"].act(table)
    assert isinstance(caught.value.__cause__, CommitTimedOut)
    assert world.rows() == BASE


class ReplaceLogFiles:
    """An exclusive commit that only replaces log files."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.outputs: list[str] = []
        self.unused: list[str] = []
        self.oldest_part_ms = None
        self.reads_everything = False

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        return draft(state, t_ms=t_ms, replaces=self.keys)


def test_a_put_after_its_void_was_replaced_and_deleted_is_not_a_success(world: CommitWorld) -> None:
    table, store = world.actor()
    other = world.table()

    def replace_void() -> None:
        key = store.requests[-1].keys[0]
        world.clock.advance(TIMEOUT_MS + 1)
        RECOVERY.act(other)  # puts the void
        commit_exclusive(other.handle, ReplaceLogFiles(key))
        world.clock.advance(2 * HOUR_MS)
        other.cleanup()
        assert key not in world.store.objects

    act_before(store, replace_void, kind="create", key="_log/")
    with pytest.raises(CommitStateUnknown):
        VERBS["overwrite a partition"].act(table)
    # A v3 reader ignores epochs, so a request that is delayed for hours misleads it.
    assert world.rows_in(world.table().handle.read()) == expect(RECOVERY, BASE)


def test_a_merge_that_others_completed_and_merged_again_recognizes_its_commit(world: CommitWorld) -> None:
    # Its log file is deleted. Another log file carried its markers and names its parts.
    table, store = world.actor()
    other = world.table()

    def merge_again() -> None:
        RECOVERY.act(other)  # completes the merge first
        other.insert([{"k": 0, "n": 97}])
        other.merge()

    store.inject(Fault.FAIL, kind="create", key="_log/")
    act_before(store, merge_again, kind="create", key="_log/")
    report = table.merge()
    assert (report.commit.committed, report.merged_parts) == (True, 4)
    assert world.rows() == tuple(sorted((*BASE, (0, 97), (9, 99))))
    assert world.unnamed_parts() == set()


# ------------------------------------------------------------------------------------------ beside v3 programs


def _v3_writes_when_our_log_put_fails(world: CommitWorld, store: FaultyStore, file: LogFile) -> None:
    """Write a log file of v3 while our claim is open. It names our parts, and any writer may still complete it."""
    key = world.store.location.keys.log_file(file.t_ms, merged=False, writer="v3")
    store.inject(Fault.FAIL, kind="create", key="_log/")
    act_before(store, lambda: world.store.create(key, encode(file)), kind="create", key="_log/")


def test_parts_that_an_open_claim_names_are_kept_although_their_batch_is_rejected(world: CommitWorld) -> None:
    table, store = world.actor()
    _v3_writes_when_our_log_put_fails(world, store, LogFile(world.clock.now_ms(), {"c": "VARCHAR"}))
    with pytest.raises(CommitStateUnknown) as caught:
        table.insert([{"k": 0, "n": 20, "c": 1}])
    assert isinstance(caught.value.__cause__, SchemaConflict)
    assert len(world.unnamed_parts()) == 1, "the claim still names it"


def test_a_merged_part_of_an_open_claim_is_kept_without_its_inputs(world: CommitWorld) -> None:
    table, store = world.actor()
    t_ms = world.clock.now_ms()
    inputs = [m for m in table.handle.read().live if "k=0" in m.key]
    dead = tuple(msgspec.structs.replace(m, tombstoned_ms=t_ms) for m in inputs)
    _v3_writes_when_our_log_put_fails(world, store, LogFile(t_ms, {}, dead))
    assert table.merge().commit.epoch == 2
    stored = {i.key for i in world.store.list(world.store.location.keys.data_prefix)}
    live = {m.key for m in table.handle.read().live}
    assert len(live) == 2
    assert live <= stored


# ------------------------------------------------------------------------------------------ clocks and damage


def test_times_of_exclusive_commits_increase_although_clocks_differ(world: CommitWorld) -> None:
    fast, slow = world.table(skew_ms=59_000), world.table(skew_ms=-59_000)
    times: list[int] = []
    for n, table in enumerate((fast, slow, fast, slow)):
        commit: Commit = table.insert([{"k": 5, "n": n, f"c{n}": 1}])
        assert commit.created_ms is not None
        times.append(commit.created_ms)
    assert times == sorted(set(times))
    world.rows()


def test_a_head_from_a_clock_far_ahead_does_not_hide_later_commits(world: CommitWorld) -> None:
    # Its key sorts after all others, so a listing from the head's key on would contain none of them.
    ahead = open_table(world.store, world.clock.skewed(10 * HOUR_MS), fencing="none")  # which does not compare clocks
    ahead.insert([{"k": 5, "n": 5, "c": 1}])
    table, store = world.actor()
    other = world.table()

    def drop_and_forget() -> None:
        other.drop_partitions(["k=5"])
        world.store.delete([world.store.location.keys.epoch_claim(3)])  # as after the grace period

    act_before(store, drop_and_forget, kind="create", key="_claims/epoch")
    report = table.drop_partitions(["k=1"])
    assert report.commit.epoch == 4
    state = check_sound_but_for_v3(world.store)
    assert {decode_partition(partition_of("table/_data/", m.key))["k"] for m in state.live} == {"0"}


def test_a_claim_from_a_clock_far_ahead_becomes_void(world: CommitWorld) -> None:
    # Its program crashed before it compared the clocks. If published, its tombstones would apply in ten hours.
    ahead, store = world.actor(skew_ms=10 * HOUR_MS)

    def crash() -> None:
        raise Crash

    act_before(store, crash, kind="head")
    with pytest.raises(Crash):
        ahead.drop_partitions(["k=0"])
    assert world.store.list(world.store.location.keys.epoch_claim(2))
    rows = world.rows()
    table = world.table()
    table.drop_partitions(["k=1"])
    assert world.rows() == tuple(r for r in rows if r[0] == 0)
    assert world.state().epoch == 3


def check_sound_but_for_v3(store: ClockedStore) -> TableState:
    """Check the store, except for v3 readers: they follow key order, and the clock is ten hours ahead."""
    try:
        return check_sound(store)
    except AssertionError as error:
        if "v3 readers" not in str(error):
            raise
        return open_table(store, store.clock).handle.read()


def test_an_unreadable_claim_raises_corrupt_log(world: CommitWorld) -> None:
    claim = world.store.location.keys.epoch_claim(2)
    world.store.create(claim, b'{"key": "x"}')
    table = world.table()
    for act in (lambda: table.drop_partitions(["k=0"]), lambda: table.insert([{"k": 0, "n": 1, "c": 1}])):
        with pytest.raises(CorruptLog, match="is not a claim") as caught:
            act()
        assert caught.value.key == claim
    assert world.rows() == BASE
    table.insert([{"k": 0, "n": 10}])  # plain appends need no claims
    assert len(world.rows()) == 5


# ------------------------------------------------------------------------------------------ number of requests


def _cost(store: FaultyStore) -> list[str]:
    return [f"{r.kind} {r.keys[0].split('/')[1]}" for r in store.requests]


def test_a_plain_append_costs_its_parts_and_one_put(world: CommitWorld) -> None:
    table, store = world.actor()
    table.insert([{"k": 0, "n": 1}])
    store.requests.clear()
    table.insert([{"k": 0, "n": 1}, {"k": 1, "n": 2}])
    assert _cost(store) == ["create _data", "create _data", "create _log"]


def test_an_exclusive_commit_without_conflict_costs_four_requests_more_than_its_data(world: CommitWorld) -> None:
    table, store = world.actor()
    table.insert([{"k": 0, "n": 1}])
    table.snapshot()
    store.requests.clear()
    table.drop_partitions(["k=0"])
    assert _cost(store) == ["list _log", "create _claims", "list _log", "create _log"]


def test_an_attempt_that_lost_its_epoch_is_counted(world: CommitWorld) -> None:
    (table, store), other = world.actor(), world.table()
    act_before(store, lambda: other.drop_partitions(["k=1"]), kind="create", key="_claims/epoch-")
    before = rebases().get(table.uri, 0)
    table.drop_partitions(["k=0"])
    assert rebases()[table.uri] == before + 1
