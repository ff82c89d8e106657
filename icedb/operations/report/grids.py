"""The tables of a report's page, which a reader can sort: partitions, commits, pins and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icedb.operations.health.figures import shortened
from icedb.operations.health.gauges import crowded_partitions, parts_threshold
from icedb.operations.health.table_health import PartitionHealth
from icedb.operations.report.heat_map import is_due
from icedb.operations.report.table_facts import TableFacts
from icedb.reader.diff import ColumnInfo
from icedb.reader.history import CommitInfo
from icedb.transaction.pin_objects import Pin
from icedb.util.counts import count_text, known_sum, number_text, size_text
from icedb.util.times import iso_text

__all__ = ["TEXT_CHARACTERS_MAX", "Grid", "GridCell", "column_grid", "commit_grid", "operation_grid", "partition_grid",
           "pin_grid"]  # fmt: skip

# Limits that keep the page small. The verbs of the command list everything.
PARTITIONS_MAX = 500
COMMITS_LISTED_MAX = 100
COLUMNS_MAX = 1_000
PINS_MAX = 200
#: The most characters of a path, a name or an expression on the page.
TEXT_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class GridCell:
    """A text, and the number by which it is sorted, if it is not sorted as text. `tone` is a style: `warn` or `dim`."""

    text: str
    number: float | None = None
    tone: str = ""
    #: Whether it is sorted last in both orders, because it has no number.
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. A column name that begins with `>` marks a column of numbers. `note` states what is left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[GridCell, ...], ...]
    note: str = ""


def partition_grid(facts: TableFacts) -> Grid:
    """Return the partitions: those nearest to their threshold first, then the largest."""
    health, thresholds = facts.health, facts.thresholds
    crowded = [p for p in crowded_partitions(health, thresholds) if is_due(p, thresholds)]
    due = {p.path for p in crowded}
    rest = sorted((p for p in health.partitions if p.path not in due), key=lambda p: (-p.bytes, p.path))
    listed = [*crowded, *rest][:PARTITIONS_MAX]
    return Grid(
        "Partitions",
        ("partition", ">size", ">rows", ">parts", ">small/limit", ">to merge", "heat", "newest rows"),
        tuple(_partition(p, facts, p.path in due) for p in listed),
        _left_out(len(listed), len(health.partitions), "partition", "those that most need a merge, then the largest",
                  "icedb partitions"),
    )  # fmt: skip


def _partition(partition: PartitionHealth, facts: TableFacts, due: bool) -> tuple[GridCell, ...]:
    came_ms, limit = partition.newest_rows_ms, parts_threshold(partition, facts.thresholds)
    return (
        _text(partition.path or "(all)"),
        _size(partition.bytes),
        _number(partition.rows),
        _number(partition.parts),
        GridCell(f"{partition.small_parts:,}/{limit:,}", partition.small_parts, "warn" if due else ""),
        _size(partition.small_bytes),
        GridCell("hot" if partition.hot else "cold"),
        _time(came_ms, timespec="seconds") if came_ms is not None else GridCell("not recorded", is_last=True),
    )


def operation_grid(commits: Sequence[CommitInfo]) -> Grid:
    """Return the totals of the commits by operation, the most frequent first."""
    by_kind: dict[str, list[CommitInfo]] = {}
    for commit in commits:
        by_kind.setdefault(commit.kind, []).append(commit)
    rows = [
        (
            GridCell(kind),
            _number(len(of_kind)),
            *_changes(of_kind),
            _time(max(c.at_ms for c in of_kind)),
        )
        for kind, of_kind in sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return Grid("Commits by operation", ("operation", ">commits", *_CHANGES, "last"), tuple(rows))


def commit_grid(facts: TableFacts) -> Grid:
    """Return the newest commits, and whether the snapshot at the time of each can be read."""
    listed = facts.commits[:COMMITS_LISTED_MAX]
    horizon_ms = facts.health.horizon_ms
    pinned = {p.as_of_ms for p in facts.pins if not p.expired(facts.health.at_ms)}
    rows = [
        (
            _time(commit.at_ms),
            GridCell(commit.kind + ("" if commit.exact else "*")),
            _readable(commit.at_ms >= horizon_ms, commit.at_ms in pinned),
            *_changes([commit]),
        )
        for commit in listed
    ]
    notes = [
        "" if len(listed) == len(facts.commits) else f"The newest {count_text(len(listed), 'commit')}. icedb history "
        "lists all.",
        "" if all(c.exact for c in listed) else "*: the commit may have changed more, because cleanup has removed some "
        "of its records.",
    ]  # fmt: skip
    columns = ("time", "operation", "snapshot", *_CHANGES)
    return Grid("Newest commits", columns, tuple(rows), " ".join(filter(None, notes)))


_CHANGES = (">+ parts", ">- parts", ">+ rows", ">- rows", ">+ bytes", ">- bytes")


def _changes(commits: Sequence[CommitInfo]) -> list[GridCell]:
    """Return the cells of `_CHANGES`: sums over commits."""
    return [
        _number(sum(c.added_parts for c in commits), zero=""),
        _number(sum(c.removed_parts for c in commits), zero=""),
        _number(known_sum(c.added_rows for c in commits), zero=""),
        _number(known_sum(c.removed_rows for c in commits), zero=""),
        _size(sum(c.added_bytes for c in commits), zero=""),
        _size(sum(c.removed_bytes for c in commits), zero=""),
    ]


def _readable(after_horizon: bool, pinned: bool) -> GridCell:
    if after_horizon or pinned:
        return GridCell("readable, pinned" if pinned else "readable")
    return GridCell("gone", tone="dim")


def pin_grid(facts: TableFacts) -> Grid:
    """Return the pins (tags) by name."""
    listed, now_ms = facts.pins[:PINS_MAX], facts.health.at_ms
    rows = [
        (_text(pin.name), _time(pin.as_of_ms), _time(pin.created_ms), _expiry(pin), _state(pin, now_ms))
        for pin in listed
    ]
    return Grid(
        "Pins",
        ("pin", "snapshot", "created", "expires", "state"),
        tuple(rows),
        _left_out(len(listed), len(facts.pins), "pin", "the first by name", "icedb pins"),
    )


def _expiry(pin: Pin) -> GridCell:
    return GridCell("never", is_last=True) if pin.expires_ms is None else _time(pin.expires_ms)


def _state(pin: Pin, now_ms: int) -> GridCell:
    return GridCell("expired", tone="dim") if pin.expired(now_ms) else GridCell("readable")


def column_grid(columns: Sequence[ColumnInfo]) -> Grid:
    """Return the columns in their order."""
    listed = columns[:COLUMNS_MAX]
    rows = [
        (
            GridCell(f"{number}", number, "dim"),
            _text(column.name),
            _text(column.type),
            GridCell("no" if column.required else "yes"),
            GridCell(column.since_text),
            _text(column.partition_text),
        )
        for number, column in enumerate(listed, 1)
    ]
    return Grid(
        "Columns",
        (">#", "column", "type", "null", "since", "partition by"),
        tuple(rows),
        _left_out(len(listed), len(columns), "column", "the first", "icedb schema"),
    )


def _left_out(listed: int, of: int, noun: str, which: str, command: str) -> str:
    """Return a sentence about rows that are left out; empty if there are none."""
    return "" if listed == of else f"{listed:,} of {count_text(of, noun)}: {which}. {command} lists all."


def _text(text: str) -> GridCell:
    return GridCell(shortened(text, TEXT_CHARACTERS_MAX) if text else "")


def _number(number: int | None, *, zero: str = "0") -> GridCell:
    return GridCell(number_text(number) if number != 0 else zero, number, is_last=number is None)


def _size(size: int, *, zero: str = "0 B") -> GridCell:
    return GridCell(size_text(size) if size else zero, size)


def _time(unix_ms: int, *, timespec: str = "milliseconds") -> GridCell:
    return GridCell(iso_text(unix_ms, timespec=timespec), unix_ms)
