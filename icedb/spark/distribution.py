"""Shuffle before a write: assign rows to tasks by partition.

A task writes at least one part (data file) for each partition that it has rows of. So rows in random order become
tasks times partitions parts. With a shuffle, each task gets a range of partitions with a similar number of rows. A
partition with more rows gets several tasks. A sample of a tenth of the rows is enough to find the ranges.

The partition expressions are DuckDB's. Spark computes those that it can express closely enough. DuckDB computes the
others in Spark's tasks, from the columns that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, cast

import duckdb
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from icedb.errors import InvalidOption, InvalidPartitionExpression
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.spark.partition_locality import column_of, partition_text
from icedb.sql.connections import RESERVED, connect_sandbox, quote_name
from icedb.transaction.table_handle import Handle

__all__ = ["TaskRange", "distribute", "plan_ranges"]

SAMPLE_FRACTION = 0.1
# Rows that keep a task busy for some seconds. Events of 170 bytes in Arrow fit into the memory in which the default
# `memory_bytes` sorts them: more rows are sorted by DuckDB, which takes twice the time.
ROWS_PER_TASK = 750_000
_TASK = f"{RESERVED}task"
_KEY = f"{RESERVED}key"


@dataclass(frozen=True, slots=True)
class TaskRange:
    """A range of partitions, as texts from `first` to the next range, for `tasks` tasks from number `task` on."""

    first: str
    task: int
    tasks: int


def distribute(frame: DataFrame, handle: Handle, *, tasks: int | None = None) -> DataFrame:
    """Shuffle a frame so that each task has a range of the table's partitions.

    Runs a job over a sample of the rows immediately, so callers should cache an expensive frame. `tasks` is an
    approximate number; None: one for each 750,000 rows. Raises InvalidOption for a table with an insert query, and the
    errors of the frame's job.
    """
    if tasks is not None and tasks < 1:
        raise InvalidOption(f"{handle.table}: tasks is {tasks}. Pass at least 1, or omit it.")
    if handle.spec.insert_query:
        raise InvalidOption(
            f"{handle.table}: the table has an insert_query, so the partitions of these rows are unknown before "
            "it runs. Write with distribution='none'."
        )
    text = partition_text(frame, handle)
    if text is None:
        text = _text_by_duckdb(frame, handle)
    sample = frame.sample(SAMPLE_FRACTION)
    if text is None:
        return frame.repartition(tasks or ceil(sample.count() / SAMPLE_FRACTION / ROWS_PER_TASK) or 1)
    counts = {row[0]: row[1] / SAMPLE_FRACTION for row in sample.groupBy(text.alias(_KEY)).count().collect()}
    ranges = plan_ranges(counts, tasks or ceil(sum(counts.values()) / ROWS_PER_TASK))
    assigned = frame.withColumn(_KEY, text).withColumn(_TASK, _task_of(F.col(_KEY), ranges, _hashed(frame)))
    return assigned.drop(_KEY).repartitionById(ranges[-1].task + ranges[-1].tasks, F.col(_TASK)).drop(_TASK)


def _task_of(key: Column, ranges: Sequence[TaskRange], hashed: Column) -> Column:
    """Return the number of a row's task, by bisection over the ranges."""
    if len(ranges) == 1:
        [only] = ranges
        spread = F.pmod(hashed, F.lit(only.tasks)) if only.tasks > 1 else F.lit(0)
        return (F.lit(only.task) + spread).cast("int")
    middle = len(ranges) // 2
    before, after = _task_of(key, ranges[:middle], hashed), _task_of(key, ranges[middle:], hashed)
    return F.when(key < F.lit(ranges[middle].first), before).otherwise(after)


def plan_ranges(counts: Mapping[str, float], tasks: int) -> list[TaskRange]:
    """Return ranges with similar numbers of rows. A value with more rows than one task's share gets several tasks.

    Pure. `counts`: the rows of each value. The first range begins before all values.
    """
    share = max(1.0, sum(counts.values()) / max(1, tasks))
    ranges: list[TaskRange] = []
    task = 0
    filled = share  # the first value starts a range
    for value in sorted(counts):
        rows = counts[value]
        several = max(1, round(rows / share))
        if several > 1 or filled + rows / 2 > share:
            ranges.append(TaskRange(value if ranges else "", task, several))
            task += several
            filled = share if several > 1 else 0.0
        filled += rows
    return ranges or [TaskRange("", 0, 1)]


def _text_by_duckdb(frame: DataFrame, handle: Handle) -> Column | None:
    """Return a text for each partition, which DuckDB computes in Spark's tasks; None: no column of the frame counts."""
    existing = {name.casefold(): name for name in frame.columns}
    computable = [e for e in handle.expressions if not e.path_only or e.name.casefold() in existing]
    named = {c for e in computable for c in ([e.name.casefold()] if e.path_only else e.columns)}
    columns = tuple(existing[c] for c in sorted(named & existing.keys()))
    if not columns:
        return None
    missing = "".join(
        f", CAST(NULL AS {type_}) AS {quote_name(column)}"
        for column, type_ in handle.columns.items()
        if column.casefold() in named - existing.keys()
    )
    values = [quote_name(existing[e.name.casefold()]) if e.path_only else f"(\n{e.sql}\n)" for e in computable]
    texts = ", ".join(f"coalesce(CAST({v} AS VARCHAR), '')" for v in values)
    sql = f"SELECT concat_ws('/', {texts}) FROM (SELECT *{missing} FROM rows)"
    # Spark infers the kind of UDF from the annotations, and warns if the call names it too.
    udf: Callable[[Column], Column] = cast(Any, arrow_udf)(_TextQuery(handle.table, columns, sql).run, "string")
    return udf(F.struct(*map(column_of, columns)))


@dataclass(frozen=True, slots=True)
class _TextQuery:
    """A query that returns one text for each row, run over batches in Spark's tasks."""

    table: str
    columns: tuple[str, ...]
    sql: str

    def run(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Turn struct arrays of `columns` into texts. Raises InvalidPartitionExpression."""
        with hide_worker_traceback(), connect_sandbox(threads=1) as con:
            for batch in batches:
                con.register("rows", pa.table(dict(zip(self.columns, batch.flatten(), strict=True))))
                try:
                    texts = con.execute(self.sql).to_arrow_table().column(0)
                except duckdb.Error as error:
                    reason = str(error).splitlines()[0]
                    message = f"{self.table}: the rows cannot be partitioned: {reason}"
                    raise InvalidPartitionExpression(message) from None
                yield texts.combine_chunks().cast(pa.string())


def _hashed(frame: DataFrame) -> Column:
    """Return a hash of the row without its maps. It must be the same if Spark runs a task again."""
    columns = [column_of(f.name) for f in frame.schema.fields if not _has_map(f.dataType)]
    return F.xxhash64(*columns) if columns else F.lit(0).cast("long")


def _has_map(type_: DataType) -> bool:
    match type_:
        case ArrayType():
            return _has_map(type_.elementType)
        case StructType():
            return any(_has_map(f.dataType) for f in type_.fields)
    return isinstance(type_, MapType) or type_.typeName() == "variant"
