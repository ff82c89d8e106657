"""Progress of long-running work, reported per part, file or batch of rows.

    with watch_progress(print):
        table.merge()

Work reports its total and its steps with `progress`. Without a watcher this costs nothing. The watcher belongs to the
thread or asyncio task that began the work. Steps may come from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Literal

__all__ = [
    "COMMITTING",
    "DELETING",
    "Advance",
    "LogPace",
    "Progress",
    "Unit",
    "has_watcher",
    "progress",
    "watch_progress",
]

LINE_S = 5

#: The name of the request that publishes a change. As soon as it has begun, the change may be visible.
COMMITTING = "committing"
#: The name of the requests that delete objects.
DELETING = "deleting objects"

#: The unit of `Progress.done` and `Progress.total`.
Unit = Literal["bytes", "rows", "parts", "files", "objects"]
#: Reports that this many more units are done.
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one piece of work. `total` is None if it is unknown. `over` marks the last report."""

    #: The same object in all reports of one piece of work.
    work: object = field(repr=False)
    name: str
    unit: Unit
    done: int
    total: int | None
    over: bool = False


class LogPace:
    """Decides which steps of a long work are logged: one in five seconds, and the last one.

    Dagster stores each line of a run's log as an event, and a merge may have ten thousand steps.
    """

    def __init__(self) -> None:
        self._next_s = monotonic() + LINE_S

    def logs(self, *, is_last: bool) -> bool:
        """Return whether to log a step now."""
        now_s = monotonic()
        if not is_last and now_s < self._next_s:
            return False
        self._next_s = now_s + LINE_S
        return True


_watcher: ContextVar[Callable[[Progress], None] | None] = ContextVar("icedb_progress_watcher", default=None)


@contextmanager
def watch_progress(watcher: Callable[[Progress], None]) -> Iterator[None]:
    """Call a function with each step of the work in the block. The functions of outer blocks are called first.

    Several threads may call it, but one at a time for each piece of work. An exception that it raises ends the work.
    """
    outer = _watcher.get()

    def watch_both(progress: Progress) -> None:
        if outer is not None:
            outer(progress)
        watcher(progress)

    token = _watcher.set(watch_both)
    try:
        yield
    finally:
        _watcher.reset(token)


def has_watcher() -> bool:
    """Whether a watcher is set."""
    return _watcher.get() is not None


@contextmanager
def progress(name: str, total: int | None, unit: Unit) -> Iterator[Advance]:
    """Report the work in the block. The block calls the yielded function with the units done since its last call."""
    watcher = _watcher.get()
    if watcher is None:
        yield _ignore
        return
    work, lock, done = object(), Lock(), 0

    def advance(more: int) -> None:
        nonlocal done
        with lock:
            done += more
            watcher(Progress(work, name, unit, done, total))

    watcher(Progress(work, name, unit, 0, total))
    try:
        yield advance
    finally:
        watcher(Progress(work, name, unit, done, total, over=True))


def _ignore(more: int) -> None:
    pass
