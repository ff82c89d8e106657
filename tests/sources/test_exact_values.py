"""Values are stored unchanged or not at all: a value that a cast would change is rejected or quarantined."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from icedb import Aggregating, Table
from icedb.errors import IceDBError, InvalidOption, SchemaConflict, UnknownColumn, UnsupportedType
from tests.operations.write.test_insert_query import objects, rows
from tests.support.object_stores.stores import Place

#: In a file without types: the column's type, a text with such a value, and texts that would be changed.
TEXTS: list[tuple[str, str, Any, list[str]]] = [
    ("BIGINT", "-7", -7, ["1.5", "0x10", "1_000", "99999999999999999999", "x", "1e3"]),
    ("DECIMAL(10,2)", "1.230", Decimal("1.23"), ["1.239", "123456789.1", "1,5"]),
    ("DOUBLE", "0.1", 0.1, ["1e400", "0.12345678901234567890", "one"]),
    ("FLOAT", "0.5", 0.5, ["1e300", "0.12345678901"]),
    ("BOOLEAN", "true", True, ["1", "yes", "t"]),
    ("DATE", "2026-01-02", dt.date(2026, 1, 2), ["2026-01-02 12:34:56", "02.01.2026"]),
    (
        "TIMESTAMP",
        "2026-01-02T03:04:05.5",
        dt.datetime(2026, 1, 2, 3, 4, 5, 500000),
        ["2026-01-02T03:04:05+02:00", "2026-01-02 03:04:05.123456789", "2026-01-02T03:04:05Z"],
    ),
    ("TIMESTAMP WITH TIME ZONE", "2026-01-02T03:04:05+02:00", None, ["2026-01-02T03:04:05"]),
    ("BIGINT[]", "[1, 2]", [1, 2], ["[1.7, 2]"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("type_", "good", "value", "bad"), TEXTS, ids=[t[0] for t in TEXTS])
def test_a_text_becomes_exactly_its_value_or_is_rejected(
    type_: str, good: str, value: Any, bad: list[str], local: Place, tmp_path: Path
) -> None:
    table = Table.create(local.uri, schema={"x": type_}, storage_options={"fsync": "false"})
    path = tmp_path / "rows.csv"
    for text in bad:
        path.write_text(f'x\n"{good}"\n"{text}"\n')
        with pytest.raises(SchemaConflict, match="'x'"):
            table.insert(path)
    assert objects(table) == []
    path.write_text("x\n" + "".join(f'"{text}"\n' for text in [good, *bad]))
    commit = table.insert(path, on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, len(bad))
    assert value is None or rows(table, "SELECT x FROM t") == [(value,)]
    aside = Table.open(str(commit.quarantine)).query("SELECT row FROM t").fetchall()
    assert sorted(json.loads(row)["x"] for (row,) in aside) == sorted(bad)


#: The table's type, a value of it, one of another kind beside it in the batch, and one that would be changed.
MIXED: list[tuple[str, Any, Any]] = [
    ("DATE", dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 12, 34)),
    ("FLOAT", 0.5, 1e300),
    ("DECIMAL(10,2)", Decimal("1.25"), Decimal("1.239")),
    ("BIGINT", 5, 1.5),
    ("STRUCT(a BIGINT)", {"a": 1}, {"a": 1, "b": 2}),
]


@pytest.mark.parametrize(("type_", "good", "changed"), MIXED, ids=[m[0] for m in MIXED])
def test_each_value_of_a_mixed_column_is_checked(type_: str, good: Any, changed: Any, local: Place) -> None:
    table = Table.create(local.uri, schema={"x": type_}, storage_options={"fsync": "false"})
    commit = table.insert([{"x": good}, {"x": changed}, {"x": "other"}, {"x": None}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (2, 2)
    assert rows(table, "SELECT x FROM t ORDER BY x NULLS LAST") == [(good,), (None,)]


def test_all_digits_of_a_number_survive_as_text_and_in_the_quarantine(local: Place) -> None:
    digits = "12345678901234567890.1234567890"
    data = [{"x": Decimal(digits)}, {"x": "other"}]
    text = Table.create(local.below("text").uri, schema={"x": "VARCHAR"})
    text.insert(data, on_conflict="cast")
    assert rows(text, "SELECT x FROM t ORDER BY ALL") == [(digits,), ("other",)]
    numbers = Table.create(local.below("numbers").uri, schema={"x": "BIGINT"})
    commit = numbers.insert(data, on_conflict="quarantine")
    quarantined = Table.open(str(commit.quarantine)).query("SELECT row FROM t ORDER BY row").fetchall()
    assert quarantined == [('{"x":"other"}',), (f'{{"x":{digits}}}',)]


def test_columns_may_have_internal_names(local: Place) -> None:
    odd = {"kind": "k", "rowid": 7, "staged": 1, "misfits": 2, "t": 3, "_rows": 4, "a.b": 5, 'q"uote': 6}
    table = Table.create(local.uri, schema={"x": "BIGINT"})
    commit = table.insert([{"x": 1, **odd}, {"x": "bad", **odd}], on_conflict="quarantine")
    assert (commit.rows, commit.quarantined_rows) == (1, 1)
    stored = table.query("SELECT * FROM t").to_arrow_table().to_pylist()
    assert stored == [{"x": 1, **odd}]


@pytest.mark.parametrize(
    ("type_", "frame", "stored"),
    [
        ("STRUCT(a BIGINT, b BIGINT)", pl.DataFrame({"x": [{"a": None, "b": 1.5}]}), None),
        ("STRUCT(a BIGINT, b BIGINT)", pl.DataFrame({"x": [{"a": None, "b": 2}]}), {"a": None, "b": 2}),
        ("STRUCT(a BIGINT)", pl.DataFrame({"x": [{"a": None, "b": "keep"}]}), None),
        ("STRUCT(a BIGINT)", pl.DataFrame({"x": [{"a": 5, "b": None}]}), {"a": 5}),
        ("VARCHAR", pa.table({"x": pa.array([[None]], pa.list_(pa.null()))}), None),
        ("BIGINT[]", pa.table({"x": pa.array([[None]], pa.list_(pa.null()))}), [None]),
    ],
)
def test_a_nested_field_without_a_type_does_not_hide_others(type_: str, frame: Any, stored: Any, local: Place) -> None:
    table = Table.create(local.uri, schema={"x": type_})
    if stored is None:
        with pytest.raises(SchemaConflict, match="'x'"):
            table.insert(frame)
        assert objects(table) == []
    else:
        table.insert(frame)
        assert rows(table, "SELECT x FROM t") == [(stored,)]


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [("BIGINT", "7", 7), ("BIGINT", 1.5, None), ("BIGINT", "x", None), ("DATE", dt.datetime(2026, 1, 1, 13), None),
     ("VARCHAR", 7, "7"), ("DATE", "2026-01-01", dt.date(2026, 1, 1))],
)  # fmt: skip
def test_a_path_column_stores_its_exact_value_or_rejects_it(type_: str, value: Any, stored: Any, local: Place) -> None:
    table = Table.create(local.uri, path_columns={"d": type_})
    if stored is not None:
        table.insert([{"n": 1, "d": value}])
        assert rows(table, "SELECT d FROM t") == [(stored,)]
        return
    with pytest.raises(SchemaConflict, match="'d'"):
        table.insert([{"n": 1, "d": value}])
    assert objects(table) == []
    with pytest.raises(IceDBError, match=r"'d' is .*, and 'nope' is not a value of that type"):
        table.insert([{"n": 1, "_partition": "d=nope"}])


def test_a_sum_needs_a_number_and_an_aggregated_table_has_no_row_ids(local: Place) -> None:
    table = Table.create(local.uri, merging=Aggregating(by=("k",), sum=("s",)))
    with pytest.raises(InvalidOption, match="'s' is BOOLEAN, which has no sum"):
        table.insert([{"k": 1, "s": True}])
    with pytest.raises(IceDBError, match="_row_id"):
        Table.create(local.below("ids").uri, row_id=True, merging=Aggregating(by=("k",)))
    with pytest.raises(InvalidOption, match="_row_id"):
        Table.create(local.below("uuids").uri, schema={"_row_id": "UUID"})


def test_fields_that_differ_only_in_case_are_rejected(local: Place) -> None:
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"])
    with pytest.raises(UnsupportedType, match="differ in case"):
        Table.create(local.uri).insert(pa.table({"x": column}))


@pytest.mark.sampled(days=3)
def test_a_writer_with_an_older_spec_follows_a_stricter_one(place: Place) -> None:
    table = Table.create(place.uri, schema={"a": "BIGINT"}, storage_options=place.storage_options)
    stale = Table.open(place.uri, storage_options=place.storage_options)
    stale.insert([{"a": 1}])
    table.alter(schema_policy="declared")
    with pytest.raises(UnknownColumn, match="'y'"):
        stale.insert([{"a": 1, "y": 2}])
    assert table.snapshot().rows == 1
