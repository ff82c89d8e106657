"""A table whose `_table.json` is lost opens read-only, and a repair restores it from the log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from icedb import Table
from icedb.cli import app
from icedb.errors import CorruptLog, InvalidOption, StoreUnavailable, TableExists, TableNotFound
from icedb.format.table_spec import TableSpec
from icedb.format.timing import DAY_MS, HOUR_MS
from icedb.icedb import IceDBv3
from icedb.operations.integrity.repair_spec import SpecRepairReport, repair_spec
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, create_table, open_table
from icedb.transaction.open_table import open_handle
from icedb.transaction.table_handle import Handle
from tests.support.object_stores.interruptions import act_before
from tests.support.object_stores.stores import Place
from tests.support.tables.v3_api import program

LOST = r"'[^']*_table\.json' is missing"

WRITES: dict[str, Callable[[Table], object]] = {
    "insert": lambda t: t.insert([{"n": 9}]),
    "insert once": lambda t: t.insert([{"n": 9}], txn=("a", 1)),
    "insert a column": lambda t: t.insert([{"n": 9, "other": 1}]),
    "overwrite": lambda t: t.overwrite([{"n": 9}]),
    "drop": lambda t: t.drop_partitions(["p=1"]),
    "delete": lambda t: t.delete("n = 1"),
    "rewrite": lambda t: t.rewrite_partition("p=1", "SELECT * FROM _rows"),
    "merge": lambda t: t.merge(),
    "merge log": lambda t: t.merge_log(),
    "alter": lambda t: t.alter(sort_by=[]),
    "repair": lambda t: t.repair_types(),
    "restore": lambda t: t.restore(t.snapshot().as_of_ms),
    "cleanup": lambda t: t.cleanup(),
    "sweep": lambda t: t.delete_orphans(),
    "pin": lambda t: t.pin("b"),
    "unpin": lambda t: t.unpin("a"),
    "export": lambda t: t.export_delta(),
    "import": lambda t: t.import_files(f"{t.uri}_files"),
    "create a view": lambda t: t.create_view("view", "SELECT n FROM _rows"),
    "drop a view": lambda t: t.drop_view("daily"),
}


def create(place: Place, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


def lose(table: Table) -> bytes:
    """Delete `_table.json`, and return its content."""
    store, key = table.handle.store, table.handle.keys.spec
    body = store.get(key).body
    store.delete([key])
    return body


def objects(store: ObjectStore) -> set[str]:
    return {i.key for i in store.list(store.location.keys.data_prefix.removesuffix("_data/"))}


def repair(store: ObjectStore, clock: ManualClock, **options: Any) -> SpecRepairReport:
    return repair_spec(Handle.of(store, TableSpec(), clock=clock), **options)


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(clocked, clock, partition_by=["n % 2 AS p"], sort_by=["n"])
    table.insert([{"n": 1}, {"n": 2}])
    table.insert([{"n": 3}])
    return table


# ------------------------------------------------------------------------------------------------ what the log says


def test_the_log_records_the_spec_through_maintenance(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    body = clocked.get(clocked.location.keys.spec).body
    for step in (table.merge, table.merge_log, table.cleanup):
        assert json.loads(bytes(table.handle.read(fresh=True).spec)) == json.loads(body), step
        clock.advance(2 * HOUR_MS)
        step()
    lose(table)
    repair(clocked, clock)
    assert clocked.get(clocked.location.keys.spec).body == body


@pytest.mark.sampled(days=3)
def test_reads_succeed_without_the_spec(place: Place) -> None:
    table = create(place, partition_by=["n % 2 AS p"], sort_by=["n"], schema={"later": "DATE"})
    table.insert([{"n": 1}, {"n": 2}])
    expected = table.query("SELECT n, p, later FROM t ORDER BY n").fetchall()
    lose(table)
    reading = Table.open(place.uri, storage_options=place.storage_options)
    assert reading.spec == table.spec
    assert reading.query("SELECT n, p, later FROM t ORDER BY n").fetchall() == expected
    assert [c.kind for c in reading.history()] == ["insert"]
    assert reading.snapshot(reading.snapshot().as_of_ms).rows == 2
    assert reading.health().live_parts == 2


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("verb", WRITES)
def test_every_write_is_refused_before_anything_is_written(local: Place, verb: str) -> None:
    table = create(local, partition_by=["n % 2 AS p"], sort_by=["n"])
    files = Table.create(f"{local.uri}_source", partition_by=["n % 2 AS p"])
    files.insert([{"n": 7}])
    files.export_parquet(f"{local.uri}_files")
    if verb == "drop a view":
        table.create_view("daily", "SELECT count(*) AS c FROM _rows")
    for n in range(3):
        table.insert([{"n": n}])
    table.pin("a")
    if verb == "sweep":
        orphan = Path(local.uri, table.handle.keys.part("p=1", "orphan"))
        orphan.write_bytes(b"x")
        os.utime(orphan, (0, 0))
    lose(table)
    before = objects(table.handle.store)
    with pytest.raises(CorruptLog, match=f"{LOST}.*repair-spec"):
        WRITES[verb](Table.open(local.uri))
    assert objects(table.handle.store) == before


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_v3_program_refuses_it_as_well(s3: Place) -> None:
    table = create(s3, path_columns={"p": "BIGINT"})
    table.insert([{"n": 1, "p": 1}])
    lose(table)
    with pytest.raises(CorruptLog, match=LOST):
        program(s3).insert([{"n": 2, "p": 1}])
    repaired = Table.repair_spec(s3.uri, storage_options=s3.storage_options)
    assert repaired.repaired
    program(s3).insert([{"n": 2, "p": 1}])


@pytest.mark.s3
def test_tables_of_v3_programs_stay_writable(s3: Place) -> None:
    ice: IceDBv3 = program(s3)
    ice.insert([{"n": 1, "p": 1}])
    table = Table.open(s3.uri, storage_options=s3.storage_options)
    assert table.handle.read().epoch > 0
    table.insert([{"n": 2, "p": 1, "column": 1}])
    assert table.verify().ok
    with pytest.raises(InvalidOption, match="IceDB v3 programs made this table"):
        Table.repair_spec(s3.uri, storage_options=s3.storage_options)


def test_verify_reports_a_lost_spec(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    assert table.verify().ok
    lose(table)
    for actor in (table, open_table(clocked, clock)):
        report = actor.verify()
        assert [(p.kind, p.severity, p.key) for p in report.problems] == [
            ("lost_spec", "error", clocked.location.keys.spec)
        ]


# ------------------------------------------------------------------------------------------------ the repair


def test_the_newest_spec_is_repaired(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.alter(sort_by=[], schema={"later": "DATE"})
    newest = table.spec
    lose(table)
    before = objects(clocked)
    dry = repair(clocked, clock, dry_run=True)
    assert (dry.repaired, dry.source, dry.revision, dry.dry_run) == (True, "log", 1, True)
    assert objects(clocked) == before
    report = repair(clocked, clock)
    assert (report.repaired, report.spec["columns"], report.live_parts) == (True, {"later": "DATE"}, 3)
    again = open_table(clocked, clock)
    assert again.spec == newest
    again.insert([{"n": 4}])
    again.alter(sort_by=["n"])
    assert again.spec.revision == 2
    assert again.verify().ok
    assert not repair(clocked, clock).repaired


def test_keys_that_this_version_does_not_know_survive(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    keys = clocked.location.keys
    body = json.loads(clocked.get(keys.spec).body) | {"later_version": [1]}
    clocked.delete([keys.spec, *(i.key for i in clocked.list(keys.log_prefix) + clocked.list(keys.claims_prefix))])
    clocked.create(keys.spec, json.dumps(body).encode())
    table = open_table(clocked, clock)
    table.insert([{"n": 1}])
    lose(table)
    repair(clocked, clock)
    assert json.loads(clocked.get(keys.spec).body) == body


def test_a_log_in_a_store_of_its_own(local: Place, tmp_path: Path) -> None:
    table = Table.create(local.uri, log_uri=tmp_path / "log", sort_by=["n"])
    table.insert([{"n": 1}])
    other = Table.create(tmp_path / "other", log_uri=tmp_path / "log2")
    other.insert([{"n": 1}])
    body = lose(table)
    with pytest.raises(CorruptLog, match="log_uri"):
        Table.open(local.uri)
    with pytest.raises(CorruptLog, match=f"parts are elsewhere, at '{local.uri}'"):
        Table.open(tmp_path / "log")
    with pytest.raises(CorruptLog, match="log of another table"):
        Table.repair_spec(local.uri, log_uri=tmp_path / "log2")
    with pytest.raises(CorruptLog, match="nothing of it is there"):
        Table.repair_spec(local.uri, log_uri=tmp_path / "log3")
    with pytest.raises(TableNotFound, match="give its log_uri"):
        Table.repair_spec(local.uri)
    with pytest.raises(InvalidOption, match="the table's own address"):
        Table.repair_spec(tmp_path / "log")
    assert Table.repair_spec(local.uri, log_uri=tmp_path / "log").repaired
    assert Path(local.uri, "_table.json").read_bytes() == body
    Table.open(local.uri).insert([{"n": 2}])


# ------------------------------------------------------------------------------------------------ without a record


def forget(table: Table) -> None:
    """Remove the spec from the log, as in a log of an older version."""
    store, keys = table.handle.store, table.handle.keys
    for info in store.list(keys.log_prefix):
        head, *rest = store.get(info.key).body.split(b"\n")
        header = json.loads(head)
        header.pop("spec", None)
        store.delete([info.key])
        store.create(info.key, b"\n".join([json.dumps(header).encode(), *rest]))


def test_a_log_without_a_record_needs_the_callers_spec(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    forget(table)
    body = lose(table)
    with pytest.raises(CorruptLog, match=LOST):
        open_table(clocked, clock).insert([{"n": 1}])
    assert open_table(clocked, clock).query("SELECT count(*) FROM t").fetchall() == [(3,)]
    before = objects(clocked)
    with pytest.raises(CorruptLog, match=r"does not record the spec.*--spec FILE"):
        repair(clocked, clock)
    for wrong, reason in (
        ({"partition_by": []}, r"the part '.*' has \['p'\]"),
        ({"partition_by": ["n % 2 AS q"]}, r"are \['q'\]"),
        ({"partition_by": ["n % 2 AS p"], "sort_by": ["m"]}, "no such column"),
        ({"partition_by": ["n % 2 AS p"], "log_uri": "s3://b/log"}, "log_uri"),
        ({"partition_by": 7}, "spec is invalid"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            repair(clocked, clock, spec=wrong)
    assert objects(clocked) == before
    report = repair(clocked, clock, spec=json.loads(body))
    assert (report.repaired, report.source) == (True, "caller")
    assert clocked.get(clocked.location.keys.spec).body == body
    table = open_table(clocked, clock)
    table.merge()
    assert json.loads(bytes(table.handle.read(fresh=True).spec)) == json.loads(body)


def test_a_spec_beside_the_record_is_refused(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    body = lose(table)
    with pytest.raises(InvalidOption, match="Leave it out"):
        repair(clocked, clock, spec=json.loads(body))


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("fault", list(Fault))
def test_a_failed_repair_is_repeated(table: Table, clocked: ClockedStore, clock: ManualClock, fault: Fault) -> None:
    body = lose(table)
    key = clocked.location.keys.spec
    faulty = FaultyStore(clocked)
    faulty.inject(fault, kind="create", key="_table.json")
    with suppress(Crash, StoreUnavailable):
        repair(faulty, clock)
    clock.advance(DAY_MS)
    repair(clocked, clock)
    assert clocked.get(key).body == body
    open_table(clocked, clock).insert([{"n": 4}])


def meanwhile(store: ClockedStore, action: Callable[[], object]) -> FaultyStore:
    """Return a store that calls `action` right before the spec is put."""
    faulty = FaultyStore(store)
    act_before(faulty, action, kind="create", key=store.location.keys.spec)
    return faulty


def test_two_repairs_at_once_make_one_object(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    body = lose(table)
    report = repair(meanwhile(clocked, lambda: repair(clocked, clock)), clock)
    assert report.repaired  # the same bytes
    assert clocked.get(clocked.location.keys.spec).body == body


def test_a_spec_that_reappears_stays(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.alter(sort_by=[])
    body, key = lose(table), clocked.location.keys.spec
    report = repair(meanwhile(clocked, lambda: clocked.create(key, body)), clock)
    assert (report.repaired, report.source) == (False, "stored")
    assert clocked.get(key).body == body
    again = open_table(clocked, clock)
    again.handle.read()
    assert again.spec.sort_by == ()  # the log has the newer one


def test_another_spec_that_appears_is_not_replaced(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    body, key = lose(table), clocked.location.keys.spec
    other = json.dumps(json.loads(body) | {"id": "another"}).encode()
    with pytest.raises(TableExists, match="another spec"):
        repair(meanwhile(clocked, lambda: clocked.create(key, other)), clock)
    assert clocked.get(key).body == other


def test_a_spec_that_cannot_be_read_is_not_replaced(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    lose(table)
    clocked.create(clocked.location.keys.spec, b"")
    with pytest.raises(CorruptLog, match="not a table's spec"):
        repair(clocked, clock)
    assert clocked.get(clocked.location.keys.spec).body == b""


def test_files_named_like_parts_are_not_imported_after_a_repair(local: Place) -> None:
    table = create(local)
    table.insert([{"n": 1}])
    part = Path(local.uri, table.snapshot().parts[0].key)
    given_up = part.with_name(f"{'a' * 32}.parquet")
    given_up.write_bytes(part.read_bytes())
    log_file = next(Path(local.uri, "_log").iterdir())
    assert open_handle(table.handle.store).read().times_ms  # committed before the repair
    lose(table)
    Table.repair_spec(local.uri)
    spec = Path(local.uri, "_table.json")
    late = log_file.stat().st_mtime + 600
    os.utime(spec, (late, late))
    assert Table.open(local.uri).import_files(f"{local.uri}/_data").registered == ()


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_repairs(local: Place, tmp_path: Path) -> None:
    table = create(local, sort_by=["n"])
    table.insert([{"n": 1}])
    body = lose(table)

    def icedb(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["repair-spec", local.uri, *arguments])

    dry = icedb("--dry-run", "--json")
    assert (dry.exit_code, json.loads(dry.stdout)["repaired"]) == (0, True)
    assert not Path(local.uri, "_table.json").exists()
    assert "sort_by: n" in icedb().stdout
    assert Path(local.uri, "_table.json").read_bytes() == body
    forget(table)
    lose(table)
    refused = icedb()
    assert (refused.exit_code, "--spec FILE" in refused.output) == (5, True)
    (tmp_path / "spec.json").write_text("[]")
    assert icedb("--spec", str(tmp_path / "spec.json")).exit_code == 2
    (tmp_path / "spec.json").write_bytes(body)
    assert json.loads(icedb("--spec", str(tmp_path / "spec.json"), "--json").stdout)["source"] == "caller"
