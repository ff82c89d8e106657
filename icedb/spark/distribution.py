"""Before a write: which task gets which rows.

A task writes at least one part for each partition that it has rows of, so rows that lie anyhow give tasks times
partitions parts. With a shuffle each task gets a range of partitions, of about as many rows as the others, and a
partition that has more than that gets several tasks. A tenth of the rows is enough to find the ranges.

The partition expressions are DuckDB's. Those that Spark can compute, near enough, it does; for others DuckDB does it
here too, in Python, of the columns that they name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from icedb.engine import connect_sandbox, quote_name
from icedb.errors import InvalidOption, InvalidPartitionExpression
from icedb.handle import Handle
from icedb.incoming import PARTITION_COLUMN
from icedb.spark.locality import column_of, partition_text
from icedb.spark.plain import plainly

__all__ = ["TaskRange", "distribute", "plan_ranges"]

SAMPLE_FRACTION = 0.1
# So many rows keep a task busy for some seconds, and make parts that need no merge.
ROWS_PER_TASK = 1_000_000
_TASK = "__icedb_task"
_KEY = "__icedb_key"
_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class TaskRange:
    """Rows whose partition is `first` or, as text, after it, up to the next range: for `tasks` tasks from `task` on."""

    first: str
    task: int
    tasks: int


def distribute(frame: DataFrame, handle: Handle, *, tasks: int | None = None) -> DataFrame:
    """The frame, shuffled so that each task has a range of the table's partitions.

    Runs a job over a sample of the rows at once; cache a frame that is expensive. `tasks`: about so many; None: one for
    each million rows. Raises InvalidOption for a table whose rows a query makes, and what the frame's job raises.
    """
    if tasks is not None and tasks < 1:
        raise InvalidOption(f"{handle.table}: tasks is {tasks}; give at least 1, or leave it out.")
    if handle.spec.insert_query:
        raise InvalidOption(
            f"{handle.table}: an insert_query makes the table's rows, so nobody knows the partitions of these. Write "
            "with distribution='none'."
        )
    text = partition_text(frame, handle)
    if text is not None:
        keyed = frame.withColumn(_KEY, text)
        ranges = _ranges(keyed, F.col(_KEY), tasks)
        task = _task_of(F.col(_KEY), ranges, _hashed(frame))
        return _shuffled(keyed.withColumn(_TASK, task).drop(_KEY), ranges)
    keys = _keys(frame, handle)
    if not keys.columns:
        sample = frame.sample(SAMPLE_FRACTION)
        return frame.repartition(tasks or ceil(sample.count() / SAMPLE_FRACTION / ROWS_PER_TASK) or 1)
    inputs = list(map(column_of, keys.columns))
    ranges = _ranges(frame, _udf(keys.of, "string")(F.struct(*inputs)), tasks)
    hashed = _hashed(frame) if any(r.tasks > 1 for r in ranges) else F.lit(0).cast("long")
    assignment = _udf(_Assignment(keys, tuple(ranges)).of, "int")
    return _shuffled(frame.withColumn(_TASK, assignment(F.struct(*inputs, hashed.alias(_TASK)))), ranges)


def _ranges(frame: DataFrame, key: Column, tasks: int | None) -> list[TaskRange]:
    """What a sample of the rows says."""
    counted = frame.sample(SAMPLE_FRACTION).groupBy(key.alias(_TASK)).count().collect()
    counts = {row[0]: row[1] / SAMPLE_FRACTION for row in counted}
    return plan_ranges(counts, tasks or ceil(sum(counts.values()) / ROWS_PER_TASK))


def _shuffled(frame: DataFrame, ranges: Sequence[TaskRange]) -> DataFrame:
    return frame.repartitionById(ranges[-1].task + ranges[-1].tasks, F.col(_TASK)).drop(_TASK)


def _task_of(key: Column, ranges: Sequence[TaskRange], hashed: Column) -> Column:
    """The task of a row, by bisection."""
    if len(ranges) == 1:
        [only] = ranges
        spread = F.pmod(hashed, F.lit(only.tasks)) if only.tasks > 1 else F.lit(0)
        return (F.lit(only.task) + spread).cast("int")
    middle = len(ranges) // 2
    before, after = _task_of(key, ranges[:middle], hashed), _task_of(key, ranges[middle:], hashed)
    return F.when(key < F.lit(ranges[middle].first), before).otherwise(after)


def plan_ranges(counts: Mapping[str, float], tasks: int) -> list[TaskRange]:
    """Ranges of about as many rows each; a value with more rows than a task shall have is a range of several tasks.

    `counts`: rows of each value. Pure. The first range begins before all values.
    """
    share = max(1.0, sum(counts.values()) / max(1, tasks))
    ranges: list[TaskRange] = []
    numbers = count()
    filled = share  # so that the first value begins a range
    for value in sorted(counts):
        rows = counts[value]
        several = max(1, round(rows / share))
        if several > 1 or filled + rows / 2 > share:
            task = next(numbers)
            ranges.append(TaskRange(value if ranges else "", task, several))
            for _ in range(several - 1):
                next(numbers)
            filled = share if several > 1 else 0.0
        filled += rows
    return ranges or [TaskRange("", 0, 1)]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Computes the partition of each row, as one text, in Spark's tasks. Raises InvalidPartitionExpression there."""

    table: str
    columns: tuple[str, ...]
    sql: str

    def of(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Struct arrays of `columns` -> texts."""
        with plainly(), connect_sandbox(threads=1) as con:
            for batch in batches:
                yield self.texts(con, batch.flatten())

    def texts(self, con: duckdb.DuckDBPyConnection, arrays: Sequence[pa.Array]) -> pa.Array:
        """Arrays of `columns` -> texts."""
        con.register("rows", pa.table(dict(zip(self.columns, arrays, strict=True))))
        try:
            texts = con.execute(self.sql).to_arrow_table().column(0)
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise InvalidPartitionExpression(f"{self.table}: the rows cannot be partitioned: {reason}") from None
        return texts.combine_chunks().cast(pa.string())


@dataclass(frozen=True, slots=True)
class _Assignment:
    """Says which task gets a row: by its partition and, where several share that, by its hash."""

    keys: _Keys
    ranges: tuple[TaskRange, ...]

    def of(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Struct arrays of the keys' columns and of the hash -> numbers of tasks."""
        firsts = [r.first for r in self.ranges]
        with plainly(), connect_sandbox(threads=1) as con:
            for batch in batches:
                *arrays, hashed = batch.flatten()
                encoded = pc.dictionary_encode(self.keys.texts(con, arrays))
                found = [self.ranges[bisect_right(firsts, text) - 1] for text in encoded.dictionary.to_pylist()]
                task = pa.array([r.task for r in found], pa.int64()).take(encoded.indices)
                tasks = pa.array([r.tasks for r in found], pa.int64()).take(encoded.indices)
                positive = pc.bit_wise_and(hashed, 2**31 - 1)
                within = pc.subtract(positive, pc.multiply(pc.divide(positive, tasks), tasks))
                yield pc.add(task, within).cast(pa.int32())


def _keys(frame: DataFrame, handle: Handle) -> _Keys:
    there = {name.casefold(): name for name in frame.columns}
    if PARTITION_COLUMN in frame.columns:
        return _Keys(
            handle.table, (PARTITION_COLUMN,), f"SELECT coalesce({quote_name(PARTITION_COLUMN)}, '') FROM rows"
        )
    told = [e for e in handle.expressions if not e.path_only or e.name.casefold() in there]
    named = {c for e in told for c in ([e.name.casefold()] if e.path_only else e.columns)}
    columns = tuple(there[c] for c in sorted(named & there.keys()))
    lacking = "".join(
        f", CAST(NULL AS {type_}) AS {quote_name(column)}"
        for column, type_ in handle.columns.items()
        if column.casefold() in named - there.keys()
    )
    values = [quote_name(there[e.name.casefold()]) if e.path_only else f"(\n{e.sql}\n)" for e in told]
    texts = ", ".join(f"coalesce(CAST({v} AS VARCHAR), '')" for v in values)
    return _Keys(handle.table, columns, f"SELECT concat_ws('{_SEPARATOR}', {texts}) FROM (SELECT *{lacking} FROM rows)")


def _udf(function: Callable[[Iterator[pa.Array]], Iterator[pa.Array]], type_: str) -> Callable[[Column], Column]:
    # Its kind is inferred from the annotations; to name it as well is warned of.
    udf: Callable[[Column], Column] = cast(Any, arrow_udf)(function, type_)
    return udf


def _hashed(frame: DataFrame) -> Column:
    """A hash of the row, without its maps. It has to be the same when a task is run again, and so have the columns."""
    columns = [column_of(f.name) for f in frame.schema.fields if not _has_map(f.dataType)]
    return F.xxhash64(*columns) if columns else F.lit(0).cast("long")


def _has_map(type_: DataType) -> bool:
    match type_:
        case ArrayType():
            return _has_map(type_.elementType)
        case StructType():
            return any(_has_map(f.dataType) for f in type_.fields)
    return isinstance(type_, MapType) or type_.typeName() == "variant"
