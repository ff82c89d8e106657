"""Conversion of zoned nanosecond times to microseconds. DuckDB has no such type, and would truncate silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from icedb.errors import IceDBError, InvalidBatch

__all__ = ["in_microseconds", "microseconds", "without_nanoseconds"]


def microseconds(
    reader: pa.RecordBatchReader, *, table: str, failed: Callable[[IceDBError], None] | None = None
) -> pa.RecordBatchReader:
    """Convert every `timestamp[ns, tz]` of a stream to `timestamp[us, tz]`, also inside other types.

    Returns the same stream if it has none. If digits would be lost, its batches call `failed` and raise InvalidBatch.
    """
    schema = _schema(reader.schema)
    if schema.types == reader.schema.types:
        return reader

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            try:
                yield in_microseconds(batch, table=table)
            except InvalidBatch as error:
                if failed is not None:
                    failed(error)
                raise

    return pa.RecordBatchReader.from_batches(schema, batches())


def in_microseconds(batch: pa.RecordBatch, *, table: str, where: str = "") -> pa.RecordBatch:
    """Convert a batch like `microseconds`. Messages contain `where`, its origin. Raises InvalidBatch."""
    schema, columns = _schema(batch.schema), batch.columns
    for n, field in enumerate(schema):
        if field.type != columns[n].type:
            try:
                columns[n] = _cast(columns[n], field.type)
            except pa.ArrowException as error:
                raise _lossy(table, f"column '{field.name}'{where}", error) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([f.with_type(without_nanoseconds(f.type)) for f in schema], metadata=schema.metadata)


def without_nanoseconds(type_: pa.DataType) -> pa.DataType:
    """Return the type with microseconds in place of zoned nanoseconds, or the same type if it has none."""
    types = pa.types
    if types.is_timestamp(type_):
        return pa.timestamp("us", tz=type_.tz) if type_.tz is not None and type_.unit == "ns" else type_
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_):
        value = without_nanoseconds(type_.value_type)
        return type_ if value == type_.value_type else value
    if types.is_struct(type_):
        converted = pa.struct([f.with_type(without_nanoseconds(f.type)) for f in type_])
    elif types.is_map(type_):
        key, item = (f.with_type(without_nanoseconds(f.type)) for f in (type_.key_field, type_.item_field))
        converted = pa.map_(key, item, keys_sorted=type_.keys_sorted)
    elif types.is_fixed_size_list(type_):
        converted = pa.list_(_element(type_), type_.list_size)
    elif types.is_large_list(type_):
        converted = pa.large_list(_element(type_))
    elif types.is_list(type_):
        converted = pa.list_(_element(type_))
    elif types.is_list_view(type_) or types.is_large_list_view(type_):  # Arrow rejects casts of views
        converted = (pa.list_view if types.is_list_view(type_) else pa.large_list_view)(_element(type_))
    else:
        return type_
    inner = [type_.field(n).type for n in range(type_.num_fields)]
    return type_ if [converted.field(n).type for n in range(converted.num_fields)] == inner else converted


def _element(type_: pa.DataType) -> pa.Field:
    return type_.value_field.with_type(without_nanoseconds(type_.value_type))


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if array.type.num_fields:  # a cast would also check the values outside the slice
        array = pa.concat_arrays([array])
    return array.cast(type_)


def _lossy(table: str, column: str, error: pa.ArrowException) -> InvalidBatch:
    reason = str(error).splitlines()[0]
    return InvalidBatch(
        f"{table}: {column} holds zoned times in nanoseconds, but a table stores microseconds "
        f"({reason}). Truncate them to microseconds, or write them without a zone."
    )
