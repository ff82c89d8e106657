"""The newest value of a time column, with as few requests as possible.

The log has the greatest value of each sort column in each part. For other columns, parts must be opened. Only parts
written since the cutoff matter, because a row is written after the time in it. Parts are opened from the newest on,
and no more of them than needed. A value later than its part counts as the part's own time, wherever it was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import icedb
from icedb.errors import InvalidOption
from icedb.reader.scan_sql import FILE_COLUMN, relation, translated_read_errors
from icedb.sql.column_stats import bounds
from icedb.sql.connection_pool import reader, scratch_connection
from icedb.sql.connections import quote_name, quote_texts
from icedb_dagster.checks.check_context import CheckContext

__all__ = ["newest_value_ms"]

# Opened together, because DuckDB reads several in parallel.
PARTS_AT_ONCE = 32
_ZONED = "TIMESTAMP WITH TIME ZONE"
_LOCAL = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})
# The last year that Python supports. Later values are clipped to it.
_FAR_MS = 253_370_764_800_000


def newest_value_ms(context: CheckContext, column: str, timezone: str, *, cutoff_ms: int) -> int | None:
    """Return the greatest value of a column in unix milliseconds, if one is as new as `cutoff_ms`; else an older one.

    No value counts as newer than its part. Returns None if no value is known, or was written since. Raises
    InvalidOption for a column that is not a time, and the errors of a snapshot's query.
    """
    snapshot = context.table.snapshot()
    column, type_ = _find_column(snapshot, column)
    in_log = {marker.key: limits for marker in context.state.live if (limits := bounds(marker, column)) is not None}
    greatest = [(in_log[m.key][1], m.created_ms) for m in context.state.live if m.key in in_log]
    newest_ms = _newest_ms(_of_texts(greatest, type_), type_, timezone)
    unknown = [part for part in snapshot.parts if part.key not in in_log and part.created_ms >= cutoff_ms]
    for parts in _batches(unknown):
        if newest_ms is not None and newest_ms >= cutoff_ms:
            break
        found_ms = _newest_ms(_of_parts(snapshot, parts, column, type_), type_, timezone)
        newest_ms = max((ms for ms in (newest_ms, found_ms) if ms is not None), default=None)
    return newest_ms


def _find_column(snapshot: icedb.Snapshot, column: str) -> tuple[str, str]:
    """Return the column as the table spells it, and its type."""
    columns = {**snapshot.visible_partitions, **snapshot.schema}
    matching = next(((c, t) for c, t in columns.items() if c.casefold() == column.casefold()), None)
    if matching is None:
        raise InvalidOption(
            f"{snapshot.table}: the check freshness uses '{column}', but the table has no such column. Correct the "
            "name."
        )
    if matching[1] != _ZONED and matching[1] not in _LOCAL:
        raise InvalidOption(
            f"{snapshot.table}: the check freshness uses '{column}', which is {matching[1]}. Name a DATE or TIMESTAMP."
        )
    return matching


def _batches(parts: Collection[icedb.Part]) -> Iterator[tuple[icedb.Part, ...]]:
    newest_first = sorted(parts, key=lambda part: (-part.created_ms, part.key))
    for start in range(0, len(newest_first), PARTS_AT_ONCE):
        yield tuple(newest_first[start : start + PARTS_AT_ONCE])


def _time_ms(value: str, type_: str) -> str:
    """Return SQL for milliseconds since 1970. Local times count as UTC, and a day as its end."""
    time = f"CAST({value} AS {_ZONED if type_ == _ZONED else 'TIMESTAMP'})"
    if type_ == "DATE":
        time = f"({time} + INTERVAL 1 DAY)"
    return f"CASE WHEN isfinite({time}) THEN least(greatest(epoch_ms({time}), 0), {_FAR_MS}) END"


def _of_texts(greatest: Sequence[tuple[str | None, int]], type_: str) -> list[tuple[int | None, int]]:
    """Parse values from the log, each with its part's `created_ms`. Values of other programs may be unparsable."""
    with scratch_connection() as con:
        return con.execute(
            f"SELECT {_time_ms(f'TRY_CAST(text AS {type_})', type_)}, created_ms FROM (SELECT "
            f"unnest({quote_texts(text for text, _ in greatest)}) AS text, "
            f"unnest({[created_ms for _, created_ms in greatest]}::BIGINT[]) AS created_ms)"
        ).fetchall()


def _of_parts(
    snapshot: icedb.Snapshot, parts: Sequence[icedb.Part], column: str, type_: str
) -> list[tuple[int | None, int]]:
    """Read the greatest value of each part, with its `created_ms`."""
    handle = snapshot.handle
    created_ms = dict(zip(handle.part_paths.readable(parts), (part.created_ms for part in parts), strict=True))
    rows = relation(handle, parts, snapshot.schema, snapshot.partition_schema, with_file=True)
    query = f"SELECT max({_time_ms(quote_name(column), type_)}), {FILE_COLUMN} FROM ({rows}) AS t GROUP BY ALL"
    size = sum(part.bytes for part in parts)
    with (
        translated_read_errors(handle, parts, as_of_ms=snapshot.as_of_ms),
        reader(handle.location, read_bytes=size) as con,
    ):
        return [(time_ms, created_ms[path]) for time_ms, path in con.execute(query).fetchall()]


def _newest_ms(values: Iterable[tuple[int | None, int]], type_: str, timezone: str) -> int | None:
    """Return the newest of values that each have the `created_ms` of their part."""
    return max((min(_in_zone(ms, type_, timezone), limit) for ms, limit in values if ms is not None), default=None)


def _in_zone(time_ms: int, type_: str, timezone: str) -> int:
    if type_ == _ZONED:
        return time_ms
    local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).replace(tzinfo=ZoneInfo(timezone))
    return int(local.timestamp() * 1000)
