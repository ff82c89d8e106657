"""The suite of benchmarks: verdicts, pages of old and new findings, failing modules and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("deltalake")  # the extra `bench`
pytest.importorskip("matplotlib")

import pyarrow as pa
import typer

from benchmarks import redraw, suite, tips
from benchmarks.harness.connections import connected
from benchmarks.harness.figures import Check, Curve, Finding, Plan, Way
from benchmarks.harness.machine import Machine, commit_now, machine_now
from benchmarks.harness.plots import draw, goal_lines, headline
from benchmarks.harness.results import Entry, Run, page, read_entries, write_entries, write_page
from benchmarks.harness.words import number
from benchmarks.writes.inserting import LAYOUT, check_stored, goals, make_rows
from benchmarks.writes.peers import DELTALAKE, DUCKDB, POLARS, UNSYNCED, WRITERS, TablePlace

RUN = Run(Machine("a processor", 2, 8.0, "Linux", "CPython", {"duckdb": "1"}), "abc1234", False, 3, 20.0)
OURS, THEIRS = Way("icedb", [1.0, 2.0, 3.0]), Way("theirs", [2.0, 2.5, 2.0])
INSERT = Finding(
    "insert",
    "insert some rows, local",
    "s",
    [OURS, THEIRS],
    [
        Check("at most 1.05 of theirs", 1.0, 1.05, spread=(0.5, 1.5), why="never told"),
        Check("at most 0.9 of theirs", 1.0, 0.9, spread=(0.5, 1.5), why="the sort"),
        Check("at most 0.8 of theirs", 1.0, 0.8, why="the sort"),
    ],
    notes=["as large as that"],
)
COMMITS = Finding(
    "commits",
    "commits of 8 writers",
    "commits/s",
    [Way("icedb", [50.0, 50.0, 90.0]), Way("theirs", [10.0, 20.0])],
    [Check("at least 5 times theirs", 3.33, 5.0, at_least=True), Check("requests", 2, 2)],
    {"PUT": 12345},
    [Curve("while the log grows", "commits", "commits/s", [0, 10, 20], {"icedb": [50, 49, 50]}, limit=45)],
)


def row(text: str, part: str) -> list[str]:
    """Return the cells of a table's first line with these words."""
    line = next(line for line in text.splitlines() if line.startswith("|") and part in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_our_figure_the_ratios_and_a_verdict_for_each_goal() -> None:
    text = page({"insert": Entry(RUN, [INSERT]), "commits": Entry(RUN, [COMMITS])}, {})
    work, ours, others, goal, measured = row(text, "[insert some rows, local]")
    assert work == "[insert some rows, local](#insert-some-rows-local)"
    assert "### insert some rows, local" in text
    assert ours == "2 s (1 to 3)"
    assert others == "theirs 1 (0.500 to 1.50)"
    assert (goal, measured) == ("at most 1.05 of theirs", "1 (0.500 to 1.50) **met**")
    assert row(text, "at most 0.9")[-1] == "1 (0.500 to 1.50) **missed**"
    assert row(text, "at least 5 times")[-1] == "3.33 **missed**"
    assert row(text, "requests")[-1] == "2 **met**"
    assert row(text, "PUT")[-1] == "12,345"
    # What took part in some rounds is compared with these.
    assert row(text, "| theirs | 15")[-1] == "3.33 (2.50 to 5)"
    assert "median, commits/s, more is better" in text
    assert "- as large as that" in text


def test_ways_are_compared_with_what_does_the_same_and_steps_with_nothing() -> None:
    ways = [OURS, THEIRS, Way("bare", [4.0]), Way("view", [2.0], "view"), Way("bare, merged", [1.0], "view")]
    finding = replace(INSERT, ways=[*ways, Way("icedb, again", [0.0001, 0.0003, 0.0002], "")], short="rows, local")
    text = page({"insert": Entry(RUN, [finding])}, {})
    assert row(text, "[rows, local]")[:2] == ["[rows, local](#insert-some-rows-local)", "2 s (1 to 3)"]
    assert row(text, "[rows, local]")[2].split("<br>") == [
        "theirs 1 (0.500 to 1.50)", "bare 0.250 (0.250 to 0.250)", "view to bare, merged 2 (2 to 2)",
    ]  # fmt: skip
    assert row(text, "| bare, merged |")[1:] == ["1", "1 to 1", "2 (2 to 2), by view"]
    assert row(text, "| view |")[-1] == ""
    assert row(text, "| icedb, again |") == ["icedb, again", "0.200 ms", "0.100 ms to 0.300 ms"]


def test_rows_without_comparison_list_our_ways() -> None:
    measured_findings = replace(
        COMMITS, ways=[Way("icedb, at first", [1.0, 3.0, 2.0]), Way("icedb, merged", [0.5])], unit="s"
    )
    text = page({"commits": Entry(RUN, [measured_findings])}, {})
    assert row(text, "[commits of 8 writers]")[1:3] == ["at first 2 s (1 to 3)<br>merged 0.500 s", ""]
    assert row(text, "| icedb, merged |") == ["icedb, merged", "0.500", "0.500 to 0.500"]


def test_counts_of_several_groups_are_columns() -> None:
    text = page({"commits": Entry(RUN, [replace(COMMITS, counts={"we: GET": 1, "they: GET": 2, "they: PUT": 3})])}, {})
    assert row(text, "| counted |") == ["counted", "we", "they"]
    assert row(text, "| GET |") == ["GET", "1", "2"]
    assert row(text, "| PUT |") == ["PUT", "", "3"]


def test_the_page_has_the_time_of_each_module() -> None:
    measured_findings = {
        "insert": Entry(RUN, [INSERT], module="benchmarks.writes.inserting", seconds=90.4),
        "dicts": Entry(RUN, [replace(INSERT, key="dicts")], module="benchmarks.writes.inserting", seconds=90.4),
        "merge": Entry(RUN, failed="why", module="benchmarks.writes.merging", seconds=10),
    }
    assert row(page(measured_findings, {}), "| time |")[1] == "inserting 90 s, merging 10 s; in total 100 s"


def test_reasons_are_printed_once_for_missed_goals() -> None:
    text = page({"insert": Entry(RUN, [INSERT])}, {})
    assert text.count("Why missed: the sort") == 1
    assert "never told" not in text


def test_every_row_is_printed_and_failures_are_reported() -> None:
    text = page({"merge": Entry(RUN, failed="OutOfMemory: no | more")}, {})
    assert "| merge 600 parts into 30 |  |  |  | **failed**: OutOfMemory: no \\| more |" in text
    assert "Failed: OutOfMemory: no | more" in text
    assert text.count("| not measured |") == len(suite.ROWS) - 1


def test_different_conditions_are_separate_sections() -> None:
    entries = {"insert": Entry(RUN, [INSERT]), "commits": Entry(replace(RUN, full=True, commit="def5678"), [COMMITS])}
    text = page(entries, {})
    assert "## Where: insert\n" in text
    assert "## Where: commits\n" in text
    assert "abc1234" in text
    assert "def5678" in text
    assert "full, 3 rounds" in text


def test_numbers_keep_three_digits() -> None:
    assert [number(v) for v in (0, 0.012345, 0.9996, 1.05, 12.34, 999.4, 12345.6, 20)] == [
        "0", "0.0123", "1.000", "1.05", "12.3", "999", "12,346", "20",
    ]  # fmt: skip


def test_written_entries_are_read_back(tmp_path: Path) -> None:
    entries = {"insert": Entry(RUN, [INSERT]), "commits": Entry(RUN, [COMMITS]), "life": Entry(RUN, failed="why")}
    write_entries(tmp_path / "new" / "r.json", entries)
    assert page(read_entries(tmp_path / "new" / "r.json"), {}) == page(entries, {})
    assert read_entries(tmp_path / "none.json") == {}


@pytest.mark.process
def test_the_machine_is_described() -> None:
    machine = machine_now()
    assert machine.processor
    assert machine.cores > 0
    assert machine.memory_gib > 0
    assert machine.versions["duckdb"][0].isdigit()
    assert commit_now()


def test_goals_are_drawn_as_limits_of_our_bar() -> None:
    assert list(goal_lines(INSERT)) == [
        ("goal: at most 1.05 times theirs", pytest.approx(2.1)),
        ("goal: at most 0.9 times theirs", pytest.approx(1.8)),
        ("goal: at most 0.8 times theirs", pytest.approx(1.6)),
    ]
    absolute = replace(INSERT, checks=[Check("under 1.5 s", 2.0, 1.5), Check("requests", 7, 7)])
    assert list(goal_lines(absolute)) == [("goal: at most 1.5", 1.5)]


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (INSERT, "icedb is as fast as the fastest other way, theirs"),
        (replace(INSERT, ways=[OURS, Way("slow", [9.0]), THEIRS]), "icedb is as fast as the fastest other way, theirs"),
        (
            replace(INSERT, ways=[OURS, Way("quick", [0.5])]),
            "icedb takes 4 times as long as the fastest other way, quick",
        ),
        (COMMITS, "icedb is 3.33 times as fast as the fastest other way, theirs"),
        (
            replace(COMMITS, ways=[Way("icedb", [5.0]), Way("theirs", [10.0])]),
            "icedb takes 2 times as long as the fastest other way, theirs",
        ),
        (replace(INSERT, ways=[OURS, Way("a step", [1.0], "")]), "From 2 s (icedb) to 2 s (icedb)"),
        (
            replace(INSERT, ways=[Way("icedb, merged", [0.001]), Way("icedb, as it is", [4.0])]),
            "From 1 ms (icedb, merged) to 4 s (icedb, as it is)",
        ),
    ],
)
def test_the_title_of_a_plot_states_the_finding(finding: Finding, expected: str) -> None:
    assert headline(finding) == expected


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_plots_are_exactly_those_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    for name in ("insert-9.png", "mine.png"):
        (tmp_path / "plots" / name).touch()
    wide = replace(INSERT, ways=[OURS, Way("slow", [300.0])])
    write_page(tmp_path / "R.md", {"insert": Entry(RUN, [wide]), "commits": Entry(RUN, [COMMITS])})
    pictures = {p.name: p.read_bytes() for p in (tmp_path / "plots").iterdir()}
    assert set(pictures) == {"insert-1.png", "commits-1.png", "commits-1-curves.png", "mine.png"}
    assert all(body.startswith(b"\x89PNG") for name, body in pictures.items() if name != "mine.png")
    text = (tmp_path / "R.md").read_text()
    assert all(f"](plots/{name})" in text for name in pictures if name != "mine.png")
    assert draw(replace(COMMITS, ways=[OURS, Way("a step", [1.0], "")], curves=[]), tmp_path / "x") == []


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_plots_are_drawn_again_from_the_stored_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_entries(tmp_path / "R.json", {"insert": Entry(RUN, [INSERT])})
    monkeypatch.setattr(redraw, "RESULTS", tmp_path / "R.md")
    monkeypatch.setattr(tips, "PLOTS", tmp_path)
    redraw.redraw()
    assert {p.name for p in tmp_path.glob("plots/*")} == {"insert-1.png"}
    assert "](plots/insert-1.png)" in (tmp_path / "R.md").read_text()
    drawn = {f"tips-{key}.png" for key, tip in tips.TIPS.items() if tip.drawn}
    assert {p.name for p in tmp_path.glob("*.png")} == drawn


MODULE = """
import os
from benchmarks.harness.connections import connected
from benchmarks.harness.figures import Check, Finding, Way

def measure(plan, folder, on_step):
    on_step("measuring")
    assert list(folder.iterdir()) == []
    (folder / "left.txt").write_text("something")
    print("noise")
    {body}
"""
FOUND = "return [Finding('{key}', '{title}', 's', [Way('icedb', [1.0])], [Check('goal', 1, 2)])]"


def make_module(folder: Path, name: str, body: str) -> None:
    (folder / f"{name}.py").write_text(MODULE.format(body=body))


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_failed_module_is_reported_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    make_module(tmp_path, "bench_raises", "raise ValueError('not today')")
    make_module(tmp_path, "bench_dies", "os._exit(3)")
    make_module(tmp_path, "bench_finds", FOUND.format(key="merge", title="of the fake"))
    modules = {
        "bench_raises": ("insert", "dicts"),
        "bench_dies": ("commits",),
        "bench_finds": ("merge", "open"),
        "bench_is_not_there": ("life",),
        "bench_not_asked_for": ("store",),
    }
    steps: list[str] = []
    (tmp_path / "work").mkdir()
    plan = Plan(only=frozenset(("insert", "commits", "merge", "open", "life")))
    measured_findings = suite.measure_all(modules, plan, tmp_path / "work", steps.append)
    answers = {key: measured.answer for key, measured in measured_findings.items()}
    whys = {key: failure.why for key, failure in answers.items() if isinstance(failure, suite.Failure)}
    assert whys == {
        "insert": "ValueError: not today",
        "commits": "bench_dies ended with exit status 3",
        "open": "bench_finds returned no finding for open",
        "life": "ModuleNotFoundError: No module named 'bench_is_not_there'",
    }
    raised = answers["insert"]
    assert isinstance(raised, suite.Failure)
    assert "noise" in raised.printed
    assert "Traceback" in raised.printed
    merged = answers["merge"]
    assert not isinstance(merged, suite.Failure)
    assert [finding.title for finding in merged] == ["of the fake"]
    assert any("1 of 4: measuring" in step for step in steps)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_run_of_some_rows_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(suite, "MODULES", {"bench_one": ("insert",), "bench_two": ("merge",)})
    make_module(tmp_path, "bench_one", FOUND.format(key="insert", title="inserted"))
    make_module(tmp_path, "bench_two", FOUND.format(key="merge", title="merged at first"))
    out = tmp_path / "RESULTS.md"
    suite.main(out=out, folder=tmp_path)
    output = capsys.readouterr().out
    assert "1 of 2: bench_one (0 s)" in output  # no terminal: lines
    assert "2 of 2: bench_two (0 s)" in output
    assert {entry.module for entry in read_entries(out.with_suffix(".json")).values()} == {"bench_one", "bench_two"}
    assert row(out.read_text(), "[inserted]")[-1] == row(out.read_text(), "[merged at first]")[-1] == "1 **met**"

    make_module(tmp_path, "bench_one", "raise ValueError('it was not to run')")
    make_module(tmp_path, "bench_two", FOUND.format(key="merge", title="merged again"))
    suite.main(only="merge", out=out, folder=tmp_path)
    assert row(out.read_text(), "[inserted]")[-1] == row(out.read_text(), "[merged again]")[-1] == "1 **met**"
    assert "at first" not in out.read_text()

    with pytest.raises(typer.Exit) as failed:
        suite.main(only="insert", out=out, folder=tmp_path)
    assert failed.value.exit_code == 1
    assert row(out.read_text(), "insert 1M Arrow rows")[-1] == "**failed**: ValueError: it was not to run"
    assert row(out.read_text(), "[merged again]")[-1] == "1 **met**"

    with pytest.raises(typer.BadParameter, match="unknown row nothing"):
        suite.main(only="merge,nothing", out=out)


def test_every_row_is_measured_by_one_module() -> None:
    assert sorted(key for keys in suite.MODULES.values() for key in keys) == sorted(suite.ROWS)


def test_goals_compare_with_the_best_peer_with_and_without_fsync() -> None:
    ways = [
        Way("icedb", [3.0, 3.0]),
        Way(UNSYNCED, [2.0, 1.0]),
        Way(DUCKDB, [2.0, 2.0]),
        Way(POLARS, [1.5, 2.5]),
        Way(DELTALAKE, [4.0, 4.0]),
    ]
    measured_findings = goals(
        ways, [("of the best", 1.05, (DUCKDB, POLARS)), ("of deltalake", 1.0, (DELTALAKE,))], "why"
    )
    assert [(c.goal, c.value, c.limit, c.met) for c in measured_findings] == [
        ("of the best (plain DuckDB)", 1.5, 1.05, False),
        ("of the best (plain DuckDB), no fsync on either side", 0.75, 1.05, True),
        ("of deltalake", 0.75, 1.0, True),
    ]
    assert measured_findings[0].spread == (1.5, 1.5)
    assert measured_findings[1].spread == (0.5, 1.0)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in WRITERS if "pyiceberg" not in n])
def test_each_way_stores_every_row(tmp_path: Path, name: str) -> None:
    (tmp_path / "table").mkdir()
    place, rows = TablePlace(str(tmp_path / "table"), tmp_path), make_rows(400)
    with WRITERS[name](place, LAYOUT) as append:
        append(rows.slice(0, 200))
        append(rows.slice(200).to_pylist())
    check_stored(place, rows, LAYOUT, "ts, user_id, event, amount, page", ordered="unsorted" not in name)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("stored", "fault"),
    [
        ("SELECT * FROM rows ORDER BY event, ts LIMIT 99", "has other rows"),
        ("SELECT * REPLACE (amount + 1 AS amount) FROM rows ORDER BY event, ts", "has other rows"),
        ("SELECT * FROM rows ORDER BY user_id", "unsorted rows"),
        ("SELECT * FROM other_days ORDER BY event, ts", "rows of 30 partitions"),
    ],
)
def test_wrongly_stored_rows_are_detected(tmp_path: Path, stored: str, fault: str) -> None:
    many = make_rows(3000)
    with connected() as con:
        con.register("other_days", many)
        rows = con.sql("SELECT * FROM other_days WHERE ts::DATE = DATE '2026-10-05'").to_arrow_table()
        con.register("rows", rows)
        con.execute(f"COPY ({stored}) TO '{tmp_path}/0.parquet' (FORMAT parquet)")
    expected: pa.Table = many if "other_days" in stored else rows
    with pytest.raises(AssertionError, match=fault):
        check_stored(
            TablePlace(str(tmp_path), tmp_path), expected, LAYOUT, "ts, user_id, event, amount, page", ordered=True
        )


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_small_run_writes_the_page(tmp_path: Path) -> None:
    out = tmp_path / "RESULTS.md"
    suite.main(only="dicts", rounds=1, shrink=1000, out=out, folder=tmp_path)
    verdict = row(out.read_text(), "[200 dicts, local]")[-1]
    assert "rows/s" in row(out.read_text(), "[200 dicts, local]")[1]
    assert verdict.endswith(("**met**", "**missed**"))
    assert all(name in out.read_text() for name in (UNSYNCED, DUCKDB, POLARS, DELTALAKE))
    assert (tmp_path / "plots" / "dicts-1.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.s3
@pytest.mark.slow(seconds=20)
def test_everything_about_writing_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "RESULTS.md"
    suite.main(only="insert,dicts,appends", rounds=1, shrink=1000, out=out, folder=tmp_path)
    entries = read_entries(out.with_suffix(".json"))
    assert {key: len(entry.findings) for key, entry in entries.items()} == {"insert": 2, "dicts": 1, "appends": 2}
    counts = entries["appends"].findings[1].counts
    assert counts["icedb: PUT"] > 0
    assert not any(key.startswith("icedb: GET") for key in counts)
