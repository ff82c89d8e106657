"""Health checks and Prometheus metrics for operators."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from icedb.services.http.metrics import ServiceMetrics

__all__ = ["Page", "admin_app"]

#: A page for operators. It runs in the event loop.
Page = Callable[[], Response | Awaitable[Response]]


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
