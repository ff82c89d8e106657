"""The rows of a batch in Arrow, with the types of their parts: converted, partitioned, sorted, and gathered by part.

DuckDB evaluates conversions and partition expressions once for each batch, in the sandbox. Everything else is done
here: only sort keys are sorted, and a part gathers its rows when it is encoded (late materialization). A text column
with few distinct values becomes the ranks of its values, which are faster to sort, to gather and to encode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icedb.errors import InvariantViolated
from icedb.sql.connections import RESERVED
from icedb.util.arrow_offsets import copy_nested_slices
from icedb.writer.row_order import RowNumbers

__all__ = ["BYTES_MAX", "ROWS_AT_A_TIME", "ArrowRows", "decoded", "encode_texts", "evaluate", "one_chunk"]

#: The maximum size in Arrow, in bytes: a column of text must fit into one array, whose offsets have 31 bits.
BYTES_MAX = 1 << 30
#: The number of rows that a thread of DuckDB reads at a time: a row group of DuckDB's.
ROWS_AT_A_TIME = 122_880

# A column has few distinct values if its first `_SAMPLE_ROWS` rows have at most `_SAMPLE_VALUES_MAX`.
_SAMPLE_ROWS = 16_384
_SAMPLE_VALUES_MAX = 1_024
# Ranks have at most two bytes.
_VALUES_MAX = (1 << 15) - 1

_ROWS = f"{RESERVED}rows"
_NUMBER = f"{RESERVED}number"


@dataclass(slots=True)
class ArrowRows:
    """Rows with one array for each column. `order`: their numbers in the order of storage; None for the given order."""

    table: pa.Table
    order: RowNumbers | None = None

    def gather(self, first: int, rows: int) -> pa.Table:
        """Return adjacent rows in the order of storage."""
        if self.order is None:
            return self.table.slice(first, rows)
        return self.table.take(pa.array(self.order[first : first + rows]))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the order of storage, without dictionaries."""
        for first in range(0, self.table.num_rows, ROWS_AT_A_TIME):
            piece = self.gather(first, min(ROWS_AT_A_TIME, self.table.num_rows - first))
            yield from map(copy_nested_slices, decoded(piece).to_batches())


def decoded(table: pa.Table) -> pa.Table:
    """Return the rows with texts in place of dictionaries."""
    for n, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(n, field.name, table.column(n).cast(field.type.value_type))
    return table


def one_chunk(table: pa.Table) -> pa.Table | None:
    """Return the rows with one array for each column; None if a column does not fit into one."""
    if table.nbytes > BYTES_MAX:
        return None
    table = table.combine_chunks()
    return None if any(column.num_chunks > 1 for column in table.columns) else table


def evaluate(
    con: duckdb.DuckDBPyConnection,
    rows: pa.Table,
    columns: Mapping[str, str],
    *,
    wanted: Sequence[str] | None = None,
    lacking: Sequence[str] = (),
) -> pa.Table:
    """Return SQL expressions (by their new names) of each row, in the order of `rows`.

    `wanted`: the columns of `rows` that they may name (None: all). `lacking`: SQL of further columns, with aliases. The
    result has fewer or more rows if an expression does not return one value for each row. Raises DuckDB's errors.
    """
    numbers = pa.array(np.arange(rows.num_rows))
    selected = {name: rows[name] for name in (rows.schema.names if wanted is None else wanted)}
    numbered = pa.table({**selected, _NUMBER: numbers})
    batches = (copy_nested_slices(batch) for batch in numbered.to_batches(max_chunksize=ROWS_AT_A_TIME))
    con.register(_ROWS, pa.RecordBatchReader.from_batches(numbered.schema, batches))
    try:
        select = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        source = f"SELECT {', '.join(['*', *lacking])} FROM {_ROWS}"
        result = con.execute(f"SELECT {select}, {_NUMBER} FROM ({source})").to_arrow_table()
    finally:
        con.unregister(_ROWS)
    returned = result[_NUMBER].to_numpy()
    if len(returned) == rows.num_rows and not np.array_equal(returned, numbers):
        raise InvariantViolated("DuckDB returned rows in another order. Nothing was written. Please report this error.")
    return result.drop_columns([_NUMBER])


def encode_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a text column with a sorted dictionary, or without one if it has too many distinct values.

    The ranks have the order of the texts in DuckDB, which is that of their UTF-8 bytes.
    """
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if not isinstance(array, pa.DictionaryArray):
        if len(array.slice(0, _SAMPLE_ROWS).dictionary_encode().dictionary) > _SAMPLE_VALUES_MAX:
            return pa.chunked_array([array])
        encoded = array.dictionary_encode()
        if len(encoded.dictionary) > _VALUES_MAX:
            return pa.chunked_array([array])
    elif len(array.dictionary) > _VALUES_MAX:
        return pa.chunked_array([array.dictionary_decode()])
    else:
        encoded = array
    order = pc.sort_indices(encoded.dictionary)
    rank: npt.NDArray[np.int16] = np.empty(len(order), np.int16)
    rank[order.to_numpy()] = np.arange(len(order))
    ranks = pa.array(rank).take(encoded.indices)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(ranks, encoded.dictionary.take(order))])
