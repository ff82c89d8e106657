"""The stories that have cost tables like this one their data, each told once more to this one.

Most are also reached by wider tests (every request of every operation, in tests/transaction/test_append.py and the
simulation). Here each has its own name, so that a reader of the list knows what was thought of, and who breaks one
knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from icedb import Table
from icedb.errors import (
    ClockSkew,
    CommitConflict,
    CommitStateUnknown,
    CommitTimedOut,
    GraceTooShort,
    SnapshotExpired,
    UncoordinatedMaintenance,
)
from icedb.format.codec import encode
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.storage.object_store import ObjectInfo
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
from tests.support.tables.plain_table import PlainTable
from tests.support.tables.plain_table import live_numbers as rows

TIMEOUT_MS = 5 * MINUTE_MS
# One more page than S3 lists at a time, and one more request than it deletes at a time.
MANY = 1_050

Act = Callable[[], object]


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    """Two partitions, three commits: rows 0, 10, 20 in k=0 and 1, 11, 21 in k=1."""
    made = create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    fill(made)
    clock.advance(1_000)
    return made


@pytest.fixture
def plain_world(clocked: ClockedStore, clock: ManualClock) -> World:
    """The same rows in parts without Parquet."""
    create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    fill(PlainTable.of(clocked, clock))
    clock.advance(1_000)
    return World(clocked, clock, PlainTable.of)


def fill(table: Table, batches: int = 3) -> None:
    for n in range(batches):
        table.insert([{"k": k, "n": 10 * n + k} for k in range(2)])


def keys(store: Any, prefix: str) -> list[str]:
    return [i.key for i in store.list(prefix)]


def at(kind: str, key: str) -> Callable[[Request], bool]:
    return lambda request: request.kind == kind and key in request.keys[0]


def before(store: FaultyStore, chosen: Callable[[Request], bool], act: Act) -> None:
    """Let somebody act right before the first request of that kind."""
    store.before = _once(store, "before", chosen, act)


def after(store: FaultyStore, chosen: Callable[[Request], bool], act: Act) -> None:
    """Let somebody act right after the first request of that kind, before its answer arrives."""
    store.after = _once(store, "after", chosen, act)


def _once(store: FaultyStore, hook: str, chosen: Callable[[Request], bool], act: Act) -> Callable[[Request], None]:
    def interrupt(request: Request) -> None:
        if chosen(request):
            setattr(store, hook, None)
            act()

    return interrupt


class World:
    """A store that can be put back to how it was, to tell a story again for each request of an operation."""

    def __init__(
        self, store: ClockedStore, clock: ManualClock, open_it: Callable[[Any, Any], Table] = open_table
    ) -> None:
        self.store, self.clock, self._open = store, clock, open_it
        self._objects, self._now_ms = dict(store.objects), clock.now_ms()

    def each_request(self, act: Callable[[Table], object]) -> Iterator[tuple[int, Table, FaultyStore]]:
        """Each number in turn, with an actor in the world as it was; the undisturbed run comes first."""
        table, store = self.actor()
        act(table)
        for number in range(2, len(store.requests) + 1):  # 1 reads the spec
            self.reset()
            yield (number, *self.actor())
        self.reset()

    def reset(self) -> None:
        self.store.objects = dict(self._objects)
        self.clock.set(self._now_ms)

    def actor(self, *, skew_ms: int = 0) -> tuple[Table, FaultyStore]:
        store = FaultyStore(self.store)
        return self._open(store, self.clock.skewed(skew_ms)), store


def ages_pass(table: Table, clock: ManualClock) -> None:
    """Others merge and clean up until nothing is left of what was superseded, claims included."""
    table.merge()
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        table.cleanup()


# ------------------------------------------------------------------------------------------ names and partitions


@pytest.mark.long
def test_two_appends_of_one_host_in_one_millisecond_are_both_there(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    other = open_table(clocked, clock)
    commits = [t.insert([{"k": 0, "n": 100 + n}]) for n in range(3) for t in (table, other)]
    assert len({c.key for c in commits}) == 6
    assert len({c.key for t in (table, other) for c in [t.insert([{"k": 0, "n": 200}])]}) == 2
    assert rows(clocked) == [0, 1, 10, 11, 20, 21, 100, 100, 101, 101, 102, 102, 200, 200]


@pytest.mark.sampled(cases=1)
def test_dropping_one_partition_of_a_log_file_keeps_the_others_through_a_cleanup_without_grace(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], storage_options=place.storage_options)
    fill(table)
    table.drop_partitions(["k=0"])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    again = Table.open(place.uri, storage_options=place.storage_options)
    assert again.query("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (11,), (21,)]
    assert len(keys(table.handle.store, table.handle.keys.data_prefix)) == 3
    check_sound(table.handle.store)


@pytest.mark.long
@pytest.mark.parametrize("change", ["overwrite", "rewrite_partition"])
def test_one_partition_replaced_another_merged_and_a_cleanup_lose_nothing(
    table: Table, clocked: ClockedStore, clock: ManualClock, change: str
) -> None:
    if change == "overwrite":
        table.overwrite([{"k": 0, "n": 70}], partitions=["k=0"])
        expected = [1, 11, 21, 70]
    else:
        table.rewrite_partition("k=0", "SELECT * FROM t WHERE n > 0")
        expected = [1, 10, 11, 20, 21]
    clock.advance(MINUTE_MS)
    assert table.merge().merged_parts == 3, "those of the other partition"
    for _ in range(2):
        clock.advance(2 * HOUR_MS)
        table.cleanup()
        assert rows(clocked) == expected
    assert len(keys(clocked, clocked.location.keys.data_prefix)) == 2


@pytest.mark.sampled(cases=1)
def test_a_merge_whose_smallest_part_lacks_a_column_or_has_one_more_keeps_every_value(place: Any) -> None:
    table = Table.create(place.uri, sort_by=["n"], storage_options=place.storage_options)
    table.insert([{"n": n, "text": f"{n:0200}"} for n in range(100)])
    table.insert([{"n": 100}])  # the smallest lacks a column
    table.insert([{"n": 101, "text": "x", "more": 1.5}])  # and one has one more
    expected = table.query("FROM t ORDER BY n").fetchall()
    assert table.merge().merged_parts == 3
    assert table.query("FROM t ORDER BY n").fetchall() == expected
    assert expected[-2:] == [(100, None, None), (101, "x", 1.5)]
    assert table.schema() == {"n": "BIGINT", "text": "VARCHAR", "more": "DOUBLE"}


@pytest.mark.sampled(cases=1)
def test_a_data_column_with_the_name_of_its_partition_keeps_its_text(place: Any) -> None:
    codes = ["00123", "123", "a b%2Fc", "a b/c", "NULL", "", ".."]
    table = Table.create(place.uri, partition_by=["code"], storage_options=place.storage_options)
    for _ in range(2):
        table.insert([{"code": code} for code in codes])
    table.merge()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    expected = sorted((code, 2) for code in codes)
    assert sorted(table.query("SELECT code, count(*) FROM t GROUP BY 1").fetchall()) == expected
    assert len(table.snapshot().partitions()) == len(codes)
    table.drop_partitions("code = '123'")
    assert sorted(table.query("SELECT code, count(*) FROM t GROUP BY 1").fetchall()) == sorted(
        (code, 2) for code in codes if code != "123"
    )


# ------------------------------------------------------------------------------------------ maintenance meets others


@pytest.mark.long
def test_a_merge_that_commits_at_any_request_of_a_cleanup_loses_nothing(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    table.drop_partitions(["k=1"])
    clock.advance(2 * HOUR_MS)
    world = World(clocked, clock)
    for number, cleaner, store in world.each_request(lambda t: t.cleanup()):
        merger, _ = world.actor()
        before(store, lambda request, n=number: request.number == n, merger.merge)
        cleaner.cleanup()
        assert rows(clocked) == [0, 10, 20], number
        for _ in range(2):
            clock.advance(2 * HOUR_MS)
            merger.cleanup()
        assert rows(clocked) == [0, 10, 20], number
        assert len(keys(clocked, clocked.location.keys.data_prefix)) == 1, number


@pytest.mark.parametrize("seconds", [5, -5])
def test_two_merges_at_once_with_clocks_five_seconds_apart_leave_each_row_once(
    plain_world: World, clocked: ClockedStore, clock: ManualClock, seconds: int
) -> None:
    world = plain_world
    for number, merger, store in world.each_request(lambda t: t.merge()):
        other, _ = world.actor(skew_ms=1_000 * seconds)
        before(store, lambda request, n=number: request.number == n, other.merge)
        merger.merge()
        assert rows(clocked) == [0, 1, 10, 11, 20, 21], number
        state = check_sound(clocked)
        assert len(state.live) == 2, number
        assert set(keys(clocked, clocked.location.keys.data_prefix)) == state.parts.keys(), "the loser left nothing"
        ages_pass(other, clock)
        assert rows(clocked) == [0, 1, 10, 11, 20, 21], number


@pytest.mark.long
def test_a_reader_between_its_list_and_its_gets_sees_all_rows_though_a_cleanup_runs(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    world = World(clocked, clock)
    for number, reader, store in world.each_request(lambda t: t.snapshot()):
        maintainer, _ = world.actor()
        before(store, lambda request, n=number: request.number == n, lambda m=maintainer: ages_pass(m, clock))
        snapshot = reader.snapshot()
        assert snapshot.query("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in (0, 1, 10, 11, 20, 21)], number
        assert snapshot.rows == 6, number


def test_a_reader_that_has_its_snapshot_when_a_cleanup_comes_reads_right_or_is_told(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    held = table.snapshot()
    ages_pass(open_table(clocked, clock), clock)
    with pytest.raises(SnapshotExpired):
        held.query("SELECT n FROM t").fetchall()
    assert rows(clocked) == [0, 1, 10, 11, 20, 21]


@pytest.mark.sampled(cases=1)
def test_before_the_last_merge_after_a_cleanup_is_expired_and_never_wrong(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], storage_options=place.storage_options)
    fill(table)
    early_ms = table.snapshot().as_of_ms
    table.merge()
    merged_ms = table.snapshot().as_of_ms
    assert table.query("SELECT count(*) FROM t", as_of=early_ms).fetchall() == [(6,)]
    report = table.cleanup(grace_ms=0, allow_short_grace=True)
    assert early_ms < report.horizon_ms <= merged_ms
    for one in (table, Table.open(place.uri, storage_options=place.storage_options)):
        with pytest.raises(SnapshotExpired) as caught:
            one.query("SELECT count(*) FROM t", as_of=early_ms)
        assert caught.value.horizon_ms == report.horizon_ms
        assert one.query("SELECT count(*) FROM t", as_of=report.horizon_ms).fetchall() == [(6,)]


def test_a_cleanup_that_could_take_what_a_reader_needs_must_be_asked_for(table: Table) -> None:
    table.merge()
    with pytest.raises(GraceTooShort):
        table.cleanup(grace_ms=0)


# ------------------------------------------------------------------------------------------ more than a page


@pytest.mark.sampled(cases=1)
def test_more_than_a_thousand_log_files_are_read_merged_and_cleaned_up(place: Any) -> None:
    table = Table.create(place.uri, storage_options=place.storage_options)
    table.insert([{"n": 0}])
    [part] = table.snapshot().parts
    body, first_ms = table.handle.store.get(part.key).body, table.snapshot().as_of_ms - MANY - 1
    put_appends(table, body, range(first_ms, first_ms + MANY))

    expected = MANY + 1
    assert table.snapshot().log_files == expected
    assert table.snapshot().rows == expected
    while table.merge_log().commit.committed:
        pass
    assert table.snapshot().log_files <= 8, "a new reader opens few"
    report = table.cleanup(grace_ms=0, allow_short_grace=True)
    assert len(report.deleted_log_files) >= MANY
    again = Table.open(place.uri, storage_options=place.storage_options)
    assert (again.snapshot().rows, len(again.snapshot().parts)) == (expected, expected)
    assert len(keys(table.handle.store, table.handle.keys.data_prefix)) == expected
    assert len(keys(table.handle.store, table.handle.keys.log_prefix)) <= 8
    check_sound(table.handle.store)


def put_appends(table: Table, body: bytes, times_ms: range, *, partition: str = "") -> None:
    """As many plain appends of one part each."""
    store, names = table.handle.store, table.handle.keys

    def put(t_ms: int) -> None:
        key = names.part(partition, f"p{t_ms}")
        store.create(key, body)
        file = LogFile(t_ms, {}, (Marker(key, len(body), t_ms, rows=1),))
        store.create(names.log_file(t_ms, merged=False, writer="w"), encode(file))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, times_ms))


class PagedStore(FaultyStore):
    """Lists a thousand objects at a time, as S3 does, and lets others act after the first page."""

    def __init__(self, inner: ClockedStore) -> None:
        super().__init__(inner)
        self.after_first_page: Act | None = None

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        listed: list[ObjectInfo] = []
        while page := super().list(prefix, after=listed[-1].key if listed else after)[:1_000]:
            listed += page
            act, self.after_first_page = self.after_first_page, None
            if act is not None:
                act()
        return listed


def test_a_torn_listing_of_more_than_a_thousand_log_files_does_not_bring_dropped_parts_back(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    # The drop has its claim and its time, and dies; a thousand appends come; so its log file lands among the first.
    store = FaultyStore(clocked)
    store.inject(Fault.CRASH_AFTER, kind="create", key="_claims/epoch-")
    with pytest.raises(Crash):
        open_table(store, clock).drop_partitions(["k=0"])
    [part] = table.insert([{"k": 1, "n": 50}]).parts
    body = clocked.objects[part.key].body
    start_ms = clock.now_ms() + 100
    clock.advance(MANY + 200)
    put_appends(table, body, range(start_ms, start_ms + MANY), partition="k=1")

    paged = PagedStore(clocked)
    reader = open_table(paged, clock)
    other = open_table(clocked, clock)
    paged.after_first_page = lambda: other.insert([{"k": 1, "n": 60, "column": 1}])
    snapshot = reader.snapshot()
    assert paged.after_first_page is None
    assert (snapshot.epoch, snapshot.partitions()) == (3, ["k=1"])
    assert snapshot.rows == 3 + 1 + MANY + 1


# ------------------------------------------------------------------------------------------ sleepers and claims


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others came"])
def test_a_claim_winner_that_sleeps_past_the_grace_period_publishes_nothing_twice(
    table: Table, clocked: ClockedStore, clock: ManualClock, others: bool
) -> None:
    store = FaultyStore(clocked)
    other = open_table(clocked, clock)

    def sleep() -> None:
        if others:
            other.insert([{"k": 1, "n": 61, "column": 1}])  # completes the claim
            ages_pass(other, clock)
        else:
            clock.advance(2 * HOUR_MS)

    after(store, at("create", "_claims/epoch-"), sleep)
    sleeper = open_table(store, clock)
    done = True
    try:
        sleeper.overwrite([{"k": 0, "n": 70}], partitions=["k=0"])
    except (CommitStateUnknown, CommitTimedOut):
        done = False
    late = [61] if others else []
    new, old = sorted([1, 11, 21, 70, *late]), sorted([0, 1, 10, 11, 20, 21, *late])
    assert rows(clocked) == (new if done or others else old)


@pytest.mark.parametrize("verb", ["drop", "overwrite"])
def test_a_claim_created_anew_after_its_removal_does_not_publish_old_state(
    table: Table, clocked: ClockedStore, clock: ManualClock, verb: str
) -> None:
    store = FaultyStore(clocked)
    other = open_table(clocked, clock)

    def epochs_pass() -> None:
        for n in range(3):
            other.insert([{"k": 1, "n": 60 + n, f"c{n}": 1}])
            clock.advance(MINUTE_MS)
        other.drop_partitions(["k=0"])
        ages_pass(other, clock)
        assert clocked.location.keys.epoch_claim(2) not in clocked.objects

    before(store, at("create", "_claims/epoch-2"), epochs_pass)
    sleeper = open_table(store, clock)
    act = {
        "drop": lambda: sleeper.drop_partitions(["k=1"]),
        "overwrite": lambda: sleeper.overwrite([{"k": 1, "n": 70}], partitions=["k=1"]),
    }[verb]
    with pytest.raises(CommitStateUnknown):  # what would tell that it has won before it slept could be gone
        act()
    assert rows(clocked) == [1, 11, 21, 60, 61, 62]
    act()
    assert rows(clocked) == ([] if verb == "drop" else [70])


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL])
def test_an_unanswered_put_that_another_writer_rolled_forward_is_there_once(
    table: Table, clocked: ClockedStore, clock: ManualClock, fault: Fault
) -> None:
    store = FaultyStore(clocked)
    other = open_table(clocked, clock)

    def roll_forward() -> None:
        other.insert([{"k": 1, "n": 61, "column": 1}])  # completes the claim first
        other.merge()

    store.inject(fault, kind="create", key="_log/")
    hook = before if fault is Fault.FAIL else after
    hook(store, at("create", "_log/"), roll_forward)
    commit = open_table(store, clock).overwrite([{"k": 0, "n": 70}], partitions=["k=0"])
    assert commit.committed
    assert rows(clocked) == [1, 11, 21, 61, 70]
    state = check_sound(clocked)
    assert set(keys(clocked, clocked.location.keys.data_prefix)) == state.parts.keys()


@pytest.mark.long
def test_whoever_finds_a_transactions_claim_and_sleeps_past_the_grace_period_adds_nothing(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    txn = ("app", 1)
    store = FaultyStore(clocked)
    store.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn-")
    with pytest.raises(Crash):
        open_table(store, clock).insert([{"k": 0, "n": 80}], txn=txn)
    world = World(clocked, clock)
    for number, sleeper, faulty in world.each_request(lambda t: t.insert([{"k": 0, "n": 80}], txn=txn)):
        other, _ = world.actor()

        def sleep(other: Table = other) -> None:
            clock.advance(TIMEOUT_MS + 1)
            other.insert([{"k": 0, "n": 80}], txn=txn)
            ages_pass(other, clock)
            assert clocked.location.keys.txn_claim(*txn) not in clocked.objects

        before(faulty, lambda request, n=number: request.number == n, sleep)
        try:
            sleeper.insert([{"k": 0, "n": 80}], txn=txn)
        except (CommitConflict, CommitTimedOut):
            sleeper.insert([{"k": 0, "n": 80}], txn=txn)  # "try the same transaction again"
        # Not by `rows`: when the put itself hung, its log file lies there again, and v3 readers know no better.
        assert open_table(clocked, clock).query("SELECT count(*) FROM t WHERE n = 80").fetchall() == [(1,)], number
        assert open_table(clocked, clock).insert([{"k": 0, "n": 80}], txn=txn).repeated, number
        ages_pass(other, clock)
        assert rows(clocked) == [0, 1, 10, 11, 20, 21, 80], number


# ------------------------------------------------------------------------------------------ programs that do not play


def v3_merges_and_cleans_up(store: ClockedStore, clock: ManualClock) -> None:
    """One log file in the place of all, without any key of ours; what it replaces is deleted."""
    state = check_sound(store)
    t_ms = clock.now_ms()
    file = LogFile(
        t_ms,
        dict(state.schema),
        tuple(state.parts.values()),
        tombstones=tuple(LogTombstoneRecord(k, t_ms) for k in state.files),
    )
    old = keys(store, store.location.keys.log_prefix)
    store.create(store.location.keys.log_file(t_ms, merged=True, writer="v3host"), encode(file))
    store.delete(old)


@pytest.mark.parametrize("was_read", [True, False], ids=["by who was there before", "by who comes new"])
def test_a_v3_program_that_merges_between_two_of_our_commits_is_found_out(
    table: Table, clocked: ClockedStore, clock: ManualClock, was_read: bool
) -> None:
    table.insert([{"k": 0, "n": 30, "column": 1}])
    clock.advance(MINUTE_MS)
    v3_merges_and_cleans_up(clocked, clock)
    clock.advance(MINUTE_MS)
    comer = table if was_read else open_table(clocked, clock)
    objects = dict(clocked.objects)
    for act in (comer.merge, lambda: comer.drop_partitions(["k=0"]), comer.merge_log):
        with pytest.raises(
            UncoordinatedMaintenance, match=r"Stop that program\. Then restore the log files .* Run verify for details"
        ):
            act()
    logs = clocked.location.keys.log_prefix
    assert {k for k in objects if k.startswith(logs)} == set(keys(clocked, logs)), "nothing was published"
    assert rows(clocked) == [0, 1, 10, 11, 20, 21, 30]
    report = comer.verify()
    assert not report.ok
    assert {p.kind for p in report.problems if p.severity == "error"} == {"foreign_maintenance"}


# ------------------------------------------------------------------------------------------ clocks


@pytest.mark.parametrize(
    ("verb", "hours"),
    # To a merge ten hours behind, all parts are from a clock far ahead: it leaves them alone.
    [
        *((verb, 10) for verb in ("insert", "insert a column", "insert once", "merge", "drop")),
        *((verb, -10) for verb in ("insert", "insert a column", "insert once", "drop")),
    ],
)
def test_a_clock_ten_hours_off_is_refused_at_once(
    table: Table, clocked: ClockedStore, clock: ManualClock, verb: str, hours: int
) -> None:
    wrong = open_table(clocked, clock.skewed(hours * HOUR_MS))
    act = {
        "insert": lambda: wrong.insert([{"k": 0, "n": 90}]),
        "insert a column": lambda: wrong.insert([{"k": 0, "n": 90, "column": 1}]),
        "insert once": lambda: wrong.insert([{"k": 0, "n": 90}], txn=("app", 1)),
        "merge": wrong.merge,
        "drop": lambda: wrong.drop_partitions(["k=0"]),
    }[verb]
    with pytest.raises(ClockSkew, match="NTP"):
        act()
    assert rows(clocked) == [0, 1, 10, 11, 20, 21]
    named = check_sound(clocked).parts.keys()
    assert set(keys(clocked, clocked.location.keys.data_prefix)) == named, "no orphan is left"
    table.insert([{"k": 0, "n": 91, "other": 1}])
    assert rows(clocked) == [0, 1, 10, 11, 20, 21, 91]


@pytest.mark.long
def test_a_log_file_from_a_clock_ten_hours_ahead_is_read_left_alone_and_reported(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    part = table.insert([{"k": 0, "n": 0}]).parts[0]
    names, t_ms = clocked.location.keys, clock.now_ms() + 10 * HOUR_MS
    ahead_part, body = names.part("k=0", "ahead"), clocked.objects[part.key].body
    clocked.create(ahead_part, body)
    ahead = names.log_file(t_ms, merged=False, writer="ahead")
    clocked.create(ahead, encode(LogFile(t_ms, {}, (Marker(ahead_part, len(body), t_ms, rows=1),))))
    everything = [0, 0, 0, 1, 10, 11, 20, 21]
    assert rows(clocked) == everything

    commits = [table.merge().commit, table.insert([{"k": 0, "n": 30, "column": 1}]), table.merge_log().commit]
    for commit in commits:
        if commit.created_ms is not None:
            assert commit.created_ms < clock.now_ms() + MINUTE_MS, "later times are not dragged along"
    assert ahead in keys(clocked, names.log_prefix)
    assert ahead_part in {m.key for m in table.handle.read().live}
    assert rows(clocked) == sorted([*everything, 30])
    [warning] = [p for p in table.verify().problems if p.kind == "far_ahead"]
    assert (warning.severity, warning.key) == ("warning", ahead)
    assert table.verify().ok

    clock.advance(11 * HOUR_MS)  # when its time has come, it is as any other
    table.merge()
    assert ahead in table.handle.read(everything=True).log_tombstones
    ages_pass(table, clock)
    assert rows(clocked) == sorted([*everything, 30])
    assert [p for p in table.verify().problems if p.kind == "far_ahead"] == []
