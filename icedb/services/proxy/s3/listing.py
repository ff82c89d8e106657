"""Pages of S3 listings over sorted keys.

Keys are compared by code points, which is the order of their UTF-8 and of S3. Each page starts after the end of the
previous one. So the pages have each key, or its common prefix, exactly once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Page", "list_page"]

_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Page:
    """Keys, by their indexes, and common prefixes of other keys."""

    numbers: Sequence[int]
    prefixes: Sequence[str]
    #: The last key or common prefix, after which the next page starts. Empty for an empty page.
    last: str
    truncated: bool


def list_page(
    keys: Sequence[str], *, prefix: str = "", delimiter: str = "", after: str = "", size: int = 1_000
) -> Page:
    """Return a page of at most `size` entries after a key or common prefix.

    Keys that have the delimiter after `prefix` are grouped: their common prefix up to the delimiter is one entry.
    """
    if size <= 0:
        return Page((), (), "", truncated=False)
    end = _end_of(keys, prefix)
    number = max(bisect_left(keys, prefix), bisect_right(keys, after))
    if not delimiter:
        stop = min(number + size, end)
        if stop <= number:
            return Page((), (), "", truncated=False)
        return Page(range(number, stop), (), keys[stop - 1], truncated=stop < end)
    numbers: list[int] = []
    prefixes: list[str] = []
    last = ""
    while number < end:
        key = keys[number]
        at = key.find(delimiter, len(prefix))
        common = None if at < 0 else key[: at + len(delimiter)]
        if common is not None and common == after:  # an entry of the previous page
            number = _end_of(keys, common)
            continue
        if len(numbers) + len(prefixes) == size:
            return Page(numbers, prefixes, last, truncated=True)
        if common is None:
            numbers.append(number)
            last, number = key, number + 1
        else:
            prefixes.append(common)
            last, number = common, _end_of(keys, common)
    return Page(numbers, prefixes, last, truncated=False)


def _end_of(keys: Sequence[str], prefix: str) -> int:
    """Return the index after the last key with a prefix."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return len(keys)  # no text sorts after this prefix
    return bisect_left(keys, stem[:-1] + chr(ord(stem[-1]) + 1))
