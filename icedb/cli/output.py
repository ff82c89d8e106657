"""How the command `icedb` speaks: results as tables or as one JSON document, the rest in lines on standard error.

Where standard output is no terminal, a table is as wide as its longest row: a script finds each row whole, in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime

import msgspec
import rich.box
from rich.console import Console
from rich.table import Table as Rows
from rich.text import Text

from icedb.commit import Commit
from icedb.maintenance.pins import Pin
from icedb.maintenance.verify import VerifyReport

__all__ = ["moment", "one_line", "output", "report_rows", "show", "tell", "time_text", "write_json"]

# Later than any duration that somebody would write as a number.
_A_TIME_MS = 10**12
_WIDTH_WITHOUT_TERMINAL = 1_000


def output() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def tell(text: Text) -> None:
    """A line on standard error."""
    Console(stderr=True).print(text, soft_wrap=True)


def one_line(error: Exception) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split())


def write_json(document: object) -> None:
    """One document in one line."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def show(result: object, *, json: bool) -> None:
    """Print a report, or a list of pins. A verification's problems stand below its figures."""
    if json:
        write_json({"ok": result.ok, **msgspec.to_builtins(result)} if isinstance(result, VerifyReport) else result)
        return
    console = output()
    console.print(report_rows(result))
    for problem in result.problems if isinstance(result, VerifyReport) else ():
        style = "bold red" if problem.severity == "error" else "yellow"
        console.print(Text.assemble((f"{problem.severity}: ", style), problem.message), soft_wrap=True)


def report_rows(result: object) -> Rows:
    """A report: a row for each of its fields. Pins: a row for each of them."""
    if isinstance(result, list):
        return _pins(result)
    if not is_dataclass(result):
        raise TypeError(f"{result!r} is no report")
    rows = Rows(show_header=False, box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in (f.name for f in fields(result)):
        rows.add_row(Text(name.replace("_", " "), style="bold"), Text(_text(name, getattr(result, name))))
    if isinstance(result, VerifyReport):
        rows.add_row(Text("result", style="bold"), Text("sound" if result.ok else "DAMAGED"))
    return rows


def _pins(pins: Sequence[Pin]) -> Rows:
    names = [f.name for f in fields(Pin)]
    rows = Rows(*(name.replace("_", " ") for name in names), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for one in pins:
        rows.add_row(*(Text(_text(name, getattr(one, name))) for name in names))
    return rows


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
        case Commit():
            return value.key or "nothing to commit"
        case tuple() | list():
            some = ", ".join(str(getattr(v, "key", v)) for v in value[:3])
            return f"{len(value):,}{f' ({some}' if value else ''}{', ...)' if len(value) > 3 else ')' if value else ''}"
    return str(value)
