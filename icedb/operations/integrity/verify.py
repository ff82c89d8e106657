"""Verify a table: check all its objects, change nothing, and list every problem.

It lists and compares the log, the claims, the parts and the rest of the table's prefix, and reads log files and claims.
By default it compares the row counts in the footers of the parts. `footers=False` opens no part, and `deep` reads every
byte. The table may be in use, and a merge or cleanup between two listings looks like damage. So an error is reported
only if a second check finds it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from icedb.errors import CorruptLog, InvalidOption
from icedb.format.keys import Keys
from icedb.format.records import Marker, tombstone_flags, total_rows
from icedb.operations.integrity.log_audit import Problem, ReadLog, check_claims, check_log, link_problem, read_log
from icedb.operations.integrity.part_audit import check_contents, check_footers
from icedb.operations.retention.orphans import SweepPlan, named_by_claims, plan_sweep
from icedb.storage.obstore_store import ObjectInfo
from icedb.transaction.claims import Claims, read_claims
from icedb.transaction.current_spec import lost_spec
from icedb.transaction.open_table import is_lost
from icedb.transaction.pin_objects import is_needed, read_pins
from icedb.transaction.table_handle import Handle
from icedb.transaction.table_place import foreign_roots, is_below
from icedb.util.times import time_text

__all__ = ["VerifyReport", "verify"]

# The number of keys in a message. The report has all of them.
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The objects of a table, and its problems. Times are unix milliseconds."""

    table: str
    deep: bool
    #: Whether parts were opened. If not, the sizes that the store lists were compared.
    footers: bool
    log_files: int
    superseded_log_files: int
    epoch: int
    live_epochs: int
    horizon_ms: int
    live_parts: int
    #: None if a marker does not record its rows.
    live_rows: int | None
    live_bytes: int
    tombstoned_parts: int
    tombstoned_bytes: int
    #: Live parts whose content was not compared with a digest: all of them without `deep`.
    unchecked_parts: int
    claims: int
    pins: int
    orphans: tuple[str, ...]
    orphan_bytes: int
    #: Unnamed parts that a running writer may still publish.
    young_parts: int
    young_bytes: int
    #: Objects below the table's prefix that do not belong to a table.
    foreign: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error. There may be warnings."""
        return not any(p.severity == "error" for p in self.problems)

    def __str__(self) -> str:
        rows = "unknown number of" if self.live_rows is None else f"{self.live_rows:,}"
        compared = f"{self.live_parts - self.unchecked_parts:,} compared with their digest"
        checked = compared if self.deep else "footers read" if self.footers else "sizes compared, no part opened"
        horizon = time_text(self.horizon_ms) if self.horizon_ms else "none"
        lines = [
            ("table", self.table),
            ("log", f"{self.log_files:,} log files, {self.superseded_log_files:,} of them superseded"),
            ("epoch", f"{self.epoch:,}, {self.live_epochs:,} in force; horizon {horizon}"),
            ("live", f"{self.live_parts:,} parts, {rows} rows, {self.live_bytes:,} bytes; {checked}"),
            ("tombstoned", f"{self.tombstoned_parts:,} parts, {self.tombstoned_bytes:,} bytes"),
            ("claims", f"{self.claims:,}, and {self.pins:,} pins"),
            ("orphans", f"{len(self.orphans):,} parts, {self.orphan_bytes:,} bytes"),
            ("young", f"{self.young_parts:,} parts, {self.young_bytes:,} bytes: of running writers, or later orphans"),
            ("foreign", f"{len(self.foreign):,} objects"),
            *((p.severity, p.message) for p in self.problems),
            ("result", "sound" if self.ok else "DAMAGED"),
        ]
        return "\n".join(f"{name:<11} {text}" for name, text in lines)


@dataclass(frozen=True, slots=True)
class _Inspection:
    """The objects that were listed and read at one time, and their problems. The listing itself is not kept."""

    log: ReadLog
    claims: Claims
    #: The live parts whose object exists.
    present: Sequence[Marker]
    unnamed: SweepPlan
    foreign: tuple[str, ...]
    problems: tuple[Problem, ...]


def verify(handle: Handle, *, deep: bool = False, footers: bool = True) -> VerifyReport:
    """Check all objects of a table; see `Table.verify`. Raises only InvalidOption and the store's errors."""
    if deep and not footers:
        raise InvalidOption(f"{handle.table}: deep opens every part, and footers=False opens none. Omit one of them.")
    inspection = _inspect(handle)
    contents: list[Problem] = []
    if footers:
        parts = inspection.present
        contents = check_contents(handle, parts, deep=True) if deep else check_footers(handle, parts)
    problems = [*inspection.problems, *contents]
    if any(p.severity == "error" for p in problems):
        inspection = _inspect(handle)
        problems = _confirmed(problems, contents, inspection)
    return _report(inspection, problems, table=handle.table, deep=deep, footers=footers)


def _confirmed(problems: Iterable[Problem], contents: Iterable[Problem], again: _Inspection) -> list[Problem]:
    """Return the errors that a second inspection finds too. Damage stays as long as the part is live."""
    before = {(p.kind, p.key) for p in problems}
    live = {key for key, _ in tombstone_flags(again.present)}
    seen_again = [p for p in again.problems if p.severity == "warning" or (p.kind, p.key) in before]
    return seen_again + [p for p in contents if p.key in live]


# ------------------------------------------------------------------------------------------------ inspection


def _inspect(handle: Handle) -> _Inspection:
    """List objects, then claims, then the log, like the orphan sweep. List objects again if they do not match."""
    keys, timing, now_ms = handle.keys, handle.timing, handle.clock.now_ms()
    objects = handle.store.list(keys.data_prefix.removesuffix("_data/"))
    claims = read_claims(handle)
    log = read_log(handle)
    stored = {i.key: i for i in objects if i.key.startswith(keys.data_prefix)}
    unnamed = _unnamed(handle, stored, claims, log, now_ms)
    if unnamed.orphans or any(key not in stored for key, _ in tombstone_flags(log.state.live)):
        # Parts were deleted or published since. A part that was not listed before is too young to be an orphan.
        stored = {i.key: i for i in handle.store.list(keys.data_prefix)}
        unnamed = _unnamed(handle, stored, claims, log, now_ms)
    ours = (keys.data_prefix, keys.log_prefix, keys.claims_prefix, keys.delta_prefix, keys.iceberg_prefix)
    outside = [i.key for i in objects if i.key != keys.spec and not i.key.startswith(ours)]
    nested = foreign_roots(outside, keys)  # tables at nested addresses, such as `events/daily` below `events`
    outside = [key for key in outside if not is_below(key, nested)]
    foreign = tuple(sorted([*outside, *(i.key for i in unnamed.foreign if not i.is_link)]))
    problems = [
        *log.problems,
        *_check_spec(handle, log, spec_is_listed=any(i.key == keys.spec for i in objects)),
        *check_log(log, now_ms=handle.clock.now_ms(), skew_ms=timing.max_skew_ms),  # listed since `now_ms`
        *check_claims(claims.decoded, log),
        *_check_claims_read(handle.keys, claims),
        *(link_problem(handle.table, i.key) for i in stored.values() if i.is_link),
        *_check_objects(handle.table, log.state.live, stored),
        *(_check_pins(handle, log, stored, now_ms) if claims.pins else ()),
        *_check_unnamed(handle.table, unnamed, timing.min_age_ms, sure=not log.unread and not claims.damaged),
        *_check_foreign(handle.table, foreign),
    ]
    return _Inspection(log, claims, _present(log.state.live, stored), unnamed, foreign, tuple(problems))


def _present(live: Sequence[Marker], stored: Mapping[str, ObjectInfo]) -> Sequence[Marker]:
    """Return the live parts whose object exists: `live` itself if all do, which needs less memory than a list."""
    absent = {key for key, _ in tombstone_flags(live) if key not in stored or stored[key].is_link}
    return [m for m in live if m.key not in absent] if absent else live


def _unnamed(handle: Handle, stored: Mapping[str, ObjectInfo], claims: Claims, log: ReadLog, now_ms: int) -> SweepPlan:
    return plan_sweep(
        stored.values(),
        chain(log.state.part_keys(), named_by_claims(claims, epoch=log.state.epoch)),
        keys=handle.keys,
        now_ms=now_ms - handle.timing.max_skew_ms,
        min_age_ms=handle.timing.min_age_ms,
    )


def _check_spec(handle: Handle, log: ReadLog, *, spec_is_listed: bool) -> Iterator[Problem]:
    if not spec_is_listed and not log.unread and is_lost(log.state, handle):
        error = lost_spec(handle.table, handle.keys.spec)
        yield Problem("lost_spec", "error", handle.keys.spec, str(error))


def _check_claims_read(keys: Keys, claims: Claims) -> Iterator[Problem]:
    for error in claims.damaged:
        if keys.parse_epoch_claim(error.key) is not None or keys.is_txn_claim(error.key):
            yield Problem("damaged_claim", "error", error.key, str(error))
        else:
            yield Problem("unknown_claim", "warning", error.key, str(error))


def _check_objects(table: str, live: Iterable[Marker], stored: Mapping[str, ObjectInfo]) -> Iterator[Problem]:
    for marker in live:
        info = stored.get(marker.key)
        if info is not None and info.is_link:
            continue  # reported as a symbolic link
        if info is None:
            yield Problem(
                "missing_part",
                "error",
                marker.key,
                f"{table}: the live part '{marker.key}' ({marker.bytes} bytes) is not in the store. No program of "
                "this library deletes a live part. Find the program that did, and restore the object.",
            )
        elif info.bytes != marker.bytes:
            yield Problem(
                "part_size",
                "error",
                marker.key,
                f"{table}: the live part '{marker.key}' has {info.bytes} bytes instead of {marker.bytes}. Restore the "
                "object from a backup or an earlier version of it.",
            )


def _check_pins(handle: Handle, log: ReadLog, stored: Mapping[str, ObjectInfo], now_ms: int) -> Iterator[Problem]:
    try:
        pins = [p for p in read_pins(handle) if not p.expired(now_ms)]
    except CorruptLog as error:
        yield Problem("damaged_pin", "error", error.key, str(error))
        return
    for marker in log.state.parts.values():
        if marker.tombstoned_ms is not None and marker.key not in stored and is_needed(marker, pins):
            needed_by = ", ".join(p.name for p in pins if is_needed(marker, [p]))
            yield Problem(
                "missing_pinned_part",
                "error",
                marker.key,
                f"{handle.table}: the part '{marker.key}', which the pin {needed_by} needs, is not in the store, so "
                "that time cannot be read. Restore the object, or remove the pin.",
            )


def _check_unnamed(table: str, unnamed: SweepPlan, min_age_ms: int, *, sure: bool) -> Iterator[Problem]:
    if not unnamed.orphans:
        return
    what = f"{table}: {len(unnamed.orphans)} parts ({sum(i.bytes for i in unnamed.orphans)} bytes)"
    remedy = (
        f"are named by no log file and no claim and are older than {min_age_ms / 3_600_000:g} h: left by a crashed "
        "write or a lost race. delete_orphans deletes them."
        if sure
        else "are named by no readable log file or claim. Keep them: an unreadable one may name them."
    )
    yield Problem("orphans", "warning", "", f"{what} {remedy} {_examples(i.key for i in unnamed.orphans)}")


def _check_foreign(table: str, foreign: tuple[str, ...]) -> Iterator[Problem]:
    if foreign:
        message = (
            f"{table}: {len(foreign)} objects below the table's prefix do not belong to a table. No operation changes "
            f"them. Move them elsewhere. {_examples(foreign)}"
        )
        yield Problem("foreign_objects", "warning", "", message)


def _examples(keys: Iterable[str]) -> str:
    *some, last = islice(keys, EXAMPLES + 1)
    return f"({', '.join([*some, last])})" if len(some) < EXAMPLES else f"({', '.join(some)}, ...)"


# ------------------------------------------------------------------------------------------------ the report


def _report(
    inspection: _Inspection, problems: Iterable[Problem], *, table: str, deep: bool, footers: bool
) -> VerifyReport:
    state = inspection.log.state
    live = state.live
    dead = [m for m in state.parts.values() if m.tombstoned_ms is not None]
    return VerifyReport(
        table=table,
        deep=deep,
        footers=footers,
        log_files=len(state.files) + len(inspection.log.unread),
        superseded_log_files=len(state.ignored & state.files.keys()),
        epoch=state.epoch,
        live_epochs=len(state.live_epochs),
        horizon_ms=state.horizon_ms,
        live_parts=len(live),
        live_rows=total_rows(live),
        live_bytes=sum(m.bytes for m in live),
        tombstoned_parts=len(dead),
        tombstoned_bytes=sum(m.bytes for m in dead),
        unchecked_parts=sum(not deep or m.digest is None for m in live),
        claims=len(inspection.claims.decoded) + len(inspection.claims.damaged),
        pins=len(inspection.claims.pins),
        orphans=tuple(i.key for i in inspection.unnamed.orphans),
        orphan_bytes=sum(i.bytes for i in inspection.unnamed.orphans),
        young_parts=len(inspection.unnamed.young),
        young_bytes=sum(i.bytes for i in inspection.unnamed.young),
        foreign=inspection.foreign,
        problems=tuple(sorted(problems, key=lambda p: (p.severity != "error", p.kind, p.key))),
    )
