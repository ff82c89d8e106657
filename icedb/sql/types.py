"""Columns and their types: what a batch brings, what the table has, and where they disagree.

Types are DuckDB's names, as the log writes them. A column never goes and its type never changes; a batch may
lack columns and may bring new ones. A conflict is found before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

import duckdb

from icedb.errors import InvalidBatch, InvalidOption, SchemaConflict, UnknownColumn, UnsupportedType
from icedb.sql.connections import connect_sandbox, quote_name, quote_text, read_file
from icedb.sql.expressions import is_type
from icedb.sql.sandbox_pool import scratch_connection
from icedb.util.temporary_files import temporary_folder

__all__ = [
    "ROW_ID",
    "check_columns",
    "check_sort_columns",
    "checked_type",
    "describe",
    "new_columns",
    "storage_type",
    "type_name",
    "typed_nothing",
]

#: The column in which a table numbers its rows, when it is told to.
ROW_ID = "_row_id"

# Parquet has no such type, and reading the part would give another: the cast says so beforehand, without loss.
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
# Of a type in a message, so many characters.
_SHOWN = 200
# Quoted names and texts; but DuckDB's type of null alone is written with quotes.
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?!NULL"(?:$|[,)\[]))(?:[^"]|"")*\"""")


def storage_type(type_: str, *, column: str, table: str) -> str:
    """The type that a column of `type_` has in a part. Raises UnsupportedType when Parquet would lose something."""
    named = _QUOTED.sub("", type_)  # not what fields and the values of an ENUM are called
    for lossy, remedy in _LOSSY.items():
        if re.search(rf"(?<![A-Z_]){re.escape(lossy)}(?![A-Z_])", named):
            raise UnsupportedType(
                f"{table}: column '{column}' is {type_}, which Parquet cannot hold without loss. Cast it to {remedy}."
            )
    if not type_.endswith((")", "]")):
        return _STORED_AS.get(type_, type_)
    stored = _nested_in_parquet(type_)
    if stored is None:
        shown = type_ if len(type_) <= _SHOWN else f"{type_[:_SHOWN]}..."
        raise UnsupportedType(
            f"{table}: column '{column}' is {shown}, which Parquet cannot hold: it has a field without a name, or two "
            "that differ in case at most, or more than 100 levels, of which a list takes two. Rename them, or store it "
            "as JSON."
        )
    return stored


@lru_cache(maxsize=4096)
def _nested_in_parquet(type_: str) -> str | None:
    """The type that comes back: fixed arrays are lists, an ENUM inside of something is text. None: there is no such."""
    from pyarrow.parquet import read_schema

    with temporary_folder("type") as folder, connect_sandbox(folder) as con:
        path = folder / "nothing.parquet"
        try:
            con.execute(f"COPY (SELECT CAST(NULL AS {type_}) AS value) TO {quote_text(str(path))} (FORMAT parquet)")
            read_schema(path)  # takes fewer levels than DuckDB, as do those who build upon Arrow
            return describe(con, f"SELECT * FROM {read_file(path)}")["value"]
        except (duckdb.Error, OSError):
            return None


# What DuckDB itself calls the plain types: most logs name no others, and for these nobody needs to be asked.
_PLAIN = frozenset((
    "BIGINT", "BLOB", "BOOLEAN", "DATE", "DOUBLE", "FLOAT", "HUGEINT", "INTEGER", "JSON", "SMALLINT", "TIME",
    "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP_S", "TINYINT", "UBIGINT",
    "UINTEGER", "USMALLINT", "UTINYINT", "UUID", "VARCHAR",
))  # fmt: skip


def type_name(text: str) -> str | None:
    """DuckDB's own name for a type that somebody else wrote (INT8 is BIGINT), or None when it is none."""
    return text if text in _PLAIN else _canonical_type(text)


def checked_type(text: str, *, what: str, table: str) -> str:
    """DuckDB's own name for a type that somebody else wrote; `what` has it. Raises InvalidOption when it is none."""
    name = type_name(text) if isinstance(text, str) else None
    if name is None:
        raise InvalidOption(f"{table}: the type of {what} is {text!r}, which is none of DuckDB's. Correct it.")
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
    """Column -> DuckDB type of a query, without running it."""
    return {str(name): str(type_) for name, type_, *_ in con.execute(f"DESCRIBE {select}").fetchall()}


def check_columns(batch: Mapping[str, str], table_columns: Mapping[str, str], *, table: str) -> None:
    """Raise SchemaConflict or InvalidBatch unless a batch of these columns can join a table that has `table_columns`."""
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
    """DuckDB and Spark compare names without case: two columns must differ by more."""
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
    """Those that only an exclusive commit may bring."""
    return {column: type_ for column, type_ in batch.items() if column not in table_columns}


def check_sort_columns(
    sort_by: Iterable[str], batch: Mapping[str, str], table_columns: Mapping[str, str], *, table: str
) -> list[str]:
    """The sort columns that the batch has. Raises UnknownColumn for one that neither batch nor table has."""
    for column in sort_by:
        if column not in batch and column not in table_columns:
            raise UnknownColumn(
                f"{table}: sort_by names '{column}', and neither the table nor the batch has such a column (the "
                f"batch has {sorted(batch)}). Correct sort_by, or bring the column."
            )
    return [column for column in sort_by if column in batch]


def typed_nothing(schema: Mapping[str, str], *, rows: Literal[0, 1] = 0) -> str:
    """A query of no rows, or of one that is all null, whose columns have these names and types."""
    columns = ", ".join(f"CAST(NULL AS {type_}) AS {quote_name(c)}" for c, type_ in schema.items())
    return f"SELECT {columns or 'NULL AS nothing'} WHERE {'true' if rows else 'false'}"
