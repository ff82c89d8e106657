"""Formats of figures for the page and its plots."""

from __future__ import annotations

import math

__all__ = ["number", "quantity", "spread"]

# Shorter times are printed in milliseconds.
_SECONDS_MIN = 0.01


def number(value: float) -> str:
    """Format a number with three significant digits, or all digits of a whole number."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def quantity(value: float, unit: str) -> str:
    """Format a number. A very small number of seconds is printed in milliseconds, with the unit."""
    if unit == "s" and 0 < abs(value) < _SECONDS_MIN:
        return f"{number(value * 1000)} ms"
    return number(value)


def spread(least: float, greatest: float, unit: str = "") -> str:
    """Format a range."""
    return f"{quantity(least, unit)} to {quantity(greatest, unit)}"
