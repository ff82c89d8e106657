"""Health checks and Prometheus metrics for operators."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

__all__ = ["Page", "ServiceMetrics", "admin_app"]

#: A page for operators. It runs in the event loop.
Page = Callable[[], Response | Awaitable[Response]]


class ServiceMetrics:
    """The metrics that every service has. Their names begin with `prefix`, such as `icedb_proxy`."""

    def __init__(self, prefix: str) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.in_progress = Gauge(f"{prefix}_requests_in_progress", "Requests in progress.", registry=registry)
        self.lost_lines = Gauge(
            f"{prefix}_access_log_lost_lines", "Lines of the access log that were lost.", registry=registry
        )
        self._reloads = self._outcomes(f"{prefix}_reloads", "Reloads of the tenants.")

    def record_reload(self, ok: bool) -> None:
        """Count a reload of the tenants; `ok` means that the file was valid."""
        self._count_outcome(self._reloads, ok)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus. Thread-safe. It can take a tenth of a second."""
        return generate_latest(self._registry)

    def _outcomes(self, name: str, help_text: str) -> Counter:
        """Return a counter of results. It starts at 0, because alerts need a sample before the first error."""
        counter = Counter(name, help_text, ("result",), registry=self._registry)
        for result in ("ok", "error"):
            counter.labels(result)
        return counter

    def _count_outcome(self, counter: Counter, ok: bool) -> None:
        counter.labels("ok" if ok else "error").inc()


def admin_app(pages: Mapping[str, Page], metrics: ServiceMetrics, update_gauges: Callable[[], None]) -> ASGIApp:
    """Return the application for operators: the health checks in `pages`, by path, and metrics.

    `update_gauges` runs in the thread of the event loop, because it reads state of the loop.
    """
    # A separate thread: all threads of the shared pool may block on a store.
    executor = ThreadPoolExecutor(1, "icedb metrics")

    async def metrics_text(_: Request) -> Response:
        update_gauges()
        text = await asyncio.get_running_loop().run_in_executor(executor, metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    def route(path: str, page: Page) -> Route:
        async def respond(_: Request) -> Response:
            response = page()
            return await response if inspect.isawaitable(response) else response

        return Route(path, respond)

    return Starlette(routes=[*(route(path, page) for path, page in pages.items()), Route("/metrics", metrics_text)])
