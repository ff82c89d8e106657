"""The columns that parts (data files) contain, by their Parquet footers.

The log records the columns of the table, but not those of each part. A part may contain a column that was dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import duckdb

from icedb.reader.scan_sql import translate_read_error
from icedb.sql.connections import connect_reader, quote_text
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import progress

__all__ = ["parts_with_columns"]

# DuckDB reads the footers of one query in parallel.
FOOTERS_AT_ONCE = 1000


def parts_with_columns(handle: Handle, parts: Sequence[Part], columns: Collection[str]) -> list[Part]:
    """Return the parts that contain one of the columns, without regard to case. Each footer is read.

    Raises MissingPart, SnapshotExpired and the store's errors.
    """
    if not parts or not columns:
        return []
    keys: set[str] = set()
    # Chunks of a nested column have the path `column, field`.
    conditions = " OR ".join(
        f"lower(path_in_schema) = {text} OR starts_with(lower(path_in_schema), {text} || ', ')"
        for text in (f"lower({quote_text(column)})" for column in columns)
    )
    with connect_reader(handle.location) as con, progress("reading footers", len(parts), "parts") as advance:
        for first in range(0, len(parts), FOOTERS_AT_ONCE):
            some = parts[first : first + FOOTERS_AT_ONCE]
            key_of = dict(zip(handle.part_paths.readable(some), (p.key for p in some), strict=True))
            paths = ", ".join(map(quote_text, key_of))
            query = f"SELECT DISTINCT file_name FROM parquet_metadata([{paths}]) WHERE {conditions}"
            try:
                keys.update(key_of[str(path)] for (path,) in con.execute(query).fetchall())
            except duckdb.Error as error:
                raise translate_read_error(handle, parts, error, as_of_ms=handle.clock.now_ms()) from None
            advance(len(some))
    return [part for part in parts if part.key in keys]
