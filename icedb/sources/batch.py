"""The common form of every input: an Arrow stream, with the properties of its columns that Arrow lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

import pyarrow as pa

__all__ = ["CHUNK_ROWS", "Batch", "ColumnsInAnyCase", "OnConflict", "Rows", "WriteOptions", "names_in_table"]

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

    def rename_properties(self, names: Mapping[str, str]) -> Batch:
        """Return the batch with new names in its properties, for a stream whose columns its reader renames."""
        if not names:
            return self
        return replace(
            self,
            types={names.get(c, c): t for c, t in self.types.items()},
            parsed=frozenset(names.get(c, c) for c in self.parsed),
            mixed=frozenset(names.get(c, c) for c in self.mixed),
        )


class ColumnsInAnyCase(Mapping[str, str]):
    """The columns of a table with their types, found also by names that differ in case."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._names = {c.lower(): c for c in columns}

    def __getitem__(self, name: str) -> str:
        return self._columns[name if name in self._columns else self._names[name.lower()]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def names_in_table(names: Sequence[str], table_columns: Mapping[str, str]) -> dict[str, str]:
    """Return the table's names of the columns that a batch spells in another case, unless two columns are meant."""
    if table_columns.keys() >= set(names):
        return {}
    by_name = {c.lower(): c for c in table_columns}
    spellings = Counter(map(str.lower, names))
    return {
        name: by_name[lower]
        for name in names
        if (lower := name.lower()) in by_name and name != by_name[lower] and spellings[lower] == 1
    }
