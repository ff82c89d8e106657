"""Output of the command `icedb`: results as tables or as one JSON document, messages as lines on standard error.

If standard output is not a terminal, a table is as wide as its longest row, so that each row is one line for a script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, TypeGuard

import msgspec
from rich.console import Console
from rich.text import Text

from icedb.cli.render.messages import in_the_shell
from icedb.cli.render.text_tables import print_list
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from icedb.operations.integrity.verify import VerifyReport

__all__ = [
    "error_output",
    "one_line",
    "output",
    "print_report",
    "show",
    "print_message",
    "write_json",
]

# Numbers from here on are times, not durations.
_TIME_MS_MIN = 10**12
_WIDTH_WITHOUT_TERMINAL = 1_000
# Values that are left out inside another value.
_EMPTY: tuple[object, ...] = (None, "", (), [], {}, False)


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


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks, in terms of the command."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{error.filename}': {error.strerror}."
    return in_the_shell(" ".join(str(error).split()))


def write_json(document: object) -> None:
    """Write one JSON document as one line."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def show(result: object, *, json: bool, dry_run: bool = False) -> None:
    """Print a report or a list of records. The problems of a verification follow its figures."""
    if json:
        write_json({"ok": result.ok, **msgspec.to_builtins(result)} if _is_verification(result) else result)
        return
    console = output()
    if isinstance(result, list):
        _print_records(console, result)
        return
    print_report(console, result, dry_run=dry_run)
    for problem in result.problems if _is_verification(result) else ():
        style = "bold red" if problem.severity == "error" else "yellow"
        console.print(Text.assemble((f"{problem.severity}: ", style), in_the_shell(problem.message)), soft_wrap=True)


def print_report(console: Console, result: object, *, dry_run: bool = False) -> None:
    """Print a line for each field of a report. No value is cut or wrapped, even on a narrow terminal.

    A dry run has a line that states it, and no lines about a commit.
    """
    is_dry = dry_run or getattr(result, "dry_run", False)
    omitted = ("dry_run", "commit", "commit_keys", "log_file") if is_dry else ("dry_run",)
    lines = {_label(n): _text(n, getattr(result, n)) for n in _names(result) if n not in omitted}
    if is_dry:
        lines["dry run"] = "yes: nothing was changed"
    if _is_verification(result):
        lines["result"] = "sound" if result.ok else "DAMAGED"
    width = max(map(len, lines))
    for label, text in lines.items():
        line = Text.assemble((label, "bold"), " " * (width - len(label) + 2), text)
        console.print(line, soft_wrap=True, highlight=False)


def _print_records(console: Console, records: Sequence[object]) -> None:
    if not records:
        console.print("none")
        return
    names = _names(records[0])
    print_list(console, [_label(n) for n in names], ([_text(n, getattr(r, n)) for n in names] for r in records))


def _label(name: str) -> str:
    """Return the label of a field. Times are printed with a unit, so the label has none."""
    return name.removesuffix("_ms").replace("_", " ")


def _names(record: object) -> list[str]:
    if not is_dataclass(record):
        raise TypeError(f"{record!r} is not a report")
    return [f.name for f in fields(record)]


def _is_verification(result: object) -> TypeGuard[VerifyReport]:
    """Compare the name of the type, because importing it would load the library at startup."""
    return type(result).__name__ == "VerifyReport"


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return "unknown" if name.endswith(("rows", "bytes")) else "none"
        case bool():
            return "yes" if value else "no"
        case 0 if name.endswith("_ms"):
            return "none"
        case int() if name.endswith("_ms") and value >= _TIME_MS_MIN:
            return iso_text(value)
        case int():
            return f"{value:,}"
        case tuple() | list():
            some = ", ".join(filter(None, (str(getattr(v, "key", v)) for v in value[:3])))
            return f"{len(value):,}" + (f" ({some}{', ...' if len(value) > 3 else ''})" if some else "")
        case Mapping():
            return "; ".join(f"{k}: {_nested(v)}" for k, v in value.items() if v not in _EMPTY) or "none"
        case object(committed=bool(), key=key):  # a commit
            return key or "nothing to commit"
    return str(value)


def _nested(value: object) -> str:
    """Format a value inside another value."""
    match value:
        case tuple() | list():
            return ", ".join(map(_nested, value))
        case Mapping():
            return ", ".join(f"{k} {_nested(v)}" for k, v in value.items() if v not in _EMPTY)
    return str(value)
