"""What one tenant may use at a time, so that it cannot take the proxy from the others.

Requests in progress are counted, bytes are spent from a bucket that holds one second's worth. Both are kept by the
tenant's name and only while the tenant is busy: a directory may know any number of tenants.
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

#: How much a bucket holds: the bytes of this time. It is also how long an empty one takes to be full again.
_BURST_SECONDS = 1
#: No timer is finer, and a shorter sleep would only spin.
_SLEEP_SECONDS_MIN = 0.001


@dataclass(slots=True)
class _TenantUsage:
    """What a tenant uses now."""

    limits: TenantLimits
    #: Bytes that may be sent, as of `filled`. None: all that the bucket holds.
    level: float | None = None
    filled: float = 0.0
    requests: int = 0
    #: Whose turn it is to spend: asyncio's locks are given in the order in which they were asked for.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class TenantLimiter:
    """Lets requests in and bytes out. Belongs to one event loop.

    Limits are those of the tenant that entered last, for requests in progress too: a directory that was loaded again
    holds for downloads that began before.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._busy: dict[str, _TenantUsage] = {}
        #: Of tenants without requests, in the order in which they became so, and since when. Kept until the bucket is
        #: full again: who comes back for each request would else find it full each time.
        self._idle: dict[str, tuple[float, _TenantUsage]] = {}

    def __len__(self) -> int:
        """How many tenants' use it keeps: of those that are busy, or were a moment ago."""
        return len(self._busy) + len(self._idle)

    @contextmanager
    def enter(self, tenant: Tenant) -> Iterator[None]:
        """One more request of the tenant, until the block ends. Raises S3Error (SlowDown) when there are enough."""
        use = self._arriving(tenant)
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
        """Wait until so many more bytes of objects may be sent. For a request that has entered.

        Requests of a tenant take turns. In any time, the bytes are at most those of the limit and of one second more.
        """
        use = self._busy[tenant.name]
        if use.limits.bytes_per_second is None:
            return
        async with use.turn:
            # After each wait the limit may be another.
            while bytes_ > 0 and (rate := use.limits.bytes_per_second) is not None:
                level, piece = self._filled(use, rate), min(bytes_, rate * _BURST_SECONDS)
                if level >= piece:
                    use.level = level - piece
                    bytes_ -= piece
                else:
                    await self._sleep(max((piece - level) / rate, _SLEEP_SECONDS_MIN))

    def _arriving(self, tenant: Tenant) -> _TenantUsage:
        self._forget()
        use = self._busy.get(tenant.name) or self._idle.pop(tenant.name, (0.0, None))[1] or _TenantUsage(tenant.limits)
        use.limits = tenant.limits
        return use

    def _forget(self) -> None:
        now = self._clock()
        while self._idle:
            name, (since, _) = next(iter(self._idle.items()))
            if now - since < _BURST_SECONDS:
                return
            del self._idle[name]

    def _filled(self, use: _TenantUsage, rate: int) -> float:
        now = self._clock()
        full = float(rate * _BURST_SECONDS)
        use.level = full if use.level is None else min(full, use.level + (now - use.filled) * rate)
        use.filled = now
        return use.level
