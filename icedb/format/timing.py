"""The times on which a table's consistency depends, and their rules (docs/format.md, "Times")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

import msgspec

from icedb.errors import InvalidOption
from icedb.util.arguments import checks_arguments
from icedb.util.times import TIME_MS_MAX

__all__ = ["DAY_MS", "EarlierTiming", "Timing", "deletable_until", "part_timeout_at", "timing_at", "timing_differences"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
#: A century: a longer time is probably a mistake of units.
LENGTH_MS_MAX = 36_525 * DAY_MS


@checks_arguments
@dataclass(frozen=True, slots=True)
class Timing:
    """The times of a table, all in milliseconds. `Table.create` sets them, and `Table.alter` changes them.

    Raises:
        InvalidOption: A time is negative, over a century, or contradicts another one.

    Example:
        >>> timing = icedb.Timing(grace_ms=4 * 3_600_000)
        >>> table = icedb.Table.create("s3://bucket/events", timing=timing)
    """

    #: The maximal difference between the clocks of writers and store.
    max_skew_ms: int = MINUTE_MS
    #: A claim older than this is voided, and the publication of a log file older than this is rejected.
    commit_timeout_ms: int = 5 * MINUTE_MS
    #: The least age of a tombstone before cleanup deletes its object. Must be longer than the longest query.
    grace_ms: int = HOUR_MS
    #: The greatest age of parts that are published: an orphan sweep may have deleted older ones.
    part_timeout_ms: int = 12 * HOUR_MS
    #: How long log tombstones are kept. Must be longer than the network can delay a request.
    late_ms: int = DAY_MS
    #: The age from which a part that no log file names is an orphan. At least twice `part_timeout_ms`.
    min_age_ms: int = DAY_MS
    #: How long the log keeps committed transactions. Must be longer than a pipeline may pause.
    txn_retention_ms: int = 30 * DAY_MS

    @property
    def late_publication_ms(self) -> int:
        """The greatest time after its commit time at which a log file may appear.

        A writer rejects a publication whose time is older than `commit_timeout_ms` right before the put. The put takes
        less than that again. Two clocks differ by at most twice the skew.
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
    """The times of a table before the commit of time `until` (unix milliseconds) changed them."""

    until: Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
    timing: Timing

    @property
    def read_by_all_ms(self) -> int:
        """The time by which every program has read the change and uses the later times (unix milliseconds).

        A program reads the log before it publishes, unless it has read it within `grace_ms`. The commit itself may
        appear later than its time, and clocks differ.
        """
        return self.until + self.timing.grace_ms + self.timing.late_publication_ms

    def is_over(self, now_ms: int, *others: Timing) -> bool:
        """Whether no work that began under these times, or under others, can still rely on these."""
        longest: int = max(getattr(t, f.name) for t in (self.timing, *others) for f in fields(Timing))
        return now_ms >= self.read_by_all_ms + longest


def timing_at(timing: Timing, earlier: Sequence[EarlierTiming], now_ms: int) -> Timing:
    """Return the times in effect now, for a table with these times and these earlier ones.

    A longer time takes effect at once. For a time that was shortened, the earlier value stays in effect until no work
    that relies on it can be in progress: for as long as that value after the last program has read the change.
    """
    longest: dict[str, int] = {}
    for old in earlier:
        for field in fields(Timing):
            value = getattr(old.timing, field.name)
            if value > longest.get(field.name, getattr(timing, field.name)) and now_ms < old.read_by_all_ms + value:
                longest[field.name] = value
    return replace(timing, **longest) if longest else timing


def part_timeout_at(timing: Timing, earlier: Sequence[EarlierTiming], oldest_part_ms: int) -> int:
    """Return the age (milliseconds) up to which a part that was written at `oldest_part_ms` may be published.

    Earlier limits count too, because an orphan sweep that had not read a longer limit may have deleted the part.
    """
    return min(
        [timing.part_timeout_ms, *(e.timing.part_timeout_ms for e in earlier if oldest_part_ms < e.read_by_all_ms)]
    )


def deletable_until(timing: Timing, earlier: Sequence[EarlierTiming], now_ms: int) -> int:
    """Return the newest time of a part's tombstone with which a cleanup may have deleted the part until `now_ms`.

    A cleanup uses an earlier grace period until it has read the longer one.
    """
    return max([now_ms - timing.grace_ms, *(min(now_ms, e.read_by_all_ms) - e.timing.grace_ms for e in earlier)])


def timing_differences(one: Timing, other: Timing) -> list[str]:
    """Return the names of the times that differ."""
    return [f.name for f in fields(Timing) if getattr(one, f.name) != getattr(other, f.name)]
