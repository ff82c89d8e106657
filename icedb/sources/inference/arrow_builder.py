"""Conversion of Python values of one type to Arrow arrays, column by column down into lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate, chain
from types import NoneType
from typing import Any

import pyarrow as pa

from icedb.sources.inference.fields import columns_of
from icedb.sources.inference.python_values import json_text, plain_all
from icedb.sources.inference.type_tree import ColumnType, arrow_type

__all__ = ["build_array"]


def build_array(values: list[Any], type_: ColumnType, *, keep_json: bool = False) -> pa.Array:
    """Convert observed values to an Arrow array. The type must hold each of them unchanged.

    `keep_json`: text for a JSON column is JSON already. Raises pa.ArrowException for a value that Arrow cannot hold
    (such as a year beyond TIMESTAMP_NS), UnknownValue for one that JSON cannot.
    """
    plain: list[Any] = plain_all(values)
    if type_.name in _NESTED:
        return _NESTED[type_.name](plain, type_, keep_json)
    if type_.name in ("DOUBLE", "FLOAT") and not set(map(type, plain)) <= {float, NoneType}:
        plain = [None if v is None else float(v) for v in plain]
    elif type_.name == "UUID":
        plain = [None if v is None else str(v) for v in plain]
    elif type_.name == "JSON":
        plain = [None if v is None else v if keep_json and isinstance(v, str) else json_text(v) for v in plain]
    elif type_.name in ("HUGEINT", "UHUGEINT"):
        plain = [None if v is None else Decimal(v) for v in plain]
    return pa.array(plain, arrow_type(type_))


def _struct(values: list[Any], type_: ColumnType, keep_json: bool) -> pa.Array:
    is_null = [v is None for v in values]
    any_null = True in is_null
    columns = columns_of([{} if v is None else v for v in values] if any_null else values)
    fields = [build_array(columns.get(n) or [None] * len(values), t, keep_json=keep_json) for n, t in type_.children]
    named = [pa.field(n, a.type) for (n, _), a in zip(type_.children, fields, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=named, mask=pa.array(is_null, pa.bool_()) if any_null else None)


def _list(values: list[Any], type_: ColumnType, keep_json: bool) -> pa.Array:
    flat = list(chain.from_iterable(v for v in values if v is not None))
    element = build_array(flat, type_.children[0][1], keep_json=keep_json)
    return pa.ListArray.from_arrays(_offsets(values), element, arrow_type(type_), mask=_nulls(values))


def _array(values: list[Any], type_: ColumnType, keep_json: bool) -> pa.Array:
    flat = list(chain.from_iterable([None] * type_.size if v is None else v for v in values))
    element = build_array(flat, type_.children[0][1], keep_json=keep_json)
    return pa.FixedSizeListArray.from_arrays(element, type_.size, mask=_nulls(values))


def _map(values: list[Any], type_: ColumnType, keep_json: bool) -> pa.Array:
    pairs = list(chain.from_iterable(v.items() for v in values if v is not None))
    keys = build_array([k for k, _ in pairs], type_.children[0][1], keep_json=keep_json)
    items = build_array([v for _, v in pairs], type_.children[1][1], keep_json=keep_json)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, mask=_nulls(values))


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([v is None for v in values], pa.bool_())


def _offsets(values: list[Any]) -> pa.Array:
    return pa.array(accumulate((0 if v is None else len(v) for v in values), initial=0), pa.int32())


_NESTED: dict[str, Callable[[list[Any], ColumnType, bool], pa.Array]] = {
    "STRUCT": _struct,
    "LIST": _list,
    "ARRAY": _array,
    "MAP": _map,
}
