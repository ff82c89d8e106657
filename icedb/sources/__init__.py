"""Conversion of a caller's rows into a batch: an Arrow stream with its types.

`open_source` dispatches by the type of its argument: `python_rows` reads dicts, `data_frames` pandas, Polars and
DuckDB, `files` Parquet, JSON lines and CSV. No object of the caller is modified or copied whole. May import
`icedb.sql`. Begin with `batch` and `open_source`.
"""
