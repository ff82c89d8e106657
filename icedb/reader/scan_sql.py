"""SQL over parts (data files): a DuckDB relation with every column of the schema and the partition columns.

The relation is SQL text, so no part is read before DuckDB runs it. Columns are matched by name, so one relation can
read parts of any age. Predicates over partition columns skip files by their paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import quote

import duckdb
import pyarrow as pa

from icedb.errors import (
    AccessDenied,
    IceDBError,
    InvalidOption,
    InvalidQuery,
    InvariantViolated,
    MissingPart,
    SnapshotExpired,
    StoreUnavailable,
)
from icedb.format.keys import NULL_VALUE, encode_value
from icedb.format.records import total_rows
from icedb.sql.connections import PARQUET_OPTIONS, RESERVED, quote_name, quote_text
from icedb.sql.partition_expressions import PartitionExpression
from icedb.sql.types import typed_nothing
from icedb.storage.obstore_store import ObjectNotFound
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = [
    "FILE_COLUMN",
    "ROW_COLUMN",
    "partition_value",
    "query_error",
    "read_as",
    "read_parquet",
    "relation",
    "scan",
    "translate_read_error",
    "translated_read_errors",
    "visible_partitions",
]

ACCESS_REFUSED = frozenset((401, 403))
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500
_NO_TABLE = re.compile(r"Table with name .* does not exist")
# DuckDB's texts of errors without a status.
_UNREACHABLE = re.compile("could not (?:connect|establish)|connection error|timeout was reached", re.IGNORECASE)

_FILENAME = "filename"
_ROW_NUMBER = "file_row_number"

#: The optional column with the path of the file that a row was read from.
FILE_COLUMN = f"{RESERVED}file"
#: The optional column with the number of a row in its file. The first one is 0.
ROW_COLUMN = f"{RESERVED}row"


def visible_partitions(schema: Mapping[str, str], partition_schema: Mapping[str, str]) -> dict[str, str]:
    """Return the partition columns that a query sees: those without a data column of the same name."""
    data_columns = {c.casefold() for c in schema}
    return {n: t for n, t in partition_schema.items() if n.casefold() not in data_columns}


def relation(
    handle: Handle,
    parts: Sequence[Part],
    schema: Mapping[str, str],
    partition_schema: Mapping[str, str],
    *,
    expressions: Sequence[PartitionExpression] | None = None,
    with_file: bool = False,
    with_row: bool = False,
) -> str:
    """Return a query over the rows of the parts, with the columns of `t`. `with_file` adds FILE_COLUMN.

    `with_row` adds FILE_COLUMN and ROW_COLUMN.

    No part is opened to write the text. When the query runs, it opens the parts that remain after its conditions on
    partition columns. If a partitioning has only one part, DuckDB opens that when it binds the query.

    `expressions` are those of `partition_schema` (None: the handle's). They compute the columns that older paths lack.
    """
    visible = visible_partitions(schema, partition_schema)
    places = {FILE_COLUMN: "VARCHAR"} if with_file or with_row else {}
    places |= {ROW_COLUMN: "BIGINT"} if with_row else {}
    if not parts:
        return typed_nothing({**schema, **visible, **places})
    columns = [*map(quote_name, [*schema, *visible]), *places]
    files = bool(visible or places)
    return " UNION ALL ".join(
        f"SELECT {', '.join(columns)} FROM ("
        + _with_partitions(read_as(handle, of_layout, schema, files=files, rows=with_row), in_path, lacking)
        + ")"
        for of_layout, in_path, lacking in _layouts(handle, parts, visible, expressions)
    )


def scan(handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], partition_schema: Mapping[str, str]) -> str:
    """Return a query over the rows of the parts, with all columns of the parts and the visible partition columns.

    DuckDB opens every part to read its columns.
    """
    visible = visible_partitions(schema, partition_schema)
    return " UNION ALL BY NAME ".join(
        f"SELECT * EXCLUDE ({FILE_COLUMN}) FROM ("
        + _with_partitions(_read_all(handle, of_layout, schema, lacking), in_path, lacking)
        + ")"
        for of_layout, in_path, lacking in _layouts(handle, parts, visible, None)
    )


def read_as(
    handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], *, files: bool, rows: bool = False
) -> str:
    """Return a query over the rows of the parts with the columns of the schema, matched by name.

    A column is null where a part lacks it, and cast where a part has another type. `files` adds FILE_COLUMN, and `rows`
    ROW_COLUMN. With the schema in the SQL, DuckDB need not open every part before it can plan the query.
    """
    # DuckDB takes a condition on a column of such a name for a choice of files or rows, so a data column is renamed.
    added = {_FILENAME: FILE_COLUMN} if files else {}
    added |= {_ROW_NUMBER: ROW_COLUMN} if rows else {}
    hiding = {c: f"{RESERVED}{c.casefold()}" for c in schema if c.casefold() in added}
    # A single part is read without a given schema: DuckDB must open a file to learn how many threads can share it.
    if len(parts) == 1 and not hiding and not rows:
        options = PARQUET_OPTIONS + (f", filename = {quote_text(FILE_COLUMN)}" if files else "")
        columns = [f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in schema.items()]
        columns += added.values()
        stored = f"SELECT * FROM read_parquet({_paths(handle, parts)}, {options})"
        return f"SELECT {', '.join(columns)} FROM ({typed_nothing(schema)} UNION ALL BY NAME {stored})"
    # FILE_COLUMN is an alias of `filename`, because DuckDB skips files only for conditions on `filename`.
    names = {c: hiding.get(c, c) for c in schema}
    columns = [quote_name(n) if n == c else f"{quote_name(n)} AS {quote_name(c)}" for c, n in names.items()]
    options = f"schema = {_file_schema(names, schema)}, {PARQUET_OPTIONS}"
    options += f", {_FILENAME} = true" if files else ""
    if row_count := total_rows(parts):
        options += f", explicit_cardinality = {row_count}"  # without it, DuckDB expects few rows and orders joins badly
    selected = ", ".join([*columns, *(f"{name} AS {alias}" for name, alias in added.items())])
    return f"SELECT {selected} FROM read_parquet({_paths(handle, parts)}, {options})"


def _has_filename(columns: Iterable[str]) -> bool:
    return any(c.casefold() == _FILENAME for c in columns)


def _file_schema(names: Mapping[str, str], schema: Mapping[str, str]) -> str:
    """Return the `schema` option: column in the files -> name and type here.

    It is a text with a cast, which DuckDB parses in half the time of an expression.
    """
    fields = (
        f"{_item(c)}={{name: {_item(names[c])}, type: {_item(t)}, default_value: NULL}}" for c, t in schema.items()
    )
    type_ = "MAP(VARCHAR, STRUCT(name VARCHAR, type VARCHAR, default_value VARCHAR))"
    return f"CAST({quote_text('{' + ', '.join(fields) + '}')} AS {type_})"


def _item(text: str) -> str:
    """Quote a text inside the text of a MAP or a STRUCT."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def partition_value(name: str, type_: str) -> str:
    """Return SQL that extracts the value of a partition column from FILE_COLUMN."""
    escaped = "".join(c if c.isalnum() else f"\\{c}" for c in encode_value(name))
    segment = f"regexp_extract({FILE_COLUMN}, {quote_text(f'^.*/_data/(?:[^/]+/)*?{escaped}=([^/]*)/')}, 1)"
    text = f"url_decode(nullif({segment}, {quote_text(NULL_VALUE)}))"
    # Through a STRUCT, because DuckDB does not skip files by a plain cast of a text, which can raise.
    return text if type_ == "VARCHAR" else f"CAST({{'v': {text}}} AS STRUCT(v {type_})).v"


def _layouts(
    handle: Handle,
    parts: Sequence[Part],
    visible: Mapping[str, str],
    expressions: Sequence[PartitionExpression] | None,
) -> Iterator[tuple[list[Part], dict[str, str], dict[str, str]]]:
    """Group the parts by the partition columns in their paths.

    Yields the parts, the types of the partition columns in their paths, and SQL of the partition columns that the paths
    lack. The last are computed from the rows, for parts of an older partitioning.
    """
    layouts: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        layouts.setdefault(tuple(part.values), []).append(part)
    for names, of_layout in layouts.items():
        lacking = {
            e.name: f"CAST((\n{e.sql}\n) AS {visible[e.name]})"
            for e in expressions or handle.expressions
            if e.name in visible and e.name not in names
        }
        yield of_layout, {n: t for n, t in visible.items() if n in names}, lacking


def _with_partitions(rows: str, in_path: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    """Add the partition columns to the rows: first those in the paths, then those that are computed."""
    extracted = "".join(f", {partition_value(n, t)} AS {quote_name(n)}" for n, t in in_path.items())
    computed = "".join(f", {sql} AS {quote_name(n)}" for n, sql in lacking.items())
    query = f"SELECT *{extracted} FROM ({rows})" if extracted else rows
    return f"SELECT *{computed} FROM ({query})" if computed else query


def _read_all(handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    options = f"{PARQUET_OPTIONS}, filename = {quote_text(FILE_COLUMN)}"
    rows = f"SELECT * FROM {read_parquet(handle, parts, options)}"
    if _has_filename(schema):
        rows = f"SELECT * FROM ({rows} OFFSET 0)"  # hides conditions on that column from DuckDB, see `read_as`
    # The expression of a lacking column can name any column of the schema.
    return f"{typed_nothing(schema)} UNION ALL BY NAME {rows}" if lacking else rows


def read_parquet(handle: Handle, parts: Sequence[Part], options: str = PARQUET_OPTIONS) -> str:
    """Return a `read_parquet(...)` over these parts, with all of their columns, matched by name."""
    return f"read_parquet({_paths(handle, parts)}, union_by_name = true, {options})"


def _paths(handle: Handle, parts: Sequence[Part]) -> str:
    """Return the list of the paths that DuckDB opens for these parts."""
    return f"[{', '.join(map(quote_text, handle.part_paths.readable(parts)))}]"


def query_error(error: Exception, *, table: str) -> Exception:
    """Translate an error of DuckDB or Arrow about any query into one of `icedb.errors`.

    The message keeps DuckDB's text and its suggestions of columns, without the position in the SQL and the stack trace.
    Errors of the operating system (a full disk) are returned as they are.
    """
    text = " ".join(str(error).partition("\nLINE ")[0].partition("\nStack Trace")[0].split())
    if isinstance(error, IceDBError) or (isinstance(error, OSError) and error.errno is not None):
        return error
    if not isinstance(error, duckdb.Error | pa.ArrowException | OSError):
        return error
    status = getattr(error, "status_code", 0)
    if status == TOO_MANY_REQUESTS or status >= SERVER_ERROR or _UNREACHABLE.search(text):
        return StoreUnavailable(f"{table}: a file that the query reads was not served ({text}). Retry.")
    if isinstance(error, duckdb.InternalException | duckdb.FatalException) or "INTERNAL Error" in text:
        return InvariantViolated(f"{table}: DuckDB failed in the query ({text}). Rephrase the query, and report it.")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return InvalidQuery(f"{table}: the query needs more memory ({text}). Select fewer rows or columns.")
    remedy = " The table is called t." if _NO_TABLE.search(text) else ""
    return InvalidQuery(f"{table}: the query failed: {text}{'' if text.endswith(('.', '!', '?')) else '.'}{remedy}")


@contextmanager
def translated_read_errors(
    handle: Handle, parts: Sequence[Part], *, as_of_ms: int, wrong_sql: str | None = None
) -> Iterator[None]:
    """Translate DuckDB's errors and missing objects during a query over these parts; see `translate_read_error`."""
    try:
        yield
    except (duckdb.Error, ObjectNotFound) as error:
        raise translate_read_error(handle, parts, error, as_of_ms=as_of_ms, wrong_sql=wrong_sql) from None


def translate_read_error(
    handle: Handle, parts: Sequence[Part], error: Exception, *, as_of_ms: int, wrong_sql: str | None = None
) -> Exception:
    """Translate an error of a query over these parts into one of `icedb.errors`.

    "No such file" means that the snapshot expired, or that a live part is missing. A store that rejects a request or
    does not answer has its own error. `wrong_sql` is the message if the caller's SQL does not fit the rows. Every other
    error of DuckDB or Arrow keeps its text (`query_error`). Errors of other origin are returned as they are.
    """
    text = str(error)
    named = next((p for p in parts if p.key in text or quote(p.key) in text), None)  # as a key, or as in a URL
    if named is None:
        if wrong_sql is not None and isinstance(error, duckdb.DataError | duckdb.ProgrammingError):
            return InvalidOption(f"{handle.table}: {wrong_sql} ({str(error).splitlines()[0]}).")
        return query_error(error, table=handle.table)
    status = getattr(error, "status_code", 0)
    if status == TOO_MANY_REQUESTS or status >= SERVER_ERROR or _UNREACHABLE.search(text):
        reason = f"status {status}" if status else text.splitlines()[0].partition(" to ")[0]
        return StoreUnavailable(
            f"{handle.table}: cannot read '{named.key}': the store did not serve the request ({reason}). Check the "
            "endpoint, then retry."
        )
    state = handle.read(fresh=True)
    marker = state.parts.get(named.key)
    if marker is None or marker.tombstoned_ms is not None:
        return SnapshotExpired(
            f"{handle.table}: the part '{named.key}' was cleaned up. Take a new snapshot; for changes, begin anew.",
            horizon_ms=max(state.horizon_ms, as_of_ms + 1),
        )
    if status in ACCESS_REFUSED:
        return AccessDenied(
            f"{handle.table}: cannot read '{named.key}': access was refused (status {status}). Check the access key, "
            "its secret, the region and the rights on that prefix (read, list)."
        )
    return MissingPart(
        f"{handle.table}: the live part '{named.key}' cannot be read ({str(error).splitlines()[0]}). If the object "
        "is gone, restore it: no program of ours deletes a live part."
    )
