"""Merges for a limited time: one after the other, each as large as the remaining time allows.

A merge cannot be stopped half way, so each one has a budget. The first is small. The next has the budget that the one
before would have done in half of the remaining time. Each merge is a commit of its own, and the next call takes the
rest. A group of parts is never divided, so a call may exceed its time by the last group: a second or two for parts of
the usual size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from icedb.errors import InvalidOption
from icedb.operations.rewrite.engine import Engine, LocalEngine, ResourceLimits
from icedb.operations.rewrite.merge import (
    INPUT_BYTES_MAX,
    INPUT_PARTS_MAX,
    PART_BYTES_MAX,
    MergeLimits,
    MergeReport,
    TieredMerge,
    merge,
)
from icedb.operations.rewrite.rewriter import Rewriter
from icedb.transaction.table_handle import Handle

__all__ = ["PARTS_FIRST", "PARTS_MIN", "Share", "first_share", "merge_engine", "merge_within", "next_share"]

# The number of small parts that a slow store returns in about ten seconds, with two requests each, several at a time.
PARTS_FIRST = 2_000
# With fewer parts, groups would be so small that their outputs are soon merged again.
PARTS_MIN = 500
# A measurement of a few parts predicts little about many.
GROWTH_MAX = 4


# A longer time is no limit in practice, and the arithmetic of times stays in range.
SECONDS_MAX = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Share:
    """The input budget of one merge, which always takes at least one group."""

    parts: int
    bytes: int


def merge_within(
    handle: Handle,
    max_seconds: float | None,
    *,
    tiers: TieredMerge | None,
    rewriter: Rewriter,
    dry_run: bool = False,
    **limits: Unpack[MergeLimits],
) -> MergeReport:
    """Merge until nothing is left to merge (with `tiers`, nothing in them), or until the time is over.

    Each merge is a commit within the limits. Without `max_seconds`, and as a dry run, there is one merge. Raises as
    `merge`. Merges that were committed before stay.
    """
    if max_seconds is not None and max_seconds <= 0:
        raise InvalidOption(f"{handle.table}: max_seconds is {max_seconds}; give more than 0.")
    if max_seconds is None or dry_run:
        return merge(handle, tiers=tiers, rewriter=rewriter, dry_run=dry_run, **limits)
    most = Share(limits.get("input_parts_max", INPUT_PARTS_MAX), limits.get("input_bytes_max", INPUT_BYTES_MAX))
    share: Share | None = first_share(limits.get("part_bytes_max", PART_BYTES_MAX), most)
    clock = handle.clock
    end_ms = clock.now_ms() + round(min(max_seconds, SECONDS_MAX) * 1000)
    reports: list[MergeReport] = []
    while share is not None:
        limits["input_parts_max"], limits["input_bytes_max"] = share.parts, share.bytes
        began_ms = clock.now_ms()
        reports.append(merge(handle, tiers=tiers, rewriter=rewriter, **limits))
        now_ms = clock.now_ms()
        share = next_share(share, reports[-1], most, spent_ms=now_ms - began_ms, left_ms=end_ms - now_ms)
    return _summed(reports)


def merge_engine(engine: Engine | None, memory_bytes: int | None, *, table: str) -> Engine:
    """Return the engine of a merge: the caller's, or this process with that memory. Raises InvalidOption for both."""
    if engine is None:
        return LocalEngine(ResourceLimits(memory_bytes))
    if memory_bytes is not None:
        raise InvalidOption(
            f"{table}: memory_bytes and engine are both set, but memory_bytes limits this process only. Leave "
            "memory_bytes out, and set the memory of the engine."
        )
    return engine


def _summed(reports: list[MergeReport]) -> MergeReport:
    """Return one report of merges that followed one another."""
    return replace(
        reports[-1],
        commit=next((r.commit for r in reversed(reports) if r.commit.committed), reports[-1].commit),
        merged_parts=sum(r.merged_parts for r in reports),
        merged_bytes=sum(r.merged_bytes for r in reports),
        new_parts=sum(r.new_parts for r in reports),
        rows=sum(r.rows for r in reports),
        dropped_groups=sum(r.dropped_groups for r in reports),
        commit_keys=tuple(key for r in reports for key in r.commit_keys),
    )


def first_share(part_bytes_max: int, most: Share) -> Share:
    """Return a first budget that is enough to measure the speed: two groups of large parts, or many small ones."""
    return Share(min(PARTS_FIRST, most.parts), min(2 * part_bytes_max, most.bytes))


def next_share(share: Share, report: MergeReport, most: Share, *, spent_ms: int, left_ms: int) -> Share | None:
    """Return the budget of the next merge, or None if nothing is left or the time does not suffice. Pure."""
    groups = max(1, report.new_parts + report.dropped_groups)
    if not report.remaining or left_ms <= 0 or left_ms < spent_ms / groups:
        return None
    scale = min(GROWTH_MAX, left_ms / 2 / max(1, spent_ms))
    # Dropped groups took time too, so an estimate without them is on the safe side.
    parts = int((report.merged_parts or share.parts) * scale)
    n_bytes = int((report.merged_bytes or share.bytes) * scale)
    return Share(min(max(parts, PARTS_MIN), most.parts), min(max(n_bytes, 1), most.bytes))
