"""Listings of many pages: each stays on the snapshot of its first page, or fails. None mixes two snapshots.

The test controls the clocks of the store and the proxy.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from icedb.format.records import Marker
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.services.proxy.catalog.table_catalog import AHEAD_MS_MAX, TableCatalog
from tests.support.proxy.proxy_views import HOLD_MS, REFRESH_MS, open_world, page, rest_of
from tests.support.proxy.proxy_worlds import ProxyWorld, in_still_loop, make_app


@pytest.mark.parametrize("process", ["the same", "another"])
@in_still_loop
async def test_a_continuation_stays_on_its_snapshot(process: str) -> None:
    world = ProxyWorld()
    keys = sorted(world.add("u=1", "u=2") + world.add("u=1", "u=2") + world.add("u=1"))
    bucket = world.bucket()
    app = make_app(world.tables(), [bucket])
    first, token = await page(app, list_type="2", max_keys="2")
    again = app if process == "the same" else make_app(world.tables(), [bucket])
    world.advance(MINUTE_MS)
    world.add("u=1", "u=2", "u=0", "u=3")
    world.replace(keys[0], keys[3], keys[4])
    world.table.drop_partitions(["u=2"])
    world.table.merge_log()
    world.advance(MINUTE_MS)
    assert first + await rest_of(again, token) == keys
    now, token = await page(again, list_type="2", max_keys="2")
    assert not set(now + await rest_of(again, token)) & {keys[0], keys[3], keys[4]}


@in_still_loop
async def test_a_continuation_survives_cleanup_only_where_its_view_is_cached() -> None:
    world = ProxyWorld()
    keys = sorted(world.add("u=1", "u=2", "u=3", "u=4"))
    bucket = world.bucket()
    app, another = make_app(world.tables(), [bucket]), make_app(world.tables(), [bucket])
    first, token = await page(app, list_type="2", max_keys="2")
    world.advance(MINUTE_MS)
    world.replace(keys[2])
    world.advance(MINUTE_MS)
    world.table.cleanup(grace_ms=0, allow_short_grace=True)
    parameters = {"list_type": "2", "max_keys": "2", "continuation_token": token}
    assert await page(another, **parameters) == ([], "InvalidArgument")
    assert first + (await page(app, **parameters))[0] == keys


@in_still_loop
async def test_a_continuation_fails_if_its_snapshot_changed() -> None:
    world = ProxyWorld()
    world.add("u=1", "u=2", "u=3")
    bucket = world.bucket()
    world.advance(MINUTE_MS)
    app, another = make_app(world.tables(), [bucket]), make_app(world.tables(), [bucket])
    first, token = await page(app, list_type="2", max_keys="1")
    key = world.table.handle.keys.part("u=2", "late")
    # A late commit has a time before the listing, at which it was not visible.
    world.write_log(world.clock.now_ms() - 1_000, [Marker(key, 10, world.clock.now_ms() - 1_000)])
    world.advance(REFRESH_MS + 1)
    parameters = {"list_type": "2", "max_keys": "1", "continuation_token": token}
    assert await page(another, **parameters) == ([], "InvalidArgument")
    assert len(first + (await page(app, **parameters))[0]) == 2


@in_still_loop
async def test_a_continuation_is_valid_while_replaced_parts_are_held() -> None:
    world, tables, bucket, keys = open_world("u=1", "u=2", "u=3")
    world.advance(MINUTE_MS)
    app = make_app(tables, [bucket])
    first, token = await page(app, list_type="2", max_keys="1")
    parameters = {"list_type": "2", "continuation_token": token}
    world.advance(HOLD_MS - 1)
    assert first + (await page(app, **parameters))[0] == keys
    world.advance(1)
    assert await page(app, **parameters) == ([], "InvalidArgument")


@pytest.mark.parametrize("process", ["the same", "another"])
@in_still_loop
async def test_a_table_with_a_commit_from_a_clock_far_ahead_is_listed_page_by_page(process: str) -> None:
    world = ProxyWorld()
    keys = world.add("u=1", "u=2")
    bucket = world.bucket()
    ahead_ms = world.clock.now_ms() + 24 * HOUR_MS
    world.write_log(ahead_ms, [Marker(world.table.handle.keys.part("u=3", "ahead"), 10, ahead_ms)])
    app = make_app(world.tables(), [bucket])
    _, token = await page(app, list_type="2", max_keys="1")
    world.advance(MINUTE_MS)
    world.replace(*keys)
    again = app if process == "the same" else make_app(world.tables(), [bucket])
    expected = [] if process == "another" else [*sorted(keys)[1:], "u=3/ahead.parquet"]
    keys_after, more = await page(again, list_type="2", continuation_token=token)
    # On another proxy the time is in the future, so the continuation fails and does not mix snapshots.
    assert (keys_after, more) == (expected, "" if expected else "InvalidArgument")


@in_still_loop
async def test_a_continuation_works_on_a_proxy_with_another_clock() -> None:
    world = ProxyWorld()
    keys = sorted(world.add("u=1", "u=2"))
    bucket = world.bucket()
    for ahead_ms in (30_000, -30_000):
        theirs = TableCatalog(clock=world.clock.skewed(ahead_ms), open_table=world.open)
        world.advance(MINUTE_MS)
        first, token = await page(make_app(theirs, [bucket]), list_type="2", max_keys="1")
        assert first + await rest_of(make_app(world.tables(), [bucket]), token) == keys


@in_still_loop
async def test_tokens_with_forged_times_cost_no_refreshes() -> None:
    world, tables, bucket, _ = open_world("u=1", "u=2")
    app = make_app(tables, [bucket])
    await page(app, list_type="2")
    for n in range(20):
        forged = [world.clock.now_ms() + AHEAD_MS_MAX + 1 + n, "0123456789abcdef", "u=1/x"]
        token = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode()
        assert await page(app, list_type="2", continuation_token=token) == ([], "InvalidArgument")
        world.advance(1)
    assert world.listings == 1


@in_still_loop
async def test_a_marker_stays_on_the_snapshot_that_ended_a_page_with_it() -> None:
    world, tables, bucket, keys = open_world("u=1", "u=2", "u=3", "u=4")
    app = make_app(tables, [bucket])
    first, _ = await page(app, max_keys="2")
    world.replace(keys[2])
    (new,) = world.add("u=5")
    world.advance(REFRESH_MS + 1)
    for _ in range(2):  # a client may repeat the request for a page
        assert first + (await page(app, marker=first[-1], max_keys="2"))[0] == keys
    # A marker that ended no page starts a new listing; one of an expired listing is rejected.
    assert (await page(app, marker=keys[0]))[0] == [keys[1], keys[3], new]
    world.advance(HOLD_MS)
    assert await page(app, marker=first[-1], max_keys="2") == ([], "InvalidArgument")


@in_still_loop
async def test_a_token_gives_no_access_to_other_buckets() -> None:
    world = ProxyWorld()
    world.add("u=1", "u=1", "u=2", "u=2")
    mine, theirs = world.bucket("u=1"), replace(world.bucket("u=2"), name="theirs")
    app = make_app(world.tables(), [mine, theirs])
    _, token = await page(app, list_type="2", max_keys="1")
    elsewhere, _ = await page(app, "theirs", list_type="2", continuation_token=token)
    assert elsewhere
    assert all(k.startswith("u=2/") for k in elsewhere)
    for forged in ("", "x", "W10=", "WzEsIngiLCIiXQ==", "WzE4MDAwMDAwMDAwMDAsIjAiLCIiXQ==", token[:-4], "é"):
        assert await page(app, list_type="2", continuation_token=forged) == ([], "InvalidArgument")
