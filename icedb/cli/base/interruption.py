"""The message after Ctrl-C (SIGINT): whether the verb can have changed the table.

The signal interrupts Python between two instructions, and a request that has begun is sent to its end. So nothing is
committed before the first request that publishes a change begins, and from then on the outcome is unknown.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from icedb.util.progress import COMMITTING, DELETING, Progress, watch_progress

__all__ = ["Interrupted", "explain_interruption"]

#: The verbs that delete objects without a commit.
_DELETING_VERBS = ("cleanup", "orphans")


class Interrupted(Exception):
    """The user pressed Ctrl-C. The message states what may have been changed."""


@contextmanager
def explain_interruption(verb: str, uri: str | None) -> Iterator[None]:
    """Raise Interrupted if Ctrl-C ends the block. `uri` is the table that the verb may change, if it may change one."""
    begun: set[str] = set()

    with _noticed_signal() as is_pressed:

        def watch(progress: Progress) -> None:
            # DuckDB ignores an interruption of its own imports. Objects of the interrupted work are still deleted.
            if is_pressed() and not progress.over and progress.name != DELETING:
                raise KeyboardInterrupt
            begun.add(progress.name)

        try:
            with watch_progress(watch):
                yield
        except typer.Abort:  # Ctrl-C at the prompt, which declines the change
            raise
        except BaseException as error:
            if not _is_interruption(error):
                raise
            raise Interrupted(_message(verb, uri, begun)) from None


@contextmanager
def _noticed_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT has arrived in the block. It still raises KeyboardInterrupt."""
    pressed = False

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, usual)


def _is_interruption(error: BaseException | None) -> bool:
    """Whether an error is or follows a KeyboardInterrupt. DuckDB raises a RuntimeError for it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _message(verb: str, uri: str | None, begun: set[str]) -> str:
    if uri is None:
        return "Interrupted."
    if verb == "export":
        return "Interrupted. The export may be incomplete: run it again."
    if verb in _DELETING_VERBS:
        if DELETING in begun:
            return "Interrupted. Some objects may have been deleted. Run the verb again to delete the rest."
        return "Interrupted. Nothing was deleted."
    if COMMITTING in begun:
        return (
            "Interrupted during or after a commit, which may have succeeded. Check the table before you repeat the "
            f"verb: icedb history {uri}"
        )
    return "Interrupted. Nothing was committed."
