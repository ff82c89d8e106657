"""Pools of threads, also while the interpreter ends.

From Python 3.12 on, no thread can be started once the main program is over, and not in what runs at exit either. To
commit what a `BufferedWriter` still holds then, the thread that there is must do.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["pool_of"]

P = ParamSpec("P")
T = TypeVar("T")


def pool_of(threads: int) -> Executor:
    """A pool of so many threads; one that does its work at once, in the thread that asks, where none can be started."""
    pool = ThreadPoolExecutor(threads)
    try:
        pool.submit(int)  # the first thread starts, and waits for more
    except RuntimeError:
        return _AtOnce()
    return pool


class _AtOnce(Executor):
    """Does what it is given before it returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function; the future is done."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as a thread of a pool does
            done.set_exception(error)
        return done
