"""Read options of the data source `icedb`, validated on the driver. Names are case-insensitive.

    path            the table's address, also as the argument of `load(...)`
    as_of           a time with time zone, or unix milliseconds
    since           a time, or the cursor of earlier changes: read only later rows (see `Table.changes`)
    until           with since, in a batch: a time, or a cursor
    where           a DuckDB predicate over the partition columns, which skips whole partitions
    columns         names separated by commas, or a JSON list of names
    batch_parts_max, batch_bytes_max    in a stream: limits of one micro-batch
    split_bytes     the maximum bytes that one task reads. Parts are grouped up to it, and no part is divided. Each part
                    counts 4 MiB more than its size. Tasks are smaller if the driver's processors would be idle
    memory_bytes    the memory of DuckDB in one task, before it spills to disk

All other options are storage options, such as AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from icedb.errors import InvalidOption
from icedb.spark.datasource.options import MEMORY_BYTES, MEMORY_BYTES_MIN, number_of, path_of, storage_options_of
from icedb.util.times import parse_as_of

__all__ = ["ReadOptions", "batch_read_options", "read_options", "stream_read_options"]

# Limit of one task with several parts. A merged part of the usual size is a task by itself.
SPLIT_BYTES = 128 * 1024 * 1024

# Limit of a micro-batch, in bytes of Parquet. A new stream reads a large table in batches of this size.
STREAM_BATCH_BYTES = 1024 * 1024 * 1024

_STREAM_ONLY = ("batch_parts_max", "batch_bytes_max")
_BATCH_ONLY = ("as_of", "until")
_READ_OPTIONS = ("path", "since", "where", "columns", "split_bytes", "memory_bytes", *_BATCH_ONLY, *_STREAM_ONLY)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. `as_of_ms` is in unix milliseconds; None: the latest snapshot. `columns`: None: all.

    `since` and `until` are unix milliseconds or cursors, see `icedb.reader.changes`.
    """

    path: str
    as_of_ms: int | None
    since: int | str | None
    until: int | str | None
    where: str | None
    columns: tuple[str, ...] | None
    split_bytes: int
    memory_bytes: int
    batch_parts_max: int | None
    batch_bytes_max: int
    storage_options: Mapping[str, str] = field(repr=False)


def batch_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read. Raises InvalidOption."""
    return _read_options_without(_STREAM_ONLY, options, "for streams: a batch reads all rows")


def stream_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a stream. Raises InvalidOption."""
    return _read_options_without(_BATCH_ONLY, options, "not for streams: pass 'since' to set their start")


def _read_options_without(names: Collection[str], options: Mapping[str, str], reason: str) -> ReadOptions:
    parsed = read_options(options)
    if invalid := sorted(k.lower() for k in options if k.lower() in names):
        raise InvalidOption(f"{parsed.path}: {invalid} is {reason}. Omit it.")
    return parsed


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read or of a stream. Raises InvalidOption."""
    lowered = {k.lower(): v for k, v in options.items()}
    path = path_of(options, example='spark.read.format("icedb").load("s3://bucket/table")')
    storage_options = storage_options_of(options, path, own=_READ_OPTIONS)
    if "as_of" in lowered and "since" in lowered:
        raise InvalidOption(f"{path}: as_of is for a snapshot. To end changes since a time, pass 'until'.")
    if "until" in lowered and "since" not in lowered:
        raise InvalidOption(f"{path}: until requires 'since'. Pass 'since', or 'as_of' for a snapshot.")
    parts_max = number_of(path, lowered, "batch_parts_max", 0, 1) if "batch_parts_max" in lowered else None
    return ReadOptions(
        path=path,
        as_of_ms=_time(path, "as_of", lowered.get("as_of")),
        since=_time_or_cursor(path, "since", lowered.get("since")),
        until=_time_or_cursor(path, "until", lowered.get("until")),
        where=lowered.get("where"),
        columns=_columns(path, lowered.get("columns")),
        split_bytes=number_of(path, lowered, "split_bytes", SPLIT_BYTES, 1),
        memory_bytes=number_of(path, lowered, "memory_bytes", MEMORY_BYTES, MEMORY_BYTES_MIN),
        batch_parts_max=parts_max,
        batch_bytes_max=number_of(path, lowered, "batch_bytes_max", STREAM_BATCH_BYTES, 1),
        storage_options=storage_options,
    )


def _time_or_cursor(path: str, name: str, text: str | None) -> int | str | None:
    return text if text is not None and text.lstrip().startswith("{") else _time(path, name, text)


def _time(path: str, name: str, text: str | None) -> int | None:
    return None if text is None else parse_as_of(text, table=path, name=name)


def _columns(path: str, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
    else:
        names = [name.strip() for name in text.split(",")]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise InvalidOption(
            f"{path}: columns is '{text[:200]}'. Pass names separated by commas, or a JSON list of names."
        )
    return tuple(names)
