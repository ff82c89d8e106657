"""A proxy in the test's process: an event loop and a clock that only the test advances, a table, signed requests.

`run` runs a coroutine in a loop whose time only the test advances, so that a request per second can be counted on any
machine. An `S3Endpoint` is the proxy's application, called as a server would call it, or a real server over HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import io
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.operations.commits.actions import Replace
from icedb.services.proxy.app import ProxyApp
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.settings import IcebergSettings, ServerSettings
from icedb.services.proxy.config.tenants import AccessKey, Scope, Tenant, TenantLimits, VirtualBucket
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.metrics import ProxyMetrics
from icedb.testing import ClockedStore, FaultyStore, ManualClock, create_table, open_table
from icedb.transaction.append import append
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from tests.support.proxy.proxy_signatures import OneTenant

KEY = AccessKey("ACMEKEY1", "acme-secret-1")
#: A host below it names a bucket.
DOMAIN = "s3.example.test"
HOST = "127.0.0.1:8080"
TIMEOUT_SECONDS = 60
Headers = Iterable[tuple[str, str]]
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time only `advance` changes. Threads do not wait for it."""

    def __init__(self) -> None:
        self._ms = 1_000_000
        super().__init__()

    def time(self) -> float:
        """Seconds."""
        return self._ms / 1000

    def advance(self, by_ms: int) -> None:
        """Advance the time. Due timers run when the loop runs next."""
        self._ms += by_ms


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a test's coroutine in a loop whose time is constant."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(work)


def in_still_loop(test: Callable[_Arguments, Coroutine[Any, Any, None]]) -> Callable[_Arguments, None]:
    """Run an async test in a loop whose time is constant."""

    @wraps(test)
    def in_loop(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_loop


class ProxyWorld:
    """A table in a store with the test's clock, and catalogs of proxies that serve it.

    Proxies read through `store`, which counts requests and injects faults. The writer `table` does not use it.
    """

    def __init__(self, *, partition_by: Iterable[str] = ("u",)) -> None:
        self.clock = ManualClock()
        self.inner = ClockedStore(self.clock)
        self.table = create_table(self.inner, self.clock, partition_by=list(partition_by))
        self.store = FaultyStore(self.inner)

    def tables(self, **options: Any) -> TableCatalog:
        """Return an empty catalog, as of a new proxy process."""
        return TableCatalog(clock=self.clock, open_table=self.open, **options)

    def open(self, address: str, _: Mapping[str, str] | None) -> Handle:
        """Open the table through the counting store, for any address."""
        return open_table(self.store, self.clock).handle

    def bucket(self, *partitions: str, **scope: Any) -> VirtualBucket:
        """Return a virtual bucket of the table."""
        return VirtualBucket("events", "table", Scope(partitions, **scope))

    def advance(self, by_ms: int) -> None:
        """Advance the clock and the running loop."""
        self.clock.advance(by_ms)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)
        loop.advance(by_ms)

    def add(self, *partitions: str, table: Table | None = None) -> list[str]:
        """Commit a part to each of these partitions and return the virtual keys. The parts are not Parquet files."""
        handle = (table or self.table).handle
        markers = [
            Marker(handle.keys.part(p, handle.clock.new_id()), 10, handle.clock.now_ms(), rows=1) for p in partitions
        ]
        for marker in markers:
            handle.store.create(marker.key, b"0123456789")
        append(handle, markers, {"n": "BIGINT"}, oldest_part_ms=handle.clock.now_ms())
        return [m.key.removeprefix(handle.keys.data_prefix) for m in markers]

    def replace(self, *keys: str) -> None:
        """Tombstone parts by an exclusive commit, as a merge does."""
        commit_exclusive(self.table.handle, Replace(lambda _: [self.table.handle.keys.data_prefix + k for k in keys]))

    def write_log(self, t_ms: int, markers: Iterable[Marker]) -> None:
        """Put a log file with these markers, without a check."""
        handle = self.table.handle
        key = handle.keys.log_file(t_ms, merged=False, writer=self.clock.new_id())
        self.inner.create(key, encode(LogFile(t_ms, {"n": "BIGINT"}, tuple(markers))))

    @property
    def listings(self) -> int:
        """Return the number of list requests of proxies so far."""
        return self.store.counts["list"]


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def code(self) -> str:
        """Return the code of S3's error, or an empty text."""
        error_code = re.search(rb"<Code>(\w+)</Code>", self.body)
        return error_code[1].decode() if error_code and self.status >= 400 else ""


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], body: bytes, *, key: AccessKey
) -> tuple[tuple[str, str], ...]:
    """Return headers with botocore's signature."""
    digest = hashlib.sha256(body).hexdigest()
    request = AWSRequest(method, url, {**headers, "Host": urlsplit(url).netloc, "X-Amz-Content-SHA256": digest}, body)
    S3SigV4Auth(ReadOnlyCredentials(key.id, key.secret, None), "s3", "us-east-1").add_auth(request)
    return tuple((name, str(value)) for name, value in request.headers.items())


def _url(host: str, path: str, query: Mapping[str, str] | None) -> str:
    pairs = (f"{quote(n, safe='')}={quote(v, safe='')}" if v else quote(n, safe="") for n, v in (query or {}).items())
    return f"http://{host}{quote(path, safe='/~')}{'?' if query else ''}{'&'.join(pairs)}"


class S3Endpoint:
    """An S3 endpoint: the proxy's application in this process, or a server."""

    def __init__(self, host: str, key: AccessKey) -> None:
        self._host, self._key = host, key

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        signed_body: bytes | None = None,
        host: str | None = None,
    ) -> HttpAnswer:
        """Sign a request and send it. Path and parameters are not encoded yet. `signed_body`: the body to sign."""
        url = _url(host or self._host, path, query)
        signed = body if signed_body is None else signed_body
        return self._send(method, url, path, signed_headers(method, url, headers or {}, signed, key=self._key), body)

    def _send(self, method: str, url: str, path: str, headers: Headers, body: bytes) -> HttpAnswer:
        raise NotImplementedError


class ServerEndpoint(S3Endpoint):
    """A server that listens."""

    def __init__(self, endpoint: str, key: AccessKey) -> None:
        super().__init__(urlsplit(endpoint).netloc, key)
        self._connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._connection.close()

    def _send(self, method: str, url: str, path: str, headers: Headers, body: bytes) -> HttpAnswer:
        target = url.removeprefix(f"http://{urlsplit(url).netloc}")
        self._connection.request(method, target, body or None, dict(headers))
        answer = self._connection.getresponse()
        return HttpAnswer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())


class AppEndpoint(S3Endpoint):
    """The proxy's application in this process, in the runner's loop."""

    def __init__(self, app: ProxyApp, runner: asyncio.Runner, key: AccessKey = KEY) -> None:
        super().__init__(HOST, key)
        self.app = app
        self._runner = runner

    def _send(self, method: str, url: str, path: str, headers: Headers, body: bytes) -> HttpAnswer:
        length = [("content-length", str(len(body)))] if body else []
        scope = _scope(method, url, path, [*headers, *length])
        return self._runner.run(ask_app(self.app, scope, [body] if body else []))


def question(method: str, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a signed request without a body, as a server passes it to an ASGI application."""
    url = _url(HOST, path, query)
    return _scope(method, url, path, signed_headers(method, url, {}, b"", key=KEY))


def _scope(method: str, url: str, path: str, headers: Headers) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in headers],
        "client": ("127.0.0.1", 50_000),
    }


async def ask_app(app: ProxyApp, scope: dict[str, Any], pieces: Iterable[bytes] = ()) -> HttpAnswer:
    """Call an ASGI application and return its answer. The client stays connected until the end."""
    rest = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    rest.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if rest:
            return rest.pop(0)
        await asyncio.Event().wait()  # nothing more comes
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return answer_of(sent)


def answer_of(sent: list[dict[str, Any]]) -> HttpAnswer:
    """Return the answer in ASGI messages. Raises AssertionError for messages that a server could not send."""
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert [m.get("more_body", False) for m in rest] == [True] * (len(rest) - 1) + [False]
    names = [n.decode() for n, _ in start["headers"]]
    assert len(set(names)) == len(names)
    return HttpAnswer(
        start["status"],
        {n.decode().lower(): v.decode() for n, v in start["headers"]},
        b"".join(m.get("body", b"") for m in rest),
    )


def make_app(
    tables: TableCatalog,
    buckets: Iterable[VirtualBucket],
    *,
    log: io.BytesIO | None = None,
    iceberg: IcebergSettings | None = None,
    limiter: TenantLimiter | None = None,
    metrics: ProxyMetrics | None = None,
    limits: TenantLimits | None = None,
    **settings: Any,
) -> ProxyApp:
    """Return a proxy with the tenant `acme`, whose `KEY` gives access to these buckets."""
    tenant = Tenant("acme", (KEY,), {b.name: b for b in buckets}, limits or TenantLimits())
    return ProxyApp(
        ServerSettings(domains=(DOMAIN,), **settings),
        OneTenant(tenant),
        tables,
        TenantLimiter() if limiter is None else limiter,  # an empty one is false
        metrics or ProxyMetrics(),
        log or io.BytesIO(),
        iceberg=iceberg,
    )


async def together(count: int, ask: Callable[[], Awaitable[_Result]]) -> list[_Result]:
    """Send several requests concurrently and return the answers."""
    return list(await asyncio.gather(*(ask() for _ in range(count))))
