"""What a marker says of its part's sort columns: `{column: [min, max, null count]}`, for skipping whole parts.

Integers and booleans are JSON's own; all else is DuckDB's text of the value. A long text is cut, so that the two are
bounds, and need not be values of the column. A column whose values have no such order is left out: a reader must take a
missing column for "anything".
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
from icedb.sql.sandbox_pool import scratch_connection

__all__ = [
    "TEXT_TYPES",
    "Bounds",
    "bounds",
    "bounds_of",
    "encode_statistics",
    "figures_sql",
    "prune_by_bounds",
    "statistics_columns",
    "without_texts",
]

# A longer text would bloat the log for little. In characters.
TEXT_MAX = 64
# What follows the last character before the surrogates, which no text can hold.
_AFTER_SURROGATES = 0xE000

#: Least and greatest value, as text, and the number of nulls.
Bounds = tuple[str | None, str | None, int]

_JSON_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN")
#: Types whose bounds are DuckDB's texts.
TEXT_TYPES = ("VARCHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "FLOAT",
               "DOUBLE")  # fmt: skip


def statistics_columns(
    sort_by: Sequence[str], columns: Mapping[str, str], expressions: Iterable[PartitionExpression] = ()
) -> dict[str, str]:
    """The columns that get statistics, with their types: those that sort the table, and those by which it is divided.

    A partition expression that is simply a column has one value in most parts; but a row may be in another partition
    than its values say, so that its path tells nothing of the column.
    """
    names = {e.column.casefold() for e in expressions}
    wanted = [*sort_by, *(c for c in columns if c.casefold() in names)]
    return {c: columns[c] for c in wanted if columns.get(c) in (*_JSON_TYPES, *TEXT_TYPES)}


def figures_sql(columns: Mapping[str, str]) -> str:
    """An aggregate whose value is the list of texts that `encode_statistics` takes."""
    figures = (f"CAST({f}({quote_name(c)}) AS VARCHAR)" for c in columns for f in ("min", "max", "count"))
    return f"[{', '.join(figures)}]::VARCHAR[]"


def encode_statistics(columns: Mapping[str, str], figures: Sequence[str | None], rows: int) -> Stats:
    """A marker's `s`, from min, max and count of each column in turn; UNSET when there is nothing to say."""
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
    """The text itself, or when it is long, a short one that is greater; None when there is none.

    The order is that of the characters' numbers, which is that of the UTF-8 bytes.
    """
    if len(text) <= TEXT_MAX:
        return text
    kept = text[:TEXT_MAX].rstrip(chr(0x10FFFF))  # nothing comes after that character
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if after == 0xD800 else after)


def prune_by_bounds(markers: Sequence[Marker], column: str, type_: str, condition: str) -> list[Marker]:
    """The markers of the parts that may hold a row for which something is true of a column of this DuckDB type.

    `condition` is SQL over the part's `lo` and `hi` of the column, its number of `nulls` and of `rows`, and is false or
    null where there is no such row. A part that says nothing of the column stays, and so does one whose figures cannot
    be read: another program may have written them.
    """
    figures = [bounds(marker, column) for marker in markers]
    columns = zip(*(f or (None, None, None) for f in figures), strict=True)
    lo, hi, nulls = (list(c) for c in columns) if markers else ([], [], [])
    with scratch_connection() as con:
        found = con.execute(
            f"""
            WITH told AS (
                SELECT unnest(CAST($known AS BOOLEAN[])) AS known, unnest(CAST($lo AS VARCHAR[])) AS lo_text,
                       unnest(CAST($hi AS VARCHAR[])) AS hi_text, unnest(CAST($nulls AS BIGINT[])) AS nulls,
                       unnest(CAST($rows AS BIGINT[])) AS rows),
            typed AS (SELECT *, TRY_CAST(lo_text AS {type_}) AS lo, TRY_CAST(hi_text AS {type_}) AS hi FROM told)
            SELECT NOT known OR (lo_text IS NOT NULL AND lo IS NULL) OR (hi_text IS NOT NULL AND hi IS NULL)
                OR coalesce(({condition}), lo IS NULL AND nulls IS DISTINCT FROM rows)
            FROM typed
            """,
            {
                "known": [f is not None for f in figures],
                "lo": lo,
                "hi": hi,
                "nulls": nulls,
                "rows": [m.rows for m in markers],
            },
        ).fetchall()
    return [marker for marker, (stays,) in zip(markers, found, strict=True) if stays]


def bounds(marker: Marker, column: str) -> Bounds | None:
    """Least and greatest value, as text, and nulls; None when the marker does not tell, or not in our way."""
    [[found]] = bounds_of([marker.stats], {column: ""})
    return found


def without_texts(stats: Stats) -> Stats:
    """Statistics without the columns whose bounds are texts.

    A part that was superseded may have been written when its column had another type: then texts have another order.
    """
    if isinstance(stats, msgspec.UnsetType):
        return stats
    try:
        found = msgspec.json.decode(stats)
    except msgspec.DecodeError:
        return msgspec.UNSET
    if not isinstance(found, dict):
        return msgspec.UNSET
    kept = {c: b for c, b in found.items() if isinstance(b, list) and not any(isinstance(one, str) for one in b)}
    if len(kept) == len(found):
        return stats
    return msgspec.Raw(msgspec.json.encode(kept)) if kept else msgspec.UNSET


def bounds_of(stats: Sequence[Stats], columns: Mapping[str, str]) -> list[list[Bounds | None]]:
    """What each marker tells of some columns of these DuckDB types ("": of any), in their order.

    None where it does not tell, or not in our way: another program may have written it.
    """
    decoder = _decoder(tuple(columns.items()))
    texts = [b"{}" if isinstance(one, msgspec.UnsetType) else one for one in stats]
    try:
        told = decoder.decode_lines(b"\n".join(texts))
    except msgspec.DecodeError:
        told = []
    if len(told) != len(texts):
        told = [_decoded(decoder, text) for text in texts]
    found = map(msgspec.structs.astuple, told)
    if all(type_ in TEXT_TYPES for type_ in columns.values()):
        return list(map(list, found))
    return [[t and (_text(t[0]), _text(t[1]), t[2]) for t in of_part] for of_part in found]


def _decoded(decoder: msgspec.json.Decoder[msgspec.Struct], text: bytes | msgspec.Raw) -> msgspec.Struct:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        return decoder.decode(b"{}")


_Bound = bool | int | str | None
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


@lru_cache(maxsize=64)
def _decoder(columns: tuple[tuple[str, str], ...]) -> msgspec.json.Decoder[msgspec.Struct]:
    """Of those columns alone: it skips the others."""
    fields = [(f"c{n}", tuple[_of_type(t), _of_type(t), _Count] | None, None) for n, (_, t) in enumerate(columns)]  # type: ignore[misc]
    names = {f"c{n}": column for n, (column, _) in enumerate(columns)}
    return msgspec.json.Decoder(msgspec.defstruct("Told", fields, rename=names))


def _of_type(type_: str) -> Any:
    """What JSON has for the bounds of a type."""
    if type_ in TEXT_TYPES:
        return str | None
    return (bool if type_ == "BOOLEAN" else int) | None if type_ in _JSON_TYPES else _Bound


def _text(bound: _Bound) -> str | None:
    return json.dumps(bound) if isinstance(bound, bool) else None if bound is None else str(bound)
