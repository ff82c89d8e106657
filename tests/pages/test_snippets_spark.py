"""The pages that start Spark are true, as those of tests/pages/test_snippets.py are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site.pages import DOCS, ROOT, bucket_of, runnable_pages

#: The short run has most of what it shows in how-to/spark.md.
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


@pytest.mark.spark
@pytest.mark.parametrize(
    "pages",
    [pytest.param([LONGEST], marks=pytest.mark.slow(seconds=60), id="spark.md"), pytest.param(OTHERS, id="others")],
)
def test_what_pages_show_runs_and_gives_what_they_say(
    pages: list[Path], spark_home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "ICEDB_", "DAGSTER_"))}
    environment |= {"PYTHONPATH": str(ROOT), "SPARK_HOME": str(spark_home)}
    for page in pages:
        environment |= bucket_of(page, request)
    command = [sys.executable, "-c", PROGRAM, *map(str, pages)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
