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
from icedb import sandboxes, staging
from icedb.errors import InvalidBatch
from icedb.sandboxes import sandbox

ROWS = pa.table({"n": [2, 1]})


@pytest.fixture(autouse=True)
def _none_is_kept() -> Iterator[None]:
    sandboxes._close_all()
    yield
    sandboxes._close_all()


def roots() -> list[duckdb.DuckDBPyConnection]:
    return [idle.root for idle in sandboxes._idle]


def test_a_small_batch_uses_what_the_last_one_used(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, partition_by=["n"], sort_by=["n"])
    table.insert(ROWS)
    first = roots()
    table.insert(ROWS)
    assert len(first) == 1
    assert roots() == first
    [idle] = sandboxes._idle
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
    [kept] = sandboxes._idle
    assert kept.folder == other.folder, "the other has a table that was left behind"
    assert not one.folder.exists()
    with sandbox(None, memory_bytes=None, threads=2) as third:
        assert third.folder != kept.folder
    with sandbox(tmp_path, memory_bytes=None, threads=1) as fourth:
        assert fourth.folder.parent == tmp_path
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
    monkeypatch.setattr(staging, "_BYTES_WORTH_KEEPING", 16)
    icedb.Table.create(memory.uri, sort_by=["n"]).insert(ROWS)
    assert roots() == []


def test_a_process_that_forks_has_none(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    table.insert(ROWS)
    [idle] = sandboxes._idle
    child = os.fork()
    if not child:
        os._exit(len(sandboxes._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert roots() == []
    assert not idle.folder.exists()


def test_without_its_folder_it_is_not_used_again(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    table.insert(ROWS)
    [idle] = sandboxes._idle
    idle.folder.rmdir()
    assert table.insert(ROWS).rows == 2
    assert idle.root not in roots()
