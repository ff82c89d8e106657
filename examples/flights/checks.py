"""Checks of the demo: the tables after each step, against counts of the raw file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import icedb
from examples.flights.expected import FlightCounts
from examples.shared.numbers import NumbersDisagree, agree
from icedb.errors import SnapshotExpired
from spark_jobs.ingest_flights import BATCHES

__all__ = ["NumbersDisagree", "busiest", "cleaned", "dropped", "ingested", "merged", "statistics", "travelled"]

# The batches interleave so that each day gets rows from three of them.
PARTS_PER_DAY_MIN = 3


def _agree(name: str, actual: object, expected: object) -> None:
    agree(name, actual, expected, source="the raw file")


def _by_month(table: icedb.Table, *, as_of: int | None = None) -> dict[int, int]:
    rows = table.query("SELECT month, count(*) FROM t GROUP BY month", as_of=as_of).fetchall()
    return {int(month): int(count) for month, count in rows}


def ingested(table: icedb.Table, expected: FlightCounts) -> None:
    """Check rows, nulls and months; at least twelve commits, and three parts a day."""
    snapshot = table.snapshot()
    [(rows, departed)] = snapshot.query("SELECT count(*), count(departure) FROM t").fetchall()
    _agree("rows", rows, expected.rows)
    _agree("departures that are null", rows - departed, expected.departures_missing)
    _agree("rows by month", _by_month(table), dict(expected.by_month))
    parts = Counter(p.partition for p in snapshot.parts)
    _agree("days", len(parts), len(expected.by_day))
    if min(parts.values()) < PARTS_PER_DAY_MIN:
        raise NumbersDisagree(
            f"a day has {min(parts.values())} parts before the merge, not at least {PARTS_PER_DAY_MIN}"
        )
    commits = len({p.created_ms for p in snapshot.parts})
    if commits < BATCHES:
        raise NumbersDisagree(f"the parts came in {commits} commits, not {BATCHES}")


def statistics(table: icedb.Table, expected: FlightCounts) -> None:
    """Check for one row for each carrier and month, with its flights."""
    rows = table.query("SELECT carrier, month, flights FROM t").fetchall()
    flights = {(carrier, int(month[-2:])): flights for carrier, month, flights in rows}
    _agree("rows of the statistics", len(rows), len(expected.by_carrier_and_month))
    _agree("flights by carrier and month", flights, dict(expected.by_carrier_and_month))


def merged(table: icedb.Table, expected: FlightCounts) -> None:
    """Check for the same rows, with one part a day."""
    snapshot = table.snapshot()
    _agree("rows after the merge", snapshot.rows, expected.rows)
    _agree("rows by month after the merge", _by_month(table), dict(expected.by_month))
    _agree("parts after the merge", len(snapshot.parts), len(expected.by_day))


def dropped(table: icedb.Table, expected: FlightCounts, *, first_month: int) -> None:
    """Check that no row and no part before `first_month` remains."""
    snapshot = table.snapshot()
    _agree("rows after the drop", snapshot.rows, expected.rows_from(first_month))
    _agree("days after the drop", len(snapshot.partitions()), expected.days_from(first_month))


def travelled(table: icedb.Table, as_of_ms: int, expected: FlightCounts, *, first_month: int) -> tuple[int, int]:
    """Return the rows of the dropped months as of `as_of_ms`, and now."""
    then, now = _by_month(table, as_of=as_of_ms), _by_month(table)
    _agree("rows by month before the drop", then, dict(expected.by_month))
    _agree("rows by month now", now, {m: n for m, n in expected.by_month.items() if m >= first_month})
    return sum(n for m, n in then.items() if m < first_month), sum(n for m, n in now.items() if m < first_month)


def cleaned(table: icedb.Table, before_ms: int, expected: FlightCounts, *, first_month: int) -> None:
    """Check for the same rows, only live objects, and no older snapshot."""
    snapshot = table.snapshot()
    stored = {o.key for o in table.handle.store.list(table.handle.keys.data_prefix)}
    _agree("rows after cleanup", snapshot.query("SELECT * FROM t").count("*").fetchone(), (snapshot.rows,))
    _agree("rows after cleanup", snapshot.rows, expected.rows_from(first_month))
    _agree("stored parts", stored, {p.key for p in snapshot.parts})
    try:
        table.snapshot(before_ms)
    except SnapshotExpired:
        return
    raise NumbersDisagree("a snapshot from before the drop can still be taken after cleanup")


def busiest(ranks: Sequence[tuple[str, int]], expected: FlightCounts, *, first_month: int) -> None:
    """Check the ranks of the carriers."""
    _agree("busiest carriers", list(ranks), expected.busiest_from(first_month, len(ranks)))
