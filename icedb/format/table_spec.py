"""A table's spec: how its rows are partitioned, sorted and stored. It lies in `_table.json`.

The spec of a table that v3 programs made is in their source code, not in the store: `icedb.transaction.open_table`
tells what its paths say of it.
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
    "Aggregating",
    "Compression",
    "Dedup",
    "EarlierSpec",
    "Merging",
    "Replacing",
    "SchemaPolicy",
    "TableSpec",
    "View",
    "all_columns",
    "altered_spec",
    "check_spec",
    "decode_spec",
    "encode_spec",
    "spec_at",
]

Compression = Literal["zstd", "snappy", "gzip", "lz4_raw", "brotli", "uncompressed"]
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "snappy", "gzip", "lz4_raw", "brotli", "uncompressed")

SPEC_VERSION = 1
# DuckDB's own default, and a multiple of its vector size: smaller groups prune better, larger ones compress better.
ROW_GROUP_ROWS = 122_880
# DuckDB writes whole vectors of rows.
ROW_GROUP_ROWS_MIN = 2_048


#: Whether a batch may bring columns that nobody declared.
SchemaPolicy = Literal["open", "declared"]


class Dedup(msgspec.Struct, frozen=True, tag_field="kind", tag="dedup"):
    """Of the rows of a partition that are equal in `by`, a merge keeps one."""

    by: tuple[str, ...]


class Replacing(msgspec.Struct, frozen=True, tag_field="kind", tag="replacing"):
    """Of the rows of a partition that are equal in `by`, a merge keeps the one with the greatest `version`."""

    by: tuple[str, ...]
    version: str


class Aggregating(msgspec.Struct, frozen=True, tag_field="kind", tag="aggregating", kw_only=True):
    """The rows of a partition that are equal in `by` become one, in which the other columns are aggregated.

    `count` names a column that every row is inserted with, as 1, and that merges sum. Each column of the table is named
    exactly once.
    """

    by: tuple[str, ...]
    sum: tuple[str, ...] = ()
    min: tuple[str, ...] = ()
    max: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    count: str = ""


Merging = Dedup | Replacing | Aggregating


class View(msgspec.Struct, frozen=True):
    """A table beside this one, by its name, that every insert feeds with the answer of a query over `_rows`."""

    name: str
    query: str


class EarlierSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The part of an earlier spec that a snapshot of its time needs. It held until a time in unix milliseconds."""

    until: int
    partition_by: tuple[str, ...] = ()
    path_columns: dict[str, str] = {}
    merge_query: str = ""
    merging: Merging | None = None


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What `Table.create` was told. `partition_by` are DuckDB expressions with a name, `sort_by` are columns."""

    version: int = SPEC_VERSION
    #: Random, so that a creator recognises its own put when the answer was lost.
    id: str = ""
    #: Rises with each `Table.alter`; a greater one, recorded in the log, holds instead of this.
    revision: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] = 0
    partition_by: tuple[str, ...] = ()
    #: Expressions of earlier revisions: there are parts with these names in their paths.
    earlier_partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    compression: Compression = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS
    #: Where log and claims are, when they are not beside the parts. Not written when empty.
    log_uri: str = ""
    #: Columns that were declared before any batch brought them, with their DuckDB types.
    columns: dict[str, str] = {}
    #: Columns that no row may lack.
    required: tuple[str, ...] = ()
    schema_policy: SchemaPolicy = "open"
    #: A query over `_rows`, the rows of a batch: its answer is what is stored. Empty: the rows themselves.
    insert_query: str = ""
    #: A query over `source_files`, the rows of parts that are merged: its answer is the new part.
    merge_query: str = ""
    #: A ready-made merge query instead.
    merging: Merging | None = None
    #: Whether each row gets a unique `_row_id`, unless it brings one.
    row_id: bool = False
    #: Whether the column `_partition`, which chooses a row's partition, is stored too.
    preserve_partition: bool = False
    #: Partition columns that only the paths tell, after those of `partition_by`, with their DuckDB types.
    path_columns: dict[str, str] = {}
    views: tuple[View, ...] = ()
    #: Specs that held before, in the order of their times: those that gave a snapshot other columns.
    earlier: tuple[EarlierSpec, ...] = ()
    #: Declared column -> when it was declared (unix milliseconds), of those that came after the table.
    declared_ms: dict[str, int] = {}
    #: The times that keep the table right; every program uses these.
    timing: Timing = Timing()
    #: Times that held before, as long as a program may count on one that was longer.
    earlier_timing: tuple[EarlierTiming, ...] = ()


#: What `_table.json` says only when it is not the default: tables that do not use it stay as small as they were.
_WHEN_USED = (
    "log_uri",
    "columns",
    "required",
    "schema_policy",
    "insert_query",
    "merge_query",
    "merging",
    "row_id",
    "preserve_partition",
    "path_columns",
    "views",
    "earlier",
    "declared_ms",
    "timing",
    "earlier_timing",
)
#: What a snapshot has of the spec of its time.
_OF_SNAPSHOTS = ("partition_by", "path_columns", "merge_query", "merging")


def altered_spec(old: TableSpec, new: TableSpec, t_ms: int) -> TableSpec:
    """Return `new` as the revision after `old`, with what must be remembered of `old` from its time `t_ms` on."""
    then = EarlierSpec(until=t_ms, **{name: getattr(old, name) for name in _OF_SNAPSHOTS})
    differs = any(getattr(old, name) != getattr(new, name) for name in _OF_SNAPSHOTS)
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
    """Return the spec as it was for snapshots of a time (unix milliseconds): `spec` itself if nothing was otherwise."""
    then = next((earlier for earlier in spec.earlier if at_ms < earlier.until), None)
    late = {c for c, declared_ms in spec.declared_ms.items() if declared_ms > at_ms}
    if then is None and late.isdisjoint(spec.columns):
        return spec
    changes = {} if then is None else {name: getattr(then, name) for name in _OF_SNAPSHOTS}
    columns = {c: t for c, t in spec.columns.items() if c not in late}
    return msgspec.structs.replace(spec, columns=columns, **changes)


def all_columns(spec: TableSpec, schema: Mapping[str, str]) -> dict[str, str]:
    """Declared columns, and those of the log's schema, which has the last word."""
    return {**spec.columns, **schema}


def check_spec(spec: TableSpec, *, table: str) -> None:
    """Raise InvalidOption for what no table can have. Expressions are checked by `icedb.sql.partition_expressions`."""
    if spec.compression not in COMPRESSIONS:
        raise InvalidOption(f"{table}: compression '{spec.compression}' is none of {', '.join(COMPRESSIONS)}.")
    if not ROW_GROUP_ROWS_MIN <= spec.row_group_rows <= 100_000_000:
        raise InvalidOption(f"{table}: row_group_rows is {spec.row_group_rows}; give 2,048 to 100,000,000.")
    folded = [c.casefold() for c in spec.sort_by]
    if len(set(folded)) < len(folded):
        raise InvalidOption(f"{table}: sort_by names a column twice: {list(spec.sort_by)}.")


def encode_spec(spec: TableSpec, *, indent: int = 2) -> bytes:
    """The bytes of `_table.json`; with an indent of 0, of a spec inside a log file: one line."""
    default = TableSpec()
    fields = msgspec.to_builtins(spec)
    for name in _WHEN_USED:
        if getattr(spec, name) == getattr(default, name):
            del fields[name]
    return msgspec.json.format(msgspec.json.encode(fields), indent=indent or -1)


def decode_spec(body: bytes, *, table: str, key: str) -> TableSpec:
    """Decode the spec in the object `key`. Raises CorruptLog unless it is one of this version with valid values."""
    try:
        body.decode()  # the decoder skips unknown keys, and does not look at their text
        spec = msgspec.json.decode(body, type=TableSpec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"{table}: '{key}' is not a table's spec ({error}).", key=key) from None
    if spec.version != SPEC_VERSION:
        raise CorruptLog(
            f"{table}: '{key}' has version {spec.version}; this program reads {SPEC_VERSION}. Upgrade it.", key=key
        )
    try:
        check_spec(spec, table=table)  # another program may have written it
    except InvalidOption as error:
        raise CorruptLog(f"{table}: '{key}' is not a table's spec ({error})", key=key) from None
    return spec
