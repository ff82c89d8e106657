"""The body of a request, which only requests for tokens need. It is small, and compared with its signed hash."""

from __future__ import annotations

import hashlib

from starlette.types import Receive

from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["check_body", "check_head", "has_body", "read_body"]

# Read operations have no body. Clients that send one nevertheless send little.
BODY_BYTES_MAX = 64 * 1024


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
