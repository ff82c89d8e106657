"""docs/example-table matches its page, for the library and for a reader made from the format page alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from icedb import Table
from icedb.errors import SnapshotExpired
from icedb.transaction.pin_objects import read_pins
from icedb.writer.encoding.parquet_encoder import file_digest
from tests.support.make_example_table import FOLDER, ExampleTable, answer, expected, put, readme
from tests.support.site.page_reader import PageReading, read_as_the_page_says

EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
OBJECTS = {p.relative_to(FOLDER / "table").as_posix(): p.read_bytes() for p in (FOLDER / "table").rglob("*.*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy with the store's times."""
    put(tmp_path / "table", OBJECTS, EXPECTED["stored_ms"])
    return tmp_path / "table"


def reading() -> PageReading:
    return read_as_the_page_says(OBJECTS, "", stored_ms=EXPECTED["stored_ms"])


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_objects_equal_those_of_the_script() -> None:
    story = ExampleTable()
    story.tell()
    assert OBJECTS.keys() == story.store.objects.keys() == EXPECTED["stored_ms"].keys()
    for key, body in OBJECTS.items():
        if not key.startswith("_data/"):
            assert without_contents(body) == without_contents(story.store.objects[key].body), key
    assert without_contents(expected(story)) == without_contents(EXPECTED)


def without_contents(value: object) -> str:
    """Remove sizes and digests of parts, which depend on DuckDB's version."""
    text = value.decode() if isinstance(value, bytes) else json.dumps(value)
    text = re.sub(r'(\\?"(?:b|bytes)\\?": ?)\d+', r"\1 0", text)
    return re.sub(r'(\\?"(?:h|digest)\\?": ?)\\?"\w+', r"\1", text)


def test_the_page_equals_expected_json() -> None:
    assert (FOLDER / "README.md").read_text() == readme(EXPECTED)


def test_the_example_table_is_small() -> None:
    assert sum(map(len, OBJECTS.values())) < 20_000


def test_the_library_reads_the_example_table_and_writes_nothing(folder: Path) -> None:
    before = contents(folder)
    table = Table.open(folder)
    state = table.handle.read(everything=True)
    assert (state.epoch, sorted(state.live_epochs)) == (EXPECTED["epoch"], EXPECTED["live_epochs"])
    assert (state.horizon_ms, dict(state.schema)) == (EXPECTED["horizon_ms"], EXPECTED["schema"])
    assert sorted(state.files) == EXPECTED["log_files"]
    assert sorted(state.ignored & state.files.keys()) == EXPECTED["ignored_log_files"]
    assert {a: n for a, (n, _) in state.txn.items()} == EXPECTED["txn"]
    assert {p.name: p.as_of_ms for p in read_pins(table.handle) if not p.expired(0)} == EXPECTED["pins"]
    assert [p.key for p in table.snapshot().parts] == [p["key"] for p in EXPECTED["live_parts"]]
    assert answer(table, None) == EXPECTED["rows"]
    for snapshot in EXPECTED["snapshots"]:
        if "expired" in snapshot:
            with pytest.raises(SnapshotExpired):
                table.snapshot(snapshot["as_of_ms"])
        else:
            taken = table.snapshot(snapshot["as_of_ms"])
            assert [p.key for p in taken.parts] == snapshot["live_parts"]
            assert len(taken.to_arrow()) == taken.rows == snapshot["rows"]
            assert list(taken.schema) == snapshot["columns"]
            assert taken.partition_schema == snapshot["partition_columns"]
    assert contents(folder) == before


def test_verify_reports_only_the_orphan(folder: Path) -> None:
    report = Table.open(folder).verify(deep=True)
    assert report.ok
    assert list(report.orphans) == EXPECTED["orphans"]
    assert report.unchecked_parts == 0


def test_a_reader_made_from_the_format_page_alone_agrees() -> None:
    read = reading()
    assert (read.epoch, read.horizon, read.schema) == (EXPECTED["epoch"], EXPECTED["horizon_ms"], EXPECTED["schema"])
    assert (read.log_files, read.txn, read.spec) == (EXPECTED["log_files"], EXPECTED["txn"], EXPECTED["spec"])
    assert sorted(read.ignored & set(read.log_files)) == EXPECTED["ignored_log_files"]
    assert read.pinned == set(EXPECTED["pins"].values())
    assert sorted(read.live()) == [p["key"] for p in EXPECTED["live_parts"]]
    for snapshot in EXPECTED["snapshots"]:
        if "expired" in snapshot:
            with pytest.raises(LookupError):
                read.live(snapshot["as_of_ms"])
        else:
            assert sorted(read.live(snapshot["as_of_ms"])) == snapshot["live_parts"]
            assert read.columns(snapshot["as_of_ms"]) == set(snapshot["columns"])
            assert read.partition_by(snapshot["as_of_ms"]) == snapshot["partition_by"]


def test_partitioning_and_declared_columns_changed() -> None:
    [earlier] = EXPECTED["spec"]["earlier"]
    assert EXPECTED["spec"]["declared_ms"] == {"note": earlier["until"]}
    taken = [s for s in EXPECTED["snapshots"] if "columns" in s]
    altered = [s["as_of_ms"] >= earlier["until"] for s in taken]
    assert {True, False} == set(altered)
    assert [list(s["partition_columns"]) for s in taken] == [["d", "half"] if a else ["d"] for a in altered]
    assert ["note" in s["columns"] for s in taken] == altered


def test_the_parts_match_their_markers(folder: Path) -> None:
    for part in EXPECTED["live_parts"]:
        path = folder / part["key"]
        rows = duckdb.sql(f"SELECT * FROM read_parquet('{path}', hive_partitioning = false)").fetchall()
        assert (len(rows), path.stat().st_size, file_digest(path)) == (part["rows"], part["bytes"], part["digest"])


def test_a_copy_without_store_times_loses_its_pin(folder: Path) -> None:
    copy = shutil.copytree(folder, folder.parent / "copy", copy_function=shutil.copyfile)
    with pytest.raises(SnapshotExpired):
        Table.open(copy).snapshot(EXPECTED["pins"]["audit"])


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}
