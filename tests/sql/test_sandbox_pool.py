"""A sandbox is used again by the next small batch, and nothing of the last one is found there."""

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
def _none_is_kept() -> Iterator[None]:
    sandbox_pool._close_all()
    yield
    sandbox_pool._close_all()


def roots() -> list[duckdb.DuckDBPyConnection]:
    return [idle.root for idle in given_limits()]


def given_limits() -> list[sandbox_pool._Idle]:
    """Those of inserts, and not those of mere questions."""
    return [idle for idle in sandbox_pool._idle if (idle.memory_bytes, idle.threads) != (None, None)]


def test_a_small_batch_uses_what_the_last_one_used(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, partition_by=["n"], sort_by=["n"])
    table.insert(ROWS)
    first = roots()
    table.insert(ROWS)
    assert len(first) == 1
    assert roots() == first
    [idle] = given_limits()
    assert [file for file in idle.folder.rglob("*") if file.is_file()] == []
    assert idle.root.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
    assert table.query("SELECT n, count(*) FROM t GROUP BY n ORDER BY n").fetchall() == [(1, 2), (2, 2)]


def test_each_has_one_alone(tmp_path: Path) -> None:
    with sandbox(None, memory_bytes=None, threads=1) as one, sandbox(None, memory_bytes=None, threads=1) as other:
        assert one.folder != other.folder
        one.con.execute("CREATE TABLE staged AS SELECT 1 AS n")
        with pytest.raises(duckdb.CatalogException):
            other.con.execute("FROM staged")
        one.kept = other.kept = True
    [kept] = sandbox_pool._idle
    assert kept.folder == other.folder, "the other has a table that was left behind"
    assert not one.folder.exists()
    with sandbox(None, memory_bytes=None, threads=2) as third:
        assert third.folder != kept.folder
    with sandbox(tmp_path, memory_bytes=None, threads=1) as fourth:
        assert fourth.folder.is_relative_to(tmp_path)
        fourth.kept = True
    assert not fourth.folder.exists()


def test_what_the_last_one_registered_is_gone() -> None:
    for _ in range(2):
        with sandbox(None, memory_bytes=None, threads=1) as one:
            with pytest.raises(duckdb.CatalogException):
                one.con.execute("FROM given")
            one.con.register("given", ROWS.to_reader())
            one.con.execute("CREATE TEMP TABLE aside AS FROM given")
            one.kept = True
    assert len(roots()) == 1


def test_after_an_error_it_is_not_used_again(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    with pytest.raises(InvalidBatch):
        table.insert(pa.table({"_partition": [1], "n": [1]}))
    assert roots() == []


def test_after_a_query_of_the_tables_it_is_not_used_again(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"], insert_query="SELECT n + 1 AS n FROM _rows")
    table.insert(ROWS)
    assert roots() == []


def test_after_a_large_batch_it_is_not_used_again(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_REUSE_BYTES_MAX", 16)
    icedb.Table.create(memory.uri, sort_by=["n"]).insert(ROWS)
    assert roots() == []


@pytest.mark.process
def test_a_process_that_forks_has_none(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    table.insert(ROWS)
    [idle] = sandbox_pool._idle
    child = os.fork()
    if not child:
        os._exit(len(sandbox_pool._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert roots() == []
    assert not idle.folder.exists()


def test_without_its_folder_it_is_not_used_again(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    table.insert(ROWS)
    [idle] = sandbox_pool._idle
    idle.folder.rmdir()
    assert table.insert(ROWS).rows == 2
    assert idle.root not in roots()


def test_a_question_leaves_nothing_to_the_next() -> None:
    sandbox_pool._close_all()
    with sandbox_pool.scratch_connection() as con:
        con.execute("CREATE TEMP TABLE v AS SELECT 1 AS n")
        con.execute("BEGIN")
        con.register("given", pa.table({"n": [1]}))
    [idle] = sandbox_pool._idle
    with sandbox_pool.scratch_connection() as con:
        assert not sandbox_pool._idle
        for name in ("v", "given"):
            with pytest.raises(duckdb.CatalogException):
                con.execute(f"FROM {name}")
        con.execute("CREATE TABLE stays AS SELECT 1 AS n")  # so this one is nobody's any more
    assert idle not in sandbox_pool._idle


def test_a_database_that_answers_no_more_is_not_kept() -> None:
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
    for wanted in ({}, {"allow_unsigned_extensions": "true"}):  # the second trusts what DuckDB said to the first
        con = connections.connect_reader(here)
        assert made.pop() == wanted
        assert con.execute("SELECT current_setting('allow_unsigned_extensions')").fetchone() == (False,)
        assert con.execute("SELECT loaded FROM duckdb_extensions() WHERE extension_name = 'httpfs'").fetchone() == (
            True,
        )
        with pytest.raises(duckdb.InvalidInputException, match="while database is running"):
            con.execute("SET allow_unsigned_extensions = true")


def test_a_connection_that_checks_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_checked", set())
    connections.load_httpfs(duckdb.connect(config={"allow_unsigned_extensions": "true"}))
    assert not connections._checked
    connections.load_httpfs(duckdb.connect())
    assert connections._checked
