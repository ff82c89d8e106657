"""The run of a small example: a folder for its tables, query results on the terminal, an exit status.

python -m examples.simple            deletes the tables afterwards
python -m examples.simple lake       keeps the tables in ./lake; inspect them with: icedb info lake/events
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
    """An example's folder for tables, and its console."""

    lake: Path
    console: Console

    def uri(self, name: str) -> str:
        """Return the address of a table. It could also be `s3://bucket/prefix/name`."""
        return str(self.lake / name)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text)

    def show(self, title: str, result: QueryResult | duckdb.DuckDBPyRelation) -> None:
        """Print a query result as a table."""
        grid = Grid(title=title, title_justify="left")
        rows = result.fetchall()
        for name, values in zip(result.columns, zip(*rows, strict=True), strict=True):
            numbers = all(value is None or isinstance(value, int | float) for value in values)
            grid.add_column(name, justify="right" if numbers else "left")
        for row in rows:
            grid.add_row(*map(_cell, row))
        self.console.print(grid)


def run_alone(story: Callable[[Stage], None]) -> int:
    """Run an example in the folder on the command line, or in a temporary one. Return the exit status."""
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
