"""Bloom filters of parts: which columns can have one, and its size.

A reader that looks up a value skips the row groups whose filter excludes it. The filter hashes the stored bytes, so a
column can have one only if equal values have equal bytes. Floats do not (0.0 equals -0.0), and readers that use the
filter of a float column lose rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from icedb.errors import InvalidOption, UnknownColumn

__all__ = ["check_bloom_filters", "filter_options"]

#: The share of absent values that a filter does not exclude. The filter of a default row group of distinct values has
#: 128 KiB then, 8.5 bits for each value. A share of 0.01 would double it, because its size is a power of two.
FALSE_POSITIVES = 0.02

_TYPES = frozenset((
    "BIGINT", "BLOB", "DATE", "INTEGER", "JSON", "SMALLINT", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_NS", "TINYINT", "UBIGINT", "UINTEGER", "USMALLINT", "UTINYINT", "UUID", "VARCHAR",
))  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\(\d+,\d+\)")


def check_bloom_filters(
    filtered: Iterable[str],
    columns: Mapping[str, str],
    *,
    table: str,
    other_columns: Mapping[str, str] = MappingProxyType({}),
    may_grow: bool = False,
) -> None:
    """Check the columns that shall have filters against `columns`, with their DuckDB types.

    `other_columns`: further columns, whose types are not checked. `may_grow`: a batch may add columns. Raises
    UnknownColumn, and InvalidOption for a type that cannot have a filter.
    """
    for column in filtered:
        type_ = columns.get(column)
        if type_ is None:
            if column in other_columns or may_grow:
                continue
            raise UnknownColumn(
                f"{table}: bloom_filters names '{column}', and there is no such column (there are "
                f"{sorted({**other_columns, **columns})}). Correct bloom_filters, or bring the column."
            )
        if type_ not in _TYPES and not _DECIMAL.fullmatch(type_):
            kind = "nested" if type_.endswith((")", "]")) else type_
            raise InvalidOption(
                f"{table}: bloom_filters names '{column}', which is {kind}. BOOLEAN, FLOAT, DOUBLE and nested columns "
                "cannot have a bloom filter. Remove it from bloom_filters."
            )


def filter_options(schema: pa.Schema, filtered: Iterable[str], rows: int) -> dict[str, Any] | None:
    """Return the `bloom_filter_options` of a Parquet writer whose row groups have up to `rows` rows.

    A column that is absent or cannot have a filter gets none. All values may be distinct: pyarrow from 25 on shrinks a
    filter of fewer values when it is complete.
    """
    options = {
        column: {"ndv": max(rows, 1), "fpp": FALSE_POSITIVES}
        for column in filtered
        if column in schema.names and _can_have_filter(schema, column)
    }
    return options or None


def _can_have_filter(schema: pa.Schema, column: str) -> bool:
    type_ = schema.field(column).type
    if pa.types.is_floating(type_) or pa.types.is_boolean(type_) or type_.num_fields:
        return False
    # An option of a column `a.b` would also apply to the field `b` of a column `a`.
    return not any(field.type.num_fields and column.startswith(f"{field.name}.") for field in schema)
