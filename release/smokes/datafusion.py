"""A table in a session of DataFusion."""

import datafusion as df

import icedb
from icedb.engines import datafusion as reader

table = icedb.Table.create("events", partition_by=["day"])
table.insert([{"day": "2026-11-21", "n": n} for n in range(10)])
context = df.SessionContext()
reader.register(context, "events", table.snapshot())
assert context.sql("SELECT sum(n) AS n FROM events").to_pydict() == {"n": [45]}
