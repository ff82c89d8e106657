"""Parts as a DuckDB relation: every column of the schema, and the partition columns.

The relation is SQL text; nothing is read until somebody runs it. Columns are matched by name, so parts of any
age go together, and partition predicates skip files by their paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icedb.engine import quote_name, quote_text
from icedb.errors import MissingPart, SnapshotExpired
from icedb.format.names import NULL_VALUE, encode_value
from icedb.handle import Handle, Part
from icedb.schema import typed_nothing

__all__ = ["explain", "read_parquet", "relation"]

_FILE = "__icedb_file"


def relation(
    handle: Handle, parts: Sequence[Part], schema: Mapping[str, str], partition_schema: Mapping[str, str]
) -> str:
    """A query whose rows are those of the parts."""
    data_columns = {c.casefold() for c in schema}
    visible = {n: t for n, t in partition_schema.items() if n.casefold() not in data_columns}
    # The empty side gives names, order and types; the other side's columns are matched to it by name.
    columns = {**schema, **visible}
    if not parts:
        return typed_nothing(columns)
    shadowed = len(visible) < len(partition_schema)
    above = any("=" in segment for segment in handle.table.split("/"))  # DuckDB would take that for ours, or data
    encoded = any(encode_value(n) != n for n in visible)  # DuckDB decodes the values in a path, but not the names
    from_names = shadowed or encoded or above
    scan = _scan_by_names(handle, parts, visible) if from_names else _scan_hive(handle, parts, visible)
    # Only what the schema names: a part of another program may hold more.
    ours = ", ".join(quote_text(c) for c in columns)
    return f"{typed_nothing(columns)} UNION ALL BY NAME SELECT COLUMNS(lambda c: c IN ({ours})) FROM ({scan})"


def _scan_hive(handle: Handle, parts: Sequence[Part], types: Mapping[str, str]) -> str:
    """DuckDB takes the partition columns from the paths, and skips files by them."""
    if not types:
        return f"SELECT * FROM {read_parquet(handle, parts)}"
    hive = ", ".join(f"{quote_name(n)}: {quote_text(t)}" for n, t in types.items())
    return f"SELECT * FROM {read_parquet(handle, parts, f'hive_partitioning = true, hive_types = {{{hive}}}')}"


def _scan_by_names(handle: Handle, parts: Sequence[Part], types: Mapping[str, str]) -> str:
    """Partition columns from the files' names: where a data column of the same name must win, or DuckDB cannot."""
    computed = "".join(
        f", CAST(url_decode(nullif({_segment(name)}, {quote_text(NULL_VALUE)})) AS {type_}) AS {quote_name(name)}"
        for name, type_ in types.items()
    )
    options = f"hive_partitioning = false, filename = {quote_text(_FILE)}"
    return f"SELECT * EXCLUDE ({_FILE}){computed} FROM {read_parquet(handle, parts, options)}"


def _segment(name: str) -> str:
    escaped = "".join(c if c.isalnum() else f"\\{c}" for c in encode_value(name))
    return f"regexp_extract({_FILE}, {quote_text(f'^.*/_data/(?:[^/]+/)*?{escaped}=([^/]*)/')}, 1)"


def read_parquet(handle: Handle, parts: Sequence[Part], options: str = "hive_partitioning = false") -> str:
    """A `read_parquet(...)` over these parts, matching columns by name."""
    paths = ", ".join(quote_text(handle.readable_path(p)) for p in parts)
    return f"read_parquet([{paths}], union_by_name = true, {options})"


def explain(handle: Handle, parts: Sequence[Part], error: Exception, *, as_of_ms: int) -> Exception:
    """What "no such file" means: the snapshot expired, or a live part is gone. Else the error itself."""
    named = next((p for p in parts if p.key in str(error)), None)
    if named is None:
        return error
    state = handle.read(fresh=True)
    marker = state.parts.get(named.key)
    if marker is None or marker.tombstoned_ms is not None:
        return SnapshotExpired(
            f"{handle.table}: the part '{named.key}' of this snapshot was cleaned up. Take a new snapshot.",
            horizon_ms=max(state.horizon_ms, as_of_ms + 1),
        )
    return MissingPart(
        f"{handle.table}: the live part '{named.key}' cannot be read ({str(error).splitlines()[0]}). If the object "
        "is gone, restore it: no program of ours deletes a live part."
    )
