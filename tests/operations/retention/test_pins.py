"""Pins: a pinned time stays readable during cleanups, and a pin that comes too late is rejected."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from icedb import Pin, Table
from icedb.errors import (
    ClockSkew,
    CommitTimedOut,
    CorruptLog,
    IceDBError,
    InvalidOption,
    PinExists,
    SnapshotExpired,
    StoreUnavailable,
)
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.fault_walk import SavedState
from tests.support.tables.numbered_rows import FULL, data_keys, fill, numbers


def pin_keys(store: ClockedStore) -> list[str]:
    keys = store.location.keys
    return [i.key for i in store.list(keys.claims_prefix) if keys.parse_pin(i.key)]


def forget_all(table: Table, clock: ManualClock, rounds: int = 4) -> None:
    """Advance the clock and clean up, with commits in between, so that log files are replaced too."""
    for n in range(rounds):
        table.insert([{"k": 7, "n": 1000 + n}])
        clock.advance(MINUTE_MS)
        table.drop_partitions(["k=7"])
        table.merge()
        clock.advance(2 * HOUR_MS)
        table.cleanup()


@pytest.mark.sampled(cases=1, days=3)
def test_only_the_pinned_time_survives_cleanup(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], storage_options=place.storage_options)
    fill(table, 1)
    before = table.snapshot().as_of_ms
    fill(table)
    pin = table.pin("release-7")
    table.overwrite([{"k": 0, "n": 5}])
    fill(table, 1)
    table.drop_partitions(["k=0"])
    report = table.cleanup(grace_ms=0, allow_short_grace=True)
    assert report.kept_for_pins == 8
    assert report.deleted_parts
    assert report.horizon_ms > pin.as_of_ms
    reader = Table.open(place.uri, storage_options=place.storage_options)
    assert numbers(reader, pin.as_of_ms) == [0, 0, 1, 1, 10, 11, 20, 21]
    assert numbers(table) == [1]
    for other in (before, pin.as_of_ms - 1, pin.as_of_ms + 1):
        with pytest.raises(SnapshotExpired):
            table.snapshot(as_of=other)
    assert table.pins() == [pin]
    assert table.unpin("release-7")
    assert not table.unpin("release-7")
    assert table.pins() == []
    with pytest.raises(SnapshotExpired):
        table.snapshot(as_of=pin.as_of_ms)
    assert len(table.cleanup(grace_ms=0, allow_short_grace=True).deleted_parts) == 8


@pytest.mark.long
def test_pinned_parts_survive_merges_and_cleanups(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    pin = table.pin("kept")
    clock.advance(1_000)
    table.merge()
    table.drop_partitions(["k=1"])
    forget_all(table, clock)
    assert numbers(table, pin.as_of_ms) == FULL
    assert len(data_keys(clocked)) == 6 + 1
    assert len([m for m in check_sound(clocked).parts.values() if m.tombstoned_ms]) == 6
    table.unpin("kept")
    forget_all(table, clock)
    assert len(data_keys(clocked)) == 1
    check_sound(clocked)


def test_a_pin_is_at_the_newest_commit_and_later_commits_are_later(table: Table, clock: ManualClock) -> None:
    fill(table)
    clock.advance(HOUR_MS)
    pin = table.pin("now")
    assert pin == Pin("now", table.handle.read().newest_ms, clock.now_ms())
    # The next commit is in the same millisecond, by a clock that is behind.
    slow = open_table(table.handle.store, clock.skewed(-MINUTE_MS))
    slow.drop_partitions(["k=0"])
    forget_all(table, clock, 2)
    assert numbers(table, pin.as_of_ms) == FULL


def test_an_empty_table_can_be_pinned(table: Table, clock: ManualClock) -> None:
    pin = table.pin("empty")
    fill(table)
    assert numbers(table) == FULL
    assert table.snapshot(as_of=pin.as_of_ms).parts == ()


def test_a_log_file_from_the_future_does_not_make_a_pin_of_the_future(table: Table, clock: ManualClock) -> None:
    fill(table, 1)
    pin = table.pin("before")
    ahead = open_table(table.handle.store, clock.skewed(24 * HOUR_MS), fencing="none")
    ahead.insert([{"k": 9, "n": 9}])
    clock.advance(1_000)
    assert table.pin("after").as_of_ms == pin.as_of_ms
    with pytest.raises(InvalidOption, match="future"):
        table.pin("ahead", table.snapshot().as_of_ms)


def test_a_pin_of_an_existing_name_is_rejected(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    pin = table.pin("release", expires=timedelta(hours=1))
    [key] = pin_keys(clocked)
    before = clocked.objects[key]
    clock.advance(MINUTE_MS)
    with pytest.raises(PinExists, match=r"unpin\('release'\)"):
        table.pin("release")
    assert clocked.objects[key] is before
    assert table.pins() == [pin]
    # The put itself is rejected too, if another program takes the name first.
    store = FaultyStore(clocked)
    other = open_table(store, clock)
    act_after(store, lambda: table.pin("race"), kind="head")
    with pytest.raises(PinExists):
        other.pin("race", expires=clock.now_ms() + 1)
    assert [p.expires_ms for p in table.pins()] == [None, pin.expires_ms]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "-x", "x" * 101])
def test_an_invalid_name_of_a_pin_is_rejected(table: Table, name: str) -> None:
    with pytest.raises(InvalidOption, match="pin's name"):
        table.pin(name)
    with pytest.raises(InvalidOption, match="pin's name"):
        table.unpin(name)


def test_times_are_checked(table: Table, clock: ManualClock) -> None:
    fill(table, 1)
    now = clock.now_ms()
    with pytest.raises(InvalidOption, match="future"):
        table.pin("x", now + HOUR_MS)
    for expires in (now, 0, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(InvalidOption, match="would expire"):
            table.pin("x", expires=expires)
    for nonsense in (datetime(2090, 1, 1), "tomorrow", True):
        with pytest.raises(InvalidOption, match=r"expires (is|2090|must be)"):
            table.pin("x", expires=nonsense)  # type: ignore[arg-type]
    moment = datetime.fromtimestamp((now + HOUR_MS) / 1000, tz=UTC)
    assert table.pin("a", expires=moment).expires_ms == now + HOUR_MS
    assert table.pin("b", expires=now + HOUR_MS).expires_ms == now + HOUR_MS
    assert table.pin("c", expires=timedelta(hours=1)).expires_ms == now + HOUR_MS
    assert [p.name for p in table.pins()] == ["a", "b", "c"]


def test_parts_of_an_expired_pin_stay_for_a_while(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    pin = table.pin("short", expires=timedelta(hours=5))
    clock.advance(1_000)
    table.merge()
    forget_all(table, clock, 2)
    assert numbers(table, pin.as_of_ms) == FULL
    assert pin.expires_ms is not None
    # A reader that took the snapshot just before may still be reading, also one whose clock is behind.
    clock.set(pin.expires_ms)
    late_reader = open_table(clocked, clock.skewed(-MINUTE_MS))
    with pytest.raises(SnapshotExpired):
        table.snapshot(as_of=pin.as_of_ms)
    clock.set(pin.expires_ms + HOUR_MS - 1)
    report = table.cleanup()
    assert (report.kept_for_pins, report.deleted_pins) == (6, ())
    clock.set(pin.expires_ms)
    assert numbers(late_reader, pin.as_of_ms) == FULL
    clock.set(pin.expires_ms + HOUR_MS)
    planned = table.cleanup(dry_run=True)
    assert pin_keys(clocked)
    report = table.cleanup()
    assert (report.kept_for_pins, report.deleted_pins) == (0, ("short",))
    assert (planned.kept_for_pins, planned.deleted_pins) == (0, ("short",))
    assert set(report.deleted_parts) == set(planned.deleted_parts)
    assert len(report.deleted_parts) >= 6
    assert pin_keys(clocked) == []
    table.pin("short")


def test_a_pin_near_the_deletion_is_rejected(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    old = table.snapshot().as_of_ms + 1
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=0"])
    dropped = table.handle.read().newest_ms
    # The grace period, less the duration of a put and the skew of clocks.
    clock.set(dropped + HOUR_MS - 5 * MINUTE_MS - 2 * MINUTE_MS - 1_000)
    with pytest.raises(SnapshotExpired, match="may be deleting") as caught:
        table.pin("late", old)
    assert caught.value.horizon_ms == dropped
    assert pin_keys(clocked) == []
    assert numbers(table, old) == FULL, "it can still be read, but not promised"
    clock.advance(-1)
    assert table.pin("in-time", old).as_of_ms == old
    clock.advance(24 * HOUR_MS)
    assert table.pin("what-is-live", caught.value.horizon_ms)
    table.unpin("in-time")
    table.cleanup()
    with pytest.raises(SnapshotExpired, match="cleanup has forgotten"):
        table.pin("too-late", old)


def test_a_clock_that_is_wrong_pins_nothing(clocked: ClockedStore, table: Table, clock: ManualClock) -> None:
    fill(table)
    with pytest.raises(ClockSkew):
        open_table(clocked, clock.skewed(-2 * MINUTE_MS)).pin("x", table.handle.read().newest_ms - 1)
    assert pin_keys(clocked) == []


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.REPEAT])
def test_a_lost_response_is_settled(table: Table, clocked: ClockedStore, clock: ManualClock, fault: Fault) -> None:
    fill(table)
    store = FaultyStore(clocked)
    store.inject(fault, kind="create", key="pin-x")
    pin = open_table(store, clock).pin("x")
    assert table.pins() == [pin]


def test_a_delayed_put_of_a_pin_has_no_effect(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    store = FaultyStore(clocked)
    store.inject(Fault.DELAY, kind="create", key="pin-x")
    with pytest.raises(StoreUnavailable, match="Try again"):
        open_table(store, clock).pin("x")
    assert table.pins() == []
    as_of = table.handle.read().newest_ms
    clock.advance(MINUTE_MS)
    table.drop_partitions("true")
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    store.deliver()  # hours later: no reader may use the pin
    with pytest.raises(SnapshotExpired):
        table.snapshot(as_of=as_of)
    [late] = table.pins()
    assert late.expired(clock.now_ms())
    clock.advance(2 * HOUR_MS)
    assert table.cleanup().deleted_pins == ("x",)


def test_an_unreadable_pin_stops_cleanup(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()
    keys = clocked.location.keys
    clocked.create(keys.pin("cut"), b'{"name": "cut", "as')
    clocked.create(keys.pin("other"), b'{"name": "another", "as_of": 1, "created": 1}')
    clock.advance(2 * HOUR_MS)
    for name in ("cut", "other"):
        before = dict(clocked.objects)
        for call in (table.cleanup, table.pins):
            with pytest.raises(CorruptLog, match=rf"unpin\('{name}'\)"):
                call()
        assert clocked.objects == before
        assert table.unpin(name)
    assert len(table.cleanup().deleted_parts) == 6


def test_pins_are_read_only_before_the_horizon(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    pin = table.pin("kept")
    clock.advance(1_000)
    table.merge()
    forget_all(table, clock, 1)
    store = FaultyStore(clocked)
    reader = open_table(store, clock)
    claims = clocked.location.keys.claims_prefix

    def requests() -> list[str]:
        return [r.kind for r in store.requests if r.keys[0].startswith(claims)]

    reader.snapshot()
    reader.snapshot(as_of=clock.now_ms())
    assert requests() == []
    reader.snapshot(as_of=pin.as_of_ms)
    assert requests() == ["list", "get"]


# ------------------------------------------------------------------------------------ interleavings


class PinnedDrop:
    """A table whose rows were dropped. One actor pins an earlier time while another cleans up."""

    def __init__(self, dropped_ms_ago: int) -> None:
        self.clock = ManualClock()
        self.base = ClockedStore(self.clock)
        table = create_table(self.base, self.clock, partition_by=["k"], sort_by=["n"])
        fill(table)
        self.as_of = table.snapshot().as_of_ms
        self.clock.advance(1_000)
        table.drop_partitions("true")
        table.insert([{"k": 3, "n": 3}])
        self.clock.set(table.handle.read().newest_ms + dropped_ms_ago)
        self.saved = SavedState(self.base, self.clock)

    def clean_up(self, after_ms: int) -> None:
        self.clock.advance(after_ms)
        self.actor(self.base, MINUTE_MS).cleanup()

    def pin(self, sleep_ms: int, outcome: list[bool]) -> None:
        """Pin, note whether it succeeded, and advance the clock."""
        try:
            self.actor(self.base, -MINUTE_MS).pin("x", self.as_of)
            outcome.append(True)
        except SnapshotExpired:
            outcome.append(False)
        self.clock.advance(sleep_ms)

    def check(self, pinned: bool, what: object) -> None:
        """Check that a pinned time stays whole, and that nothing of a rejected pin remains."""
        for _ in range(3):
            try:
                snapshot = open_table(self.base, self.clock).snapshot(as_of=self.as_of)
                assert snapshot.rows == len(FULL), what
                assert {p.key for p in snapshot.parts} <= data_keys(self.base) or not pinned, what
            except SnapshotExpired:
                assert not pinned, what
            check_sound(self.base)
            self.clock.advance(2 * HOUR_MS)
            open_table(self.base, self.clock).cleanup()
        assert bool(pin_keys(self.base)) is pinned, what

    def actor(self, store: ObjectStore, skew_ms: int = 0) -> Table:
        return open_table(store, self.clock.skewed(skew_ms))


AGES_MS = [0, 45 * MINUTE_MS, 51 * MINUTE_MS, 54 * MINUTE_MS, 58 * MINUTE_MS, HOUR_MS, 2 * HOUR_MS]


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("age_ms", AGES_MS)
def test_a_cleanup_at_any_request_of_a_pin_deletes_no_pinned_part(age_ms: int) -> None:
    story = PinnedDrop(age_ms)
    kept = refused = 0
    for sleep_ms in (0, 4 * MINUTE_MS, 10 * MINUTE_MS, HOUR_MS):
        for number in range(2, 12):
            story.saved.restore()
            store = FaultyStore(story.base)
            act_before(store, partial(story.clean_up, sleep_ms), number=number)
            try:
                story.actor(store, -MINUTE_MS).pin("x", story.as_of)
            except (SnapshotExpired, CommitTimedOut):
                refused += 1
                story.check(False, (sleep_ms, number))
            else:
                kept += 1
                story.check(True, (sleep_ms, number))
    assert kept if age_ms < 53 * MINUTE_MS else refused and not kept


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("age_ms", AGES_MS)
def test_a_pin_at_any_request_of_a_cleanup_is_kept_or_rejected(age_ms: int) -> None:
    story = PinnedDrop(age_ms)
    for sleep_ms in (0, 20 * MINUTE_MS):
        for number in range(2, 25):
            story.saved.restore()
            store = FaultyStore(story.base)
            outcome: list[bool] = []
            act_before(store, partial(story.pin, sleep_ms, outcome), number=number)
            with contextlib.suppress(IceDBError):  # a cleanup that slept too long may lose its claim
                story.actor(store, MINUTE_MS).cleanup()
            if not outcome:
                break  # the cleanup makes no more requests
            story.check(outcome[0], (sleep_ms, number))


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("sleep_ms", [0, 10 * MINUTE_MS, HOUR_MS])
@pytest.mark.parametrize("age_ms", [0, 51 * MINUTE_MS])
def test_a_pin_whose_process_crashes_is_valid_for_all_readers_or_none(age_ms: int, sleep_ms: int) -> None:
    # A cleanup runs before the put, and the process dies before it checks the pin.
    story = PinnedDrop(age_ms)
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
        for number in range(2, 12):
            story.saved.restore()
            store = FaultyStore(story.base)
            store.inject(fault, number=number)
            act_before(store, partial(story.clean_up, sleep_ms), kind="create", key="pin-")
            with contextlib.suppress(Crash, SnapshotExpired, CommitTimedOut):
                story.actor(store, -MINUTE_MS).pin("x", story.as_of)
            reader = story.actor(story.base)
            valid = any(not p.expired(story.clock.now_ms()) for p in reader.pins())
            story.check(valid, (fault, number))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE])
def test_a_cleanup_that_fails_at_any_request_keeps_pinned_parts(fault: Fault) -> None:
    story = PinnedDrop(0)
    table = story.actor(story.base)
    table.pin("x", story.as_of)
    table.merge()
    table.insert([{"k": 4, "n": 4}])
    story.clock.advance(1_000)
    table.drop_partitions(["k=4"])
    story.clock.advance(2 * HOUR_MS)
    story.saved = SavedState(story.base, story.clock)
    counting = FaultyStore(story.base)
    story.actor(counting).cleanup()
    requests = len(counting.requests)
    assert requests > 12
    for number in range(2, requests + 1):
        story.saved.restore()
        store = FaultyStore(story.base)
        store.inject(fault, number=number)
        with contextlib.suppress(Crash, IceDBError):
            story.actor(store).cleanup()
        story.check(True, number)
        state = check_sound(story.base)
        # The object that compared the clocks is an orphan, and empty.
        assert len([key for key in data_keys(story.base) if story.base.objects[key].body]) == 7
        assert len([m for m in state.parts.values() if m.tombstoned_ms]) == 6, "no dead marker but the pinned ones"


def filled_and_dropped(table: Table, clock: ManualClock, *, merge: bool = False) -> int:
    """Fill the table, and drop a partition a second later. Return the time before the drop."""
    fill(table)
    if merge:
        table.merge()
    as_of = table.handle.read().newest_ms
    clock.advance(1_000)
    table.drop_partitions(["k=0"])
    clock.advance(1_000)
    return as_of


def test_a_pinned_marker_is_never_forgotten(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # Without a grace period, the objects are deleted already when the pin is put. Readers get an error, not some rows.
    as_of = filled_and_dropped(table, clock)
    store = FaultyStore(clocked)
    act_after(store, lambda: table.pin("against-advice", as_of), kind="delete", key="_data/k=")
    report = open_table(store, clock).cleanup(grace_ms=0, allow_short_grace=True)
    assert len(report.deleted_parts) == 3
    assert report.forgotten == 0
    assert len(table.snapshot(as_of=as_of).parts) == 6
    with pytest.raises(SnapshotExpired):
        numbers(table, as_of)


def test_a_cleanup_respects_a_pin_put_after_its_plan(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # Without a grace period, only the second listing of pins, right before parts are deleted, saves them.
    as_of = filled_and_dropped(table, clock, merge=True)
    store = FaultyStore(clocked)
    act_before(store, lambda: table.pin("just-in-time", as_of), kind="delete", key="_log/")
    report = open_table(store, clock).cleanup(grace_ms=0, allow_short_grace=True)
    assert len(report.deleted_parts) == 6
    assert report.kept_for_pins == 1
    assert numbers(table, as_of) == FULL
    check_sound(clocked)


def test_a_pin_of_deleted_parts_is_rejected(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # A cleanup without a grace period runs between the pin's listing of the log and its put.
    as_of = filled_and_dropped(table, clock)
    store = FaultyStore(clocked)
    clean_up = partial(table.cleanup, grace_ms=0, allow_short_grace=True)
    act_before(store, clean_up, kind="create", key="pin-")
    with pytest.raises(SnapshotExpired):
        open_table(store, clock).pin("x", as_of)
    assert table.pins() == []
