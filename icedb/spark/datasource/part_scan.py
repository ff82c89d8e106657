"""Reads of parts (data files) in Spark's tasks: DuckDB reads them from the store, and Spark gets Arrow batches.

This needs no Hadoop file system, and a task never holds a whole part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from icedb.errors import InvalidOption, UnknownColumn
from icedb.format.records import Marker
from icedb.format.table_spec import TableSpec
from icedb.reader.scan_sql import relation, translate_read_error
from icedb.reader.snapshot import Snapshot
from icedb.spark.datasource.read_options import ReadOptions
from icedb.spark.datasource.task_resources import processors, scratch_folder
from icedb.spark.datasource.type_mapping import type_mapping_of
from icedb.sql.connections import connect_reader, quote_name
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectNotFound, open_store
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.temporary_files import temporary_folder

__all__ = ["PartScan", "select_columns", "plan_tasks", "plan_scan", "group_parts"]

# Size of DuckDB's vectors. Batches are made of them, so that long rows stay within the limit of bytes.
ROWS_PER_VECTOR = 2_048
# Size of a batch for Spark, large enough to make the cost of the transfer negligible.
BATCH_BYTES = 8 * 1024 * 1024
ROWS_PER_BATCH = 64 * 1024
# Cost of opening a part, in bytes read. Spark's own scan assumes the same (openCostInBytes).
OPEN_COST_BYTES = 4 * 1024 * 1024


def plan_scan(snapshot: Snapshot, schema: StructType, options: ReadOptions) -> PartScan:
    """Plan the read of a snapshot for the schema that Spark expects. Raises as `select_columns`."""
    return PartScan(
        location=snapshot.handle.location,
        spec=snapshot.spec,
        schema=dict(snapshot.schema),
        partition_schema=dict(snapshot.partition_schema),
        columns=_declared_columns(snapshot, schema),
        where=options.where,
        arrow=to_arrow_schema(schema, timezone="UTC"),
        as_of_ms=snapshot.as_of_ms,
        memory_bytes=options.memory_bytes,
    )


def plan_tasks(snapshot: Snapshot, parts: Iterable[Part], split_bytes: int) -> Iterator[InputPartition]:
    """Group neighbouring parts into tasks of at most `split_bytes`, and less if processors would be idle."""
    for group in group_parts(list(parts), split_bytes=split_bytes, processors=os.cpu_count() or 1):
        # Parts of an older partitioning may also contain rows that do not match `where`.
        yield InputPartition((tuple(p.key for p in group), any(map(snapshot.is_older, group))))


def group_parts(parts: Sequence[Part], *, split_bytes: int, processors: int) -> Iterator[list[Part]]:
    """Group neighbouring parts by the rule of Spark's own scan, without dividing a part. Pure.

    The weight of a part is its bytes and the cost of opening it. A group weighs at most `split_bytes`, and at most the
    share of one of the driver's processors, unless it is a single part.
    """
    share = sum(part.bytes + OPEN_COST_BYTES for part in parts) // processors
    most = min(split_bytes, max(OPEN_COST_BYTES, share))
    group: list[Part] = []
    weight = 0
    for part in parts:
        more = part.bytes + OPEN_COST_BYTES
        if group and weight + more > most:
            yield group
            group, weight = [], 0
        group.append(part)
        weight += more
    if group:
        yield group


def select_columns(snapshot: Snapshot, columns: Sequence[str] | None) -> dict[str, str]:
    """Return the DuckDB types of `columns`; None: of the columns of the parts, then the partition columns.

    Raises UnknownColumn, InvalidOption.
    """
    types = dict(snapshot.columns)
    if columns is None:
        return types
    if isinstance(columns, str) or len(set(columns)) < len(columns):
        raise InvalidOption(f"{snapshot.table}: columns is {columns!r}. Pass a list of distinct names.")
    if missing := [c for c in columns if c not in types]:
        raise UnknownColumn(
            f"{snapshot.table}: columns names '{missing[0]}', and the table has no such column (it has "
            f"{sorted(types)}). Correct the name."
        )
    return {c: types[c] for c in columns}


def _declared_columns(snapshot: Snapshot, schema: StructType) -> dict[str, str]:
    """Return the columns that Spark expects. The user may have declared them, or a repair may have changed a type."""
    columns = select_columns(snapshot, schema.fieldNames())
    for field in schema.fields:
        type_ = type_mapping_of(columns[field.name]).spark
        if field.dataType != type_ or not field.nullable:
            raise InvalidOption(
                f"{snapshot.table}: column '{field.name}' is {type_.simpleString()} and may be null, but the schema of "
                f"this read has {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}. Read without "
                "a schema, and cast."
            )
    return columns


@dataclass(frozen=True)
class PartScan:
    """The plan with which a task reads its parts."""

    location: Location
    spec: TableSpec
    schema: Mapping[str, str]
    partition_schema: Mapping[str, str]
    #: The columns that are read, in Spark's order, with DuckDB's types.
    columns: Mapping[str, str]
    where: str | None
    #: The exact schema that Spark expects.
    arrow: pa.Schema
    as_of_ms: int
    memory_bytes: int

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's parts. Raises SnapshotExpired, MissingPart, the store's and DuckDB's errors."""
        if not partition.value:
            return
        keys, mixed = partition.value
        handle = Handle.of(open_store(self.location), self.spec, fixed_spec=True)
        parts = [handle.part(Marker(key, bytes=0, created_ms=0)) for key in keys]
        with temporary_folder("read", below=scratch_folder()) as folder:
            try:
                with connect_reader(
                    self.location, memory_bytes=self.memory_bytes, folder=folder, threads=processors()
                ) as con:
                    rows = con.execute(self._sql(handle, parts, mixed=mixed)).to_arrow_reader(ROWS_PER_VECTOR)
                    for batch in _combine_batches(rows):
                        yield batch.cast(self.arrow)
            # After the first batch, Arrow raises DuckDB's errors as its own.
            except (duckdb.Error, ObjectNotFound, pa.ArrowException, OSError) as error:
                raise translate_read_error(handle, parts, error, as_of_ms=self.as_of_ms) from None
            finally:
                handle.part_paths.remove_copies()  # Spark keeps its workers for many tasks

    def _sql(self, handle: Handle, parts: Sequence[Part], *, mixed: bool) -> str:
        columns = ", ".join(_column_sql(name, type_) for name, type_ in self.columns.items())
        rows = relation(handle, parts, self.schema, self.partition_schema)
        condition = f" WHERE (\n{self.where}\n)" if self.where is not None and mixed else ""
        return f"SELECT {columns} FROM ({rows}) AS t{condition}"


def _column_sql(name: str, type_: str) -> str:
    quoted, cast = quote_name(name), type_mapping_of(type_).cast
    return quoted if cast == type_ else f"CAST({quoted} AS {cast}) AS {quoted}"


def _combine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches up to the size of a batch for Spark."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_PER_BATCH or size >= BATCH_BYTES:
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.concat_batches(pending)
