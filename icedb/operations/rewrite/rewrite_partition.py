"""Rewrites of a partition: the result of a query replaces its rows, in one commit.

Use it for corrections, deduplication and filling new columns. The query sees the partition as one snapshot. Rows that a
plain append adds meanwhile survive. If another commit replaces one of the parts meanwhile, the result is discarded and
the query runs again, because the result is based on outdated rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from icedb.errors import CommitConflict, InvalidBatch, InvalidOption
from icedb.format.keys import stored_path
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns, visible_schema
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine
from icedb.operations.rewrite.query_rewrite import RewriteQuery
from icedb.operations.rewrite.rewrite_commit import Rewritten
from icedb.operations.rewrite.rewriter import Rewrite, rewrite_all
from icedb.sql.user_queries import check_query
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_schema import check_not_dropped
from icedb.writer.part_writer import WrittenParts, discard

__all__ = ["PartitionWriter", "RewriteReport", "rewrite_partition", "write_answer"]

logger = logging.getLogger(__name__)

# Each lost attempt means that a merge or an overwrite replaced the partition's parts: the table's lock does not hold.
REWRITE_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of a rewrite or of its dry run. `rows_before` is None if the log does not have a part's row count."""

    partition: str
    replaced_parts: int
    new_parts: int
    rows_before: int | None
    rows: int
    bytes_before: int
    bytes: int
    commit: Commit
    dry_run: bool


class PartitionWriter(Protocol):
    """Writes the result of a query over the inputs of a rewrite as parts. A dry run only returns them."""

    def __call__(
        self, handle: Handle, rewrite: Rewrite, query: str, schema: Mapping[str, str], /, *, dry_run: bool
    ) -> WrittenParts:
        """Return the parts. Raises InvalidRequestError for a query that does not fit, and the store's errors."""
        ...


def write_answer(
    handle: Handle,
    rewrite: Rewrite,
    query: str,
    schema: Mapping[str, str],
    /,
    *,
    dry_run: bool,
    new_columns: bool = False,
    lenient: bool = False,
    engine: Engine = LOCAL_ENGINE,
) -> WrittenParts:
    """Run the query in a sandbox and put its result as one part. A dry run does all but the put.

    `new_columns` and `lenient`: see `RewriteQuery`. Raises InvalidQuery, InvalidBatch, SchemaConflict, UnsupportedType,
    MissingPart, SnapshotExpired, InvalidOption (too little memory), the store's and the engine's errors.
    """
    oldest_part_ms = handle.clock.now_ms()
    checked = check_query(query, relation="_rows", also=("t",), table=handle.table, what="the query", v3=lenient)
    asking = replace(rewrite, query=RewriteQuery(checked, "the query", new_columns=new_columns, lenient=lenient))
    [new] = rewrite_all(handle, [asking], all_columns(handle.spec, schema), dry_run=dry_run, engine=engine)
    return WrittenParts(new.columns, () if new.marker is None else (new.marker,), oldest_part_ms)


def rewrite_partition(
    handle: Handle,
    partition: str,
    query: str,
    *,
    dry_run: bool = False,
    new_columns: bool = False,
    engine: Engine = LOCAL_ENGINE,
    writer: PartitionWriter | None = None,
) -> RewriteReport:
    """Replace a partition's live parts by the result of `query`. See `Table.rewrite_partition`."""
    writer = writer or partial(write_answer, new_columns=new_columns, engine=engine)
    if not dry_run:
        handle.check_writable()
    for attempt in range(REWRITE_ATTEMPTS_MAX):
        state = handle.read(fresh=True)
        rewrite = _rewrite_of(handle, state, partition)
        written = writer(handle, rewrite, query, visible_schema(handle.spec, state.schema), dry_run=dry_run)
        _check_columns(handle, written)
        if dry_run:
            return _report(rewrite, written, nothing_to_commit(handle), dry_run=True)
        # An empty result adds nothing, and no new columns either.
        schema = written.schema if written.markers else {}
        operation = Rewritten(
            {rewrite: written.markers}, operation="rewrite", oldest_part_ms=written.oldest_part_ms, schema=schema
        )
        commit = commit_exclusive(handle, operation)
        if operation.kept:
            return _report(rewrite, written, commit, dry_run=False)
        logger.info("%s: '%s' changed, attempt %d to rewrite it is retried", handle.table, partition, attempt + 1)
    raise CommitConflict(
        f"{handle.table}: '{partition}' was merged or replaced by others {REWRITE_ATTEMPTS_MAX} times while it was "
        "rewritten. Nothing was published. Ensure that only one maintenance run holds the table's lock, then retry."
    )


def _check_columns(handle: Handle, written: WrittenParts) -> None:
    """Raise InvalidBatch, and delete the part, if the query returned a dropped column."""
    try:
        check_not_dropped(handle.spec, written.schema, table=handle.table)
    except InvalidBatch:
        discard(handle.store, [m.key for m in written.markers])
        raise


def _rewrite_of(handle: Handle, state: TableState, partition: str) -> Rewrite:
    """Return a rewrite of the partition's live parts. Its path may be encoded or plain (`city=New York`)."""
    live = [handle.part(m) for m in state.live]
    path = stored_path(partition.strip("/"))
    inputs = tuple(p for p in live if stored_path(p.partition) == path)
    if inputs:
        spellings = {p.partition for p in inputs}  # a program of v3 may have written another spelling, or both
        return Rewrite(spellings.pop() if len(spellings) == 1 else path, inputs)
    some = sorted({p.partition for p in live})[:3]
    raise InvalidOption(
        f"{handle.table}: there is no partition '{partition}' with rows (there are {some or 'none'}, for example). "
        "Give the path of one, as snapshot().partitions() lists them."
    )


def _report(rewrite: Rewrite, written: WrittenParts, commit: Commit, *, dry_run: bool) -> RewriteReport:
    return RewriteReport(
        partition=rewrite.partition,
        replaced_parts=len(rewrite.inputs),
        new_parts=len(written.markers),
        rows_before=rewrite.rows,
        rows=written.rows,
        bytes_before=rewrite.bytes,
        bytes=sum(m.bytes for m in written.markers),
        commit=commit,
        dry_run=dry_run,
    )
