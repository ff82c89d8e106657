"""The process around the application: its sockets and signals, and the tenants' file, which may change meanwhile.

SIGTERM or SIGINT: nothing new is accepted, answers under way are finished for up to `stop_timeout_ms`, and the process
ends; a second signal ends it at once. SIGHUP: the tenants are loaded again, as they are when their file changes.
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
from icedb.services.proxy.access_log import ProxyAccessLog
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


def serve(path: Path, *, tell: Callable[[str], None]) -> None:
    """Serve what a configuration file says until a signal ends it. For the main thread of a process.

    `tell` gets one line when clients can connect. Raises InvalidOption for a wrong configuration, and OSError, which
    names the address, when nothing can listen there.
    """
    config = load_config(path)
    allow_connections(config.server.connections)
    with contextlib.ExitStack() as closing:
        errors = closing.enter_context(open_line_writer(sys.stderr.fileno(), "log"))
        configure_logging(errors, "icedb.proxy")
        access_lines = closing.enter_context(open_line_writer(sys.stdout.fileno(), "access log"))
        sockets = closing.enter_context(open_listeners(config.server))
        # A third less work per byte than asyncio's own loop. When it returns, no request is left that writes a line.
        uvloop.run(_serve(path, config, sockets, access_lines, tell))


async def _serve(
    path: Path,
    config: ProxyConfig,
    sockets: Listeners,
    access_lines: LineWriter,
    tell: Callable[[str], None],
) -> None:
    settings, metrics = config.server, ProxyMetrics()
    async with contextlib.AsyncExitStack() as closing:
        directory = FileDirectory(path, config)
        everywhere: TenantDirectory = directory
        if config.control_plane is not None:
            control_plane = ControlPlane(config.control_plane)
            closing.push_async_callback(control_plane.close)
            everywhere = DirectoryChain((directory, _CountedControlPlane(control_plane, metrics)))
        tables = TableCatalog(
            config.storage_options,
            refresh_ms=settings.refresh_ms,
            hold_ms=settings.hold_ms,
            tables_open=settings.tables_open,
            observer=metrics,
        )
        closing.callback(tables.close)

        def look() -> None:
            metrics.tables_open.set(tables.open_count)
            metrics.live_parts.set(tables.live_parts)
            metrics.lost_lines.set(access_lines.lost)

        app = ProxyApp(settings, everywhere, tables, TenantLimiter(), metrics, ProxyAccessLog(access_lines))
        server = HttpServer(app, settings, tls=True)
        reload = asyncio.Event()
        install_signal_handlers(server, reload)
        await closing.enter_async_context(background_task(reload_on_change(directory, reload, metrics.reloaded)))
        if sockets.admin is not None:
            admin = HttpServer(_admin_app(metrics, look, server), settings, connections=ADMIN_CONNECTIONS)
            await closing.enter_async_context(background_task(admin.serve([sockets.admin])))
        tell(f"icedb proxy: {sockets.text}; tenants in the file: {len(config.tenants)}")
        await server.serve([sockets.clients])
        schedule_forced_exit()


# ------------------------------------------------------------------------------------------------ while it runs


class _CountedControlPlane:
    """A control plane whose failures are counted."""

    def __init__(self, control_plane: ControlPlane, metrics: ProxyMetrics) -> None:
        self._control_plane = control_plane
        self._metrics = metrics

    async def find(self, access_key_id: str) -> KeyOwner | None:
        try:
            return await self._control_plane.find(access_key_id)
        except S3Error:
            self._metrics.control_plane_failed()
            raise


def _admin_app(metrics: ProxyMetrics, look: Callable[[], None], server: HttpServer) -> ASGIApp:
    """What operators ask: whether the process lives, whether it should get requests, and its numbers.

    `look` sets those that are not counted as they happen; it looks at what only the loop's own thread may look at.
    """
    # Of its own: the threads that all share may be asking a store which does not answer.
    aside = ThreadPoolExecutor(1, "icedb metrics")

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        if server.started and not server.should_exit:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("stopping\n", status_code=503)

    async def numbers(_: Request) -> Response:
        look()
        text = await asyncio.get_running_loop().run_in_executor(aside, metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return Starlette(routes=[Route("/health", health), Route("/ready", ready), Route("/metrics", numbers)])
