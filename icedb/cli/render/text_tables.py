"""Lists as tables whose lines are whole: a path or an address is never broken or cut, however narrow a terminal is.

A terminal breaks a line that is too long by itself, and what is copied from it is one line again. Lines are written as
they are made, so a list may be long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

__all__ = ["Cell", "count_text", "number_text", "print_list", "signed_text", "size_text", "visible"]

#: What stands in a table, and how it looks on a terminal.
Cell = str | Text

_UNITS = ("kB", "MB", "GB", "TB")
# What would move a terminal's cursor, or change its colours.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def print_list(
    console: Console, names: Sequence[str], rows: Iterable[Sequence[Cell]], *, going: Sequence[Sequence[int]] = ()
) -> None:
    """Lines with a heading. A name that begins with `>` is that of a column whose cells stand at its right.

    `going`: numbers of columns that a terminal which is too narrow does not show, the first ones first.
    """
    lines: list[Sequence[Cell]] = [[Text(name.removeprefix(">"), style="bold") for name in names], *rows]
    widths = [max(cell_len(_plain(line[at])) for line in lines) for at in range(len(names))]
    shown = _fitting(widths, going, console.width if console.is_terminal else None)
    for number, line in enumerate(lines):
        told = Text()
        for at in shown:
            cell, space = line[at], " " * (widths[at] - cell_len(_plain(line[at])))
            told.append(space if names[at].startswith(">") else "")
            told.append(_plain(cell), "" if isinstance(cell, str) else cell.style)
            told.append("  " if names[at].startswith(">") else f"{space}  ")
        told.rstrip()
        console.print(told, soft_wrap=True, highlight=False)
        if number == 0:
            console.print(Text("  ".join("─" * widths[at] for at in shown), style="dim"), soft_wrap=True)
    if len(shown) < len(names):
        console.print(Text("A wider terminal shows more columns.", style="dim"), soft_wrap=True)


def _fitting(widths: Sequence[int], going: Sequence[Sequence[int]], width: int | None) -> list[int]:
    """The columns that are shown: all, or as many as fit."""
    shown, rest = list(range(len(widths))), list(going)
    while width is not None and rest and sum(widths[at] + 2 for at in shown) - 2 > width:
        gone = rest.pop(0)
        shown = [at for at in shown if at not in gone]
    return shown


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.plain


def visible(text: str) -> str:
    """A text in one line, whatever is in it: characters that a terminal obeys are told by their numbers."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def count_text(number: int, noun: str) -> str:
    """A number of things: `1 part`, `2,000 parts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number_text(number: int | None) -> str:
    """A number, or that nobody knows it."""
    return "unknown" if number is None else f"{number:,}"


def signed_text(number: int | None, sign: str) -> Text:
    """What came (`+`) or went (`-`); nothing for none."""
    if number == 0:
        return Text("")
    return Text(f"{sign}{number_text(number)}", style="green" if sign == "+" else "red")


def size_text(number: float) -> str:
    """Bytes, in a unit that leaves few digits: 512 B, 12.3 MB."""
    if number < 1_000:
        return f"{number:.0f} B"
    exponent = 0
    while number >= 999.95 and exponent < len(_UNITS):  # 999.95 would be shown as 1000.0
        number, exponent = number / 1_000, exponent + 1
    return f"{number:,.1f} {_UNITS[exponent - 1]}"
