"""The commits of a table over time, by operation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from icedb.reader.history import CommitInfo, CommitKind

__all__ = ["OTHER", "CommitBar", "CommitChart", "commit_chart"]

# A chart of few commits has room for more, so that its bars are no wider than those of others.
BARS_MIN, BARS_MAX = 24, 60
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# Times of a bar that a reader recognises.
_WIDTHS_MS = (
    _SECOND, 10 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR,
    _DAY, 7 * _DAY, 28 * _DAY,
)  # fmt: skip

# The operations that have a colour of their own, in the order of the legend and of each bar.
_COLOURED: tuple[CommitKind, ...] = (
    "insert", "overwrite", "upsert", "update", "delete", "merge", "merge_log", "cleanup",
)  # fmt: skip
#: The name of all others.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class CommitBar:
    """The commits from `start_ms` on, by operation, in the order of `CommitChart.operations`."""

    start_ms: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitChart:
    """Bars of one width, from `start_ms` to `end_ms` (unix milliseconds). Empty bars are left out."""

    start_ms: int
    end_ms: int
    bar_ms: int
    operations: tuple[str, ...]
    bars: tuple[CommitBar, ...]

    @property
    def most(self) -> int:
        """The commits of the highest bar."""
        return max(sum(bar.counts) for bar in self.bars)

    def share(self, at_ms: int) -> float:
        """Return where a time is in the chart, from 0 (start) to 1 (end)."""
        return min(1.0, max(0.0, (at_ms - self.start_ms) / (self.end_ms - self.start_ms)))


def commit_chart(commits: Sequence[CommitInfo], *, now_ms: int) -> CommitChart:
    """Return the chart of at least one commit, up to now."""
    oldest_ms, newest_ms = min(c.at_ms for c in commits), max(now_ms, *(c.at_ms for c in commits))
    span_ms = newest_ms - oldest_ms
    bar_ms = next((width for width in _WIDTHS_MS if span_ms < width * (BARS_MAX - 1)), span_ms // (BARS_MAX - 1) + 1)
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for commit in commits:
        counts[commit.at_ms // bar_ms][commit.kind if commit.kind in _COLOURED else OTHER] += 1
    present = {name for of_bar in counts.values() for name in of_bar}
    operations = tuple(name for name in (*_COLOURED, OTHER) if name in present)
    last = newest_ms // bar_ms
    first = min(oldest_ms // bar_ms, last - BARS_MIN + 1)
    return CommitChart(
        start_ms=first * bar_ms,
        end_ms=(last + 1) * bar_ms,
        bar_ms=bar_ms,
        operations=operations,
        bars=tuple(
            CommitBar(number * bar_ms, tuple(of_bar[name] for name in operations))
            for number, of_bar in sorted(counts.items())
        ),
    )
