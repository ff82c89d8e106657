"""Access to input files: Parquet, JSON lines and CSV, in local folders or in S3, by paths and globs.

DuckDB reads the files. Each format has a module. This one finds the files, gives the connection access to their
buckets, and has the helpers that all formats use. Hive partition columns are read from the paths, as DuckDB does: if
all paths have the same folders `name=value`, these are columns, unless the file has a column of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pyarrow as pa

from icedb.errors import AccessDenied, IceDBError, InvalidBatch, StoreUnavailable
from icedb.sources.batch import CHUNK_ROWS, OnConflict
from icedb.sources.globs import Files, find_files
from icedb.sql.connections import (
    READING_SHARE,
    RESERVED,
    WRITE_MEMORY_BYTES_MIN,
    attach_s3,
    connect_reader,
    memory_bytes_default,
    quote_name,
    quote_text,
)
from icedb.sql.types import describe
from icedb.storage.location import Location, parse_location
from icedb.storage.obstore_store import ObjectNotFound, fetch, open_store

__all__ = [
    "FILE_COLUMN",
    "FileInput",
    "cast_types",
    "columns_of",
    "first_line",
    "no_values",
    "open_files",
    "partition_sql",
    "select_list",
    "stream",
]

#: The column with the path of a row's file. Its name is reserved.
FILE_COLUMN = f"{RESERVED}file"
_EXPLANATION = re.compile(r"Expected Number of Columns|Value with unterminated quote|Invalid unicode|Maximum line size")
_TYPES_OF_TEXT = re.compile(r"(?<![A-Za-z_])(UUID|JSON)(?![A-Za-z_])")


@dataclass(frozen=True, slots=True)
class FileInput:
    """The input of the readers of all formats: a connection with access to the files, and the table's columns."""

    con: duckdb.DuckDBPyConnection
    files: Files
    table: str
    table_columns: Mapping[str, str]
    on_conflict: OnConflict
    #: Returns a context in which one of the files is a local file.
    fetched: Callable[[str], AbstractContextManager[Path]]

    def refuse(self, error: duckdb.Error) -> NoReturn:
        """Raise the error of `icedb.errors` for an error of DuckDB."""
        raise _translate(self, error) from None


@contextmanager
def open_files(
    data: object,
    *,
    location: Location,
    table_columns: Mapping[str, str],
    on_conflict: OnConflict,
    folder: Path,
    memory_bytes: int | None = None,
) -> Iterator[FileInput]:
    """Connect to read the files that paths and globs name. The connection spills into `folder`.

    Raises InvalidBatch if there are no files, or files of several formats.
    """
    limit = max(WRITE_MEMORY_BYTES_MIN, (memory_bytes or memory_bytes_default()) // READING_SHARE)
    with connect_reader(Location("memory", "", ""), memory_bytes=limit, folder=folder) as con:
        files = find_files(con, data, table=location.uri, attach=lambda b: attach_s3(con, _bucket(location, b)))
        yield FileInput(
            con, files, location.uri, table_columns, on_conflict, lambda path: _fetched(location, folder, path)
        )


def _bucket(location: Location, name: str) -> Location:
    if location.scheme == "s3":
        return replace(location, root=name, prefix="", log=None)
    return parse_location(f"s3://{name}")


@contextmanager
def _fetched(location: Location, folder: Path, path: str) -> Iterator[Path]:
    if not path.startswith("s3://"):
        yield Path(path)
        return
    bucket, _, key = path.removeprefix("s3://").partition("/")
    file = folder / "fetched"
    try:
        fetch(open_store(_bucket(location, bucket)), key, file)
        yield file
    except ObjectNotFound:
        raise InvalidBatch(f"{location.uri}: '{path}' does not exist any more. Correct the path.") from None
    finally:
        file.unlink(missing_ok=True)


def stream(
    reading: FileInput, select: str, *, failed: Callable[[IceDBError], None], untyped: Collection[str] = ()
) -> pa.RecordBatchReader:
    """Return the rows of a query as a stream. An error while they are read is passed to `failed`, and raised.

    `untyped`: columns without any value, for which DuckDB chooses a type.
    """
    try:
        reader = reading.con.execute(select).to_arrow_reader(CHUNK_ROWS)
    except duckdb.Error as error:
        reading.refuse(error)

    schema = pa.schema([pa.field(f.name, pa.null()) if f.name in untyped else f for f in reader.schema])

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                columns = zip(schema.names, batch.columns, strict=True)
                arrays = [pa.nulls(len(a)) if n in untyped else a for n, a in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            translated = _translate(reading, error)
            failed(translated)
            raise translated from None

    return pa.RecordBatchReader.from_batches(schema, batches())


def partition_sql(reading: FileInput, columns: Mapping[str, str]) -> dict[str, str]:
    """Return column -> SQL of the partition columns that only the paths have."""
    present = {c.casefold() for c in columns}
    values = {}
    for name, type_ in reading.files.partition_types(reading.table_columns).items():
        if name.casefold() not in present:
            folder = quote_text(f"(?:^|/){re.escape(name)}=([^/]*)/")
            value = f"url_decode(regexp_extract({FILE_COLUMN}, {folder}, 1))"
            values[name] = f"CAST(nullif({value}, '__HIVE_DEFAULT_PARTITION__') AS {type_})"
    return values


def cast_types(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a DuckDB result whose types Arrow represents as text."""
    return {c: t for c, t in columns.items() if _TYPES_OF_TEXT.search(t)}


def columns_of(reading: FileInput, relation: str) -> dict[str, str]:
    """Return column -> type of a relation over the files. Raises the errors of `FileInput.refuse`."""
    try:
        columns = describe(reading.con, f"SELECT * FROM {relation}")
    except duckdb.Error as error:
        reading.refuse(error)
    return {c: t for c, t in columns.items() if c != FILE_COLUMN}


def select_list(expressions: Mapping[str, str]) -> str:
    """Return the `SELECT` of expressions by column name."""
    return "SELECT " + ", ".join(f"{sql} AS {quote_name(c)}" for c, sql in expressions.items())


def no_values(types: Mapping[str, str]) -> dict[str, str]:
    """Return column -> SQL of null, for files without any value. A column without values in all files has type ""."""
    return {c: f"CAST(NULL AS {t})" for c, t in types.items() if t} or dict.fromkeys(types, "NULL")


def first_line(reading: FileInput, path: str) -> str:
    """Return the first line of a text file. It is read as one field, without delimiter or quote."""
    try:
        row = reading.con.execute(
            f"SELECT line FROM read_csv({quote_text(path)}, auto_detect = false, columns = {{'line': 'VARCHAR'}}, "
            "header = false, delim = '\x01', quote = '', escape = '', strict_mode = false, hive_partitioning = false) "
            "LIMIT 1"
        ).fetchone()
    except duckdb.Error as error:
        reading.refuse(error)
    return "" if row is None or row[0] is None else str(row[0])


def _translate(reading: FileInput, error: Any) -> IceDBError:
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = re.sub(r"^(\w+ )*(Error|Exception): ", "", lines[0]).rstrip(". ") if lines else type(error).__name__
    # Without the line itself, which can contain private data.
    reason += next((f" ({line})" for line in lines[1:] if _EXPLANATION.match(line)), "")
    path = re.search(r"^\s*file ?= ?(.+)$", text, re.MULTILINE)
    where = f"'{path[1].strip()}'" if path else reading.files.summary
    status = getattr(error, "status_code", None) or _status(text)
    if isinstance(error, duckdb.OutOfMemoryException):
        return InvalidBatch(f"{reading.table}: {where} takes more memory to read than allowed ({reason}). Allow more.")
    if status in (401, 403):
        return AccessDenied(f"{reading.table}: the store rejects reads of {where}. Check the credentials.")
    if status is not None and (status >= 500 or status == 0):
        return StoreUnavailable(f"{reading.table}: {where} cannot be read now ({reason}). Retry.")
    if status == 404:
        return InvalidBatch(f"{reading.table}: {where} does not exist, or not all of it ({reason}). Correct the path.")
    return InvalidBatch(f"{reading.table}: {where} cannot be read: {reason}. Correct or leave out the file.")


def _status(text: str) -> int | None:
    match = re.search(r"HTTP (?:GET|HEAD|error|code)?[^\n]{0,300}?\b(40[134]|50\d)\b", text)
    if match:
        return int(match[1])
    return 0 if "Could not establish connection" in text or "Could not connect" in text else None
