"""Rows of any shape become a batch: an Arrow stream with its types.

`open_source` chooses by the type of its argument: `python_rows` for dicts, `data_frames` for pandas, Polars and DuckDB,
`files` for Parquet, JSON lines and CSV. Nothing of the caller's is changed or copied whole. May import `icedb.sql`.
Begin with `batch` and `open_source`.
"""
