"""An HTTP reverse proxy that counts the requests of a client to an S3 server.

Only the standard library, one thread per connection. The Host header is unchanged, so signatures stay valid.
"""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.processes import serving

Kind = Literal["PUT", "GET", "HEAD", "LIST", "COPY", "DELETE", "DELETE MANY", "OTHER"]
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class HttpRequest:
    """One request as it was on the wire; a listing has its prefix, a bulk delete its bucket."""

    kind: Kind
    path: str
    status: int
    #: The client's port, which identifies its process.
    client_port: int = 0
    #: Bytes of the body that was sent, and of the one that came back.
    up: int = 0
    down: int = 0


#: Answers in the server's place, status and body; None lets the request through.
Answer = Callable[[Kind, str, bytes], tuple[int, bytes] | None]
#: May wait. A ConnectionError closes the connection without an answer.
Disturb = Callable[[HttpRequest], None]


class CountingProxy:
    """Clients connect to `endpoint`; `requests` has their requests since the last `reset`.

    `before` is called before the server gets a request (its status is 0), `after` before the client gets the answer.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.requests: list[HttpRequest] = []
        self.answer: Answer | None = None
        self.before: Disturb | None = None
        self.after: Disturb | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def counts(self) -> dict[Kind, int]:
        """Return the number of requests of each kind."""
        return dict(Counter(r.kind for r in self.requests))

    def reset(self) -> None:
        """Forget the requests so far."""
        self.requests.clear()

    @contextmanager
    def running(self) -> Iterator[CountingProxy]:
        """Serve until the block ends."""
        with serving(self._server):
            yield self


def seen(method: str, path: str, headers: Message | Mapping[str, str], *, client_port: int = 0) -> HttpRequest:
    """A received request. `headers` have names in lower case."""
    kind = kind_of(method, path, headers)
    address = urlsplit(path)
    prefix = parse_qs(address.query).get("prefix", [""])[0] if kind == "LIST" else ""
    return HttpRequest(kind, prefix or unquote(address.path).strip("/").partition("/")[2], 0, client_port)


def kind_of(method: str, path: str, headers: Message | Mapping[str, str]) -> Kind:
    """Return the operation of S3 that a request is."""
    address = urlsplit(path)
    query = parse_qs(address.query, keep_blank_values=True)
    is_object = "/" in address.path.strip("/")
    if method == "GET" and not is_object:
        return "LIST"
    if method == "POST" and "delete" in query:
        return "DELETE MANY"
    if method == "PUT" and "x-amz-copy-source" in headers:
        return "COPY"
    if is_object and not query:
        for kind in ("PUT", "GET", "HEAD", "DELETE"):
            if method == kind:
                return kind
    return "OTHER"


class ReplyingHandler(BaseHTTPRequestHandler):
    """Handles requests on connections that stay open, and prints nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send a whole response."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Print nothing."""


def _handler(proxy: CountingProxy) -> type[BaseHTTPRequestHandler]:
    class CountingHandler(ReplyingHandler):
        def do(self) -> None:
            body = self._read_body()
            request = seen(self.command, self.path, self.headers, client_port=self.client_address[1])
            try:
                if proxy.before is not None:
                    proxy.before(request)
                substitute = proxy.answer(request.kind, self.path, body) if proxy.answer is not None else None
                status, headers, answer = (
                    self._forward(body) if substitute is None else (substitute[0], [], substitute[1])
                )
                request = replace(request, status=status, up=len(body), down=len(answer))
                proxy.requests.append(request)
                if proxy.after is not None:
                    proxy.after(request)
                self.reply(status, headers, answer)
            except ConnectionError:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do  # noqa: N815 -- the base class wants these names

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            server = http.client.HTTPConnection(proxy.upstream, timeout=TIMEOUT_SECONDS)
            try:
                server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP_BY_HOP:
                        server.putheader(name, value)
                if body or self.command in ("PUT", "POST"):
                    server.putheader("Content-Length", str(len(body)))
                server.endheaders(body or None)
                answer = server.getresponse()
                length = [("Content-Length", answer.headers["Content-Length"])] if self.command == "HEAD" else []
                headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP]
                return answer.status, [*headers, *((n, v) for n, v in length if v)], answer.read()
            finally:
                server.close()

    return CountingHandler
