"""Whether a table's partitions end where those of its asset begin and end.

A table by month below an asset by day has rows of other days in the partition of each day: to overwrite a day would
replace the month, and to read one would give all of it or nothing. The expression that computes the table's
partitions is asked here for its value at the edges of the asset's, and just before: it must change there.

What is not computed of one column with times cannot be asked, and passes; so does a table that does not know its
columns yet. A column without a zone may be wall time or UTC, so it passes when either is right.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import duckdb

from icedb.errors import InvalidOption
from icedb.sql.connections import connect_sandbox, quote_name
from icedb.sql.partition_expressions import PartitionExpression
from icedb_dagster.partitioning.partitions import Selection
from icedb_dagster.partitioning.time_windows import Edge, time_literal

__all__ = ["check_alignment"]

_INSTANT = "TIMESTAMP WITH TIME ZONE"
_TIMES = frozenset(("DATE", "TIMESTAMP", _INSTANT))
_TICK = timedelta(microseconds=1)


def check_alignment(
    selection: Selection, expressions: Iterable[PartitionExpression], schema: Mapping[str, str]
) -> None:
    """Raise InvalidOption when a partition of the table goes on beyond an end of the selected partitions.

    `schema`: what is known of the table's columns.
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
                f"{selection.table}: {edge.partitions} begins or ends at {at}, in the midst of a partition of the "
                f"table, which would be replaced or read with the rows of others: the partition column '{column}' is "
                f"'{expression.sql}', and its value is the same before and after. Partition the table by a finer "
                "expression (alter(partition_by=...), and rewrite its rows), or give the asset coarser partitions."
            )


@lru_cache(maxsize=16)  # an output asks before it is written, and when it is reported
def _straddled(sql: str, source: str, type_: str, edges: tuple[Edge, ...]) -> Edge | None:
    """The first edge at which the expression over the column `source` has the value that it has just before."""
    with connect_sandbox() as con:
        found = [_first_same(con, sql, source, type_, times) for times in _readings(type_, edges)]
    first = found[0]
    return None if first is None or None in found else edges[first]


def _readings(type_: str, edges: Sequence[Edge]) -> list[tuple[datetime, ...]]:
    """The edges as rows may have them. What has no zone is either as clocks show it or in UTC: one must do."""
    instants = tuple(edge.instant for edge in edges)
    if type_ == _INSTANT:
        return [instants]
    walls = tuple(edge.wall for edge in edges)
    return list(dict.fromkeys([walls, tuple(instant.replace(tzinfo=None) for instant in instants)]))


def _first_same(
    con: duckdb.DuckDBPyConnection, sql: str, source: str, type_: str, times: Sequence[datetime]
) -> int | None:
    """The place of the first time at which the expression is what it is just before."""
    literal_type = _INSTANT if type_ == _INSTANT else "TIMESTAMP"  # a DATE is cut from it
    both = ", ".join(
        f"({n}, {time_literal(t, literal_type)})" for n, end in enumerate(times) for t in (end - _TICK, end)
    )
    values = (
        f"SELECT __icedb_edge, (\n{sql}\n) AS __icedb_value FROM (SELECT __icedb_edge, "
        f"CAST(__icedb_time AS {type_}) AS {quote_name(source)} FROM (VALUES {both}) AS v(__icedb_edge, __icedb_time))"
    )
    # In a list: NULL by itself is not counted.
    found = con.execute(
        f"SELECT __icedb_edge FROM ({values}) GROUP BY __icedb_edge HAVING count(DISTINCT [__icedb_value]) = 1 "
        "ORDER BY __icedb_edge LIMIT 1"
    ).fetchone()
    return None if found is None else int(found[0])
