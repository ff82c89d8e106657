"""Checks of what a table holds: its columns, the rows that did not fit, how new the newest rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg

import icedb
from icedb.errors import InvalidOption, InvalidURI, TableNotFound
from icedb.format.records import Marker
from icedb.reader.scan_sql import visible_partitions
from icedb.sql.column_stats import prune_by_bounds
from icedb.sql.connections import quote_name
from icedb.transaction.open_table import open_beside, quarantine_name
from icedb.transaction.table_handle import Handle
from icedb.util.durations import duration_text
from icedb.writer.staging import QUARANTINE_COLUMNS
from icedb_dagster.checks.check_context import CheckContext, Verdict, counted
from icedb_dagster.checks.check_settings import FreshnessCheck, QuarantineCheck, SchemaCheck
from icedb_dagster.checks.newest_value import newest_value_ms
from icedb_dagster.metadata import markdown

__all__ = ["check_freshness", "check_quarantine", "check_schema"]

# Examples, not a report: the quarantine is a table like any other.
REASONS_MAX = 5
_REMEDY = "Look whether what fills the table still runs."
_TIME = "quarantined_at"


def check_schema(look: CheckContext, settings: SchemaCheck) -> Verdict:
    """The columns that were declared are there, with their types."""
    snapshot = look.table.snapshot()  # before the spec: what was declared later than at creation, the log tells
    declared: Mapping[str, str] = settings.columns or look.table.spec.columns
    if not declared:
        told = f"{look.table.uri} declares no columns, so there is nothing to compare with. "
        return Verdict(False, f"{told}Give the check columns, or declare them with Table.alter(schema=...).")
    partitions = visible_partitions(snapshot.schema, snapshot.partition_schema)
    differences = _differences(declared, snapshot.schema, partitions, additional=settings.additional == "fail")
    metadata: dict[str, dg.MetadataValue] = {"columns": dg.MetadataValue.int(len(snapshot.schema))}
    if not differences:
        return Verdict(True, f"All {len(declared):,} declared columns are as declared.", metadata)
    rows = [(column, what, *types) for column, (what, *types) in sorted(differences.items())]
    metadata["differences"] = dg.MetadataValue.md(markdown.table(("column", "what", "declared", "has"), rows))
    column, (what, wanted, found) = min(differences.items())
    types = f"declared {wanted or 'not at all'}, has {found or 'none'}"
    more = f", and {counted(len(differences) - 1, 'column')} more" if differences.keys() - {column} else ""
    remedy = (
        "Change the declaration, or the table: Table.alter adds columns, Table.repair_types gives a column one type."
    )
    return Verdict(False, f"The column '{column}' is {what} ({types}){more}. {remedy}", metadata)


def _differences(
    declared: Mapping[str, str], columns: Mapping[str, str], partitions: Mapping[str, str], *, additional: bool
) -> dict[str, tuple[str, str | None, str | None]]:
    """Column -> what is wrong, the declared type, the table's. Partition columns may be declared, and need not be."""
    found = {c.casefold(): t for c, t in {**partitions, **columns}.items()}
    differences: dict[str, tuple[str, str | None, str | None]] = {}
    for column, type_ in declared.items():
        has = found.get(column.casefold())
        if has is None:
            differences[column] = ("missing", type_, None)
        elif has != type_:
            differences[column] = ("of another type", type_, has)
    if additional:
        wanted = {c.casefold() for c in declared}
        differences |= {c: ("additional", None, t) for c, t in columns.items() if c.casefold() not in wanted}
    return differences


# ------------------------------------------------------------------------------------------------ quarantine


def check_quarantine(look: CheckContext, settings: QuarantineCheck) -> Verdict:
    """Few rows did not fit lately."""
    _ = look.state  # whose log cannot be read, nothing is told of
    try:
        handle = open_beside(look.table.handle, quarantine_name(look.table.handle))
    except (TableNotFound, InvalidURI):
        return Verdict(True, "No row ever went to the quarantine: there is none.")
    table = icedb.Table(handle)
    snapshot = table.snapshot()
    if not QUARANTINE_COLUMNS.items() <= handle.columns.items():
        return Verdict(False, f"{table.uri} is no quarantine of this library's. Move that table elsewhere.")
    since_ms = look.now_ms - settings.window // timedelta(milliseconds=1)
    recent = prune_by_bounds(_markers(handle, snapshot), _TIME, QUARANTINE_COLUMNS[_TIME], f"hi >= {_moment(since_ms)}")
    rows = _rows_since(snapshot, recent, since_ms)
    window = duration_text(settings.window // timedelta(milliseconds=1))
    metadata: dict[str, dg.MetadataValue] = {
        "rows lately": dg.MetadataValue.int(rows),
        "rows in all": dg.MetadataValue.int(snapshot.rows or 0),
        "window": dg.MetadataValue.text(window),
        "quarantine": dg.MetadataValue.text(table.uri),
    }
    if rows:
        metadata["reasons"] = _reasons(snapshot, recent)
    told = f"{counted(rows, 'row')} did not fit in the last {window} and went to {table.uri}"
    if rows <= settings.rows_max:
        return Verdict(True, f"{told}.", metadata)
    remedy = "Look at the column reason there; mend what sends them, insert the rows again, and drop them there."
    return Verdict(False, f"{told}; it should be at most {settings.rows_max:,}. {remedy}", metadata)


def _markers(handle: Handle, snapshot: icedb.Snapshot) -> list[Marker]:
    """What the log says of the snapshot's parts, superseded meanwhile or not; of one that it forgot, nothing."""
    known = handle.read().parts
    return [
        known.get(part.key) or Marker(key=part.key, bytes=part.bytes, created_ms=part.created_ms)
        for part in snapshot.parts
    ]


def _moment(time_ms: int) -> str:
    return f"make_timestamptz({time_ms * 1000})"


def _rows_since(snapshot: icedb.Snapshot, recent: list[Marker], since_ms: int) -> int:
    """How many rows came since: as the log tells, and of parts that hold older ones too, as these tell."""
    mixed = prune_by_bounds(recent, _TIME, QUARANTINE_COLUMNS[_TIME], f"lo < {_moment(since_ms)}")
    keys = {m.key for m in mixed} | {m.key for m in recent if m.rows is None}
    known = sum(m.rows or 0 for m in recent if m.key not in keys)
    if not keys:
        return known
    parts = tuple(part for part in snapshot.parts if part.key in keys)
    asked = f"SELECT count(*) FROM t WHERE {quote_name(_TIME)} >= {_moment(since_ms)}"
    answer = replace(snapshot, parts=parts).query(asked).fetchone()
    return known + (answer[0] if answer else 0)


def _reasons(snapshot: icedb.Snapshot, recent: list[Marker]) -> dg.MetadataValue:
    """Why rows of the newest part did not fit: one part is opened, however many there are."""
    newest = max(recent, key=lambda m: (m.created_ms, m.key)).key
    parts = tuple(part for part in snapshot.parts if part.key == newest)
    asked = (
        f"SELECT count(*)::VARCHAR, left(reason, 200) FROM t GROUP BY 2 ORDER BY count(*) DESC, 2 LIMIT {REASONS_MAX}"
    )
    found = replace(snapshot, parts=parts).query(asked).fetchall()
    return dg.MetadataValue.md(markdown.table(("rows of the newest part", "reason"), found))


# ------------------------------------------------------------------------------------------------ freshness


def check_freshness(look: CheckContext, settings: FreshnessCheck) -> Verdict:
    """The newest rows are not too old. Fails only when that is certain."""
    came_ms, max_ms = look.health.no_rows_after_ms, settings.max_age // timedelta(milliseconds=1)
    if came_ms is None:
        return Verdict(False, f"{look.table.uri} has never had a row. {_REMEDY}")
    try:
        newest_ms, told = _newest(look, settings, came_ms, max_ms)
    except InvalidOption as error:  # a column that is none, or no time
        return Verdict(False, str(error))
    metadata: dict[str, dg.MetadataValue] = {
        "newest rows": dg.MetadataValue.timestamp(newest_ms / 1000),
        "age (seconds)": dg.MetadataValue.int(max(look.now_ms - newest_ms, 0) // 1000),
        "age": dg.MetadataValue.text(look.age(newest_ms)),
    }
    if look.now_ms - newest_ms <= max_ms:
        return Verdict(True, f"The table is {look.age(newest_ms)} old at most: {told}.", metadata)
    limit = f"it should be at most {duration_text(max_ms)}"
    return Verdict(False, f"The table is over {look.age(newest_ms)} old, and {limit}: {told}. {_REMEDY}", metadata)


def _newest(look: CheckContext, settings: FreshnessCheck, came_ms: int, max_ms: int) -> tuple[int, str]:
    """When the newest rows are of, and what tells it. Raises InvalidOption."""
    if settings.column is None:
        return came_ms, f"no rows came after {_utc(came_ms)}"
    cutoff_ms = look.now_ms - max_ms
    value_ms = newest_value_ms(look, settings.column, settings.timezone, cutoff_ms=cutoff_ms)
    if value_ms is None:  # what is as new as that was written since, and nothing was, or nothing but nulls
        return min(came_ms, cutoff_ms - 1), f"no value of '{settings.column}' was written since {_utc(cutoff_ms)}"
    # What lies ahead of its own arrival says nothing of how fresh the table is.
    return min(value_ms, came_ms), f"the greatest '{settings.column}' is {_utc(value_ms)}"


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(sep=" ", timespec="seconds")
