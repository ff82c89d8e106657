"""Checks of request heads, and JSON responses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.types import Message, Scope, Send

from icedb.services.http.server_settings import HEAD_BYTES_MAX
from icedb.services.ingest.events.rejections import RequestRejected

__all__ = ["check_head", "commit_id", "send_json"]

_encode = msgspec.json.Encoder().encode


def check_head(scope: Scope) -> None:
    """Raise RequestRejected if a request's head is too large or ambiguous."""
    if len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in scope["headers"]) > (
        HEAD_BYTES_MAX
    ):
        raise RequestRejected(431, f"The request's head is larger than {HEAD_BYTES_MAX} bytes.")
    names = [name for name, _ in scope["headers"]]
    for name in (b"authorization", b"content-type", b"content-encoding", b"x-signature"):
        if names.count(name) > 1:
            raise RequestRejected(400, f"There are several headers {name.decode()}. Send one.")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise RequestRejected(400, "A request has a Content-Length or a Transfer-Encoding, not both.")


def commit_id(key: str | None, created_ms: int | None) -> str | None:
    """Return the id of a commit for clients: its time in unix milliseconds and a digest of its log file's key.

    The key itself is not sent, because it has the host name and process id of the service. None means no commit.
    """
    return None if key is None else f"{created_ms or 0}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


async def send_json(
    send: Send, status: int, document: Mapping[str, Any], headers: list[tuple[str, str]], *, head: bool, timeout_ms: int
) -> None:
    """Send a response. If the client does not read it in time, stop; the server then closes the connection."""
    body = _encode(document) + b"\n"
    all_headers = [("content-type", "application/json"), ("content-length", str(len(body))), *headers]
    start: Message = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in all_headers],
    }
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000):
            await send(start)
            await send({"type": "http.response.body", "body": b"" if head else body})
