"""How the command `icedb` speaks: results as tables or as one JSON document, the rest in lines on standard error.

Where standard output is no terminal, a table is as wide as its longest row: a script finds each row whole, in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeGuard

import msgspec
import rich.box
from rich.console import Console
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.wording import in_the_shell

if TYPE_CHECKING:
    from icedb.maintenance.verify import VerifyReport

__all__ = ["errors", "moment", "one_line", "output", "report_rows", "show", "tell", "time_text", "write_json"]

# Later than any duration that somebody would write as a number.
_A_TIME_MS = 10**12
_WIDTH_WITHOUT_TERMINAL = 1_000
# Inside of a value these are left out.
_NOTHING: tuple[object, ...] = (None, "", (), [], {}, False)


class _Console(Console):
    """Where nobody reads any more, a BrokenPipeError tells the verb; rich would end the process by itself."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Standard output."""
    return _Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def errors() -> Console:
    """Standard error."""
    return _Console(stderr=True)


def tell(text: Text) -> None:
    """A line on standard error."""
    errors().print(text, soft_wrap=True)


def one_line(error: Exception) -> str:
    """An error's message without line breaks, in the words of the command."""
    return in_the_shell(" ".join(str(error).split()))


def write_json(document: object) -> None:
    """One document in one line."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def show(result: object, *, json: bool) -> None:
    """Print a report, or a list of records. A verification's problems stand below its figures."""
    if json:
        write_json({"ok": result.ok, **msgspec.to_builtins(result)} if _is_verification(result) else result)
        return
    console = output()
    console.print(report_rows(result))
    for problem in result.problems if _is_verification(result) else ():
        style = "bold red" if problem.severity == "error" else "yellow"
        console.print(Text.assemble((f"{problem.severity}: ", style), in_the_shell(problem.message)), soft_wrap=True)


def report_rows(result: object) -> Rows | Text:
    """A report: a row for each of its fields. A list of records: a row for each of them."""
    if isinstance(result, list):
        return _records(result)
    rows = Rows(show_header=False, box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in _names(result):
        rows.add_row(Text(name.replace("_", " "), style="bold"), Text(_text(name, getattr(result, name))))
    if _is_verification(result):
        rows.add_row(Text("result", style="bold"), Text("sound" if result.ok else "DAMAGED"))
    return rows


def _records(records: Sequence[object]) -> Rows | Text:
    if not records:
        return Text("none")
    names = _names(records[0])
    rows = Rows(*(name.replace("_", " ") for name in names), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for one in records:
        rows.add_row(*(Text(_text(name, getattr(one, name))) for name in names))
    return rows


def _names(record: object) -> list[str]:
    if not is_dataclass(record):
        raise TypeError(f"{record!r} is no report")
    return [f.name for f in fields(record)]


def _is_verification(result: object) -> TypeGuard[VerifyReport]:
    """By its name: that a verb can be typed should not load the library."""
    return type(result).__name__ == "VerifyReport"


def moment(unix_ms: int) -> datetime | None:
    """A time in UTC; None for a number that is none, as a log may have by a clock that was wrong."""
    try:
        return datetime.fromtimestamp(unix_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999, or what the system can tell
        return None


def time_text(unix_ms: int, *, timespec: str = "milliseconds") -> str:
    """A time as ISO 8601, in UTC; the number, if it is no time."""
    at = moment(unix_ms)
    return f"{unix_ms} (unix ms)" if at is None else at.isoformat(timespec=timespec)


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return "unknown" if name.endswith(("rows", "bytes")) else "none"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_ms") and value >= _A_TIME_MS:
            return time_text(value)
        case int():
            return f"{value:,}"
        case tuple() | list():
            some = ", ".join(str(getattr(v, "key", v)) for v in value[:3])
            return f"{len(value):,}{f' ({some}' if value else ''}{', ...)' if len(value) > 3 else ')' if value else ''}"
        case Mapping():
            return "; ".join(f"{k}: {_said(v)}" for k, v in value.items() if v not in _NOTHING) or "none"
        case object(committed=bool(), key=key):  # a commit
            return key or "nothing to commit"
    return str(value)


def _said(value: object) -> str:
    """A value inside of a value."""
    match value:
        case tuple() | list():
            return ", ".join(map(_said, value))
        case Mapping():
            return ", ".join(f"{k} {_said(v)}" for k, v in value.items() if v not in _NOTHING)
    return str(value)
