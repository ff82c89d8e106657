"""Clients and a table with two partitions for the tests of the v3 API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import boto3

from icedb.icedb import IceDBv3
from icedb.log import FileMarker, IceLogIO, S3Client
from tests.support.object_stores.stores import Place


def bucket_and_prefix(place: Place) -> tuple[str, str]:
    bucket, _, prefix = place.uri.removeprefix("s3://").partition("/")
    return bucket, prefix


def client(place: Place, **changed: Any) -> S3Client:
    """Return a v3 program's client for the table at a place in S3. `changed` replaces arguments by name."""
    options = place.storage_options or {}
    bucket, prefix = bucket_and_prefix(place)
    arguments = {
        "s3prefix": prefix,
        "s3bucket": bucket,
        "s3region": options["AWS_REGION"],
        "s3endpoint": options["AWS_ENDPOINT_URL"],
        "s3accesskey": options["AWS_ACCESS_KEY_ID"],
        "s3secretkey": options["AWS_SECRET_ACCESS_KEY"],
    }
    return S3Client(**{**arguments, **changed})


def by_p(row: Any) -> str:
    return f"p={row['p']}"


def program(place: Place, **changed: Any) -> IceDBv3:
    """Return the arguments of a v3 program: by default partitioned by p and sorted by n."""
    options = place.storage_options or {}
    arguments: dict[str, Any] = {
        "partition_function": by_p,
        "sort_order": ["n"],
        "s3_region": options["AWS_REGION"],
        "s3_access_key": options["AWS_ACCESS_KEY_ID"],
        "s3_secret_key": options["AWS_SECRET_ACCESS_KEY"],
        "s3_endpoint": options["AWS_ENDPOINT_URL"],
        "s3_client": changed.get("s3_client") or client(place),
        "path_safe_hostname": "tests-host",
        "s3_use_path": True,
    }
    return IceDBv3(**{**arguments, **changed})


def now_ms() -> int:
    return round(time.time() * 1000)


def markers(s3c: S3Client) -> list[FileMarker]:
    return IceLogIO("reader").read_at_max_time(s3c, now_ms())[1]


def alive(s3c: S3Client) -> list[FileMarker]:
    return [m for m in markers(s3c) if m.tombstone is None]


def log_files(s3c: S3Client) -> int:
    return len(IceLogIO("reader").get_current_log_files(s3c))


def objects(s3c: S3Client) -> set[str]:
    """Return all keys of the bucket in the folder of the test, listed by boto3."""
    folder = s3c.s3prefix.partition("/")[0]
    pages = _boto3(s3c.storage_options).get_paginator("list_objects_v2").paginate(Bucket=s3c.s3bucket, Prefix=folder)
    return {listed["Key"] for page in pages for listed in page.get("Contents", ())}


def _boto3(options: Mapping[str, str]) -> Any:
    """Return one client for all tests, because its creation takes half a second."""
    return _client(options["AWS_ENDPOINT_URL"], options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"])


@lru_cache(maxsize=4)
def _client(endpoint: str, key: str, secret: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1"
    )


def rows_of(ice: IceDBv3, sql: str = "SELECT * FROM rows") -> list[tuple[Any, ...]]:
    """Query the live parts like a v3 program: through the markers and its own DuckDB."""
    paths = [f"s3://{ice.data_s3c.s3bucket}/{m.path}" for m in alive(ice.log_s3c)]
    with ice.get_duckdb() as con:
        listed = con.execute(
            f"WITH rows AS (FROM read_parquet(?, union_by_name=1, hive_partitioning=1)) {sql}", [paths]
        )
        return listed.fetchall()
