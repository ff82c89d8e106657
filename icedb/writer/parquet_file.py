"""Writes of one Parquet file by DuckDB, with the statistics of its columns.

DuckDB's COPY returns statistics. They are used for types for which they are exact and have the form of DuckDB's text.
For other types the file is read again.
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

# Merged files are kept for long, so they get a higher level than inserts. The files are about as small as with DuckDB's
# default, 3, in two thirds of the time or more (docs/tuning.md).
ZSTD_LEVEL = 2

# Without BOOLEAN, whose statistics are numbers, and FLOAT and DOUBLE, which have none if there is a NaN.
_EXACT = frozenset((
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "VARCHAR",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file and COPY's `statistics`: quoted column -> name of a statistic -> its text."""

    path: Path
    rows: int
    statistics: Mapping[str, Mapping[str, str]]


def write_file(con: duckdb.DuckDBPyConnection, query: str, path: Path, spec: TableSpec) -> WrittenFile:
    """Write a query's rows as one Parquet file with the settings of the table. Raises DuckDB's errors."""
    done = con.execute(copy_statement(query, path, spec, level=ZSTD_LEVEL))
    names = [name for name, *_ in done.description]
    [row] = done.fetchall()
    result = dict(zip(names, row, strict=True))
    return WrittenFile(path, int(result["count"]), result["column_statistics"])


def min_max_counts(con: duckdb.DuckDBPyConnection, file: WrittenFile, columns: Mapping[str, str]) -> list[str | None]:
    """Return the value of `figures_sql` for the file, for columns of these types. Raises DuckDB's errors."""
    figures = {c: _exact_figures(file.statistics.get(quote_name(c)), t, file.rows) for c, t in columns.items()}
    if missing := {c: t for c, t in columns.items() if figures[c] is None}:
        query = f"SELECT {figures_sql(missing)} FROM {read_file(file.path)}"
        [(values,)] = con.execute(query).fetchall()
        figures |= {c: values[3 * n : 3 * n + 3] for n, c in enumerate(missing)}
    return [figure for c in columns for figure in figures[c] or ()]


def _exact_figures(statistics: Mapping[str, str] | None, type_: str, rows: int) -> list[str | None] | None:
    """Return minimum, maximum and count from COPY's statistics, or None unless these are exact."""
    if statistics is None or type_ not in _EXACT or statistics.get("num_values") != str(rows):
        return None
    low, high, nulls = statistics.get("min"), statistics.get("max"), statistics.get("null_count")
    if nulls == str(rows):
        return [None, None, "0"]
    # DuckDB truncates long texts, at a length in bytes that no shorter text reaches.
    if nulls is None or low is None or high is None or max(len(low), len(high)) >= TEXT_MAX:
        return None
    return [low, high, str(rows - int(nulls))]
