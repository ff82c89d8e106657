"""`icedb info`: the health of a table as text and JSON, and the commands that it recommends."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from icedb import Table, TableHealth, Thresholds
from icedb.cli.render.health_page import print_info
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.health.table_health import PartitionHealth, SizeClass, recommend
from icedb.util.times import iso_text
from tests.cli.test_commands import check_one_line, command, on_a_terminal, run, run_json

NOW_MS = 1_800_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of two partitions with five small parts each, and a dropped third one."""
    table = Table.create(tmp_path / "a table", partition_by=["k"], storage_options={"fsync": "false"})
    for n in range(5):
        table.insert([{"k": k, "n": n} for k in range(3)])
    table.drop_partitions(["k=2"])
    return table


def health(*partitions: PartitionHealth, **figures: Any) -> TableHealth:
    plain: dict[str, Any] = {
        "table": "lake/events", "at_ms": NOW_MS, "live_parts": 20, "live_rows": 1_234_567, "live_bytes": 3 * 10**9,
        "log_files": 3, "small_log_files": 2, "small_log_files_basis": "l", "dead_parts": 0, "dead_bytes": 0,
        "oldest_dead_ms": None, "expired_parts": 0, "expired_bytes": 0, "expired_log_files": 0, "expired_basis": "e",
        "horizon_ms": 0, "newest_rows_ms": NOW_MS - 90_000,
        "sizes": (SizeClass(2**20, 12, 8), SizeClass(2**27, 8, 0)),
    }  # fmt: skip
    return TableHealth(partitions=partitions, **{**plain, **figures})


def crowded(path: str, small: int, *, hot: bool = True) -> PartitionHealth:
    return PartitionHealth(path, small, 10 * small, small, 10 * small, NOW_MS, hot, path)


def page(table_health: TableHealth, *, width: int = 100) -> str:
    thresholds = Thresholds()
    console = Console(width=width, file=StringIO())
    due = recommend(table_health, thresholds)
    print_info(console, replace(table_health, recommendations=due), thresholds, uri="lake/events")
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


# ------------------------------------------------------------------------------------------------ the command


def test_a_table_without_due_maintenance(table: Table) -> None:
    printed = run("info", table.uri).stdout
    for text in ("nothing is due", "10 parts", "in 2 partitions", "every snapshot can be read"):
        assert text in printed
    assert re.search(r"rows +10\b", printed)
    assert re.search(r"superseded +5 parts", printed)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_due_maintenance_is_printed_with_its_command(table: Table) -> None:
    for n in range(3):
        table.insert([{"k": 9, "n": n}])
    limits = ["--hot-parts", "8", "--log-files", "4"]
    printed = run("info", table.uri, *limits).stdout
    assert "due: merge, newest first" in printed
    assert "has 5 small parts and should have fewer than 8; 1 more has 4 at least" in printed
    assert "due: merge of log files" in printed
    # A path with a space is quoted, so that a shell accepts the lines as they are.
    commands = [shlex.split(line) for line in printed.splitlines() if line.strip().startswith("icedb ")]
    assert [words[:-1] for words in commands] == [["icedb", "merge", "--order", "newest"], ["icedb", "merge-log"]]
    for words in commands:
        run(*words[1:])
    assert "nothing is due" in run("info", table.uri, *limits).stdout
    assert table.snapshot().rows == 13


def test_every_threshold_has_a_flag(table: Table) -> None:
    cold = run_json("info", table.uri, "--hot", "0s", "--cold-parts", "10")
    assert [r["due"] for r in cold["recommendations"]] == ["merge_oldest"]
    flags = {
        "--hot-parts": 40, "--cold-parts": 20, "--part-bytes-max": 2, "--log-files": 100,
        "--expired-bytes": 5, "--expired-objects": 6,
    }  # fmt: skip
    words = [word for flag, value in flags.items() for word in (flag, value)]
    report = run_json("info", table.uri, *words, "--hot", "2h")
    assert report["thresholds"] == {
        "hot_parts": 40, "cold_parts": 20, "hot_ms": 2 * HOUR_MS, "part_bytes_max": 2, "log_files": 100,
        "expired_bytes": 5, "expired_objects": 6,
    }  # fmt: skip
    assert report["small_parts"] == 0
    assert report["thresholds"].keys() == set(Thresholds.__slots__)


def test_the_json_document_is_the_health(table: Table) -> None:
    report = run_json("info", table.uri, "--hot-parts", 8)
    expected = table.health(Thresholds(hot_parts=8))
    assert [p["path"] for p in report["partitions"]] == ["k=0", "k=1"]
    assert [(r["due"], r["basis"]) for r in report["recommendations"]] == [
        (r.due, r.basis) for r in expected.recommendations
    ]
    assert (report["live_rows"], report["small_parts"], report["small_part_ratio"]) == (10, 10, 1.0)
    assert report["no_rows_after_ms"] == report["newest_rows_ms"] == expected.newest_rows_ms
    assert report.keys() > set(TableHealth.__slots__)
    assert run("info", table.uri, "--json").stdout.count("\n") == 1


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_info_as_a_process_also_for_a_missing_table(table: Table) -> None:
    done = command("info", table.uri, "--hot-parts", "8", "--part-bytes-max", "1000")
    assert (done.returncode, done.stderr) == (0, "")
    [recommended] = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("icedb ")]
    assert recommended == f"icedb merge --order newest {shlex.quote(table.uri)} --part-bytes-max 1000"
    done = command("info", f"{table.uri}-not-there")
    assert (done.returncode, done.stdout) == (2, "")
    check_one_line(done.stderr)


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_only_a_command_is_wider_than_the_terminal(table: Table) -> None:
    output = on_a_terminal("info", table.uri, "--hot-parts", "8", NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()
    assert any("due: merge, newest first" in line for line in lines)
    assert max(len(line) for line in lines if not line.strip().startswith(("icedb ", str(table.uri)))) <= 80


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_lists_ten_partitions_and_counts_the_rest() -> None:
    hot = [crowded(f"k={n:03}", n) for n in range(2, 30)]
    printed = page(health(*hot, crowded("old", 6, hot=False), crowded("old2", 1, hot=False)))
    rows = [line.split()[0] for line in printed.splitlines() if " hot " in line or " cold " in line]
    assert rows == ["old", *(f"k={n:03}" for n in range(29, 20, -1))]
    assert "and 20 more partitions with small parts" in printed
    assert "6/8" in printed
    assert "29/64" in printed


def test_a_narrow_terminal_does_not_wrap_a_command() -> None:
    partition = crowded("k=" + "x" * 100, 40)
    lines = [line.rstrip() for line in page(health(partition), width=40).splitlines()]
    assert "    icedb merge --order newest lake/events" in lines
    assert "".join("".join(lines).split()).count("x" * 100) >= 1


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({}, "1,234,567"),
        ({}, "3.0 GB"),
        ({}, "1 min 30 s ago (2027-01-15 07:58:30 UTC)"),
        ({"live_rows": None}, "unknown"),
        ({"newest_rows_ms": None}, "none yet"),
        ({"newest_rows_ms": NOW_MS + HOUR_MS}, "in 1 h ("),
        ({"newest_rows_ms": NOW_MS - DAY_MS, "horizon_ms": NOW_MS - HOUR_MS}, "or earlier: cleanup has removed"),
        ({"newest_rows_ms": 10**15}, " (1000000000000000 unix ms)"),  # from a wrong clock
        ({"horizon_ms": 10**25}, " (10000000000000000000000000 unix ms): older snapshots"),
        ({"horizon_ms": NOW_MS - 3 * DAY_MS}, "older snapshots cannot be read"),
        ({"dead_parts": 1, "dead_bytes": 999, "oldest_dead_ms": NOW_MS - 5 * MINUTE_MS}, "999 B; the oldest 5 min ago"),
        ({"expired_parts": 1_000, "expired_bytes": 10**15}, "1,000.0 TB"),
        ({"expired_parts": 1_000}, "icedb cleanup lake/events"),
        ({"log_files": 32}, "icedb merge-log lake/events"),
    ],
)  # fmt: skip
def test_figures_are_printed_in_words(figures: dict[str, Any], text: str) -> None:
    assert text in page(health(**figures))


def test_a_time_out_of_range_is_printed_as_a_number() -> None:
    assert iso_text(NOW_MS) == "2027-01-15T08:00:00.000+00:00"
    for unix_ms in (10**15, 10**25, -(10**15)):
        assert iso_text(unix_ms) == f"{unix_ms} (unix ms)"
