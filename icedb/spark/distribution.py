"""Shuffle before a write: bring the rows of a partition to one task.

A task writes at least one part (data file) for each partition that it has rows of. So rows in random order become
tasks times partitions parts. The shuffle distributes rows by a hash of their partition. Spark's adaptive execution
then knows the size of each shuffled piece: it joins small pieces to one task and splits a large one into several.

The partition expressions are DuckDB's. Spark computes those that it can express closely enough. DuckDB computes the
others in Spark's tasks, from the columns that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import duckdb
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from icedb.errors import InvalidOption, InvalidPartitionExpression
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.spark.partition_locality import column_of, partition_text
from icedb.sql.connections import RESERVED, connect_sandbox, quote_name
from icedb.transaction.table_handle import Handle

__all__ = ["distribute"]

_ADAPTIVE = "spark.sql.adaptive.enabled"
_KEY = f"{RESERVED}key"


def distribute(frame: DataFrame, handle: Handle) -> DataFrame:
    """Shuffle a frame so that each partition is in one task, or in several tasks if it is large.

    Runs no job. Without Spark's adaptive execution each partition is in one task, and a table without partitions is
    not shuffled. Raises InvalidOption for a table with an insert query.
    """
    if handle.spec.insert_query:
        raise InvalidOption(
            f"{handle.table}: the table has an insert_query, so the partitions of these rows are unknown before "
            "it runs. Write with distribution='none'."
        )
    text = partition_text(frame, handle)
    if text is None:
        text = _text_by_duckdb(frame, handle)
    adaptive = str(frame.sparkSession.conf.get(_ADAPTIVE, "true")).lower() == "true"
    if text is None:
        return frame.hint("rebalance") if adaptive else frame
    keyed, key = frame.withColumn(_KEY, text), F.col(_KEY)
    # Without adaptive execution, Spark ignores the hint.
    return (keyed.hint("rebalance", key) if adaptive else keyed.repartition(key)).drop(_KEY)


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
