"""Upserts and updates beside other commits, with faults at each request, and updates of rows by a predicate."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Table
from icedb.errors import InvalidBatch, InvalidOption, SchemaConflict, UnknownColumn
from icedb.operations.rewrite.engine import DistributedTask, LocalEngine
from icedb.testing import (
    ClockedStore,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.fault_walk import check_atomic, only_live_parts_stay
from tests.support.tables.numbered_rows import data_keys


def world(store: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(store, clock, partition_by=["k"], sort_by=["n"])
    for first in (0, 10):
        table.insert([{"k": n % 2, "n": n, "v": 0} for n in range(first, first + 4)])
    clock.advance(1_000)
    return table


BATCH = [{"k": 0, "n": 0, "v": 1}, {"k": 0, "n": 11, "v": 1}, {"k": 1, "n": 20, "v": 1}]
BEFORE = sorted((n % 2, n, 0) for n in (0, 1, 2, 3, 10, 11, 12, 13))
AFTER = sorted([(n % 2, n, 0) for n in (1, 2, 3, 10, 12, 13)] + [(0, 0, 1), (0, 11, 1), (1, 20, 1)])


def rows(table: Table) -> list[Any]:
    return table.query("SELECT k, n, v FROM t ORDER BY ALL").fetchall()


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_fault_at_any_request_of_an_upsert_leaves_all_or_nothing(fault: Fault) -> None:
    check_atomic(world, fault, lambda table: table.upsert(BATCH, on=["n"]), rows, AFTER)


@pytest.mark.sampled(cases=1, days=2)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_fault_at_any_request_of_an_upsert_with_a_transaction_repeats_nothing(fault: Fault) -> None:
    # A repetition that is not recognised would undo the change that comes after the first attempt.
    def act(table: Table) -> None:
        table.upsert([{"k": 0, "n": 0, "v": 1}], on=["n"], txn=("cdc", 1))

    check_atomic(world, fault, act, rows, sorted([(0, 0, 1), *BEFORE[1:]]))


@pytest.mark.sampled(cases=1, days=2)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_fault_at_any_request_of_an_update_leaves_all_or_nothing(fault: Fault) -> None:
    after = sorted((k, n, 5 if n < 3 else v) for k, n, v in BEFORE)
    check_atomic(world, fault, lambda table: table.update({"v": "5"}, where="n < 3"), rows, after)


def test_a_crash_before_the_commit_leaves_orphans_only(clocked: ClockedStore, clock: ManualClock) -> None:
    world(clocked, clock)
    store = FaultyStore(clocked)

    def crash() -> None:
        raise RuntimeError("killed")

    act_before(store, crash, kind="create", key="_claims/epoch")
    with pytest.raises(RuntimeError):
        open_table(store, clock).upsert(BATCH, on=["n"])
    assert rows(open_table(clocked, clock)) == BEFORE
    assert only_live_parts_stay(clocked, clock)


# ------------------------------------------------------------------------------------------ beside others

Other = Callable[[Table], object]
APPENDED = {"k": 1, "n": 30, "v": 7}
OTHERS: dict[str, tuple[Other, Callable[[list[Any]], list[Any]]]] = {
    "merge": (lambda t: t.merge(), lambda after: after),
    "append": (lambda t: t.insert([APPENDED]), lambda after: sorted([*after, (1, 30, 7)])),
    "drop": (lambda t: t.drop_partitions(["k=1"]), lambda after: [r for r in after if r[0] == 0 or r[1] in (11, 20)]),
    "delete": (lambda t: t.delete("n = 12"), lambda after: [r for r in after if r[1] != 12]),
    "the same": (lambda t: t.upsert(BATCH, on=["n"]), lambda after: after),
    "an equal key": (lambda t: t.upsert([{"k": 1, "n": 20, "v": 9}], on=["n"]), lambda after: after),
    "a deletion": (lambda t: t.upsert([{"n": 10}], on=["n"], delete_where="true"),
                   lambda after: [r for r in after if r[1] != 10]),
    "update": (lambda t: t.update({"v": "3"}, where="n = 0 OR n = 13"),
               lambda after: sorted((k, n, 3 if n == 13 else v) for k, n, v in after)),
    "overwrite": (lambda t: t.overwrite([{"k": 0, "n": 2, "v": 8}], partitions=["k=0"]),
                  lambda after: sorted([r for r in after if r[0] or r[1] in (0, 11)] + [(0, 2, 8)])),
    "alter": (lambda t: t.alter(sort_by=["v", "n"]), lambda after: after),
    "another partitioning": (lambda t: t.alter(partition_by=["n % 3 AS third"]), lambda after: after),
    "cleanup": (lambda t: t.cleanup(), lambda after: after),
    "merge_log": (lambda t: t.merge_log(), lambda after: after),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_an_upsert_is_exact_beside_another_commit(clocked: ClockedStore, clock: ManualClock, name: str) -> None:
    other = world(clocked, clock)
    act, expected = OTHERS[name]
    store = FaultyStore(clocked)
    act_before(store, lambda: act(other), kind="create", key="_claims/epoch")
    report = open_table(store, clock).upsert(BATCH, on=["n"])
    assert rows(other) == expected(AFTER)
    assert report.commit.committed == (name != "the same")
    assert data_keys(clocked) >= {m.key for m in check_sound(clocked).live}
    assert only_live_parts_stay(clocked, clock)


def test_only_parts_that_were_replaced_meanwhile_are_rewritten_again(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    act_before(store, lambda: other.delete("n = 2"), kind="create", key="_claims/epoch")
    report = open_table(store, clock).upsert([{"n": 0, "v": 1}, {"n": 11, "v": 1}], on=["n"])
    assert (report.updated_rows, report.rewritten_parts, report.removed_parts, report.live_parts) == (2, 1, 1, 4)
    put = [key for r in store.requests if r.kind == "create" for key in r.keys if "_data/" in key]
    assert len([k for k in put if "k=1/" in k]) == 1 + 2, "one rewrite, and the new rows of both attempts"
    assert len([k for k in put if "k=0/" in k]) == 1 + 2


def test_parts_of_an_attempt_that_another_writer_published_stay(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    store.inject(Fault.FAIL, kind="create", key="_log/")
    steps: list[Callable[[], object]] = [
        lambda: None,  # the claim of the first attempt, whose log file is not stored
        lambda: (other.merge(), other.merge()),  # publishes that claim, then replaces its log file
    ]

    def before(request: Request) -> None:
        if request.kind == "create" and "_claims/epoch" in request.keys[0] and steps:
            steps.pop(0)()
        elif request.kind == "get" and "_log/" in request.keys[0] and len(steps) == 1 and not appended:
            appended.append(other.insert([{"k": 1, "n": 20, "v": 9}]))  # changes the plan of the second attempt

    appended: list[object] = []
    store.before = before
    report = open_table(store, clock).upsert([{"k": 1, "n": 20, "v": 1}], on=["n"])
    assert not steps
    assert report.commit.committed
    counts = report.inserted_rows, report.updated_rows, report.rewritten_parts
    assert counts == (1, 0, 0), "of the first attempt, which was published: the second one would update row 20"
    assert rows(other) == sorted([*BEFORE, (1, 20, 1), (1, 20, 9)])
    check_sound(clocked)
    assert only_live_parts_stay(clocked, clock)


def test_rows_of_an_append_at_the_moment_of_the_commit_are_left_to_the_next_upsert(
    clocked: ClockedStore, clock: ManualClock
) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    act_before(store, lambda: other.insert([{"k": 1, "n": 20, "v": 9}]), kind="create", key="_claims/epoch")
    table = open_table(store, clock)
    assert table.upsert(BATCH, on=["n"]).inserted_rows == 1
    assert [r for r in rows(other) if r[1] == 20] == [(1, 20, 1), (1, 20, 9)]
    assert table.upsert(BATCH, on=["n"]).updated_rows == 1
    assert [r for r in rows(other) if r[1] == 20] == [(1, 20, 1), (1, 20, 1)]


def test_a_column_that_another_commit_adds_keeps_its_values(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)

    def meanwhile() -> None:
        other.upsert([{"n": 0, "new": "x"}], on=["n"])

    act_before(store, meanwhile, kind="create", key="_claims/epoch")
    open_table(store, clock).upsert([{"n": 0, "v": 4}], on=["n"])
    assert other.query("SELECT k, n, v, new FROM t WHERE n = 0").fetchall() == [(0, 0, 4, "x")]


def test_a_column_that_another_commit_drops_stays_away(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    act_before(store, lambda: other.alter(drop_columns=["v"]), kind="create", key="_claims/epoch")
    with pytest.raises(InvalidBatch, match="dropped"):
        open_table(store, clock).upsert(BATCH, on=["n"])
    assert data_keys(clocked) == {m.key for m in check_sound(clocked).live}, "the new parts were deleted"


def test_another_engine_does_the_work(clocked: ClockedStore, clock: ManualClock) -> None:
    done = []

    class Remote:
        def run(self, handle: Any, work: DistributedTask[Any, Any], items: Any) -> list[Any]:
            done.append(work.name)
            return LocalEngine().run(handle, pickle.loads(pickle.dumps(work)), pickle.loads(pickle.dumps(items)))

    table = world(clocked, clock)
    table.upsert(BATCH, on=["n"], engine=Remote())
    assert rows(table) == AFTER
    assert done == ["searching parts", "rewriting parts"]


# ------------------------------------------------------------------------------------------ updates


def test_rows_get_values_of_expressions_and_move(clocked: ClockedStore, clock: ManualClock) -> None:
    table = world(clocked, clock)
    cursor = table.changes().cursor
    report = table.update({"v": "v + n", "k": "1 - k"}, where="n BETWEEN 2 AND 10 AND k = 0")
    assert (report.updated_rows, report.unchanged_rows, report.rewritten_parts) == (2, 0, 2)
    assert rows(table) == sorted([r for r in BEFORE if r[1] not in (2, 10)] + [(1, 2, 2), (1, 10, 10)])
    assert sorted(table.changes(cursor).query("SELECT n FROM t").fetchall()) == [(2,), (10,)]
    assert table.history(limit=1)[0].kind == "update"
    same = table.update({"v": "n"}, where="n IN (2, 10)")
    assert (same.updated_rows, same.unchanged_rows, same.commit.committed) == (0, 2, False)


def test_a_number_is_cast_if_its_value_stays(memory: Any) -> None:
    table = Table.create(memory.uri, schema={"id": "BIGINT", "price": "DECIMAL(10,2)", "small": "SMALLINT"})
    table.insert([{"id": n, "price": n, "small": n} for n in range(3)], on_conflict="cast")
    table.update({"price": "price * 2", "small": "small + 1"}, where="id > 0")
    assert [str(v) for (v,) in table.query("SELECT price FROM t ORDER BY id").fetchall()] == ["0.00", "2.00", "4.00"]
    before = table.handle.store.list("")
    with pytest.raises(SchemaConflict, match="price"):
        table.update({"price": "price / 3.0"}, where="id = 2")
    with pytest.raises((SchemaConflict, InvalidBatch), match="small"):
        table.update({"small": "70000"}, where="id = 2")
    assert table.handle.store.list("") == before


TYPED: dict[str, tuple[str, str, str]] = {
    "NULL of a text": ("VARCHAR", "NULL", "None"),
    "NULL of a list": ("INTEGER[]", "NULL", "None"),
    "text": ("VARCHAR", "'x'", "x"),
    "date": ("DATE", "'2026-01-02'", "2026-01-02"),
    "instant": ("TIMESTAMP WITH TIME ZONE", "'2026-01-02 00:00:00+00'", "2026-01-02 00:00:00+00:00"),
    "NaN": ("DOUBLE", "'nan'", "nan"),
    "list": ("INTEGER[]", "'[1, 2]'", "[1, 2]"),
    "an equal number as text": ("VARCHAR", "5::VARCHAR", "5"),
    "now": ("TIMESTAMP WITH TIME ZONE", "date_trunc('year', now()) - now() + now()", ""),
}


@pytest.mark.parametrize("name", TYPED)
def test_null_and_texts_get_the_type_of_the_column(memory: Any, name: str) -> None:
    type_, expression, expected = TYPED[name]
    table = Table.create(memory.uri, schema={"id": "BIGINT", "v": type_})
    table.insert([{"id": 1}, {"id": 2}])
    assert table.update({"v": expression}, where="id = 1").updated_rows == (expected != "None")
    [(value,)] = table.query("SELECT v FROM t WHERE id = 1").fetchall()
    assert str(value).startswith(expected)


def test_a_value_is_unchanged_if_it_is_stored_as_it_is(memory: Any) -> None:
    table = Table.create(memory.uri, schema={"n": "VARCHAR"})
    table.insert([{"n": "05"}])
    assert table.update({"n": "'5'"}, where="n = '05'").updated_rows == 1
    assert table.update({"n": "'5'"}, where="true").unchanged_rows == 1


@pytest.mark.parametrize(
    ("values", "where", "error", "text"),
    [
        ({"v": "user"}, "true", InvalidOption, "names 'user'"),
        ({"v": "len(t::VARCHAR)"}, "true", InvalidOption, "names 't'"),
        ({"v": "'x'"}, "true", InvalidOption, "does not fit"),
        ({"v": "n::VARCHAR"}, "true", SchemaConflict, "'v'"),
        ({}, "true", InvalidOption, "set is"),
        ({"v": ""}, "true", InvalidOption, "is empty"),
        ({"v": "1 AS x"}, "true", InvalidOption, "has a name"),
        ({"v": "(SELECT 1)"}, "true", InvalidOption, "subquery"),
        ({"v": "max(v)"}, "true", InvalidOption, "does not fit"),
        ({"v": "random()"}, "true", InvalidOption, "different values"),
        ({"v": "nosuch"}, "true", InvalidOption, "nosuch"),
        ({"v": "1), (2"}, "true", InvalidOption, "is not valid SQL"),
        ({"nosuch": "1"}, "true", UnknownColumn, "nosuch"),
        ({"v": "1"}, "", InvalidOption, "where='true'"),
        ({"v": "1"}, "nosuch = 1", UnknownColumn, "nosuch"),
        ({"v": "CAST(n || 'x' AS BIGINT)"}, "true", InvalidOption, r"where 'true' or one of \{'v'"),
    ],
)
def test_an_invalid_update_is_rejected(
    clocked: ClockedStore, clock: ManualClock, values: Any, where: str, error: type[Exception], text: str
) -> None:
    table = world(clocked, clock)
    before = dict(clocked.objects)
    with pytest.raises(error, match=text):
        table.update(values, where)
    assert dict(clocked.objects) == before


SETS = [{"v": "coalesce(v, 0) + 1"}, {"v": "NULL"}, {"n": "n + 1", "v": "n"}, {"k": "v"}]
WHERES = ["true", "k = 1", "v IS NULL", "n > v OR k = 0", "false"]
NUMBERS = st.one_of(st.none(), st.integers(0, 2))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=15)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(SETS), st.sampled_from(WHERES)), max_size=3),
)
def test_updates_agree_with_those_of_duckdb(batch: list[Any], updates: list[tuple[dict[str, str], str]]) -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock, partition_by=["k"], sort_by=["n"])
    con = duckdb.connect()
    con.execute("CREATE TABLE t (k BIGINT, n BIGINT, v BIGINT)")
    for values in [*batch, (0, 0, 0)]:
        con.execute("INSERT INTO t VALUES (?, ?, ?)", values)
    table.insert(con.table("t"))
    for values, where in updates:
        con.execute(f"UPDATE t SET {', '.join(f'{c} = {sql}' for c, sql in values.items())} WHERE {where}")
        table.update(values, where)
        assert rows(table) == con.execute("SELECT k, n, v FROM t ORDER BY ALL").fetchall()
    check_sound(table.handle.store)
