"""A restore makes the table what it was, in one commit, or changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from icedb import Table
from icedb.errors import CommitTimedOut, IceDBError, InvalidOption, SnapshotExpired, StoreUnavailable
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.replay import TableState
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.operations.retention.restore import plan_restore
from icedb.testing import (
    ClockedStore,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from tests.support.tables.fault_walk import SavedState, attempts, only_live_parts_stay
from tests.support.tables.plain_table import live_numbers

FULL = [0, 1, 10, 11, 20, 21]


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["k"], sort_by=["n"])


def fill(table: Table, batches: int = 3) -> None:
    for n in range(batches):
        table.insert([{"k": k, "n": 10 * n + k} for k in range(2)])


def rows(table: Table, as_of: int | None = None) -> list[int]:
    return [n for (n,) in table.query("SELECT n FROM t ORDER BY n", as_of=as_of).fetchall()]


def data(store: ClockedStore) -> set[str]:
    return {i.key for i in store.list(store.location.keys.data_prefix)}


def live(state: TableState) -> set[str]:
    return {m.key for m in state.live}


def moment(table: Table, clock: ManualClock) -> int:
    """A time to return to: all that comes next is later."""
    as_of = table.handle.read().newest_ms
    clock.set(max(clock.now_ms(), as_of) + MINUTE_MS)
    return as_of


MISTAKES: dict[str, Callable[[Table], object]] = {
    "drop": lambda t: t.drop_partitions(["k=1"]),
    "overwrite": lambda t: t.overwrite([{"k": 0, "n": 99}]),
    "delete": lambda t: t.delete("n >= 10"),
    "merge": lambda t: t.merge(),
    "append": lambda t: t.insert([{"k": 0, "n": 99}]),
    "all": lambda t: [t.insert([{"k": 5, "n": 5}]), t.merge(), t.drop_partitions("true"), t.insert([{"k": 1, "n": 7}])],
}


@pytest.mark.sampled(cases=6)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_undone(place: Any, mistake: str) -> None:
    table = Table.create(place.uri, partition_by=["k"], sort_by=["n"], storage_options=place.storage_options)
    fill(table)
    as_of = table.handle.read().newest_ms
    before = table.snapshot(as_of=as_of)
    MISTAKES[mistake](table)
    after = table.handle.read().newest_ms
    wrong = rows(table)
    planned = table.restore(as_of, dry_run=True)
    assert not planned.commit.committed
    assert rows(table) == wrong
    report = table.restore(as_of)
    assert rows(table) == rows(Table.open(place.uri, storage_options=place.storage_options)) == FULL
    assert report.commit.committed
    assert not report.dry_run
    assert (report.restored, report.tombstoned) == (planned.restored, tuple(planned.tombstoned)) or (
        {p.key for p in report.restored} == {p.key for p in planned.restored}
        and {p.key for p in report.tombstoned} == {p.key for p in planned.tombstoned}
    )
    assert (report.rows, report.bytes) == (planned.rows, planned.bytes) == (report.commit.rows, report.commit.bytes)
    # What was never touched keeps its key; what was, has a new one.
    kept = {p.key for p in before.parts} - {p.key for p in report.restored}
    assert kept == {p.key for p in before.parts} & {p.key for p in table.snapshot().parts}
    assert rows(table, as_of) == FULL
    assert rows(table, after) == wrong
    assert not table.restore(as_of).commit.committed, "there is nothing left to do"
    # And it can be undone itself.
    table.restore(after)
    assert rows(table) == wrong


def test_a_copied_part_keeps_what_its_marker_says(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
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


def test_the_part_of_a_program_that_knows_no_digests_comes_back_too(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
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
    assert rows(table) == [0, 0, 1]
    check_sound(clocked)


def test_parts_without_digests_never_stand_for_each_other(
    clocked: ClockedStore, clock: ManualClock, table: Table
) -> None:
    keys, t = clocked.location.keys, clock.now_ms()
    old, new = (keys.part("k=0", name) for name in ("old", "new"))
    for at, marker in [
        (t, Marker(old, 1, t)),
        (t + 2, Marker(old, 1, t, tombstoned_ms=t + 2)),
        (t + 3, Marker(new, 1, t + 3)),
    ]:
        clocked.create(keys.log_file(at, merged=False, writer="v3"), encode(LogFile(at, {}, (marker,))))
    plan = plan_restore(table.handle.read(), t + 1)
    assert ([m.key for m in plan.back], [m.key for m in plan.gone]) == ([old], [new])


def test_what_a_plain_append_adds_meanwhile_survives(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(["k=0"])
    table.insert([{"k": 0, "n": 77}])
    store = FaultyStore(clocked)

    def append(request: Request) -> None:
        if request.kind == "create" and "epoch-" in request.keys[0]:
            table.insert([{"k": 0, "n": 88}])

    store.before = append
    open_table(store, clock).restore(as_of)
    assert rows(table) == [*FULL, 88]
    check_sound(clocked)


def test_a_restore_that_lost_the_race_uses_its_copies_again(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(["k=0"])
    store = FaultyStore(clocked)
    raced: list[object] = []

    def other_commit(request: Request) -> None:
        if request.kind == "create" and "epoch-" in request.keys[0] and not raced:
            raced.append(table.drop_partitions(["k=1"]))

    store.before = other_commit
    report = open_table(store, clock).restore(as_of)
    assert store.counts["copy"] == len(report.restored) == 6
    assert rows(table) == FULL
    state = check_sound(clocked)
    assert data(clocked) == set(state.parts), "no orphan"


def test_copies_that_another_restore_made_useless_are_deleted(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(["k=0"])
    store = FaultyStore(clocked)
    raced: list[object] = []

    def the_same(request: Request) -> None:
        if request.kind == "create" and "epoch-" in request.keys[0] and not raced:
            raced.append(table.restore(as_of))

    store.before = the_same
    report = open_table(store, clock).restore(as_of)
    assert not report.commit.committed
    assert (report.restored, report.rows, report.tombstoned) == ((), 0, ())
    assert rows(table) == FULL
    assert data(clocked) == set(check_sound(clocked).parts)


def test_a_part_that_cleanup_took_means_that_nothing_is_restored(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(["k=0"])
    gone = min(m.key for m in table.handle.read().parts.values() if m.tombstoned_ms)
    clocked.delete([gone])
    before = dict(clocked.objects)
    with pytest.raises(SnapshotExpired, match="cleaned up") as caught:
        table.restore(as_of)
    assert gone in str(caught.value)
    assert clocked.objects == before
    assert rows(table) == [1, 11, 21]


def test_a_time_before_the_horizon_is_refused_unless_it_is_pinned(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
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
    assert rows(table) == [0, 0, 1, 1, 10, 11]
    table.unpin("kept")
    with pytest.raises(SnapshotExpired):
        table.restore(as_of)
    assert rows(table) == [0, 0, 1, 1, 10, 11]
    check_sound(clocked)


def test_a_time_to_come_is_refused(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
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


def test_a_table_can_be_restored_to_emptiness(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
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


def test_equal_parts_stand_for_each_other_as_often_as_there_are(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    for _ in range(3):
        table.insert([{"k": 0, "n": 1}])
    as_of = moment(table, clock)
    table.drop_partitions("true")
    table.insert([{"k": 0, "n": 1}])
    clock.advance(1_000)
    plan = plan_restore(table.handle.read(), as_of)
    assert (len(plan.back), plan.gone) == (2, ())
    table.restore(as_of)
    assert rows(table) == [1, 1, 1]
    for _ in range(3):
        table.insert([{"k": 0, "n": 1}])
    assert len(plan_restore(table.handle.read(), as_of).gone) == 3
    table.restore(as_of)
    assert rows(table) == [1, 1, 1]


def test_copies_that_are_too_old_are_not_published(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(["k=0"])
    store = FaultyStore(clocked)
    store.after = lambda r: clock.advance(5 * HOUR_MS) if r.kind == "copy" else None
    with pytest.raises(CommitTimedOut):
        open_table(store, clock).restore(as_of)
    assert rows(table) == [1, 11, 21]


def test_a_store_that_fails_to_copy_leaves_nothing_behind(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions("true")
    before = data(clocked)
    for fault in (Fault.FAIL, Fault.LOSE_RESPONSE):
        store = FaultyStore(clocked)
        store.inject(fault, kind="copy")
        with pytest.raises(StoreUnavailable):
            open_table(store, clock).restore(as_of)
        assert data(clocked) == before
        assert rows(table) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.REPEAT]
)
@pytest.mark.parametrize("expected", [FULL, []])
def test_a_restore_that_stops_at_any_request_is_whole_or_not_there(fault: Fault, expected: list[int]) -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("age_ms", [0, 59 * MINUTE_MS, HOUR_MS])
def test_a_cleanup_at_any_moment_of_a_restore_loses_nothing_that_was_restored(age_ms: int) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["k"], sort_by=["n"])
    fill(table)
    as_of = moment(table, clock)
    table.drop_partitions(["k=1"])
    clock.set(table.handle.read().newest_ms + age_ms)
    saved = SavedState(base, clock)
    for number in range(2, 16):
        for sleep_ms in (0, 2 * MINUTE_MS, 2 * HOUR_MS):
            saved.restore()
            store = FaultyStore(base)

            def between(request: Request, number: int = number, sleep_ms: int = sleep_ms) -> None:
                if request.number == number:
                    clock.advance(sleep_ms)
                    open_table(base, clock).cleanup()

            store.before = between
            done = False
            with contextlib.suppress(IceDBError):
                open_table(store, clock).restore(as_of)
                done = True
            wanted = [FULL] if done else [FULL, [0, 10, 20]]
            assert live_numbers(base) in wanted, (number, sleep_ms)


def test_a_restore_that_copies_for_hours_succeeds(clocked: ClockedStore, clock: ManualClock) -> None:
    fill(create_table(clocked, clock, partition_by=["k"], sort_by=["n"]))
    store = FaultyStore(clocked)
    table = open_table(store, clock)
    as_of = moment(table, clock)
    table.drop_partitions(["k=0"])

    def slow(request: Request) -> None:
        if request.kind == "copy":
            clock.advance(HOUR_MS)

    store.after = slow
    assert len(table.restore(as_of).restored) == 3
    assert rows(table) == FULL
    assert [f for f in check_sound(clocked).files.values() if f.file.void] == []
