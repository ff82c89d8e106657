"""Drops and replacements of whole partitions, by path or by a predicate over the partition columns.

A drop only changes the log: the parts stay for readers of older snapshots until cleanup. Rows that a plain append adds
to a dropped partition meanwhile survive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from icedb.errors import InvalidBatch, InvalidOption
from icedb.format.keys import decode_partition, partition_of, stored_path
from icedb.format.records import total_rows
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns
from icedb.operations.commits.actions import Replace, SpecOfCommit
from icedb.sql.partition_expressions import partition_types
from icedb.sql.predicates import check_partition_predicate, matching
from icedb.storage.parts import Part
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts

__all__ = [
    "Chosen",
    "DropReport",
    "PartitionChoice",
    "check_chosen",
    "check_inside",
    "drop_partitions",
    "parts_to_replace",
    "replace_partitions",
]

logger = logging.getLogger(__name__)

#: Partitions of a table: their paths, a DuckDB predicate over the partition columns, or a function that returns such a
#: predicate for these columns' types. A table without rows does not know the types before its first batch.
Chosen = Sequence[str] | str | Callable[[Mapping[str, str]], str]


@dataclass(frozen=True, slots=True)
class DropReport:
    """The parts that a drop tombstoned, or would tombstone. `rows` is None if the log does not have a part's row count.

    `older_parts` are of a partitioning before the last `alter`. A predicate cannot be evaluated on their paths, so they
    stayed, and may hold matching rows. Use `delete` for these.
    """

    partitions: tuple[str, ...]
    parts: tuple[Part, ...]
    rows: int | None
    bytes: int
    older_parts: tuple[Part, ...]
    commit: Commit
    dry_run: bool


@dataclass(frozen=True)
class PartitionChoice:
    """Some partitions of a table whose rows have this schema."""

    handle: Handle
    chosen: Chosen
    schema: Mapping[str, str]

    @cached_property
    def _types(self) -> dict[str, str]:
        return partition_types(self.handle.expressions, self.schema, table=self.handle.table)

    @property
    def paths_or_predicate(self) -> Sequence[str] | str:
        """The paths, or the predicate."""
        return self.chosen(self._types) if callable(self.chosen) else self.chosen

    def of(self, partitions: Iterable[str]) -> set[str]:
        """Return the partition paths that are chosen. Raises InvalidPartitionExpression."""
        paths = sorted(set(partitions))
        chosen = self.paths_or_predicate
        if isinstance(chosen, str):
            # A predicate cannot be evaluated on a path of an older partitioning, so such a path is not chosen.
            newer = [p for p in paths if self._types.keys() <= decode_partition(p).keys()]
            return set(matching(newer, chosen, self._types, table=self.handle.table))
        # A path may be encoded as stored, or as a person writes it (`city=New York`).
        wanted = {stored_path(p.strip("/")) for p in chosen}
        return {p for p in paths if stored_path(p) in wanted}


def drop_partitions(
    handle: Handle, partitions: Sequence[str] | str, *, missing_ok: bool = False, dry_run: bool = False
) -> DropReport:
    """Tombstone all live parts of the chosen partitions. See `Table.drop_partitions`."""
    check_chosen(handle, partitions)
    if not partitions:
        raise InvalidOption(f"{handle.table}: no partitions are named; nothing is ever dropped by default.")
    older: list[Part] = []
    is_first_look = True

    def choose(now: TableState) -> list[str]:
        nonlocal is_first_look
        # At a later attempt, another drop may have come first, or another writer may have completed ours.
        if is_first_look:
            _check_there(handle, now, partitions, missing_ok=missing_ok)
        is_first_look = False
        older[:] = _older_parts(handle, now) if isinstance(partitions, str) else []
        return _live_parts(handle, now, partitions)

    if dry_run:
        state = handle.read(fresh=True)
        chosen = [handle.part(state.parts[k]) for k in choose(state)]
        return _report(chosen, older, nothing_to_commit(handle), dry_run=True)
    commit = commit_exclusive(handle, Replace(choose))
    if older:
        logger.warning(
            "%s: %d parts of an earlier partitioning were not dropped, and may hold rows for which %s is true. "
            "To delete these rows, use delete(where)",
            handle.table,
            len(older),
            partitions,
        )
    return _report(commit.tombstoned, older, commit, dry_run=False)


def check_chosen(handle: Handle, partitions: object) -> None:
    """Raise InvalidOption unless this is a predicate, a list of paths, or a function that returns a predicate."""
    if isinstance(partitions, str) or callable(partitions):
        return
    if not isinstance(partitions, list | tuple | set | frozenset) or not all(isinstance(p, str) for p in partitions):
        raise InvalidOption(
            f"{handle.table}: partitions is {partitions!r}; give a list of paths (['d=2026-11-21']), or a predicate "
            "over the partition columns as text."
        )


def _check_there(handle: Handle, state: TableState, partitions: Sequence[str] | str, *, missing_ok: bool) -> None:
    """Raise an error for a path without live parts, and for a predicate that does not fit an empty table."""
    if isinstance(partitions, str):
        if not state.live and (columns := all_columns(handle.spec, state.schema)):
            types = partition_types(handle.expressions, columns, table=handle.table)
            check_partition_predicate(partitions, types, table=handle.table)
        return
    live = {stored_path(handle.partition(m)) for m in state.live}
    missing = [p for p in partitions if stored_path(p.strip("/")) not in live]
    if missing and not missing_ok:
        raise InvalidOption(
            f"{handle.table}: no partition '{missing[0]}' has rows, and nothing was dropped. Name whole paths, as "
            "snapshot().partitions() or icedb partitions lists them; pass missing_ok=True if one may be gone already."
        )


def replace_partitions(
    handle: Handle, written: WrittenParts, partitions: Chosen | None, *, spec: SpecOfCommit | None = None
) -> Commit:
    """Replace the live parts of the chosen partitions (None: of the whole table) by new parts. `spec`: see `Replace`.

    Raises InvalidBatch if a part lies outside of them, and InvalidOption if parts of an earlier partitioning may hold
    rows of them. Then nothing is visible, and the caller still owns the parts.
    """
    if partitions is not None:
        check_inside(handle, written, partitions)
    return commit_exclusive(handle, Replace(lambda now: parts_to_replace(handle, now, partitions), written, spec=spec))


def parts_to_replace(handle: Handle, state: TableState, partitions: Chosen | None) -> list[str]:
    """Return the keys of the live parts of the chosen partitions (None: of all). Raises as `replace_partitions`."""
    if partitions is None:
        return [m.key for m in state.live]
    if older := _older_parts(handle, state):
        raise InvalidOption(
            f"{handle.table}: {len(older)} parts, '{older[0].key}' for example, were written before the table was "
            "partitioned as it is now, and may hold rows of the partitions to overwrite. Overwrite the whole "
            "table, or delete(where) those rows and insert the new ones."
        )
    return _live_parts(handle, state, partitions)


def check_inside(handle: Handle, written: WrittenParts, partitions: Chosen) -> None:
    """Raise InvalidBatch if a part lies outside the chosen partitions. The caller still owns the parts."""
    by_partition = {partition_of(handle.keys.data_prefix, m.key): m for m in written.markers}
    schema = {**handle.known_schema, **written.schema}
    choice = PartitionChoice(handle, partitions, schema)
    outside = by_partition.keys() - choice.of(by_partition)
    if outside:
        rows = sum(by_partition[p].rows or 0 for p in outside)
        raise InvalidBatch(
            f"{handle.table}: {rows} of {written.rows} rows are outside the partitions to overwrite "
            f"({choice.paths_or_predicate!r}), for example in '{min(outside)}'. Leave them out, or name their "
            "partitions too."
        )


def _older_parts(handle: Handle, state: TableState) -> list[Part]:
    """Return the live parts whose paths lack partition columns of the present spec."""
    names = {e.name for e in handle.expressions}
    return [p for p in map(handle.part, state.live) if not names <= p.values.keys()]


def _live_parts(handle: Handle, state: TableState, partitions: Chosen) -> list[str]:
    by_key = {m.key: partition_of(handle.keys.data_prefix, m.key) for m in state.live}
    chosen = PartitionChoice(handle, partitions, state.schema).of(by_key.values()) if by_key else set()
    return [key for key, path in by_key.items() if path in chosen]


def _report(parts: Sequence[Part], older: Sequence[Part], commit: Commit, *, dry_run: bool) -> DropReport:
    return DropReport(
        partitions=tuple(sorted({p.partition for p in parts})),
        parts=tuple(parts),
        rows=total_rows(parts),
        bytes=sum(p.bytes for p in parts),
        older_parts=tuple(older),
        commit=commit,
        dry_run=dry_run,
    )
