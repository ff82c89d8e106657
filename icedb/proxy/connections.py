"""Connections of clients: uvicorn's, and how long each may last.

A connection that is not used is not kept. A request has to arrive within `header_timeout_ms`, what is left of an answer
has to be taken within `send_timeout_ms` when the connection is to be closed, and when there are too many connections,
the one that has been without a request for longest makes room for the new one. So whoever opens many, and says nothing,
keeps nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from icedb.errors import InvalidOption
from icedb.proxy.requests import HEAD_BYTES_MAX
from icedb.proxy.settings import ServerSettings

__all__ = ["Server"]

#: How long a client may keep a connection without a request: longer than the minute after which load balancers let go
#: of it, so that it is never closed under a request that is on its way. When room is needed, it goes earlier.
_IDLE_SECONDS = 75

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class Server(uvicorn.Server):
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
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,  # of what came in pieces; the application looks at all
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

    def __init__(self, server: Server) -> None:
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
