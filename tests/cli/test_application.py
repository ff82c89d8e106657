"""What all verbs of the command share: exit statuses, credentials, completion, bars, what is asked and what is not."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from icedb import Table, __version__
from icedb.cli import app
from icedb.cli.base.application import EXIT_STATUSES, Connection, Exit
from icedb.cli.render.output import time_text
from icedb.cli.render.progress_bars import Bars, bars
from icedb.errors import (
    AccessDenied,
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    MissingPart,
    StaleView,
    StoreUnavailable,
)
from icedb.util.progress import Progress, is_watched, progress, watched

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


def run(*arguments: object, status: int = 0, **options: Any) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], **options)
    assert result.exit_code == status, result.output
    return result


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "icedb.cli", *map(str, arguments)]
    return subprocess.run(words, **{"capture_output": True, "text": True, "timeout": 120, **options})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "table", partition_by=["k"], storage_options={"fsync": "false"})
    for n in range(2):
        table.insert([{"k": k, "n": n} for k in range(2)])
    return table


# ------------------------------------------------------------------------------------------------ exit statuses


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AccessDenied("no"), Exit.FAILED),
        (PermissionError(13, "no"), Exit.FAILED),
        (StoreUnavailable("later"), Exit.AGAIN),
        (CommitConflict("later"), Exit.AGAIN),
        (ConnectionResetError("later"), Exit.AGAIN),
        (CommitStateUnknown("look"), Exit.LOOK_FIRST),
        (StaleView("look"), Exit.LOOK_FIRST),
        (MissingPart("gone"), Exit.DAMAGED),
        (InvariantViolated("odd"), Exit.DAMAGED),
    ],
)
def test_the_exit_status_says_what_to_do_about_an_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: Exit
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("icedb.table.Table.open", fail)
    result = run("pins", "anywhere", status=status)
    assert result.stderr == f"error: {error}\n"


def test_a_mistake_of_ours_is_no_finding_of_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("icedb.table.Table.open", fail)
    told = run("verify", "anywhere", status=Exit.BUG).stderr
    assert "ZeroDivisionError: oh" in told
    assert told.endswith("error: this is a mistake in IceDB. Please report it.\n")


def test_a_damaged_log_is_status_5(table: Table) -> None:
    [log, *_] = sorted((Path(table.uri) / "_log").glob("*.jsonl"))
    log.write_bytes(b"\0garbage")
    assert log.name in run("parts", table.uri, status=Exit.DAMAGED).stderr


def test_the_exit_statuses_are_told_where_people_look() -> None:
    page = PAGE.read_text()
    for status in Exit:
        assert re.search(rf"^\| {status.value} \|", page, re.MULTILINE), status
    assert [int(n) for n in re.findall(r"\b(\d+) ", EXIT_STATUSES)] == [s for s in Exit if s != Exit.PIPE_CLOSED]
    assert "Exit status: 0 done" in run("--help").stdout


@pytest.mark.process
def test_who_stops_reading_gets_no_traceback(table: Table) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for flags in (["--json"], []):
        done = command("verify", table.uri, *flags, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (Exit.PIPE_CLOSED, "")
    os.close(writer)


@pytest.mark.process
def test_the_end_of_the_input_is_no_consent(table: Table) -> None:
    terminal, its_end = pty.openpty()
    try:
        os.write(terminal, b"\x04")
        done = command("drop", table.uri, "k=0", capture_output=False, stdin=its_end, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE)  # fmt: skip
    finally:
        os.close(terminal)
        os.close(its_end)
    assert done.returncode == Exit.FAILED
    assert done.stderr.endswith("\nNothing was changed.\n")
    assert table.snapshot().rows == 4


# ------------------------------------------------------------------------------------------------ reports


def told(*arguments: object) -> dict[str, str]:
    """The lines of a report: label -> value."""
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in run(*arguments).stdout.splitlines())


@pytest.mark.long
def test_a_report_says_that_it_is_one_of_a_dry_run(table: Table, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"k": 1, "n": 1}\n')
    for words in (
        ["insert", table.uri, rows], ["pin", table.uri, "one"], ["drop", table.uri, "k=0"], ["merge", table.uri],
        ["alter", table.uri, "--sort-by", "n"], ["cleanup", table.uri], ["export", table.uri, "--delta"],
    ):  # fmt: skip
        found = told(*words, "--dry-run")
        assert found["dry run"] == "yes: nothing was changed"
        assert not found.keys() & {"commit", "log file"}


def test_times_of_a_report_are_told_as_times(table: Table) -> None:
    found = told("pin", table.uri, "one")
    assert found["as of"] == time_text(table.pins()[0].as_of_ms)
    assert found["expires"] == told("cleanup", table.uri, "--dry-run")["horizon"] == "none"
    heading, _, line = run("pins", table.uri).stdout.splitlines()
    assert heading.split("  ")[0] == "name"
    assert line.split() == ["one", found["as of"], found["created"], "none"]


# ------------------------------------------------------------------------------------------------ help


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"icedb {__version__}\n"


@pytest.mark.process
def test_a_shell_completes_verbs_and_flags() -> None:
    def completed(words: str) -> list[str]:
        number = str(len(words.split(" ")) - 1)
        environment = {**os.environ, "_ICEDB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
        return command(env=environment).stdout.split()

    assert completed("icedb mer") == ["merge", "merge-log"]
    assert "--dry-run" in completed("icedb insert --d")


@pytest.mark.process
def test_the_script_for_a_shell_is_shown() -> None:
    done = command("--show-completion", "bash", env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.returncode == 0, done.stderr
    assert "_ICEDB_COMPLETE=complete_bash" in done.stdout


def test_every_verb_that_changes_a_table_has_a_dry_run_and_json() -> None:
    looking = {
        "info",
        "plot",
        "verify",
        "query",
        "log",
        "parts",
        "partitions",
        "schema",
        "history",
        "diff",
        "pins",
        "views",
    }
    serving = {"proxy", "ingest"}
    group: Any = typer.main.get_command(app)
    for name, verb in group.commands.items():
        flags = {flag for parameter in verb.params for flag in parameter.opts + parameter.secondary_opts}
        assert ("--dry-run" in flags) == (name not in looking | serving), name
        assert "--json" in flags or name in {"query", "plot"}, name
        assert {"--profile", "--endpoint-url", "--region"} <= flags or name in serving, name


# ------------------------------------------------------------------------------------------------ connection


def test_flags_are_in_force_for_the_verb_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    before = dict(os.environ)
    with Connection("http://there", "there", "other").in_force():
        assert os.environ["AWS_PROFILE"] == "other"
        assert "AWS_ACCESS_KEY_ID" not in os.environ
        assert (os.environ["AWS_REGION"], os.environ["AWS_ENDPOINT_URL"]) == ("there", "http://there")
    assert dict(os.environ) == before
    with Connection().in_force():
        assert dict(os.environ) == before


@pytest.mark.s3
@pytest.mark.parametrize("by_flag", [True, False])
def test_a_profile_gives_credentials_and_region(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_flag: bool
) -> None:
    options = s3.storage_options
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile lake]\nregion = {options['AWS_REGION']}\naws_access_key_id = {options['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {options['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    (tmp_path / "rows.csv").write_text("n\n1\n")
    if by_flag:  # before the keys that happen to be in the environment
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        flags = ["--profile", "lake", "--endpoint-url", options["AWS_ENDPOINT_URL"]]
    else:
        monkeypatch.setenv("AWS_PROFILE", "lake")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", options["AWS_ENDPOINT_URL"])
        flags = []
    run("create", s3.uri, *flags)
    assert json.loads(run("insert", s3.uri, tmp_path / "rows.csv", *flags, "--json").stdout)["rows"] == 1
    told = run("pins", s3.uri, "--profile", "lagoon", status=Exit.FAILED).stderr
    assert "lagoon" in told
    assert told.count("\n") == 1


@pytest.mark.s3
def test_who_has_no_credentials_is_told_so(s3: Any) -> None:
    flags = ["--endpoint-url", s3.storage_options["AWS_ENDPOINT_URL"], "--region", "us-east-1"]
    told = run("pins", s3.uri, *flags, status=Exit.FAILED).stderr
    assert "No credentials were found" in told


# ------------------------------------------------------------------------------------------------ progress


def last_of(told: list[Progress]) -> dict[str, tuple[int, int | None, str]]:
    assert all(p.done <= (p.done if p.total is None else p.total) for p in told)
    return {p.name: (p.done, p.total, p.unit) for p in told if p.over}


@pytest.mark.long
def test_long_work_tells_how_far_it_is(table: Table, tmp_path: Path) -> None:
    told: list[Progress] = []
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(f'{{"k": {n % 2}, "n": {n}}}\n' for n in range(100)))
    with watched(told.append):
        table.insert(str(lines))
    found = last_of(told)
    assert found["looking at lines"] == found["reading files"] == (100, None, "rows")
    assert found["writing parts"] == (100, 100, "rows")
    small = sum(p.bytes for p in table.snapshot().parts)
    told.clear()
    with watched(told.append):
        assert table.merge().merged_parts == 6
        assert table.verify().ok
        assert table.verify(deep=True).ok
        deleted = table.cleanup(grace_ms=0, allow_short_grace=True)
    found = last_of(told)
    merged = sum(p.bytes for p in table.snapshot().parts)
    assert found["rewriting parts"] == (small, small, "bytes")
    assert found["reading footers"] == (2, 2, "parts")
    assert found["checking parts"] == (merged, merged, "bytes")
    assert len(deleted.deleted_parts) == 6
    assert any(p.name == "deleting objects" and p.done == p.total == 6 for p in told)
    told.clear()
    table.delete("n < 0")
    assert told == []


def test_an_import_tells_how_far_it_is(table: Table, tmp_path: Path) -> None:
    told: list[Progress] = []
    (tmp_path / "source" / "k=5").mkdir(parents=True)
    rows = table.query("SELECT n FROM t").to_arrow()
    pq.write_table(rows, tmp_path / "source" / "k=5" / "a.parquet")
    with watched(told.append):
        Table.create_from_files(tmp_path / "new", tmp_path / "source")
    assert last_of(told)["copying files"] == (1, 1, "files")


def test_work_that_fails_is_over() -> None:
    told: list[Progress] = []

    def fail() -> None:
        with progress("work", 3, "parts") as advance:
            advance(1)
            raise ZeroDivisionError

    with watched(told.append), pytest.raises(ZeroDivisionError):
        fail()
    assert [(p.done, p.over) for p in told] == [(0, False), (1, False), (1, True)]
    assert not is_watched()


def test_a_bar_has_amount_rate_and_time_and_goes_away() -> None:
    screen = io.StringIO()
    shown = Bars(Console(file=screen, force_terminal=True, width=120), after_s=0)

    def text() -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())

    def wait_for(pattern: str) -> None:
        for _ in range(3_000):
            if re.search(pattern, text()):
                return
            time.sleep(0.01)
        raise AssertionError(text())

    with watched(shown), progress("rewriting parts", 4_000_000, "bytes") as advance:
        wait_for("rewriting parts")
        for _ in range(3):
            advance(500_000)
            time.sleep(0.01)
        wait_for(r" 38% 1\.5 MB of 4\.0 MB, [\d.]+ .?B/s \d:\d\d:\d\d")
    after = screen.getvalue()
    shown.close()
    assert screen.getvalue() == after  # it is gone already
    assert after.endswith("\r\x1b[2K\x1b[?25h\r")


def test_what_is_short_has_no_bar() -> None:
    screen = io.StringIO()
    shown = Bars(Console(file=screen, force_terminal=True), after_s=3_600)
    with watched(shown):
        for _ in range(3):
            with progress("reading objects", 2, "objects") as advance:
                advance(2)
    shown.close()
    assert screen.getvalue() == ""


def test_programs_get_no_bars() -> None:
    with bars(wanted=True):  # standard error is no terminal here
        assert not is_watched()
