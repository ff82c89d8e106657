"""The statistics of a part: minimum, maximum and number of nulls of its sort and partition columns.

They are computed from the rows while the part is encoded. DuckDB writes their texts, because readers compare them with
DuckDB's texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.records import Stats
from icedb.sql.column_stats import encode_statistics
from icedb.sql.connections import RESERVED
from icedb.writer.encoding.arrow_types import arrow_type

__all__ = ["PartBounds", "encode_bounds"]

_BOUNDS = f"{RESERVED}bounds"


@dataclass(slots=True)
class PartBounds:
    """The bounds of some columns of a part, of these DuckDB types, updated with each table of its rows."""

    columns: Mapping[str, str]
    #: The statistics themselves, if DuckDB has written the part.
    stats: Stats | None = None
    rows: int = 0
    lows: dict[str, pa.Scalar] = field(default_factory=dict)
    highs: dict[str, pa.Scalar] = field(default_factory=dict)
    present: dict[str, int] = field(default_factory=dict)

    def add(self, table: pa.Table) -> None:
        """Include the rows of a table."""
        self.rows += table.num_rows
        for column in self.columns:
            values = table[column]
            count = len(values) - values.null_count
            self.present[column] = self.present.get(column, 0) + count
            if count:
                low, high = _bounds(values)
                self.lows[column] = min([self.lows.get(column, low), low], key=_order)
                self.highs[column] = max([self.highs.get(column, high), high], key=_order)


def _order(value: pa.Scalar) -> Any:
    if pa.types.is_floating(value.type):
        number = value.as_py()
        return math.isnan(number), number
    if pa.types.is_temporal(value.type):
        return value.value
    return value.as_py()


def _bounds(values: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    """Return minimum and maximum of the values that are not null, of which there is one at least."""
    type_ = values.type
    if pa.types.is_dictionary(type_):  # sorted
        array = values.combine_chunks()
        ends = pc.min_max(array.indices)
        return array.dictionary[ends["min"].as_py()], array.dictionary[ends["max"].as_py()]
    if pa.types.is_floating(type_):
        numbers = values.drop_null().to_numpy()
        low = numbers.max() if np.isnan(numbers).all() else np.nanmin(numbers)
        return pa.scalar(low, type_), pa.scalar(numbers.max(), type_)  # numpy's maximum is NaN if there is one
    if isinstance(type_, pa.BaseExtensionType):
        ends = pc.min_max(pa.chunked_array([chunk.storage for chunk in values.chunks]))
        return tuple(pa.ExtensionScalar.from_storage(type_, ends[end]) for end in ("min", "max"))
    ends = pc.min_max(values)
    return ends["min"], ends["max"]


def encode_bounds(con: duckdb.DuckDBPyConnection, parts: Sequence[PartBounds]) -> list[Stats]:
    """Return each part's statistics for its marker. All parts have the same columns."""
    columns = parts[0].columns if parts else {}
    bounds = {c: [b for p in parts for b in (p.lows.get(c), p.highs.get(c))] for c in columns}
    texts = {c: [_TEXTS[t](b) for b in bounds[c]] for c, t in columns.items() if t in _TEXTS}
    texts |= _cast_to_text(con, {c: t for c, t in columns.items() if c not in texts}, bounds)
    encoded: list[Stats] = []
    for n, part in enumerate(parts):
        if part.stats is not None:
            encoded.append(part.stats)
            continue
        figures = [f for c in columns for f in (*texts[c][2 * n : 2 * n + 2], str(part.present.get(c, 0)))]
        encoded.append(encode_statistics(columns, figures, part.rows))
    return encoded


def _cast_to_text(
    con: duckdb.DuckDBPyConnection, columns: Mapping[str, str], bounds: Mapping[str, Sequence[pa.Scalar | None]]
) -> dict[str, list[str | None]]:
    """Return DuckDB's texts of the values of columns, of these DuckDB types."""
    if not columns:
        return {}
    names = {column: f"b{n}" for n, column in enumerate(columns)}
    con.register(_BOUNDS, pa.table({names[c]: _array(bounds[c], arrow_type(t)) for c, t in columns.items()}))
    try:
        query = f"SELECT {', '.join(f'CAST({name} AS VARCHAR)' for name in names.values())} FROM {_BOUNDS}"
        rows = con.execute(query).fetchall()
    finally:
        con.unregister(_BOUNDS)
    return {column: [row[n] for row in rows] for n, column in enumerate(columns)}


def _array(bounds: Sequence[pa.Scalar | None], type_: pa.DataType) -> pa.Array:
    return pa.array([bound if bound is None else bound.cast(type_) for bound in bounds], type_)  # the zone may differ


def _boolean_text(value: pa.Scalar | None) -> str | None:
    return None if value is None else str(value.as_py()).lower()


def _text(value: pa.Scalar | None) -> str | None:
    return None if value is None else str(value.as_py())


# Types whose texts in DuckDB are the same in Python.
_TEXTS = dict.fromkeys(
    ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "VARCHAR"), _text
) | {"BOOLEAN": _boolean_text}
