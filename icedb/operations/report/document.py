"""The content of a report's page: texts, bars, the heat map and tables, from the facts about a table. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from icedb.operations.health.due_commands import DueCommand, due_commands
from icedb.operations.health.figures import ago_text, figures, shortened
from icedb.operations.health.gauges import Gauge, gauges, level
from icedb.operations.health.table_health import TableHealth
from icedb.operations.report.commit_chart import CommitChart, commit_chart
from icedb.operations.report.grids import (
    TEXT_CHARACTERS_MAX,
    Grid,
    column_grid,
    commit_grid,
    operation_grid,
    partition_grid,
    pin_grid,
)
from icedb.operations.report.heat_map import HeatMap, heat_map
from icedb.operations.report.table_facts import TableFacts
from icedb.util.counts import binary_size_text, count_text, number_text, size_text
from icedb.util.durations import duration_text
from icedb.util.times import iso_text

__all__ = ["Bar", "Fact", "ReportDocument", "document_of"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A named text. `level` is 0 if it is fine, 1 if maintenance is due, 2 beyond a threshold."""

    name: str
    text: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """A named bar with its text. `fill` and `marked`, a part of it, are shares of the whole width from 0 to 1."""

    name: str
    text: str
    fill: float
    marked: float = 0.0
    level: int = 0


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """All that the page shows."""

    name: str
    address: str
    at: str
    due: Sequence[DueCommand]
    tiles: Sequence[Fact]
    gauges: Sequence[Bar]
    #: None if there is no part.
    heat_map: HeatMap | None
    partitions: Grid
    sizes: Sequence[Bar]
    #: None if there is no commit.
    commits: CommitChart | None
    commits_note: str
    operations: Grid
    newest: Grid
    snapshots: Sequence[str]
    #: A command that reads the oldest listed snapshot; empty if there is no commit.
    snapshot_command: str
    #: Where the times that can be read begin in the commit chart, from 0 (left) to 1 (right), and where its pins are.
    readable_from: float
    pins_at: Sequence[tuple[float, str]]
    pins: Grid
    layout: Sequence[Fact]
    columns: Grid
    figures: Sequence[Fact]


def document_of(facts: TableFacts, *, connection: Sequence[str] = ()) -> ReportDocument:
    """Return the document. The commands on the page have the flags in `connection`, without credentials."""
    health, thresholds = facts.health, facts.thresholds
    flags = [_without_credentials(word) for word in connection]
    chart = commit_chart(facts.commits, now_ms=health.at_ms) if facts.commits else None
    address = health.table
    return ReportDocument(
        name=address.rstrip("/").rpartition("/")[2] or address,
        address=address,
        at=iso_text(health.at_ms, timespec="seconds"),
        due=due_commands(health, thresholds, uri=address, connection=flags),
        tiles=_tiles(facts),
        gauges=[_gauge(one) for one in gauges(health, thresholds)],
        heat_map=heat_map(health.partitions, thresholds) if health.partitions else None,
        partitions=partition_grid(facts),
        sizes=_sizes(health),
        commits=chart,
        commits_note=_commits_note(facts),
        operations=operation_grid(facts.commits),
        newest=commit_grid(facts),
        snapshots=_snapshots(facts),
        snapshot_command=_snapshot_command(facts, flags),
        readable_from=0.0 if chart is None else chart.share(_oldest_readable_ms(facts)),
        pins_at=[] if chart is None else [
            (chart.share(p.as_of_ms), shortened(p.name, TEXT_CHARACTERS_MAX))
            for p in facts.pins
            if chart.start_ms <= p.as_of_ms <= chart.end_ms and not p.expired(health.at_ms)
        ],
        pins=pin_grid(facts),
        layout=_layout(facts),
        columns=column_grid(facts.columns),
        figures=[Fact(*figure) for figure in figures(health, thresholds)],
    )  # fmt: skip


def _without_credentials(word: str) -> str:
    """Return a flag's value; of a URL without user, password, query and fragment."""
    if "://" not in word:
        return word
    parts = urlsplit(word)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _tiles(facts: TableFacts) -> list[Fact]:
    health = facts.health
    commit_ms = health.last_commit_ms
    merge_is_due = any(r.due in ("merge_newest", "merge_oldest") for r in health.recommendations)
    log_level = level(health.log_files, facts.thresholds.log_files) if health.small_log_files else 0
    return [
        Fact("rows", number_text(health.live_rows)),
        Fact("size", size_text(health.live_bytes)),
        Fact("partitions", f"{len(health.partitions):,}"),
        Fact("parts", f"{health.live_parts:,}"),
        Fact("small parts", f"{health.small_parts:,} ({health.small_part_ratio:.0%})", int(merge_is_due)),
        Fact("log depth", count_text(health.log_files, "file"), log_level),
        Fact("last commit", "none yet" if commit_ms is None else ago_text(health, commit_ms)),
    ]


def _gauge(gauge: Gauge) -> Bar:
    value, limit = (size_text(n) if gauge.unit == "B" else f"{n:,}" for n in (gauge.value, gauge.limit))
    return Bar(gauge.name, f"{value} of {limit}", min(1.0, gauge.value / gauge.limit), level=gauge.level)


def _sizes(health: TableHealth) -> list[Bar]:
    most = max((one.parts for one in health.sizes), default=0)
    return [
        Bar(
            f"from {binary_size_text(one.bytes_min)}",
            count_text(one.parts, "part") + (f", {one.small_parts:,} to merge" if one.small_parts else ""),
            one.parts / most,
            one.small_parts / most,
        )
        for one in health.sizes
    ]


def _commits_note(facts: TableFacts) -> str:
    count = count_text(len(facts.commits), "commit")
    if not facts.commits_complete:
        return f"The newest {count}. icedb history --limit 0 lists all that the log records."
    return f"All {count} that the log records. Cleanup removes the records of deleted parts."


# ------------------------------------------------------------------------------------------------ snapshots


def _snapshots(facts: TableFacts) -> list[str]:
    health, commits = facts.health, facts.commits
    if not commits:
        return ["The table has no commit yet."]
    readable = sum(c.at_ms >= health.horizon_ms and bool(c.added_parts or c.removed_parts) for c in commits)
    if health.horizon_ms:
        limit = f"Each time from {iso_text(health.horizon_ms)} on can be read. Older snapshots exist only if pinned."
    else:
        limit = "Each time since the first commit can be read."
    return [
        limit,
        f"Of the commits above, {readable:,} changed parts in that time, and each has its own snapshot. "
        f"Cleanup keeps superseded parts for {duration_text(health.timing.grace_ms)}, and as long as a pin (tag) needs "
        "them.",
    ]


def _snapshot_command(facts: TableFacts, flags: Sequence[str]) -> str:
    """Return a command that reads the oldest readable snapshot; empty if there is no commit."""
    if not facts.commits:
        return ""
    as_of = iso_text(_oldest_readable_ms(facts))
    return shlex.join(["icedb", "query", facts.health.table, "SELECT count(*) FROM t", *flags, "--as-of", as_of])


def _oldest_readable_ms(facts: TableFacts) -> int:
    return max(facts.health.horizon_ms, min(c.at_ms for c in facts.commits))


# ------------------------------------------------------------------------------------------------ layout


def _layout(facts: TableFacts) -> list[Fact]:
    """Return the settings of the spec that decide how rows are stored."""
    spec = facts.spec
    texts = {
        "partition by": ", ".join((*spec.partition_by, *spec.path_columns)),
        "sort by": ", ".join(spec.sort_by),
        "compression": spec.compression,
        "bloom filters": ", ".join(spec.bloom_filters),
        "rows with the same key": "" if spec.merging is None else f"{type(spec.merging).__name__} by "
        + ", ".join(spec.merging.by),
        "materialized views": ", ".join(view.name for view in spec.views),
    }  # fmt: skip
    return [Fact(name, shortened(text, TEXT_CHARACTERS_MAX)) for name, text in texts.items() if text]
