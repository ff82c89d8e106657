"""Attacks on the proxy: a lake with two tenants, requests that no client would send, and raw answers.

Requests are signed by `tests.support.proxy.proxy_signatures` and written to sockets, because client libraries would
repair some of them.
"""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from icedb import Table
from icedb.services.proxy.s3.request import S3Request
from icedb.util.clock import SystemClock
from tests.support.object_stores.stores import BUCKET, S3Server
from tests.support.proxy.proxy_process import ROOT, ProxyProcess
from tests.support.proxy.proxy_signatures import presigned, signed

#: A cell that waits for longer has failed.
SOCKET_SECONDS = 30
BACKEND_SECRET_ENV = "ATTACKED_BACKEND_SECRET"
DAY = "d=2026-11-21"
S3_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
#: Programs of the proxy, whose names and versions no answer may contain.
PROGRAMS = ("uvicorn", "starlette", "h11", "botocore", "obstore", "msgspec", "ministack", "duckdb", "python", "icedb")


@dataclass(frozen=True)
class Key:
    """An access key pair."""

    id: str
    secret: str = field(repr=False)


ACME = Key("ACMEKEY1", "acme/Secret+1=")
RIVAL = Key("RIVALKEY1", "rival/Secret+2=")


@dataclass(frozen=True)
class RawReply:
    """A raw answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n == name), None)

    @property
    def outcome(self) -> str:
        """Return the status, and S3's code if present: `403 AccessDenied`."""
        code = self.texts("Code")
        return f"{self.status} {code[0]}" if code and self.status >= 400 else str(self.status)

    def texts(self, name: str) -> list[str]:
        """Return the texts of all elements with a name. Raises ParseError for invalid XML."""
        if self.header("content-type") != "application/xml" or not self.body:
            return []
        root = ET.fromstring(self.body)
        return [e.text or "" for e in root.iter() if e.tag.removeprefix(S3_NAMESPACE) == name]

    @property
    def keys(self) -> list[str]:
        return self.texts("Key")

    def disclosed(self) -> str:
        """Return the text of the answer without the path of the request and the content of parts."""
        body = b"" if self.header("content-type") == "application/vnd.apache.parquet" else self.body
        body = re.sub(rb"<Resource>[^<]*</Resource>", b"", body)
        body = re.sub(rb"(?<=<NextContinuationToken>)[^<]*", lambda token: base64.urlsafe_b64decode(token[0]), body)
        return "\n".join(f"{n}: {v}" for n, v in self.headers) + "\n" + body.decode()


def wire(request: S3Request, body: bytes = b"", *, version: str = "HTTP/1.1", close: bool = True) -> bytes:
    """Encode a request. Texts are encoded as Latin-1, or as UTF-8 if they have other characters."""
    target = f"{request.path}?{request.query}" if request.query else request.path
    headers = [f"{name}: {value}" for name, value in request.headers]
    if close:
        headers.append("connection: close")
    if body and request.header("transfer-encoding") is None and request.header("content-length") is None:
        headers.append(f"content-length: {len(body)}")
    return "\r\n".join([f"{request.method} {target} {version}", *headers, "", ""]).encode("latin-1") + body


def exchange(port: int, sent: bytes) -> bytes:
    """Send all, and read until the proxy closes or resets the connection. Raises TimeoutError."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_SECONDS) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # the proxy may answer before it has read everything
            connection.sendall(sent)
        while True:
            try:
                piece = connection.recv(65_536)
            except ConnectionResetError:
                break
            if not piece:
                break
            received += piece
    return bytes(received)


def replies(received: bytes, *, head: bool = False) -> list[RawReply]:
    """Parse the received answers, without interim ones. Raises ValueError for invalid HTTP."""
    all_replies = []
    while received:
        head_bytes, separator, received = received.partition(b"\r\n\r\n")
        first, *lines = head_bytes.decode("latin-1").split("\r\n")
        version, status, _ = f"{first} ".split(" ", 2)
        if not separator or version != "HTTP/1.1" or not status.isdigit():
            raise ValueError(f"no answer of HTTP: {head_bytes[:200]!r}")
        headers = tuple((n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in lines))
        if status.startswith("1"):
            continue
        body, received = (b"", received) if head or status == "304" else _body(dict(headers), received)
        all_replies.append(RawReply(int(status), headers, body))
    return all_replies


def _body(headers: dict[str, str], received: bytes) -> tuple[bytes, bytes]:
    """Return a body and the bytes after it."""
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while True:
            size, _, received = received.partition(b"\r\n")
            piece, received = received[: int(size, 16)], received[int(size, 16) + 2 :]
            if not piece:
                return body, received
            body += piece
    length = int(headers.get("content-length", len(received)))
    if len(received) < length:
        raise ValueError(f"an answer of {length} bytes ended after {len(received)}")
    return received[:length], received[length:]


@dataclass(frozen=True)
class Lake:
    """Two tables in a real store: acme's `events` of three users, with merged parts, and rival's `private`."""

    server: S3Server
    prefix: str
    events: str
    private: str
    #: Virtual keys of live parts, by user; of those that were merged away; and of rival's table.
    live: dict[str, str]
    dead: dict[str, str]
    rivals: str
    #: All objects in the store, by their real keys.
    objects: dict[str, bytes]
    #: Unix milliseconds: of before and after the merge.
    before_ms: int
    after_ms: int

    def content(self, key: str) -> bytes:
        """Return the bytes of a part of `events`."""
        return self.objects[f"{self.prefix}/events/_data/{key}"]

    def stored(self, name: str) -> str:
        """Return the real key of the first object below a folder of `events`."""
        return min(k for k in self.objects if k.startswith(f"{self.prefix}/events/{name}"))

    def config(self, hold: str) -> str:
        """Return a proxy's configuration. Replaced parts can be fetched for `hold`."""
        server, events = self.server, f'table = "{self.events}"'
        return f"""
[server]
listen = "127.0.0.1:0"
domains = ["s3.test"]
hold = "{hold}"
refresh = "0s"
header_timeout = "1s"

[storage_options]
AWS_ENDPOINT_URL = "{server.endpoint}"
AWS_ACCESS_KEY_ID = "{server.access_key_id}"
AWS_REGION = "us-east-1"

[storage_options_env]
AWS_SECRET_ACCESS_KEY = "{BACKEND_SECRET_ENV}"

[[tenant]]
name = "acme"
keys = [{{ id = "{ACME.id}", secret = "{ACME.secret}" }}]
bucket = [
  {{ name = "events", {events} }},
  {{ name = "ones", {events}, partitions = ["u=1"] }},
  {{ name = "old", {events}, as_of = {self.before_ms} }},
  {{ name = "fixed", {events}, time_travel = false }},
  {{ name = "since", {events}, earliest = {self.after_ms} }},
  {{ name = "broken", table = "s3://{BUCKET}/{self.prefix}/nothing-there" }},
]

[[tenant]]
name = "rival"
keys = [{{ id = "{RIVAL.id}", secret = "{RIVAL.secret}" }}]
bucket = [
  {{ name = "events", table = "{self.private}" }},
  {{ name = "private", table = "{self.private}" }},
  {{ name = "twos", {events}, partitions = ["u=2"] }},
]
"""

    def started(self, hold: str) -> ProxyProcess:
        """Return a proxy as a context manager."""
        return ProxyProcess(self.config(hold), {BACKEND_SECRET_ENV: self.server.secret_access_key})


def lake(server: S3Server) -> Lake:
    """Create the tables."""
    prefix = uuid.uuid4().hex
    uris = {name: f"s3://{BUCKET}/{prefix}/{name}" for name in ("events", "private")}
    events, private = (
        Table.create(uri, partition_by=["d", "u"], storage_options=server.storage_options) for uri in uris.values()
    )
    for first in (0, 10):
        events.insert([{"d": "2026-11-21", "u": u, "n": n} for u in (1, 2, 10) for n in range(first, first + 10)])
    private.insert([{"d": "2026-11-21", "u": 1, "n": n} for n in range(10)])
    [rivals] = _virtual(private).values()
    before_ms = SystemClock().now_ms()
    dead = _virtual(events)
    while SystemClock().now_ms() <= before_ms:
        time.sleep(0.001)
    events.merge()
    live = _virtual(events)
    while SystemClock().now_ms() <= (after_ms := events.snapshot().as_of_ms):
        time.sleep(0.001)
    client = server.client()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]
    objects = {o["Key"]: client.get_object(Bucket=BUCKET, Key=o["Key"])["Body"].read() for o in listed}
    return Lake(server, prefix, uris["events"], uris["private"], live, dead, rivals, objects, before_ms, after_ms)


def _virtual(table: Table) -> dict[str, str]:
    """Return a live part of each user."""
    keys = [part.key.partition("_data/")[2] for part in table.snapshot().parts]
    return {re.findall("u=([0-9]+)", key)[0]: key for key in keys}


@dataclass(frozen=True)
class Asker:
    """Makes valid requests to a proxy, which a test may change, and sends them."""

    proxy: ProxyProcess

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"

    def at(self, seconds: int = 0) -> str:
        """Format the time in so many seconds as signatures do."""
        return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(SystemClock().now_ms() // 1000 + seconds))

    def plain(
        self,
        path: str,
        query: str = "",
        *,
        method: str = "GET",
        more: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        host: str = "",
        at: str = "",
    ) -> S3Request:
        """Return a request with the headers to sign. `more` are further headers."""
        base = (
            ("host", host or self.host),
            ("x-amz-content-sha256", hashlib.sha256(body).hexdigest()),
            ("x-amz-date", at or self.at()),
        )
        return S3Request(method, path, query, (*base, *more))

    def sign(
        self, request: S3Request, who: Key = ACME, *, scope: str | None = None, names: Sequence[str] | None = None
    ) -> S3Request:
        """Add the header Authorization; without `names`, all headers are signed."""
        at = request.header("x-amz-date") or self.at()
        payload = request.header("x-amz-content-sha256")
        names = sorted({n for n, _ in request.headers}) if names is None else names
        return signed(request, at=at, key_id=who.id, secret=who.secret, scope=scope, names=names, payload=payload)

    def ask(self, path: str, query: str = "", who: Key = ACME, **options: Any) -> S3Request:
        """Return a valid request, signed by `who`. The options are those of `plain`."""
        return self.sign(self.plain(path, query, **options), who)

    def link(
        self,
        path: str,
        query: str = "",
        who: Key = ACME,
        *,
        method: str = "GET",
        at: str = "",
        expires: str = "600",
        host: str = "",
    ) -> S3Request:
        """Return a valid presigned address."""
        bare = S3Request(method, path, query, (("host", host or self.host),))
        return presigned(bare, at=at or self.at(), key_id=who.id, secret=who.secret, expires=expires)

    def send(self, request: S3Request) -> RawReply:
        """Send a request and return its only answer."""
        [reply] = replies(exchange(self.proxy.port, wire(request)), head=request.method == "HEAD")
        return reply


@dataclass(frozen=True)
class AttackedProxy(Asker):
    """A proxy in front of a lake, and its clients."""

    lake: Lake

    def secrets(self) -> dict[str, str]:
        """Return the texts that no answer may contain, and what each is."""
        server, lake = self.lake.server, self.lake
        return {
            server.endpoint.removeprefix("http://"): "the store's address",
            f"localhost:{server.endpoint.rpartition(':')[2]}": "the store's address",
            BUCKET: "the store's bucket",
            lake.prefix: "the prefix of the tables",
            server.access_key_id: "the store's access key",
            server.secret_access_key: "the store's secret",
            ACME.secret: "a tenant's secret",
            RIVAL.secret: "a tenant's secret",
            str(ROOT): "a path of the machine",
            "Traceback": "a traceback",
            'File "': "a traceback",
            "_data": "the table's folders",
            "_log": "the table's folders",
            # Log files are named by their writers: its own host and process.
            lake.stored("_log").rpartition("_")[2].rpartition("-")[0]: "host and process of a writer",
            "_claims": "the table's folders",
            "_table.json": "the table's folders",
            **dict.fromkeys(PROGRAMS, "what the proxy is made of"),
        }

    def leaks(self, sent: bytes, reply: RawReply) -> list[str]:
        """Return the secrets in an answer that the request did not contain."""
        request_text, disclosed = unquote(sent.decode("latin-1")).lower(), reply.disclosed().lower()
        hidden = self.secrets()
        if RIVAL.id.lower() not in request_text:
            hidden[self.lake.rivals.rpartition("/")[2]] = "a part of another tenant"
        return [
            f"{what}: {text}"
            for text, what in hidden.items()
            if text.lower() in disclosed and text.lower() not in request_text
        ]


def with_header(request: S3Request, name: str, change: Callable[[str], str | None]) -> S3Request:
    """Change the value of a header, or remove it for None."""
    changed = ((n, change(v) if n == name else v) for n, v in request.headers)
    return replace(request, headers=tuple((n, v) for n, v in changed if v is not None))


def with_parameter(request: S3Request, name: str, change: Callable[[str], str | None]) -> S3Request:
    """Change the encoded value of a parameter, or remove it for None."""
    pairs = [piece.partition("=")[::2] for piece in request.query.split("&")]
    changed = [(n, change(v) if n == name else v) for n, v in pairs]
    return replace(request, query="&".join(f"{n}={v}" for n, v in changed if v is not None))
