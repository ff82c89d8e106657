"""SQL conditions for the values of a partition column that lie in time windows, by the column's type.

A window is half open. When clocks are set back, one hour of wall time occurs twice. A window that holds only one of the
two hours cannot be expressed in wall time, nor as text, and is rejected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from icedb.errors import InvalidOption
from icedb.sql.connections import quote_name, quote_text

__all__ = ["Edge", "TimeWindows", "Window", "is_one_of", "joined", "time_literal"]

_INTEGERS = frozenset((
    "BIGINT", "HUGEINT", "INTEGER", "SMALLINT", "TINYINT", "UBIGINT", "UHUGEINT", "UINTEGER", "USMALLINT", "UTINYINT",
))  # fmt: skip
_WALL_TIMES = frozenset(("TIMESTAMP", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP_S"))
_INSTANT = "TIMESTAMP WITH TIME ZONE"
# Directives that Python and DuckDB parse alike. In other formats only the keys themselves are matched.
_DIRECTIVES = frozenset("YmdHMS")
_TIME_FORMATS = ("%Y-%m-%d-%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Edge:
    """A boundary of partitions in time: the instant, and the wall time in their zone."""

    partitions: str
    instant: datetime
    wall: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """The time window of one partition."""

    key: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class _Span:
    """Adjacent windows without a gap."""

    windows: tuple[Window, ...]

    def __str__(self) -> str:
        first, last = self.windows[0].key, self.windows[-1].key
        return f"the partition {first!r}" if first == last else f"the range of partitions {first!r} to {last!r}"

    @property
    def start(self) -> datetime:
        return self.windows[0].start

    @property
    def end(self) -> datetime:
        return self.windows[-1].end


def _spans(windows: Sequence[Window]) -> list[_Span]:
    spans: list[list[Window]] = []
    for window in sorted(windows, key=lambda w: w.start.astimezone(UTC)):
        # Compared as instants: Python compares datetimes of one zone by wall time, which may occur twice.
        if spans and spans[-1][-1].end.astimezone(UTC) == window.start.astimezone(UTC):
            spans[-1].append(window)
        else:
            spans.append([window])
    return [_Span(tuple(of_one)) for of_one in spans]


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Values within time windows."""

    fmt: str
    zone: ZoneInfo
    spans: tuple[_Span, ...]

    @classmethod
    def of(cls, windows: Sequence[Window], *, fmt: str, timezone: str) -> Self:
        """Build from windows. `fmt` is the format of the keys, `timezone` the zone of their wall time."""
        return cls(fmt, ZoneInfo(timezone), tuple(_spans(windows)))

    def predicate(self, column: str, type_: str, *, table: str) -> str:
        """Return SQL that is true for these values. Raises InvalidOption for a type that cannot distinguish them."""
        name = quote_name(column)
        if type_ == _INSTANT:
            conditions = [
                _within(name, *(time_literal(t.astimezone(UTC), type_) for t in _ends(s))) for s in self.spans
            ]
        elif type_ in _WALL_TIMES:
            conditions = [self._of_wall_times(s, column, type_, table) for s in self.spans]
        elif type_ == "DATE":
            conditions = [self._of_dates(s, column, table) for s in self.spans]
        elif type_ == "VARCHAR":
            conditions = [self._of_texts(s, column, table) for s in self.spans]
        elif type_ in _INTEGERS:
            conditions = [self._of_numbers(column, type_, table)]
        else:
            raise InvalidOption(
                f"{table}: the partition column '{column}' is {type_}, but the asset's partitions are time windows. "
                "Use a partition_expr whose value is a TIMESTAMP, with or without time zone, a DATE or a text."
            )
        return joined(" OR ", conditions)

    def edges(self) -> tuple[Edge, ...]:
        """Return both ends of each span."""
        return tuple(Edge(str(s), t.astimezone(UTC), _wall(t, self.zone)) for s in self.spans for t in _ends(s))

    def _of_wall_times(self, span: _Span, column: str, type_: str, table: str) -> str:
        self._check_not_split(span, column, type_, table)
        return _within(quote_name(column), *(time_literal(wall, "TIMESTAMP") for wall in self._wall(span)))

    def _of_dates(self, span: _Span, column: str, table: str) -> str:
        start, end = self._wall(span)
        if self._split(span) is not None or not (_is_midnight(start) and _is_midnight(end)):
            raise InvalidOption(
                f"{table}: {span} does not begin and end at midnight in {self.zone.key}, but the partition column "
                f"'{column}' is a DATE. Use a partition_expr whose value is a TIMESTAMP."
            )
        return _within(quote_name(column), f"DATE '{start.date()}'", f"DATE '{end.date()}'")

    def _of_texts(self, span: _Span, column: str, table: str) -> str:
        """Match the keys, and texts that can be read as a time, if the keys read so lie in their own windows."""
        # Also for the keys: rows of the second of two equal hours may have the key of the first as text.
        self._check_not_split(span, column, "VARCHAR", table)
        name = quote_name(column)
        read = {w.key: time for w in span.windows if (time := self._read(w.key)) is not None}
        readable = all(
            start <= read[w.key] < end
            for w in span.windows
            if w.key in read
            for start, end in [self._wall(_Span((w,)))]
        )
        if not read or not readable:
            return is_one_of(name, (quote_text(w.key) for w in span.windows))
        walls = self._wall(span)
        formats = ", ".join(map(quote_text, dict.fromkeys([self.fmt, *_formats(walls)])))
        within = _within(f"try_strptime({name}, [{formats}])", *(time_literal(wall, "TIMESTAMP") for wall in walls))
        # Dagster's key of the second of two equal hours has an offset.
        others = [quote_text(w.key) for w in span.windows if w.key not in read]
        return f"{within} OR {is_one_of(name, others)}" if others else within

    def _of_numbers(self, column: str, type_: str, table: str) -> str:
        keys = [window.key for span in self.spans for window in span.windows]
        if wrong := [key for key in keys if not (key.isascii() and key.isdigit())]:
            raise InvalidOption(
                f"{table}: the partition column '{column}' is {type_}, but the asset's partition key {wrong[0]!r} is "
                "not a whole number. Use a partition_expr whose value is a TIMESTAMP, with or without time zone, a "
                "DATE "
                "or a text."
            )
        return is_one_of(quote_name(column), (str(int(key)) for key in keys))

    def _read(self, key: str) -> datetime | None:
        """Return the wall time of a key, as DuckDB reads it, too."""
        directives = {part[0] for part in self.fmt.split("%")[1:] if part}
        if not directives <= _DIRECTIVES or "%%" in self.fmt:
            return None
        try:
            return datetime.strptime(key, self.fmt)  # noqa: DTZ007 - wall time has no zone
        except ValueError:
            return None

    def _wall(self, span: _Span) -> tuple[datetime, datetime]:
        start, end = (_wall(t, self.zone) for t in _ends(span))
        return start, end

    def _check_not_split(self, span: _Span, column: str, type_: str, table: str) -> None:
        if (split := self._split(span)) is not None:
            raise InvalidOption(
                f"{table}: {span} begins or ends at {split}, within an hour that occurs twice in {self.zone.key}, and "
                f"the partition column '{column}' is {type_}, which does not distinguish the two. Use a "
                "partition_expr whose value is a TIMESTAMP WITH TIME ZONE."
            )

    def _split(self, span: _Span) -> datetime | None:
        """Return an end of the span that lies within an hour that occurs twice."""
        inside = (t for t in _ends(span) if _is_ambiguous(t, self.zone) and _is_ambiguous(_before(t), self.zone))
        return next(inside, None)


def _ends(span: _Span) -> tuple[datetime, datetime]:
    return span.start, span.end


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return the wall time of an instant. At a forward clock change, return the time before the change."""
    return _before(instant).astimezone(zone).replace(tzinfo=None) + _TICK


def _before(instant: datetime) -> datetime:
    return instant.astimezone(UTC) - _TICK


def _is_ambiguous(instant: datetime, zone: ZoneInfo) -> bool:
    wall = instant.astimezone(zone)
    return wall.replace(fold=0).utcoffset() != wall.replace(fold=1).utcoffset()


def _is_midnight(wall: datetime) -> bool:
    return wall == datetime(wall.year, wall.month, wall.day)  # noqa: DTZ001 - wall time has no zone


def _formats(walls: Sequence[datetime]) -> list[str]:
    """Return the formats of texts that lie wholly within a span: a day does not lie within an hour."""
    hours = all(wall.minute == 0 for wall in walls)
    days = all(map(_is_midnight, walls))
    months = days and all(wall.day == 1 for wall in walls)
    coarser = {"%Y-%m-%d-%H": hours, "%Y-%m-%d": days, "%Y-%m": months}
    return [*_TIME_FORMATS, *(fmt for fmt, fits in coarser.items() if fits)]


def time_literal(time: datetime, type_: str) -> str:
    """Return a time as a DuckDB literal of that type."""
    return f"{type_} {quote_text(time.isoformat(' '))}"


def _within(value: str, start: str, end: str) -> str:
    return f"{value} >= {start} AND {value} < {end}"


def is_one_of(value: str, literals: Iterable[str]) -> str:
    """Return the SQL condition that a value is one of these."""
    return f"{value} IN ({', '.join(literals)})"


def joined(word: str, conditions: Sequence[str]) -> str:
    """Return the SQL conjunction or disjunction of at least one condition."""
    return word.join(f"({one})" for one in conditions) if len(conditions) > 1 else conditions[0]
