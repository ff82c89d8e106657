"""Rows of any shape on their way in: what an insert is given becomes a batch, an Arrow stream with its types.

`opening` tells what it is given; `rows` is for Python's own, `data_frames` for pandas, Polars and DuckDB, `paths` and
`files` for Parquet, JSON lines and CSV. Nothing of the caller's is changed or copied whole.
"""
