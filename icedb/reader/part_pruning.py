"""Which parts may hold a row for which a predicate is true, by their paths and by what the log says of their columns.

A part is left out only when it certainly holds no such row; what cannot be decided stays. No part is opened. DuckDB
answers for all parts at once.
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
from icedb.sql.sandbox_pool import scratch_connection
from icedb.transaction.table_handle import Part

__all__ = ["prune_parts"]

_PARTS = "parts"
#: Of a column, what a condition asks for.
_JUDGED = ("lo", "hi", "nulls", "known")
# Where the partitions leave a smaller share of the parts than one in so many, the others' statistics are not looked at.
_FEW = 8
# Parts whose statistics are decoded at once.
_AT_ONCE = 1 << 16


def prune_parts(
    parts: Sequence[Part], predicate: Mapping[str, Any], columns: Mapping[str, str], path_columns: Mapping[str, str]
) -> list[Part]:
    """The parts that may hold a row for which a predicate, as its syntax tree, is true.

    `columns` are those whose bounds count, `path_columns` those that the paths tell, with their DuckDB types; no name
    is in both. Of another column, anything may be true.
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
            con.register(_PARTS, _figures(parts, condition.columns))
            found = con.execute(_query(condition)).fetchall()
        except duckdb.Error:
            return list(parts)  # it has no answer for some bounds, so it must be asked of the rows
    return [parts[n] for (n,) in found]


def _query(condition: Condition) -> str:
    return f"SELECT n FROM ({_judged(condition.columns)}) WHERE {condition.sql} ORDER BY n"


def _judged(columns: Sequence[ReferencedColumn]) -> str:
    """The figures, and what a condition asks for."""
    typed, known = [], []
    for column in columns:
        n, type_ = column.number, column.type
        if column.in_path:
            typed.append(f"TRY_CAST(text{n} AS {type_}) AS value{n}")
            known.append(f"in_path{n} AND (text{n} IS NULL OR value{n} IS NOT NULL) AS told{n}")
        else:
            typed += [f"TRY_CAST({bound}_text{n} AS {type_}) AS {bound}{n}" for bound in ("lo", "hi")]
            no_values = f"lo_text{n} IS NULL AND hi_text{n} IS NULL AND nulls{n} = rows"
            known.append(f"in_log{n} AND coalesce(lo{n} <= hi{n}, {no_values}, false) AS known{n}")
    return f"SELECT {', '.join(['*', *known])} FROM (SELECT {', '.join(['*', *typed])} FROM {_PARTS})"


def _figures(parts: Sequence[Part], columns: Sequence[ReferencedColumn]) -> pa.Table:
    """What paths and log say of these columns, a row for each part."""
    numbers: dict[str, Any] = {"n": pa.array(range(len(parts)), pa.int64())}
    numbers |= _in_log([p.stats for p in parts], [p.rows for p in parts], [p.tombstoned_ms for p in parts], columns)
    return pa.table(numbers | _in_path([p.partition for p in parts], columns))


def _in_path(paths: Sequence[str], columns: Sequence[ReferencedColumn]) -> dict[str, pa.Array]:
    asked = [c for c in columns if c.in_path]
    values = {path: decode_partition(path) for path in (set(paths) if asked else ())}
    told: dict[str, pa.Array] = {}
    for column in asked:
        of_parts = [values[p] for p in paths]
        told[f"in_path{column.number}"] = pa.array([column.name in v for v in of_parts], pa.bool_())
        told[f"text{column.number}"] = pa.array([v.get(column.name) for v in of_parts], pa.string())
    return told


def _in_log(
    stats: Sequence[Stats],
    rows: Sequence[int | None],
    tombstoned_ms: Sequence[int | None],
    columns: Sequence[ReferencedColumn],
) -> dict[str, pa.Array]:
    asked = [c for c in columns if not c.in_path]
    told = bounds_of(stats, {c.name: c.type for c in asked}) if asked else []
    figures = {"rows": pa.array(rows, pa.int64())}
    for place, column in enumerate(asked):
        figures |= _bounds(column, [of_part[place] for of_part in told], tombstoned_ms)
    return figures


def _bounds(
    column: ReferencedColumn, told: Sequence[Bounds | None], tombstoned_ms: Sequence[int | None]
) -> dict[str, pa.Array]:
    if column.type in TEXT_TYPES:
        # A part that was superseded may have been so because its column had another type, of which its texts are:
        # numbers as texts have another order.
        told = [one if dead_ms is None else None for one, dead_ms in zip(told, tombstoned_ms, strict=True)]
    lo, hi, nulls = zip(*((None, None, None) if one is None else one for one in told), strict=True)
    return {
        f"in_log{column.number}": pa.array([one is not None for one in told], pa.bool_()),
        f"lo_text{column.number}": pa.array(lo, pa.string()),
        f"hi_text{column.number}": pa.array(hi, pa.string()),
        f"nulls{column.number}": pa.array(nulls, pa.int64()),
    }


# ------------------------------------------------------------------------------------------------ of very many parts


def _of_many(con: duckdb.DuckDBPyConnection, parts: LiveParts, condition: Condition) -> LiveParts:
    """First by the partitions, each asked once; then, of the parts in them, by what the log says of these columns."""
    in_path, in_log = ([c for c in condition.columns if c.in_path is told] for told in (True, False))
    paths, numbers = parts.partitions
    rows = {number: row for row, number in enumerate(paths)}
    places: Sequence[int] = range(len(parts))
    told: dict[str, pa.ChunkedArray] = {}
    if in_path:
        # Where nothing is known of the other columns, whatever is asked of them may be true.
        nothing: list[None] = [None] * len(paths)
        figures = _in_log([msgspec.UNSET] * len(paths), nothing, nothing, in_log)
        figures |= {"n": pa.array(range(len(paths)), pa.int64()), **_in_path(list(paths.values()), in_path)}
        con.register(_PARTS, pa.table(figures))
        kept = {n for (n,) in con.execute(_query(condition)).fetchall()}
        places = array("I", (place for place, number in enumerate(numbers) if rows[number] in kept))
        of_places = row_numbers(rows[numbers[place]] for place in places)
        judged = con.execute(f"{_judged(in_path)} ORDER BY n").to_arrow_table()
        told = {f"{name}{c.number}": judged[f"{name}{c.number}"].take(of_places)
                for c in in_path for name in ("value", "told")}  # fmt: skip
        con.unregister(_PARTS)
    if not in_log or not places:
        return parts.chosen(places)
    chosen = row_numbers(places)
    for column in in_log:
        judged = _told_in_log(con, parts, places, column)
        if len(judged) > len(places):
            judged = judged.take(chosen)
        told |= {f"{name}{column.number}": judged[name] for name in _JUDGED}
    con.register(_PARTS, pa.table({"n": chosen, **told}))
    found = con.execute(f"SELECT n FROM {_PARTS} WHERE {condition.sql} ORDER BY n").to_arrow_table()
    return parts.chosen(found["n"].to_pylist())


def _told_in_log(
    con: duckdb.DuckDBPyConnection, parts: LiveParts, places: Sequence[int], column: ReferencedColumn
) -> pa.Table:
    """What the log says of a column in the parts at these places; or in all parts: that is kept, not asked twice."""
    kept = parts.cached_stats.get((column.name, column.type))
    if kept is not None:
        return kept
    few = len(places) < len(parts) // _FEW
    markers = parts.markers.chosen(places) if few else parts.markers
    one = ReferencedColumn(column.name, column.type, in_path=False, number=0)
    query = f"SELECT {', '.join(f'{name}0 AS {name}' for name in _JUDGED)} FROM ({_judged([one])}) ORDER BY n"
    pieces = []
    for start in range(0, len(markers), _AT_ONCE):
        some = markers.chosen(range(start, min(start + _AT_ONCE, len(markers))))
        stats = [msgspec.UNSET if s is None else msgspec.Raw(s) for s in some.column("stats", pa.binary()).to_pylist()]
        rows, dead = (some.column(name, pa.int64()).to_pylist() for name in ("rows", "tombstoned_ms"))
        figures = {"n": pa.array(range(len(some)), pa.int64()), **_in_log(stats, rows, dead, [one])}
        con.register(_PARTS, pa.table(figures))
        pieces.append(con.execute(query).to_arrow_table())
        con.unregister(_PARTS)
    judged = pa.concat_tables(pieces)
    if not few:
        parts.cache_stats((column.name, column.type), judged)
    return judged
