"""What an asset returns becomes one commit of its table, or none at all.

append       adds the rows, exactly once for a run, a step and a partition, however often the step is tried
overwrite    replaces the rows of exactly the partitions of the run; of an asset without partitions, all rows
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from icedb import Snapshot, Table
from icedb.errors import EmptyBatch, InvalidBatch, InvalidOption
from icedb.operations.write.insert import overwrite
from icedb.operations.write.spark_frames import is_spark_frame
from icedb.sql.connections import connect_sandbox, quote_name
from icedb.sql.partition_expressions import partition_types
from icedb.sql.query_result import QueryResult
from icedb.sql.types import describe
from icedb.storage.location import parse_location
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn
from icedb_dagster.io.inputs import type_name
from icedb_dagster.io.options import AssetOptions
from icedb_dagster.partitioning.partitions import Selection

__all__ = ["check_output", "is_of_table", "transaction", "write"]

_ROWS = (pa.Table, pa.RecordBatch, pa.RecordBatchReader, ds.Dataset, duckdb.DuckDBPyRelation, QueryResult, Snapshot)
_FRAMES = ("pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame", "pyspark.sql.DataFrame")
# Of keys that are longer, the transaction has a digest.
_KEY_LENGTH_MAX = 100


def check_output(obj: Any, *, table: str) -> None:
    """Raise InvalidBatch for what holds no rows."""
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
    """Whether it is a snapshot of that very table: then the asset wrote the rows by itself."""
    if not isinstance(obj, Snapshot):
        return False
    return parse_location(uri, obj.handle.location.storage_options).uri == obj.table


def transaction(run_id: str, step_key: str, keys: Sequence[str]) -> Txn:
    """The name of an append: the same for each try of a step, in this run and when it is executed again."""
    partition = "\n".join(keys)
    if len(partition) > _KEY_LENGTH_MAX or not partition.isprintable():
        partition = hashlib.sha256(partition.encode()).hexdigest()[:16]
    return "/".join(["dagster", run_id, step_key, *([partition] if keys else [])]), 0


def write(table: Table, obj: Any, options: AssetOptions, selection: Selection | None, txn: Txn | None) -> Commit:
    """Commit an output. `selection`: the partitions of the run; None for an asset that has none. `txn`: of an append.

    Raises EmptyBatch for an overwrite without rows, unless the options say that it empties the partitions; and as
    `Table.insert` and `Table.overwrite` do.
    """
    data = _rows(table, obj)
    if options.mode == "append":
        return table.insert(data, txn=txn, on_conflict=options.on_conflict)
    try:
        return _overwrite(table, data, options, selection)
    except EmptyBatch as error:
        if error.table != table.uri and not is_spark_frame(obj):
            raise  # it is of another table, from the code that gives the rows
        if options.on_empty == "clear":
            return _clear(table, selection)
        raise EmptyBatch(
            f"{table.uri}: the asset returned no rows that can be stored, and an overwrite would only delete. Return "
            'rows; or say in the asset\'s metadata that it may empty its partitions: "icedb/on_empty": "clear".',
            table=table.uri,
        ) from None


def _rows(table: Table, obj: Any) -> Any:
    """The output as something that a table takes."""
    if isinstance(obj, ds.Dataset):
        return obj.scanner().to_reader()
    if not isinstance(obj, Snapshot):
        return obj
    # Partition columns that the table computes of the rows again need not be stored.
    computed = {e.name.casefold() for e in table.handle.expressions if not e.path_only}
    columns = [c for c in obj.partition_schema if c.casefold() not in computed and c not in obj.schema]
    selected = ", ".join(map(quote_name, [*obj.schema, *columns]))
    return obj.query(f"SELECT {selected} FROM t") if selected else pa.table({})


def _overwrite(table: Table, data: Any, options: AssetOptions, selection: Selection | None) -> Commit:
    if selection is None:
        return table.overwrite(data, on_conflict=options.on_conflict)
    if is_spark_frame(data):
        predicate = selection.predicate(_partition_types(table, data))
        return table.overwrite(data, partitions=predicate, on_conflict=options.on_conflict)
    return overwrite(table.handle, data, selection.predicate, on_conflict=options.on_conflict)


def _partition_types(table: Table, frame: Any) -> dict[str, str]:
    """The types of the partition columns; of a Spark frame's columns as long as the table has none."""
    if known := table.snapshot().partition_schema:
        return dict(known)
    with connect_sandbox() as con:
        con.register("frame", frame.limit(0).toArrow())
        columns = describe(con, "SELECT * FROM frame")
    return partition_types(table.handle.expressions, columns, table=table.uri)


def _clear(table: Table, selection: Selection | None) -> Commit:
    """Empty the partitions; of an asset without partitions, the table."""
    snapshot = table.snapshot()
    if selection is None or not snapshot.parts:
        return table.drop_partitions(snapshot.partitions() or [""], missing_ok=True).commit
    if older := next(filter(snapshot.is_older, snapshot.parts), None):
        raise InvalidOption(
            f"{table.uri}: the part '{older.key}' was written before the table was partitioned as it is now, and may "
            "hold rows of the partitions to empty. Delete them with Table.delete(where)."
        )
    return table.drop_partitions(selection.predicate(snapshot.partition_schema)).commit
