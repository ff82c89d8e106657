"""Text tables that never wrap or cut a line, so that the user can copy paths and addresses.

A terminal wraps a long line by itself, and a copy of it is one line again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from icedb.util.counts import number_text

__all__ = ["Cell", "print_list", "signed_text", "visible"]

#: Text of a table, with an optional style.
Cell = str | Text

# Characters that would move the cursor of a terminal or change its colours.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def print_list(
    console: Console, names: Sequence[str], rows: Iterable[Sequence[Cell]], *, optional: Sequence[Sequence[int]] = ()
) -> None:
    """Print rows with a heading. A name that begins with `>` marks a column that is aligned to the right.

    `optional`: groups of column indexes that a narrow terminal hides, the first group first.
    """
    lines: list[Sequence[Cell]] = [[Text(name.removeprefix(">"), style="bold") for name in names], *rows]
    widths = [max(cell_len(_plain(line[at])) for line in lines) for at in range(len(names))]
    visible_columns = _fit_columns(widths, optional, console.width if console.is_terminal else None)
    for number, line in enumerate(lines):
        text = Text()
        for at in visible_columns:
            cell, space = line[at], " " * (widths[at] - cell_len(_plain(line[at])))
            text.append(space if names[at].startswith(">") else "")
            text.append(_plain(cell), "" if isinstance(cell, str) else cell.style)
            text.append("  " if names[at].startswith(">") else f"{space}  ")
        text.rstrip()
        console.print(text, soft_wrap=True, highlight=False)
        if number == 0:
            console.print(Text("  ".join("─" * widths[at] for at in visible_columns), style="dim"), soft_wrap=True)
    if len(visible_columns) < len(names):
        console.print(Text("A wider terminal shows more columns.", style="dim"), soft_wrap=True)


def _fit_columns(widths: Sequence[int], optional: Sequence[Sequence[int]], width: int | None) -> list[int]:
    """Return the indexes of the columns that fit into `width`; None: all columns."""
    kept, rest = list(range(len(widths))), list(optional)
    while width is not None and rest and sum(widths[at] + 2 for at in kept) - 2 > width:
        hidden = rest.pop(0)
        kept = [at for at in kept if at not in hidden]
    return kept


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.plain


def visible(text: str) -> str:
    """Return a text as one line, with control characters escaped."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def signed_text(number: int | None, sign: str) -> Text:
    """Format an added (`+`) or removed (`-`) number; 0 is empty."""
    if number == 0:
        return Text("")
    return Text(f"{sign}{number_text(number)}", style="green" if sign == "+" else "red")
