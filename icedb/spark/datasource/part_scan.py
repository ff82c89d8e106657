"""How Spark's tasks read parts: DuckDB opens them where they are, and hands Spark small Arrow batches.

So no file system of Hadoop is needed, and a task never holds a whole part.
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
from icedb.reader.scan_sql import relation, translate_read_error, visible_partitions
from icedb.reader.snapshot import Snapshot
from icedb.spark.datasource.read_options import ReadOptions
from icedb.spark.datasource.task_resources import processors, scratch_folder
from icedb.spark.datasource.type_mapping import held
from icedb.sql.connections import connect_reader, quote_name
from icedb.storage.location import Location
from icedb.storage.obstore_store import ObjectNotFound, open_store
from icedb.transaction.table_handle import Handle, Part
from icedb.util.temporary_files import make_folder, remove_folder

__all__ = ["PartScan", "chosen_columns", "in_tasks", "scan_of", "share_out"]

# DuckDB's own vectors: batches are made of them, so that rows of any length stay within the bytes.
ROWS_PER_VECTOR = 2_048
# What is handed to Spark at a time: large enough that the hand-over does not count.
BATCH_BYTES = 8 * 1024 * 1024
ROWS_PER_BATCH = 64 * 1024
# Opening a part takes as long as reading this much of it; Spark's own scan assumes the same (openCostInBytes).
OPEN_COST_BYTES = 4 * 1024 * 1024


def scan_of(snapshot: Snapshot, schema: StructType, options: ReadOptions) -> PartScan:
    """How the parts of a snapshot are read for the columns that Spark was promised. Raises as `chosen_columns`."""
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


def in_tasks(snapshot: Snapshot, parts: Iterable[Part], split_bytes: int) -> Iterator[InputPartition]:
    """Group neighbouring parts into tasks of at most `split_bytes`, and of fewer if processors would be idle."""
    for group in share_out(list(parts), split_bytes=split_bytes, processors=os.cpu_count() or 1):
        yield _piece(snapshot, group)


def share_out(parts: Sequence[Part], *, split_bytes: int, processors: int) -> Iterator[list[Part]]:
    """Group neighbouring parts by the rule of Spark's own scan; no part is divided. Pure.

    A part weighs its bytes and the cost of opening it. A group weighs at most `split_bytes`, and at most the share of
    one processor of the driver, unless it is one part.
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


def _piece(snapshot: Snapshot, parts: Sequence[Part]) -> InputPartition:
    # Of parts of another partitioning, `where` could not choose: they may hold rows for which it is not true.
    return InputPartition((tuple(p.key for p in parts), any(map(snapshot.is_older, parts))))


def chosen_columns(snapshot: Snapshot, columns: Sequence[str] | None) -> dict[str, str]:
    """The columns of a snapshot, with DuckDB's types: those of its parts, then those of its partitions; or some.

    Raises UnknownColumn, InvalidOption.
    """
    known = {**snapshot.schema, **visible_partitions(snapshot.schema, snapshot.partition_schema)}
    if columns is None:
        return known
    if isinstance(columns, str) or len(set(columns)) < len(columns):
        raise InvalidOption(f"{snapshot.table}: columns is {columns!r}; give a list of names, each once.")
    if missing := [c for c in columns if c not in known]:
        raise UnknownColumn(
            f"{snapshot.table}: columns names '{missing[0]}', and the table has no such column (it has "
            f"{sorted(known)}). Correct the name."
        )
    return {c: known[c] for c in columns}


def _declared_columns(snapshot: Snapshot, schema: StructType) -> dict[str, str]:
    """Those that Spark was promised. The user may have declared them, or a repair changed a type since."""
    columns = chosen_columns(snapshot, schema.fieldNames())
    for field in schema.fields:
        type_ = held(columns[field.name]).spark
        if field.dataType != type_ or not field.nullable:
            raise InvalidOption(
                f"{snapshot.table}: column '{field.name}' is {type_.simpleString()}, and may be null; the schema of "
                f"this read says {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}. Read without "
                "a schema of your own, and cast."
            )
    return columns


@dataclass(frozen=True)
class PartScan:
    """How a task reads its parts."""

    location: Location
    spec: TableSpec
    schema: Mapping[str, str]
    partition_schema: Mapping[str, str]
    #: The columns that are read, in Spark's order, with DuckDB's types.
    columns: Mapping[str, str]
    where: str | None
    #: What Spark was promised, exactly.
    arrow: pa.Schema
    as_of_ms: int
    memory_bytes: int

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's parts. Raises SnapshotExpired, MissingPart, the store's and DuckDB's errors."""
        if not partition.value:
            return
        keys, mixed = partition.value
        handle = Handle(open_store(self.location), self.spec, fixed_spec=True)
        parts = [handle.part(Marker(key, bytes=0, created_ms=0)) for key in keys]
        folder = make_folder("read", below=scratch_folder())
        try:
            with connect_reader(
                self.location, memory_bytes=self.memory_bytes, folder=folder, threads=processors()
            ) as con:
                rows = con.execute(self._sql(handle, parts, mixed=mixed)).to_arrow_reader(ROWS_PER_VECTOR)
                for batch in _gathered(rows):
                    yield batch.cast(self.arrow)
        # What DuckDB meets when it has begun to answer comes through Arrow, as an error of Arrow's.
        except (duckdb.Error, ObjectNotFound, pa.ArrowException, OSError) as error:
            raise translate_read_error(handle, parts, error, as_of_ms=self.as_of_ms) from None
        finally:
            remove_folder(folder)

    def _sql(self, handle: Handle, parts: Sequence[Part], *, mixed: bool) -> str:
        columns = ", ".join(_column_sql(name, type_) for name, type_ in self.columns.items())
        rows = relation(handle, parts, self.schema, self.partition_schema)
        within = f" WHERE (\n{self.where}\n)" if self.where is not None and mixed else ""
        return f"SELECT {columns} FROM ({rows}) AS t{within}"


def _column_sql(name: str, type_: str) -> str:
    quoted, cast = quote_name(name), held(type_).cast
    return quoted if cast == type_ else f"CAST({quoted} AS {cast}) AS {quoted}"


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth a hand-over, and not larger than that."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_PER_BATCH or size >= BATCH_BYTES:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
