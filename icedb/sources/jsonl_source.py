"""Conversion of JSON lines into a batch. Each line has one object. No number is rounded.

The files are read twice: the types of all lines are determined before the first line is converted to Arrow. If a line
has the same name twice, the last value counts, as in other JSON readers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from icedb.errors import IceDBError, InvalidBatch
from icedb.sources.batch import CHUNK_ROWS, Batch
from icedb.sources.files import FILE_COLUMN, FileInput, first_line
from icedb.sources.inference.fields import columns_of
from icedb.sources.inference.value_types import is_exact_double
from icedb.sources.python_rows import RowObserver
from icedb.sql.connections import quote_text
from icedb.util.progress import progress

__all__ = ["open_json"]

# Far more than an event has. A longer line is rejected. DuckDB needs several times as much memory for each thread.
_LINE_BYTES_MAX = 16 * 1024 * 1024
# A number of so many characters without an exponent is certainly a double: it has at most 15 digits.
_SURE_CHARS = 16


def open_json(reading: FileInput, *, failed: Callable[[IceDBError], None]) -> Batch:
    """Open JSON lines as a batch. Raises InvalidBatch, SchemaConflict, UnsupportedType."""
    lines = _JsonLineReader(reading)
    observer = RowObserver(reading.table, reading.table_columns, failed, json=True, where=lines.where)
    with progress("looking at lines", None, "rows") as advance:
        for _, start, rows in lines.chunks():
            observer.observe(rows, start)
            advance(len(rows))
    in_rows = {c.casefold() for c in observer.shapes}
    of_paths = _path_values(reading).items()
    from_paths = {path: {c: v for c, v in row.items() if c.casefold() not in in_rows} for path, row in of_paths}
    for row in from_paths.values():
        observer.observe([row], 0)
    columns = observer.columns(reading.on_conflict)

    def chunks() -> Iterator[tuple[int, Mapping[str, list[Any]]]]:
        try:
            for path, _, rows in lines.chunks():
                own = from_paths.get(path)
                yield len(rows), columns_of([own | row for row in rows] if own else rows)
        except IceDBError as error:
            failed(error)
            raise

    return columns.batch(chunks(), source=reading.files.summary)


class _JsonLineReader:
    """The objects of all files, and their positions."""

    def __init__(self, reading: FileInput) -> None:
        self._reading = reading
        exact = any("DECIMAL" in type_ for type_ in reading.table_columns.values())
        self._decoder = msgspec.json.Decoder(float_hook=Decimal if exact else _number)
        self._starts: list[int] = []
        self._paths: list[str] = []

    def where(self, number: int) -> str:
        """Return the position of a row for messages."""
        file = bisect_right(self._starts, number) - 1
        return _line(self._paths[file], number - self._starts[file])

    def chunks(self) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
        """Yield a path, the number of the first row, and rows. Raises InvalidBatch."""
        self._starts, self._paths = [], []
        number = 0
        for path in self._reading.files.paths:
            self._starts.append(number)
            self._paths.append(path)
            for texts in _texts(self._reading, path):
                if number == self._starts[-1] and texts and texts[0] is None:
                    texts[0] = self._after_mark(path)
                rows = self._decoded(texts, path, number - self._starts[-1])
                yield path, number, rows
                number += len(rows)
            # DuckDB treats a file of one byte as an empty file.
            if number == self._starts[-1] and first_line(self._reading, path).strip():
                raise self._bad(path, 0, "is not an object")

    def _after_mark(self, path: str) -> str | None:
        """Return the first line without its byte order mark, if the rest is JSON. DuckDB only removes it from CSV."""
        try:
            line = first_line(self._reading, path).removeprefix("\ufeff")
            self._decoder.decode(line)
        except (InvalidBatch, msgspec.DecodeError, RecursionError):
            return None
        return line

    def _decoded(self, texts: list[str | None], path: str, first: int) -> list[dict[str, Any]]:
        rows: list[Any] | None
        try:
            rows = self._decoder.decode_lines("\n".join(texts))  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError, RecursionError):
            rows = None
        if rows is None:  # decode one by one to find the invalid line
            rows = [self._one(text, path, first + n) for n, text in enumerate(texts)]
        for n, row in enumerate(rows):
            if type(row) is not dict:
                raise self._bad(path, first + n, f"is {_kind(row)}, not an object")
        return rows

    def _one(self, text: str | None, path: str, number: int) -> Any:
        if text is None:
            raise self._bad(path, number, "is not valid JSON")
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._bad(path, number, f"is not valid JSON that can be read exactly ({error})") from None

    def _bad(self, path: str, number: int, problem: str) -> InvalidBatch:
        return InvalidBatch(
            f"{self._reading.table}: {_line(path, number)} {problem}. JSON lines have one whole object on each line."
        )


def _line(path: str, number: int) -> str:
    return f"line {number + 1} of '{path}' (empty lines not counted)"


def _kind(value: object) -> str:
    return "an array" if isinstance(value, list) else "null" if value is None else "a single value"


def _texts(reading: FileInput, path: str) -> Iterator[list[str | None]]:
    """Yield the lines of a file that are not empty, in order; None for a line that is not JSON."""
    try:
        lines = reading.con.cursor().execute(
            f"SELECT json::VARCHAR FROM read_json_objects({quote_text(path)}, format = 'newline_delimited', "
            f"ignore_errors = true, hive_partitioning = false, maximum_object_size = {_LINE_BYTES_MAX}, "
            f"filename = {quote_text(FILE_COLUMN)})"
        )
        for batch in lines.to_arrow_reader(CHUNK_ROWS):
            yield batch.column(0).to_pylist()
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        reading.refuse(error)  # type: ignore[arg-type]


def _number(text: str) -> float | Decimal:
    if len(text) <= _SURE_CHARS and "e" not in text and "E" not in text:
        return float(text)
    return float(text) if is_exact_double(text) else Decimal(text)


def _path_values(reading: FileInput) -> dict[str, dict[str, Any]]:
    """Return path -> the values of partition columns in its folders."""
    types, values = reading.files.partition_types(reading.table_columns), reading.files.partition_values()
    make: dict[str, Callable[[str], Any]] = {"BIGINT": int, "DATE": date.fromisoformat, "VARCHAR": str}
    return {
        path: {n: None if v[i] is None else make[types[n]](v[i] or "") for n, v in values.items()}
        for i, path in enumerate(reading.files.paths)
        if values
    }
