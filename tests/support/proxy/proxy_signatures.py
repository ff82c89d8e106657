"""Signed requests for tests of the proxy: recorded from S3 clients, and signed here.

A `Recorder` is a server that records requests and answers 404. `signed` and `presigned` follow AWS's specification
with Python's own modules, so that they can sign requests that no client would send.
"""

from __future__ import annotations

import hashlib
import hmac
import socketserver
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from io import BufferedIOBase
from urllib.parse import quote, unquote_to_bytes

from icedb.services.proxy.config.tenants import AccessKey, KeyOwner, Tenant
from icedb.services.proxy.s3.request import S3Request
from tests.support.processes import serving

KEY_ID = "ACMEKEY1"
SECRET = "acme/Secret+1="
BUCKET = "events"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
ACME = Tenant("acme", (AccessKey(KEY_ID, SECRET),), {})

TIMEOUT_SECONDS = 60
_NOTHING = b"<Error><Code>NoSuchKey</Code><Message>There is nothing here.</Message></Error>"


class OneTenant:
    """A directory with one tenant; `looked_up` has the requested ids."""

    def __init__(self, tenant: Tenant = ACME) -> None:
        self.tenant = tenant
        self.looked_up: list[str] = []

    async def find(self, access_key_id: str) -> KeyOwner | None:
        self.looked_up.append(access_key_id)
        return next((KeyOwner(self.tenant, key) for key in self.tenant.keys if key.id == access_key_id), None)


class Recorder:
    """`address` is host and port; `requests` is what came."""

    def __init__(self) -> None:
        self.requests: list[S3Request] = []
        recorder = self

        class RecordingHandler(socketserver.StreamRequestHandler):
            timeout = TIMEOUT_SECONDS

            def handle(self) -> None:
                while (request := _read(self.rfile)) is not None:
                    recorder.requests.append(request)
                    body = b"" if request.method == "HEAD" else _NOTHING
                    head = f"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nContent-Length: {len(_NOTHING)}"
                    self.wfile.write(head.encode() + b"\r\n\r\n" + body)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), RecordingHandler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Recorder]:
        with serving(self._server):
            yield self


def _read(stream: BufferedIOBase) -> S3Request | None:
    """Read a request, or None if the client has disconnected. Texts are decoded as Latin-1, as servers do."""
    lines = []
    while line := stream.readline():
        if line == b"\r\n":
            break
        lines.append(line.decode("latin-1").removesuffix("\r\n"))
    if not lines:
        return None
    method, target, _ = lines[0].split(" ")
    path, _, query = target.partition("?")
    headers = [line.partition(":")[::2] for line in lines[1:]]
    request = S3Request(method, path, query, tuple((n.lower(), v.strip(" \t")) for n, v in headers))
    stream.read(int(request.header("content-length") or 0))
    return request


def unix_ms(timestamp: str) -> int:
    """Parse a time such as `20261121T100000Z`."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


def signed(
    request: S3Request,
    *,
    at: str,
    key_id: str = KEY_ID,
    secret: str = SECRET,
    scope: str | None = None,
    names: Sequence[str] | None = None,
    payload: str | None = None,
) -> S3Request:
    """Add an Authorization header. By default it signs all headers, in a scope of its day."""
    scope = scope or f"{at[:8]}/eu-central-1/s3/aws4_request"
    names = sorted(n for n, _ in request.headers) if names is None else names
    payload = payload or request.header("x-amz-content-sha256") or ""
    signature = _signature(request, at, secret, scope, names, payload)
    value = f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return replace(request, headers=(*request.headers, ("authorization", value)))


def presigned(
    request: S3Request,
    *,
    at: str,
    key_id: str = KEY_ID,
    secret: str = SECRET,
    expires: str = "600",
    scope: str | None = None,
    names: Sequence[str] = ("host",),
    payload: str = "UNSIGNED-PAYLOAD",
) -> S3Request:
    """Add the parameters of a presigned address."""
    scope = scope or f"{at[:8]}/eu-central-1/s3/aws4_request"
    parameters = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{key_id}/{scope}",
        "X-Amz-Date": at,
        "X-Amz-Expires": expires,
        "X-Amz-SignedHeaders": ";".join(names),
    }
    added = "&".join(f"{n}={quote(v, safe='')}" for n, v in parameters.items())
    request = replace(request, query=f"{request.query}&{added}" if request.query else added)
    signature = _signature(request, at, secret, scope, names, payload)
    return replace(request, query=f"{request.query}&X-Amz-Signature={signature}")


def _signature(request: S3Request, at: str, secret: str, scope: str, names: Sequence[str], payload: str) -> str:
    pairs = [piece.partition("=")[::2] for piece in request.query.split("&") if piece]
    lines = [
        request.method,
        _encoded(request.path, safe="/"),
        "&".join(f"{n}={v}" for n, v in sorted((_encoded(n), _encoded(v)) for n, v in pairs)),
        *(f"{name}:{','.join(' '.join(v.split()) for n, v in request.headers if n == name)}" for name in names),
        "",
        ";".join(names),
        payload,
    ]
    digest = hashlib.sha256("\n".join(lines).encode("latin-1")).hexdigest()
    key = f"AWS4{secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    return hmac.digest(key, f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}".encode(), "sha256").hex()


def _encoded(text: str, *, safe: str = "") -> str:
    return quote(unquote_to_bytes(text), safe=safe)
