"""Failures that have cost similar tables their data, one test each.

Wider tests cover most of them too: faults at every request of every operation in tests/transaction/test_append.py, and
the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from icedb import Table
from icedb.errors import (
    CommitConflict,
    CommitStateUnknown,
    CommitTimedOut,
    SnapshotExpired,
)
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.storage.object_store import ObjectInfo
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.fault_walk import SavedState
from tests.support.tables.numbered_rows import FULL, data_keys, fill, log_keys
from tests.support.tables.plain_table import PlainTable
from tests.support.tables.plain_table import live_numbers as rows

TIMEOUT_MS = 5 * MINUTE_MS
# One more page than S3 lists at a time, and one more request than it deletes at a time.
MANY = 1_050


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    """A table of two partitions with three commits."""
    made = create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    fill(made)
    clock.advance(1_000)
    return made


@pytest.fixture
def plain_world(clocked: ClockedStore, clock: ManualClock) -> RepeatedWorld:
    """The same rows in parts without Parquet."""
    create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    fill(PlainTable.of(clocked, clock))
    clock.advance(1_000)
    return RepeatedWorld(clocked, clock, PlainTable.of)


class RepeatedWorld:
    """A store that returns to its initial state before each attempt of an operation."""

    def __init__(
        self, store: ClockedStore, clock: ManualClock, open_it: Callable[[Any, Any], Table] = open_table
    ) -> None:
        self.store, self.clock, self._open = store, clock, open_it
        self._begin = SavedState(store, clock)

    def each_request(self, act: Callable[[Table], object]) -> Iterator[tuple[int, Table, FaultyStore]]:
        """Yield the number of each request of an undisturbed run, with a new actor in the initial state."""
        table, store = self.actor()
        act(table)
        for number in range(2, len(store.requests) + 1):  # request 1 reads the spec
            self._begin.restore()
            yield (number, *self.actor())
        self._begin.restore()

    def actor(self, *, skew_ms: int = 0) -> tuple[Table, FaultyStore]:
        store = FaultyStore(self.store)
        return self._open(store, self.clock.skewed(skew_ms)), store


def ages_pass(table: Table, clock: ManualClock) -> None:
    """Merge and clean up until no superseded object and no claim is left."""
    table.merge()
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        table.cleanup()


# ------------------------------------------------------------------------------------------ names and partitions


@pytest.mark.long
def test_appends_in_the_same_millisecond_are_both_kept(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    other = open_table(clocked, clock)
    commits = [t.insert([{"k": 0, "n": 100 + n}]) for n in range(3) for t in (table, other)]
    assert len({c.key for c in commits}) == 6
    assert len({c.key for t in (table, other) for c in [t.insert([{"k": 0, "n": 200}])]}) == 2
    assert rows(clocked) == [*FULL, 100, 100, 101, 101, 102, 102, 200, 200]


@pytest.mark.sampled(cases=1)
def test_dropping_one_partition_of_a_log_file_keeps_the_others_through_a_cleanup_without_grace(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], storage_options=place.storage_options)
    fill(table)
    table.drop_partitions(["k=0"])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    again = Table.open(place.uri, storage_options=place.storage_options)
    assert again.query("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (11,), (21,)]
    assert len(data_keys(table.handle.store)) == 3
    check_sound(table.handle.store)


@pytest.mark.long
@pytest.mark.parametrize("change", ["overwrite", "rewrite_partition"])
def test_changed_partitions_lose_no_row(table: Table, clocked: ClockedStore, clock: ManualClock, change: str) -> None:
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
    assert len(data_keys(clocked)) == 2


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
def test_a_merge_during_a_cleanup_loses_no_row(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.drop_partitions(["k=1"])
    clock.advance(2 * HOUR_MS)
    world = RepeatedWorld(clocked, clock)
    for number, cleaner, store in world.each_request(lambda t: t.cleanup()):
        merger, _ = world.actor()
        act_before(store, merger.merge, number=number)
        cleaner.cleanup()
        assert rows(clocked) == [0, 10, 20], number
        for _ in range(2):
            clock.advance(2 * HOUR_MS)
            merger.cleanup()
        assert rows(clocked) == [0, 10, 20], number
        assert len(data_keys(clocked)) == 1, number


@pytest.mark.parametrize("seconds", [5, -5])
def test_concurrent_merges_with_skewed_clocks_keep_each_row_once(
    plain_world: RepeatedWorld, clocked: ClockedStore, clock: ManualClock, seconds: int
) -> None:
    world = plain_world
    for number, merger, store in world.each_request(lambda t: t.merge()):
        other, _ = world.actor(skew_ms=1_000 * seconds)
        act_before(store, other.merge, number=number)
        merger.merge()
        assert rows(clocked) == FULL, number
        state = check_sound(clocked)
        assert len(state.live) == 2, number
        assert data_keys(clocked) == state.parts.keys(), "the loser left nothing"
        ages_pass(other, clock)
        assert rows(clocked) == FULL, number


@pytest.mark.long
def test_a_reader_sees_all_rows_while_a_cleanup_runs(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    world = RepeatedWorld(clocked, clock)
    for number, reader, store in world.each_request(lambda t: t.snapshot()):
        maintainer, _ = world.actor()
        act_before(store, lambda m=maintainer: ages_pass(m, clock), number=number)
        snapshot = reader.snapshot()
        assert snapshot.query("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in FULL], number
        assert snapshot.rows == 6, number


def test_an_old_snapshot_raises_after_a_cleanup(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    held = table.snapshot()
    ages_pass(open_table(clocked, clock), clock)
    with pytest.raises(SnapshotExpired):
        held.query("SELECT n FROM t").fetchall()
    assert rows(clocked) == FULL


@pytest.mark.sampled(cases=1)
def test_a_time_before_the_horizon_is_expired_and_never_wrong(place: Any) -> None:
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


# ------------------------------------------------------------------------------------------ more than a page


@pytest.mark.sampled(cases=1, days=6)
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
    assert len(data_keys(table.handle.store)) == expected
    assert len(log_keys(table.handle.store)) <= 8
    check_sound(table.handle.store)


def put_appends(table: Table, body: bytes, times_ms: range, *, partition: str = "") -> None:
    """Put plain appends of one part each."""
    store, names = table.handle.store, table.handle.keys

    def put(t_ms: int) -> None:
        key = names.part(partition, f"p{t_ms}")
        store.create(key, body)
        file = LogFile(t_ms, {}, (Marker(key, len(body), t_ms, rows=1),))
        store.create(names.log_file(t_ms, merged=False, writer="w"), encode(file))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, times_ms))


class PagedStore(FaultyStore):
    """A store that lists a thousand objects at a time, as S3 does. It calls `after_first_page` once."""

    def __init__(self, inner: ClockedStore) -> None:
        super().__init__(inner)
        self.after_first_page: Callable[[], object] | None = None

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        listed: list[ObjectInfo] = []
        while page := super().list(prefix, after=listed[-1].key if listed else after)[:1_000]:
            listed += page
            act, self.after_first_page = self.after_first_page, None
            if act is not None:
                act()
        return listed


def test_a_torn_listing_does_not_return_dropped_parts(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # The drop crashes after its claim. A thousand appends follow, so its log file sorts among the first.
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
def test_a_paused_winner_publishes_once(table: Table, clocked: ClockedStore, clock: ManualClock, others: bool) -> None:
    store = FaultyStore(clocked)
    other = open_table(clocked, clock)

    def sleep() -> None:
        if others:
            other.insert([{"k": 1, "n": 61, "column": 1}])  # completes the claim
            ages_pass(other, clock)
        else:
            clock.advance(2 * HOUR_MS)

    act_after(store, sleep, kind="create", key="_claims/epoch-")
    sleeper = open_table(store, clock)
    done = True
    try:
        sleeper.overwrite([{"k": 0, "n": 70}], partitions=["k=0"])
    except (CommitStateUnknown, CommitTimedOut):
        done = False
    late = [61] if others else []
    new, old = sorted([1, 11, 21, 70, *late]), sorted([*FULL, *late])
    assert rows(clocked) == (new if done or others else old)


def test_a_recreated_claim_does_not_publish_old_state(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    store = FaultyStore(clocked)
    other = open_table(clocked, clock)

    def epochs_pass() -> None:
        for n in range(3):
            other.insert([{"k": 1, "n": 60 + n, f"c{n}": 1}])
            clock.advance(MINUTE_MS)
        other.drop_partitions(["k=0"])
        ages_pass(other, clock)
        assert clocked.location.keys.epoch_claim(2) not in clocked.objects

    act_before(store, epochs_pass, kind="create", key="_claims/epoch-2")
    sleeper = open_table(store, clock)
    with pytest.raises(CommitStateUnknown):  # the proof that it won before its pause may be deleted
        sleeper.overwrite([{"k": 1, "n": 70}], partitions=["k=1"])
    assert rows(clocked) == [1, 11, 21, 60, 61, 62]
    sleeper.overwrite([{"k": 1, "n": 70}], partitions=["k=1"])
    assert rows(clocked) == [70]


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL])
def test_a_lost_put_is_published_once(table: Table, clocked: ClockedStore, clock: ManualClock, fault: Fault) -> None:
    store = FaultyStore(clocked)
    other = open_table(clocked, clock)

    def roll_forward() -> None:
        other.insert([{"k": 1, "n": 61, "column": 1}])  # completes the claim first
        other.merge()

    store.inject(fault, kind="create", key="_log/")
    interrupt = act_before if fault is Fault.FAIL else act_after
    interrupt(store, roll_forward, kind="create", key="_log/")
    commit = open_table(store, clock).overwrite([{"k": 0, "n": 70}], partitions=["k=0"])
    assert commit.committed
    assert rows(clocked) == [1, 11, 21, 61, 70]
    state = check_sound(clocked)
    assert data_keys(clocked) == state.parts.keys()


@pytest.mark.long
def test_a_writer_paused_on_a_txn_claim_adds_no_row(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    txn = ("app", 1)
    store = FaultyStore(clocked)
    store.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn-")
    with pytest.raises(Crash):
        open_table(store, clock).insert([{"k": 0, "n": 80}], txn=txn)
    world = RepeatedWorld(clocked, clock)
    for number, sleeper, faulty in world.each_request(lambda t: t.insert([{"k": 0, "n": 80}], txn=txn)):
        other, _ = world.actor()

        def sleep(other: Table = other) -> None:
            clock.advance(TIMEOUT_MS + 1)
            other.insert([{"k": 0, "n": 80}], txn=txn)
            ages_pass(other, clock)
            assert clocked.location.keys.txn_claim(*txn) not in clocked.objects

        act_before(faulty, sleep, number=number)
        try:
            sleeper.insert([{"k": 0, "n": 80}], txn=txn)
        except (CommitConflict, CommitTimedOut):
            sleeper.insert([{"k": 0, "n": 80}], txn=txn)  # "try the same transaction again"
        # Not by `rows`: a delayed put may have stored the log file again, which v3 readers would read.
        assert open_table(clocked, clock).query("SELECT count(*) FROM t WHERE n = 80").fetchall() == [(1,)], number
        assert open_table(clocked, clock).insert([{"k": 0, "n": 80}], txn=txn).repeated, number
        ages_pass(other, clock)
        assert rows(clocked) == [*FULL, 80], number


# ------------------------------------------------------------------------------------------ clocks


@pytest.mark.long
def test_a_log_file_far_ahead_is_read_and_reported(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
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
    assert ahead in log_keys(clocked)
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
