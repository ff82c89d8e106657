"""The arguments of a macro: a time, and conditions on the partition columns.

A function that DuckDB calls for a macro has columns of one type only, so an argument arrives as its type and its text.
It returns to SQL as a constant of that type, so DuckDB's own comparison rules apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache

from icedb.errors import InvalidOption, UnknownColumn
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_text, quote_texts
from icedb.util.times import as_of_ms, parse_as_of

__all__ = ["UTC_NAMES", "Condition", "DateColumns", "as_of_argument_ms", "date_columns", "depends_on_zone", "equality"]

#: Returns a condition on partition columns. Its argument returns the SQL of a column: its name, or its expression.
Condition = Callable[[Callable[[str], str]], str]

_DATE_NAMES = (("y", "year"), ("m", "month"), ("d", "day"))
_WITH_ZONE = "WITH TIME ZONE"
# Functions whose format may contain a zone, which then is part of the result's type.
_ZONE_IN_FORMAT = frozenset(("strptime", "try_strptime"))
#: Names of time zones that equal UTC.
UTC_NAMES = frozenset(("utc", "etc/utc", "gmt", "etc/gmt", "uct", "etc/uct", "zulu", "etc/zulu", "universal",
                       "etc/universal", "greenwich", "etc/greenwich"))  # fmt: skip


def as_of_argument_ms(type_: str, text: str | None, *, table: str) -> int | None:
    """Return the time of an `as_of` argument as unix milliseconds; None if it is omitted. Raises InvalidOption.

    A TIMESTAMP or DATE is interpreted in UTC. A text contains its zone. A number is unix milliseconds.
    """
    if text is None:
        return None
    if type_ not in ("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"):
        return parse_as_of(text, table=table)
    try:
        return as_of_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))
    except ValueError:  # a year before 1 or after 9999, infinity
        raise InvalidOption(f"{table}: as_of is {type_} '{text}'; pass a time of this table's history.") from None


def equality(column: str, type_: str, text: str) -> Condition:
    """Return the condition that a column equals the value, or one value of the list. A null in a list matches null."""
    if not type_.endswith("]"):
        return lambda sql: f"{sql(column)} = CAST({quote_text(text)} AS {type_})"
    element = type_[: type_.rindex("[")]
    values = _elements(type_, text)
    constants = ", ".join(f"CAST({quote_text(v)} AS {element})" for v in values if v is not None)

    def among(sql: Callable[[str], str]) -> str:
        conditions = [f"{sql(column)} IN ({constants})"] if constants else []
        conditions += [f"{sql(column)} IS NULL"] if None in values else []
        # Always mentions the column, because a condition must refer to a partition column.
        return (
            f"({' OR '.join(conditions)})" if conditions else f"({sql(column)} IS NULL AND {sql(column)} IS NOT NULL)"
        )

    return among


@lru_cache(maxsize=256)
def _elements(type_: str, text: str) -> tuple[str | None, ...]:
    with scratch_connection() as con:
        rows = con.execute(f"SELECT CAST(unnest(CAST({quote_texts([text])}[1] AS {type_})) AS VARCHAR)").fetchall()
        return tuple(value for (value,) in rows)


def depends_on_zone(sql: str, types: Mapping[str, str]) -> bool:
    """Whether the value of a checked expression may depend on the connection's time zone. In doubt, it does.

    `types` are those of all columns.
    """
    words = {word.casefold() for word in re.findall(r"\w+", sql)}
    zoned = (c for c, type_ in types.items() if _WITH_ZONE in type_)
    if any(set(re.findall(r"\w+", c.casefold())) <= words for c in zoned):
        return True
    return _WITH_ZONE in sql.upper() or "timestamptz" in words or not words.isdisjoint(_functions_of_zones())


@lru_cache(maxsize=1)
def _functions_of_zones() -> frozenset[str]:
    """Return the functions that make a time with a zone from other types."""
    query = f"""
        SELECT DISTINCT function_name FROM duckdb_functions()
        WHERE return_type LIKE '%{_WITH_ZONE}%'
            AND coalesce(array_to_string(parameter_types, ' '), '') NOT LIKE '%{_WITH_ZONE}%'
    """
    with scratch_connection() as con:
        return frozenset(str(name).casefold() for (name,) in con.execute(query).fetchall()) | _ZONE_IN_FORMAT


@dataclass(frozen=True, slots=True)
class DateColumns:
    """The partition columns that hold a row's day: year, month and day, or one date."""

    columns: tuple[str, ...]

    def between(self, limits: Sequence[str | None], *, table: str) -> Condition | None:
        """Return the condition for a range of days; None for all days.

        `limits` are year, month and day of the start, then of the inclusive end. An omitted month or day is 1. An
        omitted year leaves that side open. Raises InvalidOption for an invalid day.
        """
        days = _day(limits[:3], "start", table=table), _day(limits[3:6], "end", table=table)
        bounds = [(sign, self._constant(day)) for sign, day in zip((">=", "<="), days, strict=True) if day]
        if not bounds:
            return None
        return lambda sql: " AND ".join(f"{self._value(sql)} {sign} {constant}" for sign, constant in bounds)

    def _constant(self, day: date) -> str:
        if len(self.columns) == 1:
            return f"DATE '{day.isoformat()}'"
        return str(day.year * 10_000 + day.month * 100 + day.day)

    def _value(self, sql: Callable[[str], str]) -> str:
        if len(self.columns) == 1:
            return f"TRY_CAST({sql(self.columns[0])} AS DATE)"
        year, month, day = (f"TRY_CAST({sql(c)} AS BIGINT)" for c in self.columns)
        return f"{year} * 10000 + {month} * 100 + {day}"


def _day(fields: Sequence[str | None], side: str, *, table: str) -> date | None:
    if fields[0] is None:
        if any(text is not None for text in fields):
            raise InvalidOption(
                f"{table}: {side}_month or {side}_day is given without {side}_year. Pass {side}_year as well."
            )
        return None
    texts = ["1" if text is None else text for text in fields]
    try:
        year, month, day = map(int, texts)
        return date(year, month, day)
    except ValueError as error:
        raise InvalidOption(
            f"{table}: the {side} {'-'.join(texts)} is not a valid day ({error}). Pass year, month and day as numbers."
        ) from None


def date_columns(partition_schema: Mapping[str, str], chosen: Sequence[str] | None, *, table: str) -> DateColumns:
    """Return the chosen columns, or detect them: y, m, d or year, month, day; the only DATE; or a text d, day or date.

    Raises UnknownColumn, and InvalidOption if the columns are no date or cannot be detected.
    """
    by_name = {name.casefold(): name for name in partition_schema}
    if chosen is None:
        names = _detect(partition_schema, by_name)
    elif unknown := [name for name in chosen if name.casefold() not in by_name]:
        raise UnknownColumn(
            f"{table}: date_columns names '{unknown[0]}', and the partition columns are {list(partition_schema)}. "
            "Correct the name."
        )
    else:
        names = tuple(by_name[name.casefold()] for name in chosen)
    types = [partition_schema[name] for name in names]
    if len(names) == 3 or (len(names) == 1 and types[0] in ("DATE", "TIMESTAMP", "VARCHAR")):
        return DateColumns(names)
    listed = ", ".join(f"{name} {type_}" for name, type_ in partition_schema.items()) or "there are none"
    raise InvalidOption(
        f"{table}: a range of dates needs partition columns of year, month and day, or one that is a DATE, a TIMESTAMP "
        f"or a text such as 2026-11-21. Name them in date_columns (the partition columns: {listed})."
    )


def _detect(partition_schema: Mapping[str, str], by_name: Mapping[str, str]) -> tuple[str, ...]:
    triple = tuple(next((by_name[n] for n in names if n in by_name), "") for names in _DATE_NAMES)
    if all(triple):
        return triple
    dates = [name for name, type_ in partition_schema.items() if type_ == "DATE"]
    texts = [by_name[n] for n in ("d", "day", "date") if n in by_name]
    return tuple((dates if len(dates) == 1 else texts)[:1])
