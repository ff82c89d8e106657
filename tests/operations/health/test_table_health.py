"""The health agrees with the operations: the named operation does what is recommended, and no other does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from icedb import Recommendation, Table, TableHealth, Thresholds
from icedb.errors import InvalidOption
from icedb.format.codec import encode
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.health.table_health import PartitionHealth, recommend
from icedb.testing import ClockedStore, FaultyStore, ManualClock, create_table, open_table
from icedb.transaction.append import append

#: Everything is due early: a few real inserts are enough.
SMALL = Thresholds(hot_parts=4, cold_parts=4, log_files=4, expired_objects=4)


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["k"])


def add(table: Table, *partitions: str, size: int = 10, rows: int | None = 1) -> None:
    """A commit of a part for each partition, a millisecond after the last. They are no Parquet files."""
    handle = table.handle
    clock: Any = handle.clock
    clock.advance(1)
    markers = [Marker(handle.keys.part(path, clock.new_id()), size, clock.now_ms(), rows=rows) for path in partitions]
    for marker in markers:
        handle.store.create(marker.key, b"x" * min(size, 10))
    append(handle, markers, {"n": "BIGINT"}, oldest_part_ms=clock.now_ms())


def put_ahead(table: Table, path: str, ahead_ms: int) -> str:
    """A part that a writer committed whose clock is far ahead; its key."""
    handle = table.handle
    t_ms = handle.clock.now_ms() + ahead_ms
    marker = Marker(handle.keys.part(path, handle.clock.new_id()), 10, t_ms, rows=1)
    handle.store.create(marker.key, b"x" * 10)
    log_file = handle.keys.log_file(t_ms, merged=False, writer=handle.clock.new_id())
    handle.store.create(log_file, encode(LogFile(t_ms, {"n": "BIGINT"}, (marker,))))
    return marker.key


def due(health: TableHealth) -> dict[str, Recommendation]:
    return {r.due: r for r in health.recommendations}


def partition(health: TableHealth, path: str) -> PartitionHealth:
    [found] = [p for p in health.partitions if p.path == path]
    return found


# ------------------------------------------------------------------------------------------------ the figures


def test_a_table_without_rows_has_nothing_and_nothing_is_due(table: Table, clock: ManualClock) -> None:
    health = table.health()
    assert (health.table, health.at_ms) == (table.uri, clock.now_ms())
    assert (health.live_parts, health.live_rows, health.live_bytes, health.partitions) == (0, 0, 0, ())
    assert (health.log_files, health.small_part_ratio, health.recommendations) == (0, 0.0, ())
    assert (health.newest_rows_ms, health.no_rows_after_ms, health.oldest_dead_ms) == (None, None, None)


def test_figures_are_those_of_the_snapshot(table: Table, clock: ManualClock) -> None:
    for n in range(3):
        table.insert([{"k": k, "n": n} for k in range(2)])
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=1"])
    health, snapshot = table.health(), table.snapshot()
    assert (health.live_parts, health.live_rows, health.live_bytes) == (3, 3, snapshot.bytes)
    assert (health.dead_parts, health.expired_parts, health.horizon_ms) == (3, 0, 0)
    assert [(p.path, p.parts, p.small_parts, p.bytes) for p in health.partitions] == [("k=0", 3, 3, snapshot.bytes)]
    assert (health.small_parts, health.small_part_ratio) == (3, 1.0)
    assert health.oldest_dead_ms == health.at_ms


def test_a_part_of_a_v3_program_has_an_unknown_number_of_rows(table: Table) -> None:
    add(table, "k=0")
    add(table, "k=0", rows=None)
    health = table.health()
    assert (health.live_parts, health.live_rows, health.small_parts) == (2, None, 2)


def test_what_a_v3_program_superseded_has_expired_too(table: Table, clock: ManualClock) -> None:
    handle, t_ms = table.handle, clock.now_ms()
    old, new = (Marker(handle.keys.part("k=0", name), 10, t_ms) for name in ("old", "new"))
    handle.store.create(old.key, b"x" * 10)
    handle.store.create(new.key, b"x" * 10)
    first = handle.keys.log_file(t_ms, merged=False, writer="v3")
    handle.store.create(first, encode(LogFile(t_ms, {}, (old,))))
    merged = LogFile(
        t_ms + 1,
        {},
        (msgspec.structs.replace(old, tombstoned_ms=t_ms + 1), new),
        (LogTombstoneRecord(first, t_ms + 1),),
    )
    handle.store.create(handle.keys.log_file(t_ms + 1, merged=True, writer="v3"), encode(merged))
    clock.advance(2 * HOUR_MS)
    health, planned = table.health(), table.cleanup(dry_run=True)
    assert (health.live_rows, health.expired_parts, health.expired_log_files) == (None, 1, 1)
    assert (planned.deleted_parts, planned.deleted_log_files) == ((old.key,), (first,))


@pytest.mark.parametrize("seed", range(10))
def test_small_parts_are_those_that_a_merge_without_a_budget_takes(table: Table, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 60)):
        add(table, *(f"k={k}" for k in range(chance.randrange(1, 5))), size=chance.choice([10, 30, 99, 100, 500]))
    for _ in range(chance.randrange(3)):
        put_ahead(table, "k=0", 3 * HOUR_MS)
    found = table.health(Thresholds(part_bytes_max=100))
    planned = table.merge(part_bytes_max=100, input_parts_max=10**9, input_bytes_max=10**12, dry_run=True)
    assert (found.small_parts, sum(p.small_bytes for p in found.partitions)) == (
        planned.merged_parts,
        planned.merged_bytes,
    )


# ------------------------------------------------------------------------------------------------ heat


def test_a_partition_is_hot_for_as_long_as_it_is_told_after_its_last_rows(table: Table, clock: ManualClock) -> None:
    thresholds = Thresholds(hot_ms=10 * MINUTE_MS)
    add(table, "k=0", "k=1")
    came_ms = clock.now_ms()
    clock.advance(10 * MINUTE_MS - 1)
    assert [p.hot for p in table.health(thresholds).partitions] == [True, True]
    add(table, "k=1")
    assert [p.hot for p in table.health(thresholds).partitions] == [False, True]
    assert partition(table.health(), "k=0").newest_rows_ms == came_ms


def test_a_cold_partition_is_merged_earlier_than_a_hot_one(table: Table, clock: ManualClock) -> None:
    thresholds = Thresholds(hot_parts=20, cold_parts=8)
    for _ in range(4):
        add(table, "k=0")
    assert due(table.health(thresholds)) == {}
    clock.advance(HOUR_MS)
    [recommendation] = table.health(thresholds).recommendations
    assert recommendation.due == "merge_oldest"
    assert "'k=0', in which no more rows arrive, has 4 small parts" in recommendation.reason
    for _ in range(10):
        add(table, "k=1")
    assert list(due(table.health(thresholds))) == ["merge_newest", "merge_oldest"]


def test_a_merge_does_not_make_a_partition_hot(table: Table, clock: ManualClock) -> None:
    table.insert([{"k": 0}])
    came_ms = clock.now_ms()
    clock.advance(MINUTE_MS)
    table.insert([{"k": 1}])
    clock.advance(2 * HOUR_MS)
    table.insert([{"k": 0}, {"k": 1}])
    table.delete("k = 1")
    table.merge()
    assert partition(table.health(), "k=0").newest_rows_ms == clock.now_ms() > came_ms
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    health = table.health()
    assert (partition(health, "k=0").newest_rows_ms, partition(health, "k=0").hot) == (None, False)


# ------------------------------------------------------------------------------------------------ the decision


def of_partition(small: int, *, hot: bool) -> PartitionHealth:
    return PartitionHealth("k=0", small, 10 * small, small, 10 * small, 1, hot, f"basis of {small}")


@pytest.mark.parametrize("threshold", [4, 5, 8, 64, 65])
@pytest.mark.parametrize("name", ["hot_parts", "cold_parts", "log_files", "expired_objects", "expired_bytes"])
def test_maintenance_is_recommended_from_half_of_a_threshold_on(table: Table, name: str, threshold: int) -> None:
    def health(figure: int) -> TableHealth:
        quiet = table.health()
        changed: Mapping[str, Callable[[], TableHealth]] = {
            "hot_parts": lambda: replace(quiet, partitions=(of_partition(figure, hot=True),)),
            "cold_parts": lambda: replace(quiet, partitions=(of_partition(figure, hot=False),)),
            "log_files": lambda: replace(quiet, log_files=figure, small_log_files=2),
            "expired_objects": lambda: replace(quiet, expired_parts=1, expired_log_files=figure - 1),
            "expired_bytes": lambda: replace(quiet, expired_bytes=figure),
        }
        return changed[name]()

    kinds = {"hot_parts": "merge_newest", "cold_parts": "merge_oldest", "log_files": "merge_log"}
    thresholds = Thresholds(**{name: threshold})
    assert recommend(health(threshold // 2 - 1), thresholds) == ()
    [recommendation] = recommend(health(threshold // 2), thresholds)
    assert recommendation.due == kinds.get(name, "cleanup")
    assert f"{threshold:,}" in recommendation.reason or name == "expired_bytes"


def test_the_most_urgent_comes_first(table: Table) -> None:
    health = replace(
        table.health(),
        partitions=(of_partition(40, hot=False), replace(of_partition(40, hot=True), path="k=1")),
        log_files=40,
        small_log_files=40,
        expired_parts=2_000,
    )
    found = [r.due for r in recommend(health, Thresholds())]
    assert found == ["merge_newest", "merge_log", "merge_oldest", "cleanup"]


def test_a_reason_names_the_worst_partition_and_how_many_more_there_are(table: Table) -> None:
    many = tuple(replace(of_partition(n, hot=True), path=f"k={n}") for n in range(100))
    [recommendation] = recommend(replace(table.health(), partitions=many), Thresholds())
    assert "'k=99', in which rows arrive, has 99 small parts" in recommendation.reason
    assert "fewer than 64; 67 more have 32 at least" in recommendation.reason


@pytest.mark.parametrize("name", [n for n in Thresholds.__slots__ if n != "hot_ms"])
@pytest.mark.parametrize("value", [0, 1, -5, True, 64.0, "64", None])
def test_a_threshold_that_is_no_number_or_too_small_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        Thresholds(**{name: value})


def test_a_partition_may_be_cold_at_once_but_not_before_its_rows() -> None:
    assert Thresholds(hot_ms=0).hot_ms == 0
    with pytest.raises(InvalidOption, match="hot_ms"):
        Thresholds(hot_ms=-1)


# ------------------------------------------------------------------------------------------------ what is done


def everything_due(table: Table, clock: ManualClock) -> None:
    """k=0 is hot and crowded, k=1 cold and crowded, there are many log files, and something has expired."""
    for n in range(3):
        table.insert([{"k": k, "n": n} for k in range(3)])
    table.drop_partitions(["k=2"])
    for n in range(3):
        table.insert([{"k": 1, "n": n}])
    clock.advance(3 * HOUR_MS)
    for n in range(6):
        clock.advance(1)
        table.insert([{"k": 0, "n": n}])


MAINTENANCE: dict[str, Callable[[Table], object]] = {
    "merge_newest": lambda t: t.merge(order="newest"),
    "merge_oldest": lambda t: t.merge(order="oldest"),
    "merge_log": lambda t: t.merge_log(),
    "cleanup": lambda t: t.cleanup(),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MAINTENANCE)
def test_a_recommendation_goes_away_when_it_is_followed_and_makes_no_other(
    table: Table, clocked: ClockedStore, clock: ManualClock, kind: str
) -> None:
    everything_due(table, clock)
    sensor = open_table(clocked, clock)
    before = due(sensor.health(replace(SMALL, expired_objects=6)))
    assert set(before) == set(MAINTENANCE)
    rows = table.snapshot().rows
    MAINTENANCE[kind](table)
    after = due(sensor.health(replace(SMALL, expired_objects=6)))
    assert kind not in after
    assert after.keys() <= before.keys()
    if kind in ("merge_log", "cleanup"):  # a merge of parts takes hot and cold ones, and their log files
        assert {k: r.basis for k, r in after.items() if k.startswith("merge_") and k != "merge_log"} == {
            k: r.basis for k, r in before.items() if k.startswith("merge_") and k != "merge_log"
        }
    assert table.snapshot().rows == rows


def test_what_a_merge_was_recommended_for_is_due_as_expired_after_the_grace_period(
    table: Table, clock: ManualClock
) -> None:
    for n in range(4):
        table.insert([{"k": 0, "n": n}])
    clock.advance(MINUTE_MS)
    table.merge()
    clock.advance(HOUR_MS - 1)
    assert due(table.health(SMALL)) == {}
    clock.advance(1)
    health = table.health(SMALL)
    assert (health.expired_parts, health.expired_log_files) == (4, 4)
    assert list(due(health)) == ["cleanup"]
    table.cleanup()
    health = table.health(SMALL)
    assert (health.expired_parts, health.expired_log_files, health.recommendations) == (0, 0, ())


def test_a_part_alone_in_each_partition_is_nothing_to_merge(table: Table, clock: ManualClock) -> None:
    add(table, *(f"k={n}" for n in range(500)))
    clock.advance(DAY_MS)
    health = table.health(SMALL)
    assert (health.live_parts, health.small_parts, health.recommendations) == (500, 0, ())


def test_what_a_clock_far_ahead_wrote_is_due_when_its_time_has_come(table: Table, clock: ManualClock) -> None:
    for _ in range(40):
        put_ahead(table, "k=0", 3 * HOUR_MS)
    health = table.health(SMALL)
    assert (health.live_parts, health.small_parts, health.log_files) == (40, 0, 40)
    assert health.recommendations == ()
    assert table.merge(dry_run=True).merged_parts == 0
    clock.advance(3 * HOUR_MS + 1)
    assert set(due(table.health(SMALL))) == {"merge_newest", "merge_log"}


def test_a_dead_part_that_a_clock_far_ahead_wrote_cannot_be_forgotten_and_is_no_reason_for_a_cleanup(
    table: Table, clock: ManualClock
) -> None:
    put_ahead(table, "k=0", 5 * HOUR_MS)
    put_ahead(table, "k=0", 5 * HOUR_MS)
    table.drop_partitions(["k=0"])
    clock.advance(2 * HOUR_MS)
    for _ in range(2):
        assert table.health(Thresholds(expired_objects=2)).recommendations == ()
        table.cleanup()
    clock.advance(4 * HOUR_MS)
    assert list(due(table.health(Thresholds(expired_objects=2)))) == ["cleanup"]


def test_what_a_pin_needs_has_not_expired(table: Table, clock: ManualClock) -> None:
    for n in range(4):
        table.insert([{"k": 0, "n": n}])
    table.pin("before", expires=timedelta(days=1))
    clock.advance(1)
    table.drop_partitions(["k=0"])
    clock.advance(2 * HOUR_MS)
    table.cleanup()  # the log files, which no pin needs
    assert table.health(SMALL).expired_parts == 0
    assert table.health(SMALL).recommendations == ()
    clock.advance(DAY_MS)
    assert list(due(table.health(SMALL))) == ["cleanup"]
    table.cleanup()
    assert table.health(SMALL).expired_parts == 0


# ------------------------------------------------------------------------------------------------ the basis


@pytest.mark.long
def test_a_basis_is_the_same_until_what_it_is_due_for_changes(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    everything_due(table, clock)
    thresholds = replace(SMALL, expired_objects=6)

    def bases() -> dict[str, str]:
        return {r.due: r.basis for r in open_table(clocked, clock).health(thresholds).recommendations}

    def changed(act: Callable[[], object]) -> set[str]:
        before = bases()
        act()
        after = bases()
        return {kind for kind in before.keys() | after.keys() if before.get(kind) != after.get(kind)}

    assert len(set(bases().values())) == 4
    assert changed(lambda: clock.advance(MINUTE_MS)) == set()
    assert changed(lambda: table.health(thresholds)) == set()
    # A part alone in its partition is no merge's business.
    assert changed(lambda: add(table, "k=9")) == {"merge_log"}
    assert changed(lambda: add(table, "k=0")) == {"merge_newest", "merge_log"}
    # Rows that come late make a cold partition hot: it is due for the other merge then.
    assert changed(lambda: add(table, "k=1")) == {"merge_newest", "merge_oldest", "merge_log"}
    table.drop_partitions(["k=9"])
    assert changed(lambda: clock.advance(HOUR_MS + 1)) == {"merge_newest", "merge_oldest", "cleanup"}


# ------------------------------------------------------------------------------------------------ by brute force


def test_rows_that_were_dropped_and_forgotten_came_before_the_horizon(table: Table, clock: ManualClock) -> None:
    table.insert([{"k": 0}])
    came_ms = clock.now_ms()
    assert table.health().no_rows_after_ms == came_ms
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=0"])
    dropped_ms = clock.now_ms()
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    health = table.health()
    assert (health.newest_rows_ms, health.no_rows_after_ms, health.horizon_ms) == (
        None,
        dropped_ms,
        dropped_ms,
    )


class World:
    """A table, what it is asked to do, and a memory of when rows came."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self.table = create_table(self.store, self.clock, partition_by=["k"])
        self.came: dict[str, int] = {}

    def insert(self) -> None:
        partitions = self.chance.sample(range(4), self.chance.randrange(1, 4))
        self.table.insert([{"k": k, "n": self.chance.randrange(5)} for k in partitions])
        self.came |= {f"k={k}": self.clock.now_ms() for k in partitions}

    def merge(self) -> None:
        self.table.merge(order="newest", input_parts_max=self.chance.randrange(2, 20))

    def merge_log(self) -> None:
        self.table.merge_log()

    def drop(self) -> None:
        self.table.drop_partitions([f"k={self.chance.randrange(4)}"], missing_ok=True)

    def delete(self) -> None:
        if self.came:  # before, the table has no columns
            self.table.delete(f"n = {self.chance.randrange(5)}")

    def cleanup(self) -> None:
        self.table.cleanup()

    def step(self) -> None:
        self.clock.advance(self.chance.choice([1, 10, MINUTE_MS, 20 * MINUTE_MS, 2 * HOUR_MS]))
        acts = [self.insert] * 5 + [self.merge] * 2 + [self.merge_log, self.drop, self.delete, self.cleanup]
        self.chance.choice(acts)()

    def check(self, health: TableHealth) -> None:
        newest_ms = max(self.came.values(), default=None)
        assert (newest_ms or 0) <= (health.no_rows_after_ms or 0)
        told = {p.path: p.newest_rows_ms for p in health.partitions}
        assert all((ms or 0) <= self.came[path] for path, ms in told.items())
        if not health.horizon_ms:
            assert health.no_rows_after_ms == health.newest_rows_ms == newest_ms
            assert told == {path: self.came[path] for path in told}
        expired = self.table.cleanup(dry_run=True)
        assert health.expired_parts == len(expired.deleted_parts)
        assert health.expired_log_files == len(expired.deleted_log_files)
        for recommendation in health.recommendations:
            match recommendation.due:
                case "merge_newest" | "merge_oldest":
                    assert self.table.merge(dry_run=True).merged_parts
                case "merge_log":
                    assert self.table.merge_log(dry_run=True).merged_log_files
                case "cleanup":
                    assert expired.deleted_parts or expired.deleted_log_files


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_condition_is_what_the_verbs_find_and_says_when_rows_came_last_whatever_happened(seed: int) -> None:
    world = World(seed)
    looks = open_table(world.store, world.clock)
    for _ in range(50):
        world.step()
        world.clock.advance(1)
        health = looks.health(SMALL)
        world.check(health)
        fresh = open_table(world.store, world.clock).health(SMALL)
        assert health == fresh, "a table that was looked at before knows neither more nor less"


# ------------------------------------------------------------------------------------------------ what it costs


@pytest.mark.long
def test_a_look_is_one_listing_and_the_pins_are_read_when_a_cleanup_may_be_due(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    store = FaultyStore(clocked)
    sensor = open_table(store, clock)

    def requests(thresholds: Thresholds) -> list[tuple[str, str]]:
        before = len(store.requests)
        sensor.health(thresholds)
        return [(r.kind, r.keys[0].split("/")[1]) for r in store.requests[before:]]

    everything_due(table, clock)
    sensor.health()
    assert requests(Thresholds()) == [("list", "_log")]
    quiet_cleanup = replace(SMALL, expired_objects=100)
    assert len(sensor.health(quiet_cleanup).recommendations) == 3
    assert requests(quiet_cleanup) == [("list", "_log")]
    assert requests(replace(SMALL, expired_objects=6)) == [("list", "_log"), ("list", "_claims")]
    add(table, "k=0")
    assert requests(Thresholds()) == [("list", "_log"), ("get", "_log")]
