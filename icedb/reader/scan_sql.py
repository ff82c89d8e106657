"""Parts as a DuckDB relation: every column of the schema, and the partition columns.

The relation is SQL text; nothing is read until somebody runs it. Columns are matched by name, so parts of any
age go together, and partition predicates skip files by their paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from icedb.sql.connections import RESERVED, quote_name, quote_text
from icedb.sql.partition_expressions import PartitionExpression
from icedb.sql.types import typed_nothing
from icedb.transaction.table_handle import Handle, Part

__all__ = ["FILE_COLUMN", "translate_read_error", "partition_value", "query_error", "read_as", "read_parquet",
"relation", "scan",
           "visible_partitions"]  # fmt: skip

ACCESS_REFUSED = frozenset((401, 403))
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500
_NO_TABLE = re.compile(r"Table with name .* does not exist")
# What DuckDB says, in an error without a status.
_UNREACHABLE = re.compile("could not (?:connect|establish)|connection error|timeout was reached", re.IGNORECASE)

_FILENAME = "filename"
_NAMED_SO = f"{RESERVED}filename"

#: The column, on demand, that says which file a row came from.
FILE_COLUMN = f"{RESERVED}file"


def visible_partitions(schema: Mapping[str, str], partition_schema: Mapping[str, str]) -> dict[str, str]:
    """The partition columns that a query sees: a data column of the same name wins."""
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
) -> str:
    """A query whose rows are those of the parts, with the columns of `t`; `with_file` adds FILE_COLUMN.

    To make the text opens no part. A query opens those that its conditions on partition columns leave, when it runs; a
    part that is the only one of its partitioning already when DuckDB binds it.

    `expressions` are those of `partition_schema` (None: the handle's); they compute what older paths do not say.
    """
    visible = visible_partitions(schema, partition_schema)
    if not parts:
        return typed_nothing({**schema, **visible, **({FILE_COLUMN: "VARCHAR"} if with_file else {})})
    columns = [*map(quote_name, [*schema, *visible]), *([FILE_COLUMN] if with_file else ())]
    files = bool(visible) or with_file
    return " UNION ALL ".join(
        f"SELECT {', '.join(columns)} FROM ("
        + _with_partitions(read_as(handle, of_layout, schema, files=files), in_path, lacking)
        + ")"
        for of_layout, in_path, lacking in _layouts(handle, parts, visible, expressions)
    )


def scan(handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], partition_schema: Mapping[str, str]) -> str:
    """A query whose rows are those of the parts, with all columns that the parts have and the visible partitions.

    Every part is opened to look what it has.
    """
    visible = visible_partitions(schema, partition_schema)
    return " UNION ALL BY NAME ".join(
        f"SELECT * EXCLUDE ({FILE_COLUMN}) FROM ("
        + _with_partitions(_read_all(handle, of_layout, schema, lacking), in_path, lacking)
        + ")"
        for of_layout, in_path, lacking in _layouts(handle, parts, visible, None)
    )


def read_as(handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], *, files: bool) -> str:
    """A query of the parts' rows with the columns of the schema, by name: null, or cast, where a part has it otherwise.

    `files` adds FILE_COLUMN. To say the schema spares DuckDB a look into every part before it knows what to read.
    """
    # By a column of this name, DuckDB chooses files instead of rows: it must have another one.
    hides_file_names = files and _has_filename(schema)
    # Of a file that it has not looked into, DuckDB does not know how many threads can share it: one alone is opened.
    if len(parts) == 1 and not hides_file_names:
        options = "hive_partitioning = false" + (f", filename = {quote_text(FILE_COLUMN)}" if files else "")
        columns = [f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in schema.items()]
        columns += [FILE_COLUMN] if files else []
        stored = f"SELECT * FROM read_parquet({_paths(handle, parts)}, {options})"
        rows = f"{typed_nothing(schema)} UNION ALL BY NAME {stored}"
        return f"SELECT {', '.join(columns)} FROM ({rows})"
    # By its own name, for only a condition on that column lets DuckDB skip files.
    names = {c: _NAMED_SO if hides_file_names and c.casefold() == _FILENAME else c for c in schema}
    columns = [quote_name(n) if n == c else f"{quote_name(n)} AS {quote_name(c)}" for c, n in names.items()]
    options = f"schema = {_file_schema(names, schema)}, hive_partitioning = false"
    options += f", {_FILENAME} = true" if files else ""
    if rows_known := total_rows(parts):
        options += f", explicit_cardinality = {rows_known}"  # else it expects few rows, and joins in a bad order
    selected = ", ".join([*columns, *([f"{_FILENAME} AS {FILE_COLUMN}"] if files else ())])
    return f"SELECT {selected} FROM read_parquet({_paths(handle, parts)}, {options})"


def _has_filename(columns: Iterable[str]) -> bool:
    return any(c.casefold() == _FILENAME for c in columns)


def _file_schema(names: Mapping[str, str], schema: Mapping[str, str]) -> str:
    """Column in the files -> its name and type here. As text, which DuckDB reads in half the time of an expression."""
    fields = (
        f"{_item(c)}={{name: {_item(names[c])}, type: {_item(t)}, default_value: NULL}}" for c, t in schema.items()
    )
    type_ = "MAP(VARCHAR, STRUCT(name VARCHAR, type VARCHAR, default_value VARCHAR))"
    return f"CAST({quote_text('{' + ', '.join(fields) + '}')} AS {type_})"


def _item(text: str) -> str:
    """A text within the text of a MAP or a STRUCT."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def partition_value(name: str, type_: str) -> str:
    """SQL for the value of a partition column, from FILE_COLUMN."""
    escaped = "".join(c if c.isalnum() else f"\\{c}" for c in encode_value(name))
    segment = f"regexp_extract({FILE_COLUMN}, {quote_text(f'^.*/_data/(?:[^/]+/)*?{escaped}=([^/]*)/')}, 1)"
    text = f"url_decode(nullif({segment}, {quote_text(NULL_VALUE)}))"
    # As a field, for DuckDB does not choose files by a plain cast of a text, which might raise.
    return text if type_ == "VARCHAR" else f"CAST({{'v': {text}}} AS STRUCT(v {type_})).v"


def _layouts(
    handle: Handle,
    parts: Sequence[Part],
    visible: Mapping[str, str],
    expressions: Sequence[PartitionExpression] | None,
) -> Iterator[tuple[list[Part], dict[str, str], dict[str, str]]]:
    """Parts whose paths have the same names; the partition columns in them; and SQL of those that they lack.

    Those are parts of an older partitioning: what their paths do not say follows from their rows.
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
    """The rows with their partition columns: by their files' names, then what must be computed."""
    told = "".join(f", {partition_value(n, t)} AS {quote_name(n)}" for n, t in in_path.items())
    computed = "".join(f", {sql} AS {quote_name(n)}" for n, sql in lacking.items())
    query = f"SELECT *{told} FROM ({rows})" if told else rows
    return f"SELECT *{computed} FROM ({query})" if computed else query


def _read_all(handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    options = f"hive_partitioning = false, filename = {quote_text(FILE_COLUMN)}"
    rows = f"SELECT * FROM {read_parquet(handle, parts, options)}"
    if _has_filename(schema):
        rows = f"SELECT * FROM ({rows} OFFSET 0)"  # DuckDB must see no condition on that column: see `read_as`
    # What computes a lacking column may name any column of the schema.
    return f"{typed_nothing(schema)} UNION ALL BY NAME {rows}" if lacking else rows


def read_parquet(handle: Handle, parts: Sequence[Part], options: str = "hive_partitioning = false") -> str:
    """A `read_parquet(...)` over these parts, with all columns that they have, matched by name."""
    return f"read_parquet({_paths(handle, parts)}, union_by_name = true, {options})"


def _paths(handle: Handle, parts: Sequence[Part]) -> str:
    """What of these parts DuckDB opens, as a list."""
    return f"[{', '.join(map(quote_text, handle.readable_paths(parts)))}]"


def query_error(error: Exception, *, table: str) -> Exception:
    """Translate an error of DuckDB or Arrow about a query, whatever it reads, into one of the tree.

    The text stays, with DuckDB's suggestions of columns, without the place in the SQL and without DuckDB's stack.
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
        return InvariantViolated(f"{table}: DuckDB failed in the query ({text}). Write it otherwise, and report it.")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return InvalidQuery(f"{table}: the query needs more memory ({text}). Select fewer rows or columns.")
    remedy = " The table is called t." if _NO_TABLE.search(text) else ""
    return InvalidQuery(f"{table}: the query failed: {text}{'' if text.endswith(('.', '!', '?')) else '.'}{remedy}")


def translate_read_error(
    handle: Handle, parts: Sequence[Part], error: Exception, *, as_of_ms: int, wrong_sql: str | None = None
) -> Exception:
    """Translate an error of a query over these parts into one of the tree.

    "No such file": the snapshot expired, or a live part is gone. A store that refuses, or does not answer, has its own
    error. `wrong_sql` is the message if the SQL that a caller gave does not fit the rows. Every other error of DuckDB
    or Arrow keeps its text (`query_error`); what is no error of theirs is returned as it is.
    """
    text = str(error)
    named = next((p for p in parts if p.key in text or quote(p.key) in text), None)  # as it is, or as a URL has it
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
