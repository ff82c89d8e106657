"""`make example`: from generated events to a dashboard.

Runs the assets and jobs of the project `examples/web_analytics` on its own Postgres, in this process. Each number is
checked against counts made from the generated files by other means. The last line is `example: ok`. If a number
differs, this line is missing, and the exit status is 1. Each run starts from scratch.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# The project is not a part of this package. Its user would start Python in this folder.
FOLDER = Path(__file__).parents[1] / "web_analytics"
sys.path.insert(0, str(FOLDER))
# The example deletes tables, so they must be in its own folder.
os.environ.pop("LAKE_ROOT", None)

# ruff: noqa: E402 - the project's modules can be imported from here on
import warnings

import dagster as dg
from web_analytics import settings

from examples.run_web_analytics.steps import Example
from examples.shared.numbers import NumbersDisagree
from examples.shared.report import ExampleReport
from examples.shared.running import on_postgres

#: The folder with `.icedb-dagster`, the local stack and its history.
PROJECT = Path(os.environ.get("WEB_ANALYTICS_PROJECT") or FOLDER)
SCALE = float(os.environ.get("WEB_ANALYTICS_SCALE") or 1)
# Marks a folder of this example, which it may delete.
MARK = ".made-by-the-example"


def main() -> int:
    """Run the example, and return its exit status."""
    report = ExampleReport()
    try:
        start_from_scratch(settings.DATA)
        with on_postgres(PROJECT, report) as instance:
            Example(instance, report, scale=SCALE).run()
    except (NumbersDisagree, FileExistsError) as error:
        report.console.print(f"[red]{error}[/red]")
        return 1
    report.console.print(f"dashboard: {settings.REPORTS / 'dashboard.png'}")
    report.console.print("example: ok")
    return 0


def start_from_scratch(data: Path) -> None:
    """Delete the files of an earlier run. Raises FileExistsError for a folder with other files."""
    if data.exists() and any(data.iterdir()) and not (data / MARK).is_file():
        raise FileExistsError(
            f"{data} has files that this example did not create, and would delete. Move them, or set "
            "WEB_ANALYTICS_DATA to another folder."
        )
    for name in ("inbox", "lake", "reports"):
        shutil.rmtree(data / name, ignore_errors=True)
    data.mkdir(parents=True, exist_ok=True)
    (data / MARK).touch()


if __name__ == "__main__":
    for category in (dg.BetaWarning, dg.PreviewWarning):  # Dagster warns about APIs that the library uses
        warnings.filterwarnings("ignore", category=category)
    sys.exit(main())
