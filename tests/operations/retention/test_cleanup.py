"""Cleanup deletes superseded objects after the grace period, and no others, wherever it is interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from icedb import Table
from icedb.errors import (
    ClockSkew,
    GraceTooShort,
    InvalidOption,
    SnapshotExpired,
    StoreUnavailable,
    UncoordinatedMaintenance,
)
from icedb.format.codec import encode
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.tables.fault_walk import SavedState, attempts
from tests.support.tables.numbered_rows import FULL, data_keys, fill, log_keys, numbers, put_log
from tests.support.tables.plain_table import PlainTable, live_numbers


def test_nothing_is_deleted_in_the_grace_period(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()
    before = {*log_keys(clocked), *data_keys(clocked)}
    # The clock stands still, so the time of the merge is slightly ahead of it.
    clock.set(table.snapshot().as_of_ms + HOUR_MS - 1)
    report = table.cleanup()
    assert (report.deleted_parts, report.deleted_log_files, report.commit.committed) == ((), (), False)
    assert {*log_keys(clocked), *data_keys(clocked)} == before
    clock.advance(1)
    report = table.cleanup()
    assert (len(report.deleted_parts), len(report.deleted_log_files), report.forgotten) == (6, 3, 6)
    assert report.deleted_bytes > 0
    assert len(data_keys(clocked)) == 2
    assert numbers(table) == FULL


def test_the_grace_period_is_measured_by_the_store(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # A clock that is an hour behind, and was not checked, writes tombstones older than the grace period.
    fill(table)
    slow = open_table(clocked, clock.skewed(-HOUR_MS), fencing="none")
    for n in range(2):
        slow.insert([{"k": 5, "n": n}])
    slow.drop_partitions(["k=5"])
    state = table.handle.read()
    assert all(m.tombstoned_ms <= clock.now_ms() + 10 for m in state.parts.values() if m.tombstoned_ms)
    clock.advance(HOUR_MS - MINUTE_MS)
    assert table.cleanup().deleted_parts == ()
    clock.advance(MINUTE_MS)
    assert len(table.cleanup().deleted_parts) == 2


def test_a_clock_that_is_far_ahead_deletes_nothing(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # By such a clock, parts superseded a minute ago are old. Running queries would lose parts and log files.
    fill(table)
    table.merge()
    clock.advance(MINUTE_MS)
    before = dict(clocked.objects)
    for days in (1, 100):
        with pytest.raises(ClockSkew):
            open_table(clocked, clock.skewed(days * DAY_MS)).cleanup()
    assert clocked.objects == before


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_frequent_merges_do_not_delay_cleanup(clocked: ClockedStore, clock: ManualClock) -> None:
    # Each merge replaces the log file of the previous merge, and carries its tombstones into a younger file.
    create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    table = PlainTable.of(clocked, clock)
    fill(table)
    for n in range(60):
        table.insert([{"k": 0, "n": 1000 + n}])
        table.merge()
        clock.advance(5 * MINUTE_MS)
        table.cleanup()
    dead_time = HOUR_MS / (5 * MINUTE_MS)
    assert len(data_keys(clocked)) < 3 * dead_time
    assert len(log_keys(clocked)) < 6 * dead_time
    assert live_numbers(clocked) == [*FULL, *range(1000, 1060)]


def test_log_files_without_parts_do_not_accumulate(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # A table whose rows live for a day: each cleanup forgets the last marker of a log file.
    for n in range(8):
        table.insert([{"k": n, "n": n}])
        clock.advance(MINUTE_MS)
        table.drop_partitions([f"k={n}"])
        for _ in range(2):
            clock.advance(2 * HOUR_MS)
            table.cleanup()
        check_sound(clocked)
    assert len(log_keys(clocked)) <= 2
    assert data_keys(clocked) == set()
    assert len(table.handle.read().live_epochs) <= 2


@pytest.mark.sampled(cases=1, days=3)
def test_a_reader_of_an_old_snapshot_reads_on_across_merge_and_cleanup(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], storage_options=place.storage_options)
    fill(table)
    old = Table.open(place.uri, storage_options=place.storage_options).snapshot()
    lazy = old.query("SELECT n FROM t ORDER BY n")
    table.merge()
    table.drop_partitions(["k=0"])
    report = table.cleanup()
    assert report.deleted_parts == ()
    assert numbers(table) == [1, 11, 21]
    assert lazy.fetchall() == [(n,) for n in FULL]
    assert old.query("SELECT count(*) FROM t").fetchall() == [(6,)]


def test_forgotten_markers_raise_the_horizon(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    before = clock.now_ms() + 2
    clock.advance(1_000)
    table.merge()
    merged = table.snapshot().as_of_ms
    clock.advance(HOUR_MS)
    assert table.snapshot(as_of=before).rows == 6
    report = table.cleanup()
    assert all(m.tombstoned_ms is None for m in table.handle.read().parts.values()), "no dead marker is left"
    assert report.horizon_ms == merged
    with pytest.raises(SnapshotExpired) as caught:
        table.snapshot(as_of=before)
    assert caught.value.horizon_ms == report.horizon_ms
    assert table.snapshot(as_of=merged).rows == 6
    # A later merge keeps the horizon.
    fill(table, 2)
    table.merge()
    assert table.handle.read().horizon_ms == report.horizon_ms


def test_a_dry_run_of_a_cleanup_reports_the_plan(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()
    clock.advance(HOUR_MS + 1_000)
    before = dict(clocked.objects)
    plan = table.cleanup(dry_run=True)
    assert clocked.objects == before
    report = table.cleanup()
    assert plan.dry_run
    assert not report.dry_run
    for figure in ("deleted_parts", "deleted_log_files", "deleted_bytes"):
        assert getattr(plan, figure) == getattr(report, figure)
    assert len(plan.deleted_parts) == 6


def test_a_short_grace_period_must_be_allowed(table: Table) -> None:
    for grace_ms in (0, 10 * MINUTE_MS - 1):
        with pytest.raises(GraceTooShort, match="at least 10 min"):
            table.cleanup(grace_ms=grace_ms)
    table.cleanup(grace_ms=10 * MINUTE_MS)


def test_without_a_grace_period_all_tombstoned_parts_are_deleted(table: Table, clocked: ClockedStore) -> None:
    fill(table)
    table.merge()
    table.drop_partitions(["k=1"])
    report = table.cleanup(grace_ms=0, allow_short_grace=True)
    assert len(data_keys(clocked)) == 1
    assert report.deleted_bytes > 0
    assert len(report.deleted_parts) == len(set(report.deleted_parts)) == 7
    assert [m for m in table.handle.read(everything=True).parts.values() if m.tombstoned_ms] == []
    assert len(log_keys(clocked)) == 1
    assert numbers(table) == [0, 10, 20]


def test_claims_of_past_epochs_are_deleted(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()
    keys = clocked.location.keys
    assert [i.key for i in clocked.list(keys.claims_prefix)] == [keys.epoch_claim(1), keys.epoch_claim(2), keys.probe]
    clock.advance(HOUR_MS)
    clocked.create(keys.epoch_claim(9), b"of an epoch to come")
    clock.advance(HOUR_MS)
    report = table.cleanup()
    assert report.deleted_claims == (keys.epoch_claim(1), keys.epoch_claim(2))
    left = {i.key for i in clocked.list(keys.claims_prefix)}
    assert left == {keys.epoch_claim(9), keys.probe} | ({keys.epoch_claim(3)} if report.commit.committed else set())


def test_no_object_names_a_cleaned_up_partition(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.drop_partitions(["k=1"])
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        table.cleanup()
    assert not [key for key, stored in clocked.objects.items() if "k=1" in key or b"k=1" in stored.body]
    assert numbers(table) == [0, 10, 20]


def test_an_old_log_file_of_a_lost_epoch_is_deleted(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()  # epoch 2, which lives on its own
    stale = clocked.location.keys.log_file(clock.now_ms() + 7, merged=False, writer="w.e1")
    clocked.create(stale, encode(LogFile(clock.now_ms() + 7, {}, epoch=1, live_epochs=(1,))))
    clocked.delete([k for k in log_keys(clocked) if k.endswith(".e1.jsonl") and k != stale])
    clock.advance(HOUR_MS - 1)
    assert table.cleanup().deleted_log_files == ()
    clock.advance(1_000)
    assert stale in table.cleanup().deleted_log_files
    assert numbers(table) == FULL


def test_repeated_cleanups_make_no_commits(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()
    for _ in range(4):
        clock.advance(HOUR_MS)
        table.cleanup()
    before = dict(clocked.objects)
    for _ in range(3):
        clock.advance(DAY_MS)
        assert not table.cleanup().commit.committed
    assert clocked.objects == before


def test_log_tombstones_outlive_late_log_files(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    late = {k: clocked.objects[k] for k in log_keys(clocked)}
    table.merge()
    for _ in range(3):
        clock.advance(HOUR_MS)
        table.cleanup()
    assert not late.keys() & set(log_keys(clocked))
    # A network retry delivers dead log files, which name deleted parts as live.
    clocked.objects |= late
    assert numbers(open_table(clocked, clock)) == FULL
    assert len(table.handle.read().live) == 2


def v3(store: ClockedStore, at_ms: int, markers: Sequence[Marker], *tombstones: str) -> str:
    """Put a log file as a v3 program does, with tombstones of other log files."""
    file = LogFile(at_ms, {}, tuple(markers), tuple(LogTombstoneRecord(key, at_ms) for key in tombstones))
    return put_log(store, file, writer="v3")


def test_a_log_file_with_other_live_parts_is_kept(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    keys = clocked.location.keys
    parts = [keys.part("k=0", f"p{n}") for n in range(2)]
    for key in parts:
        clocked.create(key, b"x")
    t = clock.now_ms()

    one_part, two_parts = ([Marker(key, 1, t) for key in parts[:n]] for n in (1, 2))
    both = v3(clocked, t, two_parts)
    one = v3(clocked, t + 1, one_part, both)
    clock.advance(2 * HOUR_MS)
    assert table.cleanup().deleted_log_files == (), "one of its parts would be lost"
    again = v3(clocked, t + 2, two_parts, both, one)
    v3(clocked, t + 3, one_part, again)
    clock.advance(2 * HOUR_MS)
    report = table.cleanup()
    assert both not in report.deleted_log_files, "it is named only where a v3 program tombstoned it as well"
    assert len(table.handle.read().live) == 2
    assert report.deleted_log_files == (one,), "its part is named by a file without a tombstone"
    v3(clocked, t + 4, two_parts)
    assert set(table.cleanup().deleted_log_files) == {both, again}
    assert len(table.handle.read().live) == 2


def test_a_marker_is_kept_while_a_log_file_has_it_live(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # A v3 program dropped the part. Its tombstone is beside the log file of the append, and v3 readers read both.
    fill(table, 1)
    [dead] = [m for m in table.handle.read().live if "k=0" in m.key]
    t_ms = clock.now_ms() + 1
    put_log(clocked, LogFile(t_ms, {}, (msgspec.structs.replace(dead, tombstoned_ms=t_ms),)))
    clock.advance(2 * HOUR_MS)
    report = table.cleanup()
    assert report.deleted_parts == (dead.key,)
    assert (report.forgotten, report.commit.committed) == (0, False)
    assert numbers(table) == [1]
    check_sound(clocked)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE])
def test_the_next_cleanup_finishes_one_that_failed_at_any_request(fault: Fault) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["k"], sort_by=["n"])
    fill(table)
    table.merge()
    table.drop_partitions(["k=1"])
    clock.advance(HOUR_MS + 1_000)
    before = SavedState(base, clock)
    open_table(base, clock).cleanup()
    finished = data_keys(base)
    before.restore()
    for attempt in attempts(base, clock, fault, Table.cleanup):
        number = attempt.number
        assert live_numbers(base) == [0, 10, 20], number
        for _ in range(2):
            clock.advance(2 * HOUR_MS)
            open_table(base, clock).cleanup()
        # The object that compares the clocks is an orphan, and empty.
        assert {key for key in data_keys(base) if base.objects[key].body} == finished, number
        state = check_sound(base)
        assert [m for m in state.parts.values() if m.tombstoned_ms] == [], number
        assert live_numbers(base) == [0, 10, 20], number
    assert number > 12


# ------------------------------------------------------------------------------------ claims of transactions


def txn_claims(store: ClockedStore) -> list[str]:
    keys = store.location.keys
    return [i.key for i in store.list(keys.claims_prefix) if keys.is_txn_claim(i.key)]


def test_old_claims_of_transactions_are_deleted(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    for sequence in range(3):
        table.insert([{"k": 0, "n": sequence}], txn=("stream", sequence))
    old = txn_claims(clocked)
    assert len(old) == 3
    clock.advance(HOUR_MS - 1)
    table.insert([{"k": 0, "n": 3}], txn=("stream", 3))
    assert not set(old) & set(table.cleanup().deleted_claims)
    clock.advance(1)
    planned = table.cleanup(dry_run=True)
    assert len(txn_claims(clocked)) == 4
    report = table.cleanup()
    assert set(old) <= set(report.deleted_claims) == set(planned.deleted_claims)
    assert txn_claims(clocked) == [clocked.location.keys.txn_claim("stream", 3)]
    # Transactions without their claims are still recorded.
    assert table.insert([{"k": 0, "n": 1}], txn=("stream", 1)).repeated
    assert numbers(table) == [0, 1, 2, 3]


def test_unrecorded_and_damaged_claims_stay(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert([{"k": 0, "n": 0}], txn=("stream", 0))
    store = FaultyStore(clocked)
    store.inject(Fault.CRASH_AFTER, kind="create", key="txn-")
    with contextlib.suppress(Crash):
        open_table(store, clock).insert([{"k": 0, "n": 1}], txn=("stream", 1))
    keys = clocked.location.keys
    clocked.create(keys.txn_claim("stream", 7), b'{"application": "str')
    clocked.create(keys.txn_claim("copied", 0), clocked.objects[keys.txn_claim("stream", 0)].body)
    clock.advance(2 * HOUR_MS)
    assert keys.txn_claim("stream", 0) in table.cleanup().deleted_claims
    kept = sorted([keys.txn_claim("stream", 1), keys.txn_claim("stream", 7), keys.txn_claim("copied", 0)])
    assert txn_claims(clocked) == kept
    assert table.insert([{"k": 0, "n": 1}], txn=("stream", 1)).repeated, "what the claim holds is published"
    assert numbers(table) == [0, 1]


# ------------------------------------------------------------------------------------ a share per call


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_limited_cleanup_reports_the_rest(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    for _ in range(4):
        fill(table, 2)
        clock.advance(1_000)
        table.merge()
        clock.advance(1_000)
        table.drop_partitions(["k=0"])
        clock.advance(MINUTE_MS)
    table.merge_log()  # else a log file that a merge left calls a dead part live, which cannot be forgotten yet
    clock.advance(2 * HOUR_MS)
    live = numbers(table)
    all_at_once = table.cleanup(dry_run=True)
    total = len(all_at_once.deleted_log_files) + len(all_at_once.deleted_parts)
    assert (total > 20, all_at_once.remaining) == (True, 0)
    left, horizons, deleted = total, [0], set[str]()
    while left:
        report = table.cleanup(deletes_max=3)
        assert len(report.deleted_log_files) + len(report.deleted_parts) == min(3, left)
        assert report.remaining == left - min(3, left)
        left = report.remaining
        deleted |= {*report.deleted_log_files, *report.deleted_parts}
        horizons.append(report.horizon_ms)
        assert numbers(table) == live
        check_sound(clocked)
    assert deleted == {*all_at_once.deleted_log_files, *all_at_once.deleted_parts}
    assert len(set(horizons)) > 3, "the horizon moves with each share"
    assert [m for m in check_sound(clocked).parts.values() if m.tombstoned_ms] == []
    with pytest.raises(InvalidOption, match="deletes_max"):
        table.cleanup(deletes_max=0)


def test_the_oldest_tombstones_are_cleaned_up_first(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    before = moment = table.handle.read().newest_ms
    for k in (1, 0):
        clock.advance(MINUTE_MS)
        table.drop_partitions([f"k={k}"])
        moment = moment if k == 0 else table.handle.read().newest_ms
    clock.advance(2 * HOUR_MS)
    assert table.cleanup(deletes_max=len(log_keys(clocked)) - 1).deleted_parts == ()
    report = table.cleanup(deletes_max=1)
    assert ["k=1" in key for key in report.deleted_parts] == [True]
    assert (report.horizon_ms, report.remaining) == (moment, 1)
    assert numbers(table, moment) == [0]
    with pytest.raises(SnapshotExpired):
        numbers(table, before)


def test_parts_that_stay_stored_are_not_forgotten(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table)
    table.merge()
    clock.advance(2 * HOUR_MS)
    store = FaultyStore(clocked)
    store.inject(Fault.FAIL, kind="delete", key="_data/k=")
    with pytest.raises(StoreUnavailable):
        open_table(store, clock).cleanup()
    assert len(data_keys(clocked)) == 8
    assert len([m for m in check_sound(clocked).parts.values() if m.tombstoned_ms]) == 6
    report = table.cleanup()
    assert (len(report.deleted_parts), report.forgotten) == (6, 6)
    assert len(data_keys(clocked)) == 2


# ------------------------------------------------------------------------------------ beside other programs


def test_the_only_log_file_with_a_tombstone_is_kept(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    # A v3 program drops a part. Then it replaces the log file of the drop, without its tombstone.
    part = clocked.location.keys.part("k=0", "p")
    clocked.create(part, b"x")
    t = clock.now_ms()

    v3(clocked, t, [Marker(part, 1, t)])
    drop = v3(clocked, t + 1, [Marker(part, 1, t, tombstoned_ms=t + 1)])
    v3(clocked, t + 2, [], drop)
    for _ in range(2):
        clock.advance(2 * HOUR_MS)
        assert drop not in table.cleanup().deleted_log_files
        assert table.handle.read().live == []
    carrying = v3(clocked, t + 3, [Marker(part, 1, t, tombstoned_ms=t + 1)])
    assert table.cleanup().deleted_log_files == (drop,)
    assert carrying in log_keys(clocked)
    assert table.handle.read().live == []


def test_a_marker_from_the_future_causes_no_commits(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    [dead] = [m for m in table.handle.read().live if "k=0" in m.key]
    far_ms = clock.now_ms() + 30 * DAY_MS
    table.drop_partitions(["k=0"])
    tombstoned = table.handle.read().parts[dead.key]
    put_log(clocked, LogFile(far_ms, {}, (tombstoned,)))
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    clock.advance(2 * HOUR_MS)
    assert not table.cleanup().commit.committed
    assert dead.key in table.handle.read().parts
    assert numbers(table) == [1]


def test_epochs_missing_after_a_cleanup_are_detected(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    for n in range(3):
        table.insert([{"k": n, f"c{n}": 1}])
    clock.advance(3 * HOUR_MS)
    table.cleanup()
    table.overwrite([{"k": 0, "c0": 2}], partitions=["k=0"])
    state = table.handle.read()
    clocked.delete([k for k, f in state.files.items() if f.file.epoch in (3, 4)])
    with pytest.raises(UncoordinatedMaintenance, match="takes no claims"):
        open_table(clocked, clock).insert([{"k": 9, "new": 1}])
    assert not open_table(clocked, clock).verify().ok
