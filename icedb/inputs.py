"""Rows of any shape as one batch: an Arrow stream, and what Arrow does not tell of its columns.

Accepts a list of dicts, everything with `__arrow_c_stream__` (pyarrow Table and RecordBatchReader, pandas,
Polars, a DuckDB relation) and a pyarrow RecordBatch. Nothing of the caller's is modified or copied whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from icedb.errors import InvalidBatch
from icedb.location import Location

__all__ = ["Batch", "OnConflict", "Rows", "open_batch"]

#: What `insert` and `overwrite` take.
Rows = Any

#: What becomes of values whose type is not the column's.
OnConflict = Literal["raise", "cast", "quarantine"]


@dataclass(frozen=True)
class Batch:
    """Rows on their way into a table, and what their Arrow schema does not tell.

    `types`: DuckDB types to cast columns to when they are read (Arrow has no JSON and no UUID). `parsed`: columns of
    text whose values may be parsed as the type that the table has. `source`: where the rows come from, for people.
    """

    stream: pa.RecordBatchReader
    types: Mapping[str, str] = field(default_factory=dict)
    parsed: frozenset[str] = frozenset()
    source: str = "insert"


@contextmanager
def open_batch(
    data: Rows, *, location: Location, known: Mapping[str, str], on_conflict: OnConflict = "raise"
) -> Iterator[Batch]:
    """The rows as a batch, until the context ends. Raises InvalidBatch, naming what is wrong.

    `location`: the table's, for messages and credentials. `known`: its columns, with their DuckDB types.
    """
    yield Batch(_to_stream(data, table=location.uri))


def _to_stream(data: Rows, *, table: str) -> pa.RecordBatchReader:
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
