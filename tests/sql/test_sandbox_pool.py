"""The next small batch reuses a sandbox, which has no data of the last one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import icedb
from icedb.errors import InvalidBatch
from icedb.sql import connections, sandbox_pool
from icedb.sql.sandbox_pool import sandbox
from icedb.storage.location import parse_location
from icedb.writer import staging

ROWS = pa.table({"n": [2, 1]})


@pytest.fixture(autouse=True)
def _no_idle_sandbox() -> Iterator[None]:
    sandbox_pool._close_all()
    yield
    sandbox_pool._close_all()


@pytest.fixture
def table(memory: Any) -> icedb.Table:
    return icedb.Table.create(memory.uri, partition_by=["n"], sort_by=["n"])


def roots() -> list[duckdb.DuckDBPyConnection]:
    return [idle.root for idle in idle_with_limits()]


def idle_with_limits() -> list[sandbox_pool._Idle]:
    """Return the idle sandboxes of inserts, without scratch connections."""
    return [idle for idle in sandbox_pool._idle if (idle.memory_bytes, idle.threads) != (None, None)]


def test_a_small_batch_reuses_the_sandbox_of_the_last_one(table: icedb.Table) -> None:
    table.insert(ROWS)
    first = roots()
    table.insert(ROWS)
    assert len(first) == 1
    assert roots() == first
    [idle] = idle_with_limits()
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
    [kept] = sandbox_pool._idle
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
    child = os.fork()
    if not child:
        os._exit(len(sandbox_pool._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert roots() == []
    assert not idle.folder.exists()


def test_a_sandbox_without_its_folder_is_not_reused(table: icedb.Table) -> None:
    table.insert(ROWS)
    [idle] = idle_with_limits()
    idle.folder.rmdir()
    assert table.insert(ROWS).rows == 2
    assert idle.root not in roots()


def test_a_scratch_connection_has_no_earlier_relations() -> None:
    sandbox_pool._close_all()
    with sandbox_pool.scratch_connection() as con:
        con.execute("CREATE TEMP TABLE v AS SELECT 1 AS n")
        con.execute("BEGIN")
        con.register("batch", pa.table({"n": [1]}))
    [idle] = sandbox_pool._idle
    with sandbox_pool.scratch_connection() as con:
        assert not sandbox_pool._idle
        for name in ("v", "batch"):
            with pytest.raises(duckdb.CatalogException):
                con.execute(f"FROM {name}")
        con.execute("CREATE TABLE stays AS SELECT 1 AS n")  # so this sandbox is not reused
    assert idle not in sandbox_pool._idle


def test_a_closed_database_is_not_reused() -> None:
    sandbox_pool._close_all()
    with sandbox_pool.scratch_connection():
        pass
    [idle] = sandbox_pool._idle
    with sandbox_pool.scratch_connection():
        idle.root.close()  # as a fatal error leaves it
    assert not sandbox_pool._idle
    with sandbox_pool.scratch_connection() as con:
        assert con.execute("SELECT 1").fetchone() == (1,)


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
