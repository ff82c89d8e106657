"""How new the newest value of a time column is, with as few requests as can be.

The log has the greatest value of each sort column in each part. Of other columns parts have to be opened, and only
those can matter that were written since the time that is asked about: a row is written after what it tells of. They
are opened in the order of their age, and no more of them than it takes. So a value that lies ahead of the part that
has it counts as that part's own time, wherever it was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import duckdb

import icedb
from icedb.errors import InvalidOption
from icedb.reader.scan_sql import FILE_COLUMN, relation, translate_read_error, visible_partitions
from icedb.sql.column_stats import bounds
from icedb.sql.connections import connect_reader, connect_sandbox, quote_name
from icedb.storage.obstore_store import ObjectNotFound
from icedb_dagster.checks.check_context import CheckContext

__all__ = ["newest_value_ms"]

# Opened at once: DuckDB reads some side by side.
PARTS_AT_ONCE = 32
_ZONED = "TIMESTAMP WITH TIME ZONE"
_LOCAL = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})
# The last year that Python can tell; what is later is as far ahead as that.
_FAR_MS = 253_370_764_800_000


def newest_value_ms(look: CheckContext, column: str, timezone: str, *, cutoff_ms: int) -> int | None:
    """The greatest value of a column as unix milliseconds, if one is as new as `cutoff_ms`; else one that is older.

    No value is newer than the part that has it. None when no value is known, or was written since. Raises InvalidOption
    for a column that is no time, and what a snapshot's query raises.
    """
    snapshot = look.table.snapshot()
    column, type_ = _found(snapshot, column)
    in_log = {marker.key: found for marker in look.state.live if (found := bounds(marker, column)) is not None}
    told = [(in_log[m.key][1], m.created_ms) for m in look.state.live if m.key in in_log]
    newest_ms = _newest_ms(_of_texts(told, type_), type_, timezone)
    unknown = [part for part in snapshot.parts if part.key not in in_log and part.created_ms >= cutoff_ms]
    for parts in _batches(unknown):
        if newest_ms is not None and newest_ms >= cutoff_ms:
            break
        found_ms = _newest_ms(_of_parts(snapshot, parts, column, type_), type_, timezone)
        newest_ms = max((ms for ms in (newest_ms, found_ms) if ms is not None), default=None)
    return newest_ms


def _found(snapshot: icedb.Snapshot, column: str) -> tuple[str, str]:
    """The column as the table writes it, and its type."""
    columns = {**visible_partitions(snapshot.schema, snapshot.partition_schema), **snapshot.schema}
    found = next(((c, t) for c, t in columns.items() if c.casefold() == column.casefold()), None)
    if found is None:
        raise InvalidOption(f"{snapshot.table}: the check freshness looks at '{column}', and there is no such column.")
    if found[1] != _ZONED and found[1] not in _LOCAL:
        raise InvalidOption(
            f"{snapshot.table}: the check freshness looks at '{column}', which is {found[1]}. Name a DATE or TIMESTAMP."
        )
    return found


def _batches(parts: Collection[icedb.Part]) -> Iterator[tuple[icedb.Part, ...]]:
    newest_first = sorted(parts, key=lambda part: (-part.created_ms, part.key))
    for start in range(0, len(newest_first), PARTS_AT_ONCE):
        yield tuple(newest_first[start : start + PARTS_AT_ONCE])


def _time_ms(value: str, type_: str) -> str:
    """SQL: milliseconds since 1970, of a local time as if it were UTC. A day counts as its end."""
    time = f"CAST({value} AS {_ZONED if type_ == _ZONED else 'TIMESTAMP'})"
    if type_ == "DATE":
        time = f"({time} + INTERVAL 1 DAY)"
    return f"CASE WHEN isfinite({time}) THEN least(greatest(epoch_ms({time}), 0), {_FAR_MS}) END"


def _of_texts(told: Sequence[tuple[str | None, int]], type_: str) -> list[tuple[int | None, int]]:
    """Values as the log has them, each with its part's `created_ms`. What another program wrote may be none."""
    with connect_sandbox() as con:
        return con.execute(
            f"SELECT {_time_ms(f'TRY_CAST(text AS {type_})', type_)}, created_ms FROM (SELECT "
            "unnest($texts::VARCHAR[]) AS text, unnest($created::BIGINT[]) AS created_ms)",
            {"texts": [text for text, _ in told], "created": [created_ms for _, created_ms in told]},
        ).fetchall()


def _of_parts(
    snapshot: icedb.Snapshot, parts: Sequence[icedb.Part], column: str, type_: str
) -> list[tuple[int | None, int]]:
    """The greatest value of each part, which is opened for it, with its `created_ms`."""
    handle = snapshot.handle
    created_ms = dict(zip(handle.readable_paths(parts), (part.created_ms for part in parts), strict=True))
    rows = relation(handle, parts, snapshot.schema, snapshot.partition_schema, with_file=True)
    try:
        found = connect_reader(handle.location).execute(
            f"SELECT max({_time_ms(quote_name(column), type_)}), {FILE_COLUMN} FROM ({rows}) AS t GROUP BY ALL"
        )
        return [(time_ms, created_ms[path]) for time_ms, path in found.fetchall()]
    except (duckdb.Error, ObjectNotFound) as error:
        raise translate_read_error(handle, parts, error, as_of_ms=snapshot.as_of_ms) from None


def _newest_ms(found: Iterable[tuple[int | None, int]], type_: str, timezone: str) -> int | None:
    """The newest of some values, each with the `created_ms` of its part."""
    return max((min(_in_zone(ms, type_, timezone), limit) for ms, limit in found if ms is not None), default=None)


def _in_zone(time_ms: int, type_: str, timezone: str) -> int:
    if type_ == _ZONED:
        return time_ms
    local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).replace(tzinfo=ZoneInfo(timezone))
    return int(local.timestamp() * 1000)
