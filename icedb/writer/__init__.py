"""Writes of sorted, partitioned Parquet parts (data files) to the store.

`batch_loader` loads a batch into memory or into DuckDB, `staging` converts, partitions and sorts it, `part_writer`
encodes the parts with `encoding/`, and puts them. No module here commits. May import `icedb.sources`. Begin with
`staging`.
"""
