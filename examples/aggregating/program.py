"""Counters that merges add up. Rows arrive one for each request; after merges there is one for each minute and page."""

from __future__ import annotations

import icedb

__all__ = ["create_ready_made", "create_with_query", "slowest_pages"]


def create_ready_made(uri: str) -> icedb.Table:
    """Sums, counts, least and greatest values are ready-made: `day`, `minute`, `page`, `ms`, `slowest`."""
    return icedb.Table.create(
        uri,
        partition_by=["day"],
        sort_by=["page", "minute"],
        # `views` is a column that nobody inserts: each row counts as 1.
        merging=icedb.Aggregating(by=("day", "minute", "page"), sum=("ms",), max=("slowest",), count="views"),
    )


def create_with_query(uri: str) -> icedb.Table:
    """Whatever else one SELECT can say, a merge can do: here, the slowest request stays with its address.

    `source_files` are the rows of the parts that are merged. A merge sees some parts of one partition, so the query
    must give the same when it is asked again of its own answers: sums of sums, the greatest of the greatest.
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
    """Of each page, views, mean and greatest milliseconds. Right at any time, for it adds up what is not merged yet."""
    return table.query(f"""
        SELECT page, sum(views)::BIGINT AS views, sum(ms) / sum(views) AS mean_ms, max(slowest) AS slowest_ms
        FROM {rows} GROUP BY page ORDER BY slowest_ms DESC, page
    """)
