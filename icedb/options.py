"""The times that keep a table right, and why they are what they are (docs/format.md, "Times")."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.arguments import checks_arguments
from icedb.errors import InvalidOption

__all__ = ["Timing"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@checks_arguments
@dataclass(frozen=True, slots=True)
class Timing:
    """All in milliseconds. Every program that writes a table, or follows its changes, must use the same."""

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
