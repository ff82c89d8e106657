"""What a table is like now, and what should be done about it: the one place where that is decided.

    condition       figures that the log alone tells: no part is opened, nothing is changed
    threshold       what a figure should stay below
    recommendation  a kind of maintenance that is due, because a figure has reached half of its threshold: what is
                    recommended then is done before the threshold is passed
    heat            a partition is hot while rows arrive in it. Merging it often writes the same rows again and again,
                    so it may gather more small parts than a cold one, which is merged once and for all

`icedb info` prints the recommendations, a sensor acts on them, and a check fails beyond a threshold.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from icedb.errors import InvalidOption
from icedb.format.records import Marker, total_rows
from icedb.format.snapshot import LogState
from icedb.handle import Handle
from icedb.maintenance.merge import PART_BYTES_MAX, mergeable, plan_merge
from icedb.maintenance.merge_log import mergeable_log_files, plan_merge_log
from icedb.maintenance.pins import Pin, is_needed, pins_in_force

__all__ = ["Condition", "Due", "PartitionCondition", "Recommendation", "Thresholds", "condition_of", "examine",
           "recommend"]  # fmt: skip

#: What can be due.
Due = Literal["merge_newest", "merge_oldest", "merge_log", "cleanup"]

# A reason names the worst partition; `Condition.partitions` has all.
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a table should stay below. Maintenance is recommended from half of each on. Raises InvalidOption."""

    #: Small parts of a partition that rows arrive in. Each query of that partition opens them all.
    hot_parts: int = 64
    #: Small parts of a partition in which no rows arrived for `hot_ms`.
    cold_parts: int = 8
    #: How long after its last rows (milliseconds) a partition is hot.
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
        least = {"hot_parts": 4, "cold_parts": 4, "log_files": 4, "hot_ms": 0}  # half of 4 is what can be merged at all
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least.get(name, 2):
                raise InvalidOption(
                    f"the threshold {name} is {value!r}; give a whole number, {least.get(name, 2)} at least."
                )


@dataclass(frozen=True, slots=True)
class PartitionCondition:
    """The live parts of one partition. `small_parts` are those that a merge would take; times are unix milliseconds.

    `newest_rows_ms` is when rows came last, as far as the log remembers: cleanup forgets what was merged.
    """

    path: str
    parts: int
    bytes: int
    small_parts: int
    small_bytes: int
    newest_rows_ms: int | None
    hot: bool


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A kind of maintenance that is due, and why. `basis` is the same as long as it is due for the same objects."""

    due: Due
    reason: str
    basis: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A table at one time, as its log tells it. Times are unix milliseconds."""

    table: str
    at_ms: int
    live_parts: int
    #: None when a part does not say how many it has.
    live_rows: int | None
    live_bytes: int
    #: By path.
    partitions: tuple[PartitionCondition, ...]
    #: Log files that whoever opens the table has to read, and those of them that a merge of log files would take.
    log_files: int
    small_log_files: int
    #: Superseded, and still stored.
    dead_parts: int
    dead_bytes: int
    #: When the oldest of those was superseded.
    oldest_dead_ms: int | None
    #: Superseded longer than the grace period ago, and needed by no pin.
    expired_parts: int
    expired_bytes: int
    #: Those that the last listings showed; a listing of the whole log, hourly at least, shows all.
    expired_log_files: int
    #: Snapshots before this time can no longer be read; 0: all can.
    horizon_ms: int
    #: When rows came last, as far as the log remembers: cleanup forgets what was merged.
    newest_rows_ms: int | None
    recommendations: tuple[Recommendation, ...] = ()
    #: Of the objects that each kind of maintenance would take.
    _bases: dict[Due, str] = field(default_factory=dict, repr=False)

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

        It is the very time at which rows came last, unless these were merged and forgotten since: then it is later.
        """
        return max(self.newest_rows_ms or 0, self.horizon_ms) or None


def examine(handle: Handle, thresholds: Thresholds | None = None) -> Condition:
    """The condition of a table now, with recommendations. One LIST when nothing has changed since the last look.

    Raises DamagedLog, SchemaConflict, TornListing and the store's errors.
    """
    thresholds = thresholds or Thresholds()
    state, now_ms = handle.read(), handle.clock.now_ms()
    condition = condition_of(handle, state, thresholds, now_ms=now_ms)
    recommended = recommend(condition, thresholds)
    if any(r.due == "cleanup" for r in recommended):
        # Only now: to look at the pins takes requests, and pins only ever keep something from being deleted.
        pins = pins_in_force(handle, cutoff_ms=now_ms - handle.timing.grace_ms)
        condition = condition_of(handle, state, thresholds, now_ms=now_ms, pins=pins)
        recommended = recommend(condition, thresholds)
    return replace(condition, recommendations=recommended)


def recommend(condition: Condition, thresholds: Thresholds) -> tuple[Recommendation, ...]:
    """What is due, the most urgent first. Pure."""
    hot = [p for p in condition.partitions if p.hot and p.small_parts >= thresholds.hot_parts // 2]
    cold = [p for p in condition.partitions if not p.hot and p.small_parts >= thresholds.cold_parts // 2]
    due: dict[Due, str] = {}
    if hot:
        due["merge_newest"] = _crowded(hot, "in which rows arrive", thresholds.hot_parts)
    if condition.log_files >= thresholds.log_files // 2 and condition.small_log_files:
        due["merge_log"] = (
            f"whoever opens the table reads {condition.log_files:,} log files, and should have to read less than "
            f"{thresholds.log_files:,}; {condition.small_log_files:,} of them can become one"
        )
    if cold:
        due["merge_oldest"] = _crowded(cold, "in which no more rows arrive", thresholds.cold_parts)
    expired_objects = condition.expired_parts + condition.expired_log_files
    if condition.expired_bytes >= thresholds.expired_bytes // 2 or expired_objects >= thresholds.expired_objects // 2:
        due["cleanup"] = (
            f"{condition.expired_parts:,} parts of {condition.expired_bytes / _MEGABYTE:,.1f} MB and "
            f"{condition.expired_log_files:,} log files were superseded longer than the grace period ago; it should be "
            f"less than {thresholds.expired_bytes / _MEGABYTE:,.1f} MB and {thresholds.expired_objects:,} objects"
        )
    return tuple(Recommendation(name, reason, condition._bases[name]) for name, reason in due.items())


def _crowded(partitions: Sequence[PartitionCondition], which: str, threshold: int) -> str:
    worst = max(partitions, key=lambda p: (p.small_parts, p.path))
    where = f"the partition '{worst.path}'" if worst.path else "the table"
    others = f"; {len(partitions) - 1:,} more have {threshold // 2:,} at least" if len(partitions) > 1 else ""
    return f"{where}, {which}, has {worst.small_parts:,} small parts and should have less than {threshold:,}{others}"


def condition_of(
    handle: Handle, state: LogState, thresholds: Thresholds, *, now_ms: int, pins: Collection[Pin] = ()
) -> Condition:
    """The figures of a state of the log. Without a request. What a pin needs does not count as expired."""
    cutoff_ms = now_ms - handle.timing.grace_ms
    live = state.live
    partitions, small = _partitions(handle, state, thresholds, now_ms=now_ms)
    dead = [m for m in state.parts.values() if m.tombstoned_ms is not None]
    expired = [m for m in dead if (m.tombstoned_ms or 0) <= cutoff_ms and not is_needed(m, pins)]
    expired_log_files = [k for k in state.ignored if _superseded_ms(state, k, cutoff_ms) <= cutoff_ms]
    small_log_files = plan_merge_log(mergeable_log_files(state, handle.far_ahead_ms(now_ms)))
    return Condition(
        table=handle.table,
        at_ms=now_ms,
        live_parts=len(live),
        live_rows=total_rows(live),
        live_bytes=sum(m.bytes for m in live),
        partitions=partitions,
        log_files=len(state.effective),
        small_log_files=len(small_log_files),
        dead_parts=len(dead),
        dead_bytes=sum(m.bytes for m in dead),
        oldest_dead_ms=min((m.tombstoned_ms for m in dead if m.tombstoned_ms is not None), default=None),
        expired_parts=len(expired),
        expired_bytes=sum(m.bytes for m in expired),
        expired_log_files=len(expired_log_files),
        horizon_ms=state.horizon_ms,
        newest_rows_ms=_newest_rows_ms(state.parts.values()),
        _bases={
            "merge_newest": _digest(small),
            "merge_oldest": _digest(small),
            "merge_log": _digest(small_log_files),
            "cleanup": _digest([*(m.key for m in expired), *expired_log_files]),
        },
    )


def _superseded_ms(state: LogState, log_file: str, cutoff_ms: int) -> int:
    """When a log file that is ignored was superseded; one that was not listed is gone, or was looked at before."""
    if log_file not in state.listed_ms:
        return cutoff_ms + 1
    return state.log_tombstones.get(log_file, state.listed_ms[log_file])


def _partitions(
    handle: Handle, state: LogState, thresholds: Thresholds, *, now_ms: int
) -> tuple[tuple[PartitionCondition, ...], list[str]]:
    """Each partition with live parts, by path, and the keys of all parts that a merge would take."""
    plan = plan_merge(
        mergeable(handle, state),
        part_bytes_max=thresholds.part_bytes_max,
        input_parts_max=sys.maxsize,
        input_bytes_max=sys.maxsize,
    )
    small: dict[str, list[int]] = {}
    for group in plan.groups:
        small.setdefault(group.partition, []).extend(p.bytes for p in group.inputs)
    came: dict[str, int] = {}
    for marker in state.parts.values():
        if not marker.moved:
            path = handle.partition(marker)
            came[path] = max(marker.created_ms, came.get(path, 0))
    by_path = groupby(sorted((handle.partition(m), m.bytes) for m in state.live), key=lambda found: found[0])
    sizes = {path: [size for _, size in found] for path, found in by_path}
    conditions = tuple(
        PartitionCondition(
            path=path,
            parts=len(of_path),
            bytes=sum(of_path),
            small_parts=len(small.get(path, ())),
            small_bytes=sum(small.get(path, ())),
            newest_rows_ms=came.get(path),
            hot=came.get(path, 0) > now_ms - thresholds.hot_ms,
        )
        for path, of_path in sizes.items()
    )
    return conditions, sorted(p.key for group in plan.groups for p in group.inputs)


def _newest_rows_ms(markers: Iterable[Marker]) -> int | None:
    return max((m.created_ms for m in markers if not m.moved), default=None)


def _digest(keys: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
