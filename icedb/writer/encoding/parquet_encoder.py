"""The encoder: rows in Arrow, in the order of storage, become the bytes of one Parquet file.

Every part is encoded here: those of inserts, Spark tasks, merges, rewrites and exports. A small file is encoded into
memory, and a large one into a local file; both are hashed while they are written. Files have the names of the columns
by which their rows are sorted, Iceberg's field ids, and a page index if a column has several pages. Columns with NaN
have no minimum and maximum: those of Parquet omit NaN, so that DuckDB, in which NaN is the greatest number, would skip
rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icedb.format.table_spec import ROW_GROUP_ROWS_MIN, TableSpec
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.writer.encoding.arrow_field_ids import with_field_ids
from icedb.writer.encoding.bloom_filters import filter_options
from icedb.writer.encoding.encoding_plan import SAMPLE_ROWS, Plans, leaf_columns, plan_encodings

__all__ = [
    "INSERT_LEVEL",
    "MERGE_LEVEL",
    "EncodedFile",
    "ParquetSettings",
    "batch_rows",
    "compact_dictionaries",
    "encode",
    "file_digest",
    "row_groups",
]

#: The zstd level of inserts. Faster by a third than level 3, and the parts of sorted rows are as small.
INSERT_LEVEL = 1
#: The zstd level of merged parts, which are kept for long.
MERGE_LEVEL = 2

# Columns of at most so many rows and bytes have one page, of which an index would repeat the statistics.
_PAGE_ROWS = 20_000
_PAGE_BYTES = 1024 * 1024
_CODECS = {"uncompressed": "none"}
_DIGEST_CHARS = 32
# So that the batch that is read is small relative to the row group that is held.
_BATCHES_PER_ROW_GROUP = 8


# Sizes of parts, each with a plan.
_SMALL_PLANS_MAX = 16


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """The settings of a table's files.

    `table`: its address, by which selected encodings are kept. `level`: the zstd level, if that is its compression.
    `small_plans` keeps the encodings of parts of few rows, which differ from batch to batch.
    """

    table: str
    spec: TableSpec
    level: int
    small_plans: Plans = field(default_factory=lambda: Plans(_SMALL_PLANS_MAX), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A Parquet file in memory, or at a path. `digest`: the first 32 hexadecimal digits of its SHA-256."""

    body: bytes | Path
    bytes: int
    digest: str
    rows: int


def encode(tables: Iterable[pa.Table], settings: ParquetSettings, *, rows: int, path: Path | None) -> EncodedFile:
    """Encode tables of one schema as one Parquet file, in their order. There must be a table, which may be empty.

    `rows`: the expected number of rows, which only affects the choice of encodings. The file is written to `path`, or
    into memory for None. Floats have statistics if `tables` is a sequence, or they fit into a row group: otherwise
    later rows may have NaN. Raises ValueError without a table, pyarrow.ArrowException, and OSError for the path.
    """
    if path is None:
        buffer = pa.BufferOutputStream()
        written = _write(buffer, tables, settings, rows)
        body = buffer.getvalue().to_pybytes()
        return EncodedFile(body, len(body), hashlib.sha256(body).hexdigest()[:_DIGEST_CHARS], written)
    with path.open("xb") as file:
        target = _HashingFile(file)
        written = _write(target, tables, settings, rows)
    return EncodedFile(path, target.bytes, target.digest.hexdigest()[:_DIGEST_CHARS], written)


def _write(target: Any, tables: Iterable[pa.Table], settings: ParquetSettings, rows: int) -> int:
    """Write tables, and return the number of their rows. Each row group is freed before the next one is read."""
    written = 0
    writer = None
    for group in row_groups(tables, settings.spec.row_group_rows):
        if writer is None:
            all_rows = tables if isinstance(tables, Sequence) else None
            writer = pq.ParquetWriter(
                target, with_field_ids(group.schema), **_options(settings, group, max(rows, group.num_rows), all_rows)
            )
        writer.write_table(group, row_group_size=settings.spec.row_group_rows)
        written += group.num_rows
        del group
    if writer is None:
        raise ValueError("there is no table to encode, and so no schema")
    writer.close()
    return written


def batch_rows(spec: TableSpec) -> int:
    """Return the number of rows to read from DuckDB at a time for an encoder, which holds a whole row group.

    DuckDB allocates batches outside its memory limit. A staged batch's spec has row groups that fit into the memory.
    """
    return max(ROW_GROUP_ROWS_MIN, min(ROWS_PER_BATCH, spec.row_group_rows // _BATCHES_PER_ROW_GROUP))


def row_groups(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield tables of whole row groups, except the last one. The generator keeps no whole row group that it yielded."""
    pending: list[pa.Table] = []
    count = 0
    for table in tables:
        pending.append(table)
        count += table.num_rows
        if count < rows:
            continue
        whole = count - count % rows
        joined = pa.concat_tables(pending)
        group, pending, count = [joined.slice(0, whole)], [joined.slice(whole)] if count > whole else [], count - whole
        del joined, table
        yield group.pop()
    if pending:
        yield pa.concat_tables(pending)


def _options(
    settings: ParquetSettings, first: pa.Table, rows: int, all_rows: Sequence[pa.Table] | None
) -> dict[str, Any]:
    """Return the options of a writer, from the first row group. `all_rows`: None if the other rows are not known."""
    is_whole = first.num_rows < settings.spec.row_group_rows
    middle = max(0, min(first.num_rows, settings.spec.row_group_rows) - SAMPLE_ROWS) // 2
    part_rows = min(rows, settings.spec.row_group_rows)
    plan = plan_encodings(settings.table, first.slice(middle, SAMPLE_ROWS), part_rows, small_plans=settings.small_plans)
    return {
        "compression": _CODECS.get(settings.spec.compression, settings.spec.compression),
        "compression_level": settings.level if settings.spec.compression == "zstd" else None,
        "use_dictionary": list(plan.dictionaries),
        "column_encoding": dict(plan.encodings) or None,
        "store_schema": False,  # readers shall map the types of Parquet, as those of files from other writers
        "store_decimal_as_integer": True,
        "write_page_index": rows > _PAGE_ROWS or first.nbytes > _PAGE_BYTES,
        "bloom_filter_options": filter_options(
            first.schema, settings.spec.bloom_filters, min(first.num_rows, settings.spec.row_group_rows)
        ),
        "sorting_columns": _sorting_columns(first.schema, settings.spec.sort_by),
        "write_statistics": _columns_with_bounds(first.schema, [first] if is_whole else all_rows),
    }


def _sorting_columns(schema: pa.Schema, sort_by: Sequence[str]) -> Sequence[pq.SortingColumn] | None:
    """Return the leading sort columns whose order in DuckDB is the order of Parquet. Floats have none for NaN."""
    names: list[tuple[str, str]] = []
    for column in sort_by:
        if column not in schema.names:
            continue
        type_ = schema.field(column).type
        if pa.types.is_floating(type_) or type_.num_fields:
            break
        names.append((column, "ascending"))
    return pq.SortingColumn.from_ordering(schema, names, null_placement="at_end") if names else None


def _columns_with_bounds(schema: pa.Schema, all_rows: Sequence[pa.Table] | None) -> bool | list[str]:
    """Return the Parquet paths of the columns without NaN, or True for all columns. None: the rows are not known."""
    floats = [field.name for field in schema if _has_floats(field.type)]
    unbounded = {
        name for name in floats if all_rows is None or any(_has_nan(c) for t in all_rows for c in t[name].chunks)
    }
    return not unbounded or [path for path, column in leaf_columns(schema) if column not in unbounded]


def _has_floats(type_: pa.DataType) -> bool:
    return pa.types.is_floating(type_) or any(_has_floats(type_.field(n).type) for n in range(type_.num_fields))


def _has_nan(array: pa.Array) -> bool:
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_nan(array)).as_py())
    if pa.types.is_struct(array.type):
        return any(_has_nan(field) for field in array.flatten())
    if pa.types.is_map(array.type):
        return _has_nan(array.keys) or _has_nan(array.items)
    return bool(array.type.num_fields) and _has_nan(array.values)


class _HashingFile:
    """A file that hashes what is written to it."""

    def __init__(self, file: BufferedWriter) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write and hash a buffer."""
        self.digest.update(data)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Write buffered data."""
        self._file.flush()

    def tell(self) -> int:
        """Return the position, which is the end."""
        return self.bytes

    def close(self) -> None:
        """Do nothing: the caller closes the file."""


def file_digest(path: Path) -> str:
    """Return the digest of a file for its marker: half of its SHA-256, which detects damage but not forgery."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_CHARS]


def compact_dictionaries(table: pa.Table) -> pa.Table:
    """Return the rows with dictionaries of their own values only, in the same order.

    A slice has the dictionary of the whole column, and Parquet would store all of it: also values of rows of other
    partitions, which a reader of this one must not see.
    """
    columns: Mapping[int, pa.Array] = {
        n: _compact(table.column(n).combine_chunks())
        for n, type_ in enumerate(table.schema.types)
        if pa.types.is_dictionary(type_)
    }
    for n, column in columns.items():
        table = table.set_column(n, pa.field(table.schema.field(n).name, column.type), column)
    return table


# A slice with this many times fewer rows than its dictionary has values is compacted by its rows.
_SMALL_SLICE = 8


def _compact(column: pa.DictionaryArray) -> pa.DictionaryArray:
    values = len(column.dictionary)
    indices = column.indices.drop_null() if column.null_count else column.indices
    if len(indices) * _SMALL_SLICE < values:  # do not visit each value of the dictionary for few rows
        used = pa.array(np.unique(indices.to_numpy()), column.indices.type)
        taken = pc.index_in(column.indices, value_set=used)
        return pa.DictionaryArray.from_arrays(taken, column.dictionary.take(used))
    is_used = np.bincount(indices.to_numpy(), minlength=values).astype(bool)
    if is_used.all():
        return column
    new_index = (np.cumsum(is_used) - 1).astype(np.int32)
    taken = pa.array(new_index).take(column.indices) if values else column.indices
    return pa.DictionaryArray.from_arrays(taken, column.dictionary.filter(pa.array(is_used)))
