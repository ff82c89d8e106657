"""Restores: one commit gives the table its earlier rows, or nothing changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from icedb import Table
from icedb.errors import CommitTimedOut, IceDBError, InvalidOption, SnapshotExpired, StoreUnavailable
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.replay import live_markers
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.operations.retention.restore import RestorePlan, plan_restore
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.fault_walk import SavedState, attempts, only_live_parts_stay
from tests.support.tables.numbered_rows import FULL, data_keys, fill, numbers
from tests.support.tables.plain_table import live_numbers


def planned(table: Table, as_of_ms: int) -> RestorePlan:
    state = table.handle.read()
    return plan_restore(state, as_of_ms, live_markers(state, as_of_ms))


def moment(table: Table, clock: ManualClock) -> int:
    """Return the time of the newest commit, and advance the clock beyond it."""
    as_of = table.handle.read().newest_ms
    clock.set(max(clock.now_ms(), as_of) + MINUTE_MS)
    return as_of


def filled_and_dropped(table: Table, clock: ManualClock, partitions: str | list[str]) -> int:
    """Fill the table, then drop partitions. Return a time between the two."""
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(partitions)
    return as_of


MISTAKES: dict[str, Callable[[Table], object]] = {
    "drop": lambda t: t.drop_partitions(["k=1"]),
    "overwrite": lambda t: t.overwrite([{"k": 0, "n": 99}]),
    "delete": lambda t: t.delete("n >= 10"),
    "merge": lambda t: t.merge(),
    "append": lambda t: t.insert([{"k": 0, "n": 99}]),
    "all": lambda t: [t.insert([{"k": 5, "n": 5}]), t.merge(), t.drop_partitions("true"), t.insert([{"k": 1, "n": 7}])],
}


@pytest.mark.sampled(cases=3, days=3)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_undone(place: Any, mistake: str) -> None:
    table = Table.create(place.uri, partition_by=["k"], sort_by=["n"], storage_options=place.storage_options)
    fill(table)
    as_of = table.handle.read().newest_ms
    before = table.snapshot(as_of=as_of)
    MISTAKES[mistake](table)
    after = table.handle.read().newest_ms
    wrong = numbers(table)
    planned = table.restore(as_of, dry_run=True)
    assert not planned.commit.committed
    assert numbers(table) == wrong
    report = table.restore(as_of)
    assert numbers(table) == numbers(Table.open(place.uri, storage_options=place.storage_options)) == FULL
    assert report.commit.committed
    assert not report.dry_run
    assert {p.key for p in report.restored} == {p.key for p in planned.restored}
    assert {p.key for p in report.tombstoned} == {p.key for p in planned.tombstoned}
    assert (report.rows, report.bytes) == (planned.rows, planned.bytes) == (report.commit.rows, report.commit.bytes)
    # Parts that no commit touched keep their keys.
    kept = {p.key for p in before.parts} - {p.key for p in report.restored}
    assert kept == {p.key for p in before.parts} & {p.key for p in table.snapshot().parts}
    assert numbers(table, as_of) == FULL
    assert numbers(table, after) == wrong
    assert not table.restore(as_of).commit.committed, "there is nothing left to do"
    table.restore(after)
    assert numbers(table) == wrong


def test_a_copied_part_keeps_the_values_of_its_marker(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    as_of = moment(table, clock)
    before = table.handle.read().live
    table.drop_partitions("true")
    report = table.restore(as_of)
    t_ms = report.commit.created_ms
    after = table.handle.read().live
    assert {m.created_ms for m in after} == {t_ms}
    assert not {m.key for m in before} & {m.key for m in after}

    def contents(markers: Sequence[Any]) -> list[Any]:
        return sorted((m.key.rpartition("/")[0], bytes(m.stats), m.rows, m.bytes, m.digest) for m in markers)

    assert contents(before) == contents(after)
    assert all(m.digest for m in after)
    check_sound(clocked)


def test_a_part_without_a_digest_is_restored(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    [old, _] = table.handle.read().live
    keys = clocked.location.keys
    key = keys.part("k=0", "v3")
    clocked.create(key, clocked.objects[old.key].body)
    t_ms = clock.now_ms() + 100
    bare = msgspec.structs.replace(old, key=key, created_ms=t_ms, rows=None, stats=msgspec.UNSET, digest=None)
    clocked.create(keys.log_file(t_ms, merged=False, writer="v3"), encode(LogFile(t_ms, {}, (bare,))))
    as_of = moment(table, clock)
    table.drop_partitions("true")
    report = table.restore(as_of)
    assert report.rows is None
    assert len(report.restored) == 3
    assert numbers(table) == [0, 0, 1]
    check_sound(clocked)


def test_parts_without_digests_are_never_equal(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    keys, t = clocked.location.keys, clock.now_ms()
    old, new = (keys.part("k=0", name) for name in ("old", "new"))
    for at, marker in [
        (t, Marker(old, 1, t)),
        (t + 2, Marker(old, 1, t, tombstoned_ms=t + 2)),
        (t + 3, Marker(new, 1, t + 3)),
    ]:
        clocked.create(keys.log_file(at, merged=False, writer="v3"), encode(LogFile(at, {}, (marker,))))
    plan = planned(table, t + 1)
    assert ([m.key for m in plan.back], [m.key for m in plan.gone]) == ([old], [new])


def test_rows_appended_during_a_restore_survive(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, ["k=0"])
    table.insert([{"k": 0, "n": 77}])
    store = FaultyStore(clocked)
    act_before(store, lambda: table.insert([{"k": 0, "n": 88}]), kind="create", key="epoch-")
    open_table(store, clock).restore(as_of)
    assert numbers(table) == [*FULL, 88]
    check_sound(clocked)


def test_a_restore_reuses_its_copies_after_a_conflict(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, ["k=0"])
    store = FaultyStore(clocked)
    act_before(store, lambda: table.drop_partitions(["k=1"]), kind="create", key="epoch-")
    report = open_table(store, clock).restore(as_of)
    assert store.counts["copy"] == len(report.restored) == 6
    assert numbers(table) == FULL
    state = check_sound(clocked)
    assert data_keys(clocked) == set(state.parts), "no orphan"


def test_unused_copies_are_deleted_after_a_lost_epoch(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, ["k=0"])
    store = FaultyStore(clocked)
    act_before(store, lambda: table.restore(as_of), kind="create", key="epoch-")
    report = open_table(store, clock).restore(as_of)
    assert not report.commit.committed
    assert (report.restored, report.rows, report.tombstoned) == ((), 0, ())
    assert numbers(table) == FULL
    assert data_keys(clocked) == set(check_sound(clocked).parts)


def test_a_restore_with_a_missing_part_changes_nothing(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, ["k=0"])
    gone = min(m.key for m in table.handle.read().parts.values() if m.tombstoned_ms)
    clocked.delete([gone])
    before = dict(clocked.objects)
    with pytest.raises(SnapshotExpired, match="cleaned up") as caught:
        table.restore(as_of)
    assert gone in str(caught.value)
    assert clocked.objects == before
    assert numbers(table) == [1, 11, 21]


def test_only_a_pinned_time_is_restored_after_cleanup(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    early = moment(table, clock)
    fill(table, 2)
    as_of = moment(table, clock)
    table.pin("kept", as_of)
    table.overwrite([{"k": 0, "n": 5}])
    for _ in range(2):
        clock.advance(2 * HOUR_MS)
        table.cleanup()
        fill(table, 1)
        clock.advance(1_000)
        table.overwrite([{"k": 0, "n": 5}])
    before = dict(clocked.objects)
    with pytest.raises(SnapshotExpired):
        table.restore(early)
    with pytest.raises(SnapshotExpired):
        table.restore(early, dry_run=True)
    assert clocked.objects == before
    assert len(table.restore(as_of).restored) == 6
    assert numbers(table) == [0, 0, 1, 1, 10, 11]
    table.unpin("kept")
    with pytest.raises(SnapshotExpired):
        table.restore(as_of)
    assert numbers(table) == [0, 0, 1, 1, 10, 11]
    check_sound(clocked)


def test_a_time_in_the_future_is_rejected(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    clock.advance(MINUTE_MS)
    before = dict(clocked.objects)
    with pytest.raises(InvalidOption, match="future"):
        table.restore(clock.now_ms() + 1)
    with pytest.raises(InvalidOption):
        table.restore("yesterday")  # type: ignore[arg-type]
    report = table.restore(clock.now_ms())
    assert (report.commit.committed, report.restored, report.rows) == (False, (), 0)
    assert clocked.objects == before


def test_a_restore_to_an_empty_table_must_be_allowed(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = clock.now_ms()
    clock.advance(MINUTE_MS)
    fill(table)
    before = table.snapshot().id
    for dry_run in (True, False):
        with pytest.raises(InvalidOption, match=r"would remove 6 rows\. Nothing was restored.*pass allow_empty=True"):
            table.restore(as_of, dry_run=dry_run)
    assert table.snapshot().id == before
    report = table.restore(as_of, allow_empty=True)
    assert (len(report.tombstoned), report.restored) == (6, ())
    assert (report.rows_before, report.rows_after) == (6, 0)
    assert table.snapshot().parts == ()
    assert table.schema() == {"k": "BIGINT", "n": "BIGINT"}
    check_sound(clocked)


def test_equal_parts_replace_each_other_one_by_one(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    for _ in range(3):
        table.insert([{"k": 0, "n": 1}])
    as_of = moment(table, clock)
    table.drop_partitions("true")
    table.insert([{"k": 0, "n": 1}])
    clock.advance(1_000)
    plan = planned(table, as_of)
    assert (len(plan.back), plan.gone) == (2, ())
    table.restore(as_of)
    assert numbers(table) == [1, 1, 1]
    for _ in range(3):
        table.insert([{"k": 0, "n": 1}])
    assert len(planned(table, as_of).gone) == 3
    table.restore(as_of)
    assert numbers(table) == [1, 1, 1]


def test_copies_that_are_too_old_are_not_published(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, ["k=0"])
    store = FaultyStore(clocked)
    act_after(store, lambda: clock.advance(5 * HOUR_MS), kind="copy", times=3)
    with pytest.raises(CommitTimedOut):
        open_table(store, clock).restore(as_of)
    assert numbers(table) == [1, 11, 21]


def test_failed_copies_leave_no_part(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, "true")
    before = data_keys(clocked)
    for fault in (Fault.FAIL, Fault.LOSE_RESPONSE):
        store = FaultyStore(clocked)
        store.inject(fault, kind="copy")
        with pytest.raises(StoreUnavailable):
            open_table(store, clock).restore(as_of)
        assert data_keys(clocked) == before
        assert numbers(table) == []


@pytest.mark.sampled(cases=4, days=3)
@pytest.mark.long
@pytest.mark.parametrize(
    "fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.REPEAT]
)
@pytest.mark.parametrize("expected", [FULL, []])
def test_a_restore_that_fails_at_any_request_is_atomic(fault: Fault, expected: list[int]) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["k"], sort_by=["n"])
    empty_ms = clock.now_ms()
    clock.advance(MINUTE_MS)
    fill(table)
    as_of = moment(table, clock) if expected else empty_ms
    table.drop_partitions(["k=1"])
    table.insert([{"k": 1, "n": 50}])
    clock.advance(MINUTE_MS)
    for attempt in attempts(base, clock, fault, lambda t: t.restore(as_of, allow_empty=True), errors=(IceDBError,)):
        number = attempt.number
        assert live_numbers(base) in ([expected] if attempt.done else [expected, [0, 10, 20, 50]]), number
        clock.advance(MINUTE_MS)
        open_table(base, clock).restore(as_of, allow_empty=True)
        assert live_numbers(base) == expected, number
        assert only_live_parts_stay(base, clock), number
        assert live_numbers(base) == expected, number
    assert number > 7


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("age_ms", [0, 59 * MINUTE_MS, HOUR_MS])
def test_a_cleanup_at_any_request_of_a_restore_loses_no_row(age_ms: int) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["k"], sort_by=["n"])
    as_of = filled_and_dropped(table, clock, ["k=1"])
    clock.set(table.handle.read().newest_ms + age_ms)
    saved = SavedState(base, clock)
    for number in range(2, 16):
        for sleep_ms in (0, 2 * MINUTE_MS, 2 * HOUR_MS):
            saved.restore()
            store = FaultyStore(base)
            cleanup = partial(_clean_up_later, base, clock, sleep_ms)
            act_before(store, cleanup, number=number)
            done = False
            with contextlib.suppress(IceDBError):
                open_table(store, clock).restore(as_of)
                done = True
            assert live_numbers(base) in ([FULL] if done else [FULL, [0, 10, 20]]), (number, sleep_ms)


def _clean_up_later(base: ClockedStore, clock: ManualClock, sleep_ms: int) -> None:
    clock.advance(sleep_ms)
    open_table(base, clock).cleanup()


def test_a_restore_that_copies_for_hours_succeeds(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    as_of = filled_and_dropped(table, clock, ["k=0"])
    store = FaultyStore(clocked)
    act_after(store, lambda: clock.advance(HOUR_MS), kind="copy", times=3)
    assert len(open_table(store, clock).restore(as_of).restored) == 3
    assert numbers(table) == FULL
    assert [f for f in check_sound(clocked).files.values() if f.file.void] == []
