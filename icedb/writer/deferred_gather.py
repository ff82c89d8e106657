"""Late materialization of sorted rows: only the sort keys are sorted, and the rows are gathered when they are encoded.

Sorting whole rows mostly moves them. For a batch that is small relative to the memory, DuckDB sorts only the sort
columns and a row number. The rows stay in Arrow, and each part gathers its rows by these numbers. A text column with
few distinct values is sorted by their ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from icedb.sql.connections import RESERVED
from icedb.util.arrow_offsets import copy_nested_slices

__all__ = ["RankEncoding", "BufferedRows", "encode_ranks", "buffer_rows"]

#: The maximum size in Arrow, in bytes: a column of text must fit into one array, whose offsets have 31 bits.
HELD_BYTES_MAX = 1 << 30
#: The number of rows that are gathered, and read by a thread of DuckDB, at a time: a row group of DuckDB's.
ROWS_AT_A_TIME = 122_880
# Row numbers have 32 bits, with sign.
_ROWS_MAX = (1 << 31) - 1
# A column has few distinct values if so many rows have no more than so many.
_SAMPLE_ROWS = 16_384
_SAMPLE_VALUES_MAX = 1_024
# Ranks have at most two bytes.
_VALUES_MAX = 1 << 16

_numbers = count()


@dataclass(frozen=True, slots=True)
class RankEncoding:
    """A text column as the ranks of its values, null where it is null. `values` have DuckDB's order of texts."""

    ranks: pa.Array
    values: Sequence[str]

    def text(self, rank: str | None) -> str | None:
        """Return the value of a rank, which is a text of digits."""
        return None if rank is None else self.values[int(rank)]


@dataclass(slots=True)
class BufferedRows:
    """All rows of a batch, with one array for each column.

    `order` has the row numbers in the order of storage, as 32-bit integers. None keeps the order of the batch.
    """

    table: pa.Table
    order: pa.Array | None = field(default=None)

    def register(self, con: duckdb.DuckDBPyConnection, first: int = 0, rows: int | None = None) -> str:
        """Register adjacent rows, in the order of storage, as a relation that can be read once. Returns its name."""
        return _register(con, self.table.schema, self.batches(first, rows))

    def register_keys(self, con: duckdb.DuckDBPyConnection, number: str, codes: Mapping[str, RankEncoding]) -> str:
        """Register all rows, in the order of the batch, with row numbers and ranks. Returns the relation's name."""
        rows = self.table.num_rows
        ones = pa.repeat(pa.scalar(1, pa.int32()), rows)
        keyed = self.table.append_column(number, pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int32())))
        for name, column in codes.items():
            keyed = keyed.append_column(name, column.ranks)
        batches = (copy_nested_slices(batch) for batch in keyed.to_batches(max_chunksize=ROWS_AT_A_TIME))
        return _register(con, keyed.schema, batches)

    def batches(self, first: int = 0, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield adjacent rows (default: all from `first` on) in the order of storage."""
        after = self.table.num_rows if rows is None else first + rows
        for start in range(first, after, ROWS_AT_A_TIME):
            rows = min(ROWS_AT_A_TIME, after - start)
            if self.order is None:
                piece = self.table.slice(start, rows)
            else:
                piece = self.table.take(self.order.slice(start, rows))
            yield from map(copy_nested_slices, piece.to_batches())


def _register(con: duckdb.DuckDBPyConnection, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
    name = f"{RESERVED}held{next(_numbers)}"  # unique, because a stream can only be read once
    con.register(name, pa.RecordBatchReader.from_batches(schema, batches))
    return name


def buffer_rows(schema: pa.Schema, batches: list[pa.RecordBatch]) -> BufferedRows | None:
    """Buffer the rows of some batches, and clear the list to free its references.

    Returns None, and keeps the list, if the rows cannot be gathered or are invalid for their types. The latter is
    reported when they are read.
    """
    if not all(map(_is_gathered, schema.types)):
        return None
    if sum(b.nbytes for b in batches) > HELD_BYTES_MAX or sum(b.num_rows for b in batches) > _ROWS_MAX:
        return None
    table = pa.Table.from_batches(batches, schema)
    try:
        table.validate(full=True)  # DuckDB validates UTF-8 when it stores a text, but not when it copies one
        table = table.combine_chunks()
    except pa.ArrowInvalid:
        return None
    if any(column.num_chunks > 1 for column in table.columns):
        return None
    batches.clear()
    return BufferedRows(table)


def encode_ranks(column: pa.ChunkedArray) -> RankEncoding | None:
    """Encode a text column by the ranks of its values; None if it has too many distinct values."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if len(array.slice(0, _SAMPLE_ROWS).dictionary_encode().dictionary) > _SAMPLE_VALUES_MAX:
        return None
    encoded = array.dictionary_encode()
    if len(encoded.dictionary) > _VALUES_MAX:
        return None
    texts = encoded.dictionary.to_pylist()
    # Texts have the order of their UTF-8 bytes, which is the order of their code points.
    order = sorted(range(len(texts)), key=texts.__getitem__)
    rank_of = [0] * len(texts)
    for rank, position in enumerate(order):
        rank_of[position] = rank
    type_ = pa.uint8() if len(texts) <= 1 << 8 else pa.uint16()
    return RankEncoding(pa.array(rank_of, type_).take(encoded.indices), [texts[position] for position in order])


def _is_gathered(type_: pa.DataType) -> bool:
    """Return whether Arrow can gather values of this type, and DuckDB can read the result."""
    if pa.types.is_struct(type_) or pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        return bool(type_.num_fields) and all(_is_gathered(type_.field(n).type) for n in range(type_.num_fields))
    return any(is_it(type_) for is_it in _FLAT)


_FLAT = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
