"""`Table` on every kind of store: create, open, insert, overwrite, read, time travel."""

from __future__ import annotations

import gc
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from time import sleep
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import MissingPart, SnapshotExpired, TableExists, TableNotFound
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.testing import ClockedStore, ManualClock, check_sound, create_table, open_table
from tests.support.tables.attached_tables import created as make

DAY = "strftime(ts, '%Y-%m-%d') AS d"
ROWS = [
    {"ts": datetime(2026, 11, 21, 12), "user": "b", "n": 2},
    {"ts": datetime(2026, 11, 21, 9), "user": "a", "n": 1},
    {"ts": datetime(2026, 11, 22, 9), "user": "a", "n": 3},
]


def listing(place: Any) -> list[tuple[str, int]]:
    store = open_store(parse_location(place.uri, place.storage_options))
    keys = store.location.keys
    prefixes = (keys.log_prefix, keys.data_prefix, keys.claims_prefix)
    return [(i.key, i.bytes) for prefix in prefixes for i in store.list(prefix)]


# ------------------------------------------------------------------------------------------ create and open


def test_a_table_is_created_once_and_opened_often(place: Any) -> None:
    assert not Table.exists(place.uri, storage_options=place.storage_options)
    with pytest.raises(TableNotFound, match=r"Table\.create") as missing:
        Table.open(place.uri, storage_options=place.storage_options)
    assert place.uri in str(missing.value)
    assert listing(place) == []
    table = make(place, partition_by=[DAY], sort_by=["user"])
    assert Table.exists(place.uri, storage_options=place.storage_options)
    assert Table.open(place.uri, storage_options=place.storage_options).spec == table.spec
    before = listing(place)
    with pytest.raises(TableExists, match=r"Table\.open"):
        make(place)
    assert listing(place) == before


def test_a_new_table_is_empty(place: Any) -> None:
    table = make(place, partition_by=[DAY])
    snapshot = table.snapshot()
    assert (snapshot.parts, snapshot.rows, snapshot.partitions(), dict(snapshot.schema)) == ((), 0, [], {})
    assert table.query("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_no_table_is_created_over_a_log_without_a_spec(place: Any) -> None:
    store = open_store(parse_location(place.uri, place.storage_options))
    store.create(store.location.keys.log_file(1_700_000_000_000, merged=False, writer="v3"), b"{}")
    before = listing(place)
    with pytest.raises(TableExists, match=r"_table\.json"):
        make(place)
    assert listing(place) == before


def test_two_tables_beside_each_other_do_not_see_each_other(place: Any) -> None:
    one, two = make(place.below("t")), make(place.below("t2"))
    one.insert([{"a": 1}])
    assert two.query("SELECT count(*) FROM t").fetchall() == [(0,)]
    two.insert([{"a": 2}])
    assert one.query("FROM t").fetchall() == [(1,)]


# ------------------------------------------------------------------------------------------ insert


def inputs() -> dict[str, Any]:
    table = pa.table({"a": pa.array([1, 2], pa.int64()), "s": pa.array(["x", None])})
    return {
        "dicts": [{"a": 1, "s": "x"}, {"a": 2}],
        "tuple of dicts": ({"a": 1, "s": "x"}, {"a": 2, "s": None}),
        "pyarrow table": table,
        "record batch": table.to_batches()[0],
        "reader": table.to_reader(max_chunksize=1),
        "pandas": pd.DataFrame({"a": [1, 2], "s": ["x", None]}),
        "polars": pl.DataFrame({"a": [1, 2], "s": ["x", None]}),
        "duckdb": duckdb.sql("SELECT 1::BIGINT AS a, 'x' AS s UNION ALL SELECT 2, NULL ORDER BY a"),
    }


@pytest.mark.parametrize("kind", list(inputs()))
def test_rows_of_every_kind_become_a_part(memory: Any, kind: str) -> None:
    table = make(memory)
    commit = table.insert(inputs()[kind])
    assert (commit.committed, commit.rows, len(commit.parts)) == (True, 2, 1)
    assert table.query("FROM t ORDER BY a").fetchall() == [(1, "x"), (2, None)]
    assert table.schema() == {"a": "BIGINT", "s": "VARCHAR"}


def test_inserts_add_parts_with_partitions_rows_and_bytes(place: Any) -> None:
    table = make(place, partition_by=[DAY], sort_by=["user", "ts"])
    first = table.insert(ROWS)
    table.insert(ROWS)
    assert [p.partition for p in first.parts] == ["d=2026-11-21", "d=2026-11-22"]
    assert [p.values for p in first.parts] == [{"d": "2026-11-21"}, {"d": "2026-11-22"}]
    snapshot = table.snapshot()
    assert (snapshot.rows, len(snapshot.parts), len({p.key for p in snapshot.parts})) == (6, 4, 4)
    assert sum(p.bytes for p in snapshot.parts) == snapshot.bytes
    assert table.query("SELECT sum(n) FROM t").fetchall() == [(12,)]
    check_sound(table.handle.store)


def test_another_handle_sees_a_commit_at_once(place: Any) -> None:
    writer = make(place)
    reader = Table.open(place.uri, storage_options=place.storage_options)
    assert reader.snapshot().rows == 0
    writer.insert([{"a": 1}])
    assert reader.query("FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("empty", [[], pa.table({"a": pa.array([], pa.int64())}), pl.DataFrame({"new": []})])
def test_an_empty_batch_makes_no_commit(place: Any, empty: Any) -> None:
    table = make(place)
    table.insert([{"a": 1}])
    before = listing(place)
    commit = table.insert(empty)
    assert (commit.committed, commit.key, commit.rows, commit.parts) == (False, None, 0, ())
    assert listing(place) == before
    assert table.schema() == {"a": "BIGINT"}


def test_rows_are_sorted_inside_each_part(place: Any) -> None:
    table = make(place, partition_by=["k"], sort_by=["s", "n"])
    rows = [{"k": i % 3, "s": "xyz"[(i * 7) % 3], "n": (i * 31) % 100} for i in range(300)]
    table.insert(rows)
    for part in table.snapshot().parts:
        body = table.handle.store.get(part.key).body
        read = pq.read_table(pa.BufferReader(body)).to_pylist()
        assert [(r["s"], r["n"]) for r in read] == sorted((r["s"], r["n"]) for r in read)
        assert {r["k"] for r in read} == {int(part.values["k"] or -1)}
        assert len(read) == part.rows == 100


def test_markers_have_row_counts_and_short_statistics_of_the_sort_columns(memory: Any) -> None:
    table = make(memory, sort_by=["n", "s", "at"])
    long = "x" * 1000
    table.insert(
        [
            {"n": 5, "s": long, "at": datetime(2026, 1, 2, tzinfo=UTC), "other": 1},
            {"n": -2, "s": None, "at": datetime(2026, 1, 1, tzinfo=UTC), "other": 2},
        ]
    )
    [marker] = table.handle.read().live
    assert marker.rows == 2
    assert (
        msgspec.json.decode(bytes(marker.stats))
        == {  # type: ignore[arg-type]
            "n": [-2, 5, 0],
            "s": [long[:64], long[:63] + "y", 1],
            "at": ["2026-01-01 00:00:00+00", "2026-01-02 00:00:00+00", 0],
        }
    )


def test_a_part_has_the_compression_and_row_groups_of_the_table(local: Any) -> None:
    table = make(local, compression="snappy", row_group_rows=2_048)
    table.insert(pa.table({"a": list(range(10_000))}))
    [part] = table.snapshot().parts
    meta = pq.ParquetFile(part.path).metadata
    assert meta.row_group(0).column(0).compression == "SNAPPY"
    assert meta.num_row_groups == 5


# ------------------------------------------------------------------------------------------ schema


def test_a_new_column_is_null_for_older_rows(place: Any) -> None:
    table = make(place)
    assert table.insert([{"a": 1}]).epoch == 1  # the first schema needs an exclusive commit
    assert table.insert([{"a": 2}]).epoch is None  # a plain append
    assert table.insert([{"a": 3, "b": "x"}]).epoch == 2
    assert table.insert([{"b": "y"}]).epoch is None  # a batch may lack columns
    assert table.schema() == {"a": "BIGINT", "b": "VARCHAR"}
    assert table.query("SELECT a, b FROM t ORDER BY ALL NULLS LAST").fetchall() == [
        (1, None),
        (2, None),
        (3, "x"),
        (None, "y"),
    ]


def test_an_older_handle_uses_a_new_column_of_another_handle(memory: Any) -> None:
    one = make(memory)
    one.insert([{"a": 1}])
    two = Table.open(memory.uri)
    two.insert([{"a": 2, "b": 1}])
    commit = one.insert([{"a": 3, "b": 2}])
    assert commit.epoch is None, "the other handle added the column, so no exclusive commit is needed"
    assert one.query("SELECT sum(b) FROM t").fetchall() == [(3,)]


TYPES: list[tuple[str, pa.Array, list[Any]]] = [
    ("BOOLEAN", pa.array([True, None]), [True, None]),
    ("TINYINT", pa.array([-128, 127], pa.int8()), [-128, 127]),
    ("UBIGINT", pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
    ("FLOAT", pa.array([1.5, None], pa.float32()), [1.5, None]),
    ("DOUBLE", pa.array([1e300, None]), [1e300, None]),
    ("DECIMAL(38,10)", pa.array([Decimal("1.5"), None], pa.decimal128(38, 10)), [Decimal("1.5000000000"), None]),
    ("DECIMAL(9,2)", pa.array([Decimal("-0.01"), None], pa.decimal128(9, 2)), [Decimal("-0.01"), None]),
    ("VARCHAR", pa.array(["ü 'quoted' \n", ""]), ["ü 'quoted' \n", ""]),
    ("VARCHAR", pa.array(["x", None], pa.large_string()), ["x", None]),
    ("VARCHAR", pa.array(["x", None]).dictionary_encode(), ["x", None]),
    ("BLOB", pa.array([b"\x00\xff", None]), [b"\x00\xff", None]),
    ("DATE", pa.array([date(1969, 1, 1), None]), [date(1969, 1, 1), None]),
    ("TIME", pa.array([time(1, 2, 3), None]), [time(1, 2, 3), None]),
    ("TIMESTAMP", pa.array([datetime(1950, 1, 1), None], pa.timestamp("s")), [datetime(1950, 1, 1), None]),
    ("TIMESTAMP", pa.array([datetime(2026, 1, 1), None], pa.timestamp("ms")), [datetime(2026, 1, 1), None]),
    ("TIMESTAMP", pa.array([datetime(2026, 1, 1, 1, 1, 1, 5), None]), [datetime(2026, 1, 1, 1, 1, 1, 5), None]),
    ("TIMESTAMP_NS", pa.array([1, None], pa.timestamp("ns")), [datetime(1970, 1, 1), None]),
    (
        "TIMESTAMP WITH TIME ZONE",
        pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
        [datetime(2026, 1, 1, tzinfo=UTC), None],
    ),
    ("BIGINT[]", pa.array([[1, None], []]), [[1, None], []]),
    ("VARCHAR[][]", pa.array([[["x"]], None]), [[["x"]], None]),
    (
        'STRUCT(a BIGINT, "b c" VARCHAR)',
        pa.array([{"a": 1, "b c": "x"}, None]),
        [{"a": 1, "b c": "x"}, None],
    ),
    ("MAP(VARCHAR, BIGINT)", pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [{"k": 1}, None]),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "array", "values"), TYPES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(TYPES)])
def test_a_column_keeps_its_type_and_values_in_merges(
    memory: Any, name: str, array: pa.Array, values: list[Any]
) -> None:
    table = make(memory, sort_by=["i"])
    table.insert(pa.table({"i": [0, 1], "c": array}))
    table.insert(pa.table({"i": [2, 3], "c": array}))
    for _ in ("before", "after the merge"):
        assert table.schema() == {"i": "BIGINT", "c": name}
        relation = table.query("SELECT c FROM t ORDER BY i")
        assert str(relation.types[0]) == name
        assert [row[0] for row in relation.fetchall()] == values * 2
        assert table.merge().merged_parts in (2, 0)


def test_a_uuid_stays_a_uuid(memory: Any) -> None:
    table = make(memory, sort_by=["id"])
    value = uuid.UUID("12345678-1234-5678-1234-567812345678")
    for _ in range(2):
        table.insert(pa.table({"id": pa.array([value.bytes], pa.uuid())}))
    table.merge()
    assert table.schema() == {"id": "UUID"}
    assert table.query("FROM t").fetchall() == [(value,), (value,)]


# ------------------------------------------------------------------------------------------ partitions


def test_partition_columns_are_visible_with_the_type_of_their_expression(place: Any) -> None:
    table = make(place, partition_by=["CAST(ts AS DATE) AS day", "n % 2 = 0 AS even", "user"])
    table.insert(ROWS)
    relation = table.query("SELECT day, even, count(*) FROM t GROUP BY ALL ORDER BY ALL")
    assert [str(t) for t in relation.types] == ["DATE", "BOOLEAN", "BIGINT"]
    assert relation.fetchall() == [
        (date(2026, 11, 21), False, 1),
        (date(2026, 11, 21), True, 1),
        (date(2026, 11, 22), False, 1),
    ]
    assert dict(table.snapshot().partition_schema) == {"day": "DATE", "even": "BOOLEAN", "user": "VARCHAR"}


@pytest.mark.parametrize(
    "value", ["00123", "a b%2Fc", "a/b", "..", "NULL", "__HIVE_DEFAULT_PARTITION__", "", "ü=1", None]
)
def test_partition_values_are_read_back_and_data_columns_hide_them(place: Any, value: str | None) -> None:
    table = make(place, partition_by=["code", "n AS m", "code AS part"])
    table.insert(pa.table({"code": pa.array([value], pa.string()), "n": [7], "s": ["x"]}))
    assert table.query("SELECT code, n, m, part FROM t").fetchall() == [(value, 7, 7, value)]
    [part] = table.snapshot().parts
    assert part.values == {"code": value, "m": "7", "part": value}


def test_a_predicate_over_partition_columns_selects_files(place: Any) -> None:
    table = make(place, partition_by=["CAST(ts AS DATE) AS day", "user"])
    table.insert(ROWS)
    snapshot = table.snapshot()
    files = snapshot.files("day < DATE '2026-11-22' AND user = 'a'")
    assert [p.partition for p in files] == ["day=2026-11-21/user=a"]
    assert len(snapshot.files()) == 3
    assert snapshot.partitions("user = 'a'") == ["day=2026-11-21/user=a", "day=2026-11-22/user=a"]
    assert snapshot.query("SELECT n FROM t", where="day = '2026-11-22'").fetchall() == [(3,)]
    assert snapshot.query("SELECT n FROM t", where="false").fetchall() == []


def test_a_filter_on_a_partition_column_skips_files(local: Any) -> None:
    table = make(local, partition_by=["n % 10 AS k"])
    table.insert([{"n": n} for n in range(100)])
    plan = table.query("EXPLAIN ANALYZE SELECT * FROM t WHERE k = 3").fetchall()[0][1]
    assert "Scanning Files: 1/10" in plan


@pytest.mark.long
def test_columns_of_every_name_are_read_from_one_part_and_from_several(local: Any) -> None:
    # fmt: off
    names = ['a"b', "a'b", "a\\b", 'a\\"b', "{x}", "[y]", "a,b", "a=b", "a: b", " before", "after ", "NULL",
             "\n new\tline", "é日", "(p)", "filename", "Filename2", "%s", "\\", '"', "''", "x;y", "$1",
             "file_row_number", "t"]
    # fmt: on
    table = make(local, partition_by=['"a=b" % 2 AS p'])
    rows = [{name: 100 * n + k for k, name in enumerate(names)} for n in range(4)]
    for n, row in enumerate(rows):
        table.insert([row])
        result = table.query("FROM t ORDER BY 1")
        assert result.columns == [*names, "p"]
        assert [values[:-1] for values in result] == [tuple(row.values()) for row in rows[: n + 1]]


def test_a_filter_on_a_data_column_that_is_also_the_partition_finds_its_rows(local: Any) -> None:
    table = make(local, partition_by=["k"])
    table.insert([{"k": n % 10, "n": n} for n in range(100)])
    assert table.query("SELECT count(*) FROM t WHERE k = 3").fetchall() == [(10,)]


def test_duckdb_alone_reads_the_parts_by_their_paths(local: Any) -> None:
    table = make(local, partition_by=[DAY])
    table.insert(ROWS)
    paths = [p.path for p in table.snapshot().parts]
    sql = f"SELECT d, sum(n) FROM read_parquet({paths}, hive_types_autocast = false) GROUP BY d ORDER BY d"
    assert duckdb.sql(sql).fetchall() == [("2026-11-21", 3), ("2026-11-22", 3)]


# ------------------------------------------------------------------------------------------ overwrite


def test_an_overwrite_replaces_the_whole_table(place: Any) -> None:
    table = make(place, partition_by=[DAY])
    table.insert(ROWS)
    commit = table.overwrite([{"ts": datetime(2026, 12, 1), "user": "z", "n": 9}])
    assert (len(commit.tombstoned), commit.rows) == (2, 1)
    assert table.query("SELECT n FROM t").fetchall() == [(9,)]
    check_sound(table.handle.store)


@pytest.mark.parametrize("chosen", [["d=2026-11-21"], "d = '2026-11-21'", "d < '2026-11-22'"])
def test_an_overwrite_of_partitions_leaves_the_others(place: Any, chosen: Any) -> None:
    table = make(place, partition_by=[DAY])
    table.insert(ROWS)
    table.overwrite([{"ts": datetime(2026, 11, 21), "user": "z", "n": 9}], partitions=chosen)
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(3,), (9,)]


def test_an_overwrite_may_fill_a_partition_that_is_empty(memory: Any) -> None:
    table = make(memory, partition_by=[DAY])
    table.insert(ROWS[2:])
    table.overwrite(ROWS[:1], partitions=["d=2026-11-21"])
    assert table.snapshot().rows == 2


def test_an_overwrite_may_add_a_column(memory: Any) -> None:
    table = make(memory)
    table.insert([{"a": 1}])
    table.overwrite([{"a": 2, "b": "x"}])
    assert table.query("SELECT a, b FROM t").fetchall() == [(2, "x")]
    assert table.snapshot(as_of=table.snapshot().as_of_ms).schema == {"a": "BIGINT", "b": "VARCHAR"}


# ------------------------------------------------------------------------------------------ snapshots and time


def test_a_snapshot_has_the_rows_of_its_time(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    times = []
    for n in range(3):
        table.insert([{"k": n, "n": n}])
        times.append(clock.now_ms())
        clock.advance(1_000)
    table.drop_partitions(["k=0"])
    for count, at in enumerate(times, start=1):
        assert table.snapshot(as_of=at).rows == count
        assert table.snapshot(as_of=datetime.fromtimestamp(at / 1000, UTC)).rows == count
    assert table.snapshot(as_of=times[0] - 1).rows == 0
    assert table.snapshot().rows == 2
    assert table.query("SELECT n FROM t ORDER BY n", as_of=times[1]).fetchall() == [(0,), (1,)]


def test_a_snapshot_from_the_time_of_the_next_commit_can_be_repeated(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    table.insert([{"k": n} for n in range(3)])
    clock.advance(5)
    before = table.snapshot()
    table.drop_partitions(["k=0"])  # the clock stands still
    table.insert([{"k": 4}])
    assert table.snapshot().rows == 3
    assert table.snapshot(as_of=before.as_of_ms).id == before.id


def test_the_id_of_a_snapshot_identifies_its_content(memory: Any) -> None:
    table = make(memory)
    table.insert([{"a": 1}])
    first = table.snapshot()
    assert table.snapshot().id == first.id
    table.insert([{"a": 1}])
    assert table.snapshot().id != first.id
    assert first.rows == 1, "later commits do not change a snapshot"
    assert "rows=1" in repr(first)


def test_the_latest_snapshot_contains_rows_from_a_fast_clock(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    table.insert([{"a": 1}])
    open_table(clocked, clock.skewed(30_000)).insert([{"a": 2}])
    snapshot = table.snapshot()
    assert snapshot.rows == 2
    assert snapshot.as_of_ms == clock.now_ms() + 30_000
    assert table.snapshot(as_of=clock.now_ms()).rows == 1
    assert table.snapshot(as_of=snapshot.as_of_ms + 1).rows == 2


def test_a_deleted_live_part_raises_missing_part(place: Any) -> None:
    table = make(place)
    table.insert([{"a": 1}])
    table.insert([{"a": 2}])
    [gone, _] = table.snapshot().parts
    table.handle.store.delete([gone.key])
    for read in (lambda: table.query("FROM t").fetchall(), table.merge):
        with pytest.raises(MissingPart, match="restore it") as caught:
            read()
        assert gone.key in str(caught.value)
        assert "secret" not in str(caught.value).lower()
    assert len(table.handle.store.list(table.handle.keys.data_prefix)) == 1, "the failed merge left nothing behind"


def test_a_snapshot_whose_parts_were_cleaned_up_has_expired(place: Any) -> None:
    table = make(place)
    table.insert([{"a": 1}])
    old = table.snapshot()
    sleep(0.005)  # a snapshot of this millisecond is not repeatable before it is over
    table.overwrite([{"a": 2}])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    with pytest.raises(SnapshotExpired, match="new snapshot"):
        old.query("FROM t").fetchall()
    with pytest.raises(SnapshotExpired):
        table.snapshot(as_of=old.as_of_ms)


@pytest.mark.long
def test_a_query_result_outlives_its_table_object(place: Any) -> None:
    make(place).insert([{"a": 1}])
    relation = Table.open(place.uri, storage_options=place.storage_options).query("FROM t")
    gc.collect()
    assert relation.fetchall() == [(1,)]


@pytest.mark.long
def test_a_table_of_odd_names_and_places(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "a folder with 'quotes' & ünïcode %20", partition_by=['"my col" AS "p q"'], sort_by=["s'"]
    )
    table.insert([{"my col": "x y", "s'": 1, 'd"q': 2}])
    table.insert([{"my col": "x y", "s'": 0, 'd"q': 3}])
    table.merge()
    assert table.query('SELECT "p q", "s\'", "d""q" FROM t').fetchall() == [("x y", 0, 3), ("x y", 1, 2)]
