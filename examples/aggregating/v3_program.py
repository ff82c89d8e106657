"""The custom merge query as an IceDB v3 program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icedb.icedb import IceDBv3
from icedb.log import S3Client

__all__ = ["open_v3"]


def by_day(row: Mapping[str, Any]) -> str:
    """Return the path of a row's partition."""
    return f"day={row['day']}"


def open_v3(prefix: str, bucket: str, region: str, endpoint: str, access_key: str, secret_key: str) -> IceDBv3:
    """Open a v3 instance whose merges aggregate. Every program that merges the table must have the same query."""
    return IceDBv3(
        by_day,
        ["page", "minute"],
        region,
        access_key,
        secret_key,
        endpoint,
        S3Client(prefix, bucket, region, endpoint, access_key, secret_key),
        "web-1",
        s3_use_path=True,
        # `read_parquet(?, ...)` reads the merged files; `source_files` is an alias.
        custom_merge_query="""
            SELECT minute, page, sum(ms)::BIGINT AS ms, max(slowest) AS slowest, sum(views)::BIGINT AS views,
                   any_value(day) AS day
            FROM read_parquet(?, hive_partitioning = 1) GROUP BY minute, page
        """,
        # The inserted rows have no counter column, so the insert query adds one.
        custom_insert_query="SELECT *, 1::BIGINT AS views FROM _rows",
    )
