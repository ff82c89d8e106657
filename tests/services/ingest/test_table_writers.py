"""Commits of single requests, and their rejections, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.errors import (
    AccessDenied,
    BufferFull,
    CommitStateUnknown,
    CorruptLog,
    SchemaConflict,
    StoreUnavailable,
    TableNotFound,
)
from icedb.services.ingest.config.settings import IngestSettings, TableSettings
from icedb.services.ingest.events.rejections import RequestRejected
from icedb.services.ingest.table_writers import TableWriter, open_table
from icedb.util.clock import SystemClock


@contextmanager
def writing(folder: Path, **settings: Any) -> Iterator[TableWriter]:
    table_settings = TableSettings("events", str(folder / "table"), create=True, delay_max_ms=0, **settings)
    writer = TableWriter(table_settings, open_table(table_settings, {}), IngestSettings(), SystemClock())
    try:
        yield writer
    finally:
        writer.close(timeout_ms=60_000)


@contextmanager
def failing(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[TableWriter]:
    """A writer whose commits fail with an error."""

    def fail(*_: object, **__: object) -> None:
        raise error

    with writing(folder) as writer:
        monkeypatch.setattr(writer._writer, "submit", fail)
        yield writer


def committed(writer: TableWriter, *rows: dict[str, Any]) -> int:
    return asyncio.run(writer.commit(writer.fit(list(rows), "acme"), "acme")).rows


def test_rows_that_do_not_fit_are_quarantined_with_on_conflict_quarantine(tmp_path: Path) -> None:
    schema = {"n": "BIGINT", "ts": "TIMESTAMP"}
    with writing(tmp_path, schema=schema, on_conflict="quarantine") as writer:
        assert committed(writer, {"n": 1, "ts": "2026-11-21T10:00:00+01:00"}, {"n": "one"}, {"ts": "soon"}) == 3
    assert Table.open(tmp_path / "table").query("SELECT n, CAST(ts AS VARCHAR) FROM t").fetchall() == [
        (1, "2026-11-21 09:00:00")
    ]
    assert Table.open(tmp_path / "table_quarantine").snapshot().rows == 2


def test_columns_declared_by_another_program_are_used_after_a_refresh(tmp_path: Path) -> None:
    with writing(tmp_path, schema={"n": "BIGINT"}) as writer:
        Table.open(tmp_path / "table").alter(schema={"at": "DATE"})
        writer.refresh()
        assert committed(writer, {"n": 1, "at": "2026-11-21"}) == 1
    assert Table.open(tmp_path / "table").schema()["at"] == "DATE"


@pytest.mark.parametrize(
    ("error", "message", "reached"),
    [
        (StoreUnavailable("s3://secret-place/events: no answer"), "does not respond", False),
        (CommitStateUnknown("s3://secret-place/events: published or not"), "may or may not have succeeded", True),
        (AccessDenied("s3://secret-place/events: 403"), "the operator must repair it", True),
        (CorruptLog("s3://secret-place/events: torn", key="x"), "the operator must repair it", True),
        (
            SchemaConflict(
                "s3://secret-place/events: 'a' is BIGINT in '_log/1_host-1-a.jsonl', DATE in '_log/2_host-2-b.jsonl'",
                column="a",
                types=("BIGINT", "DATE"),
                log_files=("_log/1_host-1-a.jsonl", "_log/2_host-2-b.jsonl"),
            ),
            "the operator must repair it",
            True,
        ),
    ],
)
def test_server_errors_are_logged_and_hidden_from_clients(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    message: str,
    reached: bool,
) -> None:
    with failing(tmp_path, monkeypatch, error) as writer:
        with pytest.raises(RequestRejected, match=message) as refusal:
            committed(writer, {"n": 1})
        assert (refusal.value.status, dict(refusal.value.headers)) == (503, {"retry-after": "5"})
        assert "secret-place" not in refusal.value.message
        assert "secret-place" in caplog.text
        assert writer.reachable == reached


@pytest.mark.parametrize(
    ("error", "message"),
    [(BufferFull("no room"), "Too many rows are pending"), (TimeoutError(), "timed out and may still succeed")],
)
def test_a_full_buffer_differs_from_a_commit_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    """Both errors are a TimeoutError, but after a full buffer it is certain that nothing was committed."""
    with failing(tmp_path, monkeypatch, error) as writer:
        with pytest.raises(RequestRejected, match=message) as refusal:
            committed(writer, {"n": 1})
        assert refusal.value.status == 503


def test_a_table_is_created_only_with_create(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        open_table(TableSettings("events", str(tmp_path / "table")), {})
    made = TableSettings(
        "events", str(tmp_path / "table"), create=True, partition_by=("n % 2 AS half",), sort_by=("n",)
    )
    assert open_table(made, {}).spec.partition_by == open_table(made, {}).spec.partition_by == ("n % 2 AS half",)
