"""Dagster's Markdown with escaped text: a value of a table must not become a link, a picture or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["escaped", "picture", "table"]

# Characters with a meaning in Markdown. A backslash escapes each.
_SPECIAL = re.compile(r"[\\`*_\[\]|<~&]")


def escaped(text: str) -> str:
    """Return a text in one line, without unprintable characters, and with Markdown escaped."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return _SPECIAL.sub(r"\\\g<0>", " ".join(printable.split()))


def table(names: Iterable[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Return rows under a header. None is shown as null."""
    header = [escaped(name) for name in names]
    lines = [["*null*" if value is None else escaped(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *lines])


def picture(alternative: str, png: str) -> str:
    """Return an embedded picture: `png` is base64, `alternative` is its text."""
    return f"![{escaped(alternative)}](data:image/png;base64,{png})"
