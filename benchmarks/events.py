"""The rows that are measured with: a month of events as a web shop has them, made by DuckDB, the same each time."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import duckdb

__all__ = ["DAYS", "PARTITION_BY", "SORT_BY", "Events", "make_events"]

DAYS = 30
PARTITION_BY = "CAST(ts AS DATE) AS day"
SORT_BY = ("event", "ts")

FILES = 8
# Part of the folder's name: rows that are made in another way must not be taken for these.
VERSION = 1

_KINDS = (
    "page_view", "page_view", "page_view", "page_view", "scroll", "scroll", "click", "click", "search", "add_to_cart",
    "remove_from_cart", "checkout", "purchase", "login", "logout", "share", "error",
)  # fmt: skip
_COUNTRIES = ("DE", "US", "FR", "GB", "PL", "IT", "ES", "NL", "CZ", "AT", "SE", "JP", "BR", "IN", "CA", "AU")
_DEVICES = ("phone", "phone", "phone", "desktop", "desktop", "tablet")
_REFERRERS = ("search", "mail", "direct", "social", "partner")


@dataclass(frozen=True, slots=True)
class Events:
    """Parquet files of unsorted rows, each with rows of all days."""

    folder: Path
    rows: int

    @property
    def glob(self) -> str:
        """All the files."""
        return str(self.folder / "*.parquet")


def make_events(cache: Path, rows: int) -> Events:
    """The events in a folder below `cache`; made once, and found there later."""
    folder = cache / f"events-{rows}-v{VERSION}"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            for number in range(FILES):
                first, last = rows * number // FILES, rows * (number + 1) // FILES
                target = unfinished / f"{number}.parquet"
                con.execute(f"COPY ({_query(first, last)}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        unfinished.rename(folder)
    return Events(folder, rows)


def _query(first: int, last: int) -> str:
    """SQL of the events with these numbers. All chance is a hash of the number."""
    return f"""
        SELECT
            TIMESTAMPTZ '2026-10-01 00:00:00+00' + to_milliseconds({_below(1, DAYS * 86_400_000)}) AS ts,
            'tenant-' || floor(pow({_share(2)}, 3) * 40)::INTEGER AS tenant,
            floor(pow({_share(3)}, 2) * 400000)::BIGINT AS user_id,
            kind AS event,
            'https://shop.example/' || {_one_of(4, _REFERRERS)} || '/product/' || {_below(5, 1_000)} AS page,
            {_one_of(6, _COUNTRIES)} AS country,
            {_one_of(7, _DEVICES)} AS device,
            CASE WHEN kind IN ('purchase', 'checkout') THEN CAST((50 + {_below(8, 25_000)}) / 100 AS DECIMAL(12, 2)) END
                AS amount,
            printf('%016x', hash({_below(9, 2_000_000)})) AS session_id,
            '{{"ab":"' || {_one_of(10, ("a", "b"))} || '","scroll":' || {_below(11, 100)} || ',"ms":'
                || {_below(12, 9_000)} || '}}' AS properties
        FROM (SELECT i, {_one_of(0, _KINDS)} AS kind FROM range({first}, {last}) r(i))
    """


def _below(salt: int, limit: int) -> str:
    return f"(hash(i, {salt}) % {limit})::BIGINT"


def _share(salt: int) -> str:
    """From 0 up to, and without, 1."""
    return f"({_below(salt, 1_000_000)} / 1e6)"


def _one_of(salt: int, values: tuple[str, ...]) -> str:
    return f"{list(values)}[1 + {_below(salt, len(values))}]"
