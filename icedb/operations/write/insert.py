"""Inserts and overwrites: from rows of any kind to a commit, for `Table.insert` and `Table.overwrite`.

A batch may also change other tables: rows that do not fit go to the table's quarantine, and views are fed
(`icedb.operations.write.views`). All parts of table and views are written before anything is published. The quarantine
is published first, so that no row is lost. Views are published last, because they show committed rows. If an insert
fails in between, the quarantine already has its rejected rows. A retry with the same `txn` (idempotency key) does not
add them again, unless the quarantine was merged in between: a merged part does not identify its rows. A retry
without a `txn` adds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Unpack, get_args

import msgspec

from icedb.errors import InvalidOption, TooManyColumns
from icedb.format.table_spec import SchemaMode, TableSpec
from icedb.operations.commits.drop_partitions import Chosen
from icedb.operations.commits.dropped_columns import spec_of_columns
from icedb.operations.commits.publish import check_overwrite, prepare, publish_append, publish_overwrite
from icedb.operations.write.views import ViewParts, discard_views, publish_views, write_views
from icedb.sources.batch import Batch, OnConflict, Rows, WriteOptions
from icedb.sources.open_source import open_batch
from icedb.sql.connections import READING_SHARE, WRITE_MEMORY_BYTES_MIN, check_write_memory
from icedb.sql.partition_expressions import partition_types
from icedb.sql.types import new_columns
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn, is_recorded, repeated
from icedb.transaction.open_table import open_sibling, quarantine_name
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts, discard, put_parts
from icedb.writer.staged_batch import QUARANTINE_COLUMNS, StagedBatch
from icedb.writer.staging import stage_rows

__all__ = [
    "PartitionsMax",
    "Unpublished",
    "accepting_all",
    "discard_views_and_quarantine",
    "insert",
    "overwrite",
    "staged",
    "write_unpublished",
]

#: The most partitions of a batch, or a function of the types of the partition columns. None means no limit.
PartitionsMax = int | Callable[[Mapping[str, str]], int] | None


def insert(handle: Handle, data: Rows, *, txn: Txn | None = None, **options: Unpack[WriteOptions]) -> Commit:
    """Append rows; see `Table.insert`."""
    done = txn is not None and is_recorded(handle.read(fresh=True), txn)
    if done and not handle.spec.views:
        return repeated(handle)
    with staged(handle, data, **options) as (stage, memory_bytes):
        views = write_views(handle, stage, memory_bytes=memory_bytes, partitions_max=options.get("partitions_max"))
        try:
            commit = repeated(handle) if done else _append(handle, stage, txn, memory_bytes)
        except BaseException:
            discard_views(views)  # views are published only after their source
            raise
        publish_views(handle, views, txn)
    return commit


def _append(handle: Handle, stage: StagedBatch, txn: Txn | None, memory_bytes: int) -> Commit:
    written = put_parts(stage, store=handle.store, clock=handle.clock)
    quarantine = _commit_quarantine(handle, stage, written, txn, memory_bytes)
    commit = publish_append(handle, written, txn=txn)
    return commit if commit.repeated else replace(commit, quarantined_rows=stage.misfits, quarantine=quarantine)


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The parts that an insert wrote for a table, its views and its quarantine. No log file names them yet."""

    written: WrittenParts
    views: Sequence[ViewParts]
    misfits: int
    #: The quarantine and its parts, or None if all rows fit.
    quarantined: tuple[Handle, WrittenParts] | None


def write_unpublished(
    handle: Handle,
    data: Rows,
    *,
    columns_max: int | None = None,
    **options: Unpack[WriteOptions],
) -> Unpublished:
    """Write the parts of an insert, which the caller publishes. Raises as `insert` before anything is visible.

    Raises TooManyColumns, before anything is written, if the rows add columns and the table would then have more than
    `columns_max`.
    """
    with staged(handle, data, **options) as (stage, memory_bytes):
        _check_columns_max(handle, stage, columns_max)
        views = write_views(handle, stage, memory_bytes=memory_bytes, partitions_max=options.get("partitions_max"))
        written = quarantined = None
        try:
            written = put_parts(stage, store=handle.store, clock=handle.clock)
            if stage.misfits:
                quarantine = _open_quarantine(handle)
                quarantined = quarantine, _write_rejected_rows(quarantine, stage, "", memory_bytes)
        except BaseException:
            discard(handle.store, [m.key for m in written.markers] if written else [])
            discard_views(views)
            raise
        return Unpublished(written, views, stage.misfits, quarantined)


def _check_columns_max(handle: Handle, stage: StagedBatch, columns_max: int | None) -> None:
    """Raise TooManyColumns if the rows add columns, and the table would then have more than `columns_max`."""
    if columns_max is None or not new_columns(stage.columns, handle.columns):
        return
    handle.read()  # other writers may have added columns since
    brought = new_columns(stage.columns, handle.columns)
    if brought and len(handle.columns) + len(brought) > columns_max:
        raise TooManyColumns(
            f"{handle.table}: the rows bring {len(brought)} new columns ({_some(brought)}), and the table has "
            f"{len(handle.columns)} of the {columns_max} that it may have. No row was written. Leave the columns out, "
            "or send them as one column of JSON text."
        )


def _some(names: Collection[str]) -> str:
    first = [repr(name if len(name) <= 50 else f"{name[:50]}...") for name in islice(names, 3)]
    return ", ".join(first) + (", ..." if len(names) > len(first) else "")


def discard_views_and_quarantine(unpublished: Unpublished) -> None:
    """Delete the parts for views and quarantine, because the table's own parts are not published.

    The table's own parts stay: the code that publishes them deletes them once no log file can name them.
    """
    discard_views(unpublished.views)
    if unpublished.quarantined is not None:
        quarantine, misfits = unpublished.quarantined
        discard(quarantine.store, [m.key for m in misfits.markers])


def overwrite(
    handle: Handle,
    data: Rows,
    partitions: Chosen | None,
    *,
    schema_mode: SchemaMode = "merge",
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
    partitions_max: PartitionsMax = None,
) -> Commit:
    """Replace live parts by rows; see `Table.overwrite`."""
    accepting = accepting_all(handle, schema_mode, partitions)
    with staged(accepting, data, on_conflict=on_conflict, memory_bytes=memory_bytes, partitions_max=partitions_max) as (
        stage,
        memory_bytes,
    ):
        written = put_parts(stage, store=handle.store, clock=handle.clock)
        if stage.misfits:  # a rejected overwrite must not add rows to the quarantine
            check_overwrite(handle, written, partitions)
        quarantine = _commit_quarantine(handle, stage, written, None, memory_bytes)
    spec = partial(spec_of_columns, handle, written.schema) if schema_mode == "overwrite" else None
    commit = publish_overwrite(handle, written, partitions, spec=spec)
    if spec is not None:
        handle.read()  # the next write through this handle uses the columns of now
    return replace(commit, quarantined_rows=stage.misfits, quarantine=quarantine)


def accepting_all(handle: Handle, schema_mode: SchemaMode, partitions: Chosen | None) -> Handle:
    """Return a handle that accepts rows with dropped columns, if an overwrite also replaces the table's columns.

    Raises InvalidOption for an unknown mode, and for an overwrite of some partitions.
    """
    if schema_mode not in get_args(SchemaMode):
        raise InvalidOption(f"{handle.table}: schema_mode is {schema_mode!r}; give 'merge' or 'overwrite'.")
    if schema_mode == "merge":
        return handle
    if partitions is not None:
        raise InvalidOption(
            f"{handle.table}: schema_mode 'overwrite' replaces the columns of the whole table, but partitions is "
            f"{partitions!r}. Leave out one of them."
        )
    handle.read()
    return handle.with_spec(msgspec.structs.replace(handle.spec, dropped={}))


@contextmanager
def staged(
    handle: Handle,
    data: Rows,
    *,
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
    partitions_max: PartitionsMax = None,
    dry_run: bool = False,
) -> Iterator[tuple[StagedBatch, int]]:
    """Yield the staged batch, and the memory for writes to other tables. A dry run only reads the log."""
    if on_conflict not in get_args(OnConflict):
        raise InvalidOption(f"{handle.table}: on_conflict is {on_conflict!r}; give 'raise', 'cast' or 'quarantine'.")
    if isinstance(partitions_max, int) and partitions_max < 1:
        raise InvalidOption(f"{handle.table}: partitions_max is {partitions_max}; pass at least 1, or None.")
    memory_bytes = check_write_memory(memory_bytes, table=handle.table)
    if dry_run:
        handle.read(fresh=True)
    else:
        prepare(handle)
    if handle.spec.views or on_conflict == "quarantine":  # other tables are written at the same time
        memory_bytes = max(memory_bytes // 2, WRITE_MEMORY_BYTES_MIN)
    # An insert query computes the table's columns from other columns, which may have the same names.
    table_columns = {} if handle.spec.insert_query else handle.columns
    context = handle.write_context()
    with (
        open_batch(
            data,
            location=handle.location,
            table_columns=table_columns,
            on_conflict=on_conflict,
            memory_bytes=memory_bytes,
        ) as batch,
        stage_rows(
            context, batch, on_conflict=on_conflict, memory_bytes=memory_bytes - memory_bytes // READING_SHARE
        ) as stage,
    ):
        if stage.misfits:
            handle.location.sibling(quarantine_name(handle))  # raises if there is no place for it, before any write
        if callable(partitions_max):
            types = partition_types(handle.expressions, stage.columns, table=handle.table) if stage.ranges else None
            partitions_max = None if types is None else partitions_max(types)  # without rows, there may be no columns
        stage.check_partitions(partitions_max)
        yield stage, memory_bytes


def _commit_quarantine(
    handle: Handle, stage: StagedBatch, written: WrittenParts, txn: Txn | None, memory_bytes: int
) -> str | None:
    """Commit the rows that do not fit to the table's quarantine, and return its address, or None without such rows.

    On failure, delete the parts that were written for the table itself.
    """
    if not stage.misfits:
        return None
    try:
        quarantine = _open_quarantine(handle)
        tag = stage.misfits_digest()
        commit = publish_append(quarantine, _write_rejected_rows(quarantine, stage, tag, memory_bytes), txn=txn)
        if commit.repeated and not _holds(quarantine, tag):
            # An earlier attempt committed other rows to the quarantine, because the table had other columns then.
            publish_append(quarantine, _write_rejected_rows(quarantine, stage, tag, memory_bytes))
    except BaseException:
        discard(handle.store, [m.key for m in written.markers])
        raise
    return quarantine.table


def _open_quarantine(handle: Handle) -> Handle:
    """Open or create the quarantine. Raises InvalidOption if another table has that name."""
    spec = TableSpec(id=handle.clock.new_id(), columns=dict(QUARANTINE_COLUMNS), sort_by=("quarantined_at",))
    quarantine = open_sibling(handle, quarantine_name(handle), spec)
    prepare(quarantine)
    if not QUARANTINE_COLUMNS.items() <= quarantine.columns.items():
        raise InvalidOption(
            f"{handle.table}: rows that do not fit would go to '{quarantine.table}', but that table has other columns "
            "than a quarantine. Move it away, or insert with on_conflict='raise'."
        )
    return quarantine


def _write_rejected_rows(quarantine: Handle, stage: StagedBatch, tag: str, memory_bytes: int) -> WrittenParts:
    context = replace(quarantine.write_context(), job=tag)
    rows = Batch(stage.quarantined_rows(quarantine.clock.now_ms()))
    with stage_rows(context, rows, memory_bytes=memory_bytes) as staged:
        return put_parts(staged, store=quarantine.store, clock=quarantine.clock)


def _holds(quarantine: Handle, tag: str) -> bool:
    """Whether a part of the quarantine was written for rows of this digest. False after a merge of that part."""
    return any(key.rpartition("/")[2].startswith(tag) for key in quarantine.read(fresh=True).parts)
