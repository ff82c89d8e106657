"""A snapshot for Arrow: as a lazy dataset, which Arrow reads itself, and as record batches, which DuckDB reads.

    dataset(table.snapshot()).to_table(columns=["user_id"], filter=pc.field("day") == date(2026, 11, 21))
    for batch in record_batches(table.snapshot(), where="user_id = 7"): ...

Of a dataset nothing is read until somebody asks. Columns that a part lacks are null in its rows, types that have
widened are cast, and partition columns come from the paths, with the types of their expressions: a filter on them skips
parts. A data column of the same name wins. The types are those of `Snapshot.to_arrow` but for one: a UUID, there text,
is 16 bytes with Arrow's type for it, which Arrow's own filters cannot compare.

Record batches go through DuckDB, and so give exactly what a query gives: every row filter, parts of any partitioning,
and one batch at a time in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from icedb.engines.engine_parts import arrow_schema, chosen_parts, path_values, selection
from icedb.errors import InvalidOption
from icedb.reader.scan_sql import visible_partitions
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.storage.location import Location
from icedb.util.arguments import checks_arguments

__all__ = ["dataset", "record_batches"]


@checks_arguments
def dataset(
    snapshot: Snapshot, parts_where: str | None = None, *, uuid: pa.DataType | None = None
) -> ds.FileSystemDataset:
    """The rows of a snapshot, or of those of its parts that may hold rows for which `parts_where` is true.

    `parts_where` is a DuckDB predicate that only leaves parts out; filter the dataset as well. `uuid` is the type of
    UUIDs: Arrow's own, or `pa.binary(16)`, by which Arrow can filter. In a bucket, the dataset keeps the credentials of
    now for as long as it lives.

    Raises InvalidOption for a part of a partitioning before the last `alter`, whose path does not say what the
    partition columns are, UnsupportedType, and what `Snapshot.files` raises.
    """
    visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
    parts = chosen_parts(snapshot, parts_where)
    schema = arrow_schema({**snapshot.schema, **visible}, uuid=uuid)
    guarantees = _guarantees({p.partition: p.values for p in parts}, visible, schema)
    copied = not snapshot.handle.location.is_opened_by_engines
    filesystem = fs.LocalFileSystem() if copied else _filesystem(snapshot.handle.location)
    format_ = ds.ParquetFileFormat()
    handle = snapshot.handle
    paths = handle.readable_paths(parts) if copied else [_path(p) for p in handle.own_paths(parts)]
    fragments = [
        format_.make_fragment(path, filesystem, partition_expression=guarantees[p.partition])
        for p, path in zip(parts, paths, strict=True)
    ]
    return ds.FileSystemDataset(fragments, schema, format_, filesystem)


@checks_arguments
def record_batches(
    snapshot: Snapshot,
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    rows_max: int = ROWS_PER_BATCH,
) -> pa.RecordBatchReader:
    """The rows for which `where` (as for `Snapshot.query`) is true, in batches of up to `rows_max` rows.

    DuckDB reads ahead only what fits its buffers, so that a table may be larger than memory. A part that is gone when
    it is reached is told then: SnapshotExpired, MissingPart. Raises UnknownColumn, InvalidOption, and as
    `Snapshot.query`.
    """
    if isinstance(rows_max, bool) or not isinstance(rows_max, int) or rows_max < 1:
        raise InvalidOption(f"{snapshot.table}: rows_max is {rows_max!r}; give a number of rows over 0.")
    selected = selection(snapshot, columns)
    if not snapshot.schema:
        return pa.table({}).to_reader()  # SQL has no table without columns
    return snapshot.query(f"SELECT {selected} FROM t", where=where).to_arrow_reader(rows_max)


def _guarantees(
    partitions: Mapping[str, Mapping[str, str | None]], visible: Mapping[str, str], schema: pa.Schema
) -> dict[str, ds.Expression]:
    """What is true of every row in a partition, by its path. Arrow fills the columns from it."""
    typed = path_values(partitions.values(), visible, schema)
    found = {path: ds.scalar(True) for path in partitions}
    for path, values in partitions.items():
        for name in visible:
            field, text = ds.field(name), values[name]
            found[path] &= field.is_null() if text is None else field == typed[name][text]
    return found


def _filesystem(location: Location) -> fs.FileSystem:
    if location.scheme == "file":
        return fs.LocalFileSystem()
    credentials = location.credentials()
    scheme, _, host = (location.endpoint or "").partition("://")
    return fs.S3FileSystem(
        access_key=credentials.access_key_id if credentials else None,
        secret_key=credentials.secret_access_key if credentials else None,
        session_token=credentials.session_token if credentials else None,
        anonymous=credentials is None,
        region=location.region or "us-east-1",
        endpoint_override=host or None,
        scheme=scheme or "https",
        force_virtual_addressing=location.virtual_hosted,
    )


def _path(path: str) -> str:
    """A part's path as Arrow writes it: without a scheme."""
    return path.partition("://")[2] or path
