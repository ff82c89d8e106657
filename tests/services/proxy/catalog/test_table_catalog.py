"""Views of a table that changes: each response is of one snapshot, and refreshes have a known cost.

The test controls the clocks of the store and the proxy. So it can count the requests to the store within a period, even
on a busy machine.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace

import pytest

from icedb.format.records import Marker
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.services.proxy.catalog.bucket_view import BucketView
from icedb.services.proxy.catalog.table_catalog import AHEAD_MS_MAX, PART_STATE_SECONDS
from icedb.services.proxy.catalog.view_cache import ViewCache
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.testing import Request
from tests.support.proxy.proxy_views import HOLD_MS, REFRESH_MS, is_there, open_world, page, refusal, shown
from tests.support.proxy.proxy_worlds import ProxyWorld, in_still_loop, make_app, run, together

# ------------------------------------------------------------------------------------------ looks


@in_still_loop
async def test_the_latest_view_follows_what_is_committed() -> None:
    world = ProxyWorld()
    bucket = world.bucket()
    tables = world.tables()
    assert await shown(tables, bucket) == []
    for n in range(2):
        world.table.insert([{"u": 1, "n": n}])
        assert await shown(tables, bucket) == []
    world.advance(REFRESH_MS + 1)
    two = await shown(tables, bucket)
    assert len(two) == 2
    world.table.merge()
    assert await shown(tables, bucket) == two
    world.advance(REFRESH_MS + 1)
    (one,) = await shown(tables, bucket)
    assert one not in two
    part, store = await tables.find(bucket, None, one)
    assert len(store.get(part.stored_key).body) == part.bytes
    world.table.drop_partitions(["u=1"])
    world.advance(REFRESH_MS + 1)
    assert await shown(tables, bucket) == []


@pytest.mark.parametrize("kind", ["views", "keys", "times"])
@in_still_loop
async def test_fifty_concurrent_requests_share_one_refresh(kind: str) -> None:
    world, tables, bucket, (key,) = open_world("u=1")

    async def ask() -> object:
        if kind == "keys":
            return (await tables.find(bucket, None, key))[0].key
        return await shown(tables, bucket, world.clock.now_ms() - 1 if kind == "times" else None)

    world.advance(10)
    answers = await together(50, ask)
    assert answers == [key if kind == "keys" else [key]] * 50
    # The current millisecond may need one more refresh.
    assert world.listings == 1
    assert world.store.counts["get"] == 2  # the spec, and the log file


@in_still_loop
async def test_a_quiet_table_costs_one_listing_per_interval_and_nothing_between() -> None:
    world = ProxyWorld()
    world.add("u=1", "u=2")
    world.table.merge_log()
    buckets = [world.bucket(), world.bucket("u=1"), world.bucket("u=2")]
    tables = world.tables()
    await shown(tables, buckets[0])
    for _ in range(20):
        world.advance(REFRESH_MS + 1)
        world.store.requests.clear()
        for _ in range(3):
            for bucket in buckets:
                assert await shown(tables, bucket)
            world.advance(REFRESH_MS // 10)
        assert [r.kind for r in world.store.requests] == ["list"]
    world.store.requests.clear()
    world.advance(HOUR_MS)  # without requests there are no refreshes
    assert world.store.requests == []


@in_still_loop
async def test_a_recently_read_key_needs_no_refresh() -> None:
    world, tables, bucket, (key,) = open_world("u=1")
    assert await is_there(tables, bucket, key)
    for _ in range(10):
        world.advance(PART_STATE_SECONDS * 100)
        assert await is_there(tables, bucket, key)
    assert world.listings == 1
    world.advance(1)
    assert await is_there(tables, bucket, key)
    assert world.listings == 2


@in_still_loop
async def test_any_number_of_guessed_keys_costs_one_listing_per_interval() -> None:
    world = ProxyWorld()
    (key,) = world.add("u=1")
    bucket, other = world.bucket(), world.bucket("u=2")
    tables = world.tables()
    await shown(tables, bucket)
    for _ in range(5):
        world.advance(REFRESH_MS + 1)
        before = world.listings
        for n in range(40):
            assert not await is_there(tables, bucket, f"u=1/guess-{n}.parquet")
        assert world.listings == before + 1
    before = world.listings
    assert not await is_there(tables, other, key)  # it exists, but outside the scope
    assert world.listings == before


@in_still_loop
async def test_a_new_key_is_found_by_the_next_refresh() -> None:
    world, tables, bucket, _ = open_world("u=1")
    await shown(tables, bucket)
    (new,) = world.add("u=1")
    world.advance(REFRESH_MS + 1)
    assert await is_there(tables, bucket, new)


# ------------------------------------------------------------------------------------------ parts that were replaced


@pytest.mark.parametrize("process", ["the same", "another"])
@in_still_loop
async def test_a_replaced_part_can_be_fetched_for_the_hold_time(process: str) -> None:
    world, tables, bucket, (old, other) = open_world("u=1", "u=1")
    world.advance(HOUR_MS)
    assert await shown(tables, bucket) == sorted([old, other])
    world.replace(old)
    world.advance(REFRESH_MS + 1)
    assert await shown(tables, bucket) == [other]
    for passed_ms in (REFRESH_MS + 1, HOLD_MS):
        world.advance(passed_ms - REFRESH_MS - 1)
        catalog = tables if process == "the same" else world.tables()
        assert await is_there(catalog, bucket, old)
    world.advance(1)
    assert not await is_there(catalog, bucket, old)
    assert not await is_there(world.tables(), bucket, old)
    assert await is_there(catalog, bucket, other)


@in_still_loop
async def test_a_part_is_held_as_long_if_the_log_file_of_its_tombstone_is_merged() -> None:
    world = ProxyWorld()
    old, _ = world.add("u=1", "u=1")
    world.add("u=2")
    bucket = world.bucket()
    late_ms = world.table.handle.timing.late_publication_ms
    world.advance(HOUR_MS)
    tables = world.tables()
    assert await is_there(tables, bucket, old)
    world.replace(old)
    world.advance(MINUTE_MS)
    world.add("u=3")
    assert len(world.table.merge_log().merged_log_files) > 1
    world.advance(HOLD_MS - MINUTE_MS)
    assert await is_there(tables, bucket, old)
    assert await is_there(world.tables(), bucket, old)
    # A proxy that has not read the first log file knows only the latest possible time of its publication.
    world.advance(late_ms + 1)
    assert not await is_there(tables, bucket, old)
    assert not await is_there(world.tables(), bucket, old)


@in_still_loop
async def test_a_part_is_held_from_the_publication_of_a_late_commit() -> None:
    world, tables, bucket, (old,) = open_world("u=1")
    assert await is_there(tables, bucket, old)
    said_ms = world.clock.now_ms() + MINUTE_MS
    world.advance(6 * MINUTE_MS)  # the writer paused between choosing its time and the put
    key = world.table.handle.keys.data_prefix + old
    world.write_log(said_ms, [Marker(key, 10, said_ms - MINUTE_MS, tombstoned_ms=said_ms)])
    world.advance(HOLD_MS)
    assert await shown(tables, bucket) == []
    assert await is_there(tables, bucket, old)
    world.advance(1)
    assert not await is_there(tables, bucket, old)


@in_still_loop
async def test_a_part_is_not_shown_before_its_commit_nor_as_of_another_time() -> None:
    world, tables, bucket, (first,) = open_world("u=1")
    world.advance(MINUTE_MS)
    before_ms = world.clock.now_ms()
    world.advance(MINUTE_MS)
    (second,) = world.add("u=1")
    world.replace(first)
    world.advance(MINUTE_MS)
    assert await is_there(tables, bucket, first, before_ms)
    assert not await is_there(tables, bucket, second, before_ms)
    # A part is held for listings of the latest state; an as-of time never shows a part that was replaced before.
    after_ms = world.clock.now_ms() - 1
    assert await is_there(tables, bucket, first)
    assert not await is_there(tables, bucket, first, after_ms)
    with pytest.raises(S3Error, match="before the table's creation"):
        await is_there(tables, bucket, first, before_ms - HOUR_MS)


# ------------------------------------------------------------------------------------------ scopes


PATHS = [
    *("d=1/u=1", "d=1/u=10", "d=1/u=11", "d=2/u=1", "d=2/u=a%20b", "d=2/u=%D0%B9", "d=2/u=\u0439"),
    *("d=2/u=__HIVE_DEFAULT_PARTITION__", "d=1", "u=1", "", "e=1/uu=1", "d=1/u=1/v=1"),
]


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (["u=1"], ["d=1/u=1", "d=2/u=1", "u=1", "d=1/u=1/v=1"]),
        (["d=1/u=1"], ["d=1/u=1", "d=1/u=1/v=1"]),
        (["u=1/d=1"], ["d=1/u=1", "d=1/u=1/v=1"]),
        (["u=10", "u=11"], ["d=1/u=10", "d=1/u=11"]),
        (["d=1"], ["d=1/u=1", "d=1/u=10", "d=1/u=11", "d=1", "d=1/u=1/v=1"]),
        (["u=a%20b"], ["d=2/u=a%20b"]),
        # Two spellings of a value are the same value.
        (["u=\u0439"], ["d=2/u=%D0%B9", "d=2/u=\u0439"]),
        (["u=__HIVE_DEFAULT_PARTITION__"], ["d=2/u=__HIVE_DEFAULT_PARTITION__"]),
        (["u=3"], []),
        (["u="], []),
        ([], PATHS),
    ],
)
@in_still_loop
async def test_a_scope_shows_the_parts_of_its_values_and_no_others(partitions: list[str], expected: list[str]) -> None:
    world = ProxyWorld(partition_by=("d", "u"))
    keys = world.add(*PATHS)
    bucket = world.bucket(*partitions)
    tables = world.tables()
    paths = [k.rpartition("/")[0] for k in await shown(tables, bucket)]
    assert sorted(paths) == sorted(expected)
    fetched = [k.rpartition("/")[0] for k in keys if await is_there(tables, bucket, k)]
    assert sorted(fetched) == sorted(expected)
    world.advance(1)
    now_ms = world.clock.now_ms() - 1
    assert [k.rpartition("/")[0] for k in await shown(tables, bucket, now_ms)] == paths
    assert [k for k in keys if await is_there(tables, bucket, k, now_ms)] == [
        k for k in keys if k.rpartition("/")[0] in expected
    ]
    world.replace(*keys)
    world.advance(REFRESH_MS + 1)
    held = [k.rpartition("/")[0] for k in keys if await is_there(tables, bucket, k)]
    assert sorted(held) == sorted(expected)


@in_still_loop
async def test_scopes_of_one_table_have_separate_views() -> None:
    world = ProxyWorld()
    world.add(*(f"u={n}" for n in range(8)))
    tables = world.tables()
    buckets = [world.bucket(f"u={n}") for n in range(8)] + [world.bucket()]
    for _ in range(2):
        keys = await asyncio.gather(*(shown(tables, b) for b in buckets))
        assert [len(f) for f in keys] == [1] * 8 + [8]
        assert [f[0][:4] for f in keys[:8]] == [f"u={n}/" for n in range(8)]
    assert world.listings == 1


# ------------------------------------------------------------------------------------------ times


@in_still_loop
async def test_a_bucket_with_a_fixed_time_shows_no_other_time() -> None:
    world = ProxyWorld()
    (first,) = world.add("u=1")
    world.advance(MINUTE_MS)
    at_ms = world.clock.now_ms()
    bucket = world.bucket(as_of_ms=at_ms)
    world.advance(MINUTE_MS)
    (second,) = world.add("u=1")
    world.replace(first)
    world.advance(MINUTE_MS)
    tables = world.tables()
    for asked_ms in (None, at_ms):
        assert await shown(tables, bucket, asked_ms) == [first]
        assert await is_there(tables, bucket, first, asked_ms)
        assert not await is_there(tables, bucket, second, asked_ms)
    for other_ms in (at_ms - 1, at_ms + 1, world.clock.now_ms()):
        assert await refusal(tables, bucket, other_ms) == "AccessDenied"
        assert await refusal(tables, bucket, other_ms, second) == "AccessDenied"
    app = make_app(tables, [bucket])
    assert (await page(app, list_type="2"))[0] == [first]
    assert await page(app, f"events--{at_ms + 1}", list_type="2") == ([], "AccessDenied")


@in_still_loop
async def test_time_travel_is_limited_by_time_travel_and_earliest() -> None:
    world = ProxyWorld()
    (first,) = world.add("u=1")
    start_ms = world.clock.now_ms()
    world.advance(HOUR_MS)
    tables = world.tables()
    for at_ms in (0, start_ms, world.clock.now_ms() - 1):
        assert await refusal(tables, world.bucket(time_travel=False), at_ms) == "AccessDenied"
    assert await shown(tables, world.bucket(time_travel=False)) == [first]
    since = world.bucket(earliest_ms=start_ms + MINUTE_MS)
    assert await refusal(tables, since, start_ms + MINUTE_MS - 1) == "AccessDenied"
    assert await refusal(tables, since, start_ms, first) == "AccessDenied"
    assert await shown(tables, since, start_ms + MINUTE_MS) == [first]
    assert await shown(tables, since) == [first]


@in_still_loop
async def test_a_time_has_one_view_despite_later_changes() -> None:
    world, tables, bucket, keys = open_world("u=1", "u=2", "u=3")
    world.advance(MINUTE_MS)
    at_ms = world.clock.now_ms() - 1
    assert await shown(tables, bucket, at_ms) == keys
    for n in range(3):
        world.advance(MINUTE_MS)
        world.add("u=1")
        world.replace(keys[n])
        world.table.merge_log()
        assert await shown(tables, bucket, at_ms) == keys
        assert await shown(world.tables(), bucket, at_ms) == keys
        assert await is_there(world.tables(), bucket, keys[n], at_ms)
    # A late commit with an earlier time does not change a view that was shown.
    world.write_log(at_ms - 1, [Marker(world.table.handle.keys.part("u=2", "late"), 10, at_ms - 1)])
    world.advance(REFRESH_MS + 1)
    assert await shown(tables, bucket, at_ms) == keys


@in_still_loop
async def test_concurrent_requests_for_a_time_get_one_view_while_the_table_changes() -> None:
    world, tables, bucket, _ = open_world("u=1")
    await shown(tables, bucket)
    world.advance(1)
    at_ms = world.clock.now_ms() + 30_000  # a time ahead, for which each request needs a refresh
    loop = asyncio.get_running_loop()
    asking: list[asyncio.Task[list[str]]] = []

    def ask() -> None:
        asking.append(asyncio.ensure_future(shown(tables, bucket, at_ms)))

    def meanwhile(request: Request) -> None:
        """After each listing, advance the time, add a part, and start another request."""
        if request.kind == "list" and len(asking) < 10:
            loop.advance(1)  # type: ignore[attr-defined]
            world.add("u=2")
            loop.call_soon_threadsafe(ask)

    world.store.after = meanwhile
    ask()
    while not all(a.done() for a in asking):
        await asyncio.wait(asking)
    views = [a.result() for a in asking]
    assert len(views) > 1
    assert all(f == views[0] for f in views)
    assert await shown(tables, bucket, at_ms) == views[0]


@in_still_loop
async def test_a_time_before_the_cleanup_is_no_bucket_unless_it_is_pinned() -> None:
    world, tables, bucket, keys = open_world("u=1", "u=2")
    world.advance(MINUTE_MS)
    pinned_ms = world.clock.now_ms() - 1
    world.table.pin("release", pinned_ms)
    world.advance(MINUTE_MS)
    (another,) = world.add("u=3")
    world.advance(MINUTE_MS)
    at_ms = world.clock.now_ms() - 1
    assert await shown(tables, bucket, pinned_ms) == keys
    assert await shown(tables, bucket, at_ms) == [*keys, another]
    world.advance(MINUTE_MS)
    world.replace(keys[0], another)
    world.advance(3 * HOUR_MS)
    world.table.cleanup()
    world.advance(REFRESH_MS + 1)
    for catalog in (tables, world.tables()):
        assert await refusal(catalog, bucket, at_ms) == "NoSuchBucket"
        assert await refusal(catalog, bucket, at_ms, keys[1]) == "NoSuchBucket"
        assert await shown(catalog, bucket, pinned_ms) == keys
        part, store = await catalog.find(bucket, pinned_ms, keys[0])
        assert len(store.get(part.stored_key).body) == part.bytes
        assert await shown(catalog, bucket) == [keys[1]]
    world.table.unpin("release")
    world.advance(3 * HOUR_MS)
    world.table.cleanup()
    world.advance(REFRESH_MS + 1)
    assert await refusal(tables, bucket, pinned_ms) == "NoSuchBucket"


@in_still_loop
async def test_a_client_may_request_its_current_time_but_no_future_time() -> None:
    world, tables, bucket, keys = open_world("u=1")
    world.advance(MINUTE_MS)
    await shown(tables, bucket)
    keys.extend(world.add("u=2"))  # not refreshed yet
    world.advance(1)
    assert await shown(tables, bucket, world.clock.now_ms()) == sorted(keys)
    for ahead_ms in (1, AHEAD_MS_MAX):
        assert await shown(tables, bucket, world.clock.now_ms() + ahead_ms) == sorted(keys)
    for ahead_ms in (AHEAD_MS_MAX + 1, 365 * 24 * HOUR_MS):
        assert await refusal(tables, bucket, world.clock.now_ms() + ahead_ms) == "InvalidArgument"


# ------------------------------------------------------------------------------------------ bounds


@in_still_loop
async def test_the_number_of_open_tables_is_limited() -> None:
    world = ProxyWorld()
    world.add("u=1")
    tables = world.tables(tables_open=3)
    buckets = [VirtualBucket("events", f"table-{n}") for n in range(5)]
    for bucket in buckets:
        await shown(tables, bucket)
    assert (tables.open_count, world.listings) == (3, 5)
    for bucket in buckets[2:]:
        await shown(tables, bucket)
    assert world.listings == 5
    await shown(tables, buckets[0])  # was closed, and replaces the least recently used table
    await shown(tables, buckets[3])
    assert (tables.open_count, world.listings) == (3, 6)


def test_the_number_of_cached_views_is_limited() -> None:
    def view(snapshot: int, keys: int) -> BucketView:
        return BucketView(snapshot, str(snapshot), "", [str(n) for n in range(keys)], [])

    remembered = ViewCache[int](keys_max=100, entries_max=5)
    for n in range(10):
        remembered.put(n, view(n, 30), at=n)
    assert [remembered.get(n) is not None for n in range(10)] == [False] * 7 + [True] * 3
    assert remembered.get(8, since=8) is not None
    assert remembered.get(8, since=8.5) is None
    shared = remembered.get(9)
    assert shared is not None
    for n in range(20, 24):  # views that share their keys count once
        remembered.put(n, replace(shared, as_of_ms=n), at=n)
    assert len(remembered) == 5
    remembered.put(30, view(30, 1_000))  # larger than the limit: one view is always kept
    assert (len(remembered), remembered.get(30) is not None) == (1, True)
    remembered.clear()
    remembered.put(31, view(31, 100))
    assert len(remembered) == 1


@in_still_loop
async def test_a_session_keeps_its_view_during_other_requests() -> None:
    """A late commit with an earlier time does not change the cached view of the session."""
    world, tables, bucket, (old,) = open_world("u=1")
    world.advance(MINUTE_MS)
    at_ms = world.clock.now_ms()
    assert await shown(tables, bucket, at_ms) == [old]
    world.write_log(at_ms - 1, [Marker(world.table.handle.keys.part("u=1", "late"), 10, at_ms - 1, rows=1)])
    world.advance(REFRESH_MS + 1)
    for n in range(100):
        assert len(await shown(tables, bucket, at_ms + n + 1)) == 2
    assert await shown(tables, bucket, at_ms) == [old]


@in_still_loop
async def test_an_expired_time_costs_one_refresh_for_many_requests() -> None:
    world, tables, bucket, (old,) = open_world("u=1")
    at_ms = world.clock.now_ms()
    world.replace(old)
    world.clock.advance(3 * HOUR_MS)
    world.table.cleanup()
    world.clock.advance(MINUTE_MS)
    await shown(tables, bucket)
    before = world.listings
    for _ in range(20):
        assert await together(10, lambda: refusal(tables, bucket, at_ms, "k")) == ["NoSuchBucket"] * 10
    assert world.listings - before <= 2


@in_still_loop
async def test_a_state_from_before_the_machine_slept_is_refreshed() -> None:
    """The clock of the loop stops while a machine sleeps."""
    world, tables, bucket, (old,) = open_world("u=1")
    (listed,) = await shown(tables, bucket)
    world.replace(old)
    world.clock.advance(60 * MINUTE_MS)
    assert not await is_there(tables, bucket, listed)
    assert await shown(tables, bucket) != [listed]


def test_many_scopes_of_one_table_are_each_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ProxyWorld()
    world.add(*(f"u={n}" for n in range(60)))
    made = []
    within = BucketView.within
    monkeypatch.setattr(BucketView, "within", lambda view, scope: made.append(scope) or within(view, scope))

    async def work() -> None:
        tables = world.tables()
        for _ in range(3):
            for n in range(60):
                assert len(await shown(tables, world.bucket(f"u={n}"))) == 1

    run(work())
    assert len(made) == 60


def fill_with(world: ProxyWorld, parts: int) -> None:
    """Write log files with that many markers, without parts."""
    keys = world.table.handle.keys
    for n in range(20):
        t_ms = world.clock.now_ms() + n
        some = range(n, parts, 20)
        world.write_log(t_ms, [Marker(keys.part(f"u={k % 100}", f"{k:08d}"), 10, t_ms, rows=1) for k in some])
    world.clock.advance(MINUTE_MS)


@pytest.mark.long
@pytest.mark.parametrize("parts", [10_000, pytest.param(100_000, marks=pytest.mark.slow(seconds=20))])
@in_still_loop
async def test_the_parts_of_a_large_table_are_listed_each_once(parts: int) -> None:
    world = ProxyWorld()
    fill_with(world, parts)
    bucket = world.bucket()
    app = make_app(world.tables(), [bucket])
    keys_of_pages, token = await page(app, list_type="2")
    pages = 1
    while token:
        if pages == parts // 2_000:
            world.replace(keys_of_pages[0])
            world.add("u=7")
        world.advance(REFRESH_MS + 1)
        keys, token = await page(app, list_type="2", continuation_token=token)
        keys_of_pages += keys
        pages += 1
    assert pages == parts // 1_000
    assert keys_of_pages == sorted(f"u={k % 100}/{k:08d}.parquet" for k in range(parts))


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_views_of_a_large_table_that_changes_take_bounded_memory() -> None:
    world = ProxyWorld()
    fill_with(world, 2_000)
    bucket, scoped = world.bucket(), world.bucket("u=1")

    async def work() -> int:
        tables = world.tables()
        used: list[int] = []
        for n in range(50):
            world.add("u=1")
            world.advance(REFRESH_MS + 1)
            assert len((await tables.view(bucket, None)).keys) == 2_000 + n + 1
            assert len((await tables.view(scoped, None)).keys) == 20 + n + 1
            if n in (0, 49):
                used.append(tracemalloc.get_traced_memory()[0])
        return used[1] - used[0]

    tracemalloc.start()
    try:
        grown = run(work())
    finally:
        tracemalloc.stop()
    # 50 views of the whole table: two lists of 8 bytes for each part, 1.6 MB. Copies of the markers would be 24 MB.
    assert grown < 2_400_000
