"""Conversion of Parquet files into a batch. Files with different columns are united by name, with one type per column.

The footers are read first, so conflicts between files are detected before any row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from icedb.errors import IceDBError, SchemaConflict
from icedb.sources.batch import CHUNK_ROWS, Batch
from icedb.sources.files import (
    FILE_COLUMN,
    FileInput,
    cast_types,
    columns_of,
    no_values,
    partition_sql,
    select_list,
    stream,
)
from icedb.sources.inference.nanoseconds import in_microseconds, without_nanoseconds
from icedb.sql.connections import PARQUET_OPTIONS, quote_name, quote_text
from icedb.sql.types import storage_type

__all__ = ["open_parquet"]

# The properties of each column in a footer, including nested ones. Files with equal properties have the same columns.
_SCHEMA = "name, type, type_length, num_children, converted_type, scale, precision, logical_type, duckdb_type"


@dataclass(frozen=True, slots=True)
class _ParquetFileGroup:
    """Files with the same columns. `untyped`: columns that were written without any value.

    `nanoseconds`: whether there are times with a zone in nanoseconds, which DuckDB truncates.
    """

    paths: tuple[str, ...]
    columns: Mapping[str, str]
    untyped: frozenset[str]
    nanoseconds: bool = False

    @property
    def relation(self) -> str:
        paths = ", ".join(map(quote_text, self.paths))
        return f"read_parquet([{paths}], {PARQUET_OPTIONS}, filename = {quote_text(FILE_COLUMN)})"


def open_parquet(reading: FileInput, *, failed: Callable[[IceDBError], None]) -> Batch:
    """Open Parquet files as a batch. Raises SchemaConflict, UnsupportedType, InvalidBatch.

    A column without any value has no type and is left out. Columns that a batch lacks are null.
    """
    groups = _groups(reading)
    types, mixed = _united(reading, groups)
    for column, type_ in types.items():
        storage_type(type_, column=column, table=reading.table)
    for path in (path for g in groups if g.nanoseconds for path in g.paths):
        _check_nanoseconds(reading, path)
    from_paths = partition_sql(reading, {c: "" for g in groups for c in g.columns})
    typed = {c.casefold() for c in types}
    untyped_only = {c.casefold(): c for g in groups for c in g.columns if c.casefold() not in typed}
    columns = dict.fromkeys(untyped_only.values(), "") | types
    nothing, untyped = no_values(columns), [c for c, t in columns.items() if not t]
    selects = []
    for group in groups:
        there = {c.casefold() for c in group.columns if c not in group.untyped}
        own = {c: _expression(c, mixed) for c in types if c.casefold() in there}
        selects.append(f"{select_list(own | from_paths or nothing)} FROM {group.relation}")
    return Batch(
        stream(reading, "\nUNION ALL BY NAME\n".join(selects), failed=failed, untyped=untyped),
        types=cast_types(types),
        parsed=frozenset(c for c in from_paths if c in reading.table_columns),
        mixed=mixed,
        source=reading.files.summary,
    )


def _groups(reading: FileInput) -> list[_ParquetFileGroup]:
    """Group the files by the columns in their footers, in the order of the first file of each group."""
    paths = ", ".join(map(quote_text, reading.files.paths))
    try:
        schemas = reading.con.execute(
            f"SELECT schema, list(file_name), any_value(untyped), any_value(nanoseconds) FROM ("
            f"SELECT file_name, list(({_SCHEMA})::VARCHAR ORDER BY column_id) AS schema, "
            "list(name) FILTER (logical_type LIKE 'NullType%') AS untyped, "
            "coalesce(bool_or(logical_type LIKE 'TimestampType(isAdjustedToUTC=1%NANOS=NanoSeconds%'), false) "
            "AS nanoseconds "
            f"FROM parquet_schema([{paths}]) GROUP BY file_name) GROUP BY schema"
        ).fetchall()
    except duckdb.Error as error:
        reading.refuse(error)
    order = {path: n for n, path in enumerate(reading.files.paths)}
    groups = []
    for _, names, untyped, nanoseconds in schemas:
        of_group = tuple(path for path in reading.files.paths if path in set(names))
        columns = columns_of(reading, _ParquetFileGroup(of_group, {}, frozenset()).relation)
        groups.append(_ParquetFileGroup(of_group, columns, frozenset(untyped or ()) & set(columns), nanoseconds))
    return sorted(groups, key=lambda g: order[g.paths[0]])


def _united(reading: FileInput, groups: list[_ParquetFileGroup]) -> tuple[dict[str, str], frozenset[str]]:
    """Return column -> type in all files, and the columns with several types. Names are compared without case."""
    types: dict[str, str] = {}
    names: dict[str, str] = {}
    where: dict[str, str] = {}
    mixed: dict[str, str] = {}
    for group in groups:
        for name, type_ in group.columns.items():
            if name in group.untyped:
                continue
            column = names.setdefault(name.casefold(), name)
            before = types.setdefault(column, type_)
            where.setdefault(column, group.paths[0])
            if before == type_:
                continue
            if reading.on_conflict == "raise" or "BLOB" in f"{before} {type_}":  # JSON has no bytes
                raise SchemaConflict(
                    f"{reading.table}: column '{column}' is {before} in '{where[column]}' and {type_} in "
                    f"'{group.paths[0]}'. Cast it in one of them, or choose another on_conflict.",
                    column=column,
                    types=(before, type_),
                )
            mixed[column] = "JSON"
    return types | mixed, frozenset(mixed)


def _check_nanoseconds(reading: FileInput, path: str) -> None:
    """Raise InvalidBatch if DuckDB would truncate times of the file. Only their columns are read."""
    try:
        with reading.fetched(path) as file, pq.ParquetFile(file) as parquet:
            names = [f.name for f in parquet.schema_arrow if without_nanoseconds(f.type) != f.type]
            for batch in parquet.iter_batches(CHUNK_ROWS, columns=names):
                in_microseconds(batch, table=reading.table, where=f" of '{path}'")
    except (pa.ArrowException, OSError) as error:
        reading.refuse(error)  # type: ignore[arg-type]


def _expression(column: str, mixed: frozenset[str]) -> str:
    name = quote_name(column)
    return f"to_json({name})" if column in mixed else name
