"""One page of a listing, as S3 defines it: pure, over keys in order.

Keys are compared by code points, which is the order of their UTF-8, S3's own. A page ends where the next begins, so
whoever follows the pages sees each key, or the common prefix that stands for it, once: no page repeats or skips.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Page", "list_page"]

_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, by their numbers, and the common prefixes that stand for others."""

    numbers: Sequence[int]
    prefixes: Sequence[str]
    #: The last key or common prefix of the page: what the next page comes after. Empty for an empty page.
    last: str
    truncated: bool


def list_page(
    keys: Sequence[str], *, prefix: str = "", delimiter: str = "", after: str = "", size: int = 1_000
) -> Page:
    """The page of at most `size` entries that comes after a key or common prefix.

    Keys that start with `prefix` and have the delimiter after it become one entry: what is up to the delimiter.
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
        found = key.find(delimiter, len(prefix))
        common = None if found < 0 else key[: found + len(delimiter)]
        if common is not None and common == after:  # told on the page before
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
    """The number after that of the last key with a prefix."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return len(keys)  # no text is beyond all of these
    return bisect_left(keys, stem[:-1] + chr(ord(stem[-1]) + 1))
