"""Conversion of dicts to columns. It uses the interpreter's own loops, because there may be millions of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import Any

__all__ = ["columns_of"]


def columns_of(dicts: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Return a list of values by name, with None if a dict lacks the name. Names are in order of appearance."""
    # Only of plain dicts: subclasses may invent missing keys.
    if set(map(type, dicts)) == {dict} and len(set(map(len, dicts))) == 1:
        # Equally many names: either all dicts have those of the first, or one of these is missing.
        with suppress(KeyError):
            return {name: list(map(itemgetter(name), dicts)) for name in dicts[0]}
    names = dict.fromkeys(chain.from_iterable(dicts))
    return {name: [d.get(name) for d in dicts] for name in names}
