"""Slices of nested Arrow arrays, which DuckDB would read from the wrong place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from icedb import Table
from icedb.util.arrow_offsets import copy_nested_slices
from tests.support.object_stores.stores import Place

G = pa.struct([("g", pa.int8())])
INNER = pa.array([{"g": None}, {"g": 5}, {"g": 6}], G)
DEEP = pa.array([None, {"f": None, "s": {"g": None}}, {"f": 1, "s": {"g": 5}}, {"f": 1, "s": None}],
                pa.struct([("f", pa.int8()), ("s", G)]))  # fmt: skip
MAPS = pa.array([[("a", 1)], [("b", None)], None], pa.map_(pa.string(), pa.int64()))

SLICES: dict[str, pa.Array] = {
    "struct in a struct": DEEP.slice(1),
    "struct in a struct, later": DEEP.slice(2),
    "list over a slice": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), INNER.slice(1)),
    "struct of a slice": pa.StructArray.from_arrays([INNER.slice(1)], names=["f"]),
    "struct of a slice of lists": pa.StructArray.from_arrays([pa.array([[1], [2], [3]]).slice(1)], names=["l"]),
    "maps": MAPS.slice(1),
    "list of structs": pa.array([[{"a": 1}], [{"a": None}, None], [{"a": 3}]]).slice(1),
}


def plain(values: list[Any]) -> list[Any]:
    """Convert maps to dicts, as DuckDB returns them."""
    return [dict(v) if isinstance(v, list) and v and isinstance(v[0], tuple) else v for v in values]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", SLICES)
def test_a_slice_of_a_nested_array_is_stored_correctly(name: str, local: Place) -> None:
    column = SLICES[name]
    table = Table.create(local.uri, sort_by=["id"], storage_options={"fsync": "false"})
    table.insert(pa.table({"id": pa.array(range(len(column))), "x": column}))
    stored = [x for (x,) in table.query("SELECT x FROM t ORDER BY id").fetchall()]
    assert stored == plain(column.to_pylist())


def test_an_array_without_slices_is_not_copied() -> None:
    whole = pa.RecordBatch.from_arrays([DEEP, pa.array(range(10)).slice(3, len(DEEP))], ["x", "n"])
    assert copy_nested_slices(whole) is whole
