"""Draft the log file that replaces others without losing a marker.

A log file that replaces others holds every marker of theirs, tombstoned ones too and each with its tombstone
from the whole snapshot, a tombstone for each of them, every log tombstone that they carried, and the union of
their schemas, transactions and horizons. All markers, not only those of the partition at hand: a marker left
behind is a part that is lost when the old log file is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from icedb.errors import InvariantViolated
from icedb.format.records import Encoded, LogFile, LogTombstone, Marker
from icedb.format.snapshot import LogState

__all__ = ["Draft", "check_draft", "draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A log file before its epoch is known, and the plan that it carries out: what it replaces and tombstones."""

    file: LogFile
    replaces: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    tombstoned: frozenset[str] = frozenset()


def draft(
    state: LogState,
    *,
    t_ms: int,
    schema: dict[str, str] | None = None,
    txn: Mapping[str, tuple[int, int]] | None = None,
    spec: Encoded = msgspec.UNSET,
    add: Iterable[Marker] = (),
    moved: bool = False,
    tombstone: Collection[str] = (),
    replaces: Collection[str] = (),
    forget: Collection[str] = (),
) -> Draft:
    """A log file that adds parts, tombstones parts, and carries all that the log files in `replaces` hold.

    `moved`: the rows of the parts that it adds were in others before. `forget` names dead parts whose markers are not
    carried; their newest tombstone becomes the horizon.
    """
    sources = [state.files[k].file for k in sorted(replaces)]
    dead = set(tombstone)
    carried = {m.key: state.parts[m.key] for f in sources for m in f.markers} | {k: state.parts[k] for k in dead}
    markers = [
        msgspec.structs.replace(m, tombstoned_ms=t_ms) if k in dead and m.tombstoned_ms is None else m
        for k, m in sorted(carried.items())
        if k not in forget
    ]
    new = [msgspec.structs.replace(m, created_ms=t_ms, moved=moved) for m in add]
    markers += new
    forgotten_ms = [t for k in forget if (t := state.parts[k].tombstoned_ms) is not None]
    return Draft(
        LogFile(
            t_ms=t_ms,
            schema=_union([*(f.schema for f in sources), schema or {}]),
            markers=tuple(markers),
            tombstones=_tombstones(state, sources, replaces, t_ms),
            horizon_ms=max([0, *forgotten_ms, *(f.horizon_ms for f in sources)]),
            foreign_ms=max((f.newest_foreign_ms for f in sources), default=0),
            txn={a: last for f in sources for a, last in f.txn.items() if last == state.txn[a]} | dict(txn or {}),
            spec=state.spec if isinstance(spec, msgspec.UnsetType) and any(map(_has_spec, sources)) else spec,
        ),
        replaces=tuple(sorted(replaces)),
        added=frozenset(m.key for m in new),
        tombstoned=frozenset(dead),
    )


def _has_spec(file: LogFile) -> bool:
    return not isinstance(file.spec, msgspec.UnsetType)


def _union(schemas: Iterable[dict[str, str]]) -> dict[str, str]:
    return {column: type_ for schema in schemas for column, type_ in schema.items()}


def _tombstones(
    state: LogState, sources: Iterable[LogFile], replaces: Iterable[str], t_ms: int
) -> tuple[LogTombstone, ...]:
    # What only a v3 program tombstoned still counts, for its tombstone is not trusted; carried by us, it would be, and
    # hide the markers that were left behind. When such a log file is replaced, its time begins now.
    carried = {t.key for f in sources for t in f.tombstones} - _counting(state)
    times = {k: state.log_tombstones[k] for k in carried} | dict.fromkeys(replaces, t_ms)
    return tuple(LogTombstone(k, t) for k, t in sorted(times.items()))


def _counting(state: LogState) -> set[str]:
    return state.files.keys() - state.ignored


def check_draft(state: LogState, planned: Draft) -> None:
    """Paired assertion: live parts after this commit are the live parts before it, plus and minus the plan."""
    named = {m.key: m for m in planned.file.markers}
    hidden = {*planned.replaces, *({t.key for t in planned.file.tombstones} & _counting(state))}
    gone = {m.key for k in hidden for m in state.files[k].file.markers} - named.keys()
    lost = {k for k in gone if state.parts[k].tombstoned_ms is None}
    back = {k for k, m in named.items() if k in state.parts and m.tombstoned_ms is None} & {
        k for k, m in state.parts.items() if m.tombstoned_ms is not None
    }
    added = named.keys() - state.parts.keys()
    newly_dead = {k for k, m in named.items() if m.tombstoned_ms is not None and _was_live(state, k)}
    if lost or back or added != planned.added or newly_dead != {k for k in planned.tombstoned if _was_live(state, k)}:
        raise InvariantViolated(
            f"{state.table}: a log file was drafted that would lose {sorted(lost)}, bring back {sorted(back)}, "
            f"add {sorted(added)} for {sorted(planned.added)}, tombstone {sorted(newly_dead)} for "
            f"{sorted(planned.tombstoned)}. It was not published."
        )


def _was_live(state: LogState, key: str) -> bool:
    marker = state.parts.get(key)
    return marker is not None and marker.tombstoned_ms is None
