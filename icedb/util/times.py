"""Points in time as arguments: an aware datetime, unix milliseconds, or a text of either."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

from icedb.errors import InvalidOption

__all__ = ["COUNT_MAX", "TIME_MS_MAX", "UNIX_MS_MIN", "AsOf", "as_of_ms", "iso_text", "moment", "parse_as_of",
           "time_text"]  # fmt: skip

#: A point in time: an aware datetime, or unix milliseconds.
AsOf = datetime | int
#: The least time in unix milliseconds that is accepted. Unix seconds are far below it: read as milliseconds, they are a
#: time before every table, and a restore to it would empty the table.
UNIX_MS_MIN = 100_000_000_000
#: The greatest time in an object of a table, 9999-12-31T00:00:00Z. It is a valid date in every time zone.
TIME_MS_MAX = 253_402_214_400_000
#: The greatest count of bytes, rows, lines, epochs or revisions: every JSON parser represents it exactly.
COUNT_MAX = 2**53 - 1


@overload
def as_of_ms(as_of: AsOf, *, name: str = ...) -> int: ...
@overload
def as_of_ms(as_of: None, *, name: str = ...) -> None: ...
def as_of_ms(as_of: AsOf | None, *, name: str = "as_of") -> int | None:
    """Convert a point in time to unix milliseconds. Raises InvalidOption for a naive datetime, and for seconds."""
    if as_of is None:
        return None
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise InvalidOption(f"{name} {as_of} has no timezone; give datetime(..., tzinfo=UTC) or unix milliseconds.")
        return int(as_of.astimezone(UTC).timestamp() * 1000)
    if not isinstance(as_of, int) or isinstance(as_of, bool):
        raise InvalidOption(f"{name} is {as_of!r}; give datetime(..., tzinfo=UTC) or unix milliseconds.")
    if as_of < UNIX_MS_MIN:
        raise InvalidOption(
            f"{name} is {as_of}, which is before 1974 in unix milliseconds and probably means seconds or a date. "
            "Give datetime(..., tzinfo=UTC) or unix milliseconds."
        )
    return as_of


def moment(unix_ms: int) -> datetime | None:
    """Return a time in UTC, or None if it is out of range, as after a commit with a wrong clock."""
    try:
        return datetime.fromtimestamp(unix_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999, or beyond the range of the platform
        return None


def iso_text(unix_ms: int, *, timespec: str = "milliseconds") -> str:
    """Return a time as ISO 8601 in UTC, or the number if it is out of range."""
    at = moment(unix_ms)
    return f"{unix_ms} (unix ms)" if at is None else at.isoformat(timespec=timespec)


def time_text(unix_ms: int) -> str:
    """Format a time for messages: ISO 8601 in UTC, and the unix milliseconds that an API takes."""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return f"{unix_ms} (unix ms)"
    return f"{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} ({unix_ms} unix ms)"


def parse_as_of(text: str, *, table: str, name: str = "as_of") -> int:
    """Parse ISO 8601 with a time zone, or unix milliseconds. Raises InvalidOption."""
    text = text.strip()
    try:
        return as_of_ms(int(text) if text.isascii() and text.isdigit() else datetime.fromisoformat(text), name=name)
    except ValueError:  # includes InvalidOption from as_of_ms
        raise InvalidOption(
            f"{table}: {name} is '{text}'; write a time with its zone (2026-11-21T10:00:00Z), or unix milliseconds."
        ) from None
