"""Rows of every kind become a batch: all values are unchanged, or an error names the row, the types and the remedy."""

from __future__ import annotations

import copy
import enum
import uuid
from collections import UserDict, UserList, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from icedb.errors import IceDBError, InvalidBatch, SchemaConflict, UnsupportedType
from icedb.sources.batch import CHUNK_ROWS
from tests.support.tables.input_reader import HERE, read

U1, U2 = uuid.UUID(int=1), uuid.UUID(int=2**127 + 5)
EAST = timezone(timedelta(hours=5, minutes=30))


class Color(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


Pair = namedtuple("Pair", "a b")  # a named tuple without types

# ------------------------------------------------------------------------------------------ values of one type

ROUND_TRIPS: list[tuple[str, str, list[Any]]] = [
    ("integers", "BIGINT", [1, -(2**63), 2**63 - 1, None]),
    ("unsigned integers", "UBIGINT", [0, 2**64 - 1, None]),
    ("floats", "DOUBLE", [0.1, -0.0, float("inf"), float("-inf"), 5e-324, None]),
    ("decimals", "DECIMAL(18,2)", [Decimal("1.50"), Decimal("-0.01"), None]),
    ("long decimals", "DECIMAL(38,3)", [Decimal("12345678901234567890.125")]),
    ("decimals with an exponent", "DECIMAL(18,1)", [Decimal("1E+3"), Decimal("0.1")]),
    ("texts", "VARCHAR", ["", "ä\n'\"\0x", "😀", None]),
    ("bytes", "BLOB", [b"", b"\0\xff", None]),
    ("booleans", "BOOLEAN", [True, False, None]),
    ("dates", "DATE", [date(1, 1, 1), date(9999, 12, 31), None]),
    ("times", "TIMESTAMP", [datetime(1, 1, 1), datetime(2026, 11, 21, 1, 2, 3, 456789), None]),
    ("times of a zone", "TIMESTAMP WITH TIME ZONE", [datetime(2026, 1, 1, tzinfo=UTC), None]),
    ("times of a day", "TIME", [time(0), time(23, 59, 59, 999999), None]),
    ("uuids", "UUID", [U1, U2, None]),
    ("structs", "STRUCT(a BIGINT, b VARCHAR)", [{"a": 1, "b": "x"}, None]),
    ("lists", "BIGINT[]", [[1, None, 2], [], None]),
    ("nested", "STRUCT(l STRUCT(x DOUBLE, u UUID[])[])", [{"l": [{"x": 1.5, "u": [U1]}, None]}, {"l": []}, None]),
]  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("type_", "values"), [c[1:] for c in ROUND_TRIPS], ids=[c[0] for c in ROUND_TRIPS])
def test_python_values_are_unchanged_and_have_their_type(type_: str, values: list[Any]) -> None:
    batch = read([{"a": v} for v in values])
    assert batch.types == {"a": type_}
    assert batch.column == values
    assert [type(v) for v in batch.column] == [type(v) for v in values]
    assert batch.source == "insert"
    assert read([{"a": v} for v in values], {"a": type_}) == batch


def test_nan_and_negative_zero_are_unchanged() -> None:
    nan, zero = read([{"a": float("nan")}, {"a": -0.0}]).column
    assert nan != nan
    assert str(zero) == "-0.0"


def test_a_time_of_another_zone_is_the_same_instant() -> None:
    [batch] = read([{"a": datetime(2026, 1, 1, tzinfo=EAST)}]).column
    assert batch == datetime(2025, 12, 31, 18, 30, tzinfo=UTC)


LIKE_PLAIN: list[tuple[str, Any, str, Any]] = [
    ("a numpy integer", np.int8(5), "BIGINT", 5),
    ("a numpy unsigned integer", np.uint64(2**64 - 1), "UBIGINT", 2**64 - 1),
    ("a numpy float", np.float32(0.5), "DOUBLE", 0.5),
    ("a numpy boolean", np.bool_(True), "BOOLEAN", True),
    ("a numpy text", np.str_("x"), "VARCHAR", "x"),
    ("a numpy array", np.array([[1, 2], [3, 4]]), "BIGINT[][]", [[1, 2], [3, 4]]),
    ("a numpy array of times", np.array(["2026-01-01T01"], "M8[ns]"), "TIMESTAMP[]", [datetime(2026, 1, 1, 1)]),
    ("a numpy time", np.datetime64("2026-01-01T01:02:03.5"), "TIMESTAMP", datetime(2026, 1, 1, 1, 2, 3, 500000)),
    ("a numpy day", np.datetime64("2026-01-01"), "DATE", date(2026, 1, 1)),
    ("a pandas time", pd.Timestamp(2026, 1, 1, 2), "TIMESTAMP", datetime(2026, 1, 1, 2)),
    ("one of a zone", pd.Timestamp(0, tz="UTC"), "TIMESTAMP WITH TIME ZONE", datetime(1970, 1, 1, tzinfo=UTC)),
    ("an enum", Color.RED, "VARCHAR", "red"),
    ("an enum of integers", Size.BIG, "BIGINT", 3),
    ("a tuple", (1, 2), "BIGINT[]", [1, 2]),
    ("a named tuple", Pair(1, 2), "BIGINT[]", [1, 2]),
    ("a bytearray", bytearray(b"x"), "BLOB", b"x"),
    ("a memoryview", memoryview(b"x"), "BLOB", b"x"),
    ("another mapping", UserDict({"x": 1}), "STRUCT(x BIGINT)", {"x": 1}),
    ("what is inside", {"x": [np.int64(1), Size.BIG]}, "STRUCT(x BIGINT[])", {"x": [1, 3]}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "type_", "plain"), [c[1:] for c in LIKE_PLAIN], ids=[c[0] for c in LIKE_PLAIN])
def test_values_of_other_libraries_become_plain_values(value: Any, type_: str, plain: Any) -> None:
    batch = read([{"a": value}, {"a": None}])
    assert batch.types == {"a": type_}
    assert batch.column == [plain, None]


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, np.datetime64("NaT")], ids=str)
def test_missing_values_are_null(missing: Any) -> None:
    assert read([{"a": 1, "b": missing}, {"a": missing}]).rows == [(1, None), (None, None)]


# ------------------------------------------------------------------------------------------ several rows


def test_columns_are_the_union_over_all_rows() -> None:
    rows = [{"a": 1}] * CHUNK_ROWS + [{"b": "late"}, {}]
    batch = read(rows)
    assert batch.types == {"a": "BIGINT", "b": "VARCHAR"}
    assert batch.rows == [(1, None)] * CHUNK_ROWS + [(None, "late"), (None, None)]


def test_fields_of_dicts_are_the_union_over_all_rows() -> None:
    rows = [{"a": {"x": 1}}, {"a": {"y": {"z": [1.5]}}}, {"a": {"y": {"w": "t"}}}]
    assert read(rows).types == {"a": "STRUCT(x BIGINT, y STRUCT(z DOUBLE[], w VARCHAR))"}
    assert read(rows).column[2] == {"x": None, "y": {"z": None, "w": "t"}}


def test_any_sequence_of_mappings_is_a_batch() -> None:
    assert read(UserList([UserDict({"a": 1})])).rows == [(1,)]
    assert read(({"a": 1},)).rows == [(1,)]


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2.5], "DOUBLE"),
        ([2**53, 0.5], "DOUBLE"),
        ([1, Decimal("1.25")], "DECIMAL(18,2)"),
        ([2**63, 1], "UBIGINT"),
    ],
)
def test_numbers_share_an_exact_type(values: list[Any], type_: str) -> None:
    batch = read([{"a": v} for v in values])
    assert batch.types == {"a": type_}
    assert batch.column == values


def test_rows_without_values_have_columns_without_types() -> None:
    assert read([{"a": None}]).types == {"a": "NULL"}
    assert read([{"a": None}], {"a": "DATE"}).types == {"a": "NULL"}
    assert read([{"a": {"x": None, "y": 1}}]).types == {"a": "STRUCT(y BIGINT)"}
    assert read([]).types == {}


# ------------------------------------------------------------------------------------------ the table's types

KNOWN: list[tuple[str, Any, Any]] = [
    ("DOUBLE", 1, 1.0),
    ("DOUBLE", 2**70, float(2**70)),
    ("FLOAT", 0.5, 0.5),
    ("FLOAT", 3, 3.0),
    ("TINYINT", -128, -128),
    ("UBIGINT", 1, 1),
    ("USMALLINT", 65535, 65535),
    ("HUGEINT", 2**100, 2**100),
    ("DECIMAL(38,0)", 2**70, Decimal(2**70)),
    ("DECIMAL(9,3)", Decimal("1.5"), Decimal("1.500")),
    ("DECIMAL(9,3)", 7, Decimal("7.000")),
    ("TIMESTAMP_NS", datetime(2026, 1, 1, 1), datetime(2026, 1, 1, 1)),
    ("MAP(VARCHAR, DOUBLE)", {"x": 1, "y": 2.5}, {"x": 1.0, "y": 2.5}),
    ("MAP(INTEGER, UUID)", {1: U1, 2: None}, {1: U1, 2: None}),
    ("MAP(VARCHAR, BIGINT)[]", [{}, {"x": 1}], [{}, {"x": 1}]),
    ("STRUCT(a DOUBLE, b UUID)", {"a": 1}, {"a": 1.0, "b": None}),
    ("STRUCT(a BIGINT)", {}, {"a": None}),
    ("VARCHAR[]", [], []),
    ("SMALLINT[2]", [1, 2], (1, 2)),
    ("JSON", {"x": [1, "t"]}, '{"x":[1,"t"]}'),
    ("JSON", '{"x": 1}', '{"x": 1}'),
]


@pytest.mark.parametrize(("type_", "value", "stored"), KNOWN)
def test_a_value_has_the_type_of_the_table_if_it_is_exact(type_: str, value: Any, stored: Any) -> None:
    batch = read([{"a": value}, {"a": None}], {"a": type_})
    assert batch.types == {"a": type_}
    assert batch.column == [stored, None]
    assert batch.mixed == frozenset()


@pytest.mark.parametrize(
    ("type_", "value", "own"),
    [
        ("DOUBLE", 2**53 + 1, "BIGINT"),
        ("FLOAT", 0.1, "DOUBLE"),
        ("FLOAT", 2**24 + 1, "BIGINT"),
        ("FLOAT", 1e300, "DOUBLE"),
        ("TINYINT", 128, "BIGINT"),
        ("UBIGINT", -1, "BIGINT"),
        ("BIGINT", True, "BOOLEAN"),
        ("BIGINT", 1.0, "DOUBLE"),
        ("DECIMAL(9,3)", Decimal("1.2345"), "DECIMAL(18,4)"),
        ("DECIMAL(3,2)", 10, "BIGINT"),
        ("DATE", datetime(2026, 1, 1), "TIMESTAMP"),
        ("TIMESTAMP", datetime(2026, 1, 1, tzinfo=UTC), "TIMESTAMP WITH TIME ZONE"),
        ("VARCHAR", 1, "BIGINT"),
        ("UUID", str(U1), "VARCHAR"),
        ("STRUCT(a BIGINT)", {"b": 1}, "STRUCT(b BIGINT)"),
        ("BIGINT[2]", [1, 2, 3], "BIGINT[]"),
        ("MAP(INTEGER, VARCHAR)", [1], "BIGINT[]"),
    ],
)
def test_values_that_the_type_of_the_table_would_change_keep_their_type(type_: str, value: Any, own: str) -> None:
    batch = read([{"a": value}], {"a": type_})
    assert batch.types == {"a": own}
    assert batch.column == [value]


def test_empty_lists_conflict_with_a_column_of_text() -> None:
    with pytest.raises(SchemaConflict, match="column 'a' is VARCHAR in the table and holds empty lists"):
        read([{"a": []}], {"a": "VARCHAR"})


def test_python_texts_are_json_beside_other_values() -> None:
    assert read([{"a": "[1]"}], {"a": "JSON"}).column == ["[1]"]
    assert read([{"a": "[1]"}, {"a": 1}], {"a": "JSON"}).column == ["[1]", "1"]


# ------------------------------------------------------------------------------------------ conflicts within a batch

MIXED: list[tuple[list[Any], tuple[str, str], int]] = [
    ([1, "x"], ("BIGINT", "VARCHAR"), 1),
    ([True, 1], ("BOOLEAN", "BIGINT"), 1),
    ([None, 1.5, 1, True], ("DOUBLE", "BOOLEAN"), 3),
    ([1.5, Decimal("1.5")], ("DOUBLE", "DECIMAL"), 1),
    ([0.5, 2**53 + 1], ("DOUBLE", "BIGINT"), 1),
    ([datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)], ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"), 1),
    ([date(2026, 1, 1), datetime(2026, 1, 1)], ("DATE", "TIMESTAMP"), 1),
    (["x", b"x"], ("VARCHAR", "BLOB"), 1),
    ([{"x": 1}, [1]], ("STRUCT", "LIST"), 1),
    ([U1, str(U1)], ("UUID", "VARCHAR"), 1),
]


@pytest.mark.parametrize(("values", "types", "row"), MIXED)
def test_values_of_two_types_raise_a_conflict_with_column_types_and_row(
    values: list[Any], types: tuple[str, str], row: int
) -> None:
    with pytest.raises(
        SchemaConflict, match=rf"^{HERE}: .*column 'a' are not of one type.* row {row}\..*Convert"
    ) as caught:
        read([{"b": 0, "a": v} for v in values])
    assert (caught.value.column, caught.value.types) == ("a", types)


def test_the_row_of_a_conflict_is_counted_over_all_chunks() -> None:
    rows: list[dict[str, Any]] = [{"a": 1}] * (2 * CHUNK_ROWS)
    with pytest.raises(SchemaConflict, match=f"VARCHAR in row {2 * CHUNK_ROWS}"):
        read([*rows, {"a": "x"}])


def test_a_nested_conflict_names_its_path() -> None:
    with pytest.raises(SchemaConflict, match=r"column 'a\.l\[\]\.x' .* BIGINT, and VARCHAR in row 1\.") as caught:
        read([{"a": {"l": [{"x": 1}]}}, {"a": {"l": [{"x": "t"}]}}])
    assert caught.value.column == "a.l[].x"


@pytest.mark.parametrize("on_conflict", ["cast", "quarantine"])
def test_mixed_values_become_lossless_json(on_conflict: Any) -> None:
    values = [1, "x", 2**80, Decimal("1.50"), float("nan"), float("-inf"), {"b": [None, True]}, U1, date(2026, 1, 1),
              datetime(2026, 1, 1, tzinfo=UTC), None]  # fmt: skip
    batch = read([{"a": v} for v in values], on_conflict=on_conflict)
    assert batch.types == {"a": "JSON"}
    assert batch.mixed == {"a"}
    assert batch.column == [
        "1", '"x"', str(2**80), "1.50", "NaN", "-Infinity", '{"b":[null,true]}', f'"{U1}"', '"2026-01-01"',
        '"2026-01-01T00:00:00Z"', None,
    ]  # fmt: skip


def test_bytes_cannot_become_json() -> None:
    with pytest.raises(InvalidBatch, match=r"column 'a' .* bytes, which JSON cannot hold"):
        read([{"a": 1}, {"a": b"x"}], on_conflict="cast")


REFUSED: list[tuple[str, Any, type[IceDBError], str]] = [
    ("an integer of 128 bits", 2**64, InvalidBatch, r"row 1, .*Declare the column as DECIMAL\(38,0\)"),
    ("a negative one", -(2**63) - 1, InvalidBatch, r"DECIMAL\(38,0\)"),
    ("a decimal of 39 digits", Decimal("1e-39"), InvalidBatch, "more than 38 digits"),
    ("a decimal that is none", Decimal("NaN"), InvalidBatch, "row 1 .*decimal NaN"),
    ("a duration", timedelta(1), UnsupportedType, "'a' is INTERVAL.* Cast it to BIGINT"),
    ("a numpy duration", np.timedelta64(1, "s"), UnsupportedType, "'a' is INTERVAL"),
    ("a duration inside", [{"x": timedelta(1)}], UnsupportedType, "INTERVAL"),
    ("a time of a day with a zone", time(1, tzinfo=UTC), UnsupportedType, "TIME WITH TIME ZONE"),
    ("a set", {1}, InvalidBatch, "row 1 .*a set, .*Give a list"),
    ("an object", object(), InvalidBatch, "builtins.object"),
    ("a complex number", 1j, InvalidBatch, "builtins.complex"),
    ("nanoseconds", np.datetime64("2026-01-01T00:00:00.000000001"), InvalidBatch, "nanoseconds"),
    ("pandas' nanoseconds", pd.Timestamp("2026-01-01T00:00:00.000000001"), InvalidBatch, "nanoseconds"),
    ("keys that are no text", {"x": 1, 2: 3}, InvalidBatch, "row 1 .*key 2, .*MAP"),
    ("names that differ in case", {"x": 1, "X": 3}, InvalidBatch, "differ only in case"),
    ("an empty name", {"": 1}, InvalidBatch, "the name ''"),
    ("an empty dict", {}, InvalidBatch, "only empty or null elements.*Give the batch a schema"),
    ("an object in a list", [[object()]], InvalidBatch, r"column 'a\[\]\[\]' holds a builtins.object"),
]


@pytest.mark.parametrize(("value", "error", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_value_that_no_column_can_store_is_rejected(value: Any, error: type[IceDBError], message: str) -> None:
    with pytest.raises(error, match=f"^{HERE}: .*{message}") as caught:
        read([{"a": None}, {"a": value}])
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"a": 1}, 5], "row 1 is a int, not a dict"),
        ([{"a": 1}, {2: 1}], "row 1 has the column name 2, which is not text"),
        ([{}, {}], "none of the 2 rows has a column"),
        (None, "NoneType"),
        (b"abc", "builtins.bytes"),
        ({"a": [1]}, "builtins.dict"),
        (np.array([1]), "numpy.ndarray"),
        (pd.Series([1]), "Series"),
        (pl.Series([1]), "Series"),
    ],
)
def test_data_without_rows_is_rejected(data: Any, message: str) -> None:
    with pytest.raises(InvalidBatch, match=f"^{HERE}: .*{message}"):
        read(data)


# ------------------------------------------------------------------------------------------ Arrow

TABLE = pa.table({"a": pa.array([1, None], pa.int32()), "s": ["x", "y"]})


@pytest.mark.parametrize(
    "make",
    [lambda: TABLE, lambda: TABLE.to_batches()[0], lambda: TABLE.to_reader(), lambda: _ArrowStream(TABLE)],
    ids=["table", "batch", "reader", "stream"],
)
def test_arrow_of_every_kind_keeps_its_types(make: Callable[[], Any]) -> None:
    batch = read(make(), {"a": "BIGINT"})
    assert batch.types == {"a": "INTEGER", "s": "VARCHAR"}
    assert batch.rows == [(1, "x"), (None, "y")]


class _ArrowStream:
    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


# ------------------------------------------------------------------------------------------ pandas


def test_a_pandas_frame_keeps_values_types_and_named_indexes() -> None:
    frame = pd.DataFrame(
        {
            "i": np.array([1, 2], np.int16),
            "f": [0.5, np.nan],
            "o": [1, None],
            "s": ["x", np.nan],
            "d": [{"x": 1}, {"y": "t"}],
            "c": pd.Categorical(["p", None]),
            "n": pd.array([1, None], dtype="Int64"),
            "b": [True, False],
            "t": pd.to_datetime(["2026-01-01", None]).astype("datetime64[us]"),
            "z": pd.to_datetime(["2026-01-01", None], utc=True).astype("datetime64[us, UTC]"),
        },
        index=pd.Index([5, 6], name="k"),
    )
    batch = read(frame)
    assert batch.types == {
        "i": "SMALLINT", "f": "DOUBLE", "o": "DOUBLE", "s": "VARCHAR", "d": "STRUCT(x BIGINT, y VARCHAR)",
        "c": "VARCHAR", "n": "BIGINT", "b": "BOOLEAN", "t": "TIMESTAMP", "z": "TIMESTAMP WITH TIME ZONE", "k": "BIGINT",
    }  # fmt: skip
    assert batch.rows == [
        (
            1, 0.5, 1.0, "x", {"x": 1, "y": None}, "p", 1, True, datetime(2026, 1, 1),
            datetime(2026, 1, 1, tzinfo=UTC), 5,
        ),
        (2, None, None, None, {"x": None, "y": "t"}, None, None, False, None, None, 6),
    ]  # fmt: skip


def test_an_index_without_a_name_is_omitted() -> None:
    assert read(pd.DataFrame({"a": [1, 2, 3]})[lambda f: f.a > 1]).rows == [(2,), (3,)]
    assert read(pd.DataFrame({"a": [1]}, index=["x"])).types == {"a": "BIGINT"}


def test_a_pandas_frame_is_read_in_slices() -> None:
    n = 2 * CHUNK_ROWS + 1
    frame = pd.DataFrame({"a": np.arange(n), "o": pd.Series([None] * (n - 1) + [{"x": 1}], dtype=object)})
    batch = read(frame)
    assert [r[0] for r in batch.rows] == list(range(n))
    assert batch.rows[-1] == (n - 1, {"x": 1})


@pytest.mark.parametrize(
    ("frame", "error", "message"),
    [
        (pd.DataFrame({"a": [1, "x"]}), SchemaConflict, "'a' .*BIGINT, and VARCHAR in row 1"),
        (pd.DataFrame({1: [2]}), InvalidBatch, "name 1, which is not text"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), InvalidBatch, "column twice: 'a'"),
        (pd.DataFrame({"a": [1]}, index=pd.Index([1], name="a")), InvalidBatch, "column twice: 'a'"),
        (pd.DataFrame({"a": pd.period_range("2026", periods=1, freq="Y")}), UnsupportedType, "'a' .*period"),
        (pd.DataFrame({"a": [1j]}), UnsupportedType, "'a' .*complex"),
    ],
)
def test_an_invalid_pandas_frame_is_rejected(frame: Any, error: type[IceDBError], message: str) -> None:
    with pytest.raises(error, match=f"^{HERE}: .*{message}"):
        read(frame)


# ------------------------------------------------------------------------------------------ Polars


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_a_polars_frame_keeps_values_and_types(lazy: bool) -> None:
    frame = pl.DataFrame(
        {
            "c": pl.Series(["a", None], dtype=pl.Categorical),
            "e": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"])),
            "t": [time(1, 2, 3, 4), None],
            "n": [None, None],
            "b": [b"x", None],
            "d": [Decimal("1.5"), None],
            "a": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)),
            "s": [{"x": [1]}, None],
            "z": [datetime(2026, 1, 1, tzinfo=UTC), None],
            "u": pl.Series([2**64 - 1, 0], dtype=pl.UInt64),
        }
    )
    batch = read(frame.lazy().filter(pl.col("u") >= 0) if lazy else frame)
    assert batch.types == {
        "c": "VARCHAR", "e": "VARCHAR", "t": "TIME", "n": "NULL", "b": "BLOB", "d": "DECIMAL(38,1)", "a": "BIGINT[2]",
        "s": "STRUCT(x BIGINT[])", "z": "TIMESTAMP WITH TIME ZONE", "u": "UBIGINT",
    }  # fmt: skip
    assert batch.rows == [
        ("a", "a", time(1, 2, 3, 4), None, b"x", Decimal("1.5"), (1, 2), {"x": [1]}, datetime(2026, 1, 1, tzinfo=UTC),
         2**64 - 1),
        (None, "b", None, None, None, None, (3, 4), None, None, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
@pytest.mark.parametrize(
    ("series", "message"),
    [
        (pl.Series([2**100], dtype=pl.Int128), "Int128"),
        (pl.Series([{"x": [1]}], dtype=pl.Struct({"x": pl.List(pl.Int128)})), "Int128"),
        (pl.Series([object()], dtype=pl.Object), "Object"),
    ],
    ids=["128 bits", "128 bits inside", "objects"],
)
def test_types_that_only_polars_has_are_rejected(series: Any, message: str, lazy: bool) -> None:
    frame = pl.DataFrame({"a": series})
    with pytest.raises(UnsupportedType, match=f"^{HERE}: column 'a' holds Polars' {message}. Cast it"):
        read(frame.lazy() if lazy else frame)


def test_a_failing_lazy_query_is_rejected() -> None:
    with pytest.raises(InvalidBatch, match=f"^{HERE}: the Polars frame cannot be read: .*nowhere"):
        read(pl.LazyFrame({"a": [1]}).select("nowhere"))


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_lazy_frame_of_many_rows_is_read_completely() -> None:
    n = 300_000
    frame = pl.LazyFrame({"a": range(n)}).with_columns(pl.col("a").cast(pl.String).alias("s").cast(pl.Categorical))
    batch = read(frame)
    assert sorted(batch.rows) == [(i, str(i)) for i in range(n)]


# ------------------------------------------------------------------------------------------ DuckDB


def test_a_relation_keeps_types_that_arrow_lacks() -> None:
    con = duckdb.connect()
    one = f"'{U1}'::UUID"
    sql = f"{one} u, '[1]'::JSON j, {{'u': {one}, 'd': 1.5}} s, MAP {{'k': {one}}} m, 'x'::ENUM('x') e"
    batch = read(con.sql(f"SELECT {sql}"))
    assert batch.types == {
        "u": "UUID", "j": "JSON", "s": "STRUCT(u UUID, d DECIMAL(2,1))", "m": "MAP(VARCHAR, UUID)", "e": "VARCHAR",
    }  # fmt: skip
    assert batch.rows == [(U1, "[1]", {"u": U1, "d": Decimal("1.5")}, {"k": U1}, "x")]


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("SELECT 1::HUGEINT a", UnsupportedType, "'a' is HUGEINT"),
        ("SELECT [1::UHUGEINT] a", UnsupportedType, "'a' is UHUGEINT"),
        ("SELECT INTERVAL 1 DAY a", UnsupportedType, "'a' is INTERVAL"),
        ("SELECT '01'::BIT a", UnsupportedType, "'a' is BIT"),
        ("SELECT '1:00+01'::TIMETZ a", UnsupportedType, "TIME WITH TIME ZONE"),
        ("SELECT error('boom') a", InvalidBatch, "the DuckDB relation cannot be read: .*boom"),
        ("SELECT CAST(i AS TINYINT) a FROM range(300000) r(i)", InvalidBatch, "the DuckDB relation cannot be read"),
    ],
)
def test_a_relation_that_cannot_be_stored_is_rejected(sql: str, error: type[IceDBError], message: str) -> None:
    con = duckdb.connect()
    with pytest.raises(error, match=f"^{HERE}: .*{message}"):
        read(con.sql(sql))


def test_a_relation_and_its_connection_are_not_changed() -> None:
    con = duckdb.connect()
    settings = con.sql("SELECT name, value FROM duckdb_settings() ORDER BY name").fetchall()
    relation = con.sql("SELECT range AS a, uuid() AS u FROM range(5)")
    assert relation.fetchone()[0] == 0  # type: ignore[index]
    assert [r[0] for r in read(relation).rows] == [0, 1, 2, 3, 4]
    assert relation.fetchone()[0] == 1  # type: ignore[index]
    assert con.sql("SELECT name, value FROM duckdb_settings() ORDER BY name").fetchall() == settings


# ------------------------------------------------------------------------------------------ unchanged inputs


def test_rows_and_frames_are_not_changed() -> None:
    rows = [{"a": [np.int64(1)], "b": {"x": Size.BIG}, "c": bytearray(b"x")}, {"a": None}]
    before = copy.deepcopy(rows)
    read(rows)
    assert rows == before
    assert type(rows[0]["a"][0]) is np.int64  # type: ignore[index]
    frame = pd.DataFrame({"o": [{"x": 1}, None], "c": pd.Categorical(["a", "b"])}, index=pd.Index([1, 2], name="k"))
    kept = copy.deepcopy(frame)
    read(frame)
    pd.testing.assert_frame_equal(frame, kept)
    polars = pl.DataFrame({"t": [time(1)], "c": pl.Series(["a"], dtype=pl.Categorical)})
    clone = polars.clone()
    read(polars)
    assert polars.equals(clone)
    assert polars.schema == clone.schema


# ------------------------------------------------------------------------------------------ random rows

NAMES = st.sampled_from(["a", "b", "c d", 'e"f', "select"])


def _values(depth: int) -> st.SearchStrategy[Callable[[], Any]]:
    """Draw strategies for the values of one column."""
    scalars = st.sampled_from(
        [st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8")),
         st.binary(), st.booleans(), st.datetimes(), st.dates(), st.uuids(), st.decimals(-1000, 1000, places=3)]
    )  # fmt: skip
    if depth == 0:
        return scalars.map(lambda s: s | st.none())  # type: ignore[attr-defined]
    inner = _values(depth - 1)
    lists = inner.map(lambda s: st.lists(s, min_size=1, max_size=3) | st.none())
    structs = st.dictionaries(NAMES, inner, min_size=1).map(lambda f: st.fixed_dictionaries(f) | st.none())
    return scalars.map(lambda s: s | st.none()) | lists | structs  # type: ignore[attr-defined]


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, Any]]:
    columns = draw(st.dictionaries(NAMES, _values(2), min_size=1, max_size=3))
    return draw(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=5))  # type: ignore[arg-type]


def _pruned(value: Any) -> Any:
    """Remove null fields, which a struct has although the row had none."""
    if isinstance(value, dict):
        return {k: p for k, v in value.items() if (p := _pruned(v)) is not None}
    return [_pruned(v) for v in value] if isinstance(value, list) else value


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=60)
@given(batches())
def test_nested_rows_are_returned_unchanged(rows: list[dict[str, Any]]) -> None:
    try:
        batch = read(rows)
    except InvalidBatch as error:
        assume("only empty or null elements" not in str(error))
        raise
    names = list(batch.types)
    back = [_pruned(dict(zip(names, row, strict=True))) for row in batch.rows]
    assert back == [_pruned(row) for row in rows]


# ------------------------------------------------------------------------------------------ nanoseconds

NS = pa.timestamp("ns", tz="UTC")


def _in_nanoseconds(kind: str, ns: int) -> Any:
    plain = pa.array([None, ns], NS)
    match kind:
        case "pandas":
            return pd.DataFrame({"a": pd.to_datetime([None, ns], utc=True)})
        case "polars":
            return pl.DataFrame({"a": pl.from_arrow(plain)})
        case "lazy":
            return pl.DataFrame({"a": pl.from_arrow(plain)}).lazy()
        case "reader":
            return pa.table({"a": plain}).to_reader()
        case "record batch":
            return pa.record_batch({"a": plain})
        case "struct":
            return pa.table({"a": pa.StructArray.from_arrays([plain], ["x"])})
        case "dictionary":
            return pa.table({"a": plain.dictionary_encode()})
        case "run ends":
            return pa.table({"a": pa.RunEndEncodedArray.from_arrays([1, 2], plain)})
        case "map":
            return pa.table({"a": pa.array([None, [("k", ns)]], pa.map_(pa.string(), NS))})
        case "nested":
            return pa.table({"a": pa.array([None, [{"x": [ns]}]], pa.list_(pa.struct([("x", pa.large_list(NS))])))})
    element = {"list": pa.list_(NS), "array": pa.list_(NS, 1)}[kind]
    return pa.table({"a": pa.array([None, [ns]], element)})


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "kind",
    ["pandas", "polars", "lazy", "reader", "record batch", "struct", "dictionary", "run ends", "map", "nested", "list",
     "array"],
)  # fmt: skip
def test_nanoseconds_of_a_zone_are_never_truncated(kind: str) -> None:
    assert "datetime.datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=" in repr(read(_in_nanoseconds(kind, 7000)).column[1])
    with pytest.raises(InvalidBatch, match=r"column 'a' holds zoned times in nanoseconds.*Truncate them"):
        read(_in_nanoseconds(kind, 7001))


def test_nanoseconds_outside_of_a_slice_are_ignored() -> None:
    assert len(read(pa.table({"a": pa.array([[7000], [7001]], pa.list_(NS))}).slice(0, 1)).column) == 1


def test_list_views_with_nanoseconds_are_rejected() -> None:
    with pytest.raises(InvalidBatch, match="column 'a' holds zoned times in nanoseconds"):
        read(pa.table({"a": pa.array([[7000]], pa.list_view(NS))}))


def test_nanoseconds_without_a_zone_are_kept() -> None:
    assert read(pa.table({"a": pa.array([7001], pa.timestamp("ns"))})).types == {"a": "TIMESTAMP_NS"}
