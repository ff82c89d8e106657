"""Exports to Iceberg: readers of Iceberg read the same rows from the same parts, also after later changes."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg import conversions
from pyiceberg import types as iceberg_types

from icedb import Table
from icedb.errors import (
    CommitTimedOut,
    CorruptLog,
    IceDBError,
    InvalidOption,
    SnapshotExpired,
    UncoordinatedMaintenance,
    UnknownColumn,
    UnsupportedType,
)
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.reader.iceberg.avro import avro_bytes, avro_file, avro_long, avro_optional, avro_text
from icedb.reader.iceberg.single_values import binary_value, parse_values
from icedb.sql.field_ids import field_id
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, Kind, ManualClock, create_table, open_table
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.delta_reading import texts
from tests.support.tables.exported_tables import (
    STEPS,
    STRANGE,
    TYPES,
    exports,
    fill,
    live,
    rows_of,
    with_typed_partitions,
)
from tests.support.tables.fault_walk import SavedState
from tests.support.tables.iceberg_reading import (
    READERS,
    by_pyiceberg,
    check_same,
    document,
    duckdb_with_iceberg,
    files,
    rows_by_duckdb,
    rows_by_pyiceberg,
)
from tests.support.tables.numbered_rows import data_keys

MORE_TYPES = {"time": "TIME '01:02:03'", "uuid": "'00000000-0000-0000-0000-000000000001'::UUID", "json": "'{}'::JSON"}
#: Differences of a reader's values for a type: pyiceberg reads a null list of structs as an empty list.
DIFFERENCES = {("pyiceberg", "list_of_struct")}


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["n // 10 AS tens"], sort_by=["n"])


# ------------------------------------------------------------------------------------------------ what is read


@pytest.mark.sampled(cases=1)
@pytest.mark.long
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_each_type_is_read_unchanged(local: Any, nanoseconds: bool) -> None:
    table = Table.create(local.uri, sort_by=["bigint", "varchar", "timestamp", "timestamptz", "date", "float"])
    values = TYPES | MORE_TYPES
    if nanoseconds:
        values["nanoseconds"] = "TIMESTAMP_NS '2026-11-21 03:04:05.000000001'"
    table.insert(rows_of(values))
    report = table.export_iceberg()
    assert document(table.handle.store)["format-version"] == (3 if nanoseconds else 2)
    ours = table.query("SELECT * FROM t").to_arrow()
    for name in ("pyiceberg", "duckdb"):
        theirs = READERS[name](table, str(report.metadata), None)
        for column in values:
            if (name, column) not in DIFFERENCES:
                assert texts(theirs, [column]) == texts(ours, [column]), (name, column)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_every_reader_reads_flat_and_nested_columns(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens", "c"], sort_by=["n"])
    table.insert([{"n": n, "c": "xy"[n % 2], "s": {"a": n, "b": [str(n)]}} for n in range(0, 40, 3)])
    table.insert([{"n": n, "c": "z", "later": 1.5} for n in range(0, 40, 7)])
    first = table.export_iceberg()
    earlier = table.query("SELECT n, tens, c, s, later FROM t").to_arrow()
    [old] = document(table.handle.store)["snapshots"]
    table.merge()
    table.delete("n = 7")
    report = table.export_iceberg()
    ours = table.query("SELECT n, tens, c, s, later FROM t").to_arrow()
    for name, read in READERS.items():
        # ClickHouse reads a null struct as one of nulls.
        columns = [c for c in ours.column_names if name != "clickhouse" or c != "s"]
        theirs = read(table, str(report.metadata), None)
        assert texts(theirs, columns) == texts(ours, columns), name
        before = read(table, str(report.metadata), old["snapshot-id"])
        assert texts(before, columns) == texts(earlier, columns), name
    assert first.metadata != report.metadata


def test_types_without_an_iceberg_type_are_named_and_can_be_excluded(local: Any) -> None:
    table = Table.create(local.uri)
    table.insert(rows_of({"n": "1", "big": "1::UBIGINT", "nested": "[{'a': 1::UBIGINT}]"}))
    with pytest.raises(UnsupportedType, match=r"'big' \(UBIGINT\), 'nested' .*exclude_columns"):
        table.export_iceberg()
    assert not Path(local.uri, "metadata").exists()
    assert table.pins() == []
    check_same(table, table.export_iceberg(exclude_columns=["big", "nested"]).metadata, without=("big", "nested"))
    with pytest.raises(UnknownColumn, match="nme"):
        table.export_iceberg(exclude_columns=["nme"])
    with pytest.raises(InvalidOption, match="no column"):
        table.export_iceberg(exclude_columns=["n", "big", "nested"])


@pytest.mark.sampled(cases=1)
def test_partition_columns_have_their_types_and_any_value(shared_place: Any) -> None:
    table = with_typed_partitions(shared_place, [*STRANGE, ""])
    report = table.export_iceberg()
    check_same(table, report.metadata)
    scan = by_pyiceberg(table, str(report.metadata)).scan(row_filter="city = 'a/b'")
    assert scan.to_arrow()["n"].to_pylist() == [1]
    assert len(list(scan.plan_files())) == 1


@pytest.mark.sampled(days=3)
def test_a_stored_partition_column_is_read_from_the_files(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["k"])
    table.insert([{"k": 1, "_partition": "k=7"}, {"k": 2, "_partition": "k=7"}])
    report = table.export_iceberg()
    assert document(table.handle.store)["partition-specs"] == [{"spec-id": 0, "fields": []}]
    check_same(table, report.metadata)
    assert by_pyiceberg(table, str(report.metadata)).scan(row_filter="k = 2").to_arrow().num_rows == 1


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_bounds_prune_files_and_lose_no_row(local: Any) -> None:
    columns = {
        "n": "i",
        "x": "CASE i WHEN 0 THEN '-0'::DOUBLE WHEN 1 THEN 'inf' ELSE i / 4 END",
        "at": "TIMESTAMP '2026-11-21' + INTERVAL (i) HOUR",
        "day": "DATE '2026-11-21' + i",
        "text": "repeat(chr(97 + i), 100)",
        "ok": "i > 3",
        "f": "(i / 8)::FLOAT",
    }
    table = Table.create(local.uri, sort_by=list(columns))
    for i in range(6):
        table.insert(
            duckdb.sql(
                "SELECT " + ", ".join(f"{sql} AS {c}" for c, sql in columns.items()) + f" FROM (SELECT {i} AS i)"
            )
        )
    metadata = str(table.export_iceberg().metadata)
    static = by_pyiceberg(table, metadata)
    assert len(list(static.scan(row_filter="n = 3").plan_files())) == 1
    assert len(list(static.scan(row_filter="at >= '2026-11-21T04:00:00'").plan_files())) == 2
    with duckdb_with_iceberg() as con:
        for column in columns:
            for (value,) in table.query(f'SELECT "{column}"::VARCHAR FROM t').fetchall():
                for comparison in ("=", "<=", ">="):
                    where = f"\"{column}\" {comparison} '{value}'"
                    [theirs] = con.execute(f"SELECT count(*) FROM iceberg_scan('{metadata}') WHERE {where}").fetchall()
                    assert [theirs] == table.query(f"SELECT count(*) FROM t WHERE {where}").fetchall(), where


@pytest.mark.sampled(days=3)
def test_an_empty_table_and_a_table_that_was_emptied_are_exported(local: Any) -> None:
    table = Table.create(local.uri, schema={"n": "BIGINT"}, partition_by=["n % 2 AS odd"])
    check_same(table, table.export_iceberg().metadata)
    table.insert([{"n": 1}])
    check_same(table, table.export_iceberg().metadata)
    table.delete("true")
    check_same(table, table.export_iceberg().metadata)


def test_parts_with_and_without_field_ids_are_read_together(local: Any, tmp_path: Path) -> None:
    m = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))
    old = pa.table({"n": [1, 2], "s": [{"a": 1, "b": [{"c": "x"}]}, None], "m": m, "later": [0.5, None]})
    pq.write_table(old, tmp_path / "old.parquet")
    assert "field_id=-1" in str(pq.ParquetFile(tmp_path / "old.parquet").schema)
    table = Table.create(local.uri, sort_by=["n"])
    table.insert(rows_of({"n": "3::BIGINT", "s": "{'a': 7::BIGINT, 'b': [{'c': 'y'}]}", "m": "MAP {'l': 2::BIGINT}"}))
    table.import_files(tmp_path / "old.parquet")
    metadata = str(table.export_iceberg().metadata)
    ours = table.query("SELECT * FROM t").to_arrow()
    for name in ("pyiceberg", "duckdb", "clickhouse"):
        theirs = READERS[name](table, metadata, None)
        if name == "clickhouse":  # it reads a null struct as one of nulls
            ours, theirs = (rows.filter(pc.field("n") != 2) for rows in (ours, theirs))
        assert texts(theirs, ours.column_names) == texts(ours, ours.column_names), name


def test_parts_have_the_field_ids_of_the_schema(local: Any) -> None:
    table = Table.create(local.uri)
    table.insert(rows_of({"n": "1", "s": "{'a': [1]}", "m": "MAP {'k': 1}", "e": "'a'::ENUM('a', 'b')"}))
    [part] = table.snapshot().parts
    schema = str(pq.ParquetFile(part.path).schema)
    for path in (("n",), ("s",), ("s", "a"), ("s", "a", "element"), ("m", "key"), ("m", "value"), ("e",)):
        assert f"field_id={field_id(*path)} {path[-1]}" in schema, path


# ------------------------------------------------------------------------------------------------ as a table goes on


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_every_change_of_a_table_is_exported(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"], sort_by=["n"])
    fill(table, 0, 10, 20)
    first = table.export_iceberg()
    earlier = table.query("SELECT * FROM t").to_arrow()
    for step, change in STEPS.items():
        if step == "alter":
            table.overwrite([{"n": n} for n in (2, 4)])
        change(table)
        assert table.export_iceberg(dry_run=True).dry_run
        report = table.export_iceberg()
        assert report.published, step
        check_same(table, report.metadata)
        again = table.export_iceberg()
        assert (again.published, again.metadata, again.new_files) == (False, report.metadata, 0), step
    assert table.verify(deep=True).problems == ()
    assert texts(rows_by_pyiceberg(table, str(first.metadata)), ["n"]) == texts(earlier, ["n"])


@pytest.mark.long
def test_an_append_writes_one_manifest_and_pins_are_tags(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icedb.reader.iceberg.manifests._PARTS", 2)
    table = Table.create(local.uri)
    for n in range(40):
        fill(table, n)
    report = table.export_iceberg()
    assert report.manifests > 5
    fill(table, 40)
    assert table.export_iceberg().new_files == 2  # a manifest and the list
    table.pin("november")
    fill(table, 41)
    metadata = str(table.export_iceberg().metadata)
    check_same(table, metadata)
    tag = by_pyiceberg(table, metadata).refs()["november"].snapshot_id
    for read in (rows_by_pyiceberg, rows_by_duckdb):
        assert read(table, metadata, tag).num_rows == 41
    table.unpin("november")
    assert "november" not in by_pyiceberg(table, str(table.export_iceberg().metadata)).refs()


@pytest.mark.sampled(days=3)
def test_dropped_columns_are_hidden_and_an_earlier_snapshot_has_them(local: Any) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1, "secret": "x"}])
    table.export_iceberg()
    [old] = document(table.handle.store)["snapshots"]
    table.alter(drop_columns=["secret"])
    metadata = str(table.export_iceberg().metadata)
    check_same(table, metadata)
    assert rows_by_pyiceberg(table, metadata).column_names == ["n"]
    assert rows_by_pyiceberg(table, metadata, old["snapshot-id"]).column_names == ["n", "secret"]


def test_metadata_of_another_program_is_rejected(local: Any) -> None:
    table = Table.create(local.uri)
    fill(table, 1)
    theirs = Path(local.uri, "metadata", "00000-5e3e0f9a-0000-4000-8000-000000000000.metadata.json")
    theirs.parent.mkdir()
    theirs.write_text("{}")
    with pytest.raises(UncoordinatedMaintenance, match="not written by an export of this table"):
        table.export_iceberg()
    assert table.pins() == []


@pytest.mark.long
def test_old_parts_without_ids_and_new_parts_are_read_together(local: Any, tmp_path: Path) -> None:
    old = {"n": [1, 2], "s": [{"a": 1}, None], "dropped": ["x", "y"]}
    (tmp_path / "old").mkdir()
    pq.write_table(pa.table(old), tmp_path / "old" / "old.parquet")
    Table.create_from_files(local.uri, tmp_path / "old")
    table = Table.open(local.uri)
    table.insert([{"n": 3, "s": {"a": 3}, "dropped": "z", "late": 1.5}])
    assert {bool(pq.read_schema(p.path).field("n").metadata) for p in table.snapshot().parts} == {True, False}
    table.export_iceberg()
    earlier = table.query("SELECT * FROM t").to_arrow()
    [before] = document(table.handle.store)["snapshots"]
    table.alter(drop_columns=["dropped"])
    metadata = str(table.export_iceberg().metadata)
    ours = table.query("SELECT * FROM t").to_arrow()
    for name in ("pyiceberg", "duckdb", "clickhouse"):
        columns = [c for c in earlier.column_names if name != "clickhouse" or c != "s"]  # it has no null structs
        current = [c for c in columns if c != "dropped"]
        theirs = READERS[name](table, metadata, None)
        assert "dropped" not in theirs.column_names, name
        assert texts(theirs, current) == texts(ours, current), name
        # The column is in the name mapping as long as a document lists a snapshot that has it.
        assert texts(READERS[name](table, metadata, before["snapshot-id"]), columns) == texts(earlier, columns), name


# ------------------------------------------------------------------------------------------------ what is kept


def test_parts_of_an_export_are_kept_until_the_next(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1, 2)
    fill(table, 3, 4)
    assert table.export_iceberg().kept_until_ms == clock.now_ms() + 7 * DAY_MS
    kept = files(clocked)
    table.merge()
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        table.cleanup()
    assert kept <= data_keys(clocked)
    clock.advance(1)
    table.export_iceberg()
    table.cleanup()
    assert len(exports(table)) == 2
    for snapshot in document(clocked)["snapshots"]:  # a reader of the previous one continues for the grace period
        assert files(clocked, snapshot) <= data_keys(clocked)
    clock.advance(HOUR_MS + MINUTE_MS)
    report = table.export_iceberg()  # a document without the previous snapshot
    assert (report.published, report.snapshots) == (True, 1)
    clock.advance(HOUR_MS + MINUTE_MS)
    assert table.export_iceberg().published is False
    clock.advance(HOUR_MS)
    table.cleanup()
    assert data_keys(clocked) == files(clocked) == live(table)


def test_old_documents_and_their_manifests_are_deleted(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    for n in range(5):
        fill(table, n)
        table.export_iceberg()
        clock.advance(4 * DAY_MS)
    names = [i.key.rpartition("/")[2] for i in clocked.list(table.handle.keys.iceberg_prefix)]
    assert sorted(int(n.split("-")[0]) for n in names if n.endswith(".json")) == [2, 3, 4]
    assert {n.removeprefix("snap-").split("-")[0] for n in names if n.endswith(".avro")} == {
        "1",
        "2",
        "3",
        "4",
    }  # document 2 lists the snapshot of 1
    assert files(clocked) == live(table)


def test_an_expired_time_and_a_paused_export_publish_nothing(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    fill(table, 1)
    clock.advance(MINUTE_MS)
    then = clock.now_ms() - 1
    store = FaultyStore(clocked)
    act_after(store, lambda: clock.advance(2 * MINUTE_MS), kind="create", key="pin-")
    with pytest.raises(CommitTimedOut):
        open_table(store, clock).export_iceberg(keep=timedelta(minutes=1))
    assert [i for i in clocked.list(table.handle.keys.iceberg_prefix) if i.key.endswith(".json")] == []
    table.overwrite([{"n": 2}])
    clock.advance(3 * HOUR_MS)
    table.cleanup()
    with pytest.raises(SnapshotExpired):
        table.export_iceberg(as_of=then)


def test_an_export_of_an_earlier_time_reports_its_own_rows(table: Table, clock: ManualClock) -> None:
    fill(table, 1)
    clock.advance(MINUTE_MS)
    then_ms = clock.now_ms() - 1
    clock.advance(MINUTE_MS)
    fill(table, 2, 3)
    assert table.export_iceberg().rows == 3
    report = table.export_iceberg(as_of=then_ms)  # the document has the later snapshot, too
    assert (report.rows, report.snapshots) == (1, 2)


def test_a_document_lists_no_snapshot_whose_pin_has_expired(table: Table, clock: ManualClock) -> None:
    fill(table, 1)
    table.export_iceberg(keep=timedelta(minutes=1))
    clock.advance(2 * MINUTE_MS)
    fill(table, 2)
    assert table.export_iceberg().snapshots == 1


def test_a_pin_that_iceberg_cannot_hold_does_not_prevent_an_export(table: Table, clock: ManualClock) -> None:
    table.insert(duckdb.sql("SELECT 1 AS n, 1::UBIGINT AS big"))
    table.pin("november")
    clock.advance(MINUTE_MS)
    table.alter(drop_columns=["big"])
    fill(table, 2)
    table.pin("december")
    clock.advance(MINUTE_MS)
    fill(table, 3)
    report = table.export_iceberg()
    assert report.snapshots == 2
    assert {*document(table.handle.store)["refs"]} == {"main", "december"}


def test_another_export_may_delete_the_old_documents_first(
    clocked: ClockedStore, clock: ManualClock, table: Table
) -> None:
    for n in range(3):
        fill(table, n)
        table.export_iceberg()
        clock.advance(4 * DAY_MS)
    fill(table, 3)
    store = FaultyStore(clocked)
    [old] = [i.key for i in clocked.list(table.handle.keys.iceberg_prefix) if "/00001-" in i.key]

    def meanwhile() -> None:
        clock.advance(8 * DAY_MS)
        for n in (4, 5):
            fill(table, n)
            table.export_iceberg()

    act_before(store, meanwhile, kind="get", key=old)
    assert open_table(store, clock).export_iceberg().version == 3
    names = [i.key.rpartition("/")[2] for i in clocked.list(table.handle.keys.iceberg_prefix)]
    assert sorted(int(n.split("-")[0]) for n in names if n.endswith(".json")) == [3, 4, 5]
    for snapshot in document(clocked)["snapshots"]:
        assert files(clocked, snapshot)


def test_the_second_of_two_exports_plans_again(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    fill(table, 1)
    table.export_iceberg()
    fill(table, 2)
    store = FaultyStore(clocked)

    def meanwhile() -> None:
        fill(table, 3)
        table.export_iceberg()
        fill(table, 4)

    act_before(store, meanwhile, kind="create", key=".metadata.json")
    assert open_table(store, clock).export_iceberg().version == 2
    assert files(clocked) == live(table)
    assert [name.split("-")[2] for name in exports(table)] == ["0", "1", "2"]


def test_an_export_continues_if_others_delete_the_document_that_it_lists(
    clocked: ClockedStore, clock: ManualClock, table: Table
) -> None:
    fill(table, 0)
    table.export_iceberg()
    store = FaultyStore(clocked)

    def meanwhile() -> None:
        for n in range(1, 4):
            fill(table, n)
            table.export_iceberg()
            clock.advance(4 * DAY_MS)

    act_before(store, meanwhile, kind="get", key="metadata/00000-")
    open_table(store, clock).export_iceberg()
    assert files(clocked) == live(table)


def test_a_document_that_stays_listed_and_cannot_be_read_is_an_error(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(handle: Any, version: int) -> Any:
        return handle.store.get("metadata/lost")

    fill(table, 1)
    table.export_iceberg()
    monkeypatch.setattr("icedb.operations.export.iceberg_folder.read_document", lost)
    with pytest.raises(CorruptLog, match=r"00000-.* cannot be read"):
        table.export_iceberg()


@pytest.mark.parametrize("kind", ["list", "get"])
def test_a_planned_export_never_replaces_a_newer_one(
    clocked: ClockedStore, clock: ManualClock, table: Table, kind: Kind
) -> None:
    fill(table, 1)
    table.export_iceberg()
    store = FaultyStore(clocked)

    def meanwhile() -> None:
        fill(table, 2)
        table.export_iceberg()

    for interrupt in (act_before, act_after):
        interrupt(store, meanwhile, kind=kind, key="metadata/")
        open_table(store, clock).export_iceberg()
        assert files(clocked) == live(table), interrupt


@pytest.mark.long
def test_an_export_that_crashes_anywhere_loses_no_exported_part() -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["n // 10 AS tens"])
    for n in range(3):
        fill(table, n)
        table.export_iceberg()
        clock.advance(4 * DAY_MS)
    fill(table, 10)
    table.merge()
    saved = SavedState(base, clock)
    counting = FaultyStore(base)
    open_table(counting, clock).export_iceberg()
    assert [r for r in counting.requests if r.kind == "delete" and ".metadata.json" in r.keys[0]]
    numbers = [r.number for r in counting.requests if r.kind in ("create", "delete")]
    for fault in (Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT):
        for number in numbers:
            saved.restore()
            store = FaultyStore(base)
            store.inject(fault, number=number)
            with contextlib.suppress(Crash, IceDBError):
                open_table(store, clock).export_iceberg()
            where = (fault, number, counting.requests[number - 1])
            again = open_table(base, clock)
            again.overwrite([{"n": 77}])
            clock.advance(2 * HOUR_MS)
            again.cleanup()
            assert files(base) <= data_keys(base), where
            again.export_iceberg()
            for snapshot in document(base)["snapshots"]:
                assert files(base, snapshot) <= data_keys(base), where
            assert files(base) == live(again), where
            for _ in range(2):  # a document without the earlier snapshots, then no change
                clock.advance(3 * HOUR_MS)
                again.export_iceberg()
            assert len(exports(again)) == 1, where
            assert again.verify(footers=False).ok, where


# ------------------------------------------------------------------------------------------------ encodings


def test_avro_files_are_read_by_another_library() -> None:
    fields = [
        {"name": "n", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "body", "type": "bytes"},
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    rows: list[dict[str, Any]] = [
        {"n": n, "text": None if n % 3 else f"ü{n}", "body": bytes(n % 200)}
        for n in [0, 1, -1, 63, 64, -64, -65, 1023, 1024, 2**31, -(2**31), 2**63 - 1, -(2**63), *range(9000)]
    ]
    records = [
        avro_long(r["n"]) + avro_optional(None if r["text"] is None else avro_text(r["text"])) + avro_bytes(r["body"])
        for r in rows
    ]
    body = avro_file(json.dumps({"type": "record", "name": "r", "fields": fields}).encode(), {"k": b"v"}, records)
    reader = fastavro.reader(io.BytesIO(body), reader_schema=schema)
    assert list(reader) == rows
    assert reader.metadata["k"] == "v"


@pytest.mark.parametrize(
    ("type_", "iceberg_type", "text"),
    [
        ("boolean", iceberg_types.BooleanType(), "true"),
        ("int", iceberg_types.IntegerType(), "-70000"),
        ("long", iceberg_types.LongType(), "9223372036854775807"),
        ("float", iceberg_types.FloatType(), "0.5"),
        ("double", iceberg_types.DoubleType(), "-0.1"),
        ("date", iceberg_types.DateType(), "1969-12-31"),
        ("time", iceberg_types.TimeType(), "01:02:03.000004"),
        ("timestamp", iceberg_types.TimestampType(), "2026-11-21 03:04:05.678901"),
        ("timestamptz", iceberg_types.TimestamptzType(), "2026-11-21 03:04:05+02"),
        ("string", iceberg_types.StringType(), "Zürich"),
        ("decimal(38, 2)", iceberg_types.DecimalType(38, 2), "-1234567890123456789012345678901234.12"),
        ("decimal(4, 1)", iceberg_types.DecimalType(4, 1), "12.8"),
    ],
)
def test_values_are_encoded_as_pyiceberg_does(type_: str, iceberg_type: Any, text: str) -> None:
    [value, nothing, invalid] = parse_values(type_, [text, None, "no value"])
    assert nothing is None
    assert type_ == "string" or invalid is None
    assert binary_value(type_, value) == conversions.to_bytes(iceberg_type, value)
    if type_.startswith("decimal"):
        assert conversions.from_bytes(iceberg_type, binary_value(type_, value)) == Decimal(text)
