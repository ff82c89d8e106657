"""Conversion of any supported input into a batch.

It accepts a list of dicts, pyarrow Tables, RecordBatches and readers, pandas, Polars (eager and lazy), a DuckDB
relation, every other object with `__arrow_c_stream__`, and paths or globs of Parquet, JSON lines and CSV. No object of
the caller is modified or copied whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvalidBatch
from icedb.sources.batch import Batch, ColumnsInAnyCase, OnConflict, Rows
from icedb.sources.csv_source import open_csv
from icedb.sources.data_frames import is_frame, open_pandas, open_polars, open_relation
from icedb.sources.files import open_files
from icedb.sources.globs import Format, is_paths
from icedb.sources.inference.nanoseconds import microseconds
from icedb.sources.jsonl_source import open_json
from icedb.sources.parquet_source import open_parquet
from icedb.sources.python_rows import open_rows
from icedb.sql.query_result import QueryResult
from icedb.storage.location import Location
from icedb.util.progress import Advance, has_watcher, progress
from icedb.util.temporary_files import temporary_folder

__all__ = ["open_batch"]

_READERS: Mapping[Format, Callable[..., Batch]] = {"parquet": open_parquet, "json": open_json, "csv": open_csv}


@contextmanager
def open_batch(
    data: Rows,
    *,
    location: Location,
    table_columns: Mapping[str, str],
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
) -> Iterator[Batch]:
    """Open the rows as a batch, which is valid until the context ends.

    `location` is the table's, for messages and credentials. `table_columns` are the table's columns with their DuckDB
    types. `memory_bytes` is the limit of the whole insert. Reading files takes a part of it.

    Raises InvalidBatch, SchemaConflict and UnsupportedType. An error that occurs while the rows are read replaces the
    error that Arrow or DuckDB raises in the body of the context.
    """
    failures: list[IceDBError] = []
    table_columns = ColumnsInAnyCase(table_columns)
    with ExitStack() as stack:

        def folder() -> Path:  # created on demand: most batches need none, and it costs much for a small one
            return stack.enter_context(temporary_folder("input"))

        try:
            if is_paths(data):
                with open_files(
                    data,
                    location=location,
                    table_columns=table_columns,
                    on_conflict=on_conflict,
                    folder=folder(),
                    memory_bytes=memory_bytes,
                ) as reading:
                    batch = _READERS[reading.files.format](reading, failed=failures.append)
                    with ExitStack() as reads:
                        advance = reads.enter_context(progress("reading files", None, "rows"))
                        yield _with_progress(batch, advance, reads.close) if has_watcher() else batch
            else:
                batch = _from_rows(data, location.uri, table_columns, on_conflict, folder, failures.append)
                yield replace(batch, stream=microseconds(batch.stream, table=location.uri, failed=failures.append))
        except Exception:
            if failures:  # an error of a stream loses its type in Arrow
                raise failures[0] from None
            raise


def _with_progress(batch: Batch, advance: Advance, end: Callable[[], None]) -> Batch:
    """Return a batch that reports the number of rows that were read, and its end."""

    def batches() -> Iterator[pa.RecordBatch]:
        for record_batch in batch.stream:
            yield record_batch
            advance(record_batch.num_rows)
        end()

    return replace(batch, stream=pa.RecordBatchReader.from_batches(batch.stream.schema, batches()))


def _from_rows(
    data: Any,
    table: str,
    table_columns: Mapping[str, str],
    on_conflict: OnConflict,
    folder: Callable[[], Path],
    failed: Callable[[IceDBError], None],
) -> Batch:
    if isinstance(data, pa.RecordBatchReader):
        return Batch(data)
    if isinstance(data, pa.RecordBatch):
        return Batch(pa.RecordBatchReader.from_batches(data.schema, [data]))
    if isinstance(data, duckdb.DuckDBPyRelation | QueryResult):
        relation = data.relation if isinstance(data, QueryResult) else data
        return open_relation(relation, table=table, failed=failed)
    if is_frame(data, "pandas", "DataFrame"):
        return open_pandas(data, table=table, table_columns=table_columns, on_conflict=on_conflict, failed=failed)
    if is_frame(data, "polars", "DataFrame") or is_frame(data, "polars", "LazyFrame"):
        return open_polars(data, table=table, folder=folder)
    if hasattr(data, "__arrow_c_stream__"):
        return Batch(_from_stream(data, table))
    if isinstance(data, Sequence) and not isinstance(data, bytes | bytearray | memoryview):
        return open_rows(data, table=table, table_columns=table_columns, on_conflict=on_conflict, failed=failed)
    raise _no_rows(data, table)


def _from_stream(data: Any, table: str) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError):
        raise _no_rows(data, table) from None


def _no_rows(data: object, table: str) -> InvalidBatch:
    return InvalidBatch(
        f"{table}: cannot take rows from a {type(data).__module__}.{type(data).__qualname__}. Give a list of dicts, "
        "a pyarrow Table, RecordBatch or RecordBatchReader, a frame of pandas or Polars, a DuckDB relation, any other "
        "object of columns with __arrow_c_stream__, or paths of Parquet, JSON lines or CSV."
    )
