"""Tables attached to a DuckDB connection, and their queries.

A module takes the fixture with `pytest_plugins = ["tests.support.tables.attached_tables"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from icedb import Table
from tests.support.object_stores.stores import Place

__all__ = ["by_days", "con", "created", "failing", "files_read", "numbers", "rows"]

DAY = date(2026, 11, 21)


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def created(place: Place, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


def rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> list[Any]:
    return con.execute(sql, parameters).fetchall()


def numbers(con: duckdb.DuckDBPyConnection, source: str, parameters: Any = None) -> list[int]:
    return [n for (n,) in rows(con, f"SELECT n FROM {source} ORDER BY n", parameters)]


def files_read(con: duckdb.DuckDBPyConnection, source: str) -> int:
    [(_, plan)] = rows(con, f"EXPLAIN ANALYZE SELECT * FROM {source}")
    return sum(map(int, re.findall(r"Total Files Read: (\d+)", plan)))


def failing(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    with pytest.raises(duckdb.InvalidInputException) as error:
        con.execute(sql).fetchall()
    assert "At:" not in str(error.value), "a traceback of icedb"
    return str(error.value)


def by_days(place: Place, count: int = 4) -> Table:
    """Insert a part for each of so many days. The numbers count the days."""
    table = created(place, partition_by=["day", "n % 2 AS parity"], sort_by=["n"])
    table.insert(pa.table({"day": [DAY + timedelta(days=n) for n in range(count)], "n": list(range(count))}))
    return table
