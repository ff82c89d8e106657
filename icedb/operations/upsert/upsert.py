"""Upserts: rows of a batch replace the stored rows with their keys, are inserted, or delete these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import duckdb

from icedb.errors import InvalidOption, UnknownColumn
from icedb.operations.commits.actions import Replace
from icedb.operations.rewrite.engine import Engine
from icedb.operations.upsert.change_rows import ChangedParts, check_changeable, commit_changes, no_changes, resources
from icedb.operations.upsert.incoming_rows import DELETES, NUMBER, IncomingRows, read_incoming
from icedb.operations.upsert.matched_rows import IS_SAME, MATCHES, ChangePlan, MatchedRows
from icedb.operations.upsert.row_changes import RowChanges
from icedb.operations.upsert.row_search import RowSearch, TableColumns
from icedb.reader.part_pruning import prune_parts
from icedb.sources.batch import OnConflict, Rows
from icedb.sql.connections import quote_name
from icedb.sql.predicates import check_predicate
from icedb.storage.parts import Part
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.idempotent_append import Txn, is_recorded, repeated
from icedb.transaction.table_handle import Handle

__all__ = ["UpsertReport", "WhenMatched", "upsert"]

#: What happens to a stored row whose key the batch has.
WhenMatched = Literal["update", "skip"]


@dataclass(frozen=True)
class UpsertedRows:
    """The rows of a batch that are new, and the stored rows with its keys, by what becomes of them."""

    inserted_rows: int
    updated_rows: int
    #: Stored rows that were equal to the row of the batch, or were to be skipped.
    unchanged_rows: int
    deleted_rows: int

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, incoming: IncomingRows) -> UpsertedRows:
        """Count the rows in MATCHES."""
        [(matching, updated, unchanged, deleted)] = con.execute(
            f"SELECT count(DISTINCT {NUMBER}) FILTER (NOT {DELETES}), "
            f"count(*) FILTER (NOT {IS_SAME} AND NOT {DELETES}), "
            f"count(*) FILTER ({IS_SAME}), count(*) FILTER ({DELETES}) FROM {MATCHES}"
        ).fetchall()
        inserted = incoming.rows - incoming.deleting_rows - int(matching)
        return UpsertedRows(inserted, int(updated), int(unchanged), int(deleted))


_NO_ROWS = UpsertedRows(0, 0, 0, 0)


@dataclass(frozen=True)
class UpsertReport(ChangedParts, UpsertedRows):
    """The result of an upsert or of its dry run. Counts of stored rows include several rows of one key."""


def upsert(
    handle: Handle,
    data: Rows,
    on: Sequence[str],
    *,
    when_matched: WhenMatched = "update",
    columns: Sequence[str] | None = None,
    delete_where: str | None = None,
    order_by: Sequence[str] = (),
    on_conflict: OnConflict = "raise",
    txn: Txn | None = None,
    dry_run: bool = False,
    memory_bytes: int | None = None,
    partitions_max: int | None = None,
    engine: Engine | None = None,
) -> UpsertReport:
    """Upsert a batch. See `Table.upsert`."""
    _check_options(handle, on, when_matched, columns, order_by, on_conflict, partitions_max)
    if not dry_run:
        handle.check_writable()
    state = handle.read(fresh=True)
    check_changeable(handle, "upsert")
    if txn is not None and is_recorded(state, txn):
        return UpsertReport(**vars(_NO_ROWS), **no_changes(state, repeated(handle), dry_run=dry_run))
    with resources(handle, memory_bytes, engine) as own:
        incoming = read_incoming(
            handle, data, on, stored_too=columns or (), con=own.con, folder=own.folder, order_by=order_by,
            delete_where=delete_where, on_conflict=on_conflict, memory_bytes=own.memory_bytes,
        )  # fmt: skip
        if incoming is None or not incoming.rows:
            commit = _record(handle, None if dry_run else txn)
            return UpsertReport(**vars(_NO_ROWS), **no_changes(state, commit, dry_run=dry_run))
        matching = _Matching(handle, incoming, on, _updated(handle, incoming, on, columns), when_matched == "skip")
        own.con.register("incoming", incoming.file.table())
        rows = MatchedRows(
            handle, own.con, matching.plan, "upsert", own.engine, own.memory_bytes, partitions_max=partitions_max
        )
        changes = RowChanges(handle, rows, "upsert", txn=txn, dry_run=dry_run)
        report = commit_changes(handle, changes)
    if report is None:
        return UpsertReport(**vars(_NO_ROWS), **no_changes(state, repeated(handle), dry_run=dry_run))
    return UpsertReport(**report)


def _record(handle: Handle, txn: Txn | None) -> Commit:
    """Record a transaction without rows, if there is one."""
    if txn is None:
        return nothing_to_commit(handle)
    application, sequence = txn
    return commit_exclusive(handle, Replace(lambda now: (), sequences={application: sequence}, operation="upsert"))


def _check_options(
    handle: Handle,
    on: object,
    when_matched: object,
    columns: object,
    order_by: object,
    on_conflict: object,
    partitions_max: object,
) -> None:
    for name, names in (("on", on), ("columns", () if columns is None else columns), ("order_by", order_by)):
        if not isinstance(names, list | tuple) or not all(isinstance(c, str) for c in names):
            raise InvalidOption(f"{handle.table}: {name} is {names!r}; give a list of columns (['id']).")
        if len(set(names)) < len(names):
            raise InvalidOption(f"{handle.table}: {name} names a column twice: {names!r}.")
    if not on:
        raise InvalidOption(f"{handle.table}: on is empty; name the columns that identify a row.")
    if when_matched not in get_args(WhenMatched):
        raise InvalidOption(f"{handle.table}: when_matched is {when_matched!r}; give 'update' or 'skip'.")
    if columns is not None and when_matched == "skip":
        raise InvalidOption(f"{handle.table}: columns= excludes when_matched='skip'. Leave out one of them.")
    if partitions_max is not None and (not isinstance(partitions_max, int) or partitions_max < 1):
        raise InvalidOption(f"{handle.table}: partitions_max is {partitions_max!r}; pass at least 1, or None.")
    if on_conflict not in ("raise", "cast"):
        raise InvalidOption(f"{handle.table}: on_conflict is {on_conflict!r}; an upsert takes 'raise' or 'cast'.")


def _updated(
    handle: Handle, incoming: IncomingRows, on: Sequence[str], columns: Sequence[str] | None
) -> frozenset[str]:
    """Return the columns that matching rows take from the batch."""
    if columns is None:
        return frozenset(incoming.columns) - set(on)
    for column in columns:
        if column not in incoming.columns:
            raise UnknownColumn(
                f"{handle.table}: columns names '{column}', and the batch has no such column to store (it has "
                f"{sorted(incoming.columns)}). Correct the name."
            )
        if column in on:
            raise InvalidOption(f"{handle.table}: '{column}' is in on= and columns=. The key of a row never changes.")
    if not columns:
        raise InvalidOption(f"{handle.table}: columns is empty. Name some, or pass when_matched='skip'.")
    return frozenset(columns)


@dataclass(frozen=True, slots=True)
class _Matching:
    """How the rows of a batch match stored rows, and what becomes of both."""

    handle: Handle
    incoming: IncomingRows
    on: Sequence[str]
    updated: frozenset[str]
    skip: bool

    def plan(self, schema: Mapping[str, str]) -> ChangePlan:
        """Return the plan for a table with these columns."""
        columns = TableColumns.of(self.handle, schema)
        stored = columns.stored
        kept = {} if self.skip else {c: f"kept{n}" for n, c in enumerate(stored) if c not in {*self.updated, *self.on}}
        selected = {NUMBER: f"i.{NUMBER}", DELETES: f"i.{DELETES}", IS_SAME: self._is_same(stored)}
        selected |= {name: f"t.{quote_name(c)}" for c, name in kept.items()}
        search = RowSearch(
            columns, f"JOIN incoming AS i ON {self._condition(stored)}", selected, self.incoming.file,
            "a value of the batch cannot be compared with the table's",
        )  # fmt: skip

        def possible(parts: Sequence[Part]) -> Sequence[Part]:
            if not stored.keys() >= set(self.on):
                return ()
            if self.incoming.possible is None:
                return parts
            predicate = check_predicate(self.incoming.possible, schema, columns.visible, table=self.handle.table)
            return prune_parts(parts, predicate.tree, schema, columns.visible)

        return ChangePlan(
            search,
            possible,
            lambda con: vars(UpsertedRows.of(con, self.incoming)),
            lambda con: self._new_rows(con, kept),
        )

    def _condition(self, stored: Mapping[str, str]) -> str:
        if not stored.keys() >= set(self.on):
            return "false"
        return " AND ".join(f"t.{quote_name(c)} = i.{self.incoming.names[c]}" for c in self.on)

    def _is_same(self, stored: Mapping[str, str]) -> str:
        if self.skip:
            return f"NOT i.{DELETES}"
        values = (
            f"{f't.{quote_name(c)}' if c in stored else 'NULL'} IS NOT DISTINCT FROM i.{self.incoming.names[c]}"
            for c in self.incoming.columns
            if c in self.updated
        )
        return " AND ".join([f"NOT i.{DELETES}", *values])

    def _new_rows(self, con: duckdb.DuckDBPyConnection, kept: Mapping[str, str]) -> str | None:
        counts = UpsertedRows.of(con, self.incoming)
        names = self.incoming.names
        queries = []
        if counts.updated_rows:
            values = {c: f"m.{name}" for c, name in kept.items()}
            values |= {c: f"i.{names[c]}" for c in self.incoming.columns if c not in kept}
            columns = ", ".join(f"{sql} AS {quote_name(c)}" for c, sql in values.items())
            queries.append(
                f"SELECT {columns} FROM {MATCHES} AS m JOIN incoming AS i USING ({NUMBER}) "
                f"WHERE NOT m.{IS_SAME} AND NOT m.{DELETES}"
            )
        if counts.inserted_rows:
            columns = ", ".join(f"i.{names[c]} AS {quote_name(c)}" for c in self.incoming.columns)
            queries.append(
                f"SELECT {columns} FROM incoming AS i ANTI JOIN {MATCHES} AS m USING ({NUMBER}) WHERE NOT i.{DELETES}"
            )
        return " UNION ALL BY NAME ".join(queries) or None
