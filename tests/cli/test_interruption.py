"""Ctrl-C: the message states whether the table may have changed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from icedb import Table
from icedb.sql import connection_pool
from icedb.storage.obstore_store import LocalFolder
from tests.cli.test_commands import run


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"k": 0, "n": 10}\n')
    return path


def press(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[str], bool], *, after: bool) -> None:
    """Send SIGINT to this process before or after the request `name` of a key."""
    request = getattr(LocalFolder, name)

    def pressed(self: LocalFolder, keys: Any, *more: Any, **options: Any) -> Any:
        is_due = when(keys if isinstance(keys, str) else " ".join(keys))
        if is_due and not after:
            signal.raise_signal(signal.SIGINT)
        result = request(self, keys, *more, **options)
        if is_due and after:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(LocalFolder, name, pressed)


NOTHING = "Interrupted. Nothing was committed.\n"


@pytest.mark.parametrize("after", [False, True])
def test_before_the_commit_nothing_is_committed(
    table: Table, lines: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    press(monkeypatch, "create", lambda key: "_data/" in key, after=after)
    for words in (["insert", table.uri, lines], ["update", table.uri, "--set", "n=5", "--where", "true", "--yes"]):
        assert run(*words, status=130).stderr == NOTHING
    assert len(table.history()) == 1


@pytest.mark.parametrize("part", ["_log/", "_claims/"])
def test_from_the_commit_on_the_outcome_is_unknown(
    table: Table, lines: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    press(monkeypatch, "create", lambda key: part in key and "probe" not in key, after=True)
    words = ["drop", table.uri, "k=0", "--yes"] if part == "_claims/" else ["insert", table.uri, lines]
    message = run(*words, status=130).stderr
    assert message.startswith("Interrupted during or after a commit, which may have succeeded.")
    assert message.endswith(f"icedb history {table.uri}\n")
    assert len(table.history()) == (1 if part == "_claims/" else 2)


def test_a_cleanup_may_have_deleted_some_objects(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.insert([{"k": 0, "n": 1}])
    table.merge()
    words = ["cleanup", table.uri, "--grace", "0s", "--allow-short-grace", "--yes"]
    press(monkeypatch, "list", lambda key: True, after=False)
    assert run(*words, status=130).stderr == "Interrupted. Nothing was deleted.\n"
    monkeypatch.undo()
    press(monkeypatch, "delete", lambda keys: True, after=True)
    assert "Some objects may have been deleted" in run(*words, status=130).stderr


def test_an_error_of_duckdb_after_the_signal_is_no_bug(
    table: Table, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interruption:
            raise RuntimeError("Query interrupted") from interruption

    monkeypatch.setattr("icedb.table.Table.query", interrupted)
    assert run("query", table.uri, "FROM t", status=130).stderr == "Interrupted.\n"


def test_a_signal_that_a_library_ignores_stops_the_verb_before_its_commit(
    table: Table, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, usual = duckdb.connect, signal.getsignal(signal.SIGINT)

    def ignoring(*arguments: Any, **options: Any) -> Any:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return connect(*arguments, **options)

    monkeypatch.setattr(connection_pool, "_idle", [])  # an earlier test may have left a connection
    monkeypatch.setattr(duckdb, "connect", ignoring)
    assert run("insert", table.uri, lines, status=130).stderr == NOTHING
    assert len(table.history()) == 1
    assert signal.getsignal(signal.SIGINT) is usual
