"""What the data source `icedb` is told for a read, checked on the driver. Names are case-insensitive.

    path            the table's address; also what `load(...)` is given
    as_of           unix milliseconds, or a time with its offset
    where           a DuckDB predicate over the partition columns; it leaves out whole partitions
    columns         names with commas between them, or a JSON list of names
    split_bytes     what one task reads: parts go together up to that, and none is divided
    memory_bytes    what DuckDB may use in one task before it spills to disk

All others are storage options, such as AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from icedb.errors import InvalidOption
from icedb.spark.options import MEMORY_BYTES, MEMORY_BYTES_MIN, number_of, storage_options_of
from icedb.table import as_of_ms

__all__ = ["ReadOptions", "read_options"]

# What one task reads, if its parts are smaller: a merged part of the usual size is a task by itself.
SPLIT_BYTES = 128 * 1024 * 1024

_READ_OPTIONS = ("path", "as_of", "where", "columns", "split_bytes", "memory_bytes")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was told. `as_of_ms` is unix milliseconds; None: the latest snapshot. `columns`: None: all."""

    path: str
    as_of_ms: int | None
    where: str | None
    columns: tuple[str, ...] | None
    split_bytes: int
    memory_bytes: int
    storage_options: Mapping[str, str] = field(repr=False)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read. Raises InvalidOption."""
    lowered = {k.lower(): v for k, v in options.items()}
    path = lowered.get("path", "")
    if not path:
        raise InvalidOption(
            'icedb: no table is named. Say where it is: spark.read.format("icedb").load("s3://bucket/table").'
        )
    storage_options = storage_options_of(options, path, known=_READ_OPTIONS)
    return ReadOptions(
        path=path,
        as_of_ms=_as_of_ms(path, lowered.get("as_of")),
        where=lowered.get("where"),
        columns=_columns(path, lowered.get("columns")),
        split_bytes=number_of(path, lowered, "split_bytes", SPLIT_BYTES, 1),
        memory_bytes=number_of(path, lowered, "memory_bytes", MEMORY_BYTES, MEMORY_BYTES_MIN),
        storage_options=storage_options,
    )


def _as_of_ms(path: str, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return as_of_ms(datetime.fromisoformat(text))
    except ValueError:  # also what as_of_ms raises: InvalidOption is one
        raise InvalidOption(
            f"{path}: as_of is '{text}'; give unix milliseconds, or a time with its offset such as "
            "2026-11-21T12:00:00+00:00."
        ) from None


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
            f"{path}: columns is '{text[:200]}'; give names with commas between them, or a JSON list of names."
        )
    return tuple(names)
