"""The wheel with each extra alone: `make matrix`.

    python -m release.matrix              all extras, one fresh environment after the other
    python -m release.matrix cli duckdb   some of them; `base` is the wheel without any

In each environment nothing is installed but the wheel with that extra, and `release/smokes/<extra>.py` runs, outside
the repository: it does a little of what the extra is for. Prints a table; the exit status is 1 when one failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from release.environments import ROOT, Outcome, build, environment, find_python, report

__all__ = ["SMOKES", "extras"]

SMOKES = Path(__file__).parent / "smokes"
BASE = "base"


def extras() -> list[str]:
    """The names of all extras, as pyproject.toml has them, and before them `base`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [BASE, *project["optional-dependencies"]]


def _try(extra: str, wheel: Path, interpreter: Path | str) -> Outcome:
    started = time.monotonic()
    with environment(interpreter) as fresh:
        wanted = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
        # -I: neither the smokes' folder nor the repository can be what is imported.
        failure = fresh.install(wanted) or fresh.run("python", "-I", str(SMOKES / f"{extra}.py"))
    return Outcome(extra, "failed" if failure else "ok", time.monotonic() - started, failure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the extras, and print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.matrix", description="The wheel with each extra alone.")
    parser.add_argument("extra", nargs="*", help="the extras to try; all when none is given")
    parser.add_argument("--python", help="a version such as 3.12; the one that runs this when not given")
    options = parser.parse_args(arguments)
    extra_names = extras()
    if unknown := sorted(set(options.extra) - set(extra_names)):
        parser.error(f"there is no extra {', '.join(unknown)}; there are {', '.join(extra_names)}.")
    interpreter = find_python(options.python) if options.python else sys.executable
    if interpreter is None:
        parser.error(f"there is no Python {options.python} on this machine.")
    outcomes = []
    with TemporaryDirectory(prefix="icedb-wheel-") as folder:
        wheel = build(Path(folder))
        for extra in options.extra or extra_names:
            outcomes.append(_try(extra, wheel, interpreter))
            sys.stderr.write(f"{extra}: {outcomes[-1].result}, {outcomes[-1].seconds:.0f} s\n")
    return report("The wheel with each extra alone", outcomes)


if __name__ == "__main__":
    sys.exit(main())
