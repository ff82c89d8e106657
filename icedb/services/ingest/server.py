"""The process of the ingest service: sockets, signals, reload of tenants, shutdown.

On SIGTERM or SIGINT the process stops accepting connections. It commits pending rows at once, and sends their
responses for up to `stop_timeout_ms`. Then it exits with 0. A second signal kills it. On SIGHUP, and when the
configuration file changes, it reloads the tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
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
from icedb.services.ingest.app import HEALTH_PATH, READY_PATH, IngestApp
from icedb.services.ingest.config.config_file import load_config
from icedb.services.ingest.config.settings import IngestConfig, IngestSettings
from icedb.services.ingest.config.tenant_directory import TenantsFile
from icedb.services.ingest.config.tenants import Tenants
from icedb.services.ingest.metrics import CONTENT_TYPE, IngestMetrics
from icedb.services.ingest.table_writers import TableWriters
from icedb.util.clock import SystemClock

__all__ = ["serve"]

#: Time to commit rows that are still pending after `stop_timeout_ms`, when no client waits for them.
_CLOSE_MS = 1_000


def serve(path: Path, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal stops the process. Call it in the main thread.

    Args:
        path: The configuration file.
        on_ready: Called with one line of text when clients can connect.

    Raises:
        InvalidOption: The configuration is invalid.
        IceDBError: A table cannot be opened.
        OSError: An address, named in the message, cannot be used.
    """
    config = load_config(path)
    allow_connections(config.server.connections)
    with contextlib.ExitStack() as closing:
        sockets = closing.enter_context(open_listeners(config.server))
        writers = TableWriters(config, SystemClock())
        configure_logging(closing.enter_context(open_line_writer(sys.stderr.fileno(), "log")), "icedb.ingest")
        access_lines = closing.enter_context(open_line_writer(sys.stdout.fileno(), "access log"))
        closing.callback(writers.close, timeout_ms=_CLOSE_MS)  # before the log closes: it reports lost rows there
        uvloop.run(_serve(path, config, writers, sockets, access_lines, on_ready))


async def _serve(
    path: Path,
    config: IngestConfig,
    writers: TableWriters,
    sockets: Listeners,
    access_lines: LineWriter,
    on_ready: Callable[[str], None],
) -> None:
    settings, metrics = config.server, IngestMetrics()
    app = IngestApp(
        settings, Tenants(config.tenants), writers, metrics, access_lines, stopping=lambda: server.should_exit
    )
    server = _IngestServer(app, settings, writers)
    reload = asyncio.Event()
    install_signal_handlers(server, reload)

    def metrics_text() -> bytes:
        metrics.held_bytes.set(app.body_memory.bytes)
        metrics.lost_lines.set(access_lines.lost)
        return metrics.text(writers.stats(), writers.columns())

    async with contextlib.AsyncExitStack() as closing:
        file = TenantsFile(path, config, app.set_tenants)
        await closing.enter_async_context(background_task(reload_on_change(file, reload, metrics.record_reload)))
        await closing.enter_async_context(background_task(writers.refresh_periodically()))
        if sockets.admin is not None:
            admin = HttpServer(_admin_app(app, metrics_text), settings, connections=ADMIN_CONNECTIONS)
            await closing.enter_async_context(background_task(admin.serve([sockets.admin])))
        on_ready(f"icedb ingest: {sockets.text}; tables: {len(config.tables)}, tenants: {len(config.tenants)}")
        await server.serve([sockets.clients])
        schedule_forced_exit()


class _IngestServer(HttpServer):
    """An HTTP server that commits pending rows without delay when it stops."""

    def __init__(self, app: ASGIApp, settings: IngestSettings, writers: TableWriters) -> None:
        super().__init__(app, settings, tls=True)
        self._writers = writers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, commit pending rows, and wait for responses in progress."""
        async with background_task(self._writers.flush_until_cancelled()):
            await super().shutdown(sockets)


def _admin_app(app: IngestApp, metrics_text: Callable[[], bytes]) -> ASGIApp:
    """Return the application for operators: liveness, readiness with reasons, and metrics."""
    # A separate thread: all threads of the shared pool may block on a store.
    executor = ThreadPoolExecutor(1, "icedb metrics")

    async def health(_: Request) -> Response:
        return _document({"status": "ok"})

    async def ready(_: Request) -> Response:
        reasons = app.not_ready_reasons()
        document = {"status": "not ready", "reasons": reasons} if reasons else {"status": "ok"}
        return _document(document, 503 if reasons else 200)

    async def metrics(_: Request) -> Response:
        text = await asyncio.get_running_loop().run_in_executor(executor, metrics_text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return Starlette(routes=[Route(HEALTH_PATH, health), Route(READY_PATH, ready), Route("/metrics", metrics)])


def _document(document: Mapping[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(document) + b"\n", status, media_type="application/json")
