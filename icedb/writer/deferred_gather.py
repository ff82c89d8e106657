"""Rows of a batch that stay Arrow until they are encoded: only what orders them is sorted, the rest is gathered after.

Most of what sorting whole rows takes is moving them. Of a batch that is small beside the memory DuckDB sorts the sort
columns and a row number; each part's rows are then taken by these numbers, when the part is encoded. A text column of
few values is sorted by their ranks.
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

#: So many bytes of Arrow at most: a column of text must fit into one array, whose offsets have 31 bits.
HELD_BYTES_MAX = 1 << 30
#: Rows that are gathered, and read by a thread of DuckDB, at a time: a row group of DuckDB's.
ROWS_AT_A_TIME = 122_880
# What 32 bits can count.
_ROWS_MAX = (1 << 31) - 1
# Looking at so many rows tells whether a column has few values.
_SAMPLE_ROWS = 16_384
_SAMPLE_VALUES_MAX = 1_024
# What two bytes can count.
_VALUES_MAX = 1 << 16

_numbers = count()


@dataclass(frozen=True, slots=True)
class RankEncoding:
    """A text column as the ranks of its values, null where it is null. `values` are in DuckDB's order of texts."""

    ranks: pa.Array
    values: Sequence[str]

    def text(self, rank: str | None) -> str | None:
        """The value of a rank, which is given as text."""
        return None if rank is None else self.values[int(rank)]


@dataclass(slots=True)
class BufferedRows:
    """All rows of a batch, each column one array. `order`: the numbers of the rows as they are to be stored, 32 bits
    each; None: as they are."""

    table: pa.Table
    order: pa.Array | None = field(default=None)

    def register(self, con: duckdb.DuckDBPyConnection, first: int = 0, rows: int | None = None) -> str:
        """Let a connection read some neighbouring rows, once, in their order: the name of the relation."""
        return _register(con, self.table.schema, self.batches(first, rows))

    def register_keys(self, con: duckdb.DuckDBPyConnection, number: str, codes: Mapping[str, RankEncoding]) -> str:
        """Let a connection read all rows as they are, once, with columns for the row's number and for ranks."""
        rows = self.table.num_rows
        ones = pa.repeat(pa.scalar(1, pa.int32()), rows)
        keyed = self.table.append_column(number, pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int32())))
        for name, column in codes.items():
            keyed = keyed.append_column(name, column.ranks)
        batches = (copy_nested_slices(batch) for batch in keyed.to_batches(max_chunksize=ROWS_AT_A_TIME))
        return _register(con, keyed.schema, batches)

    def batches(self, first: int = 0, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Some neighbouring rows (default: all after the first) in their order."""
        after = self.table.num_rows if rows is None else first + rows
        for start in range(first, after, ROWS_AT_A_TIME):
            rows = min(ROWS_AT_A_TIME, after - start)
            if self.order is None:
                piece = self.table.slice(start, rows)
            else:
                piece = self.table.take(self.order.slice(start, rows))
            yield from map(copy_nested_slices, piece.to_batches())


def _register(con: duckdb.DuckDBPyConnection, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
    name = f"{RESERVED}held{next(_numbers)}"  # a reader that was read must not be found under its name
    con.register(name, pa.RecordBatchReader.from_batches(schema, batches))
    return name


def buffer_rows(schema: pa.Schema, batches: list[pa.RecordBatch]) -> BufferedRows | None:
    """Hold the rows of some batches, which the list does not have afterwards; None (and it has) when they cannot be
    gathered, or are not what their types say: whoever reads them will tell."""
    if not all(map(_is_gathered, schema.types)):
        return None
    if sum(b.nbytes for b in batches) > HELD_BYTES_MAX or sum(b.num_rows for b in batches) > _ROWS_MAX:
        return None
    table = pa.Table.from_batches(batches, schema)
    try:
        table.validate(full=True)  # DuckDB looks whether a text is UTF-8 when it stores it, not when it copies it
        table = table.combine_chunks()
    except pa.ArrowInvalid:
        return None
    if any(column.num_chunks > 1 for column in table.columns):
        return None
    batches.clear()
    return BufferedRows(table)


def encode_ranks(column: pa.ChunkedArray) -> RankEncoding | None:
    """A text column by the ranks of its values; None when it has too many."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if len(array.slice(0, _SAMPLE_ROWS).dictionary_encode().dictionary) > _SAMPLE_VALUES_MAX:
        return None
    found = array.dictionary_encode()
    if len(found.dictionary) > _VALUES_MAX:
        return None
    texts = found.dictionary.to_pylist()
    # Texts are in the order of their UTF-8 bytes, which is that of their characters' numbers.
    order = sorted(range(len(texts)), key=texts.__getitem__)
    rank_of = [0] * len(texts)
    for rank, position in enumerate(order):
        rank_of[position] = rank
    type_ = pa.uint8() if len(texts) <= 1 << 8 else pa.uint16()
    return RankEncoding(pa.array(rank_of, type_).take(found.indices), [texts[position] for position in order])


def _is_gathered(type_: pa.DataType) -> bool:
    """Whether Arrow can gather such values, and DuckDB reads what it gathered."""
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
