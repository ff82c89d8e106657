"""Exports to Parquet: a complete folder with the same rows for any reader, or nothing."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import IceDBError, InvalidOption, OutcomeUnknownError, SnapshotExpired, UnknownColumn
from icedb.format.timing import HOUR_MS
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, create_table, open_table
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.delta_reading import texts

START = datetime(2026, 11, 21, 22)
#: The types of the path columns of `make`, for DuckDB.
TYPES = ", hive_types = {'day': VARCHAR}"


def events(count: int = 20) -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(hours=n), "n": n, "city": f"c {n % 3}/%"} for n in range(count)]


def make(place: Any, **options: Any) -> Table:
    table = Table.create(
        place.uri,
        partition_by=["strftime(ts, '%Y-%m-%d') AS day", "city || '' AS place"],
        sort_by=["n"],
        storage_options=place.storage_options,
        **options,
    )
    table.insert(events())
    return table


def hive(table: Table, target: str, types: str) -> pa.Table:
    """Read the folder or prefix with DuckDB alone."""
    from icedb.sql.connections import connect_reader
    from icedb.storage.location import parse_location

    options = table.handle.location.storage_options if target.startswith("s3") else None
    with connect_reader(parse_location(target, options)) as con:
        source = f"read_parquet('{target}/**/*.parquet', union_by_name = true, hive_partitioning = true{types})"
        return con.sql(f"SELECT * FROM {source}").to_arrow_table()


def check_same(table: Table, target: str, *, where: str = "true", types: str = "") -> None:
    ours = table.query(f"SELECT * FROM t WHERE {where}").to_arrow()
    theirs = hive(table, target, types)
    assert sorted(theirs.column_names) == sorted(ours.column_names)
    assert texts(theirs, ours.column_names) == texts(ours, ours.column_names)


@pytest.mark.sampled(cases=1)
def test_parts_are_copied_as_they_are(place: Any) -> None:
    table = make(place)
    target = f"{place.uri}-out"
    progress: list[tuple[int, int, int]] = []
    report = table.export_parquet(target, on_part=lambda *figures: progress.append(figures))
    assert (report.copied_parts, report.rewritten_parts, report.files, report.rows) == (5, 0, 5, 20)
    assert report.bytes == table.snapshot().bytes
    assert [(done, total) for done, total, _ in progress] == [(n, 5) for n in range(1, 6)]
    assert progress[-1][2] == report.bytes
    store = table.handle.store.sibling(table.handle.location.sibling("table-out"))
    root = store.location.keys.prefix
    names = [i.key.removeprefix(root).strip("/") for i in store.list(root)]
    assert {n for n in names if n.startswith("_")} == {"_SUCCESS", "_export.json"}
    ours = {p.key.partition("_data/")[2] for p in table.snapshot().parts}
    assert {n for n in names if not n.startswith("_")} == ours
    if place.kind != "memory":
        check_same(table, target, types=TYPES)
    if place.kind == "local":
        actual = ds.dataset(target, partitioning="hive").to_table()
        assert texts(actual, ["n", "place"]) == texts(table.query("SELECT n, place FROM t").to_arrow(), ["n", "place"])


@pytest.mark.s3
def test_an_export_from_a_folder_to_a_bucket_and_back(local: Any, s3: Any) -> None:
    table = make(local)
    table.export_parquet(s3.uri, storage_options=s3.storage_options)
    there = Table.create_from_files(f"{s3.uri}-table", s3.uri, storage_options=s3.storage_options)
    assert there.rows == 20
    other = Table.open(f"{s3.uri}-table", storage_options=s3.storage_options)
    other.export_parquet(f"{local.uri}-back", storage_options={"fsync": "false"})
    check_same(table, f"{local.uri}-back", types=TYPES)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_only_rows_of_the_condition_are_exported(local: Any) -> None:
    table = make(local)
    where = "n BETWEEN 3 AND 9 AND place <> 'c 1/%'"
    planned = table.export_parquet(f"{local.uri}-out", where=where, dry_run=True)
    assert (planned.rows, planned.files) == (None, None)
    assert not Path(f"{local.uri}-out").exists()
    report = table.export_parquet(f"{local.uri}-out", where=where)
    assert (report.rows, report.copied_parts, report.rewritten_parts) == (5, 0, planned.rewritten_parts)
    check_same(table, f"{local.uri}-out", where=where, types=TYPES)
    none = table.export_parquet(f"{local.uri}-none", where="n = -1")
    assert (none.files, none.rows, none.bytes) == (0, 0, 0)
    assert [p.name for p in Path(none.target).iterdir() if p.suffix != ".json"] == ["_SUCCESS"]
    with pytest.raises(UnknownColumn):
        table.export_parquet(f"{local.uri}-wrong", where="m = 1")
    assert not Path(f"{local.uri}-wrong").exists()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_table_is_exported_as_of_an_earlier_time(local: Any) -> None:
    table = make(local)
    then = table.snapshot().as_of_ms
    before = table.query("SELECT * FROM t").to_arrow()
    table.delete("n > 4")
    report = table.export_parquet(f"{local.uri}-out", as_of=then)
    assert (report.as_of_ms, report.rows) == (then, 20)
    exported = hive(table, report.target, TYPES)
    assert texts(exported, before.column_names) == texts(before, before.column_names)


def test_parts_with_a_wrong_path_are_rewritten(local: Any) -> None:
    """Readers take the value from the path, so parts with a wrong path are written again."""
    table = Table.create(local.uri, partition_by=["k"], sort_by=["n"])
    table.insert([{"k": k, "n": n} for n, k in enumerate(["a", "b", "x" * 80, None])])
    table.insert([{"k": "a", "n": 10, "_partition": "k=b"}, {"k": None, "n": 11, "_partition": "k=b"}])
    report = table.export_parquet(f"{local.uri}-out")
    assert (report.copied_parts, report.rewritten_parts, report.files, report.rows) == (3, 2, 6, 6)
    check_same(table, report.target)
    assert len(list(Path(report.target, "k=a").iterdir())) == 2


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parts_of_older_specs_are_exported(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"])
    table.insert([{"n": n} for n in (1, 2, 11, 12)])
    table.alter(partition_by=["n % 2 AS odd"])
    table.insert([{"n": 3, "late": "x"}])
    report = table.export_parquet(f"{local.uri}-out")
    assert (report.copied_parts, report.rewritten_parts, report.files, report.rows) == (1, 2, 5, 5)
    check_same(table, report.target)
    table.alter(partition_by=[])
    report = table.export_parquet(f"{local.uri}-flat")
    assert (report.copied_parts, report.rewritten_parts) == (3, 0)
    check_same(table, report.target, types="")
    assert all(p.is_file() for p in Path(report.target).iterdir())


def test_imported_files_of_one_name_are_both_exported(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"])
    for tens in (1, 2):
        path = Path(local.uri, "_data", f"tens={tens}")
        path.mkdir(parents=True)
        duckdb.sql(f"COPY (SELECT {tens}3 AS n) TO '{path}/same.parquet' (FORMAT parquet)")
    table.import_files(f"{local.uri}/_data")
    assert {p.key.rpartition("/")[2] for p in table.snapshot().parts} == {"same.parquet"}
    table.alter(partition_by=[])
    table.export_parquet(f"{local.uri}-out")  # both go to one folder
    check_same(table, f"{local.uri}-out")


# ------------------------------------------------------------------------------------------------ the target


def test_a_target_that_is_not_empty_or_overlaps_the_table_is_rejected(local: Any) -> None:
    table = make(local)
    (Path(local.uri).parent / "used").mkdir()
    (Path(local.uri).parent / "used" / "letter.txt").write_text("dear")
    used = f"{local.uri}/../used"
    for target, why in {
        f"{local.uri}/out": "inside the table",
        str(Path(local.uri).parent): "or contains it",
        used: "not empty",
    }.items():
        with pytest.raises(InvalidOption, match=why):
            table.export_parquet(target)
    with pytest.raises(InvalidOption, match=r"no export put there.*letter\.txt"):
        table.export_parquet(used, overwrite=True)
    other = Table.create(f"{local.uri}-other")
    with pytest.raises(InvalidOption, match="inside another table"):
        table.export_parquet(f"{other.uri}/_data/x")
    assert (Path(local.uri).parent / "used" / "letter.txt").read_text() == "dear"


@pytest.mark.sampled(cases=1)
def test_an_earlier_export_is_replaced_with_overwrite(place: Any) -> None:
    table = make(place)
    target = f"{place.uri}-out"
    table.export_parquet(target)
    with pytest.raises(InvalidOption, match="not empty"):
        table.export_parquet(target)
    table.drop_partitions(["day=2026-11-22/place=c%201%2F%25"])
    kept = [""] * len(table.snapshot().parts) + [""]
    for where in (None, "n < 5"):
        planned = table.export_parquet(target, where=where, overwrite=True, dry_run=True)
        report = table.export_parquet(target, where=where, overwrite=True)
        assert planned.replaced_files == report.replaced_files == len(kept)
        store = table.handle.store.sibling(table.handle.location.sibling("table-out"))
        kept = [i.key for i in store.list(store.location.keys.prefix) if i.key.endswith(".parquet")]
        assert len(kept) == report.files
    if place.kind != "memory":
        check_same(table, target, where="n < 5", types=TYPES)


def test_a_partition_column_that_rows_have_is_read_from_the_files(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["k"])
    table.insert([{"k": k, "n": n} for n, k in enumerate([1, 2, None])])
    target = f"{local.uri}-out"
    table.export_parquet(target)
    actual = pq.read_table(target, partitioning=None)
    assert texts(actual, ["k", "n"]) == texts(table.query("FROM t").to_arrow(), ["k", "n"])
    assert hive(table, target, "").num_rows == 3


def test_parquet_files_of_another_program_are_not_replaced(local: Any) -> None:
    table = make(local)
    target = Path(f"{local.uri}-out")
    target.mkdir()
    duckdb.sql(f"COPY (SELECT 1 AS n) TO '{target}/theirs.parquet' (FORMAT parquet)")
    with pytest.raises(InvalidOption, match=r"no '_export\.json'"):
        table.export_parquet(target, overwrite=True)
    assert [p.name for p in target.iterdir()] == ["theirs.parquet"]


@pytest.mark.long
@pytest.mark.parametrize("where", [None, "n % 2 = 0"])
def test_an_incomplete_export_is_marked_as_incomplete(where: str | None) -> None:
    clock = ManualClock()
    base = ClockedStore(clock)
    create_table(base, clock, partition_by=["n // 10 AS tens"]).insert([{"n": n} for n in range(20)])
    target = "memory://clocked/out"
    counting = FaultyStore(base)
    open_table(counting, clock).export_parquet(target, where=where)
    wanted = 2
    changing = [r.number for r in counting.requests if r.kind in ("create", "copy")]
    saved = {k: v for k, v in base.objects.items() if not k.startswith("out/")}
    # A crash before a change equals a crash after the previous change.
    for fault in (Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE, Fault.REPEAT):
        for number in changing:
            base.objects = dict(saved)
            store = FaultyStore(base)
            store.inject(fault, number=number)
            done = died = to_look = False
            try:
                open_table(store, clock).export_parquet(target, where=where)
                done = True
            except Crash:
                died = True
            except IceDBError as error:
                to_look = isinstance(error, OutcomeUnknownError)
            names = Counter(k.rpartition(".")[2] for k in base.objects if k.startswith("out/"))
            where_it_was = (fault, number, counting.requests[number - 1], names)
            # The outcome of all other requests is known.
            assert to_look == (not done and not died and number == changing[-1]), where_it_was
            if "out/_SUCCESS" in base.objects:
                assert names["parquet"] == wanted, where_it_was
                assert done or died, where_it_was
            else:
                assert not done, where_it_was
                if not died:  # the export deletes what it put, unless the export was complete
                    assert names["parquet"] == (wanted if number == changing[-1] else 0), where_it_was
            report = open_table(base, clock).export_parquet(target, where=where, overwrite=True)
            assert report.files == wanted, where_it_was


def test_a_concurrent_export_to_the_same_target_is_rejected(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock).insert([{"n": 1}])
    store = FaultyStore(clocked)
    act_before(store, lambda: clocked.create("out/_export.json", b"{}"), kind="create", key="out/_export.json")
    with pytest.raises(InvalidOption, match="under way"):
        open_table(store, clock).export_parquet("memory://clocked/out")
    assert [k for k in clocked.objects if k.startswith("out/")] == ["out/_export.json"]


def test_a_part_deleted_by_cleanup_fails_the_export(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    for n in range(3):
        table.insert([{"n": n}])
    store = FaultyStore(clocked)

    def replace_and_clean_up() -> None:
        table.merge()
        clock.advance(2 * HOUR_MS)
        table.cleanup()

    act_before(store, replace_and_clean_up, kind="copy", key="_data/")
    with pytest.raises(SnapshotExpired):
        open_table(store, clock).export_parquet("memory://clocked/out")
    assert [k for k in clocked.objects if k.startswith("out/")] == []


def test_an_export_records_its_table_and_time(local: Any) -> None:
    table = make(local)
    report = table.export_parquet(f"{local.uri}-out")
    record = json.loads(Path(report.target, "_export.json").read_text())
    assert record == {"table": table.uri, "as_of": report.as_of_ms, "id": record["id"]}
    assert Path(report.target, "_SUCCESS").read_bytes() == b""
