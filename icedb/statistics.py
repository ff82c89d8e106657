"""What a marker says of its part's sort columns: `{column: [min, max, null count]}`, for skipping whole parts.

Integers and booleans are JSON's own; all else is DuckDB's text of the value. A column whose values have no such
order, or whose bounds are long, is left out: a reader must take a missing column for "anything".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from icedb.engine import connect_sandbox, quote_name
from icedb.format.records import Marker, Stats

__all__ = ["bounds", "encode_statistics", "figures_sql", "may_hold", "statistics_columns"]

# A longer text would bloat the log for little.
TEXT_MAX = 64

_JSON_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN")
_TEXT_TYPES = ("VARCHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "FLOAT",
               "DOUBLE")  # fmt: skip


def statistics_columns(sort_by: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The sort columns that get statistics, with their types."""
    return {c: columns[c] for c in sort_by if columns.get(c) in (*_JSON_TYPES, *_TEXT_TYPES)}


def figures_sql(columns: Mapping[str, str]) -> str:
    """An aggregate whose value is the list of texts that `encode_statistics` takes."""
    figures = (f"CAST({f}({quote_name(c)}) AS VARCHAR)" for c in columns for f in ("min", "max", "count"))
    return f"[{', '.join(figures)}]::VARCHAR[]"


def encode_statistics(columns: Mapping[str, str], figures: Sequence[str | None], rows: int) -> Stats:
    """A marker's `s`, from min, max and count of each column in turn; UNSET when there is nothing to say."""
    stats = {}
    for n, (column, type_) in enumerate(columns.items()):
        low, high, present = figures[3 * n : 3 * n + 3]
        if max(len(low or ""), len(high or "")) <= TEXT_MAX:
            pair = [low, high] if type_ in _TEXT_TYPES else [v if v is None else json.loads(v) for v in (low, high)]
            stats[column] = [*pair, rows - int(present or 0)]
    return msgspec.Raw(msgspec.json.encode(stats)) if stats else msgspec.UNSET


def may_hold(markers: Sequence[Marker], column: str, type_: str, condition: str) -> list[Marker]:
    """The markers of the parts that may hold a row for which something is true of a column of this DuckDB type.

    `condition` is SQL over the part's `lo` and `hi` of the column, its number of `nulls` and of `rows`, and is false or
    null where there is no such row. A part that says nothing of the column stays, and so does one whose figures cannot
    be read: another program may have written them.
    """
    figures = [bounds(marker, column) for marker in markers]
    columns = zip(*(f or (None, None, None) for f in figures), strict=True)
    lo, hi, nulls = (list(c) for c in columns) if markers else ([], [], [])
    with connect_sandbox() as con:
        found = con.execute(
            f"""
            WITH told AS (
                SELECT unnest(CAST($known AS BOOLEAN[])) AS known, unnest(CAST($lo AS VARCHAR[])) AS lo_text,
                       unnest(CAST($hi AS VARCHAR[])) AS hi_text, unnest(CAST($nulls AS BIGINT[])) AS nulls,
                       unnest(CAST($rows AS BIGINT[])) AS rows),
            typed AS (SELECT *, TRY_CAST(lo_text AS {type_}) AS lo, TRY_CAST(hi_text AS {type_}) AS hi FROM told)
            SELECT NOT known OR (lo_text IS NOT NULL AND lo IS NULL) OR (hi_text IS NOT NULL AND hi IS NULL)
                OR coalesce(({condition}), lo IS NULL AND nulls IS DISTINCT FROM rows)
            FROM typed
            """,
            {
                "known": [f is not None for f in figures],
                "lo": lo,
                "hi": hi,
                "nulls": nulls,
                "rows": [m.rows for m in markers],
            },
        ).fetchall()
    return [marker for marker, (stays,) in zip(markers, found, strict=True) if stays]


def bounds(marker: Marker, column: str) -> tuple[str | None, str | None, int] | None:
    """Least and greatest value, as text, and nulls; None when the marker does not tell, or not in our way."""
    if isinstance(marker.stats, msgspec.UnsetType):
        return None
    try:
        low, high, nulls = msgspec.json.decode(marker.stats, type=dict[str, tuple[_Bound, _Bound, int]])[column]
    except (msgspec.DecodeError, KeyError):
        return None
    return _text(low), _text(high), nulls


_Bound = bool | int | str | None


def _text(bound: _Bound) -> str | None:
    return json.dumps(bound) if isinstance(bound, bool) else None if bound is None else str(bound)
