"""A table's spec: how its rows are partitioned, sorted and stored. It is stored in `_table.json`.

A table of IceDB v3 has no stored spec, because it is in the source code of the programs that write it.
`icedb.transaction.open_table` derives partition columns from the paths of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from icedb.errors import CorruptLog, InvalidOption
from icedb.format.timing import EarlierTiming, Timing
from icedb.util.times import COUNT_MAX

__all__ = [
    "COMPRESSIONS",
    "ROW_GROUP_ROWS",
    "ROW_GROUP_ROWS_MIN",
    "Aggregating",
    "Compression",
    "Dedup",
    "EarlierSpec",
    "Merging",
    "Replacing",
    "SchemaMode",
    "SchemaPolicy",
    "TableSpec",
    "ViewSpec",
    "all_columns",
    "altered_spec",
    "check_spec",
    "decode_spec",
    "encode_spec",
    "spec_at",
    "visible_schema",
]

Compression = Literal["zstd", "snappy", "gzip", "lz4_raw", "brotli", "uncompressed"]
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "snappy", "gzip", "lz4_raw", "brotli", "uncompressed")

SPEC_VERSION = 1
# DuckDB's own default, and a multiple of its vector size: smaller groups prune better, larger ones compress better.
ROW_GROUP_ROWS = 122_880
# DuckDB writes whole vectors of rows.
ROW_GROUP_ROWS_MIN = 2_048


#: Whether a batch may bring columns that were not declared.
SchemaPolicy = Literal["open", "declared"]
#: Whether an overwrite of a table keeps the columns that its rows lack, or drops them.
SchemaMode = Literal["merge", "overwrite"]


class Dedup(msgspec.Struct, frozen=True, tag_field="kind", tag="dedup"):
    """Merges keep one of the rows of a partition that are equal in `by`."""

    by: tuple[str, ...]


class Replacing(msgspec.Struct, frozen=True, tag_field="kind", tag="replacing"):
    """Merges keep the row with the greatest `version` of the rows of a partition that are equal in `by`."""

    by: tuple[str, ...]
    version: str


class Aggregating(msgspec.Struct, frozen=True, tag_field="kind", tag="aggregating", kw_only=True):
    """Merges aggregate the rows of a partition that are equal in `by` into one row.

    `count` names a column that every inserted row has as 1, and that merges sum. Each column of the table must be named
    exactly once.
    """

    by: tuple[str, ...]
    sum: tuple[str, ...] = ()
    min: tuple[str, ...] = ()
    max: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    count: str = ""


Merging = Dedup | Replacing | Aggregating


class ViewSpec(msgspec.Struct, frozen=True):
    """A sibling table into which every insert also writes the result of a query over `_rows`, the rows of the batch."""

    name: str
    query: str


class EarlierSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The fields of an earlier spec that snapshots of its time need. It was valid until `until` (unix milliseconds)."""

    until: int
    partition_by: tuple[str, ...] = ()
    path_columns: dict[str, str] = {}
    merge_query: str = ""
    merging: Merging | None = None
    dropped: dict[str, int] = {}


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The arguments of `Table.create`. `partition_by` are named DuckDB expressions, `sort_by` are columns."""

    version: int = SPEC_VERSION
    #: Random, so that a creator recognises its own put if the response was lost.
    id: str = ""
    #: Rises with each `Table.alter`. A spec in the log with a greater revision replaces this one.
    revision: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] = 0
    partition_by: tuple[str, ...] = ()
    #: Expressions of earlier revisions, whose names are in the paths of existing parts.
    earlier_partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    compression: Compression = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS
    #: The address of log and claims, if it is not that of the parts. Not written if empty.
    log_uri: str = ""
    #: Columns that were declared before a batch brought them, with their DuckDB types.
    columns: dict[str, str] = {}
    #: Columns that must not be null in any row.
    required: tuple[str, ...] = ()
    schema_policy: SchemaPolicy = "open"
    #: A query over `_rows`, the rows of a batch, whose result is stored instead. Empty: the rows are stored.
    insert_query: str = ""
    #: A query over `source_files`, the rows of the merged parts, whose result is the new part.
    merge_query: str = ""
    #: A predefined merge query, instead of `merge_query`.
    merging: Merging | None = None
    #: Whether each row gets a unique `_row_id`, unless the batch has one.
    row_id: bool = False
    #: Whether the column `_partition`, which chooses a row's partition, is stored as well.
    preserve_partition: bool = False
    #: Partition columns that exist only in paths, after those of `partition_by`, with their DuckDB types.
    path_columns: dict[str, str] = {}
    #: Columns for which new parts have a Parquet bloom filter.
    bloom_filters: tuple[str, ...] = ()
    views: tuple[ViewSpec, ...] = ()
    #: Earlier specs whose snapshots have other columns, in the order of their times.
    earlier: tuple[EarlierSpec, ...] = ()
    #: Declared column -> the time of its declaration (unix milliseconds), if that was after the table's creation.
    declared_ms: dict[str, int] = {}
    #: Column that is hidden -> the time at which it was dropped (unix milliseconds). Older parts still contain it.
    dropped: dict[str, int] = {}
    #: The times on which the table's consistency depends; every program uses these.
    timing: Timing = Timing()
    #: Earlier times, kept while a program may still rely on a longer one of them.
    earlier_timing: tuple[EarlierTiming, ...] = ()


#: Fields that are written only if they differ from the default, so that other specs do not grow.
_OPTIONAL_FIELDS = ("log_uri", "columns", "required", "schema_policy", "insert_query", "merge_query", "merging",
                    "row_id", "preserve_partition", "path_columns", "bloom_filters", "views", "earlier", "declared_ms",
                    "dropped", "timing", "earlier_timing")  # fmt: skip
#: The fields that a snapshot takes from the spec of its time.
_SNAPSHOT_FIELDS = ("partition_by", "path_columns", "merge_query", "merging", "dropped")


def altered_spec(old: TableSpec, new: TableSpec, t_ms: int) -> TableSpec:
    """Return `new` as the revision after `old`, from the time `t_ms` on, with the fields of `old` that must be kept."""
    dropped = {column: old.dropped.get(column, at_ms) or t_ms for column, at_ms in new.dropped.items()}
    new = msgspec.structs.replace(new, dropped=dropped)
    then = EarlierSpec(until=t_ms, **{name: getattr(old, name) for name in _SNAPSHOT_FIELDS})
    differs = any(getattr(old, name) != getattr(new, name) for name in _SNAPSHOT_FIELDS)
    declared = {c: t_ms for c in new.columns if c not in old.columns}
    earlier_timing = old.earlier_timing
    if old.timing != new.timing:
        earlier_timing = (
            *(e for e in earlier_timing if not e.is_over(t_ms, old.timing, new.timing)),
            EarlierTiming(t_ms, old.timing),
        )
    return msgspec.structs.replace(
        new,
        revision=old.revision + 1,
        earlier=(*old.earlier, then) if differs else old.earlier,
        declared_ms={**old.declared_ms, **declared},
        earlier_timing=earlier_timing,
    )


def spec_at(spec: TableSpec, at_ms: int) -> TableSpec:
    """Return the spec for snapshots of a time (unix milliseconds); `spec` itself if nothing was different."""
    then = next((earlier for earlier in spec.earlier if at_ms < earlier.until), None)
    late = {c for c, declared_ms in spec.declared_ms.items() if declared_ms > at_ms}
    if then is None and late.isdisjoint(spec.columns):
        return spec
    changes = {} if then is None else {name: getattr(then, name) for name in _SNAPSHOT_FIELDS}
    columns = {c: t for c, t in spec.columns.items() if c not in late}
    return msgspec.structs.replace(spec, columns=columns, **changes)


def all_columns(spec: TableSpec, schema: Mapping[str, str]) -> dict[str, str]:
    """Return the declared columns and those of the log's schema, whose types take precedence, without dropped ones."""
    return visible_schema(spec, {**spec.columns, **schema})


def visible_schema(spec: TableSpec, schema: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a schema that are not dropped. The log's schema keeps every column for good."""
    return {column: type_ for column, type_ in schema.items() if column not in spec.dropped}


def check_spec(spec: TableSpec, *, table: str) -> None:
    """Raise InvalidOption for an invalid value. `icedb.sql.partition_expressions` checks expressions."""
    if spec.compression not in COMPRESSIONS:
        raise InvalidOption(f"{table}: compression '{spec.compression}' is none of {', '.join(COMPRESSIONS)}.")
    if not ROW_GROUP_ROWS_MIN <= spec.row_group_rows <= 100_000_000:
        raise InvalidOption(f"{table}: row_group_rows is {spec.row_group_rows}; give 2,048 to 100,000,000.")
    for option, columns in (("sort_by", spec.sort_by), ("bloom_filters", spec.bloom_filters)):
        if len({c.casefold() for c in columns}) < len(columns):
            raise InvalidOption(f"{table}: {option} names a column twice: {list(columns)}.")


def encode_spec(spec: TableSpec, *, indent: int = 2) -> bytes:
    """Encode a spec for `_table.json`, or with an indent of 0 as one line for a log file."""
    default = TableSpec()
    fields = msgspec.to_builtins(spec)
    for name in _OPTIONAL_FIELDS:
        if getattr(spec, name) == getattr(default, name):
            del fields[name]
    return msgspec.json.format(msgspec.json.encode(fields), indent=indent or -1)


def decode_spec(body: bytes, *, table: str, key: str) -> TableSpec:
    """Decode the spec in the object `key`. Raises CorruptLog unless it is one of this version with valid values."""
    try:
        body.decode()  # the decoder skips unknown keys without checking their text
        spec = msgspec.json.decode(body, type=TableSpec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"{table}: '{key}' is not a table's spec ({error}).", key=key) from None
    if spec.version != SPEC_VERSION:
        raise CorruptLog(
            f"{table}: '{key}' has version {spec.version}; this program reads {SPEC_VERSION}. Upgrade icedb.", key=key
        )
    try:
        check_spec(spec, table=table)  # another program may have written the spec
    except InvalidOption as error:
        raise CorruptLog(f"{table}: '{key}' is not a table's spec ({error})", key=key) from None
    return spec
