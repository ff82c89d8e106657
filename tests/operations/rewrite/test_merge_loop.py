"""Merges for a limited time end in time, do as much as fits into it, and continue in the next call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icedb
from icedb.errors import InvalidOption
from icedb.format.timing import MINUTE_MS
from icedb.operations.rewrite.engine import LocalEngine
from icedb.operations.rewrite.merge import INPUT_BYTES_MAX, INPUT_PARTS_MAX, MergeReport
from icedb.operations.rewrite.merge_loop import PARTS_FIRST, PARTS_MIN, Share, first_share, next_share
from icedb.testing import ClockedStore, ManualClock, check_sound, create_table
from icedb.transaction.append import nothing_to_commit
from icedb.transaction.table_handle import Handle

MOST = Share(INPUT_PARTS_MAX, INPUT_BYTES_MAX)
COMMIT_MS = 200


@dataclass
class Backlog:
    """Groups of equal parts to merge, and how long a store takes for one group and for a commit."""

    groups: int
    parts: int
    bytes: int
    group_ms: int

    def merge(self, table: icedb.Table, share: Share) -> tuple[MergeReport, int]:
        """Merge as many groups as `plan_merge` puts into a budget, at least one."""
        fit = min(share.parts // self.parts, share.bytes // self.bytes)
        taken = min(self.groups, max(1, fit))
        self.groups -= taken
        report = MergeReport(
            nothing_to_commit(table.handle), taken * self.parts, taken * self.bytes, taken, 0, 0, self.groups, False
        )
        return report, COMMIT_MS + taken * self.group_ms


def paced(backlog: Backlog, table: icedb.Table, budget_ms: int) -> Iterator[int]:
    """Return the duration of each merge of one call."""
    share: Share | None = first_share(128 * 2**20, MOST)
    left_ms = budget_ms
    while share is not None:
        report, spent_ms = backlog.merge(table, share)
        left_ms -= spent_ms
        yield spent_ms
        share = next_share(share, report, MOST, spent_ms=spent_ms, left_ms=left_ms)


@given(
    parts=st.integers(2, PARTS_MIN),
    size=st.integers(1_000, 2**28),
    group_ms=st.integers(1, 3 * MINUTE_MS),
    groups=st.integers(1, 10**6),
)
def test_a_call_ends_within_its_time_plus_one_merge(parts: int, size: int, group_ms: int, groups: int) -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock)
    backlog = Backlog(groups, parts, size, group_ms)
    first = max(1, min(PARTS_FIRST // parts, 2**28 // size))
    spent = list(paced(backlog, table, MINUTE_MS))
    if len(spent) == 1:
        assert spent[0] <= COMMIT_MS + first * group_ms, "what shows how fast it goes"
    else:
        assert sum(spent) <= MINUTE_MS + COMMIT_MS + group_ms, "one group is never divided"
    if backlog.groups:
        assert sum(spent) > 0.8 * MINUTE_MS - group_ms - COMMIT_MS, "and the time is used"


def test_a_share_stays_within_what_one_call_of_merge_may_take_in() -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock)

    def after(parts: int, n_bytes: int, spent_ms: int, left_ms: int, *, remaining: int = 1) -> Share | None:
        report = MergeReport(nothing_to_commit(table.handle), parts, n_bytes, parts // 2, 0, 0, remaining, False)
        return next_share(Share(parts, n_bytes), report, MOST, spent_ms=spent_ms, left_ms=left_ms)

    assert after(1000, 2**30, 10_000, 40_000) == Share(2000, 2**31)  # in half of the time that is left
    assert after(1000, 2**30, 0, MINUTE_MS) == Share(4000, 2**32)  # four times as much at most
    assert after(9000, 2**34, 100, MINUTE_MS) == Share(INPUT_PARTS_MAX, INPUT_BYTES_MAX)
    assert after(20, 2**20, 10_000, 5_000) == Share(PARTS_MIN, 2**18)
    assert after(1000, 2**30, 100, MINUTE_MS, remaining=0) is None
    assert after(1000, 2**30, 100, 0) is None
    assert after(2, 2**30, 3_000, 2_000) is None  # one group takes longer


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_several_merges_end_in_time_and_the_next_call_goes_on() -> None:
    clock = ManualClock()
    store = ClockedStore(clock)
    table = create_table(store, clock, partition_by=["k"], sort_by=["n"])
    for n in range(2):
        table.insert([{"k": k, "n": n} for k in range(12)])
    part_bytes_max = max(p.bytes for p in table.snapshot().parts) + 1  # two parts make a group

    class SlowEngine(LocalEngine):
        """An engine that takes ten seconds for a group."""

        def run(self, handle: Handle, work: Any, items: Sequence[Any]) -> list[Any]:
            clock.advance(10_000 * len(items))
            return super().run(handle, work, items)

    began_ms = clock.now_ms()
    first = table.merge(max_seconds=60, part_bytes_max=part_bytes_max, order="newest", engine=SlowEngine())
    assert 50_000 <= clock.now_ms() - began_ms <= 70_000
    assert first.new_parts == (clock.now_ms() - began_ms) / 10_000
    assert first.remaining == 12 - first.new_parts > 0
    assert len(set(first.commit_keys)) == len(first.commit_keys) > 1
    assert first.commit.key == first.commit_keys[-1]
    assert (first.merged_parts, first.rows, first.dropped_groups) == (2 * first.new_parts, 2 * first.new_parts, 0)
    assert "k=9" in {p.partition for p in table.snapshot().parts if p.rows == 2}, "the newest came first"

    planned = table.merge(max_seconds=1, part_bytes_max=part_bytes_max, dry_run=True)
    assert (planned.new_parts, planned.commit_keys) == (first.remaining, ()), "a dry run has no time limit"
    rest = table.merge(max_seconds=10**30, part_bytes_max=part_bytes_max, input_parts_max=2)
    assert (first.new_parts + rest.new_parts, rest.remaining) == (12, 0)
    assert len(rest.commit_keys) == rest.new_parts, "each merge is within the limits of the call"
    assert table.query("SELECT k, n FROM t ORDER BY ALL").fetchall() == [(k, n) for k in range(12) for n in range(2)]
    check_sound(store)
    nothing = table.merge(max_seconds=60, part_bytes_max=part_bytes_max)
    assert (nothing.commit_keys, nothing.commit.committed, nothing.merged_parts, nothing.remaining) == ((), False, 0, 0)
    for seconds in (0, -1.5):
        with pytest.raises(InvalidOption, match=f"max_seconds is {seconds}"):
            table.merge(max_seconds=seconds)
