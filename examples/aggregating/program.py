"""Counters that merges aggregate: each request inserts a row, and merges leave one row for each minute and page."""

from __future__ import annotations

import icedb

__all__ = ["create_built_in", "create_with_query", "slowest_pages"]


def create_built_in(uri: str) -> icedb.Table:
    """Create a table with built-in aggregates (sum, count, min, max): `day`, `minute`, `page`, `ms`, `slowest`."""
    return icedb.Table.create(
        uri,
        partition_by=["day"],
        sort_by=["page", "minute"],
        # `views` is not inserted: each row counts as 1.
        merging=icedb.Aggregating(by=("day", "minute", "page"), sum=("ms",), max=("slowest",), count="views"),
    )


def create_with_query(uri: str) -> icedb.Table:
    """Create a table whose merges run a query. Here it keeps the address of the slowest request.

    `source_files` are the rows of the merged parts. A merge sees some parts of one partition, so the query must give
    the same result over its own results: sums of sums, the greatest of the greatest.
    """
    return icedb.Table.create(
        uri,
        partition_by=["day"],
        sort_by=["page", "minute"],
        merge_query="""
            SELECT day, minute, page, sum(ms)::BIGINT AS ms, max(slowest) AS slowest, sum(views)::BIGINT AS views,
                   arg_max(address, (slowest, address)) AS address
            FROM source_files GROUP BY day, minute, page
        """,
    )


def slowest_pages(table: icedb.Table, rows: str = "t") -> icedb.QueryResult:
    """Return views, mean and greatest milliseconds of each page. It adds up unmerged rows, so it is always right."""
    return table.query(f"""
        SELECT page, sum(views)::BIGINT AS views, sum(ms) / sum(views) AS mean_ms, max(slowest) AS slowest_ms
        FROM {rows} GROUP BY page ORDER BY slowest_ms DESC, page
    """)
