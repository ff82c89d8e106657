"""Results of the verbs as text: the outcome of a report in a sentence, then its details; or a list of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

import msgspec
from rich.console import Console
from rich.text import Text

from icedb.cli.render.messages import in_the_shell
from icedb.cli.render.outcomes import outcome_of
from icedb.cli.render.output import output, write_json
from icedb.cli.render.text_tables import print_list
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from icedb.operations.integrity.verify import VerifyReport

__all__ = ["print_details", "show"]

# Numbers from here on are times, not durations.
_TIME_MS_MIN = 10**12
# Values that are left out of the details, and inside another value.
_EMPTY: tuple[object, ...] = (None, "", (), [], {}, False)


def show(result: object, *, json: bool, dry_run: bool = False, nothing: Callable[[], str | None] | None = None) -> None:
    """Print a report or a list of records. The problems of a verification follow its figures.

    `nothing` returns a more precise sentence for a report of nothing to do, or None.
    """
    if json:
        write_json({"ok": result.ok, **msgspec.to_builtins(result)} if _is_verification(result) else result)
        return
    console = output()
    if isinstance(result, list):
        _print_records(console, result)
        return
    is_dry = _is_dry(result, dry_run)
    outcome = outcome_of(result)
    if not outcome.acts and nothing is not None:
        outcome = replace(outcome, nothing=nothing() or outcome.nothing)
    style = "bold" if not _is_verification(result) else "bold green" if result.ok else "bold red"
    console.print(Text(outcome.sentence(dry_run=is_dry), style=style), soft_wrap=True)
    print_details(console, result, dry_run=is_dry)
    for problem in result.problems if _is_verification(result) else ():
        style = "bold red" if problem.severity == "error" else "yellow"
        console.print(Text.assemble((f"{problem.severity}: ", style), in_the_shell(problem.message)), soft_wrap=True)


def print_details(console: Console, report: object, *, dry_run: bool = False) -> None:
    """Print a line for each field of a report that is not empty. No value is cut or wrapped, even on a narrow terminal.

    A dry run has no lines about a commit.
    """
    is_dry = _is_dry(report, dry_run)
    omitted = ("dry_run", "commit", "commit_keys", "log_file") if is_dry else ("dry_run", "commit_keys")
    values = {name: getattr(report, name) for name in _names(report) if name not in omitted}
    lines = {_label(name): _text(name, value) for name, value in values.items() if not _is_empty(value)}
    width = max(map(len, lines), default=0)
    for label, text in lines.items():
        line = Text.assemble((label, "bold"), " " * (width - len(label) + 2), text)
        console.print(line, soft_wrap=True, highlight=False)


def _is_dry(report: object, dry_run: bool) -> bool:
    return dry_run or bool(getattr(report, "dry_run", False))


def _is_empty(value: object) -> bool:
    match value:
        case object(committed=False):  # a commit of nothing
            return True
        case Mapping():
            return all(v in _EMPTY for v in value.values())
    return value in _EMPTY or value == 0


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
            return "none"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_ms") and value >= _TIME_MS_MIN:
            return iso_text(value)
        case int():
            return f"{value:,}"
        case tuple() | list():
            some = ", ".join(filter(None, (str(getattr(v, "key", v)) for v in value[:3])))
            return f"{len(value):,}" + (f" ({some}{', ...' if len(value) > 3 else ''})" if some else "")
        case Mapping():
            return "; ".join(f"{k}: {_nested(v)}" for k, v in value.items() if v not in _EMPTY)
        case object(committed=bool(), key=key):
            return str(key)
    return str(value)


def _nested(value: object) -> str:
    """Format a value inside another value."""
    match value:
        case tuple() | list():
            return ", ".join(map(_nested, value))
        case Mapping():
            return ", ".join(f"{k} {_nested(v)}" for k, v in value.items() if v not in _EMPTY)
    return str(value)
