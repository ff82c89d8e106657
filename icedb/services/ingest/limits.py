"""What one tenant may send in a time, and what all bodies may take of the memory.

A tenant spends events and bytes, from a bucket each that holds one second's worth. A request may take more than is
left: what is missing is a debt, and nothing more is taken until it is paid. So a request of any size comes through, and
in any time a tenant sends no more than its limit, a second's worth and what it sends at once.
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
    """How much may be spent, as of `filled`; below 0, what is owed."""

    level: float
    filled: float


class RateLimiter:
    """What tenants have spent. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By tenant and what is spent.
        self._buckets: dict[tuple[str, str], _TokenBucket] = {}

    def check(self, tenant: str, limits: IngestLimits) -> None:
        """Raise Refusal (429) when the tenant owes something."""
        for what, rate in (("events", limits.events_per_second), ("bytes", limits.bytes_per_second)):
            if rate is not None:
                bucket = self._filled(tenant, what, rate)
                if bucket.level <= 0:
                    raise RequestRejected(
                        429,
                        f"{rate} {what} per second are allowed, and more were sent. Send it again later.",
                        retry_after_seconds=max(1, math.ceil(-bucket.level / rate)),
                    )

    def spend_events(self, tenant: str, limits: IngestLimits, events: int) -> None:
        """Take so many. Raises Refusal (429) when others of the tenant's requests came first, and takes nothing."""
        self.check(tenant, limits)
        if limits.events_per_second is not None:
            self._filled(tenant, "events", limits.events_per_second).level -= events

    def spend_bytes(self, tenant: str, limits: IngestLimits, bytes_: int) -> None:
        """Take so many. Raises Refusal (429) when others of the tenant's requests came first, and takes nothing."""
        self.check(tenant, limits)
        if limits.bytes_per_second is not None:
            self._filled(tenant, "bytes", limits.bytes_per_second).level -= bytes_

    def _filled(self, tenant: str, what: str, rate: int) -> _TokenBucket:
        now = self._clock()
        bucket = self._buckets.setdefault((tenant, what), _TokenBucket(float(rate), now))
        bucket.level = min(float(rate), bucket.level + (now - bucket.filled) * rate)
        bucket.filled = now
        return bucket


class BodyMemoryBudget:
    """Bytes of bodies that are in memory: those that are being read, looked at or committed. Of one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: How many there are now.
        self.bytes = 0

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Room for one body until the block ends: a function that takes some. It raises Refusal (503)."""
        own = 0

        def take(bytes_: int) -> None:
            nonlocal own
            if self.bytes + bytes_ > self._bytes_max:
                raise RequestRejected(
                    503, "Too much is being received at the moment. Send it again.", retry_after_seconds=1
                )
            self.bytes += bytes_
            own += bytes_

        try:
            yield take
        finally:
            self.bytes -= own


class PendingBytes:
    """Bytes of each tenant that wait for a commit to one table. Belongs to one event loop.

    Of a table that several tenants write, a tenant has at most half of the room, so that the others are still taken.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of_tenants: dict[str, int] = {}

    @contextmanager
    def room(self, tenant: str, bytes_: int, *, shared: bool) -> Iterator[None]:
        """Count the bytes until the block ends. Raises Refusal (429) for more than the tenant's share."""
        own = self._of_tenants.get(tenant, 0)
        if shared and own and own + bytes_ > self._bytes_max // 2:
            message = "Too many of this tenant's events wait to be committed. Send it again later."
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
