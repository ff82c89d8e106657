"""Errors of DuckDB that depend on the machine are recognized, and texts are quoted."""

from __future__ import annotations

import errno
from pathlib import Path

import duckdb
import pytest

from icedb.errors import InvalidOption
from icedb.sql import connections, machine_memory
from icedb.sql.connections import MIB, disk_full, is_disk_full, memory_bytes_default, quote_texts
from icedb.sql.machine_memory import MEMORY_SHARE

SORT = "CREATE TABLE t AS SELECT hash(i) AS n, repeat(md5(i::VARCHAR), 8) AS s FROM range(500_000) r(i) ORDER BY n"


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("can_spill", [True, False])
def test_a_full_disk_is_distinguished_from_too_little_memory(tmp_path: Path, can_spill: bool) -> None:
    with duckdb.connect() as con:
        folder = str(tmp_path) if can_spill else ""
        con.execute(f"SET memory_limit = '64MiB'; SET threads = 1; SET temp_directory = '{folder}'")
        if can_spill:
            con.execute("SET max_temp_directory_size = '1MiB'")
        with pytest.raises(duckdb.OutOfMemoryException) as raised:
            con.execute(SORT)
    assert is_disk_full(raised.value) == can_spill


def test_the_error_of_a_full_disk_names_the_table_and_the_remedy() -> None:
    error = disk_full("s3://lake/events")
    assert error.errno == errno.ENOSPC
    assert "s3://lake/events" in str(error)
    assert "TMPDIR" in str(error)


@pytest.mark.parametrize(
    ("machine", "share", "limit"),
    [(8_000, "", 4_000), (8_000, "0.25", 1_000), (8_000, "1", 4_000), (600, "0.25", 256), (999_000, "1", 16_384)],
)
def test_processes_that_run_at_a_time_share_the_memory(
    monkeypatch: pytest.MonkeyPatch, machine: int, share: str, limit: int
) -> None:
    monkeypatch.setattr(machine_memory, "memory_bytes", lambda: machine * MIB)
    monkeypatch.setenv(MEMORY_SHARE, share)
    assert memory_bytes_default() == limit * MIB
    if share:
        with connections.connect_sandbox() as con:
            [(text,)] = con.execute("SELECT current_setting('memory_limit')").fetchall()
        assert text == duckdb.sql(f"SELECT format_bytes({limit * MIB})").fetchall()[0][0]


@pytest.mark.parametrize("share", ["0", "2", "-1", "half", "nan"])
def test_a_share_of_the_memory_is_above_zero_and_at_most_one(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setenv(MEMORY_SHARE, share)
    with pytest.raises(InvalidOption, match=rf"ICEDB_MEMORY_SHARE is '{share}'. Set a number above 0 and at most 1"):
        memory_bytes_default()


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [None],
        ["", None, "NULL", "it's", '"', "\\", "$1 ? {x}", "a\0b", "\n\x7f\u2028", "\U0001f600", "x" * 1_000_000],
    ],
    ids=["none", "null", "special"],
)
def test_quoted_texts_keep_each_character(texts: list[str | None]) -> None:
    [(read, type_)] = duckdb.sql(f"SELECT {quote_texts(texts)} AS texts, typeof(texts)").fetchall()
    assert read == texts
    assert type_ == "VARCHAR[]"
