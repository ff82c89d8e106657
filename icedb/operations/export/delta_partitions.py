"""The values of partition columns, as Delta writes them down for each file: typed, and complete.

They are in the paths of parts. A part of an older partitioning has others there; what it lacks follows from its rows,
if these have one value. Delta has none for the empty text, which it takes for null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa

from icedb.errors import InvalidPartitionValue
from icedb.format.keys import decode_partition
from icedb.reader.scan_sql import FILE_COLUMN, relation, translate_read_error
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import connect_reader, connect_sandbox, quote_name
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import Part

__all__ = ["partition_values"]

#: A file's partition columns and their values.
Values = dict[str, str | None]
_REMEDY = "Nothing was exported. Name the column in exclude_columns to export without it{also}."
_EXAMPLES = 3


def partition_values(snapshot: Snapshot, parts: Sequence[Part], columns: Mapping[str, str]) -> list[Values]:
    """Of each part, in order. `columns` are the partition columns to tell, with their DuckDB types.

    Parts whose paths do not tell are opened.
    Raises InvalidPartitionValue, the store's errors, SnapshotExpired and MissingPart.
    """
    if not columns:
        return [{} for _ in parts]
    told: dict[str, Values] = {}
    unclear: list[Part] = []
    for part in parts:
        if part.partition not in told:
            values = decode_partition(part.partition)
            if columns.keys() <= values.keys():
                told[part.partition] = {c: values[c] for c in columns}
            else:
                unclear.append(part)
    computed = _from_rows(snapshot, unclear, columns) if unclear else {}
    written = dict(zip(told, _typed(snapshot.table, list(told.values()), columns), strict=True))
    written_of_rows = dict(zip(computed, _typed(snapshot.table, list(computed.values()), columns), strict=True))
    return [written_of_rows.get(p.key) or written[p.partition] for p in parts]


def _from_rows(snapshot: Snapshot, parts: Sequence[Part], columns: Mapping[str, str]) -> dict[str, Values]:
    """Part's key -> the values that all its rows have."""
    handle = snapshot.handle
    rows = relation(
        handle, parts, snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions, with_file=True
    )
    asked = ", ".join(f"CAST({quote_name(c)} AS VARCHAR) AS {quote_name(c)}" for c in columns)
    found: dict[str, list[tuple[str | None, ...]]] = {}
    with connect_reader(handle.location) as con:
        try:
            answer = con.execute(f"SELECT DISTINCT {FILE_COLUMN}, {asked} FROM ({rows})").fetchall()
        except (duckdb.Error, ObjectNotFound) as error:
            raise translate_read_error(handle, parts, error, as_of_ms=snapshot.as_of_ms) from None
    for path, *values in answer:
        found.setdefault(str(path), []).append(tuple(values))
    of_parts = {p: found.get(path, []) for p, path in zip(parts, handle.readable_paths(parts), strict=True)}
    if several := [p.key for p, values in of_parts.items() if len(values) > 1]:
        varied = [c for n, c in enumerate(columns) if any(len({v[n] for v in vs}) > 1 for vs in of_parts.values())]
        raise InvalidPartitionValue(
            f"{snapshot.table}: {len(several)} parts have rows with several values of the partition columns {varied} "
            f"({_examples(several)}): they were written before the table was partitioned so, and Delta knows one value "
            "for a file. " + _REMEDY.format(also=", or write those rows again (`overwrite` with the answer of a query)")
        )
    return {p.key: dict(zip(columns, values[0], strict=True)) for p, values in of_parts.items()}


def _typed(table: str, all_values: list[Values], columns: Mapping[str, str]) -> Iterator[Values]:
    """The values in the way that Delta writes their types."""
    by_column = {}
    for column, type_ in columns.items():
        texts = sorted({text for values in all_values if (text := values[column]) is not None})
        by_column[column] = _written(table, column, type_, texts)
    for values in all_values:
        yield {c: None if (text := values[c]) is None else by_column[c][text] for c in columns}


def _written(table: str, column: str, type_: str, texts: list[str]) -> dict[str, str]:
    if type_ == "VARCHAR" or not texts:
        found: list[str | None] = list(texts)
    else:
        with connect_sandbox() as con:
            con.register("v", pa.table({"text": pa.array(texts, pa.string())}))
            value = f"TRY_CAST(text AS {type_})"
            if type_ == "TIMESTAMP WITH TIME ZONE":
                value = f"strftime({value} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
            found = [v for (v,) in con.execute(f"SELECT CAST({value} AS VARCHAR) FROM v").fetchall()]
    if unfit := [text for text, value in zip(texts, found, strict=True) if not value]:
        raise InvalidPartitionValue(
            f"{table}: the partition column '{column}' ({type_}) has values that Delta cannot have: "
            f"{unfit[:_EXAMPLES]} (the empty text means null there; others must be of the column's type). "
            + _REMEDY.format(also="")
        )
    return {text: str(value) for text, value in zip(texts, found, strict=True)}


def _examples(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_EXAMPLES]) + (", ..." if len(keys) > _EXAMPLES else "")
