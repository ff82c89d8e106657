"""The commits of a report over time: all are counted, in few bars of one width."""

from __future__ import annotations

import random

import pytest

from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.report.commit_chart import BARS_MAX, BARS_MIN, OTHER, commit_chart
from icedb.reader.history import CommitInfo, CommitKind

NOW_MS = 1_800_000_000_000


def commit(at_ms: int, kind: CommitKind = "insert") -> CommitInfo:
    return CommitInfo(at_ms, kind, 1, 1, 1, 0, 0, 0, 1, {}, None, None, True)


@pytest.mark.parametrize("span_ms", [0, 1, 999, MINUTE_MS, HOUR_MS, 3 * DAY_MS, 900 * DAY_MS, 10**15])
def test_every_commit_is_in_one_bar(span_ms: int) -> None:
    chance = random.Random(span_ms)
    times = [NOW_MS - span_ms, NOW_MS, *(NOW_MS - chance.randint(0, span_ms) for _ in range(200))]
    chart = commit_chart([commit(t) for t in times], now_ms=NOW_MS)
    assert sum(sum(bar.counts) for bar in chart.bars) == len(times)
    for bar in chart.bars:
        assert bar.counts == (sum(bar.start_ms <= t < bar.start_ms + chart.bar_ms for t in times),)
    assert BARS_MIN <= (chart.end_ms - chart.start_ms) / chart.bar_ms <= BARS_MAX
    assert chart.start_ms <= min(times)
    assert chart.end_ms > NOW_MS


def test_operations_keep_their_order_and_rare_ones_are_together() -> None:
    kinds: list[CommitKind] = ["alter", "merge", "insert", "restore", "merge", "void"]
    chart = commit_chart([commit(NOW_MS, kind) for kind in kinds], now_ms=NOW_MS)
    assert chart.operations == ("insert", "merge", OTHER)
    assert [bar.counts for bar in chart.bars] == [(1, 2, 3)]
    assert chart.most == 6


def test_the_chart_extends_to_now() -> None:
    chart = commit_chart([commit(NOW_MS - DAY_MS)], now_ms=NOW_MS)
    assert chart.end_ms > NOW_MS
    assert chart.share(0) == 0
    assert chart.share(chart.end_ms) == chart.share(10**15) == 1
    later = commit_chart([commit(NOW_MS + DAY_MS)], now_ms=NOW_MS)  # of a clock that is ahead
    assert later.end_ms > NOW_MS + DAY_MS
