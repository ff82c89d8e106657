"""The run of a small example: a folder for its tables, answers as tables on the terminal, an exit status.

python -m examples.simple            the tables are gone afterwards
python -m examples.simple lake       the tables stay in ./lake, to look at: icedb info lake/events
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
from rich.console import Console
from rich.table import Table as Grid

from examples.shared.numbers import NumbersDisagree
from examples.shared.report import console_for_tables
from icedb import QueryResult
from icedb.errors import IceDBError

__all__ = ["Stage", "run_alone"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an example puts its tables, and where it prints."""

    lake: Path
    console: Console

    def uri(self, name: str) -> str:
        """Where the table of that name goes. It may as well be `s3://bucket/prefix/name`."""
        return str(self.lake / name)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text)

    def show(self, title: str, answer: QueryResult | duckdb.DuckDBPyRelation) -> None:
        """Print an answer, as a table."""
        grid = Grid(title=title, title_justify="left")
        rows = answer.fetchall()
        for name, values in zip(answer.columns, zip(*rows, strict=True), strict=True):
            numbers = all(value is None or isinstance(value, int | float) for value in values)
            grid.add_column(name, justify="right" if numbers else "left")
        for row in rows:
            grid.add_row(*map(_cell, row))
        self.console.print(grid)


def run_alone(story: Callable[[Stage], None]) -> int:
    """Run an example in the folder that the command line names, or in one that is deleted; returns the exit status."""
    name = (story.__module__ if story.__module__ != "__main__" else _name_of_main()).removesuffix(".__main__")
    console = console_for_tables()
    with tempfile.TemporaryDirectory(prefix="icedb-example-") as folder:
        try:
            story(Stage(Path(sys.argv[1] if len(sys.argv) > 1 else folder), console))
        except (NumbersDisagree, IceDBError, RuntimeError) as error:
            console.print(f"[red]{name}: {type(error).__name__}:[/red] {error}", markup=True)
            return 1
    console.print(f"{name}: ok")
    return 0


def _name_of_main() -> str:
    spec = sys.modules["__main__"].__spec__
    return "example" if spec is None else spec.name


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
