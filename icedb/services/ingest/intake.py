"""What is done with a request: who sends it, whether they may, its body as rows, and their commit.

who sends (`tenants`) -> may they, now (`limits`) -> the body (`bodies`) -> rows (`events`, `segment`, `columns`)
-> a commit (`writers`)
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
#: A larger body is looked at in a thread, so that other requests do not wait for it.
_AT_ONCE_BYTES = 32 * 1024
#: The share of `held_bytes_max` that bodies may have whose key is in them, or a signature of them: one of four.
_STRANGERS_SHARE = 4

Result = TypeVar("Result")


@dataclass
class Exchange:
    """A request and what became of it."""

    headers: dict[str, str]
    record: IngestAccessRecord
    began: float
    body: RequestBody
    #: By a name of ours.
    endpoint: str = "none"
    #: What ends with the request.
    ends: ExitStack = field(default_factory=ExitStack)

    def header(self, name: str) -> str:
        """What the client said there; nothing: not a word."""
        return self.headers.get(name, "")


class Intake:
    """Takes what requests have. Belongs to one event loop. `tenants` may be replaced while it runs."""

    def __init__(
        self, settings: IngestSettings, tenants: Tenants, writers: TableWriters, stopping: Callable[[], bool]
    ) -> None:
        self.tenants = tenants
        self._settings = settings
        self._writers = writers
        self._stopping = stopping
        self._rates = RateLimiter()
        #: A tenant that is not alone has at most half of what bodies may take, so that the others are still read.
        self._held_of_tenants: dict[str, BodyMemoryBudget] = {}
        self._held_of_strangers = BodyMemoryBudget(
            max(settings.body_bytes_max, settings.held_bytes_max // _STRANGERS_SHARE)
        )

    # ------------------------------------------------------------------------------------ what is asked for

    async def accept(
        self, exchange: Exchange, scope: Scope, take: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        """Commit what a request has. Raises Refusal, and ClientDisconnected.

        `take` is told of all bytes that are held for it, and may refuse them.
        """
        path = scope["path"]
        if found := _EVENTS.fullmatch(path):
            exchange.endpoint = "events"
        elif path in _CALLS:
            exchange.endpoint = _CALLS[path]
        elif webhook := _WEBHOOK.fullmatch(path):
            exchange.endpoint = "webhook"
        else:
            raise RequestRejected(404, "There is nothing at this address. Events go to /v1/tables/<table>/events.")
        if scope["method"] != "POST":
            raise RequestRejected(405, "Events are sent with POST.", headers=(("allow", "POST"),))
        if found:
            return await self._events(exchange, found[1], take)
        if exchange.endpoint == "webhook" and webhook:
            return await self._webhook(exchange, webhook[1], take)
        return await self._call(exchange, exchange.endpoint, take)

    async def _events(
        self, exchange: Exchange, name: str, take: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        tenant = self._known(exchange, self._of_header(exchange))
        kind = media_type(exchange.header("content-type"))
        if name not in tenant.tables:
            raise RequestRejected(403, "This key cannot write to a table of that name.")
        content = await self._content(exchange, tenant, take)
        events_max = self._settings.events_max
        rows = await _offload_if_large(len(content), lambda: decode_events(content, kind, events_max=events_max))
        return await self._commit(exchange, tenant, name, rows, len(content))

    async def _call(
        self, exchange: Exchange, call: str, take: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        """A call of Segment's libraries; their key may be in the body."""
        media_type(exchange.header("content-type"))
        if exchange.header("authorization"):
            tenant = self._segment_tenant(self._known(exchange, self._of_header(exchange)))
            content = await self._content(exchange, tenant, take)
        else:
            content = await self._decompressed(exchange, await self._body_of_stranger(exchange, take), take)
            key = await _offload_if_large(len(content), lambda: write_key(content))
            tenant = self._segment_tenant(self._known(exchange, None if key is None else self.tenants.find_by_key(key)))
            self._rates.spend_bytes(tenant.name, tenant.limits, exchange.record.bytes)
        document = await _offload_if_large(len(content), lambda: decode_json(content))
        return await self._commit_calls(exchange, tenant, document, call, len(content))

    async def _webhook(
        self, exchange: Exchange, name: str, take: Callable[[int], None]
    ) -> tuple[TableWriter, Acknowledged]:
        """A call that Segment forwards: it is signed, or has a key as its libraries' have."""
        media_type(exchange.header("content-type"))
        if exchange.header("authorization"):
            tenant = self._segment_tenant(self._known(exchange, self._of_header(exchange)))
            if tenant.name != name:
                raise RequestRejected(403, "This key is not of the tenant that the address names.")
            content = await self._content(exchange, tenant, take)
        else:
            body = await self._body_of_stranger(exchange, take)
            signature = exchange.header("x-signature")
            tenant = self._known(exchange, self.tenants.find_by_signature(name, signature, body))
            self._rates.spend_bytes(tenant.name, tenant.limits, len(body))
            content = await self._decompressed(exchange, body, take)
        document = await _offload_if_large(len(content), lambda: decode_json(content))
        return await self._commit_calls(exchange, tenant, document, None, len(content))

    # ------------------------------------------------------------------------------------ who

    def _of_header(self, exchange: Exchange) -> TenantSettings | None:
        key = key_from_header(exchange.header("authorization"))
        return None if key is None else self.tenants.find_by_key(key)

    def _known(self, exchange: Exchange, tenant: TenantSettings | None) -> TenantSettings:
        if tenant is None:
            raise RequestRejected(
                401, "There is no such key, or none was sent.", headers=(("www-authenticate", 'Bearer realm="icedb"'),)
            )
        exchange.record.tenant = tenant.name
        return tenant

    def _counted(
        self, exchange: Exchange, tenant: TenantSettings, take: Callable[[int], None]
    ) -> Callable[[int], None]:
        """The same function for a tenant's request: until the request ends, its bytes are the tenant's as well."""
        if self.tenants.count < 2:
            return take
        bytes_max = max(self._settings.body_bytes_max, self._settings.held_bytes_max // 2)
        held = self._held_of_tenants.setdefault(tenant.name, BodyMemoryBudget(bytes_max))
        take_of_tenant = exchange.ends.enter_context(held.body())

        def take_both(bytes_: int) -> None:
            take_of_tenant(bytes_)
            take(bytes_)

        return take_both

    def _segment_tenant(self, tenant: TenantSettings) -> TenantSettings:
        if tenant.segment is None:
            raise RequestRejected(403, "This key has no table for Segment's calls.")
        return tenant

    # ------------------------------------------------------------------------------------ what

    async def _content(self, exchange: Exchange, tenant: TenantSettings, take: Callable[[int], None]) -> bytes:
        self._rates.check(tenant.name, tenant.limits)
        take = self._counted(exchange, tenant, take)
        body = await self._body(exchange, take)
        self._rates.spend_bytes(tenant.name, tenant.limits, len(body))
        return await self._decompressed(exchange, body, take)

    async def _body(self, exchange: Exchange, take: Callable[[int], None]) -> bytes:
        announced = exchange.header("content-length")
        size = int(announced) if announced.isascii() and announced.isdigit() else None
        body = await exchange.body.read(size, self._settings.body_bytes_max, take)
        exchange.record.bytes = len(body)
        return body

    async def _body_of_stranger(self, exchange: Exchange, take: Callable[[int], None]) -> bytes:
        with self._held_of_strangers.body() as take_of_strangers:

            def take_both(bytes_: int) -> None:
                take_of_strangers(bytes_)
                take(bytes_)

            return await self._body(exchange, take_both)

    async def _decompressed(self, exchange: Exchange, body: bytes, take: Callable[[int], None]) -> bytes:
        encoding, bytes_max = exchange.header("content-encoding"), self._settings.body_bytes_max
        # Of few bytes many may come.
        content = await _offload_if_large(bytes_max if encoding else 0, lambda: decompress(body, encoding, bytes_max))
        if content is not body:
            take(len(content))
        return content

    async def _commit_calls(
        self, exchange: Exchange, tenant: TenantSettings, document: object, call: str | None, bytes_: int
    ) -> tuple[TableWriter, Acknowledged]:
        name = self._segment_tenant(tenant).segment or ""
        received = self._writers[name].now()
        rows = await _offload_if_large(bytes_, lambda: segment_rows(document, call, received))
        if len(rows) > self._settings.events_max:
            raise RequestRejected(
                413, f"There are {len(rows)} calls, and {self._settings.events_max} are allowed in one request."
            )
        return await self._commit(exchange, tenant, name, rows, bytes_)

    async def _commit(
        self, exchange: Exchange, tenant: TenantSettings, name: str, rows: Any, bytes_: int
    ) -> tuple[TableWriter, Acknowledged]:
        exchange.record.table = name
        table = self._writers[name]
        fitting = await _offload_if_large(
            bytes_, lambda: table.fit(rows, tenant.name, new_columns=tenant.limits.new_columns)
        )
        self._rates.spend_events(tenant.name, tenant.limits, len(fitting))
        if self._stopping():
            raise RequestRejected(503, "The service is stopping. Send it again.", retry_after_seconds=1)
        if not len(fitting):
            return table, Acknowledged(rows=0)
        return table, await table.commit(fitting, tenant.name, bytes_=bytes_, shared=self.tenants.is_shared(name))


async def _offload_if_large(bytes_: int, work: Callable[[], Result]) -> Result:
    """Do some work, in a thread when it is much."""
    return work() if bytes_ <= _AT_ONCE_BYTES else await asyncio.to_thread(work)
