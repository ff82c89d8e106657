"""The pages are true: their Python runs as one program and gives what they say; then their commands run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT, blocks, execute, run_python, whole_program

#: This one needs a proxy that runs: tests/test_proxy_docs.py.
OF_PROXY = "proxy.md"
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if blocks(page, "python") and page.name != OF_PROXY]


def marked(page: Path) -> Any:
    """Pages that start Spark, or need a bucket, are tests that do."""
    code = whole_program(page)
    marks = [mark for word, mark in (("pyspark", pytest.mark.spark), ("BUCKET", pytest.mark.s3)) if word in code]
    return pytest.param(page, marks=marks, id=page.name)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_what_a_page_shows_runs_and_gives_what_it_says(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = bucket(request.getfixturevalue("s3_server")) if "BUCKET" in whole_program(page) else {}
    done = run_python(page, tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    for command in commands(page):
        done = subprocess.run(
            [sys.executable, "-m", "icedb.cli", *command], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def bucket(server: Any) -> dict[str, str]:
    """The environment of a page that uses a bucket of its own."""
    name = f"icedb-page-{uuid.uuid4().hex[:8]}"
    server.client().create_bucket(Bucket=name)
    return {**server.storage_options, "BUCKET": name}


def commands(page: Path) -> list[list[str]]:
    """What a page tells to type, but for what is about somebody's bucket."""
    lines = [shlex.split(line, comments=True) for block in blocks(page, "sh") for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["icedb"] and not any("s3:" in w for w in words)]


def test_every_page_about_programs_has_something_to_run() -> None:
    assert {page.name for page in PAGES} >= {"import.md", "inputs.md", "queries.md", "schema.md", "v3.md"}


def test_all_pages_are_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")}


# ------------------------------------------------------------------------------------------ what compares can fail


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
    ],
)
def test_a_page_that_says_something_else_is_found_out(code: str) -> None:
    with pytest.raises(AssertionError, match="line"):
        execute(code, "page")


def test_what_a_page_says_is_compared_and_other_comments_are_not() -> None:
    code = "1 + 1  # 2\n[1]  # [1]  the first\nprint('a b c')  # a...c\nlen('a')  # of one\nx = 3  # 4\n"
    assert execute(code, "page") == 3
