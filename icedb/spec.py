"""A table's spec: how its rows are partitioned, sorted and stored. It lies in `_table.json`.

The spec of a table that v3 programs made is in their source code, not in the store; `Table.create` cannot adopt
such a table yet.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from icedb.errors import DamagedLog, InvalidOption

__all__ = ["COMPRESSIONS", "Compression", "TableSpec", "decode_spec", "encode_spec"]

Compression = Literal["zstd", "snappy", "gzip", "lz4_raw", "brotli", "uncompressed"]
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "snappy", "gzip", "lz4_raw", "brotli", "uncompressed")

SPEC_VERSION = 1
# DuckDB's own default, and a multiple of its vector size: smaller groups prune better, larger ones compress better.
ROW_GROUP_ROWS = 122_880


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What `Table.create` was told. `partition_by` are DuckDB expressions with a name, `sort_by` are columns."""

    version: int = SPEC_VERSION
    #: Random, so that a creator recognises its own put when the answer was lost.
    id: str = ""
    #: Rises with each `Table.alter`; a greater one, recorded in the log, holds instead of this.
    revision: int = 0
    partition_by: tuple[str, ...] = ()
    #: Expressions of earlier revisions: there are parts with these names in their paths.
    earlier_partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    compression: Compression = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS
    #: Where log and claims are, when they are not beside the parts. Not written when empty.
    log_uri: str = ""


def check_spec(spec: TableSpec, *, table: str) -> None:
    """Raise InvalidOption for what no table can have. Expressions are checked by `icedb.partitions`."""
    if spec.compression not in COMPRESSIONS:
        raise InvalidOption(f"{table}: compression '{spec.compression}' is none of {', '.join(COMPRESSIONS)}.")
    if not 2_048 <= spec.row_group_rows <= 100_000_000:  # DuckDB writes whole vectors of 2,048 rows
        raise InvalidOption(f"{table}: row_group_rows is {spec.row_group_rows}; give 2,048 to 100,000,000.")
    folded = [c.casefold() for c in spec.sort_by]
    if len(set(folded)) < len(folded):
        raise InvalidOption(f"{table}: sort_by names a column twice: {list(spec.sort_by)}.")


def encode_spec(spec: TableSpec) -> bytes:
    """The bytes of `_table.json`."""
    fields = msgspec.to_builtins(spec)
    if not spec.log_uri:
        del fields["log_uri"]
    return msgspec.json.format(msgspec.json.encode(fields), indent=2)


def decode_spec(body: bytes, *, table: str, key: str) -> TableSpec:
    """The spec in `_table.json`. Raises DamagedLog when it is not one, or is of a later version."""
    try:
        spec = msgspec.json.decode(body, type=TableSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedLog(f"{table}: '{key}' is not a table's spec ({error}).", key=key) from None
    if spec.version != SPEC_VERSION:
        raise DamagedLog(
            f"{table}: '{key}' has version {spec.version}; this program reads {SPEC_VERSION}. Upgrade it.", key=key
        )
    return spec
