"""The process around the application: its sockets and signals, and the tenants' file, which may change meanwhile.

SIGTERM or SIGINT: nothing new is accepted, what is pending is committed at once and answered, for up to
`stop_timeout_ms`, and the process ends with 0; a second signal ends it at once. SIGHUP: the tenants are loaded again,
as they are when their file changes.
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
from icedb.services.ingest.access_log import IngestAccessLog
from icedb.services.ingest.app import HEALTH_PATH, READY_PATH, IngestApp
from icedb.services.ingest.config.config_file import load_config
from icedb.services.ingest.config.settings import IngestConfig, IngestSettings
from icedb.services.ingest.config.tenant_directory import TenantsFile
from icedb.services.ingest.config.tenants import Tenants
from icedb.services.ingest.metrics import CONTENT_TYPE, IngestMetrics
from icedb.services.ingest.table_writers import TableWriters
from icedb.util.clock import SystemClock

__all__ = ["serve"]

#: For what is still pending when answers have had their time: nobody waits for it any more.
_CLOSE_MS = 1_000


def serve(path: Path, *, tell: Callable[[str], None]) -> None:
    """Serve what a configuration file says until a signal ends it. For the main thread of a process.

    `tell` gets one line when clients can connect. Raises InvalidOption for a wrong configuration, IceDBError for a
    table that cannot be opened, and OSError, which names the address, when nothing can listen there.
    """
    config = load_config(path)
    allow_connections(config.server.connections)
    with contextlib.ExitStack() as closing:
        sockets = closing.enter_context(open_listeners(config.server))
        writers = TableWriters(config, SystemClock())
        configure_logging(closing.enter_context(open_line_writer(sys.stderr.fileno(), "log")), "icedb.ingest")
        access_lines = closing.enter_context(open_line_writer(sys.stdout.fileno(), "access log"))
        closing.callback(writers.close, timeout_ms=_CLOSE_MS)  # before the log, in which it says what was lost
        uvloop.run(_serve(path, config, writers, sockets, access_lines, tell))


async def _serve(
    path: Path,
    config: IngestConfig,
    writers: TableWriters,
    sockets: Listeners,
    access_lines: LineWriter,
    tell: Callable[[str], None],
) -> None:
    settings, metrics = config.server, IngestMetrics()
    app = IngestApp(
        settings,
        Tenants(config.tenants),
        writers,
        metrics,
        IngestAccessLog(access_lines),
        stopping=lambda: server.should_exit,
    )
    server = _IngestServer(app, settings, writers)
    reload = asyncio.Event()
    install_signal_handlers(server, reload)

    def numbers() -> bytes:
        metrics.held_bytes.set(app.held.bytes)
        metrics.lost_lines.set(access_lines.lost)
        return metrics.text(writers.stats(), writers.columns())

    async with contextlib.AsyncExitStack() as closing:
        file = TenantsFile(path, config, app.know)
        await closing.enter_async_context(background_task(reload_on_change(file, reload, metrics.reloaded)))
        await closing.enter_async_context(background_task(writers.refresh_periodically()))
        if sockets.admin is not None:
            admin = HttpServer(_admin_app(app, numbers), settings, connections=ADMIN_CONNECTIONS)
            await closing.enter_async_context(background_task(admin.serve([sockets.admin])))
        tell(f"icedb ingest: {sockets.text}; tables: {len(config.tables)}, tenants: {len(config.tenants)}")
        await server.serve([sockets.clients])
        schedule_forced_exit()


class _IngestServer(HttpServer):
    """Nobody waits for more rows to come when it stops."""

    def __init__(self, app: ASGIApp, settings: IngestSettings, writers: TableWriters) -> None:
        super().__init__(app, settings, tls=True)
        self._writers = writers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, commit what is pending, and wait for answers that are under way."""
        async with background_task(self._writers.flush_until_cancelled()):
            await super().shutdown(sockets)


def _admin_app(app: IngestApp, numbers: Callable[[], bytes]) -> ASGIApp:
    """What operators ask: whether the process lives, whether it should get requests and why not, and its numbers."""
    # Of its own: the threads that all share may be asking a store which does not answer.
    aside = ThreadPoolExecutor(1, "icedb metrics")

    async def health(_: Request) -> Response:
        return _document({"status": "ok"})

    async def ready(_: Request) -> Response:
        reasons = app.ready()
        document = {"status": "not ready", "reasons": reasons} if reasons else {"status": "ok"}
        return _document(document, 503 if reasons else 200)

    async def metrics(_: Request) -> Response:
        text = await asyncio.get_running_loop().run_in_executor(aside, numbers)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return Starlette(routes=[Route(HEALTH_PATH, health), Route(READY_PATH, ready), Route("/metrics", metrics)])


def _document(document: Mapping[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(document) + b"\n", status, media_type="application/json")
