"""Delete orphans: parts that no log file and no undecided claim names, left by a crashed write or a lost race.

A part is written before a log file names it, so an unnamed part may belong to a running writer. Only its age
distinguishes the two. Parts are never published later than `part_timeout_ms` after they were written. The sweep waits
at least twice that, by the store's clock.

It lists parts, then claims, then log files, because claims turn into log files but never back. It repeats this right
before it deletes. Ignored and superseded log files name parts too. A claim of a decided epoch names none, because its
log file does unless it is a void. If an object cannot be read, the sweep stops and keeps everything. It never leaves
the table's own `_data/` and deletes only `.parquet` files there.

In a local folder it also deletes temporary files of killed processes that are as old as orphans must be. They hold rows
or values of the log, and no listing returns them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from icedb.errors import CorruptLog, GraceTooShort
from icedb.format.keys import Keys, partition_of
from icedb.format.records import tombstone_flags
from icedb.storage.obstore_store import ObjectInfo, unfinished_puts
from icedb.transaction.claims import Claims, read_claims
from icedb.transaction.table_handle import Handle
from icedb.transaction.table_place import RESERVED, foreign_roots, is_below
from icedb.util.durations import duration_text

__all__ = [
    "ORPHANS_MAX",
    "OrphansReport",
    "SweepPlan",
    "delete_orphans",
    "is_part",
    "named_by_claims",
    "plan_sweep",
]

# The limit of one call: ten requests of a thousand keys. The rest is left for the next call.
ORPHANS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Objects under `_data/` that no log file or claim names. A running writer may still publish the `young` ones.

    `foreign` objects are not parts of this table: they have other names, are below another table, or are symbolic
    links.
    """

    orphans: tuple[ObjectInfo, ...]
    young: tuple[ObjectInfo, ...]
    foreign: tuple[ObjectInfo, ...]


@dataclass(frozen=True, slots=True)
class OrphansReport:
    """The result of an orphan sweep, or of a dry run. Foreign and young objects are never deleted."""

    deleted_parts: tuple[str, ...]
    deleted_bytes: int
    #: The number of orphans beyond this call's limit.
    remaining: int
    young_parts: int
    young_bytes: int
    foreign: tuple[str, ...]
    dry_run: bool
    #: Temporary files of interrupted puts into a folder, which the sweep deleted or would delete.
    unfinished_puts: int = 0


def plan_sweep(
    objects: Iterable[ObjectInfo], named: Iterable[str], *, keys: Keys, now_ms: int, min_age_ms: int
) -> SweepPlan:
    """Return which objects under `_data/` are orphans, the oldest first. `named` is read once, and not kept. Pure."""
    by_key = {i.key: i for i in objects}
    others = foreign_roots(by_key, keys)
    for key in named:
        by_key.pop(key, None)
    unnamed = sorted(by_key.values(), key=lambda i: (i.stored_ms, i.key))
    parts = [i for i in unnamed if not i.is_link and is_part(keys, i.key) and not is_below(i.key, others)]
    kept = {i.key for i in parts}
    return SweepPlan(
        orphans=tuple(i for i in parts if now_ms - i.stored_ms >= min_age_ms),
        young=tuple(i for i in parts if now_ms - i.stored_ms < min_age_ms),
        foreign=tuple(i for i in unnamed if i.key not in kept),
    )


def is_part(keys: Keys, key: str) -> bool:
    """Whether the key has the form of a part of this table. No partition path contains a reserved segment."""
    try:
        path = partition_of(keys.data_prefix, key)
    except CorruptLog:
        return False
    return key.endswith(".parquet") and RESERVED.isdisjoint(path.split("/"))


def delete_orphans(
    handle: Handle, *, min_age_ms: int | None = None, limit: int = ORPHANS_MAX, dry_run: bool = False
) -> OrphansReport:
    """Delete orphans that are older than `min_age_ms` (default: the table's, a day), at most `limit` of them.

    Raises GraceTooShort, ClockSkew, CorruptLog (an unreadable log file or claim, or old parts and a log without
    commits), and the errors of reading the log. Nothing is deleted if it raises.
    """
    plan = _plan_current(handle, min_age_ms)
    chosen = plan.orphans[: max(0, limit)]
    unfinished = _unfinished(handle, _check_age(handle, min_age_ms))
    if (chosen or unfinished) and not dry_run:
        handle.check_writable()
        # To a clock that is a day ahead, a part that is being written would look old.
        handle.checks.check_clock("", put_after_ms=0)
        still = {i.key for i in _plan_current(handle, min_age_ms).orphans}
        chosen = tuple(i for i in chosen if i.key in still)
        handle.store.delete([*(i.key for i in chosen), *unfinished], repeat=True)
    return OrphansReport(
        deleted_parts=tuple(i.key for i in chosen),
        deleted_bytes=sum(i.bytes for i in chosen),
        remaining=max(0, len(plan.orphans) - max(0, limit)),
        young_parts=len(plan.young),
        young_bytes=sum(i.bytes for i in plan.young),
        foreign=tuple(i.key for i in plan.foreign),
        dry_run=dry_run,
        unfinished_puts=len(unfinished),
    )


def _unfinished(handle: Handle, min_age_ms: int) -> list[str]:
    """Return old temporary files of the table's own folders. A running put is young, because its file just changed."""
    now_ms = handle.clock.now_ms() - handle.timing.max_skew_ms
    prefixes = (handle.keys.data_prefix, handle.keys.log_prefix, handle.keys.claims_prefix)
    puts = (info for prefix in prefixes for info in unfinished_puts(handle.store, prefix))
    return [info.key for info in puts if now_ms - info.stored_ms >= min_age_ms]


def _check_age(handle: Handle, min_age_ms: int | None) -> int:
    least_ms = 2 * handle.timing.part_timeout_ms
    min_age_ms = handle.timing.min_age_ms if min_age_ms is None else min_age_ms
    if min_age_ms < least_ms:
        raise GraceTooShort(
            f"{handle.table}: parts that are only {duration_text(min_age_ms)} old may belong to a running writer, "
            f"which may publish a part until {duration_text(handle.timing.part_timeout_ms)} after it was written. "
            f"Choose a minimum age of {duration_text(least_ms)} or more (min_age_ms={least_ms})."
        )
    return min_age_ms


def _plan_current(handle: Handle, min_age_ms: int | None) -> SweepPlan:
    """Plan a sweep. Lists parts, then claims, then log files: in another order a published claim could be missed."""
    listed_ms = handle.clock.now_ms()
    objects = handle.store.list(handle.keys.data_prefix)
    claims = read_claims(handle)
    if claims.damaged:
        raise CorruptLog(f"{handle.table}: {claims.damaged[0]} No orphan was deleted.", key=claims.damaged[0].key)
    state = handle.read(everything=True)
    named = chain(state.part_keys(), named_by_claims(claims, epoch=state.epoch))
    # The time before the listing, minus the maximum skew, so that no part looks older than it is.
    now_ms = listed_ms - handle.timing.max_skew_ms
    # Uses the times of the log that was just read, because another program may have made them longer.
    min_age_ms = _check_age(handle, min_age_ms)
    plan = plan_sweep(objects, named, keys=handle.keys, now_ms=now_ms, min_age_ms=min_age_ms)
    if plan.orphans and not state.files:
        # A table without commits and one whose log was lost look the same. The parts may hold all its rows.
        raise CorruptLog(
            f"{handle.table}: the log has no commit, and there are {len(plan.orphans)} old parts below '_data/'. They "
            "may belong to a table whose log was lost. No orphan was deleted. Restore the log, or insert rows first.",
            key=handle.keys.log_prefix,
        )
    return plan


def named_by_claims(claims: Claims, *, epoch: int) -> Iterator[str]:
    """Yield the parts that a claim may still publish, in a log whose newest epoch is `epoch`.

    The log must have been read after the claims. A decided epoch's claim is never published again, although cleanup may
    keep it forever as the claim after a live epoch. A writer that rebases the same parts takes a later claim in time.
    """
    undecided = (c.file for c in claims.decoded if c.epoch is None or c.epoch > epoch)
    return (key for file in undecided for key, _ in tombstone_flags(file.markers))
