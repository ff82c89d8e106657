"""Exit statuses, reports, help, connection flags and progress bars that all verbs of the command share."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from rich.console import Console

from icedb import Table, __version__
from icedb.cli import app
from icedb.cli.base.application import Connection
from icedb.cli.base.verb_group import EXIT_STATUSES, OTHER_NAMES, Exit
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
from icedb.util.progress import Progress, has_watcher, progress, watch_progress
from icedb.util.times import iso_text
from tests.cli.test_commands import command, run
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


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
        (StoreUnavailable("later"), Exit.RETRY),
        (CommitConflict("later"), Exit.RETRY),
        (ConnectionResetError("later"), Exit.RETRY),
        (CommitStateUnknown("look"), Exit.OUTCOME_UNKNOWN),
        (StaleView("look"), Exit.OUTCOME_UNKNOWN),
        (MissingPart("gone"), Exit.CORRUPT),
        (InvariantViolated("odd"), Exit.CORRUPT),
    ],
)
def test_the_exit_status_classifies_errors(monkeypatch: pytest.MonkeyPatch, error: Exception, status: Exit) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("icedb.table.Table.open", fail)
    result = run("pins", "anywhere", status=status)
    assert result.stderr == f"error: {error}\n"


def test_a_bug_has_its_own_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("icedb.table.Table.open", fail)
    stderr = run("verify", "anywhere", status=Exit.BUG).stderr
    assert "ZeroDivisionError: oh" in stderr
    assert stderr.endswith("error: this is a bug in IceDB. Please report it.\n")


def test_a_damaged_log_is_status_5(table: Table) -> None:
    [log, *_] = sorted((Path(table.uri) / "_log").glob("*.jsonl"))
    log.write_bytes(b"\0garbage")
    assert log.name in run("parts", table.uri, status=Exit.CORRUPT).stderr


def test_the_help_and_the_page_list_the_exit_statuses() -> None:
    page = PAGE.read_text()
    for status in Exit:
        assert re.search(rf"^\| {status.value} \|", page, re.MULTILINE), status
    assert [int(n) for n in re.findall(r"\b(\d+) ", EXIT_STATUSES)] == [s for s in Exit if s != Exit.PIPE_CLOSED]
    assert "Exit status: 0 done" in run("--help").stdout


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_closed_pipe_gives_no_traceback(table: Table) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for flags in (["--json"], []):
        done = command("verify", table.uri, *flags, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (Exit.PIPE_CLOSED, "")
    os.close(writer)


@pytest.mark.process
def test_the_end_of_input_declines_the_prompt(table: Table) -> None:
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


def report_of(*arguments: object) -> dict[str, str]:
    """Return the details of a report as label -> value."""
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in run(*arguments).stdout.splitlines()[1:])


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_report_states_a_dry_run(table: Table, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"k": 1, "n": 1}\n')
    for words in (
        ["insert", table.uri, rows], ["pin", table.uri, "one"], ["drop", table.uri, "k=0"], ["merge", table.uri],
        ["alter", table.uri, "--sort-by", "n"], ["export", table.uri, "--delta"],
    ):  # fmt: skip
        sentence, *details = run(*words, "--dry-run").stdout.splitlines()
        assert sentence.startswith("Dry run: would ")
        assert not any(line.startswith(("commit", "log file", "dry run")) for line in details)


def test_a_report_prints_times_as_iso(table: Table) -> None:
    report = report_of("pin", table.uri, "one")
    assert report["as of"] == iso_text(table.pins()[0].as_of_ms)
    assert "expires" not in report
    heading, _, line = run("pins", table.uri).stdout.splitlines()
    assert heading.split("  ")[0] == "name"
    assert line.split() == ["one", report["as of"], report["created"], "none"]


# ------------------------------------------------------------------------------------------------ help


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"icedb {__version__}\n"


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_shell_completes_verbs_and_flags() -> None:
    def completed(words: str) -> list[str]:
        number = str(len(words.split(" ")) - 1)
        environment = {**os.environ, "_ICEDB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
        return command(env=environment).stdout.split()

    assert completed("icedb mer") == ["merge", "merge-log"]
    assert "--dry-run" in completed("icedb insert --d")


@pytest.mark.sampled(days=3)
@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell: str) -> None:
    done = command("--show-completion", shell)
    assert done.returncode == 0, done.stderr
    assert f"_ICEDB_COMPLETE=complete_{shell}" in done.stdout


@pytest.mark.sampled(days=3)
def test_each_verb_has_an_example_that_parses() -> None:
    group: Any = typer.main.get_command(app)
    for name, verb in group.commands.items():
        program, example_name, *words = shlex.split(verb.epilog.removeprefix("Example: "))
        assert (program, example_name) == ("icedb", name)
        assert verb.epilog in " ".join(run(name, "--help", terminal_width=200).stdout.split()), name
        verb.make_context(name, words)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("name", "verb"), OTHER_NAMES.items())
def test_the_name_of_another_system_names_the_verb(name: str, verb: str) -> None:
    for words in ([], ["s3://lake/events"], ["--help"]):
        assert f"Run: icedb {verb}" in run(name, *words, status=2).stderr
    run(verb, "--help")


def test_every_verb_that_changes_a_table_has_a_dry_run_and_json() -> None:
    reading = {
        "info", "report", "verify", "query", "log", "parts", "partitions", "schema", "history", "diff", "list", "pins",
        "views",
    }  # fmt: skip
    serving = {"proxy", "ingest", "exporter"}
    group: Any = typer.main.get_command(app)
    for name, verb in group.commands.items():
        flags = {flag for parameter in verb.params for flag in parameter.opts + parameter.secondary_opts}
        assert ("--dry-run" in flags) == (name not in reading | serving), name
        assert "--json" in flags or name in {"query", "report", "exporter"}, name
        assert {"--profile", "--endpoint-url", "--region"} <= flags or name in serving, name


# ------------------------------------------------------------------------------------------------ connection


def test_connection_flags_apply_only_during_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_profile_sets_credentials(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_flag: bool) -> None:
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
    if by_flag:  # takes precedence over keys in the environment
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        flags = ["--profile", "lake", "--endpoint-url", options["AWS_ENDPOINT_URL"]]
    else:
        monkeypatch.setenv("AWS_PROFILE", "lake")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", options["AWS_ENDPOINT_URL"])
        flags = []
    run("create", s3.uri, *flags)
    assert json.loads(run("insert", s3.uri, tmp_path / "rows.csv", *flags, "--json").stdout)["rows"] == 1
    stderr = run("pins", s3.uri, "--profile", "lagoon", status=Exit.FAILED).stderr
    assert "lagoon" in stderr
    assert stderr.count("\n") == 1


@pytest.mark.s3
def test_missing_credentials_are_reported(s3: Any) -> None:
    flags = ["--endpoint-url", s3.storage_options["AWS_ENDPOINT_URL"], "--region", "us-east-1"]
    assert "No credentials were found" in run("pins", s3.uri, *flags, status=Exit.FAILED).stderr


# ------------------------------------------------------------------------------------------------ progress


def last_of(events: list[Progress]) -> dict[str, tuple[int, int | None, str]]:
    assert all(p.done <= (p.done if p.total is None else p.total) for p in events)
    return {p.name: (p.done, p.total, p.unit) for p in events if p.over}


@pytest.mark.long
def test_long_work_reports_its_progress(table: Table, tmp_path: Path) -> None:
    events: list[Progress] = []
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(f'{{"k": {n % 2}, "n": {n}}}\n' for n in range(100)))
    with watch_progress(events.append):
        table.insert(str(lines))
    last = last_of(events)
    assert last["looking at lines"] == last["reading files"] == (100, None, "rows")
    assert last["writing parts"] == (100, 100, "rows")
    small = sum(p.bytes for p in table.snapshot().parts)
    events.clear()
    with watch_progress(events.append):
        assert table.merge().merged_parts == 6
        assert table.verify().ok
        assert table.verify(deep=True).ok
        deleted = table.cleanup(grace_ms=0, allow_short_grace=True)
    last = last_of(events)
    merged = sum(p.bytes for p in table.snapshot().parts)
    assert last["rewriting parts"] == (small, small, "bytes")
    assert last["reading footers"] == (2, 2, "parts")
    assert last["checking parts"] == (merged, merged, "bytes")
    assert len(deleted.deleted_parts) == 6
    assert any(p.name == "deleting objects" and p.done == p.total == 6 for p in events)
    events.clear()
    table.delete("n < 0")
    assert events == []


def test_an_import_reports_its_progress(table: Table, tmp_path: Path) -> None:
    events: list[Progress] = []
    (tmp_path / "source" / "k=5").mkdir(parents=True)
    rows = table.query("SELECT n FROM t").to_arrow()
    pq.write_table(rows, tmp_path / "source" / "k=5" / "a.parquet")
    with watch_progress(events.append):
        Table.create_from_files(tmp_path / "new", tmp_path / "source")
    assert last_of(events)["copying files"] == (1, 1, "files")


def test_failed_work_ends_its_progress() -> None:
    events: list[Progress] = []

    def fail() -> None:
        with progress("work", 3, "parts") as advance:
            advance(1)
            raise ZeroDivisionError

    with watch_progress(events.append), pytest.raises(ZeroDivisionError):
        fail()
    assert [(p.done, p.over) for p in events] == [(0, False), (1, False), (1, True)]
    assert not has_watcher()


def test_a_bar_has_amount_rate_and_time_and_is_removed() -> None:
    screen = io.StringIO()
    live = Bars(Console(file=screen, force_terminal=True, width=120), after_s=0)

    def text() -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())

    with watch_progress(live), progress("rewriting parts", 4_000_000, "bytes") as advance:
        wait_until(lambda: "rewriting parts" in text(), "the bar appears")
        for _ in range(3):
            advance(500_000)
            time.sleep(0.01)
        figures = r" 38% 1\.5 MB of 4\.0 MB, [\d.]+ .?B/s \d:\d\d:\d\d"
        wait_until(lambda: re.search(figures, text()), "the bar shows amount, rate and time")
    after = screen.getvalue()
    live.close()
    assert screen.getvalue() == after  # it was removed at the end of the work
    assert after.endswith("\r\x1b[2K\x1b[?25h\r")


def test_short_work_has_no_bar() -> None:
    screen = io.StringIO()
    live = Bars(Console(file=screen, force_terminal=True), after_s=3_600)
    with watch_progress(live):
        for _ in range(3):
            with progress("reading objects", 2, "objects") as advance:
                advance(2)
    live.close()
    assert screen.getvalue() == ""


def test_bars_appear_on_a_terminal_only() -> None:
    with bars(enabled=True):  # standard error is not a terminal here
        assert not has_watcher()


@pytest.mark.parametrize(
    "page", ["troubleshooting", "production-checklist", "monitoring", "backup-and-retention", "cost-and-sizing"]
)
def test_commands_in_the_sentences_of_pages_for_operators_are_valid(page: str) -> None:
    commands: Any = typer.main.get_command(app)
    spans = re.findall(r"`icedb ([^`]+)`", PAGE.with_name(f"{page}.md").read_text())
    assert spans
    for verb, *arguments in map(shlex.split, spans):
        assert verb in commands.commands, verb
        if arguments:
            commands.commands[verb].make_context(verb, arguments)  # raises for what it does not know
