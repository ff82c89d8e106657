"""Repair a table of which log files say that one column has two types: no program can read it until then.

Only a program that does not check the schema makes such a table. For each such column one type is chosen, into which
all the others widen without loss, or the caller's. Live parts of another type are written again, and the log files
that say another type are replaced, in one exclusive commit. Older snapshots stay readable, as after a merge.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from icedb.errors import InvalidOption, SchemaConflict
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import Marker, total_rows
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, altered_spec, encode_spec
from icedb.operations.integrity.cast_parts import Miscast, check_values, find_miscast, recast
from icedb.operations.integrity.common_types import RepairedColumn, choose_types
from icedb.sql.partition_expressions import partition_types
from icedb.sql.types import checked_type, storage_type
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle, Part
from icedb.util.times import time_text

__all__ = ["RepairReport", "repair"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did, or would do. Without a conflict nothing is done.

    `rewritten_parts` had `bytes` together and hold `rows`, None when one does not say how many.
    """

    conflicts: tuple[RepairedColumn, ...]
    rewritten_parts: int
    rows: int | None
    bytes: int
    #: Columns of several types after the repair: a program that does not check the schema is still writing. Stop it,
    #: and repair the table again.
    still_in_conflict: tuple[str, ...]
    #: Programs that had the table open may go on to write what they took for a column's type: close and open it there.
    writers_must_reopen: bool
    commit: Commit
    dry_run: bool


def repair(handle: Handle, types: Mapping[str, str] | None = None, *, dry_run: bool = False) -> RepairReport:
    """Give each column one type. See `Table.repair_types`."""
    given = _given_types(handle, types or {})
    tolerant = handle.tolerant()
    operation = _Repair(tolerant, given)
    if dry_run:
        state = tolerant.read(fresh=True)
        rewritten = operation.plan(state, handle.far_ahead_ms(handle.clock.now_ms()))
        return _report(operation, rewritten, nothing_to_commit(handle), (), dry_run=True)
    commit = commit_exclusive(tolerant, operation)
    # By what was committed, not by the last plan: another may have completed an earlier one for us.
    rewritten = [operation.sources[p.key] for p in commit.parts if p.key in operation.sources]
    again = tolerant.read(fresh=True).conflicts if commit.committed else {}
    handle.learn_schema(tolerant.known_schema)
    handle.learn_spec(tolerant.spec)
    return _report(operation, rewritten, commit, tuple(again), dry_run=False)


def _given_types(handle: Handle, types: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(types, Mapping) or not all(isinstance(c, str) for c in types):
        raise InvalidOption(f"{handle.table}: types must be a mapping of columns to types, not {types!r}.")
    return {
        column: storage_type(
            checked_type(text, what=f"column '{column}'", table=handle.table), column=column, table=handle.table
        )
        for column, text in types.items()
    }


def _report(
    operation: _Repair, rewritten: Sequence[Part], commit: Commit, again: tuple[str, ...], *, dry_run: bool
) -> RepairReport:
    done = dry_run or commit.committed
    return RepairReport(
        conflicts=operation.columns if done else (),
        rewritten_parts=len(rewritten),
        rows=total_rows(rewritten),
        bytes=sum(p.bytes for p in rewritten),
        still_in_conflict=again,
        writers_must_reopen=done and bool(operation.columns),
        commit=commit,
        dry_run=dry_run,
    )


# ------------------------------------------------------------------------------------------ the commit


@dataclass(slots=True)
class _Repair:
    """Planned anew at each attempt; a part that was written again is used as long as the one that it replaces lives."""

    handle: Handle
    given: Mapping[str, str]
    columns: tuple[RepairedColumn, ...] = ()
    #: The types that parts were looked at for, and what was found: part's key -> how to write it again, if it must be.
    types: dict[str, str] = field(default_factory=dict)
    looked_at: dict[str, Miscast | None] = field(default_factory=dict)
    #: Key of the part that is replaced -> the new part's marker.
    written: dict[str, Marker] = field(default_factory=dict)
    #: New part's key -> the part that it replaces, of every part ever written.
    sources: dict[str, Part] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = False

    @property
    def outputs(self) -> list[str]:
        return [m.key for m in self.written.values()]

    @property
    def wrong(self) -> set[str]:
        """The log files that say another type than the one that was chosen."""
        return {key for column in self.columns for key in column.log_files}

    def plan(self, state: TableState, t_ms: int) -> list[Part]:
        """The live parts that a commit of time `t_ms` replaces; all their values were looked at.

        Raises SchemaConflict when a value or a column cannot be converted, InvalidPartitionExpression when the
        partition expressions do not fit the chosen types.
        """
        self.columns = choose_types(state, self.given, self.handle.spec)
        types = {**self.given, **{c.column: c.type for c in self.columns}}
        if types != self.types:
            self.types, self.looked_at = types, {}
        if not types:
            return []
        self._check_ahead(state, t_ms)
        partition_types(self.handle.expressions, {**state.schema, **types}, table=state.table)
        live = [self.handle.part(m) for m in state.live]
        new = [p for p in live if p.key not in self.looked_at and p.key not in self.sources]
        found = {m.part.key: m for m in find_miscast(self.handle, new, types)} if new else {}
        check_values(self.handle, list(found.values()))
        self.looked_at |= {p.key: found.get(p.key) for p in new}
        return [p for p in live if self.looked_at.get(p.key) is not None]

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Raises what `plan` raises; nothing of the table was changed then."""
        known = self.types
        miscast = self.plan(state, t_ms)
        stale = self.written.keys() - {p.key for p in miscast} if known == self.types else set(self.written)
        self.unused += [self.written.pop(key).key for key in stale]
        self._write([p for p in miscast if p.key not in self.written])
        if not miscast and not self.wrong:
            return None
        gone = [p.key for p in miscast]
        spec = self._spec(t_ms)
        holders = [k for k, f in state.effective.items() if not isinstance(f.file.spec, msgspec.UnsetType)]
        replaces = self.wrong.union(state.replaceable(gone, t_ms=t_ms), holders if spec else ()) - state.far_ahead(t_ms)
        return draft(
            state,
            t_ms=t_ms,
            schema={**state.schema, **self.types},
            spec=msgspec.Raw(encode_spec(spec, indent=0)) if spec else msgspec.UNSET,
            add=[self.written[key] for key in gone],
            moved=True,
            tombstone=gone,
            replaces=replaces,
            operation="repair",
        )

    def _write(self, parts: Sequence[Part]) -> None:
        if not parts:
            return
        self.oldest_part_ms = self.oldest_part_ms or self.handle.clock.now_ms()
        logger.info("%s: writing %d parts again to repair %s", self.handle.table, len(parts), sorted(self.types))
        markers = recast(self.handle, [m for p in parts if (m := self.looked_at[p.key]) is not None])
        for part, marker in zip(parts, markers, strict=True):
            self.written[part.key] = marker
            self.sources[marker.key] = part

    def _check_ahead(self, state: TableState, t_ms: int) -> None:
        ahead = sorted(state.far_ahead(t_ms) & self.wrong)
        if ahead:
            column = next(c for c in self.columns if ahead[0] in c.log_files)
            raise SchemaConflict(
                f"{state.table}: the log file '{ahead[0]}', which gives column '{column.column}' another type than "
                f"{column.type}, is from a clock that is far ahead, and cannot be replaced before its time "
                f"({time_text(state.files[ahead[0]].file.t_ms)}) has come. Nothing was changed. Repair the table then, "
                "or choose the type that it gives.",
                column=column.column,
                types=(column.types[0], column.types[1]),
            )

    def _spec(self, t_ms: int) -> TableSpec | None:
        """The spec, if it declares one of the columns with a type that it had; None: it stays as it is."""
        spec = self.handle.spec
        new = {c: t for c, t in self.types.items() if spec.columns.get(c, t) != t}
        return altered_spec(spec, msgspec.structs.replace(spec, columns={**spec.columns, **new}), t_ms) if new else None
