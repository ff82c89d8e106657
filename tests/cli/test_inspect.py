"""Verbs that inspect: query results, lists, history and charts, as text, JSON and files."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.text import Text

from icedb import Table, TableHealth, Thresholds
from icedb.cli.render.health_charts import charts
from icedb.cli.render.text_tables import print_list
from icedb.operations.health.gauges import gauges
from icedb.operations.report.page import _template
from icedb.reader.history import log_files
from icedb.util.times import iso_text
from tests.cli.test_commands import check_one_line, on_a_terminal, run, run_json
from tests.repository.test_layers import loaded


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with two partitions: one of two parts, the first from a merge, and one of one part."""
    table = Table.create(tmp_path / "a table", partition_by=["k"], sort_by=["n"], storage_options={"fsync": "false"})
    table.insert([{"k": 0, "n": 1}, {"k": 1, "n": 2}])
    table.insert([{"k": 0, "n": 3}], txn=("app", 7))
    table.merge()
    table.insert([{"k": 0, "n": 5, "text": "five"}])
    return table


# ------------------------------------------------------------------------------------------------ query

ODD = """SELECT * FROM (VALUES (1, 'a,"b"', 1.5::DOUBLE, [1.0, 'nan'::DOUBLE], DATE '2026-11-21'),
    (2, '', 'nan', NULL, NULL), (3, NULL, '-inf', [], DATE '2026-11-22')) AS rows(n, s, x, l, d) ORDER BY n"""


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_query_is_an_argument_a_file_or_standard_input(table: Table, tmp_path: Path) -> None:
    sql = "SELECT k, count(*) AS c FROM t GROUP BY k ORDER BY k"
    (tmp_path / "query.sql").write_text(sql + ";\n")
    expected = [{"k": 0, "c": 3}, {"k": 1, "c": 1}]
    assert run_json("query", table.uri, sql) == expected
    assert run_json("query", table.uri, "--file", tmp_path / "query.sql") == expected
    for words in (["-"], []):
        assert run_json("query", table.uri, *words, input=sql) == expected
    assert run("query", table.uri, sql).stdout.split() == ["k", "c", "─", "─", "0", "3", "1", "1"]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_query_with_as_of_where_and_final(table: Table) -> None:
    then = table.history()[1].at_ms
    assert run_json("query", table.uri, "SELECT n FROM t ORDER BY n", "--as-of", then) == [{"n": n} for n in (1, 2, 3)]
    assert run_json("query", table.uri, "SELECT max(n) AS m FROM t", "--where", "k = 1") == [{"m": 2}]
    assert run_json("query", table.uri, "SELECT count(*) AS c FROM final") == [{"c": 4}]
    assert run_json("query", table.uri, "FROM t WHERE false") == []


@pytest.mark.long
def test_formats_of_a_result(table: Table, tmp_path: Path) -> None:
    rows = [
        {"n": 1, "s": 'a,"b"', "x": 1.5, "l": [1.0, None], "d": "2026-11-21"},
        {"n": 2, "s": "", "x": None, "l": None, "d": None},
        {"n": 3, "s": None, "x": None, "l": [], "d": "2026-11-22"},
    ]
    assert run_json("query", table.uri, ODD) == rows
    lines = run("query", table.uri, ODD, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line, parse_constant=lambda _: pytest.fail("not JSON")) for line in lines] == rows
    text = run("query", table.uri, ODD, "--format", "csv").stdout
    assert text.splitlines()[1:3] == ['1,"a,""b""",1.5,"[1.0, nan]",2026-11-21', '2,"",nan,,']
    assert [row["s"] for row in csv.DictReader(io.StringIO(text))] == ['a,"b"', "", ""]
    for form in ("csv", "json", "jsonl", "parquet", "arrow"):
        run("query", table.uri, ODD, "--format", form, "--output", tmp_path / f"answer.{form}")
    read = duckdb.sql(f"SELECT s FROM read_csv('{tmp_path}/answer.csv', allow_quoted_nulls=false)").fetchall()
    assert read == [('a,"b"',), ("",), (None,)]
    parquet = pq.read_table(tmp_path / "answer.parquet")
    with pa.ipc.open_stream(tmp_path / "answer.arrow") as stream:
        assert repr(stream.read_all().to_pylist()) == repr(parquet.to_pylist())
    assert parquet.column("n").to_pylist() == [1, 2, 3]
    assert json.loads((tmp_path / "answer.json").read_text()) == rows
    assert not list(tmp_path.glob(".*")), "no unfinished file remains"


def test_csv_with_duplicate_and_quoted_names(table: Table) -> None:
    text = run("query", table.uri, 'SELECT 1 AS a, 2 AS a, 3 AS "x,""y"', "--format", "csv").stdout
    assert list(csv.reader(io.StringIO(text))) == [["a", "a_1", 'x,"y'], ["1", "2", "3"]]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_large_result_is_complete_in_every_format(table: Table, tmp_path: Path) -> None:
    sql = "SELECT range AS n, 'text ' || range AS s FROM range(250_000)"
    for form in ("csv", "jsonl", "json", "parquet"):
        file = tmp_path / f"answer.{form}"
        run("query", table.uri, sql, "--format", form, "-o", file)
        totals = duckdb.sql(f"SELECT count(*), sum(n), max(s) FROM '{file}'").fetchone()
        assert totals == (250_000, 250_000 * 249_999 // 2, "text 99999"), form


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_terminal_shows_the_first_rows_with_a_hint(table: Table) -> None:
    sql = "SELECT range AS n FROM range(300)"
    assert run("query", table.uri, sql).stdout.splitlines()[-1].strip() == "299"  # a pipe gets all rows
    few = run("query", table.uri, sql, "--limit", 2)
    assert few.stdout.split() == ["n", "─", "0", "1"]
    assert "the first 2 rows" in few.stderr
    assert run("query", table.uri, sql, "--limit", 0).stderr == ""
    printed = on_a_terminal("query", table.uri, sql, NO_COLOR="1")
    assert "the first 100 rows; --limit 0 shows all" in printed
    assert "\n99\n" in printed
    assert "100\n" not in printed


@pytest.mark.long
def test_control_characters_are_escaped(table: Table) -> None:
    printed = run("query", table.uri, "SELECT 'a' || chr(27) || '[31m' || chr(10) || 'b' AS s, NULL AS nothing").stdout
    assert printed.splitlines()[2].split() == [r"a\x1b[31m\nb", "null"]


@pytest.mark.sampled(cases=4, days=3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SELECT nothing FROM t"], 'Referenced column "nothing" not found'),
        (["SELEKT 1"], "syntax error"),
        (["FROM events"], "The table is called t."),
        (["DROP VIEW t"], "Write one SELECT over t"),
        (["SELECT 1", "--where", "missing = 1"], "missing"),
        (["SELECT 1", "--output", "x.csv"], "--output requires a --format"),
        (["SELECT 1", "--json", "--format", "csv"], "exclude each other"),
        (["SELECT 1", "--format", "csv", "--limit", "3"], "write LIMIT in the query"),
        (["SELECT 1", "--file", "x.sql"], "either a query as an argument, or --file"),
        (["--file", "not-there.sql"], "not-there.sql"),
        (["SELECT 1", "--as-of", "yesterday"], "is not a time with a time zone"),
        (["SELECT 1", "--format", "csv", "--output", "no/such/folder.csv"], "no/such"),
        (["SELECT 1/0::INT AS x, error('at the last row') FROM t", "--format", "csv"], "at the last row"),
    ],
)
def test_an_invalid_query_is_a_plain_message(table: Table, arguments: list[str], message: str) -> None:
    result = run("query", table.uri, *arguments, status=2)
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert "LINE 1" not in result.stderr


def test_a_failed_query_leaves_the_output_file(table: Table, tmp_path: Path) -> None:
    (tmp_path / "answer.csv").write_text("from before")
    run("query", table.uri, "SELECT error('no') FROM t", "--format", "csv", "-o", tmp_path / "answer.csv", status=2)
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["answer.csv"]
    assert (tmp_path / "answer.csv").read_text() == "from before"


@pytest.mark.process
def test_binary_formats_go_to_a_pipe_but_not_to_a_terminal(table: Table) -> None:
    for form in ("parquet", "arrow"):
        piped = run("query", table.uri, "FROM t", "--format", form).stdout_bytes
        read = pq.read_table(io.BytesIO(piped)) if form == "parquet" else pa.ipc.open_stream(piped).read_all()
        assert read.num_rows == 4
    printed = on_a_terminal("query", table.uri, "FROM t", "--format", "parquet", status=2, columns=120, NO_COLOR="1")
    assert "parquet is binary and cannot be printed on a terminal" in printed


# ------------------------------------------------------------------------------------------------ lists


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parts_are_listed_as_text_json_and_paths(table: Table) -> None:
    parts = table.snapshot().parts
    assert [p["path"] for p in run_json("parts", table.uri)] == [p.path for p in parts]
    first = run_json("parts", table.uri)[0]
    assert first == {
        "path": parts[0].path, "key": parts[0].key, "partition": parts[0].partition, "rows": parts[0].rows,
        "bytes": parts[0].bytes, "created_ms": parts[0].created_ms,
    }  # fmt: skip
    paths = run("parts", table.uri, "--format", "paths").stdout
    assert paths.splitlines() == [p.path for p in parts]
    assert run("parts", table.uri, "--format", "paths", "-0").stdout.split("\0") == [*(p.path for p in parts), ""]
    assert duckdb.read_parquet(paths.splitlines(), union_by_name=True).fetchall().__len__() == 4
    assert all(p.path in run("parts", table.uri).stdout for p in parts)


@pytest.mark.long
def test_parts_are_filtered_by_predicate_partition_and_time(table: Table) -> None:
    def partitions(*words: object) -> list[str]:
        return [p["partition"] for p in run_json("parts", table.uri, *words)]

    assert partitions("--where", "n >= 5") == ["k=0"]
    assert partitions("--partition", "k=1") == ["k=1"]
    assert partitions("--partition", "k=1", "--where", "n = 5") == []
    assert partitions("--as-of", table.history()[-1].at_ms) == ["k=0", "k=1"]
    assert "there is no partition 'k=9'" in " ".join(
        run("parts", table.uri, "--partition", "k=9", status=2).stderr.replace("│", " ").split()
    )


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_narrow_terminal_does_not_cut_addresses(s3: Any) -> None:
    table = Table.create(s3.uri, storage_options=s3.storage_options)
    table.insert([{"n": 1}])
    (part,) = table.snapshot().parts
    for words in (["parts"], ["parts", "--format", "paths"]):
        printed = on_a_terminal(words[0], s3.uri, *words[1:], columns=40, NO_COLOR="1", **s3.storage_options)
        assert part.path.startswith("s3://")
        assert part.path in printed.splitlines()[-1]


def test_the_tables_under_a_root_are_listed(table: Table) -> None:
    root = Path(table.uri).parent
    Table.create(root / "below" / "empty")
    heading, _, full, empty = run("list", root).stdout.splitlines()
    assert heading.split() == ["rows", "parts", "size", "newest", "part", "table"]
    assert empty.split() == ["0", "0", "0", "B", str(root / "below" / "empty")]
    assert full.split()[:2] == ["4", "3"]
    assert full.endswith(table.uri)
    (root / "below" / "empty" / "_table.json").write_text("{")
    result = run("list", root, status=2)
    assert (len(result.stdout.splitlines()), result.stderr.startswith("error: ")) == (3, True)
    [sound, broken] = run_json("list", root, status=2)
    assert (broken["rows"], sound["rows"], sound["error"]) == (None, 4, None)
    (root / "nothing").mkdir()
    assert run("list", root / "nothing").stdout == f"No table is at {root / 'nothing'} or below it.\n"
    assert f"{root / 'misspelt'}: there is no such folder" in run("list", root / "misspelt", status=2).stderr


def test_partitions_are_summed_up(table: Table) -> None:
    k0, k1 = run_json("partitions", table.uri)
    of_k0 = [p for p in table.snapshot().parts if p.partition == "k=0"]
    assert k0 == {
        "path": "k=0", "parts": 2, "rows": 3, "bytes": sum(p.bytes for p in of_k0),
        "newest_part_ms": max(p.created_ms for p in of_k0),
    }  # fmt: skip
    assert (k1["path"], k1["parts"], k1["rows"]) == ("k=1", 1, 1)
    assert [p["path"] for p in run_json("partitions", table.uri, "--where", "k > 0")] == ["k=1"]
    then = table.history()[-1].at_ms
    assert [p["rows"] for p in run_json("partitions", table.uri, "--as-of", then)] == [1, 1]
    assert run("partitions", table.uri).stdout.splitlines()[2].split()[:2] == ["2", "3"]


def test_a_table_without_partitions_has_one(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", storage_options={"fsync": "false"})
    assert run_json("partitions", table.uri) == run_json("parts", table.uri) == run_json("history", table.uri) == []
    table.insert([{"n": 1}])
    assert run("partitions", table.uri).stdout.splitlines()[-1].endswith("(all)")


def test_columns_are_listed(table: Table) -> None:
    table.alter(required=["n"], partition_by=["k", "n % 2 AS odd"])
    columns = {c["name"]: c for c in run_json("schema", table.uri)}
    assert list(columns) == ["k", "n", "text", "odd"]
    assert (columns["n"]["type"], columns["n"]["required"]) == ("BIGINT", True)
    assert columns["odd"]["expression"] == "(n % 2)"
    assert columns["text"]["since_ms"] == table.history()[1].at_ms
    lines = {line.split()[0]: line.split() for line in run("schema", table.uri).stdout.splitlines()[2:]}
    assert (lines["n"][1:3], lines["odd"][-3:]) == (["BIGINT", "no"], ["(n", "%", "2)"])


def test_log_files_are_listed(table: Table) -> None:
    files = log_files(table.handle)
    current = [f for f in files if f.state == "current"]
    assert len(current) < len(files)
    assert [f["key"] for f in run_json("log", table.uri)] == [f.key for f in current]
    assert [f["key"] for f in run_json("log", table.uri, "--all")] == [f.key for f in files]
    printed = run("log", table.uri).stdout
    assert "merge; parts: 1 new, 2 removed, 1 carried; 2 replaced log files" in printed
    assert "and 2 more log files that are superseded" in printed
    assert run("log", table.uri, "--all").stdout.count("replaced\x20\x20") == 2


# ------------------------------------------------------------------------------------------------ the past


@pytest.mark.sampled(days=3)
def test_the_history_is_listed(table: Table) -> None:
    commits = run_json("history", table.uri)
    assert [c["kind"] for c in commits] == ["insert", "merge", "insert", "insert"]
    assert commits[2]["txn"] == {"app": 7}
    assert commits[1]["added_rows"] == commits[1]["removed_rows"] == 2
    assert len(run_json("history", table.uri, "--limit", 1)) == 1
    assert len(run_json("history", table.uri, "--since", commits[1]["at_ms"])) == 2
    lines = run("history", table.uri).stdout.splitlines()
    assert lines[3].split()[1:6] == ["merge", "+1", "-2", "+2", "-2"]
    assert "app:7" in lines[4]
    assert "The newest 2 commits; --limit 0 lists all." in run("history", table.uri, "--limit", 2).stdout


def test_an_incomplete_commit_has_a_mark(table: Table) -> None:
    for _ in range(2):
        table.cleanup(grace_ms=0, allow_short_grace=True)
    printed = run("history", table.uri).stdout
    assert "*: the commit may have changed more" in printed
    assert "merge*" in printed


@pytest.mark.long
def test_a_difference_is_printed(table: Table) -> None:
    commits = table.history()
    times = [iso_text(commits[n].at_ms) for n in (2, 1, 0)]
    merged = run_json("diff", table.uri, "--since", times[0], "--until", times[1], "--rows")
    assert (merged["added_rows"], merged["removed_rows"]) == (2, 2)
    assert (merged["inserted_rows"], merged["deleted_rows"]) == (0, 0)
    assert [p["path"] for p in merged["partitions"]] == ["k=0"]
    printed = run("diff", table.uri, "--since", times[1], "--rows").stdout
    assert "1 part with 1 rows added, between" in printed
    assert "Of these rows, 1 are new and 0 are gone" in printed
    assert "New columns: text VARCHAR." in printed
    assert "No part added or removed" in run("diff", table.uri, "--since", times[2]).stdout
    assert "Exchange them" in run("diff", table.uri, "--since", times[2], "--until", times[1], status=2).stderr


# ------------------------------------------------------------------------------------------------ terminals


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_colours_appear_on_a_terminal_without_no_color(table: Table) -> None:
    assert "\x1b[" in on_a_terminal("history", table.uri)
    plain = on_a_terminal("history", table.uri, NO_COLOR="1")
    assert not re.search(r"\x1b\[(3|9)\d", plain)
    assert "\x1b[" not in run("history", table.uri).stdout


def test_a_narrow_terminal_hides_columns_with_a_hint() -> None:
    rows: list[list[str | Text]] = [["aaaa", "bbbb", Text("cccc", style="red")]]
    for width, expected in ((20, "1  2 3"), (12, "1  3"), (3, "1")):
        console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True)
        print_list(console, ["1", ">2", "3"], rows, optional=[(1,), (2,)])
        printed = re.sub("\x1b[^m]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
        assert printed.split("\n")[0].split() == expected.split()
        assert ("A wider terminal" in printed.replace("\n", " ")) == (width < 16)
        assert "aaaa" in printed


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_closed_pipe_is_no_error(table: Table) -> None:
    words = [sys.executable, "-m", "icedb.cli", "query", table.uri, "FROM range(1_000_000)", "--format", "csv"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "range\n"
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_help_imports_no_slow_module() -> None:
    heavy = ["pyarrow", "duckdb", "obstore", "matplotlib", "boto3", "numpy", "asyncio", "icedb.table"]
    assert loaded("import icedb.cli", heavy) == set()


# ------------------------------------------------------------------------------------------------ drawings


def drawn(health: TableHealth, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(charts(health, Thresholds(), width=width))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("width", [80, 120])
def test_charts_of_partitions_and_parts_by_size(table: Table, width: int) -> None:
    health = table.health()
    lines = drawn(health, width)
    assert max(map(len, lines)) <= width
    assert sum("partitions by size" in line and "parts by size" in line for line in lines) == (width == 120)
    k0 = next(line for line in lines if line.startswith("k=0"))
    k1 = next(line for line in lines if line.startswith("k=1"))
    assert k0.startswith("k=0  " + 24 * "▒" + " ")  # a merge would take both parts
    assert re.match("k=1  █+ ", k1)
    assert any("from 256 B" in line or "from 512 B" in line for line in lines)
    assert any("log files to read" in line and "of 64" in line for line in lines)


def test_sizes_are_counted_by_powers_of_two(table: Table) -> None:
    health = table.health()
    parts = table.snapshot().parts
    assert sum(c.parts for c in health.sizes) == len(parts)
    assert sum(c.small_parts for c in health.sizes) == health.small_parts == 2
    for one in health.sizes:
        assert one.parts == sum(one.bytes_min <= p.bytes < 2 * one.bytes_min for p in parts)


def test_gauges_have_value_limit_and_level(table: Table) -> None:
    thresholds = Thresholds(hot_parts=4)
    by_name = {g.name: g for g in gauges(table.health(thresholds), thresholds)}
    hot = by_name["hot partition: small parts"]
    assert (hot.value, hot.limit, hot.level) == (2, 4, 1)
    assert by_name["expired bytes"].level == 0
    assert by_name["log files to read"].value == 0, "a merge of log files would take none of them"
    for n in range(3):
        table.insert([{"k": 0, "n": n}])
    by_name = {g.name: g for g in gauges(table.health(), Thresholds())}
    assert by_name["log files to read"].value == len(table.handle.read().effective) == 5


def test_report_writes_a_page_and_prints_what_is_due(table: Table, tmp_path: Path) -> None:
    page = tmp_path / "table.html"
    printed = " ".join(run("report", table.uri, "-o", page).stderr.split())
    assert printed == f"Wrote {page}. Nothing is due."
    printed = " ".join(run("report", table.uri, "-o", page, "--hot-parts", 4).stderr.split())
    command = f"icedb merge --order newest {shlex.quote(table.uri)}"
    assert printed == f"Wrote {page}. Most due: merge, newest first. Run: {command}"
    assert command in html.unescape(page.read_text())


@pytest.mark.parametrize("target", ["folder", "folder/none/page.html", "fifo"])
def test_report_replaces_nothing_but_a_file(table: Table, tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    before = sorted(tmp_path.rglob("*"))
    printed = run("report", table.uri, "-o", tmp_path / target, status=2).stderr
    check_one_line(printed)
    assert str(tmp_path / target.removesuffix("/page.html")) in printed
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failed_report_leaves_the_earlier_page(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "table.html"
    run("report", table.uri, "-o", page)
    before = page.read_bytes()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    _template.cache_clear()
    printed = run("report", table.uri, "-o", page, status=2).stderr
    assert "pip install 'icedb-dagster[cli]'" in printed
    assert page.read_bytes() == before
    assert [path.name for path in tmp_path.glob("*unfinished*")] == []


def test_info_and_report_of_an_empty_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", storage_options={"fsync": "false"})
    assert "figures beside their thresholds" in run("info", table.uri).stdout
    run("report", table.uri, "-o", tmp_path / "table.html")
    page = (tmp_path / "table.html").read_text()
    for text in ("The table has no rows.", "The table has no commit yet.", "The table has no columns yet."):
        assert text in page
