"""Merges (compaction) of small parts into larger ones, partition by partition, in one commit.

Planning is pure. Inputs are live parts smaller than `part_bytes_max`. A group closes when it passes that size, so an
output is below twice that size. A single part is never rewritten. DuckDB reads, sorts and writes the rows of a group.
If the table has a merge query, its result is written instead. If other commits landed meanwhile, the groups whose
inputs are all still live are committed without rewriting a byte. The others are dropped for the next merge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypedDict, Unpack

from icedb.errors import InvalidOption
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns, visible_schema
from icedb.operations.rewrite.query_rewrite import query_of_merges
from icedb.operations.rewrite.rewrite_commit import Rewritten
from icedb.operations.rewrite.rewriter import Rewrite, Rewriter, rewrite_parts
from icedb.sql.types import new_columns
from icedb.storage.parts import Part
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.util.arguments import checks_arguments

__all__ = [
    "INPUT_BYTES_MAX",
    "INPUT_PARTS_MAX",
    "PART_BYTES_MAX",
    "MergeLimits",
    "MergePlan",
    "MergeReport",
    "Order",
    "TieredMerge",
    "carry_out",
    "merge",
    "mergeable",
    "plan_merge",
]

logger = logging.getLogger(__name__)

Order = Literal["newest", "oldest"]

# Large enough that a scan is bound by bandwidth, small enough to be rewritten in a second.
PART_BYTES_MAX = 128 * 1024 * 1024
# The factor between the limits of tiers in partitions where no more rows arrive.
COLD_TIER = 2
# Parts below this size are always merged with one another: that costs little more than the requests.
TINY_BYTES = 64 * 1024
# The budget of one call: a merge holds the table's lock, and the next call takes the rest.
INPUT_PARTS_MAX = 10_000
INPUT_BYTES_MAX = 16 * 1024 * 1024 * 1024


@checks_arguments
@dataclass(frozen=True, slots=True)
class TieredMerge:
    """Options for frequent merges that rewrite few bytes: a part is merged only with parts of about its size.

    A tier is the parts between two limits. The largest limit is a full part, the next a fixed fraction of it, and so
    on. A merged part leaves its tier. A partition is hot for `hot_ms` after its last rows. It may collect about
    `hot_parts` small parts, and each row is written once per tier, of which there are few. In cold partitions each
    limit is half of the one before. So few parts are left, and a part is not rewritten for a few late rows.

    Example:
        >>> table.merge(order="newest", tiers=icedb.TieredMerge(hot_parts=32))
    """

    hot_ms: int = 3_600_000
    hot_parts: int = 64

    @property
    def hot_tier(self) -> int:
        """The factor between the limits of a hot partition. The parts of three or four tiers are about `hot_parts`."""
        return max(2, self.hot_parts // 4)


class MergeLimits(TypedDict, total=False):
    """The options of `plan_merge`, with its defaults: the order of the groups, the size of parts, and the budget."""

    order: Order
    part_bytes_max: int
    input_parts_max: int
    input_bytes_max: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The groups of parts that one call merges, and the number of groups beyond its budget."""

    groups: tuple[Rewrite, ...]
    remaining: int


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of a merge or of its dry run. `dropped_groups` lost an input to another commit meanwhile.

    `rows` counts the rows of the new parts. A dry run does not run a merge query, so it counts the rows of the inputs.
    With `max_seconds`, the counts are the sums of all merges of the call, and `remaining` groups did not fit into the
    time. `commit` is the newest commit, and `commit_keys` has the log file of each.
    """

    commit: Commit
    merged_parts: int
    merged_bytes: int
    new_parts: int
    rows: int
    dropped_groups: int
    remaining: int
    dry_run: bool
    commit_keys: tuple[str, ...] = ()


def plan_merge(
    parts: Iterable[Part],
    *,
    part_bytes_max: int = PART_BYTES_MAX,
    order: Order = "oldest",
    input_parts_max: int = INPUT_PARTS_MAX,
    input_bytes_max: int = INPUT_BYTES_MAX,
    tiers: Mapping[str, int] | None = None,
) -> MergePlan:
    """Plan which live parts to merge. Pure. `order` sets which groups come first if the budget does not allow all.

    `tiers` has the factor between tiers by partition path, and `COLD_TIER` is the default. None merges all small parts.
    """
    small = sorted((p for p in parts if p.bytes < part_bytes_max), key=lambda p: (p.partition, p.created_ms, p.key))
    groups = [
        Rewrite(partition, tuple(group))
        for partition, of_partition in groupby(small, key=lambda p: p.partition)
        for group in _groups(
            of_partition,
            part_bytes_max,
            max(2, input_parts_max),
            None if tiers is None else tiers.get(partition, COLD_TIER),
        )
    ]
    groups.sort(key=lambda g: (max(p.created_ms for p in g.inputs), g.partition), reverse=order == "newest")
    taken = 0
    n_parts = n_bytes = 0
    for group in groups:
        n_parts += len(group.inputs)
        n_bytes += group.bytes
        if taken and (n_parts > input_parts_max or n_bytes > input_bytes_max):
            break
        taken += 1
    return MergePlan(tuple(groups[:taken]), len(groups) - taken)


def _groups(parts: Iterable[Part], part_bytes_max: int, parts_max: int, tier: int | None) -> list[list[Part]]:
    """Group the small parts of a partition. Each group becomes one part."""
    *closed, rest = _closed_groups(parts, part_bytes_max, parts_max)
    return [g for g in (*closed, rest if tier is None else _tier_of(rest, part_bytes_max, tier)) if len(g) > 1]


def _closed_groups(parts: Iterable[Part], part_bytes_max: int, parts_max: int) -> list[list[Part]]:
    """Group parts up to a size and a number. The last group has the rest, and may be empty."""
    groups: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        groups[-1].append(part)
        size += part.bytes
        if size > part_bytes_max or len(groups[-1]) == parts_max:
            groups.append([])
            size = 0
    return groups


def _tier_of(parts: Sequence[Part], part_bytes_max: int, tier: int) -> list[Part]:
    """Return the parts below the largest limit that these parts reach together, or else the tiny ones.

    All parts together are smaller than a full part. The limits are a full part divided by `tier`, again and again. A
    merged part is above its limit, so each row is written once for each limit above its first part. Fewer parts than
    `tier` stay between two limits.
    """
    limit = part_bytes_max / tier
    while limit > TINY_BYTES:
        below = [p for p in parts if p.bytes < limit]
        if len(below) >= max(2, tier // 2) and sum(p.bytes for p in below) >= limit:
            return below
        limit /= tier
    return [p for p in parts if p.bytes < TINY_BYTES]


def merge(
    handle: Handle,
    *,
    tiers: TieredMerge | None = None,
    dry_run: bool = False,
    rewriter: Rewriter = rewrite_parts,
    **limits: Unpack[MergeLimits],
) -> MergeReport:
    """Merge small parts of all partitions, up to the budget, in one exclusive commit. A dry run only plans.

    With `tiers`, merge only parts of a similar size, for frequent merges. None merges all small parts.

    Raises InvalidOption, MissingPart, CommitConflict, CommitStateUnknown and the store's errors. With a merge query it
    also raises InvalidQuery, InvalidBatch, SchemaConflict and UnsupportedType, for a result that cannot be stored.
    """
    _check_limits(handle.table, **limits)
    if not dry_run:
        handle.check_writable()
    state = handle.read()
    hot = None if tiers is None else _tiers_of_hot(handle, state, tiers)
    plan = plan_merge(mergeable(handle, state), tiers=hot, **limits)
    return _dry_run_report(handle, plan) if dry_run else carry_out(handle, state, plan, rewriter=rewriter)


def _dry_run_report(handle: Handle, plan: MergePlan) -> MergeReport:
    return MergeReport(
        commit=nothing_to_commit(handle),
        merged_parts=sum(len(g.inputs) for g in plan.groups),
        merged_bytes=sum(g.bytes for g in plan.groups),
        new_parts=len(plan.groups),
        rows=sum(g.rows or 0 for g in plan.groups),
        dropped_groups=0,
        remaining=plan.remaining,
        dry_run=True,
    )


def carry_out(
    handle: Handle, state: TableState, plan: MergePlan, *, rewriter: Rewriter = rewrite_parts, lenient: bool = False
) -> MergeReport:
    """Carry out a plan for this state in one exclusive commit. `lenient`: see `RewriteQuery`. Raises as `merge`."""
    if not plan.groups:
        return MergeReport(nothing_to_commit(handle), 0, 0, 0, 0, 0, plan.remaining, dry_run=False)
    logger.info(
        "%s: merging %d groups, %d bytes; %d groups are left for the next call",
        handle.table, len(plan.groups), sum(g.bytes for g in plan.groups), plan.remaining,
    )  # fmt: skip
    oldest_part_ms = handle.clock.now_ms()
    groups, schema = plan.groups, visible_schema(handle.spec, state.schema)
    if handle.spec.merge_query or handle.spec.merging is not None:
        schema = all_columns(handle.spec, state.schema)  # a query may fill a column that was only declared so far
        query = query_of_merges(handle, schema, lenient=lenient)
        groups = tuple(replace(g, query=query) for g in plan.groups)
    markers = rewriter(handle, groups, schema)
    written = {g: () if m is None else (m,) for g, m in zip(groups, markers, strict=True)}
    brought = new_columns(schema, state.schema)
    operation = Rewritten(written, operation="merge", oldest_part_ms=oldest_part_ms, schema=brought, sparing=True)
    commit = commit_exclusive(handle, operation)
    return MergeReport(
        commit=commit,
        merged_parts=sum(len(g.inputs) for g in operation.kept),
        merged_bytes=sum(g.bytes for g in operation.kept),
        new_parts=len(operation.markers),
        rows=sum(m.rows or 0 for m in operation.markers),
        dropped_groups=len(plan.groups) - len(operation.kept),
        remaining=plan.remaining,
        dry_run=False,
        commit_keys=() if commit.key is None else (commit.key,),
    )


def _check_limits(
    table: str, *, order: str = "oldest", part_bytes_max: int = 1, input_parts_max: int = 1, input_bytes_max: int = 1
) -> None:
    if order not in ("newest", "oldest"):
        raise InvalidOption(f"{table}: order is '{order}'; give 'newest' or 'oldest'.")
    if min(part_bytes_max, input_parts_max, input_bytes_max) < 1:
        raise InvalidOption(
            f"{table}: part_bytes_max ({part_bytes_max}), input_parts_max ({input_parts_max}) and "
            f"input_bytes_max ({input_bytes_max}) must be over 0. Give larger values."
        )


def mergeable(handle: Handle, state: TableState) -> list[Part]:
    """Return the live parts, without those in a log file of a clock far ahead, which no commit of ours can replace."""
    held = state.held_far_ahead(handle.far_ahead_ms(handle.clock.now_ms()))
    return [handle.part(m) for m in state.live if m.key not in held]


def _tiers_of_hot(handle: Handle, state: TableState, tiers: TieredMerge) -> dict[str, int]:
    """Return the tier factor of the partitions in which rows arrived lately, as far as the log records it."""
    since_ms = handle.clock.now_ms() - tiers.hot_ms
    came = (m for m in state.parts.values() if not m.moved and m.created_ms > since_ms)
    return dict.fromkeys(map(handle.partition, came), tiers.hot_tier)
