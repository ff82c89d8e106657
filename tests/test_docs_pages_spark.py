"""The pages that start Spark are true, as those of tests/test_docs_pages.py are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import DOCS, bucket_of, run_page, runnable_pages

# The longest takes two minutes; the short run has most of what it shows in how-to/spark.md.
LONGEST = DOCS / "spark.md"
PAGES = [
    pytest.param(page, id=page.relative_to(DOCS).as_posix(), marks=[pytest.mark.slow] if page == LONGEST else [])
    for page in runnable_pages(spark=True)
]


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs_and_gives_what_it_says(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    done = run_page(page, tmp_path, env=bucket_of(page, request))
    assert done.returncode == 0, done.stderr
