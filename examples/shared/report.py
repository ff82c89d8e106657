"""What an example prints: lines while it works, a table of its steps at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as Grid

import icedb

__all__ = ["Footprint", "ProgressHandler", "Report", "Step", "console_for_tables", "look_at"]


# The summary's tables need this many columns; a pipe or a log file says nothing of its width.
WIDTH_MIN = 100


def console_for_tables() -> Console:
    """A console that is wide enough for tables when a pipe is what it prints to."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=WIDTH_MIN)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a table is made of at one moment: `stored` counts superseded objects too."""

    rows: int
    live_parts: int
    live_bytes: int
    log_files: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and the table that it was about after it."""

    name: str
    seconds: float
    after: Footprint | None


def look_at(table: icedb.Table) -> Footprint:
    """Measure a table, by listing its store."""
    snapshot = table.snapshot()
    handle = table.handle
    return Footprint(
        rows=snapshot.rows or 0,
        live_parts=len(snapshot.parts),
        live_bytes=snapshot.bytes,
        log_files=len(handle.log.list_after(None)),
        stored_bytes=sum(o.bytes for o in handle.store.list(handle.keys.data_prefix)),
    )


@dataclass(slots=True)
class Report:
    """Collects steps and prints them as they come."""

    console: Console = field(default_factory=console_for_tables)
    steps: list[Step] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """One line of progress, with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/dim]  {text}")

    @contextmanager
    def step(self, name: str, table: Callable[[], icedb.Table] | None = None) -> Iterator[None]:
        """Time a step; measure the table after it (a function, since the step may be what creates it)."""
        self.say(f"[bold]{name}[/bold]")
        begun = time.monotonic()
        yield
        seconds = time.monotonic() - begun
        self.steps.append(Step(name, seconds, None if table is None else look_at(table())))

    def summary(self, title: str) -> None:
        """All steps, one below the other, and how long they took together."""
        grid = Grid(title=title, title_justify="left")
        for heading in ("step", "seconds", "rows", "live parts", "live MB", "log files", "stored MB"):
            grid.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
        for step in self.steps:
            grid.add_row(step.name, f"{step.seconds:.1f}", *_cells(step.after))
        grid.add_section()
        grid.add_row("in all", f"{time.monotonic() - self.started:.1f}", *[""] * 5)
        self.console.print()
        self.console.print(grid)


def _cells(after: Footprint | None) -> list[str]:
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
    """Shows what a job logs as lines of progress."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._report.say(f"  {record.getMessage()}")
