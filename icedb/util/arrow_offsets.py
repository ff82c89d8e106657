"""Copies of nested Arrow arrays that have an offset, because DuckDB misreads some of them.

DuckDB 1.5 reads some slices of nested arrays from the wrong place: structs in a struct, lists over a slice of structs.
The values are wrong and no error is raised. Nested columns that contain a slice at any depth are copied first.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["copy_nested_slices"]


def copy_nested_slices(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same batch, with copies of nested columns that are slices or contain one."""
    columns = batch.columns
    sliced = [n for n, column in enumerate(columns) if _is_nested(column.type) and _is_sliced(column)]
    if not sliced:
        return batch
    for n in sliced:
        columns[n] = pa.concat_arrays([columns[n]])
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_nested(type_: pa.DataType) -> bool:
    return bool(type_.num_fields)


def _is_sliced(array: pa.Array) -> bool:
    if array.offset:
        return True
    return _is_nested(array.type) and any(map(_is_sliced, _children(array)))


def _children(array: pa.Array) -> list[pa.Array]:
    match array:
        case pa.StructArray():
            return [array.field(n) for n in range(array.type.num_fields)]
        case pa.MapArray():
            return [array.keys, array.items]
        case pa.ListArray() | pa.LargeListArray() | pa.FixedSizeListArray():
            return [array.values]
    return []
