"""The values of partition columns for each file, as Delta needs them: typed and complete.

They come from the paths of parts. The path of a part of an older partitioning lacks some of them. These come from its
rows, if all rows have the same value. Delta reads an empty text as null, so such values are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from icedb.errors import InvalidPartitionValue
from icedb.format.keys import decode_partition
from icedb.reader.scan_sql import FILE_COLUMN, relation, translated_read_errors
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import connect_reader, connect_sandbox, quote_name
from icedb.storage.parts import Part

__all__ = ["partition_values"]

#: A file's partition columns and their values.
Values = dict[str, str | None]
_REMEDY = "Nothing was exported. Name the column in exclude_columns to export without it{also}."
_EXAMPLES = 3


def partition_values(snapshot: Snapshot, parts: Sequence[Part], columns: Mapping[str, str]) -> list[Values]:
    """Return the values of each part, in order. `columns` maps the partition columns to their DuckDB types.

    Parts whose paths lack a column are opened.
    Raises InvalidPartitionValue, the store's errors, SnapshotExpired and MissingPart.
    """
    if not columns:
        return [{} for _ in parts]
    by_path: dict[str, Values] = {}
    parts_to_open: list[Part] = []
    for part in parts:
        if part.partition not in by_path:
            values = decode_partition(part.partition)
            if columns.keys() <= values.keys():
                by_path[part.partition] = {c: values[c] for c in columns}
            else:
                parts_to_open.append(part)
    by_key = _from_rows(snapshot, parts_to_open, columns) if parts_to_open else {}
    typed_by_path = dict(zip(by_path, _typed(snapshot.table, list(by_path.values()), columns), strict=True))
    typed_by_key = dict(zip(by_key, _typed(snapshot.table, list(by_key.values()), columns), strict=True))
    return [typed_by_key.get(p.key) or typed_by_path[p.partition] for p in parts]


def _from_rows(snapshot: Snapshot, parts: Sequence[Part], columns: Mapping[str, str]) -> dict[str, Values]:
    """Return the values that all rows of a part share, by the part's key."""
    handle = snapshot.handle
    rows = relation(
        handle, parts, snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions, with_file=True
    )
    texts = ", ".join(f"CAST({quote_name(c)} AS VARCHAR) AS {quote_name(c)}" for c in columns)
    by_path: dict[str, list[tuple[str | None, ...]]] = {}
    with translated_read_errors(handle, parts, as_of_ms=snapshot.as_of_ms), connect_reader(handle.location) as con:
        path_values = con.execute(f"SELECT DISTINCT {FILE_COLUMN}, {texts} FROM ({rows})").fetchall()
    for path, *values in path_values:
        by_path.setdefault(str(path), []).append(tuple(values))
    of_parts = {p: by_path.get(path, []) for p, path in zip(parts, handle.part_paths.readable(parts), strict=True)}
    if mixed := [p.key for p, values in of_parts.items() if len(values) > 1]:
        mixed_columns = [
            c for n, c in enumerate(columns) if any(len({v[n] for v in vs}) > 1 for vs in of_parts.values())
        ]
        raise InvalidPartitionValue(
            f"{snapshot.table}: {len(mixed)} parts have rows with several values of the partition columns "
            f"{mixed_columns} ({_examples(mixed)}). They were written under another partitioning, and Delta has one "
            "value for each file. "
            + _REMEDY.format(also=", or write those rows again: overwrite with a query's result")
        )
    return {p.key: dict(zip(columns, values[0], strict=True)) for p, values in of_parts.items()}


def _typed(table: str, all_values: list[Values], columns: Mapping[str, str]) -> Iterator[Values]:
    """Return the values in Delta's notation of their types."""
    by_column = {}
    for column, type_ in columns.items():
        texts = sorted({text for values in all_values if (text := values[column]) is not None})
        by_column[column] = _notation(table, column, type_, texts)
    for values in all_values:
        yield {c: None if (text := values[c]) is None else by_column[c][text] for c in columns}


def _notation(table: str, column: str, type_: str, texts: list[str]) -> dict[str, str]:
    if type_ == "VARCHAR" or not texts:
        delta_values: list[str | None] = list(texts)
    else:
        with connect_sandbox() as con:
            con.register("v", pa.table({"text": pa.array(texts, pa.string())}))
            value = f"TRY_CAST(text AS {type_})"
            if type_ == "TIMESTAMP WITH TIME ZONE":
                value = f"strftime({value} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
            delta_values = [v for (v,) in con.execute(f"SELECT CAST({value} AS VARCHAR) FROM v").fetchall()]
    if rejected := [text for text, value in zip(texts, delta_values, strict=True) if not value]:
        raise InvalidPartitionValue(
            f"{table}: the partition column '{column}' ({type_}) has values that Delta does not support: "
            f"{rejected[:_EXAMPLES]}. Delta reads the empty text as null; other values must be of the column's type. "
            + _REMEDY.format(also="")
        )
    return {text: str(value) for text, value in zip(texts, delta_values, strict=True)}


def _examples(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_EXAMPLES]) + (", ..." if len(keys) > _EXAMPLES else "")
