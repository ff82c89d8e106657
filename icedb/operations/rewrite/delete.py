"""Deletions of rows in all partitions: find the parts with matching rows, rewrite them without these, commit once.

The search only opens parts that can match. Paths and the statistics in the log exclude parts, and Parquet statistics
exclude row groups. Of the rest only the predicate's columns are read. A part without a matching row is not touched. A
part with only matching rows is tombstoned without a rewrite. A part that another commit replaced meanwhile keeps its
rows until a second pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from icedb.errors import InvalidOption, InvariantViolated
from icedb.format.records import Marker
from icedb.format.table_spec import visible_schema
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine
from icedb.operations.rewrite.part_search import PartSearch, search_batches
from icedb.operations.rewrite.rewrite_commit import Rewritten
from icedb.operations.rewrite.rewriter import Rewrite, Rewriter, rewrite_parts
from icedb.reader.part_pruning import prune_parts
from icedb.reader.scan_sql import FILE_COLUMN, relation, visible_partitions
from icedb.sql.connections import quote_text
from icedb.sql.partition_expressions import partition_types
from icedb.sql.predicates import Predicate, check_predicate, matching
from icedb.storage.parts import Part
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import discard

__all__ = ["DeleteReport", "Finder", "SearchTask", "MatchingRows", "delete", "find_rows"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MatchingRows:
    """The number of rows of each part, by key, for which a predicate is true. `predicate` is checked, for rewriters."""

    predicate: str
    rows: Mapping[str, int]


#: Searches parts of a table with this schema for rows for which a predicate is true.
Finder = Callable[[Handle, Sequence[Part], str, Mapping[str, str]], MatchingRows]


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """The result of a deletion or of its dry run. `bytes` is the size of all rewritten and removed parts."""

    #: Rows for which the predicate was true, and those of them that this commit removed.
    matching_rows: int
    deleted_rows: int
    #: Parts that were rewritten without their matching rows, and parts that had only matching rows.
    rewritten_parts: int
    removed_parts: int
    #: Parts that another commit replaced meanwhile. Their matching rows still exist, in other parts.
    dropped_parts: int
    bytes: int
    commit: Commit
    dry_run: bool

    @property
    def second_pass_needed(self) -> bool:
        """Whether matching rows may be left: rows that were appended or merged meanwhile survive a deletion.

        A deletion is complete after a pass that finds no rows. The old parts' objects are deleted by the next cleanup
        after the grace period.
        """
        return self.matching_rows > 0


# ------------------------------------------------------------------------------------------ finding rows


def find_rows(
    handle: Handle, parts: Sequence[Part], where: str, schema: Mapping[str, str], *, engine: Engine = LOCAL_ENGINE
) -> MatchingRows:
    """Count the matching rows of each part. Reads only the predicate's columns, of partitions that can match.

    Raises InvalidOption, UnknownColumn, MissingPart, SnapshotExpired, DuckDB's, the store's and the engine's errors.
    """
    types = partition_types(handle.expressions, schema, table=handle.table) if schema else {}
    visible = visible_partitions(schema, types)
    predicate = check_predicate(where, schema, visible, table=handle.table)
    pathless = [p for p in parts if not visible.keys() <= p.values.keys()]  # of a v3 program, or from before an alter
    possible = _in_partitions(handle, [p for p in parts if visible.keys() <= p.values.keys()], predicate, visible)
    counts: dict[str, int] = {}
    if predicate.is_of_partitions and all(p.rows is not None for p in possible):
        counts |= {p.key: p.rows for p in possible if p.rows}
        possible = []
    parts = prune_parts(possible + pathless, predicate.tree, schema, visible)
    for batch_counts in engine.run(handle, SearchTask(predicate.sql, dict(schema), types), search_batches(parts)):
        counts |= batch_counts
    return MatchingRows(predicate.sql, counts)


def _in_partitions(handle: Handle, parts: Sequence[Part], predicate: Predicate, types: Mapping[str, str]) -> list[Part]:
    """Return the parts of partitions for which no condition of the predicate is false or null."""
    paths = {p.partition for p in parts}
    for condition in predicate.of_partitions:
        paths &= set(matching(sorted(paths), condition, types, table=handle.table))
    return [p for p in parts if p.partition in paths]


@dataclass(frozen=True, slots=True)
class SearchTask(PartSearch[dict[str, int]]):
    """Counts the rows for which a checked predicate is true, by part key, for parts with such rows.

    `types` are the types of the partition columns.
    """

    predicate: str
    schema: Mapping[str, str]
    types: Mapping[str, str]

    @property
    def wrong_sql(self) -> str:
        """See PartSearch."""
        return f"the predicate {quote_text(self.predicate)} has no value for some row; use TRY_CAST, or exclude it"

    def search(self, handle: Handle, con: duckdb.DuckDBPyConnection, parts: Sequence[Part]) -> dict[str, int]:
        """See PartSearch."""
        keys = dict(zip(handle.part_paths.readable(parts), (p.key for p in parts), strict=True))
        rows = relation(handle, parts, self.schema, self.types, with_file=True)
        counts = con.execute(
            f"SELECT {FILE_COLUMN}, count(*) FROM ({rows}) AS t WHERE (\n{self.predicate}\n) GROUP BY ALL"
        ).fetchall()
        return {keys[path]: count for path, count in counts}


# ------------------------------------------------------------------------------------------ deleting


def delete(
    handle: Handle,
    where: str,
    *,
    dry_run: bool = False,
    rewriter: Rewriter = rewrite_parts,
    finder: Finder = find_rows,
) -> DeleteReport:
    """Delete the rows for which `where` is true. See `Table.delete`."""
    if not isinstance(where, str) or not where.strip():
        raise InvalidOption(f"{handle.table}: no predicate is given; nothing is ever deleted by default.")
    if not dry_run:
        handle.check_writable()
    state = handle.read(fresh=True)
    parts = [handle.part(m) for m in state.live]
    schema = visible_schema(handle.spec, state.schema)
    matches = finder(handle, parts, where, schema)
    rewrites = [Rewrite(p.partition, (p,), matches.predicate) for p in parts if matches.rows.get(p.key)]
    if dry_run or not rewrites:
        return _dry_run_report(handle, rewrites, matches, dry_run=dry_run)
    logger.info(
        "%s: deleting %d rows of %d parts (of %d)", handle.table, sum(matches.rows.values()), len(rewrites), len(parts)
    )
    oldest_part_ms = handle.clock.now_ms()
    markers = rewriter(handle, rewrites, schema)
    written = {r: () if m is None else (m,) for r, m in zip(rewrites, markers, strict=True)}
    _check_counts(handle, written, matches)
    operation = Rewritten(written, operation="delete", oldest_part_ms=oldest_part_ms)
    commit = commit_exclusive(handle, operation)
    emptied = sum(not markers for markers in operation.kept.values())
    return DeleteReport(
        matching_rows=sum(matches.rows.values()),
        deleted_rows=sum(matches.rows[p.key] for r in operation.kept for p in r.inputs),
        rewritten_parts=len(operation.kept) - emptied,
        removed_parts=emptied,
        dropped_parts=len(rewrites) - len(operation.kept),
        bytes=sum(r.bytes for r in operation.kept),
        commit=commit,
        dry_run=False,
    )


def _dry_run_report(
    handle: Handle, rewrites: Sequence[Rewrite], matches: MatchingRows, *, dry_run: bool
) -> DeleteReport:
    """Report the rows to delete. A part with an unknown row count counts as one to rewrite."""
    removed = sum(r.rows == matches.rows[p.key] for r in rewrites for p in r.inputs)
    return DeleteReport(
        matching_rows=sum(matches.rows.values()),
        deleted_rows=0,
        rewritten_parts=len(rewrites) - removed,
        removed_parts=removed,
        dropped_parts=0,
        bytes=sum(r.bytes for r in rewrites),
        commit=nothing_to_commit(handle),
        dry_run=dry_run,
    )


def _check_counts(handle: Handle, written: Mapping[Rewrite, Sequence[Marker]], matches: MatchingRows) -> None:
    """Check that exactly the rows that were found are missing from the new parts."""
    for rewrite, markers in written.items():
        matched = sum(matches.rows[p.key] for p in rewrite.inputs)
        kept = sum(m.rows or 0 for m in markers)
        if rewrite.rows is not None and kept + matched != rewrite.rows:
            discard(handle.store, [m.key for ms in written.values() for m in ms])
            raise InvariantViolated(
                f"{handle.table}: of the {rewrite.rows} rows of '{rewrite.inputs[0].key}' {matched} match and {kept} "
                "would stay. Nothing was published. Please report this error."
            )
