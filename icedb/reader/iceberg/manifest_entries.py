"""The encoded entries of manifests: one Avro record for each part (data file).

They are encoded by columns. Each field is encoded once for each of its values, and the fields of a part are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeVar

from icedb.reader.iceberg.avro import NULL, avro_bytes, avro_long, avro_optional, avro_text
from icedb.reader.iceberg.data_files import DataFiles
from icedb.reader.iceberg.layout import IcebergLayout
from icedb.reader.iceberg.single_values import avro_value, encode_bounds, parse_values
from icedb.sql.column_stats import TEXT_TYPES, DecodedBounds, statistics_columns
from icedb.sql.field_ids import field_id

__all__ = ["ID_BITS", "encode_entries", "encode_partition_values"]

#: The bits of a snapshot id below its time.
ID_BITS = 21
_EXISTING = avro_long(0)
_DATA = avro_long(0)
_PARQUET = avro_text("PARQUET")

_Value = TypeVar("_Value", bound=Hashable)


def encode_entries(layout: IcebergLayout, files: DataFiles, partitions: Sequence[bytes]) -> list[bytes]:
    """Return the entry of each part. `partitions` have the encoded values of their partition fields."""
    fields = [
        _each(_head, files.created_ms),
        map(avro_text, files.paths),
        partitions,
        _each(avro_long, files.rows),
        _each(avro_long, files.bytes),
        *_column_maps(layout, files),
    ]
    return list(map(b"".join, zip(*fields, strict=True)))


def encode_partition_values(layout: IcebergLayout, values: Sequence[Any]) -> bytes:
    """Return the values of a part's partition fields, after the field that precedes them."""
    encoded = (
        NULL if value is None else avro_optional(avro_value(field.iceberg_type, value))
        for field, value in zip(layout.partition_fields, values, strict=True)
    )
    return _PARQUET + b"".join(encoded)


def _head(created_ms: int) -> bytes:
    """Encode the fields before the path."""
    time = avro_optional(avro_long(created_ms))
    return b"".join([_EXISTING, avro_optional(avro_long(created_ms << ID_BITS)), time, time, _DATA])


def _each(encode: Callable[[_Value], bytes], values: Sequence[_Value]) -> list[bytes]:
    encoded = {value: encode(value) for value in set(values)}
    return [encoded[value] for value in values]


# ------------------------------------------------------------------------------------------------ maps by column


def _column_maps(layout: IcebergLayout, files: DataFiles) -> list[Iterable[bytes]]:
    """Return the pieces of the maps by column: value counts, null counts, lower bounds, upper bounds."""
    plain = {c: t for c, t in layout.columns.items() if isinstance(layout.types[c], str)}
    rows = _each(avro_long, files.rows)
    counts: list[list[bytes]] = []
    nulls: list[list[bytes]] = []
    lows: list[list[bytes]] = []
    highs: list[list[bytes]] = []
    for column, of_parts in files.bounds(statistics_columns(list(plain), plain)).items():
        id_, iceberg_type = avro_long(field_id(column)), str(layout.types[column])
        counts.append([id_ + count if one else b"" for one, count in zip(of_parts, rows, strict=True)])
        nulls.append([id_ + count if one else b"" for one, count in zip(of_parts, _null_counts(of_parts), strict=True)])
        values = {bound for one in of_parts if one for bound in one[:2] if bound is not None}
        parsed = _parsed(iceberg_type, plain[column], list(values))
        for number, bounds in enumerate((lows, highs)):
            of_column = [one and one[number] for one in of_parts]
            pairs = _bounds(id_, iceberg_type, parsed, set(of_column), upper=bounds is highs)
            bounds.append([pairs[bound] for bound in of_column])
    return [piece for columns in (counts, nulls, lows, highs) for piece in _map_pieces(columns, len(rows))]


def _null_counts(of_parts: Sequence[DecodedBounds | None]) -> list[bytes]:
    return _each(avro_long, [one[2] if one else 0 for one in of_parts])


def _map_pieces(columns: Sequence[Sequence[bytes]], parts: int) -> list[Iterable[bytes]]:
    """Return what each part's encoded map consists of. `columns` have pairs of an id and a value, empty without one.

    An optional map is an array of pairs in Avro.
    """
    starts = [NULL, *(avro_optional(avro_long(count)) for count in range(1, len(columns) + 1))]
    if not columns:
        return [repeat(NULL, parts)]
    if any(b"" in column for column in columns):
        counts = [len(columns) - pairs.count(b"") for pairs in zip(*columns, strict=True)]
        ends = [NULL if count else b"" for count in counts]
        return [[starts[count] for count in counts], *columns, ends]
    return [repeat(starts[-1], parts), *columns, repeat(NULL, parts)]


def _parsed(iceberg_type: str, type_: str, bounds: Sequence[Any]) -> dict[Any, Any]:
    """Return the value of each bound. Those of integers and booleans are values in the log already."""
    return dict(zip(bounds, parse_values(iceberg_type, bounds) if type_ in TEXT_TYPES else bounds, strict=True))


def _bounds(
    id_: bytes, iceberg_type: str, parsed: Mapping[Any, Any], bounds: Collection[Any], *, upper: bool
) -> dict[Any, bytes]:
    """Return the encoded pair of a column's id and each bound; empty if there is none."""
    encoded = encode_bounds(iceberg_type, [parsed.get(bound) for bound in bounds], upper=upper)
    return {b: b"" if e is None else id_ + avro_bytes(e) for b, e in zip(bounds, encoded, strict=True)}
