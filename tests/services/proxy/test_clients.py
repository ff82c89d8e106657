"""Clients without knowledge of IceDB read tables through a real proxy in front of a real S3 server.

Each client gets exactly the rows of the table's own query, for the latest snapshot and for older ones. It gets no rows
of another tenant, none outside a scope, and none with a wrong secret.
"""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import obstore
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError

from icedb import Table
from icedb.format.records import Marker
from icedb.transaction.append import append
from tests.support.object_stores.stores import BUCKET, S3Server
from tests.support.proxy.proxy_clients import (
    BY_KEY,
    CLIENTS,
    Access,
    Group,
    arrow_files,
    boto3_client,
    duckdb_connection,
    obstore_store,
    run_aws,
)
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.s3

DOMAIN = "s3.example.com"
MANY = 5_000
# Values that paths must encode, or that clients could interpret.
ODD = ["a b", "a/b", "100%", "x=y", "1+1", "%20", "zürich", "日本", "a&b?c#d", "*", "[x]", "..", "'q'", "", None]

CONFIG = """
[server]
listen = "127.0.0.1:0"
domains = ["{domain}", "localhost"]

[storage_options]
{options}

[[tenant]]
name = "acme"
keys = [{{ id = "ACMEKEY1", secret = "{acme}" }}]
bucket = [
    {{ name = "events", table = "{lake}/events" }},
    {{ name = "odd", table = "{lake}/odd" }},
    {{ name = "many", table = "{many}" }},
]

[[tenant]]
name = "narrow"
keys = [{{ id = "NARROWKEY1", secret = "{narrow}" }}]
bucket = [{{ name = "events", table = "{lake}/events", partitions = ["u=42"] }}]

[[tenant]]
name = "other"
keys = [{{ id = "OTHERKEY1", secret = "{narrow}" }}]
bucket = [{{ name = "secrets", table = "{lake}/events" }}]
"""


@dataclass(frozen=True)
class ProxiedLake:
    """A proxy, the table of its bucket `events`, and its contents now and before the last merge and batch."""

    proxy: ProxyProcess
    events: Table
    latest: list[Group]
    older: list[Group]
    #: The time before them: a whole second, in unix milliseconds.
    before_ms: int
    acme: Access
    narrow: Access

    @property
    def before(self) -> datetime:
        return datetime.fromtimestamp(self.before_ms / 1000, UTC)


def _groups(table: Table, as_of: datetime | None = None) -> list[Group]:
    """Return the result of the clients' query from the table itself."""
    groups = table.query("SELECT u, count(*), sum(v) FROM t GROUP BY u ORDER BY u", as_of=as_of).fetchall()
    return [(u, rows, int(total)) for u, rows, total in groups]


@pytest.fixture(scope="module")
def world(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedLake]:
    lake = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    options = s3_server.storage_options
    events = Table.create(f"{lake}/events", partition_by=["d", "u"], sort_by=["n"], storage_options=options)
    _insert(events, 0)
    second = _insert(events, 1)
    before_ms = (second // 1000 + 1) * 1000
    time.sleep(max(0.0, before_ms / 1000 + 0.01 - time.time()))  # later commits are after that second
    assert events.merge().merged_parts > 0
    _insert(events, 2)
    odd = Table.create(f"{lake}/odd", partition_by=["name"], storage_options=options)
    odd.insert([{"name": name, "n": n} for n, name in enumerate(ODD)])
    many = tmp_path_factory.mktemp("many") / "table"
    _make_many(many)
    secrets = {"acme": uuid.uuid4().hex, "narrow": uuid.uuid4().hex}
    written = "\n".join(f'{name} = "{value}"' for name, value in options.items())
    config = CONFIG.format(domain=DOMAIN, options=written, lake=lake, many=many, **secrets)
    with ProxyProcess(config) as proxy:
        acme = Access(proxy.endpoint, "ACMEKEY1", secrets["acme"])
        narrow = Access(proxy.endpoint, "NARROWKEY1", secrets["narrow"])
        older = _groups(events, datetime.fromtimestamp(before_ms / 1000, UTC))
        yield ProxiedLake(proxy, events, _groups(events), older, before_ms, acme, narrow)


def _insert(table: Table, number: int) -> int:
    """Insert a batch of four partitions and return its time."""
    rows = range(number * 80, number * 80 + 80)
    commit = table.insert([{"d": f"2026-11-{20 + n % 2}", "u": 41 + n % 4 // 2, "n": n, "v": n * n} for n in rows])
    assert commit.created_ms is not None
    return commit.created_ms


def _make_many(path: Path) -> None:
    """Create a table of many parts in a folder, each a copy of the first: partition `p=<number>`, and `n = 7`."""
    table = Table.create(path, path_columns={"p": "BIGINT"}, storage_options={"fsync": "false"})
    (first,) = table.insert([{"p": 0, "n": 7}]).parts
    handle, now_ms = table.handle, table.handle.clock.now_ms()
    markers = []
    for number in range(1, MANY):
        key = handle.keys.part(f"p={number}", handle.clock.new_id())
        (path / key).parent.mkdir(parents=True)
        os.link(path / first.key, path / key)
        markers.append(Marker(key, first.bytes, now_ms, rows=1))
    append(handle, markers, {"n": "BIGINT"}, oldest_part_ms=now_ms)


def _logged(world: ProxiedLake, seen: int, enough: Callable[[list[str]], bool]) -> list[str]:
    """Return path and query of requests after `seen` lines of the access log, which follow the responses."""

    def lines() -> list[str]:
        return [f"{unquote(line['path'])}?{line['query']}" for line in world.proxy.access_log()[seen:]]

    wait_until(lambda: enough(lines()), "the requests are logged")
    return lines()


def _keys(access: Access, bucket: str) -> list[str]:
    pages = boto3_client(access).get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [object_["Key"] for page in pages for object_ in page.get("Contents", ())]


# ---------------------------------------------------------------------------------------- the same for each client

quick = pytest.mark.parametrize("client", [c for c in CLIENTS if c != "aws"])


@pytest.mark.sampled(days=6)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_the_result_of_the_tables_own_query(world: ProxiedLake, client: str) -> None:
    assert CLIENTS[client](world.acme, "events", "u", "v") == world.latest


@pytest.mark.sampled(days=3)
@quick
def test_a_tenant_of_one_partition_gets_its_rows_alone(world: ProxiedLake, client: str) -> None:
    expected = [group for group in world.latest if group[0] == 42]
    assert CLIENTS[client](world.narrow, "events", "u", "v") == expected != world.latest


@pytest.mark.sampled(days=3)
@quick
@pytest.mark.parametrize("spelling", ["milliseconds", "plain"])
def test_a_bucket_with_a_time_shows_that_snapshot(world: ProxiedLake, client: str, spelling: str) -> None:
    name = f"events--{world.before_ms}" if spelling == "milliseconds" else f"events--{world.before:%Y%m%dt%H%M%Sz}"
    assert CLIENTS[client](world.acme, name, "u", "v") == world.older != world.latest


# Other clients check the bucket's name, parse the text before `@` as a user, or sign the `@` differently from S3.
@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("client", ["duckdb", "chdb", "pyarrow", "pandas"])
def test_a_bucket_with_a_readable_time_shows_that_snapshot(world: ProxiedLake, client: str) -> None:
    result = CLIENTS[client](world.acme, f"events@{world.before:%Y-%m-%dT%H:%M:%SZ}", "u", "v")
    assert result == world.older


@pytest.mark.sampled(days=3)
@quick
def test_a_wrong_secret_is_refused(world: ProxiedLake, client: str) -> None:
    with pytest.raises(Exception, match=r"SignatureDoesNotMatch|403|ACCESS_DENIED"):
        CLIENTS[client](replace(world.acme, secret="x" * 32), "events", "u", "v")


@quick
def test_the_bucket_of_another_tenant_does_not_exist(world: ProxiedLake, client: str) -> None:
    with pytest.raises(Exception, match=r"NoSuchBucket|404|^secrets$"):
        CLIENTS[client](world.acme, "secrets", "u", "v")


@pytest.mark.sampled(days=3)
@quick
def test_a_client_reads_partitions_whose_names_are_encoded(world: ProxiedLake, client: str) -> None:
    result = CLIENTS[client](world.acme, "odd", "name", "n")
    expected = [(name, 1, n) for n, name in enumerate(ODD)]
    assert result == sorted(expected, key=lambda group: (group[0] is None, group[0] or ""))


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("client", BY_KEY)
def test_a_client_reads_objects_whose_keys_are_encoded(world: ProxiedLake, client: str) -> None:
    keys = _keys(world.acme, "odd")
    assert sum("%" in key for key in keys) >= 8
    assert sorted(BY_KEY[client](world.acme, "odd", keys)) == list(range(len(ODD)))


# ---------------------------------------------------------------------------------------- boto3


def test_boto3_pages_by_both_versions_of_the_listing(world: ProxiedLake) -> None:
    client = boto3_client(world.acme)
    keys = _keys(world.acme, "events")
    assert len(keys) == 8  # four merged parts, and the four of the last batch
    for operation in ("list_objects", "list_objects_v2"):
        pages = list(client.get_paginator(operation).paginate(Bucket="events", PaginationConfig={"PageSize": 3}))
        assert [len(page["Contents"]) for page in pages] == [3, 3, 2]
        assert [result["Key"] for page in pages for result in page["Contents"]] == keys
        days = client.get_paginator(operation).paginate(
            Bucket="events", Delimiter="/", PaginationConfig={"PageSize": 1}
        )
        assert [p["Prefix"] for p in days.search("CommonPrefixes")] == ["d=2026-11-20/", "d=2026-11-21/"]
    after = client.list_objects_v2(Bucket="events", StartAfter=keys[5], Prefix="d=2026-11-21/")
    assert [result["Key"] for result in after["Contents"]] == keys[6:]


def test_boto3_gets_parts_of_objects_on_conditions(world: ProxiedLake) -> None:
    client = boto3_client(world.acme)
    key = {"Bucket": "events", "Key": _keys(world.acme, "events")[0]}
    head, whole = client.head_object(**key), client.get_object(**key)
    body = whole["Body"].read()
    assert head["ContentLength"] == len(body)
    assert head["ETag"] == whole["ETag"]
    for range_, expected in [("bytes=4-11", body[4:12]), ("bytes=-8", body[-8:]), ("bytes=100-", body[100:])]:
        result = client.get_object(**key, Range=range_)
        assert result["Body"].read() == expected
        assert result["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert client.get_object(**key, IfMatch=head["ETag"])["Body"].read() == body
    for condition, status in [
        ({"IfNoneMatch": head["ETag"]}, 304),
        ({"IfModifiedSince": head["LastModified"]}, 304),
        ({"IfMatch": '"another"'}, 412),
        ({"IfUnmodifiedSince": datetime(2020, 1, 1, tzinfo=UTC)}, 412),
        ({"Range": f"bytes={len(body)}-"}, 416),
    ]:
        with pytest.raises(ClientError) as refused:
            client.get_object(**key, **condition)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status


def test_presigned_addresses_need_no_credentials(world: ProxiedLake) -> None:
    client = boto3_client(world.acme)
    key = _keys(world.acme, "odd")[0]
    address = client.generate_presigned_url("get_object", Params={"Bucket": "odd", "Key": key})
    body = client.get_object(Bucket="odd", Key=key)["Body"].read()
    assert _fetch(address) == body
    listing = client.generate_presigned_url("list_objects_v2", Params={"Bucket": "odd", "Prefix": key})
    assert b"<KeyCount>1</KeyCount>" in _fetch(listing)
    con = duckdb_connection(replace(world.acme, secret="x" * 32))  # the secret is for s3:// alone
    assert con.sql(f"SELECT count(*) FROM read_parquet('{address}')").fetchall() == [(1,)]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _fetch(address.replace("X-Amz-Expires=3600", "X-Amz-Expires=7200"))


def _fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return bytes(answer.read())


def test_buckets_can_be_hosts(world: ProxiedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def here(host: Any, *more: Any, **named: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(f".{DOMAIN}") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    endpoint = f"http://{DOMAIN}:{world.proxy.port}"
    client = boto3_client(world.acme, endpoint=endpoint, s3={"addressing_style": "virtual"})
    seen = len(world.proxy.access_log())
    for bucket in ("events", f"events--{world.before_ms}"):
        keys = [result["Key"] for result in client.list_objects_v2(Bucket=bucket)["Contents"]]
        assert keys == _keys(world.acme, bucket)
        assert client.get_object(Bucket=bucket, Key=keys[0])["Body"].read(4) == b"PAR1"
    odd = _keys(world.acme, "odd")
    assert all(client.head_object(Bucket="odd", Key=key)["ContentLength"] > 0 for key in odd)
    hosts = {line["host"] for line in world.proxy.access_log()[seen:]}
    assert {f"events.{DOMAIN}:{world.proxy.port}", f"odd.{DOMAIN}:{world.proxy.port}"} <= hosts


# ---------------------------------------------------------------------------------------- the AWS CLI


@pytest.mark.sampled(days=3)
def test_the_aws_cli_lists_copies_and_signs(world: ProxiedLake, tmp_path: Path) -> None:
    listed = _aws(world.acme, "s3", "ls", "--recursive", f"s3://events--{world.before_ms}")
    keys = [line.split()[-1] for line in listed.splitlines()]
    assert keys == _keys(world.acme, f"events--{world.before_ms}")
    days = json.loads(_aws(world.narrow, "s3api", "list-objects-v2", "--bucket=events", "--delimiter=/"))
    assert [result["Prefix"] for result in days["CommonPrefixes"]] == ["d=2026-11-20/", "d=2026-11-21/"]
    key, target = _keys(world.acme, "odd")[0], tmp_path / "first"
    result = json.loads(
        _aws(world.acme, "s3api", "get-object", "--bucket=odd", f"--key={key}", "--range=bytes=0-3", str(target))
    )
    assert result["ContentRange"].startswith("bytes 0-3/")
    assert target.read_bytes() == b"PAR1"
    _aws(world.acme, "s3", "sync", "--only-show-errors", "s3://odd/", str(tmp_path / "odd"))
    names = duckdb.sql(f"SELECT name FROM read_parquet('{tmp_path}/odd/**/*.parquet', hive_partitioning = false)")
    assert {name for (name,) in names.fetchall()} == set(ODD)
    address = _aws(world.acme, "s3", "presign", f"s3://odd/{key}").strip()
    assert _fetch(address)[:4] == b"PAR1"
    refused = run_aws(replace(world.acme, secret="x" * 32), "s3", "ls", "s3://events")
    assert "SignatureDoesNotMatch" in refused.stderr


def _aws(access: Access, *arguments: str) -> str:
    run = run_aws(access, *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


# ---------------------------------------------------------------------------------------- what engines do besides


@pytest.mark.sampled(days=3)
def test_duckdb_reads_partitions_globs_and_lists_of_files(world: ProxiedLake) -> None:
    con = duckdb_connection(world.acme)
    keys = _keys(world.acme, "events")
    assert [name for (name,) in con.sql("FROM glob('s3://events/**/*.parquet') ORDER BY 1").fetchall()] == [
        f"s3://events/{key}" for key in keys
    ]
    rows = "SELECT count(*), sum(v)::BIGINT FROM"
    day = con.sql(f"{rows} 's3://events/d=2026-11-21/*/*.parquet'").fetchall()
    assert day == world.events.query(f"{rows} t WHERE d = '2026-11-21'").fetchall()
    narrow = con.sql(f"{rows} 's3://events/d=*/u=42/*.parquet'").fetchall()
    assert narrow == world.events.query(f"{rows} t WHERE u = 42").fetchall()
    files = ", ".join(f"'s3://events/{key}'" for key in keys[:3])
    assert con.sql(f"SELECT count(DISTINCT filename) FROM read_parquet([{files}], filename = true)").fetchall() == [
        (3,)
    ]
    odd = "read_parquet('s3://odd/**/*.parquet', hive_partitioning = true)"
    assert con.execute(f"SELECT n FROM {odd} WHERE name = ?", ["a&b?c#d"]).fetchall() == [(8,)]
    hosts = duckdb_connection(world.acme, host=f"localhost:{world.proxy.port}", url_style="vhost")
    assert hosts.sql("SELECT count(*) FROM 's3://events/**/*.parquet'").fetchall() == [(240,)]


@pytest.mark.sampled(days=3)
def test_duckdb_globs_over_many_parts_page_by_page(world: ProxiedLake) -> None:
    con = duckdb_connection(world.acme)
    seen = len(world.proxy.access_log())
    numbers = "regexp_extract(file, 'p=(\\d+)/', 1)::BIGINT"
    result = con.sql(f"SELECT count(*), count(DISTINCT {numbers}), sum({numbers})::BIGINT FROM glob('s3://many/**')")
    assert result.fetchall() == [(MANY, MANY, MANY * (MANY - 1) // 2)]
    # DuckDB may start more than one listing.
    lines = _logged(world, seen, lambda result: len(_further(result)) >= MANY // 1_000 - 1)
    assert len(_further(lines)) == MANY // 1_000 - 1
    rows = "read_parquet('s3://many/**/*.parquet', hive_partitioning = true)"
    edges = con.sql(f"SELECT count(*), sum(p)::BIGINT, sum(n)::BIGINT FROM {rows} WHERE p % 250 = 0").fetchall()
    assert edges == [(20, sum(range(0, MANY, 250)), 140)]


def _further(lines: list[str]) -> set[str]:
    return {line for line in lines if "continuation-token" in line}


@pytest.mark.slow(seconds=30)
def test_duckdb_reads_many_parts(world: ProxiedLake) -> None:
    con = duckdb_connection(world.acme)
    rows = "read_parquet('s3://many/**/*.parquet', hive_partitioning = true)"
    result = con.execute(f"SELECT count(*), sum(p)::BIGINT, sum(n)::BIGINT FROM {rows}").fetchall()
    assert result == [(MANY, MANY * (MANY - 1) // 2, 7 * MANY)]


@pytest.mark.sampled(days=3)
def test_boto3_follows_many_pages_of_the_first_version(world: ProxiedLake) -> None:
    pages = list(boto3_client(world.acme).get_paginator("list_objects").paginate(Bucket="many"))
    assert [len(page["Contents"]) for page in pages] == [1_000] * 5
    assert [result["Key"] for page in pages for result in page["Contents"]] == _keys(world.acme, "many")


def test_arrow_prunes_partitions_by_their_paths(world: ProxiedLake) -> None:
    seen = len(world.proxy.access_log())
    columns = pa.schema([("d", pa.string()), ("u", pa.int64())])
    partitioning = ds.partitioning(columns, flavor="hive")
    result = ds.dataset("events", filesystem=arrow_files(world.acme), partitioning=partitioning)
    assert result.count_rows(filter=(ds.field("u") == 42) & (ds.field("d") == "2026-11-21")) == 60
    lines = _logged(world, seen, lambda result: sum(".parquet" in line for line in result) >= 3)
    first, *others = dict.fromkeys(line for line in lines if ".parquet" in line)
    assert first.startswith("/events/d=2026-11-20/u=41/")  # for the types
    assert len(others) == 2
    assert all(line.startswith("/events/d=2026-11-21/u=42/") for line in others)


@pytest.mark.sampled(days=3)
def test_obstore_lists_folders_and_reads_many_ranges(world: ProxiedLake) -> None:
    store = obstore_store(world.acme, "events")
    folders = obstore.list_with_delimiter(store, "d=2026-11-20")
    assert folders["common_prefixes"] == [f"d=2026-11-20/u={u}" for u in (41, 42)]
    assert folders["objects"] == []
    key = _keys(world.acme, "events")[0]
    body = obstore.get(store, key).bytes().to_bytes()
    assert obstore.head(store, key)["size"] == len(body)
    ranges = obstore.get_ranges(store, key, starts=[0, 500, len(body) - 4], ends=[4, 600, len(body)])
    assert [bytes(r) for r in ranges] == [body[:4], body[500:600], b"PAR1"]
    assert pq.read_metadata(pa.BufferReader(body)).num_rows in (20, 40)
