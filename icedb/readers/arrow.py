"""A snapshot as a `pyarrow.dataset.Dataset`: its live parts, with the columns that the table has today.

    dataset(table.snapshot()).to_table(columns=["user_id"], filter=pc.field("day") == date(2026, 11, 21))

Nothing is read until somebody asks. Columns that a part lacks are null in its rows, types that have widened are cast,
and partition columns come from the paths, with the types of their expressions: a filter on them skips parts. A data
column of the same name wins; by such a column, `where` skips parts. The types are those of `Snapshot.to_arrow` but for
one: a UUID, there text, is 16 bytes with Arrow's type for it, which Arrow's own filters cannot compare.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from icedb.engine import connect_sandbox, quote_name, quote_text
from icedb.errors import InvalidOption
from icedb.handle import Part
from icedb.location import Location
from icedb.scan import visible_partitions
from icedb.schema import typed_nothing
from icedb.snapshot import Snapshot

__all__ = ["arrow_schema", "dataset"]


def dataset(snapshot: Snapshot, where: str | None = None) -> ds.FileSystemDataset:
    """The rows of a snapshot, or those of the partitions for which `where` is true; as for `Snapshot.query`.

    Raises InvalidOption for a part of a partitioning before the last `alter`, whose path does not say what the
    partition columns are, and InvalidPartitionExpression.
    """
    visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
    parts = snapshot.files(where)
    if older := next((p for p in parts if not visible.keys() <= p.values.keys()), None):
        lacking = sorted(visible.keys() - older.values.keys())
        raise InvalidOption(
            f"{snapshot.table}: the part '{older.key}' was written before the table was partitioned by {lacking}, "
            "which Arrow cannot compute of its rows. Query the snapshot, which does, or rewrite the partition."
        )
    schema = arrow_schema({**snapshot.schema, **visible})
    types = {name: schema.field(name).type for name in visible}
    guarantees = _guarantees({p.partition: p.values for p in parts}, visible, types)
    in_memory = snapshot.handle.location.scheme == "memory"
    filesystem = fs.LocalFileSystem() if in_memory else _filesystem(snapshot.handle.location)
    format_ = ds.ParquetFileFormat()
    fragments = [
        format_.make_fragment(
            snapshot.handle.readable_path(p) if in_memory else _path(p),
            filesystem,
            partition_expression=guarantees[p.partition],
        )
        for p in parts
    ]
    return ds.FileSystemDataset(fragments, schema, format_, filesystem)


def arrow_schema(types: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of columns with these DuckDB types, as the dataset gives them."""
    if not types:
        return pa.schema([])
    with connect_sandbox() as con:
        lossless = con.execute(typed_nothing(types)).to_arrow_table().schema
    return pa.schema([_stored(field) for field in lossless])


def _stored(field: pa.Field) -> pa.Field:
    """A field as Arrow can filter by it: DuckDB's lossless one has extension types for booleans and JSON."""
    type_ = field.type
    if isinstance(type_, pa.Bool8Type):
        stored = pa.bool_()
    elif isinstance(type_, pa.JsonType):
        stored = type_.storage_type
    elif pa.types.is_struct(type_):
        stored = pa.struct([_stored(child) for child in type_])
    elif pa.types.is_list(type_):
        stored = pa.list_(_stored(type_.value_field))
    elif pa.types.is_map(type_):
        stored = pa.map_(_stored(type_.key_field), _stored(type_.item_field))
    else:
        return field
    return field.with_type(stored)


def _guarantees(
    partitions: Mapping[str, Mapping[str, str | None]], visible: Mapping[str, str], types: Mapping[str, pa.DataType]
) -> dict[str, ds.Expression]:
    """What is true of every row in a partition, by its path. Arrow fills the columns from it."""
    found = {path: ds.scalar(True) for path in partitions}
    for name, type_ in visible.items():
        values = {values[name] for values in partitions.values()}
        cast = _cast({value for value in values if value is not None}, type_, types[name])
        for path, of_path in partitions.items():
            value = of_path[name]
            field = ds.field(name)
            found[path] &= field.is_null() if value is None else field == cast[value]
    return found


def _cast(texts: set[str], type_: str, arrow: pa.DataType) -> dict[str, pa.Scalar]:
    """Values as the paths have them -> as DuckDB reads them."""
    with connect_sandbox() as con:
        rows = ", ".join(f"({quote_text(text)})" for text in texts) or "(NULL)"
        query = f"SELECT v AS text, CAST(v AS {type_}) AS {quote_name('value')} FROM (VALUES {rows}) AS t(v)"
        table = con.execute(query).to_arrow_table()
    values = table["value"].cast(arrow)
    return dict(zip(table["text"].to_pylist(), values, strict=True))


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


def _path(part: Part) -> str:
    """A part's path as Arrow writes it: without a scheme."""
    return part.path.partition("://")[2] or part.path
