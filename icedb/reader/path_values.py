"""The values of partition columns for each part (data file), for formats that record one value for each file.

They come from the paths of parts. The path of a part of an older partitioning lacks some of them. These come from its
rows, if all rows have the same value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icedb.errors import InvalidPartitionValue
from icedb.format.keys import decode_partition
from icedb.reader.lazy_parts import LiveParts
from icedb.reader.scan_sql import FILE_COLUMN, relation, translated_read_errors
from icedb.reader.snapshot import Snapshot
from icedb.sql.connection_pool import reader
from icedb.sql.connections import quote_name
from icedb.storage.parts import Part

__all__ = ["PathValues", "path_values"]

#: A part's partition columns and their values as text.
PathValues = Mapping[str, str | None]
_EXAMPLES = 3


def path_values(snapshot: Snapshot, parts: Sequence[Part], columns: Sequence[str]) -> list[PathValues]:
    """Return the values of each part, in order, for these partition columns.

    Parts whose paths lack a column are opened.
    Raises InvalidPartitionValue, the store's errors, SnapshotExpired and MissingPart.
    """
    if not columns:
        return [{} for _ in parts]
    paths = _partitions(parts)
    by_path: dict[str, PathValues] = {}
    for path in set(paths):
        values = decode_partition(path)
        if values.keys() >= set(columns):
            by_path[path] = {c: values[c] for c in columns}
    parts_to_open = [parts[place] for place, path in enumerate(paths) if path not in by_path]
    if not parts_to_open:
        return [by_path[path] for path in paths]
    by_key = _from_rows(snapshot, parts_to_open, columns)
    return [by_path[path] if path in by_path else by_key[part.key] for path, part in zip(paths, parts, strict=True)]


def _partitions(parts: Sequence[Part]) -> list[str]:
    if not isinstance(parts, LiveParts):
        return [part.partition for part in parts]
    paths, numbers = parts.partitions
    return [paths[number] for number in numbers]


def _from_rows(snapshot: Snapshot, parts: Sequence[Part], columns: Sequence[str]) -> dict[str, PathValues]:
    """Return the values that all rows of a part share, by the part's key."""
    handle = snapshot.handle
    rows = relation(
        handle, parts, snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions, with_file=True
    )
    texts = ", ".join(f"CAST({quote_name(c)} AS VARCHAR) AS {quote_name(c)}" for c in columns)
    by_path: dict[str, list[tuple[str | None, ...]]] = {}
    size = sum(p.bytes for p in parts)
    with (
        translated_read_errors(handle, parts, as_of_ms=snapshot.as_of_ms),
        reader(handle.location, read_bytes=size) as con,
    ):
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
            f"{mixed_columns} ({_examples(mixed)}). They were written under another partitioning, and exported "
            "files have one value each. Nothing was exported. Name the column in exclude_columns to export without it, "
            "or write those rows again: overwrite with a query's result."
        )
    return {p.key: dict(zip(columns, values[0], strict=True)) for p, values in of_parts.items()}


def _examples(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_EXAMPLES]) + (", ..." if len(keys) > _EXAMPLES else "")
