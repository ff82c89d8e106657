"""A table as a frame, and a frame as rows."""

import pandas as pd

import icedb
from icedb.engines import pandas as reader

table = icedb.Table.create("events", partition_by=["day"])
table.insert(pd.DataFrame({"day": ["2026-11-21"] * 10, "n": range(10)}))
assert reader.read(table.snapshot())["n"].sum() == 45
