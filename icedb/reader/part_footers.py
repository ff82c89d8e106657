"""Facts in the Parquet footers of parts (data files) that the log does not have.

The log records the columns of the table, but not those of each part: a part may contain a column that was dropped. For
parts that other programs wrote, it has no row counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import duckdb

from icedb.reader.scan_sql import translate_read_error
from icedb.sql.connection_pool import reader
from icedb.sql.connections import quote_text, quote_texts
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import progress

__all__ = ["part_columns", "part_rows", "parts_with_columns"]

# DuckDB reads the footers of one query in parallel.
FOOTERS_AT_ONCE = 1000


def parts_with_columns(handle: Handle, parts: Sequence[Part], columns: Collection[str]) -> list[Part]:
    """Return the parts that contain one of the columns, without regard to case. Each footer is read.

    Raises MissingPart, SnapshotExpired and the store's errors.
    """
    present = part_columns(handle, parts, columns)
    return [part for part in parts if present[part.key]]


def part_columns(handle: Handle, parts: Sequence[Part], columns: Collection[str]) -> dict[str, set[str]]:
    """Return those of the columns that each part contains, without regard to case, by the part's key.

    Raises MissingPart, SnapshotExpired and the store's errors.
    """
    present: dict[str, set[str]] = {part.key: set() for part in parts}
    if not columns:
        return present
    # Chunks of a nested column have the path `column, field`.
    of_columns = f"""
        , (SELECT unnest({quote_texts(columns)}) AS name)
        WHERE lower(path_in_schema) = lower(name) OR starts_with(lower(path_in_schema), lower(name) || ', ')
    """
    for key, column in _footers(handle, parts, "SELECT DISTINCT file_name, name FROM parquet_metadata", of_columns):
        present[key].add(column)
    return present


def part_rows(handle: Handle, parts: Sequence[Part]) -> dict[str, int]:
    """Return the row count of each part by its key. Each footer is read.

    Raises MissingPart, SnapshotExpired and the store's errors.
    """
    return dict(_footers(handle, parts, "SELECT file_name, num_rows FROM parquet_file_metadata"))


def _footers(handle: Handle, parts: Sequence[Part], select: str, where: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query over the footers of parts, with the key of the part as their first value.

    `select` ends with the function that reads footers, and `where` follows its call.
    """
    if not parts:
        return
    with reader(handle.location, read_bytes=0) as con, progress("reading footers", len(parts), "parts") as advance:
        for first in range(0, len(parts), FOOTERS_AT_ONCE):
            some = parts[first : first + FOOTERS_AT_ONCE]
            key_of = dict(zip(handle.part_paths.readable(some), (p.key for p in some), strict=True))
            paths = ", ".join(map(quote_text, key_of))
            try:
                rows = con.execute(f"{select}([{paths}]){where}").fetchall()
            except duckdb.Error as error:
                raise translate_read_error(handle, parts, error, as_of_ms=handle.clock.now_ms()) from None
            yield from ((key_of[str(path)], *others) for path, *others in rows)
            advance(len(some))
