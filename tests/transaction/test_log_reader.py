"""A refresh lists little, fetches new log files, and never returns a state that is older or never existed.

The tests put log files directly into the store. The operations of a table have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from icedb import Table
from icedb.errors import InconsistentListing
from icedb.format.codec import encode
from icedb.format.keys import Keys
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.table_spec import TableSpec
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS, Timing
from icedb.operations.commits.drop_partitions import replace_partitions
from icedb.storage.object_store import ObjectInfo
from icedb.testing import ClockedStore, FaultyStore, ManualClock, Request, create_table
from icedb.transaction.append import append
from icedb.transaction.current_spec import TableTimes
from icedb.transaction.log_reader import LogReader
from icedb.writer.part_writer import WrittenParts

KEYS = Keys("table")
BEHIND_MS = 12 * MINUTE_MS  # twice the commit timeout and the skew


class ListingStore(FaultyStore):
    """A store that records where each listing began, and can omit keys from the next listing."""

    def __init__(self, inner: ClockedStore) -> None:
        super().__init__(inner)
        self.afters: list[str | None] = []
        self.without: set[str] = set()

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self.afters.append(after)
        missing, self.without = self.without, set()
        return [i for i in super().list(prefix, after=after) if i.key not in missing]


class LogWorld:
    """A store of log files, and a reader that keeps its state."""

    def __init__(self, *, epochs: bool = True) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self.listed = ListingStore(self.store)
        self.reader = LogReader(self.listed, KEYS, clock=self.clock)
        if epochs:
            self.put(
                LogFile(self.clock.now_ms(), {}, (marker("first", self.clock.now_ms()),), epoch=1, live_epochs=(1,))
            )

    def put(self, file: LogFile, *, writer: str = "host-1-0123456789ab") -> str:
        name = writer if file.epoch is None else f"{writer}.e{file.epoch}"
        key = KEYS.log_file(file.t_ms, merged=file.carries_tombstones, writer=name)
        self.store.create(key, encode(file))
        return key

    def append(self, name: str, *, t_ms: int | None = None, writer: str = "w") -> str:
        t_ms = self.clock.now_ms() if t_ms is None else t_ms
        return self.put(LogFile(t_ms, {}, (marker(name, t_ms),)), writer=writer)

    def live(self, *, everything: bool = False, fresh: bool = False) -> set[str]:
        self.listed.requests.clear()
        self.listed.afters.clear()
        return names(self.reader, everything=everything, fresh=fresh)


def marker(name: str, t_ms: int, dead_ms: int | None = None) -> Marker:
    return Marker(f"table/_data/{name}.parquet", 10, t_ms, dead_ms)


def names(reader: LogReader, **options: bool) -> set[str]:
    return {m.key.split("/")[-1].removesuffix(".parquet") for m in reader.read(**options).live}


# ------------------------------------------------------------------------------------------ requests of a refresh


def test_a_refresh_without_news_is_one_list_from_where_something_could_have_changed() -> None:
    world = LogWorld()
    assert world.live() == {"first"}
    assert world.listed.afters == [None]
    newest_ms = world.clock.now_ms()
    for by_ms in (10 * MINUTE_MS, 0, 30_000):
        world.clock.advance(by_ms)
        assert world.live() == {"first"}
        assert [r.kind for r in world.listed.requests] == ["list"]
        assert world.listed.afters == [f"table/_log/{newest_ms - BEHIND_MS}"]


@pytest.mark.parametrize("ahead_ms", [20 * MINUTE_MS, HOUR_MS, 10 * DAY_MS])
def test_a_reader_whose_clock_is_far_ahead_sees_new_commits(ahead_ms: int) -> None:
    world = LogWorld()
    reader = LogReader(world.store, KEYS, clock=world.clock.skewed(ahead_ms))
    assert names(reader) == {"first"}
    world.clock.advance(MINUTE_MS)
    world.append("new")
    assert names(reader) == {"first", "new"}


@pytest.mark.parametrize("behind_ms", [0, MINUTE_MS, BEHIND_MS - 1, BEHIND_MS])
def test_a_log_file_with_the_earliest_time_that_is_allowed_is_read(behind_ms: int) -> None:
    world = LogWorld()
    world.clock.advance(20 * MINUTE_MS)
    world.live()
    listed_ms = world.clock.now_ms()
    world.append("late", t_ms=listed_ms - behind_ms)
    world.clock.advance(HOUR_MS // 2)
    assert world.live() == {"first", "late"}
    assert len(world.listed.requests) == 2


def test_a_log_file_with_an_old_time_is_read_after_the_grace_period() -> None:
    world = LogWorld()
    world.clock.advance(3 * HOUR_MS)
    world.append("recent")
    world.live()
    world.append("late", t_ms=world.clock.now_ms() - 2 * HOUR_MS)
    assert world.live() == {"first", "recent"}
    assert LogReader(world.store, KEYS, clock=world.clock).read().parts.keys() > {"table/_data/late.parquet"}
    for _ in range(12):
        world.clock.advance(5 * MINUTE_MS)
        assert world.live() == {"first", "recent"}
    world.clock.advance(1)
    assert world.live() == {"first", "recent", "late"}
    assert world.listed.afters == [None]
    world.append("later", t_ms=world.clock.now_ms() - 2 * HOUR_MS)
    assert world.live(fresh=True) == {"first", "recent", "late", "later"}


def test_a_reader_whose_clock_is_set_back_misses_no_log_file() -> None:
    world = LogWorld()
    world.clock.advance(HOUR_MS)
    world.live()
    world.clock.advance(-3 * HOUR_MS)
    world.append("now")
    assert world.live() == {"first", "now"}


def test_a_replaced_log_file_of_a_log_without_epochs_is_fetched_again() -> None:
    world = LogWorld(epochs=False)
    key = world.append("a")
    world.live()
    world.clock.advance(1_000)
    world.store.delete([key])
    t_ms = int(key.split("/")[-1][:13])
    assert world.append("b", t_ms=t_ms) == key
    assert world.live() == {"b"}
    assert world.listed.afters == [None]
    assert world.live() == {"b"}
    assert [r.kind for r in world.listed.requests] == ["list"], "the same object is not fetched twice"


def test_more_than_a_thousand_log_files_are_fetched_once() -> None:
    world = LogWorld()
    for n in range(2_500):
        world.clock.advance(1_000)
        world.append(f"p{n}")
    assert len(world.live()) == 2_501
    world.append("one more", writer="z")
    assert len(world.live()) == 2_502
    assert len(world.listed.requests) == 2


# ------------------------------------------------------------------------------------------ the head


def test_only_effective_log_files_are_fetched_the_head_first() -> None:
    world = LogWorld()
    keys = [world.append(f"p{n}", t_ms=world.clock.now_ms() + n) for n in range(20)]
    t_ms = world.clock.now_ms() + 30
    first = min(world.store.objects)
    replaced = tuple(LogTombstoneRecord(k, t_ms) for k in [first, *keys])
    parts = (marker("first", 1), *(marker(f"p{n}", n) for n in range(20)))
    head = world.put(LogFile(t_ms, {}, parts, replaced, epoch=2, live_epochs=(2,)))
    assert len(world.live()) == 21
    assert [r.keys for r in world.listed.requests if r.kind == "get"] == [(head,)]
    assert world.live(everything=True) == world.live()


def test_a_head_that_is_deleted_between_list_and_get_does_not_bring_an_older_state_back() -> None:
    world = LogWorld()
    first = min(world.store.objects)
    t_ms = world.clock.now_ms()
    parts = (marker("first", t_ms, t_ms + 1), marker("b", t_ms + 1))
    second = world.put(LogFile(t_ms + 1, {}, parts, (LogTombstoneRecord(first, t_ms + 1),), epoch=2, live_epochs=(2,)))

    def replace(request: Request) -> None:
        if request.kind == "get":
            world.listed.before = None
            parts = (marker("b", t_ms + 1, t_ms + 2), marker("c", t_ms + 2))
            replaced = tuple(LogTombstoneRecord(k, t_ms + 2) for k in (first, second))
            world.put(LogFile(t_ms + 2, {}, parts, replaced, epoch=3, live_epochs=(3,)))
            world.store.delete([second])

    world.listed.before = replace
    assert world.live() == {"c"}


@pytest.mark.parametrize("everything", [False, True])
def test_a_v3_writer_whose_host_is_named_like_an_epoch_is_read(everything: bool) -> None:
    world = LogWorld()
    for n, writer in enumerate(("x.e5", "y.e1", "host.e99", "e7", "a_m.e3")):
        world.append(f"v{n}", t_ms=world.clock.now_ms() + n, writer=writer)
    assert world.live(everything=everything) == {"first", "v0", "v1", "v2", "v3", "v4"}
    world.put(LogFile(world.clock.now_ms() + 10, {}, (marker("b", 1),), epoch=2, live_epochs=(1, 2)))
    assert world.live(everything=everything) == {"first", "v0", "v1", "v2", "v3", "v4", "b"}


# ------------------------------------------------------------------------------------------ torn listings


def test_a_listing_without_an_epoch_that_the_head_lists_is_made_again() -> None:
    world = LogWorld()
    first = min(world.store.objects)
    world.put(LogFile(world.clock.now_ms() + 1, {}, (marker("b", 1),), epoch=2, live_epochs=(1, 2)))
    world.listed.without = {first}
    assert world.live() == {"first", "b"}
    assert world.listed.afters == [None, None]


def test_a_torn_refresh_lists_the_whole_log() -> None:
    # No refresh lists a void that was put hours after its time, but the next epoch names it.
    world = LogWorld()
    world.clock.advance(5 * HOUR_MS)
    world.append("recent")
    world.live()
    world.put(LogFile(world.clock.now_ms() - 4 * HOUR_MS, {}, epoch=2, live_epochs=(1, 2), void=True))
    world.put(LogFile(world.clock.now_ms(), {}, (marker("c", 1),), epoch=3, live_epochs=(1, 2, 3)))
    assert world.live() == {"first", "recent", "c"}
    assert world.listed.afters[0] is not None
    assert world.listed.afters[1] is None


def test_a_missing_live_epoch_raises_and_the_state_stays_readable() -> None:
    world = LogWorld()
    world.live()
    bad = world.put(LogFile(world.clock.now_ms() + 1, {}, epoch=3, live_epochs=(1, 2, 3)))
    with pytest.raises(InconsistentListing, match=r"live epochs that are missing: \[2\]"):
        world.live()
    world.store.delete([bad])
    world.append("b")
    assert world.live() == {"first", "b"}


# ------------------------------------------------------------------------------------------ forgotten objects


@pytest.mark.parametrize("idle_h", [1, 30])
@pytest.mark.parametrize("every_m", [4, 25, 61, 700])
@pytest.mark.parametrize("everything", [False, True])
def test_a_reader_never_returns_forgotten_log_files(every_m: int, idle_h: int, everything: bool) -> None:
    # For `idle_h` hours no cleanup runs, so a tombstone may be older than `late_ms` when its log file is deleted.
    world = LogWorld(epochs=False)
    table = create_table(world.store, world.clock)
    table.insert([{"n": 0}])
    overwrite, append_part = (partial(_commit, table, world, replace=replace) for replace in (True, False))
    acts: list[Callable[[], object]] = [overwrite, append_part, table.merge_log, table.cleanup]
    expected, step, cleaned_ms = 1, 0, world.clock.now_ms()
    end_ms = world.clock.now_ms() + 3 * DAY_MS
    while world.clock.now_ms() < end_ms:
        world.clock.advance(every_m * MINUTE_MS)
        # The reader reads at a different step of each round.
        for n, act in enumerate(acts):
            if act is not acts[-1] or world.clock.now_ms() - cleaned_ms >= idle_h * HOUR_MS:
                cleaned_ms = world.clock.now_ms() if act is acts[-1] else cleaned_ms
                act()
            expected = {0: 1, 1: 2}.get(n, expected)
            if (step + n) % 3 == 0:
                live = world.live(everything=everything and step % 2 == 0)
                assert len(live) == expected
                assert {f"table/_data/{name}.parquet" for name in live} <= world.store.objects.keys()
        step += 1
        if every_m < 60:
            world.clock.advance((every_m * 17) % 240 * MINUTE_MS)


def _commit(table: Table, world: LogWorld, *, replace: bool) -> None:
    """Commit a small part that is not a Parquet file, because no test opens it."""
    world.clock.advance(1)
    now_ms = world.clock.now_ms()
    part = Marker(KEYS.part("", world.clock.new_id()), 1, now_ms, rows=1)
    world.store.create(part.key, b"x")
    if replace:
        replace_partitions(table.handle, WrittenParts({"n": "BIGINT"}, (part,), now_ms), None)
    else:
        append(table.handle, [part], {"n": "BIGINT"}, oldest_part_ms=now_ms)


def test_a_deleted_log_file_stays_ignored_after_its_old_tombstone_is_forgotten() -> None:
    world = LogWorld(epochs=False)
    table = create_table(world.store, world.clock)
    table.insert([{"n": 0}])
    _commit(table, world, replace=False)
    world.live()
    _commit(table, world, replace=True)
    for _ in range(26):  # longer than `late_ms`, without a cleanup
        world.clock.advance(HOUR_MS)
        assert len(world.live(fresh=True)) == 1
    world.clock.advance(20 * MINUTE_MS)
    table.cleanup()
    _commit(table, world, replace=False)
    assert table.handle.read(fresh=True).log_tombstones.keys() <= world.store.objects.keys()
    assert len(world.live()) == 2


# ------------------------------------------------------------------------------------------ threads


def test_threads_that_share_a_reader_read_all_commits_from_before_their_reads() -> None:
    world = LogWorld()
    written = ["first"]

    def refresh(n: int) -> None:
        for _ in range(60):
            before = set(written)
            missing = before - names(world.reader, everything=n == 0, fresh=n == 1)
            assert not missing

    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(refresh, n) for n in range(4)]
        for n in range(200):
            world.clock.advance(20_000)
            world.append(f"p{n}")
            written.append(f"p{n}")
        for read in reads:
            read.result()
    assert len(world.live()) == 201


def test_a_slow_refresh_does_not_replace_the_state_of_a_quicker_one() -> None:
    world = LogWorld()
    world.live()

    def overtake(request: Request) -> None:
        world.listed.after = None
        world.clock.advance(20 * MINUTE_MS)
        world.append("b")
        assert names(world.reader) == {"first", "b"}
        world.append("c", t_ms=world.clock.now_ms() - 5 * MINUTE_MS)

    world.listed.after = overtake
    world.live()
    assert world.live() == {"first", "b", "c"}


def test_a_short_retention_of_log_tombstones_causes_frequent_complete_listings() -> None:
    world = LogWorld()
    times = TableTimes()
    times.learn(TableSpec(timing=Timing(late_ms=20 * MINUTE_MS)))
    reader = LogReader(world.listed, KEYS, clock=world.clock, times=times)
    names(reader)
    world.listed.afters.clear()
    for _ in range(3):
        world.clock.advance(6 * MINUTE_MS)
        names(reader)
    assert [after is None for after in world.listed.afters] == [False, True, False]
