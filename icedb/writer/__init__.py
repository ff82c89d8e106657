"""Writes of sorted, partitioned Parquet parts (data files) to the store.

`batch_loader` loads a batch into DuckDB, `staging` converts, partitions and sorts it, `part_writer` encodes and puts
the parts. No module here commits. May import `icedb.sources`. Begin with `staging`.
"""
