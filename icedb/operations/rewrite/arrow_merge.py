"""Merges of parts in Arrow, without DuckDB: all rows at once, or a k-way merge of sorted parts if memory is scarce.

Both read parts whose types in Parquet are those of the table, from local files. DuckDB does the other rewrites: with a
predicate or a query, of parts that were written with other types, and of unsorted parts that do not fit into memory.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from icedb.writer.arrow_rows import decoded, encode_texts
from icedb.writer.encoding.arrow_types import arrow_type, is_same_type
from icedb.writer.row_order import row_order

__all__ = ["MergeInputs", "UnsortedParts", "merge_at_once", "merge_sorted", "open_inputs"]

# The rows as they are read, in order, and encoded.
_COPIES = 3
# An index of a dictionary, or the offset of a text, in bytes.
_OFFSET_BYTES = 4
_BATCH_ROWS_MAX = 65_536
_SAMPLE_ROWS = 256
# The shares of the memory for batches of all parts, which are copied some times, and for the pages from which they are
# read, as divisors.
_BATCHES_SHARE = 64
_PAGES_SHARE = 4
# A column is read through a buffer. Its pages in files of Arrow and of Java have about a MiB, and so have dictionaries.
_BUFFER_BYTES = 128 * 1024
_PAGES_BYTES = 2 * 1024 * 1024
_SMALL_PAGES = ("parquet-cpp", "parquet-mr")


class UnsortedParts(Exception):
    """The rows of a part do not have the table's order, for example because the part was imported."""


@dataclass(frozen=True, slots=True)
class MergeInputs:
    """Open parts, and the Arrow schema of the merged rows: the table's columns that some part has."""

    files: Sequence[pq.ParquetFile]
    schema: pa.Schema
    sort_by: Sequence[str]

    @property
    def rows(self) -> int:
        """The number of rows of all parts."""
        return sum(f.metadata.num_rows for f in self.files)

    @property
    def bytes(self) -> int:
        """An upper bound of the size of all rows in Arrow, in bytes, if texts with a dictionary keep one."""
        width = sum(map(_width, self.schema.types))
        return self.rows * width + sum(size for f in self.files for size in _row_group_sizes(f))

    def fit(self, memory_bytes: int) -> bool:
        """Whether all rows can be merged at once."""
        return self.bytes * _COPIES <= memory_bytes

    def can_stream(self, memory_bytes: int) -> bool:
        """Whether a k-way merge is possible: Python can compare the values, and pages of each part fit."""
        is_flat = not any(self.schema.field(column).type.num_fields for column in self.sort_by)
        return bool(self.sort_by) and is_flat and sum(map(_page_bytes, self.files)) * _PAGES_SHARE <= memory_bytes


def _row_group_sizes(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)]


def _page_bytes(file: pq.ParquetFile) -> int:
    """Return an upper bound of the memory from which a batch of a file is read: pages of each column."""
    groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    columns = range(file.metadata.num_columns)
    chunks = [max((group.column(n).total_uncompressed_size for group in groups), default=0) for n in columns]
    limit = _PAGES_BYTES if file.metadata.created_by.startswith(_SMALL_PAGES) else max(chunks, default=0)
    return sum(min(chunk, limit) + _BUFFER_BYTES for chunk in chunks)


def _width(type_: pa.DataType) -> int:
    """Return the bytes of a value of fixed size, or of the offset of another one."""
    if type_.num_fields:
        return _OFFSET_BYTES + sum(_width(type_.field(n).type) for n in range(type_.num_fields))
    try:
        return max(1, int(type_.bit_width) // 8)
    except ValueError:
        return _OFFSET_BYTES


@contextmanager
def open_inputs(
    paths: Sequence[str], schema: Mapping[str, str], sort_by: Sequence[str], *, dropped: Collection[str] = ()
) -> Iterator[MergeInputs | None]:
    """Open local parts; None if the columns of one have other names or types than the table's.

    `schema`: the table's columns with their DuckDB types. `dropped`: columns that are left out.

    Raises pyarrow.ArrowException and OSError.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(_open(path)) for path in paths]
        types = {column: arrow_type(type_) for column, type_ in schema.items()}
        if not all(_has_types(f.schema_arrow, types, dropped) for f in files):
            yield None
            return
        if coded := frozenset.intersection(*(_coded_texts(f) for f in files)):
            files = [opened.enter_context(_open(p, f.metadata, coded)) for p, f in zip(paths, files, strict=True)]
        present = {name for f in files for name in f.schema_arrow.names}
        columns = [column for column in schema if column in present]
        merged = pa.schema([(column, types[column]) for column in columns])
        yield MergeInputs(files, merged, [column for column in sort_by if column in present])


def _open(path: str, metadata: pq.FileMetaData | None = None, dictionaries: Iterable[str] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(
        path, metadata=metadata, read_dictionary=list(dictionaries), arrow_extensions_enabled=True, pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
    )  # fmt: skip


def _has_types(stored: pa.Schema, types: Mapping[str, pa.DataType | None], dropped: Collection[str]) -> bool:
    if len(set(stored.names)) < len(stored.names):
        return False
    kept = (field for field in stored if field.name not in dropped)
    return all((type_ := types.get(f.name)) is not None and is_same_type(f.type, type_) for f in kept)


def _coded_texts(file: pq.ParquetFile) -> frozenset[str]:
    """Return the text columns that have a dictionary in each row group."""
    names = [f.name for f in file.schema_arrow if pa.types.is_string(f.type)]
    groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
    plain = {chunk.path_in_schema for chunk in chunks if not chunk.has_dictionary_page}
    return frozenset(name for name in names if name not in plain)


def merge_at_once(
    con: duckdb.DuckDBPyConnection, inputs: MergeInputs, *, dropped: npt.NDArray[np.int64] | None = None
) -> pa.Table:
    """Return all rows in the order of the table, without those whose numbers are in `dropped`.

    DuckDB sorts values that have no integer key. Raises DuckDB's errors, pyarrow.ArrowException and OSError.
    """
    tables = [_filled(f.read(use_threads=False), inputs.schema) for f in inputs.files]
    table = pa.concat_tables(tables)
    if dropped is not None and len(dropped):
        kept = np.ones(table.num_rows, dtype=bool)
        kept[dropped] = False
        table = table.filter(pa.array(kept))
    table = table.unify_dictionaries().combine_chunks()
    for n, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
            table = table.set_column(n, field.name, encode_texts(table.column(n)))
    order = row_order(con, None, [table[column].chunk(0) for column in inputs.sort_by])
    return table if order is None else table.take(pa.array(order))


def _filled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, with nulls for those that the table lacks. Texts may have a dictionary."""
    columns = []
    for field in schema:
        position = table.schema.get_field_index(field.name)
        columns.append(pa.nulls(table.num_rows, field.type) if position < 0 else table.column(position))
    return pa.Table.from_arrays(columns, names=schema.names)


def merge_sorted(con: duckdb.DuckDBPyConnection, inputs: MergeInputs, memory_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of sorted parts in the order of the table, a batch of each part at a time.

    Raises UnsortedParts, DuckDB's errors, pyarrow.ArrowException and OSError.
    """
    rows = _batch_rows(inputs, memory_bytes)
    runs = [_Run(f.iter_batches(rows, use_threads=False), inputs) for f in inputs.files]
    last: tuple[Any, ...] | None = None
    while active := [run for run in runs if run.fill()]:
        bound = min(run.key(-1) for run in active)
        piece = pa.concat_tables(run.take_until(bound) for run in active)
        if not piece.num_rows:  # the last row of an unsorted batch is before its other rows
            raise UnsortedParts
        order = row_order(con, None, [piece[column].combine_chunks() for column in inputs.sort_by])
        piece = piece if order is None else piece.take(pa.array(order))
        first = _key(piece, 0, inputs.sort_by)
        if last is not None and first < last:
            raise UnsortedParts
        last = _key(piece, piece.num_rows - 1, inputs.sort_by)
        yield piece


def _batch_rows(inputs: MergeInputs, memory_bytes: int) -> int:
    """Return the rows of a batch, so that a batch of each part takes its share of the memory."""
    first = next(inputs.files[0].iter_batches(_SAMPLE_ROWS, use_threads=False), None)
    row_bytes = 1 if first is None or not first.num_rows else max(1, _decoded(first).nbytes // first.num_rows)
    return max(1, min(_BATCH_ROWS_MAX, memory_bytes // _BATCHES_SHARE // len(inputs.files) // row_bytes))


def _decoded(batch: pa.RecordBatch) -> pa.Table:
    return decoded(pa.Table.from_batches([batch]))


class _Run:
    """A sorted part, and those of its rows that have been read and are not merged yet."""

    def __init__(self, batches: Iterator[pa.RecordBatch], inputs: MergeInputs) -> None:
        self._batches = batches
        self._inputs = inputs
        self._rows = pa.Table.from_batches([], inputs.schema)

    def fill(self) -> bool:
        """Read a batch if no row is left. Returns whether there are rows."""
        while not self._rows.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._rows = _filled(_decoded(batch), self._inputs.schema)
        return True

    def key(self, row: int) -> tuple[Any, ...]:
        """Return the sort key of a row."""
        return _key(self._rows, row % self._rows.num_rows, self._inputs.sort_by)

    def take_until(self, bound: tuple[Any, ...]) -> pa.Table:
        """Remove and return the rows with keys up to and including a bound."""
        count = bisect_right(range(self._rows.num_rows), bound, key=self.key)
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _key(table: pa.Table, row: int, sort_by: Sequence[str]) -> tuple[Any, ...]:
    """Return a key whose order in Python is that of the rows in DuckDB."""
    return tuple(_comparable(table[column][row]) for column in sort_by)


def _comparable(value: pa.Scalar) -> tuple[Any, ...]:
    """Return a value such that null is the greatest, and NaN is greater than the other numbers."""
    if not value.is_valid:
        return (1,)
    if pa.types.is_floating(value.type):
        number = value.as_py()
        return (0, math.isnan(number), 0.0 if math.isnan(number) else number)
    if pa.types.is_temporal(value.type):
        return (0, value.value)
    return (0, value.as_py())
