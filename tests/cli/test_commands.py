"""Verbs for maintenance and serving: results as text and JSON, errors, and the confirmation prompt."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner, Result

from icedb import Table
from icedb.cli import app
from icedb.errors import SnapshotExpired
from tests.support.tables.numbered_rows import FULL, fill, numbers


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "table", partition_by=["k"], storage_options={"fsync": "false"})
    fill(table)
    return table


def run(*arguments: object, status: int = 0, **options: Any) -> Result:
    """Run the command in this process, and check its exit status."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], **options)
    assert result.exit_code == status, result.output
    return result


def run_json(*arguments: object, **options: Any) -> Any:
    return json.loads(run(*arguments, "--json", **options).stdout)


def error_of(*arguments: object, status: int = 2, **options: Any) -> str:
    """Run the command, and return its standard error without line breaks and boxes."""
    return " ".join(run(*arguments, status=status, **options).stderr.replace("│", " ").split())


def check_one_line(error: str) -> None:
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def break_part(table: Table) -> str:
    part = table.snapshot().parts[0]
    Path(part.path).unlink()
    return part.key


def on_a_terminal(*arguments: object, columns: int = 80, status: int = 0, **env: str) -> str:
    """Return the output of the command on a terminal."""
    terminal, its_end = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "icedb.cli", *map(str, arguments)], stdout=its_end, stderr=its_end,
            env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **env},
        )  # fmt: skip
        os.close(its_end)
        printed = b""
        while some := _read(terminal):
            printed += some
        assert process.wait(60) == status, printed
    finally:
        os.close(terminal)
    return printed.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other end is closed
        return b""


# ------------------------------------------------------------------------------------------------ verify


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_verify_reports_a_sound_table(table: Table, deep: list[str]) -> None:
    assert "sound" in run("verify", table.uri, *deep).stdout
    report = run_json("verify", table.uri, *deep)
    assert (report["ok"], report["live_rows"], report["problems"]) == (True, 6, [])


def test_verify_lists_problems_and_ends_with_status_1(table: Table) -> None:
    key = break_part(table)
    printed = run("verify", table.uri, status=1).stdout
    assert "DAMAGED" in printed
    assert key in printed
    report = run_json("verify", table.uri, status=1)
    assert not report["ok"]
    assert [(p["kind"], p["severity"], p["key"]) for p in report["problems"]] == [("missing_part", "error", key)]


def test_a_warning_alone_is_status_0(table: Table, tmp_path: Path) -> None:
    (tmp_path / "table" / "notes.txt").write_text("hello")
    report = run_json("verify", table.uri)
    assert (report["ok"], [p["severity"] for p in report["problems"]]) == (True, ["warning"])


# ------------------------------------------------------------------------------------------------ maintenance


def test_orphans_are_listed_and_deleted_only_with_a_flag(table: Table, tmp_path: Path) -> None:
    part = tmp_path / "table" / "_data" / "k=1" / "orphan.parquet"
    part.write_bytes(b"x")
    long_ago = time.time() - 30 * 86_400
    os.utime(part, (long_ago, long_ago))
    report = run_json("orphans", table.uri, "--min-age", "40d")
    assert (report["deleted_parts"], report["young_parts"]) == ([], 1)
    report = run_json("orphans", table.uri)
    assert (len(report["deleted_parts"]), report["dry_run"]) == (1, True)
    assert part.exists()
    report = run_json("orphans", table.uri, "--delete", "--yes", "--min-age", "7d")
    assert (len(report["deleted_parts"]), report["dry_run"]) == (1, False)
    assert not part.exists()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_merge_merge_log_and_cleanup(table: Table) -> None:
    assert run_json("merge-log", table.uri, "--dry-run")["dry_run"]
    assert "commit" in run("merge-log", table.uri).stdout
    assert run_json("merge", table.uri, "--dry-run", "--part-bytes-max", "1 kB")["merged_parts"] == 6
    report = run_json("merge", table.uri, "--order", "newest")
    assert (report["merged_parts"], report["new_parts"], report["rows"]) == (6, 2, 6)
    assert run_json("cleanup", table.uri, "--yes", "--grace", "10m")["deleted_parts"] == []
    report = run_json("cleanup", table.uri, "--grace", "0s", "--allow-short-grace", "--dry-run")
    assert (len(report["deleted_parts"]), report["dry_run"]) == (6, True)
    assert len(run_json("cleanup", table.uri, "--grace", "0s", "--allow-short-grace", "--yes")["deleted_parts"]) == 6
    assert numbers(table) == FULL


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_drop_by_paths_or_by_a_predicate(table: Table) -> None:
    assert run_json("drop", table.uri, "k=0", "--dry-run")["partitions"] == ["k=0"]
    assert numbers(table) == FULL
    assert run_json("drop", table.uri, "--yes", "k=0")["partitions"] == ["k=0"]
    assert numbers(table) == [1, 11, 21]
    assert run_json("drop", table.uri, "--yes", "--where", "k > 0")["rows"] == 3
    assert numbers(table) == []


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_delete_rows(table: Table) -> None:
    assert run_json("delete", table.uri, "--where", "n >= 10", "--dry-run")["matching_rows"] == 4
    assert numbers(table) == FULL
    assert run_json("delete", table.uri, "--yes", "--where", "n >= 10")["deleted_rows"] == 4
    assert numbers(table) == [0, 1]
    run("delete", table.uri, "--yes", status=2)


@pytest.mark.parametrize("iso", [False, True])
def test_restore_to_a_time(table: Table, iso: bool) -> None:
    as_of_ms = table.snapshot().as_of_ms
    table.drop_partitions(["k=0"])
    as_of = datetime.fromtimestamp(as_of_ms / 1000, UTC).isoformat() if iso else as_of_ms
    assert run_json("restore", table.uri, "--as-of", as_of, "--dry-run")["dry_run"]
    assert numbers(table) == [1, 11, 21]
    text = " ".join(run("restore", table.uri, "--yes", "--as-of", as_of).stdout.split())
    assert "(rows before: 3, after: 6)." in text
    assert numbers(table) == FULL


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_pins_keep_a_time_readable_until_they_are_removed(table: Table) -> None:
    pin = run_json("pin", table.uri, "monthly", "--expires", "7d")
    assert pin["expires_ms"] - pin["created_ms"] == 7 * 86_400_000
    run("pin", table.uri, "forever", "--as-of", pin["as_of_ms"])
    table.drop_partitions(["k=0"])
    run("cleanup", table.uri, "--yes", "--grace", "0s", "--allow-short-grace")
    assert [p["name"] for p in run_json("pins", table.uri)] == ["forever", "monthly"]
    printed = run("pins", table.uri).stdout
    assert "monthly" in printed
    assert datetime.fromtimestamp(pin["as_of_ms"] / 1000, UTC).isoformat(timespec="milliseconds") in printed
    assert table.snapshot(pin["as_of_ms"]).rows == 6
    run("unpin", table.uri, "--yes", "forever")
    run("unpin", table.uri, "--yes", "monthly")
    assert "no pin 'monthly'" in run("unpin", table.uri, "--yes", "monthly", status=2).stderr
    run("cleanup", table.uri, "--yes", "--grace", "0s", "--allow-short-grace")
    with pytest.raises(SnapshotExpired):
        table.snapshot(pin["as_of_ms"])


# ------------------------------------------------------------------------------------------------ errors


def test_an_error_is_one_line_and_status_2(tmp_path: Path) -> None:
    result = run("verify", tmp_path / "nothing", status=2)
    assert result.stdout == ""
    check_one_line(result.stderr)
    assert "there is no table" in result.stderr


def test_a_time_may_be_a_duration_ago(table: Table) -> None:
    assert run_json("query", table.uri, "SELECT count(*) AS n FROM t", "--as-of", "0s") == [{"n": 6}]


#: Arguments after the verb and the table, and a part of the error.
INVALID: list[tuple[str, list[str], str]] = [
    *(("drop", ["k=0", name, dry], f"no partition '{name}' has rows") for name in ("k=7", "k<7", "k")
      for dry in ("--yes", "--dry-run")),
    *(("drop", chosen, "Pass either paths of partitions, or --where.") for chosen in ([], ["k=0", "--where", "k = 0"])),
    *(("cleanup", [f"--grace={text}"], "90s, 5m, 24h or 7d") for text in ("1x", "h", "-5m", "5", "")),
    *((verb, [*more, "--as-of", ago], "is before the table's creation") for ago in ("1.5h", "7d")
      for verb, more in {"query": ["SELECT 1"], "restore": ["--yes"], "pin": ["then"]}.items()),
    *(("restore", [f"--as-of={text}"], "not a time with a time zone")
      for text in ("2026-11-21T10:00:00", "yesterday", "2026-11-21", "99999d")),
    ("cleanup", ["--grace", "90s", "--yes"], "grace"),
    ("info", ["--hot-parts", "1"], "hot_parts"),
    *(("info", [f"--{name}=64X"], "'64X' is not a size. Write 64MB") for name in ("expired-bytes", "part-bytes-max")),
    *(("merge", [f"--part-bytes-max={text}"], message)
      for text, message in {"64X": "is not a size. Write 64MB", "0": "is below 1 byte"}.items()),
]  # fmt: skip


@pytest.mark.sampled(cases=10, days=3)
@pytest.mark.parametrize(("verb", "arguments", "message"), INVALID)
def test_invalid_arguments_change_nothing(table: Table, verb: str, arguments: list[str], message: str) -> None:
    assert message in error_of(verb, table.uri, *arguments)
    assert numbers(table) == FULL


# ------------------------------------------------------------------------------------------------ as a process


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as a process."""
    words = [sys.executable, "-m", "icedb.cli", *map(str, arguments)]
    return subprocess.run(words, **{"capture_output": True, "text": True, "timeout": 120, **options})


@pytest.mark.sampled(days=6)
@pytest.mark.process
def test_the_command_as_a_process(table: Table) -> None:
    done = command("verify", table.uri, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]
    key = break_part(table)
    done = command("verify", table.uri)
    assert done.returncode == 1
    assert key in done.stdout
    done = command("verify", f"{table.uri}-not-there")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_bucket_with_credentials_of_the_environment(s3: Any) -> None:
    Table.create(s3.uri, storage_options=s3.storage_options).insert([{"n": 1}])
    secrets = {k: v for k, v in s3.storage_options.items() if "KEY" in k}
    flags = ["--endpoint-url", s3.storage_options["AWS_ENDPOINT_URL"], "--region", s3.storage_options["AWS_REGION"]]
    done = command("verify", s3.uri, "--deep", *flags, env={**os.environ, **secrets})
    assert done.returncode == 0, done.stderr
    done = command("verify", s3.uri, *flags, env={**os.environ, **secrets, "AWS_SECRET_ACCESS_KEY": "wrong-secret"})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "wrong-secret" not in done.stderr


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.process
@pytest.mark.parametrize(("answer", "flags", "dropped"), [(b"n\n", [], False), (b"y\n", [], True), (b"", ["-y"], True)])
def test_a_terminal_shows_a_dry_run_and_a_prompt(table: Table, answer: bytes, flags: list[str], dropped: bool) -> None:
    terminal, its_end = pty.openpty()
    try:
        os.write(terminal, answer)
        done = command("drop", table.uri, "k=0", *flags, stdin=its_end)
    finally:
        os.close(terminal)
        os.close(its_end)
    assert (done.returncode == 0) == dropped
    assert ("\nDrop 1 partition (3 rows, " in done.stderr) == (not flags)
    assert ("k=0" in done.stderr) == (not flags)
    assert numbers(table) == ([1, 11, 21] if dropped else FULL)


# ------------------------------------------------------------------------------------------------ proxy


def proxy_config(folder: Path, *tables: str) -> Path:
    """Write a configuration with a bucket for each table. A single table shows only the partition `k=1`."""
    path = folder / "proxy.toml"
    path.write_text(
        '[[tenant]]\nname = "acme"\nkeys = [{ id = "ACMEKEY1", secret = "secret-of-acme" }]\n'
        + "".join(f'[[tenant.bucket]]\nname = "bucket{n}"\ntable = "{t}"\n' for n, t in enumerate(tables))
        + ('partitions = ["k=1"]\n' if len(tables) == 1 else "")
    )
    return path


def test_a_proxy_is_checked_without_serving(table: Table, tmp_path: Path) -> None:
    path = proxy_config(tmp_path, table.uri)
    [bucket] = run_json("proxy", "--config", path, "--check")
    assert bucket == {
        "tenant": "acme", "bucket": "bucket0", "table": table.uri, "parts": 3, "rows": 3, "error": None,
        "warning": None, "iceberg_columns": None, "iceberg_error": None,
    }  # fmt: skip
    [row] = [line for line in run("proxy", "--config", path, "--check").stdout.splitlines() if "acme" in line]
    assert row.split() == ["acme", "bucket0", table.uri, "3", "3"]


def test_the_check_of_an_iceberg_catalog_counts_columns_and_names_errors(table: Table, tmp_path: Path) -> None:
    big = Table.create(str(tmp_path / "big"))
    big.insert(duckdb.sql("SELECT 1::UBIGINT AS big, 1 AS n"))
    path = proxy_config(tmp_path, table.uri, big.uri)
    path.write_text(f"[iceberg]\nenabled = true\n{path.read_text()}")
    done = run("proxy", "--config", path, "--check", status=2)
    columns = len(table.snapshot().columns)
    assert [line.split()[-2:] for line in done.stdout.splitlines() if "bucket0" in line] == [[f"{columns}", "columns"]]
    assert [line.split()[-1] for line in done.stdout.splitlines() if "bucket1" in line] == ["error"]
    assert (
        "acme, bucket 'bucket1': The table 'bucket1' has columns without an Iceberg type: 'big' (UBIGINT)"
        in done.stderr
    )


def test_a_proxy_without_matching_partitions_gets_a_warning(table: Table, tmp_path: Path) -> None:
    path = proxy_config(tmp_path, table.uri)
    path.write_text(path.read_text().replace("k=1", "K=1"))
    error = error_of("proxy", "--config", path, "--check", status=0)
    assert "partitions match no live part of the table. Write them as in paths; the last" in error


def test_excluded_columns_that_the_table_never_had_get_a_warning(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "events"), partition_by=["k"])
    table.insert([{"k": 1, "v": 1, "was_dropped": 1}])
    table.alter(drop_columns=["was_dropped"], partition_by=["v"])
    path = proxy_config(tmp_path, table.uri)
    path.write_text(f'{path.read_text()}exclude_columns = ["v", "V", "was_dropped", "typo"]\n')
    error = error_of("proxy", "--config", path, "--check", status=0)
    assert "exclude_columns names 'V', 'typo', but the table has the columns k, v." in error


def test_a_bucket_without_a_table_is_an_error_and_status_2(table: Table, tmp_path: Path) -> None:
    path = proxy_config(tmp_path, table.uri, str(tmp_path / "nowhere"))
    error = error_of("proxy", "--config", path, "--check")
    assert "acme, bucket 'bucket1'" in error
    assert "there is no table" in error
    checked = run_json("proxy", "--config", path, "--check", status=2)
    assert [(b["parts"], b["error"] is None) for b in checked] == [(6, True), (None, False)]


def test_a_proxy_without_its_file_is_one_line(tmp_path: Path) -> None:
    for more in ([], ["--check"]):
        error = run("proxy", "--config", tmp_path / "nothing.toml", *more, status=2).stderr
        check_one_line(error)
        assert "nothing.toml" in error
