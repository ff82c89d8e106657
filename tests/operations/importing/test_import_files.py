"""Imports of Parquet files: each file is committed once, whole, and stays as it is."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from icedb import Table
from icedb.cli import app
from icedb.errors import (
    CommitStateUnknown,
    CommitTimedOut,
    IceDBError,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    InvalidPartitionValue,
    MissingPart,
    SchemaConflict,
    StoreUnavailable,
    TableExists,
    UnknownColumn,
    UnsupportedType,
)
from icedb.format.records import Marker
from icedb.format.table_spec import TableSpec
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.operations.importing import import_files
from icedb.operations.importing.copy_files import FOLDERS_MAX
from icedb.sql.field_ids import field_id
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
from icedb.transaction.open_table import create_handle
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.object_stores.stores import Place
from tests.support.tables.fault_walk import SavedState, attempts, only_live_parts_stay
from tests.support.tables.numbered_rows import numbers
from tests.support.tables.parquet_sources import beside, encode, put_files, stored
from tests.support.tables.plain_table import live_numbers

DAYS = {
    "d=2026-01-01/a.parquet": [{"n": 3, "s": "c"}, {"n": 1, "s": "a"}],
    "d=2026-01-01/b.parquet": [{"n": 2, "s": None}],
    "d=2026-01-02/a.parquet": [{"n": 4, "s": "d"}],
}
ROWS = [(1, "a", date(2026, 1, 1)), (2, None, date(2026, 1, 1)), (3, "c", date(2026, 1, 1)), (4, "d", date(2026, 1, 2))]


def create(place: Place, **spec: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **spec)


def rows(table: Table, columns: str = "n, s, d") -> list[tuple[Any, ...]]:
    return table.query(f"SELECT {columns} FROM t ORDER BY n").fetchall()


def statistics(marker: Marker) -> Any:
    assert isinstance(marker.stats, msgspec.Raw)
    return json.loads(bytes(marker.stats))


# ------------------------------------------------------------------------------------------------ the whole way


@pytest.mark.sampled(cases=1, days=3)
def test_a_hive_folder_becomes_part_of_a_table(place: Place) -> None:
    source = put_files(beside(place), DAYS, place.storage_options)
    before = stored(source)
    table = create(place, path_columns={"d": "DATE"}, sort_by=["n"])
    planned = table.import_files(beside(place), dry_run=True)
    assert table.snapshot().parts == ()
    report = table.import_files(beside(place))
    assert (report.rows, report.files, report.columns) == (4, 3, {"n": "BIGINT", "s": "VARCHAR"})
    assert (planned.copied, planned.rows, planned.bytes) == (report.copied, report.rows, report.bytes)
    assert (len(report.copied), report.registered, report.skipped) == (3, (), ())
    assert report.partitions == ("d=2026-01-01", "d=2026-01-02")
    assert report.commit.rows == 4
    assert rows(table) == rows(Table.open(place.uri, storage_options=place.storage_options)) == ROWS
    assert table.verify(deep=True).ok
    # A second import finds nothing new.
    again = table.import_files(beside(place))
    assert (again.copied, again.commit.committed, len(again.skipped)) == ((), False, 3)
    assert table.insert([{"n": 5, "s": "e", "d": date(2026, 1, 2)}]).rows == 1
    assert table.merge().commit.committed
    assert rows(table) == [*ROWS, (5, "e", date(2026, 1, 2))]
    # Files whose parts were merged are not imported again, and cleanup deletes no source file.
    assert not table.import_files(beside(place)).commit.committed
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert stored(source) == before
    assert table.verify(deep=True).ok


@pytest.mark.sampled(days=3)
def test_the_marker_of_an_import_equals_that_of_an_insert(place: Place) -> None:
    data = [{"n": n, "f": n / 2, "s": f"s{n}", "t": datetime(2026, 1, 1, n), "z": None if n else 1} for n in range(5)]
    put_files(beside(place), {"a.parquet": data}, place.storage_options)
    sort_by = ["n", "f", "s", "t", "z"]
    imported, inserted = create(place, sort_by=sort_by), create(place.below("other"), sort_by=sort_by)
    imported.import_files(beside(place))
    inserted.insert(data)
    [one], [other] = (t.handle.read().live for t in (imported, inserted))
    assert statistics(one) == statistics(other)
    assert (one.rows, imported.schema()) == (other.rows, inserted.schema())


def test_statistics_cover_several_row_groups(local: Place) -> None:
    many = pa.table({"n": pa.array([5, 1, None, None, 9, 7], pa.int32()), "s": ["x"] * 6})
    source = beside(local)
    put_files(source, {"a.parquet": encode(many, row_group_size=2), "b.parquet": encode(many, write_statistics=False)})
    table = create(local, sort_by=["n"])
    table.import_files(source)
    assert [statistics(m) for m in table.handle.read().live] == [{"n": [1, 9, 2]}] * 2


@pytest.mark.sampled(cases=1, days=3)
def test_files_below_the_tables_data_are_registered_as_they_are(place: Place) -> None:
    table = create(place, path_columns={"d": "DATE"})
    data = f"{place.uri}/_data"
    store = put_files(data, DAYS, place.storage_options)
    before = stored(store)
    report = table.import_files(data)
    assert (len(report.registered), report.copied) == (3, ())
    assert stored(store) == before, "nothing was copied"
    assert rows(table) == ROWS
    assert not table.import_files(data).commit.committed
    assert table.verify(deep=True).ok
    # Registered files belong to the table: cleanup deletes them after a merge.
    table.merge()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert rows(table) == ROWS
    assert not [k for k in stored(store) if k.endswith(("d=2026-01-01/a.parquet", "d=2026-01-01/b.parquet"))]


@pytest.mark.sampled(cases=1, days=3)
def test_a_file_below_data_whose_path_is_not_the_tables_is_copied(place: Place) -> None:
    table = create(place, path_columns={"k": "BIGINT", "c": "VARCHAR"})
    data = f"{place.uri}/_data"
    names = ["k=1/c=x/a.parquet", "k=01/c=x/a.parquet", "k=1/c=New York/a.parquet", "k=1/c=x/odd name.parquet"]
    put_files(data, {name: [{"n": n}] for n, name in enumerate(names)}, place.storage_options)
    report = table.import_files(data)
    assert [p.removeprefix(f"{data}/") for p in report.registered] == ["k=1/c=x/a.parquet"]
    assert rows(table, "n, k, c") == [(0, 1, "x"), (1, 1, "x"), (2, 1, "New York"), (3, 1, "x")]
    assert table.snapshot().partitions() == ["k=1/c=New%20York", "k=1/c=x"]
    assert not table.import_files(data).commit.committed


@pytest.mark.sampled(days=3)
def test_a_table_may_be_created_among_the_files(shared_place: Place) -> None:
    source = put_files(shared_place.uri, DAYS, shared_place.storage_options)
    before = stored(source)
    table = create(shared_place, path_columns={"d": "DATE"})
    report = table.import_files(shared_place.uri)
    assert len(report.copied) == 3
    assert rows(table) == ROWS
    table.merge()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert before.items() <= stored(source).items()
    assert not table.import_files(f"{shared_place.uri}/d=2026-01-01").commit.committed


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_files_of_many_partitions_are_imported(local: Place) -> None:
    count = 2 * FOLDERS_MAX
    put_files(beside(local), {f"k={k}/a.parquet": [{"n": k}] for k in range(count)})
    Table.create_from_files(local.uri, beside(local))
    assert rows(Table.open(local.uri), "n, k") == [(k, k) for k in range(count)]


@pytest.mark.sampled(days=3)
def test_a_log_in_a_store_of_its_own(shared_place: Place, tmp_path: Path) -> None:
    put_files(beside(shared_place), DAYS, shared_place.storage_options)
    table = create(shared_place, path_columns={"d": "DATE"}, log_uri=tmp_path / "log")
    assert len(table.import_files(beside(shared_place)).copied) == 3
    assert rows(table) == ROWS


def test_files_named_like_parts_of_writers_are_not_registered(shared_place: Place) -> None:
    table = create(shared_place)
    data = f"{shared_place.uri}/_data"
    names = ["0123456789abcdef0123456789abcdef", "3f2b8c1e-0d4a-4f6b-9c3d-2a1b0c9d8e7f"]
    names += [f"{job}0123456789abcdef0123456789abcdef" for job in ("fedcba987654", "Nightly7")]
    put_files(data, {f"{name}.parquet": [{"n": 1}] for name in names}, shared_place.storage_options)
    report = table.import_files(data)
    assert (len(report.skipped), report.commit.committed) == (4, False)
    assert all("may be one that is being written" in s.reason for s in report.skipped)


def test_a_file_older_than_the_table_may_have_any_name(clocked: ClockedStore, clock: ManualClock) -> None:
    key = clocked.location.keys.part("", clock.new_id())
    clocked.create(key, encode([{"n": 1}]))
    clock.advance(HOUR_MS)
    table = create_table(clocked, clock)
    assert table.import_files("memory://clocked/table/_data").registered == (f"memory://clocked/{key}",)
    assert [m.key for m in check_sound(clocked).live] == [key]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.s3
def test_files_are_imported_from_another_store(local: Place, s3: Place, way: str) -> None:
    there, here = (local, s3) if way == "up" else (s3, local)
    source = put_files(beside(there), DAYS, there.storage_options)
    before = stored(source)
    table = create(here, path_columns={"d": "DATE"})
    report = table.import_files(beside(there), storage_options=there.storage_options)
    assert len(report.copied) == 3
    assert rows(table) == ROWS
    assert stored(source) == before
    assert table.verify(deep=True).unchecked_parts == 0, "what went through this machine has a digest"
    assert not table.import_files(beside(there), storage_options=there.storage_options).commit.committed


@pytest.mark.sampled(days=3)
def test_rows_with_nan_of_another_writer_are_found(local: Place) -> None:
    """The statistics of other writers omit NaN, which is the greatest number of DuckDB."""
    source = f"{beside(local)}/a.parquet"
    put_files(beside(local), {"a.parquet": [{"n": n, "x": math.nan if n == 3 else 1.0} for n in range(9)]}, {})
    imported, inserted = (
        create(local),
        Table.create(f"{local.uri}-inserted", insert_query="SELECT * FROM _rows WHERE x > 5"),
    )
    imported.import_files(source)
    inserted.insert(source)
    for table in (imported, inserted):
        assert table.query("SELECT n FROM t WHERE x > 5").fetchall() == [(3,)]
    assert imported.query("SELECT count(*), sum(n) FROM t WHERE x = 1 OR x < 0").fetchall() == [(8, 33)]
    imported.insert([{"n": 9, "x": math.nan}])
    assert imported.query("SELECT n FROM t WHERE x > 5 ORDER BY n").fetchall() == [(3,), (9,)]
    imported.merge()
    assert imported.query("SELECT n FROM t WHERE x > 5 ORDER BY n").fetchall() == [(3,), (9,)]


@pytest.mark.sampled(cases=1, days=3)
def test_verify_notes_digests(place: Place) -> None:
    put_files(beside(place), DAYS, place.storage_options)
    table = create(place, path_columns={"d": "DATE"})
    table.import_files(beside(place), verify=True)
    report = table.verify(deep=True)
    assert (report.ok, report.unchecked_parts) == (True, 0)


@pytest.mark.sampled(cases=1)
def test_a_table_is_made_after_the_files(place: Place) -> None:
    files = {
        "d=2026-01-01/k=1/c=New%20York/a.parquet": [{"n": 1}],
        "d=2026-01-02/k=2/c=__HIVE_DEFAULT_PARTITION__/a.parquet": [{"n": 2}],
    }
    put_files(beside(place), files, place.storage_options)
    options = {"storage_options": place.storage_options}
    planned = Table.create_from_files(place.uri, beside(place), sort_by=["n"], dry_run=True, **options)  # type: ignore[arg-type]
    assert (planned.rows, Table.exists(place.uri, storage_options=place.storage_options)) == (2, False)
    Table.create_from_files(place.uri, beside(place), sort_by=["n"], **options)  # type: ignore[arg-type]
    table = Table.open(place.uri, storage_options=place.storage_options)
    assert table.spec.path_columns == {"d": "DATE", "k": "BIGINT", "c": "VARCHAR"}
    assert rows(table, "n, d, k, c") == [(1, date(2026, 1, 1), 1, "New York"), (2, date(2026, 1, 2), 2, None)]
    with pytest.raises(TableExists):
        Table.create_from_files(place.uri, beside(place), **options)  # type: ignore[arg-type]


def test_columns_that_the_files_store_partition_the_table_by_themselves(local: Place) -> None:
    files = {f"k={k}/a.parquet": [{"n": k, "k": k}] for k in range(2)}
    put_files(beside(local), files)
    Table.create_from_files(local.uri, beside(local))
    table = Table.open(local.uri)
    assert (table.spec.partition_by, table.spec.path_columns) == (('"k"',), {})
    table.insert([{"n": 2, "k": 1}])
    assert table.snapshot().partitions("k = 1") == ["k=1"]
    assert rows(table, "n, k") == [(0, 0), (1, 1), (2, 1)]


# ------------------------------------------------------------------------------------------------ which files


@pytest.mark.sampled(cases=6)
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("/a.parquet", [0]),
        ("/*.parquet", [0, 1]),
        ("/?.parquet", [0]),
        ("/sub/*", [2, 3]),
        ("/**/a.parquet", [0, 2, 4]),
        ("/sub/**", [2, 3, 4]),
        ("/[ab]*.parquet", [0, 1]),
        ("/[!b].parquet", [0]),
    ],
)
def test_the_source_may_be_a_folder_a_file_or_a_glob(shared_place: Place, pattern: str, expected: list[int]) -> None:
    names = ["a.parquet", "b2.parquet", "sub/a.parquet", "sub/b.parquet", "sub/deep/a.parquet"]
    hidden = ["_SUCCESS", ".a.parquet.crc", "_temporary/0/c.parquet", "sub_$folder$"]
    files = {name: [{"n": n}] for n, name in enumerate(names)} | dict.fromkeys(hidden, b"")
    put_files(beside(shared_place), files, shared_place.storage_options)
    table = create(shared_place)
    table.import_files(beside(shared_place) + pattern)
    assert numbers(table) == expected


@pytest.mark.sampled(days=3)
def test_names_with_characters_of_sql_and_urls_are_imported(shared_place: Place) -> None:
    names = ["a b", "a%20b", "it's", "a[1]", "a?b", "a*b", "a#1", "ü", "a+b", "a&b=c", 'q"q', "-- x;"]
    put_files(
        beside(shared_place), {f"{name}.parquet": [{"n": n}] for n, name in enumerate(names)},
        shared_place.storage_options,
    )  # fmt: skip
    table = create(shared_place)
    table.import_files(beside(shared_place))
    assert numbers(table) == list(range(len(names)))
    table.merge()
    assert numbers(table) == list(range(len(names)))


@pytest.mark.sampled(cases=1, days=3)
def test_partition_values_are_not_interpreted(shared_place: Place) -> None:
    values = ["it's", "a/b", "..", "%2e%2e", "x=y", "NULL", "", "50%", "a?b*[c]", "_data/", "'; DROP TABLE t; --"]
    folders = ["c=" + "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in value) for value in values]
    put_files(
        beside(shared_place), {f"{folder}/a.parquet": [{"n": n}] for n, folder in enumerate(folders)},
        shared_place.storage_options,
    )  # fmt: skip
    table = create(shared_place, path_columns={"c": "VARCHAR"})
    table.import_files(beside(shared_place))
    assert rows(table, "n, c") == list(enumerate(values))
    parts = table.snapshot().parts
    assert len(parts) == len(values)
    assert {p.key.removeprefix(table.handle.keys.data_prefix).count("/") for p in parts} == {1}
    for value in values:
        assert table.drop_partitions(f"c = '{value.replace(chr(39), 2 * chr(39))}'").rows == 1


@pytest.mark.sampled(days=3)
def test_the_parts_of_another_table_are_refused(shared_place: Place) -> None:
    other = create(shared_place.below("other"))
    other.insert([{"n": 1}])
    table = create(shared_place.below("table"))
    for source in (f"{other.uri}/_data", f"{other.uri}/_data/*.parquet"):
        with pytest.raises(InvalidOption, match="another table"):
            table.import_files(source)
    with pytest.raises(InvalidOption, match="no files"):
        table.import_files(other.uri)


@pytest.mark.sampled(days=3)
def test_empty_files_are_skipped(place: Place) -> None:
    nothing = pa.table({"n": pa.array([], pa.int64()), "extra": pa.array([], pa.string())})
    put_files(beside(place), {"a.parquet": nothing, "b.parquet": [{"n": 1}]}, place.storage_options)
    table = create(place)
    report = table.import_files(beside(place))
    assert [s.reason for s in report.skipped] == ["it has no rows"]
    assert table.schema() == {"n": "BIGINT"}


# ------------------------------------------------------------------------------------------------ what is refused


def encrypted(folder: Path) -> bytes:
    path = folder / "encrypted.parquet"
    with duckdb.connect() as con:
        con.execute("SET force_mbedtls_unsafe = 'true'")
        con.execute("PRAGMA add_parquet_key('k', '0123456789112345')")
        con.execute(f"COPY (SELECT 1 AS n) TO '{path}' (FORMAT parquet, ENCRYPTION_CONFIG {{footer_key: 'k'}})")
    return path.read_bytes()


def interval(folder: Path) -> bytes:
    path = folder / "interval.parquet"
    duckdb.execute(f"COPY (SELECT 1 AS n, INTERVAL 1 DAY AS i) TO '{path}'")
    return path.read_bytes()


GOOD = encode([{"n": 1}])
K1, K2 = [{"n": 1, "k": 1}], [{"n": 2, "k": 2}]
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[IceDBError], str]] = {
    "no Parquet": ({}, {"b.parquet": b"hello, world"}, InvalidBatch, "b.parquet"),
    "a text file": ({}, {"notes.txt": b"hello, world"}, InvalidBatch, "notes.txt"),
    "nothing in it": ({}, {"b.parquet": b""}, InvalidBatch, "b.parquet"),
    "cut": ({}, {"b.parquet": GOOD[:-7]}, InvalidBatch, "b.parquet"),
    "two types": ({}, {"b.parquet": [{"n": "x"}]}, SchemaConflict, "a.parquet.*b.parquet"),
    "case": ({}, {"b.parquet": [{"N": 1}]}, InvalidBatch, "only in case"),
    "reserved": ({}, {"b.parquet": [{"__icedb_x": 1}]}, InvalidBatch, "b.parquet.*reserved"),
    "_partition": ({}, {"b.parquet": [{"_partition": "x"}]}, InvalidBatch, "b.parquet.*_partition"),
    "no type": ({}, {"b.parquet": pa.table({"z": pa.nulls(2)})}, UnsupportedType, "'z' of .*b.parquet"),
    "no type inside": ({}, {"b.parquet": pa.table({"z": [[None]]})}, UnsupportedType, "'z' of .*b.parquet"),
    "hidden values": ({}, {"k=1/b.parquet": K1}, InvalidBatch, "k=1.*path_columns"),
    "too few folders": ({"path_columns": {"k": "BIGINT"}}, {}, InvalidBatch, "a.parquet.*k=.*"),
    "other folders": ({"path_columns": {"k": "BIGINT"}}, {"j=1/b.parquet": GOOD}, InvalidBatch, "parquet.*k=.*"),
    "no such value": (
        {"path_columns": {"k": "BIGINT"}},
        {"k=1.5/b.parquet": GOOD},
        InvalidPartitionValue,
        "'1.5', which is no BIGINT",
    ),
    "no such date": ({"path_columns": {"k": "DATE"}}, {"k=x/b.parquet": GOOD}, InvalidPartitionValue, "no DATE"),
    "a time for a date": (
        {"path_columns": {"k": "DATE"}},
        {"k=2026-01-01 10%3A00%3A00/b.parquet": GOOD},
        InvalidPartitionValue,
        "no DATE",
    ),
    "stored and declared": ({"path_columns": {"k": "BIGINT"}}, {"k=1/b.parquet": K1}, InvalidBatch, "partition_by"),
    "declared, not stored": (
        {"partition_by": ["k"]},
        {"k=1/b.parquet": K1, "k=2/c.parquet": GOOD},
        InvalidBatch,
        "lacks",
    ),
    "another partition": ({"partition_by": ["k"]}, {"k=1/b.parquet": K2}, InvalidBatch, "b.parquet.*k = '2'"),
    "two partitions": ({"partition_by": ["k"]}, {"k=1/b.parquet": [*K1, *K2]}, InvalidBatch, "b.parquet.*k = '2'"),
    "no such column": ({"partition_by": ["q % 2 AS k"]}, {"k=1/b.parquet": GOOD}, InvalidPartitionExpression, "q"),
    "computed name": ({"partition_by": ["n % 2 AS k"]}, {"k=1/b.parquet": K1}, InvalidBatch, "b.parquet.*computes"),
    "no sort column": ({"sort_by": ["q"]}, {}, UnknownColumn, "sort_by names 'q'"),
    "an insert query": ({"insert_query": "SELECT n FROM _rows"}, {}, InvalidOption, "insert_query"),
    "row ids": ({"row_id": True}, {}, InvalidOption, "row ids"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_source_is_rejected_before_anything_is_written(case: str, local: Place) -> None:
    spec, files, error, message = REFUSED[case]
    flat = case in ("hidden values", "other folders") or not any("=" in name for name in files)
    files = {"a.parquet": GOOD, **files} if flat else files
    source = put_files(beside(local), files, local.storage_options)
    table = create(local, **spec)
    before = stored(table.handle.store), stored(source)
    for dry_run in (True, False):
        with pytest.raises(error, match=message) as caught:
            table.import_files(beside(local), dry_run=dry_run)
        assert table.uri in str(caught.value)
    assert (stored(table.handle.store), stored(source)) == before


@pytest.mark.parametrize("make", [encrypted, interval])
def test_unreadable_files_are_rejected(make: Callable[[Path], bytes], local: Place, tmp_path: Path) -> None:
    put_files(beside(local), {"a.parquet": GOOD, "b.parquet": make(tmp_path)})
    with pytest.raises((InvalidBatch, UnsupportedType), match=r"b\.parquet"):
        create(local).import_files(beside(local))


def test_files_must_satisfy_the_spec_of_the_table(local: Place) -> None:
    table = create(local, schema={"n": "BIGINT", "s": "VARCHAR"}, required=["n"], schema_policy="declared")
    put_files(beside(local), {"a.parquet": [{"n": 1}], "more/a.parquet": [{"n": 1, "x": 1}]})
    put_files(beside(local), {"null/a.parquet": [{"n": 1}, {"n": None}], "lacks/a.parquet": [{"s": "x"}]})
    put_files(beside(local), {"type/a.parquet": [{"n": "x"}]})
    for folder, error in {
        "more": UnknownColumn,
        "null": InvalidBatch,
        "lacks": InvalidBatch,
        "type": SchemaConflict,
    }.items():
        with pytest.raises(error, match=rf"{folder}/a\.parquet"):
            table.import_files(f"{beside(local)}/{folder}")
    table.import_files(f"{beside(local)}/a.parquet")
    assert numbers(table) == [1]


@pytest.mark.sampled(days=3)
def test_paths_may_be_trusted(local: Place) -> None:
    put_files(beside(local), {"k=1/a.parquet": [{"n": 1}, {"n": 2}]})
    table = create(local, partition_by=["n % 2 AS k"])
    with pytest.raises(InvalidBatch, match="k = '0'"):
        table.import_files(beside(local))
    assert table.import_files(beside(local), trust_paths=True).rows == 2


@pytest.mark.sampled(days=3)
def test_computed_partitions_are_compared_with_the_rows(shared_place: Place) -> None:
    days = [[{"n": n, "ts": datetime(2026, 1, 1 + k, n)} for n in (k, k + 2)] for k in range(2)]
    files = {f"d=2026-01-0{1 + k}/a.parquet": day for k, day in enumerate(days)}
    put_files(beside(shared_place), files, shared_place.storage_options)
    table = create(shared_place, partition_by=["strftime(ts, '%Y-%m-%d') AS d"])
    table.import_files(beside(shared_place))
    table.insert([{"n": 4, "ts": datetime(2026, 1, 1, 23)}])
    assert table.merge().commit.committed
    assert numbers(table) == [0, 1, 2, 3, 4]
    assert [p.rows for p in table.snapshot().parts] == [3, 2]


def test_columns_without_a_type_take_that_of_others(local: Place) -> None:
    files = {"a.parquet": pa.table({"n": [1], "x": pa.nulls(1)}), "b.parquet": [{"n": 2, "x": {"k": 1}}]}
    put_files(beside(local), files)
    table = create(local)
    table.import_files(beside(local))
    assert rows(table, "n, x") == [(1, None), (2, {"k": 1})]
    table.merge()
    assert rows(table, "n, x") == [(1, None), (2, {"k": 1})]


# ------------------------------------------------------------------------------------------------ path columns in use


@pytest.mark.sampled(cases=1, days=3)
def test_path_columns_are_columns_like_others(place: Place) -> None:
    put_files(beside(place), DAYS, place.storage_options)
    table = create(place, path_columns={"d": "DATE"})
    table.import_files(beside(place))
    day = "d = DATE '2026-01-01'"
    assert dict(table.snapshot().partition_schema) == {"d": "DATE"}
    assert table.snapshot().partitions(day) == ["d=2026-01-01"]
    assert table.query("SELECT count(*) FROM t", where=day).fetchall() == [(3,)]
    assert table.merge().commit.parts[0].partition == "d=2026-01-01"
    assert table.delete(f"n = 1 AND {day}").deleted_rows == 1
    assert rows(table) == ROWS[1:]
    table.overwrite([{"n": 9, "s": "z", "d": date(2026, 1, 1)}], partitions=day)
    assert rows(table) == [ROWS[3], (9, "z", date(2026, 1, 1))]
    assert table.drop_partitions(day).rows == 1
    assert rows(table) == [ROWS[3]]


# ------------------------------------------------------------------------------------------------ the table remembers


@pytest.mark.long
def test_files_whose_parts_were_cleaned_up_are_not_imported_again(clocked: ClockedStore, clock: ManualClock) -> None:
    for n in range(2):
        clocked.create(f"source/{n}.parquet", encode([{"n": n}]))
    clock.advance(MINUTE_MS)
    table = create_table(clocked, clock)
    table.import_files("memory://clocked/source")
    table.merge()
    clock.advance(2 * HOUR_MS)
    assert len(table.cleanup().deleted_parts) == 2
    assert table.handle.read().horizon_ms
    assert [s.reason.partition(",")[0] for s in table.import_files("memory://clocked/source").skipped] == [
        "it was there at the last import from this address"
    ] * 2
    assert not table.import_files("memory://clocked/source/*").commit.committed, "they lay there at that time"
    # Later files are new.
    clocked.create("source/2.parquet", encode([{"n": 2}]))
    assert table.import_files("memory://clocked/source").rows == 1
    assert numbers(table) == [0, 1, 2]
    clocked.create("elsewhere/3.parquet", encode([{"n": 3}]))
    table.overwrite([{"n": 3}])
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    with pytest.raises(InvalidOption, match="first_time"):
        table.import_files("memory://clocked/elsewhere")
    assert table.import_files("memory://clocked/elsewhere", first_time=True).rows == 1
    assert numbers(table) == [3, 3]


def test_an_import_that_paused_during_another_import_imports_nothing(clocked: ClockedStore, clock: ManualClock) -> None:
    clocked.create("source/0.parquet", encode([{"n": 0}]))
    clocked.create("source/1.parquet", encode([{"n": 1}]))
    clock.advance(MINUTE_MS)
    other = create_table(clocked, clock)
    store = FaultyStore(clocked)
    slow = open_table(store, clock)

    def sleep() -> None:
        other.import_files("memory://clocked/source")
        other.merge()
        clock.advance(2 * HOUR_MS)
        assert len(other.cleanup().deleted_parts) == 2

    act_before(store, sleep, kind="copy")  # after the plan
    with pytest.raises(CommitTimedOut, match="another import was committed"):
        slow.import_files("memory://clocked/source")
    assert numbers(other) == [0, 1]
    assert not slow.import_files("memory://clocked/source").commit.committed
    assert numbers(other) == [0, 1]


@pytest.mark.sampled(days=3)
def test_dropped_parts_are_not_imported_again(clocked: ClockedStore, clock: ManualClock) -> None:
    table = in_table(clocked, clock)
    for source in (SOURCE, DATA):
        table.import_files(source)
        table.drop_partitions("true")
        report = table.import_files(source)
        assert {s.reason for s in report.skipped} == {"the table had it, and it was merged, dropped or deleted since"}
        assert not report.commit.committed
    check_sound(clocked)


# ------------------------------------------------------------------------------------------------ crashes and races

SOURCE, DATA = "memory://clocked/source", "memory://clocked/table/_data"


def in_table(store: ClockedStore, clock: ManualClock) -> Table:
    """Create a table with two files beside it and two in its `_data`."""
    spec = TableSpec(id=clock.new_id(), path_columns={"k": "BIGINT"}, sort_by=("n",))
    create_handle(store, spec, clock=clock)
    table = open_table(store, clock)
    table.insert([{"n": 100, "k": 1}])
    store.create("source/k=1/a.parquet", encode([{"n": 1}, {"n": 2}]))
    store.create("source/k=2/a.parquet", encode([{"n": 3, "s": "x"}]))
    for k in (1, 2):
        store.create(f"table/_data/k={k}/mine.parquet", encode([{"n": 3 + k}]))
    clock.advance(MINUTE_MS)
    return table


def crashed_import(store: ClockedStore, clock: ManualClock) -> None:
    """Crash an import after its copies, before its claim."""
    in_table(store, clock)
    crashed = FaultyStore(store)
    crashed.inject(Fault.CRASH_BEFORE, kind="create", key="epoch-")
    with pytest.raises(Crash):
        open_table(crashed, clock).import_files(SOURCE)


WHOLE = {SOURCE: [1, 2, 3, 100], DATA: [4, 5, 100]}
FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.REPEAT]


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("source", [SOURCE, DATA, "folder"])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_import_that_fails_at_any_request_is_atomic(fault: Fault, source: str, tmp_path: Path) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    in_table(base, clock)
    if source == "folder":
        put_files(str(tmp_path), {"k=1/a.parquet": [{"n": 1}, {"n": 2}], "k=2/a.parquet": [{"n": 3, "s": "x"}]})
        source = str(tmp_path)
    whole = WHOLE.get(source, WHOLE[SOURCE])
    files = {k: v for k, v in base.objects.items() if k.startswith("source/")}
    for attempt in attempts(base, clock, fault, lambda table: table.import_files(source), errors=(IceDBError,)):
        number = attempt.number
        assert live_numbers(base) in ([whole] if attempt.done else [whole, [100]]), number
        clock.advance(MINUTE_MS)
        copies = len([k for k in base.objects if k.startswith("table/_data/")])
        again = open_table(base, clock).import_files(source)
        assert live_numbers(base) == whole, number
        now = len([k for k in base.objects if k.startswith("table/_data/")])
        assert now - copies <= len(again.copied)
        assert not open_table(base, clock).import_files(source).commit.committed
        open_table(base, clock).merge()
        assert only_live_parts_stay(base, clock), number
        assert live_numbers(base) == whole, number
        assert {k: v for k, v in base.objects.items() if k.startswith("source/")} == files
    assert number > 10
    assert numbers(open_table(base, clock)) == whole


@pytest.mark.sampled(days=3)
def test_copies_of_a_crashed_import_are_used_again(clocked: ClockedStore, clock: ManualClock) -> None:
    crashed_import(clocked, clock)
    for hours, copies in ((5, 0), (2, 2)):
        clock.advance(hours * HOUR_MS)
        saved = dict(clocked.objects)
        store = FaultyStore(clocked)
        assert len(open_table(store, clock).import_files(SOURCE).copied) == 2
        assert store.counts["copy"] == copies, "a copy that a sweep may soon take is not used any more"
        assert numbers(open_table(clocked, clock)) == WHOLE[SOURCE]
        check_sound(clocked)
        clocked.objects = saved


def test_copies_older_than_the_part_timeout_are_not_published(clocked: ClockedStore, clock: ManualClock) -> None:
    crashed_import(clocked, clock)
    clock.advance(5 * HOUR_MS)
    late = FaultyStore(clocked)

    def sleep(request: Request) -> None:
        if request.kind == "list" and request.keys[0].endswith("source/") and late.counts["list"] > 3:
            clock.advance(8 * HOUR_MS)

    late.after = sleep
    with pytest.raises(CommitTimedOut):
        open_table(late, clock).import_files(SOURCE)
    assert late.counts["copy"] == 0
    assert numbers(open_table(clocked, clock)) == [100]


OTHERS: dict[str, tuple[Callable[[Table, str], object], list[int]]] = {
    "insert": (lambda t, _: t.insert([{"n": 50, "k": 1}]), [50]),
    "a column": (lambda t, _: t.insert([{"n": 50, "k": 1, "x": 1}]), [50]),
    "merge": (lambda t, _: t.merge(), []),
    "merge_log": (lambda t, _: t.merge_log(), []),
    "cleanup": (lambda t, _: t.cleanup(), []),
    "sweep": (lambda t, _: t.delete_orphans(), []),
    "import": (lambda t, source: t.import_files(source), []),
    "import and merge": (lambda t, source: [t.import_files(source), t.merge()], []),
    "alter": (lambda t, _: t.alter(sort_by=[]), []),
}


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize(
    ("other", "source"),
    [*((other, SOURCE) for other in OTHERS), *((o, DATA) for o in ("insert", "merge", "import", "import and merge"))],
)
def test_concurrent_operations_during_an_import_duplicate_and_lose_no_row(other: str, source: str) -> None:
    """The other operation runs before every request, with and without a pause of hours."""
    act, added = OTHERS[other]
    clock = ManualClock()
    base = ClockedStore(clock)
    in_table(base, clock)
    saved = SavedState(base, clock)
    counting = FaultyStore(base)
    open_table(counting, clock).import_files(source)

    def between(sleep_ms: int) -> None:
        act(open_table(base, clock), source)
        clock.advance(sleep_ms)

    for number in range(1, len(counting.requests) + 1):
        for sleep_ms in (0, 3 * HOUR_MS):
            saved.restore()
            store = FaultyStore(base)
            act_before(store, partial(between, sleep_ms), number=number)
            done = False
            with contextlib.suppress(IceDBError):
                open_table(store, clock).import_files(source)
                done = True
            whole = sorted(WHOLE[source] + added)
            stored_numbers = live_numbers(base)
            assert stored_numbers == whole or (not done and stored_numbers == sorted([100, *added])), (number, sleep_ms)
            assert done or sleep_ms, number
            clock.advance(MINUTE_MS)
            open_table(base, clock).import_files(source)
            assert live_numbers(base) == whole, (number, sleep_ms)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("before", ["list source/", "create table/_claims/epoch-"])
def test_a_concurrent_import_duplicates_no_row(before: str, clocked: ClockedStore, clock: ManualClock) -> None:
    crashed_import(clocked, clock)
    store = FaultyStore(clocked)
    seen: list[str] = []

    def between(request: Request) -> None:
        seen.append(f"{request.kind} {request.keys[0]}")
        if seen[-1].startswith(before) and "list table/_data/k=1/" in seen and store.before:
            store.before = None
            other = open_table(clocked, clock)
            other.import_files(SOURCE)  # with the same copies
            other.merge()
            clock.advance(2 * HOUR_MS)
            other.cleanup()

    store.before = between
    with pytest.raises((CommitTimedOut, CommitStateUnknown)):
        open_table(store, clock).import_files(SOURCE)
    check_sound(clocked)
    assert numbers(open_table(clocked, clock)) == WHOLE[SOURCE]
    assert not open_table(clocked, clock).import_files(SOURCE).commit.committed


@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_source_changed_during_an_import_is_rejected(how: str, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    source = beside(local)
    put_files(source, DAYS)
    table = create(local, path_columns={"d": "DATE"})
    copy = vars(import_files)["copy_files"]
    victim = Path(source, "d=2026-01-02/a.parquet")

    def meanwhile(*arguments: Any) -> Any:
        copied = copy(*arguments)
        victim.unlink()
        if how == "changed":
            victim.write_bytes(encode([{"n": 7, "s": "d"}]))
        return copied

    monkeypatch.setattr(import_files, "copy_files", meanwhile)
    with pytest.raises(InvalidBatch, match=r"d=2026-01-02/a\.parquet.*changed or removed"):
        table.import_files(source)
    assert table.snapshot().parts == ()
    monkeypatch.undo()
    table.import_files(source)
    assert numbers(table) == ([1, 2, 3, 7] if how == "changed" else [1, 2, 3])


def test_a_registered_file_that_a_sweep_deletes_raises_missing_part(clocked: ClockedStore, clock: ManualClock) -> None:
    in_table(clocked, clock)
    store = FaultyStore(clocked)
    act_after(store, lambda: clocked.delete(["table/_data/k=2/mine.parquet"]), kind="create", key="_log/")
    with pytest.raises(MissingPart, match="k=2/mine"):
        open_table(store, clock).import_files(DATA)


def test_an_import_whose_copies_fail_commits_nothing(clocked: ClockedStore, clock: ManualClock) -> None:
    in_table(clocked, clock)
    store = FaultyStore(clocked)
    store.inject(Fault.FAIL, kind="copy", times=9)
    with pytest.raises(StoreUnavailable):
        open_table(store, clock).import_files(SOURCE)
    assert numbers(open_table(clocked, clock)) == [100]


# ------------------------------------------------------------------------------------------------ the command


def command(*arguments: object, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["import", *map(str, arguments), "--json", "--yes"])
    assert result.exit_code == status, result.output
    return json.loads(result.stdout) if status == 0 else result.output


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_command_creates_the_table_and_imports(local: Place) -> None:
    put_files(beside(local), DAYS)
    assert command(local.uri, beside(local), "--create", "--dry-run")["rows"] == 4
    assert "there is no table" in command(local.uri, beside(local), status=2)
    report = command(local.uri, beside(local), "--create", "--sort-by", "n", "--verify")
    assert (report["rows"], len(report["copied"]), report["dry_run"]) == (4, 3, False)
    assert rows(Table.open(local.uri)) == ROWS
    again = command(local.uri, beside(local), "--create")
    assert [s["reason"] for s in again["skipped"]] == ["the table has it already"] * 3
    assert "The table comes first" in command(beside(local), local.uri, status=2)
    assert "requires --create" in command(local.uri, beside(local), "--sort-by", "n", status=2)
    flags = ["--trust-paths", "--first-time", "--yes"]
    assert "the table has it already" in CliRunner().invoke(app, ["import", local.uri, beside(local), *flags]).stdout


@pytest.mark.sampled(cases=1)
def test_a_creation_that_fails_leaves_no_table_behind(place: Place) -> None:
    put_files(beside(place), {"d=1/a.parquet": [{"n": 1}], "d=1/b.parquet": [{"n": "x"}]}, place.storage_options)
    options: dict[str, Any] = {"storage_options": place.storage_options}
    cases: list[tuple[str, dict[str, Any], type[IceDBError]]] = [
        (beside(place), {}, SchemaConflict),
        (f"{beside(place)}/d=1/a.parquet", {"sort_by": ["missing"]}, UnknownColumn),
    ]
    for source, wrong, error in cases:
        with pytest.raises(error):
            Table.create_from_files(place.uri, source, **wrong, **options)
        assert not Table.exists(place.uri, **options)
    assert Table.create_from_files(place.uri, f"{beside(place)}/d=1/a.parquet", sort_by=["n"], **options).rows == 1
    assert Table.open(place.uri, **options).spec.sort_by == ("n",)


@pytest.mark.parametrize("source", [None, 1, ["a.parquet"], b"a.parquet"])
def test_an_invalid_source_address_is_rejected(source: Any, local: Place) -> None:
    with pytest.raises(InvalidOption, match="source must be"):
        create(local).import_files(source)
    with pytest.raises(InvalidOption, match="source must be"):
        Table.create_from_files(f"{local.uri}2", source)


def test_the_command_reports_ignored_options_and_files(local: Place) -> None:
    put_files(beside(local), DAYS)
    command(local.uri, beside(local), "--create", "--sort-by", "n")
    assert len(command(local.uri, beside(local), "--create", "--sort-by", "n")["skipped"]) == 3
    output = command(local.uri, beside(local), "--create", "--sort-by", "s", status=2)
    assert "--sort-by differs from the sort columns of the existing table" in output
    hidden = Path(f"{local.uri}3", "_hidden")
    hidden.mkdir(parents=True)
    (hidden / "a.parquet").write_bytes(b"no data")
    assert "names that begin with _ or . are left out" in command(local.uri, hidden.parent, status=2)
    assert "The table comes first" in command(f"{local.uri}2", local.uri, "--create", status=2)


def test_files_with_field_ids_of_another_writer_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A reader of Iceberg looks for the ids of this library, and would find nothing.
    source = tmp_path / "source"
    source.mkdir()
    for name, ids in {"none": {}, "ours": {"n": field_id("n")}, "theirs": {"n": 1}}.items():
        fields = [pa.field("n", pa.int64(), metadata={"PARQUET:field_id": str(ids[c])} if ids else None) for c in "n"]
        pq.write_table(pa.table([[1, 2]], schema=pa.schema(fields)), source / f"{name}.parquet")
    table = Table.create(tmp_path / "table")
    assert table.import_files(source, dry_run=True).foreign_id_files == 1
    assert not caplog.messages
    report = table.import_files(source)
    assert (len(report.copied), report.foreign_id_files) == (3, 1)
    assert any("1 of 3 imported files have field ids of another writer" in line for line in caplog.messages)
