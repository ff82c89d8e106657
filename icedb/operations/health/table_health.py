"""Measurements of a table's health, and recommendations of maintenance. All consumers use this module.

    health          measurements from the log alone: no part is opened, and nothing is changed
    threshold       the value below which a measurement should stay
    recommendation  a kind of maintenance that is due because a measurement has reached half of its threshold, so that
                    it is done before the threshold is passed. Never one that would find nothing to do
    heat            a partition is hot while rows arrive in it. Frequent merges of it rewrite the same rows again and
                    again, so it may collect more small parts than a cold one, which is merged once

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
from icedb.storage.parts import Part
from icedb.transaction.pin_objects import Pin, is_needed, pins_in_force
from icedb.transaction.table_handle import Handle
from icedb.util.arguments import checks_arguments

__all__ = ["TableHealth", "Due", "PartitionHealth", "Recommendation", "SizeClass", "Thresholds", "health_of",
           "examine", "examine_state", "recommend"]  # fmt: skip

#: The kinds of maintenance that can be due.
Due = Literal["merge_newest", "merge_oldest", "merge_log", "cleanup"]

# A merge needs two parts, half of 4. Other kinds need one object, half of 2.
_LEAST = {"hot_parts": 4, "cold_parts": 4, "log_files": 4, "hot_ms": 0}
_LEAST_OF_OTHERS = 2

_MEGABYTE = 1_000_000


@checks_arguments
@dataclass(frozen=True, slots=True)
class Thresholds:
    """The values below which a table's measurements should stay. Maintenance is recommended from half of each on.

    Halves are rounded down.

    Raises:
        InvalidOption: A threshold is no whole number, or too small.

    Example:
        >>> table.health(icedb.Thresholds(cold_parts=16))
    """

    #: Small parts of a partition in which rows arrive. Each query of that partition opens them all.
    hot_parts: int = 64
    #: Small parts of a partition in which no rows arrived for `hot_ms`.
    cold_parts: int = 8
    #: For how long after its last rows a partition is hot (milliseconds). The log may forget that time after the
    #: table's grace period. Then the partition is cold.
    hot_ms: int = 3_600_000
    #: A part below this size (bytes) is small.
    part_bytes_max: int = PART_BYTES_MAX
    #: Log files that a program must read to open the table.
    log_files: int = 64
    #: Bytes that were superseded longer than the grace period ago. They cost storage without any use.
    expired_bytes: int = 4_000_000_000
    #: Parts and log files that were superseded as long ago. A LIST request returns a thousand objects.
    expired_objects: int = 2_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, least = getattr(self, name), _LEAST.get(name, _LEAST_OF_OTHERS)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidOption(f"the threshold {name} is {value!r}; give a whole number, {least} at least.")


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The live parts of one partition. A merge would take `small_parts`. Times are unix milliseconds.

    `newest_rows_ms` is when rows last arrived, as far as the log records it: cleanup forgets merged parts. `basis`
    identifies the set of small parts.
    """

    path: str
    parts: int
    bytes: int
    small_parts: int
    small_bytes: int
    newest_rows_ms: int | None
    hot: bool
    basis: str
    #: There are many small parts, but a merge in tiers would take none of them.
    at_rest: bool = False
    #: None if the log does not have the row count of a part.
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The live parts from `bytes_min` (0 or a power of two) up to twice that. A merge would take `small_parts`."""

    bytes_min: int
    parts: int
    small_parts: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A kind of maintenance that is due, with the reason. `basis` identifies the set of objects that are concerned."""

    due: Due
    reason: str
    basis: str


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The measurements of a table at one time. Times are unix milliseconds. A `basis` identifies a set of objects."""

    table: str
    at_ms: int
    live_parts: int
    #: None if the log does not have the row count of a part.
    live_rows: int | None
    live_bytes: int
    #: Sorted by path.
    partitions: tuple[PartitionHealth, ...]
    #: Log files that a program must read to open the table, and those of them that a merge of log files would take.
    log_files: int
    small_log_files: int
    small_log_files_basis: str
    #: Superseded parts that the log still records. Most of them still exist.
    dead_parts: int
    dead_bytes: int
    #: When the oldest of those was superseded.
    oldest_dead_ms: int | None
    #: Superseded longer than the grace period ago. Parts that pins need are subtracted once a cleanup would be due,
    #: because reading the pins takes requests.
    expired_parts: int
    expired_bytes: int
    expired_log_files: int
    expired_basis: str
    #: Snapshots before this time can no longer be read; 0 if all can.
    horizon_ms: int
    #: When rows last arrived, as far as the log records it: cleanup forgets merged parts.
    newest_rows_ms: int | None
    recommendations: tuple[Recommendation, ...] = ()
    #: The live parts by size, the smallest first, without empty classes.
    sizes: tuple[SizeClass, ...] = ()
    #: The time of the newest commit, and the operation in its header; None if there is none.
    last_commit_ms: int | None = None
    last_operation: str | None = None
    #: The table's times that are in force now.
    timing: Timing = field(default_factory=Timing)

    @property
    def small_parts(self) -> int:
        """The number of live parts that a merge would take."""
        return sum(p.small_parts for p in self.partitions)

    @property
    def small_part_ratio(self) -> float:
        """The share of live parts that a merge would take, from 0 to 1."""
        return self.small_parts / self.live_parts if self.live_parts else 0.0

    @property
    def no_rows_after_ms(self) -> int | None:
        """The time after which no rows arrived, or None if none ever did.

        It is the exact time of the last rows, unless these were superseded and forgotten since. Then it is later.
        """
        return max(self.newest_rows_ms or 0, self.horizon_ms) or None


def examine(handle: Handle, thresholds: Thresholds | None = None) -> TableHealth:
    """Return the health of a table now, with recommendations. See `Table.health`.

    Costs one LIST (for each thousand stored log files) if nothing has changed since the last read. Raises CorruptLog,
    SchemaConflict, UncoordinatedMaintenance, InconsistentListing and the store's errors.
    """
    # `fresh`, because a refresh does not list log files that were superseded a while ago, and these are counted here.
    return examine_state(handle, handle.read(fresh=True), thresholds or Thresholds())


def examine_state(handle: Handle, state: TableState, thresholds: Thresholds) -> TableHealth:
    """Return the health of a state that was just read with `fresh`, with recommendations.

    Makes no request, unless a cleanup seems due: then it reads the pins. Raises the store's errors.
    """
    now_ms = handle.clock.now_ms()
    health = health_of(handle, state, thresholds, now_ms=now_ms)
    recommended = recommend(health, thresholds)
    if any(r.due == "cleanup" for r in recommended):
        # Only now, because reading the pins takes requests, and pins can only reduce what cleanup deletes.
        pins = pins_in_force(handle, cutoff_ms=now_ms - handle.timing.grace_ms)
        if pins:
            health = health_of(handle, state, thresholds, now_ms=now_ms, pins=pins)
            recommended = recommend(health, thresholds)
    return replace(health, recommendations=recommended)


# ------------------------------------------------------------------------------------------------ the decision


def recommend(health: TableHealth, thresholds: Thresholds) -> tuple[Recommendation, ...]:
    """Return the maintenance that is due, the most urgent first. Pure."""
    hot = [p for p in health.partitions if p.hot]
    cold = [p for p in health.partitions if not p.hot]
    candidates = (
        _merge("merge_newest", hot, "in which rows arrive", thresholds.hot_parts),
        _merge_log(health, thresholds.log_files),
        _merge("merge_oldest", cold, "in which no more rows arrive", thresholds.cold_parts),
        _cleanup(health, thresholds),
    )
    return tuple(r for r in candidates if r is not None)


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
        f"opening the table reads {health.log_files:,} log files and should read fewer than {threshold:,} (due from "
        f"{threshold // 2:,} on); "
        f"{health.small_log_files:,} of them can become one"
    )
    return Recommendation("merge_log", reason, health.small_log_files_basis)


def _cleanup(health: TableHealth, thresholds: Thresholds) -> Recommendation | None:
    objects = health.expired_parts + health.expired_log_files
    if health.expired_bytes < thresholds.expired_bytes // 2 and objects < thresholds.expired_objects // 2:
        return None
    megabytes, megabytes_max = health.expired_bytes / _MEGABYTE, thresholds.expired_bytes / _MEGABYTE
    reason = (
        f"{health.expired_parts:,} parts of {megabytes:,.1f} MB and {health.expired_log_files:,} log files were "
        f"superseded longer than the grace period ago; there should be less than {megabytes_max:,.1f} MB and fewer "
        f"than {thresholds.expired_objects:,} objects"
    )
    return Recommendation("cleanup", reason, health.expired_basis)


# ------------------------------------------------------------------------------------------------ the figures


def health_of(
    handle: Handle, state: TableState, thresholds: Thresholds, *, now_ms: int, pins: Collection[Pin] = ()
) -> TableHealth:
    """Measure a state of the log that was read with `fresh`, without a request. Pinned parts are not expired."""
    live, dead = state.live, state.dead
    ahead_ms, cutoff_ms = handle.far_ahead_ms(now_ms), now_ms - handle.timing.grace_ms
    held = state.held_far_ahead(ahead_ms)
    expired = [m for m in dead if (m.tombstoned_ms or 0) <= cutoff_ms and m.key not in held and not is_needed(m, pins)]
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
    """Yield the live parts that a merge may take."""
    small = live.smaller(thresholds.part_bytes_max) if isinstance(live, MarkerView) else live
    return (m for m in small if m.bytes < thresholds.part_bytes_max and m.key not in held)


def _expired_log_files(state: TableState, cutoff_ms: int) -> list[str]:
    """Return existing log files that were superseded by `cutoff_ms`. Without a tombstone, their stored time counts."""
    superseded = {k: state.listed_ms[k] for k in state.ignored if k in state.listed_ms}
    superseded |= {k: t for k, t in state.log_tombstones.items() if k in state.listed_ms}
    return [k for k, t in superseded.items() if t <= cutoff_ms]


def _partitions(
    handle: Handle, state: TableState, free: Iterable[Marker], thresholds: Thresholds, *, now_ms: int
) -> tuple[tuple[PartitionHealth, ...], tuple[SizeClass, ...]]:
    """Return each partition with live parts, by path, and the sizes. `free`: the live parts that a merge may take."""
    sizes: dict[str, list[int]] = {}
    rows: dict[str, int | None] = {}
    came: dict[str, int] = {}
    for path, size, created_ms, is_dead, moved, row_count in _of_parts(handle, state):
        if not is_dead:
            sizes.setdefault(path, []).append(size)
            before = rows.get(path, 0)
            rows[path] = None if before is None or row_count is None else before + row_count
        if not moved:
            came[path] = max(created_ms, came.get(path, 0))
    hot = {path for path, came_ms in came.items() if came_ms > now_ms - thresholds.hot_ms}
    small = _small_parts(map(handle.part, free), thresholds)
    # In the other partitions no merge is due.
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
            rows=rows[path],
        )
        for path, of_path in sorted(sizes.items())
    )
    return partitions, _sizes(sizes.values(), small.values())


def _sizes(live: Iterable[Iterable[int]], small: Iterable[Iterable[Part]]) -> tuple[SizeClass, ...]:
    """Count the live parts by size, and those of them that a merge would take."""
    all_parts = Counter(size.bit_length() for sizes in live for size in sizes)
    to_merge = Counter(part.bytes.bit_length() for parts in small for part in parts)
    return tuple(SizeClass(1 << n >> 1, parts, to_merge[n]) for n, parts in sorted(all_parts.items()))


def _of_parts(handle: Handle, state: TableState) -> Iterator[tuple[str, int, int, bool, bool, int | None]]:
    """Yield each part's partition, bytes, creation time, whether it is dead, and moved by a merge, and its rows."""
    if state.columns is None:
        prefix = handle.keys.data_prefix
        for m in state.parts.values():
            yield partition_of(prefix, m.key), m.bytes, m.created_ms, m.tombstoned_ms is not None, m.moved, m.rows
        return
    parts = state.columns.all
    paths, numbers = LiveParts(handle, parts).partitions
    figures = (parts.values_of(name) for name in ("bytes", "created_ms", "tombstoned_ms", "moved", "rows"))
    for number, size, created_ms, dead_ms, moved, rows in zip(numbers, *figures, strict=True):
        yield paths[number], size, created_ms, dead_ms is not None, moved, rows


def _crowd(thresholds: Thresholds) -> int:
    """Return the number of small parts below which no merge is due in a partition."""
    return min(thresholds.hot_parts, thresholds.cold_parts) // 2


def _small_parts(
    parts: Iterable[Part], thresholds: Thresholds, tiers: Mapping[str, int] | None = None
) -> dict[str, list[Part]]:
    """Return the parts that a merge without a budget would take, by partition."""
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
    """Return a digest of a set of keys, independent of their order."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
