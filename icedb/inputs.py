"""Rows of any shape as one Arrow stream.

Accepts a list of dicts, everything with `__arrow_c_stream__` (pyarrow Table and RecordBatchReader, pandas,
Polars, a DuckDB relation) and a pyarrow RecordBatch. Nothing of the caller's is modified or copied whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from icedb.errors import InvalidBatch

__all__ = ["Rows", "to_stream"]

#: What `insert` and `overwrite` take.
Rows = Any


def to_stream(data: Rows, *, table: str) -> pa.RecordBatchReader:
    """The rows as a stream of record batches. Raises InvalidBatch, naming what is wrong."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _from_dicts(data, table).to_reader()
    raise InvalidBatch(
        f"{table}: cannot take rows from a {type(data).__module__}.{type(data).__qualname__}. Give a list of dicts, "
        "a pyarrow Table, RecordBatch or RecordBatchReader, or any object with __arrow_c_stream__ (pandas, Polars)."
    )


def _from_dicts(rows: Sequence[Mapping[str, object]], table: str) -> pa.Table:
    """The columns are the union over all rows, in order of appearance; what a row lacks is null."""
    columns: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidBatch(f"{table}: row {number} is a {type(row).__name__}, not a dict.")
        for name in row:
            if not isinstance(name, str):
                raise InvalidBatch(f"{table}: row {number} has the column name {name!r}, which is not text.")
        columns |= dict.fromkeys(row)
    if rows and not columns:
        raise InvalidBatch(f"{table}: none of the {len(rows)} rows has a column.")
    return pa.table({name: _column(name, [row.get(name) for row in rows], table) for name in columns})


def _column(name: str, values: list[object], table: str) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise InvalidBatch(
            f"{table}: the values of column '{name}' are not of one type ({str(error).splitlines()[0]}). Convert them, "
            "or write them as text."
        ) from None
