"""Merges in Arrow: which parts they take, and what happens with unsorted, damaged and older parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import MissingPart
from icedb.operations.rewrite import arrow_merge, rewriter
from icedb.operations.rewrite.arrow_merge import MergeInputs, UnsortedParts, merge_at_once, merge_sorted, open_inputs
from icedb.sql.connections import MEMORY_BYTES_MIN
from tests.support.processes import run_python

#: A merge for which all rows do not fit into memory, but pages of each part do.
SCARCE = 1024 * 1024


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that merge, in the order of their calls; merges of all rows at once are off."""
    calls: list[str] = []

    def recorded(name: str) -> Any:
        function = getattr(rewriter, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return function(*arguments, **options)

        return call

    for name in ("merge_at_once", "merge_sorted", "_copy_rows"):
        monkeypatch.setattr(rewriter, name, recorded(name))
    monkeypatch.setattr(MergeInputs, "fit", lambda *_: False)
    return calls


def make(folder: Path, *values: list[Any], **options: Any) -> Table:
    table = Table.create(folder / "table", sort_by=["n"], storage_options={"fsync": "false"}, **options)
    for n in values:
        table.insert(pa.table({"n": n, "s": [str(v) for v in n]}))
    return table


def part_rows(table: Table) -> list[dict[str, Any]]:
    [part] = table.snapshot().parts
    return pq.read_table(Path(table.uri, part.key), partitioning=None).to_pylist()


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def test_sorted_parts_are_merged_without_duckdb(tmp_path: Path, ways: list[str]) -> None:
    table = make(tmp_path, [3, 1, None], [2, 2, 9], [5])
    table.merge()
    assert ways == ["merge_sorted"]
    assert [row["n"] for row in part_rows(table)] == [1, 2, 2, 3, 5, 9, None]
    assert all(row["s"] == str(row["n"]) for row in part_rows(table))


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("order", list(permutations([3, 7, 8])))
def test_a_part_whose_rows_are_not_in_order_is_merged(
    tmp_path: Path, ways: list[str], order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_merge, "_BATCH_ROWS_MAX", 2)
    pq.write_table(pa.table({"n": order, "s": [str(n) for n in order]}), tmp_path / "unsorted.parquet")
    table = make(tmp_path, [5, 1])
    table.import_files(tmp_path / "unsorted.parquet")
    table.merge()
    assert ways[0] == "merge_sorted"
    if order in ((3, 7, 8), (7, 8, 3)):
        assert ways[1:] == ([] if order[0] == 3 else ["_copy_rows"])
    assert [row["n"] for row in part_rows(table)] == [1, 3, 5, 7, 8]
    assert len(list(Path(table.uri, "_data").rglob("*.parquet"))) == 3, "the unfinished part is not in the store"


def test_duckdb_merges_a_part_with_times_in_other_units(tmp_path: Path, ways: list[str]) -> None:
    pq.write_table(pa.table({"n": pa.array([7_000, 8_000], pa.timestamp("ms"))}), tmp_path / "ms.parquet")
    table = Table.create(tmp_path / "table", sort_by=["n"], storage_options={"fsync": "false"})
    table.insert(pa.table({"n": pa.array([7_500_000, 1], pa.timestamp("us"))}))
    table.import_files(tmp_path / "ms.parquet")
    table.merge()
    assert ways == ["_copy_rows"]
    assert [row["n"].second for row in part_rows(table)] == [0, 7, 7, 8]


def test_nested_sort_columns_and_unsorted_tables_are_not_streamed(tmp_path: Path, ways: list[str]) -> None:
    nested = Table.create(tmp_path / "nested", sort_by=["s"], storage_options={"fsync": "false"})
    unsorted = Table.create(tmp_path / "unsorted", storage_options={"fsync": "false"})
    for n in range(2):
        nested.insert([{"s": {"n": n}}])
        unsorted.insert([{"n": n}])
    nested.merge()
    unsorted.merge()
    assert ways == ["_copy_rows", "_copy_rows"]


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_or_missing_part_is_named_and_nothing_stays_behind(
    tmp_path: Path, ways: list[str], damage: str
) -> None:
    table = make(tmp_path, [1], [2])
    files = sorted(Path(table.uri, "_data").rglob("*.parquet"))
    files[0].unlink() if damage == "missing" else files[0].write_bytes(files[0].read_bytes()[:100])
    with pytest.raises(MissingPart if damage == "missing" else Exception, match=files[0].stem):
        table.merge()
    assert ways == ["_copy_rows"]
    assert sorted(Path(table.uri, "_data").rglob("*.parquet")) == files[damage == "missing" :]
    assert len(table.snapshot().parts) == 2


def test_dictionaries_of_texts_are_merged(tmp_path: Path, con: duckdb.DuckDBPyConnection) -> None:
    paths = [str(tmp_path / f"{n}.parquet") for n in range(2)]
    for n, path in enumerate(paths):
        rows = pa.table({"s": pa.array(sorted(f"{(n + v) % 5}" for v in range(100)))})
        pq.write_table(rows, path, store_schema=False, use_dictionary=True)
    with open_inputs(paths, {"s": "VARCHAR"}, ["s"]) as inputs:
        assert inputs is not None
        assert all(pa.types.is_dictionary(file.schema_arrow.field("s").type) for file in inputs.files)
        merged = merge_at_once(con, inputs)
        streamed = pa.concat_tables(merge_sorted(con, inputs, SCARCE))
    expected = sorted(f"{(n + v) % 5}" for n in range(2) for v in range(100))
    assert merged["s"].to_pylist() == streamed["s"].to_pylist() == expected


def test_rows_out_of_order_between_two_batches_are_noticed(
    tmp_path: Path, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_merge, "_BATCH_ROWS_MAX", 2)
    pq.write_table(pa.table({"n": [4, 5, 1, 2]}), tmp_path / "a.parquet")
    with open_inputs([str(tmp_path / "a.parquet")], {"n": "BIGINT"}, ["n"]) as inputs:
        assert inputs is not None
        with pytest.raises(UnsortedParts):
            list(merge_sorted(con, inputs, SCARCE))


@pytest.mark.sampled(days=3)
def test_pages_of_other_writers_count_as_a_whole_column(tmp_path: Path) -> None:
    """DuckDB writes pages of up to 100 MB."""
    with duckdb.connect() as con:
        query = "SELECT hash(i) AS n, repeat(md5(i::VARCHAR), 9) AS s FROM range(100_000) r(i) ORDER BY n"
        con.execute(f"COPY ({query}) TO '{tmp_path}/duckdb.parquet'")
        pq.write_table(con.sql(query).to_arrow_table(), tmp_path / "arrow.parquet", store_schema=False)
    can_stream = {}
    for name in ("duckdb", "arrow"):
        columns = {"n": "UBIGINT", "s": "VARCHAR"}
        with open_inputs([f"{tmp_path}/{name}.parquet"], columns, ["n"]) as inputs:
            assert inputs is not None
            can_stream[name] = inputs.can_stream(16 * SCARCE)
    assert can_stream == {"duckdb": False, "arrow": True}


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak memory")
@pytest.mark.slow(seconds=15)
def test_a_merge_of_sorted_parts_stays_within_its_memory(tmp_path: Path) -> None:
    """Eight parts of 64 MiB in Arrow, twice the limit."""
    table = Table.create(tmp_path / "table", sort_by=["n"], storage_options={"fsync": "false"})
    with duckdb.connect() as con:
        for n in range(8):
            row = f"hash(i + {n * 400_000}) AS n, repeat(md5((i + {n})::VARCHAR), 5) AS s"
            table.insert(con.sql(f"SELECT {row} FROM range(400_000) r(i)").to_arrow_table())
    done = run_python(
        "-m", "benchmarks.writes.merge_memory", table.uri, MEMORY_BYTES_MIN, cwd=Path(__file__).parents[3]
    )
    assert int(done.stdout) < MEMORY_BYTES_MIN
    rows = table.query("SELECT count(*), count(DISTINCT n) FROM t").fetchall()
    assert rows == [(3_200_000, 3_200_000)]
    [part] = table.snapshot().parts
    n = pq.read_table(Path(table.uri, part.key), columns=["n"])["n"].to_numpy()
    assert (n[1:] >= n[:-1]).all()
