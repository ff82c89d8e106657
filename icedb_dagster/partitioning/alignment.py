"""Check that a table's partitions begin and end where those of its asset do.

A table partitioned by month, below an asset partitioned by day, has rows of other days in each day's partition. An
overwrite of a day would replace the month, and a read of a day would return the month or nothing. So the check
evaluates the table's partition expression at each edge of the asset's partitions, and just before it. The two values
must differ.

The check skips expressions that are not computed from one time column, and tables that do not know their columns yet.
A column without a time zone may hold wall time or UTC, so it passes if either reading is right.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import duckdb

from icedb.errors import InvalidOption
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_name
from icedb.sql.partition_expressions import PartitionExpression
from icedb_dagster.partitioning.partitions import Selection
from icedb_dagster.partitioning.time_windows import Edge, time_literal

__all__ = ["check_alignment", "partitions_limit", "time_values_hint"]

_INSTANT = "TIMESTAMP WITH TIME ZONE"
_TIMES = frozenset(("DATE", "TIMESTAMP", _INSTANT))
_POINTS_IN_TIME = frozenset(("TIMESTAMP", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP_S", _INSTANT))
_TICK = timedelta(microseconds=1)
#: The least time window, and an expression for a column of times in such windows.
_EXAMPLES = (
    (timedelta(days=28), "strftime({}, '%Y-%m') AS month"),
    (timedelta(hours=23), "strftime({}, '%Y-%m-%d') AS day"),
    (timedelta(minutes=60), "date_trunc('hour', {}) AS hour"),
    (timedelta(), "date_trunc('minute', {}) AS minute"),
)


def check_alignment(
    selection: Selection, expressions: Iterable[PartitionExpression], schema: Mapping[str, str]
) -> None:
    """Raise InvalidOption if a partition of the table extends beyond an end of the selected partitions.

    `schema` holds the columns of the table that are known.
    """
    types = {name.casefold(): type_ for name, type_ in schema.items()}
    computed = {e.name.casefold(): e for e in expressions if len(e.columns) == 1}
    for column, edges in selection.edges.items():
        expression = computed.get(column.casefold())
        if expression is None:
            continue
        [source] = expression.columns
        type_ = types.get(source)
        if type_ in _TIMES and (edge := _straddled(expression.sql, source, type_, edges)) is not None:
            at = edge.instant if type_ == _INSTANT else edge.wall
            raise InvalidOption(
                f"{selection.table}: {edge.partitions} begins or ends at {at}, within a partition of the table. "
                "Rows of other partitions of the asset would be replaced or read with it. The partition column "
                f"'{column}' is '{expression.sql}', and its value is the same before and after. Partition the table by "
                "a finer expression (alter(partition_by=...), then rewrite its rows), or use coarser asset partitions."
            )


def partitions_limit(
    selection: Selection, expressions: Iterable[PartitionExpression], partitions_max: int, types: Mapping[str, str]
) -> int:
    """Return how many partitions of the table an overwrite may write.

    A TIMESTAMP column without an expression makes a partition of each of its values, one for each row of most event
    data. Such a column may have one value in each partition of the asset. `types` holds the types of the table's
    partition columns.
    """
    of_table = {name.casefold() for name in types}
    of_asset = {column.casefold() for column in selection.columns}
    if of_table != of_asset:  # other columns may divide each value further
        return partitions_max
    folded = {name.casefold(): type_ for name, type_ in types.items()}
    points = [e for e in _time_columns(selection, expressions) if folded.get(e.name.casefold()) in _POINTS_IN_TIME]
    return min(partitions_max, len(selection.keys)) if points else partitions_max


def time_values_hint(
    selection: Selection, expressions: Iterable[PartitionExpression], schema: Mapping[str, str]
) -> str:
    """Return the remedy for too many partitions, if the asset's time windows are values of a TIMESTAMP, else ''.

    `schema` holds the columns of the table that are known. A column that is not known may be a TIMESTAMP.
    """
    types = {name.casefold(): type_ for name, type_ in schema.items()}
    for expression in _time_columns(selection, expressions):
        if types.get(expression.column.casefold(), _INSTANT) not in _POINTS_IN_TIME:
            continue
        [edges] = [e for column, e in selection.edges.items() if column.casefold() == expression.name.casefold()]
        window = (edges[-1].instant - edges[0].instant) / len(selection.keys)
        example = next(text for least, text in _EXAMPLES if window >= least).format(expression.column)
        return (
            f"Each value of '{expression.column}' is a partition of the table. Use a partition_expr that is constant "
            f'within a partition of the asset: "{example}". If the table has rows, alter(partition_by=...) and '
            "rewrite them."
        )
    return ""


def _time_columns(selection: Selection, expressions: Iterable[PartitionExpression]) -> list[PartitionExpression]:
    """Return the partition columns that are plain columns of the rows and distinguish time windows."""
    windows = {column.casefold() for column in selection.edges}
    return [e for e in expressions if e.column and e.name.casefold() in windows]


@lru_cache(maxsize=16)  # called before an output is written, and when it is reported
def _straddled(sql: str, source: str, type_: str, edges: tuple[Edge, ...]) -> Edge | None:
    """Return the first edge at which the expression over the column `source` does not change."""
    with scratch_connection() as con:
        unchanged = [_first_same(con, sql, source, type_, times) for times in _readings(type_, edges)]
    first = unchanged[0]
    return None if first is None or None in unchanged else edges[first]


def _readings(type_: str, edges: Sequence[Edge]) -> list[tuple[datetime, ...]]:
    """Return the edges as rows may hold them. A type without a zone has two readings: wall time and UTC."""
    instants = tuple(edge.instant for edge in edges)
    if type_ == _INSTANT:
        return [instants]
    walls = tuple(edge.wall for edge in edges)
    return list(dict.fromkeys([walls, tuple(instant.replace(tzinfo=None) for instant in instants)]))


def _first_same(
    con: duckdb.DuckDBPyConnection, sql: str, source: str, type_: str, times: Sequence[datetime]
) -> int | None:
    """Return the index of the first time at which the expression does not change."""
    literal_type = _INSTANT if type_ == _INSTANT else "TIMESTAMP"  # DuckDB casts it to a DATE
    both = ", ".join(
        f"({n}, {time_literal(t, literal_type)})" for n, end in enumerate(times) for t in (end - _TICK, end)
    )
    values = (
        f"SELECT __icedb_edge, (\n{sql}\n) AS __icedb_value FROM (SELECT __icedb_edge, "
        f"CAST(__icedb_time AS {type_}) AS {quote_name(source)} FROM (VALUES {both}) AS v(__icedb_edge, __icedb_time))"
    )
    # In a list, because count(DISTINCT) skips NULL.
    row = con.execute(
        f"SELECT __icedb_edge FROM ({values}) GROUP BY __icedb_edge HAVING count(DISTINCT [__icedb_value]) = 1 "
        "ORDER BY __icedb_edge LIMIT 1"
    ).fetchone()
    return None if row is None else int(row[0])
