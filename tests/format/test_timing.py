"""The times in a table's spec: all programs use the same ones, and a change breaks no program that is running."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb import Table, Timing
from icedb.errors import CommitTimedOut, CorruptLog, InvalidOption, SnapshotExpired
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.table_spec import TableSpec, decode_spec, encode_spec
from icedb.format.timing import (
    DAY_MS,
    HOUR_MS,
    LENGTH_MS_MAX,
    MINUTE_MS,
    EarlierTiming,
    deletable_until,
    part_timeout_at,
    timing_at,
)
from icedb.operations.commits.actions import Replace
from icedb.operations.commits.publish import publish_append
from icedb.testing import (
    ClockedStore,
    Crash,
    Fault,
    FaultyStore,
    ManualClock,
    check_sound,
    create_table,
    open_table,
)
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.open_table import create_handle, open_handle
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts, write_parts
from tests.support.object_stores.stores import Place
from tests.support.site.page_reader import DEFAULT_MS, counting_times, deleted_until, publishable_age
from tests.support.tables.fault_walk import SavedState
from tests.support.tables.v3_api import program

LONG = Timing()
SHORT = Timing(
    max_skew_ms=1_000, commit_timeout_ms=MINUTE_MS, grace_ms=10 * MINUTE_MS, part_timeout_ms=HOUR_MS,
    late_ms=3 * HOUR_MS, min_age_ms=2 * HOUR_MS, txn_retention_ms=DAY_MS,
)  # fmt: skip
#: The time by which every program has read a change from LONG to other times.
KNOWN_MS = LONG.grace_ms + LONG.late_publication_ms


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    """A table with one row."""
    table = create_table(clocked, clock, partition_by=["k"])
    table.insert([{"k": 0, "n": 1}])
    return table


@pytest.fixture
def stale(table: Table, clocked: ClockedStore, clock: ManualClock) -> Table:
    """The table in another program, which has read the log before the test changes it."""
    opened = open_table(clocked, clock)
    opened.handle.read()
    return opened


def part_of(handle: Handle, n: int) -> WrittenParts:
    """Write parts, which the caller publishes."""
    batch = pa.Table.from_pylist([{"k": 0, "n": n}]).to_reader()
    return write_parts(handle.write_context(), batch, store=handle.store, clock=handle.clock)


# ------------------------------------------------------------------------------------------------ in the spec


def test_the_defaults_and_the_example_are_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    assert {f.name: getattr(LONG, f.name) for f in fields(Timing)} == DEFAULT_MS
    assert all(f"| `{name}` |" in page for name in DEFAULT_MS)
    [text] = re.findall(r"^```json timing\n(.*?)\n```$", page, flags=re.DOTALL | re.MULTILINE)
    spec = decode_spec(text.encode(), table="t", key="k")
    assert spec.timing == replace(LONG, grace_ms=2 * HOUR_MS)
    until_ms, four_hours = 1_795_255_200_000, 4 * HOUR_MS
    assert spec.earlier_timing == (EarlierTiming(until_ms, replace(LONG, grace_ms=four_hours)),)
    read_by_all_ms = until_ms + four_hours + LONG.late_publication_ms
    assert counting_times(json.loads(text), read_by_all_ms + four_hours - 1)["grace_ms"] == four_hours
    assert counting_times(json.loads(text), read_by_all_ms + four_hours)["grace_ms"] == 2 * HOUR_MS


def test_the_spec_contains_only_times_that_are_not_the_default() -> None:
    assert "timing" not in json.loads(encode_spec(TableSpec()))
    spec = TableSpec(timing=SHORT, earlier_timing=(EarlierTiming(5, LONG),))
    assert decode_spec(encode_spec(spec), table="t", key="k") == spec
    some = decode_spec(b'{"version":1,"timing":{"grace_ms":7200000,"later":1}}', table="t", key="k")
    assert some.timing == replace(LONG, grace_ms=2 * HOUR_MS), "an absent time has its default"


@pytest.mark.parametrize(
    "timing",
    ['{"grace_ms":1}', '{"grace_ms":-1}', '{"late_ms":1.5}', '{"late_ms":true}', '{"late_ms":"1"}', "[]", "7", "null",
     f'{{"txn_retention_ms":{LENGTH_MS_MAX + 1}}}', '{"txn_retention_ms":100000000000000000000}'],
)  # fmt: skip
def test_invalid_times_in_a_spec_raise_corrupt_log(timing: str) -> None:
    for text in (f'{{"timing":{timing}}}', f'{{"earlier_timing":[{{"until":5,"timing":{timing}}}]}}'):
        with pytest.raises(CorruptLog, match="'k' is not a table's spec"):
            decode_spec(text.encode(), table="t", key="k")


@pytest.mark.parametrize("value", [True, 1.5, "1h", None, -1, LENGTH_MS_MAX + 1])
def test_a_time_is_a_whole_number_of_milliseconds(value: object) -> None:
    for field in fields(Timing):
        with pytest.raises(InvalidOption, match=field.name):
            Timing(**{field.name: value})  # type: ignore[arg-type]


def test_every_program_uses_the_times_of_the_table(clocked: ClockedStore, clock: ManualClock) -> None:
    created = Table(create_handle(clocked, TableSpec(), timing=SHORT, clock=clock))
    assert created.handle.timing == open_table(clocked, clock).handle.timing == SHORT
    assert open_handle(clocked, timing=SHORT, clock=clock).timing == SHORT
    view = created.create_view("v", "SELECT * FROM _rows", backfill=False)
    assert view.handle.timing == SHORT
    created.insert([{"n": 1}])
    created.insert([{"n": "no number"}], on_conflict="quarantine")
    quarantine = open_handle(clocked.sibling(clocked.location.sibling("table_quarantine")), clock=clock)
    assert quarantine.timing == SHORT


def test_opening_with_other_times_is_rejected(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    timing = replace(LONG, grace_ms=2 * HOUR_MS)
    with pytest.raises(InvalidOption) as error:
        open_handle(clocked, timing=timing, clock=clock)
    for text in (table.uri, "grace_ms=3600000", "grace_ms=7200000", "icedb alter"):
        assert text in str(error.value)
    table.alter(timing=timing)
    assert open_handle(clocked, timing=timing, clock=clock).timing == timing
    with pytest.raises(InvalidOption, match="grace_ms=7200000"):
        open_handle(clocked, timing=LONG, clock=clock)


def test_create_and_open_take_times(place: Place) -> None:
    options = place.storage_options
    table = Table.create(place.uri, storage_options=options, timing=SHORT)
    assert table.spec.timing == SHORT
    assert Table.open(place.uri, storage_options=options, timing=SHORT).handle.timing == SHORT
    with pytest.raises(InvalidOption, match="asks for"):
        Table.open(place.uri, storage_options=options, timing=LONG)


def test_a_program_of_the_v3_api_uses_the_times_of_the_table(s3: Place) -> None:
    Table.create(s3.uri, storage_options=s3.storage_options, timing=SHORT).insert([{"n": 1}])
    v3 = program(s3)
    handle = v3._refresh().handle
    handle.read()
    assert handle.timing == SHORT
    assert v3._refresh().handle.timing == SHORT
    longer = replace(SHORT, grace_ms=HOUR_MS)
    Table.open(s3.uri, storage_options=s3.storage_options).alter(timing=longer)
    handle.read()
    assert handle.timing == longer


def test_the_log_file_of_an_alter_contains_the_times(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    commit = table.alter(timing=SHORT)
    header = json.loads(clocked.objects[commit.key or ""].body.split(b"\n")[0])
    assert header["spec"]["timing"] == {f.name: getattr(SHORT, f.name) for f in fields(Timing)}
    assert header["spec"]["earlier_timing"][0]["until"] == commit.created_ms
    clock.advance(40 * DAY_MS)
    table.alter(timing=LONG)
    assert [e.timing for e in table.spec.earlier_timing] == [SHORT], "no program relies on the first ones"


# ------------------------------------------------------------------------------------------------ a change


@st.composite
def timings(draw: Callable[[st.SearchStrategy[int]], int]) -> Timing:
    skew, commit, grace, part, late, age, txn = (draw(st.integers(1, 50)) for _ in range(7))
    grace_ms = 2 * (skew + commit) + grace
    return Timing(
        max_skew_ms=skew, commit_timeout_ms=skew + commit, grace_ms=grace_ms, part_timeout_ms=part, late_ms=late,
        min_age_ms=2 * part + age, txn_retention_ms=grace_ms + txn,
    )  # fmt: skip


@given(timings(), st.lists(st.tuples(st.integers(0, 500), timings()), max_size=4), st.integers(0, 2_000))
def test_effective_times_are_always_valid_and_never_shorter(
    now: Timing, before: list[tuple[int, Timing]], at_ms: int
) -> None:
    earlier = [EarlierTiming(until, timing) for until, timing in before]
    counting = timing_at(now, earlier, at_ms)  # raises if the times contradict each other
    for field in fields(Timing):
        value, declared = getattr(counting, field.name), getattr(now, field.name)
        assert value >= declared
        for old in earlier:
            if at_ms < old.read_by_all_ms + getattr(old.timing, field.name):
                assert value >= getattr(old.timing, field.name)
    spec = TableSpec(timing=now, earlier_timing=tuple(earlier))
    page = json.loads(encode_spec(spec))
    assert counting_times(page, at_ms) == {f.name: getattr(counting, f.name) for f in fields(Timing)}
    assert publishable_age(page, at_ms) == part_timeout_at(now, earlier, at_ms) <= now.part_timeout_ms
    assert deleted_until(page, at_ms) == deletable_until(now, earlier, at_ms) >= at_ms - now.grace_ms
    if all(e.is_over(at_ms) for e in earlier):
        assert counting == now


def test_cleanup_uses_a_longer_grace_of_another_program(
    table: Table, stale: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    fresh = open_table(clocked, clock)
    table.alter(timing=replace(LONG, grace_ms=5 * HOUR_MS))
    as_of_ms = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=0"])
    clock.advance(4 * HOUR_MS)
    for other in (fresh, stale):
        assert other.cleanup().deleted_parts == ()
    assert table.snapshot(as_of_ms).query("SELECT count(*) FROM t").fetchall() == [(1,)]
    clock.advance(HOUR_MS)
    assert len(fresh.cleanup().deleted_parts) == 1


def test_a_sweep_uses_a_longer_age_of_another_program(table: Table, stale: Table, clock: ManualClock) -> None:
    table.alter(timing=replace(LONG, part_timeout_ms=30 * HOUR_MS, min_age_ms=60 * HOUR_MS))
    clock.advance(2 * KNOWN_MS)
    written = part_of(table.handle, 2)
    clock.advance(29 * HOUR_MS)
    assert stale.delete_orphans().deleted_parts == ()
    publish_append(table.handle, written)
    assert sorted(table.query("SELECT n FROM t").fetchall()) == [(1,), (2,)]


@pytest.mark.parametrize("later_ms", [0, 3 * HOUR_MS])
def test_a_longer_limit_excludes_parts_that_a_sweep_may_have_deleted(
    table: Table, clock: ManualClock, later_ms: int
) -> None:
    written = part_of(table.handle, 2)
    clock.advance(25 * HOUR_MS)
    table.delete_orphans()
    table.alter(timing=replace(LONG, part_timeout_ms=30 * HOUR_MS, min_age_ms=60 * HOUR_MS))
    clock.advance(later_ms)
    with pytest.raises(CommitTimedOut):
        publish_append(table.handle, written)


@pytest.mark.parametrize("late_ms", [0, 1])
def test_cleanup_uses_a_shorter_grace_after_no_program_relies_on_the_longer_one(
    table: Table, clocked: ClockedStore, clock: ManualClock, late_ms: int
) -> None:
    altered_ms = table.alter(timing=SHORT).created_ms or 0
    as_of_ms = table.snapshot().as_of_ms
    clock.set(altered_ms + KNOWN_MS + LONG.grace_ms - SHORT.grace_ms - MINUTE_MS)
    table.drop_partitions(["k=0"])
    clock.set(altered_ms + KNOWN_MS + LONG.grace_ms - 1 + late_ms)
    assert len(open_table(clocked, clock).cleanup().deleted_parts) == late_ms
    if not late_ms:
        assert table.snapshot(as_of_ms).query("SELECT count(*) FROM t").fetchall() == [(1,)]


def test_a_sweep_keeps_parts_of_programs_with_longer_times(
    table: Table, stale: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    clock.advance(LONG.grace_ms - MINUTE_MS)
    table.alter(timing=SHORT)
    written = part_of(stale.handle, 2)
    clock.advance(3 * HOUR_MS)  # an orphan by the new times
    assert open_table(clocked, clock).delete_orphans().deleted_parts == ()
    with pytest.raises(CommitTimedOut):  # it reads the log first, because its state is three hours old
        publish_append(stale.handle, written)
    clock.advance(2 * DAY_MS)
    assert len(table.delete_orphans().deleted_parts) == 1
    check_sound(clocked)


def test_an_idle_program_reads_shorter_times_at_a_commit(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    store = FaultyStore(clocked)
    stale = open_table(store, clock)
    stale.insert([{"k": 0, "n": 2}])
    table.alter(timing=SHORT)
    clock.advance(3 * DAY_MS)
    table.delete_orphans()
    written = part_of(stale.handle, 3)
    clock.advance(2 * HOUR_MS + MINUTE_MS)  # younger than the old limit of twelve hours
    assert len(table.delete_orphans().deleted_parts) == 1
    with pytest.raises(CommitTimedOut):
        publish_append(stale.handle, written)
    assert sorted(table.query("SELECT n FROM t").fetchall()) == [(1,), (2,)]


def test_an_append_reads_the_log_only_after_the_grace_period(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    store = FaultyStore(clocked)
    writer = open_table(store, clock)
    table.insert([{"k": 0, "n": 1}])
    writer.insert([{"k": 0, "n": 2}])
    lists = []
    for minutes in (1, 59, 61):
        clock.advance(minutes * MINUTE_MS)
        before = store.counts["list"]
        writer.insert([{"k": 0, "n": 3}])
        lists.append(store.counts["list"] - before)
    assert lists == [0, 0, 1]


@pytest.mark.parametrize("later_ms", [0, 3 * HOUR_MS])
def test_a_pin_relies_on_the_shortest_possible_grace_of_cleanup(
    table: Table, clock: ManualClock, later_ms: int
) -> None:
    as_of_ms = table.snapshot().as_of_ms
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=0"])
    clock.advance(HOUR_MS)  # a cleanup that read the log before the change may be deleting the part now
    table.alter(timing=replace(LONG, grace_ms=10 * HOUR_MS))
    clock.advance(later_ms)
    with pytest.raises(SnapshotExpired):
        table.pin("p", as_of_ms)


def test_a_consumer_of_changes_waits_for_longer_times(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    """A program with the new timeout may publish later than a program with the old times expects."""
    consumer = open_table(clocked, clock)
    cursor = consumer.changes().cursor
    table.alter(timing=replace(LONG, commit_timeout_ms=29 * MINUTE_MS))
    early = clock.now_ms() + MINUTE_MS
    clock.advance(20 * MINUTE_MS)
    table.insert([{"k": 0, "n": 2}])
    first = consumer.changes(cursor)
    late = part_of(table.handle, 3)
    paused = table.handle.keys.log_file(early, merged=False, writer="web-1-0123456789ab")
    markers = [msgspec.structs.replace(m, created_ms=early) for m in late.markers]
    clocked.create(paused, encode(LogFile(early, dict(late.schema), tuple(markers))))
    second = consumer.changes(first.cursor)
    assert sorted(first.query("SELECT n FROM t").fetchall() + second.query("SELECT n FROM t").fetchall()) == [
        (2,),
        (3,),
    ]


# ------------------------------------------------------------------------------------------------ crashes


def altering(table: Table) -> None:
    table.alter(timing=SHORT)


@pytest.mark.long
def test_an_alter_that_crashes_anywhere_leaves_the_old_or_the_new_times(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    saved = SavedState(clocked, clock)
    counting = FaultyStore(clocked)
    altering(open_table(counting, clock))
    ends = set()
    for number, fault, wakes_ms in product(
        range(1, len(counting.requests) + 1), (Fault.CRASH_BEFORE, Fault.CRASH_AFTER), (0, HOUR_MS)
    ):
        saved.restore()
        store = FaultyStore(clocked)
        store.inject(fault, number=number)
        with pytest.raises(Crash):
            altering(open_table(store, clock))
        clock.advance(wakes_ms)
        other = open_table(clocked, clock)
        other.alter(row_group_rows=10_000)  # completes a young claim, voids an old one
        ends.add(other.spec.timing == SHORT)
        assert other.spec.timing in (LONG, SHORT)
        assert other.handle.timing == LONG, "the longer times apply for now in both cases"
        assert (other.spec.earlier_timing != ()) == (other.spec.timing == SHORT)
        assert [r[0] for r in other.query("SELECT n FROM t").fetchall()] == [1]
        check_sound(clocked)
        if other.spec.timing == LONG:
            altering(other)
        assert open_table(clocked, clock).alter(timing=SHORT).committed is False
    assert ends == {True, False}


@pytest.mark.parametrize("key", ["_claims/epoch-2", "_log/"])
@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT])
def test_an_alter_without_a_response_is_reconciled(
    table: Table, clocked: ClockedStore, clock: ManualClock, fault: Fault, key: str
) -> None:
    store = FaultyStore(clocked)
    store.inject(fault, kind="create", key=key)
    other = open_table(store, clock)
    assert other.alter(timing=SHORT).committed
    assert other.spec.timing == SHORT
    assert table.alter(timing=SHORT).committed is False
    assert table.spec.timing == SHORT
    assert [e.timing for e in table.spec.earlier_timing] == [LONG]


# ------------------------------------------------------------------------------------------------ random sequences

S = 1_000
SEEDS = 40
#: Very different times: one may be several times another.
TIMES = [
    Timing(
        max_skew_ms=S, commit_timeout_ms=2 * S, grace_ms=grace * S, part_timeout_ms=part * S, late_ms=late * S,
        min_age_ms=2 * part * S, txn_retention_ms=1_000 * S,
    )
    for grace, part, late in ((10, 10, 20), (10, 60, 100), (100, 10, 20), (60, 100, 300), (20, 30, 20))
]  # fmt: skip


class Course:
    """A random run of programs that write, delete, read and change the times of one table. Parts are not Parquet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        create_table(self.store, self.clock, timing=self.chance.choice(TIMES)).insert([{"n": 0}])
        self.programs = [open_table(self.store, self.clock.skewed(skew_ms)) for skew_ms in (-S, 0, S)]
        self.unpublished: list[tuple[Handle, WrittenParts]] = []
        self.published: set[str] = set()
        self.dropped: set[str] = set()
        #: The time until which a reader may open the parts of its snapshot.
        self.readers: list[tuple[int, frozenset[str]]] = []
        self.refused = self.deleted = self.swept = 0

    def run(self, steps: int) -> None:
        acts = [self.write, self.publish, self.publish, self.drop, self.clean, self.sweep, self.read, self.alter]
        for _ in range(steps):
            self.clock.advance(self.chance.choice((0, 100, S, 5 * S, 15 * S, 40 * S, 150 * S)))
            self.chance.choice(acts)(self.chance.choice(self.programs))
            self.check()

    def write(self, table: Table) -> None:
        key = table.handle.keys.part("", table.handle.clock.new_id())
        oldest_part_ms = table.handle.clock.now_ms()
        self.store.create(key, b"rows")
        self.unpublished.append(
            (table.handle, WrittenParts({"n": "BIGINT"}, (Marker(key, 4, 0, rows=1),), oldest_part_ms))
        )

    def publish(self, table: Table) -> None:
        if not self.unpublished:
            return self.write(table)
        handle, written = self.unpublished.pop(self.chance.randrange(len(self.unpublished)))
        try:
            publish_append(handle, written)
        except CommitTimedOut:
            self.refused += 1
        else:
            self.published.add(written.markers[0].key)

    def drop(self, table: Table) -> None:
        live = sorted(self.published - self.dropped)
        dead = set(self.chance.sample(live, min(len(live), self.chance.randrange(3))))
        commit_exclusive(table.handle, Replace(lambda state: dead))
        self.dropped |= dead
        table.merge_log()

    def clean(self, table: Table) -> None:
        self.deleted += len(table.cleanup().deleted_parts)

    def sweep(self, table: Table) -> None:
        self.swept += len(table.delete_orphans().deleted_parts)

    def read(self, table: Table) -> None:
        state = table.handle.read()
        until_ms = self.clock.now_ms() + table.handle.timing.grace_ms - 2 * S
        self.readers.append((until_ms, frozenset(m.key for m in state.live)))

    def alter(self, table: Table) -> None:
        table.alter(timing=self.chance.choice(TIMES))

    def check(self) -> None:
        """Assert that live parts and the parts of readers are stored, and that only dropped parts were deleted."""
        self.readers = [r for r in self.readers if r[0] > self.clock.now_ms()]
        for _, keys in self.readers:
            assert keys <= self.store.objects.keys(), "a reader's part was deleted too early"
        assert self.published - self.dropped <= self.store.objects.keys(), "a live part was deleted"
        live = {m.key for m in open_table(self.store, self.clock).handle.read().live}
        assert self.published - self.dropped <= live
        assert live.isdisjoint(self.dropped)
        if self.chance.random() < 0.1:
            other = self.chance.choice(self.programs)
            assert {m.key for m in other.handle.read().live} == live, "a refresh misses something"


@pytest.mark.long
def test_no_change_of_times_breaks_a_writer_or_a_reader() -> None:
    courses = [Course(seed) for seed in range(SEEDS)]
    for course in courses:
        course.run(60)
    counts = {name: sum(getattr(c, name) for c in courses) for name in ("refused", "deleted", "swept")}
    assert min(counts.values()) > SEEDS // 10, counts
