"""Repairs of types: a table whose log files disagree about a column becomes readable, or nothing changes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import (
    CorruptLog,
    IceDBError,
    InvalidOption,
    InvalidPartitionExpression,
    SchemaConflict,
    UnknownColumn,
    UnsupportedType,
)
from icedb.format.codec import decode, encode
from icedb.format.records import LogFile, Marker
from icedb.format.table_spec import TableSpec, encode_spec
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.integrity.common_types import common_type
from icedb.sql.types import _canonical_type
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import (
    ClockedStore,
    Crash,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from icedb.util.times import UNIX_MS_MIN
from tests.cli.test_commands import run, run_json
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.fault_walk import attempts, only_live_parts_stay
from tests.support.tables.numbered_rows import data_keys, numbers

INT, DOUBLE, TEXT = ("BIGINT", pa.int64()), ("DOUBLE", pa.float64()), ("VARCHAR", pa.string())
STRUCT_A = pa.struct([("a", pa.int64())])
STRUCT_B = pa.struct([("a", pa.int32()), ("b", pa.string())])


def foreign_append(
    store: ObjectStore, t_ms: int, columns: dict[str, tuple[str, pa.DataType, list[Any]]], *, partition: str = ""
) -> str:
    """Append as a program that does not check the schema: put a part, then a log file. Return the part's key."""
    arrow = pa.table({name: pa.array(values, type_) for name, (_, type_, values) in columns.items()})
    body = io.BytesIO()
    pq.write_table(arrow, body)
    keys = store.location.keys
    part = keys.part(partition, f"foreign{t_ms}")
    store.create(part, body.getvalue())
    marker = Marker(part, len(body.getvalue()), t_ms)
    schema = {name: type_ for name, (type_, _, _) in columns.items()}
    store.create(keys.log_file(t_ms, merged=False, writer="v3-host"), encode(LogFile(t_ms, schema, (marker,))))
    return part


def foreign_appends(store: ObjectStore, t_ms: int, *columns: tuple[Any, list[Any]], name: str = "n") -> list[str]:
    """Append several parts of one column, a millisecond apart."""
    return [foreign_append(store, t_ms + n, {name: (*kind, values)}) for n, (kind, values) in enumerate(columns)]


def brick(table: Table) -> str:
    """Insert three rows whose `n` is a BIGINT, and append a foreign part of two rows whose `n` is a DOUBLE."""
    table.insert([{"k": 0, "n": 3}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
    t_ms = table.handle.read().newest_ms + 1
    columns: dict[str, Any] = {"k": (*INT, [0, 0]), "n": (*DOUBLE, [2.5, 0.5])}
    return foreign_append(table.handle.store, t_ms, columns, partition="k=0")


ALL = [0.5, 1.0, 2.0, 2.5, 3.0]


def objects(table: Table) -> list[Any]:
    return table.handle.store.list(table.handle.keys.data_prefix.removesuffix("_data/"))


def unprobed(store: ClockedStore) -> dict[str, Any]:
    """Return all objects except the probe of the store."""
    return {key: stored for key, stored in store.objects.items() if key != store.location.keys.probe}


@pytest.fixture
def plain(clocked: ClockedStore, clock: ManualClock) -> Table:
    """A table whose only writers are programs that do not check the schema."""
    return create_table(clocked, clock)


REFUSED: dict[str, Callable[[Table], object]] = {
    "query": lambda t: t.query("SELECT * FROM t").fetchall(),
    "snapshot": lambda t: t.snapshot(),
    "schema": lambda t: t.schema(),
    "merge": lambda t: t.merge(),
    "merge_log": lambda t: t.merge_log(),
    "drop": lambda t: t.drop_partitions(["k=0"]),
    "delete": lambda t: t.delete("n = 1"),
    "cleanup": lambda t: t.cleanup(),
    "overwrite": lambda t: t.overwrite([{"k": 0, "n": 5}]),
    "restore": lambda t: t.restore(UNIX_MS_MIN),
    "alter": lambda t: t.alter(sort_by=["k"]),
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("verb", REFUSED)
def test_operations_on_a_schema_conflict_name_the_repair(table: Table, clocked: ClockedStore, verb: str) -> None:
    brick(table)
    with pytest.raises(SchemaConflict, match="icedb repair") as caught:
        REFUSED[verb](table)
    assert (caught.value.column, caught.value.types) == ("n", ("BIGINT", "DOUBLE"))
    assert caught.value.log_files is not None
    assert all(key in str(caught.value) for key in caught.value.log_files)
    assert [p.kind for p in table.verify().problems if p.severity == "error"] == ["schema_conflict"]
    assert "icedb repair" in str(table.verify())


@pytest.mark.sampled(cases=1, days=3)
def test_a_table_with_two_types_can_be_read_again(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], sort_by=["n"], storage_options=place.storage_options)
    part = brick(table)
    broken = objects(table)
    planned = table.repair_types(dry_run=True)
    assert objects(table) == broken
    [conflict] = planned.conflicts
    assert (conflict.column, conflict.types, conflict.type) == ("n", ("BIGINT", "DOUBLE"), "DOUBLE")
    assert (planned.dry_run, planned.commit.committed, planned.writers_must_reopen) == (True, False, True)
    # The parts with whole numbers are written again.
    assert (planned.rewritten_parts, planned.rows) == (2, 3)
    report = table.repair_types()
    assert (report.conflicts, report.rewritten_parts, report.rows, report.bytes) == (
        planned.conflicts, planned.rewritten_parts, planned.rows, planned.bytes,
    )  # fmt: skip
    assert report.commit.committed
    assert report.writers_must_reopen
    assert report.still_in_conflict == ()
    assert part in {p.key for p in table.snapshot().parts}, "what was right is not touched"
    for reader in (table, Table.open(place.uri, storage_options=place.storage_options)):
        assert reader.schema() == {"k": "BIGINT", "n": "DOUBLE"}
        assert numbers(reader) == ALL
    assert not table.repair_types().commit.committed, "there is nothing left to do"
    assert table.repair_types() == table.repair_types(dry_run=False)
    before = report.commit.created_ms
    assert before is not None
    assert numbers(table, before - 1) == ALL, "time travel to before the repair"
    table.insert([{"k": 1, "n": 9.5}])
    table.merge()
    assert numbers(table) == [*ALL, 9.5]
    assert table.verify(deep=True).ok


def test_a_repaired_part_is_sorted_and_its_marker_has_the_new_type(table: Table, clocked: ClockedStore) -> None:
    table.insert([{"k": 0, "n": n, "s": f"r{n}"} for n in (9, 10, 11)])
    foreign_append(clocked, table.handle.read().newest_ms + 1, {"n": ("VARCHAR", pa.string(), ["x"])})
    [key] = [p.key for p in table.repair_types({"n": "VARCHAR"}).commit.parts]
    marker = table.handle.read().parts[key]
    assert b'"n":["10","9",0]' in bytes(marker.stats)  # type: ignore[arg-type]
    stored = pq.read_table(io.BytesIO(clocked.get(key).body)).to_pydict()
    assert stored == {"k": [0, 0, 0], "n": ["10", "11", "9"], "s": ["r10", "r11", "r9"]}
    assert (marker.rows, marker.bytes) == (3, len(clocked.get(key).body))
    check_sound(clocked)
    assert table.verify(deep=True).ok


WIDENED: list[tuple[Any, list[Any], Any, list[Any], str, list[Any]]] = [
    (("INTEGER", pa.int32()), [1], INT, [2**40], "BIGINT", [1, 2**40]),
    (INT, [2**53], DOUBLE, [0.5], "DOUBLE", [2.0**53, 0.5]),
    (("UBIGINT", pa.uint64()), [2**64 - 1], INT, [-(2**63)], "DECIMAL(38,0)", [Decimal(2**64 - 1), Decimal(-(2**63))]),
    (("UTINYINT", pa.uint8()), [255], ("TINYINT", pa.int8()), [-1], "SMALLINT", [255, -1]),
    (("FLOAT", pa.float32()), [0.5], ("INTEGER", pa.int32()), [2**31 - 1], "DOUBLE", [0.5, 2.0**31 - 1]),
    (
        ("DECIMAL(10,2)", pa.decimal128(10, 2)), [Decimal("1.25")],
        ("DECIMAL(5,4)", pa.decimal128(5, 4)), [Decimal("1.1234")],
        "DECIMAL(12,4)", [Decimal("1.2500"), Decimal("1.1234")],
    ),
    (
        ("DATE", pa.date32()), [date(2026, 11, 21)], ("TIMESTAMP", pa.timestamp("us")), [datetime(2026, 1, 2, 3)],
        "TIMESTAMP", [datetime(2026, 11, 21), datetime(2026, 1, 2, 3)],
    ),
    (
        ("STRUCT(a BIGINT)", STRUCT_A), [{"a": 1}, None],
        ("STRUCT(a INTEGER, b VARCHAR)", STRUCT_B), [{"a": 2, "b": "x"}],
        "STRUCT(a BIGINT, b VARCHAR)", [{"a": 1, "b": None}, None, {"a": 2, "b": "x"}],
    ),
    (
        ("INTEGER[]", pa.list_(pa.int32())), [[1, None]], ("DOUBLE[]", pa.list_(pa.float64())), [[0.5], []],
        "DOUBLE[]", [[1.0, None], [0.5], []],
    ),
    (INT, [1], ("INT4", pa.int32()), [None, 2], "BIGINT", [1, None, 2]),
]  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("one", "ones", "other", "others", "type_", "wanted"), WIDENED)
def test_columns_are_widened_without_loss(
    plain: Table, clocked: ClockedStore, one: Any, ones: Any, other: Any, others: Any, type_: str, wanted: Any
) -> None:
    t_ms = clocked.clock.now_ms()
    for n, (kind, values) in enumerate([(one, ones), (other, others)]):
        foreign_append(clocked, t_ms + n, {"n": (*kind, values), "o": ("BIGINT", pa.int64(), list(range(len(values))))})
    report = plain.repair_types()
    assert [c.type for c in report.conflicts] == [type_]
    assert plain.schema() == {"n": type_, "o": "BIGINT"}
    answer = plain.query("SELECT n FROM t").to_arrow_table().column("n").to_pylist()
    assert sorted(map(str, answer)) == sorted(map(str, wanted))
    for part in plain.snapshot().files():
        described = plain.query(f"DESCRIBE SELECT n FROM '{plain.handle.part_paths.readable([part])[0]}'").fetchall()
        assert described[0][1] == type_
    check_sound(clocked)


def test_types_of_parts_come_from_their_footers(plain: Table, clocked: ClockedStore) -> None:
    foreign_appends(clocked, clocked.clock.now_ms(), (INT, [1]), (("VARCHAR", pa.int64()), [7]))
    parts = {m.key for m in plain.handle.tolerant().read().live}
    report = plain.repair_types({"n": "BIGINT"})
    assert (report.rewritten_parts, report.commit.parts) == (0, ())
    assert {p.key for p in plain.snapshot().parts} == parts
    assert numbers(plain) == [1, 7]


def test_a_type_that_no_footer_can_state_rewrites_no_part(plain: Table, clocked: ClockedStore) -> None:
    pairs = pa.list_(pa.int64())
    foreign_appends(clocked, clocked.clock.now_ms(), (("BIGINT[2]", pairs), [[1, 2]]), (("BIGINT[]", pairs), [[3, 4]]))
    report = plain.repair_types({"n": "BIGINT[2]"})
    assert (report.conflicts[0].type, report.rewritten_parts) == ("BIGINT[]", 0)
    assert [list(n) for n in numbers(plain)] == [[1, 2], [3, 4]]


def test_three_types_and_two_columns_at_once(plain: Table, clocked: ClockedStore) -> None:
    t_ms = clocked.clock.now_ms()
    small = ("SMALLINT", pa.int16())
    foreign_append(clocked, t_ms, {"n": (*small, [1]), "m": (*INT, [1])})
    foreign_append(clocked, t_ms + 1, {"n": (*INT, [2]), "m": (*TEXT, ["two"])})
    foreign_append(clocked, t_ms + 2, {"n": (*DOUBLE, [0.5])})
    with pytest.raises(SchemaConflict, match="'m'"):
        plain.repair_types()
    report = plain.repair_types({"m": "VARCHAR"})
    assert {c.column: (c.types, c.type) for c in report.conflicts} == {
        "m": (("BIGINT", "VARCHAR"), "VARCHAR"),
        "n": (("SMALLINT", "BIGINT", "DOUBLE"), "DOUBLE"),
    }
    assert report.rewritten_parts == 2
    assert report.rows is None, "a foreign marker tells no rows"
    assert plain.query("SELECT n, m FROM t ORDER BY n").fetchall() == [(0.5, None), (1.0, "1"), (2.0, "two")]


TEXTS: list[tuple[str, pa.DataType, Any, str]] = [
    ("BIGINT", pa.int64(), 7, "7"),
    ("DOUBLE", pa.float64(), 0.1, "0.1"),
    ("BOOLEAN", pa.bool_(), True, "true"),
    ("DATE", pa.date32(), date(2026, 11, 21), "2026-11-21"),
    ("TIMESTAMP", pa.timestamp("us"), datetime(2026, 11, 21, 1, 2, 3), "2026-11-21 01:02:03"),
    ("TIMESTAMP WITH TIME ZONE", pa.timestamp("us", "UTC"), datetime(2026, 11, 21, 1), "2026-11-21 01:00:00+00"),
    ("DECIMAL(9,2)", pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
    ("BLOB", pa.binary(), b"\x00a", "\\x00a"),
    ("BIGINT[]", pa.list_(pa.int64()), [1, None], "[1,null]"),
    ("STRUCT(a BIGINT)", STRUCT_A, {"a": 1}, '{"a":1}'),
    ("MAP(VARCHAR, BIGINT)", pa.map_(pa.string(), pa.int64()), [("a b", 1)], '{"a b":1}'),
]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("type_", "kind", "value", "text"), TEXTS)
def test_any_type_is_repaired_to_varchar(
    plain: Table, clocked: ClockedStore, type_: str, kind: pa.DataType, value: Any, text: str
) -> None:
    foreign_appends(clocked, clocked.clock.now_ms(), ((type_, kind), [value, None]), (TEXT, ["it's"]))
    before = dict(clocked.objects)
    with pytest.raises(SchemaConflict, match=r"types=\{'n': 'VARCHAR'\}") as caught:
        plain.repair_types()
    for named in (type_, "VARCHAR", *(k for k in before if "/_log/" in k), "--type n=VARCHAR"):
        assert named in str(caught.value)
    assert unprobed(clocked) == before
    plain.repair_types({"n": "VARCHAR"})
    assert plain.schema() == {"n": "VARCHAR"}
    assert set(numbers(plain)) == {text, "it's", None}


LOST: list[tuple[Any, Any, Any, Any, dict[str, str] | None, str]] = [
    (INT, [1, 2**53 + 1], DOUBLE, [0.5], None, str(2**53 + 1)),
    (INT, [1, 2**63 - 1], DOUBLE, [0.5], None, str(2**63 - 1)),
    (INT, [1], DOUBLE, [2.0, 0.25], {"n": "BIGINT"}, "0.25"),
    (INT, [1], DOUBLE, [2.0, float("nan")], {"n": "BIGINT"}, "nan"),
    (INT, [1], TEXT, ["2", "three"], {"n": "BIGINT"}, "three"),
    (INT, [1], TEXT, ["2", "007"], {"n": "BIGINT"}, "007"),
    (INT, [1, 2**31], ("INTEGER", pa.int32()), [5], {"n": "INTEGER"}, str(2**31)),
    (INT, [1], ("BLOB", pa.binary()), [b"x"], {"n": "BIGINT"}, "BLOB"),
    (INT, [1], ("STRUCT(a BIGINT)", STRUCT_A), [{"a": 1}], {"n": "BIGINT"}, "STRUCT"),
    (INT, [1], ("STRUCT(a BIGINT)", STRUCT_A), [{"a": 1}], {"n": "STRUCT(b BIGINT)"}, "STRUCT"),
    (INT, [1], ("TIMESTAMP", pa.timestamp("us")), [datetime(2026, 1, 1, 5)], {"n": "DATE"}, "DATE"),
    (
        ("STRUCT(a BIGINT, b VARCHAR)", STRUCT_B), [{"a": 1, "b": "x"}], ("STRUCT(a BIGINT)", STRUCT_A), [{"a": 2}],
        {"n": "STRUCT(a BIGINT)"}, "'b': x",
    ),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("one", "ones", "other", "others", "types", "example"), LOST)
def test_a_repair_that_would_lose_a_value_changes_nothing(
    plain: Table, clocked: ClockedStore, one: Any, ones: Any, other: Any, others: Any, types: Any, example: str
) -> None:
    parts = foreign_appends(clocked, clocked.clock.now_ms(), (one, ones), (other, others))
    before = dict(clocked.objects)
    for dry_run in (True, False):
        with pytest.raises(SchemaConflict) as caught:
            plain.repair_types(types, dry_run=dry_run)
        assert example in str(caught.value)
        assert any(part in str(caught.value) for part in parts)
        assert "Nothing was changed" in str(caught.value)
        assert unprobed(clocked) == before
    plain.repair_types({"n": "VARCHAR"})
    assert len(numbers(plain)) == len(ones) + len(others)


def test_a_narrower_type_is_taken_when_every_value_fits(plain: Table, clocked: ClockedStore) -> None:
    foreign_appends(clocked, clocked.clock.now_ms(), (INT, [1]), (DOUBLE, [2.0, None]), (TEXT, ["3", "-4"]))
    report = plain.repair_types({"n": "int8"})
    assert (report.rewritten_parts, report.conflicts[0].type) == (2, "BIGINT")
    assert numbers(plain) == [-4, 1, 2, 3, None]


@pytest.mark.parametrize(
    ("types", "error", "message"),
    [
        ({"nn": "VARCHAR"}, UnknownColumn, "'nn'"),
        ({"k": "VARCHAR"}, InvalidOption, "Remove it from types"),
        ({"n": "TEXTT"}, InvalidOption, "TEXTT"),
        ({"n": "VARCHAR) AS x, (SELECT 1"}, InvalidOption, "which DuckDB does not have"),
        ({"n": 7}, InvalidOption, "str: int"),
        ({"n": "HUGEINT"}, UnsupportedType, "DECIMAL"),
        ({7: "BIGINT"}, InvalidOption, "int: str"),
        (["n"], InvalidOption, "not a list"),
    ],
)
def test_bad_types_are_refused(table: Table, clocked: ClockedStore, types: Any, error: Any, message: str) -> None:
    brick(table)
    before = dict(clocked.objects)
    with pytest.raises(error, match=message):
        table.repair_types(types)
    assert clocked.objects == before


def test_a_restored_part_of_another_type_is_not_pruned(clocked: ClockedStore, clock: ManualClock) -> None:
    # As texts, "10.0" is the least of these; as numbers, 2.0.
    table = create_table(clocked, clock, sort_by=["n"])
    table.insert([{"n": text} for text in ("2.0", "10.0", "30.0")])
    clock.advance(60_000)
    as_of = clock.now_ms()
    clock.advance(60_000)
    foreign_append(clocked, clock.now_ms(), {"n": (*DOUBLE, [5.0])})
    clock.advance(60_000)
    table.repair_types({"n": "DOUBLE"})
    clock.advance(60_000)
    table.restore(as_of)
    table.insert([{"n": 77.0}])
    assert len(table.snapshot().files("n = 2")) == 1
    assert table.query("SELECT n FROM t WHERE n < 5").fetchall() == [(2.0,)]
    assert numbers(table) == [2.0, 10.0, 30.0, 77.0]


def test_a_repair_without_a_conflict_changes_nothing(table: Table, clocked: ClockedStore) -> None:
    for types in (None, {}, {"n": "BIGINT"}):
        table.insert([{"k": 0, "n": 1}])
        before = dict(clocked.objects)
        report = table.repair_types(types)
        assert (report.conflicts, report.rewritten_parts, report.rows, report.commit.committed) == ((), 0, 0, False)
        assert not report.writers_must_reopen
        assert clocked.objects == before


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_restored_part_is_repaired_by_naming_its_column(table: Table, clock: ManualClock, clocked: Any) -> None:
    brick(table)
    as_of = table.handle.tolerant().read().newest_ms
    clock.advance(MINUTE_MS)
    table.repair_types()
    table.restore(as_of)
    assert numbers(table) == ALL, "older parts are read as they are"
    assert not table.repair_types().commit.committed
    assert table.repair_types({"n": "DOUBLE"}).rewritten_parts == 2
    assert table.repair_types({"n": "DOUBLE"}).rewritten_parts == 0
    assert numbers(table) == ALL
    check_sound(clocked)


# ------------------------------------------------------------------------------------------ types in the log


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("name", "same"),
    [("INT8", "BIGINT"), ("bigint", "BIGINT"), ("TEXT", "VARCHAR"), ("STRUCT(a INT8)", "STRUCT(a BIGINT)")],
)
def test_two_names_of_a_type_are_no_conflict(plain: Table, clocked: ClockedStore, name: str, same: str) -> None:
    kind = {"VARCHAR": pa.string(), "BIGINT": pa.int64()}.get(same, STRUCT_A)
    foreign_appends(clocked, clocked.clock.now_ms(), ((name, kind), [None]), ((same, kind), [None]))
    assert plain.schema() == {"n": same}
    assert numbers(plain) == [None, None]
    plain.insert(pa.table({"n": pa.array([None], kind), "k": [1]}))
    plain.merge()
    assert plain.schema() == {"n": same, "k": "BIGINT"}
    assert plain.verify().ok
    check_sound(clocked)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "text",
    [
        "INTEGRE", "", "BIGINT) AS n, (SELECT 7", "BIGINT; DROP TABLE t", "VARCHAR)--", "VARCHAR /*",
        "BIGINT) FROM x --", "mood", "DECIMAL(99,3)", "STRUCT(a nothing)", "x" * 5_000,
    ],
)  # fmt: skip
def test_an_invalid_type_in_the_log_is_damage(table: Table, clocked: ClockedStore, text: str) -> None:
    table.insert([{"k": 0, "n": 1}])
    t_ms = table.handle.read().newest_ms + 1
    foreign_append(clocked, t_ms, {"evil": (text, pa.int64(), [1])})
    key = clocked.location.keys.log_file(t_ms, merged=False, writer="v3-host")
    reopened = open_table(clocked, clocked.clock)
    for verb in (table.schema, table.merge, table.repair_types, lambda: reopened.query("FROM t")):
        with pytest.raises(CorruptLog) as caught:
            verb()
        assert caught.value.key == key
        for named in (key, "evil", repr(text[:200])):
            assert named in str(caught.value)
        assert len(str(caught.value)) < 1_000
    assert [(p.kind, p.key) for p in table.verify().problems if p.severity == "error"] == [("damaged_log", key)]


def test_plain_types_are_not_parsed_by_duckdb(table: Table) -> None:
    table.insert([{"k": 0, "n": 1, "s": "x", "d": 0.5, "t": datetime(2026, 1, 1), "b": b"", "u": True}])
    before = _canonical_type.cache_info()
    open_table(table.handle.store, table.handle.clock).schema()
    assert _canonical_type.cache_info() == before


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        (["BIGINT", "UBIGINT"], "DECIMAL(38,0)"),
        (["BIGINT", "INTEGER", "DOUBLE"], "DOUBLE"),
        (["FLOAT", "SMALLINT"], "FLOAT"),
        (["JSON", "VARCHAR"], "VARCHAR"),
        (["ENUM('a')", "ENUM('b')"], "VARCHAR"),
        (["TIMESTAMP", "TIMESTAMP WITH TIME ZONE"], None),
        (["BIGINT", "VARCHAR"], None),
        (["BOOLEAN", "BIGINT"], None),
        (["BIGINT", "STRUCT(a BIGINT)"], None),
        (["BIGINT[]", "BIGINT"], None),
        (["HUGEINT", "DOUBLE"], "DOUBLE"),
        (["MAP(VARCHAR, INTEGER)", "MAP(VARCHAR, BIGINT)"], "MAP(VARCHAR, BIGINT)"),
        (["STRUCT(a BIGINT)[]", "STRUCT(b BIGINT)[]"], "STRUCT(a BIGINT, b BIGINT)[]"),
    ],
)
def test_the_common_type(types: list[str], wanted: str | None) -> None:
    assert common_type(types, column="n", table="t") == wanted
    assert common_type(types[::-1], column="n", table="t") in (wanted, "STRUCT(b BIGINT, a BIGINT)[]")


# ------------------------------------------------------------------------------------------ what else there is


def test_a_repair_keeps_transactions_and_overwrites(table: Table, clock: ManualClock, clocked: ClockedStore) -> None:
    table.insert([{"k": 0, "n": 1}], txn=("orders", 1))
    table.overwrite([{"k": 0, "n": 2}], partitions=["k=0"])
    foreign_append(clocked, table.handle.read().newest_ms + 1, {"n": (*DOUBLE, [0.5])})
    table.repair_types()
    assert table.insert([{"k": 0, "n": 1.0}], txn=("orders", 1)).repeated
    assert numbers(table) == [0.5, 2.0]
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    # No log file has another type any more, also for programs of v3.
    files = [decode(o.body, k, clocked.location.keys) for k, o in clocked.objects.items() if "/_log/" in k]
    assert {f.schema.get("n", "DOUBLE") for f in files} == {"DOUBLE"}
    assert numbers(table) == [0.5, 2.0]
    check_sound(clocked)


def test_the_repairing_table_inserts_with_the_new_type(table: Table) -> None:
    brick(table)
    table.repair_types()
    table.insert([{"k": 1, "n": 9.5}])  # nothing was read since
    assert numbers(table) == [*ALL, 9.5]


def test_verify_accepts_a_repaired_table(table: Table) -> None:
    brick(table)
    table.repair_types()
    assert table.verify(deep=True).problems == ()


def test_a_declared_type_follows(clocked: ClockedStore, clock: ManualClock) -> None:
    spec = TableSpec(id="x", columns={"k": "BIGINT", "n": "BIGINT"})
    clocked.create(clocked.location.keys.spec, encode_spec(spec))
    table = open_table(clocked, clock)
    brick(table)
    table.repair_types()
    changed = msgspec.structs.replace(spec, columns={"k": "BIGINT", "n": "DOUBLE"}, revision=1)
    assert table.spec == changed
    reopened = open_table(clocked, clock)
    assert numbers(reopened) == ALL
    assert reopened.spec == changed
    assert not reopened.repair_types().commit.committed


def test_partition_expressions_must_fit_the_new_type(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["n % 2 AS half"])
    t_ms = clock.now_ms()
    foreign_append(clocked, t_ms, {"n": (*INT, [2])}, partition="half=0")
    foreign_append(clocked, t_ms + 1, {"n": (*TEXT, ["4"])}, partition="half=0")
    before = dict(clocked.objects)
    with pytest.raises(InvalidPartitionExpression, match="n % 2"):
        table.repair_types({"n": "VARCHAR"})
    assert unprobed(clocked) == before
    table.repair_types({"n": "BIGINT"})
    assert table.query("SELECT n, half FROM t ORDER BY n").fetchall() == [(2, 0), (4, 0)]


def test_names_that_differ_only_in_case_are_rejected(table: Table, clocked: ClockedStore) -> None:
    table.insert([{"k": 0, "n": 1}])
    t_ms = table.handle.read().newest_ms + 1
    foreign_append(clocked, t_ms, {"N": (*INT, [2])})
    before = dict(clocked.objects)
    with pytest.raises(SchemaConflict, match="differ only in case") as caught:
        table.repair_types()
    key = clocked.location.keys.log_file(t_ms, merged=False, writer="v3-host")
    assert f"move '{key}' elsewhere" in str(caught.value)
    assert clocked.objects == before
    # Follow the message.
    clocked.delete([key])
    open_table(clocked, clocked.clock).insert([{"k": 0, "n": 2}])
    assert numbers(open_table(clocked, clocked.clock)) == [1, 2]


def test_a_log_file_from_a_clock_far_ahead_is_not_replaced(table: Table, clock: ManualClock, clocked: Any) -> None:
    table.insert([{"k": 0, "n": 1}])
    foreign_append(clocked, clock.now_ms() + DAY_MS, {"n": (*DOUBLE, [2.0])})
    before = dict(clocked.objects)
    for dry_run in (True, False):
        with pytest.raises(SchemaConflict, match="far ahead"):
            table.repair_types({"n": "BIGINT"}, dry_run=dry_run)
    assert clocked.objects == before
    assert table.repair_types().conflicts[0].type == "DOUBLE"
    assert numbers(table) == [1.0, 2.0]


def test_a_table_without_rows_of_the_other_type(table: Table, clocked: ClockedStore) -> None:
    table.insert([{"k": 0, "n": 1}])
    t_ms = table.handle.read().newest_ms + 1
    clocked.create(
        clocked.location.keys.log_file(t_ms, merged=False, writer="v3-host"), encode(LogFile(t_ms, {"n": "VARCHAR"}))
    )
    assert table.repair_types({"n": "BIGINT"}).rewritten_parts == 0
    assert numbers(table) == [1]


# ------------------------------------------------------------------------------------------ beside others


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_writers_with_the_old_type_are_reported(table: Table, clock: ManualClock, clocked: ClockedStore) -> None:
    """A plain append reads no log, so a program with the old schema writes the old type. The next repair casts it."""
    stale = open_table(clocked, clock)
    stale.handle.read()
    brick(table)
    stale.handle.cache.learn_columns({"k": "BIGINT", "n": "BIGINT"})
    store = FaultyStore(clocked)
    act_before(store, lambda: stale.insert([{"k": 1, "n": 77}]), kind="create", key="epoch-")
    report = open_table(store, clock).repair_types()
    assert report.commit.committed
    assert report.still_in_conflict == ("n",)
    with pytest.raises(SchemaConflict, match="icedb repair"):
        table.snapshot()
    again = table.repair_types()
    assert (again.rewritten_parts, again.still_in_conflict) == (1, ())
    assert numbers(table) == [*ALL, 77.0]
    with pytest.raises(SchemaConflict, match="DOUBLE in the table"):
        open_table(clocked, clock).insert(pa.table({"k": [1], "n": [True]}))
    check_sound(clocked)


OTHERS: dict[str, Callable[[Table], object]] = {
    "a plain append": lambda t: t.insert([{"k": 1, "n": 77}]),
    "the same repair": lambda t: t.repair_types(),
    "a repair and a merge": lambda t: [t.repair_types(), t.merge()],
    "a repair and a drop": lambda t: [t.repair_types(), t.drop_partitions(["k=1"])],
}


def _act_with_old_schema(act: Callable[[Table], object], writer: Table) -> None:
    writer.handle.cache.learn_columns({"k": "BIGINT", "n": "BIGINT"})
    act(writer)


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("other", OTHERS)
def test_concurrent_operations_at_every_request_of_a_repair(other: str) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["k"], sort_by=["n"])
    whole = dict(base.objects)
    brick(table)
    clock.advance(MINUTE_MS)
    saved, start_ms = dict(base.objects), clock.now_ms()
    counting = FaultyStore(base)
    open_table(counting, clock).repair_types()
    requests = len(counting.requests)
    assert requests > 8
    for number in range(2, requests + 1):
        clock.set(start_ms)
        base.objects = dict(whole)
        writer = open_table(base, clock)
        writer.handle.read()  # before the foreign append
        base.objects = dict(saved)
        store = FaultyStore(base)
        act_before(store, partial(_act_with_old_schema, OTHERS[other], writer), number=number)
        actor = open_table(store, clock)
        with contextlib.suppress(SchemaConflict):  # a plain append with the old type, after the repair
            actor.repair_types()
        table = open_table(base, clock)
        table.repair_types()
        added = [77.0] if "append" in other else []
        assert numbers(table) == ([n for n in ALL if n != 2.0] if "drop" in other else ALL + added), number
        state = check_sound(base)
        assert data_keys(base) == set(state.parts), "no orphan"


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("fault", Fault)
def test_a_repair_that_fails_at_any_request_is_atomic(fault: Fault) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    brick(create_table(base, clock, partition_by=["k"], sort_by=["n"]))
    clock.advance(MINUTE_MS)
    for attempt in attempts(base, clock, fault, Table.repair_types, errors=(IceDBError,)):
        number = attempt.number
        table = open_table(base, clock)
        with contextlib.nullcontext() if attempt.done else contextlib.suppress(SchemaConflict):
            assert numbers(table) == ALL, number
        attempt.deliver()
        clock.advance(MINUTE_MS)
        open_table(base, clock).repair_types()
        assert numbers(open_table(base, clock)) == ALL, number
        check_sound(base)
        assert only_live_parts_stay(base, clock), number
        assert numbers(open_table(base, clock)) == ALL, number


@pytest.mark.sampled(cases=1, days=3)
def test_the_next_repair_finishes_one_that_crashed_after_any_put(place: Any) -> None:
    requests = 0
    for number in range(1, 6):
        uri = f"{place.uri}/{number}"
        table = Table.create(uri, partition_by=["k"], sort_by=["n"], storage_options=place.storage_options)
        brick(table)
        store = FaultyStore(table.handle.store)
        puts: list[Request] = []

        def die(request: Request, puts: list[Request] = puts, store: FaultyStore = store, number: int = number) -> None:
            if request.kind == "create":
                puts.append(request)
                store.dead = len(puts) == number

        store.after = die
        with contextlib.suppress(Crash):
            open_table(store, table.handle.clock).repair_types()
        requests = max(requests, len(puts))
        others = Table.open(uri, storage_options=place.storage_options)
        others.repair_types()
        assert numbers(others) == ALL
        assert others.schema() == {"k": "BIGINT", "n": "DOUBLE"}
        assert others.verify(deep=True).ok
    assert requests == 5, "the probe, two parts, the claim and the log file"


# ------------------------------------------------------------------------------------------ the command


@pytest.mark.long
def test_the_command_repairs(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", partition_by=["k"], sort_by=["n"])
    brick(table)
    assert "icedb repair" in run("merge", table.uri, status=2).stderr
    planned = run_json("repair", table.uri, "--dry-run")
    assert (planned["dry_run"], planned["rewritten_parts"], planned["rows"]) == (True, 2, 3)
    assert planned["conflicts"][0]["type"] == "DOUBLE"
    assert "n: BIGINT, DOUBLE becomes VARCHAR" in run("repair", table.uri, "--yes", "--type", "n=VARCHAR").stdout
    assert numbers(table) == ["0.5", "1", "2", "2.5", "3"]
    assert "Nothing to repair" in run("repair", table.uri, "--yes").stdout
    assert "Write price=DOUBLE" in run("repair", table.uri, "--yes", "--type", "n", status=2).stderr
    assert "no such column" in run("repair", table.uri, "--yes", "--type", "x=BIGINT", status=2).stderr
