"""Time to live: partitions expire by a date in a partition column, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

import icedb
from icedb.errors import InvalidOption
from icedb.sql.connections import quote_name
from icedb.util.arguments import checks_arguments

__all__ = ["Expiry", "TimeToLive", "expired", "reference_time"]

#: Returns the partitions that have expired at a time: paths, or a DuckDB predicate over the partition columns.
Expiry = Callable[[icedb.Table, datetime], Sequence[str] | str]
Period = Literal["day", "week", "month", "year"]


@checks_arguments
@dataclass(frozen=True, slots=True)
class TimeToLive:
    """Expires partitions whose last day is more than `keep_days` before the reference date.

    A partition that holds a month expires when the last day of that month is old enough.

    Args:
        partition_column: The partition column with the date on which a partition begins.
        keep_days: Days to keep.
        period: The length of a partition: `day`, `week`, `month` or `year`.

    Raises:
        InvalidOption: `partition_column` is empty.

    Example:
        TimeToLive("day", keep_days=90)
    """

    partition_column: str
    keep_days: int
    period: Period = "day"

    def __post_init__(self) -> None:
        if not self.partition_column:
            raise InvalidOption("the partition_column of a time to live is empty; give the name of a column.")


def reference_time(table: icedb.Table, text: str) -> datetime:
    """Return the beginning of that day (UTC), or the current time for an empty text. Raises InvalidOption."""
    now = datetime.fromtimestamp(table.handle.clock.now_ms() / 1000, tz=UTC)
    if not text:
        return now
    try:
        reference = datetime.combine(datetime.strptime(text, "%Y-%m-%d"), time(), tzinfo=UTC)  # noqa: DTZ007 - a date
    except ValueError:
        raise InvalidOption(f"{table.uri}: reference_date is '{text}'; write it as YYYY-MM-DD.") from None
    if reference > now + timedelta(days=1):  # in some time zones it is tomorrow already
        raise InvalidOption(
            f"{table.uri}: reference_date is '{text}', which is in the future. Give today or an earlier date."
        )
    return reference


def expired(
    ttl: TimeToLive | Expiry, table: icedb.Table, reference: datetime, *, keep_days: int
) -> tuple[Sequence[str] | str, Mapping[str, object]]:
    """Return the expired partitions, and figures that explain them. `keep_days` overrides the definition's unless 0.

    Raises InvalidOption, InvalidPartitionExpression, and the errors of a function of the user's.
    """
    if isinstance(ttl, TimeToLive):
        cutoff = _cutoff(table, reference.date(), keep_days or ttl.keep_days)
        _check_dated(table, ttl.partition_column)
        begins = f"TRY_CAST({quote_name(ttl.partition_column)} AS DATE)"
        where = f"{begins} + INTERVAL 1 {ttl.period} <= DATE '{cutoff.isoformat()}'"
        return where, {"older than": cutoff.isoformat()}
    name = getattr(ttl, "__qualname__", repr(ttl))
    if keep_days:
        raise InvalidOption(
            f"{table.uri}: keep_days is {keep_days}, but the function {name} decides which partitions expire. Remove "
            "keep_days."
        )
    chosen: object = ttl(table, reference)
    if not isinstance(chosen, str) and not (
        isinstance(chosen, list | tuple | set | frozenset) and all(isinstance(path, str) for path in chosen)
    ):
        raise InvalidOption(
            f"{table.uri}: the function {name} returned {chosen!r} as the expired partitions. It must return a list "
            "of partition paths, or a predicate over the partition columns."
        )
    return chosen if isinstance(chosen, str) else sorted(chosen), {"expired by": name}


def _cutoff(table: icedb.Table, reference: date, keep_days: int) -> date:
    if not 0 < keep_days < reference.toordinal():
        raise InvalidOption(
            f"{table.uri}: keep_days is {keep_days}; give at least 1, and fewer days than there are since year 1."
        )
    return reference - timedelta(days=keep_days)


def _check_dated(table: icedb.Table, column: str) -> None:
    """Reject a column without dates, under which no partition would ever expire."""
    snapshot = table.snapshot()
    name = quote_name(column)
    named = snapshot.partitions(f"{name} IS NOT NULL") if snapshot.parts else []
    if named and not snapshot.partitions(f"TRY_CAST({name} AS DATE) IS NOT NULL"):
        raise InvalidOption(
            f"{table.uri}: the time to live uses '{column}', in which no value is a date (one is '{named[0]}'). "
            "Name a partition column with whole dates, YYYY-MM-DD."
        )
