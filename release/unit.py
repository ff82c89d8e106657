"""The unit suite on other Pythons than that of `make test`: `make unit`.

    python -m release.unit               on 3.12 and 3.13
    python -m release.unit 3.13          on one of them

It is the suite without the tests that start an S3 server, Spark or Dagster's Postgres, and without long simulations. A
version without an interpreter on this machine is reported as skipped. None is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from release.environments import ROOT, StepOutcome, environment, find_python, report

__all__ = ["MARKS", "PYTHONS"]

PYTHONS = ("3.12", "3.13")
MARKS = "not s3 and not azure and not google and not spark and not dagster and not simulation and not slow"


def _try(version: str, jobs: int) -> StepOutcome:
    interpreter = find_python(version)
    if interpreter is None:
        return StepOutcome(version, "skipped", 0, f"Python {version} is not installed on this machine")
    started = time.monotonic()
    with environment(interpreter) as fresh:
        command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs)]
        command += ["--dist", "loadfile", "--no-loadscope-reorder", "-m", MARKS]
        failure = fresh.install("--editable", f"{ROOT}[dev]") or fresh.run(*command, cwd=ROOT)
        return StepOutcome(version, "failed" if failure else "ok", time.monotonic() - started, failure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the unit suite, and print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.unit", description="The unit suite on other Pythons.")
    parser.add_argument("version", nargs="*", help=f"versions of Python [default: {' '.join(PYTHONS)}]")
    parser.add_argument("--jobs", type=int, default=2, help="concurrent test processes [default: 2]")
    options = parser.parse_args(arguments)
    outcomes = []
    for version in options.version or PYTHONS:
        sys.stderr.write(f"{version}: creating an environment and running the tests takes ten minutes\n")
        outcomes.append(_try(version, options.jobs))
        sys.stderr.write(f"{version}: {outcomes[-1].result}, {outcomes[-1].seconds:.0f} s\n")
    return report("The unit suite", outcomes)


if __name__ == "__main__":
    sys.exit(main())
