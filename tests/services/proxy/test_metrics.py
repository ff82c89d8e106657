"""Metrics of the proxy: the limit on tenants, and scrapes that do not block requests."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import PlainTextResponse

from icedb.services.http.admin import admin_app
from icedb.services.proxy.metrics import TENANTS_MAX, ProxyMetrics
from tests.support.waiting import SECONDS_MAX


def samples(metrics: ProxyMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Return samples by the values of their labels, the tenant first."""
    return {
        tuple(value for _, value in sorted(sample.labels.items(), reverse=True)): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == name
    }


def answer(metrics: ProxyMetrics, tenant: str, operation: str = "GetObject", status: int = 200) -> None:
    metrics.record_response(tenant, operation, status, "", 0.1, 100)


def test_metrics_of_the_least_recent_tenants_are_dropped() -> None:
    metrics = ProxyMetrics(tenants_max=2)
    for operation, status in (("GetObject", 200), ("GetObject", 404), ("HeadObject", 200)):
        answer(metrics, "first", operation, status)
    metrics.record_response("first", "GetObject", 403, "AccessDenied", 0.1, 0)
    answer(metrics, "second")
    answer(metrics, "first")
    answer(metrics, "third")
    assert samples(metrics, "icedb_proxy_requests_total") == {
        ("first", "200", "GetObject"): 2,
        ("first", "403", "GetObject"): 1,
        ("first", "404", "GetObject"): 1,
        ("first", "200", "HeadObject"): 1,
        ("third", "200", "GetObject"): 1,
    }
    assert samples(metrics, "icedb_proxy_sent_bytes_total") == {("first",): 400, ("third",): 100}
    assert samples(metrics, "icedb_proxy_refused_requests_total") == {("first", "AccessDenied"): 1}
    answer(metrics, "second")
    assert "first" not in metrics.text().decode(), "with all of its labels"
    assert samples(metrics, "icedb_proxy_sent_bytes_total")["second",] == 100, "a tenant that returns starts at 0"
    assert samples(metrics, "icedb_proxy_request_duration_seconds_count") == {("GetObject",): 7, ("HeadObject",): 1}


def test_the_text_is_limited_however_many_tenants_there_are() -> None:
    metrics = ProxyMetrics()
    for number in range(3 * TENANTS_MAX):
        answer(metrics, f"tenant{number}")
    assert len(samples(metrics, "icedb_proxy_requests_total")) == TENANTS_MAX
    assert len(samples(metrics, "icedb_proxy_sent_bytes_total")) == TENANTS_MAX


def test_metrics_can_be_scraped_while_tenants_change() -> None:
    metrics = ProxyMetrics(tenants_max=50)
    done = threading.Event()

    def collect() -> int:
        times = 0
        while not done.is_set():
            assert metrics.text().endswith(b"\n")
            times += 1
        return times

    with ThreadPoolExecutor(1) as aside:
        collecting = aside.submit(collect)
        for number in range(5_000):
            answer(metrics, f"tenant{number}")
        done.set()
        assert collecting.result() > 0


def test_a_scrape_does_not_block_requests() -> None:
    healthy = threading.Event()

    class Slow(ProxyMetrics):
        def text(self) -> bytes:
            return b"in time" if healthy.wait(SECONDS_MAX) else b"too late"

    looked = threading.Event()
    app = admin_app({"/health": lambda: PlainTextResponse("ok\n")}, Slow(), looked.set)

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
            numbers = asyncio.create_task(client.get("/metrics"))
            while not looked.is_set():
                await asyncio.sleep(0)
            assert (await client.get("/health")).status_code == 200
            healthy.set()
            return (await numbers).text

    assert asyncio.run(ask()) == "in time"
