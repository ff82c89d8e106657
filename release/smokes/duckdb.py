"""A table in a DuckDB connection of the user's own."""

import duckdb

import icedb
from icedb.engines import duckdb as reader

table = icedb.Table.create("events", partition_by=["day"])
table.insert([{"day": "2026-11-21", "n": n} for n in range(10)])
with duckdb.connect() as connection:
    reader.attach(connection, table, "events")
    assert connection.sql("SELECT sum(n) FROM events").fetchall() == [(45,)]
