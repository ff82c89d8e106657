"""The process around the application: its sockets and signals, and the tenants' file, which may change meanwhile.

SIGTERM or SIGINT: nothing new is accepted, answers under way are finished for up to `stop_timeout_ms`, and the process
ends; a second signal ends it at once. SIGHUP: the tenants are loaded again, as they are when their file changes.

A connection that is not used is not kept. A request has to arrive within `header_timeout_ms`, what is left of an answer
has to be taken within `send_timeout_ms` when the connection is to be closed, and when there are too many connections,
the one that has been without a request for longest makes room for the new one. So whoever opens many, and says nothing,
keeps nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from icedb.errors import InvalidOption
from icedb.proxy.access_log import AccessLog
from icedb.proxy.app import ProxyApp
from icedb.proxy.catalog import Tables
from icedb.proxy.config import load_config
from icedb.proxy.control_plane import ControlPlane
from icedb.proxy.directory import FileDirectory, FirstOf
from icedb.proxy.limits import Gate
from icedb.proxy.metrics import CONTENT_TYPE, Metrics
from icedb.proxy.s3_errors import S3Error
from icedb.proxy.settings import ProxyConfig, ServerSettings
from icedb.proxy.tenants import Directory, Found

__all__ = ["serve"]

#: Bytes of a request before its body. S3's own limit is 8 KiB of headers; a presigned address may be as long again.
_HEAD_BYTES_MAX = 32 * 1024
#: How long a client may keep a connection without a request: longer than the minute after which load balancers let go
#: of it, so that it is never closed under a request that is on its way. When room is needed, it goes earlier.
_IDLE_SECONDS = 75
#: How often the tenants' file is looked at.
_LOOK_SECONDS = 2.0
#: The end of the process waits so long for threads that are asking a store which does not answer.
_THREADS_SECONDS = 3.0
#: Of the listener for health and metrics: a few programs ask it.
_ADMIN_CONNECTIONS = 64
#: Beside a connection's own: those to the store, files and what Python has open.
_OTHER_FILES = 256

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


def serve(path: Path, *, tell: Callable[[str], None]) -> None:
    """Serve what a configuration file says until a signal ends it. For the main thread of a process.

    `tell` gets one line when clients can connect. Raises InvalidOption for a wrong configuration, and OSError, which
    names the address, when nothing can listen there.
    """
    config = load_config(path)
    settings = config.server
    _log_to_stderr()
    _allow_files(2 * settings.connections + _OTHER_FILES)
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(_listening(settings.host, settings.port))
        admin = None
        if settings.admin_host is not None and settings.admin_port is not None:
            admin = sockets.enter_context(_listening(settings.admin_host, settings.admin_port))
        asyncio.run(_serve(path, config, listener, admin, tell))


async def _serve(
    path: Path,
    config: ProxyConfig,
    listener: socket.socket,
    admin_listener: socket.socket | None,
    tell: Callable[[str], None],
) -> None:
    settings, metrics = config.server, Metrics()
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(_end_soon)
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
        metrics.tables_open.set_function(lambda: tables.open_count)
        server = _Server(ProxyApp(settings, everywhere, tables, Gate(), metrics, AccessLog()), settings, tls=True)
        reload = asyncio.Event()
        _heed_signals(server, reload)
        await closing.enter_async_context(_beside(_reloading(directory, metrics, reload)))
        if admin_listener is not None:
            admin = _Server(_admin_app(metrics, server), settings, connections=_ADMIN_CONNECTIONS)
            await closing.enter_async_context(_beside(admin.serve([admin_listener])))
        tell(_beginning(config, listener, admin_listener))
        await server.serve([listener])


def _log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
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


def _heed_signals(server: _Server, reload: asyncio.Event) -> None:
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


def _admin_app(metrics: Metrics, server: _Server) -> ASGIApp:
    """What operators ask: whether the process lives, whether it should get requests, and its numbers."""

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        if server.started and not server.should_exit:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("stopping\n", status_code=503)

    async def numbers(_: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

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
        raise OSError(f"{host}:{port}: cannot listen there: {os.strerror(error.errno or 0)}") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _allow_files(wanted: int) -> None:
    """As many open files as are needed, if the system lets us: its usual 1,024 are of the days of select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class _Server(uvicorn.Server):
    """uvicorn's, with connections of ours, and without its signals: of those, it would end with the status."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, *, connections: int | None = None, tls: bool = False
    ) -> None:
        super().__init__(_uvicorn_config(app, settings, tls=tls))
        self.connections_max = settings.connections if connections is None else connections
        self.head_seconds = settings.header_timeout_ms / 1000
        self.send_seconds = settings.send_timeout_ms / 1000
        #: Connections on which no request is being answered, in the order in which they became so.
        self.unused: dict[_Connection, None] = {}

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; who does not shake hands for TLS gets as much time for it as for a request."""
        loop = asyncio.get_running_loop()
        tls = self.config.ssl
        self.servers = [
            await loop.create_server(
                lambda: _Connection(self),
                sock=sock,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self.head_seconds,
                backlog=self.config.backlog,
            )
            for sock in sockets or ()
        ]
        self.started = True


def _uvicorn_config(app: ASGIApp, settings: ServerSettings, *, tls: bool) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # X-Forwarded-For may be anybody's word
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=-(-settings.stop_timeout_ms // 1000),
        h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
        ssl_certfile=settings.tls_certificate if tls else None,
        ssl_keyfile=settings.tls_key if tls else None,
    )
    try:
        config.load()
    except OSError as error:  # of ssl, too
        raise InvalidOption(
            f"{settings.tls_certificate}: the certificate and its key cannot be used: {error.strerror or error}. "
            "[server] tls_certificate and tls_key name PEM files that belong together."
        ) from None
    return config


class _Connection(H11Protocol):
    """A connection of a client, which is left when it is not used; see the module's docstring."""

    def __init__(self, server: _Server) -> None:
        super().__init__(server.config, server.server_state, {})
        self._server = server
        #: Runs from the beginning of the connection, and then from the first byte of a request, until that is whole.
        self._arriving = _Timer(server.head_seconds, self._leave)
        #: Runs when it is over, until the client has taken what there is for it.
        self._closing = _Timer(server.send_seconds, self._leave)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: it has to say what it wants. If there are too many, one that wants nothing has to go."""
        super().connection_made(transport)
        self._server.unused[self] = None
        self._arriving.start()
        if len(self.connections) > self._server.connections_max:
            longest = next(iter(self._server.unused))
            if longest is self:  # all others are being answered
                transport.write(_BUSY)
                self._close()
            else:
                longest._leave()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._arriving.start()
        else:
            self._arriving.stop()
        self._note_use()

    def on_response_complete(self) -> None:
        """An answer was made, and given to the system as far as it took it. There may be a next request already."""
        self._server.unused[self] = None
        super().on_response_complete()
        self._note_use()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:  # the beginning of one
            self._arriving.start()
        if self.transport.is_closing():
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came since the last answer."""
        super().timeout_keep_alive_handler()
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, whoever ended it."""
        self._server.unused.pop(self, None)
        self._arriving.stop()
        self._closing.stop()
        super().connection_lost(exc)

    def _note_use(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._server.unused.pop(self, None)

    def _close(self) -> None:
        """Close when the client has taken what there is for it, which it may never do."""
        self.transport.close()
        self._closing.start()

    def _leave(self) -> None:
        """Close now. It counts no more, though the loop has still to take it away."""
        self.connections.discard(self)
        self._server.unused.pop(self, None)
        self.transport.abort()


class _Timer:
    """Acts once, some time after it was started, unless it was stopped; to start it again while it runs is nothing."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds = seconds
        self._act = act
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._act)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
