"""What a table is like now, and what should be done about it: the one place where that is decided.

    condition       figures that the log alone tells: no part is opened, nothing is changed
    threshold       what a figure should stay below
    recommendation  a kind of maintenance that is due, because a figure has reached half of its threshold: what is
                    recommended then is done before the threshold is passed. Never one that would find nothing to do
    heat            a partition is hot while rows arrive in it. Merging it often writes the same rows again and again,
                    so it may gather more small parts than a cold one, which is merged once and for all

`icedb info` prints the recommendations, a sensor acts on them, and a check fails beyond a threshold.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from icedb.errors import InvalidOption
from icedb.format.keys import partition_of
from icedb.format.packed_state import MarkerView
from icedb.format.records import Marker, total_bytes, total_rows
from icedb.format.replay import TableState
from icedb.format.timing import Timing
from icedb.operations.retention.merge_log import mergeable_log_files, plan_merge_log
from icedb.operations.rewrite.merge import PART_BYTES_MAX, TieredMerge, plan_merge
from icedb.reader.lazy_parts import LiveParts
from icedb.transaction.pin_objects import Pin, is_needed, pins_in_force
from icedb.transaction.table_handle import Handle, Part
from icedb.util.arguments import checks_arguments

__all__ = ["TableHealth", "Due", "PartitionHealth", "Recommendation", "SizeClass", "Thresholds", "health_of",
           "examine", "recommend"]  # fmt: skip

#: What can be due.
Due = Literal["merge_newest", "merge_oldest", "merge_log", "cleanup"]

# Half of 4 is what can be merged at all; half of 2 is something.
_LEAST = {"hot_parts": 4, "cold_parts": 4, "log_files": 4, "hot_ms": 0}
_LEAST_OF_OTHERS = 2

_MEGABYTE = 1_000_000


@checks_arguments
@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a table should stay below. Maintenance is recommended from half of each on, rounded down.

    Raises InvalidOption for what is no whole number, or too small to be kept.
    """

    #: Small parts of a partition that rows arrive in. Each query of that partition opens them all.
    hot_parts: int = 64
    #: Small parts of a partition in which no rows arrived for `hot_ms`.
    cold_parts: int = 8
    #: How long after its last rows (milliseconds) a partition is hot. Beyond the table's grace period that may be
    #: forgotten: then it is cold.
    hot_ms: int = 3_600_000
    #: A part below this size (bytes) is small.
    part_bytes_max: int = PART_BYTES_MAX
    #: Log files that whoever opens the table has to read.
    log_files: int = 64
    #: Bytes that were superseded longer than the grace period ago: paid for, and of no use to anybody.
    expired_bytes: int = 4_000_000_000
    #: Parts and log files of that kind: a listing gives a thousand objects for the price of one.
    expired_objects: int = 2_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, least = getattr(self, name), _LEAST.get(name, _LEAST_OF_OTHERS)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidOption(f"the threshold {name} is {value!r}; give a whole number, {least} at least.")


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The live parts of one partition. `small_parts` are those that a merge would take; times are unix milliseconds.

    `newest_rows_ms` is when rows came last, as far as the log remembers: cleanup forgets what was merged. `basis` is
    the same as long as the small parts are.
    """

    path: str
    parts: int
    bytes: int
    small_parts: int
    small_bytes: int
    newest_rows_ms: int | None
    hot: bool
    basis: str
    #: There are many small parts, and a merge in tiers would take none of them: it would not pay.
    at_rest: bool = False


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The live parts from `bytes_min`, 0 or a power of two, up to twice that; `small_parts`: a merge would take."""

    bytes_min: int
    parts: int
    small_parts: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A kind of maintenance that is due, and why. `basis` is the same as long as it is due for the same objects."""

    due: Due
    reason: str
    basis: str


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table at one time, as its log tells it. Times are unix milliseconds; a `basis` tells which objects it is of."""

    table: str
    at_ms: int
    live_parts: int
    #: None when a part does not say how many it has.
    live_rows: int | None
    live_bytes: int
    #: By path.
    partitions: tuple[PartitionHealth, ...]
    #: Log files that whoever opens the table has to read, and those of them that a merge of log files would take.
    log_files: int
    small_log_files: int
    small_log_files_basis: str
    #: Superseded, and still remembered: most are still stored.
    dead_parts: int
    dead_bytes: int
    #: When the oldest of those was superseded.
    oldest_dead_ms: int | None
    #: Superseded longer than the grace period ago. Less what pins need, once it is enough for a cleanup: to look at the
    #: pins takes requests.
    expired_parts: int
    expired_bytes: int
    expired_log_files: int
    expired_basis: str
    #: Snapshots before this time can no longer be read; 0: all can.
    horizon_ms: int
    #: When rows came last, as far as the log remembers: cleanup forgets what was merged.
    newest_rows_ms: int | None
    recommendations: tuple[Recommendation, ...] = ()
    #: The live parts by size, the smallest first; classes without any are left out.
    sizes: tuple[SizeClass, ...] = ()
    #: When the newest commit was made, and the operation that its header records; None: there is none.
    last_commit_ms: int | None = None
    last_operation: str | None = None
    #: The table's times that count now.
    timing: Timing = field(default_factory=Timing)

    @property
    def small_parts(self) -> int:
        """Live parts that a merge would take."""
        return sum(p.small_parts for p in self.partitions)

    @property
    def small_part_ratio(self) -> float:
        """Of the live parts, those that a merge would take: 0 to 1."""
        return self.small_parts / self.live_parts if self.live_parts else 0.0

    @property
    def no_rows_after_ms(self) -> int | None:
        """No rows came after this time; None when none ever came.

        It is the very time at which rows came last, unless these were superseded and forgotten since: then it is later.
        """
        return max(self.newest_rows_ms or 0, self.horizon_ms) or None


def examine(handle: Handle, thresholds: Thresholds | None = None) -> TableHealth:
    """The condition of a table now, with recommendations. See `Table.health`.

    One LIST (for each thousand log files that are stored) when nothing has changed since the last look. Raises
    CorruptLog, SchemaConflict, UncoordinatedMaintenance, InconsistentListing and the store's errors.
    """
    thresholds = thresholds or Thresholds()
    # Afresh: a refresh does not list log files that were superseded a while ago, and these are counted here.
    state, now_ms = handle.read(fresh=True), handle.clock.now_ms()
    health = health_of(handle, state, thresholds, now_ms=now_ms)
    recommended = recommend(health, thresholds)
    if any(r.due == "cleanup" for r in recommended):
        # Only now: to look at the pins takes requests, and pins only ever keep something from being deleted.
        pins = pins_in_force(handle, cutoff_ms=now_ms - handle.timing.grace_ms)
        if pins:
            health = health_of(handle, state, thresholds, now_ms=now_ms, pins=pins)
            recommended = recommend(health, thresholds)
    return replace(health, recommendations=recommended)


# ------------------------------------------------------------------------------------------------ the decision


def recommend(health: TableHealth, thresholds: Thresholds) -> tuple[Recommendation, ...]:
    """What is due, the most urgent first. Pure."""
    hot = [p for p in health.partitions if p.hot]
    cold = [p for p in health.partitions if not p.hot]
    found = (
        _merge("merge_newest", hot, "in which rows arrive", thresholds.hot_parts),
        _merge_log(health, thresholds.log_files),
        _merge("merge_oldest", cold, "in which no more rows arrive", thresholds.cold_parts),
        _cleanup(health, thresholds),
    )
    return tuple(r for r in found if r is not None)


def _merge(due: Due, partitions: Iterable[PartitionHealth], which: str, threshold: int) -> Recommendation | None:
    crowded = [p for p in partitions if p.small_parts >= threshold // 2 and not p.at_rest]
    if not crowded:
        return None
    worst = max(crowded, key=lambda p: (p.small_parts, p.path))
    where = f"the partition '{worst.path}'" if worst.path else "the table"
    more = len(crowded) - 1
    others = f"; {more:,} more {'has' if more == 1 else 'have'} {threshold // 2:,} at least" if more else ""
    reason = f"{where}, {which}, has {worst.small_parts:,} small parts and should have fewer than {threshold:,}{others}"
    return Recommendation(due, reason, _digest(p.basis for p in crowded))


def _merge_log(health: TableHealth, threshold: int) -> Recommendation | None:
    if health.log_files < threshold // 2 or not health.small_log_files:
        return None
    reason = (
        f"whoever opens the table reads {health.log_files:,} log files, and should have to read fewer than "
        f"{threshold:,}; {health.small_log_files:,} of them can become one"
    )
    return Recommendation("merge_log", reason, health.small_log_files_basis)


def _cleanup(health: TableHealth, thresholds: Thresholds) -> Recommendation | None:
    objects = health.expired_parts + health.expired_log_files
    if health.expired_bytes < thresholds.expired_bytes // 2 and objects < thresholds.expired_objects // 2:
        return None
    megabytes, megabytes_max = health.expired_bytes / _MEGABYTE, thresholds.expired_bytes / _MEGABYTE
    reason = (
        f"{health.expired_parts:,} parts of {megabytes:,.1f} MB and {health.expired_log_files:,} log files were "
        f"superseded longer than the grace period ago; it should be less than {megabytes_max:,.1f} MB and fewer than "
        f"{thresholds.expired_objects:,} objects"
    )
    return Recommendation("cleanup", reason, health.expired_basis)


# ------------------------------------------------------------------------------------------------ the figures


def health_of(
    handle: Handle, state: TableState, thresholds: Thresholds, *, now_ms: int, pins: Collection[Pin] = ()
) -> TableHealth:
    """The figures of a state of the log that was read afresh. Without a request. What a pin needs is not expired."""
    live, dead = state.live, state.dead
    ahead_ms, cutoff_ms = handle.far_ahead_ms(now_ms), now_ms - handle.timing.grace_ms
    held = state.held_far_ahead(ahead_ms)
    expired = [m for m in _expired_parts(dead, cutoff_ms, pins) if m.key not in held]
    expired_log_files = _expired_log_files(state, cutoff_ms)
    small_log_files = plan_merge_log(mergeable_log_files(state, ahead_ms))
    partitions, sizes = _partitions(handle, state, _free(live, held, thresholds), thresholds, now_ms=now_ms)
    last = max((f.file for f in state.effective.values()), key=lambda file: file.t_ms, default=None)
    return TableHealth(
        table=handle.table,
        at_ms=now_ms,
        live_parts=len(live),
        live_rows=total_rows(live),
        live_bytes=total_bytes(live),
        partitions=partitions,
        log_files=len(state.effective),
        small_log_files=len(small_log_files),
        small_log_files_basis=_digest(small_log_files),
        dead_parts=len(dead),
        dead_bytes=total_bytes(dead),
        oldest_dead_ms=min((m.tombstoned_ms for m in dead if m.tombstoned_ms is not None), default=None),
        expired_parts=len(expired),
        expired_bytes=sum(m.bytes for m in expired),
        expired_log_files=len(expired_log_files),
        expired_basis=_digest([*(m.key for m in expired), *expired_log_files]),
        horizon_ms=state.horizon_ms,
        newest_rows_ms=_newest_rows_ms(state),
        last_commit_ms=None if last is None else last.t_ms,
        last_operation=None if last is None else last.operation or None,
        timing=handle.timing,
        sizes=sizes,
    )


def _free(live: Sequence[Marker], held: Collection[str], thresholds: Thresholds) -> Iterator[Marker]:
    """The live parts that a merge may take."""
    small = live.smaller(thresholds.part_bytes_max) if isinstance(live, MarkerView) else live
    return (m for m in small if m.bytes < thresholds.part_bytes_max and m.key not in held)


def _expired_parts(dead: Iterable[Marker], cutoff_ms: int, pins: Collection[Pin]) -> list[Marker]:
    return [m for m in dead if (m.tombstoned_ms or 0) <= cutoff_ms and not is_needed(m, pins)]


def _expired_log_files(state: TableState, cutoff_ms: int) -> list[str]:
    """The log files that are still stored, and were superseded by `cutoff_ms`; without a tombstone, when stored."""
    superseded = {k: state.listed_ms[k] for k in state.ignored if k in state.listed_ms}
    superseded |= {k: t for k, t in state.log_tombstones.items() if k in state.listed_ms}
    return [k for k, t in superseded.items() if t <= cutoff_ms]


def _partitions(
    handle: Handle, state: TableState, free: Iterable[Marker], thresholds: Thresholds, *, now_ms: int
) -> tuple[tuple[PartitionHealth, ...], tuple[SizeClass, ...]]:
    """Each partition with live parts, by path, and their sizes. `free`: the live parts that a merge may take."""
    sizes: dict[str, list[int]] = {}
    came: dict[str, int] = {}
    for path, size, created_ms, is_dead, moved in _of_parts(handle, state):
        if not is_dead:
            sizes.setdefault(path, []).append(size)
        if not moved:
            came[path] = max(created_ms, came.get(path, 0))
    hot = {path for path, came_ms in came.items() if came_ms > now_ms - thresholds.hot_ms}
    small = _small_parts(map(handle.part, free), thresholds)
    # Of the others nothing is due, whatever a merge would take.
    crowded = {path for path, parts in small.items() if len(parts) >= _crowd(thresholds)}
    tiers = dict.fromkeys(hot, TieredMerge(thresholds.hot_ms, thresholds.hot_parts).hot_tier)
    paying = _small_parts((p for path in crowded for p in small[path]), thresholds, tiers)
    partitions = tuple(
        PartitionHealth(
            path=path,
            parts=len(of_path),
            bytes=sum(of_path),
            small_parts=len(small.get(path, ())),
            small_bytes=sum(p.bytes for p in small.get(path, ())),
            newest_rows_ms=came.get(path),
            hot=path in hot,
            basis=_digest(p.key for p in small.get(path, ())),
            at_rest=path in crowded and path not in paying,
        )
        for path, of_path in sorted(sizes.items())
    )
    return partitions, _sizes(sizes.values(), small.values())


def _sizes(live: Iterable[Iterable[int]], small: Iterable[Iterable[Part]]) -> tuple[SizeClass, ...]:
    """Live parts by size, from their bytes and those parts of them that a merge would take."""
    all_parts = Counter(size.bit_length() for sizes in live for size in sizes)
    to_merge = Counter(part.bytes.bit_length() for parts in small for part in parts)
    return tuple(SizeClass(1 << n >> 1, parts, to_merge[n]) for n, parts in sorted(all_parts.items()))


def _of_parts(handle: Handle, state: TableState) -> Iterator[tuple[str, int, int, bool, bool]]:
    """Each part's partition, bytes, when it was created, and whether it is dead and was moved."""
    if state.columns is None:
        prefix = handle.keys.data_prefix
        for m in state.parts.values():
            yield partition_of(prefix, m.key), m.bytes, m.created_ms, m.tombstoned_ms is not None, m.moved
        return
    parts = state.columns.all
    paths, numbers = LiveParts(handle, parts).partitions
    figures = (parts.values_of(name) for name in ("bytes", "created_ms", "tombstoned_ms", "moved"))
    for number, size, created_ms, dead_ms, moved in zip(numbers, *figures, strict=True):
        yield paths[number], size, created_ms, dead_ms is not None, moved


def _crowd(thresholds: Thresholds) -> int:
    """With fewer small parts, a merge is due in no partition."""
    return min(thresholds.hot_parts, thresholds.cold_parts) // 2


def _small_parts(
    parts: Iterable[Part], thresholds: Thresholds, tiers: Mapping[str, int] | None = None
) -> dict[str, list[Part]]:
    """By partition, what a merge without a budget would take."""
    plan = plan_merge(
        parts,
        part_bytes_max=thresholds.part_bytes_max,
        input_parts_max=sys.maxsize,
        input_bytes_max=sys.maxsize,
        tiers=tiers,
    )
    small: dict[str, list[Part]] = {}
    for group in plan.groups:
        small.setdefault(group.partition, []).extend(group.inputs)
    return small


def _newest_rows_ms(state: TableState) -> int | None:
    if state.columns is None:
        return max((m.created_ms for m in state.parts.values() if not m.moved), default=None)
    parts = state.columns.all
    times = zip(parts.values_of("created_ms"), parts.values_of("moved"), strict=True)
    return max((created_ms for created_ms, moved in times if not moved), default=None)


def _digest(keys: Iterable[str]) -> str:
    """The same for the same keys, in whatever order."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
