"""The figures of a table's health in words, for displays."""

from __future__ import annotations

from collections.abc import Iterable

from icedb.format.timing import Timing, timing_differences
from icedb.operations.health.gauges import level
from icedb.operations.health.table_health import TableHealth, Thresholds
from icedb.util.counts import count_text, size_text
from icedb.util.durations import duration_text
from icedb.util.times import moment

__all__ = ["ago_text", "figures", "shortened"]

# The most characters of a path in a chart.
LABEL_CHARACTERS_MAX = 26


def figures(health: TableHealth, thresholds: Thresholds) -> Iterable[tuple[str, str, int]]:
    """Return the name, the text and the level of each figure; see `icedb.operations.health.gauges.level`."""
    c, t = health, thresholds
    expired_objects = c.expired_parts + c.expired_log_files
    return (
        ("rows", "unknown: some parts do not record it" if c.live_rows is None else f"{c.live_rows:,}", 0),
        ("parts", f"{count_text(c.live_parts, 'part')}, {size_text(c.live_bytes)}, {_in_partitions(c)}", 0),
        ("small parts", f"{c.small_parts:,} ({c.small_part_ratio:.0%}) that a merge would take", 0),
        ("log files", f"{c.log_files:,} to read; {c.small_log_files:,} of them can become one",
         level(c.log_files, t.log_files) if c.small_log_files else 0),
        ("superseded", f"{count_text(c.dead_parts, 'part')}, {size_text(c.dead_bytes)}{_oldest(c)}", 0),
        ("expired", f"{count_text(c.expired_parts, 'part')}, {size_text(c.expired_bytes)}, "
         f"{count_text(c.expired_log_files, 'log file')} past the grace period",
         max(level(c.expired_bytes, t.expired_bytes), level(expired_objects, t.expired_objects))),
        ("horizon", _horizon(c), 0),
        ("newest rows", _newest(c), 0),
        ("last commit", _last_commit(c), 0),
        ("times", _times(c), 0),
    )  # fmt: skip


def _in_partitions(health: TableHealth) -> str:
    return f"in {count_text(len(health.partitions), 'partition')}"


def _oldest(health: TableHealth) -> str:
    return "" if health.oldest_dead_ms is None else f"; the oldest {_ago(health, health.oldest_dead_ms)}"


def _horizon(health: TableHealth) -> str:
    if not health.horizon_ms:
        return "none: every snapshot can be read"
    return f"{_ago(health, health.horizon_ms)}: older snapshots cannot be read"


def _newest(health: TableHealth) -> str:
    last_ms = health.no_rows_after_ms
    if last_ms is None:
        return "none yet"
    exact = last_ms == health.newest_rows_ms
    return _ago(health, last_ms) if exact else f"{_ago(health, last_ms)}, or earlier: cleanup has removed the record"


def _last_commit(health: TableHealth) -> str:
    if health.last_commit_ms is None:
        return "none yet"
    return f"{health.last_operation or 'operation not recorded'}, {_ago(health, health.last_commit_ms)}"


def _times(health: TableHealth) -> str:
    names = timing_differences(health.timing, Timing())
    return ", ".join(f"{n} {duration_text(getattr(health.timing, n))}" for n in names) or "the defaults"


def _ago(health: TableHealth, unix_ms: int) -> str:
    at = moment(unix_ms)
    text = ago_text(health, unix_ms)
    return f"{text} ({unix_ms} unix ms)" if at is None else f"{text} ({at:%Y-%m-%d %H:%M:%S} UTC)"


def ago_text(health: TableHealth, unix_ms: int) -> str:
    """Return how long before the measurement a time was: `5 min ago`."""
    age_ms = health.at_ms - unix_ms
    return f"{duration_text(age_ms)} ago" if age_ms >= 0 else f"in {duration_text(-age_ms)}"


def shortened(name: str, characters_max: int = LABEL_CHARACTERS_MAX) -> str:
    """Shorten a path for its label: keep the beginning, which is most distinctive, and some of the end."""
    name, tail = name or "(the table)", characters_max // 3
    return name if len(name) <= characters_max else f"{name[: characters_max - tail - 1]}…{name[-tail:]}"
