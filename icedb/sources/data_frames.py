"""Conversion of frames and relations into a batch: pandas, Polars (eager and lazy) and DuckDB.

Frames are recognized by the names of their classes, so pandas and Polars are not imported here. No object of the caller
is changed: a relation runs again, a lazy frame is streamed to a temporary file, a pandas frame is converted in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvalidBatch, UnsupportedType
from icedb.sources.batch import CHUNK_ROWS, Batch, OnConflict
from icedb.sources.files import cast_types
from icedb.sources.python_rows import RowObserver
from icedb.sql.types import storage_type

__all__ = ["is_frame", "open_pandas", "open_polars", "open_relation"]

# Arrow has no such types. Polars exports pointers or bytes for them, or raises an error that does not name the column.
_POLARS_ONLY = frozenset(("Object", "Int128", "UInt128", "Unknown"))


def is_frame(data: object, package: str, name: str) -> bool:
    """Return whether an object's class, or one of its bases, is the named class of the package."""
    return any(c.__module__.partition(".")[0] == package and c.__name__ == name for c in type(data).__mro__)


def open_relation(relation: duckdb.DuckDBPyRelation, *, table: str, failed: Callable[[IceDBError], None]) -> Batch:
    """Open the rows of a DuckDB relation. Raises UnsupportedType, and InvalidBatch if the query fails."""
    columns = {c: str(t) for c, t in zip(relation.columns, relation.types, strict=True)}
    for column, type_ in columns.items():
        storage_type(type_, column=column, table=table)

    def invalid(error: Exception) -> InvalidBatch:
        reason = str(error).splitlines()[0]
        return InvalidBatch(f"{table}: the DuckDB relation cannot be read: {reason}. Correct its query.")

    try:
        # A copy, so that a fetch that the caller has begun can continue.
        reader = relation.select("*").to_arrow_reader(CHUNK_ROWS)
    except duckdb.Error as error:
        raise invalid(error) from None

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            failed(invalid(error))
            raise invalid(error) from None

    stream = pa.RecordBatchReader.from_batches(reader.schema, batches())
    return Batch(stream, types=cast_types(columns))


def open_polars(frame: Any, *, table: str, folder: Callable[[], Path]) -> Batch:
    """Open a Polars DataFrame, or a LazyFrame, which is run into a `folder`. Raises UnsupportedType, InvalidBatch."""
    is_lazy = is_frame(frame, "polars", "LazyFrame")
    path = folder() / "lazy.arrow" if is_lazy else Path()
    try:
        schema = frame.collect_schema() if is_lazy else frame.schema
        for name, type_ in schema.items():
            _check_polars(type_, name, table)
        if not is_lazy:
            return Batch(_simplified(pa.RecordBatchReader.from_stream(frame)))
        frame.sink_ipc(path, compression="zstd")
    except IceDBError:
        raise
    except Exception as error:  # noqa: BLE001  # the caller's query can raise any error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidBatch(f"{table}: the Polars frame cannot be read: {reason}. Correct it.") from None
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = (file.get_batch(n) for n in range(file.num_record_batches))
    return Batch(_simplified(pa.RecordBatchReader.from_batches(file.schema, batches)))


def _check_polars(type_: Any, column: str, table: str) -> None:
    name = str(type_.base_type()) if hasattr(type_, "base_type") else str(type_)
    if name in _POLARS_ONLY:
        remedy = "Decimal(38, 0) or String" if "128" in name else "a type that Arrow has"
        raise UnsupportedType(f"{table}: column '{column}' holds Polars' {name}. Cast it to {remedy}.")
    for inner in (getattr(type_, "inner", None), *(f.dtype for f in getattr(type_, "fields", ()))):
        if inner is not None:
            _check_polars(inner, column, table)


def _simplified(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Decode categories, and convert times of day from Polars' nanoseconds to microseconds."""
    schema = pa.schema([(f.name, _simple(f.type)) for f in reader.schema])
    if schema.equals(reader.schema):
        return reader
    batches = (
        pa.RecordBatch.from_arrays([_cast(a, f.type) for a, f in zip(b.columns, schema, strict=True)], schema=schema)
        for b in reader
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):  # Arrow has no `take` for string views, which Polars' categories are
        return pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(type_)).dictionary_decode()
    return array.cast(type_)


def _simple(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return pa.large_string() if pa.types.is_string_view(type_.value_type) else type_.value_type
    return pa.time64("us") if type_.equals(pa.time64("ns")) else type_


def open_pandas(
    frame: Any,
    *,
    table: str,
    table_columns: Mapping[str, str],
    on_conflict: OnConflict,
    failed: Callable[[IceDBError], None],
) -> Batch:
    """Open a pandas DataFrame. NaN becomes null. An index with a name becomes a column.

    Columns of objects are converted like values in dicts. Raises InvalidBatch, SchemaConflict, UnsupportedType.
    """
    getters = _pandas_columns(frame, table)
    observer = RowObserver(table, table_columns, failed)
    plain: dict[str, pa.DataType] = {}
    for name, get in getters.items():
        empty = get(0, 0)
        if str(empty.dtype) != "object":
            plain[name] = _pandas_type(empty, name, table)
            continue
        observer.observe_column(name, [], 0)
        for start in range(0, len(frame), CHUNK_ROWS):
            observer.observe_column(name, _objects(get(start, start + CHUNK_ROWS)), start)
    columns = observer.columns(on_conflict)
    schema = pa.schema([(n, plain[n] if n in plain else columns.arrow_type(n)) for n in getters])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(frame), CHUNK_ROWS):
            arrays = []
            for name, get in getters.items():
                values = get(start, start + CHUNK_ROWS)
                if name in plain:
                    arrays.append(_cast(pa.array(values, from_pandas=True), plain[name]))
                else:
                    arrays.append(columns.build(name, _objects(values)))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return columns.described(pa.RecordBatchReader.from_batches(schema, batches()), source="insert")


def _pandas_columns(frame: Any, table: str) -> dict[str, Callable[[int, int], Any]]:
    """Return column -> a function that slices it. Index levels with a name come last, as in `to_parquet`."""
    slices: dict[str, Callable[[int, int], Any]] = {}
    indexes = [(n, _index_slice(frame, i)) for i, n in enumerate(frame.index.names) if n is not None]
    for name, get in [*((n, _column_slice(frame, i)) for i, n in enumerate(frame.columns)), *indexes]:
        if not isinstance(name, str):
            raise InvalidBatch(f"{table}: the frame has the column name {name!r}, which is not text. Rename it.")
        if name in slices:
            raise InvalidBatch(f"{table}: the batch has a column twice: '{name}'. Rename one, or reset the index.")
        slices[name] = get
    return slices


def _column_slice(frame: Any, number: int) -> Callable[[int, int], Any]:
    return lambda start, end: frame.iloc[start:end, number]


def _index_slice(frame: Any, level: int) -> Callable[[int, int], Any]:
    return lambda start, end: frame.index[start:end].get_level_values(level)


def _pandas_type(empty: Any, name: str, table: str) -> pa.DataType:
    try:
        type_ = pa.array(empty, from_pandas=True).type
    except (pa.ArrowException, TypeError, ValueError):
        type_ = None
    if type_ is None or isinstance(type_, pa.BaseExtensionType):
        raise UnsupportedType(
            f"{table}: column '{name}' has pandas' type {empty.dtype}, which Arrow does not have. Convert it."
        )
    return _simple(type_)


def _objects(values: Any) -> list[Any]:
    return [None if isinstance(v, float) and v != v else v for v in values]
