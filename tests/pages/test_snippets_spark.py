"""The pages that start Spark; the others are in tests/pages/test_snippets.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import clean_environment, run_python
from tests.support.site.pages import DOCS, ROOT, bucket_of, runnable_pages

#: The short run has a write of it in the README.
LONGEST = DOCS / "spark.md"
OTHERS = [page for page in runnable_pages(spark=True) if page != LONGEST]
#: Runs pages one after the other in one process, whose Java they share, each in the same folder, empty again.
PROGRAM = """
import pathlib, shutil, sys
from tests.support.site.pages import run

for page in sys.argv[1:]:
    for path in pathlib.Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(page, flush=True)
    run(pathlib.Path(page))
"""


@pytest.mark.sampled(days=6)
@pytest.mark.spark
@pytest.mark.parametrize(
    "pages",
    [pytest.param([LONGEST], marks=pytest.mark.slow(seconds=60), id="spark.md"), pytest.param(OTHERS, id="others")],
)
def test_the_code_of_spark_pages_runs_with_the_stated_results(
    pages: list[Path], spark_home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = clean_environment(PYTHONPATH=str(ROOT), SPARK_HOME=str(spark_home))
    for page in pages:
        environment |= bucket_of(page, request)
    run_python("-c", PROGRAM, *pages, cwd=tmp_path, env=environment)
