"""Create a project in the current folder and run `dg` commands in one process, because importing `dg` takes seconds.

Prints a line of JSON for each command: its words, exit status and output.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import warnings
from pathlib import Path

from dagster_dg_cli.cli import cli

from icedb_dagster.dev.project import create_project
from icedb_dagster.dev.project.workspace import load_code

PROJECT = Path("web_shop").absolute()
EVENTS = PROJECT / "web_shop" / "defs" / "events" / "defs.yaml"


def tell(*what: object) -> None:
    """Print a line of the story."""
    sys.stdout.write(json.dumps(what) + "\n")


def dg(line: str) -> None:
    """Run a command of `dg`, as its own program would, in the project's folder."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "web_shop"]:
        del sys.modules[module]  # a new process would have none
    output = io.StringIO()
    code: object = None
    with contextlib.chdir(PROJECT), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            cli.main(shlex.split(line), prog_name="dg")
        except SystemExit as end:
            code = end.code
    tell(line, code, output.getvalue())


def main() -> None:
    """Tell the story: list, scaffold, check; then errors, some for each checker."""
    warnings.simplefilter("ignore")
    create_project(PROJECT)
    dg("list components --json")
    dg("scaffold defs icedb_dagster.IceDBTableComponent orders --ttl-column month --keep-days 30")
    dg("scaffold defs icedb_dagster.IceDBTableComponent sales/returns")
    dg("check yaml")
    dg("check defs")
    with contextlib.chdir(PROJECT):
        tell("pools", 0, load_code(PROJECT).pools)
    good = EVENTS.read_text()
    for path in (PROJECT / "web_shop" / "defs").glob("*/**/defs.yaml"):
        if path != EVENTS:
            path.unlink()  # `dg check yaml` looks at one document of each type
    bad = good.replace("keep_days: 365", "keep_days: a year").replace("{severity: WARN}", "{sevrity: WARN}")
    EVENTS.write_text(bad)
    dg("check yaml")
    EVENTS.write_text(good.replace("running: false", 'schedules: {cleanup: "61 * * * *"}'))
    dg("check defs")


if __name__ == "__main__":
    main()
