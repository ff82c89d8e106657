"""Text page of `icedb info`: the figures of a table, the partitions that most need a merge, and what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec
import rich.box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.render.health_charts import STYLES, charts
from icedb.operations.health.due_commands import due_commands
from icedb.operations.health.figures import figures
from icedb.operations.health.gauges import crowded_partitions, level, parts_threshold
from icedb.operations.health.table_health import PartitionHealth, TableHealth, Thresholds
from icedb.util.counts import count_text, size_text

__all__ = ["info_document", "print_info"]

# Limit that keeps the page on one screen; `--json` has everything.
PARTITIONS_MAX = 10

_INDENT = 4


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
    if crowded := crowded_partitions(health, thresholds):
        console.print(_partitions(crowded, thresholds))
    console.print()
    for due in due_commands(health, thresholds, uri=uri, connection=connection):
        console.print(Text(f"due: {due.name}", style="bold yellow"))
        console.print(Padding(Text(due.reason), (0, 0, 0, _INDENT), expand=False))
        # Never wrapped, so that the user can copy it.
        console.print(Text(" " * _INDENT + due.command, style="bold"), soft_wrap=True)
    if not health.recommendations:
        console.print(Text("nothing is due", style="bold green"))


def _figures(health: TableHealth, thresholds: Thresholds) -> Rows:
    rows = Rows.grid(padding=(0, 2))
    for name, text, severity in figures(health, thresholds):
        rows.add_row(Text(name, style="bold"), Text(text, style=STYLES[severity]))
    return rows


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
        threshold = parts_threshold(partition, thresholds)
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


def _style(figure: int, threshold: int) -> str:
    """Return yellow if maintenance is recommended, red from the threshold on, else no style."""
    return STYLES[level(figure, threshold)]
