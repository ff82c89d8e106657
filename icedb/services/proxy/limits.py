"""Limits on the concurrent requests and the bandwidth of each tenant, so that no tenant can block the others.

Bytes are taken from a token bucket that holds the bytes of one second. The state of a tenant is kept by its name, and
only while the tenant is busy, because a directory may have any number of tenants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from icedb.services.proxy.config.tenants import Tenant, TenantLimits
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["TenantLimiter"]

#: A bucket holds the bytes of this time, which is also the time that an empty bucket takes to fill.
_BURST_SECONDS = 1
#: Minimum sleep: timers have no finer resolution.
_SLEEP_SECONDS_MIN = 0.001


@dataclass(slots=True)
class _TenantUsage:
    """The current usage of a tenant."""

    limits: TenantLimits
    #: Bytes in the bucket as of `filled`. None: the bucket is full.
    level: float | None = None
    filled: float = 0.0
    requests: int = 0
    #: Orders the requests of a tenant: asyncio's locks are fair.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class TenantLimiter:
    """Enforces the limits of tenants. Belongs to one event loop.

    The limits of the latest request of a tenant also apply to its requests in progress. So after a reload, new limits
    apply to downloads that started before.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._busy: dict[str, _TenantUsage] = {}
        #: Tenants without requests, by the time since which they are idle. Each is kept until its bucket is full.
        #: Otherwise a tenant with one request after another would find a full bucket each time.
        self._idle: dict[str, tuple[float, _TenantUsage]] = {}

    def __len__(self) -> int:
        """The number of tenants that are busy or were busy recently."""
        return len(self._busy) + len(self._idle)

    @contextmanager
    def enter(self, tenant: Tenant) -> Iterator[None]:
        """Count a request until the block ends. Raises S3Error (SlowDown) if the tenant has too many."""
        use = self._usage(tenant)
        if tenant.limits.requests is not None and use.requests >= tenant.limits.requests:
            raise S3Error("SlowDown")
        use.requests += 1
        self._busy[tenant.name] = use
        try:
            yield
        finally:
            use.requests -= 1
            if not use.requests:
                del self._busy[tenant.name]
                self._idle[tenant.name] = (self._clock(), use)

    async def spend(self, tenant: Tenant, bytes_: int) -> None:
        """Wait until the request may send so many bytes of objects. Call it between `enter` and the end of its block.

        Requests of a tenant take turns. In any period, the bytes are at most those of the limit plus one second's.
        """
        use = self._busy[tenant.name]
        if use.limits.bytes_per_second is None:
            return
        async with use.turn:
            # The limit may change during each wait.
            while bytes_ > 0 and (rate := use.limits.bytes_per_second) is not None:
                level, piece = self._refilled(use, rate), min(bytes_, rate * _BURST_SECONDS)
                if level >= piece:
                    use.level = level - piece
                    bytes_ -= piece
                else:
                    await self._sleep(max((piece - level) / rate, _SLEEP_SECONDS_MIN))

    def _usage(self, tenant: Tenant) -> _TenantUsage:
        self._drop_idle()
        use = self._busy.get(tenant.name) or self._idle.pop(tenant.name, (0.0, None))[1] or _TenantUsage(tenant.limits)
        use.limits = tenant.limits
        return use

    def _drop_idle(self) -> None:
        now = self._clock()
        while self._idle:
            name, (since, _) = next(iter(self._idle.items()))
            if now - since < _BURST_SECONDS:
                return
            del self._idle[name]

    def _refilled(self, use: _TenantUsage, rate: int) -> float:
        now = self._clock()
        full = float(rate * _BURST_SECONDS)
        use.level = full if use.level is None else min(full, use.level + (now - use.filled) * rate)
        use.filled = now
        return use.level
