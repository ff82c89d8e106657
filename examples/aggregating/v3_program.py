"""The custom merge query as a program of IceDB v3 has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icedb.icedb import IceDBv3
from icedb.log import S3Client

__all__ = ["open_v3"]


def by_day(row: Mapping[str, Any]) -> str:
    """The path of a row's partition."""
    return f"day={row['day']}"


def open_v3(prefix: str, bucket: str, region: str, endpoint: str, access_key: str, secret_key: str) -> IceDBv3:
    """A v3 instance whose merges add up. The query is the program's: every program that merges must have the same."""
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
        # `read_parquet(?, ...)` are the files that are merged; source_files is another name of them.
        custom_merge_query="""
            SELECT minute, page, sum(ms)::BIGINT AS ms, max(slowest) AS slowest, sum(views)::BIGINT AS views,
                   any_value(day) AS day
            FROM read_parquet(?, hive_partitioning = 1) GROUP BY minute, page
        """,
        # A v3 row has no column for what is not counted yet, so the insert makes one.
        custom_insert_query="SELECT *, 1::BIGINT AS views FROM _rows",
    )
