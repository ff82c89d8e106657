"""Files as a batch: paths and globs of Parquet, JSON lines and CSV, in folders of this machine or in S3.

DuckDB reads them, and each kind has a module: this one finds the files, lets the connection into their buckets, and
reads Parquet. Hive partition columns come from the paths as DuckDB takes them: when all paths have the same folders
`name=value`, these are columns, unless the file has a column of that name itself.
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

#: The path of a row's file, under a name that no column has.
FILE_COLUMN = f"{RESERVED}file"
_TELLING = re.compile(r"Expected Number of Columns|Value with unterminated quote|Invalid unicode|Maximum line size")
_TYPES_OF_TEXT = re.compile(r"(?<![A-Za-z_])(UUID|JSON)(?![A-Za-z_])")


@dataclass(frozen=True, slots=True)
class FileInput:
    """What the readers of all formats need: a connection that may read the files, and what the table says."""

    con: duckdb.DuckDBPyConnection
    files: Files
    table: str
    table_columns: Mapping[str, str]
    on_conflict: OnConflict
    #: One of the files as a file of this machine, while the context lasts.
    fetched: Callable[[str], AbstractContextManager[Path]]

    def refuse(self, error: duckdb.Error) -> NoReturn:
        """Raise what an error of DuckDB's means for whoever gave the paths."""
        raise _rephrased(self, error) from None


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
    """A connection that reads the files which paths and globs name. Spills into `folder`.

    Raises InvalidBatch when there are none, or of several formats.
    """
    limit = max(WRITE_MEMORY_BYTES_MIN, (memory_bytes or memory_bytes_default()) // READING_SHARE)
    with connect_reader(Location("memory", "", ""), memory_bytes=limit, folder=folder) as con:
        files = find_files(con, data, table=location.uri, attach=lambda bucket: _attach(con, location, bucket))
        yield FileInput(
            con, files, location.uri, table_columns, on_conflict, lambda path: _fetched(location, folder, path)
        )


def _attach(con: duckdb.DuckDBPyConnection, location: Location, bucket: str) -> None:
    """Let a connection into a bucket: as the table's own, or, when that is not in S3, as the environment says."""
    attach_s3(con, _bucket(location, bucket))


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
        raise InvalidBatch(f"{location.uri}: '{path}' is not there any more. Correct the path.") from None
    finally:
        file.unlink(missing_ok=True)


def stream(
    reading: FileInput, select: str, *, failed: Callable[[IceDBError], None], untyped: Collection[str] = ()
) -> pa.RecordBatchReader:
    """The rows of a query as a stream. What breaks while they flow is put to `failed`, and raised.

    `untyped`: columns without any value, for which DuckDB makes up a type.
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
            found = _rephrased(reading, error)
            failed(found)
            raise found from None

    return pa.RecordBatchReader.from_batches(schema, batches())


def partition_sql(reading: FileInput, columns: Mapping[str, str]) -> dict[str, str]:
    """Column -> SQL of the partition columns that only the paths tell."""
    present = {c.casefold() for c in columns}
    found = {}
    for name, type_ in reading.files.partition_types(reading.table_columns).items():
        if name.casefold() not in present:
            folder = quote_text(f"(?:^|/){re.escape(name)}=([^/]*)/")
            value = f"url_decode(regexp_extract({FILE_COLUMN}, {folder}, 1))"
            found[name] = f"CAST(nullif({value}, '__HIVE_DEFAULT_PARTITION__') AS {type_})"
    return found


def cast_types(columns: Mapping[str, str]) -> dict[str, str]:
    """Of columns that come out of DuckDB: those whose type Arrow has as text."""
    return {c: t for c, t in columns.items() if _TYPES_OF_TEXT.search(t)}


def columns_of(reading: FileInput, relation: str) -> dict[str, str]:
    """Column -> type of a relation over the files. Raises as a reading does."""
    try:
        found = describe(reading.con, f"SELECT * FROM {relation}")
    except duckdb.Error as error:
        reading.refuse(error)
    return {c: t for c, t in found.items() if c != FILE_COLUMN}


def select_list(expressions: Mapping[str, str]) -> str:
    """`SELECT` of expressions by column name."""
    return "SELECT " + ", ".join(f"{sql} AS {quote_name(c)}" for c, sql in expressions.items())


def no_values(types: Mapping[str, str]) -> dict[str, str]:
    """Column -> SQL for files without any value. The type of a column that no file has a value of is empty."""
    return {c: f"CAST(NULL AS {t})" for c, t in types.items() if t} or dict.fromkeys(types, "NULL")


def first_line(reading: FileInput, path: str) -> str:
    """The first line of a text file, read as one field: no delimiter or quote that could be in it."""
    try:
        found = reading.con.execute(
            f"SELECT line FROM read_csv({quote_text(path)}, auto_detect = false, columns = {{'line': 'VARCHAR'}}, "
            "header = false, delim = '\x01', quote = '', escape = '', strict_mode = false, hive_partitioning = false) "
            "LIMIT 1"
        ).fetchone()
    except duckdb.Error as error:
        reading.refuse(error)
    return "" if found is None or found[0] is None else str(found[0])


def _rephrased(reading: FileInput, error: Any) -> IceDBError:
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = re.sub(r"^(\w+ )*(Error|Exception): ", "", lines[0]).rstrip(". ") if lines else type(error).__name__
    # Not the line itself, which is rows of somebody's.
    reason += next((f" ({line})" for line in lines[1:] if _TELLING.match(line)), "")
    path = re.search(r"^\s*file ?= ?(.+)$", text, re.MULTILINE)
    where = f"'{path[1].strip()}'" if path else reading.files.shown
    status = getattr(error, "status_code", None) or _status(text)
    if isinstance(error, duckdb.OutOfMemoryException):
        return InvalidBatch(f"{reading.table}: {where} takes more memory to read than allowed ({reason}). Allow more.")
    if status in (401, 403):
        return AccessDenied(f"{reading.table}: the store refuses to let {where} be read. Check the credentials.")
    if status is not None and (status >= 500 or status == 0):
        return StoreUnavailable(f"{reading.table}: {where} cannot be read now ({reason}). Try again.")
    if status == 404:
        return InvalidBatch(f"{reading.table}: {where} is not there, or not all of it ({reason}). Correct the path.")
    return InvalidBatch(f"{reading.table}: {where} cannot be read: {reason}. Correct or leave out the file.")


def _status(text: str) -> int | None:
    found = re.search(r"HTTP (?:GET|HEAD|error|code)?[^\n]{0,300}?\b(40[134]|50\d)\b", text)
    if found:
        return int(found[1])
    return 0 if "Could not establish connection" in text or "Could not connect" in text else None
