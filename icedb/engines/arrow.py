"""A snapshot for Arrow, as a lazy dataset or as record batches.

    of_a_day = pc.field("day") == date(2026, 11, 21)
    dataset(table.snapshot()).to_table(columns=["user_id"], filter=of_a_day)
    for batch in record_batches(table.snapshot(), where="user_id = 7"): ...

Arrow reads a dataset itself, lazily. Columns that a part lacks are null in its rows, and widened types are cast.
Partition columns come from the paths, with the types of their expressions, so a filter on them skips parts. A data
column of the same name takes precedence. The types are those of `Snapshot.to_arrow`, except that a UUID (text there) is
16 bytes with Arrow's UUID type. Arrow's own filters cannot compare that type.

DuckDB reads record batches, so they return exactly what a query returns: with any row filter, for parts of any
partitioning, and with one batch at a time in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from icedb.engines.engine_parts import arrow_schema, chosen_parts, path_values, selection
from icedb.errors import InvalidOption
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.storage.location import Location
from icedb.util.arguments import checks_arguments

__all__ = ["dataset", "record_batches"]


@checks_arguments
def dataset(
    snapshot: Snapshot, parts_where: str | None = None, *, uuid: pa.DataType | None = None
) -> ds.FileSystemDataset:
    """Return the rows of a snapshot as a lazy Arrow dataset.

    The dataset keeps the credentials of the time of this call, also for a bucket.

    Args:
        snapshot: The snapshot to read.
        parts_where: A DuckDB predicate. Parts that cannot contain matching rows are skipped. It does not filter rows,
            so filter the dataset as well.
        uuid: The Arrow type for UUIDs: Arrow's own by default, or `pa.binary(16)`, which Arrow can filter.

    Returns:
        A dataset with one fragment for each part.

    Raises:
        InvalidOption: If a part was written before the last `alter` of the partitioning, because its path lacks
            partition columns. Also the errors of `Snapshot.files`.
        UnsupportedType: If Arrow has no type for a column.

    Example:
        >>> dataset(table.snapshot(), "user_id = 7").to_table(filter=pc.field("user_id") == 7)
    """
    visible = snapshot.visible_partitions
    parts = chosen_parts(snapshot, parts_where)
    schema = arrow_schema({**snapshot.schema, **visible}, uuid=uuid)
    guarantees = _guarantees({p.partition: p.values for p in parts}, visible, schema)
    copied = not snapshot.handle.location.is_opened_by_engines
    filesystem = fs.LocalFileSystem() if copied else _filesystem(snapshot.handle.location)
    format_ = ds.ParquetFileFormat()
    handle = snapshot.handle
    paths = handle.part_paths.readable(parts) if copied else [_path(p) for p in handle.part_paths.original(parts)]
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
    """Return rows of a snapshot as a stream of Arrow record batches.

    DuckDB reads ahead only as much as its buffers hold, so the table may be larger than memory.

    Args:
        snapshot: The snapshot to read.
        columns: The columns to return; None returns all.
        where: A DuckDB predicate that selects rows, as for `Snapshot.query`.
        rows_max: The maximum number of rows in a batch.

    Returns:
        A reader. It raises SnapshotExpired or MissingPart when it reaches a part that no longer exists.

    Raises:
        UnknownColumn: If the snapshot has no such column.
        InvalidOption: If an argument is invalid. Also the errors of `Snapshot.query`.

    Example:
        >>> snapshot = table.snapshot()
        >>> for batch in record_batches(snapshot, ["user_id"], where="day = '2026-11-21'"): ...
    """
    if isinstance(rows_max, bool) or not isinstance(rows_max, int) or rows_max < 1:
        raise InvalidOption(f"{snapshot.table}: rows_max is {rows_max!r}; pass a positive number of rows.")
    selected = selection(snapshot, columns)
    if not snapshot.schema:
        return pa.table({}).to_reader()  # SQL has no table without columns
    return snapshot.query(f"SELECT {selected} FROM t", where=where).to_arrow_reader(rows_max)


def _guarantees(
    partitions: Mapping[str, Mapping[str, str | None]], visible: Mapping[str, str], schema: pa.Schema
) -> dict[str, ds.Expression]:
    """Return the expression that is true of all rows of each partition. Arrow fills the partition columns from it."""
    typed = path_values(partitions.values(), visible, schema)
    guarantees = {path: ds.scalar(True) for path in partitions}
    for path, values in partitions.items():
        for name in visible:
            field, text = ds.field(name), values[name]
            guarantees[path] &= field.is_null() if text is None else field == typed[name][text]
    return guarantees


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
    """A part's path in Arrow's notation, which has no scheme."""
    return path.partition("://")[2] or path
