"""What a marker says of its part's sort columns: `{column: [min, max, null count]}`, for skipping whole parts.

Integers and booleans are JSON's own; all else is DuckDB's text of the value. A column whose values have no such
order, or whose bounds are long, is left out: a reader must take a missing column for "anything".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from icedb.engine import quote_name
from icedb.format.records import Stats

__all__ = ["encode_statistics", "figures_sql", "statistics_columns"]

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
            bounds = [low, high] if type_ in _TEXT_TYPES else [v if v is None else json.loads(v) for v in (low, high)]
            stats[column] = [*bounds, rows - int(present or 0)]
    return msgspec.Raw(msgspec.json.encode(stats)) if stats else msgspec.UNSET
