"""Verbs that write: commits, dry runs, and messages in terms of the command."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from icedb import Dedup, Replacing, Table
from icedb.cli.render.messages import PHRASES, in_the_shell, with_options
from icedb.format.table_spec import TableSpec
from tests.cli.test_commands import error_of, run, run_json

ROOT = Path(__file__).parents[2]


def rows(table: Table) -> list[tuple[int, int]]:
    return table.query("SELECT k, n FROM t ORDER BY ALL").fetchall()


def objects(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def newest_spec(table: Table) -> TableSpec:
    opened = Table.open(table.uri)
    opened.snapshot()  # the log has the altered spec
    return opened.spec


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"k": 0, "n": 10}\n{"k": 7, "n": 17}\n')
    return path


# ------------------------------------------------------------------------------------------------ create, alter


def test_create_applies_all_flags(tmp_path: Path) -> None:
    flags = ["--partition-by", "k", "--sort-by", "a", "--sort-by", "b", "--column", "k=BIGINT",
             "--column", "a=DECIMAL(9,2)", "--required", "k", "--compression", "snappy", "--row-group-rows", 4096,
             "--bloom-filters", "a", "--bloom-filters", "k",
             "--row-id", "--merge-by", "a", "--merge-version", "b", "--log-uri", tmp_path / "log"]  # fmt: skip
    planned = run_json("create", tmp_path / "table", *flags, "--dry-run")
    assert planned["dry_run"]
    assert objects(tmp_path) == []
    done = run_json("create", tmp_path / "table", *flags)
    assert done == {**planned, "dry_run": False}
    spec = Table.open(tmp_path / "table").spec
    assert (spec.partition_by, spec.sort_by, spec.required, spec.compression) == (("k",), ("a", "b"), ("k",), "snappy")
    assert (spec.columns, spec.row_group_rows, spec.row_id) == ({"k": "BIGINT", "a": "DECIMAL(9,2)"}, 4096, True)
    assert (spec.merging, spec.log_uri) == (Replacing(("a",), "b"), str(tmp_path / "log"))
    assert spec.bloom_filters == ("a", "k")
    for more in ([], ["--dry-run"]):
        assert "a table is there already. Choose another" in run("create", tmp_path / "table", *more, status=2).stderr


def test_create_applies_the_merging_flags(tmp_path: Path) -> None:
    flags = ["--partition-by", "d", "--merge-by", "k", "--merge-sum", "n", "--merge-max", "m", "--merge-count", "rows"]
    merging = run_json("create", tmp_path / "table", *flags)["spec"]["merging"]
    assert merging["kind"] == "aggregating"
    assert (merging["by"], merging["sum"], merging["max"], merging["count"]) == (["k"], ["n"], ["m"], "rows")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--column", "price"], "Write --column price=DOUBLE"),
        (["--column", "a=INT", "--column", "a=TEXT"], "twice"),
        (["--merge-sum", "n"], "needs a key"),
        (["--merge-by", "k", "--merge-version", "v", "--merge-sum", "n"], "excludes --merge-sum"),
        (["--compression", "zip"], "error: --compression must be one of"),
        (["--schema-policy", "closed"], "--schema-policy must be one of 'open', 'declared'"),
        (["--partition-by", "strftime(ts"], "strftime(ts"),
        (["--sort-by", "user_id,ts"], "Write --sort-by user_id --sort-by ts"),
        (["--bloom-filters", "a,b"], "Write --bloom-filters a --bloom-filters b"),
        (["--column", "a=DOUBLE", "--bloom-filters", "a"], "Remove it from --bloom-filters"),
        (["--merge-by", "a", "--merge-sum", "n, m"], "Write --merge-sum n --merge-sum m"),
        (["--sort-by", "b", "--column", "a=INT", "--schema-policy", "declared"], "--sort-by names 'b', and neither"),
    ],
)
def test_an_invalid_spec_creates_nothing(tmp_path: Path, flags: list[str], message: str) -> None:
    assert message in error_of("create", tmp_path / "table", *flags)
    assert objects(tmp_path) == []


def test_create_warns_about_an_undeclared_sort_column(tmp_path: Path) -> None:
    warned = run("create", tmp_path / "a", "--column", "a=INT", "--sort-by", "a", "--sort-by", "b").stderr
    assert warned.startswith("warning: --sort-by names 'b', which no --column declares.")
    assert run("create", tmp_path / "b", "--sort-by", "b").stderr == ""  # the first rows define the columns


@pytest.mark.long
def test_alter_prints_changes_and_a_dry_run_commits_nothing(table: Table) -> None:
    flags = ["--sort-by", "n", "--merge-by", "n", "--compression", "gzip"]
    planned = run_json("alter", table.uri, *flags, "--dry-run")
    assert planned["after"] == {"sort_by": ["n"], "compression": "gzip", "merging": {"kind": "dedup", "by": ["n"]}}
    assert planned["before"] == {"sort_by": [], "compression": "zstd", "merging": None}
    assert newest_spec(table) == table.spec
    done = run_json("alter", table.uri, *flags)
    assert (done["after"], done["dry_run"]) == (planned["after"], False)
    spec = newest_spec(table)
    assert (spec.sort_by, spec.merging) == (("n",), Dedup(("n",)))
    assert done["log_file"] in objects(Path(table.uri))
    again = run_json("alter", table.uri, *flags)
    assert (again["after"], again["log_file"]) == ({}, None)
    assert run_json("alter", table.uri, "--no-sort-by", "--no-merging")["after"] == {"sort_by": [], "merging": None}
    assert run_json("alter", table.uri, "--bloom-filters", "n")["after"] == {"bloom_filters": ["n"]}
    assert run_json("alter", table.uri, "--no-bloom-filters")["after"] == {"bloom_filters": []}
    run("alter", table.uri, "--bloom-filters", "n", "--no-bloom-filters", status=2)
    assert "no such column" in run("alter", table.uri, "--sort-by", "x", "--dry-run", status=2).stderr
    run("alter", table.uri, "--sort-by", "n", "--no-sort-by", status=2)


# ------------------------------------------------------------------------------------------------ insert, overwrite


@pytest.mark.sampled(days=3)
def test_insert_of_files_and_its_dry_run(table: Table, lines: Path) -> None:
    before = objects(Path(table.uri))
    planned = run_json("insert", table.uri, lines, "--dry-run")
    assert (planned["rows"], planned["partitions"], planned["new_columns"]) == (2, ["k=0", "k=7"], {})
    assert objects(Path(table.uri)) == before
    done = run_json("insert", table.uri, lines)
    assert (done["rows"], done["partitions"], done["new_parts"]) == (2, ["k=0", "k=7"], 2)
    assert done["log_file"] in objects(Path(table.uri))
    assert rows(table) == [(0, 0), (0, 10), (1, 1), (7, 17)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_transaction_is_inserted_once(table: Table, lines: Path, dry_run: list[str]) -> None:
    run("insert", table.uri, lines, "--txn", "load:3")
    again = run_json("insert", table.uri, lines, "--txn", "load:2", *dry_run)
    assert (again["repeated"], again["rows"]) == (True, 0)
    assert len(rows(table)) == 4
    for invalid in ("load", ":3", "load:", "load:-1", "load:x"):
        assert "load:42" in error_of("insert", table.uri, lines, f"--txn={invalid}")


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("kind", "text"), [(None, '{"k": 5, "n": 5}\n'), ("csv", "k,n\n5,5\n")])
def test_insert_from_standard_input(table: Table, kind: str | None, text: str) -> None:
    flags = ["--format", kind] if kind else []
    assert run_json("insert", table.uri, "-", *flags, input=text)["rows"] == 1
    assert rows(table)[-1] == (5, 5)


def test_an_error_in_standard_input_names_it_and_its_line(table: Table) -> None:
    for more in ([], ["--dry-run"]):
        stderr = run("insert", table.uri, "-", *more, input='{"k": 1, "n": 1}\nnonsense\n', status=2).stderr
        assert "line 2 of standard input" in stderr
    assert len(rows(table)) == 2


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_dry_run_counts_the_rows_for_the_quarantine(table: Table, tmp_path: Path) -> None:
    text = '{"k": 1, "n": 1}\n{"k": 1, "n": "many"}\n'
    assert "--on-conflict" in run("insert", table.uri, "-", input=text, status=2).stderr
    quarantine = ["--on-conflict", "quarantine"]
    assert run_json("insert", table.uri, "-", *quarantine, "--dry-run", input=text)["quarantined_rows"] == 1
    assert not (tmp_path / "table_quarantine").exists()
    done = run_json("insert", table.uri, "-", *quarantine, input=text)
    assert (done["rows"], done["quarantined_rows"], done["quarantine"]) == (1, 1, str(tmp_path / "table_quarantine"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["nothing.jsonl"], "there is no file 'nothing.jsonl'"),
        (["nothing-*.jsonl"], "no file matches"),
        ([ROOT], "is a folder"),
        (["rows.txt"], "Parquet (.parquet), JSON lines"),
        (["-", "more.jsonl"], "Pass either - or files"),
        (["more.jsonl", "--format", "csv"], "for standard input"),
    ],
)
def test_an_invalid_input_is_reported(table: Table, files: list[object], message: str) -> None:
    assert message in error_of("insert", table.uri, *files, input="")


@pytest.mark.long
def test_overwrite_of_partitions_or_the_whole_table(table: Table, lines: Path) -> None:
    assert "exactly one of" in error_of("overwrite", table.uri, "--yes", lines)
    assert "outside the partitions" in run("overwrite", table.uri, "--yes", lines, "--where", "k = 0", status=2).stderr
    before = objects(Path(table.uri))
    chosen = ["--partition", "k=0", "--partition", "k=7"]
    planned = run_json("overwrite", table.uri, lines, *chosen, "--dry-run")
    assert (planned["rows"], planned["replaced_parts"], planned["replaced_rows"]) == (2, 1, 1)
    assert "outside the partitions" in error_of("overwrite", table.uri, lines, "--partition=k=0", "--dry-run")
    assert objects(Path(table.uri)) == before
    assert run_json("overwrite", table.uri, "--yes", lines, *chosen)["replaced_parts"] == 1
    assert rows(table) == [(0, 10), (1, 1), (7, 17)]
    assert (
        run_json("overwrite", table.uri, "--yes", "-", "--everything", input='{"k": 3, "n": 3}')["replaced_parts"] == 3
    )
    assert rows(table) == [(3, 3)]


# ------------------------------------------------------------------------------------------------ rewrite, views


@pytest.mark.long
def test_a_partition_is_rewritten(table: Table, tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text("SELECT k, n + 100 AS n FROM _rows")
    assert run_json("rewrite", table.uri, "k=1", "--file", file, "--dry-run")["rows"] == 1
    assert rows(table) == [(0, 0), (1, 1)]
    assert run_json("rewrite", table.uri, "--yes", "k=1", "--file", file)["rows"] == 1
    run("rewrite", table.uri, "--yes", "k=1", "--file", "-", input="SELECT k, n + 1 AS n FROM _rows")
    assert rows(table) == [(0, 0), (1, 102)]
    assert "as icedb partitions lists them" in run("rewrite", table.uri, "--yes", "k=9", "SELECT 1", status=2).stderr
    for words in ([], ["SELECT 1", "--file", file]):
        assert "Pass either a query" in error_of("rewrite", table.uri, "--yes", "k=1", *words)


@pytest.mark.long
def test_views_are_listed_and_refreshed(table: Table) -> None:
    assert run("views", table.uri).stdout == "none\n"
    view = table.create_view("sums", "SELECT k, sum(n)::BIGINT AS n FROM _rows GROUP BY k")
    [listed] = run_json("views", table.uri)
    assert (listed["name"], listed["query"]) == ("sums", "SELECT k, sum(n)::BIGINT AS n FROM _rows GROUP BY k")
    table.delete("k = 1")
    assert run_json("refresh-view", table.uri, "sums", "--dry-run")["source_rows"] == 1
    assert rows(view) == [(0, 0), (1, 1)]
    assert run_json("refresh-view", table.uri, "--yes", "sums")["rows"] == 1
    assert rows(view) == [(0, 0)]
    assert "there is no view 'x'" in run("refresh-view", table.uri, "--yes", "x", status=2).stderr


# ------------------------------------------------------------------------------------------------ export


def test_a_table_is_exported_as_parquet(table: Table, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert run_json("export", table.uri, "--parquet", target, "--dry-run")["rows"] == 2
    assert not target.exists()
    assert run_json("export", table.uri, "--parquet", target, "--where", "n > 0")["rows"] == 1
    read = f"SELECT sum(n), count(*) FROM read_parquet('{target}/**/*.parquet')"
    assert duckdb.sql(read).fetchone() == (1, 1)
    run("export", table.uri, "--parquet", target, status=2)
    assert run_json("export", table.uri, "--parquet", target, "--overwrite", "--yes")["rows"] == 2
    assert duckdb.sql(read).fetchone() == (1, 2)


@pytest.mark.sampled(days=3)
def test_a_table_is_exported_as_delta(table: Table) -> None:
    log = Path(table.uri) / "_delta_log"
    run("export", table.uri, "--delta", "--dry-run")
    assert not log.exists()
    run("export", table.uri, "--delta", "--keep", "3d")
    assert [p.name for p in log.glob("*.json")] == [f"{0:020}.json"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of --delta, --iceberg and"),
        (["--delta", "--parquet", "out"], "one of --delta, --iceberg and"),
        (["--delta", "--iceberg"], "one of --delta, --iceberg and"),
        (["--iceberg", "--where", "n > 0"], "require --parquet"),
        (["--parquet", "out", "--keep", "1d"], "require --delta"),
    ],
)
def test_an_export_has_one_format(table: Table, flags: list[str], message: str) -> None:
    assert message in error_of("export", table.uri, *flags)


def test_an_export_to_iceberg_prints_the_address_of_its_document(table: Table) -> None:
    report = run_json("export", table.uri, "--iceberg", "--keep", "1d")
    assert report["published"]
    assert Path(report["metadata"]).exists()
    assert run_json("export", table.uri, "--iceberg", "--dry-run")["metadata"] == report["metadata"]


# ------------------------------------------------------------------------------------------------ pins


def test_pins_have_a_dry_run(table: Table) -> None:
    assert run_json("pin", table.uri, "monthly", "--dry-run")["name"] == "monthly"
    assert table.pins() == []
    run("pin", table.uri, "monthly")
    assert "is a pin 'monthly' already" in run("pin", table.uri, "monthly", "--dry-run", status=2).stderr
    assert run_json("unpin", table.uri, "monthly", "--dry-run")["dry_run"]
    assert len(table.pins()) == 1
    assert not run_json("unpin", table.uri, "--yes", "monthly")["dry_run"]
    assert table.pins() == []
    assert "no pin 'monthly'" in run("unpin", table.uri, "monthly", "--dry-run", status=2).stderr


# ------------------------------------------------------------------------------------------------ words


def test_each_phrase_occurs_in_the_library() -> None:
    """A phrase that matches no message would let the command print names of Python."""
    sources = "\n".join(p.read_text() for p in (ROOT / "icedb").rglob("*.py") if "cli" not in p.parts)
    # Join adjacent string literals, and replace placeholders.
    text = re.sub(r"\{[a-z][^{}]*\}", "7", re.sub(r'"\s*\n\s*f?"', "", sources))
    assert [pattern for pattern, _ in PHRASES if not re.search(pattern, text)] == []


@pytest.mark.long
def test_errors_name_invalid_paths(tmp_path: Path) -> None:
    uri = Table.create(tmp_path / "table", schema={"n": "BIGINT"}).uri
    cases: list[tuple[list[object], str]] = [
        (["query", uri, "FROM t", "--format=csv", "--output", tmp_path / "no" / "x"], f"'{tmp_path / 'no'}': there is"),
        (["query", uri, "--file", tmp_path / "no.sql"], f"'{tmp_path / 'no.sql'}': No such file"),
        (["export", uri, "--delta", "--exclude-column", "m"], "--exclude-column names"),
        (["insert", uri, __file__], "this is no name of a file of Parquet (.parquet)"),
    ]
    for words, message in cases:
        assert message in run(*words, status=2).stderr
    far = ["insert", uri, "s3://bucket/*.csv", "--endpoint-url", "http://127.0.0.1:9"]
    assert "cannot be listed now" in run(*far, status=3).stderr


def test_messages_name_flags_and_verbs_of_the_command() -> None:
    assert in_the_shell("List them with drop_partitions.") == "List them with icedb drop."
    assert in_the_shell("remove it first with unpin('a b').") == "remove it first with icedb unpin and the name a b."


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("s3://on/on: on names 'on', but it is on.", "s3://on/on: --on names 'on', but it is on."),
        ("Table.upsert: on is 3; give a list.", "--on is 3; give a list."),
        ("t: when_matched='skip' excludes columns=.", "t: --when-matched skip excludes --column."),
        ("Pass allow_short_grace=True or memory_bytes=5.", "Pass --allow-short-grace or --memory 5."),
        ("t: memory_bytes is 5, not 'memory_bytes'.", "t: --memory is 5, not 'memory_bytes'."),
        ("a/memory_bytes: my_memory_bytes and memory_bytes()", "a/memory_bytes: my_memory_bytes and memory_bytes()"),
    ],
)
def test_messages_name_the_options_of_the_running_verb(message: str, printed: str) -> None:
    options = {"on": "--on", "when_matched": "--when-matched", "columns": "--column", "memory_bytes": "--memory",
               "allow_short_grace": "--allow-short-grace"}  # fmt: skip
    assert with_options(message, options) == printed
