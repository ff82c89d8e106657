"""The process of the ingest service. See `icedb.services.http.server_process` for signals, reloads and shutdown.

When it stops, it commits pending rows at once, and sends their responses.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp

from icedb.services.http.connections import HttpServer
from icedb.services.http.health import HEALTH_PATH, READY_PATH, health_response
from icedb.services.http.server_process import ServiceProcess, background_task, open_service_process
from icedb.services.ingest.app import IngestApp
from icedb.services.ingest.config.config_file import load_config
from icedb.services.ingest.config.settings import IngestConfig, IngestSettings
from icedb.services.ingest.config.tenant_directory import TenantsFile
from icedb.services.ingest.config.tenants import Tenants
from icedb.services.ingest.metrics import IngestMetrics
from icedb.services.ingest.table_writers import TableWriters
from icedb.util.clock import SystemClock

__all__ = ["serve"]

#: Time to commit rows that are still pending after `stop_timeout_ms`, when no client waits for them.
_CLOSE_MS = 1_000


def serve(path: Path, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal stops the process. Call it in the main thread.

    `on_ready` gets a line of text when clients can connect. Raises InvalidOption, OSError if an address cannot be used,
    and IceDBError if a table cannot be opened.
    """
    config = load_config(path)
    with open_service_process("ingest", config.server) as process, contextlib.ExitStack() as closing:
        writers = TableWriters(config, SystemClock())
        closing.callback(writers.close, timeout_ms=_CLOSE_MS)  # before the log closes: it reports lost rows there
        process.run(_serve(path, config, writers, process, on_ready))


async def _serve(
    path: Path, config: IngestConfig, writers: TableWriters, process: ServiceProcess, on_ready: Callable[[str], None]
) -> None:
    settings, metrics = config.server, IngestMetrics(writers.stats, writers.columns)
    app = IngestApp(
        settings, Tenants(config.tenants), writers, metrics, process.access_lines, stopping=lambda: server.should_exit
    )
    server = _IngestServer(app, settings, writers)

    def ready() -> Response:
        return health_response(app.not_ready_reasons())

    def update_gauges() -> None:
        metrics.held_bytes.set(app.body_memory.bytes)

    async with background_task(writers.refresh_periodically()):
        await process.serve(
            server,
            TenantsFile(path, config, app.set_tenants),
            metrics,
            {HEALTH_PATH: health_response, READY_PATH: ready},
            update_gauges,
            lambda addresses: on_ready(
                f"icedb ingest: {addresses}; tables: {len(config.tables)}, tenants: {len(config.tenants)}"
            ),
        )


class _IngestServer(HttpServer):
    """An HTTP server that commits pending rows without delay when it stops."""

    def __init__(self, app: ASGIApp, settings: IngestSettings, writers: TableWriters) -> None:
        super().__init__(app, settings, tls=True)
        self._writers = writers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, commit pending rows, and wait for responses in progress."""
        async with background_task(self._writers.flush_until_cancelled()):
            await super().shutdown(sockets)
