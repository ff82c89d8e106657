"""The library alone: a table, its rows again, and an error that names the extra that is missing."""

import importlib.util

import pyarrow as pa

import icedb
from icedb.engines import polars
from icedb.errors import MissingExtra

table = icedb.Table.create("events", partition_by=["strftime(ts, '%Y-%m-%d') AS day"], sort_by=["user_id"])
ts = pa.scalar(1_763_726_400_000, pa.timestamp("ms"))
table.insert([{"ts": ts.as_py(), "user_id": n, "event": "view"} for n in range(1000)])
table.insert(pa.table({"ts": [ts], "user_id": [7], "event": ["buy"]}))
assert table.query("SELECT count(*), count(DISTINCT user_id), max(day) FROM t").fetchall() == [
    (1001, 1000, "2025-11-21")
]
assert table.merge().merged_parts == 2
assert table.verify().ok
for name in ("typer", "polars", "pandas", "pyspark", "dagster", "starlette", "numpy"):
    assert importlib.util.find_spec(name) is None, f"{name} came with the library"
try:
    polars.scan(table.snapshot())
except MissingExtra as error:
    assert "icedb-dagster[polars]" in str(error)
else:
    raise AssertionError("polars is not there, and nobody said so")
