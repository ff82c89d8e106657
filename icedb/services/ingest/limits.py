"""Rate limits of tenants, and limits on the memory of request bodies and of pending rows.

A tenant has a token bucket for events and one for bytes, each with the tokens of one second. A request may take more
tokens than are left. The bucket is then in debt, and the service rejects requests until the debt is paid. So a request
of any size succeeds. In any period a tenant sends at most its limit, one second's worth more, and one request more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from icedb.services.ingest.config.settings import IngestLimits
from icedb.services.ingest.events.rejections import RequestRejected

__all__ = ["BodyMemoryBudget", "RateLimiter", "PendingBytes"]


@dataclass(slots=True)
class _TokenBucket:
    """A token bucket. A level below 0 is a debt."""

    level: float
    #: Time of the last refill.
    filled: float


class RateLimiter:
    """The token buckets of all tenants. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By tenant and unit (events or bytes).
        self._buckets: dict[tuple[str, str], _TokenBucket] = {}

    def check(self, tenant: str, limits: IngestLimits) -> None:
        """Raise RequestRejected (429) if the tenant is in debt."""
        for unit, rate in (("events", limits.events_per_second), ("bytes", limits.bytes_per_second)):
            if rate is not None:
                bucket = self._refilled(tenant, unit, rate)
                if bucket.level <= 0:
                    raise RequestRejected(
                        429,
                        f"The limit of {rate} {unit} per second is exceeded. Send the request again later.",
                        retry_after_seconds=max(1, math.ceil(-bucket.level / rate)),
                    )

    def spend(self, tenant: str, limits: IngestLimits, *, events: int = 0, bytes_: int = 0) -> None:
        """Take tokens. Raises RequestRejected (429), and takes none, if other requests put the tenant in debt."""
        self.check(tenant, limits)
        amounts = (("events", limits.events_per_second, events), ("bytes", limits.bytes_per_second, bytes_))
        for unit, rate, amount in amounts:
            if rate is not None:
                self._refilled(tenant, unit, rate).level -= amount

    def _refilled(self, tenant: str, unit: str, rate: int) -> _TokenBucket:
        now = self._clock()
        bucket = self._buckets.setdefault((tenant, unit), _TokenBucket(float(rate), now))
        bucket.level = min(float(rate), bucket.level + (now - bucket.filled) * rate)
        bucket.filled = now
        return bucket


class BodyMemoryBudget:
    """A limit on the bytes of request bodies in memory, from receipt to commit. Belongs to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Bytes in memory now.
        self.bytes = 0

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one body, or raises RequestRejected (503). Free them at the end."""
        own = 0

        def reserve(bytes_: int) -> None:
            nonlocal own
            if self.bytes + bytes_ > self._bytes_max:
                raise RequestRejected(
                    503, "The memory for request bodies is full. Send the request again.", retry_after_seconds=1
                )
            self.bytes += bytes_
            own += bytes_

        try:
            yield reserve
        finally:
            self.bytes -= own


class PendingBytes:
    """The bytes of each tenant that are pending for one table. Belongs to one event loop.

    If several tenants write the table, each may have at most half of the limit, so that it cannot block the others.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of_tenants: dict[str, int] = {}

    @contextmanager
    def room(self, tenant: str, bytes_: int, *, shared: bool) -> Iterator[None]:
        """Count the bytes until the block ends. Raises RequestRejected (429) if the tenant exceeds its share."""
        own = self._of_tenants.get(tenant, 0)
        if shared and own and own + bytes_ > self._bytes_max // 2:
            message = "Too many rows of this tenant are pending. Send the request again later."
            raise RequestRejected(429, message, retry_after_seconds=1)
        self._of_tenants[tenant] = own + bytes_
        try:
            yield
        finally:
            left = self._of_tenants[tenant] - bytes_
            if left:
                self._of_tenants[tenant] = left
            else:
                del self._of_tenants[tenant]
