"""Request bodies, read and decompressed within limits that do not depend on the client."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
from starlette.types import Receive

from icedb.services.ingest.events.rejections import RequestRejected

__all__ = ["ClientDisconnected", "RequestBody", "decompress"]

#: Bytes to decompress at a time: a limit is exceeded by at most this.
_STEP_BYTES = 256 * 1024
#: Maximum number of members of a gzip body. The remaining bytes are copied for each member.
_MEMBERS_MAX = 1_000


class ClientDisconnected(Exception):
    """The client disconnected before its request was whole."""


class RequestBody:
    """The body of one request, read in pieces."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        #: True when all of it was received.
        self.whole = False

    async def piece(self) -> bytes:
        """Return the next piece. Call it only while the body is not whole. Raises ClientDisconnected."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def read(self, content_length: int | None, bytes_max: int, reserve: Callable[[int], None]) -> bytes:
        """Return the whole body as it was sent. `reserve` is called with the size of each piece.

        Raises RequestRejected if the body is too large (413), or if `reserve` raises it.
        """
        if content_length is not None and content_length > bytes_max:
            raise too_large(bytes_max)
        pieces: list[bytes] = []
        size = 0
        while not self.whole:
            piece = await self.piece()
            size += len(piece)
            if size > bytes_max:
                raise too_large(bytes_max)
            reserve(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self, bytes_max: int, seconds: float) -> None:
        """Read and discard the rest of the body, within the limits on size and time.

        A client that gets a response while it still sends may see a broken connection instead of the response.
        """
        size = 0
        with suppress(ClientDisconnected, TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.whole and size <= bytes_max:
                    size += len(await self.piece())


def decompress(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """Decompress a body. Raises RequestRejected: unknown encoding (415), corrupt body (400), too large (413)."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _decompress_gzip(body, bytes_max)
        case "zstd":
            return _decompress_zstd(body, bytes_max)
    raise RequestRejected(
        415,
        "The Content-Encoding is not supported. Send gzip, zstd or none.",
        headers=(("accept-encoding", "gzip, zstd"),),
    )


def _decompress_gzip(body: bytes, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = members = 0
    try:
        while body:  # a body may have several members
            members += 1
            if members > _MEMBERS_MAX:
                raise RequestRejected(400, f"The body has more than {_MEMBERS_MAX} gzip members. Compress it as one.")
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                piece = member.decompress(body, _STEP_BYTES)
                body = member.unconsumed_tail
                size += len(piece)
                if size > bytes_max:
                    raise too_large(bytes_max)
                pieces.append(piece)
                if not piece and not body and not member.eof:
                    raise RequestRejected(400, "The gzip body is incomplete. Send it again.")
            body = member.unused_data
    except zlib.error:
        raise RequestRejected(400, "The Content-Encoding is gzip, but the body is invalid.") from None
    return b"".join(pieces)


def _decompress_zstd(body: bytes, bytes_max: int) -> bytes:
    pieces: list[Any] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while piece := stream.read(_STEP_BYTES):
                size += len(piece)
                if size > bytes_max:
                    raise too_large(bytes_max)
                pieces.append(piece)
    except (OSError, pa.ArrowException, MemoryError):
        raise RequestRejected(400, "The Content-Encoding is zstd, but the body is invalid or incomplete.") from None
    return b"".join(pieces)


def too_large(bytes_max: int) -> RequestRejected:
    """Return the rejection of a body that exceeds the limit."""
    return RequestRejected(413, f"The body is larger than {bytes_max} bytes. Send fewer events at a time.")
