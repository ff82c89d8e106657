"""The output of an example: progress lines, and a table of its steps at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as Grid

import icedb

__all__ = ["TableFootprint", "ProgressHandler", "ExampleReport", "TimedStep", "console_for_tables", "measure"]


# The width that the summary needs. A pipe or a log file has no width of its own.
WIDTH_MIN = 100


def console_for_tables() -> Console:
    """Return a console that is wide enough for tables, even if it prints to a pipe."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=WIDTH_MIN)


@dataclass(frozen=True, slots=True)
class TableFootprint:
    """A table's sizes at one time. `stored` includes superseded objects."""

    rows: int
    live_parts: int
    live_bytes: int
    log_files: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A timed step, and the table's sizes after it."""

    name: str
    seconds: float
    after: TableFootprint | None


def measure(table: icedb.Table) -> TableFootprint:
    """Measure a table by listing its store."""
    snapshot = table.snapshot()
    handle = table.handle
    return TableFootprint(
        rows=snapshot.rows or 0,
        live_parts=len(snapshot.parts),
        live_bytes=snapshot.bytes,
        log_files=len(handle.log.list_after(None)),
        stored_bytes=sum(o.bytes for o in handle.store.list(handle.keys.data_prefix)),
    )


@dataclass(slots=True)
class ExampleReport:
    """Collects steps, and prints them as they run."""

    console: Console = field(default_factory=console_for_tables)
    steps: list[TimedStep] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Print a progress line with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/dim]  {text}")

    @contextmanager
    def step(self, name: str, table: Callable[[], icedb.Table] | None = None) -> Iterator[None]:
        """Time a step, and measure a table after it. `table` is a function because the step may create the table."""
        self.say(f"[bold]{name}[/bold]")
        begun = time.monotonic()
        yield
        seconds = time.monotonic() - begun
        self.steps.append(TimedStep(name, seconds, None if table is None else measure(table())))

    def summary(self, title: str) -> None:
        """Print all steps, and their total time."""
        grid = Grid(title=title, title_justify="left")
        for heading in ("step", "seconds", "rows", "live parts", "live MB", "log files", "stored MB"):
            grid.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
        for step in self.steps:
            grid.add_row(step.name, f"{step.seconds:.1f}", *_cells(step.after))
        grid.add_section()
        grid.add_row("total", f"{time.monotonic() - self.started:.1f}", *[""] * 5)
        self.console.print()
        self.console.print(grid)


def _cells(after: TableFootprint | None) -> list[str]:
    if after is None:
        return [""] * 5
    return [
        f"{after.rows:,}",
        f"{after.live_parts:,}",
        f"{after.live_bytes / 1e6:.1f}",
        f"{after.log_files:,}",
        f"{after.stored_bytes / 1e6:.1f}",
    ]


class ProgressHandler(logging.Handler):
    """Prints log records of a job as progress lines."""

    def __init__(self, report: ExampleReport) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._report.say(f"  {record.getMessage()}")
