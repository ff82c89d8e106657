"""Figures in words, for the page and its pictures."""

from __future__ import annotations

import math

__all__ = ["number", "quantity", "spread"]

# Of a second that is told in seconds; less is told in milliseconds.
_SECONDS_MIN = 0.01


def number(value: float) -> str:
    """Three digits that count, without losing whole ones."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def quantity(value: float, unit: str) -> str:
    """A number, which names its unit only where that is a smaller one, as otherwise nobody could read it."""
    if unit == "s" and 0 < abs(value) < _SECONDS_MIN:
        return f"{number(value * 1000)} ms"
    return number(value)


def spread(least: float, greatest: float, unit: str = "") -> str:
    """From one to the other."""
    return f"{quantity(least, unit)} to {quantity(greatest, unit)}"
