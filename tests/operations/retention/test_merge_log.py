"""Merges of the log leave few log files, rewrite each marker seldom, and change no snapshot.

Parts are markers here, without objects: their log files are encoded straight into the store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb import Table
from icedb.errors import InvalidOption
from icedb.format.codec import encode
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import live_markers
from icedb.format.timing import HOUR_MS
from icedb.operations.retention.merge_log import GROWTH, plan_merge_log
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, create_table, open_table
from icedb.transaction.log_reader import LogReader

SIZES = st.lists(st.integers(1, 500) | st.sampled_from([1, 2, 3, 4]), max_size=60)


def named(sizes: list[int]) -> dict[str, int]:
    return {f"{n:04d}": size for n, size in enumerate(sizes)}


def after(lines: dict[str, int], merged: list[str]) -> list[int]:
    """Return the remaining sizes in order."""
    left = [n for k, n in lines.items() if k not in merged]
    return sorted([*left, sum(lines[k] for k in merged)] if merged else left)


# ------------------------------------------------------------------------------------------ the plan


@given(SIZES)
def test_sizes_of_remaining_log_files_are_geometric(sizes: list[int]) -> None:
    lines = named(sizes)
    left = after(lines, plan_merge_log(lines))
    assert sum(left) == sum(sizes)
    for count, smaller in zip(left[1:], itertools.accumulate(left), strict=False):
        assert count > GROWTH * smaller
    assert len(left) <= 1 + math.log(max(1, sum(sizes)), 3)
    assert plan_merge_log(named(left)) == []


@given(SIZES)
def test_each_merged_log_file_grows_by_half(sizes: list[int]) -> None:
    lines = named(sizes)
    merged = plan_merge_log(lines)
    assert len(merged) != 1
    total = sum(lines[k] for k in merged)
    assert all(total >= 1.5 * lines[k] for k in merged)


@given(SIZES, st.integers(2, 1_000))
def test_no_log_file_of_more_lines_than_allowed_is_made(sizes: list[int], lines_max: int) -> None:
    lines = named(sizes)
    rounds = 0
    while merged := plan_merge_log(lines, lines_max=lines_max):
        assert sum(lines[k] for k in merged) <= lines_max
        lines = named(after(lines, merged))
        rounds += 1
    assert rounds <= len(sizes)


def test_one_short_log_file_does_not_prevent_a_merge() -> None:
    assert len(plan_merge_log(named([1, *[10] * 100]))) == 101


@pytest.mark.parametrize("every", [1, 7, 50, 1_000])
def test_over_thousands_of_commits_a_marker_is_rewritten_a_logarithmic_number_of_times(every: int) -> None:
    lines: dict[str, int] = {}
    carried: dict[str, int] = {}
    for n in range(3_000):
        lines[f"{n:05d}"], carried[f"{n:05d}"] = 2 + n % 5, 0
        if n % every == every - 1 and (merged := plan_merge_log(lines)):
            total, most = sum(lines.pop(k) for k in merged), max(carried.pop(k) for k in merged)
            lines[f"{n:05d}m"], carried[f"{n:05d}m"] = total, most + 1
    assert max(carried.values()) <= math.log(sum(lines.values()), 1.5)
    assert len(lines) <= every + 1 + math.log(sum(lines.values()), 3)


# ------------------------------------------------------------------------------------------ the table


class LogOfPuts:
    """A table whose commits are log files put by hand, a second apart."""

    def __init__(self, *, commits: int = 0) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self.table = create_table(self.store, self.clock)
        self.count = 0
        self.commit(commits)

    def commit(self, commits: int, *, parts: int = 1, **header: object) -> None:
        for _ in range(commits):
            self.clock.advance(1_000)
            t_ms = self.clock.now_ms()
            self.count += 1
            markers = tuple(Marker(f"table/_data/{self.count}-{n}.parquet", 10, t_ms, rows=1) for n in range(parts))
            file = LogFile(t_ms, {"n": "BIGINT"}, markers, **header)  # type: ignore[arg-type]
            self.store.create(self.store.location.keys.log_file(t_ms, merged=False, writer="w"), encode(file))

    def actor(self) -> tuple[Table, FaultyStore]:
        store = FaultyStore(self.store)
        return open_table(store, self.clock), store

    def seen(self, *times_ms: int) -> list[set[str]]:
        """Return the live parts now, and at each time."""
        state = LogReader(self.store, self.store.location.keys).read()
        return [{m.key for m in live_markers(state, at)} for at in (None, *times_ms)]


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("every", [400, 2_000, 10_000])
def test_ten_thousand_commits_are_opened_with_a_dozen_requests(every: int) -> None:
    world = LogOfPuts()
    for n in range(10_000 // every):
        world.commit(every)
        report = world.table.merge_log()
        assert report.remaining == 0
        if n % 5 == 0:
            world.table.cleanup()
    for _ in range(2):
        world.clock.advance(2 * HOUR_MS)
        world.table.cleanup()
    cold, store = world.actor()
    store.requests.clear()
    state = cold.handle.read()
    assert len(state.live) == 10_000
    assert store.counts["list"] <= 2
    assert store.counts["get"] <= 12
    assert len(world.store.list("table/_log/")) <= 12


def test_readers_before_and_after_see_the_same_at_every_time() -> None:
    world = LogOfPuts(commits=30)
    before_ms = world.clock.now_ms() - 15_500
    seen = world.seen(before_ms)
    old = LogReader(world.store, world.store.location.keys, clock=world.clock)
    old.read()
    report = world.table.merge_log()
    assert (len(report.merged_log_files), report.log_files, report.remaining, report.dry_run) == (30, 1, 0, False)
    assert report.commit.committed
    assert report.commit.parts == report.commit.tombstoned == ()
    assert world.seen(before_ms) == seen
    assert {m.key for m in old.read().live} == seen[0]
    for _ in range(2):
        world.clock.advance(2 * HOUR_MS)
        world.table.cleanup()
    assert world.seen(before_ms) == seen, "no part was superseded, so nothing of the past was forgotten"


def test_a_merge_without_benefit_makes_no_commit() -> None:
    world = LogOfPuts(commits=1)
    assert not world.table.merge_log().commit.committed
    world.commit(1, parts=10)
    report = world.table.merge_log()
    assert (report.commit.committed, report.merged_log_files, report.log_files) == (False, (), 2)


def test_a_dry_run_of_merge_log_reports_the_plan() -> None:
    world = LogOfPuts(commits=12)
    table, store = world.actor()
    dry = table.merge_log(lines_max=10, dry_run=True)
    assert (store.counts["create"], dry.commit.committed, dry.dry_run) == (0, False, True)
    real = table.merge_log(lines_max=10)
    assert (real.merged_log_files, real.log_files, real.remaining) == (
        dry.merged_log_files,
        dry.log_files,
        dry.remaining,
    )
    assert (len(dry.merged_log_files), dry.log_files, dry.remaining) == (5, 8, 5)


def test_repeated_limited_merges_end() -> None:
    world = LogOfPuts(commits=40)
    seen = world.seen()
    for calls in range(1, 100):  # noqa: B007 - the last one is asked for
        if not (report := world.table.merge_log(lines_max=20)).remaining:
            break
    assert calls < 40
    assert report.log_files < 20
    assert world.seen() == seen
    with pytest.raises(InvalidOption, match="lines_max"):
        world.table.merge_log(lines_max=1)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.FAIL, Fault.DELAY])
def test_a_fault_at_any_request_of_merge_log_changes_no_snapshot(fault: Fault) -> None:
    world = LogOfPuts(commits=6)
    at_ms = world.clock.now_ms() - 2_500
    seen, saved = world.seen(at_ms), dict(world.store.objects)
    table, store = world.actor()
    table.merge_log()
    for number in range(2, len(store.requests) + 1):
        world.store.objects = dict(saved)
        table, store = world.actor()
        store.inject(fault, number=number)
        _run(table.merge_log)
        assert world.seen(at_ms) == seen, number
        other, _ = world.actor()
        other.merge_log()
        if fault is Fault.DELAY:
            _run(store.deliver)
        assert world.seen(at_ms) == seen, number
        assert len(other.handle.read().effective) <= 2


def _run(act: Callable[[], object]) -> None:
    try:
        act()
    except (Crash, Exception):
        return


def test_an_append_during_merge_log_survives() -> None:
    for kind, key in (("list", "_log/"), ("create", "_claims/epoch"), ("create", "_log/")):
        world = LogOfPuts(commits=6)
        table, store = world.actor()

        def interrupt(
            request: object, kind: str = kind, key: str = key, world: LogOfPuts = world, store: FaultyStore = store
        ) -> None:
            if (store.requests[-1].kind, key in store.requests[-1].keys[0]) == (kind, True):
                store.before = None
                world.commit(1)

        store.before = interrupt
        table.merge_log()
        assert len(world.seen()[0]) == 7


def test_transactions_of_merged_log_files_are_kept() -> None:
    world = LogOfPuts()
    for n in range(4):
        world.commit(1, txn={"a": (n, world.clock.now_ms()), f"b{n}": (n, world.clock.now_ms())})
    before = dict(LogReader(world.store, world.store.location.keys).read().txn)
    assert len(world.table.merge_log().merged_log_files) == 4
    for _ in range(2):
        world.clock.advance(2 * HOUR_MS)
        world.table.cleanup()
    assert len(world.store.list("table/_log/")) == 1
    assert LogReader(world.store, world.store.location.keys).read().txn == before


def test_log_files_from_a_clock_far_ahead_are_left_alone() -> None:
    world = LogOfPuts(commits=3)
    world.clock.advance(10 * HOUR_MS)
    world.commit(1)
    world.clock.advance(-10 * HOUR_MS)
    report = world.table.merge_log()
    assert (len(report.merged_log_files), report.log_files) == (3, 2)
    assert len(world.seen()[0]) == 4


def test_a_log_file_tombstoned_by_v3_is_not_hidden_by_a_merge() -> None:
    # A v3 drop names the log file that it looked at, and carries the one marker that it tombstones.
    world = LogOfPuts()
    world.commit(1, parts=40)
    t_ms = world.clock.now_ms()
    (large,) = LogReader(world.store, world.store.location.keys).read().files
    world.commit(1)
    dead = Marker("table/_data/1-0.parquet", 10, t_ms, world.clock.now_ms())
    drop = LogFile(world.clock.now_ms(), {"n": "BIGINT"}, (dead,), (LogTombstoneRecord(large, world.clock.now_ms()),))
    world.store.create(world.store.location.keys.log_file(drop.t_ms, merged=True, writer="v3"), encode(drop))
    (seen,) = world.seen()
    assert len(seen) == 40
    report = world.table.merge_log()
    assert report.commit.committed
    assert large not in report.merged_log_files
    assert world.seen() == [seen]
    for _ in range(3):
        world.clock.advance(2 * HOUR_MS)
        world.table.cleanup()
        world.commit(1)
        world.table.merge_log()
    assert seen <= world.seen()[0]
