"""Tenants that a service of yours knows: asked by the access key's id, believed for a limited time.

    GET <url>?access_key_id=<id>        Authorization: Bearer <token>
    200  {"name": "acme", "keys": [{"id": "<id>", "secret": "..."}], "buckets": [{"name": ..., "table": ...}]}
    404  nobody has that key

It fails closed: when the service does not answer, answers otherwise, or with a document that is not of that very key,
the client is told ServiceUnavailable. Nothing is then remembered, and what was remembered too long ago is not used.
Whoever asks at the same time for the same key shares one request.

Strangers can make up as many keys as they like. They share a few connections, and when too many wait for one, the next
are told ServiceUnavailable at once. A key that had an owner when it was last asked for has other connections, and what
is known of it is asked anew while it is used, before its time is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import msgspec

from icedb.errors import InvalidOption
from icedb.services.proxy.config.settings import ControlPlaneSettings
from icedb.services.proxy.config.tenant_documents import KEY_ID, DocumentSource, parse_tenant
from icedb.services.proxy.config.tenants import KeyOwner
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.util.lru_cache import LruCache

__all__ = ["ControlPlane"]

BODY_BYTES_MAX = 1024 * 1024
# Keys that are looked for at the same time; more wait for their turn, within the timeout.
KNOWN_AT_A_TIME = 32
STRANGERS_AT_A_TIME = 16
# What a control plane answers within a second, at 200 ms each; who would wait longer had better come again.
STRANGERS_WAITING = 64
# Of the time that an answer is believed: then it is asked for again, and if there is no answer, so much later again.
_RENEW_AFTER = 3 / 4
_RENEW_AGAIN_AFTER = 1 / 16
# A document can be a megabyte, and so can a message about what is wrong with it.
_REASON_CHARS_MAX = 500

_log = logging.getLogger("icedb.proxy")


class _LookupFailed(Exception):
    """It cannot be told who has a key; the message holds no secret."""


class ControlPlane:
    """A directory behind HTTP. For one event loop; `close` it there.

    `monotonic_ms` is a clock that never goes back, from any beginning.
    """

    def __init__(
        self, settings: ControlPlaneSettings, *, monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000
    ) -> None:
        self._settings = settings
        self._monotonic_ms = monotonic_ms
        self._source = DocumentSource(f"control plane {settings.url}", tables=settings.tables)
        # Apart: ids that somebody makes up must not push tenants out. What is too old for use stays: whoever asks for a
        # key that had an owner is less likely a stranger.
        self._known: LruCache[str, _CachedOwner] = LruCache(settings.entries)
        #: Until when it is believed that nobody has them.
        self._unknown: LruCache[str, float] = LruCache(settings.entries)
        self._known_turns = asyncio.Semaphore(KNOWN_AT_A_TIME)
        self._strangers_turns = asyncio.Semaphore(STRANGERS_AT_A_TIME)
        #: Whom it is asked for, or will be when it is their turn.
        self._strangers: set[str] = set()
        self._asking: dict[str, asyncio.Task[KeyOwner | None]] = {}
        self._closed = False
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if settings.token is not None:
            headers["authorization"] = f"Bearer {settings.token}"
        connections = KNOWN_AT_A_TIME + STRANGERS_AT_A_TIME
        self._client = httpx.AsyncClient(
            headers=headers,
            follow_redirects=False,
            timeout=settings.timeout_ms / 1000,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """The owner of a key, as of `cache_ms` ago at most; None: nobody.

        Raises S3Error (ServiceUnavailable) when that cannot be told.
        """
        if not KEY_ID.fullmatch(access_key_id):
            return None
        now_ms = self._monotonic_ms()
        entry = self._known.get(access_key_id)
        if entry is not None and now_ms < entry.until_ms:
            if now_ms >= entry.renew_ms and not self._closed:
                entry.renew_ms = now_ms + self._settings.cache_ms * _RENEW_AGAIN_AFTER
                self._ask_once(access_key_id)
            return entry.found
        unknown_until_ms = self._unknown.get(access_key_id)
        if unknown_until_ms is not None and now_ms < unknown_until_ms:
            return None
        if self._closed:
            raise S3Error("ServiceUnavailable")
        try:
            # A client that goes away does not end the request of the others.
            return await asyncio.shield(self._ask_once(access_key_id))
        except _LookupFailed:
            raise S3Error("ServiceUnavailable") from None

    async def close(self) -> None:
        """End all connections, after the requests that are under way; those take `timeout_ms` at most."""
        self._closed = True
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._client.aclose()

    def _ask_once(self, access_key_id: str) -> asyncio.Task[KeyOwner | None]:
        """The request for a key, of which there is one at a time. Raises S3Error when too many strangers wait."""
        task = self._asking.get(access_key_id)
        if task is None:
            turns = self._known_turns
            if access_key_id not in self._known:
                if len(self._strangers) >= STRANGERS_AT_A_TIME + STRANGERS_WAITING:
                    raise S3Error("ServiceUnavailable")
                self._strangers.add(access_key_id)
                turns = self._strangers_turns
            task = self._asking[access_key_id] = asyncio.create_task(self._ask(access_key_id, turns))
            task.add_done_callback(lambda done: self._answered(access_key_id, done))
        return task

    def _answered(self, access_key_id: str, task: asyncio.Task[KeyOwner | None]) -> None:
        del self._asking[access_key_id]
        self._strangers.discard(access_key_id)
        if not task.cancelled():
            task.exception()  # looked at, even when all who waited are gone

    async def _ask(self, access_key_id: str, turns: asyncio.Semaphore) -> KeyOwner | None:
        try:
            # Of the whole, however slowly it drips.
            async with asyncio.timeout(self._settings.timeout_ms / 1000), turns:
                asked_ms = self._monotonic_ms()  # what the answer says may be no newer than the question
                body = await self._get(access_key_id)
            found = None if body is None else self._found(access_key_id, body)
        except (TimeoutError, httpx.TimeoutException):
            raise self._no_answer(f"no answer within {self._settings.timeout_ms} ms") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._no_answer(type(error).__name__) from None
        except (InvalidOption, _LookupFailed) as error:
            raise self._no_answer(str(error)) from None
        self._remember(access_key_id, found, asked_ms)
        return found

    def _remember(self, access_key_id: str, found: KeyOwner | None, asked_ms: float) -> None:
        if found is None:
            self._known.remove(access_key_id)
            self._unknown.put(access_key_id, asked_ms + self._settings.unknown_cache_ms)
        else:
            cache_ms = self._settings.cache_ms
            self._known.put(access_key_id, _CachedOwner(found, asked_ms + cache_ms, asked_ms + cache_ms * _RENEW_AFTER))
            self._unknown.remove(access_key_id)

    async def _get(self, access_key_id: str) -> bytes | None:
        """The document as it came; None: nobody has that key."""
        params = {"access_key_id": access_key_id}
        async with self._client.stream("GET", self._settings.url, params=params) as response:
            if response.status_code not in (200, 404):
                raise _LookupFailed(f"it answered with status {response.status_code}")
            body = bytearray()
            async for piece in response.aiter_raw():  # not unpacked: it was not asked to pack, and a bomb is small
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise _LookupFailed(f"its answer has more than {BODY_BYTES_MAX} bytes")
        return bytes(body) if response.status_code == 200 else None

    def _found(self, access_key_id: str, body: bytes) -> KeyOwner:
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _LookupFailed("its answer is no JSON") from None
        tenant = parse_tenant(document, self._source)
        key = next((k for k in tenant.keys if k.id == access_key_id), None)
        if key is None:
            raise _LookupFailed(
                f"it answered with tenant '{tenant.name}', who does not have the key that was asked for"
            )
        return KeyOwner(tenant, key)

    def _no_answer(self, reason: str) -> _LookupFailed:
        shown = "".join(c if c.isprintable() else " " for c in reason[:_REASON_CHARS_MAX])
        _log.warning("the control plane %s cannot be used: %s", self._settings.url, shown)
        return _LookupFailed(reason)


@dataclass(slots=True)
class _CachedOwner:
    found: KeyOwner
    until_ms: float
    #: When a use of it asks anew.
    renew_ms: float
