"""Merges with a query: the new part has its result, or the merge changes nothing and raises the reason."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import IceDBError, InvalidBatch, InvalidQuery, SchemaConflict, UnknownColumn
from icedb.format.records import Marker
from icedb.format.table_spec import Dedup, TableSpec
from icedb.operations.rewrite.merge import carry_out, plan_merge
from icedb.operations.rewrite.rewrite_partition import rewrite_partition, write_answer
from icedb.operations.rewrite.rewriter import Rewrite, rewrite_parts
from icedb.sql.connections import MEMORY_BYTES_MIN
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, check_sound, open_table
from icedb.transaction.open_table import create_handle, open_handle
from tests.sql.test_merge_strategies import make, rows_of
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.fault_walk import check_atomic

SUMS = "SELECT k, sum(n) AS n FROM source_files GROUP BY k"


@pytest.mark.sampled(cases=1, days=3)
def test_the_result_replaces_the_rows(place: Any) -> None:
    table = make(place, partition_by=("k // 10 AS tens",), sort_by=("k",), merge_query=SUMS)
    for n in (1, 2, 3):
        table.insert([{"k": k, "n": n} for k in (12, 11, 3, 12)])
    before, as_of = rows_of(table, "t"), table.snapshot().as_of_ms
    report = table.merge()
    assert (report.merged_parts, report.new_parts, report.rows) == (6, 2, 3)
    assert rows_of(table, "t") == [(3, 6, 0), (11, 6, 1), (12, 12, 1)]
    assert rows_of(table, "t", as_of=as_of) == before
    assert table.schema() == {"k": "BIGINT", "n": "BIGINT"}, "a sum is a HUGEINT, and its column stays what it was"
    for part in table.snapshot().parts:
        body = pa.BufferReader(table.handle.store.get(part.key).body)
        stored = pq.read_table(body)
        assert stored.schema.names == ["k", "n"], "no partition column is stored"
        assert stored["k"].to_pylist() == sorted(stored["k"].to_pylist())
    assert not table.merge().commit.committed, "a part alone is left"
    check_sound(table.handle.store)


def test_a_query_may_name_the_relation_several_times(memory: Any) -> None:
    query = """
        WITH top AS (SELECT max(n) AS n FROM Source_Files)
        SELECT a.k, a.n, 'source_files' AS s FROM source_files AS a, top WHERE a.n = top.n
        UNION ALL SELECT k, n, s FROM "source_files" WHERE n < (SELECT avg(n) FROM source_files) AND tens = 0
    """
    table = make(memory, partition_by=("k // 10 AS tens",), merge_query=query)
    table.insert([{"k": 1, "n": 5, "s": "a"}])
    table.insert([{"k": 2, "n": 1, "s": "b"}, {"k": 3, "n": 4, "s": "c"}])
    table.merge()
    assert rows_of(table, "t", "k, n, s") == [(1, 5, "source_files"), (2, 1, "b")]


@pytest.mark.sampled(cases=1, days=3)
def test_an_empty_result_leaves_no_part(place: Any) -> None:
    table = make(place, partition_by=("k",), merge_query="SELECT * FROM source_files WHERE k <> 1")
    for _ in range(2):
        table.insert([{"k": 1}, {"k": 2}])
    report = table.merge()
    assert (report.merged_parts, report.new_parts) == (4, 1)
    assert rows_of(table, "t") == [(2,), (2,)]
    check_sound(table.handle.store)


def test_a_random_query_runs_once(memory: Any) -> None:
    table = make(
        memory, partition_by=("k",), merge_query="SELECT k, 1 + floor(random() * 1e6)::BIGINT AS n FROM source_files"
    )
    for _ in range(2):
        table.insert([{"k": 1, "n": 0} for _ in range(50)])
    report = table.merge()
    stored = rows_of(table, "t", "n")
    assert len(stored) == report.rows == 100
    assert min(stored)[0] > 0


EVERY_TYPE = """
    SELECT 7::TINYINT AS i, 7::UBIGINT AS u, 0.5::FLOAT AS f, 1.20::DECIMAL(18,2) AS d, '\\x00x'::BLOB AS b,
        TIMESTAMPTZ '2026-01-01 00:00:00+00' AS at, TIMESTAMP '2026-01-01' AS naive, TIMESTAMP_NS '2026-01-01' AS ns,
        DATE '2026-01-01' AS day, TIME '01:02:03' AS h, [1, NULL] AS l, {'x': {'y': 'z'}} AS s, MAP {'k': 1} AS m,
        '00000000-0000-0000-0000-000000000007'::UUID AS id, true AS o, 'é' AS t, NULL::INTEGER AS nothing,
        '{"a": 1}'::JSON AS j
"""


@pytest.mark.long
def test_every_type_passes_through(memory: Any) -> None:
    table = make(memory, merge_query="SELECT DISTINCT * FROM source_files")
    table.insert(duckdb.sql(EVERY_TYPE))
    expected, types = table.query("FROM t").fetchall(), table.schema()
    table.insert(duckdb.sql(EVERY_TYPE))
    assert table.merge().rows == 1
    assert table.query("FROM t").fetchall() == expected
    assert table.schema() == types


def test_a_declared_column_is_filled_before_any_batch_brought_it(memory: Any) -> None:
    query = "SELECT k, count(*) AS rows FROM source_files GROUP BY k"
    table = make(memory, merge_query=query, columns={"k": "BIGINT", "rows": "INTEGER"})
    for _ in range(3):
        table.insert([{"k": 1}])
    table.merge()
    assert rows_of(table, "t", "k, rows") == [(1, 3)]
    assert table.schema()["rows"] == "INTEGER"


@pytest.mark.parametrize(("query", "kept"), [("", True), ("SELECT * FROM source_files", False)])
def test_columns_unknown_to_the_table_are_invisible_to_queries(memory: Any, query: str, kept: bool) -> None:
    table = make(memory, merge_query=query)
    table.insert([{"k": 1}])
    store, [foreign] = table.handle.store, table.insert([{"k": 2}]).parts
    body = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": [2], "theirs": [2]}), body)
    store.delete([foreign.key])
    store.create(foreign.key, body.getvalue().to_pybytes())
    table.merge()
    [part] = table.snapshot().parts
    stored = pq.read_table(pa.BufferReader(store.get(part.key).body))
    assert ("theirs" in stored.schema.names) == kept, "a merge without a query loses nothing"
    assert rows_of(table, "t") == [(1,), (2,)]


@pytest.mark.long
def test_a_deletion_does_not_run_the_merge_query(memory: Any) -> None:
    table = make(memory, merge_query=SUMS)
    table.insert([{"k": 1, "n": 1}, {"k": 1, "n": 2}, {"k": 2, "n": 3}])
    table.delete("n = 1")
    assert rows_of(table, "t", "k, n") == [(1, 2), (2, 3)]
    table.insert([{"k": 1, "n": 1}])
    table.rewrite_partition("", "SELECT * FROM _rows WHERE k = 1")
    assert rows_of(table, "t", "k, n") == [(1, 1), (1, 2)], "nor does a rewrite"


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("how", ["merge_query", "merging"])
def test_path_columns_are_visible_to_queries_and_not_stored(place: Any, how: str) -> None:
    query = "SELECT DISTINCT * FROM source_files WHERE d < '2027-01-01' AND u IS NOT NULL"
    options: dict[str, Any] = {"merge_query": query} if how == "merge_query" else {"merging": Dedup(by=("n",))}
    table = make(place, path_columns={"d": "DATE", "u": "VARCHAR"}, **options)
    for n in (1, 1, 2):
        table.insert([{"n": n, "_partition": f"d=2026-11-2{day}/u=a b"} for day in (1, 2)])
    assert table.merge().new_parts == 2
    day = "2026-11-21"
    assert rows_of(table, "t", "n, d::VARCHAR, u", where=f"d = '{day}'") == [(1, day, "a b"), (2, day, "a b")]
    assert table.schema() == {"n": "BIGINT"}
    [path, _] = table.snapshot().partitions()
    table.rewrite_partition(path, "SELECT n + day(d) AS n FROM _rows")
    assert rows_of(table, "t", "n", where=f"d = '{day}'") == [(22,), (23,)]
    assert table.snapshot().partitions() == [path, path.replace(day, "2026-11-22")]
    check_sound(table.handle.store)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_rows_that_chose_another_partition_than_computed_stay_where_they_are(memory: Any) -> None:
    table = make(memory, partition_by=("k",), merging=Dedup(by=("n",)))
    for _ in range(2):
        table.insert([{"k": 1, "n": 1, "_partition": "k=7"}])
    table.merge()
    assert table.snapshot().partitions() == ["k=7"]
    assert rows_of(table, "t") == rows_of(table, "final") == [(1, 1)]
    with pytest.raises(InvalidBatch, match="1 of 1 rows"):
        table.rewrite_partition("k=7", "SELECT 7 AS k, n FROM _rows")


# ------------------------------------------------------------------------------------------ answers that do not fit

BAD_ANSWERS: list[tuple[str, type[IceDBError], str]] = [
    ("SELECT k, sum(n) FROM source_files GROUP BY k", InvalidQuery, r"AS name"),
    ("SELECT k, n AS other FROM source_files", InvalidQuery, r"column 'other'.*AS"),
    ("SELECT k, n, n FROM source_files", InvalidQuery, r"column 'n' twice"),
    ("SELECT k, s FROM source_files", InvalidQuery, r"drops the column 'n'"),
    ("SELECT n, s FROM source_files", InvalidQuery, r"drops the column 'k'"),
    ("SELECT k + 10 AS k, n FROM source_files", InvalidBatch, r"2 of 2 rows that merge_query.*'tens=0'.*'tens=1'"),
    ("SELECT NULL AS k, n FROM source_files", InvalidBatch, r"outside 'tens=0'"),
    ("SELECT k, n + 0.5 AS n FROM source_files", SchemaConflict, r"'n' of 'tens=0' as DECIMAL.*BIGINT.*1\.5"),
    ("SELECT k, (n + 0.5)::DOUBLE AS n FROM source_files", SchemaConflict, r"as DOUBLE.*BIGINT.*1\.5"),
    ("SELECT k, sum(n) * 9223372036854775807 AS n FROM source_files GROUP BY k", SchemaConflict, r"HUGEINT.*BIGINT"),
    ("SELECT k, n::VARCHAR AS n FROM source_files", SchemaConflict, r"BIGINT in the table and VARCHAR"),
    ("SELECT k, n, [s] AS s FROM source_files", SchemaConflict, r"VARCHAR\[\]"),
    ("SELECT k, missing AS n FROM source_files", InvalidQuery, r"merge_query 'SELECT.*'tens=0'.*cannot be answered"),
    ("SELECT k, CAST(s AS BIGINT) AS n FROM source_files", InvalidQuery, r"'tens=0'.*cannot be answered"),
    ("SELECT k, n, error('no ' || n) AS s FROM source_files", InvalidQuery, r"cannot be answered.*no "),
    ("SELECT tens FROM source_files", InvalidQuery, r"drops the column"),
    ("SELECT k, n FROM source_files; DROP TABLE source_files", InvalidQuery, r"statements"),
    ("SELECT k, n FROM t", InvalidQuery, r"reads 't'"),
]  # fmt: skip


@pytest.mark.sampled(cases=6, days=3)
@pytest.mark.parametrize(("query", "error", "message"), BAD_ANSWERS)
def test_an_invalid_result_changes_nothing(memory: Any, query: str, error: type[IceDBError], message: str) -> None:
    table = _table_with_query(memory, query)
    before = table.handle.store.list("")
    with pytest.raises(error, match=message) as raised:
        table.merge()
    assert str(raised.value).startswith("memory://")
    assert table.handle.store.list("") == before
    assert rows_of(table, "t", "k, n") == [(1, 1), (2, 2)]


def _table_with_query(place: Any, query: str, **options: Any) -> Table:
    """Return a table with two parts to merge, and a query that was not checked at creation."""
    spec = TableSpec(id="test", partition_by=("k // 10 AS tens",), sort_by=("n",), merge_query=query, **options)
    plain = make(place, partition_by=spec.partition_by, sort_by=spec.sort_by)
    for n in (1, 2):
        plain.insert([{"k": n, "n": n, "s": "x"}])
    return Table(plain.handle.with_spec(spec))  # opening a stored one would refuse it


def test_a_fraction_without_a_rest_may_become_an_integer(memory: Any) -> None:
    table = _table_with_query(memory, "SELECT k, (n * 2.0)::DOUBLE AS n, NULL AS s FROM source_files")
    table.merge()
    assert rows_of(table, "t", "k, n, s") == [(1, 2, None), (2, 4, None)]
    assert table.schema() == {"k": "BIGINT", "n": "BIGINT", "s": "VARCHAR"}


@pytest.mark.long
def test_required_columns_stay(memory: Any) -> None:
    for query, message in (
        ("SELECT k, n FROM source_files", "drops the column 's'"),
        ("SELECT k, n, NULL AS s FROM source_files", r"one of \['s'\] is null"),
    ):
        table = _table_with_query(memory.below(f"q{len(query)}"), query, required=("s",))
        with pytest.raises(InvalidQuery, match=message):
            table.merge()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_programs_of_v3_are_only_warned(memory: Any) -> None:
    table = _table_with_query(memory, "SELECT k, s FROM read_parquet(?, hive_partitioning=1)")
    state = table.handle.read()
    plan = plan_merge([table.handle.part(m) for m in state.live])
    with pytest.warns(UserWarning, match=r"merge_query drops \['n'\]"):
        carry_out(table.handle, state, plan, lenient=True)
    assert rows_of(table, "t", "k, n, s") == [(1, None, "x"), (2, None, "x")]
    with pytest.warns(UserWarning, match=r"the query drops \['n'\]"):
        rewrite_partition(
            table.handle, "tens=0", "SELECT k FROM _rows",
            writer=lambda *a, dry_run: write_answer(*a, dry_run=dry_run, lenient=True),
        )  # fmt: skip


# ------------------------------------------------------------------------------------------ queries of attackers

ATTACKS = [
    "SELECT k, n, s FROM read_text('{canary}')",
    "SELECT k, n, content AS s FROM source_files, read_text('{canary}')",
    "SELECT k, n, s FROM '{canary}'",
    "SELECT k, n, (SELECT content FROM read_blob('{canary}')) AS s FROM source_files",
    "SELECT k, n, s FROM source_files WHERE EXISTS (SELECT 1 FROM glob('{folder}/*'))",
    "COPY (SELECT * FROM source_files) TO '{folder}/stolen'",
    "SELECT k, n, s FROM source_files; COPY source_files TO '{folder}/stolen'",
    "ATTACH '{folder}/new.db' AS a",
    "INSTALL httpfs",
    "LOAD '{folder}/x.duckdb_extension'",
    "SET memory_limit = '1TB'",
    "PRAGMA enable_external_access",
    "SELECT k, n, getenv('HOME') AS s FROM source_files",
    "SELECT k, n, current_setting('temp_directory') AS s FROM source_files",
    "SELECT k, n, name AS s FROM source_files, duckdb_settings()",
    "SELECT k, n, table_name AS s FROM source_files, information_schema.tables",
    "SELECT k, n, s FROM query('SELECT * FROM read_text(''{canary}'')')",
    "SELECT k, n, s FROM query_table('{canary}')",
    "SELECT k, n, s FROM read_parquet('http://127.0.0.1:{port}/x.parquet')",
    "SELECT k, n, s FROM 's3://bucket/x.parquet'",
    "SELECT k, n, s FROM read_parquet(?)",
    "SELECT k, n, s FROM /* source_files */ read_csv('{canary}')",
]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("way", ["merge_query", "rewrite", "rewrite of v3"])
def test_no_query_leaves_the_sandbox(memory: Any, tmp_path: Path, listener: Listener, attack: str, way: str) -> None:
    canary = tmp_path / "canary.csv"
    canary.write_text("k,n,s\n1,1,secret-of-the-host\n")
    sql = attack.format(canary=canary, folder=tmp_path, port=listener.port)
    if way == "rewrite of v3" and "?" in attack:
        return  # that is how such programs name the rows
    table = _table_with_query(memory, sql if way == "merge_query" else "")
    writer = partial(write_answer, lenient="v3" in way, new_columns=True)
    before = table.handle.store.list("")
    act = (
        table.merge
        if way == "merge_query"
        else partial(rewrite_partition, table.handle, "tens=0", sql.replace("source_files", "_rows"), writer=writer)
    )
    with pytest.raises(InvalidQuery) as raised:
        act()
    assert "secret-of-the-host" not in str(raised.value)
    assert table.handle.store.list("") == before
    assert [p.name for p in tmp_path.iterdir()] == ["canary.csv"]
    assert listener.accepted == 0


class Listener:
    """A port of this machine that must get no connection."""

    def __init__(self) -> None:
        self.accepted = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.wait, daemon=True).start()

    def wait(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.socket.accept()[0].close()
                self.accepted += 1


@pytest.fixture
def listener() -> Iterator[Listener]:
    waiting = Listener()
    yield waiting
    waiting.socket.close()


def test_a_forged_merging_strategy_is_not_run_as_sql(memory: Any) -> None:
    table = _table_with_query(memory, "")
    store = table.handle.store
    key = store.location.keys.spec
    spec = json.loads(store.get(key).body)
    spec["merging"] = {"kind": "dedup", "by": ["k\" ORDER BY (SELECT content FROM read_text('/etc/passwd')) --"]}
    store.delete([key])
    store.create(key, json.dumps(spec).encode())
    attacked = Table(open_handle(store))
    before = rows_of(attacked, "t")
    with pytest.raises(UnknownColumn, match="the key of a row"):
        attacked.merge()
    assert rows_of(attacked, "t") == before


# ------------------------------------------------------------------------------------------ memory, faults


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_several_merges_share_a_small_memory(memory: Any) -> None:
    table = make(
        memory, partition_by=("k",), sort_by=("n",), row_group_rows=20_480,
        merge_query="SELECT k, n, any_value(s) AS s FROM source_files GROUP BY k, n",
    )  # fmt: skip
    rows = 300_000
    for _ in range(2):
        table.insert(
            pa.table(
                {"k": pa.array([n % 4 for n in range(rows)]), "n": range(rows), "s": [f"{n:0>80}" for n in range(rows)]}
            )
        )
    report = table.merge(memory_bytes=MEMORY_BYTES_MIN)
    assert (report.merged_parts, report.new_parts, report.rows) == (8, 4, rows)
    assert table.query("SELECT count(*), sum(n), min(len(s)) FROM t").fetchall() == [(rows, sum(range(rows)), 80)]


def test_the_engine_gets_the_query(memory: Any) -> None:
    table = make(memory, merging=Dedup(by=("k",)))
    for _ in range(2):
        table.insert([{"k": 1}])
    seen: list[Rewrite] = []

    def rewriter(handle: Any, rewrites: Any, schema: Any) -> list[Marker | None]:
        seen.extend(rewrites)
        return rewrite_parts(handle, rewrites, schema)

    handle = table.handle
    state = handle.read()
    carry_out(handle, state, plan_merge([handle.part(m) for m in state.live]), rewriter=rewriter)
    assert [r.query.query.relation for r in seen if r.query] == ["source_files"]


def world(store: ClockedStore, clock: ManualClock) -> Table:
    spec = TableSpec(id="test", partition_by=("p",), sort_by=("k",), merging=Dedup(by=("k",)))
    table = Table(create_handle(store, spec, clock=clock))
    for p in (0, 1):
        for _ in range(2):
            table.insert([{"p": p, "k": k} for k in (2, 1)])
    clock.advance(1_000)
    return table


@pytest.mark.long
def test_rows_that_are_appended_during_the_merge_survive_it(clocked: ClockedStore, clock: ManualClock) -> None:
    other = world(clocked, clock)
    store = FaultyStore(clocked)
    late = [{"p": 0, "k": 1}, {"p": 0, "k": 3}]
    act_before(store, lambda: other.insert(late), kind="create", key="_claims/epoch")
    open_table(store, clock).merge()
    assert rows_of(other, "t", "p, k") == [(0, 1), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    assert rows_of(other, "final", "p, k") == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    check_sound(clocked)


@pytest.mark.sampled(cases=1, days=6)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.DELAY])
def test_a_crash_at_any_request_leaves_the_table_whole(fault: Fault) -> None:
    after = [(p, k) for p in (0, 1) for k in (1, 2)]

    def read(table: Table) -> list[Any]:
        assert rows_of(table, "final", "p, k") == after
        return rows_of(table, "t", "p, k")

    check_atomic(world, fault, Table.merge, read, after)


@pytest.mark.long
def test_decimals_keep_their_digits(memory: Any) -> None:
    """The sum of DECIMAL(5,2) is DECIMAL(38,2)."""
    table = make(memory, partition_by=("k",), merge_query="SELECT k, sum(d) AS d FROM source_files GROUP BY k")
    two = duckdb.sql("SELECT k, d::DECIMAL(5,2) AS d FROM (VALUES (1, 0.01), (2, 999.99)) AS v(k, d)")
    table.insert(two)
    table.insert(duckdb.sql("SELECT 1 AS k, 0.02::DECIMAL(5,2) AS d"))
    table.merge()
    assert rows_of(table, "t", "k, d") == [(1, Decimal("0.03")), (2, Decimal("999.99"))]
    assert table.schema()["d"] == "DECIMAL(5,2)"
    table.insert(two)
    with pytest.raises(SchemaConflict, match=r"'d' of 'k=2'.*DECIMAL\(5,2\), which cannot hold 1999\.98"):
        table.merge()
