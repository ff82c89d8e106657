"""The process of a service: streams, sockets, signals, reload of tenants, shutdown.

On SIGTERM or SIGINT the process stops accepting connections, finishes responses for up to `stop_timeout_ms`, and exits
with 0. A second signal kills it. On SIGHUP, and when the configuration file changes, it reloads the tenants.
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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any

import uvloop

from icedb.services.http.admin import Page, admin_app
from icedb.services.http.config_reload import WatchedFile, reload_on_change
from icedb.services.http.connections import ADMIN_CONNECTIONS, HttpServer
from icedb.services.http.log_lines import LineWriter, TextLines
from icedb.services.http.metrics import ClientServiceMetrics
from icedb.services.http.server_settings import ListenSettings

__all__ = ["ServiceProcess", "background_task", "open_service_process"]

#: Time for which the end of the process waits for threads that block on a store.
_THREADS_SECONDS = 3.0
#: Open files besides the connections of clients: connections to the store, files, and those of Python.
_OTHER_FILES = 256


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """The open sockets and the access log of a service's process."""

    settings: ListenSettings
    access_lines: LineWriter
    _listeners: _Listeners

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run the service until it returns. Then no request writes to the log any more."""
        uvloop.run(work)  # it needs a third less CPU per byte than asyncio's loop

    async def serve(
        self,
        server: HttpServer,
        tenants: WatchedFile[Any],
        metrics: ClientServiceMetrics,
        pages: Mapping[str, Page],
        update_gauges: Callable[[], None],
        on_ready: Callable[[str], None],
    ) -> None:
        """Serve until a signal stops the process. `on_ready` gets the addresses when clients can connect.

        Operators get `pages`, by path, and metrics, if the settings have an address for them. `update_gauges` sets the
        gauges of the service before the metrics are written.
        """

        def update_all_gauges() -> None:
            metrics.lost_lines = self.access_lines.lost
            update_gauges()

        reload = asyncio.Event()
        _install_signal_handlers(server, reload.set)
        async with contextlib.AsyncExitStack() as closing:
            await closing.enter_async_context(background_task(reload_on_change(tenants, reload, metrics.record_reload)))
            if self._listeners.admin is not None:
                admin = admin_app(pages, metrics, update_all_gauges)
                admin_server = HttpServer(admin, self.settings, connections=ADMIN_CONNECTIONS)
                await closing.enter_async_context(background_task(admin_server.serve([self._listeners.admin])))
            await self._serve_clients(server, on_ready)

    async def serve_alone(self, server: HttpServer, on_ready: Callable[[str], None]) -> None:
        """Serve operators only, at the address for clients, until a signal stops the process. SIGHUP does nothing."""
        _install_signal_handlers(server, lambda: None)
        await self._serve_clients(server, on_ready)

    async def _serve_clients(self, server: HttpServer, on_ready: Callable[[str], None]) -> None:
        on_ready(self._listeners.text)
        await server.serve([self._listeners.clients])
        _schedule_forced_exit()


@contextlib.contextmanager
def open_service_process(name: str, settings: ListenSettings) -> Iterator[ServiceProcess]:
    """Open the sockets, the log on stderr and the access log on stdout. `name` is the service's, such as `proxy`.

    Raises OSError if an address, named in the message, cannot be used.
    """
    _allow_connections(settings.connections)
    with contextlib.ExitStack() as closing:
        listeners = closing.enter_context(_open_listeners(settings))
        _configure_logging(closing.enter_context(_open_line_writer(sys.stderr.fileno(), "log")), f"icedb.{name}")
        access_lines = closing.enter_context(_open_line_writer(sys.stdout.fileno(), "access log"))
        yield ServiceProcess(settings, access_lines, listeners)


@contextlib.contextmanager
def _open_line_writer(descriptor: int, name: str) -> Iterator[LineWriter]:
    """Open a writer to a stream of the process, and close it when the block ends."""
    # Unbuffered: after a broken pipe, the interpreter has nothing that it would fail to flush at its exit.
    lines = LineWriter(FileIO(descriptor, "wb", closefd=False), name)
    try:
        yield lines
    finally:
        lines.close()


def _configure_logging(lines: LineWriter, logger: str) -> None:
    """Write the log of the process to `lines`: level INFO for the given logger, WARNING for all others."""
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=layout, level=logging.WARNING, stream=TextLines(lines))
    logging.getLogger(logger).setLevel(logging.INFO)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.setLevel(logging.ERROR)  # it warns of malformed requests, with which any client could fill a disk
    # A response that is cancelled at the end of the process is not an error of the application.
    uvicorn_log.addFilter(lambda record: not (record.exc_info and record.exc_info[0] is asyncio.CancelledError))


def _install_signal_handlers(server: HttpServer, reload: Callable[[], None]) -> None:
    """Handle signals: SIGTERM and SIGINT stop the server, a second one kills the process, SIGHUP calls `reload`."""
    loop = asyncio.get_running_loop()
    ending = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        server.should_exit = True
        for number in ending:  # the default action of the system works even if the process hangs
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in ending:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run a coroutine until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _schedule_forced_exit() -> None:
    """Exit after a few seconds even if the interpreter still waits for a thread that blocks on a store."""
    timer = threading.Timer(_THREADS_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


# ------------------------------------------------------------------------------------------------ sockets


@dataclass(frozen=True, slots=True)
class _Listeners:
    """The listening sockets of a server: for clients, and optionally for health checks and metrics."""

    clients: socket.socket
    admin: socket.socket | None
    #: Both addresses, for a message.
    text: str


@contextlib.contextmanager
def _open_listeners(settings: ListenSettings) -> Iterator[_Listeners]:
    """Open the listening sockets. Raises OSError if an address, named in the message, cannot be used."""
    with contextlib.ExitStack() as closing:
        clients = closing.enter_context(_listening_socket(settings.host, settings.port))
        admin = None
        scheme = "http" if settings.tls_certificate is None else "https"
        text = f"listening on {scheme}://{_address_text(clients)}"
        if settings.admin_host is not None and settings.admin_port is not None:
            admin = closing.enter_context(_listening_socket(settings.admin_host, settings.admin_port))
            text += f", health and metrics on http://{_address_text(admin)}"
        yield _Listeners(clients, admin, text)


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror  # negative: the host name does not resolve
        raise OSError(f"{host}:{port}: cannot listen on this address: {why}") from None


def _address_text(listener: socket.socket) -> str:
    """Return the address of a socket as URLs write it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _allow_connections(connections: int) -> None:
    """Raise the limit of open files to what the connections need, as far as the system allows."""
    required = 2 * connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < required:
        allowed = required if hard == resource.RLIM_INFINITY else min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
