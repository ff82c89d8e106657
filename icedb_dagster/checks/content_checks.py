"""Checks of the contents of a table: columns, quarantined rows, and the age of the newest rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg

import icedb
from icedb.errors import InvalidOption, InvalidURI, TableNotFound
from icedb.transaction.open_table import open_sibling, quarantine_name
from icedb.util.counts import count_text
from icedb.util.durations import duration_text
from icedb.writer.staged_batch import QUARANTINE_COLUMNS
from icedb_dagster.checks.check_context import CheckContext, Verdict
from icedb_dagster.checks.check_settings import FreshnessCheck, QuarantineCheck, SchemaCheck
from icedb_dagster.checks.newest_value import newest_value_ms
from icedb_dagster.metadata import markdown

__all__ = ["check_freshness", "check_quarantine", "check_schema"]

# Examples only: the quarantine is a table that can be queried.
REASONS_MAX = 5
_REMEDY = "Check that the program that fills the table still runs."
_TIME = "quarantined_at"


def check_schema(context: CheckContext, settings: SchemaCheck) -> Verdict:
    """Check that the table has the declared columns with their types."""
    snapshot = context.table.snapshot()  # read before the spec: later declarations are in the log
    declared: Mapping[str, str] = settings.columns or context.table.spec.columns
    if not declared:
        reason = f"{context.table.uri} declares no columns, so there is nothing to compare with. "
        return Verdict(False, f"{reason}Give the check columns, or declare them with Table.alter(schema=...).")
    partitions = snapshot.visible_partitions
    differences = _differences(declared, snapshot.schema, partitions, additional=settings.additional == "fail")
    metadata: dict[str, dg.MetadataValue] = {"columns": dg.MetadataValue.int(len(snapshot.schema))}
    if not differences:
        return Verdict(True, f"All {len(declared):,} declared columns are as declared.", metadata)
    rows = [(column, difference, *types) for column, (difference, *types) in sorted(differences.items())]
    metadata["differences"] = dg.MetadataValue.md(markdown.table(("column", "difference", "declared", "actual"), rows))
    column, (difference, declared_type, actual_type) = min(differences.items())
    types = f"declared {declared_type or 'not at all'}, has {actual_type or 'none'}"
    more = f", and {count_text(len(differences) - 1, 'column')} more" if differences.keys() - {column} else ""
    remedy = (
        "Change the declaration, or the table: Table.alter adds columns, Table.repair_types gives a column one type."
    )
    return Verdict(False, f"The column '{column}' is {difference} ({types}){more}. {remedy}", metadata)


def _differences(
    declared: Mapping[str, str], columns: Mapping[str, str], partitions: Mapping[str, str], *, additional: bool
) -> dict[str, tuple[str, str | None, str | None]]:
    """Return column -> (difference, declared type, actual type). Declared partition columns are optional."""
    actual = {c.casefold(): t for c, t in {**partitions, **columns}.items()}
    differences: dict[str, tuple[str, str | None, str | None]] = {}
    for column, type_ in declared.items():
        has = actual.get(column.casefold())
        if has is None:
            differences[column] = ("missing", type_, None)
        elif has != type_:
            differences[column] = ("of another type", type_, has)
    if additional:
        wanted = {c.casefold() for c in declared}
        differences |= {c: ("additional", None, t) for c, t in columns.items() if c.casefold() not in wanted}
    return differences


# ------------------------------------------------------------------------------------------------ quarantine


def check_quarantine(context: CheckContext, settings: QuarantineCheck) -> Verdict:
    """Check that few rows were quarantined recently."""
    _ = context.state  # a table with an unreadable log fails the check
    try:
        handle = open_sibling(context.table.handle, quarantine_name(context.table.handle))
    except (TableNotFound, InvalidURI):
        return Verdict(True, "No row was ever quarantined: the table has no quarantine.")
    table = icedb.Table(handle)
    snapshot = table.snapshot()
    if not QUARANTINE_COLUMNS.items() <= handle.columns.items():
        return Verdict(False, f"{table.uri} is not a quarantine table of IceDB. Move that table elsewhere.")
    since_ms = context.now_ms - settings.window // timedelta(milliseconds=1)
    since = f"make_timestamptz({since_ms * 1000})"
    recent = snapshot.files(f"{_TIME} >= {since}")
    rows = _rows_since(snapshot, recent, since)
    window = duration_text(settings.window // timedelta(milliseconds=1))
    metadata: dict[str, dg.MetadataValue] = {
        "recent rows": dg.MetadataValue.int(rows),
        "total rows": dg.MetadataValue.int(snapshot.rows or 0),
        "window": dg.MetadataValue.text(window),
        "quarantine": dg.MetadataValue.text(table.uri),
    }
    if rows:
        metadata["reasons"] = _reasons(snapshot, recent)
    result = f"{count_text(rows, 'row')} did not fit in the last {window} and went to {table.uri}"
    if rows <= settings.rows_max:
        return Verdict(True, f"{result}.", metadata)
    remedy = "Read its column reason, correct the sender, insert the rows again, and drop them there."
    return Verdict(False, f"{result}; it should be at most {settings.rows_max:,}. {remedy}", metadata)


def _rows_since(snapshot: icedb.Snapshot, recent: Sequence[icedb.Part], since: str) -> int:
    """Count the rows since a time (SQL): from the log, and from parts that also hold older rows."""
    mixed = {part.key for part in replace(snapshot, parts=tuple(recent)).files(f"{_TIME} < {since}")}
    opened: list[icedb.Part] = []
    counted_rows = 0
    for part in recent:
        if part.rows is None or part.key in mixed:
            opened.append(part)
        else:
            counted_rows += part.rows
    if not opened:
        return counted_rows
    row = replace(snapshot, parts=tuple(opened)).query(f"SELECT count(*) FROM t WHERE {_TIME} >= {since}").fetchone()
    return counted_rows + (row[0] if row else 0)


def _reasons(snapshot: icedb.Snapshot, recent: Sequence[icedb.Part]) -> dg.MetadataValue:
    """Return why rows of the newest part did not fit. Only one part is opened."""
    newest = max(recent, key=lambda part: (part.created_ms, part.key))
    query = (
        f"SELECT count(*)::VARCHAR, left(reason, 200) FROM t GROUP BY 2 ORDER BY count(*) DESC, 2 LIMIT {REASONS_MAX}"
    )
    reasons = replace(snapshot, parts=(newest,)).query(query).fetchall()
    return dg.MetadataValue.md(markdown.table(("rows of the newest part", "reason"), reasons))


# ------------------------------------------------------------------------------------------------ freshness


def check_freshness(context: CheckContext, settings: FreshnessCheck) -> Verdict:
    """Check that the newest rows are not too old. Fails only if that is certain."""
    arrival_ms, max_ms = context.health.no_rows_after_ms, settings.max_age // timedelta(milliseconds=1)
    if arrival_ms is None:
        return Verdict(False, f"{context.table.uri} has never had a row. {_REMEDY}")
    try:
        newest_ms, evidence = _newest(context, settings, arrival_ms, max_ms)
    except InvalidOption as error:  # the column does not exist, or is not a time
        return Verdict(False, str(error))
    metadata: dict[str, dg.MetadataValue] = {
        "newest rows": dg.MetadataValue.timestamp(newest_ms / 1000),
        "age (seconds)": dg.MetadataValue.int(max(context.now_ms - newest_ms, 0) // 1000),
        "age": dg.MetadataValue.text(context.age(newest_ms)),
    }
    if context.now_ms - newest_ms <= max_ms:
        return Verdict(True, f"The table is {context.age(newest_ms)} old at most: {evidence}.", metadata)
    limit = f"it should be at most {duration_text(max_ms)}"
    return Verdict(
        False, f"The table is over {context.age(newest_ms)} old, and {limit}: {evidence}. {_REMEDY}", metadata
    )


def _newest(context: CheckContext, settings: FreshnessCheck, arrival_ms: int, max_ms: int) -> tuple[int, str]:
    """Return the time of the newest rows, and how it is known. Raises InvalidOption."""
    if settings.column is None:
        return arrival_ms, f"no rows came after {_utc(arrival_ms)}"
    cutoff_ms = context.now_ms - max_ms
    value_ms = newest_value_ms(context, settings.column, settings.timezone, cutoff_ms=cutoff_ms)
    if value_ms is None:  # a newer value would have been written since, and none was, or only nulls
        return min(arrival_ms, cutoff_ms - 1), f"no value of '{settings.column}' was written since {_utc(cutoff_ms)}"
    # A value later than its own arrival is no evidence of freshness.
    return min(value_ms, arrival_ms), f"the greatest '{settings.column}' is {_utc(value_ms)}"


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(sep=" ", timespec="seconds")
