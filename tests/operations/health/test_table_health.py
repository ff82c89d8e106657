"""Health: each recommendation names the operation that has work to do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from icedb import Recommendation, Table, TableHealth, Thresholds
from icedb.errors import InvalidOption
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.health.table_health import PartitionHealth, recommend
from icedb.testing import ClockedStore, FaultyStore, ManualClock, create_table, open_table
from icedb.transaction.append import append
from tests.support.tables.numbered_rows import put_log

#: Everything is due early: a few real inserts are enough.
SMALL = Thresholds(hot_parts=4, cold_parts=4, log_files=4, expired_objects=4)


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["k"])


def add(table: Table, *partitions: str, size: int = 10, rows: int | None = 1) -> None:
    """Commit a part without content to each partition, a millisecond after the last commit."""
    handle = table.handle
    clock: Any = handle.clock
    clock.advance(1)
    markers = [Marker(handle.keys.part(path, clock.new_id()), size, clock.now_ms(), rows=rows) for path in partitions]
    for marker in markers:
        handle.store.create(marker.key, b"x" * min(size, 10))
    append(handle, markers, {"n": "BIGINT"}, oldest_part_ms=clock.now_ms())


def put_ahead(table: Table, path: str, ahead_ms: int) -> str:
    """Commit a part as a writer whose clock is ahead, and return its key."""
    handle = table.handle
    t_ms = handle.clock.now_ms() + ahead_ms
    marker = Marker(handle.keys.part(path, handle.clock.new_id()), 10, t_ms, rows=1)
    handle.store.create(marker.key, b"x" * 10)
    put_log(handle.store, LogFile(t_ms, {"n": "BIGINT"}, (marker,)), writer=handle.clock.new_id())
    return marker.key


def due(health: TableHealth) -> dict[str, Recommendation]:
    return {r.due: r for r in health.recommendations}


def partition(health: TableHealth, path: str) -> PartitionHealth:
    return next(p for p in health.partitions if p.path == path)


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


def test_parts_superseded_by_a_v3_program_expire(table: Table, clock: ManualClock) -> None:
    handle, t_ms = table.handle, clock.now_ms()
    old, new = (Marker(handle.keys.part("k=0", name), 10, t_ms) for name in ("old", "new"))
    handle.store.create(old.key, b"x" * 10)
    handle.store.create(new.key, b"x" * 10)
    first = put_log(handle.store, LogFile(t_ms, {}, (old,)))
    markers = (msgspec.structs.replace(old, tombstoned_ms=t_ms + 1), new)
    put_log(handle.store, LogFile(t_ms + 1, {}, markers, (LogTombstoneRecord(first, t_ms + 1),)))
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
    health = table.health(Thresholds(part_bytes_max=100))
    planned = table.merge(part_bytes_max=100, input_parts_max=10**9, input_bytes_max=10**12, dry_run=True)
    small_bytes = sum(p.small_bytes for p in health.partitions)
    assert (health.small_parts, small_bytes) == (planned.merged_parts, planned.merged_bytes)


# ------------------------------------------------------------------------------------------------ heat


def test_a_partition_is_hot_for_hot_ms_after_its_last_rows(table: Table, clock: ManualClock) -> None:
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
        changes: dict[str, dict[str, Any]] = {
            "hot_parts": {"partitions": (of_partition(figure, hot=True),)},
            "cold_parts": {"partitions": (of_partition(figure, hot=False),)},
            "log_files": {"log_files": figure, "small_log_files": 2},
            "expired_objects": {"expired_parts": 1, "expired_log_files": figure - 1},
            "expired_bytes": {"expired_bytes": figure},
        }
        return replace(table.health(), **changes[name])

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
    kinds = [r.due for r in recommend(health, Thresholds())]
    assert kinds == ["merge_newest", "merge_log", "merge_oldest", "cleanup"]


def test_a_reason_names_the_worst_partition_and_how_many_more_there_are(table: Table) -> None:
    many = tuple(replace(of_partition(n, hot=True), path=f"k={n}") for n in range(100))
    [recommendation] = recommend(replace(table.health(), partitions=many), Thresholds())
    assert "'k=99', in which rows arrive, has 99 small parts" in recommendation.reason
    assert "fewer than 64; 67 more have 32 at least" in recommendation.reason


@pytest.mark.parametrize("name", [n for n in Thresholds.__slots__ if n != "hot_ms"])
@pytest.mark.parametrize("value", [0, 1, -5, True, 64.0, "64", None])
def test_an_invalid_threshold_is_rejected_by_its_name(name: str, value: Any) -> None:
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


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("kind", MAINTENANCE)
def test_a_followed_recommendation_is_gone(table: Table, clocked: ClockedStore, clock: ManualClock, kind: str) -> None:
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
        for merge in ("merge_newest", "merge_oldest"):
            assert after[merge].basis == before[merge].basis
    assert table.snapshot().rows == rows


def test_merged_parts_are_due_for_cleanup_after_the_grace_period(table: Table, clock: ManualClock) -> None:
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


def test_single_parts_of_partitions_are_not_due_for_a_merge(table: Table, clock: ManualClock) -> None:
    add(table, *(f"k={n}" for n in range(500)))
    clock.advance(DAY_MS)
    health = table.health(SMALL)
    assert (health.live_parts, health.small_parts, health.recommendations) == (500, 0, ())


def test_parts_from_a_clock_far_ahead_are_due_at_their_time(table: Table, clock: ManualClock) -> None:
    for _ in range(40):
        put_ahead(table, "k=0", 3 * HOUR_MS)
    health = table.health(SMALL)
    assert (health.live_parts, health.small_parts, health.log_files) == (40, 0, 40)
    assert health.recommendations == ()
    assert table.merge(dry_run=True).merged_parts == 0
    clock.advance(3 * HOUR_MS + 1)
    assert set(due(table.health(SMALL))) == {"merge_newest", "merge_log"}


def test_a_tombstoned_part_from_a_clock_far_ahead_recommends_no_cleanup(table: Table, clock: ManualClock) -> None:
    put_ahead(table, "k=0", 5 * HOUR_MS)
    put_ahead(table, "k=0", 5 * HOUR_MS)
    table.drop_partitions(["k=0"])
    clock.advance(2 * HOUR_MS)
    for _ in range(2):
        assert table.health(Thresholds(expired_objects=2)).recommendations == ()
        table.cleanup()
    clock.advance(4 * HOUR_MS)
    assert list(due(table.health(Thresholds(expired_objects=2)))) == ["cleanup"]


def test_pinned_parts_have_not_expired(table: Table, clock: ManualClock) -> None:
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
def test_a_basis_changes_only_with_the_due_work(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
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
    # A single part of a partition needs no merge.
    assert changed(lambda: add(table, "k=9")) == {"merge_log"}
    assert changed(lambda: add(table, "k=0")) == {"merge_newest", "merge_log"}
    # Late rows make a cold partition hot, so that it is due for the other merge.
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
    assert (health.newest_rows_ms, health.no_rows_after_ms, health.horizon_ms) == (None, dropped_ms, dropped_ms)


class HealthWorld:
    """A table, random operations on it, and the times of the last insert into each partition."""

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

    def drop(self) -> None:
        self.table.drop_partitions([f"k={self.chance.randrange(4)}"], missing_ok=True)

    def delete(self) -> None:
        if self.came:  # before, the table has no columns
            self.table.delete(f"n = {self.chance.randrange(5)}")

    def step(self) -> None:
        self.clock.advance(self.chance.choice([1, 10, MINUTE_MS, 20 * MINUTE_MS, 2 * HOUR_MS]))
        acts: list[Callable[[], object]] = [*[self.insert] * 5, *[self.merge] * 2]
        acts += [self.table.merge_log, self.drop, self.delete, self.table.cleanup]
        self.chance.choice(acts)()

    def check(self, health: TableHealth) -> None:
        newest_ms = max(self.came.values(), default=None)
        assert (newest_ms or 0) <= (health.no_rows_after_ms or 0)
        newest = {p.path: p.newest_rows_ms for p in health.partitions}
        assert all((ms or 0) <= self.came[path] for path, ms in newest.items())
        if not health.horizon_ms:
            assert health.no_rows_after_ms == health.newest_rows_ms == newest_ms
            assert newest == {path: self.came[path] for path in newest}
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


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_health_matches_the_operations_after_random_steps(seed: int) -> None:
    world = HealthWorld(seed)
    looks = open_table(world.store, world.clock)
    for _ in range(50):
        world.step()
        world.clock.advance(1)
        health = looks.health(SMALL)
        world.check(health)
        fresh = open_table(world.store, world.clock).health(SMALL)
        assert health == fresh, "earlier calls make no difference"


# ------------------------------------------------------------------------------------------------ what it costs


@pytest.mark.long
def test_health_lists_pins_only_for_a_due_cleanup(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
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
