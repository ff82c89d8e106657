"""`make example`: generated events in, a dashboard out.

Runs the project `examples/web_analytics` on a Postgres of its own: its assets and its tables' jobs, as Dagster runs in
this process. Each number is checked against counts made from the generated files by other means. The last line is
`example: ok`; when anything does not add up it is missing, and the exit status is 1. It begins anew each time.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# The project is one of its own, and not a part of this package: it is where its user would have started Python.
FOLDER = Path(__file__).parents[1] / "web_analytics"
sys.path.insert(0, str(FOLDER))
# It deletes tables of its own in its own folder, and none elsewhere.
os.environ.pop("LAKE_ROOT", None)

# ruff: noqa: E402 - the project's modules are found from here on
import warnings

import dagster as dg
from web_analytics import settings

from examples.run_web_analytics.steps import Example
from examples.shared.numbers import NumbersDisagree
from examples.shared.report import Report
from examples.shared.running import on_postgres

#: The folder that holds `.icedb-dagster`, the local stack and its history.
PROJECT = Path(os.environ.get("WEB_ANALYTICS_PROJECT") or FOLDER)
SCALE = float(os.environ.get("WEB_ANALYTICS_SCALE") or 1)
# What this example has made, and may delete, it knows by this file.
MARK = ".made-by-the-example"


def main() -> int:
    """Run the example; its exit status."""
    report = Report()
    try:
        begin_anew(settings.DATA)
        with on_postgres(PROJECT, report) as instance:
            Example(instance, report, scale=SCALE).run()
    except (NumbersDisagree, FileExistsError) as error:
        report.console.print(f"[red]{error}[/red]")
        return 1
    report.console.print(f"dashboard: {settings.REPORTS / 'dashboard.png'}")
    report.console.print("example: ok")
    return 0


def begin_anew(data: Path) -> None:
    """Delete what an earlier run has made. Raises FileExistsError for a folder that something else is in."""
    if data.exists() and any(data.iterdir()) and not (data / MARK).is_file():
        raise FileExistsError(
            f"{data} has files that this example did not make, and it would delete them. Move them, or set "
            "WEB_ANALYTICS_DATA to another folder."
        )
    for name in ("inbox", "lake", "reports"):
        shutil.rmtree(data / name, ignore_errors=True)
    data.mkdir(parents=True, exist_ok=True)
    (data / MARK).touch()


if __name__ == "__main__":
    for category in (dg.BetaWarning, dg.PreviewWarning):  # of Dagster, about what the library uses of it
        warnings.filterwarnings("ignore", category=category)
    sys.exit(main())
