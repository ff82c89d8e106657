"""Spark's side of a read through the data source: parts by the tasks, through DuckDB, as Arrow batches.

The driver resolves the snapshot and says which parts each task reads. A task opens them where they are, so no file
system of Hadoop is needed, and hands Spark small batches: it never holds a whole part. Partitions that `where`
excludes, and parts of which the log says that no row passes Spark's filters, are given to no task.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from icedb.engine import connect_reader, quote_name
from icedb.errors import InvalidOption, InvariantViolated, UnknownColumn
from icedb.format.records import Marker
from icedb.handle import Handle, Part
from icedb.location import Location
from icedb.scan import explain, relation, visible_partitions
from icedb.snapshot import Snapshot
from icedb.spark.filters import Condition, condition_of
from icedb.spark.plain import plainly
from icedb.spark.read_options import read_options
from icedb.spark.resources import processors, scratch_folder
from icedb.spark.types import held, spark_schema
from icedb.spec import TableSpec
from icedb.statistics import may_hold
from icedb.store import ObjectNotFound, open_store
from icedb.table import Table

__all__ = ["chosen_columns", "open_reader", "planned_schema"]

# DuckDB's own vectors: batches are made of them, so that rows of any length stay within the bytes.
ROWS_PER_VECTOR = 2_048
# What is handed to Spark at a time: large enough that the hand-over does not count.
BATCH_BYTES = 8 * 1024 * 1024
ROWS_PER_BATCH = 64 * 1024

# Spark asks for filters in a worker of its own, and refuses a reader that takes some anywhere else.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def planned_schema(options: Mapping[str, str]) -> tuple[StructType, int]:
    """What a read with these options gives, and the time (unix ms) of its snapshot. Raises as `open_reader`."""
    told = read_options(options)
    snapshot = Table.open(told.path, storage_options=told.storage_options).snapshot(told.as_of_ms)
    if told.where is not None:
        snapshot.partitions(told.where)  # a wrong one is told now, not when the rows are asked for
    return spark_schema(chosen_columns(snapshot, told.columns)), snapshot.as_of_ms


def open_reader(schema: StructType, options: Mapping[str, str], *, as_of_ms: int | None = None) -> DataSourceReader:
    """The reader of one query; runs on the driver. `as_of_ms`: the snapshot's time, if `schema` is that of one.

    Raises FixInput errors, DamagedLog and the store's errors.
    """
    told = read_options(options)
    table = Table.open(told.path, storage_options=told.storage_options)
    snapshot = table.snapshot(told.as_of_ms if as_of_ms is None else as_of_ms)
    scan = _Scan(
        location=table.handle.location,
        spec=table.spec,
        schema=dict(snapshot.schema),
        partition_schema=dict(snapshot.partition_schema),
        columns=_declared_columns(snapshot, schema),
        where=told.where,
        conditions=(),
        arrow=to_arrow_schema(schema, timezone="UTC"),
        as_of_ms=snapshot.as_of_ms,
        memory_bytes=told.memory_bytes,
    )
    reader = _FilteringReader if _takes_filters() else _Reader
    return reader(scan, _Planning(table.handle, snapshot, told.split_bytes))


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


def _takes_filters() -> bool:
    """Whether this process is the worker that pushes filters down: there is one if Spark's setting says so.

    Without its daemon, Spark starts the worker as the main module.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


@dataclass(frozen=True)
class _Planning:
    """What only the driver needs: which parts there are, and how they go into tasks."""

    handle: Handle
    snapshot: Snapshot
    split_bytes: int

    def parts(self, where: str | None, conditions: Sequence[Condition]) -> list[Part]:
        """Those that may hold a row for which all is true."""
        visible = visible_partitions(self.snapshot.schema, self.snapshot.partition_schema)
        of_partitions = [c.sql for c in conditions if c.column in visible]
        of_rows = [c for c in conditions if c.column not in visible and c.bounds]
        parts = self.snapshot.files(where)
        if of_partitions:
            chosen = {p.key for p in self.snapshot.files(" AND ".join(of_partitions))}
            parts = [p for p in parts if p.key in chosen]
        return self._within_bounds(parts, of_rows) if of_rows else parts

    def _within_bounds(self, parts: Sequence[Part], conditions: Sequence[Condition]) -> list[Part]:
        told = self.handle.read().parts
        markers = [told[p.key] for p in parts if p.key in told]
        silent = {p.key for p in parts if p.key not in told}
        for condition in conditions:
            type_ = held(self.snapshot.schema[condition.column]).cast
            markers = may_hold(markers, condition.column, type_, str(condition.bounds))
        stay = silent | {m.key for m in markers}
        return [p for p in parts if p.key in stay]

    def tasks(self, parts: Iterable[Part]) -> Iterator[InputPartition]:
        """Neighbours together, until they are as large as a task shall be."""
        keys: list[str] = []
        size = 0
        for part in parts:
            if keys and size + part.bytes > self.split_bytes:
                yield InputPartition(tuple(keys))
                keys, size = [], 0
            keys.append(part.key)
            size += part.bytes
        if keys:
            yield InputPartition(tuple(keys))


class _Reader(DataSourceReader):
    """Pickled to each task, without what only the driver needs. It carries the table's credentials."""

    def __init__(self, scan: _Scan, planning: _Planning) -> None:
        self._scan = scan
        self._planning: _Planning | None = planning
        self._conditions: list[Condition] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scan.location.uri!r}, as_of_ms={self._scan.as_of_ms})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_planning": None}

    @plainly()
    def partitions(self) -> Sequence[InputPartition]:
        """On the driver: which parts each task reads. Spark makes one task without parts of none."""
        if self._planning is None:
            raise InvariantViolated(
                f"{self._scan.location.uri}: a task was asked to plan tasks, which the driver does."
            )
        return list(self._planning.tasks(self._planning.parts(self._scan.where, self._conditions)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of its parts."""
        with plainly():
            yield from self._scan.batches(partition.value or ())


class _FilteringReader(_Reader):
    """One that takes filters, which Spark allows only where it asks for them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """On the driver: keep those that DuckDB answers as Spark does, and give back the others."""
        rest = []
        for filter_ in filters:
            condition = condition_of(filter_, self._scan.columns)
            if condition is None:
                rest.append(filter_)
            else:
                self._conditions.append(condition)
        self._scan = replace(self._scan, conditions=tuple(c.sql for c in self._conditions))
        return rest


@dataclass(frozen=True)
class _Scan:
    """How a task reads its parts."""

    location: Location
    spec: TableSpec
    schema: Mapping[str, str]
    partition_schema: Mapping[str, str]
    #: The columns that are read, in Spark's order, with DuckDB's types.
    columns: Mapping[str, str]
    where: str | None
    conditions: tuple[str, ...]
    #: What Spark was promised, exactly.
    arrow: pa.Schema
    as_of_ms: int
    memory_bytes: int

    def batches(self, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of these parts. Raises SnapshotExpired, MissingPart, the store's and DuckDB's errors."""
        if not keys:
            return
        handle = Handle(open_store(self.location), self.spec, fixed_spec=True)
        parts = [handle.part(Marker(key, bytes=0, created_ms=0)) for key in keys]
        folder = Path(tempfile.mkdtemp(prefix="icedb-read-", dir=scratch_folder()))
        try:
            with connect_reader(
                self.location, memory_bytes=self.memory_bytes, folder=folder, threads=processors()
            ) as con:
                rows = con.execute(self._sql(handle, parts)).to_arrow_reader(ROWS_PER_VECTOR)
                for batch in _gathered(rows):
                    yield batch.cast(self.arrow)
        # What DuckDB meets when it has begun to answer comes through Arrow, as an error of Arrow's.
        except (duckdb.Error, ObjectNotFound, pa.ArrowException, OSError) as error:
            raise explain(handle, parts, error, as_of_ms=self.as_of_ms) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sql(self, handle: Handle, parts: Sequence[Part]) -> str:
        conditions = list(self.conditions)
        # Parts of an older partitioning may hold rows for which it is not true; of others it chose whole partitions.
        if self.where is not None and any(not self.partition_schema.keys() <= p.values.keys() for p in parts):
            conditions.append(f"(\n{self.where}\n)")
        columns = ", ".join(_column_sql(name, type_) for name, type_ in self.columns.items())
        rows = relation(handle, parts, self.schema, self.partition_schema)
        within = f" WHERE {' AND '.join(conditions)}" if conditions else ""
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
