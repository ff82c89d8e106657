"""Random nested rows survive insert, merge and rewrite value by value."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icedb import Table
from tests.support.object_stores.stores import Place

UTC = dt.UTC
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def numbers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high)


#: Arrow type -> values that it holds exactly.
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((getattr(pa, f"int{bits}")(), numbers(bits, signed=True)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), numbers(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), text),
    (pa.large_string(), text),
    (pa.binary(), st.binary(max_size=8)),
    (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
    (pa.date32(), st.dates(dt.date(1, 1, 1))),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes(dt.datetime(1, 1, 1))),
    (pa.timestamp("us", "UTC"), st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(UTC))),
]
#: Arrow cannot build it inside of anything.
UUIDS = (pa.uuid(), st.uuids())


def lists(element: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    type_, values = element
    return pa.list_(type_), st.lists(st.none() | values, max_size=3)


def structs(fields: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    named = {f"f{n} '\"": field for n, field in enumerate(fields)}
    return (
        pa.struct([pa.field(name, type_) for name, (type_, _) in named.items()]),
        st.fixed_dictionaries({name: st.none() | values for name, (_, values) in named.items()}),
    )


def maps(value: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    type_, values = value
    return pa.map_(pa.string(), type_), st.dictionaries(text, st.none() | values, max_size=3).map(
        lambda d: [*d.items()]
    )


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return children.map(lists) | st.lists(children, min_size=1, max_size=3).map(structs) | children.map(maps)


columns = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4) | st.just(UUIDS)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    drawn = draw(st.lists(columns, min_size=1, max_size=4))
    rows = draw(st.integers(2, 6))
    arrays = {"id": pa.array(range(rows)), "day": pa.array([f"d{n % 2}" for n in range(rows)])}
    for number, (type_, values) in enumerate(drawn):
        arrays[f"c{number}"] = column(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), type_)
    return pa.table(arrays)


def column(values: list[Any], type_: pa.DataType) -> pa.Array:
    if type_ == pa.uuid():
        return pa.array([None if v is None else v.bytes for v in values], type_)
    return pa.array(values, type_)


def plain(value: Any) -> Any:
    """A value for comparison: a map is its pairs, a UUID its text (as Arrow gets it), and a zero has no sign."""
    match value:
        case uuid.UUID():
            return str(value)
        case dict():
            return {k: plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
        case Decimal():
            return value.normalize()
        case float():
            return value + 0.0
    return value


def rows_of(table: Table, schema: pa.Schema) -> list[dict[str, Any]]:
    actual = table.query("SELECT * EXCLUDE (d) FROM t ORDER BY id").to_arrow_table()
    assert set(actual.column_names) == set(schema.names)
    return [plain(row) for row in actual.select(schema.names).to_pylist()]


def check(rows: pa.Table, place: Place) -> None:
    expected = [plain(row) for row in rows.to_pylist()]
    table = Table.create(place.uri, partition_by=["day AS d"], sort_by=["id"], storage_options=place.storage_options)
    half = rows.num_rows // 2
    table.insert(rows.slice(0, half))
    table.insert(rows.slice(half))
    types = table.schema()
    assert rows_of(table, rows.schema) == expected
    table.merge()
    assert rows_of(table, rows.schema) == expected
    for partition in table.snapshot().partitions():
        table.rewrite_partition(partition, "SELECT * FROM _rows")
    assert rows_of(table, rows.schema) == expected
    table.overwrite(rows)
    assert rows_of(table, rows.schema) == expected
    assert table.schema() == types
    assert table.verify(deep=True).ok


@pytest.mark.sampled(days=6)
@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tables())
def test_random_nested_rows_survive_insert_merge_and_rewrite(tmp_path_factory: Any, rows: pa.Table) -> None:
    check(rows, Place("local", str(tmp_path_factory.mktemp("t") / "table"), {"fsync": "false"}))


@pytest.mark.sampled(days=3)
@pytest.mark.s3
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tables())
def test_random_nested_rows_survive_over_http(s3: Place, rows: pa.Table) -> None:
    check(rows, s3.below(uuid.uuid4().hex))
