"""Columns and their types: names of types, their form in Parquet, and conflicts between a batch and a table.

Types are DuckDB's names, as in the log. The log keeps every column, also a dropped one, and its type. A batch may lack
columns and may add new ones. Conflicts are detected before anything is written.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

import duckdb
import pyarrow as pa

from icedb.errors import InvalidBatch, InvalidOption, SchemaConflict, UnknownColumn, UnsupportedType
from icedb.sql.connection_pool import sandbox, scratch_connection
from icedb.sql.connections import RESERVED, quote_name, quote_text, read_file
from icedb.sql.expressions import is_type
from icedb.util.lru_cache import LruCache

__all__ = [
    "ROW_ID",
    "check_columns",
    "check_sort_columns",
    "checked_type",
    "describe",
    "describe_arrow",
    "new_columns",
    "storage_type",
    "type_name",
    "typed_nothing",
]

#: The column of row ids, in tables with `row_id`.
ROW_ID = "_row_id"

# Parquet has no such types. A reader of the part gets these instead, without loss.
_STORED_AS = {"TIMESTAMP_S": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP"}
_LOSSY = {
    "HUGEINT": "BIGINT or DECIMAL(38,0)",
    "UHUGEINT": "UBIGINT or DECIMAL(38,0)",
    "BIGNUM": "DECIMAL(38,0) or VARCHAR",
    "BIT": "VARCHAR or BLOB",
    "TIME WITH TIME ZONE": "TIMESTAMP WITH TIME ZONE or VARCHAR",
    "TIME_NS": "TIME (microseconds) or VARCHAR",
    "INTERVAL": "BIGINT (a count of microseconds, say) or VARCHAR",  # Parquet's has milliseconds
    "UNION": "a STRUCT with a field for each of its types",
    "VARIANT": "JSON or VARCHAR",
    "GEOMETRY": "BLOB (WKB)",
    "NULL": "the type that it will have",
}
_SHAPE = f"{RESERVED}shape"
# The types of Arrow schemas, because the batches of a table are alike.
_described: LruCache[bytes, dict[str, str]] = LruCache(256)
_lock = threading.Lock()
# The maximum length of a type in a message, in characters.
_TYPE_CHARS_MAX = 200
# Quoted names and texts, except `"NULL"`, which is how DuckDB writes its type of null.
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?!NULL"(?:$|[,)\[]))(?:[^"]|"")*\"""")


def storage_type(type_: str, *, column: str, table: str) -> str:
    """Return the type that a column has in a part. Raises UnsupportedType if Parquet has none."""
    named = _QUOTED.sub("", type_)  # without the names of fields and the values of an ENUM
    for lossy, remedy in _LOSSY.items():
        if re.search(rf"(?<![A-Z_]){re.escape(lossy)}(?![A-Z_])", named):
            raise UnsupportedType(
                f"{table}: column '{column}' is {type_}, which Parquet cannot hold without loss. Cast it to {remedy}."
            )
    if not type_.endswith((")", "]")):
        return _STORED_AS.get(type_, type_)
    stored = _nested_in_parquet(type_)
    if stored is None:
        excerpt = type_ if len(type_) <= _TYPE_CHARS_MAX else f"{type_[:_TYPE_CHARS_MAX]}..."
        raise UnsupportedType(
            f"{table}: column '{column}' is {excerpt}, which Parquet cannot hold: it has a field without a name, or "
            "two that differ in case at most, or more than 100 levels, of which a list takes two. Rename them, or "
            "store it as JSON."
        )
    return stored


@lru_cache(maxsize=4096)
def _nested_in_parquet(type_: str) -> str | None:
    """Return the type after a round trip: fixed arrays become lists, a nested ENUM text. None if Parquet has none."""
    from pyarrow.parquet import read_schema

    with sandbox(None, memory_bytes=None, threads=None) as own:
        path = own.folder / "nothing.parquet"
        written = f"COPY (SELECT CAST(NULL AS {type_}) AS value) TO {quote_text(str(path))} (FORMAT parquet)"
        try:
            own.con.execute(written)
            read_schema(path)  # Arrow, and readers that use it, accept fewer levels than DuckDB
            return describe(own.con, f"SELECT * FROM {read_file(path)}")["value"]
        except (duckdb.Error, OSError):
            return None
        finally:
            path.unlink(missing_ok=True)
            own.kept = True


# DuckDB's own names of the plain types. Most logs have no others, and these need no query.
_PLAIN = frozenset((
    "BIGINT", "BLOB", "BOOLEAN", "DATE", "DOUBLE", "FLOAT", "HUGEINT", "INTEGER", "JSON", "SMALLINT", "TIME",
    "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP_S", "TINYINT", "UBIGINT",
    "UINTEGER", "USMALLINT", "UTINYINT", "UUID", "VARCHAR",
))  # fmt: skip


def type_name(text: str) -> str | None:
    """Return DuckDB's own name for a type (INT8 is BIGINT), or None if DuckDB has no such type."""
    return text if text in _PLAIN else _canonical_type(text)


def checked_type(text: str, *, what: str, table: str) -> str:
    """Return DuckDB's own name for the type of `what`. Raises InvalidOption if DuckDB has no such type."""
    name = type_name(text) if isinstance(text, str) else None
    if name is None:
        raise InvalidOption(f"{table}: the type of {what} is {text!r}, which DuckDB does not have. Correct it.")
    return name


@lru_cache(maxsize=4096)
def _canonical_type(text: str) -> str | None:
    if not is_type(text):
        return None
    with scratch_connection() as con:
        try:
            return describe(con, f"SELECT CAST(NULL AS {text}\n) AS value")["value"]
        except duckdb.Error:
            return None


def describe(con: duckdb.DuckDBPyConnection, select: str) -> dict[str, str]:
    """Return column -> DuckDB type of a query, without running it."""
    return {str(name): str(type_) for name, type_, *_ in con.execute(f"DESCRIBE {select}").fetchall()}


def describe_arrow(con: duckdb.DuckDBPyConnection, schema: pa.Schema) -> dict[str, str]:
    """Return column -> DuckDB type of rows with an Arrow schema. Raises DuckDB's errors if a type has none."""
    if not schema.names:
        return {}
    key = schema.serialize().to_pybytes()  # equality of schemas ignores the names of extension types in metadata
    with _lock:
        types = _described.get(key)
    if types is None:
        con.register(_SHAPE, pa.RecordBatchReader.from_batches(schema, []))
        try:
            types = describe(con, f"SELECT * FROM {_SHAPE}")
        finally:
            con.unregister(_SHAPE)
        with _lock:
            _described.put(key, types)
    return dict(types)


def check_columns(batch: Mapping[str, str], table_columns: Mapping[str, str], *, table: str) -> None:
    """Raise SchemaConflict or InvalidBatch unless a batch of these columns fits a table with `table_columns`."""
    _check_case([*table_columns, *(c for c in batch if c not in table_columns)], table=table)
    for column, type_ in batch.items():
        if table_columns.get(column, type_) != type_:
            raise SchemaConflict(
                f"{table}: column '{column}' is {table_columns[column]} in the table and {type_} in the batch. Cast it "
                f"to {table_columns[column]}, or write it under another name.",
                column=column,
                types=(table_columns[column], type_),
            )


def _check_case(columns: Iterable[str], *, table: str) -> None:
    """Raise InvalidBatch for invalid names, and for names that differ only in case, which DuckDB and Spark ignore."""
    seen: dict[str, str] = {}
    for column in columns:
        if not column:
            raise InvalidBatch(f"{table}: a column has an empty name.")
        if not column.isprintable() and any(0xD800 <= ord(c) <= 0xDFFF for c in column):
            raise InvalidBatch(f"{table}: the column name {column!r} holds half a character. Rename it.")
        if "\0" in column:
            raise InvalidBatch(f"{table}: the column name {column!r} holds a zero character. Rename it.")
        other = seen.setdefault(column.casefold(), column)
        if other != column:
            raise InvalidBatch(
                f"{table}: the columns '{other}' and '{column}' differ only in case, which SQL does not tell apart. "
                "Rename one."
            )


def new_columns(batch: Mapping[str, str], table_columns: Mapping[str, str]) -> dict[str, str]:
    """Return the new columns of a batch, which only an exclusive commit can add."""
    return {column: type_ for column, type_ in batch.items() if column not in table_columns}


def check_sort_columns(
    sort_by: Iterable[str], batch: Mapping[str, str], table_columns: Mapping[str, str], *, table: str
) -> list[str]:
    """Return the sort columns that the batch has. Raises UnknownColumn for one that neither batch nor table has."""
    for column in sort_by:
        if column not in batch and column not in table_columns:
            raise UnknownColumn(
                f"{table}: sort_by names '{column}', and neither the table nor the batch has such a column (columns "
                f"are {sorted({*batch, *table_columns})}). Correct sort_by, or bring the column."
            )
    return [column for column in sort_by if column in batch]


def typed_nothing(schema: Mapping[str, str], *, rows: Literal[0, 1] = 0) -> str:
    """Return a query of no rows, or of one row of nulls, whose columns have these names and types."""
    columns = ", ".join(f"CAST(NULL AS {type_}) AS {quote_name(c)}" for c, type_ in schema.items())
    return f"SELECT {columns or 'NULL AS nothing'} WHERE {'true' if rows else 'false'}"
