"""The process of the exporter. See `icedb.services.http.server_process` for signals and shutdown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry
from starlette.responses import PlainTextResponse, Response

from icedb.services.exporter.metrics import ExporterMetrics
from icedb.services.exporter.settings import ExporterSettings
from icedb.services.exporter.table_set import TableSet
from icedb.services.exporter.table_watch import TableAccess
from icedb.services.http.admin import admin_app
from icedb.services.http.connections import HttpServer
from icedb.services.http.health import HEALTH_PATH, READY_PATH
from icedb.services.http.server_process import ServiceProcess, background_task, open_service_process

__all__ = ["FigureSource", "serve"]


class FigureSource(Protocol):
    """Further figures of an exporter, such as those of a scheduler."""

    def register(self, registry: CollectorRegistry) -> None:
        """Add the metrics to a registry. Called once, before `run`."""
        ...

    async def run(self) -> None:
        """Read the figures again and again, until cancelled."""
        ...


def serve(
    settings: ExporterSettings,
    *,
    on_ready: Callable[[str], None],
    access: TableAccess | None = None,
    sources: Iterable[FigureSource] = (),
) -> None:
    """Serve until a signal stops the process. Call it in the main thread.

    `on_ready` gets a line of text when clients can connect. Raises InvalidURI for the root, and OSError if the address
    cannot be used.
    """
    tables = TableSet(settings, access)
    with open_service_process("exporter", settings) as process:
        process.run(_serve(settings, tables, process, on_ready, list(sources)))


async def _serve(
    settings: ExporterSettings,
    tables: TableSet,
    process: ServiceProcess,
    on_ready: Callable[[str], None],
    sources: list[FigureSource],
) -> None:
    metrics = ExporterMetrics(tables)

    def health() -> Response:
        return PlainTextResponse("ok\n")

    def ready() -> Response:
        if tables.round_ms and not server.should_exit:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("no round over the tables is complete\n", status_code=503)

    app = admin_app({HEALTH_PATH: health, READY_PATH: ready}, metrics, lambda: None)
    server = HttpServer(app, settings)
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(tables.close)
        for source in sources:
            source.register(metrics.registry)
            await closing.enter_async_context(background_task(source.run()))
        await closing.enter_async_context(background_task(tables.run_rounds()))
        await process.serve_alone(server, lambda address: on_ready(f"icedb exporter: {address}; tables: {tables.root}"))
