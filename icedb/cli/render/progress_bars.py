"""How far long work is, as bars on standard error: on a terminal only, with the rate and the time that remains."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Timer

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Live
from rich.text import Text

from icedb.util.progress import Progress, watched

__all__ = ["Bars", "bars"]

# What is over sooner needs no bar.
SHOWN_AFTER_S = 0.5


@contextmanager
def bars(*, wanted: bool) -> Iterator[None]:
    """Show the progress of what is done in the block. Nothing is left of it on the screen."""
    if not (wanted and sys.stderr.isatty()):
        yield
        return
    shown = Bars(Console(stderr=True))
    try:
        with watched(shown):
            yield
    finally:
        shown.close()


class Bars:
    """A bar for each piece of work that takes longer than `after_s` seconds, while it lasts."""

    def __init__(self, console: Console, *, after_s: float = SHOWN_AFTER_S) -> None:
        self._console, self._after_s = console, after_s
        self._lock = Lock()
        self._newest: dict[object, Progress] = {}
        self._timers: dict[object, Timer] = {}
        self._tasks: dict[object, TaskID] = {}
        self._live: Live | None = None

    def __call__(self, told: Progress) -> None:
        """Work begins, goes on or is over."""
        with self._lock:
            if told.over:
                self._end(told.work)
                return
            is_new = told.work not in self._newest
            self._newest[told.work] = told
            if self._live is not None and told.work in self._tasks:
                self._live.update(self._tasks[told.work], completed=told.done)
            elif is_new:
                timer = self._timers[told.work] = Timer(self._after_s, self._show, [told.work])
                timer.daemon = True
                timer.start()

    def close(self) -> None:
        """Take all of it off the screen."""
        with self._lock:
            for work in list(self._newest):
                self._end(work)

    def _show(self, work: object) -> None:
        with self._lock:
            told = self._newest.get(work)
            if told is None:  # over meanwhile
                return
            if self._live is None:
                self._live = Live(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    TaskProgressColumn(),
                    _Amount(),
                    TimeRemainingColumn(),
                    console=self._console,
                    transient=True,
                )
                self._live.start()
            self._tasks[work] = self._live.add_task(told.name, total=told.total, completed=told.done, unit=told.unit)

    def _end(self, work: object) -> None:
        self._newest.pop(work, None)
        if (timer := self._timers.pop(work, None)) is not None:
            timer.cancel()
        task = self._tasks.pop(work, None)
        if self._live is None or task is None:
            return
        self._live.remove_task(task)
        if not self._tasks:  # a question, or the result, is to find the screen as it was
            self._live.stop()
            self._live = None


class _Amount(ProgressColumn):
    """What is done, of how much, and how much in a second."""

    def render(self, task: Task) -> Text:
        """See ProgressColumn."""
        unit: str = task.fields["unit"]

        def amount(number: float) -> str:
            return decimal(int(number)) if unit == "bytes" else f"{int(number):,}"

        words = amount(task.completed)
        if task.total is not None:
            words += f" of {amount(task.total)}"
        if unit != "bytes":
            words += f" {unit}"
        speed = task.finished_speed or task.speed
        return Text(words if speed is None else f"{words}, {amount(speed)}/s", style="progress.download")
