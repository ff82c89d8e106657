"""Rate limits of tenants and the memory of bodies, with a manual clock."""

from __future__ import annotations

import pytest

from icedb.services.ingest.config.settings import IngestLimits
from icedb.services.ingest.events.rejections import RequestRejected
from icedb.services.ingest.limits import BodyMemoryBudget, PendingBytes, RateLimiter


class ManualSeconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(rates: RateLimiter, tenant: str, limits: IngestLimits) -> int | None:
    """Return the seconds of Retry-After, or None if the tenant is not rejected."""
    try:
        rates.check(tenant, limits)
    except RequestRejected as refusal:
        return int(dict(refusal.headers)["retry-after"])
    return None


def test_a_request_of_any_size_is_accepted_and_counted_as_debt() -> None:
    clock = ManualSeconds()
    rates, limits = RateLimiter(clock), IngestLimits(events_per_second=10)
    rates.spend("acme", limits, events=100)
    assert refused(rates, "acme", limits) == 9
    with pytest.raises(RequestRejected):
        rates.spend("acme", limits, events=1)
    assert refused(rates, "globex", limits) is None
    clock.now = 8.9
    assert refused(rates, "acme", limits) == 1
    clock.now = 9.1
    assert refused(rates, "acme", limits) is None
    rates.spend("acme", limits, events=1)


def test_over_time_a_tenant_sends_its_limit_plus_a_second_at_most() -> None:
    clock = ManualSeconds()
    rates, limits = RateLimiter(clock), IngestLimits(events_per_second=10)
    sent = 0
    for _ in range(1000):
        clock.now += 0.01
        if refused(rates, "acme", limits) is None:
            rates.spend("acme", limits, events=3)
            sent += 3
    assert 100 <= sent <= 100 + 10 + 3


def test_bytes_are_spent_after_receipt_and_only_with_a_limit() -> None:
    clock = ManualSeconds()
    rates, limits = RateLimiter(clock), IngestLimits(bytes_per_second=1000)
    rates.spend("acme", limits, bytes_=5000)
    assert refused(rates, "acme", limits) == 4
    rates.spend("globex", IngestLimits(), bytes_=10**12)
    rates.spend("globex", IngestLimits(), events=10**12)
    assert refused(rates, "globex", IngestLimits()) is None


def test_bytes_of_many_requests_at_once_are_spent_by_the_first() -> None:
    rates, limits = RateLimiter(ManualSeconds()), IngestLimits(bytes_per_second=1000)
    assert [refused(rates, "acme", limits) for _ in range(3)] == [None] * 3
    rates.spend("acme", limits, bytes_=5000)
    with pytest.raises(RequestRejected) as refusal:
        rates.spend("acme", limits, bytes_=5000)
    assert refusal.value.status == 429
    assert refused(rates, "acme", limits) == 4, "a rejected request takes no tokens"


def test_bodies_in_memory_are_limited_and_given_back() -> None:
    held = BodyMemoryBudget(100)
    with held.body() as take:
        take(60)
        with held.body() as another:
            another(30)
            with pytest.raises(RequestRejected) as refusal:
                another(30)
        assert refusal.value.status == 503
        assert held.bytes == 60
    assert held.bytes == 0


def test_a_tenant_has_half_of_the_room_of_a_table_that_others_write_too() -> None:
    waiting = PendingBytes(100)
    with waiting.room("acme", 90, shared=True):  # a single request may have any size
        with pytest.raises(RequestRejected, match="Too many rows of this tenant are pending") as refusal:
            waiting.room("acme", 1, shared=True).__enter__()
        assert (refusal.value.status, dict(refusal.value.headers)) == (429, {"retry-after": "1"})
        with waiting.room("globex", 30, shared=True), waiting.room("globex", 20, shared=True):
            pass
        with waiting.room("acme", 1, shared=False):
            pass
    with waiting.room("acme", 25, shared=True), waiting.room("acme", 25, shared=True):
        pass
    assert not waiting._of_tenants
