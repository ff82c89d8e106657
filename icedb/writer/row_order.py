"""The order of rows in Arrow, as DuckDB's ORDER BY: by integer keys that are packed into 64 bits where they fit.

A sort of integers moves the least data. A key is the distance of a value from the smallest one, and null is greater
than each value. The keys of a row and its number are packed into one integer, so that the sorted integers contain the
order. If they need more bits, numpy sorts several integers for each row. DuckDB sorts texts of many values, decimals
and nested values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icedb.sql.connections import RESERVED
from icedb.util.arrow_offsets import copy_nested_slices

__all__ = ["IntegerKey", "Integers", "RowNumbers", "integer_key", "row_order"]

Integers: TypeAlias = npt.NDArray[np.uint64]
RowNumbers: TypeAlias = npt.NDArray[np.int64]

_WORD_BITS = 64
_KEYS = f"{RESERVED}keys"
_NUMBER = f"{RESERVED}number"
# The number of rows that a thread of DuckDB reads at a time: a row group of DuckDB's.
_ROWS_PER_THREAD = 122_880


@dataclass(frozen=True, slots=True)
class IntegerKey:
    """Unsigned integers in the order of a column's values. The greatest is at most `maximum`."""

    values: Integers
    maximum: int

    @property
    def bits(self) -> int:
        """The number of bits of the greatest value."""
        return self.maximum.bit_length()


def integer_key(array: pa.Array) -> IntegerKey | None:
    """Return the key of a column, or None if its values are not integers, times, floats or ordered ranks.

    A dictionary-encoded column must have a sorted dictionary.
    """
    if isinstance(array, pa.DictionaryArray):
        return integer_key(array.indices)
    type_ = array.type
    if pa.types.is_floating(type_):
        return _float_key(array) if type_.bit_width > 16 else None
    if pa.types.is_boolean(type_):
        array = array.cast(pa.uint8())
    elif pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        array = array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(type_):
        return None
    ends = pc.min_max(array)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None:
        return IntegerKey(np.zeros(len(array), np.uint64), 0)
    nulls = array.null_count
    values = (array.fill_null(low) if nulls else array).to_numpy(zero_copy_only=False)
    # The difference is right modulo 2**64, also where int64 overflows.
    keys = values.astype(np.uint64) - np.uint64(low % 2**_WORD_BITS)
    if not nulls:
        return IntegerKey(keys, high - low)
    if high - low + 1 >= 2**_WORD_BITS:
        return None
    keys[_is_null(array)] = high - low + 1
    return IntegerKey(keys, high - low + 1)


def _float_key(array: pa.Array) -> IntegerKey:
    """Return the bits of floats in DuckDB's order: -inf to inf, NaN, null. -0.0 is equal to 0.0."""
    signed, unsigned, width = (np.int32, np.uint32, 32) if array.type.bit_width == 32 else (np.int64, np.uint64, 64)
    values = (array.fill_null(0.0) if array.null_count else array).to_numpy(zero_copy_only=False) + 0.0
    bits = values.view(signed)
    ordered: npt.NDArray[Any] = np.where(bits < 0, ~bits, bits | signed(np.iinfo(signed).min)).view(unsigned)
    ordered[np.isnan(values)] = 2**width - 2
    ordered[_is_null(array)] = 2**width - 1
    return IntegerKey(ordered.astype(np.uint64), 2**width - 1)


def _is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def row_order(
    con: duckdb.DuckDBPyConnection, partitions: IntegerKey | None, columns: Sequence[pa.Array]
) -> RowNumbers | None:
    """Return the row numbers in the order of partition and columns; None if the rows have that order already.

    Raises DuckDB's errors.
    """
    keys = [] if partitions is None else [partitions]
    for n, column in enumerate(columns):
        key = integer_key(column)
        if key is None:
            return _sorted_by_duckdb(con, keys, columns[n:])
        keys.append(key)
    return _sorted_by_numpy(keys)


def _sorted_by_numpy(keys: Sequence[IntegerKey]) -> RowNumbers | None:
    words = _packed(keys)
    if not words:
        return None
    rows = len(words[0].values)
    if len(words) == 1:
        if bool(np.all(words[0].values[1:] >= words[0].values[:-1])):
            return None
        number_bits = max(rows - 1, 1).bit_length()
        if words[0].bits + number_bits <= _WORD_BITS:
            packed = (words[0].values << np.uint64(number_bits)) | np.arange(rows, dtype=np.uint64)
            packed.sort()
            return (packed & np.uint64((1 << number_bits) - 1)).astype(np.int64)
    return np.lexsort([word.values for word in reversed(words)])


def _packed(keys: Sequence[IntegerKey]) -> list[IntegerKey]:
    """Combine adjacent keys into as few integers as possible, and leave out keys of a single value."""
    words: list[IntegerKey] = []
    for key in keys:
        if not key.bits:
            continue
        if words and words[-1].bits + key.bits <= _WORD_BITS:
            word = words.pop()
            values = (word.values << np.uint64(key.bits)) | key.values
            words.append(IntegerKey(values, (word.maximum << key.bits) | (1 << key.bits) - 1))
        else:
            words.append(key)
    return words


def _sorted_by_duckdb(
    con: duckdb.DuckDBPyConnection, keys: Sequence[IntegerKey], columns: Sequence[pa.Array]
) -> RowNumbers:
    """Sort by keys, then by columns. DuckDB reads only these, and returns row numbers."""
    arrays = [pa.array(word.values) for word in _packed(keys)]
    arrays += [c.indices if isinstance(c, pa.DictionaryArray) else c for c in columns]
    names = [f"k{n}" for n in range(len(arrays))]
    rows = len(columns[0])
    table = pa.table([*arrays, np.arange(rows)], names=[*names, _NUMBER])
    batches = [copy_nested_slices(b) for b in table.to_batches(max_chunksize=_ROWS_PER_THREAD)]
    con.register(_KEYS, pa.Table.from_batches(batches, table.schema))
    try:
        query = f"SELECT {_NUMBER} FROM {_KEYS} ORDER BY {', '.join(names)}"
        return np.asarray(con.execute(query).to_arrow_table()[_NUMBER].to_numpy())
    finally:
        con.unregister(_KEYS)
