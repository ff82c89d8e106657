"""Merges for a limited time: one after the other, each as large as the remaining time allows.

A merge cannot be stopped half way, so each one has a budget. The first is small. The next has the budget that the one
before would have done in half of the remaining time. Each merge is a commit of its own, and the next call takes the
rest. A group of parts is never divided, so a call may exceed its time by the last group: a second or two for parts of
the usual size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from icedb.errors import InvalidOption
from icedb.operations.rewrite.engine import Engine
from icedb.operations.rewrite.merge import (
    INPUT_BYTES_MAX,
    INPUT_PARTS_MAX,
    PART_BYTES_MAX,
    MergeReport,
    Order,
    TieredMerge,
)
from icedb.transaction.table_handle import Handle

__all__ = [
    "PARTS_FIRST",
    "PARTS_MIN",
    "MergeableTable",
    "PacedReport",
    "Share",
    "first_share",
    "merge_for",
    "next_share",
]

# The number of small parts that a slow store returns in about ten seconds, with two requests each, several at a time.
PARTS_FIRST = 2_000
# With fewer parts, groups would be so small that their outputs are soon merged again.
PARTS_MIN = 500
# A measurement of a few parts predicts little about many.
GROWTH_MAX = 4


class MergeableTable(Protocol):
    """The part of `icedb.Table` that a loop of merges uses; `Table` itself imports this package."""

    @property
    def uri(self) -> str:
        """The table's address, for messages."""

    @property
    def handle(self) -> Handle:
        """The open table."""

    def merge(
        self,
        *,
        order: Order = ...,
        part_bytes_max: int = ...,
        tiers: TieredMerge | None = ...,
        input_parts_max: int = ...,
        input_bytes_max: int = ...,
        engine: Engine | None = ...,
    ) -> MergeReport:
        """See `icedb.Table.merge`."""


@dataclass(frozen=True, slots=True)
class Share:
    """The input budget of one merge, which always takes at least one group."""

    parts: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PacedReport:
    """The sums of all merges of one call, each with a commit. `remaining` groups did not fit into the time."""

    commits: tuple[str, ...]
    merged_parts: int
    merged_bytes: int
    new_parts: int
    rows: int
    dropped_groups: int
    remaining: int


def merge_for(
    table: MergeableTable,
    *,
    seconds_max: float,
    order: Order = "oldest",
    part_bytes_max: int = PART_BYTES_MAX,
    tiers: TieredMerge | None = None,
    engine: Engine | None = None,
) -> PacedReport:
    """Merge until nothing is left to merge (with `tiers`, nothing in them), or until the time is over.

    Raises the errors of `Table.merge`. Merges that were committed before stay.
    """
    if seconds_max <= 0:
        raise InvalidOption(f"{table.uri}: seconds_max is {seconds_max}; give more than 0.")
    clock = table.handle.clock
    end_ms = clock.now_ms() + round(seconds_max * 1000)
    reports: list[MergeReport] = []
    share: Share | None = first_share(part_bytes_max)
    while share is not None:
        began_ms = clock.now_ms()
        report = table.merge(
            order=order,
            part_bytes_max=part_bytes_max,
            tiers=tiers,
            input_parts_max=share.parts,
            input_bytes_max=share.bytes,
            engine=engine,
        )
        reports.append(report)
        now_ms = clock.now_ms()
        share = next_share(share, report, spent_ms=now_ms - began_ms, left_ms=end_ms - now_ms)
    return PacedReport(
        commits=tuple(r.commit.key for r in reports if r.commit.key is not None),
        merged_parts=sum(r.merged_parts for r in reports),
        merged_bytes=sum(r.merged_bytes for r in reports),
        new_parts=sum(r.new_parts for r in reports),
        rows=sum(r.rows for r in reports),
        dropped_groups=sum(r.dropped_groups for r in reports),
        remaining=reports[-1].remaining,
    )


def first_share(part_bytes_max: int) -> Share:
    """Return a first budget that is enough to measure the speed: two groups of large parts, or many small ones."""
    return Share(PARTS_FIRST, 2 * part_bytes_max)


def next_share(share: Share, report: MergeReport, *, spent_ms: int, left_ms: int) -> Share | None:
    """Return the budget of the next merge, or None if nothing is left or the time does not suffice. Pure."""
    groups = max(1, report.new_parts + report.dropped_groups)
    if not report.remaining or left_ms <= 0 or left_ms < spent_ms / groups:
        return None
    scale = min(GROWTH_MAX, left_ms / 2 / max(1, spent_ms))
    # Dropped groups took time too, so an estimate without them is on the safe side.
    parts = int((report.merged_parts or share.parts) * scale)
    n_bytes = int((report.merged_bytes or share.bytes) * scale)
    return Share(min(max(parts, PARTS_MIN), INPUT_PARTS_MAX), min(max(n_bytes, 1), INPUT_BYTES_MAX))
