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
from rich.console import Console
from rich.text import Text

from icedb.cli.render.messages import in_the_shell
from icedb.cli.render.text_tables import print_list

if TYPE_CHECKING:
    from icedb.operations.integrity.verify import VerifyReport

__all__ = ["errors", "moment", "one_line", "output", "print_report", "show", "tell", "time_text", "write_json"]

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
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{error.filename}': {error.strerror}."
    return in_the_shell(" ".join(str(error).split()))


def write_json(document: object) -> None:
    """One document in one line."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def show(result: object, *, json: bool, dry_run: bool = False) -> None:
    """Print a report, or a list of records. A verification's problems stand below its figures."""
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
    """A line for each field of a report: no value is cut or broken, however narrow a terminal is.

    That nothing was committed is no news of a dry run; that it was one is always said, and that it was none never.
    """
    is_dry = dry_run or getattr(result, "dry_run", False)
    unsaid = ("dry_run", "commit", "log_file") if is_dry else ("dry_run",)
    told = {_label(n): _text(n, getattr(result, n)) for n in _names(result) if n not in unsaid}
    if is_dry:
        told["dry run"] = "yes: nothing was changed"
    if _is_verification(result):
        told["result"] = "sound" if result.ok else "DAMAGED"
    width = max(map(len, told))
    for label, text in told.items():
        line = Text.assemble((label, "bold"), " " * (width - len(label) + 2), text)
        console.print(line, soft_wrap=True, highlight=False)


def _print_records(console: Console, records: Sequence[object]) -> None:
    if not records:
        console.print("none")
        return
    names = _names(records[0])
    print_list(console, [_label(n) for n in names], ([_text(n, getattr(r, n)) for n in names] for r in records))


def _label(name: str) -> str:
    """What a field is called before a person: times are told as such, and have no unit."""
    return name.removesuffix("_ms").replace("_", " ")


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
        case 0 if name.endswith("_ms"):
            return "none"
        case int() if name.endswith("_ms") and value >= _A_TIME_MS:
            return time_text(value)
        case int():
            return f"{value:,}"
        case tuple() | list():
            some = ", ".join(filter(None, (str(getattr(v, "key", v)) for v in value[:3])))
            return f"{len(value):,}" + (f" ({some}{', ...' if len(value) > 3 else ''})" if some else "")
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
