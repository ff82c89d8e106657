"""Small writes and reads reuse databases, which have nothing of their last users."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import icedb
from icedb.errors import InvalidBatch
from icedb.sql import connection_pool, connections
from icedb.sql.connection_pool import READ_BYTES_MAX, reader, sandbox
from icedb.storage.location import Location, parse_location
from icedb.writer import staging

ROWS = pa.table({"n": [2, 1]})


@pytest.fixture(autouse=True)
def _no_idle_sandbox() -> Iterator[None]:
    connection_pool._close_all()
    yield
    connection_pool._close_all()


@pytest.fixture
def table(memory: Any) -> icedb.Table:
    return icedb.Table.create(memory.uri, partition_by=["n"], sort_by=["n"])


def roots() -> list[duckdb.DuckDBPyConnection]:
    return [idle.root for idle in idle_with_limits()]


def idle_with_limits() -> list[connection_pool._Database]:
    """Return the idle sandboxes of inserts, without readers and scratch connections."""
    unlimited = connection_pool._Limits(None, None)
    return [idle for idle in connection_pool._idle if not idle.limits.is_reader and idle.limits != unlimited]


def test_a_small_batch_reuses_the_sandbox_of_the_last_one(table: icedb.Table) -> None:
    table.insert(ROWS)
    first = roots()
    table.insert(ROWS)
    assert len(first) == 1
    assert roots() == first
    [idle] = idle_with_limits()
    assert idle.folder is not None
    assert [file for file in idle.folder.rglob("*") if file.is_file()] == []
    assert idle.root.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
    assert table.query("SELECT n, count(*) FROM t GROUP BY n ORDER BY n").fetchall() == [(1, 2), (2, 2)]


def test_concurrent_users_have_separate_sandboxes(tmp_path: Path) -> None:
    with sandbox(None, memory_bytes=None, threads=1) as one, sandbox(None, memory_bytes=None, threads=1) as other:
        assert one.folder != other.folder
        one.con.execute("CREATE TABLE staged AS SELECT 1 AS n")
        with pytest.raises(duckdb.CatalogException):
            other.con.execute("FROM staged")
        one.kept = other.kept = True
    [kept] = connection_pool._idle
    assert kept.folder == other.folder, "the other has a leftover table"
    assert not one.folder.exists()
    with sandbox(None, memory_bytes=None, threads=2) as third:
        assert third.folder != kept.folder
    with sandbox(tmp_path, memory_bytes=None, threads=1) as fourth:
        assert fourth.folder.is_relative_to(tmp_path)
        fourth.kept = True
    assert not fourth.folder.exists()


def test_a_reused_sandbox_has_no_earlier_relations() -> None:
    for _ in range(2):
        with sandbox(None, memory_bytes=None, threads=1) as one:
            with pytest.raises(duckdb.CatalogException):
                one.con.execute("FROM batch")
            one.con.register("batch", ROWS.to_reader())
            one.con.execute("CREATE TEMP TABLE aside AS FROM batch")
            one.kept = True
    assert len(roots()) == 1


def test_a_sandbox_is_not_reused_after_an_error(table: icedb.Table) -> None:
    with pytest.raises(InvalidBatch):
        table.insert(pa.table({"_partition": [1], "n": [1]}))
    assert roots() == []


def test_a_sandbox_is_not_reused_after_a_query_of_the_table(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"], insert_query="SELECT n + 1 AS n FROM _rows")
    table.insert(ROWS)
    assert roots() == []


def test_a_sandbox_is_not_reused_after_a_large_batch(table: icedb.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_REUSE_BYTES_MAX", 16)
    table.insert(ROWS)
    assert roots() == []


@pytest.mark.process
def test_a_forked_process_has_no_sandboxes(table: icedb.Table) -> None:
    table.insert(ROWS)
    [idle] = idle_with_limits()
    with reader(HERE, read_bytes=0):
        pass
    child = os.fork()
    if not child:
        left = len(connection_pool._idle)
        with reader(HERE, read_bytes=0) as con:
            os._exit(left or con.execute("SELECT 1").fetchone() != (1,))
    assert os.waitpid(child, 0)[1] == 0
    assert roots() == []
    assert idle.folder is not None
    assert not idle.folder.exists()


def test_a_sandbox_without_its_folder_is_not_reused(table: icedb.Table) -> None:
    table.insert(ROWS)
    [idle] = idle_with_limits()
    assert idle.folder is not None
    idle.folder.rmdir()
    assert table.insert(ROWS).rows == 2
    assert idle.root not in roots()


def test_a_scratch_connection_has_no_earlier_relations() -> None:
    connection_pool._close_all()
    with connection_pool.scratch_connection() as con:
        con.execute("CREATE TEMP TABLE v AS SELECT 1 AS n")
        con.execute("BEGIN")
        con.register("batch", pa.table({"n": [1]}))
    [idle] = connection_pool._idle
    with connection_pool.scratch_connection() as con:
        assert not connection_pool._idle
        for name in ("v", "batch"):
            with pytest.raises(duckdb.CatalogException):
                con.execute(f"FROM {name}")
    with pytest.raises(duckdb.ParserException), connection_pool.scratch_connection() as con:
        con.execute("FROM")
    assert connection_pool._idle == [idle]


def test_a_closed_database_is_not_reused() -> None:
    connection_pool._close_all()
    with connection_pool.scratch_connection():
        pass
    [idle] = connection_pool._idle
    with connection_pool.scratch_connection():
        idle.root.close()  # as a fatal error leaves it
    assert not connection_pool._idle
    with connection_pool.scratch_connection() as con:
        assert con.execute("SELECT 1").fetchone() == (1,)


HERE = Location("memory", "", "")
SORT = "CREATE TEMP TABLE t AS SELECT i, md5(i::VARCHAR) AS s FROM range(3_000_000) r(i) ORDER BY s"


def test_a_reused_reader_has_nothing_of_its_last_user(tmp_path: Path) -> None:
    for _ in range(2):
        with reader(HERE, read_bytes=0, folder=tmp_path) as con:
            for name in ("aside", "batch"):
                with pytest.raises(duckdb.CatalogException):
                    con.execute(f"FROM {name}")
            assert con.execute("SELECT getvariable('v')").fetchone() == (None,)
            con.register("batch", ROWS.to_reader())
            con.execute("CREATE TEMP TABLE aside AS FROM batch; SET VARIABLE v = 1; BEGIN")
    assert len(connection_pool._idle) == 1


@pytest.mark.parametrize("left", ["CREATE TABLE t (n INT)", "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')"])
def test_a_reader_is_not_reused_if_a_table_or_secret_is_left(left: str) -> None:
    with reader(HERE, read_bytes=0) as con:
        connections.load_httpfs(con)
        con.execute(left)
    assert not connection_pool._idle


def test_a_reader_is_not_reused_after_an_error() -> None:
    with pytest.raises(duckdb.CatalogException), reader(HERE, read_bytes=0) as con:
        con.execute("FROM missing")
    assert not connection_pool._idle
    with reader(HERE, read_bytes=0):
        pass
    [idle] = connection_pool._idle
    with reader(HERE, read_bytes=0):
        idle.root.close()  # as a fatal error leaves it
    assert not connection_pool._idle


def test_a_reader_that_read_much_or_has_credentials_is_not_reused() -> None:
    with reader(HERE, read_bytes=READ_BYTES_MAX + 1):
        pass
    with reader(
        parse_location("s3://bucket/table", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}), read_bytes=0
    ):
        pass
    assert not connection_pool._idle


@pytest.mark.sampled(days=3)
def test_a_reader_spills_into_the_folder_of_its_user_and_is_not_reused_then(tmp_path: Path) -> None:
    limits: dict[str, int] = {"read_bytes": 0, "memory_bytes": 100 * connections.MIB, "threads": 1}
    with reader(HERE, folder=tmp_path, **limits):
        pass
    [idle] = connection_pool._idle
    mine = tmp_path / "mine"
    mine.mkdir()
    with reader(HERE, folder=mine, **limits) as con:
        assert connection_pool._idle == []
        con.execute(SORT)
        assert list(mine.rglob("duckdb_temp_*"))
    assert idle not in connection_pool._idle


def test_a_reader_is_reused_for_the_same_limits() -> None:
    limits: list[dict[str, Any]] = [
        {"memory_bytes": 2**28},
        {"memory_bytes": 2**29},
        {"threads": 1},
        {"lossless": True},
    ]
    names = ("memory_limit", "threads", "arrow_lossless_conversion")
    settings = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    seen = []
    for _ in range(2):
        for of in limits:
            with reader(HERE, read_bytes=0, **of) as con:
                seen.append(con.execute(settings).fetchone())
    assert len(connection_pool._idle) == len(limits)
    assert seen[:4] == seen[4:]
    assert len(set(seen)) == len(limits)


def test_a_reused_database_reads_a_replaced_file_again(tmp_path: Path) -> None:
    for type_ in ("VARCHAR", "BIGINT"):
        with reader(HERE, read_bytes=0) as con:
            assert _type_in_file(con, tmp_path / "rows.parquet", type_) == type_
        with sandbox(None, memory_bytes=None, threads=None) as own:
            assert _type_in_file(own.con, own.folder / "rows.parquet", type_) == type_
            own.kept = True
    assert len(connection_pool._idle) == 2


def _type_in_file(con: duckdb.DuckDBPyConnection, path: Path, type_: str) -> str:
    con.execute(f"COPY (SELECT CAST(NULL AS {type_}) AS n) TO '{path}' (FORMAT parquet)")
    [read] = con.sql(f"FROM {connections.read_file(path)}").types
    path.unlink()
    return str(read)


def test_concurrent_threads_have_separate_readers() -> None:
    together = threading.Barrier(2)

    def read(n: int) -> tuple[int, ...] | None:
        with reader(HERE, read_bytes=0) as con:
            con.execute(f"CREATE TABLE t AS SELECT {n} AS n")
            together.wait()
            result: tuple[int, ...] | None = con.execute("FROM t").fetchone()
            con.execute("DROP TABLE t")
            return result

    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            assert list(pool.map(read, (1, 2))) == [(1,), (2,)]
    assert len(connection_pool._idle) == 2


def test_a_full_pool_closes_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "_ALL_IDLE_MAX", 2)
    for threads in (1, 2, 1, 3):
        with reader(HERE, read_bytes=0, threads=threads):
            pass
    assert [idle.limits.threads for idle in connection_pool._idle] == [1, 3]
    monkeypatch.setattr(connection_pool, "_IDLE_MAX", 1)
    with reader(HERE, read_bytes=0, threads=1), reader(HERE, read_bytes=0, threads=1):
        pass
    assert [idle.limits.threads for idle in connection_pool._idle] == [3, 1]


def test_the_signature_of_the_s3_extension_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = parse_location("s3://bucket/table", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    monkeypatch.setattr(connections, "_checked", set())
    made: list[dict[str, str]] = []
    real = duckdb.connect

    def connect(database: str, config: dict[str, str]) -> duckdb.DuckDBPyConnection:
        made.append(config)
        return real(database, config=config)

    monkeypatch.setattr("duckdb.connect", connect)
    for config in ({}, {"allow_unsigned_extensions": "true"}):  # the second relies on the check of the first
        con = connections.connect_reader(here)
        assert made.pop() == config
        assert con.execute("SELECT current_setting('allow_unsigned_extensions')").fetchone() == (False,)
        loaded = "SELECT loaded FROM duckdb_extensions() WHERE extension_name = 'httpfs'"
        assert con.execute(loaded).fetchone() == (True,)
        with pytest.raises(duckdb.InvalidInputException, match="while database is running"):
            con.execute("SET allow_unsigned_extensions = true")


def test_a_connection_without_signature_checks_marks_nothing_as_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_checked", set())
    connections.load_httpfs(duckdb.connect(config={"allow_unsigned_extensions": "true"}))
    assert not connections._checked
    connections.load_httpfs(duckdb.connect())
    assert connections._checked
