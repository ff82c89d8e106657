"""Text page of `icedb info`: the figures of a table, the partitions that most need a merge, and what is due."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec
import rich.box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.render.health_charts import STYLES, charts
from icedb.cli.render.output import moment
from icedb.cli.render.text_tables import size_text
from icedb.format.timing import Timing, timing_differences
from icedb.operations.health.gauges import level
from icedb.operations.health.table_health import Due, PartitionHealth, TableHealth, Thresholds
from icedb.operations.rewrite.merge import PART_BYTES_MAX
from icedb.util.counts import count_text
from icedb.util.durations import duration_text

__all__ = ["due_text", "figures", "info_document", "print_info"]

# Limit that keeps the page on one screen; `--json` has everything.
PARTITIONS_MAX = 10

_INDENT = 4


@dataclass(frozen=True, slots=True)
class _MaintenanceVerb:
    """A kind of maintenance, and the words of the command that does it."""

    name: str
    words: tuple[str, ...]


_VERBS: Mapping[Due, _MaintenanceVerb] = {
    "merge_newest": _MaintenanceVerb("merge, newest first", ("merge", "--order", "newest")),
    "merge_oldest": _MaintenanceVerb("merge, oldest first", ("merge", "--order", "oldest")),
    "merge_log": _MaintenanceVerb("merge of log files", ("merge-log",)),
    "cleanup": _MaintenanceVerb("cleanup", ("cleanup",)),
}


def info_document(health: TableHealth, thresholds: Thresholds) -> dict[str, object]:
    """Return the JSON document of `icedb info`: all fields of the health, derived figures, and the thresholds."""
    return {
        **msgspec.to_builtins(health),
        "small_parts": health.small_parts,
        "small_part_ratio": health.small_part_ratio,
        "no_rows_after_ms": health.no_rows_after_ms,
        "thresholds": asdict(thresholds),
    }


def print_info(
    console: Console, health: TableHealth, thresholds: Thresholds, *, uri: str, connection: Sequence[str] = ()
) -> None:
    """Print the page. The recommended commands contain `uri` and the flags in `connection`."""
    console.print(Text(health.table, style="bold"), soft_wrap=True)
    console.print()
    console.print(_figures(health, thresholds))
    console.print()
    console.print(charts(health, thresholds, width=console.width))
    crowded = sorted(
        (p for p in health.partitions if p.small_parts),
        key=lambda p: (-p.small_parts / _threshold(p, thresholds), -p.small_parts, p.path),
    )
    if crowded:
        console.print(_partitions(crowded, thresholds))
    console.print()
    for recommendation in health.recommendations:
        verb = _VERBS[recommendation.due]
        console.print(Text(f"due: {verb.name}", style="bold yellow"))
        console.print(Padding(Text(recommendation.reason), (0, 0, 0, _INDENT), expand=False))
        command = shlex.join(["icedb", *verb.words, uri, *connection, *_flags(recommendation.due, thresholds)])
        # Never wrapped, so that the user can copy it.
        console.print(Text(" " * _INDENT + command, style="bold"), soft_wrap=True)
    if not health.recommendations:
        console.print(Text("nothing is due", style="bold green"))


def due_text(health: TableHealth) -> list[tuple[str, str]]:
    """Return the kind and the reason of each recommendation."""
    return [(_VERBS[recommended.due].name, recommended.reason) for recommended in health.recommendations]


def _flags(due: Due, thresholds: Thresholds) -> list[str]:
    """Return the flags with which a merge takes the parts that the thresholds count as small."""
    if due not in ("merge_newest", "merge_oldest") or thresholds.part_bytes_max == PART_BYTES_MAX:
        return []
    return ["--part-bytes-max", str(thresholds.part_bytes_max)]


# ------------------------------------------------------------------------------------------------ figures


def _figures(health: TableHealth, thresholds: Thresholds) -> Rows:
    rows = Rows.grid(padding=(0, 2))
    for name, text, style in figures(health, thresholds):
        rows.add_row(Text(name, style="bold"), Text(text, style=style))
    return rows


def figures(health: TableHealth, thresholds: Thresholds) -> Iterable[tuple[str, str, str]]:
    """Return the name, the text and the style of each figure."""
    c, t = health, thresholds
    expired_objects = c.expired_parts + c.expired_log_files
    return (
        ("rows", "unknown: some parts do not record it" if c.live_rows is None else f"{c.live_rows:,}", ""),
        ("parts", f"{count_text(c.live_parts, 'part')}, {size_text(c.live_bytes)}, {_in_partitions(c)}", ""),
        ("small parts", f"{c.small_parts:,} ({c.small_part_ratio:.0%}) that a merge would take", ""),
        ("log files", f"{c.log_files:,} to read; {c.small_log_files:,} of them can become one",
         _style(c.log_files, t.log_files) if c.small_log_files else ""),
        ("superseded", f"{count_text(c.dead_parts, 'part')}, {size_text(c.dead_bytes)}{_oldest(c)}", ""),
        ("expired", f"{count_text(c.expired_parts, 'part')}, {size_text(c.expired_bytes)}, "
         f"{count_text(c.expired_log_files, 'log file')} past the grace period",
         max(_style(c.expired_bytes, t.expired_bytes), _style(expired_objects, t.expired_objects), key=STYLES.index)),
        ("horizon", _horizon(c), ""),
        ("newest rows", _newest(c), ""),
        ("last commit", _last_commit(c), ""),
        ("times", _times(c), ""),
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
    age_ms = health.at_ms - unix_ms
    text = f"{duration_text(age_ms)} ago" if age_ms >= 0 else f"in {duration_text(-age_ms)}"
    at = moment(unix_ms)
    return f"{text} ({unix_ms} unix ms)" if at is None else f"{text} ({at:%Y-%m-%d %H:%M:%S} UTC)"


# ------------------------------------------------------------------------------------------------ partitions


def _partitions(crowded: Sequence[PartitionHealth], thresholds: Thresholds) -> RenderableType:
    """Return a table of the partitions nearest to their threshold, and the number of the others with small parts."""
    rows = Rows(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    rows.add_column("partition", overflow="fold")
    rows.add_column("heat")
    rows.add_column("parts", justify="right", no_wrap=True)
    rows.add_column("small/limit", justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    rows.add_column("to merge", justify="right", no_wrap=True)
    for partition in crowded[:PARTITIONS_MAX]:
        threshold = _threshold(partition, thresholds)
        style = _style(partition.small_parts, threshold)
        rows.add_row(
            Text(partition.path or "(all)"),
            Text("hot", style="red") if partition.hot else Text("cold", style="blue"),
            f"{partition.parts:,}",
            Text(f"{partition.small_parts:,}/{threshold:,}", style=style),
            Bar(threshold, 0, min(partition.small_parts, threshold), width=8, color=style or "default"),
            size_text(partition.small_bytes),
        )
    more = len(crowded) - PARTITIONS_MAX
    if more <= 0:
        return rows
    return Group(rows, Text(f"and {count_text(more, 'more partition')} with small parts", style="dim"))


def _threshold(partition: PartitionHealth, thresholds: Thresholds) -> int:
    return thresholds.hot_parts if partition.hot else thresholds.cold_parts


def _style(figure: int, threshold: int) -> str:
    """Return yellow if maintenance is recommended, red from the threshold on, else no style."""
    return STYLES[level(figure, threshold)]
