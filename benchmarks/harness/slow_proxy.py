"""The program of `benchmarks.harness.slow_store.slow`: an HTTP proxy that delays and counts requests.

    python -m benchmarks.harness.slow_proxy http://127.0.0.1:4566 20

It is a separate process, so that it takes no processor time of the measured one. One event loop with persistent
connections handles some thousand requests a second. It prints its port. `GET /-/requests` returns the requests since
the last `GET /-/requests?reset`. The Host header is forwarded, so signatures stay valid.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from tests.support.object_stores.counting_proxy import HttpRequest, seen

__all__ = ["CONTROL", "RESET"]

#: Paths that no bucket can have: the recorded requests, and the same with a reset.
CONTROL = "/-/requests"
RESET = CONTROL + "?reset"

PIECE_BYTES = 256 * 1024
_NO_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a request or a response. `raw` includes the empty line at the end."""

    raw: bytes
    first: str
    headers: Mapping[str, str]

    def without(self, name: str) -> bytes:
        """Return the head without a header."""
        lines = self.raw.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(name.encode() + b":"))


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Proxy:
    def __init__(self, upstream: str, latency: float) -> None:
        self._address = urlsplit(upstream)
        self._latency = latency
        self._idle: list[_Connection] = []
        self._requests: list[HttpRequest] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle the requests of one connection."""
        port = writer.get_extra_info("peername")[1]
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer, port):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> bool:
        """Handle one request, and return whether the connection stays open."""
        head = await _read_head(reader)
        method, path, _ = head.first.split(" ", 2)
        if head.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join([piece async for piece in _body(head, reader, until_end=False)])
        if path.startswith(CONTROL):
            self._send_requests(writer, reset=path == RESET)
            return True
        request = seen(method, path, head.headers, client_port=port)
        if self._latency:
            await asyncio.sleep(self._latency)
        server, response = await self._forward(head.without("expect") + body)
        writer.write(response.raw)
        status, down = int(response.first.split(" ", 2)[1]), 0
        if method != "HEAD" and status not in _NO_BODY:
            async for piece in _body(response, server.reader, until_end=True):
                down += len(piece)
                writer.write(piece)
                await writer.drain()
        self._requests.append(replace(request, status=status, up=len(body), down=down))
        if _ends(response):
            server.writer.close()
        else:
            self._idle.append(server)
        await writer.drain()
        return not _ends(response) and not _ends(head)

    async def _forward(self, request: bytes) -> tuple[_Connection, _Head]:
        """Send a request to the server. If it closed an idle connection meanwhile, use another one."""
        while True:
            kept = bool(self._idle)
            host, port = self._address.hostname, self._address.port
            server = self._idle.pop() if kept else _Connection(*await asyncio.open_connection(host, port))
            try:
                server.writer.write(request)
                await server.writer.drain()
                return server, await _read_head(server.reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                server.writer.close()
                if not kept:
                    raise

    def _send_requests(self, writer: asyncio.StreamWriter, *, reset: bool) -> None:
        body = json.dumps([msgspec.to_builtins(r) for r in self._requests]).encode()
        if reset:
            self._requests.clear()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return _Head(raw, first, {name.lower(): value.strip() for name, _, value in pairs})


async def _body(head: _Head, reader: asyncio.StreamReader, *, until_end: bool) -> AsyncIterator[bytes]:
    """Yield a body in pieces, chunked or not, as it was sent."""
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            line = await reader.readuntil(b"\r\n")
            yield line
            size = int(line.split(b";")[0], 16)
            yield await reader.readexactly(size + 2)
            if size == 0:
                return
    left = int(head.headers["content-length"]) if "content-length" in head.headers else -1 if until_end else 0
    while left and (piece := await reader.read(PIECE_BYTES if left < 0 else min(left, PIECE_BYTES))):
        left -= len(piece) if left > 0 else 0
        yield piece
    if left > 0:
        raise ConnectionError


def _ends(head: _Head) -> bool:
    connection = head.headers.get("connection", "").lower()
    sized = "content-length" in head.headers or "transfer-encoding" in head.headers
    return connection == "close" or (head.first.startswith("HTTP/") and not sized and " 204 " not in head.first)


async def _run(upstream: str, latency_ms: float) -> None:
    proxy = _Proxy(upstream, latency_ms / 1000)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=PIECE_BYTES)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(sys.argv[1], float(sys.argv[2])))
