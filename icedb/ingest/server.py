"""The process around the application: its sockets and signals, and the tenants' file, which may change meanwhile.

SIGTERM or SIGINT: nothing new is accepted, what is pending is committed at once and answered, for up to
`stop_timeout_ms`, and the process ends with 0; a second signal ends it at once. SIGHUP: the tenants are loaded again,
as they are when their file changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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

from icedb.clock import SystemClock
from icedb.errors import InvalidOption
from icedb.ingest.access_log import AccessLog
from icedb.ingest.app import HEALTH_PATH, READY_PATH, IngestApp
from icedb.ingest.config import load_config
from icedb.ingest.metrics import CONTENT_TYPE, Metrics
from icedb.ingest.settings import IngestConfig, IngestSettings
from icedb.ingest.tenants import Tenants
from icedb.ingest.writers import Writers
from icedb.serving.connections import Server
from icedb.serving.lines import LineWriter
from icedb.serving.process import (
    address_text,
    allow_connections,
    beside,
    end_soon,
    heed_signals,
    lines_to,
    listening_socket,
    log_to,
)
from icedb.serving.settings import FileStamp

__all__ = ["serve"]

logger = logging.getLogger("icedb.ingest")

#: How often the tenants' file is looked at.
_LOOK_SECONDS = 2.0
#: Of the listener for health and metrics: a few programs ask it.
_ADMIN_CONNECTIONS = 64
#: For what is still pending when answers have had their time: nobody waits for it any more.
_CLOSE_MS = 1_000


def serve(path: Path, *, tell: Callable[[str], None]) -> None:
    """Serve what a configuration file says until a signal ends it. For the main thread of a process.

    `tell` gets one line when clients can connect. Raises InvalidOption for a wrong configuration, IceDBError for a
    table that cannot be opened, and OSError, which names the address, when nothing can listen there.
    """
    config = load_config(path)
    settings = config.server
    allow_connections(settings.connections)
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(listening_socket(settings.host, settings.port))
        admin = None
        if settings.admin_host is not None and settings.admin_port is not None:
            admin = closing.enter_context(listening_socket(settings.admin_host, settings.admin_port))
        writers = Writers(config, SystemClock())
        log_to(closing.enter_context(lines_to(sys.stderr.fileno(), "log")), "icedb.ingest")
        access_lines = closing.enter_context(lines_to(sys.stdout.fileno(), "access log"))
        closing.callback(writers.close, timeout_ms=_CLOSE_MS)  # before the log, in which it says what was lost
        uvloop.run(_serve(path, config, writers, listener, admin, access_lines, tell))


async def _serve(
    path: Path,
    config: IngestConfig,
    writers: Writers,
    listener: socket.socket,
    admin_listener: socket.socket | None,
    access_lines: LineWriter,
    tell: Callable[[str], None],
) -> None:
    settings, metrics = config.server, Metrics()
    app = IngestApp(
        settings,
        Tenants(config.tenants),
        writers,
        metrics,
        AccessLog(access_lines),
        stopping=lambda: server.should_exit,
    )
    server = _IngestServer(app, settings, writers)
    reload = asyncio.Event()
    heed_signals(server, reload)

    def numbers() -> bytes:
        metrics.held_bytes.set(app.held.bytes)
        metrics.lost_lines.set(access_lines.lost)
        return metrics.text(writers.stats())

    async with contextlib.AsyncExitStack() as closing:
        await closing.enter_async_context(beside(_reloading(_Reloaded(path, config), app, metrics, reload)))
        await closing.enter_async_context(beside(writers.keep_looking()))
        if admin_listener is not None:
            admin = Server(_admin_app(app, numbers), settings, connections=_ADMIN_CONNECTIONS)
            await closing.enter_async_context(beside(admin.serve([admin_listener])))
        tell(_beginning(config, listener, admin_listener))
        await server.serve([listener])
        end_soon()


def _beginning(config: IngestConfig, listener: socket.socket, admin_listener: socket.socket | None) -> str:
    scheme = "http" if config.server.tls_certificate is None else "https"
    admin = "" if admin_listener is None else f", health and metrics on http://{address_text(admin_listener)}"
    where = f"{scheme}://{address_text(listener)}{admin}"
    return f"icedb ingest: listening on {where}; tables: {len(config.tables)}, tenants: {len(config.tenants)}"


class _IngestServer(Server):
    """Nobody waits for more rows to come when it stops."""

    def __init__(self, app: ASGIApp, settings: IngestSettings, writers: Writers) -> None:
        super().__init__(app, settings, tls=True)
        self._writers = writers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, commit what is pending, and wait for answers that are under way."""
        async with beside(self._writers.hurry()):
            await super().shutdown(sockets)


# ------------------------------------------------------------------------------------------------ while it runs


class _Reloaded:
    """The tenants of the file, read anew; what else it says takes a restart."""

    def __init__(self, path: Path, config: IngestConfig) -> None:
        self._path = path
        self._running = config
        self._seen = dict(config.files)

    def changed(self) -> bool:
        """Whether the file, or one that it names, is another than at the last load, be it that this one failed."""
        return any(FileStamp.of(path) != stamp for path, stamp in self._seen.items())

    def tenants(self) -> Tenants | None:
        """Those of the file now; None: it is wrong, and the log says why."""
        seen: dict[Path, FileStamp | None] = {}
        try:
            config = load_config(self._path, seen=seen)
            # What was checked of tenants holds for the tables of the file; those that run have to be the same.
            named = {t for tenant in config.tenants for t in tenant.tables}
            new = sorted(t for t in named if _meant(config, t) != _meant(self._running, t))
            if new:
                raise InvalidOption(f"{self._path}: tables that are new, or another, take a restart: {', '.join(new)}.")
        except InvalidOption as error:
            logger.error("the configuration was not taken over, the tenants stay as they were: %s", error)
            return None
        finally:
            self._seen = seen
        others = ("server", "tables", "storage_options")
        if names := [n for n in others if getattr(self._running, n) != getattr(config, n)]:
            logger.warning("%s: changes of %s take a restart", self._path, ", ".join(names))
        logger.info("%s was read anew: %d tenants", self._path, len(config.tenants))
        return Tenants(config.tenants)


def _meant(config: IngestConfig, table: str) -> tuple[str | None, ...] | None:
    """Where a table's rows go, and what keeps tenants apart in it; None: there is none of that name."""
    said = config.tables.get(table)
    return None if said is None else (said.uri, said.id_column, said.tenant_column, said.received_column)


async def _reloading(file: _Reloaded, app: IngestApp, metrics: Metrics, asked: asyncio.Event) -> None:
    """Load the tenants again when somebody asks for it, and when their file has changed."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), _LOOK_SECONDS)
        must = asked.is_set()
        asked.clear()
        if must or await asyncio.to_thread(file.changed):
            tenants = await asyncio.to_thread(file.tenants)
            if tenants is not None:
                app.know(tenants)
            metrics.reloaded(tenants is not None)


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
