"""A row with an id is in the table once, under crashes, retries, delays and concurrent writers.

A group of three rows is committed with a fault at each of its requests, and with another writer between each two
requests. Then all rows without an acknowledgement are sent again, as by a client. A `Committer` replaces the thread of
the writer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from icedb import Acknowledged, Aggregating, BufferedWriter, Dedup, Table
from icedb.buffering.committing import Committer
from icedb.buffering.ids import Ids
from icedb.buffering.submissions import Submission, measured
from icedb.errors import CommitStateUnknown, IceDBError, InvalidBatch, InvalidOption, RetryableError, StoreUnavailable
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS, Timing
from icedb.storage.obstore_store import ObjectExists
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, Request, check_sound, open_table
from icedb.testing import create_table as create_in
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.fault_walk import SavedState

GROUP = (1, 2, 3)


class IdsWorld:
    """A table with one commit, and the ids that were acknowledged."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        create_in(self.store, self.clock).insert([{"id": "first", "n": 0}])
        self.acknowledged: set[str] = set()
        self.clock.advance(1_000)
        self._begin = SavedState(self.store, self.clock)

    def reset(self) -> None:
        self._begin.restore()
        self.acknowledged = set()

    def table(self) -> Table:
        return open_table(self.store, self.clock)

    def ids(self) -> list[str]:
        check_sound(self.store)
        return [i for (i,) in self.table().query("SELECT id FROM t ORDER BY ALL").fetchall()]


class Writer:
    """The writer of one process, without its thread, whose store injects faults."""

    def __init__(self, world: IdsWorld, **options: Any) -> None:
        self.world = world
        self.store = FaultyStore(world.store)
        self.table = open_table(self.store, world.clock)
        self._options = {"window_ms": DAY_MS, "ids_max": 1_000_000} | options
        self._committer: Committer | None = None

    @property
    def committer(self) -> Committer:
        if self._committer is None:
            ids = Ids(self.table.handle, "id", **self._options)
            self._committer = Committer(
                self.table.handle,
                on_conflict="raise",
                memory_bytes=None,
                ids=ids,
                retry_max_ms=0,
                give_up=threading.Event(),
            )
        return self._committer

    @property
    def ids(self) -> Ids:
        ids = self.committer._ids
        assert ids is not None
        return ids

    def send(self, *names: object, **columns: object) -> Submission:
        """Commit one submission, whose result may be an error. A name of None is a row without an id."""
        sent = measured([{"id": None if n is None else str(n), "n": 1, **columns} for n in names], table="")
        self.committer.commit([sent])
        if sent.answer.exception() is None:
            self.world.acknowledged |= {str(n) for n in names if n is not None}
        return sent

    def write(self, *names: object, **columns: object) -> Acknowledged:
        return self.send(*names, **columns).answer.result()


@pytest.fixture(scope="module")
def shared_world() -> IdsWorld:
    return IdsWorld()


@pytest.fixture
def world(shared_world: IdsWorld) -> IdsWorld:
    shared_world.reset()
    return shared_world


def requests(world: IdsWorld, act: Callable[[Writer], object]) -> Iterator[tuple[Request, Writer]]:
    """Yield each put, delete and listing of an undisturbed run, with a new writer in the initial state."""
    world.reset()
    writer = Writer(world)
    act(writer)
    for request in [r for r in writer.store.requests if r.kind not in ("get", "head")]:
        world.reset()
        yield request, Writer(world)


def one(writer: Writer) -> Submission:
    return writer.send(*GROUP)


def brings_column(writer: Writer) -> Submission:
    return writer.send(*GROUP, c=1)


ACTS = pytest.mark.parametrize(
    "act", [one, pytest.param(brings_column, marks=pytest.mark.slow(seconds=5))], ids=["plain", "brings a column"]
)


# ------------------------------------------------------------------------------------------ once


def test_repeated_rows_are_dropped_and_acknowledged_as_repeated(world: IdsWorld) -> None:
    writer = Writer(world)
    first = writer.write(1, 2, 2)
    assert (first.rows, first.repeated_rows, first.key is None) == (2, 1, False)
    assert writer.write(2, 1) == Acknowledged(0, 2)
    again = writer.write(1, 4, "first")
    assert (again.rows, again.repeated_rows) == (1, 2)
    assert Writer(world).write(4, 1, 2) == Acknowledged(0, 3), "also by a new writer"
    assert world.ids() == ["1", "2", "4", "first"]


def test_rows_without_an_id_are_always_taken(world: IdsWorld) -> None:
    writer = Writer(world)
    assert [writer.write(None, "", None).rows for _ in range(2)] == [3, 3]
    assert measured([{"n": 1}], table="").count == 1
    sent = measured([{"n": 1}, {"n": 1}], table="")
    writer.committer.commit([sent])
    assert sent.answer.result().rows == 2
    assert len(world.ids()) == 1 + 6 + 2


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_each_submission_of_a_group_gets_its_own_result(world: IdsWorld) -> None:
    writer = Writer(world)
    group = [measured([{"id": i} for i in ids], table="") for ids in (["a", "b"], ["b"], ["a", "c", None])]
    bad = measured([{"id": "x", "n": "text"}, {"id": "c"}], table="")
    writer.committer.commit([group[0], bad, *group[1:]])
    answers = [s.answer.result() for s in group]
    assert [(a.rows, a.repeated_rows) for a in answers] == [(2, 0), (0, 1), (2, 1)]
    assert answers[1].key is None
    assert isinstance(bad.answer.exception(), IceDBError)
    assert world.ids() == ["a", "b", "c", "first", None], "what the refused one had was not taken for known"


def test_arrow_has_ids_as_dicts_have(world: IdsWorld) -> None:
    writer = Writer(world)
    tables = [
        pa.table({"id": ["a", None, "a"]}),
        pa.table({"id": pa.array(["a", "b"], pa.large_string())}),
        pa.table({"id": pa.array(["b", "c"]).dictionary_encode()}),
        pa.table({"n": [1, 2]}),
        pa.table({"id": pa.nulls(2)}),
    ]
    for table, taken in zip(tables, [2, 1, 1, 2, 2], strict=True):
        sent = measured(table, table="")
        writer.committer.commit([sent])
        assert sent.answer.result().rows == taken
    assert [i for i in world.ids() if i is not None] == ["a", "b", "c", "first"]


@pytest.mark.parametrize("values", [(uuid.UUID(int=7), str(uuid.UUID(int=7)).upper()), (7, 8)], ids=["UUID", "number"])
def test_an_id_may_be_a_uuid_or_a_whole_number(memory: Any, values: tuple[Any, Any]) -> None:
    table = Table.create(memory.uri)
    with BufferedWriter(table, delay_max_ms=0, id_column="id") as writer:
        assert writer.write([{"id": values[0]}]).rows == 1
        again = [{"id": values[0]}, {"id": values[1]}]
        assert writer.write(again, timeout_ms=0).repeated_rows == 1 + (values[0] == uuid.UUID(int=7))
    with BufferedWriter(table, delay_max_ms=0, id_column="id") as writer:
        assert writer.write(again).repeated_rows == 2


@pytest.mark.parametrize("value", [1.5, True, ["a"], {"a": 1}, b"a", "\ud800"])
def test_an_invalid_id_is_rejected(world: IdsWorld, value: object) -> None:
    sent = measured([{"id": value}], table="")
    Writer(world).committer.commit([sent])
    with pytest.raises(InvalidBatch, match="'id'"):
        sent.answer.result()
    arrow = measured(pa.table({"id": [1.5]}), table="")
    Writer(world).committer.commit([arrow])
    with pytest.raises(InvalidBatch, match="column 'id' is double, and ids are text"):
        arrow.answer.result()


# ------------------------------------------------------------------------------------------ whatever fails


#: A crash before a request equals one after the previous request, and a delayed request fails at first.
FAULTS = [
    Fault.CRASH_AFTER,
    Fault.LOSE_RESPONSE,
    Fault.DELAY,
    pytest.param(Fault.CRASH_BEFORE, marks=pytest.mark.slow(seconds=5)),
    pytest.param(Fault.FAIL, marks=pytest.mark.slow(seconds=5)),
]


@pytest.mark.long
@ACTS
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_duplicate_no_row(world: IdsWorld, act: Callable[[Writer], Submission], fault: Fault) -> None:
    for request, writer in requests(world, act):
        writer.store.inject(fault, number=request.number)
        with suppress(Crash, StoreUnavailable):
            act(writer)
        assert set(world.ids()) >= world.acknowledged, request
        if not writer.store.dead:  # a live writer retries by itself
            with suppress(StoreUnavailable):
                act(writer)
        again = Writer(world)
        act(again).answer.result()
        for late in writer.store._delayed:
            with suppress(ObjectExists):
                late()
        assert act(again).answer.result() == Acknowledged(0, 3)
        assert world.ids() == ["1", "2", "3", "first"], request


def another(world: IdsWorld) -> None:
    Writer(world).write(2, 3, 4)


def another_merges(world: IdsWorld) -> None:
    another(world)
    world.table().merge()


def another_cleans_up(world: IdsWorld) -> None:
    another_merges(world)
    world.clock.advance(2 * HOUR_MS)
    open_table(world.store, world.clock).cleanup()


@pytest.mark.long
@ACTS
@pytest.mark.parametrize(
    "others", [another, pytest.param(another_merges, marks=pytest.mark.slow(seconds=5)), another_cleans_up]
)
def test_rows_are_committed_once_beside_another_writer(
    world: IdsWorld, act: Callable[[Writer], Submission], others: Callable[[IdsWorld], None]
) -> None:
    won = set()
    for request, writer in requests(world, act):
        act_before(writer.store, partial(others, world), number=request.number)
        answer = act(writer).answer
        with suppress(IceDBError):
            won.add((answer.result().rows, answer.result().repeated_rows))
        if answer.exception() is not None:  # it slept for two hours
            assert others is another_cleans_up
            act(writer).answer.result()
        assert sorted(world.ids()) == ["1", "2", "3", "4", "first"], request
    assert len(won) == 2, "sometimes the other was first, sometimes not"


def test_a_writer_that_paused_does_not_duplicate_rows_without_an_id(world: IdsWorld) -> None:
    writer = Writer(world)
    writer.ids.refresh()
    act_after(writer.store, partial(another_cleans_up, world), kind="create", key="_claims/txn")
    with pytest.raises(CommitStateUnknown):
        writer.write(1, None)
    assert len(world.ids()) == 1 + 2 + 3


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_rows_of_a_crashed_writer_s_claim_are_committed_once(world: IdsWorld) -> None:
    """The claim exists without its log file. The next writer publishes it, and drops its own rows of these ids."""
    for wait_ms in (0, 2 * MINUTE_MS, 20 * MINUTE_MS):
        world.reset()
        dead = Writer(world)
        dead.store.inject(Fault.CRASH_BEFORE, kind="create", key="_log/")
        with pytest.raises(Crash):
            dead.write(1, 2)
        world.clock.advance(wait_ms)
        answer = Writer(world).write(2, 3)
        assert (answer.rows, answer.repeated_rows) == (1, 1)
        assert world.ids() == ["1", "2", "3", "first"]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_writers_of_several_threads_at_once(world: IdsWorld) -> None:
    def write(_: int) -> int:
        writer = Writer(world)
        return sum(writer.write(*range(first, first + 8)).rows for first in range(0, 24, 4))

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(write, range(3))) == 28
    assert sorted(world.ids()) == sorted([str(n) for n in range(28)] + ["first"])


def test_only_rows_with_an_id_are_retried_after_an_unknown_outcome(world: IdsWorld) -> None:
    writer = Writer(world)
    writer.store.inject(Fault.FAIL, kind="create", key="_log/", times=1_000)
    with pytest.raises(RetryableError):
        writer.write(1)
    with pytest.raises(CommitStateUnknown, match="it is not known whether these rows were published"):
        writer.write(2, None)
    writer.store._rules.clear()
    writer.write(1, 2)
    assert [i for i in world.ids() if i is not None] == ["1", "2", "first"]


@pytest.mark.long
def test_a_merge_between_two_commits_hides_nothing_from_another(world: IdsWorld) -> None:
    mine, other = Writer(world), Writer(world)
    mine.write(1)
    other.write(2)
    world.table().merge()
    world.table().merge_log()
    other.write(5)
    answer = mine.write(2, 5, 6)
    assert (answer.rows, answer.repeated_rows) == (1, 2)
    assert world.ids() == ["1", "2", "5", "6", "first"]


def test_only_what_is_new_is_read(world: IdsWorld) -> None:
    mine, other = Writer(world), Writer(world)
    mine.write(1)
    other.write(2)
    mine.store.requests.clear()
    mine.write(3)
    gets = [r.keys[0] for r in mine.store.requests if r.kind == "get" and "/_data/" in r.keys[0]]
    assert len(gets) == 1
    mine.store.requests.clear()
    mine.write(4)
    assert [r.kind for r in mine.store.requests if "/_data/" in r.keys[0]] == ["create"]
    assert mine.store.counts["list"] <= 3


# ------------------------------------------------------------------------------------------ window and memory


def test_ids_are_remembered_for_the_window_and_not_much_longer(world: IdsWorld) -> None:
    writer = Writer(world, window_ms=HOUR_MS)
    writer.write("old")
    world.clock.advance(HOUR_MS)
    assert writer.write("old").repeated_rows == 1
    assert Writer(world, window_ms=HOUR_MS).write("old").repeated_rows == 1
    world.clock.advance(10 * MINUTE_MS)
    assert Writer(world, window_ms=HOUR_MS).ids.count == 0
    assert writer.write("old", "new").rows == 2
    assert writer.ids.count == 2


def test_ids_of_recently_merged_parts_are_known(world: IdsWorld) -> None:
    Writer(world).write("a")
    world.clock.advance(30 * MINUTE_MS)
    world.table().merge()
    assert Writer(world, window_ms=HOUR_MS).write("a", "first").repeated_rows == 2


@pytest.mark.long
def test_the_oldest_ids_are_forgotten_beyond_ids_max(world: IdsWorld, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(world, ids_max=10)
    for n in range(30):
        world.clock.advance(1_000)
        writer.write(n)
    writer.ids.refresh()
    assert 8 <= writer.ids.count <= 12
    assert writer.write(29, 28).repeated_rows == 2
    assert writer.write(0).rows == 1
    assert caplog.text.count("the oldest are forgotten") == 1
    assert Writer(world, ids_max=10).ids.count >= 10


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_all_ids_are_read_again_after_a_long_pause(world: IdsWorld) -> None:
    mine, other = Writer(world), Writer(world)
    mine.write("mine")
    other.write("other")
    world.clock.advance(2 * HOUR_MS)
    world.table().merge()
    world.clock.advance(2 * HOUR_MS)
    open_table(world.store, world.clock).cleanup()
    Writer(world).write("later")
    assert mine.write("mine", "other", "later", "new").rows == 1
    assert world.ids() == ["first", "later", "mine", "new", "other"]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_sequence_restarts_after_the_log_forgot_it(world: IdsWorld) -> None:
    writer = Writer(world)
    writer.write("a")
    writer.write("b")
    world.clock.advance(31 * DAY_MS)
    world.table().merge()  # drops the entry
    assert writer.ids.application not in world.table().handle.read().txn
    fresh = Writer(world)
    assert [fresh.write(i).rows for i in ("c", "d", "e")] == [1, 1, 1]
    assert writer.write("c", "f").rows == 1
    assert world.ids() == ["a", "b", "c", "d", "e", "f", "first"]


def test_a_restarted_sequence_with_the_same_number_is_detected(world: IdsWorld) -> None:
    writer = Writer(world)
    writer.write("a")
    writer.write("b")
    world.clock.advance(31 * DAY_MS)
    world.table().merge()  # drops the entry
    for _ in range(2):  # and then the claims
        world.clock.advance(2 * HOUR_MS)
        open_table(world.store, world.clock).cleanup()
    fresh = Writer(world)
    fresh.write("c")
    fresh.write("d")
    assert writer.ids._last[0] == world.table().handle.read().txn[writer.ids.application][0]
    assert writer.write("c", "d", "e").repeated_rows == 2


def test_a_sequence_exhausted_by_another_program_is_rejected(world: IdsWorld) -> None:
    writer = Writer(world)
    world.table().insert([{"n": 1}], txn=(writer.ids.application, 2**63 - 1))
    with pytest.raises(InvalidOption, match="another program uses the name"):
        writer.write("a")


def test_an_oversized_id_fails_only_its_submission(world: IdsWorld) -> None:
    good, bad = measured([{"id": "a"}], table=""), measured([{"id": 10**5000}], table="")
    Writer(world).committer.commit([good, bad])
    assert good.answer.result().rows == 1
    assert isinstance(bad.answer.exception(), ValueError)
    assert world.ids() == ["a", "first"]


# ------------------------------------------------------------------------------------------ tables that cannot


def test_a_table_whose_merges_drop_ids_is_rejected(memory: Any) -> None:
    merging = {"merging": Aggregating(by=("day",), sum=("n",), any=("id",))}
    for number, options in enumerate([merging, {"merge_query": "SELECT * FROM source_files"}]):
        table = Table.create(f"{memory.uri}{number}", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="its merges may drop rows"):
            BufferedWriter(table, id_column="id")
    table = Table.create(f"{memory.uri}q", insert_query="SELECT n FROM _rows")
    with pytest.raises(InvalidOption, match="its insert_query makes other rows"):
        BufferedWriter(table, id_column="id")
    table = Table.create(f"{memory.uri}d", merging=Dedup(by=("id",)))
    with BufferedWriter(table, id_column="id", delay_max_ms=0) as writer:
        assert writer.write([{"id": "a"}]).rows == 1


def test_a_table_without_fencing_is_rejected(memory: Any) -> None:
    Table.create(memory.uri)
    with pytest.raises(InvalidOption, match="fencing='none'"):
        BufferedWriter(Table.open(memory.uri, fencing="none"), id_column="id")


def test_an_id_column_of_another_type_is_rejected(memory: Any) -> None:
    table = Table.create(memory.uri)
    table.insert([{"id": 1.5}])
    with pytest.raises(InvalidOption, match="id_column 'id' is DOUBLE; ids are text"):
        BufferedWriter(table, id_column="id")
    with pytest.raises(InvalidOption, match="id_column is 'ID', and the column is 'id'"):
        BufferedWriter(table, id_column="ID")


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_views_and_the_quarantine_get_the_committed_rows(memory: Any) -> None:
    table = Table.create(memory.uri)
    table.insert([{"id": "a", "n": 0}])
    view = table.create_view("ids", "SELECT id FROM _rows")
    with BufferedWriter(table, id_column="id", on_conflict="quarantine", delay_max_ms=0) as writer:
        assert writer.write([{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "c", "n": "text"}]).rows == 2
        other = BufferedWriter(Table.open(memory.uri), id_column="id", delay_max_ms=0)
        assert other.write([{"id": "b", "n": 1}, {"id": "d", "n": 1}]).rows == 1
        other.close()
        assert writer.write([{"id": "d", "n": 1}, {"id": "e", "n": 1}]).rows == 1
    assert [i for (i,) in view.query("SELECT id FROM t ORDER BY ALL").fetchall()] == ["a", "b", "d", "e"]
    aside = Table.open(f"{memory.uri}_quarantine").query("SELECT row FROM t").fetchall()
    assert aside == [('{"id":"c","n":"text"}',)]


def test_a_window_that_the_altered_table_no_longer_covers_is_refused(world: IdsWorld) -> None:
    writer = Writer(world)
    world.table().alter(timing=Timing(txn_retention_ms=DAY_MS))
    with pytest.raises(InvalidOption, match="id_window_ms is 86400000"):
        writer.ids.refresh()
