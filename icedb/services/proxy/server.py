"""The process of the proxy. See `icedb.services.http.server_process` for signals, reloads and shutdown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.responses import Response

from icedb.services.http.connections import HttpServer
from icedb.services.http.health import HEALTH_PATH, READY_PATH, health_response
from icedb.services.http.server_process import ServiceProcess, open_service_process
from icedb.services.proxy.app import ProxyApp
from icedb.services.proxy.catalog.readiness import TableReadiness
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.control_plane import ControlPlane
from icedb.services.proxy.config.settings import ProxyConfig
from icedb.services.proxy.config.tenant_directory import DirectoryChain, FileDirectory
from icedb.services.proxy.config.tenants import KeyOwner, TenantDirectory
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.metrics import ProxyMetrics
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.table import Table

__all__ = ["serve"]

_NOT_SERVING = "the service is starting or stopping"


def serve(path: Path, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal stops the process. Call it in the main thread.

    `on_ready` gets a line of text when clients can connect. Raises InvalidOption, and OSError if an address cannot be
    used.
    """
    config = load_config(path)
    with open_service_process("proxy", config.server) as process:
        process.run(_serve(path, config, process, on_ready))


async def _serve(path: Path, config: ProxyConfig, process: ServiceProcess, on_ready: Callable[[str], None]) -> None:
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
        readiness = TableReadiness(
            lambda: directory.tables, lambda table: Table.open(table, storage_options=config.storage_options)
        )
        closing.callback(readiness.close)

        async def not_ready_reasons() -> Sequence[str]:
            return await readiness.reasons() if server.started and not server.should_exit else (_NOT_SERVING,)

        app = ProxyApp(
            settings,
            chain,
            tables,
            TenantLimiter(),
            metrics,
            process.access_lines,
            iceberg=config.iceberg,
            not_ready_reasons=not_ready_reasons,
        )
        server = HttpServer(app, settings, tls=True)

        async def ready() -> Response:
            return health_response(await not_ready_reasons())

        def update_gauges() -> None:
            metrics.tables_open.set(tables.open_count)
            metrics.live_parts.set(tables.live_parts)
            metrics.snapshot_times = tables.snapshot_times

        await process.serve(
            server,
            directory,
            metrics,
            {HEALTH_PATH: health_response, READY_PATH: ready},
            update_gauges,
            lambda addresses: on_ready(f"icedb proxy: {addresses}; tenants in the file: {len(config.tenants)}"),
        )


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
