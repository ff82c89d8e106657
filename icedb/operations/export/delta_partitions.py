"""The values of partition columns for each file, as Delta needs them. Delta reads an empty text as null, so such values
are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from icedb.errors import InvalidPartitionValue
from icedb.reader.path_values import PathValues, path_values
from icedb.reader.snapshot import Snapshot
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_texts
from icedb.storage.parts import Part

__all__ = ["partition_values"]

_EXAMPLES = 3


def partition_values(
    snapshot: Snapshot, parts: Sequence[Part], columns: Mapping[str, str]
) -> Iterator[dict[str, str | None]]:
    """Yield the values of each part, in order. `columns` maps the partition columns to their DuckDB types.

    Raises as `path_values` does, and InvalidPartitionValue for a value that Delta does not support.
    """
    all_values = path_values(snapshot, parts, list(columns))
    return _typed(snapshot.table, all_values, columns)


def _typed(table: str, all_values: Sequence[PathValues], columns: Mapping[str, str]) -> Iterator[dict[str, str | None]]:
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
        with scratch_connection() as con:
            value = f"TRY_CAST(text AS {type_})"
            if type_ == "TIMESTAMP WITH TIME ZONE":
                value = f"strftime({value} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
            rows_of_text = f"(SELECT unnest({quote_texts(texts)}) AS text)"
            delta_values = [
                v for (v,) in con.execute(f"SELECT CAST({value} AS VARCHAR) FROM {rows_of_text}").fetchall()
            ]
    if rejected := [text for text, value in zip(texts, delta_values, strict=True) if not value]:
        raise InvalidPartitionValue(
            f"{table}: the partition column '{column}' ({type_}) has values that Delta does not support: "
            f"{rejected[:_EXAMPLES]}. Delta reads the empty text as null; other values must be of the column's type. "
            "Nothing was exported. Name the column in exclude_columns to export without it."
        )
    return {text: str(value) for text, value in zip(texts, delta_values, strict=True)}
