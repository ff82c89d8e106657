"""The Python and the commands of each page run as one program, in order, with the stated results.

Pages that start Spark are in tests/pages/test_snippets_spark.py, so that other pages do not wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.site.pages import DOCS, ROOT, bucket_of, commands, execute, run_page, runnable_pages, whole_program

#: Pages of which another test runs everything: they need a server, or an environment from nothing.
ELSEWHERE = {
    "proxy.md": "services/proxy/test_page.py",
    "iceberg-catalog.md": "services/proxy/iceberg/test_page.py",
    "ingest.md": "services/ingest/test_page.py",
    "quickstart.md": "pages/test_newcomer.py",
    "tutorial.md": "pages/test_newcomer.py",
    "tutorial-dagster.md": "pages/test_newcomer.py",
}
PAGES = [page for page in runnable_pages(spark=False) if page.relative_to(DOCS).as_posix() not in ELSEWHERE]


def marked(page: Path) -> Any:
    """Pages that need a bucket are tests that do."""
    marks = [pytest.mark.s3] if "BUCKET" in whole_program(page) else []
    return pytest.param(page, marks=marks, id=page.relative_to(DOCS).as_posix())


@pytest.mark.sampled(cases=5, days=3)
@pytest.mark.process
@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    done = run_page(page, tmp_path, env=bucket_of(page, request))
    assert done.returncode == 0, done.stderr


def test_pages_about_programs_have_code_to_run() -> None:
    names = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert names >= {"cheat-sheet.md", "queries.md", "schema.md", "how-to/from-v3.md", "how-to/time-travel.md"}


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_a_page_omitted_here_is_run_by_another_test(page: str, test: str) -> None:
    assert (DOCS / page).is_file()
    assert Path(page).stem in (ROOT / "tests" / test).read_text()


@pytest.mark.parametrize(
    "code",
    [
        "1 + 1  # 3",
        "[1, 2]  # [1]  the first of them",
        "print('a', 1)  # a 2",
        "print('a b c')  # a...d",
        "if False:\n    print(1)  # 1",
        "try:\n    pass\nexcept ValueError as error:\n    print(error)  # ...",
        "1.0  # 1",
        "1 + 1\n# 3",
        "[1, 2]\n# [1,\n#  3]\n# A third line.",
        "print('a b')\n# a\n# c",
    ],
)
def test_a_wrong_result_on_a_page_is_detected(code: str) -> None:
    with pytest.raises(AssertionError, match="line"):
        execute(code, "page")


def test_only_comments_with_results_are_compared() -> None:
    code = "1 + 1  # 2\n[1]  # [1]  the first\nprint('a b c')  # a...c\nlen('a')  # of one\nx = 3  # 4\n"
    below = "[1, 2]\n# [1,\n#  2]\n# Not of it.\nprint('a b')\n# a\n# b\n\nlen('a')\n# Of one.\nx = 3\n# 4\n"
    assert execute(code, "page") == 3
    assert execute(below, "page") == 2


@pytest.mark.sampled(days=3)
@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "runs"),
    [
        ("icedb info lake/events  # what it is like", True),
        ("icedb info s3://bucket/events", False),
        ("icedb merge lake/events --watch", False),
        ("icedb proxy --config proxy.toml", False),
        ("icedb-dagster up", False),
        ("icedb info \\\n    lake/events", True),
    ],
)
def test_commands_of_a_page_run_unless_they_never_end(line: str, runs: bool, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```sh\n{line}\n```\n")
    assert len(commands(page)) == runs
    if runs:
        done = run_page(page, tmp_path)
        assert done.returncode != 0, "the table does not exist"
        assert "exit status" in done.stderr


@pytest.mark.process
def test_commands_run_in_the_order_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nimport icedb\n\ntable = icedb.Table.create('t')\ntable.insert([{'n': 1}])\n```\n"
        "```sh\nicedb delete t --where 'n = 1' \\\n    --yes\n```\n"
        "```python\ntable.query('SELECT count(*) FROM t').fetchall()  # [(0,)]\n```\n"
    )
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_command_with_a_pipe_runs_in_a_shell(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nicedb --help | grep -c icedb > count.txt\n```\n")
    assert run_page(page, tmp_path).returncode == 0
    assert int((tmp_path / "count.txt").read_text()) > 0
