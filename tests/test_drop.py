"""Dropping partitions: a change of the log only, atomic, by path or by predicate."""

from __future__ import annotations

import time
from typing import Any

import pytest

from icedb import Table
from icedb.testing import ClockedStore, FaultyStore, ManualClock, Request, check_sound, create_table, open_table


def make(place: Any) -> Table:
    table = Table.create(place.uri, partition_by=["city", "n % 2 AS odd"], storage_options=place.storage_options)
    table.insert([{"city": c, "n": n} for c in ("New York", "Köln", "a/b") for n in range(2)])
    return table


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (["city=New%20York/odd=0"], 5),
        (["city=New York/odd=0", "city=New York/odd=1"], 4),
        (["city=Köln/odd=1", "city=nowhere/odd=1"], 5),
        (["city=a%2Fb/odd=0/"], 5),
        ("city = 'a/b'", 4),
        ("odd = 1 AND city < 'M'", 5),
        ("true", 0),
        ("false", 6),
    ],
)
def test_partitions_are_chosen_by_path_or_by_predicate(memory: Any, chosen: Any, left: int) -> None:
    table = make(memory)
    plan = table.drop_partitions(chosen, dry_run=True)
    assert (plan.dry_run, plan.commit.committed, plan.rows) == (True, False, 6 - left)
    assert table.snapshot().rows == 6
    report = table.drop_partitions(chosen)
    assert [p.key for p in report.parts] == [p.key for p in plan.parts]
    assert (report.partitions, report.rows, report.bytes) == (plan.partitions, plan.rows, plan.bytes)
    assert report.commit.committed is (left < 6)
    assert table.snapshot().rows == left
    check_sound(table.handle.store)


def test_a_drop_is_seen_by_others_at_once_and_not_by_older_snapshots(place: Any) -> None:
    table = make(place)
    old = table.snapshot()
    reader = Table.open(place.uri, storage_options=place.storage_options)
    time.sleep(0.005)  # a snapshot of this millisecond is not repeatable before it is over
    table.drop_partitions("city = 'Köln'")
    assert reader.query("SELECT count(*) FROM t WHERE city = 'Köln'").fetchall() == [(0,)]
    assert old.query("SELECT count(*) FROM t").fetchall() == [(6,)]
    assert reader.query("SELECT count(*) FROM t", as_of=old.as_of_ms).fetchall() == [(6,)]
    assert not table.drop_partitions("city = 'Köln'").commit.committed, "what is gone is not dropped again"


def test_a_dropped_partition_can_be_filled_again(memory: Any) -> None:
    table = make(memory)
    table.drop_partitions("true")
    table.insert([{"city": "Köln", "n": 8}])
    assert table.query("SELECT city, n FROM t").fetchall() == [("Köln", 8)]


def test_the_other_partitions_of_one_log_file_survive_drop_and_cleanup(memory: Any) -> None:
    table = make(memory)
    table.drop_partitions(["city=Köln/odd=0"])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert table.snapshot().rows == 5
    assert table.query("SELECT count(*) FROM t").fetchall() == [(5,)]
    check_sound(table.handle.store)


def test_a_drop_makes_no_new_part_and_rewrites_none(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"]).insert([{"k": k} for k in range(3)])
    store = FaultyStore(clocked)
    open_table(store, clock).drop_partitions(["k=1"])
    assert [r for r in store.requests if any("_data/" in k for k in r.keys)] == []


def test_rows_appended_to_a_partition_while_it_is_dropped_survive(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"])
    other = open_table(clocked, clock)
    other.insert([{"k": 0, "n": 1}])
    store = FaultyStore(clocked)

    def append(request: Request) -> None:
        if request.kind == "create" and "_claims/epoch" in request.keys[0]:
            other.insert([{"k": 0, "n": 2}])

    store.before = append
    open_table(store, clock).drop_partitions(["k=0"])
    assert other.query("SELECT n FROM t").fetchall() == [(2,)]
