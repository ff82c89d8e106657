"""Thread pools that also work while the interpreter shuts down.

Since Python 3.12, no thread can be started after the main program has ended, nor in `atexit` functions. A
`BufferedWriter` that commits its rows at that time runs the work in the current thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["SynchronousExecutor", "start_thread_pool"]

P = ParamSpec("P")
T = TypeVar("T")


def start_thread_pool(threads: int) -> Executor:
    """Return a pool of threads, or an executor that runs work in the calling thread if no thread can be started."""
    pool = ThreadPoolExecutor(threads)
    try:
        pool.submit(int)  # starts the first thread
    except RuntimeError:
        return SynchronousExecutor()
    return pool


class SynchronousExecutor(Executor):
    """An executor that runs work in the calling thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function, and return a completed future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as a thread of a pool does
            future.set_exception(error)
        return future
