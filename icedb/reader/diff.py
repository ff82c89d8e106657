"""Differences between two times of a table: parts and rows by partition, and columns.

A merge moves rows into other parts, so the counts of parts and their rows describe changes of objects. A comparison of
the rows themselves is optional. It reads the changed parts only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from icedb.errors import InvalidOption
from icedb.format.column_times import UNKNOWN_MS, column_times
from icedb.format.records import total_bytes, total_rows
from icedb.format.replay import TableState
from icedb.reader.lazy_parts import LiveParts
from icedb.reader.scan_sql import relation, translated_read_errors
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.sql.connection_pool import reader
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.counts import known_sum
from icedb.util.times import iso_text, time_text

__all__ = ["ColumnInfo", "Diff", "PartitionDiff", "columns_of", "diff"]


@dataclass(frozen=True, slots=True)
class PartitionDiff:
    """The parts of one partition that are live at only one of two times.

    Row counts are None if another program wrote a part without a row count.
    """

    path: str
    added_parts: int
    added_rows: int | None
    added_bytes: int
    removed_parts: int
    removed_rows: int | None
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two times of a table, in unix milliseconds. `Table.diff` returns it."""

    table: str
    since_ms: int
    until_ms: int
    #: The partitions in which parts were added or removed, by path.
    partitions: tuple[PartitionDiff, ...]
    #: Columns that were certainly added between the two times, with their types.
    new_columns: Mapping[str, str]
    #: False if other columns may have been added too, because the log files that added columns were merged.
    new_columns_exact: bool
    #: Rows at the second time that are not in the table at the first, and the reverse. Equal rows cancel each other,
    #: also if they moved to another part. None if the rows were not compared.
    inserted_rows: int | None = None
    deleted_rows: int | None = None

    @property
    def added_parts(self) -> int:
        """The number of parts that are live at the second time only."""
        return sum(p.added_parts for p in self.partitions)

    @property
    def removed_parts(self) -> int:
        """The number of parts that are live at the first time only."""
        return sum(p.removed_parts for p in self.partitions)

    @property
    def added_rows(self) -> int | None:
        """The number of rows in the added parts; None if a part has no row count."""
        return known_sum(p.added_rows for p in self.partitions)

    @property
    def removed_rows(self) -> int | None:
        """The number of rows in the removed parts; None if a part has no row count."""
        return known_sum(p.removed_rows for p in self.partitions)


def diff(handle: Handle, since_ms: int, until_ms: int | None = None, *, rows: bool = False) -> Diff:
    """Compare the table at two times (unix milliseconds; None: now). See `Table.diff`.

    Raises InvalidOption, and the errors of `take_snapshot` and of queries.
    """
    if until_ms is not None and until_ms < since_ms:
        raise InvalidOption(
            f"{handle.table}: until ({time_text(until_ms)}) is before since ({time_text(since_ms)}). Exchange them."
        )
    if since_ms > handle.clock.now_ms() + handle.timing.max_skew_ms:
        raise InvalidOption(f"{handle.table}: since ({time_text(since_ms)}) is in the future. Correct it.")
    # A time before the table's creation is accepted: the table had no rows then.
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
    """Return the parts with other keys. Of a large table, only these become objects."""
    places = [place for place, key in enumerate(_keys(parts)) if key not in keys]
    return list(parts.chosen(places) if isinstance(parts, LiveParts) else (parts[place] for place in places))


def _by_partition(added: Iterable[Part], removed: Iterable[Part]) -> tuple[PartitionDiff, ...]:
    by_path: dict[str, tuple[list[Part], list[Part]]] = {}
    for place, parts in enumerate((added, removed)):
        for part in parts:
            by_path.setdefault(part.partition, ([], []))[place].append(part)
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
        for path, (came, went) in sorted(by_path.items())
    )


def _count(before: Snapshot, removed: Sequence[Part], after: Snapshot, added: Sequence[Part]) -> tuple[int, int]:
    """Count the rows of the added parts that no removed part has, and the reverse."""
    handle = after.handle
    # Both sides have the columns of the second time. A column that was added between is null in earlier rows.
    old, new = (
        relation(handle, parts, after.schema, after.partition_schema, expressions=after.expressions)
        for parts in (removed, added)
    )
    parts = [*removed, *added]
    size = sum(p.bytes for p in parts)
    with (
        translated_read_errors(handle, parts, as_of_ms=before.as_of_ms),
        reader(handle.location, read_bytes=size) as con,
    ):
        inserted, deleted = (
            con.sql(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other}))").fetchall()[0][0]
            for one, other in ((new, old), (old, new))
        )
        return inserted, deleted


# ------------------------------------------------------------------------------------------------ columns


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of the table `t`. `Table.columns` returns it."""

    name: str
    #: The DuckDB type.
    type: str
    #: Whether the table rejects rows in which the column is null.
    required: bool
    #: For a partition column that parts do not store, its SQL expression, or empty if only the path has its value.
    expression: str | None
    #: The time (unix milliseconds) of the oldest log file that names the column; None if no batch had it yet.
    since_ms: int | None
    #: Whether the column was added at exactly that time. If not, it was added then or earlier.
    since_exact: bool

    @property
    def since_text(self) -> str:
        """When the column was added, for displays."""
        if self.since_ms is None:
            return "" if self.expression is not None else "declared"
        at = iso_text(self.since_ms, timespec="seconds")
        return at if self.since_exact else f"{at} or earlier"

    @property
    def partition_text(self) -> str:
        """How the partition of a row is computed, for displays; empty for other columns."""
        return "the path alone" if self.expression == "" else self.expression or ""


def columns_of(handle: Handle) -> list[ColumnInfo]:
    """Return the columns of the table and its partition columns. Raises the errors of `take_snapshot`."""
    snapshot, since = take_snapshot(handle), _added_times(handle.read())
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


def _added_times(state: TableState) -> dict[str, tuple[int, bool]]:
    """Return column -> when it was added, and whether that is exact; else the time of the oldest log file with it."""
    oldest: dict[str, int] = {}
    for stored in sorted(state.effective.values(), key=lambda stored: -stored.file.t_ms):
        oldest.update(dict.fromkeys(stored.file.schema, stored.file.t_ms))
    times = column_times(state)
    return {c: (oldest[c], False) if at_ms == UNKNOWN_MS else (at_ms, True) for c, at_ms in times.items()}


def _new_columns(handle: Handle, since_ms: int, until_ms: int) -> tuple[dict[str, str], bool]:
    """Return the columns that were certainly added between two times, and whether there can be no others."""
    schema = handle.columns
    late = {name: added for name, added in _added_times(handle.read()).items() if added[0] > since_ms}
    visible = {name: added for name, added in late.items() if name in schema}
    sure = {name: schema[name] for name, (at_ms, exact) in visible.items() if exact and at_ms <= until_ms}
    return sure, all(exact for _, exact in late.values())
