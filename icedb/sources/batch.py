"""What every kind of input becomes: an Arrow stream, and what Arrow does not tell of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

__all__ = ["CHUNK_ROWS", "Batch", "OnConflict", "Rows"]

#: What `insert` and `overwrite` take.
Rows = Any

#: What becomes of values whose type is not the column's.
OnConflict = Literal["raise", "cast", "quarantine"]

#: Rows that are turned into Arrow at a time: enough to hide what a call costs, few enough to fit wherever rows do.
CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Batch:
    """Rows on their way into a table, and what their Arrow schema does not tell.

    `types`: DuckDB types to cast columns to when they are read (Arrow has no JSON and no UUID). `parsed`: columns of
    text whose values may be parsed as the type that the table has. `mixed`: columns whose values have several types,
    as JSON (`types` says so too). `source`: where the rows come from, for people. `is_answer`: a query of ours or the
    table's made them, so numbers become those of the table's columns, where no value changes.
    """

    stream: pa.RecordBatchReader
    types: Mapping[str, str] = field(default_factory=dict)
    parsed: frozenset[str] = frozenset()
    mixed: frozenset[str] = frozenset()
    source: str = "insert"
    is_answer: bool = False
