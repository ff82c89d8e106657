"""Parts as a DuckDB relation: every column of the schema, and the partition columns.

The relation is SQL text; nothing is read until somebody runs it. Columns are matched by name, so parts of any
age go together, and partition predicates skip files by their paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import duckdb

from icedb.engine import quote_name, quote_text
from icedb.errors import AccessDenied, InvalidOption, MissingPart, SnapshotExpired, StoreUnavailable
from icedb.format.names import NULL_VALUE, encode_value
from icedb.handle import Handle, Part
from icedb.partitions import PartitionExpression
from icedb.schema import typed_nothing

__all__ = ["FILE_COLUMN", "explain", "read_parquet", "relation", "scan", "visible_partitions"]

ACCESS_REFUSED = frozenset((401, 403))
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500
# What DuckDB says, in an error without a status.
_UNREACHABLE = re.compile("could not (?:connect|establish)|connection error|timeout was reached", re.IGNORECASE)
_ODD = re.compile(r"[?\\\n\r]|=[^/]*=")

#: The column, on demand, that says which file a row came from.
FILE_COLUMN = "__icedb_file"


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
    """A query whose rows are those of the parts; `with_file` adds FILE_COLUMN.

    `expressions` are those of `partition_schema` (None: the handle's); they compute what older paths do not say.
    """
    # The empty side gives names, order and types; the other side's columns are matched to it by name.
    columns = {**schema, **visible_partitions(schema, partition_schema)}
    columns |= {FILE_COLUMN: "VARCHAR"} if with_file else {}
    if not parts:
        return typed_nothing(columns)
    # Only what the schema names: a part of another program may hold more.
    ours = ", ".join(quote_text(c) for c in columns)
    rows = scan(handle, parts, schema, partition_schema, expressions=expressions, with_file=with_file)
    return f"{typed_nothing(columns)} UNION ALL BY NAME SELECT COLUMNS(lambda c: c IN ({ours})) FROM ({rows})"


def scan(
    handle: Handle,
    parts: Sequence[Part],
    schema: Mapping[str, str],
    partition_schema: Mapping[str, str],
    *,
    expressions: Sequence[PartitionExpression] | None = None,
    with_file: bool = False,
) -> str:
    """A query whose rows are those of the parts, with the columns that the parts have and the visible partitions."""
    visible = visible_partitions(schema, partition_schema)
    shadowed = len(visible) < len(partition_schema)
    layouts: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        layouts.setdefault(tuple(part.values), []).append(part)
    scans = []
    for names, of_layout in layouts.items():
        in_path = {n: t for n, t in visible.items() if n in names}
        plain = not shadowed and len(in_path) == len(names)
        rows = _scan_layout(handle, of_layout, in_path, plain=plain, with_file=with_file)
        lacking = {n: t for n, t in visible.items() if n not in names}
        scans.append(_compute(expressions or handle.expressions, rows, schema, lacking) if lacking else rows)
    return " UNION ALL BY NAME ".join(scans)


def _compute(
    expressions: Sequence[PartitionExpression], rows: str, schema: Mapping[str, str], lacking: Mapping[str, str]
) -> str:
    """Parts of an older partitioning: what their paths do not say follows from their rows."""
    computed = "".join(
        f", CAST((\n{e.sql}\n) AS {lacking[e.name]}) AS {quote_name(e.name)}" for e in expressions if e.name in lacking
    )
    return f"SELECT *{computed} FROM ({typed_nothing(schema)} UNION ALL BY NAME {rows})"


def _scan_layout(
    handle: Handle, parts: Sequence[Part], visible: Mapping[str, str], *, plain: bool, with_file: bool
) -> str:
    """Parts whose paths have the same names; `plain`: these are the visible ones, and no data column is."""
    above = any("=" in segment for segment in handle.table.split("/"))  # DuckDB would take that for ours, or data
    encoded = any(encode_value(n) != n for n in visible)  # DuckDB decodes the values in a path, but not the names
    # Paths of v3 programs may hold what DuckDB takes for no partition at all.
    odd = any(_ODD.search(p.partition) for p in parts)
    if not plain or encoded or above or odd:
        return _scan_by_names(handle, parts, visible, with_file=with_file)
    return _scan_hive(handle, parts, visible, with_file=with_file)


def _scan_hive(handle: Handle, parts: Sequence[Part], types: Mapping[str, str], *, with_file: bool) -> str:
    """DuckDB takes the partition columns from the paths, and skips files by them."""
    hive = ", ".join(f"{quote_name(n)}: {quote_text(t)}" for n, t in types.items())
    options = f"hive_partitioning = true, hive_types = {{{hive}}}" if types else "hive_partitioning = false"
    options += f", filename = {quote_text(FILE_COLUMN)}" if with_file else ""
    return f"SELECT * FROM {read_parquet(handle, parts, options)}"


def _scan_by_names(handle: Handle, parts: Sequence[Part], types: Mapping[str, str], *, with_file: bool) -> str:
    """Partition columns from the files' names: where a data column of the same name must win, or DuckDB cannot."""
    computed = "".join(
        f", CAST(url_decode(nullif({_segment(name)}, {quote_text(NULL_VALUE)})) AS {type_}) AS {quote_name(name)}"
        for name, type_ in types.items()
    )
    options = f"hive_partitioning = false, filename = {quote_text(FILE_COLUMN)}"
    excluded = "" if with_file else f" EXCLUDE ({FILE_COLUMN})"
    return f"SELECT *{excluded}{computed} FROM {read_parquet(handle, parts, options)}"


def _segment(name: str) -> str:
    escaped = "".join(c if c.isalnum() else f"\\{c}" for c in encode_value(name))
    return f"regexp_extract({FILE_COLUMN}, {quote_text(f'^.*/_data/(?:[^/]+/)*?{escaped}=([^/]*)/')}, 1)"


def read_parquet(handle: Handle, parts: Sequence[Part], options: str = "hive_partitioning = false") -> str:
    """A `read_parquet(...)` over these parts, matching columns by name."""
    paths = ", ".join(quote_text(handle.readable_path(p)) for p in parts)
    return f"read_parquet([{paths}], union_by_name = true, {options})"


def explain(
    handle: Handle, parts: Sequence[Part], error: Exception, *, as_of_ms: int, wrong_sql: str | None = None
) -> Exception:
    """What an error of a query over these parts means. Else the error itself.

    "No such file": the snapshot expired, or a live part is gone. A store that refuses, or is not there, is told as
    that. `wrong_sql` is what to say when the SQL that a caller gave does not fit the rows.
    """
    text = str(error)
    named = next((p for p in parts if p.key in text or quote(p.key) in text), None)  # as it is, or as a URL has it
    if named is None:
        if wrong_sql is not None and isinstance(error, duckdb.DataError | duckdb.ProgrammingError):
            return InvalidOption(f"{handle.table}: {wrong_sql} ({str(error).splitlines()[0]}).")
        return error
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
