"""A Parquet file that DuckDB has just written, and what its writer told of its columns.

Least and greatest values come for nothing where they are exact and read as DuckDB's own text; for the others the file
is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from icedb.format.table_spec import TableSpec
from icedb.sql.column_stats import TEXT_MAX, figures_sql
from icedb.sql.connections import copy_statement, quote_name, read_file

__all__ = ["WrittenFile", "min_max_counts", "write_file"]

# What is written here stays for long, so it is worth more time than an insert's: as small as with DuckDB's own level,
# 3, or nearly, in two thirds of its time, or nearly all (docs/tuning.md).
ZSTD_LEVEL = 2

# Not BOOLEAN, which is told as a number, nor FLOAT and DOUBLE, of which nothing is told when there is a NaN.
_EXACT = frozenset((
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "VARCHAR",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """`statistics`: column, quoted -> name of a figure -> its text, as COPY returns them."""

    path: Path
    rows: int
    statistics: Mapping[str, Mapping[str, str]]


def write_file(con: duckdb.DuckDBPyConnection, query: str, path: Path, spec: TableSpec) -> WrittenFile:
    """Write a query's rows as one Parquet file of the table's kind. Raises DuckDB's errors."""
    done = con.execute(copy_statement(query, path, spec, level=ZSTD_LEVEL))
    names = [name for name, *_ in done.description]
    [row] = done.fetchall()
    told = dict(zip(names, row, strict=True))
    return WrittenFile(path, int(told["count"]), told["column_statistics"])


def min_max_counts(con: duckdb.DuckDBPyConnection, file: WrittenFile, columns: Mapping[str, str]) -> list[str | None]:
    """Of columns with these types: what `figures_sql` would find in the file. Raises DuckDB's errors."""
    told = {c: _told(file.statistics.get(quote_name(c)), type_, file.rows) for c, type_ in columns.items()}
    if asked := {c: t for c, t in columns.items() if told[c] is None}:
        query = f"SELECT {figures_sql(asked)} FROM {read_file(file.path)}"
        [(found,)] = con.execute(query).fetchall()
        told |= {c: found[3 * n : 3 * n + 3] for n, c in enumerate(asked)}
    return [figure for c in columns for figure in told[c] or ()]


def _told(statistics: Mapping[str, str] | None, type_: str, rows: int) -> list[str | None] | None:
    """Least, greatest and count, if the writer's are just what the file's values are."""
    if statistics is None or type_ not in _EXACT or statistics.get("num_values") != str(rows):
        return None
    low, high, nulls = statistics.get("min"), statistics.get("max"), statistics.get("null_count")
    if nulls == str(rows):
        return [None, None, "0"]
    # The writer cuts a long text, at a length in bytes that no text of fewer characters reaches.
    if nulls is None or low is None or high is None or max(len(low), len(high)) >= TEXT_MAX:
        return None
    return [low, high, str(rows - int(nulls))]
