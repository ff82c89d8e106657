"""The lowest and the newest supported versions of Dagster, Spark and what else we stand on: `make versions`.

    python -m release.versions                     both
    python -m release.versions lowest              the lowest of everything that pyproject.toml allows
    python -m release.versions --only dagster      the tests that are about one of them
    python -m release.versions newest --override dagster==1.14.0 --override dagster-webserver==1.14.0
                                                   what lies outside of a range, before it is widened

Each runs a short list of tests that are about the package, in a fresh environment. DuckDB has one version, which is
both: it loads its S3 extension, a wheel of its own, only from its own release.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Sequence

from release.environments import ROOT, Environment, Outcome, environment, report

__all__ = ["ABOUT", "EXTRAS", "TOOLS"]

#: What is installed beside the library.
EXTRAS = ("dagster", "duckdb", "pandas", "polars", "spark")
#: What the tests themselves need, in the versions of the extra `dev`.
TOOLS = ("dagster-dg-cli", "hypothesis", "ministack", "pytest", "pytest-timeout")
#: The tests that are about a package.
ABOUT = {
    "duckdb": (
        "tests/sql/test_partition_expressions.py",
        "tests/sql/test_sandbox_pool.py",
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
SHOWN = ("dagster", "duckdb", "msgspec", "obstore", "pandas", "polars", "pyarrow", "pyspark")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}


def _tools() -> list[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [wanted for wanted in extras["dev"] if wanted.split(">")[0] in TOOLS]


def _prepare(fresh: Environment, which: str, overrides: Sequence[str]) -> str:
    options = ["--resolution", RESOLUTIONS[which]]
    if overrides:
        listed = fresh.folder / "overrides.txt"
        listed.write_text("\n".join(overrides) + "\n")
        options += ["--override", str(listed)]
    options += ["-r", str(ROOT / "pyproject.toml")]  # so that what it names is direct, and "lowest" means it
    for extra in EXTRAS:
        options += ["--extra", extra]
    return fresh.install(*_tools(), options=options) or fresh.install("--editable", str(ROOT), options=["--no-deps"])


def _try(which: str, about: Sequence[str], overrides: Sequence[str]) -> list[Outcome]:
    started = time.monotonic()
    with environment() as fresh:
        if failure := _prepare(fresh, which, overrides):
            return [Outcome(f"{which}: install", "failed", time.monotonic() - started, failure)]
        found = fresh.versions(SHOWN)
        outcomes = [Outcome(f"{which}: install", "ok", time.monotonic() - started, found)]
        for name in about:
            started = time.monotonic()
            command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *ABOUT[name]]
            failure = fresh.run(*command, cwd=ROOT)
            took = time.monotonic() - started
            version = fresh.versions([name])
            outcomes.append(Outcome(f"{which}: {name}", "failed" if failure else "ok", took, failure or version))
            sys.stderr.write(f"{which}: {version}: {outcomes[-1].result}, {took:.0f} s\n")
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, and print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.versions", description="Lowest and newest versions.")
    parser.add_argument("which", nargs="*", help=f"{' and '.join(RESOLUTIONS)} when none is given")
    parser.add_argument("--only", action="append", choices=list(ABOUT), help="the tests that are about this package")
    parser.add_argument("--override", action="append", default=[], help="a version outside of our ranges, to try it")
    parsed = parser.parse_args(arguments)
    if unknown := sorted(set(parsed.which) - set(RESOLUTIONS)):
        parser.error(f"{', '.join(unknown)}: give {' or '.join(RESOLUTIONS)}.")
    outcomes = []
    for which in parsed.which or RESOLUTIONS:
        outcomes += _try(which, parsed.only or list(ABOUT), parsed.override)
    return report("Lowest and newest versions", outcomes)


if __name__ == "__main__":
    sys.exit(main())
