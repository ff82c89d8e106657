"""Merges: plans keep their limits, and the table has the same rows afterwards, sorted, in fewer parts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb import Part, Table
from icedb.errors import InvalidOption, MissingPart, StoreUnavailable
from icedb.format.records import Marker
from icedb.format.timing import HOUR_MS
from icedb.operations.rewrite.merge import merge, plan_merge
from icedb.operations.rewrite.rewriter import Rewrite, rewrite_parts
from icedb.sql.connections import MEMORY_BYTES_MIN
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, check_sound, create_table, open_table
from icedb.transaction.table_handle import Handle
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.numbered_rows import data_keys

BIG = 100


@st.composite
def live_parts(draw: st.DrawFn) -> list[Part]:
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 2 * BIG), st.integers(0, 50)), max_size=40
        )
    )  # fmt: skip
    return [Part(f"k{n}", f"/k{n}", partition, size, 1, t) for n, (partition, size, t) in enumerate(rows)]


@given(live_parts())
def test_an_output_stays_below_twice_the_size_and_a_part_alone_is_left(parts: list[Part]) -> None:
    plan = plan_merge(parts, part_bytes_max=BIG)
    inputs = [p for g in plan.groups for p in g.inputs]
    assert len({p.key for p in inputs}) == len(inputs), "no part is merged twice"
    for group in plan.groups:
        assert len(group.inputs) >= 2
        assert group.bytes < 2 * BIG
        assert {p.partition for p in group.inputs} == {group.partition}
        assert all(p.bytes < BIG for p in group.inputs)
    assert plan.remaining == 0


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(live_parts())
def test_repeated_merges_end(parts: list[Part]) -> None:
    for _ in range(10):
        plan = plan_merge(parts, part_bytes_max=BIG)
        if not plan.groups:
            break
        gone = {p.key for g in plan.groups for p in g.inputs}
        new = [Part(g.inputs[0].key + "+", "/", g.partition, g.bytes, 1, 99) for g in plan.groups]
        parts = [p for p in parts if p.key not in gone] + new
    small = [p.partition for p in parts if p.bytes < BIG]
    assert len(small) == len(set(small)), "at most one small part is left in each partition"


@pytest.mark.sampled(days=3)
@given(live_parts(), st.integers(2, 10), st.integers(1, 4 * BIG), st.sampled_from(["newest", "oldest"]))
def test_a_call_stays_within_its_budget(parts: list[Part], parts_max: int, bytes_max: int, order: Any) -> None:
    every = plan_merge(parts, part_bytes_max=BIG, input_parts_max=parts_max)
    plan = plan_merge(parts, part_bytes_max=BIG, input_parts_max=parts_max, input_bytes_max=bytes_max, order=order)
    assert len(plan.groups) + plan.remaining == len(every.groups) + every.remaining
    assert bool(plan.groups) == bool(every.groups), "a call makes progress, whatever its budget"
    assert sum(len(g.inputs) for g in plan.groups) <= parts_max
    if len(plan.groups) > 1:
        assert sum(g.bytes for g in plan.groups) <= bytes_max


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(live_parts())
def test_the_order_determines_which_groups_come_first(parts: list[Part]) -> None:
    def ages(order: Any) -> list[int]:
        return [max(p.created_ms for p in g.inputs) for g in plan_merge(parts, part_bytes_max=BIG, order=order).groups]

    assert ages("oldest") == sorted(ages("oldest"))
    assert ages("newest") == sorted(ages("newest"), reverse=True)
    assert sorted(ages("newest")) == ages("oldest")


# ------------------------------------------------------------------------------------------ doing it


def make(place: Any, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


def contents(table: Table, part: Part) -> list[dict[str, Any]]:
    body = table.handle.store.get(part.key).body
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(body)).to_pylist()
    return rows


@pytest.mark.sampled(cases=1, days=3)
def test_a_merge_keeps_every_row_and_the_sort_order(place: Any) -> None:
    table = make(place, partition_by=["k"], sort_by=["s", "n"])
    for batch in range(5):
        table.insert([{"k": i % 2, "s": "zyx"[i % 3], "n": (i * 7 + batch) % 50} for i in range(60)])
    before = table.query("FROM t ORDER BY ALL").fetchall()
    as_of = table.snapshot().as_of_ms
    report = table.merge()
    assert (report.merged_parts, report.new_parts, report.rows, report.remaining) == (10, 2, 300, 0)
    assert table.query("FROM t ORDER BY ALL").fetchall() == before
    assert [p.partition for p in table.snapshot().parts] == ["k=0", "k=1"]
    for part in table.snapshot().parts:
        rows = [(r["s"], r["n"]) for r in contents(table, part)]
        assert rows == sorted(rows)
        assert len(rows) == part.rows == 150
    assert table.query("FROM t ORDER BY ALL", as_of=as_of).fetchall() == before
    check_sound(table.handle.store)
    assert not table.merge().commit.committed, "one part per partition is left alone"


def test_parts_that_lack_a_column_or_have_one_more_are_merged(memory: Any) -> None:
    table = make(memory, sort_by=["b", "a"])
    table.insert([{"b": 2, "a": 1}])
    table.insert([{"b": 1, "a": 2, "c": "x"}])
    table.insert([{"b": 0}])
    table.merge()
    assert table.query("SELECT b, a, c FROM t ORDER BY b").fetchall() == [(0, None, None), (1, 2, "x"), (2, 1, None)]
    [part] = table.snapshot().parts
    assert [r["b"] for r in contents(table, part)] == [0, 1, 2]


def test_a_column_that_no_part_has_any_more_stays_in_the_schema(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    table.insert([{"k": 0, "gone": 1}])
    table.drop_partitions(["k=0"])
    table.insert([{"k": 1}])
    table.insert([{"k": 1}])
    table.merge()
    assert table.schema() == {"k": "BIGINT", "gone": "BIGINT"}
    assert table.query("SELECT gone FROM t").fetchall() == [(None,), (None,)]


@pytest.mark.sampled(cases=1)
def test_a_part_keeps_a_data_column_with_the_name_of_its_partition(place: Any) -> None:
    table = make(place, partition_by=["code"])
    for _ in range(2):
        table.insert([{"code": "00123"}, {"code": "a b%2Fc"}, {"code": "NULL"}, {"code": None}])
    table.merge()
    counted = "SELECT code, count(*) FROM t GROUP BY 1 ORDER BY 1 NULLS LAST"
    assert table.query(counted).fetchall() == [("00123", 2), ("NULL", 2), ("a b%2Fc", 2), (None, 2)]
    codes = [[r["code"] for r in contents(table, p)] for p in table.snapshot().parts]
    assert sorted(codes, key=str) == [["00123"] * 2, ["NULL"] * 2, ["a b%2Fc"] * 2, [None] * 2]


def test_partition_columns_are_not_written_into_parts(local: Any) -> None:
    table = make(local, partition_by=["n % 2 AS odd"])
    for _ in range(2):
        table.insert([{"n": 1}])
    table.merge()
    [part] = table.snapshot().parts
    assert list(contents(table, part)[0]) == ["n"]


def test_a_merged_part_has_its_row_count_and_statistics(memory: Any) -> None:
    table = make(memory, sort_by=["at", "s"])
    for hour in (1, 2):
        table.insert([{"at": datetime(2026, 1, 1, hour, tzinfo=UTC), "s": None}, {"at": None, "s": "x"}])
    table.merge()
    [marker] = table.handle.read().live
    assert marker.rows == 4
    assert msgspec.json.decode(bytes(marker.stats)) == {  # type: ignore[arg-type]
        "at": ["2026-01-01 01:00:00+00", "2026-01-01 02:00:00+00", 2],
        "s": ["x", "x", 2],
    }


def test_the_next_call_merges_the_rest(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    for _ in range(2):
        table.insert([{"k": k} for k in range(5)])
    report = table.merge(input_parts_max=4)
    assert (report.merged_parts, report.remaining) == (4, 3)
    assert table.merge(input_parts_max=4).remaining == 1
    assert table.merge(input_parts_max=4).remaining == 0
    assert len(table.snapshot().parts) == 5


def test_a_dry_run_reports_the_merge_and_only_reads(memory: Any) -> None:
    table = make(memory, partition_by=["k"])
    for _ in range(2):
        table.insert([{"k": k, "n": n} for k in range(3) for n in range(10)])
    before = [(i.key, i.bytes) for i in table.handle.store.list("")]
    planned = table.merge(input_parts_max=4, dry_run=True)
    assert [(i.key, i.bytes) for i in table.handle.store.list("")] == before
    assert (planned.dry_run, planned.commit.committed, planned.commit.parts) == (True, False, ())
    done = table.merge(input_parts_max=4)
    assert not done.dry_run
    figures = ("merged_parts", "merged_bytes", "new_parts", "rows", "dropped_groups", "remaining")
    assert [getattr(planned, f) for f in figures] == [getattr(done, f) for f in figures]
    assert (done.merged_parts, done.new_parts, done.rows, done.remaining) == (4, 2, 40, 1)
    with pytest.raises(InvalidOption, match="order must be one of"):
        table.merge(order="random", dry_run=True)  # type: ignore[arg-type]


def test_large_parts_are_left_alone(memory: Any) -> None:
    table = make(memory)
    for n in range(3):
        table.insert([{"a": n}])
    assert not table.merge(part_bytes_max=100).commit.committed
    assert len(table.snapshot().parts) == 3


def test_a_plain_append_during_a_merge_stays(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock)
    other = open_table(clocked, clock)
    for n in range(2):
        other.insert([{"a": n}])
    store = FaultyStore(clocked)
    act_before(store, lambda: other.insert([{"a": 9}]), kind="create", key="_claims/epoch")
    assert open_table(store, clock).merge().merged_parts == 2
    assert sorted(other.query("SELECT a FROM t").fetchall()) == [(0,), (1,), (9,)]
    check_sound(clocked)


def test_groups_without_lost_inputs_are_committed(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"])
    other = open_table(clocked, clock)
    for n in range(2):
        other.insert([{"k": k, "n": n} for k in range(3)])
    store = FaultyStore(clocked)
    act_before(store, lambda: other.drop_partitions(["k=1"]), kind="create", key="_claims/epoch")
    report = open_table(store, clock).merge()
    assert (report.merged_parts, report.new_parts, report.dropped_groups, report.rows) == (4, 2, 1, 4)
    written = [r for r in store.requests if r.kind == "create" and "_data/" in r.keys[0]]
    assert len(written) == 3, "each group was written once"
    assert data_keys(clocked) == check_sound(clocked).parts.keys()
    assert other.query("SELECT k, count(*) FROM t GROUP BY 1 ORDER BY 1").fetchall() == [(0, 2), (2, 2)]


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_statistics_do_not_depend_on_the_machines_timezone(local: Any) -> None:
    code = (
        "import sys; from datetime import UTC, datetime; from icedb import Table; t = Table.create(sys.argv[1], "
        "sort_by=['at']); [t.insert([{'at': datetime(2026, 1, 1, h, tzinfo=UTC)}]) for h in (1, 2)]; t.merge(); "
        "sys.stdout.write(bytes(t.handle.read().live[0].stats).decode())"
    )
    env = {**os.environ, "TZ": "America/New_York"}
    done = subprocess.run([sys.executable, "-c", code, local.uri], capture_output=True, text=True, check=True, env=env)
    assert msgspec.json.decode(done.stdout) == {"at": ["2026-01-01 01:00:00+00", "2026-01-01 02:00:00+00", 0]}


# ------------------------------------------------------------------------------------------ limits and failures


@pytest.mark.sampled(days=6)
@pytest.mark.long
def test_a_merge_larger_than_memory_spills_to_disk(local: Any, caplog: pytest.LogCaptureFixture) -> None:
    table = make(local, sort_by=["n"])
    for seed in range(3):
        values = f"hash(i + {seed}) AS n, repeat(md5((i + {seed})::VARCHAR), 4) AS s"
        table.insert(duckdb.sql(f"SELECT {values} FROM range(800_000) r(i)"))
    before = table.query("SELECT count(*), sum(hash(n, s)) FROM t").fetchall()
    assert MEMORY_BYTES_MIN < 3 * 800_000 * (4 * 32 + 8)
    caplog.set_level(logging.INFO, "icedb")
    assert table.merge(memory_bytes=MEMORY_BYTES_MIN).rows == 2_400_000
    assert table.query("SELECT count(*), sum(hash(n, s)) FROM t").fetchall() == before
    assert table.query("SELECT bool_and(n >= p) FROM (SELECT n, lag(n) OVER () p FROM t)").fetchall() == [(True,)]
    for message in ("merging 1 groups", "rewrite 1 of 1 is written: 3 parts"):
        assert message in caplog.text


def test_a_merge_of_many_groups_logs_few_lines(local: Any, caplog: pytest.LogCaptureFixture) -> None:
    table = make(local, partition_by=["n"], sort_by=["s"])
    for _ in range(2):
        table.insert(duckdb.sql("SELECT i AS n, 'a' AS s FROM range(40) r(i)"))
    caplog.set_level(logging.INFO, "icedb")
    assert table.merge(tiers=None).merged_parts == 80
    lines = [r.getMessage() for r in caplog.records if "rewrite " in r.getMessage()]
    assert len(lines) < 5, "one line in five seconds"
    assert "rewrite 40 of 40 is written" in lines[-1]


@pytest.mark.parametrize(
    "options",
    [
        {"order": "largest"},
        {"memory_bytes": MEMORY_BYTES_MIN - 1},
        {"part_bytes_max": 0},
        {"input_parts_max": 0},
        {"input_bytes_max": -1},
    ],
)
def test_an_invalid_option_is_rejected(memory: Any, options: Any) -> None:
    table = make(memory)
    for n in range(2):
        table.insert([{"a": n}])
    with pytest.raises(InvalidOption, match=next(iter(options))):
        table.merge(**options)
    assert len(table.snapshot().parts) == 2


def test_a_partition_that_a_rewriter_empties_is_only_tombstoned(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    for _ in range(2):
        table.insert([{"k": 0}, {"k": 1}])

    def rewriter(handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        written = rewrite_parts(handle, rewrites, schema)
        return [None if r.partition == "k=0" else m for r, m in zip(rewrites, written, strict=True)]

    report = merge(table.handle, rewriter=rewriter)
    assert (report.merged_parts, report.new_parts, report.rows) == (4, 1, 2)
    assert table.query("SELECT k FROM t").fetchall() == [(1,), (1,)]


def test_parts_of_a_log_file_from_far_ahead_are_left_alone(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    table.insert([{"a": 0}])
    other = open_table(clocked, clock.skewed(10 * HOUR_MS), fencing="none")
    ahead = {p.key for n in (1, 2) for p in other.insert([{"a": n}]).parts}
    assert not table.merge().commit.committed, "two of the three are from far ahead"
    table.insert([{"a": 3}])
    assert table.merge().merged_parts == 2
    assert ahead < {p.key for p in table.snapshot().parts}
    assert sorted(table.query("SELECT a FROM t").fetchall()) == [(0,), (1,), (2,), (3,)]
    clock.advance(10 * HOUR_MS)
    assert table.merge().merged_parts == 3, "when their time has come they are like all others"
    check_sound(clocked)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_RESPONSE, Fault.DELAY, Fault.CRASH_AFTER])
@pytest.mark.parametrize("discard_fails", [False, True])
def test_a_part_whose_put_failed_is_never_named(
    clocked: ClockedStore, clock: ManualClock, fault: Fault, discard_fails: bool
) -> None:
    other = create_table(clocked, clock, partition_by=["k"])
    for n in range(2):
        other.insert([{"k": k, "n": n} for k in range(3)])
    store = FaultyStore(clocked)
    store.inject(fault, kind="create", key="/k=1/")
    if discard_fails:
        store.inject(Fault.FAIL, kind="delete")
    with pytest.raises(Crash if fault is Fault.CRASH_AFTER else StoreUnavailable):
        open_table(store, clock).merge()
    store.deliver()
    state = check_sound(clocked)
    assert len(state.live) == 6
    assert not [k for k in clocked.objects if k.endswith(".e2.jsonl")]
    assert other.merge().new_parts == 3
    check_sound(clocked)


@pytest.mark.sampled(days=3)
def test_a_missing_input_is_named_and_nothing_stays_behind(place: Any) -> None:
    table = make(place, partition_by=["k"])
    for n in range(2):
        table.insert([{"k": k, "n": n} for k in range(2)])
    lost = table.snapshot().parts[0]
    store = table.handle.store
    store.delete([lost.key])
    before = store.list(table.handle.keys.data_prefix)
    with pytest.raises(MissingPart, match=lost.key):
        Table.open(place.uri, storage_options=place.storage_options).merge()
    assert store.list(table.handle.keys.data_prefix) == before
