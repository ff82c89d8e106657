"""Dicts with equal or different keys become columns, and the caller's dicts are not changed."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from icedb.errors import InvalidBatch, SchemaConflict
from icedb.sources import python_rows as rows_module
from icedb.sources.batch import CHUNK_ROWS
from icedb.sources.inference.fields import columns_of
from icedb.sources.python_rows import open_rows


@pytest.mark.parametrize(
    ("dicts", "columns"),
    [
        ([], {}),
        ([{}, {}], {}),
        ([{"a": 1, "b": 2}, {"b": 3, "a": 4}], {"a": [1, 4], "b": [2, 3]}),
        ([{"a": 1, "b": 2}, {"a": 3, "c": 4}], {"a": [1, 3], "b": [2, None], "c": [None, 4]}),
        ([{"b": 1}, {}, {"a": 2, "b": 3}], {"b": [1, None, 3], "a": [None, None, 2]}),
        ([OrderedDict(a=1), MappingProxyType({"b": 2})], {"a": [1, None], "b": [None, 2]}),
    ],
)
def test_columns_are_in_order_of_appearance(dicts: list[Mapping[str, int]], columns: dict[str, list[Any]]) -> None:
    assert list(columns_of(dicts).items()) == list(columns.items())


def test_a_defaultdict_gets_no_default_values() -> None:
    rows = [defaultdict(int, a=1, b=2), defaultdict(int, a=3, c=4)]
    assert columns_of(rows) == {"a": [1, 3], "b": [2, None], "c": [None, 4]}
    assert [dict(row) for row in rows] == [{"a": 1, "b": 2}, {"a": 3, "c": 4}]


def opened(rows: list[Any]) -> list[dict[str, Any]]:
    batch = open_rows(rows, table="t", table_columns={}, on_conflict="raise", failed=lambda error: None)
    read: list[dict[str, Any]] = batch.stream.read_all().to_pylist()
    return read


def test_rows_are_equal_if_columns_are_kept_or_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"n": n, "inner": {"x": n / 2, "y": None}} for n in range(CHUNK_ROWS + 2)]
    rows[-1] = {"n": None, "late": [1, 2]}
    expected = [{"n": r["n"], "inner": {"x": r["inner"]["x"]}, "late": None} for r in rows[:-1]]
    expected.append({"n": None, "inner": None, "late": [1, 2]})
    assert opened(rows) == expected
    monkeypatch.setattr(rows_module, "KEPT_VALUES", 0)
    assert opened(rows) == expected


@pytest.mark.parametrize(
    ("bad", "message"),
    [([1, 2], "row 8193 is a list, not a dict"), ({"n": 1, 2: 3}, "row 8193 has the column name 2, which is not text")],
)
def test_an_invalid_row_is_named(bad: object, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        opened([{"n": 1}] * (CHUNK_ROWS + 1) + [bad, {3: 4}])


def test_times_with_and_without_a_zone_conflict() -> None:
    naive, aware = datetime(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)
    assert [row["t"] for row in opened([{"t": naive}, {"t": None}, {"t": naive}])] == [naive, None, naive]
    with pytest.raises(SchemaConflict, match="TIMESTAMP, and TIMESTAMP WITH TIME ZONE in row 3"):
        opened([{"t": None}, {"t": naive}, {"t": naive}, {"t": aware}, {"t": naive}])
