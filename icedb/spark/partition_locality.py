"""Partition expressions in Spark's own SQL, near enough to say which rows belong together.

What a row's partition is, DuckDB says in the task that writes it. To bring rows of a partition to one task, something
that tells partitions apart will do, and Spark computes it without a detour through Python. Where the two engines
differ, at a border of days in another timezone for example, some rows end up in a part more.
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
    """A column by its whole name, which may have dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def partition_text(frame: DataFrame, handle: Handle) -> Column | None:
    """A text that is the same for rows of one partition, nearly; None when only DuckDB can tell."""
    if PARTITION_COLUMN in frame.columns:
        return F.coalesce(column_of(PARTITION_COLUMN), F.lit(""))
    there = {name.casefold(): name for name in frame.columns}
    values = []
    for expression in handle.expressions:
        if expression.path_only:
            name = there.get(expression.name.casefold())
            value = None if name is None else column_of(name)
        else:
            tree = syntax_tree(f"SELECT\n{expression.sql}\n")
            value = _translated(tree["statements"][0]["node"]["select_list"][0], there)
        if value is None:
            return None
        values.append(F.coalesce(value.cast("string"), F.lit("")))
    text = F.concat_ws("/", *values)
    return text if values and _fits(frame, text) else None


def _fits(frame: DataFrame, text: Column) -> bool:
    """Whether Spark has these functions for these types."""
    try:
        return bool(frame.select(text).schema.fields)
    except Exception:  # noqa: BLE001  an analysis error, of a classic session or of Spark Connect
        return False


def _translated(node: Mapping[str, Any], there: Mapping[str, str]) -> Column | None:
    match node:
        case {"class": "COLUMN_REF", "column_names": [name]} if name.casefold() in there:
            return column_of(there[name.casefold()])
        case {"class": "CAST", "cast_type": {"id": "DATE"}, "child": child}:
            value = _translated(child, there)
            return None if value is None else value.try_cast("date")
        case {"class": "FUNCTION", "function_name": name, "children": [child]}:
            value = _translated(child, there)
            return None if value is None else _of_one(name, value)
        case {"class": "FUNCTION", "function_name": name, "children": [left, right]}:
            return _of_two(name, left, right, there)
    return None


def _of_one(name: str, value: Column) -> Column | None:
    if name == "make_timestamp":
        return F.timestamp_micros(value)
    return _FUNCTIONS[name](value) if name in _FUNCTIONS else None


def _of_two(name: str, left: Mapping[str, Any], right: Mapping[str, Any], there: Mapping[str, str]) -> Column | None:
    if name == "date_trunc":
        unit, value = _constant(left), _translated(right, there)
        return F.date_trunc(unit, value) if unit in _UNITS and value is not None else None
    value, constant = _translated(left, there), _constant(right)
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
    """Spark's pattern for one of `strftime`; None for what it does not have."""
    pieces = re.split("(%.)", text)
    if any(p.startswith("%") and p not in _DATE_FORMATS for p in pieces):
        return None
    return "".join(_DATE_FORMATS.get(p) or ("'" + p.replace("'", "''") + "'" if p else "") for p in pieces)
