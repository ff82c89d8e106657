"""The times that keep a table right, and why they are what they are (docs/format.md, "Times")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

import msgspec

from icedb.errors import InvalidOption
from icedb.util.arguments import checks_arguments
from icedb.util.times import TIME_MS_MAX

__all__ = ["EarlierTiming", "Timing", "doomed_at", "part_timeout_at", "timing_at", "timing_differences"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
#: A century: a longer time is a mistake of units.
LENGTH_MS_MAX = 36_525 * DAY_MS


@checks_arguments
@dataclass(frozen=True, slots=True)
class Timing:
    """All in milliseconds. They are part of a table's spec: `Table.create` sets them, `Table.alter` changes them."""

    #: Clocks of writers and store may differ by this much.
    max_skew_ms: int = MINUTE_MS
    #: A claim older than this is voided, a publication older than this refused.
    commit_timeout_ms: int = 5 * MINUTE_MS
    #: Least age of a tombstone before cleanup deletes what it points at: longer than the longest query.
    grace_ms: int = HOUR_MS
    #: Parts written longer ago are not published: an orphan sweep may have taken them.
    part_timeout_ms: int = 12 * HOUR_MS
    #: Log tombstones are kept this long: longer than any request can be delayed on its way.
    late_ms: int = DAY_MS
    #: Parts that nothing names are orphans when they are older: twice the age at which a part may still be published.
    min_age_ms: int = DAY_MS
    #: How long the log remembers which transactions were committed: longer than a pipeline may pause.
    txn_retention_ms: int = 30 * DAY_MS

    @property
    def late_publication_ms(self) -> int:
        """How long after its time a log file may appear.

        A publication is refused when its time is older than `commit_timeout_ms`, right before a put that takes less
        than that, and two clocks differ by twice the skew.
        """
        return 2 * (self.commit_timeout_ms + self.max_skew_ms)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LENGTH_MS_MAX:
                raise InvalidOption(
                    f"{field.name} is {value!r}; give a whole number of milliseconds, {LENGTH_MS_MAX:,} at most."
                )
        if min(self.part_timeout_ms, self.late_ms) <= 0:
            raise InvalidOption(
                f"part_timeout_ms ({self.part_timeout_ms}) and late_ms ({self.late_ms}) must be over 0."
            )
        if 2 * self.part_timeout_ms > self.min_age_ms:
            raise InvalidOption(f"part_timeout_ms ({self.part_timeout_ms}) must be at most half of min_age_ms.")
        if self.txn_retention_ms <= self.grace_ms:
            raise InvalidOption(f"txn_retention_ms ({self.txn_retention_ms}) must be longer than grace_ms.")
        if not 0 <= self.max_skew_ms < self.commit_timeout_ms:
            raise InvalidOption(f"max_skew_ms ({self.max_skew_ms}) must be less than commit_timeout_ms.")
        if 2 * self.commit_timeout_ms > self.grace_ms:
            raise InvalidOption(f"grace_ms ({self.grace_ms}) must be at least twice commit_timeout_ms.")


@dataclass(frozen=True, slots=True)
class EarlierTiming:
    """Times that a table had until a commit, whose time is `until` (unix milliseconds), changed them."""

    until: Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
    timing: Timing

    @property
    def known_ms(self) -> int:
        """The time by which every program has read the log since the change, and acts by the later times.

        A program that publishes reads the log if its last look is longer ago than `grace_ms`. The commit itself may
        appear later than its time, and clocks differ.
        """
        return self.until + self.timing.grace_ms + self.timing.late_publication_ms

    def is_over(self, now_ms: int, *others: Timing) -> bool:
        """Whether nothing that began under these times, or under others, can still count on these."""
        longest: int = max(getattr(t, f.name) for t in (self.timing, *others) for f in fields(Timing))
        return now_ms >= self.known_ms + longest


def timing_at(timing: Timing, earlier: Sequence[EarlierTiming], now_ms: int) -> Timing:
    """Return the times that count now, of a table with these times and these earlier ones.

    A longer time counts at once. Of a time that was shortened the earlier value counts until nothing that relies on it
    can be under way: as long as that value, after the last program has learned of the change.
    """
    longest: dict[str, int] = {}
    for old in earlier:
        for field in fields(Timing):
            value = getattr(old.timing, field.name)
            if value > longest.get(field.name, getattr(timing, field.name)) and now_ms < old.known_ms + value:
                longest[field.name] = value
    return replace(timing, **longest) if longest else timing


def part_timeout_at(timing: Timing, earlier: Sequence[EarlierTiming], oldest_part_ms: int) -> int:
    """Return the age up to which a part that was written at `oldest_part_ms` may be published.

    A sweep that did not know of a longer limit yet may have taken the part for an orphan.
    """
    return min([timing.part_timeout_ms, *(e.timing.part_timeout_ms for e in earlier if oldest_part_ms < e.known_ms)])


def doomed_at(timing: Timing, earlier: Sequence[EarlierTiming], now_ms: int) -> int:
    """Return the newest time of a tombstone, of those of parts that a cleanup may have deleted until `now_ms`.

    By each earlier grace period a cleanup deletes until it knows of a longer one.
    """
    return max([now_ms - timing.grace_ms, *(min(now_ms, e.known_ms) - e.timing.grace_ms for e in earlier)])


def timing_differences(one: Timing, other: Timing) -> list[str]:
    """Return the names of the times that differ."""
    return [f.name for f in fields(Timing) if getattr(one, f.name) != getattr(other, f.name)]
