"""The process around the application: its sockets and signals, and the tenants' file, which may change meanwhile.

SIGTERM or SIGINT: nothing new is accepted, answers under way are finished for up to `stop_timeout_ms`, and the process
ends; a second signal ends it at once. SIGHUP: the tenants are loaded again, as they are when their file changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from icedb.proxy.access_log import AccessLog
from icedb.proxy.app import ProxyApp
from icedb.proxy.catalog import Tables
from icedb.proxy.config import load_config
from icedb.proxy.connections import Server
from icedb.proxy.control_plane import ControlPlane
from icedb.proxy.directory import FileDirectory, FirstOf
from icedb.proxy.limits import Gate
from icedb.proxy.lines import LineWriter, TextLines
from icedb.proxy.metrics import CONTENT_TYPE, Metrics
from icedb.proxy.s3_errors import S3Error
from icedb.proxy.settings import ProxyConfig
from icedb.proxy.tenants import Directory, Found

__all__ = ["serve"]

#: How often the tenants' file is looked at.
_LOOK_SECONDS = 2.0
#: The end of the process waits so long for threads that are asking a store which does not answer.
_THREADS_SECONDS = 3.0
#: Of the listener for health and metrics: a few programs ask it.
_ADMIN_CONNECTIONS = 64
#: Beside a connection's own: those to the store, files and what Python has open.
_OTHER_FILES = 256


def serve(path: Path, *, tell: Callable[[str], None]) -> None:
    """Serve what a configuration file says until a signal ends it. For the main thread of a process.

    `tell` gets one line when clients can connect. Raises InvalidOption for a wrong configuration, and OSError, which
    names the address, when nothing can listen there.
    """
    config = load_config(path)
    settings = config.server
    _allow_files(2 * settings.connections + _OTHER_FILES)
    with contextlib.ExitStack() as closing:
        errors = closing.enter_context(_lines(sys.stderr.fileno(), "log"))
        _log_to(errors)
        access_lines = closing.enter_context(_lines(sys.stdout.fileno(), "access log"))
        listener = closing.enter_context(_listening(settings.host, settings.port))
        admin = None
        if settings.admin_host is not None and settings.admin_port is not None:
            admin = closing.enter_context(_listening(settings.admin_host, settings.admin_port))
        # A third less work per byte than asyncio's own loop. When it returns, no request is left that writes a line.
        uvloop.run(_serve(path, config, listener, admin, access_lines, tell))


async def _serve(
    path: Path,
    config: ProxyConfig,
    listener: socket.socket,
    admin_listener: socket.socket | None,
    access_lines: LineWriter,
    tell: Callable[[str], None],
) -> None:
    settings, metrics = config.server, Metrics()
    async with contextlib.AsyncExitStack() as closing:
        directory = FileDirectory(path, config)
        everywhere: Directory = directory
        if config.control_plane is not None:
            control_plane = ControlPlane(config.control_plane)
            closing.push_async_callback(control_plane.close)
            everywhere = FirstOf((directory, _Counting(control_plane, metrics)))
        tables = Tables(
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

        app = ProxyApp(settings, everywhere, tables, Gate(), metrics, AccessLog(access_lines))
        server = Server(app, settings, tls=True)
        reload = asyncio.Event()
        _heed_signals(server, reload)
        await closing.enter_async_context(_beside(_reloading(directory, metrics, reload)))
        if admin_listener is not None:
            admin = Server(_admin_app(metrics, look, server), settings, connections=_ADMIN_CONNECTIONS)
            await closing.enter_async_context(_beside(admin.serve([admin_listener])))
        tell(_beginning(config, listener, admin_listener))
        await server.serve([listener])
        _end_soon()


@contextlib.contextmanager
def _lines(descriptor: int, name: str) -> Iterator[LineWriter]:
    """A writer to one of the process's streams, which in the end has written what it could."""
    # Without a buffer: of a pipe that broke, nothing is left that the interpreter would fail to flush at its end.
    lines = LineWriter(FileIO(descriptor, "wb", closefd=False), name)
    try:
        yield lines
    finally:
        lines.close()


def _log_to(lines: LineWriter) -> None:
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=layout, level=logging.WARNING, stream=TextLines(lines))
    logging.getLogger("icedb.proxy").setLevel(logging.INFO)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.setLevel(logging.ERROR)  # its warnings are of requests that are none: anybody could fill a disk
    # An answer that is cut off when the process has to end is no error of the application.
    uvicorn_log.addFilter(lambda record: not (record.exc_info and record.exc_info[0] is asyncio.CancelledError))


def _beginning(config: ProxyConfig, listener: socket.socket, admin_listener: socket.socket | None) -> str:
    scheme = "http" if config.server.tls_certificate is None else "https"
    admin = "" if admin_listener is None else f", health and metrics on http://{_address(admin_listener)}"
    return (
        f"icedb proxy: listening on {scheme}://{_address(listener)}{admin}; tenants in the file: {len(config.tenants)}"
    )


# ------------------------------------------------------------------------------------------------ while it runs


def _heed_signals(server: Server, reload: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    ending = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        server.should_exit = True
        for number in ending:  # the system's own way: it works whatever this process is doing
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in ending:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload.set)


async def _reloading(directory: FileDirectory, metrics: Metrics, asked: asyncio.Event) -> None:
    """Load the tenants again when somebody asks for it, and when their file has changed."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), _LOOK_SECONDS)
        must = asked.is_set()
        asked.clear()
        if must or await asyncio.to_thread(directory.changed):
            metrics.reloaded(await asyncio.to_thread(directory.reload))


class _Counting:
    """A control plane whose failures are counted."""

    def __init__(self, control_plane: ControlPlane, metrics: Metrics) -> None:
        self._control_plane = control_plane
        self._metrics = metrics

    async def find(self, access_key_id: str) -> Found | None:
        try:
            return await self._control_plane.find(access_key_id)
        except S3Error:
            self._metrics.control_plane_failed()
            raise


def _admin_app(metrics: Metrics, look: Callable[[], None], server: Server) -> ASGIApp:
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


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Something that goes on until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _end_soon() -> None:
    """Threads are joined when the interpreter ends; one that asks a store which does not answer must not hold it."""
    impatient = threading.Timer(_THREADS_SECONDS, os._exit, (0,))
    impatient.daemon = True
    impatient.start()


# ------------------------------------------------------------------------------------------------ sockets


def _listening(host: str, port: int) -> socket.socket:
    """A socket that clients can already connect to, so that it is known before anything else that they can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror  # below 0: no host has that name
        raise OSError(f"{host}:{port}: cannot listen there: {why}") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _allow_files(wanted: int) -> None:
    """As many open files as are needed, if the system lets us: its usual 1,024 are of the days of select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
