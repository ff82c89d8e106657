"""Before a write: which task gets which rows.

A task writes at least one part for each partition that it has rows of, so rows that lie anyhow give tasks times
partitions parts. With a shuffle each task gets a range of partitions, of about as many rows as the others, and a
partition that has more than that gets several tasks. A tenth of the rows is enough to find the ranges.

The partition expressions are DuckDB's. Those that Spark can compute, near enough, it does; for others DuckDB does it
here too, in Python, of the columns that they name.
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
# So many rows keep a task busy for some seconds, and make parts that need no merge.
ROWS_PER_TASK = 1_000_000
_TASK = f"{RESERVED}task"
_KEY = f"{RESERVED}key"


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
    task = 0
    filled = share  # so that the first value begins a range
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
    """What tells partitions apart, computed by DuckDB in Spark's tasks; None when no column of the frame does."""
    there = {name.casefold(): name for name in frame.columns}
    told = [e for e in handle.expressions if not e.path_only or e.name.casefold() in there]
    named = {c for e in told for c in ([e.name.casefold()] if e.path_only else e.columns)}
    columns = tuple(there[c] for c in sorted(named & there.keys()))
    if not columns:
        return None
    lacking = "".join(
        f", CAST(NULL AS {type_}) AS {quote_name(column)}"
        for column, type_ in handle.columns.items()
        if column.casefold() in named - there.keys()
    )
    values = [quote_name(there[e.name.casefold()]) if e.path_only else f"(\n{e.sql}\n)" for e in told]
    texts = ", ".join(f"coalesce(CAST({v} AS VARCHAR), '')" for v in values)
    sql = f"SELECT concat_ws('/', {texts}) FROM (SELECT *{lacking} FROM rows)"
    # Its kind is inferred from the annotations; to name it as well is warned of.
    udf: Callable[[Column], Column] = cast(Any, arrow_udf)(_Texts(handle.table, columns, sql).of, "string")
    return udf(F.struct(*map(column_of, columns)))


@dataclass(frozen=True, slots=True)
class _Texts:
    """Answers a query over each batch of rows with one text for each; in Spark's tasks."""

    table: str
    columns: tuple[str, ...]
    sql: str

    def of(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Struct arrays of `columns` -> texts. Raises InvalidPartitionExpression."""
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
