"""Tests with the lowest and the newest supported versions of Dagster, Spark and other dependencies: `make versions`.

    python -m release.versions                     both
    python -m release.versions lowest              the lowest versions that pyproject.toml allows
    python -m release.versions --only dagster      the tests of one package
    python -m release.versions newest --override dagster==1.14.0 --override dagster-webserver==1.14.0
                                                   versions outside a range, before it is widened

Each run is a short list of tests of the package, in a fresh environment. DuckDB has one supported version: it loads its
S3 extension, a separate wheel, only from its own release.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import tomllib
from collections.abc import Sequence

from release.environments import ROOT, Environment, StepOutcome, environment, report

__all__ = ["TESTS_OF", "EXTRAS", "TOOLS"]

#: The installed extras.
EXTRAS = ("dagster-spark", "pandas", "polars")
#: The packages that the tests need, in the versions of the extra `dev`.
TOOLS = ("dagster-dg-cli", "hypothesis", "ministack", "pytest", "pytest-timeout")
#: The tests of each package.
TESTS_OF = {
    "duckdb": (
        "tests/sql/test_partition_expressions.py",
        "tests/sql/test_connection_pool.py",
        "tests/reader/test_part_pruning.py",
        "tests/engines/test_duckdb.py",
        "tests/operations/rewrite/test_merge_query.py",
    ),
    "dagster": (
        "tests/icedb_dagster/test_without_dagster.py",
        "tests/icedb_dagster/test_io.py",
        "tests/icedb_dagster/test_metadata.py",
        "tests/icedb_dagster/test_resource.py",
        "tests/icedb_dagster/test_component.py",
    ),
    "pyspark": ("tests/spark/test_data_source.py", "tests/spark/test_writing.py", "tests/spark/test_plans.py"),
}
REPORTED = ("dagster", "duckdb", "msgspec", "obstore", "pandas", "polars", "pyarrow", "pyspark")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}


def _tools() -> list[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [wanted for wanted in extras["dev"] if re.split("[<=>]", wanted)[0] in TOOLS]


def _prepare(fresh: Environment, which: str, overrides: Sequence[str]) -> str:
    options = ["--resolution", RESOLUTIONS[which]]
    if overrides:
        listed = fresh.folder / "overrides.txt"
        listed.write_text("\n".join(overrides) + "\n")
        options += ["--override", str(listed)]
    options += ["-r", str(ROOT / "pyproject.toml")]  # so that "lowest" applies to the packages in it
    for extra in EXTRAS:
        options += ["--extra", extra]
    return fresh.install(*_tools(), options=options) or fresh.install("--editable", str(ROOT), options=["--no-deps"])


def _try(which: str, packages: Sequence[str], overrides: Sequence[str]) -> list[StepOutcome]:
    started = time.monotonic()
    with environment() as fresh:
        if failure := _prepare(fresh, which, overrides):
            return [StepOutcome(f"{which}: install", "failed", time.monotonic() - started, failure)]
        outcomes = [StepOutcome(f"{which}: install", "ok", time.monotonic() - started, fresh.versions(REPORTED))]
        for name in packages:
            started = time.monotonic()
            command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS_OF[name]]
            failure = fresh.run(*command, cwd=ROOT)
            took = time.monotonic() - started
            version = fresh.versions([name])
            outcomes.append(StepOutcome(f"{which}: {name}", "failed" if failure else "ok", took, failure or version))
            sys.stderr.write(f"{which}: {version}: {outcomes[-1].result}, {took:.0f} s\n")
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, and print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.versions", description="Lowest and newest versions.")
    parser.add_argument("which", nargs="*", help=f"versions to test [default: {' '.join(RESOLUTIONS)}]")
    parser.add_argument("--only", action="append", choices=list(TESTS_OF), help="run the tests of this package only")
    parser.add_argument("--override", action="append", default=[], help="test a version outside the ranges")
    parsed = parser.parse_args(arguments)
    if unknown := sorted(set(parsed.which) - set(RESOLUTIONS)):
        parser.error(f"{', '.join(unknown)}: give {' or '.join(RESOLUTIONS)}.")
    outcomes = []
    for which in parsed.which or RESOLUTIONS:
        outcomes += _try(which, parsed.only or list(TESTS_OF), parsed.override)
    return report("Lowest and newest versions", outcomes)


if __name__ == "__main__":
    sys.exit(main())
