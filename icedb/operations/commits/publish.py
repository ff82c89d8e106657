"""Publication of written parts: the only way to a commit, for `Table`, the Spark source, views and imports.

Parts are written first and are invisible. Publishing them is one commit: a plain one if the table has all their
columns, and an exclusive one if they add a column. If the batch is rejected, its parts are deleted. If publishing
fails, they stay as orphans, because a log file may name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from icedb.errors import EmptyBatch, InvalidRequestError
from icedb.format.table_spec import all_columns
from icedb.operations.commits.actions import Append, SpecOfCommit
from icedb.operations.commits.drop_partitions import Chosen, check_inside, replace_partitions
from icedb.sql.types import check_columns, new_columns
from icedb.transaction.append import Commit, append, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.idempotent_append import Txn, append_once
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts, discard

__all__ = ["check_overwrite", "prepare", "publish_append", "publish_overwrite", "refuse_overwrite"]


def prepare(handle: Handle) -> None:
    """Check before the first write that the store can be written, and read the columns. Raises UnsupportedStore."""
    handle.check_writable()
    if not handle.known_schema:
        handle.read()


def publish_append(handle: Handle, written: WrittenParts, *, txn: Txn | None = None) -> Commit:
    """Append parts to the table, exactly once with a `txn`. Without parts there is no commit."""
    if not written.markers:
        return nothing_to_commit(handle)
    if new_columns(written.schema, handle.known_schema):
        handle.read()  # another writer may have added the same column meanwhile, with the same type or another
    # Read it once for both checks: another thread may learn of a column at any moment.
    schema = handle.known_schema
    _check(handle, written, all_columns(handle.spec, schema))
    if txn is not None:
        return append_once(handle, written, txn)
    if new_columns(written.schema, schema):
        return commit_exclusive(handle, Append(handle, written))
    return append(handle, written.markers, written.schema, oldest_part_ms=written.oldest_part_ms)


def publish_overwrite(
    handle: Handle, written: WrittenParts, partitions: Chosen | None, *, spec: SpecOfCommit | None = None
) -> Commit:
    """Replace the live parts of some partitions (None: of the whole table) by new parts. `spec`: see `Replace`."""
    # `commit_exclusive` also deletes the parts of a rejected batch. Deleting them twice is safe.
    with _discarded_if_refused(handle, written):
        refuse_overwrite(handle, written, partitions)
        return replace_partitions(handle, written, partitions, spec=spec)


def check_overwrite(handle: Handle, written: WrittenParts, partitions: Chosen | None) -> None:
    """Do as `refuse_overwrite`, and delete the parts of a rejected overwrite."""
    with _discarded_if_refused(handle, written):
        refuse_overwrite(handle, written, partitions)


def refuse_overwrite(handle: Handle, written: WrittenParts, partitions: Chosen | None) -> None:
    """Raise EmptyBatch, SchemaConflict or InvalidBatch for an overwrite that is sure to be rejected."""
    if not written.markers:
        raise EmptyBatch(
            f"{handle.table}: the batch has no rows, so an overwrite would only delete. Use drop_partitions for that.",
            table=handle.table,
        )
    handle.read()
    check_columns(written.schema, handle.columns, table=handle.table)
    if partitions is not None:
        check_inside(handle, written, partitions)


def _check(handle: Handle, written: WrittenParts, columns: Mapping[str, str]) -> None:
    """Check the types again: the table may have other columns since the parts were written."""
    with _discarded_if_refused(handle, written):
        check_columns(written.schema, columns, table=handle.table)


@contextmanager
def _discarded_if_refused(handle: Handle, written: WrittenParts) -> Iterator[None]:
    """Delete the parts if the block raises InvalidRequestError: then no log file can name them."""
    try:
        yield
    except InvalidRequestError:
        discard(handle.store, [m.key for m in written.markers])
        raise
