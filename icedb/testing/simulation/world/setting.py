"""How the table of a simulated world is set up, and the times that all worlds share."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.format.timing import Timing
from icedb.transaction.table_handle import Fencing

__all__ = ["LATE_MS", "PARTITIONS", "TIMING", "Setting"]

#: As the defaults, but for a thousand times smaller numbers: the order of the times is what counts.
TIMING = Timing(
    max_skew_ms=40,
    commit_timeout_ms=1_500,
    grace_ms=4_000,
    part_timeout_ms=8_000,
    late_ms=60_000,
    min_age_ms=17_000,
    txn_retention_ms=10_000_000,
)
#: How long after its time a log file may appear: reckoned here, not taken from the code that is tried.
LATE_MS = 2 * (TIMING.commit_timeout_ms + TIMING.max_skew_ms)
PARTITIONS = ("d=1", "d=2")


@dataclass(frozen=True, slots=True)
class Setting:
    """How the table of a world is set up, where that differs from the usual."""

    timing: Timing = TIMING
    fencing: Fencing = "claims"
    #: Programs bring columns with types that differ.
    several_types: bool = False
    #: The store replaces objects although told to create them.
    overwrites: bool = False
    #: The prefix of log and claims in a store of their own; None: they lie beside the parts.
    log_root: str | None = None
    #: Prefixes of files of others that the table's programs read.
    sources: tuple[str, ...] = ()
    #: Transactions may be forgotten before a cleanup removes their claims, which then stay.
    keeps_claims: bool = False
