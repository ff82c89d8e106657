"""Tables for the tests of exports: values of each type, strange partition values, and changes of a table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import duckdb

from icedb import Table
from tests.support.object_stores.stores import Place

#: A value of each type that Delta and Iceberg can have.
TYPES = {
    "boolean": "true",
    "tinyint": "(-5)::TINYINT",
    "smallint": "(-300)::SMALLINT",
    "int": "(-70000)::INTEGER",
    "bigint": "9223372036854775807::BIGINT",
    "utinyint": "200::UTINYINT",
    "usmallint": "60000::USMALLINT",
    "uinteger": "4000000000::UINTEGER",
    "float": "0.1::FLOAT",
    "double": "0.1::DOUBLE",
    "decimal_4": "1.2::DECIMAL(4,1)",
    "decimal_18": "12.34::DECIMAL(18,2)",
    "decimal_38": "1234567890123456789012345678.12::DECIMAL(38,2)",
    "varchar": "'Zürich 😀'",
    "blob": r"'\xAA\x00'::BLOB",
    "date": "DATE '2026-11-21'",
    "timestamp": "TIMESTAMP '2026-11-21 03:04:05.678901'",
    "timestamptz": "TIMESTAMPTZ '2026-11-21 03:04:05.678901+02'",
    "enum": "'a'::ENUM('a', 'b')",
    "list": "[1, NULL, 3]",
    "array": "[1, 2]::INTEGER[2]",
    "list_of_struct": "[{'a': 1, 'b': ['x']}]",
    "struct": "{'a': 1::UTINYINT, 'b': TIMESTAMP '2026-11-21 03:04:05', 'c': {'d': 'x'}}",
    "map": "MAP {'k': 1}",
    "map_of_lists": "MAP {1: ['x', NULL]}",
    "a name, with (spaces); and ünicode=": "1",
}
STRANGE = ["New York", "a/b", "50%", "x=y", "it's", "Zürich", "東京 😀", "NULL", "..", "a%20b", "+", "&?#", None]


def rows_of(values: dict[str, str]) -> duckdb.DuckDBPyRelation:
    one = ", ".join(f'{sql} AS "{name}"' for name, sql in values.items())
    nulls = ", ".join(f'NULL AS "{name}"' for name in values)
    return duckdb.sql(f"SELECT {one} UNION ALL BY NAME SELECT {nulls}")


def fill(table: Table, *numbers: int) -> None:
    table.insert([{"n": n} for n in numbers])


def live(table: Table) -> set[str]:
    return {p.key for p in table.snapshot().parts}


def exports(table: Table) -> list[str]:
    return [p.name for p in table.pins()]


def with_typed_partitions(place: Place, cities: list[str | None]) -> Table:
    """Create a table with partition columns of many types, and insert a row for each city, and one of nulls."""
    table = Table.create(
        place.uri,
        partition_by=[
            "n // 2 AS half",
            "c || '' AS city",
            "ts::DATE AS day",
            "date_trunc('hour', ts)::TIMESTAMPTZ AS hour",
            "n > 3 AS late",
            "(n / 4)::DECIMAL(4,2) AS quarter",
            "hash(n) // 1000000000000000000 AS h",
        ],
        storage_options=place.storage_options,
    )
    start = datetime(2026, 11, 21, 23)
    table.insert([{"n": n, "c": c, "ts": start + timedelta(minutes=20 * n)} for n, c in enumerate(cities)])
    table.insert([{"n": None, "c": "x", "ts": None}])
    return table


STEPS: dict[str, Callable[[Table], object]] = {
    "insert": lambda t: fill(t, 1, 2, 30),
    "column": lambda t: t.insert([{"n": 5, "late": "x"}]),
    "merge": lambda t: t.merge(),
    "delete": lambda t: t.delete("n = 2"),
    "rewrite": lambda t: t.rewrite_partition("tens=0", "SELECT * REPLACE (n + 1 AS n) FROM _rows"),
    "drop": lambda t: t.drop_partitions(["tens=3"]),
    "alter": lambda t: t.alter(partition_by=["n % 2 AS odd"]),
    "overwrite": lambda t: t.overwrite([{"n": n} for n in range(4)]),
    "restore": lambda t: t.restore(t.pins()[0].as_of_ms),
}
