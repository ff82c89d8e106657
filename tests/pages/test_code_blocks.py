"""The code of the pages fits the column of the site, so that no reader has to scroll to see the end of a line."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

import pytest

from docs_site.docstring_examples import with_fences
from tests.support.site.pages import DOCS, ROOT

COLUMNS_MAX = 88
#: Lines of JSON are the bytes of a file or a response. The site wraps them.
WRAPPED = {"json", "jsonl"}
#: The output of a terminal, which is as wide as the program prints it.
OUTPUTS = {
    "┏━": "a table of the demo",
    "append  column": "a matrix of commits",
    "/checkout/docs/": "paths, with tabs",
    "ingest_events: InvalidBatch": "the last line of a program",
}
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
_BLOCK = re.compile(r"^( *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^\1```$", re.DOTALL | re.MULTILINE)


def too_wide(page: str) -> Iterator[str]:
    """Yield the lines of code blocks that have more than COLUMNS_MAX columns."""
    for block in _BLOCK.finditer(page):
        is_output = block["language"] == "text" and any(mark in block["text"] for mark in OUTPUTS)
        if block["language"] not in WRAPPED and not is_output:
            yield from (line for line in block["text"].splitlines() if len(line) > COLUMNS_MAX)


def test_the_code_of_the_pages_has_at_most_88_columns() -> None:
    wide = {page.relative_to(ROOT).as_posix(): list(too_wide(page.read_text())) for page in PAGES}
    assert {page: lines for page, lines in wide.items() if lines} == {}


@pytest.mark.long
def test_the_examples_of_docstrings_have_at_most_88_columns() -> None:
    wide = []
    for name in ("icedb", "icedb_dagster", "pyspark_icedb", "spark_jobs"):
        for module in sorted((ROOT / name).rglob("*.py")):
            for node in ast.walk(ast.parse(module.read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    fenced = with_fences(f"{ast.get_docstring(node)}\n")
                    blocks = textwrap.dedent(fenced.partition("Example:\n")[2])
                    wide += [(module.name, node.name, line) for line in too_wide(blocks)]
    assert wide == []


@pytest.mark.parametrize(("language", "lines"), [("python", 2), ("sh", 2), ("text", 2), ("", 2), ("jsonl", 0)])
def test_a_wide_line_of_code_is_detected(language: str, lines: int) -> None:
    wide = "x" * (COLUMNS_MAX + 1)
    page = (
        f"{wide}\n\n```{language}\n{wide}\n{wide[1:]}\n```\n\n- {wide}\n\n  ```{language} name\n  {wide[2:]}x\n  ```\n"
    )
    assert len(list(too_wide(page))) == lines
