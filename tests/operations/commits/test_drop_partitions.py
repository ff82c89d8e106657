"""Drops of partitions by path or predicate: atomic changes of the log only."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from icedb import Table
from icedb.errors import InvalidOption, InvalidPartitionExpression
from icedb.testing import ClockedStore, FaultyStore, ManualClock, check_sound, create_table, open_table
from tests.support.object_stores.interruptions import act_before


def make(place: Any) -> Table:
    table = Table.create(place.uri, partition_by=["city", "n % 2 AS odd"], storage_options=place.storage_options)
    table.insert([{"city": c, "n": n} for c in ("New York", "Köln", "a/b") for n in range(2)])
    return table


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (["city=New%20York/odd=0"], 5),
        (["city=New York/odd=0", "city=New York/odd=1"], 4),
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


NO_CHOICE = {
    "a date without quotes": ("2026-11-21", "is INTEGER"),
    "a number": ("42", "is INTEGER"),
    "null": ("NULL", "is NULL"),
    "a column": ("city", "is VARCHAR"),
    "a number as a truth value": ("city = 'Köln' OR 42", "holds '42', which is INTEGER"),
    "a text as a truth value": ("city = 'Köln' OR 'x'", "which is VARCHAR"),
    "the opposite of a number": ("NOT (odd = 7 AND 0)", "holds '0', which is INTEGER"),
    "a path without quotes": ("city=Köln/odd=0", "it "),
    "true for every row": ("1 = 1", "names no partition column"),
    "true beside a column": ("odd = 7 OR 1 = 1", "as an operand of OR"),
    "the literal beside a column": ("odd = 7 OR true", "as an operand of OR"),
    "the time": ("now() > TIMESTAMPTZ '2000-01-01 00:00:00Z'", "names no partition column"),
    "a subquery": ("odd IN (SELECT 1)", "subquery"),
    "a name": ("odd = 1 AS chosen", "has a name"),
}


@pytest.mark.parametrize(("text", "says"), NO_CHOICE.values(), ids=NO_CHOICE)
def test_a_predicate_that_does_not_choose_partitions_is_refused_everywhere(memory: Any, text: str, says: str) -> None:
    table = make(memory)
    snapshot = table.snapshot()
    uses: list[Callable[[], object]] = [
        lambda: table.drop_partitions(text),
        lambda: table.drop_partitions(text, dry_run=True),
        lambda: table.overwrite([{"city": "Köln", "n": 1}], partitions=text),
        lambda: table.overwrite([{"city": "Köln", "n": 1}], partitions=text, dry_run=True),
        lambda: snapshot.partitions(text),
        lambda: snapshot.in_partitions(text),
    ]
    for use in uses:
        with pytest.raises(InvalidPartitionExpression, match=re.escape(says)):
            use()
    assert table.snapshot().id == snapshot.id
    check_sound(table.handle.store)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("text", ["42", "NULL", "city", "n = 1 OR 2", "NOT n", "n = 1 AND 'yes'"])
def test_a_predicate_over_rows_has_a_truth_value_in_each_operand(memory: Any, text: str) -> None:
    table = make(memory)
    snapshot = table.snapshot()
    uses: list[Callable[[], object]] = [
        lambda: table.delete(text),
        lambda: table.query("SELECT 1 FROM t", where=text),
        lambda: snapshot.files(text),
        lambda: table.export_parquet("memory://elsewhere/copy", where=text, dry_run=True),
    ]
    for use in uses:
        with pytest.raises(InvalidOption, match="neither true nor false"):
            use()
    assert table.snapshot().id == snapshot.id


def test_a_predicate_is_checked_on_a_table_without_parts(memory: Any) -> None:
    table = make(memory)
    table.drop_partitions("true")
    with pytest.raises(InvalidPartitionExpression, match="is INTEGER"):
        table.drop_partitions("2026-11-21")
    assert not table.drop_partitions("odd = 1").commit.committed


def test_a_path_without_parts_is_refused_unless_it_may_be_missing(memory: Any) -> None:
    table = make(memory)
    before = table.snapshot().id
    for paths in (["city=Köln/odd=1", "city=nowhere/odd=1"], ["city=Köln"], [""]):
        for dry_run in (False, True):
            with pytest.raises(InvalidOption, match="has rows, and nothing was dropped"):
                table.drop_partitions(paths, dry_run=dry_run)
    assert table.snapshot().id == before
    assert table.drop_partitions(["city=Köln/odd=1", "city=nowhere/odd=1"], missing_ok=True).rows == 1
    assert not table.drop_partitions(["city=Köln/odd=1"], missing_ok=True).commit.committed


def test_a_path_that_another_drop_removed_first_is_no_error(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"])
    other = open_table(clocked, clock)
    other.insert([{"k": k} for k in range(3)])
    store = FaultyStore(clocked)
    act_before(store, lambda: other.drop_partitions(["k=0"]), kind="create", key="_claims/epoch")
    assert open_table(store, clock).drop_partitions(["k=0", "k=1"]).partitions == ("k=1",)
    assert other.query("SELECT k FROM t").fetchall() == [(2,)]


@pytest.mark.parametrize("partitions", [42, [42], None, {"k": 1}, b"k=0"])
def test_partitions_of_a_wrong_type_are_refused(memory: Any, partitions: Any) -> None:
    table = make(memory)
    with pytest.raises(InvalidOption, match="partitions must be a list of texts"):
        table.drop_partitions(partitions)
    assert table.snapshot().rows == 6


@pytest.mark.sampled(cases=1)
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
    act_before(store, lambda: other.insert([{"k": 0, "n": 2}]), kind="create", key="_claims/epoch")
    open_table(store, clock).drop_partitions(["k=0"])
    assert other.query("SELECT n FROM t").fetchall() == [(2,)]
