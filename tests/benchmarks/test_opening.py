"""The benchmark of opening, at a small size: each row has its ways, counts and goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.figures import OURS, Finding, Plan
from benchmarks.opening.made_logs import BATCHES, DAYS, FIRST_DAY, append_commit, make_commits, make_delta, make_table
from benchmarks.opening.open_process import PROGRAMS
from benchmarks.opening.opening_costs import measure
from icedb import Table


def measured(folder: Path, key: str, *, shrink: int = 10_000) -> Finding:
    (result,) = measure(Plan(rounds=1, latency_ms=1, shrink=shrink, only=frozenset({key})), folder, lambda _: None)
    assert result.key == key
    assert all(len(way.values) >= 1 and min(way.values) > 0 for way in result.ways)
    return result


def test_a_table_of_one_log_file_equals_its_commits(tmp_path: Path) -> None:
    make_table(tmp_path / "table", 2 * BATCHES)
    table = Table.open(tmp_path / "table")
    result = table.snapshot()
    assert (len(result.parts), result.log_files, result.rows) == (2 * BATCHES, 1, 2 * BATCHES)
    assert len({p.partition for p in result.parts}) == DAYS
    assert len(result.files("event = 'e0007'")) == 2
    of_a_day = result.files(f"day = DATE '{FIRST_DAY}'")
    assert {p.partition for p in of_a_day} == {f"day={FIRST_DAY}"}
    append_commit(table, 2 * BATCHES)
    assert len(table.snapshot().parts) == 2 * BATCHES + 1


def test_generated_commits_can_be_merged(tmp_path: Path) -> None:
    make_commits(str(tmp_path / "table"), {"fsync": "false"}, 30)
    table = Table.open(tmp_path / "table")
    result = table.snapshot()
    assert (len(result.parts), result.log_files) == (30, 30)
    table.merge_log()
    assert (table.snapshot().log_files, table.snapshot().id) == (1, result.id)


def test_the_delta_table_has_the_requested_number_of_files(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    make_delta(tmp_path / "delta", 50)
    table = deltalake.DeltaTable(tmp_path / "delta")
    assert len(set(table.file_uris())) == 50
    assert list((tmp_path / "delta" / "_delta_log").glob("*.checkpoint.parquet"))


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_measuring_child_leaves_the_table_unchanged(tmp_path: Path) -> None:
    make_table(tmp_path / "table", BATCHES)
    make_table(tmp_path / "small", 10)
    before = sorted((tmp_path / "table" / "_log").iterdir())
    result = PROGRAMS["open"](tmp_path / "table")
    assert result["parts"] == BATCHES
    assert {"open", "snapshot", "snapshot again", "snapshot after a commit", "held", "peak"} <= result.keys()
    assert PROGRAMS["prune"](tmp_path / "table").keys() == {
        "open",
        "snapshot",
        "files of a day",
        "files by statistics",
    }
    assert sorted((tmp_path / "table" / "_log").iterdir()) == before
    assert PROGRAMS["decode"](tmp_path / "table")["seconds"] > 0


@pytest.mark.slow(seconds=20)
def test_opening_a_large_table_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    result = measured(tmp_path, "open", shrink=1_000)
    assert {OURS, "decoding the lines alone"} <= {way.name for way in result.ways}
    assert [check.limit for check in result.checks] == [3, 200]
    assert 200 < result.counts["bytes a line"] < 260


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_opening_over_a_network_is_measured_and_counted(tmp_path: Path) -> None:
    result = measured(tmp_path, "store", shrink=500)
    assert [check.limit for check in result.checks] == [15, 1]
    assert result.counts["commits as they are: GET"] == 20 + 1  # the spec
    assert result.counts["commits as they are: LIST"] == 1
    assert result.counts["after merge_log: GET"] == 2


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_refresh_is_measured_and_one_listing(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    result = measured(tmp_path, "refresh", shrink=100)
    assert result.counts == {"LIST": 1}
    assert result.checks[0].met


@pytest.mark.slow(seconds=20)
def test_the_overhead_of_queries_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("duckdb_extension_tpch")
    result = measured(tmp_path, "overhead")
    assert [way.name for way in result.ways[:3]] == ["bare files", f"{OURS}, snapshot, 10 batches", OURS]
    assert len(result.checks) == 4 + 2


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_the_import_is_measured(tmp_path: Path) -> None:
    result = measured(tmp_path, "import")
    assert [way.name for way in result.ways] == [OURS, f"{OURS}, and what a table needs", "pyarrow", "duckdb"]
