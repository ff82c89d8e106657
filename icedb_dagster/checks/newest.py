"""How new the newest value of a time column is, with as few requests as can be.

The log has the greatest value of each sort column in each part. Of other columns parts have to be opened, and only
those can matter that were written since the time that is asked about: a row is written after what it tells of. They
are opened in the order of their age, and no more of them than it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import icedb
from icedb.engine import connect_sandbox, quote_name
from icedb.errors import InvalidOption
from icedb.scan import visible_partitions
from icedb.statistics import bounds
from icedb_dagster.checks.look import Look

__all__ = ["newest_value_ms"]

# Opened at once: DuckDB reads some side by side.
PARTS_AT_ONCE = 32
_ZONED = "TIMESTAMP WITH TIME ZONE"
_LOCAL = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})
# The last year that Python can tell; what is later is as far ahead as that.
_FAR_MS = 253_370_764_800_000


def newest_value_ms(look: Look, column: str, timezone: str, *, cutoff_ms: int) -> int | None:
    """The greatest value of a column as unix milliseconds, if one is as new as `cutoff_ms`; else one that is older.

    None when no value is known, or was written since. Raises InvalidOption for a column that is no time, and what a
    snapshot's query raises.
    """
    snapshot = look.table.snapshot()
    column, type_ = _found(snapshot, column)
    in_log = {marker.key: found for marker in look.state.live if (found := bounds(marker, column)) is not None}
    told = [high for _, high, _ in in_log.values() if high is not None]
    newest_ms = _greatest_ms(told, type_, timezone)
    unknown = [part for part in snapshot.parts if part.key not in in_log and part.created_ms >= cutoff_ms]
    for parts in _batches(unknown):
        if newest_ms is not None and newest_ms >= cutoff_ms:
            break
        answer = (
            replace(snapshot, parts=parts).query(f"SELECT {_greatest(quote_name(column), type_)} FROM t").fetchone()
        )
        found_ms = _in_zone(answer[0] if answer else None, type_, timezone)
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


def _greatest(value: str, type_: str) -> str:
    """An aggregate: milliseconds since 1970, of a local time as if it were UTC. A day counts as its end."""
    time = f"CAST({value} AS {_ZONED if type_ == _ZONED else 'TIMESTAMP'})"
    if type_ == "DATE":
        time = f"({time} + INTERVAL 1 DAY)"
    return f"max(CASE WHEN isfinite({time}) THEN least(greatest(epoch_ms({time}), 0), {_FAR_MS}) END)"


def _greatest_ms(texts: Sequence[str], type_: str, timezone: str) -> int | None:
    """Of values as the log has them; another program may have written what is none."""
    with connect_sandbox() as con:
        asked = (
            f"SELECT {_greatest(f'TRY_CAST(text AS {type_})', type_)} FROM (SELECT unnest($texts::VARCHAR[]) AS text)"
        )
        answer = con.execute(asked, {"texts": list(texts)}).fetchone()
    return _in_zone(answer[0] if answer else None, type_, timezone)


def _in_zone(time_ms: int | None, type_: str, timezone: str) -> int | None:
    if time_ms is None or type_ == _ZONED:
        return time_ms
    local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).replace(tzinfo=ZoneInfo(timezone))
    return int(local.timestamp() * 1000)
