"""The statistics, the size and the digest of a written file are those of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb.format.records import Stats
from icedb.format.table_spec import TableSpec
from icedb.sql.column_stats import TEXT_TYPES, encode_statistics, figures_sql
from icedb.sql.connections import connect_sandbox, quote_name, quote_text
from icedb.writer.encoding.parquet_encoder import (
    MERGE_LEVEL,
    EncodedFile,
    ParquetSettings,
    batch_rows,
    compact_dictionaries,
)
from icedb.writer.encoding.parquet_file import EncodedPart, encode_tables, write_query
from icedb.writer.encoding.part_stats import encode_bounds

WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN")
ODD_NAME = 'a "b".c'
SETTINGS = ParquetSettings("file:///table", TableSpec(row_group_rows=2048), MERGE_LEVEL)

#: SQL of a value of each type, from `h`, a BIGINT of any size.
VALUES = {
    "TIME": "TIME '00:00:00' + to_microseconds(h % 86400000000)",
    "DATE": "DATE '0002-01-01' + (h % 200000 - 100000)::INT",
    "TIMESTAMP": "make_timestamp(h // 100 - 60000000000000000)",
    "TIMESTAMP_NS": "make_timestamp_ns(h // 2)",
    "TIMESTAMP WITH TIME ZONE": "make_timestamptz(h // 100)",
    "UUID": "CAST(md5(h::VARCHAR) AS UUID)",
    "VARCHAR": "['é', '', chr(0), 'Z', '\U0010ffff'][1 + h % 5] || h",
    "FLOAT": "(h % 1000 - 500) / 7",
    "DOUBLE": "(h % 1000 - 500) / 7",
    "BOOLEAN": "h % 2 = 0",
}
#: Values between the others, and the extremes.
EXTREME = {
    "DATE": ["'infinity'", "'-infinity'", "'0044-03-15 (BC)'"],
    "TIMESTAMP": ["'infinity'", "'-infinity'"],
    "TIMESTAMP WITH TIME ZONE": ["'infinity'"],
    "FLOAT": ["'nan'", "'-0.0'", "'inf'"],
    "DOUBLE": ["'nan'"],
    "VARCHAR": ["repeat('\U0010ffff', 64)", "repeat('\U0010ffff', 300)", "''"],
    "UBIGINT": ["18446744073709551615"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
}


def written(path: Path, columns: dict[str, str], query: str) -> tuple[Stats, EncodedPart]:
    """Return the statistics of a file with a query's rows, in the form of a marker's."""
    with connect_sandbox(path.parent) as con:
        part = write_query(con, query, columns, SETTINGS, columns, rows=100, path=path)
        [stats] = encode_bounds(con, [part.bounds])
    return stats, part


def stats_of_file(columns: dict[str, str], path: Path) -> Stats:
    with connect_sandbox(path.parent) as con:
        query = f"SELECT {figures_sql(columns)}, count(*) FROM read_parquet({quote_text(str(path))})"
        [(figures, rows)] = con.execute(query).fetchall()
    return encode_statistics(columns, figures, rows)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("type_", [*WHOLE, *TEXT_TYPES])
def test_statistics_of_many_row_groups_are_those_of_the_rows(tmp_path: Path, type_: str) -> None:
    value = VALUES.get(type_, "h % 100")
    extremes = "".join(f" UNION ALL SELECT CAST({e} AS {type_})" for e in EXTREME.get(type_, []))
    with_nulls = "SELECT CASE WHEN i % 10 = 0 THEN NULL ELSE "
    for number, more in enumerate(("", extremes)):
        rows = "SELECT i, (hash(i) >> 2)::BIGINT AS h FROM range(9000) r(i)"
        query = f"{with_nulls} CAST({value} AS {type_}) END AS {quote_name(ODD_NAME)} FROM ({rows}){more}"
        columns = {ODD_NAME: type_}
        path = tmp_path / f"{number}.parquet"
        stats, part = written(path, columns, query)
        assert stats == stats_of_file(columns, path)
        assert part.file.rows == 9000 + more.count("UNION ALL")
        assert part.bounds.present[ODD_NAME] == 8100 + more.count("UNION ALL")


def test_a_column_of_nulls_has_their_number(tmp_path: Path) -> None:
    columns = {"n": "BIGINT", "s": "VARCHAR", "nothing": "DATE"}
    query = "SELECT 9::BIGINT AS n, 'a' AS s, NULL::DATE AS nothing FROM range(3)"
    stats, _ = written(tmp_path / "a.parquet", columns, query)
    assert not isinstance(stats, msgspec.UnsetType)
    assert msgspec.json.decode(stats) == {"n": [9, 9, 0], "s": ["a", "a", 0], "nothing": [None, None, 3]}


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_size_and_digest_are_those_of_the_file(tmp_path: Path, rows: int) -> None:
    _, part = written(tmp_path / "a.parquet", {"n": "BIGINT"}, f"SELECT i AS n FROM range({rows}) r(i)")
    content = (tmp_path / "a.parquet").read_bytes()
    assert part.file == EncodedFile(
        tmp_path / "a.parquet", len(content), hashlib.sha256(content).hexdigest()[:32], rows
    )


COMPARISONS = ["x = 1", "x <= 1", "x < 5", "x > 5", "x <> 1", "y > 100", "y < 1e9", "s.f = 1", "s.f < 5", "s.f > 5"]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("nan_row", [0, 2_100, 4_999])
def test_duckdb_without_this_library_finds_rows_with_nan(tmp_path: Path, is_streamed: bool, nan_row: int) -> None:
    """pyarrow's minimum and maximum omit NaN, which DuckDB takes for the greatest number."""
    ones = np.ones(5_000)
    ones[nan_row] = np.nan
    rows = pa.table({"x": ones, "y": np.where(np.isnan(ones), np.nan, np.arange(5_000)), "n": np.arange(5_000)})
    rows = rows.append_column("s", pa.StructArray.from_arrays([pa.array(ones)], ["f"]))
    path = tmp_path / "a.parquet"
    encode_tables(iter([rows]) if is_streamed else [rows], SETTINGS, {}, rows=5_000, path=path)
    with duckdb.connect() as con:
        con.register("given", rows)
        con.execute("CREATE TABLE expected AS FROM given")
        for condition in COMPARISONS:
            counts = [
                con.execute(f"SELECT count(*), sum(n) FROM {relation} WHERE {condition}").fetchall()
                for relation in ("expected", f"'{path}'")
            ]
            assert counts[0] == counts[1], condition
    first = pq.read_metadata(path).row_group(0)
    has_bounds = {first.column(n).path_in_schema: first.column(n).is_stats_set for n in range(4)}
    assert has_bounds == {"x": False, "y": False, "n": True, "s.f": False}


def test_floats_without_nan_have_bounds(tmp_path: Path) -> None:
    rows = pa.table({"x": [2.0, 1.0, None], "s": [{"f": 1.5}, {"f": 0.5}, None]})
    encode_tables([rows], SETTINGS, {}, rows=3, path=tmp_path / "a.parquet")
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    assert [(group.column(n).statistics.min, group.column(n).statistics.max) for n in (0, 1)] == [(1, 2), (0.5, 1.5)]


def test_duckdb_writes_a_type_that_pyarrow_lacks(tmp_path: Path) -> None:
    columns = {"n": "BIGINT", "large": "HUGEINT"}
    query = "SELECT i AS n, i::HUGEINT * 1_000_000_000_000_000_000_000 AS large FROM range(9) r(i)"
    stats, part = written(tmp_path / "a.parquet", columns, query)
    assert part.file.rows == 9
    assert stats == stats_of_file({"n": "BIGINT", "large": "DOUBLE"}, tmp_path / "a.parquet")


def test_a_stream_is_encoded_with_one_row_group_in_memory(tmp_path: Path) -> None:
    spec = TableSpec(row_group_rows=16_384, compression="uncompressed")
    group_bytes = spec.row_group_rows * 1_024
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    held: list[int] = []

    def batches() -> Iterator[pa.Table]:
        for _ in range(4 * spec.row_group_rows // batch_rows(spec)):
            held.append(pool.bytes_allocated())
            texts = pa.repeat("x" * 1_024, batch_rows(spec), memory_pool=pool)
            yield pa.table({"text": texts})

    settings = ParquetSettings("file:///table", spec, MERGE_LEVEL)
    encode_tables(batches(), settings, {"text": "VARCHAR"}, rows=4 * spec.row_group_rows, path=tmp_path / "part")
    assert group_bytes // 2 < max(held) < 1.5 * group_bytes


@pytest.mark.long
@pytest.mark.parametrize("rows", [0, 1, 5, 400])
def test_a_slice_keeps_the_values_of_its_rows_only(rows: int) -> None:
    """A few rows of a large dictionary are compacted by the rows, and many by the dictionary."""
    values = [f"v{n:04}" for n in range(1_000)]
    column = pa.array([values[n * 7 % 1_000] if n % 5 else None for n in range(1_000)]).dictionary_encode()
    part = pa.table({"v": column}).slice(10, rows)
    compact = compact_dictionaries(part)
    assert compact["v"].to_pylist() == part["v"].to_pylist()
    stored = compact["v"].combine_chunks().dictionary.to_pylist()
    of_whole = column.dictionary.to_pylist()
    assert set(stored) == {v for v in part["v"].to_pylist() if v is not None}
    assert stored == [v for v in of_whole if v in set(stored)]  # in the same order
