"""Consoles of the command `icedb`, its messages as lines on standard error, and JSON documents.

If standard output is not a terminal, a table is as wide as its longest row, so that each row is one line for a script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec
from rich.console import Console
from rich.text import Text

from icedb.cli.render.messages import in_the_shell, with_options

__all__ = ["error_output", "one_line", "output", "print_message", "write_json"]

_WIDTH_WITHOUT_TERMINAL = 1_000


class _Console(Console):
    """A console that raises BrokenPipeError if the pipe is closed. Rich would exit the process instead."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Return a console for standard output."""
    return _Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def error_output() -> Console:
    """Return a console for standard error."""
    return _Console(stderr=True)


def print_message(text: Text) -> None:
    """Print a line on standard error."""
    error_output().print(text, soft_wrap=True)


def one_line(error: Exception, options: Mapping[str, str] | None = None) -> str:
    """Return the message of an error without line breaks, in terms of the command.

    `options`: the options of the running verb by the arguments of the library that they set.
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{error.filename}': {error.strerror}."
    return with_options(in_the_shell(" ".join(str(error).split())), options or {})


def write_json(document: object) -> None:
    """Write one JSON document as one line."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()
