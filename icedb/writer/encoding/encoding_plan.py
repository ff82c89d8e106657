"""The Parquet encoding of each column, selected by encoding a sample of the rows.

The smallest encoding is selected, because it is also written and read the fastest: DELTA_BINARY_PACKED for times and
ids in order, BYTE_STREAM_SPLIT for measured floats, a dictionary for columns of few values. Encodings that common
readers decode slowly (DELTA_BYTE_ARRAY) are not tried. The selection is kept for each table, because batches of a table
are alike.

A dictionary that does not pay in a sample may pay in a whole row group. The number of distinct values is estimated from
the values that occur once and twice in the sample, with Chao's estimator (Chao 1984, "Nonparametric estimation of the
number of classes in a population").
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icedb.util.lru_cache import LruCache

__all__ = ["SAMPLE_ROWS", "EncodingPlan", "Plans", "leaf_columns", "plan_encodings"]

#: The number of adjacent rows that are encoded on trial.
SAMPLE_ROWS = 4_096
# To try the encodings of a smaller sample takes longer than to encode it.
_TRIED_ROWS_MIN = 128
# The plan of a smaller sample is kept for adjacent parts only, because others of few rows differ from it.
_KEPT_ROWS_MIN = 1_024
# Tables, each with the plans of few sizes of parts.
_KEPT_MAX = 256
# A dictionary must be smaller than another encoding by this factor, because it is written more slowly.
_DICTIONARY_GAIN = 0.95
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class EncodingPlan:
    """Arguments of `pyarrow.parquet.ParquetWriter`: Parquet paths of columns with a dictionary, and other encodings."""

    dictionaries: tuple[str, ...]
    encodings: Mapping[str, str]


#: Plans by the table, its columns, and the size of the parts.
Plans = LruCache[tuple[Any, ...], EncodingPlan]

_kept: Plans = LruCache(_KEPT_MAX)
_lock = threading.Lock()


def plan_encodings(table: str, sample: pa.Table, part_rows: int, *, small_plans: Plans) -> EncodingPlan:
    """Return the encodings for parts of about `part_rows` rows. `sample` has adjacent rows of a part, in its order.

    Without a trial, a few rows have delta-encoded integers and times, and no dictionary, which would take more space.
    The plan of a table (by its address) and its columns is kept for parts of similar size. `small_plans` keeps those of
    small samples.
    """
    if sample.num_rows < _TRIED_ROWS_MIN:
        flat = {field.name: field.type for field in sample.schema if not field.type.num_fields}
        packed = {
            path: encoding
            for path, column in leaf_columns(sample.schema)
            if column in flat and (encoding := _packed_encoding(flat[column])) is not None
        }
        return EncodingPlan((), packed)
    key = (table, *sample.schema.names, *map(str, sample.schema.types), part_rows.bit_length() // 2)
    kept = small_plans if sample.num_rows < _KEPT_ROWS_MIN else _kept
    with _lock:
        plan = kept.get(key)
    if plan is None:
        plan = _selected(sample, part_rows)
        with _lock:
            kept.put(key, plan)
    return plan


def leaf_columns(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the Parquet path of each column without fields, and the Arrow column that has it.

    Paths that two columns have (`a.b`, and the field `b` of `a`) are omitted, because options cannot distinguish them.
    """
    if not any(type_.num_fields for type_ in schema.types):
        return [(name, name) for name in schema.names]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([], schema), sink, store_schema=False)
    stored = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    paths = [stored.column(n).path for n in range(len(stored))]
    columns = [field.name for field in schema for _ in range(_leaf_count(field.type))]
    occurrences = Counter(paths)
    return [(path, column) for path, column in zip(paths, columns, strict=True) if occurrences[path] == 1]


def _selected(sample: pa.Table, part_rows: int) -> EncodingPlan:
    leaves = leaf_columns(sample.schema)
    nested = {field.name for field in sample.schema if field.type.num_fields}
    tried = sample.select([path for path, column in leaves if column not in nested])
    dictionaries = [path for path, column in leaves if column in nested]
    encodings: dict[str, str] = {}
    if tried.num_columns and tried.num_rows:
        decoded = pa.table({f.name: _decoded(tried[f.name]) for f in tried.schema})
        names = decoded.schema.names
        plain = _sizes(decoded, {})
        packed = {n: e for n in names if (e := _packed_encoding(decoded.schema.field(n).type)) is not None}
        others = _sizes(decoded, packed) if packed else plain
        with_dictionary = _sizes(decoded, None)
        for n, name in enumerate(names):
            if pa.types.is_boolean(decoded.schema.field(name).type):
                continue
            size = min(plain[n], others[n]) / tried.num_rows * part_rows
            # A long column that has a dictionary in Arrow is written with it, because to decode it takes time.
            has_ranks = part_rows > SAMPLE_ROWS and pa.types.is_dictionary(tried.schema.field(name).type)
            of_dictionary = _dictionary_bytes(decoded[name], with_dictionary[n], plain[n], part_rows)
            if has_ranks or of_dictionary < size * _DICTIONARY_GAIN:
                dictionaries.append(name)
            elif name in packed and others[n] < plain[n]:
                encodings[name] = packed[name]
    return EncodingPlan(tuple(dictionaries), encodings)


def _leaf_count(type_: pa.DataType) -> int:
    return sum(_leaf_count(type_.field(n).type) for n in range(type_.num_fields)) or 1


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _packed_encoding(type_: pa.DataType) -> str | None:
    """Return the encoding that may be smaller than plain values and is not a dictionary, if the type has one."""
    if pa.types.is_floating(type_):
        return "BYTE_STREAM_SPLIT"
    is_integer = pa.types.is_integer(type_) or (pa.types.is_temporal(type_) and not pa.types.is_interval(type_))
    return "DELTA_BINARY_PACKED" if is_integer else None


def _sizes(sample: pa.Table, encodings: Mapping[str, str] | None) -> Sequence[int]:
    """Return the bytes of each column, in these encodings (others are plain), or with dictionaries for None."""
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"use_dictionary": True}
    if encodings is not None:
        options = {"use_dictionary": False, "column_encoding": dict(encodings) or None}
    pq.write_table(
        sample, sink, compression="zstd", compression_level=_ZSTD_LEVEL, write_statistics=False, store_schema=False,
        store_decimal_as_integer=True, **options,
    )  # fmt: skip
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    return [group.column(n).total_compressed_size for n in range(group.num_columns)]


def _dictionary_bytes(column: pa.ChunkedArray, sample_bytes: int, plain_bytes: int, rows: int) -> float:
    """Return the estimated bytes of a column of `rows` rows with a dictionary: its values, and the indices."""
    sample_rows = len(column)
    storage = column.combine_chunks()
    storage = storage.storage if isinstance(storage, pa.ExtensionArray) else storage
    counts = storage.value_counts().field("counts").to_numpy()
    distinct, once, twice = max(1, len(counts)), int((counts == 1).sum()), int((counts == 2).sum())
    value_bytes = plain_bytes / sample_rows
    index_bytes = max(0.0, sample_bytes - distinct * value_bytes) / sample_rows
    unseen = once * once // (2 * twice) if twice else once * (once - 1) // 2
    estimate = min(rows, distinct + unseen)
    growth = max(1, (estimate - 1).bit_length()) / max(1, (distinct - 1).bit_length())
    return float(estimate * value_bytes + rows * index_bytes * growth)
