"""A table as a lazy frame, and a frame as rows."""

import polars as pl

import icedb
from icedb.engines import polars as reader

table = icedb.Table.create("events", partition_by=["day"])
table.insert(pl.DataFrame({"day": ["2026-11-21"] * 10, "n": range(10)}))
assert reader.scan(table.snapshot()).select(pl.col("n").sum()).collect().item() == 45
