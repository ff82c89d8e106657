"""The wheel with each extra alone: `make matrix`.

    python -m release.matrix              all extras, one fresh environment after the other
    python -m release.matrix cli duckdb   some of them; `base` is the wheel without extras

Each environment has only the wheel with that extra. The extra's function of `release/smokes.py` runs in it, outside the
repository. Prints a table. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from release.environments import ROOT, StepOutcome, build, environment, find_python, report

__all__ = ["SMOKES_FILE", "extras"]

SMOKES_FILE = Path(__file__).with_name("smokes.py")
BASE = "base"


def extras() -> list[str]:
    """Return `base` and the names of all extras in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [BASE, *project["optional-dependencies"]]


def _try(extra: str, wheel: Path, interpreter: Path | str) -> StepOutcome:
    started = time.monotonic()
    with environment(interpreter) as fresh:
        wanted = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
        # -I: nothing is imported from the folder of the file or from the repository.
        failure = fresh.install(wanted) or fresh.run("python", "-I", str(SMOKES_FILE), extra)
    return StepOutcome(extra, "failed" if failure else "ok", time.monotonic() - started, failure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the extras, and print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.matrix", description="The wheel with each extra alone.")
    parser.add_argument("extra", nargs="*", help="the extras to test [default: all]")
    parser.add_argument("--python", help="a version such as 3.12 [default: the version that runs this]")
    options = parser.parse_args(arguments)
    extra_names = extras()
    if unknown := sorted(set(options.extra) - set(extra_names)):
        parser.error(f"unknown extra {', '.join(unknown)}. The extras are {', '.join(extra_names)}.")
    interpreter = find_python(options.python) if options.python else sys.executable
    if interpreter is None:
        parser.error(f"Python {options.python} is not installed on this machine.")
    outcomes = []
    with TemporaryDirectory(prefix="icedb-wheel-") as folder:
        wheel = build(Path(folder))
        for extra in options.extra or extra_names:
            outcomes.append(_try(extra, wheel, interpreter))
            sys.stderr.write(f"{extra}: {outcomes[-1].result}, {outcomes[-1].seconds:.0f} s\n")
    return report("The wheel with each extra alone", outcomes)


if __name__ == "__main__":
    sys.exit(main())
