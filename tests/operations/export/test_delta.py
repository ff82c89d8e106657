"""Exports to Delta: readers of Delta read the same rows from the same parts, also after later changes."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import DeltaReport, Replacing, Table
from icedb.errors import (
    CommitTimedOut,
    CorruptLog,
    IceDBError,
    InvalidOption,
    InvalidPartitionValue,
    InvalidRequestError,
    SnapshotExpired,
    UncoordinatedMaintenance,
    UnknownColumn,
    UnsupportedType,
)
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.export import delta
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, create_table, open_table
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.delta_reading import actions, by_delta, by_duckdb, check_same, files, texts
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
from tests.support.tables.numbered_rows import data_keys

REFUSED = {
    "time": "TIME '01:02:03'",
    "nanoseconds": "TIMESTAMP_NS '2026-11-21 03:04:05.000000001'",
    "uuid": "'00000000-0000-0000-0000-000000000001'::UUID",
    "ubigint": "18446744073709551615::UBIGINT",
    "nested": "[{'a': 1::UBIGINT}]",
    "map_of_times": "MAP {'k': TIME '01:02:03'}",
}


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["n // 10 AS tens"], sort_by=["n"])


# ------------------------------------------------------------------------------------------------ what is read


@pytest.mark.long
def test_each_type_is_read_unchanged(local: Any) -> None:
    table = Table.create(local.uri, sort_by=["bigint", "varchar", "timestamp", "timestamptz", "date", "float"])
    table.insert(rows_of({**TYPES, "json": """'{"a": 1}'::JSON"""}))
    parts = sorted(Path(local.uri, "_data").rglob("*"))
    report = table.export_delta()
    assert report == DeltaReport(local.uri, report.as_of_ms, 0, True, 1, 2, 1, 0, 0, True, report.kept_until_ms)
    check_same(table)
    assert sorted(Path(local.uri, "_data").rglob("*")) == parts  # nothing was copied
    # The SQL of deltalake, which types columns by the log; and Polars, which does not know Parquet's JSON.
    queried = pa.table(deltalake.QueryBuilder().register("t", by_delta(table)).execute("SELECT * FROM t"))
    assert texts(queried, list(TYPES)) == texts(table.query("SELECT * FROM t").to_arrow(), list(TYPES))
    table.export_delta(exclude_columns=["json"])
    columns = [c for c in TYPES if c not in ("map", "map_of_lists")]
    frame = pl.scan_delta(local.uri).select(columns).collect().to_arrow()
    assert texts(frame, columns) == texts(table.query("SELECT * FROM t").to_arrow(), columns)


def test_types_without_a_delta_type_are_named_and_can_be_excluded(local: Any) -> None:
    table = Table.create(local.uri)
    table.insert(rows_of({"n": "1", **REFUSED}))
    with pytest.raises(UnsupportedType) as refused:
        table.export_delta()
    assert all(f"'{name}'" in str(refused.value) for name in REFUSED)
    assert "exclude_columns" in str(refused.value)
    assert "'n'" not in str(refused.value)
    assert not Path(local.uri, "_delta_log").exists()
    assert table.pins() == []
    table.export_delta(exclude_columns=list(REFUSED))
    check_same(table, without=tuple(REFUSED))
    with pytest.raises(UnknownColumn, match="nme"):
        table.export_delta(exclude_columns=["nme"])
    with pytest.raises(InvalidOption, match="no column"):
        table.export_delta(exclude_columns=["n", *REFUSED])


@pytest.mark.sampled(cases=1, days=3)
def test_partition_columns_have_their_types_and_any_value(shared_place: Any) -> None:
    table = with_typed_partitions(shared_place, STRANGE)
    table.export_delta()
    check_same(table)
    [(city,)] = table.query("SELECT n FROM t WHERE city = 'a/b'").fetchall()
    selected = by_delta(table).to_pyarrow_table(filters=[("city", "=", "a/b")])
    assert selected.column("n").to_pylist() == [city]
    if shared_place.kind == "local":
        assert by_duckdb(table, where="city = 'a/b'").column("n").to_pylist() == [city]
    types = {f.name: str(f.type) for f in by_delta(table).schema().fields}
    for column, type_ in {"day": "date", "hour": "timestamp", "quarter": "decimal(4,2)"}.items():
        assert types[column] == f'PrimitiveType("{type_}")'


def test_an_empty_text_as_a_partition_value_is_rejected(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["lower(c) AS l"])
    table.insert([{"c": ""}, {"c": "x"}])
    with pytest.raises(InvalidPartitionValue, match=r"'l' \(VARCHAR\).*exclude_columns"):
        table.export_delta()
    assert not Path(local.uri, "_delta_log").exists()
    table.export_delta(exclude_columns=["l"])
    check_same(table, without=("l",))


def test_a_data_column_wins_over_a_partition_column_of_its_name(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["k"])
    table.insert([{"k": 1, "_partition": "k=7"}, {"k": 2, "_partition": "k=7"}])
    table.export_delta()
    assert by_delta(table).metadata().partition_columns == []
    check_same(table)


def test_an_empty_table_is_exported_and_one_without_columns_rejected(local: Any) -> None:
    table = Table.create(local.uri, schema={"n": "BIGINT"}, partition_by=["n % 2 AS odd"])
    assert table.export_delta().version == 0
    check_same(table)
    bare = Table.create(f"{local.uri}-bare")
    with pytest.raises(InvalidOption, match="no column"):
        bare.export_delta()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_an_empty_table_whose_partitions_come_from_a_column_that_is_not_declared(local: Any) -> None:
    table = Table.create(local.uri, schema={"n": "BIGINT"}, partition_by=["k"])
    assert table.query("FROM t").columns == ["n"]
    assert table.export_parquet(f"{local.uri}-out").files == 0
    assert table.export_delta().version == 0
    check_same(table)
    table.insert([{"n": 1, "k": "x"}])
    assert table.export_delta().columns_changed
    check_same(table)


@pytest.mark.long
def test_statistics_are_exact_or_missing(local: Any) -> None:
    sort_by = ["long", "text", "x", "whole", "at", "zoned", "day", "ok"]
    table = Table.create(local.uri, sort_by=sort_by, schema={"zoned": "TIMESTAMP WITH TIME ZONE"})
    first = {"long": "a" * 100, "text": "b", "x": 1.5, "whole": 1, "day": datetime(2026, 1, 1).date(), "ok": True}
    at = datetime(2026, 1, 2, 3, 4, 5, 678901)
    table.insert([{**first, "at": at}, {**first, "x": float("inf"), "at": at + timedelta(days=1)}])
    table.insert(duckdb.sql("SELECT 'nan'::DOUBLE AS x, TIMESTAMPTZ '2026-01-02 03:04:05+00' AS zoned"))
    table.insert(duckdb.sql("SELECT DATE '20000-01-01' AS day, TIMESTAMP 'infinity' AS at"))
    table.export_delta()
    check_same(table)
    added = pa.table(by_delta(table).get_add_actions(flatten=True)).to_pylist()
    [rows] = [r for r in added if r["num_records"] == 2]
    assert (rows["min.text"], rows["max.text"], rows["min.whole"], rows["null_count.whole"]) == ("b", "b", 1, 0)
    assert (rows["min.x"], rows["max.x"]) == (1.5, None)  # JSON has no infinity
    assert (rows.get("min.long"), rows.get("max.long"), rows["null_count.long"]) == (None, None, 0)
    assert rows["min.at"].replace(tzinfo=None) == at
    # Some engines compute these from the log alone.
    for column in ("long", "text", "x", "whole", "at", "day"):
        query = f"SELECT max(t.{column}) AS most, min(t.{column}) AS least, count(t.{column}) AS n FROM t"
        answer = pa.table(deltalake.QueryBuilder().register("t", by_delta(table)).execute(query))
        assert texts(answer, answer.column_names) == texts(table.query(query).to_arrow(), answer.column_names), column
    assert by_delta(table).count() == 4


# ------------------------------------------------------------------------------------------------ as a table goes on


@pytest.mark.long
def test_every_change_of_a_table_is_exported(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"], sort_by=["n"])
    fill(table, 0, 10, 20)
    table.export_delta()
    earlier = table.query("SELECT * FROM t").to_arrow()
    for step, change in STEPS.items():
        if step == "alter":  # parts that are there have one value of it each: no row needs to be written again
            table.overwrite([{"n": n} for n in (2, 4)])
        change(table)
        planned = table.export_delta(dry_run=True)
        report = table.export_delta()
        assert (planned.added_parts, planned.removed_parts) == (report.added_parts, report.removed_parts), step
        assert report.published, step
        check_same(table)
        assert not table.export_delta().published, step
    assert table.verify(deep=True).problems == ()
    # Of earlier versions too, as long as their parts are there.
    for of_version in (by_delta(table, 0).to_pyarrow_table(), by_duckdb(table, 0)):
        assert texts(of_version, ["n"]) == texts(earlier, ["n"])


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_only_a_merge_is_exported_without_a_change_of_data(table: Table, clocked: ClockedStore) -> None:
    def changes(version: int) -> dict[str, set[bool]]:
        flags: dict[str, set[bool]] = {}
        for action in actions(clocked, version):
            for kind in action.keys() & {"add", "remove"}:
                flags.setdefault(kind, set()).add(action[kind]["dataChange"])
        return flags

    def exported(change: Callable[[], object]) -> dict[str, set[bool]]:
        change()
        version = table.export_delta().version
        assert version is not None
        assert files(clocked) == live(table)
        return changes(version)

    fill(table, 1, 11)
    fill(table, 2, 12)
    assert exported(lambda: None) == {"add": {True}}
    assert exported(table.merge) == {"add": {False}, "remove": {False}}
    assert table.export_delta(dry_run=True).rearranged_parts == 0

    def merged_twice() -> None:
        for n in (3, 4):
            fill(table, n)
            if n == 3:
                table.export_delta()
            table.merge()

    assert exported(merged_twice) == {"add": {True}, "remove": {True}}  # 4 was never exported by itself

    def as_many_others() -> None:
        table.delete("n = 4")
        fill(table, 9)
        table.merge()

    assert exported(as_many_others) == {"add": {True}, "remove": {True}}
    fill(table, 5)
    table.export_delta()

    def merge_and_insert() -> None:
        table.merge()
        fill(table, 21)

    assert exported(merge_and_insert) == {"add": {False, True}, "remove": {False}}
    assert exported(lambda: table.delete("n = 5")) == {"add": {True}, "remove": {True}}
    assert exported(lambda: table.drop_partitions(["tens=2"])) == {"remove": {True}}
    before = table.handle.read().newest_ms
    assert table.query("SELECT count(*) FROM t WHERE tens = 1").fetchone() == (2,)
    both = {"add": {True}, "remove": {True}}
    assert exported(lambda: table.overwrite([{"n": 16}, {"n": 17}], partitions=["tens=1"])) == both
    # As many rows in the same partition, moved there by the restore: and other rows.
    assert exported(lambda: table.restore(before)) == {"add": {True}, "remove": {True}}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_merges_that_make_one_row_of_several_change_the_data(local: Any) -> None:
    table = Table.create(local.uri, merging=Replacing(by=("id",), version="at"))
    for at in (1, 2):
        table.insert([{"id": 1, "at": at}])
    table.export_delta()
    check_same(table)  # all rows that are stored, as `t` has them
    table.merge()
    assert table.export_delta().rearranged_parts == 0
    check_same(table)
    own = Table.create(f"{local.uri}-own", merge_query="SELECT n + 1 AS n FROM source_files")
    fill(own, 1)
    fill(own, 2)
    own.export_delta()
    own.merge()
    report = own.export_delta()
    assert (report.added_parts, report.rearranged_parts) == (1, 0)
    check_same(own)


@pytest.mark.long
def test_older_parts_are_exported_with_the_altered_partitioning(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"])
    fill(table, 1, 3, 12, 14)
    table.export_delta()
    table.alter(partition_by=["n % 2 AS odd"])
    fill(table, 5, 6)
    report = table.export_delta()  # the rows of a part have one value, as it happens: it need not be in the path
    assert (report.added_parts, report.removed_parts, report.rearranged_parts) == (4, 0, 2)
    assert by_delta(table).metadata().partition_columns == ["odd"]
    check_same(table)
    table.alter(partition_by=["n % 3 AS third"])
    with pytest.raises(InvalidPartitionValue, match=r"\['third'\].*exclude_columns"):
        table.export_delta()
    before = by_delta(table).version()
    assert table.export_delta(exclude_columns=["third"]).version == before + 1
    check_same(table, without=("third",))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(st.lists(st.sampled_from([*STEPS, "export", "export"]), max_size=8))
@settings(max_examples=6)
def test_exports_match_after_random_changes(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    folder = tmp_path_factory.mktemp("history")
    table = Table.create(folder / "t", partition_by=["n // 10 AS tens"], sort_by=["n"], storage_options={"fsync": "0"})
    fill(table, 0, 10, 20)
    table.export_delta()
    for step in [*steps, "export"]:
        # Older parts have odd and even numbers.
        without = ("odd",) if table.spec.partition_by == ("n % 2 AS odd",) else ()
        if step == "export":
            table.export_delta(exclude_columns=without)
            assert files(table.handle.store) == live(table)
        else:
            with contextlib.suppress(InvalidRequestError):  # a partition without rows
                STEPS[step](table)
    check_same(table, without=without)
    shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------------ where it lies


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_v3_table_is_exported(local: Any) -> None:
    """Such tables have neither row counts nor statistics, and no spec."""
    table = Table.create(local.uri, partition_by=["n // 2 AS half"])
    fill(table, 0, 1, 2)
    Path(local.uri, "_table.json").unlink()
    shutil.rmtree(Path(local.uri, "_claims"))
    [log] = Path(local.uri, "_log").iterdir()
    header, schema, *markers = map(json.loads, log.read_text().split("\n"))
    lines = [{k: header[k] for k in "vt"} | {"sch": 1, "f": 2}, schema, *({k: m[k] for k in "pbt"} for m in markers)]
    log.with_name(f"{header['t']}_host.jsonl").write_text("\n".join(map(json.dumps, lines)))
    log.unlink()
    table = Table.open(local.uri)
    assert table.export_delta().rows is None
    check_same(table)
    table.insert([{"n": 3, "half": 1}])
    assert table.export_delta().added_parts == 1
    check_same(table)


def test_a_table_with_a_separate_log_is_exported(local: Any) -> None:
    table = Table.create(local.uri, log_uri=f"{local.uri}-log")
    fill(table, 1)
    table.export_delta()
    assert Path(local.uri, "_delta_log", f"{0:020d}.json").exists()
    check_same(table)
    assert table.verify().problems == ()


@pytest.mark.sampled(cases=1, days=3)
def test_checkpoints_match_the_versions(shared_place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "VERSIONS_PER_CHECKPOINT", 4)
    table = Table.create(
        shared_place.uri, partition_by=["c || '' AS city"], storage_options=shared_place.storage_options
    )
    for n in range(5):
        table.insert([{"n": 3 * n + k, "c": c} for k, c in enumerate(STRANGE[3 * n : 3 * n + 3])])
        table.export_delta()
    store, prefix = table.handle.store, table.handle.keys.delta_prefix
    names = [i.key.removeprefix(prefix) for i in store.list(prefix)]
    assert [n for n in names if n.endswith(".parquet")] == [f"{3:020d}.checkpoint.parquet"]
    store.delete([f"{prefix}{n:020d}.json" for n in range(3)])
    check_same(table)
    table.merge()
    table.drop_partitions(["city=New%20York"])
    assert table.export_delta().version == 5
    check_same(table)
    assert table.verify().problems == ()
    with pytest.raises(InvalidOption, match="no files to import"):
        Table.create_from_files(
            f"{shared_place.uri}-other", shared_place.uri, storage_options=shared_place.storage_options
        )


@pytest.mark.long
def test_versions_are_deleted_when_a_checkpoint_is_old_enough(
    table: Table, clocked: ClockedStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "VERSIONS_PER_CHECKPOINT", 3)
    prefix = table.handle.keys.delta_prefix
    clocked.create(f"{prefix}_last_checkpoint", b'{"version": 1}')  # a program of Delta put it
    for n in range(7):
        fill(table, n)
        table.export_delta()
        clock.advance(2 * DAY_MS)
    names = [i.key.removeprefix(prefix) for i in clocked.list(prefix)]
    # That of version 2 was 8 days old at the last export, that of version 5 not.
    assert names[:2] == [f"{2:020d}.checkpoint.parquet", f"{2:020d}.json"]
    assert names[-1] == f"{6:020d}.json"  # and no `_last_checkpoint` that names what is gone
    assert [n for n in names if n.endswith("parquet")] == [f"{v:020d}.checkpoint.parquet" for v in (2, 5)]
    fill(table, 99)
    assert table.export_delta().added_parts == 1
    clocked.delete([f"{prefix}{6:020d}.json"])
    with pytest.raises(CorruptLog, match=f"{6:020d}.json"):
        table.export_delta()


# ------------------------------------------------------------------------------------------------ whose it is


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_programs_of_delta_read_and_do_not_write(local: Any) -> None:
    table = Table.create(local.uri)
    fill(table, 1)
    table.export_delta()
    fill(table, 2)
    table.export_delta()
    with pytest.raises(deltalake.exceptions.DeltaError, match="icedbExport"):
        deltalake.write_deltalake(local.uri, pa.table({"n": [2]}), mode="append")
    with pytest.raises(deltalake.exceptions.DeltaError, match="icedbExport"):
        by_delta(table).optimize.compact()
    table.merge()
    table.export_delta()
    parts = sorted(Path(local.uri, "_data").iterdir())
    assert by_delta(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False) == []
    assert sorted(Path(local.uri, "_data").iterdir()) == parts
    by_delta(table).create_checkpoint()  # theirs is as good as ours
    assert table.export_delta().published is False
    fill(table, 3)
    assert table.export_delta().added_parts == 1
    check_same(table)


def test_a_delta_log_of_another_program_is_rejected(local: Any) -> None:
    table = Table.create(local.uri)
    fill(table, 1)
    deltalake.write_deltalake(local.uri, pa.table({"n": [2]}))
    with pytest.raises(UncoordinatedMaintenance, match="not written by an export of this table"):
        table.export_delta()
    assert table.pins() == []
    shutil.rmtree(Path(local.uri, "_delta_log"))
    other = Table.create(f"{local.uri}-other")
    fill(other, 1)
    other.export_delta()
    shutil.copytree(Path(other.uri, "_delta_log"), Path(local.uri, "_delta_log"))
    with pytest.raises(UncoordinatedMaintenance, match="not written by an export of this table"):
        table.export_delta()


def test_a_checkpoint_without_versions_is_rejected(local: Any) -> None:
    """Readers would begin with it, and read files of another program."""
    table = Table.create(local.uri)
    fill(table, 1)
    Path(local.uri, "_delta_log").mkdir()
    Path(local.uri, "_delta_log", f"{7:020d}.checkpoint.parquet").write_bytes(b"theirs")
    with pytest.raises(CorruptLog, match="its author cannot be read"):
        table.export_delta()
    assert [p.name for p in Path(local.uri, "_delta_log").iterdir()] == [f"{7:020d}.checkpoint.parquet"]


# ------------------------------------------------------------------------------------------------ what is kept


def test_parts_of_an_export_are_kept_until_the_next(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1, 2)
    fill(table, 3, 4)
    report = table.export_delta()
    assert report.kept_until_ms == clock.now_ms() + 7 * DAY_MS
    kept = files(clocked)
    table.merge()
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        table.cleanup()
    assert kept <= data_keys(clocked)
    clock.advance(1)
    table.export_delta()
    # A reader of the previous version continues for the grace period.
    table.cleanup()
    assert len(exports(table)) == 2
    assert kept <= data_keys(clocked)
    clock.advance(HOUR_MS + MINUTE_MS)
    assert table.export_delta().published is False
    assert len(exports(table)) == 1
    clock.advance(HOUR_MS)
    table.cleanup()
    assert data_keys(clocked) == files(clocked) == live(table)


def test_an_export_without_changes_extends_its_pin(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    table.export_delta(keep=timedelta(days=1))
    clock.advance(20 * HOUR_MS)
    report = table.export_delta(keep=timedelta(days=1))
    assert (report.published, report.version) == (False, 0)
    assert report.kept_until_ms == clock.now_ms() + DAY_MS
    assert len(exports(table)) == 1
    assert table.export_delta(keep=None).kept_until_ms is None
    assert [p.expires_ms for p in table.pins()] == [None]
    with pytest.raises(InvalidOption, match="keep"):
        table.export_delta(keep=timedelta(0))


def test_an_earlier_time_can_be_exported(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    clock.advance(MINUTE_MS)
    then = table.snapshot()
    clock.advance(MINUTE_MS)
    fill(table, 2)
    table.merge()
    table.export_delta()
    assert table.export_delta(as_of=then.as_of_ms).version == 1
    assert files(clocked) == {p.key for p in then.parts}
    clock.advance(3 * HOUR_MS)
    table.unpin(exports(table)[-1])
    table.cleanup()
    with pytest.raises(SnapshotExpired):
        table.export_delta(as_of=then.as_of_ms)


def test_parts_from_a_clock_far_ahead_are_exported(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    fill(table, 1)
    ahead = open_table(clocked, clock.skewed(24 * HOUR_MS), fencing="none")
    fill(ahead, 2)
    table.export_delta()
    assert files(clocked) == live(table)
    assert len(files(clocked)) == 2


# ------------------------------------------------------------------------------------------------ two, and none


def test_the_second_of_two_exports_plans_again(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    fill(table, 1)
    table.export_delta()
    fill(table, 2)
    store = FaultyStore(clocked)
    other = open_table(store, clock)

    def meanwhile() -> None:
        fill(table, 3)
        table.export_delta()
        fill(table, 4)

    act_before(store, meanwhile, kind="create", key="_delta_log")
    assert other.export_delta().version == 2
    assert files(clocked) == live(table)
    added = [a["add"]["path"] for a in actions(clocked) if "add" in a]
    assert len(added) == len(set(added)) == 4
    # Each version has one pin. That of the lost attempt for version 1 is deleted.
    assert [name.split("-")[2] for name in exports(table)] == ["0", "1", "2"]


def test_a_planned_export_never_replaces_a_newer_one(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    fill(table, 1)
    table.export_delta()
    store = FaultyStore(clocked)
    other = open_table(store, clock)

    def meanwhile() -> None:
        fill(table, 2)
        table.export_delta()

    for interrupt in (act_before, act_after):
        interrupt(store, meanwhile, kind="list")
        other.export_delta()
        assert files(clocked) == live(table), interrupt


def test_two_exports_without_changes_keep_one_pin(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    fill(table, 1)
    table.export_delta()
    store = FaultyStore(clocked)
    other = open_table(store, clock)

    def meanwhile() -> None:
        clock.advance(1)
        table.export_delta()

    act_before(store, meanwhile, kind="list", key=table.handle.keys.claims_prefix)
    clock.advance(1)
    other.export_delta()  # its listing of pins to remove contains the pin of the later export
    assert len(exports(table)) == 1
    assert table.pins()[0].created_ms == clock.now_ms()


def test_a_drop_by_a_slow_clock_keeps_exported_parts(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    fill(table, 1, 11)
    clock.advance(HOUR_MS)
    store = FaultyStore(clocked)
    slow = open_table(clocked, clock.skewed(-MINUTE_MS // 2))
    act_before(store, lambda: slow.drop_partitions(["tens=0"]), kind="create", key="pin-")
    open_table(store, clock).export_delta()
    assert len(files(clocked)) == 2
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    assert files(clocked) <= data_keys(clocked)


def test_an_export_that_paused_is_not_published(clocked: ClockedStore, clock: ManualClock, table: Table) -> None:
    fill(table, 1)
    store = FaultyStore(clocked)
    act_after(store, lambda: clock.advance(2 * MINUTE_MS), kind="create", key="pin-")
    with pytest.raises(CommitTimedOut):
        open_table(store, clock).export_delta(keep=timedelta(minutes=1))
    assert actions(clocked) == []


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_an_export_that_crashes_anywhere_loses_no_exported_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "VERSIONS_PER_CHECKPOINT", 3)
    clock = ManualClock()
    base = ClockedStore(clock)
    table = create_table(base, clock, partition_by=["n // 10 AS tens"])
    for n in range(2):
        fill(table, n)
        table.export_delta()
        clock.advance(2 * HOUR_MS)
    fill(table, 10)
    table.merge()
    saved = SavedState(base, clock)
    counting = FaultyStore(base)
    open_table(counting, clock).export_delta()  # version 2, with a checkpoint
    assert [r for r in counting.requests if "checkpoint" in r.keys[0]]
    # A crash during reads, or before a change, equals a crash after the previous change.
    numbers = [r.number for r in counting.requests if r.kind in ("create", "delete")]
    for fault in (Fault.CRASH_AFTER, Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT):
        for number in numbers:
            saved.restore()
            store = FaultyStore(base)
            store.inject(fault, number=number)
            with contextlib.suppress(Crash, IceDBError):
                open_table(store, clock).export_delta()
            where = (fault, number, counting.requests[number - 1])
            _forget_all(base, clock)
            assert files(base) <= data_keys(base), where
            again = open_table(base, clock)
            again.export_delta()
            assert files(base) == live(again), where
            clock.advance(3 * HOUR_MS)
            again.export_delta()
            assert len(exports(again)) == 1, where
            assert again.verify(footers=False).ok, where


def _forget_all(store: ClockedStore, clock: ManualClock) -> None:
    """Supersede all parts, and clean up after the grace period."""
    table = open_table(store, clock)
    clock.advance(MINUTE_MS)
    table.overwrite([{"n": 77}])
    clock.advance(2 * HOUR_MS)
    table.cleanup()
