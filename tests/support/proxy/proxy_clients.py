"""S3 clients of other projects, each with the same query through the proxy.

One place has the settings with which each client reaches the proxy, for the tests and the pages.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from botocore.config import Config

from icedb.sql.connections import load_httpfs, quote_text

REGION = "us-east-1"
_AWS_SECONDS_MAX = 120

#: The value of a column, how many rows have it, and the sum of another column over these.
Group = tuple[Any, int, int]


@dataclass(frozen=True)
class Access:
    """The address of a proxy, and a key pair of a tenant."""

    endpoint: str
    key_id: str
    secret: str = field(repr=False)

    @property
    def host(self) -> str:
        """Host and port."""
        return self.endpoint.removeprefix("http://")

    @property
    def object_store(self) -> dict[str, str]:
        """Return the options of libraries that use Rust's `object_store`."""
        return {
            "aws_endpoint_url": self.endpoint,
            "aws_access_key_id": self.key_id,
            "aws_secret_access_key": self.secret,
            "aws_region": REGION,
            "aws_allow_http": "true",
        }


def boto3_client(access: Access, *, endpoint: str = "", **config: Any) -> Any:
    """Return a client that signs with version 4. By default, boto3 signs presigned addresses with version 2."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint or access.endpoint,
        aws_access_key_id=access.key_id,
        aws_secret_access_key=access.secret,
        region_name=REGION,
        config=Config(signature_version="s3v4", **config),
    )


def run_aws(access: Access, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the AWS CLI."""
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write("[default]\ns3 =\n  signature_version = s3v4\n")
        file.flush()
        env = {
            **os.environ,
            "AWS_CONFIG_FILE": file.name,
            "AWS_ENDPOINT_URL": access.endpoint,
            "AWS_ACCESS_KEY_ID": access.key_id,
            "AWS_SECRET_ACCESS_KEY": access.secret,
            "AWS_REGION": REGION,
        }
        return subprocess.run(
            [sys.executable, str(Path(sys.executable).with_name("aws")), *arguments],
            capture_output=True,
            text=True,
            env=env,
            timeout=_AWS_SECONDS_MAX,
        )


def duckdb_connection(access: Access, *, host: str = "", url_style: str = "path") -> duckdb.DuckDBPyConnection:
    """DuckDB with its S3 extension and a secret."""
    con = duckdb.connect()
    load_httpfs(con)
    con.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID {quote_text(access.key_id)}, SECRET {quote_text(access.secret)}, "
        f"ENDPOINT {quote_text(host or access.host)}, USE_SSL false, URL_STYLE '{url_style}', REGION '{REGION}')"
    )
    return con


def arrow_files(access: Access) -> pafs.S3FileSystem:
    """Arrow's own S3 client."""
    return pafs.S3FileSystem(
        endpoint_override=access.host, scheme="http", access_key=access.key_id, secret_key=access.secret, region=REGION
    )


def obstore_store(access: Access, bucket: str) -> Any:
    """obstore, which does not try again."""
    from obstore.store import S3Store

    return S3Store(
        bucket,
        endpoint=access.endpoint,
        access_key_id=access.key_id,
        secret_access_key=access.secret,
        region=REGION,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def datafusion_context(access: Access, bucket: str) -> Any:
    """DataFusion, for which each bucket is a store."""
    import datafusion
    from datafusion.object_store import AmazonS3

    context = datafusion.SessionContext()
    store = AmazonS3(
        bucket_name=bucket,
        region=REGION,
        access_key_id=access.key_id,
        secret_access_key=access.secret,
        endpoint=access.endpoint,
        allow_http=True,
    )
    context.register_object_store("s3://", store, bucket)
    return context


def query_chdb(sql: str) -> pa.Table:
    """chDB's answer."""
    import chdb

    return chdb.query(sql, "ArrowTable")  # type: ignore[no-untyped-call]


def chdb_table(access: Access, address: str) -> str:
    """Return chDB's expression for Parquet at `<bucket>/<path>`, with `%` and non-ASCII characters percent-encoded."""
    return f"s3('{access.endpoint}/{address}', '{access.key_id}', '{access.secret}', 'Parquet')"


def ask_duckdb(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    with duckdb_connection(access) as con:
        relation = f"read_parquet('s3://{bucket}/**/*.parquet', hive_partitioning = true)"
        return _in_order(con.sql(f"SELECT {by}, count(*), sum({of}) FROM {relation} GROUP BY ALL").fetchall())


def ask_chdb(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    """Use the columns in the parts, because chDB does not decode values of paths."""
    query = f"SELECT {by} AS by, count() AS rows, sum({of}) AS of FROM {chdb_table(access, f'{bucket}/**/*.parquet')}"
    return _groups(query_chdb(f"{query} GROUP BY by SETTINGS use_hive_partitioning = 0").to_pylist())


def ask_polars(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    import polars as pl

    relation = pl.scan_parquet(f"s3://{bucket}/**/*.parquet", storage_options=access.object_store)
    return _in_order(relation.group_by(by).agg(pl.len(), pl.col(of).sum()).collect().rows())


def ask_pyarrow(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    """Without `partitioning`: the columns are in the parts too, and Arrow would guess narrower types from the paths."""
    relation = ds.dataset(bucket, filesystem=arrow_files(access), format="parquet", partitioning=None)
    return _grouped([relation.to_table(columns=[by, of])], by, of)


def ask_pandas(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    import pandas as pd

    relation = pd.read_parquet(bucket, filesystem=arrow_files(access), partitioning=None, dtype_backend="pyarrow")
    grouped = relation.groupby(by, dropna=False)[of].agg(["size", "sum"])
    rows = ((None if pd.isna(value) else value, int(size), int(total)) for value, size, total in grouped.itertuples())
    return _in_order(rows)


def ask_datafusion(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    context = datafusion_context(access, bucket)
    context.register_parquet("t", f"s3://{bucket}/")
    answer = context.sql(f'SELECT {by} AS by, count(*) AS "rows", sum({of}) AS of FROM t GROUP BY {by}')
    return _groups(answer.to_arrow_table().to_pylist())


def ask_obstore(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    import obstore

    store = obstore_store(access, bucket)
    keys = [meta["path"] for page in obstore.list(store) for meta in page]
    return _grouped([parquet_of(obstore.get(store, k).bytes()) for k in keys], by, of)


def ask_boto3(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    client = boto3_client(access)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [relation["Key"] for page in pages for relation in page.get("Contents", ())]
    return _grouped([parquet_of(client.get_object(Bucket=bucket, Key=k)["Body"].read()) for k in keys], by, of)


def ask_aws(access: Access, bucket: str, by: str, of: str) -> list[Group]:
    """Copied to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_aws(access, "s3", "cp", "--recursive", "--only-show-errors", f"s3://{bucket}/", folder)
        if run.returncode:
            raise RuntimeError(run.stderr)
        return _grouped([pq.read_table(p, partitioning=None) for p in Path(folder).rglob("*.parquet")], by, of)


#: Each gives, of all that a bucket shows, the groups by one column with the sums of another, in order.
Ask = Callable[[Access, str, str, str], list[Group]]
CLIENTS: dict[str, Ask] = {
    "duckdb": ask_duckdb, "chdb": ask_chdb, "polars": ask_polars, "pyarrow": ask_pyarrow, "pandas": ask_pandas,
    "datafusion": ask_datafusion, "obstore": ask_obstore, "boto3": ask_boto3, "aws": ask_aws,
}  # fmt: skip


def _one_duckdb(access: Access, bucket: str, keys: list[str]) -> list[int]:
    with duckdb_connection(access) as con:
        return [
            n
            for k in keys
            for (n,) in con.sql(f"SELECT n FROM read_parquet({quote_text(f's3://{bucket}/{k}')})").fetchall()
        ]


def _one_chdb(access: Access, bucket: str, keys: list[str]) -> list[int]:
    tables = [chdb_table(access, f"{bucket}/{quote(k, safe='/=')}") for k in keys]
    return [n for t in tables for n in query_chdb(f"SELECT n FROM {t}")["n"].to_pylist()]


def _one_polars(access: Access, bucket: str, keys: list[str]) -> list[int]:
    import polars as pl

    relation = (pl.scan_parquet(f"s3://{bucket}/{k}", storage_options=access.object_store) for k in keys)
    return [n for frame in relation for n in frame.collect()["n"].to_list()]


def _one_pyarrow(access: Access, bucket: str, keys: list[str]) -> list[int]:
    files = arrow_files(access)
    tables = (pq.read_table(f"{bucket}/{k}", filesystem=files, partitioning=None) for k in keys)
    return [n for table in tables for n in table["n"].to_pylist()]


def _one_datafusion(access: Access, bucket: str, keys: list[str]) -> list[int]:
    """It takes what it is given for an address, and decodes it."""
    context = datafusion_context(access, bucket)
    tables = (context.read_parquet(f"s3://{bucket}/{quote(k, safe='/=')}").to_arrow_table() for k in keys)
    return [n for table in tables for n in table["n"].to_pylist()]


def _one_obstore(access: Access, bucket: str, keys: list[str]) -> list[int]:
    import obstore

    store = obstore_store(access, bucket)
    return [n for k in keys for n in parquet_of(obstore.get(store, k).bytes())["n"].to_pylist()]


def _one_boto3(access: Access, bucket: str, keys: list[str]) -> list[int]:
    client = boto3_client(access)
    bodies = (client.get_object(Bucket=bucket, Key=k)["Body"].read() for k in keys)
    return [n for body in bodies for n in parquet_of(body)["n"].to_pylist()]


#: Each returns the values of the column `n` of the objects with these keys, in order.
BY_KEY: dict[str, Callable[[Access, str, list[str]], list[int]]] = {
    "duckdb": _one_duckdb, "chdb": _one_chdb, "polars": _one_polars, "pyarrow": _one_pyarrow,
    "datafusion": _one_datafusion, "obstore": _one_obstore, "boto3": _one_boto3,
}  # fmt: skip


def parquet_of(body: Any) -> pa.Table:
    """Return the rows of a part's bytes."""
    return pq.read_table(io.BytesIO(body), partitioning=None)


def _grouped(tables: list[pa.Table], by: str, of: str) -> list[Group]:
    rows = pa.concat_tables(t.select([by, of]) for t in tables)
    answer = rows.group_by(by).aggregate([([], "count_all"), (of, "sum")])
    return _in_order(zip(*(answer[name].to_pylist() for name in (by, "count_all", f"{of}_sum")), strict=True))


def _groups(rows: list[dict[str, Any]]) -> list[Group]:
    return _in_order((row["by"], row["rows"], row["of"]) for row in rows)


def _in_order(rows: Iterable[tuple[Any, ...]]) -> list[Group]:
    groups = [(value, int(count), int(total)) for value, count, total in rows]
    return sorted(groups, key=lambda group: (group[0] is None, group[0]))
