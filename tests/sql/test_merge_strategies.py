"""Ready-made merging tables: the rows after merges, and `final`, which has the same rows before them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from icedb import Table
from icedb.errors import InvalidBatch, InvalidOption, InvalidQuery, UnknownColumn
from icedb.format.table_spec import Aggregating, Dedup, Merging, Replacing, TableSpec
from icedb.operations.rewrite.merge import MergePlan, carry_out
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.sql.merge_strategies import check_merging, merge_sql, seeds
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.storage.parts import Part
from icedb.testing import ClockedStore, ManualClock, check_sound
from icedb.transaction.open_table import create_handle, open_handle

Row = dict[str, Any]


def make(place: Any, **options: Any) -> Table:
    """Create a table with this spec."""
    store = open_store(parse_location(place.uri, place.storage_options))
    return Table(create_handle(store, TableSpec(id="test", **options)))


def rows_of(table: Table, relation: str, columns: str = "*", **options: Any) -> list[Any]:
    return table.query(f"SELECT {columns} FROM {relation} ORDER BY ALL", **options).fetchall()


# ------------------------------------------------------------------------------------------ each kind


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_dedup_keeps_one_row_of_each_key(place: Any) -> None:
    table = make(place, partition_by=("p",), merging=Dedup(by=("k",)))
    table.insert([{"p": 1, "k": 1, "v": "a"}, {"p": 1, "k": 1, "v": "a"}, {"p": 2, "k": 1, "v": "b"}])
    table.insert([{"p": 1, "k": 1, "v": "a"}, {"p": 1, "k": None, "v": "c"}, {"p": 2, "k": 2, "v": None}])
    table.insert([{"p": 1, "k": None, "v": "c"}])
    expected = [(1, 1, "a"), (1, None, "c"), (2, 1, "b"), (2, 2, None)]
    as_of = table.snapshot().as_of_ms
    assert rows_of(table, "final") == expected
    assert len(rows_of(table, "t")) == 7
    report = table.merge()
    assert (report.merged_parts, report.new_parts, report.rows) == (5, 2, 4)
    assert rows_of(table, "t") == rows_of(table, "final") == expected
    assert rows_of(table, "final", as_of=as_of) == expected, "time travel"
    assert len(rows_of(table, "t", as_of=as_of)) == 7
    check_sound(table.handle.store)


@pytest.mark.sampled(days=3)
def test_rows_that_are_inserted_again_with_their_ids_are_kept_once(memory: Any) -> None:
    table = make(memory, row_id=True, merging=Dedup(by=("_row_id",)))
    table.insert([{"k": 1}, {"k": 1}])
    table.insert(table.query("FROM t").to_arrow_table())
    assert rows_of(table, "t", "k") == [(1,)] * 4
    assert rows_of(table, "final", "k") == [(1,)] * 2
    table.merge()
    assert rows_of(table, "t", "k") == [(1,)] * 2


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_replacing_keeps_the_newest_row_of_each_key(place: Any) -> None:
    table = make(place, sort_by=("k",), merging=Replacing(by=("k",), version="at"))
    table.insert([{"k": 2, "at": 1, "v": "old"}, {"k": 1, "at": 7, "v": "new"}])
    table.insert([{"k": 2, "at": 2, "v": "new"}, {"k": 1, "at": 3, "v": "old"}, {"k": 3, "at": None, "v": "z"}])
    table.insert([{"k": 2, "at": None, "v": "none"}, {"k": 3, "at": None, "v": "y"}, {"k": 1, "at": 7, "v": None}])
    expected = [(1, 7, "new"), (2, 2, "new"), (3, None, "y")]
    assert rows_of(table, "final") == expected
    table.merge()
    assert rows_of(table, "t") == expected
    [part] = table.snapshot().parts
    body = pa.BufferReader(table.handle.store.get(part.key).body)
    assert pq.read_table(body)["k"].to_pylist() == [1, 2, 3], "sorted"


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_aggregating_sums_counts_and_bounds(place: Any) -> None:
    merging = Aggregating(by=("k",), sum=("s", "d"), min=("low",), max=("high",), any=("name",), count="n")
    table = make(place, merging=merging)
    one = {"k": 1, "s": 5, "d": Decimal("1.50"), "low": "b", "high": 1.5, "name": "x"}
    table.insert([one, {**one, "s": None, "low": "a"}])
    table.insert([{**one, "k": 2}, {**one, "name": None, "high": None}])
    expected = [(1, 3, "a", 1.5, 10, Decimal("4.50"), "x"), (2, 1, "b", 1.5, 5, Decimal("1.50"), "x")]
    columns = "k, n, low, high, s, d, name"
    types = table.schema()
    assert rows_of(table, "final", columns) == expected
    table.merge()
    assert rows_of(table, "t", columns) == rows_of(table, "final", columns) == expected
    table.insert([{**one, "n": 7}])
    assert rows_of(table, "final", columns)[0] == (1, 10, "a", 1.5, 15, Decimal("6.00"), "x"), (
        "a batch may bring a count"
    )
    table.merge()
    assert rows_of(table, "t", columns)[0][1] == 10
    assert table.schema() == types, "a sum of BIGINT is a HUGEINT, and no column becomes one"


def test_a_row_without_a_count_counts_as_one(memory: Any) -> None:
    table = make(memory, merging=Aggregating(by=("k",), count="n"))
    table.insert([{"k": 1}])
    table.insert(pa.table({"k": [1], "n": pa.array([None], pa.int64())}))
    assert rows_of(table, "final", "k, n") == [(1, 2)]
    table.merge()
    assert rows_of(table, "t", "k, n") == [(1, 2)]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("type_", ["BIGINT", "UTINYINT", "DECIMAL(4,1)"])
def test_a_sum_beyond_its_column_raises_and_loses_nothing(memory: Any, type_: str) -> None:
    table = make(memory, merging=Aggregating(by=("k",), sum=("much",)))
    greatest = {"BIGINT": 2**63 - 1, "UTINYINT": 255, "DECIMAL(4,1)": Decimal("999.9")}[type_]
    batch = duckdb.sql(f"SELECT 1 AS k, CAST({greatest} AS {type_}) AS much").to_arrow_table()
    table.insert(batch)
    table.insert(batch)
    before = table.handle.store.list("")
    with pytest.raises(InvalidQuery, match=r"memory://.*Aggregating .*column 'much' is beyond .* The sum is "):
        table.merge()
    assert table.handle.store.list("") == before
    with pytest.raises(InvalidQuery, match=r"column 'much' is beyond"):
        table.query("FROM final").fetchall()
    assert rows_of(table, "t", "much") == [(greatest,), (greatest,)]


def test_fractions_are_summed_in_the_precision_of_their_column(memory: Any) -> None:
    table = make(memory, merging=Aggregating(by=("k",), sum=("f",), max=("g",)))
    for f in (0.1, 0.2):
        table.insert(pa.table({"k": [1], "f": pa.array([f], pa.float32()), "g": [math.nan]}))
    table.merge()
    [(total, greatest)] = rows_of(table, "t", "f, g")
    assert (total, math.isnan(greatest)) == (pytest.approx(0.3), True)
    assert table.schema()["f"] == "FLOAT"


# ------------------------------------------------------------------------------------------ final


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_final_equals_t_without_merging(place: Any) -> None:
    table = make(place, partition_by=("k % 2 AS odd",))
    assert table.snapshot().to_arrow(final=True).num_rows == 0
    table.insert([{"k": n % 3} for n in range(5)])
    assert rows_of(table, "final") == rows_of(table, "t")
    assert rows_of(table, "final", where="odd = 1") == [(1, 1), (1, 1)]
    assert table.snapshot().to_arrow(["k"], where="odd = 1", final=True).to_pydict() == {"k": [1, 1]}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_final_has_the_columns_of_t_in_any_query(memory: Any) -> None:
    table = make(memory, partition_by=("n // 10 AS tens",), merging=Dedup(by=("n",)))
    table.insert([{"n": 5, "v": [1]}, {"n": 15, "v": None}])
    table.insert([{"n": 5, "v": [1]}])
    assert table.query("FROM final").columns == table.query("FROM t").columns == ["n", "v", "tens"]
    [(before, after)] = table.query(
        "SELECT (SELECT count(*) FROM t), count(*) FROM FINAL AS f JOIN t USING (n)"
    ).fetchall()
    assert (before, after) == (3, 3)
    assert table.query("WITH final AS (SELECT 7 AS seven) FROM final").fetchall() == [(7,)], (
        "the query defines the name"
    )
    assert table.query("SELECT 1 AS final FROM t LIMIT 1").fetchall() == [(1,)]
    assert rows_of(table, "final", where="tens = 0") == [(5, [1], 0)]
    assert table.snapshot().to_arrow(["n"], final=True).num_rows == 2
    with pytest.raises(InvalidQuery, match="finale"):
        table.query("FROM finale")


def test_final_of_an_empty_table_is_empty(memory: Any) -> None:
    table = make(memory, merging=Dedup(by=("n",)), partition_by=("n",))
    table.insert([{"n": 1}])
    table.drop_partitions(["n=1"])
    assert rows_of(table, "final") == []
    assert table.query("FROM final").columns == ["n"]


def test_a_table_with_a_merge_query_has_no_final(memory: Any) -> None:
    table = make(memory, merge_query="SELECT DISTINCT * FROM source_files")
    table.insert([{"n": 1}])
    assert table.query("SELECT n AS final FROM t").fetchall() == [(1,)]
    with pytest.raises(InvalidOption, match=r"memory://.*no 'final': .* Query t, or"):
        table.query("FROM final")


@pytest.mark.long
def test_keys_are_unique_within_a_path_although_a_column_hides_it(memory: Any) -> None:
    """The partition column `city` is lower case, the data column of that name is not, and a query sees the latter."""
    table = make(memory, partition_by=("lower(city) AS city",), merging=Dedup(by=("k",)))
    table.insert([{"city": "Oslo", "k": 1}, {"city": "oslo", "k": 1}, {"city": "Rome", "k": 1}])
    table.insert([{"city": "Oslo", "k": 1}, {"city": "ROME", "k": 1}])
    expected = [("Oslo", 1), ("ROME", 1)]
    assert rows_of(table, "final") == expected
    table.merge()
    assert rows_of(table, "t") == expected


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize(
    ("merging", "expected"),
    [
        (Dedup(by=("k",)), [(1, 10, 1), (1, 11, 1), (2, 20, 2)]),
        (Aggregating(by=("k",), max=("v",)), [(1, 13, 1), (1, 14, 1), (2, 20, 2)]),
    ],
)
def test_merges_and_final_agree_after_a_new_partitioning(memory: Any, merging: Merging, expected: list[Any]) -> None:
    """Rows of the older partitioning are merged among themselves."""
    table = make(memory, merging=merging)
    table.insert([{"k": 1, "v": 10}, {"k": 2, "v": 20}])
    table.insert([{"k": 1, "v": 13}])
    table.alter(partition_by=["k AS key"])
    for v in (11, 14):
        table.insert([{"k": 1, "v": v}])
    assert rows_of(table, "final", "k, v, key") == expected
    assert rows_of(table, "final", "k, v, key", where="key = 2") == expected[2:]
    table.merge()
    assert rows_of(table, "t", "k, v, key") == rows_of(table, "final", "k, v, key") == expected


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_later_column_does_not_change_which_row_is_kept(memory: Any) -> None:
    table = make(memory, merging=Dedup(by=("k",)))
    table.insert([{"k": 1, "b": 2}, {"k": 1, "b": 1}])
    table.insert([{"k": 1, "b": 3}])
    table.merge()
    assert rows_of(table, "t") == [(1, 1)]
    table.insert([{"k": 1, "a": 0, "b": 9}])
    expected = rows_of(table, "final", "k, a, b")
    table.merge()
    assert rows_of(table, "t", "k, a, b") == expected == [(1, 0, 9)]


# ------------------------------------------------------------------------------------------ rejected mergings


@pytest.mark.parametrize(
    ("merging", "message"),
    [
        (Dedup(by=()), "Dedup needs the key of a row"),
        (Dedup(by="k"), "Dedup takes lists of columns, and by is a text"),
        (Dedup(by=3), "Dedup takes lists of columns, and by is of type int"),
        (Aggregating(by=("k",), sum=None), "Aggregating takes lists of columns, and sum is of type NoneType"),
        (Dedup(by=("a", "A")), "names the column 'a' twice"),
        (Dedup(by=("",)), "names the column ''"),
        (Replacing(by=("a",), version="a"), "names the column 'a' twice"),
        (Replacing(by=("a",), version=""), "names the column ''"),
        (Aggregating(by=(), sum=("a",)), "Aggregating needs the key"),
        (Aggregating(by=("a",), sum=("b",), max=("b",)), "names the column 'b' twice"),
        (Aggregating(by=("a",), any=("b",), count="B"), "names the column 'b' twice"),
        (Aggregating(by=("a",), sum=("c",)), "partitioned by 'c'"),
        (Aggregating(by=("a",), count="c"), "partitioned by 'c'"),
    ],
)
def test_an_invalid_merging_is_rejected(merging: Merging, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_merging(merging, table="s3://b/t", partition_inputs=frozenset({"c"}))


@pytest.mark.parametrize(
    ("merging", "error", "message"),
    [
        (Dedup(by=("a", "z")), UnknownColumn, "names the column 'z', and the table has no such column"),
        (Replacing(by=("a",), version="z"), UnknownColumn, "names the column 'z'"),
        (Aggregating(by=("a",), sum=("s",)), InvalidOption, "'s' is VARCHAR, which has no sum"),
        (Aggregating(by=("a",), any=("d",), count="s"), InvalidOption, "'s' is VARCHAR, and a count is an integer"),
        (Aggregating(by=("a",), any=("s",)), InvalidBatch, "its merging does not name the column 'd'"),
    ],
)
def test_a_merging_of_unsuitable_columns_is_rejected(merging: Merging, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_merging(merging, table="s3://b/t", columns={"a": "BIGINT", "s": "VARCHAR", "d": "DECIMAL(9,2)"})


def test_column_names_are_quoted_identifiers() -> None:
    name = 'a" OR 1=1; --'
    columns = {name: "BIGINT", "it's": "BIGINT"}
    sql = merge_sql(Aggregating(by=(name,), sum=("it's",)), columns, table="t")
    with duckdb.connect() as con:
        con.execute('CREATE TABLE source_files AS SELECT 1::BIGINT AS "a"" OR 1=1; --", 2::BIGINT AS "it\'s"')
        assert con.execute(sql).fetchall() == [(1, 2)]


def test_a_column_that_the_merging_does_not_name_is_rejected(memory: Any) -> None:
    table = make(memory, merging=Aggregating(by=("k",), sum=("s",)))
    before = table.handle.store.list("")
    with pytest.raises(InvalidBatch, match=r"memory://.*its merging does not name the column 'other'"):
        table.insert([{"k": 1, "s": 1, "other": 1}])
    assert table.handle.store.list("") == before


def test_only_missing_counts_are_seeded() -> None:
    assert seeds(Aggregating(by=("k",), count="n"), ["k"]) == {"n": "1::BIGINT"}
    assert (
        seeds(Aggregating(by=("k",), count="n"), ["k", "n"]) == seeds(Dedup(by=("k",)), ["k"]) == seeds(None, []) == {}
    )


# ------------------------------------------------------------------------------------------ random rows and merges

SMALL = st.one_of(st.none(), st.integers(0, 2))
ROW = st.fixed_dictionaries({"p": st.integers(0, 1), "k": SMALL, "j": SMALL, "v": SMALL, "w": SMALL})
ROWS = st.lists(ROW, min_size=1, max_size=6)


def least(rows: Sequence[Row], columns: Sequence[str]) -> Row:
    """Return the first row in the order of these columns, null last."""
    return min(rows, key=lambda r: [(r[c] is None, r[c]) for c in columns])


def dedup_of(rows: Sequence[Row]) -> Row:
    return least(rows, "vw")


def replacing_of(rows: Sequence[Row]) -> Row:
    versions = [r["v"] for r in rows if r["v"] is not None]
    return least([r for r in rows if r["v"] == max(versions, default=None)], "w")


def aggregate_of(rows: Sequence[Row]) -> Row:
    v, w = ([r[c] for r in rows if r[c] is not None] for c in "vw")
    return {**rows[0], "v": sum(v) if v else None, "w": max(w, default=None), "n": len(rows)}


def of_each_key(rows: Sequence[Row], choose: Callable[[Sequence[Row]], Row]) -> list[list[Any]]:
    """Return the rows that the model keeps."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["p"], row["k"], row["j"]), []).append(row)
    chosen = [choose(group) for group in groups.values()]
    return sorted(([row.get(c) for c in "pkjvwn"] for row in chosen), key=repr)


class MergingMachine(RuleBasedStateMachine):
    """Batches, with merges of any parts of a partition between them: `final` always equals the model."""

    merging: Merging = Dedup(by=("k", "j"))
    choose: Callable[[Sequence[Row]], Row] = staticmethod(dedup_of)

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        spec = TableSpec(id="test", partition_by=("p",), sort_by=("v",), merging=self.merging)
        self.table = Table(create_handle(self.store, spec, clock=self.clock))
        self.rows: list[Row] = []

    @initialize(rows=ROWS)
    def first(self, rows: list[Row]) -> None:
        self.insert([{"p": 0, "k": 0, "j": 0, "v": 0, "w": 0}, *rows])

    @rule(rows=ROWS)
    def insert(self, rows: list[Row]) -> None:
        types = pa.schema([(c, pa.int64()) for c in "pkjvw"])
        self.table.insert(pa.Table.from_pylist(rows, schema=types))
        self.rows += rows
        self.clock.advance(10)

    def live(self) -> dict[str, list[Part]]:
        parts: dict[str, list[Part]] = {}
        for part in self.table.snapshot().parts:
            parts.setdefault(part.partition, []).append(part)
        return parts

    @precondition(lambda self: any(len(parts) > 1 for parts in self.live().values()))
    @rule(data=st.data())
    def merge_some(self, data: st.DataObject) -> None:
        partition, parts = data.draw(st.sampled_from([(p, ps) for p, ps in self.live().items() if len(ps) > 1]))
        some = data.draw(st.lists(st.sampled_from(parts), min_size=2, unique=True))
        handle = open_handle(self.store, clock=self.clock)
        report = carry_out(handle, handle.read(), MergePlan((Rewrite(partition, tuple(some)),), 0))
        assert (report.merged_parts, report.new_parts) == (len(some), 1)
        self.clock.advance(10)

    def answer(self, relation: str) -> list[list[Any]]:
        columns = "p, k, j, v, w" + (", n" if isinstance(self.merging, Aggregating) else ", NULL AS n")
        return sorted(([*row] for row in self.table.query(f"SELECT {columns} FROM {relation}").fetchall()), key=repr)

    @invariant()
    def final_equals_the_model(self) -> None:
        if self.rows:
            assert self.answer("final") == of_each_key(self.rows, self.choose)

    def teardown(self) -> None:
        if not self.rows:
            return
        # A single part is not merged, so insert one more into each partition.
        self.insert([{"p": p, "k": 9, "j": 9, "v": 9, "w": 9} for p in (0, 1)])
        self.table.merge()
        assert len(self.live()) == len(self.table.snapshot().parts) == 2
        assert self.answer("t") == self.answer("final") == of_each_key(self.rows, self.choose)
        check_sound(self.store)


class ReplacingMachine(MergingMachine):
    merging = Replacing(by=("k", "j"), version="v")
    choose = staticmethod(replacing_of)


class AggregatingMachine(MergingMachine):
    merging = Aggregating(by=("p", "k", "j"), sum=("v",), max=("w",), count="n")
    choose = staticmethod(aggregate_of)


@pytest.mark.sampled(cases=1, days=6)
@pytest.mark.long
@pytest.mark.parametrize("machine", [MergingMachine, ReplacingMachine, AggregatingMachine])
def test_random_batches_and_merges(machine: type[MergingMachine]) -> None:
    case = machine.TestCase
    case.settings = settings(
        max_examples=6, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
