"""Merges in tiers: rows, and lines of the log, are rewritten seldom, and few parts stay.

Parts are markers here, without objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb import Table
from icedb.format.records import Marker
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.operations.commits.actions import Append
from icedb.operations.commits.log_carryover import LINES_MAX, OTHERS_MAX, log_files_naming_live
from icedb.operations.rewrite.merge import (
    COLD_TIER,
    PART_BYTES_MAX,
    TINY_BYTES,
    MergePlan,
    TieredMerge,
    merge,
    plan_merge,
)
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.storage.parts import Part
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.testing.tables import live_to_v3_readers
from icedb.transaction.append import append
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts

HOT = TieredMerge().hot_tier
MB = 1_000_000


def parts(*sizes: int) -> list[Part]:
    return [Part(f"table/_data/p=0/{n:04}.parquet", "", "p=0", size, None, n) for n, size in enumerate(sizes)]


def plan(actual: Sequence[Part], tier: int) -> MergePlan:
    return plan_merge(actual, tiers={"p=0": tier})


def taken(*sizes: int, tier: int) -> list[list[int]]:
    return [[p.bytes for p in group.inputs] for group in plan(parts(*sizes), tier).groups]


# ------------------------------------------------------------------------------------------ the plan


def test_the_days_largest_part_is_not_written_again_for_a_few_new_rows() -> None:
    assert taken(60 * MB, *[MB] * 10, tier=HOT) == [[MB] * 10]
    assert taken(60 * MB, *[MB] * 7, tier=HOT) == [], "seven do not make a part of the next tier"
    assert [len(g) for g in taken(60 * MB, *[9 * MB] * 9, tier=HOT)] == [10], "together they are a full part"


def test_late_rows_do_not_cause_a_large_part_to_be_written_again() -> None:
    assert taken(50 * MB, 100_000, tier=COLD_TIER) == []
    assert taken(50 * MB, 100_000, 100_000, tier=COLD_TIER) == [[100_000, 100_000]]
    assert [len(g) for g in taken(50 * MB, 20 * MB, tier=COLD_TIER)] == [2]


def test_a_day_that_is_over_becomes_one_part() -> None:
    assert [len(g) for g in taken(*[8 * MB] * 5, 3 * MB, MB, tier=COLD_TIER)] == [7]


def test_tiny_parts_are_always_merged() -> None:
    assert taken(50 * MB, 600, 300, tier=HOT) == [[600, 300]]
    assert taken(50 * MB, 600, tier=HOT) == []


def test_without_tiers_all_that_is_small_is_merged() -> None:
    assert len(plan_merge(parts(60 * MB, MB)).groups) == 1


@pytest.mark.parametrize("hot_parts", [4, 8, 64])
def test_the_tiers_of_a_hot_partition_follow_from_how_many_parts_it_may_gather(hot_parts: int) -> None:
    assert TieredMerge(hot_parts=hot_parts).hot_tier == max(2, hot_parts // 4)


@given(st.lists(st.integers(1, 40 * MB), min_size=1, max_size=40), st.sampled_from([COLD_TIER, HOT]))
def test_few_parts_remain_and_are_not_merged_again(sizes: list[int], tier: int) -> None:
    left = list(parts(*sizes))
    for _ in range(100):
        groups = plan(left, tier).groups
        if not groups:
            break
        gone = {p.key for g in groups for p in g.inputs}
        left = [p for p in left if p.key not in gone] + [
            Part(f"{g.inputs[0].key}+", "", "p=0", g.bytes, None, g.inputs[-1].created_ms) for g in groups
        ]
    assert not groups
    assert sum(p.bytes for p in left) == sum(sizes)
    small = [p.bytes for p in left if p.bytes < PART_BYTES_MAX]
    limit = float(PART_BYTES_MAX)
    while limit > TINY_BYTES:
        assert sum(limit / tier <= n < limit for n in small) < max(tier, HOT)
        limit /= tier
    assert sum(n < TINY_BYTES for n in small) <= 1


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(st.integers(20_000, 3 * MB))
def test_each_row_is_written_once_for_each_limit_above_its_part(size: int) -> None:
    actual: dict[str, tuple[Part, int]] = {}
    most = 0
    for number in range(600):
        actual[f"{number}"] = Part(f"{number}", "", "p=0", size, None, number), 0
        if number % 10 == 9:
            for group in plan([p for p, _ in actual.values()], HOT).groups:
                often = 1 + max(actual.pop(p.key)[1] for p in group.inputs)
                most = max(most, often)
                actual[f"{number}m"] = Part(f"{number}m", "", "p=0", group.bytes, None, number), often
    assert most <= math.ceil(math.log(PART_BYTES_MAX / size, HOT)) + (size < TINY_BYTES)
    assert len(actual) < TieredMerge().hot_parts + 600 * size / PART_BYTES_MAX


# ------------------------------------------------------------------------------------------ the log


class TieredWorld:
    """A table whose parts have no objects."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self.table: Table = create_table(self.store, self.clock, partition_by=["p"])
        self.handle: Handle = self.table.handle
        self.store.create(self.handle.keys.part("", "0"), b"")
        self.commits = 0

    def commit(self, *partitions: int, size: int = 1_000) -> None:
        self.clock.advance(MINUTE_MS)
        keys = [self.handle.keys.part(f"p={p}", self.clock.new_id()) for p in partitions]
        markers = tuple(Marker(key, size, 0, rows=1) for key in keys)
        self.store.create(keys[0], b"")
        self.commits += 1
        if self.commits > 1:
            append(self.handle, markers, {"p": "BIGINT"}, oldest_part_ms=self.clock.now_ms())
        else:
            commit_exclusive(
                self.handle, Append(self.handle, WrittenParts({"p": "BIGINT"}, markers, self.clock.now_ms()))
            )

    def merge(self) -> int:
        self.clock.advance(MINUTE_MS)
        return merge(self.handle, rewriter=self._rewrite).merged_parts

    def _rewrite(self, _: Handle, rewrites: Sequence[Rewrite], __: Mapping[str, str]) -> list[Marker | None]:
        return [Marker(self.handle.keys.part(r.partition, self.clock.new_id()), r.bytes, 0, rows=1) for r in rewrites]

    def live(self) -> dict[str, int]:
        actual: dict[str, int] = {}
        state = self.handle.read(everything=True)
        assert {m.key for m in state.live} == live_to_v3_readers(state)
        for marker in state.live:
            partition = self.handle.partition(marker)
            actual[partition] = actual.get(partition, 0) + marker.bytes
        return actual


def test_a_merge_leaves_a_log_file_that_names_many_other_parts_and_cleanup_forgets_them_later() -> None:
    world = TieredWorld()
    many = range(2 + max(OTHERS_MAX, LINES_MAX))
    world.commit(*many)
    world.commit(0)
    before = world.live()
    assert world.merge() == 2
    state = world.handle.read()
    assert len(log_files_naming_live(state, t_ms=world.clock.now_ms() + 1)) == 1, "the first names many others for one"
    assert len(state.effective) == 2
    assert world.live() == before
    for forgotten in (1, 1):  # that of the second commit; then that which the first called live
        world.clock.advance(2 * HOUR_MS)
        assert world.table.cleanup().forgotten == forgotten
        assert world.live() == before
    state = world.handle.read(everything=True)
    assert all(m.tombstoned_ms is None for m in state.parts.values())
    assert len(state.effective) == 1


def test_a_merge_replaces_the_log_files_that_name_little_else() -> None:
    world = TieredWorld()
    for _ in range(4):
        world.commit(0, 1, 2, 3, 4)
    before = world.live()
    assert world.merge() == 20
    assert len(world.handle.read().effective) == 1
    assert world.live() == before
    world.clock.advance(2 * HOUR_MS)
    assert world.table.cleanup().forgotten == 20


def test_a_cleanup_in_shares_ends_although_a_merge_left_log_files_that_call_dead_parts_live() -> None:
    world = TieredWorld()
    world.commit(*range(2 + max(OTHERS_MAX, LINES_MAX)))
    world.commit(0, 1)
    world.merge()
    world.clock.advance(2 * HOUR_MS)
    calls = [world.table.cleanup(deletes_max=1)]
    while calls[-1].remaining:
        calls.append(world.table.cleanup(deletes_max=1))
        assert len(calls) < 10
    deleted = [part for report in calls for part in report.deleted_parts]
    assert len(deleted) == len(set(deleted)), "what can be forgotten comes first, and is deleted once"
    world.clock.advance(2 * HOUR_MS)
    world.table.cleanup()
    state = world.handle.read(everything=True)
    assert all(m.tombstoned_ms is None for m in state.parts.values())
