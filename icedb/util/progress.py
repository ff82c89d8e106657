"""How far long work is: told to whoever watches, in steps that are no smaller than a part, a file or a batch of rows.

    with watched(print):
        table.merge()

Work says what there is to do and what is done (`progress`); without somebody who watches, that costs nothing. Who
watches is known to the thread, or the task of asyncio, that began the work; the steps may come from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

__all__ = ["Advance", "Progress", "Unit", "is_watched", "progress", "watched"]

#: What is counted.
Unit = Literal["bytes", "rows", "parts", "files", "objects"]
#: Is told that so many more are done.
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one piece of work is. `total` is None when nobody knows; `over` the last time that it is told of."""

    #: The same object for all that is told of one piece of work.
    work: object = field(repr=False)
    name: str
    unit: Unit
    done: int
    total: int | None
    over: bool = False


_watcher: ContextVar[Callable[[Progress], None] | None] = ContextVar("icedb_progress_watcher", default=None)


@contextmanager
def watched(watcher: Callable[[Progress], None]) -> Iterator[None]:
    """Have a function told of each step of the work in the block. It is called by several threads, one at a time for
    each piece of work; what it raises ends the work."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def is_watched() -> bool:
    """Whether anybody wants to know."""
    return _watcher.get() is not None


@contextmanager
def progress(name: str, total: int | None, unit: Unit) -> Iterator[Advance]:
    """Work begins, of which there is so much; the block calls what it is given with what was done since."""
    watcher = _watcher.get()
    if watcher is None:
        yield _nobody
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


def _nobody(more: int) -> None:
    pass
