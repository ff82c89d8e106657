"""Counts with their nouns, for messages."""

from __future__ import annotations

__all__ = ["count_text"]


def count_text(number: int, noun: str) -> str:
    """Format a count with its noun: `1 part`, `2,000 parts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
