"""The partition of each row of a batch in Arrow: its values by rank, and the texts of its path.

DuckDB evaluates the expressions, ranks their distinct values and writes their texts. Ranks of several expressions are
combined into one number for each partition, in the order of the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from icedb.sql.connections import RESERVED
from icedb.writer.row_order import IntegerKey, Integers

__all__ = ["Partitions", "RankedValues", "combine", "rank_values"]

_VALUES = f"{RESERVED}values"
# Combined ranks up to this many for each row are counted in an array. More are sorted.
_COUNTED_PER_ROW = 4
_COUNTED_MIN = 1 << 16


@dataclass(frozen=True, slots=True)
class RankedValues:
    """The values of one expression: each row's rank, and DuckDB's text of each rank. The text of null is None."""

    ranks: Integers
    texts: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Partitions:
    """Each row's partition by number, and the number of rows and the values' texts of each partition."""

    numbers: IntegerKey
    rows: Sequence[int]
    texts: Sequence[tuple[str | None, ...]]


def rank_values(con: duckdb.DuckDBPyConnection, array: pa.Array, type_: str) -> RankedValues:
    """Rank the values of an array of this DuckDB type in DuckDB's order. Null is the last. Raises DuckDB's errors."""
    if isinstance(array, pa.DictionaryArray):  # sorted texts
        nulls = len(array.dictionary)
        ranks = (array.indices.fill_null(nulls) if array.null_count else array.indices).to_numpy()
        texts = array.dictionary.to_pylist()
        return RankedValues(ranks.astype(np.uint64), [*texts, None] if array.null_count else texts)
    encoded = array.dictionary_encode(null_encoding="encode")
    con.register(_VALUES, pa.table({"v": encoded.dictionary, "n": np.arange(len(encoded.dictionary))}))
    try:
        rows = con.execute(
            f"SELECT dense_rank() OVER (ORDER BY CAST(v AS {type_})) - 1 AS r, CAST(CAST(v AS {type_}) AS VARCHAR), n "
            f"FROM {_VALUES} ORDER BY r"
        ).fetchall()
    finally:
        con.unregister(_VALUES)
    rank = np.empty(len(rows), np.uint64)
    text_of: dict[int, str | None] = {}
    for position, text, number in rows:
        rank[number] = position
        text_of.setdefault(position, text)
    return RankedValues(rank[encoded.indices.to_numpy()], list(text_of.values()))


def combine(expressions: Sequence[RankedValues], rows: int) -> Partitions:
    """Combine the ranks of all partition columns. Without a column all rows are in one partition."""
    numbers: Integers = np.zeros(rows, np.uint64)
    texts: list[tuple[str | None, ...]] = [()] if rows else []
    for values in expressions:
        count = len(values.texts)
        present, numbers = _dense(numbers * np.uint64(count) + values.ranks, count * len(texts))
        texts = [(*texts[p // count], values.texts[p % count]) for p in present]
    sizes = np.bincount(numbers.astype(np.int64), minlength=len(texts))
    return Partitions(IntegerKey(numbers, max(0, len(texts) - 1)), sizes.tolist(), texts)


def _dense(numbers: Integers, count: int) -> tuple[Sequence[int], Integers]:
    """Return the distinct numbers of those below `count`, in order, and the position of each number among them."""
    if count > max(_COUNTED_MIN, _COUNTED_PER_ROW * len(numbers)):
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return distinct.tolist(), inverse.astype(np.uint64)
    signed = numbers.astype(np.int64)
    is_present = np.bincount(signed, minlength=count) > 0
    positions = (np.cumsum(is_present) - 1).astype(np.uint64)
    return np.flatnonzero(is_present).tolist(), positions[signed]
