"""Tenants from a control plane: an HTTP service of the operator, with cached responses.

    GET <url>?access_key_id=<id>        Authorization: Bearer <token>
    200  {"name": "acme", "keys": [{"id": "<id>", "secret": "..."}], "buckets": [{"name": ..., "table": ...}]}
    404  no tenant has the key

Lookups fail closed. If the service does not respond, or if its response is invalid or for another key, the client gets
ServiceUnavailable. Failures are not cached, and expired cache entries are not used. Concurrent lookups of a key share
one request.

An attacker can send any number of invented keys. Lookups of unknown keys share a few connections. If too many lookups
wait for them, further ones fail at once with ServiceUnavailable. Keys that had an owner at their last lookup have
connections of their own. The cache entry of a key in use is renewed before it expires.
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
# Maximum number of concurrent lookups. Further ones wait, within the timeout.
KNOWN_CONCURRENT = 32
UNKNOWN_CONCURRENT = 16
# About the number of lookups in a second, at 200 ms each. Clients that would wait longer should retry.
UNKNOWN_WAITING = 64
# Fractions of the cache time: the age at which an entry is renewed, and the pause before a retry after a failure.
_RENEW_AFTER = 3 / 4
_RETRY_AFTER = 1 / 16
# A document can have a megabyte, and so can an error message about it.
_REASON_CHARS_MAX = 500

_log = logging.getLogger("icedb.proxy")


class _LookupFailed(Exception):
    """The owner of a key cannot be determined. The message holds no secret."""


class ControlPlane:
    """A tenant directory that looks keys up over HTTP. Belongs to one event loop, in which it must be closed."""

    def __init__(
        self, settings: ControlPlaneSettings, *, monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000
    ) -> None:
        self._settings = settings
        self._monotonic_ms = monotonic_ms
        self._source = DocumentSource(f"control plane {settings.url}", tables=settings.tables)
        # Separate caches, so that invented keys cannot evict those of tenants. Expired entries stay: a key that had an
        # owner is less likely invented.
        self._owners: LruCache[str, _CachedOwner] = LruCache(settings.entries)
        #: Keys without an owner, with the time of expiry.
        self._unknown: LruCache[str, float] = LruCache(settings.entries)
        self._known_slots = asyncio.Semaphore(KNOWN_CONCURRENT)
        self._unknown_slots = asyncio.Semaphore(UNKNOWN_CONCURRENT)
        #: Unknown keys with a lookup in progress or waiting.
        self._unknown_pending: set[str] = set()
        self._lookups: dict[str, asyncio.Task[KeyOwner | None]] = {}
        self._closed = False
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if settings.token is not None:
            headers["authorization"] = f"Bearer {settings.token}"
        connections = KNOWN_CONCURRENT + UNKNOWN_CONCURRENT
        self._client = httpx.AsyncClient(
            headers=headers,
            follow_redirects=False,
            timeout=settings.timeout_ms / 1000,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """Return the owner of a key, at most `cache_ms` old, or None. Raises S3Error (ServiceUnavailable)."""
        if not KEY_ID.fullmatch(access_key_id):
            return None
        now_ms = self._monotonic_ms()
        entry = self._owners.get(access_key_id)
        if entry is not None and now_ms < entry.until_ms:
            if now_ms >= entry.renew_ms and not self._closed:
                entry.renew_ms = now_ms + self._settings.cache_ms * _RETRY_AFTER
                self._lookup(access_key_id)
            return entry.owner
        unknown_until_ms = self._unknown.get(access_key_id)
        if unknown_until_ms is not None and now_ms < unknown_until_ms:
            return None
        if self._closed:
            raise S3Error("ServiceUnavailable")
        try:
            # A client that disconnects must not cancel the lookup for other clients.
            return await asyncio.shield(self._lookup(access_key_id))
        except _LookupFailed:
            raise S3Error("ServiceUnavailable") from None

    async def close(self) -> None:
        """Wait for lookups in progress, for at most `timeout_ms`, and close all connections."""
        self._closed = True
        await asyncio.gather(*self._lookups.values(), return_exceptions=True)
        await self._client.aclose()

    def _lookup(self, access_key_id: str) -> asyncio.Task[KeyOwner | None]:
        """Return the lookup of a key, or start it. Raises S3Error if too many unknown keys wait."""
        task = self._lookups.get(access_key_id)
        if task is None:
            slots = self._known_slots
            if access_key_id not in self._owners:
                if len(self._unknown_pending) >= UNKNOWN_CONCURRENT + UNKNOWN_WAITING:
                    raise S3Error("ServiceUnavailable")
                self._unknown_pending.add(access_key_id)
                slots = self._unknown_slots
            task = self._lookups[access_key_id] = asyncio.create_task(self._fetch(access_key_id, slots))
            task.add_done_callback(lambda done: self._finish(access_key_id, done))
        return task

    def _finish(self, access_key_id: str, task: asyncio.Task[KeyOwner | None]) -> None:
        del self._lookups[access_key_id]
        self._unknown_pending.discard(access_key_id)
        if not task.cancelled():
            task.exception()  # retrieve it, even if no client waits any more

    async def _fetch(self, access_key_id: str, slots: asyncio.Semaphore) -> KeyOwner | None:
        try:
            # The timeout applies to the whole response, even if it arrives slowly.
            async with asyncio.timeout(self._settings.timeout_ms / 1000), slots:
                sent_ms = self._monotonic_ms()  # the response may be as old as the request
                body = await self._get(access_key_id)
            owner = None if body is None else self._decode(access_key_id, body)
        except (TimeoutError, httpx.TimeoutException):
            raise self._failure(f"no response within {self._settings.timeout_ms} ms") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failure(type(error).__name__) from None
        except (InvalidOption, _LookupFailed) as error:
            raise self._failure(str(error)) from None
        self._cache(access_key_id, owner, sent_ms)
        return owner

    def _cache(self, access_key_id: str, owner: KeyOwner | None, sent_ms: float) -> None:
        if owner is None:
            self._owners.remove(access_key_id)
            self._unknown.put(access_key_id, sent_ms + self._settings.unknown_cache_ms)
        else:
            cache_ms = self._settings.cache_ms
            self._owners.put(access_key_id, _CachedOwner(owner, sent_ms + cache_ms, sent_ms + cache_ms * _RENEW_AFTER))
            self._unknown.remove(access_key_id)

    async def _get(self, access_key_id: str) -> bytes | None:
        """Return the body of the response, or None if no tenant has the key."""
        params = {"access_key_id": access_key_id}
        async with self._client.stream("GET", self._settings.url, params=params) as response:
            if response.status_code not in (200, 404):
                raise _LookupFailed(f"the response has status {response.status_code}")
            body = bytearray()
            async for piece in response.aiter_raw():  # not decompressed: a small body could be a decompression bomb
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise _LookupFailed(f"the response has more than {BODY_BYTES_MAX} bytes")
        return bytes(body) if response.status_code == 200 else None

    def _decode(self, access_key_id: str, body: bytes) -> KeyOwner:
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _LookupFailed("the response is not JSON") from None
        tenant = parse_tenant(document, self._source)
        key = next((k for k in tenant.keys if k.id == access_key_id), None)
        if key is None:
            raise _LookupFailed(f"the response has tenant '{tenant.name}', which does not have the requested key")
        return KeyOwner(tenant, key)

    def _failure(self, reason: str) -> _LookupFailed:
        printable = "".join(c if c.isprintable() else " " for c in reason[:_REASON_CHARS_MAX])
        _log.warning("the control plane %s cannot be used: %s", self._settings.url, printable)
        return _LookupFailed(reason)


@dataclass(slots=True)
class _CachedOwner:
    owner: KeyOwner
    until_ms: float
    #: When the next use renews the entry.
    renew_ms: float
