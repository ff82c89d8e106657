"""Snapshots as pandas DataFrames, with columns of Arrow or with the narrower types of NumPy."""

from __future__ import annotations

import sys
from datetime import datetime

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from icedb import Table
from icedb.engines.pandas import read
from icedb.errors import InvalidOption, MissingExtra, UnknownColumn
from tests.support.object_stores.stores import Place
from tests.support.tables.reader_tables import by_hour, every_type, rows_by, widened


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_frame_has_the_rows_and_types_of_a_query(place: Place) -> None:
    snapshot = every_type(place).snapshot()
    frame, expected = read(snapshot), snapshot.to_arrow()
    assert list(frame.columns) == expected.column_names
    assert [dtype.pyarrow_dtype for dtype in frame.dtypes] == list(expected.schema.types)
    assert rows_by("n", pa.Table.from_pandas(frame, preserve_index=False)) == rows_by("n", expected)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_frame_at_a_time_of_changes_and_with_other_types(local: Place) -> None:
    table, before = by_hour(local)
    other = widened(local.below("w")).snapshot()
    for snapshot in (table.snapshot(before.as_of_ms), table.snapshot(), table.changes(), other):
        frame = pa.Table.from_pandas(read(snapshot), preserve_index=False)
        assert rows_by("n", frame) == rows_by("n", snapshot.to_arrow())


def test_columns_and_rows_are_selected_exactly(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"])
    table.insert([{"n": n, "text": "é"} for n in range(30)])
    table.alter(partition_by=["n // 5 AS fives"])
    frame = read(table.snapshot(), ["text", "n"], where="fives = 3")
    assert list(frame.columns) == ["text", "n"]
    assert sorted(frame["n"]) == [15, 16, 17, 18, 19]
    assert read(table.snapshot(), ["n"], where="n = 17 AND text = 'é'")["n"].tolist() == [17]
    with pytest.raises(UnknownColumn, match="no column 'tens'"):
        read(table.snapshot(), ["tens"])


def test_whole_numbers_with_nulls_stay_whole_in_arrow_and_are_floats_in_numpy(local: Place) -> None:
    table = Table.create(local.uri)
    rows = f"SELECT {2**53 + 1} AS n, true AS yes, TIMESTAMP '2026-11-21' AS at, [1] AS list UNION ALL SELECT"
    table.insert(duckdb.connect().sql(f"{rows} NULL, NULL, NULL, NULL"))
    exact = read(table.snapshot())
    assert exact["n"].dropna().tolist() == [2**53 + 1]
    assert exact["n"].dtype == pd.ArrowDtype(pa.int64())
    old = read(table.snapshot(), dtype_backend="numpy")
    assert old["n"].dropna().tolist() == [2.0**53]
    assert (old["n"].dtype, old["yes"].dtype, old["at"].dtype) == (np.float64, object, "datetime64[us]")
    assert old["at"].dropna().tolist() == [datetime(2026, 11, 21)]


def test_invalid_options_are_rejected(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(local.uri)
    assert read(table.snapshot()).shape == (0, 0)
    with pytest.raises(InvalidOption, match="dtype_backend must be one of 'pyarrow', 'numpy'"):
        read(table.snapshot(), dtype_backend="numpy_nullable")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'icedb-dagster\[pandas\]'"):
        read(table.snapshot())
