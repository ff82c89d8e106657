"""Responses of the proxy if its store fails, a table is damaged or deleted, or a client does not read.

The test controls the clocks of the store and the proxy, and injects the faults of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

import icedb.services.proxy.app
from icedb import Table
from icedb.errors import StoreUnavailable
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.services.proxy.catalog.table_catalog import PART_STATE_SECONDS, TableCatalog
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import Fault, create_table
from tests.support.object_stores.stores import Place
from tests.support.proxy.proxy_views import REFRESH_MS, fetch, is_there, open_world, page, refusal, says_nothing, shown
from tests.support.proxy.proxy_worlds import ProxyWorld, answer_of, in_still_loop, make_app, question, together

# ------------------------------------------------------------------------------------------ tables


@in_still_loop
async def test_a_failed_refresh_keeps_the_state_and_the_next_one_recovers() -> None:
    world, tables, bucket, (key,) = open_world("u=1")
    app = make_app(tables, [bucket])
    assert await shown(tables, bucket) == [key]
    for kind in ("list", "get"):
        (new,) = world.add("u=1")
        world.advance(REFRESH_MS + 1)
        world.store.inject(Fault.FAIL, kind=kind)  # type: ignore[arg-type]
        answer = await fetch(app, "/events")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "ServiceUnavailable", "1")
        assert says_nothing(answer)
        assert await is_there(tables, bucket, key)
        world.advance(REFRESH_MS + 1)
        assert new in await shown(tables, bucket)
    world.advance(PART_STATE_SECONDS * 1_000 + 1)
    world.store.inject(Fault.FAIL, kind="list")
    assert await refusal(tables, bucket, None, key) == "ServiceUnavailable"
    world.advance(REFRESH_MS + 1)
    assert await is_there(tables, bucket, key)


@pytest.mark.parametrize("cached", [True, False])
@in_still_loop
async def test_requests_that_wait_for_a_failing_store_share_the_wait(cached: bool) -> None:
    world, tables, bucket, _ = open_world("u=1")
    if cached:
        await shown(tables, bucket)
        world.advance(REFRESH_MS + 1)
    world.store.requests.clear()
    world.store.inject(Fault.FAIL, times=1_000)
    codes = await together(50, lambda: refusal(tables, bucket))
    assert codes == ["ServiceUnavailable"] * 50
    assert len(world.store.requests) == 1
    world.advance(REFRESH_MS)
    assert await refusal(tables, bucket) == "ServiceUnavailable"
    assert len(world.store.requests) == 1
    world.advance(1)
    assert await refusal(tables, bucket) == "ServiceUnavailable"
    assert len(world.store.requests) == 2


@pytest.mark.parametrize("first", ["known", "unknown"])
@in_still_loop
async def test_a_damaged_log_is_an_error_until_it_is_repaired(first: str, caplog: pytest.LogCaptureFixture) -> None:
    world, tables, bucket, (key,) = open_world("u=1")
    junk = f"{world.table.handle.keys.log_prefix}{world.clock.now_ms() + 5:013d}_junk.jsonl"
    app = make_app(tables, [bucket])
    if first == "known":
        assert await shown(tables, bucket) == [key]
        assert await shown(tables, bucket, world.clock.now_ms()) == [key]
    world.inner.create(junk, b"no log file")
    world.advance(REFRESH_MS + 1)
    for path in ("/events", f"/events/{key}"):
        answer = await fetch(app, path)
        assert (answer.status, answer.code) == (500, "InternalError")
        assert says_nothing(answer)
        assert junk in caplog.text
    assert (await fetch(app, f"/events--{world.clock.now_ms()}/{key}", "HEAD")).status == 500
    world.inner.delete([junk])
    world.advance(REFRESH_MS + 1)
    assert (await page(app, list_type="2"))[0] == [key]
    assert (await fetch(app, f"/events/{key}")).body == b"0123456789"


def test_a_missing_table_is_an_error_until_it_exists(local: Place) -> None:
    bucket = VirtualBucket("events", local.uri)

    async def work() -> None:
        tables = TableCatalog(refresh_ms=0)
        app = make_app(tables, [bucket])
        for path in ("/events", "/events/u=1/x.parquet", "/events--1700000000000"):
            answer = await fetch(app, path)
            assert (answer.status, answer.code) == (500, "InternalError")
            assert says_nothing(answer)
            assert local.uri.encode() not in answer.body
        table = Table.create(local.uri, partition_by=["u"])
        table.insert([{"u": 1}])
        assert len((await page(app, list_type="2"))[0]) == 1
        tables.close()

    asyncio.run(work())


@in_still_loop
async def test_a_recreated_table_is_detected_within_a_minute() -> None:
    world = ProxyWorld()
    old = world.add("u=1", "u=1", "u=2")
    world.replace(old[0])
    world.table.merge_log()
    bucket = world.bucket()
    world.advance(HOUR_MS)
    tables = world.tables()
    then_ms = world.clock.now_ms() - 1
    assert await shown(tables, bucket) == await shown(tables, bucket, then_ms) == sorted(old[1:])
    world.inner.delete(list(world.inner.objects))
    world.table = create_table(world.inner, world.clock, partition_by=["u"])
    new = sorted(world.add("u=1", "u=2"))
    world.advance(MINUTE_MS + 1)
    assert await shown(tables, bucket) == new
    assert [k for k in (*old, *new) if await is_there(tables, bucket, k)] == new
    assert await shown(tables, bucket, then_ms) == []


@in_still_loop
async def test_a_deleted_table_is_not_shown_as_empty() -> None:
    world = ProxyWorld()
    world.add("u=1")
    world.table.merge_log()
    tables = world.tables()
    await shown(tables, world.bucket())
    world.inner.delete(list(world.inner.objects))
    world.advance(MINUTE_MS + 1)
    assert await refusal(tables, world.bucket()) == "InternalError"


# ------------------------------------------------------------------------------------------ downloads


class Pieces:
    """A fake stream of the store: some pieces, then optionally an error. It records its end."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error
        self.given = 0
        self.ended = False

    async def open(self, store: ObjectStore, key: str, start: int, stop: int) -> AsyncIterator[bytes]:
        return self._give()

    async def _give(self) -> AsyncIterator[bytes]:
        try:
            for piece in self._pieces:
                self.given += 1
                await asyncio.sleep(0)  # a store takes time
                yield piece
            if self._error is not None:
                raise self._error
        finally:
            self.ended = True


async def download(
    world: ProxyWorld, pieces: Pieces, monkeypatch: pytest.MonkeyPatch, *, client: Any = None, **settings: Any
) -> list[dict[str, Any]]:
    """Return the sent messages of a download. `client` gets each message, and an event to set for a disconnect."""
    (key,) = world.add("u=1")
    monkeypatch.setattr(icedb.services.proxy.app, "open_stream", pieces.open)
    app = make_app(world.tables(), [world.bucket()], **settings)
    sent: list[dict[str, Any]] = []
    left = asyncio.Event()

    async def receive() -> Mapping[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if client is not None:
            await client(message, left)

    await app(question("GET", f"/events/{key}"), receive, send)
    assert pieces.ended  # without garbage collection
    return sent


@in_still_loop
async def test_a_download_is_sent_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = await download(ProxyWorld(), Pieces(b"01234", b"56789"), monkeypatch)
    assert [m.get("body") for m in sent] == [None, b"01234", b"56789", b""]
    assert answer_of(sent).body == b"0123456789"


def test_a_disconnect_of_the_client_closes_the_stream_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(message: dict[str, Any], left: asyncio.Event) -> None:
        if message.get("body") == b"2":
            left.set()

    async def work() -> None:
        pieces = Pieces(*(str(n).encode() for n in range(10)))
        sent = await download(ProxyWorld(), pieces, monkeypatch, client=leave)
        assert pieces.given <= 4
        assert sent[-1] == {"type": "http.response.body", "body": b"2", "more_body": True}

    asyncio.run(work())


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stand_still(message: dict[str, Any], _: asyncio.Event) -> None:
        if message.get("body") == b"1":
            await asyncio.Event().wait()

    async def work() -> None:
        pieces = Pieces(*(str(n).encode() for n in range(10)))
        sent = await download(ProxyWorld(), pieces, monkeypatch, client=stand_still, send_timeout_ms=50)
        assert pieces.given == 2
        assert sent[-1]["more_body"]  # an incomplete response: the server closes the connection

    asyncio.run(work())


@in_still_loop
async def test_a_late_error_is_detectable(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pieces = Pieces(b"01234", error=StoreUnavailable("the store broke off (injected)"))
    sent = await download(ProxyWorld(), pieces, monkeypatch)
    assert sent[0]["status"] == 200
    assert [m["more_body"] for m in sent[1:]] == [True]
    assert "the store broke off" in caplog.text


@pytest.mark.parametrize("gone", [True, False])
@in_still_loop
async def test_an_unreadable_part_fails_only_its_request(gone: bool) -> None:
    world = ProxyWorld()
    (key,) = world.add("u=1")
    app = make_app(world.tables(), [world.bucket()])
    assert (await fetch(app, f"/events/{key}", "HEAD")).status == 200
    if gone:
        world.inner.delete([world.table.handle.keys.data_prefix + key])
    else:
        world.store.inject(Fault.FAIL, kind="get", key=key)
    answer = await fetch(app, f"/events/{key}")
    assert (answer.status, answer.code) == ((404, "NoSuchKey") if gone else (503, "ServiceUnavailable"))
    assert says_nothing(answer)
    if not gone:
        assert (await fetch(app, f"/events/{key}")).body == b"0123456789"
