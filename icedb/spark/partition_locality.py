"""Partition expressions translated to Spark's SQL, to bring the rows of a partition to one task.

DuckDB computes the partition of a row in the task that writes it. The shuffle before needs only a value that separates
partitions, which Spark computes without Python. If the two engines differ, for example at the border of days in another
time zone, the table gets one more part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from icedb.sql.expressions import syntax_tree
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_loader import PARTITION_COLUMN

__all__ = ["column_of", "partition_text"]

_DATE_FORMATS = {"%Y": "yyyy", "%m": "MM", "%d": "dd", "%H": "HH", "%M": "mm", "%S": "ss", "%j": "DDD"}
_UNITS = frozenset(("year", "quarter", "month", "week", "day", "hour", "minute"))
_ARITHMETIC = {"+": F.try_add, "-": F.try_subtract, "*": F.try_multiply, "%": F.try_mod}
_FUNCTIONS = {"year": F.year, "month": F.month, "day": F.dayofmonth, "hour": F.hour, "lower": F.lower, "upper": F.upper}


def column_of(name: str) -> Column:
    """Return a column by its whole name, which may contain dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def partition_text(frame: DataFrame, handle: Handle) -> Column | None:
    """Return a text that is almost always the same for rows of one partition; None: only DuckDB can compute one."""
    if PARTITION_COLUMN in frame.columns:
        return F.coalesce(column_of(PARTITION_COLUMN), F.lit(""))
    existing = {name.casefold(): name for name in frame.columns}
    values = []
    for expression in handle.expressions:
        if expression.path_only:
            name = existing.get(expression.name.casefold())
            value = None if name is None else column_of(name)
        else:
            tree = syntax_tree(f"SELECT\n{expression.sql}\n")
            value = _translated(tree["statements"][0]["node"]["select_list"][0], existing)
        if value is None:
            return None
        values.append(F.coalesce(value.cast("string"), F.lit("")))
    text = F.concat_ws("/", *values)
    return text if values and _fits(frame, text) else None


def _fits(frame: DataFrame, text: Column) -> bool:
    """Return whether Spark has these functions for these types."""
    try:
        return bool(frame.select(text).schema.fields)
    except Exception:  # noqa: BLE001  an analysis error, of a classic session or of Spark Connect
        return False


def _translated(node: Mapping[str, Any], existing: Mapping[str, str]) -> Column | None:
    match node:
        case {"class": "COLUMN_REF", "column_names": [name]} if name.casefold() in existing:
            return column_of(existing[name.casefold()])
        case {"class": "CAST", "cast_type": {"id": "DATE"}, "child": child}:
            value = _translated(child, existing)
            return None if value is None else value.try_cast("date")
        case {"class": "FUNCTION", "function_name": name, "children": [child]}:
            value = _translated(child, existing)
            return None if value is None else _of_one(name, value)
        case {"class": "FUNCTION", "function_name": name, "children": [left, right]}:
            return _of_two(name, left, right, existing)
    return None


def _of_one(name: str, value: Column) -> Column | None:
    if name == "make_timestamp":
        return F.timestamp_micros(value)
    return _FUNCTIONS[name](value) if name in _FUNCTIONS else None


def _of_two(name: str, left: Mapping[str, Any], right: Mapping[str, Any], existing: Mapping[str, str]) -> Column | None:
    if name == "date_trunc":
        unit, value = _constant(left), _translated(right, existing)
        return F.date_trunc(unit, value) if unit in _UNITS and value is not None else None
    value, constant = _translated(left, existing), _constant(right)
    if value is None or constant is None:
        return None
    if name == "strftime" and isinstance(constant, str):
        pattern = _date_format(constant)
        return None if pattern is None else F.date_format(value, pattern)
    if not isinstance(constant, int):
        return None
    if name == "//":
        return F.floor(F.try_divide(value, F.lit(constant)))
    return _ARITHMETIC[name](value, F.lit(constant)) if name in _ARITHMETIC else None


def _constant(node: Mapping[str, Any]) -> Any:
    return node["value"].get("value") if node.get("class") == "CONSTANT" else None


def _date_format(text: str) -> str | None:
    """Return Spark's pattern for a format of `strftime`; None: Spark has none."""
    pieces = re.split("(%.)", text)
    if any(p.startswith("%") and p not in _DATE_FORMATS for p in pieces):
        return None
    return "".join(_DATE_FORMATS.get(p) or ("'" + p.replace("'", "''") + "'" if p else "") for p in pieces)
