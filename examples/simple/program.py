"""A first program: insert events into a table, query it, and maintain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import icedb

__all__ = ["collect", "create", "tidy", "visits_by_day", "visits_of"]

Event = Mapping[str, object]


def create(uri: str) -> icedb.Table:
    """Create a table of events: `ts`, `tenant`, `user_id`, `event`. `uri` may be a folder, or `s3://bucket/prefix`."""
    return icedb.Table.create(
        uri,
        # A query with a condition on tenant or day opens only their parts.
        partition_by=["tenant", "strftime(ts, '%Y-%m-%d') AS day"],
        # Within a part, the rows of one user are adjacent, so a query of one user reads few row groups.
        sort_by=["user_id", "ts"],
    )


def collect(table: icedb.Table, number: int, batch: Sequence[Event]) -> int:
    """Insert a batch, and return the number of new rows. With a `txn` (idempotency key), retries add no rows."""
    commit = table.insert(batch, txn=("collector", number))
    return 0 if commit.repeated else commit.rows


def visits_by_day(table: icedb.Table) -> icedb.QueryResult:
    """Return the visitors, events and purchases of each tenant and day."""
    return table.query("""
        SELECT tenant, day, count(DISTINCT user_id) AS visitors, count(*) AS events,
               count(*) FILTER (event = 'buy') AS purchases
        FROM t GROUP BY ALL ORDER BY ALL
    """)


def visits_of(table: icedb.Table, tenant: str, user_id: int) -> icedb.QueryResult:
    """Return one user's events. `where` skips partitions and parts before any file is opened."""
    return table.query("SELECT ts, event FROM t ORDER BY ts", where=f"tenant = '{tenant}' AND user_id = {user_id:d}")


def tidy(table: icedb.Table) -> None:
    """Run maintenance: merge small parts and log files, and delete superseded objects (VACUUM)."""
    table.merge()
    table.merge_log()
    table.cleanup()
