"""Counts with their nouns and numbers of bytes, as texts."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["binary_size_text", "count_text", "known_sum", "number_text", "size_text"]

_UNITS = ("kB", "MB", "GB", "TB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def count_text(number: int, noun: str) -> str:
    """Format a count with its noun: `1 part`, `2,000 parts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number_text(number: int | None) -> str:
    """Format a number; None is `unknown`."""
    return "unknown" if number is None else f"{number:,}"


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; None if one of them is unknown (None)."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def size_text(number: float) -> str:
    """Format a number of bytes: 512 B, 12.3 MB."""
    if number < 1_000:
        return f"{number:.0f} B"
    exponent = 0
    while number >= 999.95 and exponent < len(_UNITS):  # 999.95 would be shown as 1000.0
        number, exponent = number / 1_000, exponent + 1
    return f"{number:,.1f} {_UNITS[exponent - 1]}"


def binary_size_text(size: int) -> str:
    """Format a power of two in bytes: 64 KiB."""
    exponent = 0
    while size >= 1 << 10 and exponent < len(_BINARY_UNITS) - 1:
        size, exponent = size >> 10, exponent + 1
    return f"{size} {_BINARY_UNITS[exponent]}"
