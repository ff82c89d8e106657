"""The steps of a request, from its key to the commit of its rows.

1. `config.tenants` authenticates the tenant.
2. `limits` checks the rate of the tenant and reserves memory.
3. `events.request_body` reads and decompresses the body.
4. `events.event_decoder` or `events.segment` decodes rows, and `event_columns` converts them for the table.
5. `table_writers` commits them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Scope

from icedb.buffering.submissions import Acknowledged
from icedb.services.ingest.access_log import IngestAccessRecord
from icedb.services.ingest.config.settings import IngestSettings, TenantSettings
from icedb.services.ingest.config.tenants import Tenants, key_from_header
from icedb.services.ingest.events.event_decoder import decode_events, decode_json, media_type, write_key
from icedb.services.ingest.events.rejections import RequestRejected
from icedb.services.ingest.events.request_body import RequestBody, decompress
from icedb.services.ingest.events.segment import SEGMENT_CALLS, segment_rows
from icedb.services.ingest.limits import BodyMemoryBudget, RateLimiter
from icedb.services.ingest.table_writers import TableWriter, TableWriters

__all__ = ["Exchange", "Intake"]

_EVENTS = re.compile(r"/v1/tables/([^/]+)/events")
_WEBHOOK = re.compile(r"/v1/webhooks/([^/]+)")
_CALLS = {f"/v1/{call}": call for call in (*SEGMENT_CALLS, "batch")}
#: Larger bodies are processed in a thread, so that they do not block other requests.
_INLINE_BYTES = 32 * 1024
#: Unauthenticated bodies, which hold the key or are signed, may use 1/4 of `held_bytes_max`.
_UNAUTHENTICATED_SHARE = 4

Result = TypeVar("Result")


@dataclass
class Exchange:
    """A request and its response."""

    headers: dict[str, str]
    record: IngestAccessRecord
    began: float
    body: RequestBody
    #: The endpoint's name in metrics.
    endpoint: str = "none"
    #: Resources to release at the end of the request.
    on_end: ExitStack = field(default_factory=ExitStack)

    def header(self, name: str) -> str:
        """Return the value of a header, empty if it is absent."""
        return self.headers.get(name, "")


class Intake:
    """Commits the events of requests. Belongs to one event loop. `tenants` may be replaced at any time."""

    def __init__(
        self, settings: IngestSettings, tenants: Tenants, writers: TableWriters, stopping: Callable[[], bool]
    ) -> None:
        self.tenants = tenants
        self._settings = settings
        self._writers = writers
        self._stopping = stopping
        self._rates = RateLimiter()
        #: If there are several tenants, each may use half of the memory for bodies, so that it cannot block the others.
        self._memory_of_tenants: dict[str, BodyMemoryBudget] = {}
        self._unauthenticated_memory = BodyMemoryBudget(
            max(settings.body_bytes_max, settings.held_bytes_max // _UNAUTHENTICATED_SHARE)
        )

    # ------------------------------------------------------------------------------------ endpoints

    async def accept(
        self, exchange: Exchange, scope: Scope, reserve: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        """Commit the events of a request. `reserve` reserves memory for bytes of the body, or raises RequestRejected.

        Raises RequestRejected, and ClientDisconnected if the body did not arrive whole.
        """
        path = scope["path"]
        if events := _EVENTS.fullmatch(path):
            exchange.endpoint = "events"
        elif path in _CALLS:
            exchange.endpoint = _CALLS[path]
        elif webhook := _WEBHOOK.fullmatch(path):
            exchange.endpoint = "webhook"
        else:
            raise RequestRejected(404, "The path does not exist. Send events to /v1/tables/<table>/events.")
        if scope["method"] != "POST":
            raise RequestRejected(405, "The method must be POST.", headers=(("allow", "POST"),))
        if events:
            return await self._events(exchange, events[1], reserve)
        if exchange.endpoint == "webhook" and webhook:
            return await self._webhook(exchange, webhook[1], reserve)
        return await self._call(exchange, exchange.endpoint, reserve)

    async def _events(
        self, exchange: Exchange, name: str, reserve: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        tenant = self._authenticated(exchange, self._of_header(exchange))
        kind = media_type(exchange.header("content-type"))
        if name not in tenant.tables:
            raise RequestRejected(403, "The key has no access to a table of that name.")
        content = await self._content(exchange, tenant, reserve)
        events_max = self._settings.events_max
        rows = await _offload_if_large(len(content), lambda: decode_events(content, kind, events_max=events_max))
        return await self._commit(exchange, tenant, name, rows, len(content))

    async def _call(
        self, exchange: Exchange, call: str, reserve: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        """Commit a call of Segment's libraries, which may send their key in the body."""
        media_type(exchange.header("content-type"))
        if exchange.header("authorization"):
            tenant = self._segment_tenant(self._authenticated(exchange, self._of_header(exchange)))
            content = await self._content(exchange, tenant, reserve)
        else:
            content = await self._decompressed(exchange, await self._unauthenticated_body(exchange, reserve), reserve)
            key = await _offload_if_large(len(content), lambda: write_key(content))
            tenant = self._segment_tenant(
                self._authenticated(exchange, None if key is None else self.tenants.find_by_key(key))
            )
            self._rates.spend(tenant.name, tenant.limits, bytes_=exchange.record.bytes)
        document = await _offload_if_large(len(content), lambda: decode_json(content))
        return await self._commit_calls(exchange, tenant, document, call, len(content))

    async def _webhook(
        self, exchange: Exchange, name: str, reserve: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        """Commit a call that Segment forwards, authenticated by its signature or by a key."""
        media_type(exchange.header("content-type"))
        if exchange.header("authorization"):
            tenant = self._segment_tenant(self._authenticated(exchange, self._of_header(exchange)))
            if tenant.name != name:
                raise RequestRejected(403, "The key does not belong to the tenant in the path.")
            content = await self._content(exchange, tenant, reserve)
        else:
            body = await self._unauthenticated_body(exchange, reserve)
            signature = exchange.header("x-signature")
            tenant = self._authenticated(exchange, self.tenants.find_by_signature(name, signature, body))
            self._rates.spend(tenant.name, tenant.limits, bytes_=len(body))
            content = await self._decompressed(exchange, body, reserve)
        document = await _offload_if_large(len(content), lambda: decode_json(content))
        return await self._commit_calls(exchange, tenant, document, None, len(content))

    # ------------------------------------------------------------------------------------ authentication

    def _of_header(self, exchange: Exchange) -> TenantSettings | None:
        key = key_from_header(exchange.header("authorization"))
        return None if key is None else self.tenants.find_by_key(key)

    def _authenticated(self, exchange: Exchange, tenant: TenantSettings | None) -> TenantSettings:
        if tenant is None:
            raise RequestRejected(
                401, "The key is missing or unknown.", headers=(("www-authenticate", 'Bearer realm="icedb"'),)
            )
        exchange.record.tenant = tenant.name
        return tenant

    def _counted(
        self, exchange: Exchange, tenant: TenantSettings, reserve: Callable[[int], None]
    ) -> Callable[[int], None]:
        """Return a function that also counts the bytes of the request for the tenant, until the request ends."""
        if self.tenants.count < 2:
            return reserve
        bytes_max = max(self._settings.body_bytes_max, self._settings.held_bytes_max // 2)
        memory = self._memory_of_tenants.setdefault(tenant.name, BodyMemoryBudget(bytes_max))
        reserve_of_tenant = exchange.on_end.enter_context(memory.body())

        def reserve_both(bytes_: int) -> None:
            reserve_of_tenant(bytes_)
            reserve(bytes_)

        return reserve_both

    def _segment_tenant(self, tenant: TenantSettings) -> TenantSettings:
        if tenant.segment is None:
            raise RequestRejected(403, "The key has no table for Segment's calls.")
        return tenant

    # ------------------------------------------------------------------------------------ bodies

    async def _content(self, exchange: Exchange, tenant: TenantSettings, reserve: Callable[[int], None]) -> bytes:
        self._rates.check(tenant.name, tenant.limits)
        reserve = self._counted(exchange, tenant, reserve)
        body = await self._body(exchange, reserve)
        self._rates.spend(tenant.name, tenant.limits, bytes_=len(body))
        return await self._decompressed(exchange, body, reserve)

    async def _body(self, exchange: Exchange, reserve: Callable[[int], None]) -> bytes:
        content_length = exchange.header("content-length")
        size = int(content_length) if content_length.isascii() and content_length.isdigit() else None
        body = await exchange.body.read(size, self._settings.body_bytes_max, reserve)
        exchange.record.bytes = len(body)
        return body

    async def _unauthenticated_body(self, exchange: Exchange, reserve: Callable[[int], None]) -> bytes:
        with self._unauthenticated_memory.body() as reserve_unauthenticated:

            def reserve_both(bytes_: int) -> None:
                reserve_unauthenticated(bytes_)
                reserve(bytes_)

            return await self._body(exchange, reserve_both)

    async def _decompressed(self, exchange: Exchange, body: bytes, reserve: Callable[[int], None]) -> bytes:
        encoding, bytes_max = exchange.header("content-encoding"), self._settings.body_bytes_max
        # A small body may decompress to a large one, so use a thread.
        content = await _offload_if_large(bytes_max if encoding else 0, lambda: decompress(body, encoding, bytes_max))
        if content is not body:
            reserve(len(content))
        return content

    async def _commit_calls(
        self, exchange: Exchange, tenant: TenantSettings, document: object, call: str | None, bytes_: int
    ) -> tuple[TableWriter, Acknowledged]:
        name = self._segment_tenant(tenant).segment or ""
        received = self._writers[name].now()
        rows = await _offload_if_large(bytes_, lambda: segment_rows(document, call, received))
        if len(rows) > self._settings.events_max:
            raise RequestRejected(
                413, f"The request has {len(rows)} calls; the limit is {self._settings.events_max}. Send fewer."
            )
        return await self._commit(exchange, tenant, name, rows, bytes_)

    async def _commit(
        self, exchange: Exchange, tenant: TenantSettings, name: str, rows: Any, bytes_: int
    ) -> tuple[TableWriter, Acknowledged]:
        exchange.record.table = name
        table = self._writers[name]
        converted = await _offload_if_large(
            bytes_, lambda: table.fit(rows, tenant.name, new_columns=tenant.limits.new_columns)
        )
        self._rates.spend(tenant.name, tenant.limits, events=len(converted))
        if self._stopping():
            raise RequestRejected(503, "The service is stopping. Send the request again.", retry_after_seconds=1)
        if not len(converted):
            return table, Acknowledged(rows=0)
        return table, await table.commit(converted, tenant.name, bytes_=bytes_, shared=self.tenants.is_shared(name))


async def _offload_if_large(bytes_: int, work: Callable[[], Result]) -> Result:
    """Run work on that many bytes, in a thread if they are many."""
    return work() if bytes_ <= _INLINE_BYTES else await asyncio.to_thread(work)
