"""The common form of every input: an Arrow stream, with the properties of its columns that Arrow lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pyarrow as pa

__all__ = ["CHUNK_ROWS", "Batch", "OnConflict", "Rows", "WriteOptions"]

#: The input of `insert` and `overwrite`.
Rows = Any

#: The treatment of values whose type is not the column's.
OnConflict = Literal["raise", "cast", "quarantine"]


class WriteOptions(TypedDict, total=False):
    """The options of every write, with the meanings and defaults of `Table.insert`."""

    on_conflict: OnConflict
    memory_bytes: int | None
    partitions_max: int | None


#: The number of rows that are converted to Arrow at a time: enough to hide the cost of a call, and small in memory.
CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Batch:
    """The rows of one insert, with properties that their Arrow schema lacks.

    `types`: DuckDB types to which columns are cast when they are read (Arrow has no JSON and no UUID). `parsed`: text
    columns whose values may be parsed as the table's type. `mixed`: columns whose values have several types, as JSON
    (also in `types`). `source`: the origin of the rows, for people. `is_answer`: the rows are the result of a query, so
    numbers are cast to the table's types if no value changes.
    """

    stream: pa.RecordBatchReader
    types: Mapping[str, str] = field(default_factory=dict)
    parsed: frozenset[str] = frozenset()
    mixed: frozenset[str] = frozenset()
    source: str = "insert"
    is_answer: bool = False
