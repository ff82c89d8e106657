"""The body of a request, which only requests for tokens need. It is small, and compared with its signed hash."""

from __future__ import annotations

import asyncio
import hashlib

from starlette.types import Receive

from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["UnauthenticatedBodies", "check_body", "check_head", "has_body"]

# Read operations have no body. Clients that send one nevertheless send little.
BODY_BYTES_MAX = 64 * 1024


# Clients send the head and the body of a request for a token together.
UNAUTHENTICATED_BODY_SECONDS = 2


class UnauthenticatedBodies:
    """Reads bodies of clients that have not authenticated: a limited number at once, and each for a short time.

    Beyond the limit, the read that began first ends with an error. So clients that send no body cannot keep others from
    getting a token.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        #: The reads that have not ended, the oldest first.
        self._reads: dict[asyncio.Timeout, None] = {}

    async def read(self, request: S3Request, receive: Receive) -> bytes:
        """Return the body. Raises S3Error, as `read_body`, and RequestTimeout."""
        if len(self._reads) >= self._at_once:
            oldest = next(iter(self._reads))
            del self._reads[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        limit = asyncio.timeout(UNAUTHENTICATED_BODY_SECONDS)
        try:
            async with limit:
                self._reads[limit] = None
                return await read_body(request, receive)
        except TimeoutError:
            raise S3Error("RequestTimeout") from None
        finally:
            self._reads.pop(limit, None)


def has_body(request: S3Request) -> bool:
    """Return whether a body follows the head of a request."""
    headers = dict(request.headers)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def check_head(request: S3Request) -> None:
    """Raise S3Error if the head is too large, or if it states the size of the body in two ways."""
    request.check_size()
    if request.header("content-length") is not None and request.header("transfer-encoding") is not None:
        raise S3Error("InvalidRequest", "A request has a Content-Length or a Transfer-Encoding, not both.")


async def check_body(request: S3Request, receive: Receive, *, sha256: str | None) -> None:
    """Read the body, and compare it with the signed hash. Raises S3Error."""
    digest = hashlib.sha256(await read_body(request, receive)).hexdigest()
    if sha256 not in (None, digest):
        raise S3Error("XAmzContentSHA256Mismatch")


async def read_body(request: S3Request, receive: Receive) -> bytes:
    """Return the body. Raises S3Error (EntityTooLarge, InvalidRequest)."""
    pieces, size = [], 0
    more = has_body(request)
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise S3Error("InvalidRequest", "The request's body is incomplete.")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > BODY_BYTES_MAX:
            raise S3Error("EntityTooLarge")
        more = message.get("more_body", False)
    return b"".join(pieces)
