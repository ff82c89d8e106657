"""The verbs `upsert` and `update`: options, reports, dry runs, and messages in terms of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from tests.cli.test_commands import error_of, run, run_json


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "table", partition_by=["k"], storage_options={"fsync": "false"})
    table.insert([{"k": n % 2, "id": n, "v": 0} for n in range(4)])
    return table


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"k": 0, "id": 0, "v": 1, "op": "u"}\n{"k": 1, "id": 1, "op": "d"}\n{"k": 1, "id": 9, "v": 9}\n')
    return path


def rows(table: Table) -> list[Any]:
    return table.query("SELECT id, v FROM t ORDER BY ALL").fetchall()


def test_upsert_reports_what_became_of_the_rows(table: Table, lines: Path) -> None:
    flags = ["--on", "id", "--delete-where", "op = 'd'", "--txn", "cdc:7"]
    planned = run_json("upsert", table.uri, lines, *flags, "--dry-run")
    before = rows(table)
    done = run_json("upsert", table.uri, "--yes", lines, *flags)
    names = ("inserted_rows", "updated_rows", "unchanged_rows", "deleted_rows")
    assert [planned[n] for n in names] == [done[n] for n in names] == [1, 1, 0, 1]
    assert (planned["dry_run"], done["dry_run"]) == (True, False)
    assert before == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert rows(table) == [(0, 1), (2, 0), (3, 0), (9, 9)]
    assert run_json("upsert", table.uri, "--yes", lines, *flags)["commit"]["repeated"]


def test_upsert_takes_columns_and_an_order(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,k,v,at\n2,9,5,1\n2,9,6,2\n")
    assert (
        run_json("upsert", table.uri, "--yes", path, "--on", "id", "--column", "v", "--order-by", "at")["updated_rows"]
        == 1
    )
    assert table.query("SELECT k, v FROM t WHERE id = 2").fetchall() == [(0, 6)]
    assert run_json("upsert", table.uri, "--yes", path, "--on", "id", "--order-by", "at", "--when-matched", "skip")[
        "unchanged_rows"
    ] == 1  # fmt: skip


def test_upsert_prints_a_table_for_people(table: Table, lines: Path) -> None:
    printed = run("upsert", table.uri, "--yes", lines, "--on", "id").stdout
    assert "inserted rows" in printed
    assert "searched parts" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--on"),
        (["--on", "nosuch"], "on names 'nosuch'"),
        (["--on", "k"], "rows of the batch have the key k = 1"),
        (["--on", "id,k"], "--on k"),
        (["--on", "id", "--column", "v", "--when-matched", "skip"], "Leave out one"),
        (["--on", "id", "--delete-where", "nosuch = 1"], "nosuch"),
        (["--on", "id", "--on-conflict", "quarantine"], "quarantine"),
    ],
)
def test_a_wrong_upsert_changes_nothing(table: Table, lines: Path, flags: list[str], message: str) -> None:
    before = rows(table)
    assert message in error_of("upsert", table.uri, "--yes", lines, *flags)
    assert rows(table) == before


def test_update_sets_columns(table: Table) -> None:
    flags = ["--set", "v = v + id", "--set", "k=1", "--where", "id >= 2"]
    assert run_json("update", table.uri, *flags, "--dry-run")["updated_rows"] == 2
    assert rows(table)[3] == (3, 0)
    assert run_json("update", table.uri, "--yes", *flags)["updated_rows"] == 2
    assert table.query("SELECT id, k, v FROM t WHERE id >= 2 ORDER BY id").fetchall() == [(2, 1, 2), (3, 1, 3)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--where", "true"], "--set"),
        (["--set", "v = 1"], "--where"),
        (["--set", "v", "--where", "true"], "Write --set"),
        (["--set", "v = ", "--where", "true"], "Write --set"),
        (["--set", "v=1", "--set", "v=2", "--where", "true"], "twice"),
        (["--set", "nosuch=1", "--where", "true"], "nosuch"),
    ],
)
def test_a_wrong_update_changes_nothing(table: Table, flags: list[str], message: str) -> None:
    before = rows(table)
    assert message in error_of("update", table.uri, "--yes", *flags)
    assert rows(table) == before
