"""The process of the proxy: sockets, signals, reload of tenants, shutdown.

On SIGTERM or SIGINT the process stops accepting connections, finishes responses for up to `stop_timeout_ms`, and exits.
A second signal kills it. On SIGHUP, and when the configuration file changes, it reloads the tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from icedb.services.http.config_reload import reload_on_change
from icedb.services.http.connections import ADMIN_CONNECTIONS, HttpServer
from icedb.services.http.log_lines import LineWriter
from icedb.services.http.server_process import (
    Listeners,
    allow_connections,
    background_task,
    configure_logging,
    install_signal_handlers,
    open_line_writer,
    open_listeners,
    schedule_forced_exit,
)
from icedb.services.proxy.app import ProxyApp
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.control_plane import ControlPlane
from icedb.services.proxy.config.settings import ProxyConfig
from icedb.services.proxy.config.tenant_directory import DirectoryChain, FileDirectory
from icedb.services.proxy.config.tenants import KeyOwner, TenantDirectory
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.metrics import CONTENT_TYPE, ProxyMetrics
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["serve"]


def serve(path: Path, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal stops the process. Call it in the main thread.

    Args:
        path: The configuration file.
        on_ready: Called with one line of text when clients can connect.

    Raises:
        InvalidOption: The configuration is invalid.
        OSError: An address, named in the message, cannot be used.
    """
    config = load_config(path)
    allow_connections(config.server.connections)
    with contextlib.ExitStack() as closing:
        errors = closing.enter_context(open_line_writer(sys.stderr.fileno(), "log"))
        configure_logging(errors, "icedb.proxy")
        access_lines = closing.enter_context(open_line_writer(sys.stdout.fileno(), "access log"))
        sockets = closing.enter_context(open_listeners(config.server))
        # uvloop needs a third less CPU per byte than asyncio's loop. When it returns, no request writes to the log.
        uvloop.run(_serve(path, config, sockets, access_lines, on_ready))


async def _serve(
    path: Path, config: ProxyConfig, sockets: Listeners, access_lines: LineWriter, on_ready: Callable[[str], None]
) -> None:
    settings, metrics = config.server, ProxyMetrics()
    async with contextlib.AsyncExitStack() as closing:
        directory = FileDirectory(path, config)
        chain: TenantDirectory = directory
        if config.control_plane is not None:
            control_plane = ControlPlane(config.control_plane)
            closing.push_async_callback(control_plane.close)
            chain = DirectoryChain((directory, _CountedControlPlane(control_plane, metrics)))
        tables = TableCatalog(
            config.storage_options,
            refresh_ms=settings.refresh_ms,
            hold_ms=settings.hold_ms,
            tables_open=settings.tables_open,
            observer=metrics,
        )
        closing.callback(tables.close)

        def update_gauges() -> None:
            metrics.tables_open.set(tables.open_count)
            metrics.live_parts.set(tables.live_parts)
            metrics.lost_lines.set(access_lines.lost)

        app = ProxyApp(settings, chain, tables, TenantLimiter(), metrics, access_lines)
        server = HttpServer(app, settings, tls=True)
        reload = asyncio.Event()
        install_signal_handlers(server, reload)
        await closing.enter_async_context(background_task(reload_on_change(directory, reload, metrics.record_reload)))
        if sockets.admin is not None:
            admin = HttpServer(_admin_app(metrics, update_gauges, server), settings, connections=ADMIN_CONNECTIONS)
            await closing.enter_async_context(background_task(admin.serve([sockets.admin])))
        on_ready(f"icedb proxy: {sockets.text}; tenants in the file: {len(config.tenants)}")
        await server.serve([sockets.clients])
        schedule_forced_exit()


# ------------------------------------------------------------------------------------------------ metrics


class _CountedControlPlane:
    """A control plane with a metric of its failures."""

    def __init__(self, control_plane: ControlPlane, metrics: ProxyMetrics) -> None:
        self._control_plane = control_plane
        self._metrics = metrics

    async def find(self, access_key_id: str) -> KeyOwner | None:
        try:
            return await self._control_plane.find(access_key_id)
        except S3Error:
            self._metrics.record_control_plane_error()
            raise


def _admin_app(metrics: ProxyMetrics, update_gauges: Callable[[], None], server: HttpServer) -> ASGIApp:
    """Return the application for operators: liveness, readiness, and metrics.

    `update_gauges` runs in the thread of the event loop, because it reads state of the loop.
    """
    # A separate thread: all threads of the shared pool may block on a store.
    executor = ThreadPoolExecutor(1, "icedb metrics")

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        if server.started and not server.should_exit:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("stopping\n", status_code=503)

    async def metrics_text(_: Request) -> Response:
        update_gauges()
        text = await asyncio.get_running_loop().run_in_executor(executor, metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return Starlette(routes=[Route("/health", health), Route("/ready", ready), Route("/metrics", metrics_text)])
