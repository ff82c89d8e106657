"""Replay: the table's state from a set of log files.

A part is live if a log file names it and no log file names it with a tombstone. *A tombstone always wins*, in whatever
order the files are read. The head is the log file with the greatest epoch (number of an exclusive commit). A log file
is ignored if it has an epoch that the head no longer lists. It is also ignored if a log file with an epoch has a
tombstone for it, because that file carries all its markers.

Replay is pure: the same files give the same state. `icedb.transaction.log_reader` reads them from a store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec

from icedb.errors import SnapshotExpired, UncoordinatedMaintenance
from icedb.format.log_schema import Conflicts, TypeName, schema_conflict, unite_schemas
from icedb.format.records import (
    COLUMNS_MIN,
    Encoded,
    LogFile,
    LogReferences,
    Marker,
    StoredLogFile,
    merge_markers,
    tombstone_flags,
    tombstoned,
)

if TYPE_CHECKING:
    from icedb.format.packed_state import PartColumns
from icedb.util.times import time_text

__all__ = ["TableState", "StoredLogFile", "ignored_by", "live_markers", "live_to_v3_readers", "replay"]


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table, computed from its log. Immutable after `replay`."""

    table: str
    files: Mapping[str, StoredLogFile]
    #: Log files that do not count. They were listed, but maybe not read.
    ignored: frozenset[str]
    #: The store's time of each listed log file, including ignored ones.
    listed_ms: Mapping[str, int]
    #: 0 if the table has had no exclusive commit yet.
    epoch: int
    live_epochs: frozenset[int]
    horizon_ms: int
    schema: Mapping[str, str]
    #: Part key -> its marker, with the smallest created_ms and tombstoned_ms of all log files.
    parts: Mapping[str, Marker]
    parts_named: Mapping[str, LogReferences]
    #: Log file key -> the smallest time of its tombstones, in all files that are not ignored.
    log_tombstones: Mapping[str, int]
    logs_named: Mapping[str, LogReferences]
    txn: Mapping[str, tuple[int, int]]
    #: The times of all log files read, newest last.
    times_ms: tuple[int, ...]
    #: The newest spec that an exclusive commit recorded; unset if the one in `_table.json` is current.
    spec: Encoded
    #: Columns with several types. Empty unless the log was replayed tolerantly; `schema` has one of the types then.
    conflicts: Conflicts = field(default_factory=dict)

    @property
    def newest_ms(self) -> int:
        """The newest time in the log; 0 for an empty one."""
        return self.times_ms[-1] if self.times_ms else 0

    @property
    def live(self) -> Sequence[Marker]:
        """The markers of the latest snapshot, in key order."""
        if self.columns is not None:
            return self.columns.live()
        return [m for _, m in sorted(self.parts.items()) if m.tombstoned_ms is None]

    @property
    def dead(self) -> Sequence[Marker]:
        """The markers with a tombstone, in key order."""
        if self.columns is not None:
            return self.columns.dead
        return [m for _, m in sorted(self.parts.items()) if m.tombstoned_ms is not None]

    @property
    def columns(self) -> PartColumns | None:
        """`parts` if there are so many that they are stored in columns, else None."""
        return None if isinstance(self.parts, dict) else cast("PartColumns", self.parts)

    def named_by(self, log_keys: Collection[str]) -> Sequence[Marker]:
        """Return the markers of the parts that some of these log files name, in key order."""
        if self.columns is not None and self.ignored.isdisjoint(log_keys):
            return self.columns.named_by(log_keys)
        return [self.parts[k] for k in sorted({m.key for name in log_keys for m in self.files[name].file.markers})]

    def part_keys(self) -> Iterator[str]:
        """Yield the key of each marker, also of ignored log files. It repeats if several markers name its part."""
        return (key for f in self.files.values() for key, _ in tombstone_flags(f.file.markers))

    def part_statuses(self, log_keys: Collection[str]) -> Iterator[tuple[str, bool, bool]]:
        """Yield each part's key, whether it has a tombstone, and whether one of these log files names it, in order."""
        if self.columns is not None and self.ignored.isdisjoint(log_keys):
            return self.columns.part_statuses(log_keys)
        named = {m.key for name in log_keys for m in self.files[name].file.markers}
        return ((k, m.tombstoned_ms is not None, k in named) for k, m in sorted(self.parts.items()))

    @property
    def effective(self) -> dict[str, StoredLogFile]:
        """The log files that are not ignored, in key order."""
        return {k: f for k, f in sorted(self.files.items()) if k not in self.ignored}

    def replaceable(self, part_keys: Iterable[str], *, t_ms: int) -> list[str]:
        """Return the log files that a commit of time `t_ms` with new markers for these parts replaces, in key order.

        These are the log files that name any of the parts, and those that name no part: voids, and log files whose
        parts are all forgotten. No other commit would replace the latter. Log files of `t_ms` and later are from a
        clock that is far ahead, and are not replaced.
        """
        naming = {k for p in part_keys for k in self.parts_named[p].by}
        bare = {k for k, f in self.files.items() if not f.file.markers}
        return sorted((naming | bare) - self.ignored - self.far_ahead(t_ms))

    def far_ahead(self, t_ms: int) -> frozenset[str]:
        """Return the log files whose time is `t_ms` or later."""
        return frozenset(k for k, f in self.files.items() if f.file.t_ms >= t_ms)

    def held_far_ahead(self, t_ms: int) -> set[str]:
        """Return the parts that such log files name. No commit of time `t_ms` can tombstone or forget them."""
        files = (self.files[k].file for k in self.far_ahead(t_ms) - self.ignored)
        return {key for f in files for key, _ in tombstone_flags(f.markers)}


def ignored_by(files: Mapping[str, LogFile], table: str) -> tuple[int, frozenset[int], frozenset[str]]:
    """Return the epoch of the head, the live epochs, and the keys of ignored log files.

    The files with epochs are enough: plain appends and files of v3 programs never make another file ignored. Raises
    UncoordinatedMaintenance if two files have the same epoch.
    """
    epochs: dict[int, str] = {}
    for key, file in files.items():
        if file.epoch is not None and epochs.setdefault(file.epoch, key) != key:
            raise UncoordinatedMaintenance(
                f"{table}: the log files '{epochs[file.epoch]}' and '{key}' both say they are epoch {file.epoch}. "
                "A program that does not take claims maintains this table. Stop it, and restore the log "
                "files that it deleted."
            )
    epoch = max(epochs, default=0)
    live_epochs = frozenset(files[epochs[epoch]].live_epochs) if epochs else frozenset()
    dead = {key for number, key in epochs.items() if number not in live_epochs}
    replaced = {t.key for key in epochs.values() if key not in dead for t in files[key].tombstones}
    return epoch, live_epochs, frozenset(dead | replaced)


def replay(
    files: Iterable[StoredLogFile],
    *,
    table: str,
    listed_ms: Mapping[str, int] | None = None,
    type_name: TypeName = str,
    tolerant: bool = False,
    previous: TableState | None = None,
) -> TableState:
    """Compute the state that these log files describe. `type_name` checks the types that they name.

    `previous` is an earlier state of the table, of which the parts that are still valid are reused.

    Raises SchemaConflict if two log files disagree on a column, unless `tolerant`; CorruptLog for a text that is not a
    type; UncoordinatedMaintenance if two log files have the same epoch.
    """
    by_key = {f.key: f for f in files}
    listed_ms = listed_ms if listed_ms is not None else {k: f.stored_ms for k, f in by_key.items()}
    epoch, live_epochs, ignored = ignored_by({k: f.file for k, f in by_key.items()}, table)
    effective = [f for _, f in sorted(by_key.items()) if f.key not in ignored]
    log_tombstones, logs_named = _replay_log_tombstones(f for f in by_key.values() if _is_live(f, live_epochs))
    earlier = [by_key[k] for k in log_tombstones if k in by_key and k in ignored]
    _note_earlier_logs(earlier, logs_named)
    parts, parts_named = _replay_parts(effective, earlier, previous)
    schema, conflicts = unite_schemas([(f.key, f.file.schema) for f in effective], type_name)
    if conflicts and not tolerant:
        raise schema_conflict(table, conflicts)
    return TableState(
        table=table,
        files=by_key,
        ignored=ignored,
        listed_ms=listed_ms,
        epoch=epoch,
        live_epochs=live_epochs,
        horizon_ms=max((f.file.horizon_ms for f in by_key.values()), default=0),
        schema=schema,
        parts=parts,
        parts_named=parts_named,
        log_tombstones=log_tombstones,
        logs_named=logs_named,
        txn=_replay_txn(effective),
        times_ms=tuple(sorted(f.file.t_ms for f in by_key.values())),
        spec=_replay_spec(effective),
        conflicts=conflicts,
    )


def _is_live(stored: StoredLogFile, live_epochs: frozenset[int]) -> bool:
    return stored.file.epoch is None or stored.file.epoch in live_epochs


def _replay_parts(
    files: Sequence[StoredLogFile], earlier: Sequence[StoredLogFile], previous: TableState | None
) -> tuple[Mapping[str, Marker], Mapping[str, LogReferences]]:
    if sum(len(f.file.markers) for f in files) >= COLUMNS_MIN:
        from icedb.format.packed_state import PackedReferences, PartColumns  # imports Arrow, only for large tables

        with suppress(OverflowError, ValueError):  # a number that a column cannot hold
            columns = PartColumns.of(files, previous.columns if previous is not None else None)
            return columns, PackedReferences(columns, earlier)
    parts, named = _replay_few(files)
    _note_earlier_parts(earlier, named)
    return parts, named


def _replay_few(files: Iterable[StoredLogFile]) -> tuple[dict[str, Marker], dict[str, LogReferences]]:
    """Replay parts with dictionaries, as `PartColumns` does with columns."""
    parts: dict[str, Marker] = {}
    named: dict[str, LogReferences] = {}
    for stored in files:
        for marker in stored.file.markers:
            seen = parts.get(marker.key)
            parts[marker.key] = marker if seen is None else merge_markers(seen, marker)
            references = named.setdefault(marker.key, LogReferences())
            references.by.append(stored.key)
            if marker.tombstoned_ms is not None:
                references.tombstoned_by_ms.append(stored.stored_ms)
    return parts, named


def _replay_log_tombstones(files: Iterable[StoredLogFile]) -> tuple[dict[str, int], dict[str, LogReferences]]:
    times: dict[str, int] = {}
    named: dict[str, LogReferences] = {}
    for stored in files:
        for tombstone in stored.file.tombstones:
            times[tombstone.key] = min(tombstone.created_ms, times.get(tombstone.key, tombstone.created_ms))
            references = named.setdefault(tombstone.key, LogReferences())
            references.by.append(stored.key)
            references.tombstoned_by_ms.append(stored.stored_ms)
    return times, named


# A log file that was replaced by a tombstone had shown its own tombstones to readers since it was stored. If that time
# did not count, a tombstone that frequent merges carry would never be old enough for cleanup. A file that is ignored
# only for its epoch was never visible, and does not count.


def _note_earlier_parts(replaced: Iterable[StoredLogFile], parts_named: Mapping[str, LogReferences]) -> None:
    for stored in replaced:
        for marker in tombstoned(stored.file.markers):
            if marker.key in parts_named:
                parts_named[marker.key].tombstoned_by_ms.append(stored.stored_ms)


def _note_earlier_logs(replaced: Iterable[StoredLogFile], logs_named: Mapping[str, LogReferences]) -> None:
    for stored in replaced:
        for tombstone in stored.file.tombstones:
            if tombstone.key in logs_named:
                logs_named[tombstone.key].tombstoned_by_ms.append(stored.stored_ms)


def _replay_txn(files: Iterable[StoredLogFile]) -> dict[str, tuple[int, int]]:
    txn: dict[str, tuple[int, int]] = {}
    for stored in files:
        for application, last in stored.file.txn.items():
            txn[application] = max(last, txn.get(application, last))
    return txn


class _Revision(msgspec.Struct):
    revision: int = 0


_revision = msgspec.json.Decoder(_Revision)


def _replay_spec(files: Iterable[StoredLogFile]) -> Encoded:
    """Return the spec with the greatest revision, which each change increments. Merges carry the newest one."""
    specs = [f.file.spec for f in files if not isinstance(f.file.spec, msgspec.UnsetType)]
    return max(specs, key=lambda spec: _revision.decode(spec).revision, default=msgspec.UNSET)


def live_markers(state: TableState, as_of_ms: int | None, *, pinned: bool = False) -> Sequence[Marker]:
    """Return the parts of the snapshot at `as_of_ms` (None: the latest), in key order. Raises SnapshotExpired.

    `pinned`: cleanup forgets nothing of exactly this time, so it can be read although it is before the horizon.
    """
    if as_of_ms is None:
        return state.live
    if as_of_ms < state.horizon_ms and not pinned:
        raise SnapshotExpired(
            f"{state.table}: cleanup has forgotten what was superseded before "
            f"{time_text(state.horizon_ms)}, so a snapshot at {time_text(as_of_ms)} can no longer be read. Give "
            f"{time_text(state.horizon_ms)} or a later time.",
            horizon_ms=state.horizon_ms,
        )
    if state.columns is not None:
        return state.columns.live(as_of_ms)
    return [
        m
        for _, m in sorted(state.parts.items())
        if m.created_ms <= as_of_ms and (m.tombstoned_ms is None or m.tombstoned_ms > as_of_ms)
    ]


def live_to_v3_readers(state: TableState) -> set[str]:
    """Return the part keys that are live to an IceDB v3 program, for which the last marker in key order decides."""
    live: set[str] = set()
    for _, stored in sorted(state.files.items()):
        for key, is_dead in tombstone_flags(stored.file.markers):
            if is_dead:
                live.discard(key)
            else:
                live.add(key)
    return live
