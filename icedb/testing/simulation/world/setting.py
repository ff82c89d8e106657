"""The settings of the table of a simulated world, and the times that all worlds share."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.format.timing import Timing
from icedb.transaction.table_handle import Fencing

__all__ = ["LATE_MS", "PARTITIONS", "TIMING", "Setting"]

#: In the order of the defaults, but some thousand times shorter, because only the order matters.
TIMING = Timing(
    max_skew_ms=40,
    commit_timeout_ms=1_500,
    grace_ms=4_000,
    part_timeout_ms=8_000,
    late_ms=60_000,
    min_age_ms=17_000,
    txn_retention_ms=10_000_000,
)
#: The greatest delay of a log file after its commit time, computed independently of the code under test.
LATE_MS = 2 * (TIMING.commit_timeout_ms + TIMING.max_skew_ms)
PARTITIONS = ("d=1", "d=2")


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of the table of a world."""

    timing: Timing = TIMING
    fencing: Fencing = "claims"
    #: Whether processes add columns with conflicting types.
    several_types: bool = False
    #: Whether the store overwrites objects in spite of create-only puts.
    overwrites: bool = False
    #: The prefix of log and claims in a store of their own; None if they are in the store of the parts.
    log_root: str | None = None
    #: Prefixes of further objects that the table's processes read.
    sources: tuple[str, ...] = ()
    #: Whether the log may forget transactions before a cleanup deletes their claims, which are then kept.
    keeps_claims: bool = False
