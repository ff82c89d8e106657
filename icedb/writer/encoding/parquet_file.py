"""One Parquet file with the statistics of its columns, from rows in Arrow or from a DuckDB query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa

from icedb.sql.column_stats import encode_statistics, figures_sql
from icedb.sql.connections import copy_statement, read_file
from icedb.sql.field_ids import field_ids_sql
from icedb.writer.encoding.arrow_types import arrow_schema
from icedb.writer.encoding.parquet_encoder import (
    EncodedFile,
    ParquetSettings,
    batch_rows,
    compact_dictionaries,
    encode,
    file_digest,
    row_groups,
)
from icedb.writer.encoding.part_stats import PartBounds

__all__ = ["EncodedPart", "encode_tables", "write_query"]


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A Parquet file, and the bounds of its columns."""

    file: EncodedFile
    bounds: PartBounds


def encode_tables(
    tables: Iterable[pa.Table],
    settings: ParquetSettings,
    statistics: Mapping[str, str],
    *,
    rows: int,
    path: Path | None,
) -> EncodedPart:
    """Encode tables as one file, as `encode` does. `statistics`: columns with bounds, and their DuckDB types."""
    bounds = PartBounds(statistics)

    def observed(table: pa.Table) -> pa.Table:
        compact = compact_dictionaries(table)
        bounds.add(compact)
        return compact

    if isinstance(tables, Sequence):
        read: Iterable[pa.Table] = list(map(observed, tables))
    else:  # batches of a query are small, and bounds of many batches take long
        read = map(observed, row_groups(tables, settings.spec.row_group_rows))
    return EncodedPart(encode(read, settings, rows=rows, path=path), bounds)


def write_query(
    con: duckdb.DuckDBPyConnection,
    query: str,
    columns: Mapping[str, str],
    settings: ParquetSettings,
    statistics: Mapping[str, str],
    *,
    rows: int,
    path: Path,
) -> EncodedPart:
    """Write a query's rows, with these columns, to a file. `rows`: their expected number.

    The connection must have the setting `arrow_lossless_conversion`. DuckDB itself writes rows with a type that pyarrow
    does not write as DuckDB does. Raises DuckDB's errors, and pyarrow.ArrowException.
    """
    schema = arrow_schema(columns)
    if schema is None:
        return _copy_query(con, query, columns, settings, statistics, path)
    reader = con.execute(query).to_arrow_reader(batch_rows(settings.spec))
    # A file without rows has the columns, too.
    tables = chain(
        [pa.Table.from_batches([], schema)], (pa.Table.from_batches([batch]).cast(schema) for batch in reader)
    )
    return encode_tables(tables, settings, statistics, rows=rows, path=path)


def _copy_query(
    con: duckdb.DuckDBPyConnection,
    query: str,
    columns: Mapping[str, str],
    settings: ParquetSettings,
    statistics: Mapping[str, str],
    path: Path,
) -> EncodedPart:
    ids = field_ids_sql(columns)
    [(rows,)] = con.execute(copy_statement(query, path, settings.spec, field_ids=ids, level=settings.level)).fetchall()
    bounds = PartBounds(statistics, rows=int(rows), stats=encode_statistics({}, [], 0))
    if statistics:
        [(figures,)] = con.execute(f"SELECT {figures_sql(statistics)} FROM {read_file(path)}").fetchall()
        bounds.stats = encode_statistics(statistics, figures, int(rows))
    return EncodedPart(EncodedFile(path, path.stat().st_size, file_digest(path), int(rows)), bounds)
