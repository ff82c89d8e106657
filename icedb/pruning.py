"""Which parts may hold a row for which a predicate is true, by their paths and by what the log says of their columns.

A part is left out only when it certainly holds no such row; what cannot be decided stays. No part is opened. DuckDB
answers for all parts at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from icedb.bounding import Asked, Condition, condition_of
from icedb.engine import connect_sandbox
from icedb.format.names import decode_partition
from icedb.handle import Part
from icedb.statistics import TEXT_TYPES, Bounds, bounds_of

__all__ = ["may_match"]

_PARTS = "parts"


def may_match(
    parts: Sequence[Part], predicate: Mapping[str, Any], columns: Mapping[str, str], path_columns: Mapping[str, str]
) -> list[Part]:
    """The parts that may hold a row for which a predicate, as its syntax tree, is true.

    `columns` are those whose bounds count, `path_columns` those that the paths tell, with their DuckDB types; no name
    is in both. Of another column, anything may be true.
    """
    if not parts:
        return []
    with connect_sandbox() as con:
        try:
            condition = condition_of(con, predicate, columns, path_columns)
            if condition.sql == "true":
                return list(parts)
            con.register(_PARTS, _figures(parts, condition.columns))
            found = con.execute(_query(condition)).fetchall()
        except duckdb.Error:
            return list(parts)  # it has no answer for some bounds, so it must be asked of the rows
    return [parts[n] for (n,) in found]


def _query(condition: Condition) -> str:
    typed, known = [], []
    for column in condition.columns:
        n, type_ = column.number, column.type
        if column.in_path:
            typed.append(f"TRY_CAST(text{n} AS {type_}) AS value{n}")
            known.append(f"in_path{n} AND (text{n} IS NULL OR value{n} IS NOT NULL) AS told{n}")
        else:
            typed += [f"TRY_CAST({bound}_text{n} AS {type_}) AS {bound}{n}" for bound in ("lo", "hi")]
            no_values = f"lo_text{n} IS NULL AND hi_text{n} IS NULL AND nulls{n} = rows"
            known.append(f"in_log{n} AND coalesce(lo{n} <= hi{n}, {no_values}, false) AS known{n}")
    return (
        f"SELECT n FROM (SELECT {', '.join(['*', *known])} FROM (SELECT {', '.join(['*', *typed])} FROM {_PARTS})) "
        f"WHERE {condition.sql} ORDER BY n"
    )


def _figures(parts: Sequence[Part], columns: Sequence[Asked]) -> pa.Table:
    """What paths and log say of these columns, a row for each part."""
    numbers: dict[str, Any] = {"n": pa.array(range(len(parts)), pa.int64())}
    numbers["rows"] = pa.array([p.rows for p in parts], pa.int64())
    in_log = [c for c in columns if not c.in_path]
    told = bounds_of([p.stats for p in parts], {c.name: c.type for c in in_log}) if in_log else []
    for place, column in enumerate(in_log):
        numbers |= _bounds(column, [of_part[place] for of_part in told], parts)
    in_path = [c for c in columns if c.in_path]
    values = {path: decode_partition(path) for path in ({p.partition for p in parts} if in_path else ())}
    for column in in_path:
        of_parts = [values[p.partition] for p in parts]
        numbers[f"in_path{column.number}"] = pa.array([column.name in v for v in of_parts], pa.bool_())
        numbers[f"text{column.number}"] = pa.array([v.get(column.name) for v in of_parts], pa.string())
    return pa.table(numbers)


def _bounds(column: Asked, told: Sequence[Bounds | None], parts: Sequence[Part]) -> dict[str, pa.Array]:
    if column.type in TEXT_TYPES:
        # A part that was superseded may have been so because its column had another type, of which its texts are:
        # numbers as texts have another order.
        told = [None if part.tombstoned_ms is not None else one for one, part in zip(told, parts, strict=True)]
    lo, hi, nulls = zip(*((None, None, None) if one is None else one for one in told), strict=True)
    return {
        f"in_log{column.number}": pa.array([one is not None for one in told], pa.bool_()),
        f"lo_text{column.number}": pa.array(lo, pa.string()),
        f"hi_text{column.number}": pa.array(hi, pa.string()),
        f"nulls{column.number}": pa.array(nulls, pa.int64()),
    }
