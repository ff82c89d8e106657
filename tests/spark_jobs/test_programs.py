"""The programs of `spark_jobs` in one session: results, output and exit statuses."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shlex
import signal
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from icedb import Table
from icedb.errors import CommitConflict, InvalidOption
from icedb.storage.option_names import SECRET_OPTIONS
from spark_jobs import backfill, export_table, ingest_events, merge_table, stream_events
from spark_jobs.due_maintenance import maintained
from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.object_stores.stores import Place
from tests.support.site.pages import ROOT, blocks

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]  # the session that the programs find

PROGRAMS = {module.NAME: module for module in (backfill, export_table, ingest_events, merge_table, stream_events)}
COLUMNS = {"ts": "TIMESTAMP WITH TIME ZONE", "user": "BIGINT", "amount": "DECIMAL(9,2)"}
GOOD = [{"ts": f"2026-01-0{day}T12:00:00Z", "user": day, "amount": 1.25} for day in (1, 2, 3)]
#: Invalid lines, and the reason of each.
BAD = {
    "no json": "is not JSON (JSON is malformed: invalid character (byte 4))",
    '{"user": 7} {"user": 8}': "is not JSON (JSON is malformed: trailing characters (byte 13))",
    "[1]": "is not an object",
    '{"user": "seven"}': "does not fit the columns: user",
    '{"ts": 1767225600000}': "does not fit the column 'ts'",
    '{"amount": 1.255}': "does not fit the column 'amount'",
    '{"user": 7, "colour": "red"}': "has fields without a column: ['colour']",
    '{"amount": 1}': "lacks a value of 'user'",
}


@pytest.fixture
def events(tmp_path: Path) -> Table:
    """Return a table with columns and no rows."""
    return Table.create(
        tmp_path / "lake" / "events",
        partition_by=["CAST(ts AS DATE) AS day"],
        sort_by=["user"],
        schema=COLUMNS,
        required=["user"],
    )


def write_lines(path: Path, lines: list[Any]) -> Path:
    """Write JSON lines. Texts are written unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def users(table: Table) -> list[int]:
    return [user for (user,) in table.query("SELECT user FROM t ORDER BY user").fetchall()]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error line of a failed program, which writes log lines before it and nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert all(" INFO " in line for line in lines[:-1]), err
    assert "Traceback" not in err
    return lines[-1]


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the figures that a successful program wrote to stdout."""
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith(": done")
    return {name: " ".join(values) for name, *values in map(str.split, lines)}


def test_the_programs_accept_the_commands_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAAS", "a secret")
    commands = [block.replace("\\\n", " ") for block in blocks(ROOT / "docs" / "spark-jobs.md", "sh")]
    names = set()
    for words in (shlex.split(line) for block in commands for line in block.splitlines()):
        for name, program in PROGRAMS.items():
            if f"{name}.py" in words:
                program.arguments().parse_args(words[words.index(f"{name}.py") + 1 :])
                names.add(name)
    assert names == PROGRAMS.keys()


@pytest.mark.s3
def test_files_in_a_bucket_are_one_commit_and_bad_records_are_quarantined_once(
    s3: Place, s3_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in s3_server.storage_options.items():
        monkeypatch.setenv(name, value)
    bucket, _, prefix = s3.uri.removeprefix("s3://").partition("/")
    lines = [*map(json.dumps, GOOD), "", *BAD]
    body = gzip.compress("\n".join(lines[:6]).encode()) + gzip.compress("\n".join(["", *lines[6:]]).encode())
    client = s3_server.client()
    client.put_object(Bucket=bucket, Key=f"{prefix}-raw/a.jsonl.gz", Body=body)
    client.put_object(Bucket=bucket, Key=f"{prefix}-raw/b.jsonl.gz", Body=gzip.compress(b'{"user": 9}\n'))
    table = Table.create(s3.uri, partition_by=["user % 2 AS odd"], schema=COLUMNS, required=["user"])
    command = ["--input", f"{s3.uri}-raw/*.gz", "--table", s3.uri, "--quarantine", "--batch-id", "raw:1"]

    assert ingest_events.main(command) == 0
    count = figures(capsys)
    assert [count[name] for name in ("files", "rows_read", "rows_written", "rows_quarantined")] == ["2", "12", "4", "8"]
    assert (count["quarantine"], count["snapshot_id"]) == (f"{s3.uri}_quarantine", table.snapshot().id)
    assert users(table) == [1, 2, 3, 9]
    quarantine = Table.open(f"{s3.uri}_quarantine")
    rejected = quarantine.query("SELECT row, reason, source FROM t").fetchall()
    assert {row: reason for row, reason, _ in rejected} == BAD
    assert sorted(source for *_, source in rejected) == sorted(
        f"{s3.uri}-raw/a.jsonl.gz, line {number}" for number in range(5, 13)
    )

    assert ingest_events.main(command) == 0  # the same batch again
    assert figures(capsys)["repeated"] == "yes"
    assert (len(users(table)), quarantine.snapshot().rows) == (4, 8)
    assert table.verify(deep=True).ok


def test_a_bad_record_fails_the_job_with_its_line(
    events: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "raw.jsonl", [*GOOD, *BAD])
    command = ["--input", str(path), "--table", events.uri]
    assert ingest_events.main(command) == 1
    line = last_line(capsys)
    assert line.startswith(f"ingest_events: InvalidBatch: {events.uri}: 8 bad records, 0 are allowed. Nothing was")
    assert f"{path}, line " in line
    assert "--quarantine" in line

    quarantine = str(tmp_path / "quarantine")
    assert ingest_events.main([*command, "--quarantine", quarantine, "--max-bad-records", "7"]) == 1
    assert "8 bad records, 7 are allowed" in last_line(capsys)
    assert not Table.exists(quarantine)
    assert events.snapshot().parts == ()


def test_a_table_is_created_from_parquet_and_from_lines_without_a_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for name, table in {
        "a": pa.table(
            {"n": pa.array([1, 2], pa.uint32()), "moment": pa.array([moment] * 2, pa.timestamp("ms", "UTC"))}
        ),
        "b": pa.table({"n": pa.array([3], pa.uint32())}),
    }.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    numbers, lines = str(tmp_path / "numbers"), str(tmp_path / "lines")
    command = ["--input", str(tmp_path / "*.parquet"), "--table", numbers]
    assert ingest_events.main(command) == 1
    assert "TableNotFound" in last_line(capsys)
    assert ingest_events.main([*command, "--create", "--partition-by", "n % 2 AS odd", "--sort-by", "n"]) == 0
    made = Table.open(numbers)
    assert made.schema() == {"n": "BIGINT", "moment": "TIMESTAMP WITH TIME ZONE"}
    assert made.query("SELECT n, moment, odd FROM t ORDER BY n").fetchall() == [
        (1, moment, 1),
        (2, moment, 0),
        (3, None, 1),
    ]

    monkeypatch.chdir(tmp_path)  # unlike the folder of Spark's workers
    write_lines(Path("new.ndjson"), [{"n": 1, "tags": ["a"]}, {"n": 2, "of": {"x": 1.5}}])
    assert ingest_events.main(["--input", "new.ndjson", "--table", lines, "--create"]) == 0
    assert Table.open(lines).schema() == {"n": "BIGINT", "of": "STRUCT(x DOUBLE)", "tags": "VARCHAR[]"}


def test_invalid_arguments_print_no_secret(events: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_lines(tmp_path / "raw.jsonl", GOOD))
    command = ["--input", path, "--table", events.uri]
    for name in sorted(SECRET_OPTIONS):
        assert ingest_events.main([*command, "--storage-option", f"{name}=hidden"]) == 2
        err = capsys.readouterr().err
        assert f"{name} is a secret" in err.splitlines()[-1]
        assert "hidden" not in err
    assert ingest_events.main([*command, "--storage-options", "AWS_SECRET_ACCESS_KEY=hidden"]) == 2
    err = capsys.readouterr().err
    assert "unrecognized arguments: --storage-options AWS_SECRET_ACCESS_KEY=..." in err.splitlines()[-1]
    assert "hidden" not in err
    for arguments, words in {
        ("--schema", "n INTT"): "--schema is invalid",
        ("--schema", "user STRING", "--quarantine"): "column 'user' is BIGINT in the table and VARCHAR in the batch",
        ("--max-bad-records", "3"): "--quarantine",
        ("--sort-by", "n"): "--create",
        ("--storage-option", "COLOUR=red"): "unknown storage options",
    }.items():
        assert ingest_events.main([*command, *arguments]) == 1
        assert words in last_line(capsys)
    with pytest.raises(InvalidOption, match="is not the start of a day"):
        backfill.moments("2026-01-01T05:00", "2026-01-03", "day")
    assert backfill.moments("2025-12", "2026-02-01", "month")[-1] == datetime(2026, 2, 1)
    assert len(backfill.moments("2026-01-01-22:00", "2026-01-02T01", "hour")) == 4


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_an_unreachable_store_is_one_line(
    s3: Place, s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(s3.uri, schema=COLUMNS, storage_options=s3.storage_options)
    path = write_lines(tmp_path / "raw.jsonl", GOOD)
    with CountingProxy(s3_server.endpoint).running() as proxy:
        for name, value in {**s3_server.storage_options, "AWS_ENDPOINT_URL": proxy.endpoint}.items():
            monkeypatch.setenv(name, value)
        lost = threading.Event()

        def close(request: HttpRequest) -> None:
            if "/_data/" in request.path and request.kind == "PUT":
                lost.set()
            if lost.is_set():
                raise ConnectionAbortedError

        proxy.before = close
        assert ingest_events.main(["--input", str(path), "--table", s3.uri]) == 1
    line = last_line(capsys)
    assert lost.is_set()
    assert f"ingest_events: StoreUnavailable: {s3.uri}: cannot create '" in line
    assert table.snapshot().parts == ()


def test_a_table_is_merged_and_exported(events: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for user in range(6):
        events.insert([{"ts": datetime(2026, 1, 1 + user % 2, tzinfo=UTC), "user": user}])
    then = events.snapshot()
    command = ["--table", events.uri, "--input-parts-max", "3"]
    assert merge_table.main([*command, "--dry-run"]) == 0
    count = figures(capsys)
    assert (count["groups_to_merge"], count["parts_to_merge"], count["table_parts"]) == ("2", "6", "6")
    assert merge_table.main(command) == 0
    count = figures(capsys)
    assert [count[n] for n in ("passes", "parts_merged", "new_parts", "groups_remaining")] == ["2", "6", "2", "0"]
    assert (users(events), len(events.snapshot().parts)) == ([*range(6)], 2)

    events.insert([{"ts": datetime(2026, 1, 1, tzinfo=UTC), "user": 6}])
    output = tmp_path / "export"
    output.mkdir()
    command = ["--table", events.uri, "--output", str(output), "--as-of", str(then.as_of_ms)]
    command += ["--where", "day = DATE '2026-01-01'", "--columns", "user,day"]
    assert export_table.main(command) == 0
    assert figures(capsys)["rows_exported"] == "3"
    rows = sorted(pq.read_table(output).to_pylist(), key=lambda row: row["user"])
    assert rows == [{"user": user, "day": date(2026, 1, 1)} for user in (0, 2, 4)]
    assert export_table.main(command) == 1
    assert f"'{output}' is not empty" in last_line(capsys)


@pytest.mark.sampled(days=3)
def test_a_stream_continues_and_stops_on_a_signal(
    events: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    landing, checkpoint = tmp_path / "landing", tmp_path / "checkpoint"
    command = ["--input", str(landing), "--table", events.uri, "--checkpoint", str(checkpoint)]
    command += ["--option", "maxFilesPerTrigger=1"]
    write_lines(landing / "1.json", GOOD[:1])
    write_lines(landing / "2.json", GOOD[1:2])
    for batches, rows in (("2", "2"), ("0", "0")):
        assert stream_events.main(command) == 0
        count = figures(capsys)
        assert (count["batches"], count["rows_read"]) == (batches, rows)

    write_lines(landing / "3.json", GOOD[2:])
    ending = once_there(lambda: len(users(events)) == 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert stream_events.main([*command, "--trigger", "1 second"]) == 0
    ending.join()
    assert figures(capsys)["rows_read"] == "1"
    assert users(events) == [1, 2, 3]

    write_lines(landing / "4.json", ["no json"])
    assert stream_events.main(command) == 1
    assert f"InvalidBatch: {events.uri}: 'file://{landing}/4.json' cannot be read, or has a record" in last_line(capsys)
    assert users(events) == [1, 2, 3]
    assert stream_events.main([*command, "--option-from", "kafka.sasl.jaas.config=NOT_SET"]) == 2


@pytest.mark.sampled(days=3)
def test_a_stream_maintains_its_table_while_it_runs_and_at_its_end(
    events: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = tmp_path / "landing"
    command = ["--input", str(landing), "--table", events.uri, "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--maintain-every", "1"]
    write_lines(landing / "1.json", GOOD[:1])
    add_parts(events, 40)
    # It runs until a signal that is sent after a merge.
    ending = once_there(lambda: len(events.snapshot().parts) < 20, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert stream_events.main([*command, "--trigger", "1 second"]) == 0
    ending.join()
    assert "parts merged: " in capsys.readouterr().err

    # It ends before the first interval.
    write_lines(landing / "2.json", GOOD[1:2])
    add_parts(events, 40)
    command[-1] = "3600"
    assert stream_events.main(command) == 0
    assert len(events.snapshot().parts) < 20
    assert len(users(events)) == 82
    assert events.verify().problems == ()


def add_parts(table: Table, number: int) -> None:
    for user in range(number):
        table.insert([{"ts": datetime(2026, 1, 1, tzinfo=UTC), "user": user}])


def test_a_failed_maintenance_is_logged_and_tried_again(
    events: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add_parts(events, 40)
    failed = threading.Event()

    def fail(*_: Any, **__: Any) -> None:
        failed.set()
        raise CommitConflict("other commits came first")

    log = logging.getLogger("spark_jobs.tests")
    caplog.set_level(logging.INFO, "spark_jobs.tests")
    with monkeypatch.context() as patch, maintained(events, every_seconds=0.01, stop=threading.Event(), log=log):
        patch.setattr(Table, "merge", fail)
        assert failed.wait(60)
        patch.undo()
    assert f"{events.uri}: the maintenance failed, and the next round tries again: other commits" in caplog.text
    assert len(events.snapshot().parts) < 20


def once_there(condition: Callable[[], bool], do: Callable[[], None]) -> threading.Thread:
    """Run `do` in a thread as soon as the condition is true."""
    over = threading.Event()

    def wait() -> None:
        while not condition():
            over.wait(0.2)
        do()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.sampled(days=3)
def test_a_failed_backfill_continues(events: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events.insert([{"ts": datetime(2026, 1, day, tzinfo=UTC), "user": 100 + day} for day in (1, 2, 3, 4)])
    raw = tmp_path / "raw"
    for day in (1, 2):
        write_lines(raw / "2026" / f"0{day}" / "a.jsonl", GOOD[day - 1 : day])
    days = ["--from", "2026-01-01", "--to", "2026-01-03"]
    command = ["--table", events.uri, *days, "--progress", str(tmp_path / "done")]
    command += ["--partition", "day={date:%Y-%m-%d}", "--input", f"{raw}/{{date:%Y/%d}}/*.jsonl"]
    assert backfill.main(command) == 1
    assert f"no file matches '{raw}/2026/03/*.jsonl'" in last_line(capsys)
    assert users(events) == [1, 2, 103, 104]
    before = events.snapshot()

    write_lines(raw / "2026" / "03" / "a.jsonl", GOOD[2:])
    assert backfill.main(command) == 0
    count = figures(capsys)
    assert (count["partitions_done"], count["partitions_skipped"], count["rows_written"]) == ("1", "2", "1")
    assert users(events) == [1, 2, 3, 104]
    keys = {p.key for p in before.parts if "2026-01-03" not in p.key}
    assert keys <= {p.key for p in events.snapshot().parts}  # nothing was written twice

    copy = Table.create(tmp_path / "lake" / "copy", partition_by=["strftime(ts, '%Y-%m-%d') AS d"])
    command = ["--table", copy.uri, "--from", "2026-01-03", "--to", "2026-01-05", "--progress", str(tmp_path / "done")]
    command += ["--partition", "d={date:%Y-%m-%d}", "--source-table", events.uri, "--missing", "skip"]
    command += ["--source-where", "day = DATE '{date:%Y-%m-%d}'"]
    assert backfill.main(command) == 0
    count = figures(capsys)
    assert (count["partitions_done"], count["partitions_missing"]) == ("2", "1")
    assert (users(copy), copy.schema()) == ([3, 104], events.schema())
