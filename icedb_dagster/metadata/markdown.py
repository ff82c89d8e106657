"""Texts in Dagster's Markdown, shown as they are: a value of a table is not allowed to be a link, a picture or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["escaped", "picture", "table"]

# What Markdown would take for itself; a backslash before any of these shows it as it is.
_SPECIAL = re.compile(r"[\\`*_\[\]|<~&]")


def escaped(text: str) -> str:
    """A text in one line, without characters that cannot be seen."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return _SPECIAL.sub(r"\\\g<0>", " ".join(printable.split()))


def table(names: Iterable[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Rows under the names of their columns; None is shown as null."""
    header = [escaped(name) for name in names]
    lines = [["*null*" if value is None else escaped(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *lines])


def picture(alternative: str, png: str) -> str:
    """A picture that needs no other file: `png` is base64. `alternative` says the same in words."""
    return f"![{escaped(alternative)}](data:image/png;base64,{png})"
