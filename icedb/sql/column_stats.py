"""Column statistics in a marker (file entry): `{column: [min, max, null count]}`, by which readers skip parts.

Integers and booleans are JSON values. Values of other types are DuckDB's texts. Long texts are truncated, so minimum
and maximum are bounds and need not be values of the column. Columns whose values have no such order have no
statistics. A reader must treat a column without statistics as one that can have any value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from icedb.format.records import Marker, Stats
from icedb.sql.connections import quote_name
from icedb.sql.partition_expressions import PartitionExpression

__all__ = [
    "TEXT_MAX",
    "TEXT_TYPES",
    "Bounds",
    "DecodedBounds",
    "bounds",
    "bounds_of",
    "decoded_bounds",
    "encode_statistics",
    "figures_sql",
    "statistics_columns",
    "without_texts",
]

# Longer texts are truncated to so many characters, to keep the log small.
TEXT_MAX = 64
# The first character after the surrogates, which no text can contain.
_AFTER_SURROGATES = 0xE000

#: Minimum and maximum as text, and the number of nulls.
Bounds = tuple[str | None, str | None, int]
_Bound = bool | int | str | None
#: Minimum and maximum as in JSON, and the number of nulls.
DecodedBounds = tuple[_Bound, _Bound, int]

_JSON_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN")
#: Types whose bounds are DuckDB's texts.
TEXT_TYPES = ("VARCHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "FLOAT",
               "DOUBLE")  # fmt: skip


def statistics_columns(
    sort_by: Sequence[str], columns: Mapping[str, str], expressions: Iterable[PartitionExpression] = ()
) -> dict[str, str]:
    """Return the columns that get statistics, with their types: the sort columns and the partition columns.

    A partition expression that is just a column has one value in most parts. Its statistics are needed nevertheless: a
    row may be in another partition than its values compute, so the path does not determine the column.
    """
    names = {e.column.casefold() for e in expressions}
    wanted = [*sort_by, *(c for c in columns if c.casefold() in names)]
    return {c: columns[c] for c in wanted if columns.get(c) in (*_JSON_TYPES, *TEXT_TYPES)}


def figures_sql(columns: Mapping[str, str]) -> str:
    """Return SQL of an aggregate whose value is the list of texts that `encode_statistics` takes."""
    figures = (f"CAST({f}({quote_name(c)}) AS VARCHAR)" for c in columns for f in ("min", "max", "count"))
    return f"[{', '.join(figures)}]::VARCHAR[]"


def encode_statistics(columns: Mapping[str, str], figures: Sequence[str | None], rows: int) -> Stats:
    """Encode a marker's `s` from min, max and count of each column in turn; UNSET if there are no statistics."""
    stats = {}
    for n, (column, type_) in enumerate(columns.items()):
        low, high, present = figures[3 * n : 3 * n + 3]
        pair: list[Any] = [low, high]
        if type_ in _JSON_TYPES:
            pair = [v if v is None else json.loads(v) for v in pair]
        if max(len(low or ""), len(high or "")) > TEXT_MAX:
            above = _above(high or "")
            if type_ != "VARCHAR" or above is None:
                continue
            pair = [(low or "")[:TEXT_MAX], above]
        stats[column] = [*pair, rows - int(present or 0)]
    return msgspec.Raw(msgspec.json.encode(stats)) if stats else msgspec.UNSET


def _above(text: str) -> str | None:
    """Return the text, or a shorter text that is greater by code point if it is too long; None if there is none."""
    if len(text) <= TEXT_MAX:
        return text
    kept = text[:TEXT_MAX].rstrip(chr(0x10FFFF))  # no character is greater
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if after == 0xD800 else after)


def bounds(marker: Marker, column: str) -> Bounds | None:
    """Return the bounds of a column; None if the marker has no valid statistics of it."""
    [[of_column]] = bounds_of([marker.stats], {column: ""})
    return of_column


def without_texts(stats: Stats) -> Stats:
    """Return the statistics without the columns whose bounds are texts.

    A superseded part may have been written when its column had another type, in which texts have another order.
    """
    if isinstance(stats, msgspec.UnsetType):
        return stats
    try:
        decoded = msgspec.json.decode(stats)
    except msgspec.DecodeError:
        return msgspec.UNSET
    if not isinstance(decoded, dict):
        return msgspec.UNSET
    kept = {c: b for c, b in decoded.items() if isinstance(b, list) and not any(isinstance(one, str) for one in b)}
    if len(kept) == len(decoded):
        return stats
    return msgspec.Raw(msgspec.json.encode(kept)) if kept else msgspec.UNSET


def bounds_of(stats: Sequence[Stats], columns: Mapping[str, str]) -> list[list[Bounds | None]]:
    """Return the bounds of these columns for each marker, in their order. A type of "" means any type.

    Bounds are None if a marker has no statistics of the column, or invalid ones from another program.
    """
    decoded = decoded_bounds(stats, columns)
    if all(type_ in TEXT_TYPES for type_ in columns.values()):
        return list(map(list, decoded))  # type: ignore[arg-type]
    return [[t and (_text(t[0]), _text(t[1]), t[2]) for t in of_part] for of_part in decoded]


def decoded_bounds(stats: Sequence[Stats], columns: Mapping[str, str]) -> list[tuple[DecodedBounds | None, ...]]:
    """Return the bounds as `bounds_of` does, but as they are in JSON: an int, a bool or a text, by the type."""
    decoder = _decoder(tuple(columns.items()))
    texts = [b"{}" if isinstance(one, msgspec.UnsetType) else one for one in stats]
    try:
        decoded = decoder.decode_lines(b"\n".join(texts))
    except msgspec.DecodeError:
        decoded = []
    if len(decoded) != len(texts):
        decoded = [_decoded(decoder, text) for text in texts]
    return list(map(msgspec.structs.astuple, decoded))


def _decoded(decoder: msgspec.json.Decoder[msgspec.Struct], text: bytes | msgspec.Raw) -> msgspec.Struct:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        return decoder.decode(b"{}")


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


@lru_cache(maxsize=64)
def _decoder(columns: tuple[tuple[str, str], ...]) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return a decoder of these columns, which skips the others."""
    fields = [(f"c{n}", tuple[_of_type(t), _of_type(t), _Count] | None, None) for n, (_, t) in enumerate(columns)]  # type: ignore[misc]
    names = {f"c{n}": column for n, (column, _) in enumerate(columns)}
    # Without the garbage collector, which would visit all of them several times.
    return msgspec.json.Decoder(msgspec.defstruct("ColumnBounds", fields, rename=names, gc=False))


def _of_type(type_: str) -> Any:
    """Return the Python type of the bounds of a DuckDB type in JSON."""
    if type_ in TEXT_TYPES:
        return str | None
    return (bool if type_ == "BOOLEAN" else int) | None if type_ in _JSON_TYPES else _Bound


def _text(bound: _Bound) -> str | None:
    return json.dumps(bound) if isinstance(bound, bool) else None if bound is None else str(bound)
