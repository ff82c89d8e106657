"""Each reader and export as of a time has the columns of that time, and no later ones."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext

import icedb.engines.duckdb.attached_tables as duckdb_reader
from icedb import Table
from icedb.engines import arrow, chdb, datafusion, pandas, polars
from icedb.format.timing import MINUTE_MS
from icedb.log import IceLogIO, S3Client
from icedb_dagster.io.inputs import Rows, load
from tests.support.proxy.proxy_views import page
from tests.support.proxy.proxy_worlds import ProxyWorld, ask_app, make_app, question, run
from tests.support.tables.delta_reading import by_delta
from tests.support.tables.v3_api import client

#: What a reader gives: the columns in their order, and the values of `a`.
Answer = tuple[list[str], list[int]]
Reader = Callable[[Table, int, Path], Answer]


def of_arrow(rows: pa.Table) -> Answer:
    return rows.column_names, sorted(rows["a"].to_pylist())


def by_relation(relation: duckdb.DuckDBPyRelation) -> Answer:
    return of_arrow(relation.to_arrow_table())


def attached(table: Table, at_ms: int, folder: Path) -> Answer:
    with duckdb.connect() as con:
        duckdb_reader.attach(con, table, "events")
        return by_relation(con.sql(f"SELECT * FROM events(as_of := {at_ms})"))


def registered(table: Table, at_ms: int, folder: Path) -> Answer:
    ctx = SessionContext()
    datafusion.register(ctx, "events", table.snapshot(at_ms))
    return of_arrow(ctx.sql("SELECT * FROM events").to_arrow_table())


def exported_parquet(table: Table, at_ms: int, folder: Path) -> Answer:
    table.export_parquet(folder / "out", as_of=at_ms)
    return by_relation(duckdb.sql(f"FROM read_parquet('{folder}/out/**/*.parquet', union_by_name = true)"))


def exported_rows(table: Table, at_ms: int, folder: Path) -> Answer:
    """Export with a condition, which rewrites files."""
    table.export_parquet(folder / "out", as_of=at_ms, where="a > 0 AND d = 'x'")
    return by_relation(duckdb.sql(f"FROM read_parquet('{folder}/out/**/*.parquet', union_by_name = true)"))


def exported_delta(table: Table, at_ms: int, folder: Path) -> Answer:
    table.export_delta(as_of=at_ms)
    return of_arrow(by_delta(table).to_pyarrow_table())


def changed(table: Table, at_ms: int, folder: Path) -> Answer:
    return of_arrow(table.changes(at_ms - MINUTE_MS, until=at_ms).to_arrow())


def as_input(type_: Any, rows: Callable[[Any], pa.Table]) -> Reader:
    return lambda table, at_ms, folder: of_arrow(rows(load(Rows.of(table.snapshot(at_ms), None, {}), type_)))


READERS: dict[str, Reader] = {
    "query": lambda t, at, _: of_arrow(t.query("SELECT * FROM t", as_of=at).to_arrow()),
    "query, sandbox": lambda t, at, _: of_arrow(t.query("SELECT * FROM t", as_of=at, sandbox=True).to_arrow()),
    "to_arrow": lambda t, at, _: of_arrow(t.snapshot(at).to_arrow()),
    "final": lambda t, at, _: of_arrow(t.snapshot(at).to_arrow(final=True)),
    "arrow.dataset": lambda t, at, _: of_arrow(arrow.dataset(t.snapshot(at)).to_table()),
    "arrow.record_batches": lambda t, at, _: of_arrow(arrow.record_batches(t.snapshot(at)).read_all()),
    "pandas": lambda t, at, _: of_arrow(pa.Table.from_pandas(pandas.read(t.snapshot(at)), preserve_index=False)),
    "polars": lambda t, at, _: of_arrow(polars.scan(t.snapshot(at)).collect().to_arrow()),
    "datafusion": registered,
    "chdb": lambda t, at, _: of_arrow(chdb.query("SELECT * FROM t", t.snapshot(at))),
    "duckdb": attached,
    "changes": changed,
    "export_parquet": exported_parquet,
    "export_parquet, where": exported_rows,
    "export_delta": exported_delta,
    "Dagster, pyarrow.Table": as_input(pa.Table, lambda rows: rows),
    "Dagster, polars.LazyFrame": as_input(pl.LazyFrame, lambda rows: rows.collect().to_arrow()),
}


def wait_until_after(at_ms: int) -> None:
    while time.time_ns() // 1_000_000 <= at_ms:
        time.sleep(0.001)


def evolved(table: Table) -> tuple[int, int]:
    """Add columns, a partition column and a declared column. Return the times of the first two commits."""
    times = []
    for row in ({"d": "x", "a": 1}, {"d": "x", "a": 2, "b": 2}):
        created_ms = table.insert([row]).created_ms
        assert created_ms is not None
        wait_until_after(created_ms)
        times.append(created_ms)
    table.alter(partition_by=["d", "b % 2 AS e"], schema={"declared": "DATE"})
    table.insert([{"d": "x", "a": 3, "b": 3, "c": 3}])
    table.merge(part_bytes_max=2**30)
    table.merge_log()
    return times[0], times[1]


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_has_the_columns_of_the_time(tmp_path: Path, reader: str) -> None:
    table = Table.create(tmp_path / "events", partition_by=["d"])
    first_ms, second_ms = evolved(table)
    for at_ms, columns, values in ((first_ms, {"d", "a"}, [1]), (second_ms, {"d", "a", "b"}, [1, 2])):
        names, rows = READERS[reader](table, at_ms, tmp_path / str(at_ms))
        assert (set(names), len(names), rows) == (columns, len(columns), values)


def dropped(table: Table) -> tuple[int, int]:
    """Drop `b` between two inserts. Return a time before that and the time of the last commit."""
    before = table.insert([{"d": "x", "a": 1, "b": 1, "c": {"b": 1}}]).created_ms
    assert before is not None
    wait_until_after(before)
    table.alter(drop_columns=["b"])
    last = table.insert([{"d": "x", "a": 2, "c": {"b": 2}}]).created_ms
    assert last is not None
    wait_until_after(last)
    return before, last


@pytest.mark.sampled(cases=6)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_has_a_dropped_column_before_its_drop_only(tmp_path: Path, reader: str) -> None:
    """Its parts stay the same, so each reader has to leave the column out by itself. A field `b` of `c` stays."""
    table = Table.create(tmp_path / "events", partition_by=["d"], sort_by=["a"])
    before_ms, last_ms = dropped(table)
    expected = [(before_ms, {"d", "a", "b", "c"}, [1]), (last_ms, {"d", "a", "c"}, [1, 2])]
    for at_ms, columns, values in expected:
        names, rows = READERS[reader](table, at_ms, tmp_path / str(at_ms))
        assert (set(names), len(names), rows) == (columns, len(columns), values)
    table.merge(part_bytes_max=2**30)
    wait_until_after(time.time_ns() // 1_000_000)
    names, rows = READERS[reader](table, table.snapshot().as_of_ms, tmp_path / "merged")
    assert (set(names), rows) == ({"d", "a", "c"}, [1, 2])


def test_the_proxy_shows_parts_that_have_the_columns_of_the_time() -> None:
    """A tenant's engine makes the schema of the parts that it is shown."""
    world = ProxyWorld(partition_by=["d"])
    world.table.insert([{"d": "x", "a": 1}])
    at_ms = world.clock.now_ms()
    world.clock.advance(MINUTE_MS)
    world.table.insert([{"d": "x", "a": 2, "b": 2}])
    world.clock.advance(MINUTE_MS)
    world.table.merge(part_bytes_max=2**30)
    world.clock.advance(MINUTE_MS)

    async def columns(**scope: Any) -> set[str]:
        app = make_app(world.tables(), [world.bucket(**scope)])
        keys, _ = await page(app)
        answers = [await ask_app(app, question("GET", f"/events/{key}")) for key in keys]
        assert [a.status for a in answers] == [200]
        return {name for a in answers for name in pq.read_schema(io.BytesIO(a.body)).names}

    async def work() -> None:
        assert await columns(as_of_ms=at_ms) == {"d", "a"}
        assert await columns() == {"d", "a", "b"}

    run(work())


@pytest.mark.s3
def test_the_v3_api_has_the_columns_that_v3_itself_reads(s3: Any) -> None:
    table = Table.create(s3.uri, partition_by=["d"], storage_options=s3.storage_options)
    first_ms, second_ms = evolved(table)
    s3c = client(s3)
    for at_ms, columns in ((first_ms, ["d", "a"]), (second_ms, ["d", "a", "b"])):
        assert IceLogIO("reader").read_at_max_time(s3c, at_ms)[0].columns() == columns
        assert sorted(of_v3(s3c, at_ms)) == sorted(columns)


def of_v3(s3c: S3Client, at_ms: int) -> set[str]:
    """Return the schema that a v3 program computes: all columns of the log files whose names have no later time."""
    prefix = f"{s3c.s3prefix}/_log/"
    listed = s3c.s3.list_objects_v2(Bucket=s3c.s3bucket, Prefix=prefix)["Contents"]
    columns: set[str] = set()
    for key in (o["Key"] for o in listed):
        if int(key.removeprefix(prefix).partition("_")[0]) > at_ms:
            continue
        lines = s3c.s3.get_object(Bucket=s3c.s3bucket, Key=key)["Body"].read().split(b"\n")
        columns |= json.loads(lines[json.loads(lines[0])["sch"]]).keys()
    return columns
