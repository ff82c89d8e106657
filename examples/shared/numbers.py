"""Numbers of the platform that must be those which were counted by other means."""

from __future__ import annotations

__all__ = ["NumbersDisagree", "agree"]

# Of two collections that differ, so much is shown of each.
SHOWN_CHARACTERS = 300


class NumbersDisagree(Exception):
    """The platform holds something else than what was counted from the raw files."""


def agree(what: str, found: object, expected: object, *, source: str) -> None:
    """Raise NumbersDisagree unless both are the same. `source`: where the expected number was counted."""
    if found != expected:
        raise NumbersDisagree(f"{what}: found {_shown(found)}, counted {_shown(expected)} in {source}")


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
