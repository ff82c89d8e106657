"""Tables that every reader is shown: all types, columns that came later, narrower types, and paths that are odd."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from icedb import Snapshot, Table
from tests.operations.integrity.test_repair_types import foreign_append
from tests.support.object_stores.stores import Place

__all__ = ["EVERY_TYPE", "WIDENED", "by_hour", "every_type", "forget", "rows_by", "widened"]

EVERY_TYPE = """
    SELECT n, DATE '2026-11-21' + n::INT AS day, uuid() AS id, '{"a": 1}'::JSON AS json, 'a'::BLOB AS bytes,
        TIMESTAMPTZ '2026-11-21 00:00:00+00' AS instant, TIMESTAMP '2026-11-21 01:02:03.000004' AS wall,
        TIMESTAMP_NS '2026-11-21 00:00:00.000000001' AS nanos, TIME '01:02:03' AS time, 1.25::DECIMAL(10, 2) AS price,
        {'a': n, 'b': [n, NULL]} AS nested, MAP {'k': n} AS map, 'é' || n AS text, n::UTINYINT AS small, true AS yes,
        [{'deep': MAP {true: [false, NULL]}, 'json': ['[]'::JSON]}] AS booleans, 'b'::ENUM ('a', 'b') AS choice,
        ARRAY [1, 2]::FLOAT[2] AS pair
    FROM range(4) AS r(n)
"""

#: Column -> the table's type, the type in the file of another program, and a value.
WIDENED: dict[str, tuple[str, pa.DataType, Any]] = {
    "whole": ("BIGINT", pa.int32(), 7),
    "small": ("INTEGER", pa.uint8(), 200),
    "double": ("DOUBLE", pa.float32(), 0.5),
    "count": ("DOUBLE", pa.int32(), 3),
    "wall": ("TIMESTAMP", pa.timestamp("ms"), 1_795_255_200_123),
    "nanos": ("TIMESTAMP", pa.timestamp("ns"), 1_795_255_200_123_456_000),
}


def every_type(place: Place) -> Table:
    """Five rows in five partitions, one of which lacks nearly all columns and has one more."""
    table = Table.create(
        place.uri,
        partition_by=["day", "n % 2 AS parity", "'a/b ' || (n % 2) AS odd", "n > 1 AS late"],
        storage_options=place.storage_options,
    )
    table.insert(duckdb.connect().sql(EVERY_TYPE))
    table.insert([{"n": 9, "day": None, "later": "column"}])
    return table


def by_hour(place: Place) -> tuple[Table, Snapshot]:
    """Return a table whose partition columns are in the paths only, and a snapshot from before later commits."""
    hour = "date_trunc('hour', TIMESTAMP '2026-11-21 22:00:00' + to_hours(n::INT)) AS hour"
    table = Table.create(place.uri, partition_by=[hour, "n % 2 = 0 AS even"], storage_options=place.storage_options)
    table.insert([{"n": n} for n in range(4)])
    before = table.snapshot()
    table.insert([{"n": n, "later": f"é{n}"} for n in range(6)])
    table.merge()
    table.drop_partitions("hour = '2026-11-21 22:00:00'")
    return table, before


def widened(place: Place) -> Table:
    """Return a table with one inserted row, and one in a part whose types are narrower."""
    table = Table.create(place.uri, storage_options=place.storage_options)
    select = ", ".join(f"CAST(NULL AS {type_}) AS {column}" for column, (type_, _, _) in WIDENED.items())
    table.insert(duckdb.connect().sql(f"SELECT 1 AS n, {select}"))
    foreign: dict[str, tuple[str, pa.DataType, list[Any]]] = {"n": ("INTEGER", pa.int32(), [2])}
    foreign |= {column: (type_, stored, [value]) for column, (type_, stored, value) in WIDENED.items()}
    foreign_append(table.handle.store, table.handle.read().newest_ms + 1, foreign)
    return table


def forget(snapshot: Snapshot, keep: str) -> int:
    """Delete the objects of all parts but those of the partitions `keep`: what is read then can only be of these."""
    gone = [p for p in snapshot.parts if p not in snapshot.files(keep)]
    snapshot.handle.store.delete([p.key for p in gone])
    return len(gone)


def rows_by(column: str, table: pa.Table) -> list[dict[str, Any]]:
    """Return rows in an order that is equal for all readers."""
    return sorted(table.to_pylist(), key=lambda row: (row[column], str(row)))
