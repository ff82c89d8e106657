"""What the log says of a part's columns, as Delta's `stats`: only what is exact.

Engines skip files by these, and some answer `max(x)` by them alone. So a text that the log has cut is left out, and so
is what JSON has no number or ISO 8601 no date for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icedb.sql.column_stats import TEXT_MAX, Bounds, bounds_of
from icedb.transaction.table_handle import Part

__all__ = ["delta_statistics"]

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_FLOATS = ("FLOAT", "DOUBLE")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)(\+00)?")
#: Of these, nulls are all that is told.
_NULLS_ONLY = ("BOOLEAN",)
_TYPES = (*_INTEGERS, *_FLOATS, *_NULLS_ONLY, "VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")


def delta_statistics(parts: Sequence[Part], columns: Mapping[str, str]) -> Iterator[str | None]:
    """The `stats` of each part as JSON; None of one of which nothing is known. `columns` are those of the files."""
    told = {c: t for c, t in columns.items() if t in _TYPES}
    for part, bounds in zip(parts, bounds_of([p.stats for p in parts], told), strict=True):
        yield _of_part(part, dict(zip(told.items(), bounds, strict=True)))


def _of_part(part: Part, bounds: Mapping[tuple[str, str], Bounds | None]) -> str | None:
    if part.rows is None:
        return None
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for (column, type_), known in bounds.items():
        # Of what is superseded, the column may have had another type.
        if known is None or part.tombstoned_ms is not None:
            continue
        low, high, nulls[column] = known
        if (value := _exact(low, type_)) is not None:
            least[column] = value
        if (value := _exact(high, type_)) is not None:
            greatest[column] = value
    found = {"numRecords": part.rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _exact(text: str | None, type_: str) -> Any:
    """A bound as Delta has it; None when it has none."""
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
    found = _TIME.fullmatch(text)
    return found and f"{found[1]}T{found[2]}{'Z' if found[3] else ''}"


def _number(text: str) -> float:
    """NaN for what is none: another program may have written it."""
    try:
        return float(text)
    except ValueError:
        return math.nan
