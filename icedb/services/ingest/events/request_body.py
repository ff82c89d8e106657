"""Bodies of requests: read and decompressed within their limits, whatever a client says of their size."""

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

#: Decompressed at a time, so that a limit is passed by no more.
_STEP_BYTES = 256 * 1024
#: Of one gzip body. What is left is copied for each of them.
_MEMBERS_MAX = 1_000


class ClientDisconnected(Exception):
    """The client went away before its request was whole."""


class RequestBody:
    """The body of one request, as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        #: Whether all of it has come.
        self.whole = False

    async def piece(self) -> bytes:
        """The next piece; only while it is not whole. Raises ClientDisconnected."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def read(self, announced: int | None, bytes_max: int, take: Callable[[int], None]) -> bytes:
        """All of it, as it was sent; `take` is told of each piece. Raises Refusal (413, or what `take` does)."""
        if announced is not None and announced > bytes_max:
            raise too_large(bytes_max)
        pieces: list[bytes] = []
        size = 0
        while not self.whole:
            piece = await self.piece()
            size += len(piece)
            if size > bytes_max:
                raise too_large(bytes_max)
            take(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self, bytes_max: int, seconds: float) -> None:
        """Read what is left and keep nothing, unless it is more than so much, takes longer, or the client is gone.

        A client that is answered while it still sends may see a broken connection in place of the answer.
        """
        size = 0
        with suppress(ClientDisconnected, TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.whole and size <= bytes_max:
                    size += len(await self.piece())


def decompress(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The content of a body. Raises Refusal: 415 for another encoding, 400 for what is none, 413."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _gunzipped(body, bytes_max)
        case "zstd":
            return _of_zstd(body, bytes_max)
    raise RequestRejected(
        415,
        "The Content-Encoding is none that is known here. Send gzip, zstd or none.",
        headers=(("accept-encoding", "gzip, zstd"),),
    )


def _gunzipped(body: bytes, bytes_max: int) -> bytes:
    found: list[bytes] = []
    size = members = 0
    try:
        while body:  # a body may be of several members
            members += 1
            if members > _MEMBERS_MAX:
                raise RequestRejected(400, f"The body is more than {_MEMBERS_MAX} gzip members. Compress it as one.")
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                piece = member.decompress(body, _STEP_BYTES)
                body = member.unconsumed_tail
                size += len(piece)
                if size > bytes_max:
                    raise too_large(bytes_max)
                found.append(piece)
                if not piece and not body and not member.eof:
                    raise RequestRejected(400, "The body ends before its gzip does. Send it whole.")
            body = member.unused_data
    except zlib.error:
        raise RequestRejected(400, "The body is no gzip, as Content-Encoding says.") from None
    return b"".join(found)


def _of_zstd(body: bytes, bytes_max: int) -> bytes:
    found: list[Any] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while piece := stream.read(_STEP_BYTES):
                size += len(piece)
                if size > bytes_max:
                    raise too_large(bytes_max)
                found.append(piece)
    except (OSError, pa.ArrowException, MemoryError):
        raise RequestRejected(400, "The body is no zstd, or not whole, as Content-Encoding says.") from None
    return b"".join(found)


def too_large(bytes_max: int) -> RequestRejected:
    """What is told of a body that is larger."""
    return RequestRejected(413, f"The body is larger than {bytes_max} bytes. Send fewer events at a time.")
