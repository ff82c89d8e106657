"""Files as DataFrames: Spark's tasks read local files and S3 objects with this library, without Hadoop.

A task reads whole files, one after the other. Its inputs contain the credentials of the bucket. So they travel pickled
inside the function of the task, where no plan, log or web page shows them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DecimalType, StructType, TimestampNTZType, TimestampType

from icedb.errors import EmptyBatch, IceDBError, InvalidBatch, UnsupportedType
from icedb.sources.files import open_files
from icedb.sources.open_source import open_batch
from icedb.spark.datasource.task_resources import scratch_folder
from icedb.spark.datasource.worker_errors import hide_worker_traceback
from icedb.sql.connections import MIB, READING_SHARE, WRITE_MEMORY_BYTES_MIN
from icedb.storage.location import Location, parse_location
from icedb.util.temporary_files import temporary_folder

__all__ = ["LINES", "InputFiles", "find_files", "json_lines", "parquet_rows"]

#: Schema of `json_lines`: the place of a line, its text, and why it is not a valid record (null: it is valid).
LINES = "source string, text string, problem string"

# More tasks would cost more to start than they save; beyond this, a task reads several files.
TASKS_MAX = 1_000
# Far longer than an event; a file with such a line is rejected.
LINE_BYTES_MAX = 16 * 1024 * 1024
# Memory of DuckDB in a task that reads Parquet: some row groups, which other programs make large.
READING_BYTES = 512 * MIB
# Size of the batches that a task passes to Spark.
BATCH_BYTES = 8 * 1024 * 1024
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_NO_FILE = re.compile(r": (?:no file matches|there is no file) '")
_S3 = re.compile(r"s3a?://[^/]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files of one format that a job reads. `location` provides credentials, and the name in messages."""

    location: Location
    format: Literal["parquet", "json"]
    paths: tuple[str, ...]


def find_files(inputs: Sequence[str], location: Location) -> InputFiles:
    """List the files of paths and globs: Parquet, or JSON lines (`.jsonl`, `.ndjson`, `.json`, also `.gz`, `.zst`).

    Buckets are accessed with the options of the table at `location`, or with the environment if it is not in S3. Raises
    EmptyBatch if there are no files, InvalidBatch for several formats, AccessDenied, InvalidOption.
    """
    bucket = next((match[0] for text in inputs if (match := _S3.match(text))), None)
    if bucket is not None and location.scheme != "s3":
        location = parse_location(bucket)  # on the driver, because executors may have another environment
    try:
        with _scratch() as folder, open_files(
            list(inputs), location=location, table_columns={}, on_conflict="raise", folder=folder
        ) as reading:  # fmt: skip
            files = reading.files
    except InvalidBatch as error:
        if _NO_FILE.search(str(error)):
            raise EmptyBatch(str(error)) from None
        raise
    if files.format == "csv":
        raise InvalidBatch(f"{location.uri}: {files.summary} is CSV. Pass Parquet or JSON lines, or use Table.insert.")
    # The working folder of a task may differ.
    paths = tuple(p if "://" in p else str(Path(p).absolute()) for p in files.paths)
    return InputFiles(location, files.format, paths)


def json_lines(spark: SparkSession, files: InputFiles, schema: StructType | None) -> DataFrame:
    """Return the lines that are not empty, with the columns of `LINES`.

    A valid record is one JSON object. With a `schema`, whose names are case-sensitive, it has no other fields and no
    value that Spark would change: a decimal with too many digits, or a number in a column of times.
    """
    return _read(spark, files, _LineReader(files.location, None if schema is None else _checks(schema)), LINES)


def parquet_rows(spark: SparkSession, files: InputFiles) -> DataFrame:
    """Return the rows of Parquet files. A missing column is null. Folders `name=value` in all paths become columns.

    Raises SchemaConflict if a column has two types, UnsupportedType, InvalidBatch and the store's errors.
    """
    with open_batch(list(files.paths), location=files.location, table_columns={}) as batch:
        file_schema = batch.stream.schema
    typed = [f for f in file_schema if not pa.types.is_null(f.type)]
    schema = pa.schema([pa.field(f.name, _spark_arrow_type(f.type)) for f in typed])
    try:
        spark_schema = from_arrow_schema(schema)
    except (PySparkException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UnsupportedType(f"{files.location.uri}: Spark has no type for a column of the files: {reason}") from None
    return _read(spark, files, _RowReader(files.location, schema), spark_schema)


# ------------------------------------------------------------------------------------------ on the driver


def _read(
    spark: SparkSession, files: InputFiles, reader: _LineReader | _RowReader, schema: StructType | str
) -> DataFrame:
    paths, tasks = files.paths, min(len(files.paths), TASKS_MAX)

    def icedb_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with hide_worker_traceback():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from reader.read(paths[number])

    return spark.range(0, len(paths), 1, tasks).mapInArrow(icedb_files, schema)


def _spark_arrow_type(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type of values in Spark, which has no unsigned numbers and only microseconds."""
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
                pa.uint64(): pa.decimal128(20, 0)}  # fmt: skip
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    return unsigned.get(type_, type_)


#: Returns whether Spark would change a JSON value to fit it into the column.
_Changes = Callable[[str], bool]


def _checks(schema: StructType) -> dict[str, _Changes | None]:
    return {f.name: _check(f.dataType) for f in schema.fields}


def _check(type_: DataType) -> _Changes | None:
    match type_:
        case TimestampType() | TimestampNTZType():  # Spark would read a number as seconds since 1970
            return _is_number
        case DecimalType():
            return _Digits(type_.scale).are_too_many
    return None


def _is_number(text: str) -> bool:
    return not text.startswith('"')


@dataclass(frozen=True, slots=True)
class _Digits:
    scale: int

    def are_too_many(self, text: str) -> bool:
        exponent = Decimal(text).normalize().as_tuple().exponent if text[0] in "-0123456789" else 0
        return isinstance(exponent, int) and -exponent > self.scale


# ------------------------------------------------------------------------------------------ in the tasks


@dataclass(frozen=True, slots=True)
class _LineReader:
    """Reader of the lines of a file."""

    location: Location
    #: The check of the values of each column; None: any object is a valid record.
    checks: Mapping[str, _Changes | None] | None

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield batches of `LINES`. Raises InvalidBatch and the store's errors."""
        decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
        rows: list[tuple[str, str, str | None]] = []
        size = 0
        for number, line in self._lines(path):
            text, problem = self._check(decoder, line)
            rows.append((f"{path}, line {number}", text, problem))
            size += len(line)
            if size >= BATCH_BYTES:
                yield _batch(rows)
                rows, size = [], 0
        if rows:
            yield _batch(rows)

    def _lines(self, path: str) -> Iterator[tuple[int, bytes]]:
        compression = next((c for suffix, c in _COMPRESSIONS.items() if path.lower().endswith(suffix)), None)
        try:
            with (
                _scratch() as folder,
                open_files([path], location=self.location, table_columns={}, on_conflict="raise", folder=folder,
                           memory_bytes=WRITE_MEMORY_BYTES_MIN) as reading,
                reading.fetched(path) as file,
                io.BufferedReader(pa.input_stream(str(file), compression=compression)) as lines,
            ):  # fmt: skip
                number = 0
                while line := lines.readline(LINE_BYTES_MAX):
                    number += 1
                    if len(line) == LINE_BYTES_MAX:
                        raise InvalidBatch(
                            f"{self.location.uri}: line {number} of '{path}' is longer than {LINE_BYTES_MAX} bytes. "
                            "JSON lines have one object on each line. Correct or omit the file."
                        )
                    if stripped := (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip():
                        yield number, stripped
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, IceDBError):
                raise
            reason = str(error).splitlines()[0]
            raise InvalidBatch(
                f"{self.location.uri}: '{path}' cannot be read: {reason}. Correct or omit the file."
            ) from None

    def _check(self, decoder: msgspec.json.Decoder[dict[str, msgspec.Raw]], line: bytes) -> tuple[str, str | None]:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return line.decode(errors="backslashreplace"), "is not UTF-8 text"
        try:
            record = decoder.decode(text)
        except msgspec.ValidationError:
            return text, "is not an object"
        except (msgspec.DecodeError, RecursionError) as error:
            return text, f"is not JSON ({error})"
        return text, self._misfit(record)

    def _misfit(self, record: Mapping[str, msgspec.Raw]) -> str | None:
        if self.checks is None:
            return None
        if unknown := sorted(record.keys() - self.checks.keys()):
            return f"has fields without a column: {unknown}"
        for name, value in record.items():
            changes = self.checks[name]
            if changes is not None and (text := bytes(value).decode()) != "null" and changes(text):
                return f"does not fit the column '{name}'"
        return None


def _batch(rows: Sequence[tuple[str, str, str | None]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], ["source", "text", "problem"])


@dataclass(frozen=True, slots=True)
class _RowReader:
    """Reader of the rows of a Parquet file."""

    location: Location
    schema: pa.Schema

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield batches of `schema`. Raises SchemaConflict, InvalidBatch and the store's errors."""
        memory_bytes = READING_BYTES * READING_SHARE
        with open_batch([path], location=self.location, table_columns={}, memory_bytes=memory_bytes) as batch:
            for rows in batch.stream:
                columns = dict(zip(rows.schema.names, rows.columns, strict=True))
                arrays = [
                    columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows.num_rows, f.type)
                    for f in self.schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@contextmanager
def _scratch() -> Iterator[Path]:
    with temporary_folder("files", below=scratch_folder()) as folder:
        yield folder
