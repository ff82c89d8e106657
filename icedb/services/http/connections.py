"""uvicorn with limits on the number and the lifetime of client connections.

A client has `header_timeout_ms` for the TLS handshake and for sending its request. When a connection closes, the client
has `send_timeout_ms` to read the rest of its response. If the application aborts a response, the server closes the
connection at once, even if the client does not read.

When there are too many connections, the one that has been idle longest is closed. A connection counts from the moment
at which it is accepted, before TLS. So a client that opens many silent connections cannot lock out others, and the
number of open files is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from icedb.services.http.server_settings import HEAD_BYTES_MAX, ListenSettings

__all__ = ["ADMIN_CONNECTIONS", "HttpServer"]

logger = logging.getLogger(__name__)

#: Maximum number of connections to the server of health checks and metrics.
ADMIN_CONNECTIONS = 64

#: Lifetime of a connection without a request, unless it is evicted earlier. Load balancers close idle connections after
#: a minute. A longer time here ensures that the server never closes a connection on which a request is arriving.
_IDLE_SECONDS = 75

#: Connections accepted in a row, before the evicted ones are closed.
_ACCEPT_MAX = 16
#: Pause after the system refused a connection because too many files are open. asyncio waits as long.
_ACCEPT_RETRY_SECONDS = 1

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class HttpServer(uvicorn.Server):
    """uvicorn's server with limited connections.

    It does not handle signals: uvicorn would raise them again, and the process would end with their exit status.
    """

    def __init__(
        self, app: ASGIApp, settings: ListenSettings, *, connections: int | None = None, tls: bool = False
    ) -> None:
        super().__init__(_uvicorn_config(app, settings, tls=tls))
        self.connections_max = settings.connections if connections is None else connections
        self.header_seconds = settings.header_timeout_ms / 1000
        self.send_seconds = settings.send_timeout_ms / 1000
        #: Accepted sockets that are not connections yet; with TLS, the handshake is in progress.
        self.accepted: set[_AcceptedSocket] = set()
        #: All connections and sockets without a request in progress; the one that has been idle longest comes first.
        self.idle: dict[_AcceptedSocket | _ClientConnection, None] = {}
        self._listeners: list[socket.socket] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handlers as they are."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        self.servers = []
        self._listeners = list(sockets or ())
        for listener in self._listeners:
            listener.setblocking(False)
            self._listen(listener)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and wait for responses in progress."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
        for accepted in list(self.accepted):
            accepted.disconnect()
        await super().shutdown(sockets)

    def make_room(self, newcomer: _AcceptedSocket | _ClientConnection) -> bool:
        """Close the connection that has been idle longest if there are too many. Return False if it is the newcomer."""
        if len(self.server_state.connections) + len(self.accepted) <= self.connections_max:
            return True
        oldest = next(iter(self.idle))
        if oldest is newcomer:  # all others have a request in progress
            return False
        oldest.disconnect()
        return True

    def _listen(self, listener: socket.socket) -> None:
        if listener in self._listeners:  # shutdown may have removed it
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPT_MAX):
            try:
                sock = listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("cannot accept connections: %s", error.strerror)
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen, listener)
                return
            self.make_room(_AcceptedSocket(self, sock))


def _uvicorn_config(app: ASGIApp, settings: ListenSettings, *, tls: bool) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client can send X-Forwarded-For
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=-(-settings.stop_timeout_ms // 1000),
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,  # heads in pieces; the application checks all
        ssl_certfile=settings.tls_certificate if tls else None,
        ssl_keyfile=settings.tls_key if tls else None,
    )
    config.load()
    return config


class _AcceptedSocket:
    """An accepted socket before it becomes a connection. Its client has `header_timeout_ms` for the TLS handshake."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        server.accepted.add(self)
        server.idle[self] = None
        self._work = asyncio.create_task(self._connect())

    def disconnect(self) -> None:
        """Close the socket, and stop counting it at once. The event loop removes it later."""
        self.done()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends its transport too, if there is one

    def done(self) -> None:
        """Stop counting the socket: it became a connection, or failed."""
        self._server.accepted.discard(self)
        self._server.idle.pop(self, None)

    async def _connect(self) -> None:
        if self not in self._server.accepted:
            self._sock.close()
            return
        self._sock.setblocking(False)
        tls = self._server.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(_ClientConnection, self._server, self),
                self._sock,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._server.header_seconds,
            )
        except OSError:  # ssl.SSLError included: the handshake failed, or the client disconnected
            self._sock.close()
        finally:
            self.done()


class _ClientConnection(H11Protocol):
    """A connection of a client, with the timeouts of the module's docstring."""

    def __init__(self, server: HttpServer, accepted: _AcceptedSocket) -> None:
        super().__init__(server.config, server.server_state, {})
        self._server = server
        self._accepted = accepted
        self._application = self.app
        self.app = self._run_application
        #: The request whose body is malformed.
        self._malformed: RequestResponseCycle | None = None
        #: Runs from the start of the connection or the first byte of a request, until the request is whole.
        self._receive_timer = _Timer(server.header_seconds, self.disconnect)
        #: Runs while the connection closes, until the client has read the rest of its response.
        self._close_timer = _Timer(server.send_seconds, self.disconnect)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request, and close an idle connection if there are too many."""
        super().connection_made(transport)
        self._accepted.done()
        self._server.idle[self] = None
        self._receive_timer.start()
        if not self._server.make_room(self):
            transport.write(_BUSY)
            self._close()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client, and update the timers."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._receive_timer.start()
        else:
            self._receive_timer.stop()
        self._mark_used()
        if self.transport.is_closing():
            self._close_timer.start()

    def send_400_response(self, msg: str) -> None:
        """Reject malformed HTTP. If it is the body of a request, let the application reject that request."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._malformed = self.cycle
            self.cycle.message_event.set()
            self.flow.pause_reading()
        elif self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:  # a response was sent already
            self.disconnect()

    def shutdown(self) -> None:
        """Close the connection after the response in progress, if there is one."""
        super().shutdown()
        if self.transport.is_closing():
            self._close_timer.start()

    def on_response_complete(self) -> None:
        """Mark the connection as idle, unless the next request has already arrived."""
        self._server.idle[self] = None
        super().on_response_complete()
        self._mark_used()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:  # a part of the next request
            self._receive_timer.start()
        if self.transport.is_closing():
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle too long."""
        super().timeout_keep_alive_handler()
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and stop counting the connection."""
        self._server.idle.pop(self, None)
        self._receive_timer.stop()
        self._close_timer.stop()
        super().connection_lost(exc)

    def _mark_used(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._server.idle.pop(self, None)

    def _close(self) -> None:
        """Close once the client has read its response, or when `send_timeout_ms` is over."""
        self.transport.close()
        self._close_timer.start()

    def disconnect(self) -> None:
        """Close the connection, and stop counting it at once. The event loop removes it later."""
        self.connections.discard(self)
        self._server.idle.pop(self, None)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
        self.transport.abort()

    async def _run_application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application. Disconnect after an incomplete response: the client must not take it for the whole."""
        cycle = self.cycle

        async def receive_well_formed() -> Message:
            return {"type": "http.disconnect"} if cycle is self._malformed else await receive()

        try:
            await self._application(scope, receive_well_formed, send)
        finally:
            # uvicorn would wait for the client to read the incomplete response.
            if not cycle.response_complete and (cycle.response_started or self.flow.write_paused):
                self.disconnect()


class _Timer:
    """Calls a function once, a fixed time after the start, unless stopped. `start` has no effect while it runs."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._seconds = seconds
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._callback)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
