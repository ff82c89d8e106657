"""No table is created inside another or over a lost table, and nested prefixes are two tables, which are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from icedb import Table
from icedb.cli import app
from icedb.errors import CorruptLog, InvalidOption, InvalidURI, TableExists
from icedb.format.records import Marker
from icedb.format.timing import DAY_MS
from icedb.log import IceLogIO, Schema
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.transaction.append import append
from icedb.transaction.table_place import find_tables, foreign_roots, is_below, locations_above
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import created as create
from tests.support.tables.v3_api import client, program


@pytest.mark.parametrize("folder", ["_data", "_log", "_claims", "_delta_log", "metadata"])
def test_no_table_is_created_inside_a_folder_of_another(place: Place, folder: str) -> None:
    create(place).insert([{"n": 1}])
    for child in (place.below(folder), place.below(f"{folder}/a/child")):
        with pytest.raises(InvalidURI, match=f"belongs to the table '{place.uri}'"):
            create(child)
        with pytest.raises(InvalidURI, match="belongs to the table"):
            create(child, dry_run=True)


@pytest.mark.parametrize("folder", ["_data", "metadata"])
def test_a_reserved_name_where_no_table_is_above_is_allowed(place: Place, folder: str) -> None:
    table = create(place.below(f"{folder}/events"))
    table.insert([{"n": 1}])
    assert table.query("SELECT n FROM t").fetchall() == [(1,)]


def test_no_log_is_put_inside_a_folder_of_another_table(local: Place, tmp_path: Path) -> None:
    create(local).insert([{"n": 1}])
    for folder in ("_log", "_log/deeper", "_claims"):
        with pytest.raises(InvalidURI, match="belongs to the table"):
            Table.create(tmp_path / "other", log_uri=f"{local.uri}/{folder}")
    split = Table.create(tmp_path / "split", log_uri=tmp_path / "logs")
    split.insert([{"n": 1}])
    with pytest.raises(InvalidURI, match="belongs to the table"):
        Table.create(tmp_path / "third", log_uri=tmp_path / "logs" / "_log")
    assert Table.open(local.uri).verify().ok
    assert Table.open(split.uri).verify().ok


def test_no_check_of_one_of_two_nested_tables_names_the_other(place: Place) -> None:
    outer, inner = create(place, partition_by=["n % 2 AS p"]), create(place.below("daily"), partition_by=["n AS p"])
    for table in (outer, inner):
        table.insert([{"n": 1}, {"n": 2}])
    for table in (outer, inner):
        report = table.verify()
        assert (report.problems, report.foreign, report.orphans) == ((), (), ())
        assert table.delete_orphans().foreign == ()
        assert table.health().recommendations == ()


def test_a_nested_log_of_another_table_is_not_a_foreign_object(local: Place, tmp_path: Path) -> None:
    outer = create(local)
    outer.insert([{"n": 1}])
    Table.create(tmp_path / "other", log_uri=f"{local.uri}/logs").insert([{"n": 1}])
    assert outer.verify().problems == ()


def test_a_sweep_deletes_nothing_below_another_table_and_names_it(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    table.insert([{"n": 1}])
    child = clocked.location.keys.data_prefix + "child"
    theirs = [f"{child}/_table.json", f"{child}/_data/p=1/a.parquet", f"{child}/b.parquet"]
    for key in theirs:
        clocked.create(key, b"theirs")
    own = clocked.location.keys.part("p=1", "orphan")
    clocked.create(own, b"ours")
    clock.advance(3 * DAY_MS)
    report = table.delete_orphans()
    assert report.deleted_parts == (own,)
    assert set(report.foreign) == set(theirs)
    assert set(theirs) <= clocked.objects.keys()
    # Without its spec, its parts are still in a folder that is not a partition of the outer table.
    clocked.delete([theirs[0]])
    assert theirs[1] not in table.delete_orphans().deleted_parts


def test_roots_of_other_tables_are_recognized_by_spec_log_file_or_probe() -> None:
    own = parse_location("s3://b/lake/events").keys
    keys = [
        "lake/events/_table.json",
        "lake/events/_log/1795255200000_w.jsonl",
        "lake/events/daily/_table.json",
        "lake/events/v3/_log/1795255200000_w.jsonl",
        "lake/events/logs/_claims/probe.json",
        "lake/events/x/table.json",
    ]
    roots = foreign_roots(keys, own)
    assert roots == {"lake/events/daily/", "lake/events/v3/", "lake/events/logs/"}
    assert is_below("lake/events/daily/_data/a.parquet", roots)
    assert not is_below("lake/events/daily2/a", roots)


def test_an_address_without_a_reserved_segment_checks_nothing_above() -> None:
    assert list(locations_above(parse_location("s3://b/lake/events/daily_data"))) == []
    above = locations_above(parse_location("s3://b/_data/x/_log"))
    assert [a.uri for a in above] == ["s3://b", "s3://b/_data/x"]


# ------------------------------------------------------------------------------------------------ a lost spec


@pytest.mark.parametrize("left", ["_data", "_log", "_claims"])
def test_no_table_is_created_over_the_objects_of_a_lost_one(place: Place, left: str) -> None:
    table = create(place)
    table.insert([{"n": 1}])
    store, keys = table.handle.store, table.handle.keys
    prefixes = {"_data": keys.data_prefix, "_log": keys.log_prefix, "_claims": keys.claims_prefix}
    before = {i.key for i in store.list(prefixes[left])} - {keys.probe}
    store.delete([keys.spec, *(i.key for n, p in prefixes.items() if n != left for i in store.list(p))])
    assert before
    with pytest.raises(TableExists, match=r"_table\.json.* is missing"):
        create(place)
    assert {i.key for i in store.list(prefixes[left])} - {keys.probe} == before


def test_no_table_is_created_over_the_parts_of_one_whose_log_is_elsewhere(local: Place, tmp_path: Path) -> None:
    Table.create(local.uri, log_uri=tmp_path / "log").insert([{"n": 1}])
    Path(local.uri, "_table.json").unlink()
    with pytest.raises(CorruptLog, match="log_uri"):
        Table.open(local.uri)
    with pytest.raises(TableExists):
        Table.create(local.uri)
    with pytest.raises(TableExists):
        Table.create(local.uri, log_uri=tmp_path / "log2")
    assert len(open_store(parse_location(local.uri)).list("_data/")) == 1


def test_a_sweep_rejects_a_table_without_commits(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    key = clocked.location.keys.part("", "orphan")
    clocked.create(key, b"x")
    clock.advance(3 * DAY_MS)
    for dry_run in (True, False):
        with pytest.raises(CorruptLog, match="no commit"):
            table.delete_orphans(dry_run=dry_run)
    assert key in clocked.objects
    table.insert([{"n": 1}])
    assert table.delete_orphans().deleted_parts == (key,)


# ------------------------------------------------------------------------------------------------ other entry points


def test_a_log_cannot_have_the_address_of_a_table(local: Place, tmp_path: Path) -> None:
    create(local, fencing="none")  # no probe, no log file yet
    with pytest.raises(InvalidURI, match="is the address of another table"):
        Table.create(tmp_path / "other", log_uri=local.uri)
    split = Table.create(tmp_path / "split", log_uri=tmp_path / "log")
    with pytest.raises(InvalidURI, match="is the address of another table"):
        Table.create(tmp_path / "third", log_uri=split.uri)


def test_no_table_is_created_at_the_address_of_a_log(tmp_path: Path) -> None:
    split = Table.create(tmp_path / "split", log_uri=tmp_path / "log")
    with pytest.raises(TableExists, match=f"'{split.uri}' has its log there"):
        Table.create(tmp_path / "log")
    split.insert([{"n": 1}])
    assert Table.open(split.uri).query("SELECT n FROM t").fetchall() == [(1,)]


@pytest.mark.s3
def test_the_first_write_of_a_v3_program_checks_its_address(s3: Place) -> None:
    create(s3).insert([{"n": 1}])
    inner = s3.below("metadata/child")  # v3 clients cannot have the other names
    with pytest.raises(InvalidURI, match="belongs to the table"):
        program(inner).insert([{"n": 1, "p": 1}])
    with pytest.raises(InvalidURI, match="belongs to the table"):
        IceLogIO("host").append(client(inner), 1, Schema(), [])
    assert Table.open(s3.uri, storage_options=s3.storage_options).verify().ok


@pytest.mark.parametrize("log", ["beside", "elsewhere"])
def test_the_parts_of_a_nested_table_are_not_imported(local: Place, tmp_path: Path, log: str) -> None:
    outer, inner = create(local), local.below("daily")
    options = {} if log == "beside" else {"log_uri": tmp_path / "log"}
    Table.create(inner.uri, **options).insert([{"n": 1}])
    with pytest.raises(InvalidOption, match="parts of another table"):
        outer.import_files(f"{inner.uri}/_data")
    for source in (local.uri, f"{local.uri}/*"):
        with pytest.raises(InvalidOption, match="no files to import"):
            outer.import_files(source)


def test_cleanup_keeps_parts_of_another_table_that_its_log_names(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    keys = clocked.location.keys
    child = f"{keys.data_prefix}child"
    theirs, own = f"{child}/_data/a.parquet", keys.part("metadata", "b")
    clocked.create(f"{child}/_table.json", b"{}")
    for key in (theirs, own):
        clocked.create(key, b"x")
    markers = [Marker(key, 1, clock.now_ms(), rows=1) for key in (theirs, own)]
    append(table.handle, markers, {"n": "BIGINT"}, oldest_part_ms=clock.now_ms())
    clock.advance(DAY_MS)
    table.drop_partitions("true")
    clock.advance(DAY_MS)
    assert table.cleanup().deleted_parts == (own,)
    assert theirs in clocked.objects


def test_info_of_a_nested_table_counts_its_own_rows(local: Place) -> None:
    outer, inner = create(local), create(local.below("daily"))
    outer.insert([{"n": 1}])
    inner.insert([{"n": 1}, {"n": 2}])
    for table, rows in ((outer, 1), (inner, 2)):
        result = CliRunner().invoke(app, ["info", table.uri, "--json"])
        assert (result.exit_code, json.loads(result.stdout)["live_rows"]) == (0, rows)


# ------------------------------------------------------------------------------------------------ find


def test_tables_are_found_at_any_depth_without_following_links(tmp_path: Path) -> None:
    for name in ("b", "a/deep/er", "a/deep", "b/nested"):
        Table.create(tmp_path / "lake" / name).insert([{"n": 1}])
    (tmp_path / "lake" / "b" / "_table.json").unlink()  # as a table of v3
    Table.create(tmp_path / "lake" / ".hidden")
    (tmp_path / "lake" / "loop").symlink_to(tmp_path / "lake")
    (tmp_path / "lake" / "raw").mkdir()
    (tmp_path / "lake" / "raw" / "x.parquet").write_bytes(b"x")
    names = [Path(uri).relative_to(tmp_path / "lake").as_posix() for uri in find_tables(tmp_path / "lake")]
    assert names == ["a/deep", "a/deep/er", "b", "b/nested"]
    assert list(find_tables(tmp_path / "lake" / "b" / "nested")) == [str(tmp_path / "lake" / "b" / "nested")]
    assert list(find_tables(tmp_path / "nothing")) == []


@pytest.mark.s3
def test_tables_are_found_in_a_bucket(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.storage_options.items():
        monkeypatch.setenv(name, value)
    for name in ("b", "a/deep"):
        Table.create(f"{s3.uri}/{name}").insert([{"n": 1}])
    assert list(find_tables(s3.uri)) == [f"{s3.uri}/a/deep", f"{s3.uri}/b"]
    assert f"{s3.uri}/b" in list(find_tables(parse_location(s3.uri).root_uri))
