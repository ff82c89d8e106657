"""What is different between two times of a table: parts and rows by partition, and columns.

A merge writes rows into other parts, so counts of parts and their rows tell what happened to the objects. Whether the
rows themselves are others only the rows tell: they are compared when somebody asks, those of the changed parts alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from icedb.errors import InvalidOption
from icedb.format.column_times import UNKNOWN_MS, column_times
from icedb.format.records import total_bytes, total_rows
from icedb.format.replay import TableState
from icedb.reader.lazy_parts import LiveParts
from icedb.reader.scan_sql import relation, translate_read_error
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.sql.connections import connect_reader
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import Handle, Part
from icedb.util.times import time_text

__all__ = ["ColumnInfo", "Diff", "PartitionDiff", "columns_of", "diff"]


@dataclass(frozen=True, slots=True)
class PartitionDiff:
    """Parts of one partition that are live at one of two times only. Rows are None when a part does not say."""

    path: str
    added_parts: int
    added_rows: int | None
    added_bytes: int
    removed_parts: int
    removed_rows: int | None
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class Diff:
    """What is different between two times (unix milliseconds). Made by `Table.diff`."""

    table: str
    since_ms: int
    until_ms: int
    #: Those in which parts came or went, by path.
    partitions: tuple[PartitionDiff, ...]
    #: Columns that surely came between the two times, with their types; and whether no other can have come. It is not
    #: known any more when the log files that brought columns are gone.
    new_columns: Mapping[str, str]
    new_columns_exact: bool
    #: Rows that are there at the second time and not at the first, and the other way round: equal rows count for each
    #: other, however they were moved. None when they were not compared.
    inserted_rows: int | None = None
    deleted_rows: int | None = None

    @property
    def added_parts(self) -> int:
        """Parts that are live at the second time only."""
        return sum(p.added_parts for p in self.partitions)

    @property
    def removed_parts(self) -> int:
        """Parts that are live at the first time only."""
        return sum(p.removed_parts for p in self.partitions)

    @property
    def added_rows(self) -> int | None:
        """Rows of the parts that came; None when one does not say."""
        return _sum(p.added_rows for p in self.partitions)

    @property
    def removed_rows(self) -> int | None:
        """Rows of the parts that went; None when one does not say."""
        return _sum(p.removed_rows for p in self.partitions)


def diff(handle: Handle, since_ms: int, until_ms: int | None = None, *, rows: bool = False) -> Diff:
    """What is different between two times (unix milliseconds; None: now). See `Table.diff`.

    Raises InvalidOption, and as `take_snapshot` and queries do.
    """
    if until_ms is not None and until_ms < since_ms:
        raise InvalidOption(
            f"{handle.table}: until ({time_text(until_ms)}) is before since ({time_text(since_ms)}). Exchange them."
        )
    if since_ms > handle.clock.now_ms() + handle.timing.max_skew_ms:
        raise InvalidOption(f"{handle.table}: since ({time_text(since_ms)}) is in the future. Correct it.")
    # Before its creation the table had no rows, and all of them came since then.
    before, after = take_snapshot(handle, since_ms, may_precede=True), take_snapshot(handle, until_ms)
    earlier, later = set(_keys(before.parts)), set(_keys(after.parts))
    removed, added = _without(before.parts, later), _without(after.parts, earlier)
    new_columns, exact = _new_columns(handle, since_ms, after.as_of_ms)
    inserted, deleted = _count(before, removed, after, added) if rows else (None, None)
    return Diff(
        table=handle.table,
        since_ms=since_ms,
        until_ms=max(since_ms, after.as_of_ms),
        partitions=_by_partition(added, removed),
        new_columns=new_columns,
        new_columns_exact=exact,
        inserted_rows=inserted,
        deleted_rows=deleted,
    )


def _keys(parts: Sequence[Part]) -> Iterable[str]:
    return parts.markers.keys if isinstance(parts, LiveParts) else (part.key for part in parts)


def _without(parts: Sequence[Part], keys: Collection[str]) -> list[Part]:
    """The parts with other keys. Of many, no others are made."""
    places = [place for place, key in enumerate(_keys(parts)) if key not in keys]
    return list(parts.chosen(places) if isinstance(parts, LiveParts) else (parts[place] for place in places))


def _by_partition(added: Iterable[Part], removed: Iterable[Part]) -> tuple[PartitionDiff, ...]:
    found: dict[str, tuple[list[Part], list[Part]]] = {}
    for place, parts in enumerate((added, removed)):
        for part in parts:
            found.setdefault(part.partition, ([], []))[place].append(part)
    return tuple(
        PartitionDiff(
            path=path,
            added_parts=len(came),
            added_rows=total_rows(came),
            added_bytes=total_bytes(came),
            removed_parts=len(went),
            removed_rows=total_rows(went),
            removed_bytes=total_bytes(went),
        )
        for path, (came, went) in sorted(found.items())
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _count(before: Snapshot, removed: Sequence[Part], after: Snapshot, added: Sequence[Part]) -> tuple[int, int]:
    """Rows of the added parts that no removed part has, and the other way round."""
    handle = after.handle
    # The columns of the second time for both: rows that lack a column that came meanwhile have null there.
    old, new = (
        relation(handle, parts, after.schema, after.partition_schema, expressions=after.expressions)
        for parts in (removed, added)
    )
    con = connect_reader(handle.location)
    try:
        inserted, deleted = (
            con.sql(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other}))").fetchall()[0][0]
            for one, other in ((new, old), (old, new))
        )
        return inserted, deleted
    except (duckdb.Error, ObjectNotFound) as error:
        raise translate_read_error(handle, [*removed, *added], error, as_of_ms=before.as_of_ms) from None
    finally:
        con.close()


# ------------------------------------------------------------------------------------------------ columns


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of the table `t`. `type` is DuckDB's."""

    name: str
    type: str
    #: Null in no row.
    required: bool
    #: For a partition column that parts do not store: how it is made of a row; empty: the path alone tells it.
    expression: str | None
    #: The time (unix milliseconds) of the oldest log file that names it; None: declared, and brought by no batch.
    since_ms: int | None
    #: Whether it came at that very time. Else it came then or earlier: log files that would tell were merged away.
    since_exact: bool


def columns_of(handle: Handle) -> list[ColumnInfo]:
    """The columns of the table and its partition columns. Raises what `take_snapshot` raises."""
    snapshot, since = take_snapshot(handle), _came(handle.read())
    stored = [
        ColumnInfo(name, type_, name in handle.spec.required, None, *since.get(name, (None, False)))
        for name, type_ in snapshot.schema.items()
    ]
    expressions = {e.name: "" if e.path_only else e.sql for e in snapshot.expressions}
    return stored + [
        ColumnInfo(name, type_, False, expressions.get(name, ""), None, False)
        for name, type_ in snapshot.partition_schema.items()
        if name not in snapshot.schema
    ]


def _came(state: TableState) -> dict[str, tuple[int, bool]]:
    """Return column -> when it came, and whether the log records that time; else the oldest log file that names it."""
    oldest: dict[str, int] = {}
    for stored in sorted(state.effective.values(), key=lambda stored: -stored.file.t_ms):
        oldest.update(dict.fromkeys(stored.file.schema, stored.file.t_ms))
    times = column_times(state)
    return {c: (oldest[c], False) if at_ms == UNKNOWN_MS else (at_ms, True) for c, at_ms in times.items()}


def _new_columns(handle: Handle, since_ms: int, until_ms: int) -> tuple[dict[str, str], bool]:
    """The columns that surely came between two times, and whether no other can have."""
    schema = handle.columns
    late = {name: told for name, told in _came(handle.read()).items() if told[0] > since_ms}
    sure = {name: schema[name] for name, (at_ms, exact) in late.items() if exact and at_ms <= until_ms}
    return sure, all(exact for _, exact in late.values())
