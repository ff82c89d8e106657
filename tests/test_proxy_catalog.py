"""What the proxy shows of tables that change, fail and come back: every answer of one snapshot, and what looks cost.

The table lies in a store whose time is the test's, and so is the proxy's: requests to the store are counted between two
moments, whatever the machine does meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import icedb.proxy.app
from icedb import Table
from icedb.errors import StoreUnavailable
from icedb.format.records import Marker
from icedb.options import HOUR_MS, MINUTE_MS
from icedb.proxy.app import ProxyApp
from icedb.proxy.catalog import AHEAD_MS_MAX, KNOWN_SECONDS, Tables
from icedb.proxy.remembered import Remembered
from icedb.proxy.s3_errors import S3Error
from icedb.proxy.tenants import VirtualBucket
from icedb.proxy.views import View
from icedb.store import ObjectStore
from icedb.testing import Fault, Request, create_table
from tests.conftest import Place
from tests.proxy_worlds import Heard, World, ask_app, heard, make_app, question, run, together

REFRESH_MS = 1_000
HOLD_MS = 15 * MINUTE_MS
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def keys_of(view: View) -> list[str]:
    return [view.virtual(k) for k in view.keys]


async def shown(tables: Tables, bucket: VirtualBucket, as_of_ms: int | None = None) -> list[str]:
    return keys_of(await tables.view(bucket, as_of_ms))


async def refusal(tables: Tables, bucket: VirtualBucket, as_of_ms: int | None = None, key: str | None = None) -> str:
    """The code that a listing, or a key, is refused with."""
    with pytest.raises(S3Error) as caught:
        await (tables.view(bucket, as_of_ms) if key is None else tables.find(bucket, as_of_ms, key))
    return caught.value.code


async def is_there(tables: Tables, bucket: VirtualBucket, key: str, as_of_ms: int | None = None) -> bool:
    try:
        found, _ = await tables.find(bucket, as_of_ms, key)
    except S3Error as error:
        if error.code != "NoSuchKey":
            raise
        return False
    assert found.key == key
    return True


# ------------------------------------------------------------------------------------------ looks


def test_the_latest_view_follows_what_is_committed() -> None:
    world = World()
    bucket = world.bucket()

    async def work() -> None:
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
        found, store = await tables.find(bucket, None, one)
        assert len(store.get(found.stored_key).body) == found.bytes
        world.table.drop_partitions(["u=1"])
        world.advance(REFRESH_MS + 1)
        assert await shown(tables, bucket) == []

    run(work())


@pytest.mark.parametrize("asked", ["views", "keys", "times"])
def test_fifty_who_ask_at_once_share_one_look(asked: str) -> None:
    world = World()
    (key,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()

        async def ask() -> object:
            if asked == "keys":
                return (await tables.find(bucket, None, key))[0].key
            return await shown(tables, bucket, world.clock.now_ms() - 1 if asked == "times" else None)

        world.advance(10)
        answers = await together(50, ask)
        assert answers == [key if asked == "keys" else [key]] * 50
        # A time that has only just begun takes a look of its own by the next who asks for it: two at most.
        assert world.listings == 1
        assert world.store.counts["get"] == 2  # the spec, and the log file

    run(work())


def test_a_quiet_table_costs_one_listing_per_interval_and_nothing_between() -> None:
    world = World()
    world.add("u=1", "u=2")
    world.table.merge_log()
    buckets = [world.bucket(), world.bucket("u=1"), world.bucket("u=2")]

    async def work() -> None:
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
        world.advance(HOUR_MS)  # nobody asks: nobody looks
        assert world.store.requests == []

    run(work())


def test_a_known_key_needs_no_look_for_a_while() -> None:
    world = World()
    (key,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        assert await is_there(tables, bucket, key)
        for _ in range(10):
            world.advance(KNOWN_SECONDS * 100)
            assert await is_there(tables, bucket, key)
        assert world.listings == 1
        world.advance(1)
        assert await is_there(tables, bucket, key)
        assert world.listings == 2

    run(work())


def test_guessed_keys_cost_one_listing_per_interval_however_many() -> None:
    world = World()
    (key,) = world.add("u=1")
    bucket, other = world.bucket(), world.bucket("u=2")

    async def work() -> None:
        tables = world.tables()
        await shown(tables, bucket)
        for _ in range(5):
            world.advance(REFRESH_MS + 1)
            before = world.listings
            for n in range(40):
                assert not await is_there(tables, bucket, f"u=1/guess-{n}.parquet")
            assert world.listings == before + 1
        before = world.listings
        assert not await is_there(tables, other, key)  # there, but not for them
        assert world.listings == before

    run(work())


def test_a_new_key_is_found_by_the_next_look() -> None:
    world = World()
    world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        await shown(tables, bucket)
        (new,) = world.add("u=1")
        world.advance(REFRESH_MS + 1)
        assert await is_there(tables, bucket, new)

    run(work())


# ------------------------------------------------------------------------------------------ listings of many pages


async def page(app: ProxyApp, name: str = "events", **asked: str) -> tuple[list[str], str]:
    """The keys of a page, and how to go on; or, when it is refused, nothing and the code."""
    answer = await ask_app(app, question("GET", f"/{name}", {n.replace("_", "-"): v for n, v in asked.items()}))
    if answer.status != 200:
        return [], answer.code
    root = ET.fromstring(answer.body)
    keys = [str(e.findtext(f"{NAMESPACE}Key")) for e in root.iter(f"{NAMESPACE}Contents")]
    return keys, root.findtext(f"{NAMESPACE}NextContinuationToken") or ""


async def rest_of(app: ProxyApp, token: str, name: str = "events") -> list[str]:
    """What the pages after a token hold."""
    found: list[str] = []
    while token:
        keys, token = await page(app, name, list_type="2", max_keys="2", continuation_token=token)
        assert keys, token
        found += keys
    return found


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_continuation_stays_on_its_snapshot(process: str) -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2") + world.add("u=1", "u=2") + world.add("u=1"))
    bucket = world.bucket()

    async def work() -> None:
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

    run(work())


def test_a_continuation_outlives_cleanup_where_its_view_is_known_and_fails_elsewhere() -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2", "u=3", "u=4"))
    bucket = world.bucket()

    async def work() -> None:
        app, another = make_app(world.tables(), [bucket]), make_app(world.tables(), [bucket])
        first, token = await page(app, list_type="2", max_keys="2")
        world.advance(MINUTE_MS)
        world.replace(keys[2])
        world.advance(MINUTE_MS)
        world.table.cleanup(grace_ms=0, allow_short_grace=True)
        asked = {"list_type": "2", "max_keys": "2", "continuation_token": token}
        assert await page(another, **asked) == ([], "InvalidArgument")
        assert first + (await page(app, **asked))[0] == keys

    run(work())


def test_a_continuation_fails_rather_than_mixes_when_the_log_tells_another_snapshot() -> None:
    world = World()
    world.add("u=1", "u=2", "u=3")
    bucket = world.bucket()

    async def work() -> None:
        world.advance(MINUTE_MS)
        app, another = make_app(world.tables(), [bucket]), make_app(world.tables(), [bucket])
        first, token = await page(app, list_type="2", max_keys="1")
        key = world.table.handle.keys.part("u=2", "late")
        # A writer took its time: its commit is before the listing, and nobody could know.
        world.write_log(world.clock.now_ms() - 1_000, [Marker(key, 10, world.clock.now_ms() - 1_000)])
        world.advance(REFRESH_MS + 1)
        asked = {"list_type": "2", "max_keys": "1", "continuation_token": token}
        assert await page(another, **asked) == ([], "InvalidArgument")
        assert len(first + (await page(app, **asked))[0]) == 2

    run(work())


def test_a_continuation_is_good_for_as_long_as_replaced_parts_are_held() -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2", "u=3"))
    bucket = world.bucket()

    async def work() -> None:
        world.advance(MINUTE_MS)
        app = make_app(world.tables(), [bucket])
        first, token = await page(app, list_type="2", max_keys="1")
        asked = {"list_type": "2", "continuation_token": token}
        world.advance(HOLD_MS - 1)
        assert first + (await page(app, **asked))[0] == keys
        world.advance(1)
        assert await page(app, **asked) == ([], "InvalidArgument")

    run(work())


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_table_with_a_commit_from_a_clock_far_ahead_is_listed_page_by_page(process: str) -> None:
    world = World()
    keys = world.add("u=1", "u=2")
    bucket = world.bucket()
    ahead_ms = world.clock.now_ms() + 24 * HOUR_MS
    world.write_log(ahead_ms, [Marker(world.table.handle.keys.part("u=3", "ahead"), 10, ahead_ms)])

    async def work() -> None:
        app = make_app(world.tables(), [bucket])
        _, token = await page(app, list_type="2", max_keys="1")
        world.advance(MINUTE_MS)
        world.replace(*keys)
        again = app if process == "the same" else make_app(world.tables(), [bucket])
        expected = [] if process == "another" else [*sorted(keys)[1:], "u=3/ahead.parquet"]
        found, more = await page(again, list_type="2", continuation_token=token)
        # Elsewhere, of a time that is still to come, nobody knows what was then: it fails, and does not mix.
        assert (found, more) == (expected, "" if expected else "InvalidArgument")

    run(work())


def test_a_continuation_works_behind_another_proxy_whose_clock_is_not_ours() -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2"))
    bucket = world.bucket()

    async def work() -> None:
        for ahead_ms in (30_000, -30_000):
            theirs = Tables(clock=world.clock.skewed(ahead_ms), open_table=world.open)
            world.advance(MINUTE_MS)
            first, token = await page(make_app(theirs, [bucket]), list_type="2", max_keys="1")
            assert first + await rest_of(make_app(world.tables(), [bucket]), token) == keys

    run(work())


def test_tokens_of_times_that_no_listing_began_at_cost_no_looks() -> None:
    world = World()
    world.add("u=1", "u=2")
    bucket = world.bucket()

    async def work() -> None:
        app = make_app(world.tables(), [bucket])
        await page(app, list_type="2")
        for n in range(20):
            forged = [world.clock.now_ms() + AHEAD_MS_MAX + 1 + n, "0123456789abcdef", "u=1/x"]
            token = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode()
            assert await page(app, list_type="2", continuation_token=token) == ([], "InvalidArgument")
            world.advance(1)
        assert world.listings == 1

    run(work())


def test_a_marker_stays_on_the_snapshot_that_ended_a_page_with_it() -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2", "u=3", "u=4"))
    bucket = world.bucket()

    async def work() -> None:
        app = make_app(world.tables(), [bucket])
        first, _ = await page(app, max_keys="2")
        world.replace(keys[2])
        (new,) = world.add("u=5")
        world.advance(REFRESH_MS + 1)
        for _ in range(2):  # a client may ask again for a page that it did not get
            assert first + (await page(app, marker=first[-1], max_keys="2"))[0] == keys
        # A marker that ended no page begins with what there is now; that of a listing of long ago is refused.
        assert (await page(app, marker=keys[0]))[0] == [keys[1], keys[3], new]
        world.advance(HOLD_MS)
        assert await page(app, marker=first[-1], max_keys="2") == ([], "InvalidArgument")

    run(work())


def test_a_token_opens_nothing_else() -> None:
    world = World()
    world.add("u=1", "u=1", "u=2", "u=2")
    mine, theirs = world.bucket("u=1"), replace(world.bucket("u=2"), name="theirs")

    async def work() -> None:
        app = make_app(world.tables(), [mine, theirs])
        _, token = await page(app, list_type="2", max_keys="1")
        elsewhere, _ = await page(app, "theirs", list_type="2", continuation_token=token)
        assert all(k.startswith("u=2/") for k in elsewhere)
        for forged in ("", "x", "W10=", "WzEsIngiLCIiXQ==", "WzE4MDAwMDAwMDAwMDAsIjAiLCIiXQ==", token[:-4], "é"):
            assert await page(app, list_type="2", continuation_token=forged) == ([], "InvalidArgument")

    run(work())


# ------------------------------------------------------------------------------------------ parts that were replaced


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_replaced_part_can_be_fetched_until_it_was_held_long_enough(process: str) -> None:
    world = World()
    old, other = world.add("u=1", "u=1")
    bucket = world.bucket()

    async def work() -> None:
        world.advance(HOUR_MS)
        tables = world.tables()
        assert await shown(tables, bucket) == sorted([old, other])
        world.replace(old)
        world.advance(REFRESH_MS + 1)
        assert await shown(tables, bucket) == [other]
        for passed_ms in (REFRESH_MS + 1, HOLD_MS):
            world.advance(passed_ms - REFRESH_MS - 1)
            asked = tables if process == "the same" else world.tables()
            assert await is_there(asked, bucket, old)
        world.advance(1)
        assert not await is_there(asked, bucket, old)
        assert not await is_there(world.tables(), bucket, old)
        assert await is_there(asked, bucket, other)

    run(work())


def test_a_part_is_held_as_long_when_the_log_file_that_says_so_is_merged() -> None:
    world = World()
    old, _ = world.add("u=1", "u=1")
    world.add("u=2")
    bucket = world.bucket()
    late_ms = world.table.handle.timing.late_publication_ms

    async def work() -> None:
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
        # Whoever has not seen the first of the two log files cannot know how early it came, but how late at most.
        world.advance(late_ms + 1)
        assert not await is_there(tables, bucket, old)
        assert not await is_there(world.tables(), bucket, old)

    run(work())


def test_a_part_is_held_from_when_a_late_commit_was_there() -> None:
    world = World()
    (old,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        assert await is_there(tables, bucket, old)
        said_ms = world.clock.now_ms() + MINUTE_MS
        world.advance(6 * MINUTE_MS)  # the writer was asleep between its time and its put
        key = world.table.handle.keys.data_prefix + old
        world.write_log(said_ms, [Marker(key, 10, said_ms - MINUTE_MS, tombstoned_ms=said_ms)])
        world.advance(HOLD_MS)
        assert await shown(tables, bucket) == []
        assert await is_there(tables, bucket, old)
        world.advance(1)
        assert not await is_there(tables, bucket, old)

    run(work())


def test_no_part_is_there_before_it_was_made_nor_in_the_view_of_another_time() -> None:
    world = World()
    (first,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        world.advance(MINUTE_MS)
        before_ms = world.clock.now_ms()
        world.advance(MINUTE_MS)
        (second,) = world.add("u=1")
        world.replace(first)
        world.advance(MINUTE_MS)
        tables = world.tables()
        assert await is_there(tables, bucket, first, before_ms)
        assert not await is_there(tables, bucket, second, before_ms)
        # Held is what somebody may have listed as the latest; a time never shows what was gone then.
        after_ms = world.clock.now_ms() - 1
        assert await is_there(tables, bucket, first)
        assert not await is_there(tables, bucket, first, after_ms)
        assert not await is_there(tables, bucket, first, before_ms - HOUR_MS)

    run(work())


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
        # Two spellings of one value are that value.
        (["u=\u0439"], ["d=2/u=%D0%B9", "d=2/u=\u0439"]),
        (["u=__HIVE_DEFAULT_PARTITION__"], ["d=2/u=__HIVE_DEFAULT_PARTITION__"]),
        (["u=3"], []),
        (["u="], []),
        ([], PATHS),
    ],
)
def test_a_scope_shows_the_parts_of_its_values_and_no_others(partitions: list[str], expected: list[str]) -> None:
    world = World(partition_by=("d", "u"))
    keys = world.add(*PATHS)
    bucket = world.bucket(*partitions)

    async def work() -> None:
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

    run(work())


def test_scopes_of_one_table_do_not_take_each_others_views() -> None:
    world = World()
    world.add(*(f"u={n}" for n in range(8)))

    async def work() -> None:
        tables = world.tables()
        buckets = [world.bucket(f"u={n}") for n in range(8)] + [world.bucket()]
        for _ in range(2):
            found = await asyncio.gather(*(shown(tables, b) for b in buckets))
            assert [len(f) for f in found] == [1] * 8 + [8]
            assert [f[0][:4] for f in found[:8]] == [f"u={n}/" for n in range(8)]
        assert world.listings == 1

    run(work())


# ------------------------------------------------------------------------------------------ times


def test_a_bucket_with_a_time_shows_that_time_and_no_other() -> None:
    world = World()
    (first,) = world.add("u=1")

    async def work() -> None:
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

    run(work())


def test_who_may_not_travel_sees_the_latest_and_who_may_only_as_far_as_allowed() -> None:
    world = World()
    (first,) = world.add("u=1")
    start_ms = world.clock.now_ms()

    async def work() -> None:
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

    run(work())


def test_a_time_gives_one_view_whatever_happens_later() -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2", "u=3"))
    bucket = world.bucket()

    async def work() -> None:
        world.advance(MINUTE_MS)
        at_ms = world.clock.now_ms() - 1
        tables = world.tables()
        assert await shown(tables, bucket, at_ms) == keys
        for n in range(3):
            world.advance(MINUTE_MS)
            world.add("u=1")
            world.replace(keys[n])
            world.table.merge_log()
            assert await shown(tables, bucket, at_ms) == keys
            assert await shown(world.tables(), bucket, at_ms) == keys
            assert await is_there(world.tables(), bucket, keys[n], at_ms)
        # Of what was committed at that time and could not be seen, the proxy that told the view says nothing new.
        world.write_log(at_ms - 1, [Marker(world.table.handle.keys.part("u=2", "late"), 10, at_ms - 1)])
        world.advance(REFRESH_MS + 1)
        assert await shown(tables, bucket, at_ms) == keys

    run(work())


def test_all_who_ask_for_a_time_while_the_table_changes_get_one_view() -> None:
    world = World()
    world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        await shown(tables, bucket)
        world.advance(1)
        at_ms = world.clock.now_ms() + 30_000  # of clients whose clocks are ahead: each asks for a look of its own
        loop = asyncio.get_running_loop()
        asking: list[asyncio.Task[list[str]]] = []

        def ask() -> None:
            asking.append(asyncio.ensure_future(shown(tables, bucket, at_ms)))

        def meanwhile(request: Request) -> None:
            """After each listing: a moment passes, there is one more part, and one more who asks."""
            if request.kind == "list" and len(asking) < 10:
                loop.advance(1)  # type: ignore[attr-defined]
                world.add("u=2")
                loop.call_soon_threadsafe(ask)

        world.store.after = meanwhile
        ask()
        while not all(a.done() for a in asking):
            await asyncio.wait(asking)
        found = [a.result() for a in asking]
        assert len(found) > 1
        assert all(f == found[0] for f in found)
        assert await shown(tables, bucket, at_ms) == found[0]

    run(work())


def test_what_cleanup_forgot_is_no_bucket_any_more_unless_it_is_pinned() -> None:
    world = World()
    keys = sorted(world.add("u=1", "u=2"))
    bucket = world.bucket()

    async def work() -> None:
        world.advance(MINUTE_MS)
        pinned_ms = world.clock.now_ms() - 1
        world.table.pin("release", pinned_ms)
        world.advance(MINUTE_MS)
        (another,) = world.add("u=3")
        world.advance(MINUTE_MS)
        at_ms = world.clock.now_ms() - 1
        tables = world.tables()
        assert await shown(tables, bucket, pinned_ms) == keys
        assert await shown(tables, bucket, at_ms) == [*keys, another]
        world.advance(MINUTE_MS)
        world.replace(keys[0], another)
        world.advance(3 * HOUR_MS)
        world.table.cleanup()
        world.advance(REFRESH_MS + 1)
        for asked in (tables, world.tables()):
            assert await refusal(asked, bucket, at_ms) == "NoSuchBucket"
            assert await refusal(asked, bucket, at_ms, keys[1]) == "NoSuchBucket"
            assert await shown(asked, bucket, pinned_ms) == keys
            found, store = await asked.find(bucket, pinned_ms, keys[0])
            assert len(store.get(found.stored_key).body) == found.bytes
            assert await shown(asked, bucket) == [keys[1]]
        world.table.unpin("release")
        world.advance(3 * HOUR_MS)
        world.table.cleanup()
        world.advance(REFRESH_MS + 1)
        assert await refusal(tables, bucket, pinned_ms) == "NoSuchBucket"

    run(work())


def test_a_client_may_ask_for_its_own_now_and_for_no_future() -> None:
    world = World()
    keys = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        world.advance(MINUTE_MS)
        await shown(tables, bucket)
        keys.extend(world.add("u=2"))  # not seen by a look yet
        world.advance(1)
        assert await shown(tables, bucket, world.clock.now_ms()) == sorted(keys)
        for ahead_ms in (1, AHEAD_MS_MAX):
            assert await shown(tables, bucket, world.clock.now_ms() + ahead_ms) == sorted(keys)
        for ahead_ms in (AHEAD_MS_MAX + 1, 365 * 24 * HOUR_MS):
            assert await refusal(tables, bucket, world.clock.now_ms() + ahead_ms) == "InvalidArgument"

    run(work())


# ------------------------------------------------------------------------------------------ what fails


def says_nothing(answer: Heard) -> bool:
    """Whether an answer is free of what lies behind the proxy."""
    said = answer.body + "".join(f"{n}{v}" for n, v in answer.headers.items()).encode()
    return not any(word in said for word in (b"memory", b"clocked", b"_log", b"_data", b"_table", b"injected", b"/tmp"))


async def asked(app: ProxyApp, path: str, method: str = "GET") -> Heard:
    return await ask_app(app, question(method, path))


def test_a_look_that_fails_leaves_what_is_known_and_the_next_one_recovers() -> None:
    world = World()
    (key,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        app = make_app(tables, [bucket])
        assert await shown(tables, bucket) == [key]
        for kind in ("list", "get"):
            (new,) = world.add("u=1")
            world.advance(REFRESH_MS + 1)
            world.store.inject(Fault.FAIL, kind=kind)  # type: ignore[arg-type]
            answer = await asked(app, "/events")
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "ServiceUnavailable", "1")
            assert says_nothing(answer)
            assert await is_there(tables, bucket, key)
            world.advance(REFRESH_MS + 1)
            assert new in await shown(tables, bucket)
        world.advance(KNOWN_SECONDS * 1_000 + 1)
        world.store.inject(Fault.FAIL, kind="list")
        assert await refusal(tables, bucket, None, key) == "ServiceUnavailable"
        world.advance(REFRESH_MS + 1)
        assert await is_there(tables, bucket, key)

    run(work())


@pytest.mark.parametrize("known", [True, False])
def test_those_who_wait_for_a_store_that_is_down_wait_together(known: bool) -> None:
    world = World()
    world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        if known:
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

    run(work())


@pytest.mark.parametrize("first", ["known", "unknown"])
def test_a_damaged_log_is_an_error_until_it_is_repaired(first: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    (key,) = world.add("u=1")
    bucket = world.bucket()
    junk = f"{world.table.handle.keys.log_prefix}{world.clock.now_ms() + 5:013d}_junk.jsonl"

    async def work() -> None:
        tables = world.tables()
        app = make_app(tables, [bucket])
        if first == "known":
            assert await shown(tables, bucket) == [key]
            assert await shown(tables, bucket, world.clock.now_ms()) == [key]
        world.inner.create(junk, b"no log file")
        world.advance(REFRESH_MS + 1)
        for path in ("/events", f"/events/{key}"):
            answer = await asked(app, path)
            assert (answer.status, answer.code) == (500, "InternalError")
            assert says_nothing(answer)
            assert junk in caplog.text
        assert (await asked(app, f"/events--{world.clock.now_ms()}/{key}", "HEAD")).status == 500
        world.inner.delete([junk])
        world.advance(REFRESH_MS + 1)
        assert (await page(app, list_type="2"))[0] == [key]
        assert (await asked(app, f"/events/{key}")).body == b"0123456789"

    run(work())


def test_a_table_that_is_not_there_is_an_error_until_it_is(local: Place) -> None:
    bucket = VirtualBucket("events", local.uri)

    async def work() -> None:
        tables = Tables(refresh_ms=0)
        app = make_app(tables, [bucket])
        for path in ("/events", "/events/u=1/x.parquet", "/events--1700000000000"):
            answer = await asked(app, path)
            assert (answer.status, answer.code) == (500, "InternalError")
            assert says_nothing(answer)
            assert local.uri.encode() not in answer.body
        table = Table.create(local.uri, partition_by=["u"])
        table.insert([{"u": 1}])
        assert len((await page(app, list_type="2"))[0]) == 1
        tables.close()

    asyncio.run(work())


def test_a_table_that_was_made_anew_at_its_address_is_told_within_a_minute() -> None:
    world = World()
    old = world.add("u=1", "u=1", "u=2")
    world.replace(old[0])
    world.table.merge_log()
    bucket = world.bucket()

    async def work() -> None:
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

    run(work())


def test_a_table_that_was_deleted_is_no_empty_one() -> None:
    world = World()
    world.add("u=1")
    world.table.merge_log()

    async def work() -> None:
        tables = world.tables()
        await shown(tables, world.bucket())
        world.inner.delete(list(world.inner.objects))
        world.advance(MINUTE_MS + 1)
        assert await refusal(tables, world.bucket()) == "InternalError"

    run(work())


# ------------------------------------------------------------------------------------------ bounds


def test_no_more_tables_are_held_than_allowed() -> None:
    world = World()
    world.add("u=1")

    async def work() -> None:
        tables = world.tables(tables_open=3)
        buckets = [VirtualBucket("events", f"table-{n}") for n in range(5)]
        for bucket in buckets:
            await shown(tables, bucket)
        assert (tables.open_count, world.listings) == (3, 5)
        for bucket in buckets[2:]:
            await shown(tables, bucket)
        assert world.listings == 5
        await shown(tables, buckets[0])  # was let go, and takes the place of the one that nobody asked for longest
        await shown(tables, buckets[3])
        assert (tables.open_count, world.listings) == (3, 6)

    run(work())


def test_no_more_views_are_remembered_than_allowed() -> None:
    def view(snapshot: int, keys: int) -> View:
        return View(snapshot, str(snapshot), "", [str(n) for n in range(keys)], [])

    remembered = Remembered[int](keys_max=100, entries_max=5)
    for n in range(10):
        remembered.keep(n, view(n, 30), at=n)
    assert [remembered.get(n) is not None for n in range(10)] == [False] * 7 + [True] * 3
    assert remembered.get(8, since=8) is not None
    assert remembered.get(8, since=8.5) is None
    shared = remembered.get(9)
    assert shared is not None
    for n in range(20, 24):  # views that share their keys take little
        remembered.keep(n, replace(shared, as_of_ms=n), at=n)
    assert len(remembered) == 5
    remembered.keep(30, view(30, 1_000))  # larger than all: one view is always kept
    assert (len(remembered), remembered.get(30) is not None) == (1, True)
    remembered.clear()
    remembered.keep(31, view(31, 100))
    assert len(remembered) == 1


def test_a_session_keeps_its_view_whatever_others_ask_for() -> None:
    """A commit with an earlier time comes late; the view of the session's time is told as it was."""
    world = World()
    (old,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        world.advance(MINUTE_MS)
        at_ms = world.clock.now_ms()
        assert await shown(tables, bucket, at_ms) == [old]
        world.write_log(at_ms - 1, [Marker(world.table.handle.keys.part("u=1", "late"), 10, at_ms - 1, rows=1)])
        world.advance(REFRESH_MS + 1)
        for n in range(100):
            assert len(await shown(tables, bucket, at_ms + n + 1)) == 2
        assert await shown(tables, bucket, at_ms) == [old]

    run(work())


def test_a_time_that_is_gone_costs_one_look_however_often_it_is_asked_for() -> None:
    world = World()
    (old,) = world.add("u=1")
    bucket = world.bucket()
    at_ms = world.clock.now_ms()
    world.replace(old)
    world.clock.advance(3 * HOUR_MS)
    world.table.cleanup()
    world.clock.advance(MINUTE_MS)

    async def work() -> None:
        tables = world.tables()
        await shown(tables, bucket)
        before = world.listings
        for _ in range(20):
            assert await together(10, lambda: refusal(tables, bucket, at_ms, "k")) == ["NoSuchBucket"] * 10
        assert world.listings - before <= 2

    run(work())


def test_what_was_known_before_the_machine_slept_is_looked_at_anew() -> None:
    """The loop's clock stands while a machine sleeps."""
    world = World()
    (old,) = world.add("u=1")
    bucket = world.bucket()

    async def work() -> None:
        tables = world.tables()
        (listed,) = await shown(tables, bucket)
        world.replace(old)
        world.clock.advance(60 * MINUTE_MS)
        assert not await is_there(tables, bucket, listed)
        assert await shown(tables, bucket) != [listed]

    run(work())


def test_many_scopes_of_one_table_are_each_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add(*(f"u={n}" for n in range(60)))
    made = []
    within = View.within
    monkeypatch.setattr(View, "within", lambda view, scope: made.append(scope) or within(view, scope))

    async def work() -> None:
        tables = world.tables()
        for _ in range(3):
            for n in range(60):
                assert len(await shown(tables, world.bucket(f"u={n}"))) == 1

    run(work())
    assert len(made) == 60


def fill_with(world: World, parts: int) -> None:
    """Log files with so many markers; objects there are none."""
    keys = world.table.handle.keys
    for n in range(20):
        t_ms = world.clock.now_ms() + n
        some = range(n, parts, 20)
        world.write_log(t_ms, [Marker(keys.part(f"u={k % 100}", f"{k:08d}"), 10, t_ms, rows=1) for k in some])
    world.clock.advance(MINUTE_MS)


def test_a_hundred_thousand_parts_are_listed_each_once() -> None:
    world = World()
    fill_with(world, 100_000)
    bucket = world.bucket()

    async def work() -> None:
        app = make_app(world.tables(), [bucket])
        found, token = await page(app, list_type="2")
        pages = 1
        while token:
            if pages == 50:
                world.replace(found[0])
                world.add("u=7")
            world.advance(REFRESH_MS + 1)
            keys, token = await page(app, list_type="2", continuation_token=token)
            found += keys
            pages += 1
        assert pages == 100
        assert found == sorted(f"u={k % 100}/{k:08d}.parquet" for k in range(100_000))

    run(work())


def test_views_of_a_large_table_that_changes_take_bounded_memory() -> None:
    world = World()
    fill_with(world, 5_000)
    bucket, scoped = world.bucket(), world.bucket("u=1")

    async def work() -> int:
        tables = world.tables()
        used: list[int] = []
        for n in range(50):
            world.add("u=1")
            world.advance(REFRESH_MS + 1)
            assert len((await tables.view(bucket, None)).keys) == 5_000 + n + 1
            assert len((await tables.view(scoped, None)).keys) == 50 + n + 1
            if n in (0, 49):
                used.append(tracemalloc.get_traced_memory()[0])
        return used[1] - used[0]

    tracemalloc.start()
    try:
        grown = run(work())
    finally:
        tracemalloc.stop()
    # 50 views of the whole table: two lists of 8 bytes for each part, 4 MB. Copies of the markers would be 60 MB.
    assert grown < 6_000_000


# ------------------------------------------------------------------------------------------ downloads


class Pieces:
    """Stands in for the store's stream: as many pieces as asked for, then perhaps an error; says when it is over."""

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
                await asyncio.sleep(0)  # a store is waited for
                yield piece
            if self._error is not None:
                raise self._error
        finally:
            self.ended = True


async def download(
    world: World, pieces: Pieces, monkeypatch: pytest.MonkeyPatch, *, client: Any = None, **settings: Any
) -> list[dict[str, Any]]:
    """What was sent of a download. `client` gets each message, and an event that it may set when it leaves."""
    (key,) = world.add("u=1")
    monkeypatch.setattr(icedb.proxy.app, "open_stream", pieces.open)
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
    assert pieces.ended  # though nothing collects garbage
    return sent


def test_a_download_is_sent_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        sent = await download(World(), Pieces(b"01234", b"56789"), monkeypatch)
        assert [m.get("body") for m in sent] == [None, b"01234", b"56789", b""]
        assert heard(sent).body == b"0123456789"

    asyncio.run(work())


def test_a_client_that_leaves_ends_the_stores_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(message: dict[str, Any], left: asyncio.Event) -> None:
        if message.get("body") == b"2":
            left.set()

    async def work() -> None:
        pieces = Pieces(*(str(n).encode() for n in range(10)))
        sent = await download(World(), pieces, monkeypatch, client=leave)
        assert pieces.given <= 4
        assert sent[-1] == {"type": "http.response.body", "body": b"2", "more_body": True}

    asyncio.run(work())


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stand_still(message: dict[str, Any], _: asyncio.Event) -> None:
        if message.get("body") == b"1":
            await asyncio.Event().wait()

    async def work() -> None:
        pieces = Pieces(*(str(n).encode() for n in range(10)))
        sent = await download(World(), pieces, monkeypatch, client=stand_still, send_timeout_ms=50)
        assert pieces.given == 2
        assert sent[-1]["more_body"]  # half an answer: the server breaks the connection off

    asyncio.run(work())


def test_a_store_that_fails_half_way_leaves_an_answer_that_nobody_takes_for_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        pieces = Pieces(b"01234", error=StoreUnavailable("the store broke off (injected)"))
        sent = await download(World(), pieces, monkeypatch)
        assert sent[0]["status"] == 200
        assert [m["more_body"] for m in sent[1:]] == [True]
        assert "the store broke off" in caplog.text

    asyncio.run(work())


@pytest.mark.parametrize("gone", [True, False])
def test_a_part_that_cannot_be_read_is_an_answer_of_its_own(gone: bool) -> None:
    world = World()
    (key,) = world.add("u=1")

    async def work() -> None:
        app = make_app(world.tables(), [world.bucket()])
        assert (await asked(app, f"/events/{key}", "HEAD")).status == 200
        if gone:
            world.inner.delete([world.table.handle.keys.data_prefix + key])
        else:
            world.store.inject(Fault.FAIL, kind="get", key=key)
        answer = await asked(app, f"/events/{key}")
        assert (answer.status, answer.code) == ((404, "NoSuchKey") if gone else (503, "ServiceUnavailable"))
        assert says_nothing(answer)
        if not gone:
            assert (await asked(app, f"/events/{key}")).body == b"0123456789"

    run(work())
