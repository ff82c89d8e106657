"""Drafts of log files that replace others without losing a marker.

A log file that replaces others contains:

- every marker of theirs, including tombstoned ones, each with its tombstone from the whole snapshot
- a log tombstone for each replaced log file, and every log tombstone that they carried
- the union of their schemas, transactions and horizons

It contains all markers, not only those of the partition at hand. A part whose marker is left out would be lost when
cleanup deletes the old log file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain

import msgspec

from icedb.errors import InvariantViolated
from icedb.format.column_times import stored_times
from icedb.format.operation_names import carried_operations
from icedb.format.records import (
    Encoded,
    LogFile,
    LogTombstoneRecord,
    Marker,
    PackedMarkers,
    marker_times,
    tombstone_flags,
)
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, encode_spec

__all__ = ["CommitDraft", "check_draft", "draft"]


@dataclass(frozen=True, slots=True)
class CommitDraft:
    """A log file whose epoch is not known yet, with its plan: what it replaces, adds and tombstones."""

    file: LogFile
    replaces: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    tombstoned: frozenset[str] = frozenset()


def draft(
    state: TableState,
    *,
    t_ms: int,
    schema: dict[str, str] | None = None,
    txn: Mapping[str, tuple[int, int]] | None = None,
    spec: TableSpec | None = None,
    add: Iterable[Marker] = (),
    moved: Iterable[Marker] = (),
    tombstone: Collection[str] = (),
    replaces: Collection[str] = (),
    forget: Collection[str] = (),
    operation: str = "",
) -> CommitDraft:
    """Draft a log file that adds and tombstones parts, and carries the content of the log files in `replaces`.

    `moved` are further parts to add, whose rows were in other parts before. `forget` names dead parts whose markers are
    not carried; their newest tombstone becomes the horizon. `operation`: the name that the header records.
    """
    sources = [state.files[k].file for k in sorted(replaces)]
    dead = set(tombstone)
    new = [msgspec.structs.replace(m, created_ms=t_ms, moved=False) for m in add]
    new += [msgspec.structs.replace(m, created_ms=t_ms, moved=True) for m in moved]
    carried = state.named_by(replaces)
    if dead or forget or new:
        left = (m for m in _with(carried, state, dead) if m.key not in forget)
        died = (
            msgspec.structs.replace(m, tombstoned_ms=t_ms) if m.key in dead and m.tombstoned_ms is None else m
            for m in left
        )
        carried = _packed_like(carried, chain(died, new))
    forgotten_ms = [t for k in forget if (t := state.parts[k].tombstoned_ms) is not None]
    file = LogFile(
        t_ms=t_ms,
        schema=_union([*(f.schema for f in sources), schema or {}]),
        markers=carried if isinstance(carried, PackedMarkers) else tuple(carried),
        tombstones=_tombstones(state, sources, replaces, t_ms),
        horizon_ms=max([0, *forgotten_ms, *(f.horizon_ms for f in sources)]),
        foreign_ms=max((f.newest_foreign_ms for f in sources), default=0),
        txn={a: last for f in sources for a, last in f.txn.items() if last == state.txn[a]} | dict(txn or {}),
        spec=_recorded_spec(spec, state, sources),
        operation=operation,
    )
    if operations := carried_operations(sources):
        times = marker_times(file.markers)
        kept = {at_ms: name for at_ms, name in operations.items() if at_ms in times}
        file = msgspec.structs.replace(file, operations=kept)
    if file.carries_tombstones:  # in any other log file, the columns have the time of the file
        schema_ms, column_ms = stored_times(state, file.schema, t_ms)
        file = msgspec.structs.replace(file, schema_ms=schema_ms, column_ms=dict(column_ms))
    return CommitDraft(
        file,
        replaces=tuple(sorted(replaces)),
        added=frozenset(m.key for m in new),
        tombstoned=frozenset(dead),
    )


def _with(markers: Sequence[Marker], state: TableState, keys: Collection[str]) -> Iterator[Marker]:
    """Yield markers in key order, together with those of the parts in `keys`."""
    lacking = set(keys)
    if lacking:
        lacking.difference_update(k for k, _ in tombstone_flags(markers) if k in lacking)
    return merge(markers, (state.parts[k] for k in sorted(lacking)), key=lambda m: m.key) if lacking else iter(markers)


def _packed_like(original: Sequence[Marker], markers: Iterable[Marker]) -> Sequence[Marker]:
    """Pack markers in columns if the original ones were, because most of them are the same."""
    if not isinstance(original, PackedMarkers):
        return tuple(markers)
    from icedb.format.packed_markers import MarkerColumns  # imports Arrow, which only large tables need

    return MarkerColumns.of(markers)


def _recorded_spec(spec: TableSpec | None, state: TableState, sources: Iterable[LogFile]) -> Encoded:
    """Return the new spec, or that of the log if a replaced log file has one."""
    if spec is not None:
        return msgspec.Raw(encode_spec(spec, indent=0))
    return state.spec if any(map(_has_spec, sources)) else msgspec.UNSET


def _has_spec(file: LogFile) -> bool:
    return not isinstance(file.spec, msgspec.UnsetType)


def _union(schemas: Iterable[dict[str, str]]) -> dict[str, str]:
    return {column: type_ for schema in schemas for column, type_ in schema.items()}


def _tombstones(
    state: TableState, sources: Iterable[LogFile], replaces: Iterable[str], t_ms: int
) -> tuple[LogTombstoneRecord, ...]:
    # A log file that only a v3 program tombstoned is still effective, because readers do not trust that tombstone. If
    # this draft carried it, readers would trust it, and the markers that v3 left out would be hidden. When such a log
    # file is replaced, the time of its tombstone is that of this commit.
    carried = {t.key for f in sources for t in f.tombstones} - _effective_keys(state)
    times = {k: state.log_tombstones[k] for k in carried} | dict.fromkeys(replaces, t_ms)
    return tuple(LogTombstoneRecord(k, t) for k, t in sorted(times.items()))


def _effective_keys(state: TableState) -> set[str]:
    return state.files.keys() - state.ignored


def check_draft(state: TableState, planned: CommitDraft) -> None:
    """Assert that the live parts after this commit are the live parts before it, plus and minus those of the plan.

    Raises InvariantViolated.
    """
    hidden = {*planned.replaces, *({t.key for t in planned.file.tombstones} & _effective_keys(state))}
    lost, back, newly_dead = set[str](), set[str](), set[str]()
    after = dict(tombstone_flags(planned.file.markers))
    for key, dead, was_named in state.part_statuses(hidden):
        is_dead = after.pop(key, None)
        if is_dead is None:
            if was_named and not dead:
                lost.add(key)
        elif dead and not is_dead:
            back.add(key)
        elif is_dead and not dead:
            newly_dead.add(key)
    added = after.keys()
    if lost or back or added != planned.added or newly_dead != {k for k in planned.tombstoned if _was_live(state, k)}:
        raise InvariantViolated(
            f"{state.table}: a drafted log file would lose {sorted(lost)}, bring back {sorted(back)}, "
            f"add {sorted(added)} instead of {sorted(planned.added)}, and tombstone {sorted(newly_dead)} instead of "
            f"{sorted(planned.tombstoned)}. It was not published. Please report this bug."
        )


def _was_live(state: TableState, key: str) -> bool:
    marker = state.parts.get(key)
    return marker is not None and marker.tombstoned_ms is None
