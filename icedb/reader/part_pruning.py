"""Part pruning (data skipping): selects the parts that may have a row for which a predicate is true.

It uses the paths of the parts and the statistics in the log, and opens no part. A part is pruned only if it certainly
has no such row. DuckDB evaluates the condition for all parts at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from icedb.format.keys import decode_partition
from icedb.format.packed_markers import row_numbers
from icedb.format.records import Stats
from icedb.reader.bounds_evaluator import Condition, ReferencedColumn, bounds_condition
from icedb.reader.lazy_parts import LiveParts
from icedb.sql.column_stats import TEXT_TYPES, Bounds, bounds_of
from icedb.sql.connection_pool import scratch_connection
from icedb.storage.parts import Part

__all__ = ["prune_parts"]

_PARTS = "parts"
#: The names that a condition uses for each column.
_OF_COLUMN = ("lo", "hi", "nulls", "has_bounds")
# If fewer than one in so many parts remain after pruning by partition, only their statistics are decoded.
_FEW = 8
# The number of parts whose statistics are decoded at a time.
_DECODED_PARTS = 1 << 16


def prune_parts(
    parts: Sequence[Part], predicate: Mapping[str, Any], columns: Mapping[str, str], path_columns: Mapping[str, str]
) -> list[Part]:
    """Return the parts that may have a row for which a predicate is true.

    `predicate` is a syntax tree. `columns` are pruned by their statistics, `path_columns` by the paths, both with their
    DuckDB types. No name is in both. A condition on any other column prunes nothing.
    """
    if not parts:
        return []
    with scratch_connection() as con:
        try:
            condition = bounds_condition(con, predicate, columns, path_columns)
            if condition.sql == "true":
                return list(parts)
            if isinstance(parts, LiveParts):
                return list(_of_many(con, parts, condition))
            con.register(_PARTS, _statistics(parts, condition.columns))
            remaining = con.execute(_query(condition)).fetchall()
        except duckdb.Error:
            return list(parts)  # the condition fails for some bounds, so it can only be evaluated over the rows
    return [parts[n] for (n,) in remaining]


def _query(condition: Condition) -> str:
    return f"SELECT n FROM ({_typed_statistics(condition.columns)}) WHERE {condition.sql} ORDER BY n"


def _typed_statistics(columns: Sequence[ReferencedColumn]) -> str:
    """Return a query of the statistics with the typed columns that a condition uses."""
    typed, flags = [], []
    for column in columns:
        n, type_ = column.number, column.type
        if column.in_path:
            typed.append(f"TRY_CAST(text{n} AS {type_}) AS value{n}")
            flags.append(f"in_path{n} AND (text{n} IS NULL OR value{n} IS NOT NULL) AS has_value{n}")
        else:
            typed += [f"TRY_CAST({bound}_text{n} AS {type_}) AS {bound}{n}" for bound in ("lo", "hi")]
            no_values = f"lo_text{n} IS NULL AND hi_text{n} IS NULL AND nulls{n} = rows"
            flags.append(f"in_log{n} AND coalesce(lo{n} <= hi{n}, {no_values}, false) AS has_bounds{n}")
    return f"SELECT {', '.join(['*', *flags])} FROM (SELECT {', '.join(['*', *typed])} FROM {_PARTS})"


def _statistics(parts: Sequence[Part], columns: Sequence[ReferencedColumn]) -> pa.Table:
    """Return the values of these columns in the paths and the log, a row for each part."""
    numbers: dict[str, Any] = {"n": pa.array(range(len(parts)), pa.int64())}
    numbers |= _in_log([p.stats for p in parts], [p.rows for p in parts], [p.tombstoned_ms for p in parts], columns)
    return pa.table(numbers | _in_path([p.partition for p in parts], columns))


def _in_path(paths: Sequence[str], columns: Sequence[ReferencedColumn]) -> dict[str, pa.Array]:
    path_columns = [c for c in columns if c.in_path]
    values = {path: decode_partition(path) for path in (set(paths) if path_columns else ())}
    arrays: dict[str, pa.Array] = {}
    for column in path_columns:
        of_parts = [values[p] for p in paths]
        arrays[f"in_path{column.number}"] = pa.array([column.name in v for v in of_parts], pa.bool_())
        arrays[f"text{column.number}"] = pa.array([v.get(column.name) for v in of_parts], pa.string())
    return arrays


def _in_log(
    stats: Sequence[Stats],
    rows: Sequence[int | None],
    tombstoned_ms: Sequence[int | None],
    columns: Sequence[ReferencedColumn],
) -> dict[str, pa.Array]:
    log_columns = [c for c in columns if not c.in_path]
    decoded = bounds_of(stats, {c.name: c.type for c in log_columns}) if log_columns else []
    arrays = {"rows": pa.array(rows, pa.int64())}
    for place, column in enumerate(log_columns):
        arrays |= _bounds(column, [of_part[place] for of_part in decoded], tombstoned_ms)
    return arrays


def _bounds(
    column: ReferencedColumn, bounds: Sequence[Bounds | None], tombstoned_ms: Sequence[int | None]
) -> dict[str, pa.Array]:
    if column.type in TEXT_TYPES:
        # A repair may have superseded the part because its column had another type. Its bounds are texts of that type,
        # which can have another order (numbers as texts).
        bounds = [one if dead_ms is None else None for one, dead_ms in zip(bounds, tombstoned_ms, strict=True)]
    lo, hi, nulls = zip(*((None, None, None) if one is None else one for one in bounds), strict=True)
    return {
        f"in_log{column.number}": pa.array([one is not None for one in bounds], pa.bool_()),
        f"lo_text{column.number}": pa.array(lo, pa.string()),
        f"hi_text{column.number}": pa.array(hi, pa.string()),
        f"nulls{column.number}": pa.array(nulls, pa.int64()),
    }


# ------------------------------------------------------------------------------------------------ of very many parts


def _of_many(con: duckdb.DuckDBPyConnection, parts: LiveParts, condition: Condition) -> LiveParts:
    """Prune first by partition, evaluated once for each partition, then by the statistics of the remaining parts."""
    in_path, in_log = ([c for c in condition.columns if c.in_path is of_paths] for of_paths in (True, False))
    paths, numbers = parts.partitions
    rows = {number: row for row, number in enumerate(paths)}
    places: Sequence[int] = range(len(parts))
    inputs: dict[str, pa.ChunkedArray] = {}
    if in_path:
        # Without statistics, a condition on any other column prunes nothing.
        nothing: list[None] = [None] * len(paths)
        arrays = _in_log([msgspec.UNSET] * len(paths), nothing, nothing, in_log)
        arrays |= {"n": pa.array(range(len(paths)), pa.int64()), **_in_path(list(paths.values()), in_path)}
        con.register(_PARTS, pa.table(arrays))
        kept = {n for (n,) in con.execute(_query(condition)).fetchall()}
        places = array("I", (place for place, number in enumerate(numbers) if rows[number] in kept))
        of_places = row_numbers(rows[numbers[place]] for place in places)
        typed = con.execute(f"{_typed_statistics(in_path)} ORDER BY n").to_arrow_table()
        names = [f"{name}{c.number}" for c in in_path for name in ("value", "has_value")]
        inputs = {name: typed[name].take(of_places) for name in names}
        con.unregister(_PARTS)
    if not in_log or not places:
        return parts.chosen(places)
    chosen = row_numbers(places)
    for column in in_log:
        typed = _column_statistics(con, parts, places, column)
        if len(typed) > len(places):
            typed = typed.take(chosen)
        inputs |= {f"{name}{column.number}": typed[name] for name in _OF_COLUMN}
    con.register(_PARTS, pa.table({"n": chosen, **inputs}))
    remaining = con.execute(f"SELECT n FROM {_PARTS} WHERE {condition.sql} ORDER BY n").to_arrow_table()
    return parts.chosen(remaining["n"].to_pylist())


def _column_statistics(
    con: duckdb.DuckDBPyConnection, parts: LiveParts, places: Sequence[int], column: ReferencedColumn
) -> pa.Table:
    """Return the statistics of a column for the parts at these places, or for all parts, which are then cached."""
    cached = parts.cached_stats.get((column.name, column.type))
    if cached is not None:
        return cached
    few = len(places) < len(parts) // _FEW
    markers = parts.markers.chosen(places) if few else parts.markers
    one = ReferencedColumn(column.name, column.type, in_path=False, number=0)
    names = ", ".join(f"{name}0 AS {name}" for name in _OF_COLUMN)
    query = f"SELECT {names} FROM ({_typed_statistics([one])}) ORDER BY n"
    pieces = []
    for start in range(0, len(markers), _DECODED_PARTS):
        some = markers.chosen(range(start, min(start + _DECODED_PARTS, len(markers))))
        stats = [msgspec.UNSET if s is None else msgspec.Raw(s) for s in some.column("stats", pa.binary()).to_pylist()]
        rows, dead = (some.column(name, pa.int64()).to_pylist() for name in ("rows", "tombstoned_ms"))
        arrays = {"n": pa.array(range(len(some)), pa.int64()), **_in_log(stats, rows, dead, [one])}
        con.register(_PARTS, pa.table(arrays))
        pieces.append(con.execute(query).to_arrow_table())
        con.unregister(_PARTS)
    typed = pa.concat_tables(pieces)
    if not few:
        parts.cache_stats((column.name, column.type), typed)
    return typed
