"""Rows of every supported kind are inserted, overwritten and read back through `Table`, on each store."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import InvalidBatch, InvalidOption
from tests.support.object_stores.stores import Place

ROWS = [
    {"user": 1, "event": "open", "price": 1.5},
    {"user": 2, "event": "buy", "price": None},
    {"user": 3, "event": None, "price": -2.0},
]
MORE = [{"user": 4, "event": "open", "price": 0.25, "tag": "new"}]


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


class _Capsule:
    """Anything that exports an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def parquet(rows: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(arrow(rows), path)
    return path


def json_lines(rows: list[dict[str, Any]], folder: Path) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def csv_file(rows: list[dict[str, Any]], folder: Path) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def glob(rows: list[dict[str, Any]], folder: Path) -> str:
    inner = folder / f"glob-{len(list(folder.iterdir()))}"
    inner.mkdir()
    for row in rows:
        parquet([row], inner)
    return f"{inner}/*.parquet"


def relation(rows: list[dict[str, Any]], _: Path) -> duckdb.DuckDBPyRelation:
    con = duckdb.connect()
    con.register("rows", arrow(rows))
    return con.sql("SELECT * FROM rows")


#: Each way to give the same rows.
WAYS: dict[str, Callable[[list[dict[str, Any]], Path], Any]] = {
    "list of dicts": lambda rows, _: rows,
    "tuple of dicts": lambda rows, _: tuple(rows),
    "pyarrow Table": lambda rows, _: arrow(rows),
    "pyarrow RecordBatch": lambda rows, _: arrow(rows).combine_chunks().to_batches()[0],
    "pyarrow RecordBatchReader": lambda rows, _: arrow(rows).to_reader(),
    "pandas": lambda rows, _: pd.DataFrame(rows),
    "Polars": lambda rows, _: pl.DataFrame(rows),
    "Polars, lazy": lambda rows, _: pl.LazyFrame(rows),
    "DuckDB relation": relation,
    "Arrow capsule": lambda rows, _: _Capsule(arrow(rows)),
    "Parquet file": parquet,
    "list of Parquet files": lambda rows, folder: [parquet([row], folder) for row in rows],
    "glob": glob,
    "JSON lines": json_lines,
    "CSV": csv_file,
}


def read(table: Table) -> list[tuple[Any, ...]]:
    return sorted(table.query("SELECT user, event, price FROM t").fetchall(), key=repr)


def expected(*rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted(((r["user"], r["event"], r["price"]) for r in rows), key=repr)


@pytest.mark.sampled(cases=12, days=3)
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_every_kind_are_inserted(way: str, shared_place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    table = Table.create(shared_place.uri, sort_by=["user"], storage_options=shared_place.storage_options)
    table.insert([{"user": 0, "event": "first", "price": 0.0}])
    rows = copy.deepcopy(ROWS)
    assert table.insert(WAYS[way](rows, source)).rows == len(ROWS)
    assert rows == ROWS
    assert read(table) == expected({"user": 0, "event": "first", "price": 0.0}, *ROWS)
    assert table.insert(WAYS[way](MORE, source)).rows == len(MORE)
    assert table.schema() == {"user": "BIGINT", "event": "VARCHAR", "price": "DOUBLE", "tag": "VARCHAR"}
    assert table.overwrite(WAYS[way](rows, source)).rows == len(ROWS)
    assert read(table) == expected(*ROWS)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_files_in_a_bucket_are_inserted(suffix: str, s3: Place, s3_server: Any, tmp_path: Path) -> None:
    write = {"parquet": parquet, "jsonl": json_lines, "csv": csv_file}[suffix]
    bucket, _, prefix = s3.uri.removeprefix("s3://").partition("/")
    for number, row in enumerate(ROWS):
        s3_server.client().upload_file(str(write([row], tmp_path)), bucket, f"{prefix}-in/{number}.{suffix}")
    table = Table.create(s3.uri, storage_options=s3.storage_options)
    table.insert([{"user": 0, "event": "first", "price": 0.0}])
    assert table.insert(f"{s3.uri}-in/*.{suffix}").rows == len(ROWS)
    assert read(table) == expected({"user": 0, "event": "first", "price": 0.0}, *ROWS)


def test_invalid_rows_are_rejected(local: Place) -> None:
    table = Table.create(local.uri)
    for wrong in (7, object(), "no-such-file.parquet", ["a.parquet", {"x": 1}], b"bytes", {"x": 1}):
        with pytest.raises(InvalidBatch, match=local.uri):
            table.insert(wrong)
    with pytest.raises(InvalidOption, match="on_conflict"):
        table.insert(ROWS, on_conflict="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="memory_bytes"):
        table.insert(ROWS, memory_bytes=1)
    assert not table.snapshot().parts
