"""Repair a table whose log files record two types for one column, so that no program can read it.

Only a program that does not check the schema creates such a table. The repair chooses one type for each such column:
one into which all others widen without loss, or the caller's. It rewrites live parts of another type, and replaces the
log files that record another type, in one exclusive commit. Older snapshots stay readable, as after a merge.
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
from icedb.format.table_spec import TableSpec, altered_spec
from icedb.operations.integrity.cast_parts import Miscast, check_values, find_miscast, recast
from icedb.operations.integrity.common_types import RepairedColumn, choose_types
from icedb.sql.partition_expressions import partition_types
from icedb.sql.types import checked_type, storage_type
from icedb.storage.parts import Part
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.util.times import time_text

__all__ = ["RepairReport", "repair"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair, or of a dry run. Without a conflict nothing is done.

    `bytes` is the size of the original `rewritten_parts`. `rows` is None if one does not record its rows.
    """

    conflicts: tuple[RepairedColumn, ...]
    rewritten_parts: int
    rows: int | None
    bytes: int
    #: Columns of several types after the repair. A program that does not check the schema is still writing: stop it,
    #: and repair the table again.
    still_in_conflict: tuple[str, ...]
    #: Programs that have the table open may continue to write another type: reopen the table in these programs.
    writers_must_reopen: bool
    commit: Commit
    dry_run: bool


def repair(handle: Handle, types: Mapping[str, str] | None = None, *, dry_run: bool = False) -> RepairReport:
    """Give each column one type. See `Table.repair_types`."""
    tolerant = handle.tolerant()
    operation = _Repair(tolerant, _requested_types(handle, types or {}))
    if dry_run:
        state = tolerant.read(fresh=True)
        rewritten = operation.plan(state, handle.far_ahead_ms(handle.clock.now_ms()))
        return _report(operation, rewritten, nothing_to_commit(handle), (), dry_run=True)
    commit = commit_exclusive(tolerant, operation)
    # Reports the committed parts, not the last plan: another writer may have completed an earlier attempt.
    rewritten = [operation.sources[p.key] for p in commit.parts if p.key in operation.sources]
    again = tolerant.read(fresh=True).conflicts if commit.committed else {}
    handle.cache.learn_columns(tolerant.known_schema)
    handle.current_spec.learn(tolerant.spec)
    return _report(operation, rewritten, commit, tuple(again), dry_run=False)


def _requested_types(handle: Handle, types: Mapping[str, str]) -> dict[str, str]:
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
    """The commit, planned again at each attempt. A rewritten part is reused as long as its original is live."""

    handle: Handle
    requested: Mapping[str, str]
    columns: tuple[RepairedColumn, ...] = ()
    #: The types for which parts were examined.
    types: dict[str, str] = field(default_factory=dict)
    #: The part's key -> its conversion; None if it needs no rewrite.
    examined: dict[str, Miscast | None] = field(default_factory=dict)
    #: The original's key -> the new part's marker.
    written: dict[str, Marker] = field(default_factory=dict)
    #: The new part's key -> the original, for all parts of all attempts.
    sources: dict[str, Part] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = False

    @property
    def outputs(self) -> list[str]:
        return [m.key for m in self.written.values()]

    @property
    def wrong(self) -> set[str]:
        """The log files that record another type than the chosen one."""
        return {key for column in self.columns for key in column.log_files}

    def plan(self, state: TableState, t_ms: int) -> list[Part]:
        """Return the live parts that a commit at `t_ms` replaces, after checking all their values.

        Raises SchemaConflict if a value or a column cannot be converted, and InvalidPartitionExpression if the
        partition expressions do not fit the chosen types.
        """
        self.columns = choose_types(state, self.requested, self.handle.spec)
        types = {**self.requested, **{c.column: c.type for c in self.columns}}
        if types != self.types:
            self.types, self.examined = types, {}
        if not types:
            return []
        self._check_ahead(state, t_ms)
        partition_types(self.handle.expressions, {**state.schema, **types}, table=state.table)
        live = [self.handle.part(m) for m in state.live]
        new = [p for p in live if p.key not in self.examined and p.key not in self.sources]
        miscasts = {m.part.key: m for m in find_miscast(self.handle, new, types)} if new else {}
        check_values(self.handle, list(miscasts.values()))
        self.examined |= {p.key: miscasts.get(p.key) for p in new}
        return [p for p in live if self.examined.get(p.key) is not None]

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file. Raises the errors of `plan`."""
        before = self.types
        miscast = self.plan(state, t_ms)
        stale = self.written.keys() - {p.key for p in miscast} if before == self.types else set(self.written)
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
            spec=spec,
            moved=[self.written[key] for key in gone],
            tombstone=gone,
            replaces=replaces,
            operation="repair",
        )

    def _write(self, parts: Sequence[Part]) -> None:
        if not parts:
            return
        self.oldest_part_ms = self.oldest_part_ms or self.handle.clock.now_ms()
        logger.info("%s: rewriting %d parts to repair %s", self.handle.table, len(parts), sorted(self.types))
        markers = recast(self.handle, [m for p in parts if (m := self.examined[p.key]) is not None])
        for part, marker in zip(parts, markers, strict=True):
            self.written[part.key] = marker
            self.sources[marker.key] = part

    def _check_ahead(self, state: TableState, t_ms: int) -> None:
        ahead = sorted(state.far_ahead(t_ms) & self.wrong)
        if ahead:
            column = next(c for c in self.columns if ahead[0] in c.log_files)
            raise SchemaConflict(
                f"{state.table}: the log file '{ahead[0]}' records another type than {column.type} for the column "
                f"'{column.column}'. It was written with a clock that is far ahead, and cannot be replaced before "
                f"{time_text(state.files[ahead[0]].file.t_ms)}. Nothing was changed. Repair the table then, or choose "
                "the type that it records.",
                column=column.column,
                types=(column.types[0], column.types[1]),
            )

    def _spec(self, t_ms: int) -> TableSpec | None:
        """Return the new spec if it declares one of the columns with an old type; None: it stays."""
        spec = self.handle.spec
        new = {c: t for c, t in self.types.items() if spec.columns.get(c, t) != t}
        return altered_spec(spec, msgspec.structs.replace(spec, columns={**spec.columns, **new}), t_ms) if new else None
