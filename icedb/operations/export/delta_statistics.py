"""Exact bounds of a part's columns from the log, as Delta's `stats`.

Engines skip files by them, and some compute `max(x)` from them alone. So truncated texts are omitted, as are numbers
that JSON and dates that ISO 8601 cannot represent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icedb.sql.column_stats import TEXT_MAX, Bounds, bounds_of
from icedb.storage.parts import Part

__all__ = ["delta_statistics"]

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_FLOATS = ("FLOAT", "DOUBLE")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)(\+00)?")
#: Types with a null count but no bounds.
_NULLS_ONLY = ("BOOLEAN",)
_TYPES = (*_INTEGERS, *_FLOATS, *_NULLS_ONLY, "VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")


def delta_statistics(parts: Sequence[Part], columns: Mapping[str, str]) -> Iterator[str | None]:
    """Yield the `stats` of each part as JSON, or None if its row count is unknown. `columns` are those of the files."""
    supported = {c: t for c, t in columns.items() if t in _TYPES}
    for part, bounds in zip(parts, bounds_of([p.stats for p in parts], supported), strict=True):
        yield _of_part(part, dict(zip(supported.items(), bounds, strict=True)))


def _of_part(part: Part, bounds: Mapping[tuple[str, str], Bounds | None]) -> str | None:
    if part.rows is None:
        return None
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for (column, type_), column_bounds in bounds.items():
        # The column of a superseded part may have had another type.
        if column_bounds is None or part.tombstoned_ms is not None:
            continue
        low, high, nulls[column] = column_bounds
        if (value := _exact(low, type_)) is not None:
            least[column] = value
        if (value := _exact(high, type_)) is not None:
            greatest[column] = value
    statistics = {"numRecords": part.rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(statistics, ensure_ascii=False, separators=(",", ":"))


def _exact(text: str | None, type_: str) -> Any:
    """Convert a bound to Delta's notation. None if Delta has none."""
    if text is None or type_ in _NULLS_ONLY:
        return None
    if type_ in _INTEGERS:
        return int(text)
    if type_ in _FLOATS:
        number = _number(text)
        return number if math.isfinite(number) else None
    if type_ == "VARCHAR":
        return text if len(text) < TEXT_MAX else None
    if type_ == "DATE":
        return text if _DATE.fullmatch(text) else None
    match = _TIME.fullmatch(text)
    return match and f"{match[1]}T{match[2]}{'Z' if match[3] else ''}"


def _number(text: str) -> float:
    """Parse a number. Another program may have written a text that is none: then NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan
