"""A table, asked in ClickHouse's SQL."""

import icedb
from icedb.engines import chdb as reader

table = icedb.Table.create("events", partition_by=["day"])
table.insert([{"day": "2026-11-21", "n": n} for n in range(10)])
assert reader.query("SELECT sum(n) AS n FROM t", table.snapshot())["n"].to_pylist() == [45]
