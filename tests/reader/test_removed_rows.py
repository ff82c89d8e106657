"""The relations `removed` and `restored` of changes: a consumer that applies them has the rows of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Changes, Table
from icedb.errors import InvalidQuery, SnapshotExpired
from icedb.format.change_feed import decode_cursor
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore, ManualClock, create_table

pytestmark = pytest.mark.long


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    made = create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    for first in (0, 4):
        made.insert([{"k": n % 2, "n": n, "v": 0} for n in range(first, first + 4)])
    clock.advance(MINUTE_MS)
    return made


def rows_of(changes: Changes, name: str) -> list[Any]:
    return changes.query(f"SELECT n, v FROM {name} ORDER BY ALL").fetchall()


REMOVALS: dict[str, tuple[Callable[[Table], object], list[Any], list[Any]]] = {
    "delete": (lambda t: t.delete("n < 2"), [(0, 0), (1, 0)], []),
    "upsert": (lambda t: t.upsert([{"n": 1, "v": 5}, {"n": 2, "v": 0}, {"n": 9, "v": 1}], on=["n"]),
               [(1, 0)], [(1, 5), (9, 1)]),
    "deleting upsert": (lambda t: t.upsert([{"n": 1}, {"n": 99}], on=["n"], delete_where="true"), [(1, 0)], []),
    "update": (lambda t: t.update({"v": "n"}, where="n IN (0, 3)"), [(3, 0)], [(3, 3)]),
    "drop": (lambda t: t.drop_partitions(["k=0"]), [(n, 0) for n in (0, 2, 4, 6)], []),
    "overwrite": (lambda t: t.overwrite([{"k": 0, "n": 2, "v": 0}], partitions=["k=0"]),
                  [(n, 0) for n in (0, 2, 4, 6)], [(2, 0)]),
    "rewrite": (lambda t: t.rewrite_partition("k=0", "SELECT * REPLACE (v + n AS v) FROM _rows"),
                [(n, 0) for n in (2, 4, 6)], []),
    "merge": (lambda t: t.merge(), [], []),
    "merges and deletes": (lambda t: [t.merge(), t.delete("n = 3"), t.merge(), t.delete("n = 5")],
                           [(3, 0), (5, 0)], []),
    "insert and delete": (lambda t: [t.insert([{"k": 1, "n": 11, "v": 1}]), t.delete("n = 11")],
                          [(11, 1)], [(11, 1)]),
    "alter": (lambda t: t.alter(row_group_rows=10_000), [], []),
}  # fmt: skip


@pytest.mark.parametrize("name", REMOVALS)
def test_removed_rows_are_returned_as_they_were(table: Table, name: str) -> None:
    act, removed, added = REMOVALS[name]
    cursor, before_ms = table.changes().cursor, table.handle.read().newest_ms
    act(table)
    for since in (cursor, before_ms):
        changes = table.changes(since)
        assert rows_of(changes, "removed") == removed
        assert rows_of(changes, "t") == added
        if name != "rewrite":
            assert rows_of(changes, "restored") == []
        assert rows_of(table.changes(changes.cursor), "removed") == []
    again = table.changes(cursor, changes.cursor)
    assert rows_of(again, "removed") == removed, "two cursors give the same removals as the call that ended there"


def test_rows_that_a_restore_brings_back_are_returned(table: Table) -> None:
    as_of = table.handle.read().newest_ms
    table.delete("n = 1")
    changes = table.changes(as_of)
    assert rows_of(changes, "removed") == [(1, 0)]
    table.restore(as_of)
    after = table.changes(changes.cursor)
    assert rows_of(after, "restored") == [(1, 0)]
    assert rows_of(after, "removed") == rows_of(after, "t") == []
    assert rows_of(table.changes(as_of), "restored") == rows_of(table.changes(as_of), "removed") == []


def test_a_consumer_that_began_after_a_restore_is_told_of_the_next_removal(table: Table) -> None:
    as_of = table.handle.read().newest_ms
    table.drop_partitions(["k=1"])
    table.restore(as_of)  # only adds parts
    cursor = table.changes().cursor
    table.drop_partitions(["k=1"])
    assert rows_of(table.changes(cursor), "removed") == [(n, 0) for n in (1, 3, 5, 7)]


def test_deleted_keys_are_those_without_a_new_row(table: Table) -> None:
    cursor = table.changes().cursor
    table.upsert([{"n": 1, "v": 5, "op": "U"}, {"n": 2, "op": "D"}], on=["n"], delete_where="op = 'D'")
    keys = "SELECT n FROM removed EXCEPT SELECT n FROM t"
    assert table.changes(cursor).query(keys).fetchall() == [(2,)]


def test_a_replaced_row_is_returned_with_the_row_that_replaced_it(table: Table) -> None:
    cursor = table.changes().cursor
    table.insert([{"k": 0, "n": 20, "v": 0}])
    table.upsert([{"n": n, "v": 1} for n in range(4)], on=["n"])
    received = []
    while (changes := table.changes(cursor, parts_max=1)).parts:
        received.append((len(rows_of(changes, "t")), len(rows_of(changes, "removed"))))
        cursor = changes.cursor
    assert received == [(1, 0), (2, 0), (2, 4)], "removals come with the last part of their commit"


def test_a_settled_cursor_stays_short(table: Table, clock: ManualClock) -> None:
    cursor = table.changes().cursor
    table.delete("n = 1")
    cursor = table.changes(cursor).cursor
    assert decode_cursor(cursor, table="t").removals_ms == table.handle.read().newest_ms
    clock.advance(HOUR_MS // 2)
    assert decode_cursor(table.changes(cursor).cursor, table="t").removed_ms is None


def test_a_cursor_of_an_earlier_version_returns_removals_since_its_time(table: Table) -> None:
    before_ms = table.handle.read().newest_ms
    table.delete("n = 1")
    assert rows_of(table.changes(f'{{"t":{before_ms}}}'), "removed") == [(1, 0)]


def test_removed_rows_have_the_columns_of_the_table(table: Table) -> None:
    cursor = table.changes().cursor
    table.upsert([{"n": 1, "new": "x"}], on=["n"])
    table.alter(drop_columns=["v"])
    changes = table.changes(cursor)
    assert changes.query("SELECT n, k, new FROM removed").fetchall() == [(1, 1, None)]
    with pytest.raises(InvalidQuery, match='"v" not found'):
        changes.query("SELECT v FROM removed").fetchall()


def test_after_a_cleanup_the_consumer_must_begin_anew(table: Table, clock: ManualClock) -> None:
    cursor = table.changes().cursor
    table.delete("n = 1")
    clock.advance(24 * HOUR_MS)
    table.cleanup()
    with pytest.raises(SnapshotExpired):
        table.changes(cursor)


def test_only_changes_have_removed_rows(table: Table) -> None:
    with pytest.raises(InvalidQuery, match="removed does not exist"):
        table.query("FROM removed")


KEYS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=4, unique_by=lambda r: r[0])
ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["upsert", "insert", "deletes"]), KEYS),
        st.tuples(st.sampled_from(["merge", "delete", "update", "drop", "restore", "read"]), st.integers(0, 2)),
    ),
    max_size=10,
)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=20)
@given(ACTS, st.one_of(st.none(), st.just(2)))
def test_a_mirror_that_applies_all_changes_has_the_rows_of_the_table(acts: list[Any], parts_max: int | None) -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock, partition_by=["k % 2 AS odd"], sort_by=["k"])
    table.insert([{"k": k, "v": 0} for k in range(4)])
    mirror: Counter[Any] = Counter()
    cursor: str | None = None

    def read() -> None:
        nonlocal cursor
        while True:
            changes = table.changes(cursor, parts_max=parts_max)
            for name, apply in (("t", mirror.update), ("restored", mirror.update), ("removed", mirror.subtract)):
                apply(changes.query(f"SELECT k, v FROM {name}").fetchall())
            cursor = changes.cursor
            if not changes.parts:
                return

    for act, argument in [*acts, ("read", 0)]:
        clock.advance(1_000)
        match act:
            case "upsert":
                table.upsert([{"k": k, "v": v} for k, v in argument], on=["k"])
            case "deletes":
                table.upsert([{"k": k, "v": v} for k, v in argument], on=["k"], delete_where="v > 0")
            case "insert":
                table.insert([{"k": k, "v": v} for k, v in argument])
            case "delete":
                table.delete(f"v = {argument}")
            case "update":
                table.update({"v": f"{argument}"}, where="k < 3")
            case "drop":
                table.drop_partitions([f"odd={argument}"], missing_ok=True)
            case "restore":
                table.restore(clock.now_ms() - 3_000 * argument - 1, allow_empty=True)
            case "merge":
                table.merge()
            case "read":
                read()
                assert +mirror == Counter(table.query("SELECT k, v FROM t").fetchall())
                assert not -mirror
