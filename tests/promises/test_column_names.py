"""A column may have any name, including those in the SQL of the library or DuckDB, and results stay the same.

The names are read from the sources (`sql_names`), so that a new alias is tested as a column at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from icedb import Dedup, Table
from icedb.cli import app
from icedb.engines import arrow
from icedb.engines import chdb as reader_chdb
from icedb.engines import datafusion as reader_datafusion
from icedb.engines import duckdb as reader_duckdb
from icedb.engines import pandas as reader_pandas
from icedb.engines import polars as reader_polars
from icedb.engines.clickhouse.types import quote_name as clickhouse_name
from icedb.errors import InvalidBatch, InvalidOption, InvalidPartitionExpression
from icedb.sql.connections import quote_name
from icedb_dagster import IceDBIOManager, IceDBResource
from tests.support.attacks.sql_names import NAMES

Row = dict[str, Any]

# Those that were found to change an answer, and one of each kind; the rest has its turn under `slow`.
FEW = ("v", "Filename", "answer")
OTHERS = sorted({*NAMES, *map(str.title, NAMES)} - {*FEW})


def spelled(names: Sequence[str]) -> list[str]:
    """Return the names with every third in upper case, because DuckDB ignores case."""
    return [name.upper() if n % 3 == 2 else name for n, name in enumerate(names)]


def make_rows(names: Sequence[str], numbers: Sequence[int]) -> list[Row]:
    """Return rows with a number `k` as their key and distinct values in all other columns."""
    return [{"k": k, **{name: 1000 * (n + 1) + k for n, name in enumerate(names)}} for k in numbers]


def make(path: Path, names: Sequence[str], **options: Any) -> Table:
    options = {"partition_by": ["k % 2 AS odd"], "sort_by": [names[0]]} | options
    return Table.create(str(path), **options)


def stored(table: Table, relation: str = "t", **options: Any) -> list[Row]:
    return table.query(f"SELECT * EXCLUDE (odd) FROM {relation} ORDER BY k", **options).to_arrow().to_pylist()


def check(table: Table, expected: Sequence[Row]) -> None:
    """Check that the table has exactly these rows, each in its partition, and that verify reports no damage."""
    assert stored(table) == sorted(expected, key=lambda row: row["k"])
    assert table.query("SELECT count(*) FROM t WHERE odd <> k % 2").fetchall() == [(0,)]
    for odd in (0, 1):
        here = table.query("SELECT k FROM t ORDER BY k", where=f"odd = {odd}").fetchall()
        assert here == [(row["k"],) for row in sorted(expected, key=lambda row: row["k"]) if row["k"] % 2 == odd]


def insert_and_merge(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "merged", names)
    first, second = make_rows(names, range(6)), make_rows(names, range(6, 12))
    before = table.insert(first).created_ms
    table.insert(second)
    check(table, [*first, *second])
    diff = table.diff(before, rows=True)
    assert (diff.inserted_rows, diff.deleted_rows) == (6, 0)
    table.merge()
    assert len(table.snapshot().parts) == 2
    check(table, [*first, *second])
    assert table.verify(deep=True).problems == ()


def delete_and_rewrite(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "deleted", names)
    rows = make_rows(names, range(8))
    table.insert(rows[:4])
    table.insert(rows[4:])
    every = " AND ".join(f"t.{quote_name(n)} = {rows[3][n]}" for n in names)
    some = " OR ".join(f"t.{quote_name(n)} = {rows[4][n]}" for n in names)
    assert stored(table, where=every) == [rows[3]]
    assert table.delete(every).deleted_rows == 1
    assert table.delete(some).deleted_rows == 1
    left = [row for row in rows if row["k"] not in (3, 4)]
    check(table, left)
    [path] = table.snapshot().partitions("odd = 0")
    own = ", ".join(f"{quote_name(n)} + 1 AS {quote_name(n)}" for n in names)
    table.rewrite_partition(path, f"SELECT k, {own} FROM _rows WHERE k <> 6")
    check(table, [{n: v + (n != "k" and row["k"] % 2 == 0) for n, v in row.items()} for row in left if row["k"] != 6])


def import_files(tmp: Path, names: Sequence[str]) -> None:
    rows = make_rows(names, range(8))
    for row in rows:  # the same in all rows, so that a grouping by one of them has one group
        row |= {name: rows[0][name] for name in names}
    for odd in (0, 1):
        (tmp / f"files/odd={odd}").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows[odd::2]), tmp / f"files/odd={odd}/rows.parquet")
    table = make(tmp / "imported", names)
    table.import_files(tmp / "files", verify=True)
    check(table, rows)
    assert table.verify(deep=True).problems == ()
    (tmp / "mixed/odd=0").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp / "mixed/odd=0/rows.parquet")
    with pytest.raises(InvalidBatch, match="has rows of another partition"):
        table.import_files(tmp / "mixed")
    check(table, rows)


def insert_files(tmp: Path, names: Sequence[str]) -> None:
    rows = make_rows(names, range(6))
    whole = pa.Table.from_pylist(rows)
    table = make(tmp / "inserted", names)
    (tmp / "in").mkdir()
    pq.write_table(whole.slice(0, 2), tmp / "in" / "rows.parquet")
    pa.csv.write_csv(whole.slice(2, 2), tmp / "in" / "rows.csv")
    (tmp / "in" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[4:]))
    for file in sorted((tmp / "in").iterdir()):
        table.insert(file)
    check(table, rows)


def set_aside(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "strict", names)
    rows = make_rows(names, range(4))
    table.insert(rows[:2])
    misfit = {**rows[3], **dict.fromkeys(names, "none")}
    table.insert([rows[2], misfit], on_conflict="quarantine")
    check(table, rows[:3])
    [(row,)] = Table.open(str(tmp / "strict_quarantine")).query("SELECT row FROM t").fetchall()
    assert {n: str(v) for n, v in json.loads(row).items()} == {n: str(v) for n, v in misfit.items()}


def views_and_queries(tmp: Path, names: Sequence[str]) -> None:
    own = ", ".join(f"{quote_name(n)} + 0 AS {quote_name(n)}" for n in names)
    table = make(tmp / "source", names, insert_query=f"SELECT k, {own} FROM _rows")
    rows = make_rows(names, range(6))
    table.insert(rows[:3])
    view = table.create_view("seen", f"SELECT k, {own} FROM _rows", partition_by=["k % 2 AS odd"])
    table.insert(rows[3:])
    check(table, rows)
    check(view, rows)


def final(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "dedup", names, merging=Dedup(by=("k",)))
    rows = make_rows(names, range(4))
    table.insert(rows)
    table.insert(rows)
    assert stored(table, "final") == rows
    table.merge()
    check(table, rows)


def leave(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "exported", names)
    rows = make_rows(names, range(6))
    table.insert(rows)
    table.export_parquet(tmp / "all")
    table.export_parquet(tmp / "some", where=f"t.{quote_name(names[-1])} <= {rows[2][names[-1]]}")
    for folder, expected in (("all", rows), ("some", rows[:3])):
        files = pa.concat_tables(
            [pq.ParquetFile(f).read() for f in (tmp / folder).rglob("*.parquet")], promote_options="default"
        )
        assert sorted(files.select(["k", *names]).to_pylist(), key=lambda row: row["k"]) == expected
    table.export_delta()
    theirs = DeltaTable(table.uri).to_pyarrow_dataset().to_table()
    assert theirs.select(["k", *names]).sort_by("k").to_pylist() == rows


def read_elsewhere(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "read", names)
    rows = make_rows(names, range(6))
    table.insert(rows[:3])
    table.insert(rows[3:])
    with duckdb.connect() as con:
        reader_duckdb.attach(con, table, "events")
        every = " AND ".join(f"t.{quote_name(n)} = {rows[3][n]}" for n in names)
        assert con.sql(f"SELECT k FROM events AS t WHERE {every}").fetchall() == [(3,)]
        assert con.execute("SELECT k FROM events(filter := ?)", [every]).fetchall() == [(3,)]
        read_rows = con.sql("SELECT * EXCLUDE (odd) FROM events ORDER BY k").to_arrow_table().to_pylist()
        assert read_rows == rows
    batches = pa.Table.from_batches(arrow.record_batches(table.snapshot(), where="odd = 1"))
    assert batches.sort_by("k").drop_columns(["odd"]).to_pylist() == rows[1::2]
    for form in ("json", "jsonl", "csv"):
        done = CliRunner().invoke(
            app, ["query", table.uri, "SELECT * EXCLUDE (odd) FROM t ORDER BY k", "--format", form]
        )
        assert done.exit_code == 0, done.output
        if form == "json":
            assert json.loads(done.stdout) == rows
        elif form == "jsonl":
            assert [json.loads(line) for line in done.stdout.splitlines()] == rows
        else:
            assert done.stdout.splitlines()[1] == ",".join(map(str, rows[0].values()))
    assert sorted(row["k"] for row in table.changes().to_arrow().to_pylist()) == list(range(6))


def read_by_other_engines(tmp: Path, names: Sequence[str]) -> None:
    table = make(tmp / "engines", names)
    rows = make_rows(names, range(6))
    table.insert(rows[:3])
    table.insert(rows[3:])
    snapshot = table.snapshot()
    name, value = names[-1], rows[3][names[-1]]
    columns = ["k", *names]
    frame = reader_polars.scan(snapshot).select(columns)
    assert frame.sort("k").collect().to_dicts() == rows
    assert frame.filter(pl.col(name) == value).collect().to_dicts() == [rows[3]]
    assert reader_pandas.read(snapshot).sort_values("k")[columns].to_dict("records") == rows
    selected = ", ".join(map(quote_name, columns))
    ctx = datafusion.SessionContext()
    reader_datafusion.register(ctx, "events", snapshot)
    sql = f"SELECT {selected} FROM events"
    assert ctx.sql(f"{sql} ORDER BY k").to_arrow_table().to_pylist() == rows
    assert ctx.sql(f"{sql} WHERE {quote_name(name)} = {value}").to_arrow_table().to_pylist() == [rows[3]]
    selected = ", ".join(map(clickhouse_name, columns))
    sql = f"SELECT {selected} FROM t"
    where = f"t.{clickhouse_name(name)} = {value} AND t.odd = 1"
    if "_path" in names:  # ClickHouse reads the partition columns from its own column of that name
        with pytest.raises(InvalidOption, match="the column '_path' hides that of ClickHouse"):
            reader_chdb.query(sql, snapshot)
    else:
        assert reader_chdb.query(f"{sql} ORDER BY k", snapshot).to_pylist() == rows
        assert reader_chdb.query(f"{sql} WHERE {where}", snapshot).to_pylist() == [rows[3]]
    every = " AND ".join(f"t.{quote_name(n)} = {rows[3][n]}" for n in names)
    chosen = reader_polars.scan(snapshot, every).filter(pl.col("k") == 3).select(columns)
    assert chosen.collect().to_dicts() == [rows[3]]


def keep_as_assets(tmp: Path, names: Sequence[str]) -> None:
    rows = make_rows(names, range(6))
    resource = IceDBResource(root=str(tmp / "lake"))

    @dg.asset(metadata={"icedb/partition_by": ["k % 2 AS odd"], "icedb/sort_by": [names[0]]})
    def source() -> pa.Table:
        return pa.Table.from_pylist(rows)

    some = {"columns": ["k", *names], "where": f"t.{quote_name(names[-1])} > 0"}

    @dg.asset(ins={"source": dg.AssetIn(metadata=some)})
    def copied(source: pa.Table) -> pa.Table:
        return source

    with dg.DagsterInstance.ephemeral() as instance:
        manager = IceDBIOManager(icedb=resource)
        assert dg.materialize([source, copied], resources={"io_manager": manager}, instance=instance).success
    check(resource.table("source"), rows)
    read = resource.table("copied").query("SELECT * FROM t ORDER BY k").to_arrow().to_pylist()
    assert read == rows


WAYS: list[Callable[[Path, Sequence[str]], None]] = [
    insert_and_merge, delete_and_rewrite, import_files, insert_files, set_aside, views_and_queries, final, leave,
    read_elsewhere, read_by_other_engines, keep_as_assets,
]  # fmt: skip


@pytest.mark.sampled(cases=3)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_all_names_at_once_change_nothing(tmp_path: Path, way: Callable[..., None]) -> None:
    way(tmp_path, spelled(NAMES))


@pytest.mark.sampled(cases=3)
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_name_alone_changes_nothing(tmp_path: Path, way: Callable[..., None], name: str) -> None:
    way(tmp_path, [name])


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("name", OTHERS)
def test_each_other_name_alone_changes_nothing(tmp_path: Path, name: str, day: date) -> None:
    """Each name goes another way each day."""
    WAYS[(day.toordinal() + OTHERS.index(name)) % len(WAYS)](tmp_path, [name])


@pytest.mark.slow(seconds=20)
def test_all_names_go_through_spark(tmp_path: Path, spark: Any) -> None:
    from icedb import spark as icedb_spark

    names = spelled(NAMES)
    table = make(tmp_path / "spark", names)
    rows = make_rows(names, range(8))
    table.insert(rows[:2])
    schema = ", ".join(f"`{name}` BIGINT" for name in ("k", *names))
    frame = spark.createDataFrame([tuple(row.values()) for row in rows[2:6]], schema)
    frame.write.format("icedb").mode("append").save(table.uri)
    icedb_spark.write(spark.createDataFrame([tuple(row.values()) for row in rows[6:]], schema), table.uri)
    check(table, rows)
    for read in (spark.read.format("icedb").load(table.uri), icedb_spark.read(spark, table.uri)):
        read_rows = read.select("k", *(f"`{name}`" for name in names)).orderBy("k").collect()
        assert [row.asDict() for row in read_rows] == rows
        some = read.where(f"`{names[-1]}` = {rows[3][names[-1]]} AND odd = 1").select("k").collect()
        assert [row.k for row in some] == [3]
    table.merge(engine=icedb_spark.SparkEngine(spark))
    table.delete(f"t.{quote_name(names[0])} = {rows[5][names[0]]}", engine=icedb_spark.SparkEngine(spark))
    check(table, [row for row in rows if row["k"] != 5])


# ------------------------------------------------------------------------- DuckDB's own column of files' names


@pytest.mark.sampled(cases=2)
@pytest.mark.long
@pytest.mark.parametrize("inserts", [1, 3])
@pytest.mark.parametrize("partition_by", [[], ["k % 2 AS odd"]])
def test_a_condition_on_a_column_filename_selects_rows(local: Any, partition_by: list[str], inserts: int) -> None:
    table = Table.create(local.uri, partition_by=partition_by)
    for n in range(inserts):
        table.insert([{"k": 0, "filename": f"a{n}"}, {"k": 1, "filename": f"b{n}"}])
    for where in ("filename = 'a0'", "filename LIKE 'a0%' AND k = 0", "filename IN ('a0', 'x') AND k % 2 = 0"):
        for condition in (where, f"{where} AND odd = 0") if partition_by else (where,):
            assert table.query("SELECT k FROM t", where=condition).fetchall() == [(0,)]
            assert table.query(f"SELECT k FROM t WHERE {condition}").fetchall() == [(0,)]
            assert table.delete(condition, dry_run=True).matching_rows == 1
    assert table.delete(condition).deleted_rows == 1
    assert table.query("SELECT count(*), count(*) FILTER (filename = 'a0') FROM t").fetchall() == [(2 * inserts - 1, 0)]


def test_a_column_rowid_does_not_choose_the_type_of_another(local: Any) -> None:
    table = Table.create(local.uri)
    rows = [{"rowid": 9, "x": 1}, {"rowid": 1, "x": "text"}, {"rowid": 0, "x": True}]
    table.insert(rows, on_conflict="quarantine")
    assert table.snapshot().schema["x"] == "BIGINT"
    assert table.query("SELECT rowid, x FROM t").fetchall() == [(9, 1)]


# ------------------------------------------------------------------------------------------ damage and temporary files


def test_every_column_is_decoded_also_beside_one_with_the_name_of_a_row(tmp_path: Path) -> None:
    """A relation's name stands for its row only if no column has that name."""
    rows = pa.table({"part": [1] * 4096, "text": [f"{n:08d}" * 8 for n in range(4096)]})
    pq.write_table(rows, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    table = Table.create(str(tmp_path / "events"))
    path = tmp_path / "a.parquet"
    path.write_bytes(path.read_bytes().replace(b"@\x00\x00\x0000000100", b"\xff\xff\xff\x7f00000100", 1))
    with pytest.raises(InvalidBatch, match="cannot be read as Parquet"):
        table.import_files(path, verify=True)


@pytest.mark.long
def test_a_temporary_folder_changes_no_statistics(local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "n=7" / "value=8"
    folder.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    table = Table.create(local.uri, sort_by=["n"])
    for n in range(20):  # as many as are worth choosing among
        table.insert([{"n": float(n), "x": [n]}])
    table.merge()
    assert table.query("SELECT n FROM t WHERE n > 18").fetchall() == [(19.0,)]
    assert table.snapshot().files("n > 18") == list(table.snapshot().parts)


# ------------------------------------------------------------------------------------------ what is reserved


@pytest.mark.parametrize("name", ["__icedb_file", "__ICEDB_x"])
def test_the_library_s_own_names_are_refused_everywhere(local: Any, tmp_path: Path, name: str) -> None:
    table = Table.create(local.uri)
    with pytest.raises(InvalidBatch, match="reserved"):
        table.insert([{"n": 1, name: 1}])
    for schema in ({name: "BIGINT"}, pa.schema({name: pa.int64()})):
        with pytest.raises(InvalidOption, match="reserved"):
            Table.create(str(tmp_path / "declared"), schema=schema)
    with pytest.raises(InvalidPartitionExpression, match="reserved"):
        Table.create(str(tmp_path / "partitioned"), partition_by=[f"n AS {name}"])
    with pytest.raises(InvalidPartitionExpression, match="reserved"):
        Table.create(str(tmp_path / "by_paths"), path_columns={name: "BIGINT"})
    pq.write_table(pa.table({"n": [1], name: [1]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidBatch, match="reserved"):
        table.import_files(tmp_path / "a.parquet")
    assert table.snapshot().rows == 0
