"""Outputs of assets: the rows that an asset returns become one commit of its table, or none.

append       adds the rows, exactly once for each run, step and partition, however often the step is retried
overwrite    replaces the rows of exactly the partitions of the run, or all rows of an asset without partitions
upsert       inserts, updates and deletes rows by key in the whole table, exactly once like an append
"""

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from icedb import Snapshot, Table, UpsertReport
from icedb.errors import EmptyBatch, InvalidBatch, InvalidOption, TooManyPartitions
from icedb.operations.upsert.change_rows import CHANGE_MEMORY_BYTES_MIN
from icedb.operations.write.insert import overwrite
from icedb.operations.write.spark_frames import check_frame, is_spark_frame
from icedb.sources.batch import WriteOptions
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import WRITE_MEMORY_BYTES_MIN, memory_bytes_default, quote_name
from icedb.sql.partition_expressions import partition_types
from icedb.sql.query_result import QueryResult
from icedb.sql.types import describe
from icedb.storage.location import parse_location
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn
from icedb_dagster.io.inputs import type_name
from icedb_dagster.io.options import AssetOptions, UpsertOptions
from icedb_dagster.partitioning.alignment import partitions_limit, time_values_hint
from icedb_dagster.partitioning.partitions import Selection

__all__ = ["check_output", "is_of_table", "transaction", "write"]

_ROWS = (pa.Table, pa.RecordBatch, pa.RecordBatchReader, ds.Dataset, duckdb.DuckDBPyRelation, QueryResult, Snapshot)
_FRAMES = ("pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame", "pyspark.sql.DataFrame")
# For longer partition keys, the idempotency key has a digest.
_KEY_LENGTH_MAX = 100


def check_output(obj: Any, *, table: str) -> None:
    """Raise InvalidBatch for an output that holds no rows."""
    if isinstance(obj, _ROWS) or type_name(type(obj)) in _FRAMES:
        return
    if isinstance(obj, list) and all(isinstance(row, dict) for row in obj):
        return
    raise InvalidBatch(
        f"{table}: the asset returned a {type(obj).__module__}.{type(obj).__qualname__}. Return a pyarrow Table, "
        "RecordBatch, RecordBatchReader or Dataset, a frame of pandas, Polars or Spark, a DuckDB relation, a list of "
        "dicts, an icedb.Snapshot, or None if it wrote the table itself."
    )


def is_of_table(obj: Any, uri: str) -> bool:
    """Return whether the output is a snapshot of the asset's own table: then the asset wrote the rows itself."""
    if not isinstance(obj, Snapshot):
        return False
    return parse_location(uri, obj.handle.location.storage_options).uri == obj.table


def transaction(run_id: str, step_key: str, keys: Sequence[str]) -> Txn:
    """Return the idempotency key of an append: the same for each try of a step, also in a re-executed run."""
    partition = "\n".join(keys)
    if len(partition) > _KEY_LENGTH_MAX or not partition.isprintable():
        partition = hashlib.sha256(partition.encode()).hexdigest()[:16]
    return "/".join(["dagster", run_id, step_key, *([partition] if keys else [])]), 0


def write(
    table: Table, obj: Any, options: AssetOptions, selection: Selection | None, txn: Txn | None
) -> Commit | UpsertReport:
    """Commit an output.

    `selection` holds the partitions of the run, or None for an asset without partitions. `txn` is the idempotency key
    of an append or upsert. Raises EmptyBatch for an overwrite without rows, unless the options clear the partitions.
    Errors of `Table.insert`, `Table.overwrite` and `Table.upsert` are raised, too.
    """
    data = _rows(table, obj)
    if options.upsert is not None:
        return _upsert(table, data, options, options.upsert, txn)
    limits = WriteOptions(
        on_conflict=options.on_conflict,
        memory_bytes=options.memory_bytes or _memory_bytes_of_step(),
        partitions_max=options.partitions_max,
    )
    try:
        if is_spark_frame(data):
            return _write_frame(table, data, options, selection, txn)
        if options.mode == "append":
            return table.insert(data, txn=txn, **limits)
        if selection is None:
            return table.overwrite(data, schema_mode=options.schema_mode, **limits)
        return overwrite(
            table.handle,
            data,
            selection.predicate,
            on_conflict=options.on_conflict,
            memory_bytes=limits["memory_bytes"],
            partitions_max=partial(partitions_limit, selection, table.handle.expressions, options.partitions_max),
        )
    except TooManyPartitions as error:
        hint = selection and time_values_hint(selection, table.handle.expressions, table.handle.columns)
        raise TooManyPartitions(
            f"{error} {hint or f'To allow more than {options.partitions_max}, set icedb/partitions_max.'}"
        ) from None
    except EmptyBatch as error:
        if options.mode == "append" or (error.table != table.uri and not is_spark_frame(obj)):
            raise  # the code that produces the rows wrote to another table
        if options.on_empty == "clear":
            return _clear(table, selection)
        raise EmptyBatch(
            f"{table.uri}: the asset returned no rows that can be stored, so the overwrite would only delete. Return "
            'rows, or allow empty partitions in the asset\'s metadata: "icedb/on_empty": "clear".',
            table=table.uri,
        ) from None


def _upsert(table: Table, data: Any, options: AssetOptions, upsert: UpsertOptions, txn: Txn | None) -> UpsertReport:
    return table.upsert(
        data.toArrow() if is_spark_frame(data) else data,
        upsert.on,
        when_matched=upsert.when_matched,
        delete_where=upsert.delete_where,
        order_by=upsert.order_by,
        on_conflict=cast('Literal["raise", "cast"]', options.on_conflict),
        txn=txn,
        memory_bytes=options.memory_bytes or max(_memory_bytes_of_step(), CHANGE_MEMORY_BYTES_MIN),
        partitions_max=options.partitions_max,
    )


def _rows(table: Table, obj: Any) -> Any:
    """Return the output as a value that a table accepts."""
    if isinstance(obj, ds.Dataset):
        return obj.scanner().to_reader()
    if not isinstance(obj, Snapshot):
        return obj
    # Partition columns that the table computes from the rows need not be stored.
    computed = {e.name.casefold() for e in table.handle.expressions if not e.path_only}
    columns = [c for c in obj.partition_schema if c.casefold() not in computed and c not in obj.schema]
    selected = ", ".join(map(quote_name, [*obj.schema, *columns]))
    return obj.query(f"SELECT {selected} FROM t") if selected else pa.table({})


def _memory_bytes_of_step() -> int:
    """Return the memory for a write: Dagster's multiprocess executor runs a step on each processor."""
    return max(memory_bytes_default() // (os.cpu_count() or 1), WRITE_MEMORY_BYTES_MIN)


def _write_frame(
    table: Table, frame: Any, options: AssetOptions, selection: Selection | None, txn: Txn | None
) -> Commit:
    from icedb.spark import write_frames  # imports pyspark, as the asset did

    check_frame(table.handle, options.on_conflict, options.schema_mode)
    partitions, limit = None, options.partitions_max
    if options.mode == "overwrite" and selection is not None:
        types = _partition_types(table, frame)
        partitions = selection.predicate(types)
        limit = partitions_limit(selection, table.handle.expressions, limit, types)
    whole: Literal["table"] | None = "table" if options.mode == "overwrite" else None
    return write_frames.write(
        frame,
        table,
        overwrite=whole if partitions is None else "partitions",
        partitions=partitions,
        distribution=options.distribution,
        txn=txn,
        part_bytes=None,
        memory_bytes=options.memory_bytes,
        partitions_max=limit,
    )


def _partition_types(table: Table, frame: Any) -> dict[str, str]:
    """Return the types of the partition columns: from the table, or from a Spark frame if the table has none."""
    if types := table.snapshot().partition_schema:
        return dict(types)
    with scratch_connection() as con:
        con.register("frame", frame.limit(0).toArrow())
        columns = describe(con, "SELECT * FROM frame")
    return partition_types(table.handle.expressions, columns, table=table.uri)


def _clear(table: Table, selection: Selection | None) -> Commit:
    """Empty the partitions of the run, or the table of an asset without partitions."""
    snapshot = table.snapshot()
    if selection is None or not snapshot.parts:
        return table.drop_partitions(snapshot.partitions() or [""], missing_ok=True).commit
    if older := next(filter(snapshot.is_older, snapshot.parts), None):
        raise InvalidOption(
            f"{table.uri}: the part '{older.key}' was written before the table got its current partitioning, so it may "
            "hold rows of the partitions to empty. Delete these rows with Table.delete(where)."
        )
    return table.drop_partitions(selection.predicate(snapshot.partition_schema)).commit
