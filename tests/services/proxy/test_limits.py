"""Limits of tenants: concurrent requests, bytes over time, and idle tenants that are dropped."""

from __future__ import annotations

import asyncio

import pytest

from icedb.services.proxy.config.tenants import Tenant, TenantLimits
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.s3.s3_errors import S3Error
from tests.support.proxy.proxy_worlds import in_still_loop


class ManualTime:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)  # lets other tasks run


def tenant(name: str = "acme", *, requests: int | None = None, bytes_per_second: int | None = None) -> Tenant:
    return Tenant(name, (), {}, TenantLimits(requests, bytes_per_second))


def gate_of(time: ManualTime) -> TenantLimiter:
    return TenantLimiter(clock=time, sleep=time.sleep)


# ------------------------------------------------------------------------------------------------ requests


def test_a_request_beyond_the_limit_gets_slow_down() -> None:
    gate, two = TenantLimiter(), tenant(requests=2)
    with gate.enter(two), gate.enter(two):
        with pytest.raises(S3Error) as refused, gate.enter(two):
            pass
        assert (refused.value.code, refused.value.status) == ("SlowDown", 503)
        assert ("Retry-After", "1") in refused.value.headers


def test_a_finished_request_frees_its_slot_also_after_an_error() -> None:
    gate, one = TenantLimiter(), tenant(requests=1)
    with pytest.raises(ZeroDivisionError), gate.enter(one):
        _ = 1 / 0
    with gate.enter(one):
        pass
    with gate.enter(one), pytest.raises(S3Error), gate.enter(one):
        pass


def test_tenants_have_separate_request_limits() -> None:
    gate = TenantLimiter()
    with gate.enter(tenant("a", requests=1)), gate.enter(tenant("b", requests=1)), gate.enter(tenant("c")):
        pass


def test_another_limit_holds_for_the_next_request() -> None:
    gate = TenantLimiter()
    with gate.enter(tenant(requests=1)):
        with gate.enter(tenant(requests=2)):
            pass
        with pytest.raises(S3Error), gate.enter(tenant(requests=1)):
            pass


# ------------------------------------------------------------------------------------------------ bytes


@in_still_loop
async def test_a_second_of_bytes_goes_at_once_and_the_rest_at_the_rate() -> None:
    time, slow = ManualTime(), tenant(bytes_per_second=1_000)
    gate = gate_of(time)
    moments = []
    with gate.enter(slow):
        for _ in range(8):
            await gate.spend(slow, 500)
            moments.append(time.now)
    assert moments == pytest.approx([0, 0, 0.5, 1, 1.5, 2, 2.5, 3])


@in_still_loop
async def test_a_piece_larger_than_a_second_waits_for_all_of_it() -> None:
    time, slow = ManualTime(), tenant(bytes_per_second=1_000)
    gate = gate_of(time)
    with gate.enter(slow):
        await gate.spend(slow, 5_500)
    assert time.now == pytest.approx(4.5)


@in_still_loop
async def test_without_a_limit_no_request_waits() -> None:
    time = ManualTime()
    gate = gate_of(time)
    with gate.enter(tenant()):
        await gate.spend(tenant(), 10**12)
    assert time.now == 0


def test_downloads_of_a_tenant_take_turns() -> None:
    time, slow = ManualTime(), tenant(bytes_per_second=100)
    gate = gate_of(time)
    order: list[str] = []

    async def download(name: str) -> None:
        with gate.enter(slow):
            for _ in range(6):
                await gate.spend(slow, 100)
                order.append(name)

    async def both() -> None:
        await asyncio.gather(download("a"), download("b"), download("c"))

    asyncio.run(both())
    assert time.now == pytest.approx(17)
    # While all three wait, each gets one of three turns.
    assert all(sorted(order[n : n + 3]) == ["a", "b", "c"] for n in range(3, 12)), order


def test_a_cancelled_download_releases_its_turn() -> None:
    time, slow = ManualTime(), tenant(bytes_per_second=100)
    gate = gate_of(time)

    async def given_up() -> None:
        with gate.enter(slow):
            await gate.spend(slow, 10**9)

    async def both() -> None:
        with gate.enter(slow):
            task = asyncio.create_task(given_up())
            await asyncio.sleep(0)
            waiting = asyncio.create_task(gate.spend(slow, 100))
            await asyncio.sleep(0)
            task.cancel()
            await waiting
            assert task.cancelled() or task.cancelling()

    asyncio.run(both())
    assert time.now < 100


@in_still_loop
async def test_another_rate_holds_for_downloads_under_way() -> None:
    time = ManualTime()
    gate = gate_of(time)
    slow, fast = tenant(bytes_per_second=10), tenant(bytes_per_second=1_000)
    with gate.enter(slow):
        task = asyncio.create_task(gate.spend(slow, 10_000))
        await asyncio.sleep(0)
        with gate.enter(fast):
            await task
    assert 9 <= time.now <= 13, "not the thousand seconds of the old rate"


@in_still_loop
async def test_a_new_request_does_not_fill_the_bucket() -> None:
    time, slow = ManualTime(), tenant(bytes_per_second=100)
    gate = gate_of(time)
    for _ in range(10):
        with gate.enter(slow):
            await gate.spend(slow, 100)
    assert time.now == pytest.approx(9)


# ------------------------------------------------------------------------------------------------ memory


def test_idle_tenants_are_dropped() -> None:
    time = ManualTime()
    gate = gate_of(time)
    for number in range(1_000):
        time.now += 0.1
        with gate.enter(tenant(f"t{number}", requests=1, bytes_per_second=10)):
            pass
    assert len(gate) <= 12, "those of the last second"
