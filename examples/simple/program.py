"""Events into a table, and questions to it: all that a first program needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import icedb

__all__ = ["collect", "create", "tidy", "visits_by_day", "visits_of"]

Event = Mapping[str, object]


def create(uri: str) -> icedb.Table:
    """A table of events: `ts`, `tenant`, `user_id`, `event`. `uri` may be a folder, or `s3://bucket/prefix`."""
    return icedb.Table.create(
        uri,
        # Parts of other tenants and days are never opened by a query that names its own.
        partition_by=["tenant", "strftime(ts, '%Y-%m-%d') AS day"],
        # Within a part, rows of one user lie together: few row groups are read for one of them.
        sort_by=["user_id", "ts"],
    )


def collect(table: icedb.Table, number: int, batch: Sequence[Event]) -> int:
    """Insert a batch; the rows that are new. With a `txn`, a batch that is sent again is not there twice."""
    commit = table.insert(batch, txn=("collector", number))
    return 0 if commit.repeated else commit.rows


def visits_by_day(table: icedb.Table) -> icedb.QueryResult:
    """How many people came to each tenant on each day, and what they did."""
    return table.query("""
        SELECT tenant, day, count(DISTINCT user_id) AS visitors, count(*) AS events,
               count(*) FILTER (event = 'buy') AS purchases
        FROM t GROUP BY ALL ORDER BY ALL
    """)


def visits_of(table: icedb.Table, tenant: str, user_id: int) -> icedb.QueryResult:
    """What one person did. `where` leaves out partitions and parts before a file is opened."""
    return table.query("SELECT ts, event FROM t ORDER BY ts", where=f"tenant = '{tenant}' AND user_id = {user_id:d}")


def tidy(table: icedb.Table) -> None:
    """What is to run now and then: many small parts become few, and what nobody can see any more is deleted."""
    table.merge()
    table.merge_log()
    table.cleanup()
