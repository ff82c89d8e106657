"""Progress bars on standard error, on a terminal only, with the rate and the remaining time."""

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

from icedb.util.progress import Progress, watch_progress

__all__ = ["Bars", "bars"]

# Shorter work has no bar.
SHOW_AFTER_S = 0.5


@contextmanager
def bars(*, enabled: bool) -> Iterator[None]:
    """Show the progress of the work in the block. The bars are removed at its end."""
    if not (enabled and sys.stderr.isatty()):
        yield
        return
    bars_ = Bars(Console(stderr=True))
    try:
        with watch_progress(bars_):
            yield
    finally:
        bars_.close()


class Bars:
    """A bar for each piece of work, from `after_s` seconds after its start to its end."""

    def __init__(self, console: Console, *, after_s: float = SHOW_AFTER_S) -> None:
        self._console, self._after_s = console, after_s
        self._lock = Lock()
        self._newest: dict[object, Progress] = {}
        self._timers: dict[object, Timer] = {}
        self._tasks: dict[object, TaskID] = {}
        self._live: Live | None = None

    def __call__(self, event: Progress) -> None:
        """Update the bar of a piece of work that starts, advances or ends."""
        with self._lock:
            if event.over:
                self._end(event.work)
                return
            is_new = event.work not in self._newest
            self._newest[event.work] = event
            if self._live is not None and event.work in self._tasks:
                self._live.update(self._tasks[event.work], completed=event.done)
            elif is_new:
                timer = self._timers[event.work] = Timer(self._after_s, self._show, [event.work])
                timer.daemon = True
                timer.start()

    def close(self) -> None:
        """Remove all bars from the screen."""
        with self._lock:
            for work in list(self._newest):
                self._end(work)

    def _show(self, work: object) -> None:
        with self._lock:
            event = self._newest.get(work)
            if event is None:  # ended before its bar was due
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
            self._tasks[work] = self._live.add_task(
                event.name, total=event.total, completed=event.done, unit=event.unit
            )

    def _end(self, work: object) -> None:
        self._newest.pop(work, None)
        if (timer := self._timers.pop(work, None)) is not None:
            timer.cancel()
        task = self._tasks.pop(work, None)
        if self._live is None or task is None:
            return
        self._live.remove_task(task)
        if not self._tasks:  # leave the screen clean for a prompt or the result
            self._live.stop()
            self._live = None


class _Amount(ProgressColumn):
    """The amount done, the total, and the rate."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
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
