"""The Iceberg catalog in limits, logs and metrics, its errors if a table or the directory fails, and its caches."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.settings import IcebergSettings
from icedb.services.proxy.config.tenants import Scope, Tenant, TenantLimits, VirtualBucket
from icedb.services.proxy.iceberg.byte_cache import ByteCache
from icedb.services.proxy.iceberg.tokens import create_token
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.metrics import ProxyMetrics
from icedb.util.clock import SystemClock
from tests.support.proxy.proxy_worlds import HOST, KEY, HttpAnswer, ask_app, make_app

LOAD = "/iceberg/v1/namespaces/tables/tables/events"


class Catalog:
    """A proxy's application in this process, with a table."""

    def __init__(self, table: str, runner: asyncio.Runner, **options: Any) -> None:
        self.log, self.metrics, self.limiter = io.BytesIO(), ProxyMetrics(), TenantLimiter()
        self._runner = runner
        self.tables = TableCatalog(refresh_ms=0)
        app_options = {"limits": TenantLimits(1), "iceberg": IcebergSettings(**options)}
        buckets = [VirtualBucket("events", table), VirtualBucket("ones", table, Scope(("u=1",)))]
        self.app = make_app(
            self.tables, buckets, log=self.log, limiter=self.limiter, metrics=self.metrics, **app_options
        )

    def ask(self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> HttpAnswer:
        """Send a request with a token."""
        token = create_token(KEY, now_ms=SystemClock().now_ms(), expires_ms=60_000)
        all_headers = {"host": HOST, "authorization": f"Bearer {token}", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(n.encode(), v.encode()) for n, v in all_headers.items()],
            "client": ("127.0.0.1", 50_000),
        }
        return self._runner.run(ask_app(self.app, scope))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The access log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(str(tmp_path / "t"), partition_by=["u"])
    table.insert([{"u": 1, "n": 1}, {"u": 2, "n": 2}])
    return table


def test_operations_count_in_metrics_and_the_access_log(table: Table, runner: asyncio.Runner) -> None:
    catalog = Catalog(table.uri, runner)
    assert catalog.ask(LOAD).status == 200
    assert catalog.ask(LOAD, method="HEAD").status == 204
    assert catalog.ask(LOAD, method="DELETE").status == 405
    assert catalog.ask(LOAD, headers={"authorization": "Bearer x"}).status == 401
    text = catalog.metrics.text().decode()
    for operation, status in (("iceberg_load_table", 200), ("iceberg_table_exists", 204), ("Other", 405)):
        labels = f'operation="{operation}",status="{status}",tenant="acme"'
        assert f"icedb_proxy_requests_total{{{labels}}} 1.0" in text
    assert 'icedb_proxy_refused_requests_total{reason="NotAuthorizedException",tenant=""} 1.0' in text
    assert [(line["tenant"], line["status"], line["code"]) for line in catalog.lines] == [
        ("acme", 200, ""),
        ("acme", 204, ""),
        ("acme", 405, "UnsupportedOperationException"),
        (None, 401, "NotAuthorizedException"),
    ]


def test_the_limit_of_requests_holds(table: Table, runner: asyncio.Runner) -> None:
    catalog = Catalog(table.uri, runner)
    with catalog.limiter.enter(Tenant("acme", (KEY,), {}, TenantLimits(1))):
        answer = catalog.ask(LOAD)
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (503, "SlowDownException")
    assert answer.headers["retry-after"] == "1"
    assert catalog.ask(LOAD).status == 200


def test_a_table_that_cannot_be_read_is_an_error_without_its_address(tmp_path: Path, runner: asyncio.Runner) -> None:
    answer = Catalog(str(tmp_path / "nothing"), runner).ask(LOAD)
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (500, "InternalServerError")
    assert str(tmp_path).encode() not in answer.body
    assert b"Contact the operator" in answer.body


@pytest.mark.parametrize(
    ("endpoint", "expected"), [(None, f"http://{HOST}/"), ("https://a.example", "https://a.example/")]
)
def test_the_endpoint_is_that_of_the_settings_or_the_host(
    table: Table, runner: asyncio.Runner, endpoint: str | None, expected: str
) -> None:
    answer = Catalog(table.uri, runner, endpoint=endpoint).ask(LOAD)
    loaded = json.loads(answer.body)
    assert loaded["config"] == {
        "s3.endpoint": expected,
        "s3.access-key-id": KEY.id,
        "s3.secret-access-key": KEY.secret,
        "s3.region": "us-east-1",
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
    }
    assert answer.headers["cache-control"] == "no-store"
    assert loaded["metadata-location"].startswith("s3://events/metadata/00001-")


def test_the_catalog_offers_reads_only(table: Table, runner: asyncio.Runner) -> None:
    endpoints = json.loads(Catalog(table.uri, runner).ask("/iceberg/v1/config").body)["endpoints"]
    assert {endpoint.split(" ")[0] for endpoint in endpoints} == {"GET", "HEAD"}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints


def test_without_the_setting_there_is_no_catalog(table: Table, runner: asyncio.Runner) -> None:
    app = make_app(TableCatalog(refresh_ms=0), [VirtualBucket("events", table.uri)])
    catalog = Catalog(table.uri, runner)
    catalog.app = app
    answer = catalog.ask(LOAD)
    assert answer.code == "InvalidRequest"  # the signature of S3 is missing


def test_loads_of_an_unchanged_table_send_no_request_for_parts(table: Table, runner: asyncio.Runner) -> None:
    """Footers are read once, and only those of the bucket's own parts."""
    catalog = Catalog(table.uri, runner)
    path = LOAD.replace("events", "ones")
    first = catalog.ask(path)
    for part in table.snapshot().parts:
        Path(part.path).rename(f"{part.path}.moved")
    assert catalog.ask(path).body == first.body


def test_a_byte_cache_holds_at_most_its_bytes() -> None:
    cache: ByteCache[bytes] = ByteCache(10, len)
    for name in "abc":
        cache.put(name, b"x" * 4)
    assert [cache.get(name) is not None for name in "abc"] == [False, True, True]
    cache.put("b", b"x" * 6)
    assert cache.bytes == 10
    cache.put("d", b"x" * 100)
    assert (cache.bytes, cache.get("b"), cache.get("c")) == (100, None, None)
