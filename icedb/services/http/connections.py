"""Connections of clients: uvicorn's, and how long each may last.

A connection that is not used is not kept. Its client has to shake hands (with TLS) and to say what it wants within
`header_timeout_ms`, and what is left of an answer has to be taken within `send_timeout_ms` when the connection is to be
closed. An answer that the application breaks off is broken off at once, whether its client reads or not. When there are
too many connections, the one that has been without a request for longest makes room for the new one. They count from
when the system hands them over, before TLS: so whoever opens many, and says nothing, keeps nobody out, and how
many files may be open at a time is known.
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

#: Of a server for health and metrics: a few programs ask it.
ADMIN_CONNECTIONS = 64

#: How long a client may keep a connection without a request: longer than the minute after which load balancers let go
#: of it, so that it is never closed under a request that is on its way. When room is needed, it goes earlier.
_IDLE_SECONDS = 75

#: Taken at a time, before those that had to make room for them are closed.
_ACCEPT_MAX = 16
#: After the system refused to hand one over, because too many files are open. As long as asyncio waits.
_ACCEPT_AGAIN_SECONDS = 1

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class HttpServer(uvicorn.Server):
    """uvicorn's, with connections of ours, and without its signals: of those, it would end with the status."""

    def __init__(
        self, app: ASGIApp, settings: ListenSettings, *, connections: int | None = None, tls: bool = False
    ) -> None:
        super().__init__(_uvicorn_config(app, settings, tls=tls))
        self.connections_max = settings.connections if connections is None else connections
        self.head_seconds = settings.header_timeout_ms / 1000
        self.send_seconds = settings.send_timeout_ms / 1000
        #: Accepted, and not yet connections; with TLS their clients are shaking hands.
        self.arrivals: set[_AcceptedSocket] = set()
        #: All on which no request is being answered, in the order in which they became so.
        self.unused: dict[_AcceptedSocket | _ClientConnection, None] = {}
        self._listeners: list[socket.socket] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        self.servers = []
        self._listeners = list(sockets or ())
        for listener in self._listeners:
            listener.setblocking(False)
            self._listen(listener)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and wait for answers that are under way."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
        for arrival in list(self.arrivals):
            arrival.leave()
        await super().shutdown(sockets)

    def make_room(self, newcomer: _AcceptedSocket | _ClientConnection) -> bool:
        """Close the connection that nobody has used for longest, if there are too many; False: it is the newcomer."""
        if len(self.server_state.connections) + len(self.arrivals) <= self.connections_max:
            return True
        longest = next(iter(self.unused))
        if longest is newcomer:  # all others are being answered
            return False
        longest.leave()
        return True

    def _listen(self, listener: socket.socket) -> None:
        if listener in self._listeners:  # it may have been closed meanwhile
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPT_MAX):
            try:
                sock = listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be accepted now: %s", error.strerror)
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_SECONDS, self._listen, listener)
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
        proxy_headers=False,  # X-Forwarded-For may be anybody's word
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=-(-settings.stop_timeout_ms // 1000),
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,  # of what came in pieces; the application looks at all
        ssl_certfile=settings.tls_certificate if tls else None,
        ssl_keyfile=settings.tls_key if tls else None,
    )
    config.load()
    return config


class _AcceptedSocket:
    """A socket that was accepted, until it is a connection. Its client gets as much time for TLS as for a request."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        server.arrivals.add(self)
        server.unused[self] = None
        self._work = asyncio.create_task(self._connect())

    def leave(self) -> None:
        """Close it now. It counts no more, though the loop has still to take it away."""
        self.done()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # its transport, if there is one already, comes to its end by that

    def done(self) -> None:
        """It is a connection now, or never will be."""
        self._server.arrivals.discard(self)
        self._server.unused.pop(self, None)

    async def _connect(self) -> None:
        if self not in self._server.arrivals:
            self._sock.close()
            return
        self._sock.setblocking(False)
        tls = self._server.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(_ClientConnection, self._server, self),
                self._sock,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._server.head_seconds,
            )
        except OSError:  # of ssl, too: it did not shake hands, or is gone
            self._sock.close()
        finally:
            self.done()


class _ClientConnection(H11Protocol):
    """A connection of a client, which is left when it is not used; see the module's docstring."""

    def __init__(self, server: HttpServer, arrival: _AcceptedSocket) -> None:
        super().__init__(server.config, server.server_state, {})
        self._server = server
        self._arrival = arrival
        self._application = self.app
        self.app = self._answer
        #: The request whose body is not HTTP.
        self._malformed: RequestResponseCycle | None = None
        #: Runs from the beginning of the connection, and then from the first byte of a request, until that is whole.
        self._arriving = _Timer(server.head_seconds, self.leave)
        #: Runs when it is over, until the client has taken what there is for it.
        self._closing = _Timer(server.send_seconds, self.leave)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: it has to say what it wants. If there are too many, one that wants nothing has to go."""
        super().connection_made(transport)
        self._arrival.done()
        self._server.unused[self] = None
        self._arriving.start()
        if not self._server.make_room(self):
            transport.write(_BUSY)
            self._close()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._arriving.start()
        else:
            self._arriving.stop()
        self._note_use()
        if self.transport.is_closing():
            self._closing.start()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. When it is the body of a request, whoever answers that one is told and says so."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._malformed = self.cycle
            self.cycle.message_event.set()
            self.flow.pause_reading()
        elif self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:  # an answer was given already
            self.leave()

    def shutdown(self) -> None:
        """The server ends: close when the answer that is under way is given, if there is one."""
        super().shutdown()
        if self.transport.is_closing():
            self._closing.start()

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

    def leave(self) -> None:
        """Close now. It counts no more, though the loop has still to take it away."""
        self.connections.discard(self)
        self._server.unused.pop(self, None)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
        self.transport.abort()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer. If it does not to the end, the client must not take it for the whole."""
        cycle = self.cycle

        async def receive_well_formed() -> Message:
            return {"type": "http.disconnect"} if cycle is self._malformed else await receive()

        try:
            await self._application(scope, receive_well_formed, send)
        finally:
            # uvicorn would wait for the client to take what there is of it.
            if not cycle.response_complete and (cycle.response_started or self.flow.write_paused):
                self.leave()


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
