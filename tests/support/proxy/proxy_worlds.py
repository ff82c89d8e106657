"""What tests of the proxy inside one process need: a time that stands still, a table behind it, and signed questions.

`run` gives a test an event loop whose time only the test moves, so that "once per second" can be counted and never
depends on the machine. `Side` is an S3 endpoint that is asked over a signature: the proxy's application, called as a
server would call it, or a real server over HTTP. Both take the same question and say what they answered.
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
from typing import Any, ParamSpec, Protocol, TypeVar
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
from icedb.services.proxy.config.settings import ServerSettings
from icedb.services.proxy.config.tenants import AccessKey, Scope, Tenant, VirtualBucket
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
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


# ------------------------------------------------------------------------------------------ time


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time only `advance` moves. What runs in threads is not held up by it."""

    def __init__(self) -> None:
        self._ms = 1_000_000
        super().__init__()

    def time(self) -> float:
        """Seconds."""
        return self._ms / 1000

    def advance(self, by_ms: int) -> None:
        """Let time pass; timers that are due run when the loop runs next."""
        self._ms += by_ms


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a test's coroutine in a loop whose time stands still."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(work)


def in_still_loop(test: Callable[_Arguments, Coroutine[Any, Any, None]]) -> Callable[_Arguments, None]:
    """Run an async test in a loop whose time stands still."""

    @wraps(test)
    def in_loop(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_loop


# ------------------------------------------------------------------------------------------ a table


class World:
    """A table in a store whose clock is the test's, partitioned by `d` and `u`, and proxies that show it.

    `store` is what proxies read by: it counts their requests and fails on purpose. The table's own writer is `table`,
    which does not go through it.
    """

    def __init__(self, *, partition_by: Iterable[str] = ("u",)) -> None:
        self.clock = ManualClock()
        self.inner = ClockedStore(self.clock)
        self.table = create_table(self.inner, self.clock, partition_by=list(partition_by))
        self.store = FaultyStore(self.inner)

    def tables(self, **options: Any) -> TableCatalog:
        """What one proxy process knows. Nothing is known yet."""
        return TableCatalog(clock=self.clock, open_table=self.open, **options)

    def open(self, address: str, _: Mapping[str, str] | None) -> Handle:
        """The table, whatever the address, by the store that counts."""
        return open_table(self.store, self.clock).handle

    def bucket(self, *partitions: str, **scope: Any) -> VirtualBucket:
        """A virtual bucket of the table."""
        return VirtualBucket("events", "table", Scope(partitions, **scope))

    def advance(self, by_ms: int) -> None:
        """Let time pass, for the machines' clocks and for the running loop."""
        self.clock.advance(by_ms)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)
        loop.advance(by_ms)

    def add(self, *partitions: str, table: Table | None = None) -> list[str]:
        """Commit a part to each of these partitions; the virtual keys. They are no Parquet files: nobody opens them."""
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
        """Put a log file with these markers, whatever they say."""
        handle = self.table.handle
        key = handle.keys.log_file(t_ms, merged=False, writer=self.clock.new_id())
        self.inner.create(key, encode(LogFile(t_ms, {"n": "BIGINT"}, tuple(markers))))

    @property
    def listings(self) -> int:
        """How often proxies have listed so far."""
        return self.store.counts["list"]


# ------------------------------------------------------------------------------------------ questions


@dataclass(frozen=True)
class Heard:
    """An answer as it was on the wire; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def code(self) -> str:
        """Of S3's error, or nothing."""
        error_code = re.search(rb"<Code>(\w+)</Code>", self.body)
        return error_code[1].decode() if error_code and self.status >= 400 else ""


class Side(Protocol):
    """An S3 endpoint."""

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
    ) -> Heard:
        """Ask by a path and parameters that are not encoded yet. `signed_body`: what the signature says the body is."""
        ...


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], body: bytes, *, key: AccessKey
) -> tuple[tuple[str, str], ...]:
    """Headers with botocore's signature."""
    digest = hashlib.sha256(body).hexdigest()
    request = AWSRequest(method, url, {**headers, "Host": urlsplit(url).netloc, "X-Amz-Content-SHA256": digest}, body)
    S3SigV4Auth(ReadOnlyCredentials(key.id, key.secret, None), "s3", "us-east-1").add_auth(request)
    return tuple((name, str(value)) for name, value in request.headers.items())


def _url(host: str, path: str, query: Mapping[str, str] | None) -> str:
    pairs = (f"{quote(n, safe='')}={quote(v, safe='')}" if v else quote(n, safe="") for n, v in (query or {}).items())
    return f"http://{host}{quote(path, safe='/~')}{'?' if query else ''}{'&'.join(pairs)}"


class ServerSide:
    """A server that listens."""

    def __init__(self, endpoint: str, key: AccessKey) -> None:
        self._host = urlsplit(endpoint).netloc
        self._key = key
        self._connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

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
    ) -> Heard:
        """See Side."""
        url = _url(host or self._host, path, query)
        sent = signed_headers(method, url, headers or {}, body if signed_body is None else signed_body, key=self._key)
        self._connection.request(method, url.removeprefix(f"http://{host or self._host}"), body or None, dict(sent))
        answer = self._connection.getresponse()
        return Heard(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())


class AppSide:
    """The proxy's application in this process. Belongs to the runner's loop."""

    def __init__(self, app: ProxyApp, runner: asyncio.Runner, key: AccessKey = KEY) -> None:
        self.app = app
        self._runner = runner
        self._key = key

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
    ) -> Heard:
        """See Side."""
        scope = question(method, path, query, headers, body, signed_body=signed_body, host=host, key=self._key)
        return self._runner.run(ask_app(self.app, scope, [body] if body else []))


def question(
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    signed_body: bytes | None = None,
    host: str | None = None,
    key: AccessKey = KEY,
) -> dict[str, Any]:
    """A signed request as a server hands it to an ASGI application."""
    url = _url(host or HOST, path, query)
    length = {"content-length": str(len(body))} if body else {}
    sent = signed_headers(method, url, headers or {}, body if signed_body is None else signed_body, key=key)
    parts = urlsplit(url)
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in (*sent, *length.items())],
        "client": ("127.0.0.1", 50_000),
    }


async def ask_app(app: ProxyApp, scope: dict[str, Any], pieces: Iterable[bytes] = ()) -> Heard:
    """What an application answers, by the rules of ASGI; the client stays until it is over."""
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
    return heard(sent)


def heard(sent: list[dict[str, Any]]) -> Heard:
    """The answer that these messages are; AssertionError when they are none that a server could send."""
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert [m.get("more_body", False) for m in rest] == [True] * (len(rest) - 1) + [False]
    names = [n.decode() for n, _ in start["headers"]]
    assert len(set(names)) == len(names)
    return Heard(
        start["status"],
        {n.decode().lower(): v.decode() for n, v in start["headers"]},
        b"".join(m.get("body", b"") for m in rest),
    )


def make_app(
    tables: TableCatalog, buckets: Iterable[VirtualBucket], *, log: io.BytesIO | None = None, **settings: Any
) -> ProxyApp:
    """A proxy for one tenant, `acme`, who sees these buckets by `KEY`."""
    tenant = Tenant("acme", (KEY,), {b.name: b for b in buckets})
    return ProxyApp(
        ServerSettings(domains=(DOMAIN,), **settings),
        OneTenant(tenant),
        tables,
        TenantLimiter(),
        ProxyMetrics(),
        log or io.BytesIO(),
    )


async def together(count: int, ask: Callable[[], Awaitable[_Result]]) -> list[_Result]:
    """The answers to so many questions that are asked at once."""
    return list(await asyncio.gather(*(ask() for _ in range(count))))
