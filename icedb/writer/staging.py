"""Staging of a batch: its rows are converted, partitioned and sorted, with DuckDB in a sandbox.

Every write uses this module. Each partition is a range of rows in the order of storage, and becomes one sorted part
(data file). A batch that is small relative to the memory stays in Arrow; DuckDB sorts a larger one and spills. Nothing
is written to the store here. A writer needs no handle, only a `WriteContext`, which can be pickled and sent to another
machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from icedb.format.table_spec import ROW_GROUP_ROWS_MIN, TableSpec
from icedb.sources.batch import Batch, OnConflict
from icedb.sql.connection_pool import sandbox
from icedb.sql.connections import free_unused_memory, memory_bytes_default
from icedb.sql.user_queries import UserQuery, check_query
from icedb.writer.arrow_staging import stage_in_arrow
from icedb.writer.batch_loader import LoadedBatch, held_bytes_max, load_batch
from icedb.writer.batch_schema import BatchSchema, WriteContext, resolve_batch_schema
from icedb.writer.duckdb_staging import stage_in_duckdb
from icedb.writer.staged_batch import MISFIT, StagedBatch
from icedb.writer.staging_checks import check_computed, check_no_rows, misfit_error

__all__ = ["check_batch", "stage_rows"]

# The number of row groups that must fit into memory: each thread holds one encoded and one unencoded.
_ROW_GROUPS_IN_MEMORY = 16
# Rows that DuckDB sorted are also read in batches, which DuckDB allocates outside its memory limit.
_SORTED_ROW_GROUPS_IN_MEMORY = 32
# A sandbox that sorted more may retain some of the memory, so it is not reused.
_REUSE_BYTES_MAX = 64 * 1024 * 1024


def check_batch(context: WriteContext, schema: pa.Schema) -> Mapping[str, str]:
    """Return the columns that a batch of this Arrow schema would have in the table.

    Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidQuery, InvalidPartitionExpression for
    every problem of a batch that does not depend on its rows.
    """
    nothing = pa.RecordBatchReader.from_batches(schema, [])
    with stage_rows(context, Batch(nothing)) as stage:
        return stage.columns


@contextmanager
def stage_rows(
    context: WriteContext,
    batch: Batch,
    *,
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
    threads: int | None = None,
    folder: Path | None = None,
    query: UserQuery | None = None,
    new_columns: bool = True,
) -> Iterator[StagedBatch]:
    """Stage a batch, or the result of a query over it (default: the table's insert query).

    `memory_bytes` and `threads` limit DuckDB. Data that does not fit is spilled to a new folder below `folder` (None:
    the system's folder for temporary files). `new_columns`: whether the query may return columns that neither table nor
    batch has. Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidQuery,
    InvalidPartitionExpression, InvalidPartitionValue.
    """
    with sandbox(folder, memory_bytes=memory_bytes, threads=threads) as own:
        what = "query" if query else "insert_query"
        if query is None and context.spec.insert_query:
            query = check_query(context.spec.insert_query, relation="_rows", table=context.table, what=what)
        memory_bytes = memory_bytes or memory_bytes_default()
        incoming = load_batch(
            own.con, batch, context.known_schema, table=context.table, strict=query is None, memory_bytes=memory_bytes
        )
        if query is not None and batch.stream.schema.names:  # rows without columns cannot be queried
            _run_query(incoming, context, query, what=what, new_columns=new_columns)
        yield _stage(incoming, context, on_conflict, own.folder, memory_bytes)
        if query is None and incoming.counted.bytes < _REUSE_BYTES_MAX:
            own.con.execute("DROP TABLE IF EXISTS staged")
            own.kept = True


def _run_query(incoming: LoadedBatch, context: WriteContext, query: UserQuery, *, what: str, new_columns: bool) -> None:
    needed = {c.casefold() for c in context.spec.sort_by}.union(*(e.columns for e in context.expressions))
    incoming.answer(
        query,
        table_columns=context.known_schema,
        needed=[c for c in incoming.columns if c.casefold() in needed],
        what=what,
        new_columns=new_columns,
        lenient=context.lenient,
    )


def _stage(
    incoming: LoadedBatch, context: WriteContext, on_conflict: OnConflict, folder: Path, memory_bytes: int
) -> StagedBatch:
    shape = resolve_batch_schema(incoming, context, on_conflict)
    if not shape.columns:
        check_no_rows(incoming, context)
        return StagedBatch(incoming.con, context, folder, {}, (), 0, {}, incoming.batch.source, context.spec, 0)
    misfits = _set_misfits_aside(incoming, context, shape, on_conflict)
    check_computed(incoming, context, shape)
    staged = stage_in_arrow(incoming, context, shape, misfits=misfits, bytes_max=held_bytes_max(memory_bytes))
    rows, ranges = staged or (None, stage_in_duckdb(incoming, context, shape, misfits=misfits))
    batch_columns = dict(incoming.columns)
    incoming.drop()
    row_groups = _ROW_GROUPS_IN_MEMORY
    if rows is None:  # the sort has used up to the whole memory, and encoders need memory outside of DuckDB
        free_unused_memory()
        row_groups = _SORTED_ROW_GROUPS_IN_MEMORY
    return StagedBatch(
        incoming.con,
        context,
        folder,
        shape.columns,
        ranges,
        misfits,
        batch_columns,
        incoming.batch.source,
        _fitting(incoming, context.spec, memory_bytes // row_groups),
        None if incoming.answered else incoming.counted.bytes,
        rows,
    )


def _fitting(incoming: LoadedBatch, spec: TableSpec, row_group_bytes: int) -> TableSpec:
    """Return the spec with row groups of about this size at most. A writer holds a whole one for each thread."""
    rows, size = incoming.counted.rows, incoming.counted.bytes
    if not size:
        return spec
    fitting = row_group_bytes * rows // size
    row_group_rows = max(ROW_GROUP_ROWS_MIN, min(spec.row_group_rows, fitting))
    return msgspec.structs.replace(spec, row_group_rows=row_group_rows)


def _set_misfits_aside(
    incoming: LoadedBatch, context: WriteContext, shape: BatchSchema, on_conflict: OnConflict
) -> int:
    """Copy the rows that cannot be stored to `misfits`, and count them. Raises unless the quarantine accepts them."""
    if not shape.misfits:
        return 0
    incoming.keep()
    reasons = " ".join(f"WHEN {condition} THEN {text}" for condition, text in shape.misfits.items())
    con = incoming.con
    con.execute(
        f"CREATE TEMP TABLE misfits AS SELECT CASE {reasons} END AS {MISFIT}, * FROM {incoming.relation} "
        f"WHERE {shape.misfit}"
    )
    # Not by `rowid`, which can be a column of the batch.
    query = f"SELECT count(*), (SELECT {MISFIT} FROM misfits LIMIT 1) FROM misfits"
    [(count, example)] = con.execute(query).fetchall()
    if count and on_conflict != "quarantine":
        raise misfit_error(context, shape, int(count), str(example), answered=incoming.answered)
    return int(count)
