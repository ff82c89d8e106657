"""Comparison of numbers from the platform with numbers counted by other means."""

from __future__ import annotations

__all__ = ["NumbersDisagree", "agree"]

# The maximum length of each value in the message.
VALUE_CHARACTERS_MAX = 300


class NumbersDisagree(Exception):
    """The platform holds another number than the one counted from the raw files."""


def agree(name: str, actual: object, expected: object, *, source: str) -> None:
    """Raise NumbersDisagree unless both values are equal. `source` names the origin of the expected value."""
    if actual != expected:
        raise NumbersDisagree(f"{name}: found {_shortened(actual)}, counted {_shortened(expected)} in {source}")


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."
