"""Many dicts as columns. The interpreter's own loops do what is done for every value: there may be millions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import Any

__all__ = ["columns_of"]


def columns_of(dicts: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Name -> a value for each dict, None where it has no such name. Names are in order of appearance."""
    # Only of plain dicts: others may make up what they are asked for.
    if set(map(type, dicts)) == {dict} and len(set(map(len, dicts))) == 1:
        # With as many names each, all have those of the first, or one of them is missing somewhere.
        with suppress(KeyError):
            return {name: list(map(itemgetter(name), dicts)) for name in dicts[0]}
    names = dict.fromkeys(chain.from_iterable(dicts))
    return {name: [d.get(name) for d in dicts] for name in names}
