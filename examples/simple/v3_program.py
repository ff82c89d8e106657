"""The simple example as an unchanged IceDB v3 program: v3's names and arguments, and a bucket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from icedb.icedb import CompressionCodec, IceDBv3
from icedb.log import IceLogIO, S3Client

__all__ = ["open_v3", "visits_by_day"]


def by_tenant_and_day(row: Mapping[str, Any]) -> str:
    """Return the path of a row's partition. Its names become columns of every query, so rows must not have them."""
    return f"cust={row['tenant']}/d={datetime.fromtimestamp(row['ts'] / 1000, UTC):%Y-%m-%d}"


def open_v3(prefix: str, bucket: str, region: str, endpoint: str, access_key: str, secret_key: str) -> IceDBv3:
    """Open a v3 instance. Any number of instances, on any number of machines, may insert concurrently."""
    client = S3Client(prefix, bucket, region, endpoint, access_key, secret_key)
    return IceDBv3(
        by_tenant_and_day,
        ["user_id", "ts"],
        region,
        access_key,
        secret_key,
        endpoint,
        client,
        "web-1",
        s3_use_path=True,  # for your own server; not for AWS
        compression_codec=CompressionCodec.ZSTD,
    )


def visits_by_day(ice: IceDBv3) -> list[tuple[Any, ...]]:
    """Query as v3 programs do: the log lists the live files, and DuckDB reads them."""
    client = ice.log_s3c
    _, markers, _, _ = IceLogIO("reader").read_at_max_time(client, round(time.time() * 1000))
    live = [f"s3://{client.s3bucket}/{marker.path}" for marker in markers if marker.tombstone is None]
    answer = ice.get_duckdb().execute(
        """
        SELECT tenant, CAST(d AS VARCHAR) AS day, count(DISTINCT user_id), count(*),
               count(*) FILTER (event = 'buy')
        FROM read_parquet(?, hive_partitioning = 1) GROUP BY ALL ORDER BY ALL
        """,
        [live],
    )
    return answer.fetchall()
