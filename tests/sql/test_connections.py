"""Errors of DuckDB that depend on the machine are recognized, and texts are quoted."""

from __future__ import annotations

import errno
from pathlib import Path

import duckdb
import pytest

from icedb.sql.connections import disk_full, is_disk_full, quote_texts

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
